//! `lockmesh dev --nodes 3` and `lockmesh dev kill`: agents and servers as separate processes that
//! can be killed one by one, and the output of that.

use lockmesh_tests::dialect::let_pass;
use lockmesh_tests::fleet::{Fleet, gone, is_alive, wait_until};
use lockmesh_tests::http::Client;
use lockmesh_tests::process::{Process, run};
use serde_json::{Value, json};
use std::fs;
use std::thread;
use std::time::Duration;

/// Every process of three servers and three agents.
const ALL: [&str; 6] = ["s1", "s2", "s3", "n1", "n2", "n3"];

fn start() -> Fleet {
    Fleet::new("3", &["--nodes", "3"])
}

/// A session of an agent's node that depends on no check, so that only its TTL can end it.
fn session_of(client: &Client, name: &str, ttl: &str) -> String {
    client.session_of(json!({"Name": name, "LockDelay": "0s", "NodeChecks": [], "TTL": ttl}))
}

/// Renews a session until its agent is gone.
fn renew_while_it_lives(client: Client, session: &str) -> thread::JoinHandle<()> {
    let path = format!("/v1/session/renew/{session}");
    thread::spawn(move || {
        while client.try_ask("PUT", &path, &[], b"").is_ok() {
            let_pass(Duration::from_millis(500));
        }
    })
}

#[test]
fn killing_node_reports_lock_handover() {
    let dev = start();
    for node in ["n1", "n2", "n3"] {
        let own = dev.client_of(node).get("/v1/agent/self").expect(200).json();
        assert_eq!(own["Config"]["NodeName"], node);
    }
    assert_eq!(dev.client().get("/v1/agent/self").expect(200).json()["Config"]["NodeName"], "n1");
    let (_, members, _) = dev.command(&["members"]);
    assert!(ALL.iter().all(|name| members.lines().any(|line| line.starts_with(name))), "{members}");

    let (doomed, other) = (dev.client_of("n3"), dev.client_of("n2"));
    let (expiring, lasting) = (session_of(&doomed, "expiring", "10s"), session_of(&doomed, "lasting", ""));
    assert!(doomed.acquire("job/expiring", &expiring) && doomed.acquire("job/lasting", &lasting));
    let renewals = renew_while_it_lives(doomed, &expiring);
    let waiter = session_of(&other, "waiter", "");
    let waiting = {
        let (other, path) = (other.clone(), format!("/v1/kv/job/expiring?acquire={waiter}&wait=10m"));
        thread::spawn(move || other.put(&path, "mine").is_true())
    };
    let is_waited_for = |lock: &Value| lock["Key"] == "job/expiring" && lock["Waiters"] == 1;
    wait_until(|| {
        let locks = other.get("/v1/lockmesh/locks").expect(200).json();
        locks.as_array().expect("a list").iter().any(is_waited_for)
    });

    let pid = dev.pid("n3");
    let kill = ["dev", "kill", "n3", "--timeout", "10m", "--data-dir", dev.data()];
    let kill = Process::lockmesh(&kill);
    kill.says(&format!("n3 (pid {pid}) is killed; sessions of its node held 2 locks"));
    gone(&pid);
    dev.process.says("the agent n3 is gone (signal: 9 (SIGKILL)) and is not started again");
    other.destroy(&lasting);
    kill.says("job/lasting: free");
    kill.says("job/expiring: held by waiter on n2, fence ");
    assert_eq!(kill.ends(), 0);
    assert!(waiting.join().expect("it is answered"), "the waiter has the lock");
    renewals.join().expect("it has ended");
    let said = kill.said();
    let row = |key: &str| {
        let row = said.lines().rfind(|line| line.starts_with(key));
        row.unwrap_or_else(|| panic!("{key}: {said}")).to_owned()
    };
    assert!(row("job/lasting").contains(" destroyed "), "{said}");
    assert!(
        row("job/expiring").contains(" ttl-expired ") && row("job/expiring").contains(" waiter "),
        "{said}"
    );

    let by_hand = dev.restart("n3");
    by_hand.says("ready");
    assert_eq!(dev.pid("n3"), by_hand.number().to_string());
    dev.client_of("n3").set("again", "there");
    assert_eq!(dev.kill("n3", &[]).0, 0, "an agent that was started by hand belongs to the folder too");
    gone(&by_hand.number().to_string());
    dev.stop();
}

#[test]
fn killing_leader_reports_new_leader() {
    let dev = start();
    let leader = dev.leader();
    let follower = ["s1", "s2", "s3"].into_iter().find(|server| *server != leader).expect("there are three");
    let (code, shown, said) = dev.kill(&leader, &["--json", "--timeout", "10m"]);
    assert_eq!(code, 0, "{said}");
    let shown: Value = serde_json::from_str(&shown).expect("it is JSON");
    assert_eq!((&shown["Node"], &shown["Led"]), (&json!(leader), &json!(true)));
    let next = shown["Leader"].as_str().expect("there is a leader").to_owned();
    assert!(next != leader && shown["AfterMs"].is_u64(), "{shown}");

    // With two of three servers gone there is no majority.
    let (code, shown, said) = dev.kill(follower, &["--timeout", "2s"]);
    assert!(code == 1 && shown.contains(&format!("{follower} (pid ")), "{shown}");
    assert!(said.contains("no leader: ") && said.contains("needs a majority"), "{said}");
    assert!(
        said.contains(&format!("lockmesh server --config {}/{follower}/server.toml", dev.data())),
        "{said}"
    );
    dev.stop();
}

#[test]
fn restart_keeps_data_without_orphans() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let first = Fleet::start_with(folder.path(), "3", &["--nodes", "3"]);
    first.client_of("n2").set("kept", "for the next start");
    let pids = ALL.map(|name| first.pid(name));
    for several in ["--nodes", "--servers"] {
        let (code, _, said) =
            run(&["dev", "--http", "127.0.0.1:0", several, "3", "--data-dir", first.data()]);
        assert!(code == 1 && said.contains("another `lockmesh dev` uses the folder"), "{said}");
    }
    assert_eq!(ALL.map(|name| first.pid(name)), pids, "the pid files of running processes are unchanged");
    first.stop();
    assert!(pids.iter().all(|pid| !is_alive(pid)), "the command waited for their exit");
    for left in ["s1/pid", "n1/pid", "n2/agent.sock"] {
        assert!(!folder.path().join(left).exists(), "{left}");
    }

    let second = Fleet::start_with(folder.path(), "3", &["--nodes", "3"]);
    assert_eq!(second.client_of("n3").get("/v1/kv/kept?raw").expect(200).text(), "for the next start");
    second.process.signal("HUP");
    let log = folder.path().join("n2/log");
    wait_until(|| fs::read_to_string(&log).expect("it has a log").contains("reloaded: no changes"));
    let pids = ALL.map(|name| second.pid(name));
    second.process.signal("KILL");
    second.process.ends();
    pids.iter().for_each(|pid| gone(pid));
}

#[test]
fn foreign_process_is_not_killed() {
    let dev = Fleet::new("1", &["--nodes", "2"]);
    let (pid, file) = (dev.pid("n2"), dev.folder.join("n2/pid"));
    let refused = |node: &str, words: &str| {
        let (code, shown, said) = dev.kill(node, &[]);
        assert!(code == 1 && shown.is_empty() && said.contains(words), "{code} {shown} {said}");
    };
    refused("n3", "there are s1, n1, n2");
    refused("s1/../n1", "there are s1, n1, n2");
    for foreign in [std::process::id().to_string(), dev.pid("n1"), dev.process.number().to_string()] {
        fs::write(&file, &foreign).expect("it can be written");
        refused("n2", &format!("the process {foreign}, which {} names, is not n2", file.display()));
        assert!(is_alive(&foreign));
    }
    fs::write(&file, "all of them").expect("it can be written");
    refused("n2", "holds no process number");
    fs::remove_file(&file).expect("it is there");
    refused("n2", "n2 does not run: there is no ");
    fs::write(&file, &pid).expect("it can be written");
    dev.client_of("n2").set("n2", "lives");

    let (code, shown, said) = dev.kill("n2", &["--json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap_or_else(|error| panic!("{error}: {said}"));
    assert_eq!((code, &shown["Settled"], &shown["Locks"]), (0, &json!(true), &json!([])));
    refused("n2", &format!("n2 does not run: the process {pid} of "));
    let (code, shown, said) = dev.kill("n1", &[]);
    assert!(code == 0 && shown.contains("its locks are not known"), "{code} {shown}");
    assert!(said.contains("what becomes of the locks of n1 cannot be shown"), "{said}");
    dev.stop();
}

#[test]
fn overlong_socket_path_rejected_early() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path().join("x".repeat(100));
    let data_dir = data.to_str().expect("text");
    let (code, _, said) = run(&["dev", "--http", "127.0.0.1:0", "--nodes", "2", "--data-dir", data_dir]);
    assert!(code == 1 && said.contains("the system takes 107: name a folder of 93 bytes at most"), "{said}");
    assert!(!data.exists());
    let (code, _, said) = run(&["dev", "--nodes", "2", "--socket", "/tmp/sock"]);
    assert!(code == 2 && said.contains("cannot be used with"), "{said}");
}
