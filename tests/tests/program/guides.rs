//! The guides that Consul's users learn from, command for command with `curl`, over TCP and over
//! the Unix socket.

use lockmesh_tests::dev::Dev;
use std::process::Command;

/// Runs a guide against a server of its own.
fn follow(guide: &str, over_socket: bool) {
    let server = Dev::start(&[]);
    let mut bash = Command::new("bash");
    bash.arg(format!("{}/guides/{guide}.sh", env!("CARGO_MANIFEST_DIR")));
    bash.env("WORK", server.folder.path()).env("LOCKMESH_PORT", server.http.port().to_string());
    if let Some(socket) = server.socket.as_ref().filter(|_| over_socket) {
        bash.env("LOCKMESH_SOCKET", socket);
    }
    let output = bash.output().expect("bash can be started");
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
fn leader_election_over_the_unix_socket() {
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
