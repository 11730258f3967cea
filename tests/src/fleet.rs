//! Runs `lockmesh dev --servers …`, with `--nodes …` too: several servers, and agents, as processes
//! of their own, which a test may kill one by one.

use crate::dialect::let_pass;
use crate::http::{Address, Client};
use crate::process::{Process, run};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A running `lockmesh dev --servers`.
pub struct Fleet {
    /// The command.
    pub process: Process,
    /// Its data folder, with the servers' folders in it.
    pub folder: PathBuf,
    /// Where its agent answers.
    pub http: String,
}

impl Fleet {
    /// Starts as many servers as `servers` says, and waits until they serve.
    pub fn start(folder: &Path, servers: &str) -> Self {
        Self::start_with(folder, servers, &[])
    }

    /// The same with more options.
    pub fn start_with(folder: &Path, servers: &str, options: &[&str]) -> Self {
        let data = folder.to_str().expect("a temporary folder's name is text");
        let usual = ["dev", "--http", "127.0.0.1:0", "--servers", servers, "--data-dir", data];
        let process = Process::lockmesh(&[&usual, options].concat());
        let ready = process.says("ready http=");
        let http = ready.split_whitespace().find_map(|word| word.strip_prefix("http="));
        Self { http: http.expect("it says where").to_owned(), folder: folder.to_owned(), process }
    }

    /// A client of the agent.
    pub fn client(&self) -> Client {
        Client { address: Address::Tcp(self.http.parse().expect("an address")) }
    }

    /// Where a server shows its figures, as the command says in the line behind the one about it.
    pub fn monitor(&self, server: &str) -> Client {
        let own = format!("  {server}  pid ");
        self.process.says(&own);
        self.process.says("stays dead");
        let said = self.process.said();
        let line = said.lines().skip_while(|line| !line.starts_with(&own)).nth(1).expect("a line about it");
        let address = line.split_once("http://").and_then(|(_, rest)| rest.split_once('/'));
        Client { address: Address::Tcp(address.expect("an address").0.parse().expect("an address")) }
    }

    /// Where an agent that is a process of its own answers.
    pub fn socket(&self, node: &str) -> PathBuf {
        self.folder.join(node).join("agent.sock")
    }

    /// A client of an agent that is a process of its own.
    pub fn client_of(&self, node: &str) -> Client {
        Client { address: Address::Unix(self.socket(node)) }
    }

    /// Runs `lockmesh dev kill`: exit code, standard output, standard error.
    pub fn kill(&self, node: &str, options: &[&str]) -> (i32, String, String) {
        run(&[&["dev", "kill", node, "--data-dir", self.data()], options].concat())
    }

    /// The data folder as an option has it.
    pub fn data(&self) -> &str {
        self.folder.to_str().expect("a temporary folder's name is text")
    }

    /// What `/v1/lockmesh/servers` says of each.
    pub fn servers(&self) -> Vec<Value> {
        let quorum = self.client().get("/v1/lockmesh/servers").expect(200).json();
        quorum["Servers"].as_array().expect("servers").clone()
    }

    /// Where agents find the servers.
    pub fn server_addresses(&self) -> Vec<String> {
        let address = |server: &Value| server["Address"].as_str().expect("an address").to_owned();
        self.servers().iter().map(address).collect()
    }

    /// The leader's node.
    pub fn leader(&self) -> String {
        let leader = self.servers().into_iter().find(|server| server["Leader"] == true);
        leader.expect("somebody leads")["Node"].as_str().expect("a name").to_owned()
    }

    /// The process number of a server, or of an agent that is a process of its own, as its file
    /// says.
    pub fn pid(&self, node: &str) -> String {
        let file = self.folder.join(node).join("pid");
        fs::read_to_string(file).expect("a process that runs has a pid file").trim().to_owned()
    }

    /// Runs a command of `lockmesh` against the agent: exit code, standard output, standard error.
    pub fn command(&self, words: &[&str]) -> (i32, String, String) {
        run(&[words, &["--http-addr", &self.http]].concat())
    }

    /// Starts a server that belongs to nothing and waits to be told whom to join; with its address.
    pub fn stranger(&self, node: &str) -> (Process, String) {
        let place = |name: &str| self.folder.join(name).to_str().expect("it is text").to_owned();
        let (ca, own) = (place("tls"), place(node));
        let issue = ["operator", "tls", "issue", "--role", "server"];
        let (code, _, said) = run(&[&issue[..], &["--node", node, "--ca", &ca, "--out", &own]].concat());
        assert_eq!(code, 0, "{said}");
        let process = self.server_of(node);
        let address =
            process.says("the server listens").rsplit_once("address=").map(|(_, place)| place.to_owned());
        (process, address.expect("it says where"))
    }

    /// Starts a server that was a stranger on the data folder that it has.
    pub fn server_of(&self, node: &str) -> Process {
        let place = |name: &str| self.folder.join(name).to_str().expect("it is text").to_owned();
        let (ca, own) = (place("tls"), place(node));
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

    /// Ends the command and waits for that.
    pub fn stop(self) {
        self.process.signal("TERM");
        assert_eq!(self.process.ends(), 0, "{}", self.process.said());
    }
}

/// Runs a line of shell; whether it went well.
pub fn shell(command: &str) -> bool {
    Command::new("sh").args(["-c", command]).status().expect("sh can be started").success()
}

/// Whether there is a process with this number.
pub fn is_alive(pid: &str) -> bool {
    // A process that has ended and is not waited for is a zombie, not alive.
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

/// Stops a process, and waits until it stands still. The signal goes to one of its threads: until
/// that one has had its turn the others run on, on a busy machine for long enough to write and to
/// answer.
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
    assert!(waited && !is_alive(pid), "process {pid} is still there");
}

/// Asks again until it is so; each question is a request that takes its time.
#[track_caller]
pub fn wait_until(is_so: impl Fn() -> bool) {
    for _ in 0..2_000 {
        if is_so() {
            return;
        }
        let_pass(Duration::from_millis(20));
    }
    panic!("it does not come to be so");
}
