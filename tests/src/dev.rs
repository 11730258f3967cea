//! Runs `lockmesh dev` as a separate process, with its own folder and free ports, and ends it.
//!
//! The process cannot outlive its test. A small parent shell waits for the end of its standard
//! input, which the kernel closes in every case when the test ends, and then kills the process.
//! `LOCKMESH_TEST_HTTP=host:port` points the assertions at a running server (with
//! `--test-threads=1`), for instance Consul itself, to check whether an assertion holds there.

use crate::binary;
use crate::http::{Address, Client};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The maximum time until a server is ready; generous, for loaded machines.
const START: Duration = Duration::from_secs(120);

/// Starts a program in the background, prints its process number before any of its output, and
/// kills it once standard input ends.
const WATCHDOG: &str = r#"exec 3<&0; sh -c 'echo "$$"; exec "$@"' sh "$@" </dev/null 3<&- & exec >/dev/null; cat <&3; kill -9 "$!""#;

/// A running `lockmesh dev`, killed when dropped.
pub struct Dev {
    /// The address of its HTTP API over TCP.
    pub http: SocketAddr,
    /// Its Unix socket; `None` for a server that was already running.
    pub socket: Option<PathBuf>,
    /// Its folder; removed when the last `Dev` that uses it is dropped.
    pub folder: Arc<tempfile::TempDir>,
    data: PathBuf,
    arguments: Vec<String>,
    process: Option<Process>,
}

struct Process {
    watchdog: Child,
    number: u32,
    follower: JoinHandle<()>,
}

impl Dev {
    /// Starts a process with an empty folder. With `LOCKMESH_TEST_HTTP` it returns that server
    /// instead, after deleting its keys.
    pub fn start(arguments: &[&str]) -> Self {
        let folder = new_folder();
        let data = folder.path().join("data");
        match running_already() {
            Some(http) => {
                let dev = Self::foreign(http);
                dev.client().delete("/v1/kv/?recurse").expect(200);
                dev
            }
            None => Self::start_in(folder, data, arguments.iter().map(|word| word.to_string()).collect()),
        }
    }

    /// Starts a process with its data in this folder and all other files elsewhere.
    pub fn start_with_data(data: &Path, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|word| word.to_string()).collect();
        Self::start_in(new_folder(), data.to_path_buf(), arguments)
    }

    /// Returns the server shared by all tests of this process; `slot` is a static of the test.
    pub fn shared(slot: &'static std::sync::OnceLock<Dev>, arguments: &[&str]) -> Shared {
        Shared(slot.get_or_init(|| match running_already() {
            Some(http) => Self::foreign(http),
            None => Self::start(arguments),
        }))
    }

    /// Kills the process if it runs, and starts it again on its data.
    pub fn restart(mut self) -> Self {
        self.kill();
        Self::start_in(self.folder.clone(), self.data.clone(), std::mem::take(&mut self.arguments))
    }

    fn foreign(http: SocketAddr) -> Self {
        let folder = new_folder();
        let data = folder.path().join("data");
        Self { http, socket: None, folder, data, arguments: Vec::new(), process: None }
    }

    fn start_in(folder: Arc<tempfile::TempDir>, data: PathBuf, arguments: Vec<String>) -> Self {
        let log = fs::File::options().create(true).append(true).open(folder.path().join("log"));
        let mut watchdog = Command::new("sh");
        watchdog.args(["-c", WATCHDOG, "sh"]).arg(binary::lockmesh()).arg("dev");
        watchdog.args(["--http", "127.0.0.1:0", "--node", "node-one"]);
        watchdog.arg("--socket").arg(folder.path().join("sock"));
        watchdog.arg("--data-dir").arg(&data).args(&arguments);
        watchdog.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log.expect("the log can be opened"));
        let mut watchdog = watchdog.spawn().expect("sh can be started");
        let mut output = BufReader::new(watchdog.stdout.take().expect("standard output is piped"));
        let mut number = String::new();
        output.read_line(&mut number).expect("the watchdog prints the process number");
        let number = number.trim().parse().expect("the watchdog prints a number");
        let (ready, follower) = follow(output);
        let process = Some(Process { watchdog, number, follower });
        let mut dev =
            Self { http: ([127, 0, 0, 1], 0).into(), socket: None, folder, data, arguments, process };
        let line = ready.recv_timeout(START);
        let line =
            line.unwrap_or_else(|_| panic!("lockmesh dev did not become ready; its log:\n{}", dev.log()));
        dev.http = field(&line, "http").parse().expect("the ready line names an address");
        dev.socket = Some(PathBuf::from(field(&line, "socket")));
        dev
    }

    /// Returns a client over TCP.
    pub fn client(&self) -> Client {
        Client { address: Address::Tcp(self.http) }
    }

    /// Returns a client over the Unix socket.
    pub fn unix_client(&self) -> Client {
        let socket = self.socket.clone().expect("a server of our own has a Unix socket");
        Client { address: Address::Unix(socket) }
    }

    /// Returns `true` for a server that was already running and is not `lockmesh`.
    pub fn is_foreign(&self) -> bool {
        self.process.is_none() && running_already().is_some()
    }

    /// Returns the process number.
    pub fn process_number(&self) -> u32 {
        self.process.as_ref().expect("the process runs").number
    }

    /// Kills the process with `kill -9`, and waits until it is gone.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // An error means that the process is already gone.
            let _ = Command::new("sh").args(["-c", &format!("kill -9 {}", process.number)]).status();
            process.follower.join().expect("the follower does not panic");
            drop(process.watchdog.stdin.take());
            process.watchdog.wait().expect("the watchdog can be waited for");
        }
    }

    /// Returns the tail of the log.
    pub fn log(&self) -> String {
        tail(&self.folder.path().join("log"))
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the log of lockmesh dev:\n{}", self.log());
        }
        self.kill();
    }
}

/// A server shared by the tests of a process. Prints the server's log when its test fails.
pub struct Shared(&'static Dev);

impl std::ops::Deref for Shared {
    type Target = Dev;

    fn deref(&self) -> &Dev {
        self.0
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the log of lockmesh dev:\n{}", self.0.log());
        }
    }
}

/// Reads the process's output until it exits, and forwards the line that contains `ready`.
fn follow(output: BufReader<ChildStdout>) -> (Receiver<String>, JoinHandle<()>) {
    let (say_ready, ready) = sync_channel(1);
    let follower = thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            if line.starts_with("ready ") {
                // The receiver may have given up.
                let _ = say_ready.try_send(line);
            }
        }
    });
    (ready, follower)
}

fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let found = line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    found.unwrap_or_else(|| panic!("the ready line names no {name}: {line:?}"))
}

fn running_already() -> Option<SocketAddr> {
    let address = std::env::var("LOCKMESH_TEST_HTTP").ok()?;
    Some(address.parse().expect("LOCKMESH_TEST_HTTP is an address like 127.0.0.1:8500"))
}

fn new_folder() -> Arc<tempfile::TempDir> {
    Arc::new(tempfile::Builder::new().prefix("lockmesh-test-").tempdir().expect("a temporary folder"))
}

fn tail(path: &Path) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}
