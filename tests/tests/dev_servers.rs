//! `lockmesh dev --servers 3`: servers that can be killed one by one, and that never outlive the command.

use lockmesh_tests::fleet::{Fleet, gone, is_alive, shell, wait_until};
use lockmesh_tests::process::{Process, run};
use std::fs;
use std::path::Path;

#[test]
fn a_killed_leader_is_missed_by_nobody_and_comes_back_by_hand() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dev = Fleet::start(folder.path(), "3");
    let client = dev.client();
    client.set("before", "the kill");
    let leader = dev.leader();
    let pid = dev.pid(&leader);
    assert!(shell(&format!("kill -9 $(cat {}/{leader}/pid)", folder.path().display())));
    client.set("after", "the kill");
    dev.process.says(&format!("the server {leader} is gone (signal: 9 (SIGKILL)) and is not started again"));
    assert_ne!(dev.leader(), leader);
    assert_eq!(client.get("/v1/operator/autopilot/health").status, 429);

    let config = folder.path().join(&leader).join("server.toml");
    let by_hand = Process::lockmesh(&["server", "--config", config.to_str().expect("text")]);
    by_hand.says("the server listens");
    wait_until(|| client.get("/v1/operator/autopilot/health").status == 200);
    assert!(dev.pid(&leader) != pid && dev.pid(&leader) == by_hand.number().to_string());
    by_hand.signal("TERM");
    assert_eq!(by_hand.ends(), 0);
    dev.stop();
}

#[test]
fn a_second_start_finds_everything_where_it_was() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let first = Fleet::start(folder.path(), "3");
    first.client().set("kept", "for the next start");
    let reloaded = first.client().put("/v1/agent/reload", "").expect(200);
    let changes = reloaded.any_case("X-Lockmesh-Reloaded").expect("it says what changed");
    assert!(changes.contains("s3 is told to reload too"), "{changes}");
    let log = folder.path().join("s3/log");
    wait_until(|| fs::read_to_string(&log).expect("it has a log").contains("reloaded: nothing has changed"));
    let addresses =
        |dev: &Fleet| dev.servers().iter().map(|server| server["Address"].clone()).collect::<Vec<_>>();
    let (before, pids) = (addresses(&first), ["s1", "s2", "s3"].map(|server| first.pid(server)));
    first.stop();
    assert!(pids.iter().all(|pid| !is_alive(pid)), "their ends were awaited");
    assert!(!folder.path().join("s1/pid").exists());
    let data = folder.path().to_str().expect("text");
    for (arguments, words) in [
        (["--servers", "1"].as_slice(), "holds the data of 3 servers: start it with --servers 3"),
        (&[], "holds the data of 3 servers: start it with --servers 3"),
        (&["--servers", "2"], "must be 1, 3 or 5"),
    ] {
        let words_of = run(&[&["dev", "--http", "127.0.0.1:0", "--data-dir", data], arguments].concat());
        assert!(words_of.0 != 0 && words_of.2.contains(words), "{words_of:?}");
    }
    let second = Fleet::start(folder.path(), "3");
    assert_eq!(addresses(&second), before);
    assert_eq!(second.client().get("/v1/kv/kept?raw").expect(200).text(), "for the next start");
    second.stop();
}

#[test]
fn servers_do_not_outlive_the_command_however_it_ends() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dev = Fleet::start(folder.path(), "3");
    let pids = ["s1", "s2", "s3"].map(|server| dev.pid(server));
    dev.process.signal("KILL");
    dev.process.ends();
    pids.iter().for_each(|pid| gone(pid));
    let log = fs::read_to_string(folder.path().join("s1/log")).expect("it has a log");
    assert!(log.contains("the end of standard input: stopping"), "{log}");
}

#[test]
fn one_server_is_a_quorum_and_a_temporary_folder_goes() {
    let process = Process::lockmesh(&["dev", "--http", "127.0.0.1:0", "--servers", "1"]);
    let line = process.says("kill -9 $(cat ");
    let pid_file = line.split("$(cat ").nth(1).and_then(|rest| rest.strip_suffix(')')).expect("a path");
    let folder = Path::new(pid_file).parent().and_then(Path::parent).expect("it lies in a folder").to_owned();
    assert!(folder.join("s1/server.toml").exists());
    process.signal("INT");
    assert_eq!(process.ends(), 0);
    assert!(!folder.exists());
}

#[test]
fn a_server_that_cannot_begin_is_named_with_its_reason() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    Fleet::start(folder.path(), "3").stop();
    for server in ["s1", "s2"] {
        let config = folder.path().join(server).join("server.toml");
        let text = fs::read_to_string(&config).expect("it is there");
        fs::write(&config, text.replace("[node]", "nonsense = 1\n[node]")).expect("it can be written");
    }
    let data = folder.path().to_str().expect("text");
    let (code, _, said) = run(&["dev", "--http", "127.0.0.1:0", "--servers", "3", "--data-dir", data]);
    assert!(code == 1 && said.contains("unknown field `nonsense`"), "{code} {said}");
}
