//! Runs `lockmesh dev` as a process of its own, with a folder of its own and every port free, and
//! ends it.
//!
//! The process cannot outlive its test: it hangs on a small shell that waits for the end of its
//! standard input, which the kernel closes however the test ends, and then kills it.
//! `LOCKMESH_TEST_HTTP=host:port` points the assertions at a server that runs already (with
//! `--test-threads=1`), for instance at the original, to see whether an assertion is true of it.

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

/// How long a server may take until it is ready; generous, for loaded machines.
const START: Duration = Duration::from_secs(120);

/// Starts a program in the background, tells its number before it says anything, and kills it once
/// standard input ends.
const WATCHDOG: &str = r#"exec 3<&0; sh -c 'echo "$$"; exec "$@"' sh "$@" </dev/null 3<&- & exec >/dev/null; cat <&3; kill -9 "$!""#;

/// A running `lockmesh dev`, killed when dropped.
pub struct Dev {
    /// Where it answers HTTP over TCP.
    pub http: SocketAddr,
    /// Its Unix socket; none for a server that was there already.
    pub socket: Option<PathBuf>,
    /// Its folder; removed when the last `Dev` on it is dropped.
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
    /// Starts one with an empty folder. `LOCKMESH_TEST_HTTP` makes it the server that it names,
    /// emptied of its keys.
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

    /// Starts one whose data is in this folder, while all else is elsewhere.
    pub fn start_with_data(data: &Path, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|word| word.to_string()).collect();
        Self::start_in(new_folder(), data.to_path_buf(), arguments)
    }

    /// The one that all tests of this process share; `slot` is a static of the test.
    pub fn shared(slot: &'static std::sync::OnceLock<Dev>, arguments: &[&str]) -> Shared {
        Shared(slot.get_or_init(|| match running_already() {
            Some(http) => Self::foreign(http),
            None => Self::start(arguments),
        }))
    }

    /// Kills it, if it runs, and starts it again on what it left behind.
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
        output.read_line(&mut number).expect("the watchdog tells the process number");
        let number = number.trim().parse().expect("the watchdog tells a number");
        let (ready, follower) = follow(output);
        let process = Some(Process { watchdog, number, follower });
        let mut dev =
            Self { http: ([127, 0, 0, 1], 0).into(), socket: None, folder, data, arguments, process };
        let line = ready.recv_timeout(START);
        let line = line.unwrap_or_else(|_| panic!("lockmesh dev did not get ready; its log:\n{}", dev.log()));
        dev.http = field(&line, "http").parse().expect("the ready line names an address");
        dev.socket = Some(PathBuf::from(field(&line, "socket")));
        dev
    }

    /// A client over TCP.
    pub fn client(&self) -> Client {
        Client { address: Address::Tcp(self.http) }
    }

    /// A client over the Unix socket.
    pub fn unix_client(&self) -> Client {
        let socket = self.socket.clone().expect("a server of our own has a Unix socket");
        Client { address: Address::Unix(socket) }
    }

    /// Whether this is a server that was there already and not `lockmesh`.
    pub fn is_foreign(&self) -> bool {
        self.process.is_none() && running_already().is_some()
    }

    /// The process number.
    pub fn process_number(&self) -> u32 {
        self.process.as_ref().expect("the process runs").number
    }

    /// `kill -9`, and waits until the process is gone.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // An error means that it is gone already.
            let _ = Command::new("sh").args(["-c", &format!("kill -9 {}", process.number)]).status();
            process.follower.join().expect("the follower does not panic");
            drop(process.watchdog.stdin.take());
            process.watchdog.wait().expect("the watchdog can be waited for");
        }
    }

    /// The tail of what the process logged.
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

/// A server that a whole test process shares. Shows the server's log when its test fails.
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

/// Reads the process's output to its end, which is the process's end, and hands on the line that
/// says `ready`.
fn follow(output: BufReader<ChildStdout>) -> (Receiver<String>, JoinHandle<()>) {
    let (say_ready, ready) = sync_channel(1);
    let follower = thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            if line.starts_with("ready ") {
                // The one who waits may have given up.
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
