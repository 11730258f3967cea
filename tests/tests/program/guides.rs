//! Consul's tutorials, command by command with `curl`, over TCP and over the Unix socket.

use lockmesh_tests::dev::Dev;
use lockmesh_tests::fleet::Fleet;
use std::process::Command;

/// Runs a tutorial against a server of its own.
fn follow(guide: &str, over_socket: bool) {
    let server = Dev::start(&[]);
    let (work, port) = (server.folder.path().display().to_string(), server.http.port().to_string());
    let socket = server.socket.as_ref().filter(|_| over_socket).map(|path| path.display().to_string());
    let socket = socket.as_deref().map(|path| ("LOCKMESH_SOCKET", path));
    let known: Vec<_> = [("WORK", &*work), ("LOCKMESH_PORT", &*port)].into_iter().chain(socket).collect();
    run(guide, &known);
}

fn run(guide: &str, environment: &[(&str, &str)]) {
    let mut bash = Command::new("bash");
    bash.arg(format!("{}/guides/{guide}.sh", env!("CARGO_MANIFEST_DIR")));
    let output = bash.envs(environment.iter().copied()).output().expect("bash can be started");
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{guide} failed:\n{said}\n{complained}");
    println!("{said}");
}

#[test]
fn leader_election_over_tcp() {
    follow("leader_election", false);
}

#[test]
fn leader_election_over_unix_socket() {
    follow("leader_election", true);
}

#[test]
fn semaphore_over_tcp() {
    follow("semaphore", false);
}

#[test]
fn semaphore_over_the_unix_socket() {
    follow("semaphore", true);
}

#[test]
fn host_failure_from_another_host() {
    let fleet = Fleet::new("3", &["--nodes", "5"]);
    let port = fleet.http.rsplit(':').next().expect("an address has a port");
    run("host_failure", &[("FLEET", fleet.data()), ("WORK", fleet.data()), ("LOCKMESH_PORT", port)]);
    fleet.stop();
}
