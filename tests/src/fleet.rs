//! Runs `lockmesh dev --servers …`, optionally with `--nodes …`: several servers and agents as
//! separate processes that a test may kill one by one.

use crate::dialect::let_pass;
use crate::http::{Address, Client};
use crate::member::{issue, text};
use crate::process::{Process, run};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// A running `lockmesh dev --servers`.
pub struct Fleet {
    /// The process of the command.
    pub process: Process,
    /// Its data folder, with a folder per server.
    pub folder: PathBuf,
    /// The HTTP address of its agent.
    pub http: String,
    _own_folder: Option<TempDir>,
}

impl Fleet {
    /// Starts the number of servers in `servers` in a new folder, and waits until they serve.
    pub fn new(servers: &str, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let fleet = Self::start_with(folder.path(), servers, options);
        Self { _own_folder: Some(folder), ..fleet }
    }

    /// The same in an existing folder.
    pub fn start(folder: &Path, servers: &str) -> Self {
        Self::start_with(folder, servers, &[])
    }

    /// Like [`Self::start`], with more options.
    pub fn start_with(folder: &Path, servers: &str, options: &[&str]) -> Self {
        let data = folder.to_str().expect("a temporary folder's name is text");
        let usual = ["dev", "--http", "127.0.0.1:0", "--servers", servers, "--data-dir", data];
        let process = Process::lockmesh(&[&usual, options].concat());
        let ready = process.says("ready http=");
        let http = ready.split_whitespace().find_map(|word| word.strip_prefix("http="));
        Self {
            http: http.expect("an address").to_owned(),
            folder: folder.to_owned(),
            process,
            _own_folder: None,
        }
    }

    /// Returns a client of the agent.
    pub fn client(&self) -> Client {
        Client { address: Address::Tcp(self.http.parse().expect("an address")) }
    }

    /// Returns a client of a server's metrics endpoint. The command prints its address on the line
    /// after the server's own.
    pub fn monitor(&self, server: &str) -> Client {
        let own = format!("  {server}  pid ");
        self.process.says(&own);
        self.process.says("Killed processes are not restarted");
        let said = self.process.said();
        let line = said.lines().skip_while(|line| !line.starts_with(&own)).nth(1).expect("a line about it");
        let address = line.split_once("http://").and_then(|(_, rest)| rest.split_once('/'));
        Client { address: Address::Tcp(address.expect("an address").0.parse().expect("an address")) }
    }

    /// Returns the socket of an agent that runs as a separate process.
    pub fn socket(&self, node: &str) -> PathBuf {
        self.folder.join(node).join("agent.sock")
    }

    /// Returns a client of an agent that runs as a separate process.
    pub fn client_of(&self, node: &str) -> Client {
        Client { address: Address::Unix(self.socket(node)) }
    }

    /// Runs `lockmesh dev kill`. Returns exit code, standard output and standard error.
    pub fn kill(&self, node: &str, options: &[&str]) -> (i32, String, String) {
        run(&[&["dev", "kill", node, "--data-dir", self.data()], options].concat())
    }

    /// Returns the data folder, for use as an option.
    pub fn data(&self) -> &str {
        self.folder.to_str().expect("a temporary folder's name is text")
    }

    /// Returns the servers that `/v1/lockmesh/servers` lists.
    pub fn servers(&self) -> Vec<Value> {
        let quorum = self.client().get("/v1/lockmesh/servers").expect(200).json();
        quorum["Servers"].as_array().expect("servers").clone()
    }

    /// Returns the addresses where agents connect to the servers.
    pub fn server_addresses(&self) -> Vec<String> {
        let address = |server: &Value| server["Address"].as_str().expect("an address").to_owned();
        self.servers().iter().map(address).collect()
    }

    /// Waits until the leader has found all servers healthy. A slow follower of a leader that was
    /// just elected may have acknowledged nothing yet.
    pub fn until_all_are_healthy(&self) {
        let client = self.client();
        wait_until(|| client.get("/v1/operator/autopilot/health").status == 200);
    }

    /// Returns the leader's node.
    pub fn leader(&self) -> String {
        let leader = self.servers().into_iter().find(|server| server["Leader"] == true);
        leader.expect("somebody leads")["Node"].as_str().expect("a name").to_owned()
    }

    /// Returns the process number of a server, or of an agent with its own process, from its pid
    /// file.
    pub fn pid(&self, node: &str) -> String {
        let file = self.folder.join(node).join("pid");
        fs::read_to_string(file).expect("a process that runs has a pid file").trim().to_owned()
    }

    /// Runs a command of `lockmesh` against the agent. Returns exit code, standard output and
    /// standard error.
    pub fn command(&self, words: &[&str]) -> (i32, String, String) {
        run(&[words, &["--http-addr", &self.http]].concat())
    }

    /// Starts a server that is not a member and waits for an operator to add it. Returns its
    /// address too.
    pub fn stranger(&self, node: &str) -> (Process, String) {
        issue(&self.folder.join("tls"), &self.folder.join(node), "server", node);
        let process = self.server_of(node);
        let address =
            process.says("the server listens").rsplit_once("address=").map(|(_, place)| place.to_owned());
        (process, address.expect("an address"))
    }

    /// Kills a server, or an agent with its own process, and waits until it is gone.
    pub fn kill_process(&self, node: &str) {
        let pid = self.pid(node);
        assert!(shell(&format!("kill -9 {pid}")));
        gone(&pid);
    }

    /// Starts a server, or an agent with its own process, again.
    pub fn restart(&self, node: &str) -> Process {
        let role = if node.starts_with('s') { "server" } else { "agent" };
        Process::lockmesh(&[role, "--config", &text(&self.folder.join(node).join(format!("{role}.toml")))])
    }

    /// Starts a server again that was added by an operator.
    pub fn server_of(&self, node: &str) -> Process {
        let (ca, own) = (text(&self.folder.join("tls")), text(&self.folder.join(node)));
        let settings = [
            format!("data_dir={own}/data"),
            format!("node.name={node}"),
            "rpc.listen=127.0.0.1:0".to_owned(),
            "quorum.bootstrap_expect=0".to_owned(),
            format!("tls.ca={ca}/ca.pem"),
            format!("tls.certificate={own}/server.pem"),
            format!("tls.key={own}/server-key.pem"),
        ];
        let settings: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
        Process::lockmesh(&[&["server"], &settings[..]].concat())
    }

    /// Ends the command and waits for its exit.
    pub fn stop(self) {
        self.process.signal("TERM");
        assert_eq!(self.process.ends(), 0, "{}", self.process.said());
    }
}

/// Runs a shell command. Returns `true` if it succeeded.
pub fn shell(command: &str) -> bool {
    Command::new("sh").args(["-c", command]).status().expect("sh can be started").success()
}

/// Returns `true` if a process with this number is alive.
pub fn is_alive(pid: &str) -> bool {
    // A process that has ended but was not waited for is a zombie, not alive.
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

/// Stops a process, and waits until all of its threads have stopped. The kernel delivers the signal
/// to one thread. Until that thread is scheduled the others continue, on a busy machine long enough
/// to write and to reply.
pub fn freeze(pid: &str) {
    assert!(shell(&format!("kill -STOP {pid}")));
    let is_still = || {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("it is a process");
        threads.flatten().all(|thread| {
            let status = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            status.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
        })
    };
    wait_until(is_still);
}

/// Waits until the process with this number is gone.
pub fn gone(pid: &str) {
    let waited = shell(&format!("timeout 60 tail --pid={pid} -f /dev/null"));
    assert!(waited && !is_alive(pid), "process {pid} still runs");
}

/// Polls every 20 ms until the condition is true. Panics after 2,000 polls.
#[track_caller]
pub fn wait_until(is_so: impl Fn() -> bool) {
    for _ in 0..2_000 {
        if is_so() {
            return;
        }
        let_pass(Duration::from_millis(20));
    }
    panic!("the condition did not become true");
}
