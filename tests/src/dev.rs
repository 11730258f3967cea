//! Runs `lockmesh dev` as a separate process, with its own folder and free ports, and ends it.
//!
//! `LOCKMESH_TEST_HTTP=host:port` points the assertions at a running server (with
//! `--test-threads=1`), for instance Consul itself, to check whether an assertion holds there.

use crate::http::{Address, Client};
use crate::member::text;
use crate::process::Process;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

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
        let (socket, data_dir) = (text(&folder.path().join("sock")), text(&data));
        let usual = ["dev", "--http", "127.0.0.1:0", "--node", "node-one"];
        let places = ["--socket", &socket, "--data-dir", &data_dir];
        let more: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let process = Process::lockmesh(&[&usual, &places[..], &more].concat());
        let line = process.says("ready http=");
        let http = field(&line, "http").parse().expect("the ready line names an address");
        let socket = Some(PathBuf::from(field(&line, "socket")));
        Self { http, socket, folder, data, arguments, process: Some(process) }
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
        self.process.as_ref().expect("the process runs").number()
    }

    /// Kills the process with `kill -9`, and waits until it is gone.
    pub fn kill(&mut self) {
        drop(self.process.take());
    }

    /// Returns all of the process's output.
    pub fn log(&self) -> String {
        self.process.as_ref().map(Process::said).unwrap_or_default()
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
