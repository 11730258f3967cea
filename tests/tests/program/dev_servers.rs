//! `lockmesh dev --servers 3`: servers that can be killed one by one, and that never outlive the
//! command.

use lockmesh_tests::dev::Dev;
use lockmesh_tests::fleet::{Fleet, gone, is_alive, shell, wait_until};
use lockmesh_tests::process::{Process, run};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

#[test]
fn killed_leader_fails_over_and_rejoins() {
    let dev = Fleet::new("3", &[]);
    let client = dev.client();
    dev.until_all_are_healthy();
    let health = client.get("/v1/operator/autopilot/health").expect(200).json();
    let versions = health["Servers"].as_array().expect("a list").iter().map(|server| &server["Version"]);
    let is_ours = |version: &serde_json::Value| {
        version.as_str().is_some_and(|text| text.starts_with(env!("CARGO_PKG_VERSION")))
    };
    assert!(versions.clone().all(is_ours) && versions.count() == 3, "{health}");
    client.set("before", "the kill");
    let leader = dev.leader();
    let pid = dev.pid(&leader);
    assert!(shell(&format!("kill -9 $(cat {}/{leader}/pid)", dev.folder.display())));
    client.set("after", "the kill");
    dev.process.says(&format!("the server {leader} is gone (signal: 9 (SIGKILL)) and is not started again"));
    let next = dev.leader();
    assert_ne!(next, leader);
    assert_eq!(client.get("/v1/operator/autopilot/health").status, 429);
    let third = ["s1", "s2", "s3"].into_iter().find(|server| *server != leader && *server != next);
    assert_log_tells_the_election(
        &dev.folder.join(third.expect("there are three")).join("log"),
        &leader,
        &next,
    );

    let by_hand = dev.restart(&leader);
    by_hand.says("the server listens");
    wait_until(|| client.get("/v1/operator/autopilot/health").status == 200);
    assert!(dev.pid(&leader) != pid && dev.pid(&leader) == by_hand.number().to_string());
    by_hand.signal("TERM");
    assert_eq!(by_hand.ends(), 0);
    dev.stop();
}

/// Checks that a follower's log reports the loss of the leader and the new leader by node name, and
/// that its start reports its own identity.
fn assert_log_tells_the_election(log: &Path, former: &str, next: &str) {
    let said = || fs::read_to_string(log).expect("it has a log");
    wait_until(|| said().contains(&format!("following the leader node={next} ")));
    let said = said();
    let line = |words: &str| {
        said.lines().find(|line| line.contains(words)).unwrap_or_else(|| panic!("{words}: {said}"))
    };
    assert!(line("lost the leader").contains("WARN"), "{said}");
    assert!(line("lost the leader").contains(&format!("node={former} ")), "{said}");
    assert!(line("starting a server").contains("version=") && line("starting a server").contains("commit="));
    assert!(line("is a member of the cluster").contains("cluster="), "{said}");
    assert!(!said.contains("node=unknown"), "founding servers are logged by node name: {said}");
    assert!(!said.contains("ServerId(") && !said.contains("::ffff:"), "internal notation in the log: {said}");
}

#[test]
fn data_folder_rollback_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dev = Fleet::start(folder.path(), "3");
    let client = dev.client();
    client.set("before", "the copy");
    let leader = dev.leader();
    let follower = ["s1", "s2", "s3"].into_iter().find(|server| *server != leader).expect("there are three");
    let (own, copy) = (folder.path().join(follower), folder.path().join("copy"));
    let (own_text, copy_text) = (own.display(), copy.display());
    dev.kill_process(follower);
    assert!(shell(&format!("cp -r {own_text} {copy_text}")));
    let is_well = || client.get("/v1/operator/autopilot/health").status == 200;

    let mut by_hand = dev.restart(follower);
    by_hand.says("the server listens");
    wait_until(is_well);
    (0..20).for_each(|number| client.set(&format!("after/{number}"), "the copy"));
    wait_until(is_well);
    by_hand.kill();
    assert!(shell(&format!("cp -r {copy_text}/. {own_text}/")), "the old contents, in the same files");
    let mut set_back = dev.restart(follower);
    let words = set_back.says("it votes and answers no more");
    assert!(words.contains("was set back") && words.contains("empty its data folder"), "{words}");
    client.set("without", "the one that forgot");
    // The leader notices its silence a little later.
    wait_until(|| !is_well());
    assert!(is_alive(&set_back.number().to_string()) && !set_back.said().contains("panicked"));
    set_back.kill();
    dev.stop();
}

#[test]
fn restart_keeps_data_and_addresses() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let first = Fleet::start(folder.path(), "3");
    first.client().set("kept", "for the next start");
    let reloaded = first.client().put("/v1/agent/reload", "").expect(200);
    let changes = reloaded.any_case("X-Lockmesh-Reloaded").expect("the changes are listed");
    assert!(changes.contains("s3: reload requested"), "{changes}");
    let log = folder.path().join("s3/log");
    wait_until(|| fs::read_to_string(&log).expect("it has a log").contains("reloaded: no changes"));
    let addresses =
        |dev: &Fleet| dev.servers().iter().map(|server| server["Address"].clone()).collect::<Vec<_>>();
    let (before, pids) = (addresses(&first), ["s1", "s2", "s3"].map(|server| first.pid(server)));
    first.stop();
    assert!(pids.iter().all(|pid| !is_alive(pid)), "the command waited for their exit");
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
fn servers_end_with_killed_command() {
    let dev = Fleet::new("3", &[]);
    let pids = ["s1", "s2", "s3"].map(|server| dev.pid(server));
    dev.process.signal("KILL");
    dev.process.ends();
    pids.iter().for_each(|pid| gone(pid));
    let log = fs::read_to_string(dev.folder.join("s1/log")).expect("it has a log");
    assert!(log.contains("the end of standard input: stopping"), "{log}");
}

#[test]
fn single_server_removes_temporary_folder() {
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
fn failed_server_start_reports_reason() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    Fleet::start(folder.path(), "3").stop();
    for server in ["s1", "s2"] {
        let config = folder.path().join(server).join("server.toml");
        let text = fs::read_to_string(&config).expect("it is there");
        fs::write(&config, text.replace("[node]", "nonsense = 1\n[node]")).expect("it can be written");
    }
    let data = folder.path().to_str().expect("text");
    let (code, _, said) = run(&["dev", "--http", "127.0.0.1:0", "--servers", "3", "--data-dir", data]);
    assert!(code == 1 && said.contains("unknown key `http.nonsense`"), "{code} {said}");
}

/// Returns the paths below a folder that other users may read or enter. Sockets have their own
/// permissions, and certificates and process numbers are no secret.
fn open_to_others(folder: &Path) -> Vec<String> {
    let mut open = Vec::new();
    for entry in fs::read_dir(folder).expect("it can be listed") {
        let path = entry.expect("it can be listed").path();
        let name = path.to_str().expect("text").to_owned();
        let is_public = (name.ends_with(".pem") && !name.ends_with("-key.pem")) || name.ends_with("/pid");
        let found = fs::symlink_metadata(&path).expect("it is there");
        if (found.is_dir() || found.is_file()) && !is_public && found.permissions().mode() & 0o077 != 0 {
            open.push(name);
        }
        if found.is_dir() {
            open.extend(open_to_others(&path));
        }
    }
    open
}

#[test]
fn cluster_files_become_owner_only() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path().join("data");
    let first = Fleet::start(&data, "3");
    first.client().set("secret", "of the owner");
    assert_eq!(open_to_others(&data), [] as [String; 0]);
    first.stop();
    assert!(shell(&format!("chmod -R go+rX {}", data.display())));
    assert!(open_to_others(&data).len() > 10);

    let second = Fleet::start(&data, "3");
    assert_eq!(open_to_others(&data), [] as [String; 0]);
    let reachable = fs::metadata(&data).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(reachable, 0o755, "applications need access to the socket in it");
    let log = fs::read_to_string(data.join("s1/log")).expect("it has a log");
    let told: Vec<&str> = log.lines().filter(|line| line.contains("removed other users' access")).collect();
    assert!(told.len() == 2 && told[0].contains("state.redb") && told[1].contains("identity"), "{told:?}");
    second.stop();
}

#[test]
fn single_process_folder_becomes_owner_only() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path().join("data");
    let mut dev = Dev::start_with_data(&data, &[]);
    let is_closed = || {
        let mode = fs::metadata(&data).expect("it is there").permissions().mode();
        (mode & 0o777, open_to_others(&data))
    };
    assert_eq!(is_closed(), (0o700, Vec::new()), "the socket is elsewhere");
    dev.kill();
    assert!(shell(&format!("chmod -R go+rX {}", data.display())));
    let dev = dev.restart();
    assert_eq!(is_closed(), (0o700, Vec::new()));
    dev.client().set("it", "serves");
}
