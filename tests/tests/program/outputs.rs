//! Outputs without a reader: stdout and stderr of a process are a full pipe that no process reads.
//! No duty waits for it: locks are lost and released, leaders are elected, signals are obeyed.

use lockmesh_tests::binary;
use lockmesh_tests::dev::{Dev, Shared};
use lockmesh_tests::fleet::{Fleet, gone, shell, wait_until};
use lockmesh_tests::http::{Address, Client};
use lockmesh_tests::process::Process;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::OnceLock;
use std::thread;
use tempfile::TempDir;

/// The commands that run a program while they hold something, with their options and the exit code
/// after a loss; `elect` continues.
const HOLDERS: [(&[&str], Option<i32>); 3] = [
    (&["lock", "--verbose"], Some(121)),
    (&["semaphore", "--slots=2", "--verbose"], Some(121)),
    (&["elect", "--json"], None),
];

/// A program for the shell that adds its process id to the file `$0`.
const PROGRAM: &str = r#"echo $$ >>"$0"; exec sleep 1000"#;

fn shared() -> Shared {
    static SERVER: OnceLock<Dev> = OnceLock::new();
    Dev::shared(&SERVER, &[])
}

fn at(server: &Dev) -> String {
    format!("--http-addr={}", server.http)
}

#[test]
fn interrupted_bench_reports_and_cleans_up() {
    let shared = shared();
    if shared.is_foreign() {
        return;
    }
    let options = "puts --clients=1,2 --duration=1s --prefix=interrupted";
    let command = format!("exec {} bench {options} {} 2>&1", binary::lockmesh().display(), at(&shared));
    let bench = Process::start(Path::new("sh"), &["-c", &command]);
    bench.says("measuring puts with 2 clients");
    assert_eq!(shared.client().get("/v1/kv/interrupted/?keys").status, 200);
    bench.signal("INT");
    assert_eq!(bench.ends(), 130);
    assert!(bench.said().contains("puts"), "{}", bench.said());
    assert_eq!(shared.client().get("/v1/kv/interrupted/?keys").status, 404);
}

/// A full pipe, in a folder for other files of the test.
struct Full {
    folder: TempDir,
    pipe: String,
    /// Both ends, which keep it open.
    _ends: File,
}

impl Full {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let pipe = folder.path().join("pipe").to_str().expect("it is text").to_owned();
        assert!(shell(&format!("mkfifo {pipe}")));
        let mut ends = File::options();
        ends.read(true).write(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
        let ends = ends.open(&pipe).expect("it exists");
        for size in [4096, 1] {
            while (&ends).write(&vec![b'x'; size]).is_ok() {}
        }
        Self { folder, pipe, _ends: ends }
    }

    /// Starts `lockmesh` with both outputs full.
    fn lockmesh(&self, arguments: &[&str]) -> Process {
        let program = binary::lockmesh().to_str().expect("it is text");
        let start = ["-c", r#"exec "$@" >"$0" 2>"$0""#, &self.pipe, program];
        Process::start(Path::new("sh"), &[&start, arguments].concat())
    }

    /// Starts a command of [`HOLDERS`] that keeps something of its own name.
    fn hold(&self, command: &[&str], options: &[&str]) -> Process {
        let (name, file) = (format!("outputs/{}", command[0]), self.file(command[0]));
        let program = [&name, "--", "sh", "-c", PROGRAM, &file];
        self.lockmesh(&[command, options, &program].concat())
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("it is text").to_owned()
    }

    /// Waits until the program of such a command was started this often. Returns its process id.
    fn program(&self, command: &[&str], starts: usize) -> String {
        let file = self.file(command[0]);
        let text = || fs::read_to_string(&file).unwrap_or_default();
        wait_until(|| text().lines().count() == starts && text().ends_with('\n'));
        text().lines().next_back().expect("a line").to_owned()
    }
}

/// The session that holds something under this prefix.
fn session(client: &Client, prefix: &str) -> Option<String> {
    let locks = client.get(&format!("/v1/lockmesh/locks?prefix={prefix}")).expect(200).json();
    let locks = locks.as_array().expect("a list").clone();
    let sessions = locks.iter().map(|lock| lock["Session"].as_str().unwrap_or_default().to_owned());
    sessions.into_iter().find(|session| !session.is_empty())
}

#[test]
fn blocked_holder_ends_program_with_lock() {
    let (server, full) = (shared(), Full::new());
    let (client, address) = (server.client(), at(&server));
    let options = [address.as_str(), "--lock-delay=0s"];
    let check = |command: &[&str], code: Option<i32>| {
        let (prefix, mut holder) = (format!("outputs/{}", command[0]), full.hold(command, &options));
        let program = full.program(command, 1);
        client.destroy(&session(&client, &prefix).expect("it is held"));
        gone(&program);
        if let Some(code) = code {
            assert_eq!(holder.ends(), code, "{command:?}");
            holder = full.hold(command, &options);
        }
        let program = full.program(command, 2);
        holder.signal("TERM");
        assert_eq!(holder.ends(), 143, "{command:?}");
        gone(&program);
        assert_eq!(session(&client, &prefix), None, "{command:?} released it");
    };
    thread::scope(|scope| {
        for (command, code) in HOLDERS {
            let check = &check;
            scope.spawn(move || check(command, code));
        }
    });
}

#[test]
fn blocked_holder_ends_program_without_agent() {
    let (mut server, full) = (Dev::start(&["--session-ttl-min=1s"]), Full::new());
    let address = at(&server);
    let options = [address.as_str(), "--ttl=2s", "--lock-delay=0s"];
    let holders = HOLDERS.map(|(command, code)| (command, code, full.hold(command, &options)));
    let programs = HOLDERS.map(|(command, _)| full.program(command, 1));
    server.kill();
    programs.iter().for_each(|program| gone(program));
    for (command, code, holder) in &holders {
        assert_eq!(holder.ends(), code.unwrap_or(123), "{command:?}");
    }
}

#[test]
fn full_logs_block_no_failover() {
    let (folder, full) = (tempfile::tempdir().expect("a temporary folder"), Full::new());
    let fleet = Fleet::start_with(folder.path(), "3", &["--nodes", "1"]);
    let client = fleet.client_of("n1");
    let restart = |(role, name): (&str, &'static str)| {
        fleet.kill_process(name);
        let config = folder.path().join(name).join(format!("{role}.toml"));
        (name, full.lockmesh(&[role, "--config", config.to_str().expect("it is text")]))
    };
    let members = [("server", "s1"), ("server", "s2"), ("server", "s3"), ("agent", "n1")].map(restart);
    let writes = || {
        let answer = client.try_ask("PUT", "/v1/kv/outputs/key", &[], b"x");
        answer.is_ok_and(|answer| answer.status == 200)
    };
    wait_until(writes);
    let leader = fleet.leader();
    let (dead, living): (Vec<_>, Vec<_>) = members.into_iter().partition(|(name, _)| *name == leader);
    assert_eq!(dead.len(), 1);
    drop(dead);
    wait_until(writes);
    for (name, process) in living.iter().rev() {
        process.signal("TERM");
        assert_eq!(process.ends(), 0, "{name}");
    }
    fleet.stop();
}

#[test]
fn blocked_dev_serves_and_stops() {
    let full = Full::new();
    let (socket, data) = (full.file("socket"), full.file("data"));
    let dev = ["dev", "--http=127.0.0.1:0", "--socket", &socket, "--data-dir", &data];
    let dev = full.lockmesh(&dev);
    let client = Client { address: Address::Unix(socket.into()) };
    let asked = || client.try_ask("PUT", "/v1/kv/outputs/dev", &[], b"x");
    wait_until(|| asked().is_ok_and(|answer| answer.status == 200));
    dev.signal("TERM");
    assert_eq!(dev.ends(), 0);
}

#[test]
fn blocked_watch_retries() {
    let (full, agent) = (Full::new(), TcpListener::bind("127.0.0.1:0").expect("a port"));
    let address = format!("--http-addr={}", agent.local_addr().expect("it is bound"));
    let watch = full.lockmesh(&["watch", &address, "--type=nodes", "true"]);
    // Each request fails, and each failure is a message.
    (0..2).for_each(|_| drop(agent.accept().expect("it connects")));
    watch.signal("TERM");
    assert_eq!(watch.ends(), 143);
}

#[test]
fn blocked_monitor_obeys_signal() {
    let (server, full) = (shared(), Full::new());
    let client = server.client();
    let opened = r#"lockmesh_http_requests_total{endpoint="/v1/agent/monitor",status="200"} 1"#;
    let is_open = || client.get("/metrics").expect(200).text().contains(opened);
    let monitor = full.lockmesh(&["monitor", "--log-level=debug", &at(&server)]);
    wait_until(is_open);
    for port in 0..20 {
        let body = format!(r#"{{"Name": "outputs", "Port": {port}}}"#);
        client.put("/v1/agent/service/register", body).expect(200);
    }
    monitor.signal("INT");
    assert_eq!(monitor.ends(), 0);
}

/// Replies to one request as a Consul with one key.
fn reply_as_consul(mut stream: TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read_exact(&mut byte).is_err() {
            return;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head);
    let target = head.split(' ').nth(1).expect("a request");
    let (status, body) = match target {
        "/v1/catalog/datacenters" => (200, r#"["dc1"]"#),
        // A blocking query, while nothing changes.
        target if target.contains("index=") => return thread::park(),
        target if target.contains("recurse") => (200, r#"[{"Key": "outputs/migrated", "Value": "eA=="}]"#),
        target if target.contains("/kv/") => (200, r#"["outputs/migrated"]"#),
        _ => (404, ""),
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status} X\r\nX-Consul-Index: 7\r\nConnection: close\r\nContent-Length: {length}");
    // An error: the migration has ended.
    let _ = stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes());
}

#[test]
fn blocked_migration_follows_and_ends() {
    let (server, full) = (shared(), Full::new());
    let consul = TcpListener::bind("127.0.0.1:0").expect("a port");
    let from = consul.local_addr().expect("it is bound").to_string();
    thread::spawn(move || {
        consul.incoming().flatten().for_each(|stream| drop(thread::spawn(|| reply_as_consul(stream))));
    });
    let (address, state) = (at(&server), full.file("state"));
    let migrate = ["migrate", "consul", "--follow", "--prefix=outputs/", "--from", &from, "--state", &state];
    let migration = full.lockmesh(&[&migrate[..], &[&address]].concat());
    wait_until(|| server.client().get("/v1/kv/outputs/migrated").status == 200);
    migration.signal("TERM");
    assert_eq!(migration.ends(), 1, "the report has no reader");
}

#[test]
fn blocked_error_keeps_exit_code() {
    let full = Full::new();
    for (arguments, code) in [
        (&["kv", "get", "--nonsense"][..], 2),
        (&["kv", "get", "--http-addr=127.0.0.1:1", "key"], 1),
        (&["agent", "--set", "log.level=loud"], 2),
    ] {
        assert_eq!(full.lockmesh(arguments).ends(), code, "{arguments:?}");
    }
}
