//! Assertions 42, 44, 59, 67 and 69 with several servers: the view of an agent's clients while
//! servers are killed, stopped and emptied.
//!
//! Time is only bounded from below and compared in order: delays on a loaded machine prove nothing.

use lockmesh_tests::dialect::let_pass;
use lockmesh_tests::fleet::{Fleet, freeze, shell, wait_until};
use lockmesh_tests::http::Client;
use lockmesh_tests::process::Process;
use serde_json::{Value, json};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Interval between two checks.
const BACKOFF: Duration = Duration::from_millis(20);
/// Long enough that it never ends a successful test.
const LONG: &str = "120s";

fn fleet(folder: &tempfile::TempDir) -> Fleet {
    Fleet::start_with(folder.path(), "3", &["--session-ttl-min", "1s"])
}

fn signal(fleet: &Fleet, server: &str, name: &str) {
    assert!(shell(&format!("kill -{name} {}", fleet.pid(server))));
}

/// Kills a server, and waits until its address is free.
fn kill(fleet: &Fleet, server: &str) {
    signal(fleet, server, "KILL");
    fleet.process.says(&format!("the server {server} is gone"));
}

fn restart(fleet: &Fleet, server: &str) -> Process {
    let config = fleet.folder.join(server).join("server.toml");
    Process::lockmesh(&["server", "--config", config.to_str().expect("text")])
}

fn followers(fleet: &Fleet) -> Vec<String> {
    let leader = fleet.leader();
    ["s1", "s2", "s3"].map(str::to_owned).into_iter().filter(|server| *server != leader).collect()
}

#[test]
fn a_lock_delay_outlives_its_leader() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let fleet = fleet(&folder);
    let client = fleet.client();
    let holder = client.session_of(json!({"LockDelay": "3s", "NodeChecks": []}));
    let next = client.session();
    assert!(client.acquire("job", &holder));
    let before = Instant::now();
    client.destroy(&holder);
    signal(&fleet, &fleet.leader(), "KILL");
    assert!(!client.acquire("job", &next), "the new leader knows the lock-delay");
    while !client.acquire("job", &next) {
        let_pass(BACKOFF);
    }
    assert!(before.elapsed() >= Duration::from_secs(3));
    fleet.stop();
}

#[test]
fn a_ttl_begins_anew_with_a_new_leader_and_ends() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let fleet = fleet(&folder);
    let client = fleet.client();
    let body = json!({"TTL": "3s", "LockDelay": "0s", "Behavior": "release", "NodeChecks": []});
    let session = client.session_of(body);
    assert!(client.acquire("job", &session));
    let_pass(Duration::from_secs(2));
    let killed = Instant::now();
    signal(&fleet, &fleet.leader(), "KILL");
    while client.session_info(&session).is_some() {
        let_pass(BACKOFF);
    }
    assert!(killed.elapsed() >= Duration::from_secs(3), "the session ended before its TTL had passed again");
    assert_eq!(client.holder("job"), None);
    fleet.stop();
}

#[test]
fn a_consistent_watch_on_a_leader_that_is_deposed_tells_the_truth() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let fleet = fleet(&folder);
    let client = fleet.client();
    client.set("job", "old");
    let index = client.get("/v1/kv/job").index();
    let watch = client.watch(&format!("/v1/kv/job?consistent&index={index}&wait={LONG}"));
    let deposed = fleet.leader();
    freeze(&fleet.pid(&deposed));
    client.set("job", "new");
    assert_ne!(fleet.leader(), deposed);
    signal(&fleet, &deposed, "CONT");
    let answer = watch.answer();
    assert!(answer.status == 500 || answer.entry()["Value"] == "bmV3", "a stale value must not be returned");
    assert_eq!(client.get("/v1/kv/job?consistent&raw").expect(200).text(), "new");
    fleet.stop();
}

#[test]
fn without_a_majority_only_stale_reads_are_served_and_all_comes_back_by_itself() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let fleet = fleet(&folder);
    let client = fleet.client();
    client.set("job", "kept");
    let dead = followers(&fleet);
    dead.iter().for_each(|server| kill(&fleet, server));
    let asked = Instant::now();
    let write = client.put("/v1/kv/job", "lost");
    assert_eq!(write.status, 500, "{write:?}");
    assert!(write.text().contains("No cluster leader"), "{write:?}");
    assert!(asked.elapsed() >= Duration::from_secs(5), "the write was retried for the hold time");
    client.get("/v1/kv/job").expect_text(500, "No cluster leader");
    let stale = client.get("/v1/kv/job?stale&raw").expect(200);
    assert_eq!((stale.text(), stale.header("X-Consul-Knownleader")), ("kept", Some("false")));
    let again: Vec<_> = dead.iter().map(|server| restart(&fleet, server)).collect();
    wait_until(|| client.put("/v1/kv/job", "again").status == 200);
    assert_eq!(client.get("/v1/kv/job?raw").expect(200).text(), "again");
    for process in &again {
        process.signal("TERM");
    }
    fleet.stop();
}

#[test]
fn a_restored_backup_is_everywhere_and_wakes_whoever_waits() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let fleet = fleet(&folder);
    let client = fleet.client();
    client.set("job/config", "first");
    let session = client.session_of(json!({"TTL": "60s", "LockDelay": "0s", "NodeChecks": []}));
    assert!(client.acquire("job/leader", &session));
    let backup = client.get("/v1/snapshot").expect(200);
    client.set("job/config", "second");
    client.set("job/more", "later");
    client.destroy(&session);
    let index = client.get("/v1/kv/job/config").index();
    let watch = client.watch(&format!("/v1/kv/job/config?index={index}&wait={LONG}"));
    client.put("/v1/snapshot", &backup.body).expect(200);
    assert_eq!(watch.answer().entry()["Value"], "Zmlyc3Q=", "the watcher sees the value from the backup");
    signal(&fleet, &fleet.leader(), "KILL");
    assert_eq!(client.get("/v1/kv/job/config?raw").expect(200).text(), "first");
    assert_eq!(client.get("/v1/kv/job/more").status, 404);
    assert_eq!(client.holder("job/leader").as_deref(), Some(session.as_str()));
    let mut damaged = backup.body;
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0x40;
    assert_ne!(client.put("/v1/snapshot", &damaged).status, 200);
    assert_eq!(client.get("/v1/kv/job/config?raw").expect(200).text(), "first");
    fleet.stop();
}

/// Writes and counts until `stop` is set; every write must succeed.
fn write_on(client: Client, stop: Arc<AtomicBool>, done: Arc<AtomicU64>, writer: usize) {
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        client.set(&format!("load/{writer}/{}", number % 200), &"x".repeat(256));
        done.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn an_emptied_server_is_brought_back_and_backups_are_made_while_clients_write() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let fleet = fleet(&folder);
    let client = fleet.client();
    let (stop, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (client, stop, done) = (fleet.client(), Arc::clone(&stop), Arc::clone(&done));
            thread::spawn(move || write_on(client, stop, done, writer))
        })
        .collect();
    let victim = followers(&fleet).remove(0);
    kill(&fleet, &victim);
    fs::remove_dir_all(fleet.folder.join(&victim).join("data")).expect("its data can be removed");
    let before = done.load(Ordering::Relaxed);
    let again = restart(&fleet, &victim);
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
    assert!(done.load(Ordering::Relaxed) > before, "other clients were served meanwhile");
    stop.store(true, Ordering::Relaxed);
    writers.into_iter().for_each(|writer| writer.join().expect("no write failed"));
    wait_until(|| fleet.servers().len() == 3);
    again.signal("TERM");
    assert_eq!(again.ends(), 0);
    fleet.stop();
}

#[test]
fn every_server_is_restarted_in_turn_and_no_write_fails() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let fleet = fleet(&folder);
    let (stop, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (client, stop, done) = (fleet.client(), Arc::clone(&stop), Arc::clone(&done));
            thread::spawn(move || write_on(client, stop, done, writer))
        })
        .collect();
    let healthy = || fleet.client().get("/v1/operator/autopilot/health").status == 200;
    let mut again = Vec::new();
    for server in ["s1", "s2", "s3"] {
        wait_until(healthy);
        signal(&fleet, server, "TERM");
        fleet.process.says(&format!("the server {server} is gone"));
        again.push(restart(&fleet, server));
    }
    wait_until(healthy);
    stop.store(true, Ordering::Relaxed);
    writers.into_iter().for_each(|writer| writer.join().expect("no write failed"));
    let value: Value = fleet.client().get("/v1/kv/load/0/0").entry();
    assert_eq!(value["Key"], "load/0/0");
    again.iter().for_each(|server| server.signal("TERM"));
    fleet.stop();
}
