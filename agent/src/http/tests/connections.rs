//! Bytes on real sockets: the spelling of headers, slow and greedy clients, and their end.

use super::Stand;
use crate::http::{HttpLimits, Listeners, UnixSocket, serve};
use serde_json::json;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// An agent that listens.
struct Served {
    stand: Stand,
    tcp: SocketAddr,
    socket: PathBuf,
    stop: watch::Sender<bool>,
    server: JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Served {
    fn new(limits: HttpLimits) -> Self {
        let stand = Stand::with_limits(limits);
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("http.sock");
        let unix = UnixSocket { path: socket.clone(), mode: 0o600, group: None };
        let addresses = ["127.0.0.1:0".parse().unwrap()];
        let listeners = Listeners::bind(&addresses, Some(&unix), false).unwrap();
        let tcp = listeners.tcp_addresses()[0];
        let (stop, stopping) = watch::channel(false);
        let server = tokio::spawn(serve(stand.api.clone(), listeners, stopping));
        Self { stand, tcp, socket, stop, server, _folder: folder }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.tcp).await.unwrap()
    }
}

/// Sends bytes and reads until the server closes.
async fn exchange(stream: &mut TcpStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    // A reset after the response counts as an end.
    let _ = stream.read_to_string(&mut answer).await;
    answer
}

fn closing(method: &str, path: &str, more: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}")
}

#[tokio::test]
async fn header_spelling_matches_consul() {
    let served = Served::new(HttpLimits::default());
    let answer = exchange(&mut served.connect().await, &closing("GET", "/v1/kv/none", "\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 404 Not Found\r\n"), "{answer}");
    for line in [
        "\r\nX-Consul-Index: ",
        "\r\nX-Consul-Knownleader: true\r\n",
        "\r\nX-Consul-Lastcontact: 0\r\n",
        "\r\nX-Consul-Query-Backend: blocking-query\r\n",
        "\r\nX-Consul-Default-Acl-Policy: allow\r\n",
        "\r\nContent-Length: 0\r\n",
    ] {
        assert!(answer.contains(line), "{line:?} in {answer}");
    }
    let refused = exchange(&mut served.connect().await, &closing("BREW", "/v1/kv/a", "\r\n")).await;
    assert!(refused.contains("\r\nX-Lockmesh-Outcome: refused\r\n"), "{refused}");
    let session = served.stand.session("").await;
    let path = format!("/v1/kv/a?acquire={session}");
    let answer =
        exchange(&mut served.connect().await, &closing("PUT", &path, "Content-Length: 1\r\n\r\nx")).await;
    assert!(answer.contains("\r\nX-Lockmesh-Fence: 1\r\n") && answer.ends_with("\r\n\r\ntrue"), "{answer}");
    assert!(answer.contains("\r\nContent-Type: application/json\r\n"), "{answer}");
}

#[tokio::test]
async fn browser_with_foreign_host_rejected() {
    let served = Served::new(HttpLimits::default());
    let asking = |target: &str, hosts: &[&str]| {
        let hosts: String = hosts.iter().map(|host| format!("Host: {host}\r\n")).collect();
        format!("GET {target} HTTP/1.1\r\n{hosts}Accept-Language: de\r\nConnection: close\r\n\r\n")
    };
    for ours in [
        "localhost",
        "LOCALHOST:8500",
        "a.b.localhost",
        "localhost.",
        "Node-One:1",
        "10.1.2.3",
        "[::1]:8500",
        "",
        "lock.example",
        "consul.default.svc.cluster.local",
    ] {
        let answer = exchange(&mut served.connect().await, &asking("/v1/session/list", &[ours])).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{ours}: {answer}");
    }
    let answer = exchange(&mut served.connect().await, &asking("/v1/session/list", &[])).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    for foreign in [
        "evil.example",
        "evil.example:8500",
        "notlocalhost",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "node-one.evil",
    ] {
        let answer = exchange(&mut served.connect().await, &asking("/v1/session/list", &[foreign])).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{foreign}: {answer}");
        assert!(answer.contains("`http.allowed_hosts`") && answer.contains(foreign), "{answer}");
        assert!(answer.contains("\r\nX-Lockmesh-Outcome: refused\r\n"), "{answer}");
        let other_client = asking("/v1/session/list", &[foreign]).replace("Accept-Language: de\r\n", "");
        let answer = exchange(&mut served.connect().await, &other_client).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{foreign}: {answer}");
    }
    let both = asking("/v1/session/list", &["localhost", "evil.example"]);
    let answer = exchange(&mut served.connect().await, &both).await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    let absolute = asking("http://evil.example/v1/session/list", &["localhost"]);
    let answer = exchange(&mut served.connect().await, &absolute).await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");

    let mut stream = UnixStream::connect(&served.socket).await.unwrap();
    stream.write_all(asking("/v1/session/list", &["evil.example"]).as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test]
async fn serves_unix_socket() {
    let served = Served::new(HttpLimits::default());
    let mut stream = UnixStream::connect(&served.socket).await.unwrap();
    let request = closing("PUT", "/v1/kv/a", "Content-Length: 4\r\n\r\ntest");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("true"), "{answer}");
}

/// Contract: 166.
#[tokio::test]
async fn user_of_socket_named_by_kernel() {
    let served = Served::new(HttpLimits::default());
    served.stand.put("/v1/lockmesh/acl", super::acl::DENY).await.is(200, "true");
    let secret = json!({"BootstrapSecret": super::acl::ROOT}).to_string();
    assert_eq!(served.stand.put("/v1/acl/bootstrap", &secret).await.status, 200);
    let uid = rustix::process::getuid().as_raw();
    served.stand.bind(&format!("uid == {uid}"), "jobs", r#"key "x" { policy = "write" }"#).await;
    let request = closing("PUT", "/v1/kv/x", "Content-Length: 1\r\n\r\n1");
    let mut stream = UnixStream::connect(&served.socket).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("true"), "{answer}");
    let over_tcp = exchange(&mut served.connect().await, &request).await;
    assert!(over_tcp.starts_with("HTTP/1.1 403 ") && over_tcp.contains("anonymous token"), "{over_tcp}");
}

/// Sends a request, and returns the beginning of the response. The connection stays open.
async fn fetch(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    let length = stream.read(&mut answer).await.unwrap();
    String::from_utf8(answer[..length].to_vec()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn deleted_unix_socket_is_rebound() {
    let served = Served::new(HttpLimits::default());
    let mut early = UnixStream::connect(&served.socket).await.unwrap();
    assert!(fetch(&mut early, "/health/ready").await.starts_with("HTTP/1.1 200 "));
    std::fs::remove_file(&served.socket).unwrap();
    let answer = fetch(&mut early, "/health/ready").await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(
        answer.contains(&format!("cannot reach the Unix socket {}", served.socket.display())),
        "{answer}"
    );

    std::fs::write(&served.socket, "not a socket").unwrap();
    tokio::time::advance(Duration::from_secs(61)).await;
    let answer = fetch(&mut early, "/health/ready").await;
    assert!(answer.contains("exists and is not a socket"), "{answer}");

    std::fs::remove_file(&served.socket).unwrap();
    tokio::time::advance(Duration::from_secs(61)).await;
    while !served.socket.exists() {
        tokio::task::yield_now().await;
    }
    let mut late = UnixStream::connect(&served.socket).await.unwrap();
    for stream in [&mut late, &mut early] {
        assert!(fetch(stream, "/health/ready").await.starts_with("HTTP/1.1 200 "));
    }
}

#[tokio::test]
async fn chunked_body_read_and_limited() {
    let limits = HttpLimits { kv_max_value_size: 8, ..HttpLimits::default() };
    let served = Served::new(limits);
    let chunked =
        |chunks: &str| closing("PUT", "/v1/kv/a", &format!("Transfer-Encoding: chunked\r\n\r\n{chunks}"));
    let answer = exchange(&mut served.connect().await, &chunked("4\r\n1234\r\n4\r\n5678\r\n0\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let answer =
        exchange(&mut served.connect().await, &chunked("4\r\n1234\r\n5\r\n56789\r\n0\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.contains("Request body too large, max size: 8 bytes."), "{answer}");
    let value = served.stand.get("/v1/kv/a?raw").await;
    value.is(200, "12345678");
    let create = closing(
        "PUT",
        "/v1/session/create",
        "Transfer-Encoding: chunked\r\n\r\nc\r\n{\"Name\":\"n\"}\r\n0\r\n\r\n",
    );
    exchange(&mut served.connect().await, &create).await;
    assert_eq!(served.stand.get("/v1/session/list").await.json()[0]["Name"], "n");
}

#[tokio::test]
async fn malformed_requests_rejected() {
    let served = Served::new(HttpLimits::default());
    let put = |headers: &str, body: &str| closing("PUT", "/v1/kv/a", &format!("{headers}\r\n\r\n{body}"));
    let chunked = "Transfer-Encoding: chunked";
    for request in [
        "\x16\x03\x01\x02\x00\x01\x00\x01".to_owned(),
        "hello\r\n\r\n".into(),
        "GET\r\n\r\n".into(),
        put("Content-Length: -5", "x"),
        put(&format!("Content-Length: 1\r\n{chunked}"), "x"),
        put(chunked, "zz\r\nx\r\n0\r\n\r\n"),
        put("Content-Length: 10", "half"),
    ] {
        let mut stream = served.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        // A reset, possibly without a response, counts as an end.
        let _ = stream.read_to_string(&mut answer).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{request:?}: {answer}");
    }
    assert_eq!(served.stand.get("/v1/kv/a").await.status, 404, "nothing was written");
}

#[tokio::test]
async fn oversized_expect_continue_rejected_immediately() {
    let served = Served::new(HttpLimits::default());
    let request = closing("PUT", "/v1/kv/a", "Expect: 100-continue\r\nContent-Length: 999999999\r\n\r\n");
    let answer = exchange(&mut served.connect().await, &request).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
}

#[tokio::test]
async fn header_timeout_spares_idle_clients() {
    let limits = HttpLimits { header_read_timeout: Duration::from_millis(100), ..HttpLimits::default() };
    let served = Served::new(limits);
    let mut idle = served.connect().await;
    let mut used = served.connect().await;
    used.write_all(b"GET /v1/kv/none HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    assert!(used.read(&mut [0; 4096]).await.unwrap() > 0);

    let mut slow = served.connect().await;
    let mut dropping = 0;
    let ended = loop {
        if slow.write_all(b"G").await.is_err() {
            break true;
        }
        dropping += 1;
        let read = tokio::time::timeout(Duration::from_millis(20), slow.read(&mut [0; 64])).await;
        if read.is_ok() {
            break true;
        }
        if dropping > 5_000 {
            break false;
        }
    };
    assert!(ended, "a slow head is never cut off");
    for stream in [&mut idle, &mut used] {
        let answer = exchange(stream, &closing("GET", "/v1/kv/none", "\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn idle_timeout_closes_tcp_connections() {
    let served = Served::new(HttpLimits::default());
    let limit = Duration::from_secs(300);
    let mut local = UnixStream::connect(&served.socket).await.unwrap();
    let (mut unused, mut used) = (served.connect().await, served.connect().await);
    for _ in 0..2 {
        assert!(fetch(&mut used, "/v1/kv/none").await.starts_with("HTTP/1.1 404 "));
        tokio::time::advance(limit - Duration::from_secs(1)).await;
    }
    assert!(fetch(&mut used, "/v1/kv/none").await.starts_with("HTTP/1.1 404 "));
    let last = Instant::now();
    for stream in [&mut unused, &mut used] {
        let ended = tokio::time::timeout(2 * limit, stream.read(&mut [0])).await;
        assert_eq!(ended.expect("it is closed").unwrap(), 0);
    }
    assert!(last.elapsed() >= limit, "{:?}", last.elapsed());
    assert!(last.elapsed() < limit + Duration::from_secs(1), "{:?}", last.elapsed());
    assert!(fetch(&mut local, "/v1/kv/none").await.starts_with("HTTP/1.1 404 "), "it has no limit");
}

#[tokio::test(start_paused = true)]
async fn waiting_client_is_not_idle() {
    // Shorter than the pauses of the stream.
    let limits = HttpLimits { idle_timeout: Some(Duration::from_secs(10)), ..HttpLimits::default() };
    let served = Served::new(limits);
    let session = served.stand.session("").await;
    let mut stream = served.connect().await;
    let request = format!(
        "GET /v1/session/events/{session} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let begun = Instant::now();
    let waiting = closing("GET", "/v1/kv/none?index=1000&wait=9m", "\r\n");
    let answer = exchange(&mut served.connect().await, &waiting).await;
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    assert!(begun.elapsed() >= Duration::from_secs(540));
    while begun.elapsed() < Duration::from_secs(900) {
        assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0, "{:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn missing_body_times_out() {
    let limits = HttpLimits { body_read_timeout: Duration::from_millis(100), ..HttpLimits::default() };
    let served = Served::new(limits);
    let answer =
        exchange(&mut served.connect().await, &closing("PUT", "/v1/kv/a", "Content-Length: 10\r\n\r\nabc"))
            .await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert_eq!(served.stand.get("/v1/kv/a").await.status, 404);
}

#[tokio::test]
async fn disconnect_frees_watch() {
    let served = Served::new(HttpLimits::default());
    let mut watchers = Vec::new();
    for _ in 0..50 {
        let mut stream = served.connect().await;
        let request = "GET /v1/kv/none?index=1000&wait=10m HTTP/1.1\r\nHost: localhost\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        watchers.push(stream);
    }
    served.stand.quorum.parked(50).await;
    drop(watchers);
    served.stand.quorum.parked(0).await;
}

#[tokio::test]
async fn watch_outlives_header_timeout() {
    let limits = HttpLimits { header_read_timeout: Duration::from_millis(50), ..HttpLimits::default() };
    let served = Served::new(limits);
    let request = closing("GET", "/v1/kv/none?index=1000&wait=400ms", "\r\n");
    let answer = exchange(&mut served.connect().await, &request).await;
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
}

#[tokio::test]
async fn heads_have_a_longest_length() {
    let served = Served::new(HttpLimits { max_header_size: 8192, ..HttpLimits::default() });
    let long = format!("X-Long: {}\r\n\r\n", "x".repeat(20_000));
    let answer = exchange(&mut served.connect().await, &closing("GET", "/v1/kv/a", &long)).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[tokio::test]
async fn connection_limit_rejects_then_recovers() {
    let served = Served::new(HttpLimits { connections: 2, ..HttpLimits::default() });
    let mut first = served.connect().await;
    let mut second = served.connect().await;
    for stream in [&mut first, &mut second] {
        stream.write_all(b"GET /v1/kv/none HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
    }
    let answer = exchange(&mut served.connect().await, "").await;
    assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
    drop(first);
    // The slot is free again as soon as the server detects the end.
    loop {
        let answer = exchange(&mut served.connect().await, &closing("GET", "/v1/kv/none", "\r\n")).await;
        if answer.starts_with("HTTP/1.1 404 ") {
            break;
        }
    }
}

#[tokio::test]
async fn idle_clients_leave_reserved_connections() {
    let served = Served::new(HttpLimits { connections: 16, ..HttpLimits::default() });
    let session = served.stand.session("").await;
    let mut greedy = Vec::new();
    for _ in 0..14 {
        let mut stream = served.connect().await;
        assert!(fetch(&mut stream, "/v1/kv/none").await.starts_with("HTTP/1.1 404 "));
        greedy.push(stream);
    }
    let words = "the agent has reached its limit of connections";
    let refused = exchange(&mut served.connect().await, &closing("GET", "/v1/kv/none", "\r\n")).await;
    assert!(refused.starts_with("HTTP/1.1 500 ") && refused.contains(words), "{refused}");
    assert!(refused.contains("\r\nX-Lockmesh-Outcome: not-done\r\n"), "{refused}");

    let following = |path: &str| {
        let path = format!("/v1/session/{path}/{session}");
        format!("PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
    };
    // Closed after one request, although the client would keep the connection.
    let renewed = exchange(&mut served.connect().await, &following("renew")).await;
    assert!(renewed.starts_with("HTTP/1.1 200 "), "{renewed}");
    let mut guard = served.connect().await;
    let request =
        following("events").replace("PUT", "GET").replace("Content", "Accept: text/event-stream\r\nContent");
    guard.write_all(request.as_bytes()).await.unwrap();
    let mut event = [0; 4096];
    let length = guard.read(&mut event).await.unwrap();
    let event = String::from_utf8_lossy(&event[..length]).into_owned();
    assert!(event.starts_with("HTTP/1.1 200 ") && event.contains("text/event-stream"), "{event}");

    let refused = exchange(&mut served.connect().await, "").await;
    assert!(
        refused.starts_with("HTTP/1.1 500 ") && refused.ends_with(&format!("{words}: try again\n")),
        "{refused}"
    );
    let mut local = UnixStream::connect(&served.socket).await.unwrap();
    assert!(fetch(&mut local, "/v1/kv/none").await.starts_with("HTTP/1.1 404 "));
    drop(greedy);
}

#[tokio::test]
async fn leaked_connections_spare_guard_slot() {
    let served = Served::new(HttpLimits { connections: 16, ..HttpLimits::default() });
    let session = served.stand.session("").await;
    let mut greedy = Vec::new();
    for _ in 0..40 {
        greedy.push(served.connect().await);
    }
    // The last one has the place, after 25 others that lost it.
    for stream in &mut greedy[14..39] {
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    }
    let renewal = format!("/v1/session/renew/{session}");
    let renewal = closing("PUT", &renewal, "Content-Length: 0\r\n\r\n");
    let renewed = exchange(&mut served.connect().await, &renewal).await;
    assert!(renewed.starts_with("HTTP/1.1 200 "), "{renewed}");
    assert!(fetch(&mut greedy[0], "/v1/kv/none").await.starts_with("HTTP/1.1 404 "), "it has a place");
}

#[tokio::test(start_paused = true)]
async fn silent_client_loses_reserved_slot() {
    let served = Served::new(HttpLimits { connections: 16, ..HttpLimits::default() });
    let mut greedy = Vec::new();
    for _ in 0..15 {
        greedy.push(served.connect().await);
    }
    let begun = Instant::now();
    assert_eq!(greedy[14].read(&mut [0]).await.unwrap(), 0);
    assert!(begun.elapsed() < Duration::from_secs(11), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn shutdown_closes_idle_answers_pending() {
    let served = Served::new(HttpLimits::default());
    let mut idle = served.connect().await;
    let mut busy = served.connect().await;
    let request = "GET /v1/kv/none?index=1000&wait=300ms HTTP/1.1\r\nHost: localhost\r\n\r\n";
    busy.write_all(request.as_bytes()).await.unwrap();
    served.stand.quorum.parked(1).await;
    served.stop.send(true).unwrap();
    let mut rest = String::new();
    idle.read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "");
    busy.read_to_string(&mut rest).await.unwrap();
    assert!(rest.starts_with("HTTP/1.1 404 "), "{rest}");
    served.server.await.unwrap();
    assert!(!served.socket.exists());
    assert!(TcpStream::connect(served.tcp).await.is_err());
}
