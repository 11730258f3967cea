//! A crowd of connections on one agent in a separate process: `crowd [NUMBER]`, by default 10,000.
//!
//! The connections are idle, watch one common key, or watch one key each. The program measures the
//! memory per connection and the wake-up times of all and of one, and checks that closed
//! connections are freed. Prints the results; fails if a watcher is not woken, woken without a
//! change, or not freed.

use lockmesh_tests::dev::Dev;
use lockmesh_tests::dialect::let_pass;
use lockmesh_tests::probe;
use serde_json::{Value, json};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc};

/// The number of concurrent connection attempts; more than the socket's backlog would be rejected.
const CONNECTING: usize = 64;
/// The number of files that this process needs in addition to its connections.
const OTHER_FILES: usize = 200;
/// The time after which an operation counts as never done.
const NEVER: Duration = Duration::from_secs(120);

fn main() {
    let number = std::env::args().nth(1).map_or(10_000, |number| number.parse().expect("NUMBER is a number"));
    raise_file_limit(number + OTHER_FILES);
    let server = Dev::start(&[]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime can be started");
    runtime.block_on(crowd(&server, number));
}

async fn crowd(server: &Dev, number: usize) {
    let socket = server.socket.clone().expect("a server of our own has a socket");
    make_keys(server, number);
    let probe = Probe { process: server.process_number() };
    let (files, memory) = (probe.open_files(), probe.resident_bytes());
    println!("before: {:.1} MiB resident, {files} files open", mebibytes(memory));

    let idle = connect_all(&socket, number, |_| String::new()).await;
    println!(
        "{number} idle connections: {} bytes each",
        probe.resident_bytes().saturating_sub(memory) / number
    );
    server.client().set("crowd/while", "served all the same");
    drop(idle);
    probe.wait_for_files(files);

    one_key(server, &probe, &socket, number).await;
    probe.wait_for_files(files);
    println!("after they disconnected: {:.1} MiB resident", mebibytes(probe.resident_bytes()));
    own_keys(server, &probe, &socket, number).await;
    probe.wait_for_files(files);
    println!("after they disconnected: {:.1} MiB resident", mebibytes(probe.resident_bytes()));
    leave(server, &probe, &socket, number).await;
    println!(
        "after: {:.1} MiB resident, {} files open",
        mebibytes(probe.resident_bytes()),
        probe.open_files()
    );
}

/// All connections watch one key, and all are woken.
async fn one_key(server: &Dev, probe: &Probe, socket: &Path, number: usize) {
    let client = server.unix_client();
    let index = client.get("/v1/kv/crowd/one").index();
    let memory = probe.resident_bytes();
    let path = format!("/v1/kv/crowd/one?index={index}&wait=10m");
    let watchers = connect_all(socket, number, |_| request(&path)).await;
    settle(probe);
    println!(
        "{number} watchers of one key: {} bytes each",
        probe.resident_bytes().saturating_sub(memory) / number
    );
    let mut answers = listen(watchers);
    let begun = Instant::now();
    client.set("crowd/one", "wake up");
    let times = collect(&mut answers, number, begun).await;
    println!("all are woken by one write: {}", percentiles(times));
}

/// Each connection watches its own key: one is woken alone, then all at once.
async fn own_keys(server: &Dev, probe: &Probe, socket: &Path, number: usize) {
    let client = server.unix_client();
    let memory = probe.resident_bytes();
    let path = |n: usize| format!("/v1/kv/crowd/own/{n}?index={}&wait=10m", client_index(server, n));
    let paths: Vec<String> = (0..number).map(path).collect();
    let watchers = connect_all(socket, number, |n| request(&paths[n])).await;
    settle(probe);
    println!(
        "{number} watchers, each of its own key: {} bytes each",
        probe.resident_bytes().saturating_sub(memory) / number
    );
    let mut answers = listen(watchers);
    let mut times = Vec::new();
    for n in (0..number).step_by((number / 20).max(1)) {
        let begun = Instant::now();
        client.set(&format!("crowd/own/{n}"), "wake up");
        let (woken, at) = answers.recv().await.expect("a watcher is woken");
        assert_eq!(woken, n, "the one whose key was written");
        times.push(at.duration_since(begun));
    }
    let alone = times.len();
    println!("one of them is woken by a write of its key: {}", percentiles(times));
    assert!(answers.try_recv().is_err(), "a watcher was woken without a change");
    let begun = Instant::now();
    assert!(client.delete("/v1/kv/crowd/own/?recurse").is_true());
    let times = collect(&mut answers, number - alone, begun).await;
    println!("all are woken by one delete of the prefix: {}", percentiles(times));
}

/// All connections watch and then disconnect; the agent must free them.
async fn leave(server: &Dev, probe: &Probe, socket: &Path, number: usize) {
    let index = server.client().get("/v1/kv/crowd/one").index();
    let path = format!("/v1/kv/crowd/one?index={index}&wait=10m");
    let files = probe.open_files();
    let watchers = connect_all(socket, number, |_| request(&path)).await;
    settle(probe);
    assert!(probe.open_files() >= number, "all are connected");
    let begun = Instant::now();
    drop(watchers);
    probe.wait_for_files(files);
    println!("{number} watchers disconnected and were freed within {} ms", begun.elapsed().as_millis());
    server.client().set("crowd/one", "unwatched");
}

fn make_keys(server: &Dev, number: usize) {
    let client = server.unix_client();
    client.set("crowd/one", "x");
    let keys: Vec<Value> = (0..number)
        .map(|n| json!({"KV": {"Verb": "set", "Key": format!("crowd/own/{n}"), "Value": "eA=="}}))
        .collect();
    for part in keys.chunks(128) {
        client.txn(json!(part)).expect(200);
    }
}

fn client_index(server: &Dev, n: usize) -> u64 {
    server.unix_client().get(&format!("/v1/kv/crowd/own/{n}")).expect(200).index()
}

fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

async fn connect_all(socket: &Path, number: usize, request: impl Fn(usize) -> String) -> Vec<UnixStream> {
    let gate = Arc::new(Semaphore::new(CONNECTING));
    let mut connecting = Vec::new();
    for n in 0..number {
        let (gate, socket, request) = (gate.clone(), PathBuf::from(socket), request(n));
        connecting.push(tokio::spawn(async move {
            let _permit = gate.acquire().await.expect("the gate is never closed");
            let mut stream = connect(&socket).await;
            stream.write_all(request.as_bytes()).await.expect("the agent reads the request");
            stream
        }));
    }
    let mut streams = Vec::new();
    for stream in connecting {
        streams.push(stream.await.expect("connecting does not panic"));
    }
    streams
}

async fn connect(socket: &Path) -> UnixStream {
    let begun = Instant::now();
    loop {
        match UnixStream::connect(socket).await {
            Ok(stream) => return stream,
            // The backlog is full: the agent has not accepted all attempts yet.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && begun.elapsed() < NEVER => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(error) => panic!("cannot connect to the agent: {error}"),
        }
    }
}

/// Reports each watcher that receives a response, with the time.
fn listen(watchers: Vec<UnixStream>) -> mpsc::Receiver<(usize, Instant)> {
    let (answered, answers) = mpsc::channel(watchers.len().max(1));
    for (n, mut stream) in watchers.into_iter().enumerate() {
        let answered = answered.clone();
        tokio::spawn(async move {
            let mut bytes = [0; 2048];
            let read = stream.read(&mut bytes).await.expect("an answer");
            let head = String::from_utf8_lossy(&bytes[..read]).into_owned();
            let fine = head.starts_with("HTTP/1.1 200") || head.starts_with("HTTP/1.1 404");
            assert!(fine, "watcher {n}: {head}");
            // The receiver is only gone after a failure elsewhere.
            let _ = answered.send((n, Instant::now())).await;
        });
    }
    answers
}

async fn collect(
    answers: &mut mpsc::Receiver<(usize, Instant)>,
    number: usize,
    begun: Instant,
) -> Vec<Duration> {
    let mut times = Vec::new();
    while times.len() < number {
        let next = tokio::time::timeout(NEVER, answers.recv()).await;
        let next = next.unwrap_or_else(|_| panic!("only {} of {number} were woken", times.len()));
        let (_, at) = next.expect("a watcher ended without an answer");
        times.push(at.duration_since(begun));
    }
    times
}

fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() * share / 100).min(times.len() - 1)].as_secs_f64() * 1000.0;
    format!("p50 {:.1} ms, p99 {:.1} ms, last {:.1} ms", at(50), at(99), at(100))
}

/// Waits until the server's memory is stable: until it has processed all data sent.
fn settle(probe: &Probe) {
    let mut before = 0;
    loop {
        let now = probe.resident_bytes();
        if now == before {
            return;
        }
        before = now;
        let_pass(Duration::from_millis(300));
    }
}

/// A view of the server's process from outside.
struct Probe {
    process: u32,
}

impl Probe {
    fn resident_bytes(&self) -> usize {
        probe::resident_bytes(self.process)
    }

    fn open_files(&self) -> usize {
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.process));
        files.expect("the server's files can be counted: run this as the same user").count()
    }

    /// Waits until the server has at most this many open files; a few are opened and closed all the
    /// time.
    fn wait_for_files(&self, most: usize) {
        let begun = Instant::now();
        while self.open_files() > most + 10 {
            assert!(begun.elapsed() < NEVER, "{} files are open, {most} were before", self.open_files());
            let_pass(Duration::from_millis(10));
        }
    }
}

fn mebibytes(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Starts this program again with the highest allowed limit on open files, if needed.
fn raise_file_limit(needed: usize) {
    let limits = std::fs::read_to_string("/proc/self/limits").expect("a process has limits");
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("one on files");
    let limit = |word: Option<&str>| word.and_then(|word| word.parse().ok()).unwrap_or(usize::MAX);
    let mut words = line.split_whitespace();
    let (soft, hard) = (limit(words.next()), limit(words.next()));
    assert!(hard >= needed, "the limit of open files is {hard}, and {needed} are needed: raise `ulimit -Hn`");
    if soft < needed {
        let program = std::env::current_exe().expect("a running program has a path");
        let mut again = Command::new("sh");
        again.args(["-c", r#"ulimit -n "$(ulimit -Hn)" && exec "$0" "$@""#]).arg(program);
        let error = again.args(std::env::args().skip(1)).exec();
        panic!("cannot start again with a higher limit: {error}");
    }
}
