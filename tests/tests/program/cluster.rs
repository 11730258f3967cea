//! The view of an agent's clients while servers are killed, stopped and emptied.
//!
//! Time is only bounded from below: delays on a loaded machine prove nothing.

use lockmesh_tests::fleet::{Fleet, shell, wait_until};
use serde_json::Value;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

fn signal(fleet: &Fleet, server: &str, name: &str) {
    assert!(shell(&format!("kill -{name} {}", fleet.pid(server))));
}

fn followers(fleet: &Fleet) -> Vec<String> {
    let leader = fleet.leader();
    ["s1", "s2", "s3"].map(str::to_owned).into_iter().filter(|server| *server != leader).collect()
}

#[test]
fn quorum_loss_allows_only_stale_reads() {
    let fleet = Fleet::new("3", &[]);
    let client = fleet.client();
    client.set("job", "kept");
    let dead = followers(&fleet);
    dead.iter().for_each(|server| fleet.kill_process(server));
    let asked = Instant::now();
    let write = client.put("/v1/kv/job", "lost");
    assert_eq!(write.status, 500, "{write:?}");
    assert!(write.text().contains("No cluster leader"), "{write:?}");
    assert!(asked.elapsed() >= Duration::from_secs(5), "the write was retried for the hold time");
    client.get("/v1/kv/job").expect_text(500, "No cluster leader");
    let stale = client.get("/v1/kv/job?stale&raw").expect(200);
    assert_eq!((stale.text(), stale.header("X-Consul-Knownleader")), ("kept", Some("false")));
    let again: Vec<_> = dead.iter().map(|server| fleet.restart(server)).collect();
    wait_until(|| client.put("/v1/kv/job", "again").status == 200);
    assert_eq!(client.get("/v1/kv/job?raw").expect(200).text(), "again");
    for process in &again {
        process.signal("TERM");
    }
    fleet.stop();
}

/// Writers of which no write may fail.
struct Load {
    /// Set when they end, and the number of their writes.
    shared: Arc<(AtomicBool, AtomicU64)>,
    writers: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(fleet: &Fleet) -> Self {
        let shared = Arc::<(AtomicBool, AtomicU64)>::default();
        let writer = |writer| {
            let (client, shared) = (fleet.client(), Arc::clone(&shared));
            thread::spawn(move || {
                for number in (0..200).cycle().take_while(|_| !shared.0.load(Ordering::Relaxed)) {
                    client.set(&format!("load/{writer}/{number}"), &"x".repeat(256));
                    shared.1.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let writers = (0..4).map(writer).collect();
        Self { shared, writers }
    }

    fn done(&self) -> u64 {
        self.shared.1.load(Ordering::Relaxed)
    }

    fn end(self) {
        self.shared.0.store(true, Ordering::Relaxed);
        self.writers.into_iter().for_each(|writer| writer.join().expect("no write failed"));
    }
}

#[test]
fn rejoin_and_backups_fail_no_write() {
    let fleet = Fleet::new("3", &[]);
    let client = fleet.client();
    let load = Load::start(&fleet);
    let victim = followers(&fleet).remove(0);
    fleet.kill_process(&victim);
    fs::remove_dir_all(fleet.folder.join(&victim).join("data")).expect("its data can be removed");
    let before = load.done();
    let again = fleet.restart(&victim);
    let votes = |fleet: &Fleet| {
        fleet.servers().iter().any(|server| {
            server["Node"] == victim.as_str()
                && server["RaftID"].as_u64() > Some(3)
                && server["Voter"] == true
        })
    };
    wait_until(|| votes(&fleet));
    for _ in 0..3 {
        assert!(!client.get("/v1/snapshot").expect(200).body.is_empty());
    }
    assert!(load.done() > before, "other clients were served meanwhile");
    load.end();
    wait_until(|| fleet.servers().len() == 3);
    again.signal("TERM");
    assert_eq!(again.ends(), 0);
    fleet.stop();
}

#[test]
fn rolling_restart_loses_no_write() {
    let fleet = Fleet::new("3", &[]);
    let load = Load::start(&fleet);
    let healthy = || fleet.client().get("/v1/operator/autopilot/health").status == 200;
    let mut again = Vec::new();
    for server in ["s1", "s2", "s3"] {
        wait_until(healthy);
        signal(&fleet, server, "TERM");
        fleet.process.says(&format!("the server {server} is gone"));
        again.push(fleet.restart(server));
    }
    wait_until(healthy);
    load.end();
    let value: Value = fleet.client().get("/v1/kv/load/0/0").entry();
    assert_eq!(value["Key"], "load/0/0");
    again.iter().for_each(|server| server.signal("TERM"));
    fleet.stop();
}
