//! The sockets of a running agent: a Unix socket whose file is deleted, clients that take all
//! connections, an agent that is frozen when a lock is released, and waits whose replies are lost.

use super::leave::Nodes;
use lockmesh_client::LOCK_FLAGS;
use lockmesh_tests::fleet::wait_until;
use lockmesh_tests::http::{Address, Client};
use lockmesh_tests::process::Process;
use std::fs::remove_file;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, spawn};
use std::time::{Duration, Instant};

fn socket(client: &Client) -> PathBuf {
    let Address::Unix(path) = &client.address else { unreachable!("it listens there alone") };
    path.clone()
}

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it is bound")
}

#[test]
fn a_deleted_socket_is_reported_until_it_is_bound_again() {
    let nodes = Nodes::new();
    let seldom = nodes.agent("web-1", &["--set", "http.socket_check_interval=1h"]);
    let client = nodes.client("web-1");
    wait_until(|| client.get("/health/ready").status == 200);
    let mut early = client.connect().expect("it listens");
    let path = socket(&client);
    remove_file(&path).expect("it is there");
    let answer = early.ask("GET", "/health/ready", &[], b"").expect("connections live on");
    let reason = format!("clients cannot reach the Unix socket {}", path.display());
    assert!(answer.status == 503 && answer.text().contains(&reason), "{}", answer.text());
    seldom.signal("TERM");
    assert_eq!(seldom.ends(), 0);

    let often = nodes.agent("web-2", &["--set", "http.socket_check_interval=100ms"]);
    let client = nodes.client("web-2");
    remove_file(socket(&client)).expect("it is there");
    wait_until(|| client.connect().is_ok());
    often.says("bound it again");
    wait_until(|| client.get("/health/ready").status == 200);
    often.signal("TERM");
    assert_eq!(often.ends(), 0);
    assert!(!socket(&client).exists());
}

#[test]
fn a_client_that_takes_all_connections_costs_no_held_lock() {
    let nodes = Nodes::new();
    let tcp = free_address();
    let http = format!("http.tcp={tcp}");
    let settings = ["--set", &http, "--set", "http.session_ttl_min=100ms"];
    let agent = nodes.agent_with_open_files("web-1", 160, &settings);
    agent.says("permits fewer connections than `http.max_connections`");
    let local = nodes.client("web-1");
    let address = tcp.to_string();
    let lock =
        Process::lockmesh(&["lock", "job", "--ttl", "1s", "--http-addr", &address, "--", "sleep", "600"]);
    wait_until(|| local.get("/v1/kv/job/.lock").status == 200);
    let holder = local.holder("job/.lock");
    assert!(holder.is_some());

    let mut greedy: Vec<_> = (0..200).map(|_| TcpStream::connect(tcp).expect("it listens")).collect();
    let refused = Client { address: Address::Tcp(tcp) }.get("/v1/kv/other").expect(500);
    assert!(refused.text().contains("the agent has reached its limit of connections"), "{}", refused.text());
    // A reset counts as an end.
    assert!(!greedy[150].read(&mut [0]).is_ok_and(|length| length > 0), "it lost its place");
    let session = local.session();
    let waited = local.put(&format!("/v1/kv/job/.lock?acquire={session}&wait=3s"), "");
    assert_eq!(waited.expect(200).text(), "false");
    assert_eq!(local.holder("job/.lock"), holder, "it was renewed meanwhile");
    drop(greedy);
    assert!(!agent.said().contains("cannot accept connections"), "{}", agent.said());
    lock.signal("TERM");
    lock.ends();
    agent.signal("TERM");
    assert_eq!(agent.ends(), 0);
}

#[test]
fn an_agent_that_is_frozen_at_the_release_does_not_keep_the_command() {
    let nodes = Nodes::new();
    let agent = nodes.agent("web-1", &["--set", "http.session_ttl_min=100ms"]);
    let freeze = format!("kill -STOP {}", agent.number());
    let (code, _, said) = nodes.command("web-1", &["lock", "job", "--ttl", "1s", "--", "sh", "-c", &freeze]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("the agent did not reply within the session's TTL of 1s"), "{said}");
}

/// Starts a proxy in front of an agent that swallows the replies to waits for a lock.
fn proxy_that_swallows_waits(agent: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    spawn(move || {
        for client in listener.incoming() {
            let client = client.expect("it listens");
            let server = TcpStream::connect(agent).expect("the agent listens");
            spawn(move || forward(&client, &server));
        }
    });
    address
}

/// Forwards a connection until it ends; once a wait was requested, nothing comes back any more, and
/// the connection stays open.
fn forward(client: &TcpStream, server: &TcpStream) {
    let is_silent = AtomicBool::new(false);
    scope(|scope| {
        scope.spawn(|| {
            let (mut server, mut client, mut bytes) = (server, client, [0; 4096]);
            while let Ok(length @ 1..) = server.read(&mut bytes) {
                if !is_silent.load(Ordering::SeqCst) && client.write_all(&bytes[..length]).is_err() {
                    break;
                }
            }
        });
        let (mut server, mut client, mut bytes) = (server, client, [0; 4096]);
        while let Ok(length @ 1..) = client.read(&mut bytes) {
            if String::from_utf8_lossy(&bytes[..length]).contains("&wait=") {
                is_silent.store(true, Ordering::SeqCst);
            }
            if server.write_all(&bytes[..length]).is_err() {
                break;
            }
        }
        // The agent sees the end of the client, but not before.
        let _ = server.shutdown(Shutdown::Both);
    });
}

#[test]
fn waiter_runs_its_command_although_grant_is_swallowed() {
    let nodes = Nodes::new();
    let tcp = free_address();
    let _agent = nodes.agent("web-1", &["--set", &format!("http.tcp={tcp}")]);
    let local = nodes.client("web-1");
    let holder = local.session();
    let lock =
        |verb| local.put(&format!("/v1/kv/job/.lock?flags={LOCK_FLAGS}&{verb}={holder}"), "").is_true();
    assert!(lock("acquire"));
    let proxy = proxy_that_swallows_waits(tcp).to_string();
    let words = ["lock", "job", "--verbose", "--timeout", "30s", "--http-addr", &proxy, "--", "echo", "ran"];
    let waiter = Process::lockmesh(&words);
    waiter.says("waiting for job: held by");
    assert!(lock("release"));
    let released = Instant::now();
    assert_eq!(waiter.ends(), 0, "{}", waiter.said());
    assert!(released.elapsed() < Duration::from_secs(15), "{:?}", released.elapsed());
    let said = waiter.said();
    assert_eq!(said.matches("waiting for job:").count(), 1, "its own session is no obstacle: {said}");
    local.get("/v1/kv/job/.lock").expect(404);
}

/// Without a quorum, a call is held by the agent for 7 s; without an agent that runs, for ever.
#[test]
fn timeout_is_kept_without_leader_and_without_agent() {
    let nodes = Nodes::new();
    let agent = nodes.agent("web-1", &[]);
    let ends_in_time = || {
        for command in [&["lock", "job"][..], &["semaphore", "pool", "--slots", "2"], &["elect", "office"]] {
            let begun = Instant::now();
            let words = [command, &["--timeout", "1s", "--", "true"]].concat();
            let (code, _, said) = nodes.command("web-1", &words);
            let elapsed = begun.elapsed();
            assert_eq!(code, 120, "{command:?}: {said}");
            assert!(said.contains(" in 1s"), "{said}");
            assert!(elapsed >= Duration::from_secs(1), "{command:?}: {elapsed:?}");
            assert!(elapsed < Duration::from_secs(4), "{command:?}: {elapsed:?}");
        }
    };
    nodes.server.signal("STOP");
    ends_in_time();
    agent.signal("STOP");
    ends_in_time();
}
