//! The cluster on the hosts: servers on three of them, agents on five, as in production.

use super::flood::Flood;
use super::network::Network;
use crate::binary;
use crate::cluster::{ask_quickly, idle_write};
use crate::dialect::let_pass;
use crate::fleet::{self, freeze};
use crate::http::{Address, Client};
use crate::member::Member;
use crate::member::{make_authority, text, write_config};
use crate::process::Process;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The servers' hosts.
pub const SERVERS: [&str; 3] = ["s1", "s2", "s3"];
/// The agents' hosts.
pub const AGENTS: [&str; 5] = ["n1", "n2", "n3", "n4", "n5"];
/// The servers' port.
const PORT: u16 = 8300;
/// The port of the servers' metrics.
const MONITOR_PORT: u16 = 8400;
/// The command that starts a server with few open files and 96 MiB of memory for data. An idle one
/// has 22 files and 18 MiB.
const SERVER_LIMITS: [&str; 3] = ["prlimit", "--nofile=64", "--data=100663296"];
/// The same for an agent: 48 MiB. An idle one has 26 files and 6 MiB.
const AGENT_LIMITS: [&str; 3] = ["prlimit", "--nofile=128", "--data=50331648"];
/// The interval between polls of a condition.
const GLANCE: Duration = Duration::from_millis(20);
/// The maximum time until the cluster must serve again.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// The hosts with their processes.
pub struct Hosts {
    /// The network between the hosts.
    pub network: Network,
    /// The folder with their data.
    pub folder: PathBuf,
    members: Vec<Member>,
    is_limited: bool,
    floods: Vec<Flood>,
}

impl Hosts {
    /// Issues the hosts' certificates, writes their configurations, and starts all processes. Apart
    /// from addresses and folders, agents have the default configuration; `shortest_ttl` may
    /// override the minimum TTL.
    pub fn start(network: Network, folder: &Path, shortest_ttl: Option<&str>) -> Self {
        Self::start_with(network, folder, shortest_ttl, false)
    }

    /// Does the same; processes have small limits if `is_limited`.
    pub fn start_with(network: Network, folder: &Path, shortest_ttl: Option<&str>, is_limited: bool) -> Self {
        let folder = folder.join("lockmesh");
        fs::create_dir(&folder).expect("the folder can be written to");
        make_authority(&folder);
        let mut hosts = Self { network, folder, members: Vec::new(), is_limited, floods: Vec::new() };
        let servers = SERVERS.map(|host| format!("\"{}:{PORT}\"", hosts.network.address(host))).join(", ");
        for host in SERVERS {
            let listen = hosts.network.address(host);
            let rest = format!(
                "[rpc]\nlisten = \"{listen}:{PORT}\"\n[http]\nlisten = \"{listen}:{MONITOR_PORT}\"\n\
                 [quorum]\nbootstrap_expect = 3\njoin = [{servers}]\n"
            );
            hosts.add(host, "server", &rest);
        }
        for host in AGENTS {
            let (address, socket) = (hosts.network.address(host), hosts.socket(host));
            let shortest =
                shortest_ttl.map(|ttl| format!("session_ttl_min = \"{ttl}\"\n")).unwrap_or_default();
            let rest = format!(
                "advertise = \"{address}\"\n[http]\ntcp = \"\"\nsocket = {socket:?}\n{shortest}\
                 [upstream]\nservers = [{servers}]\n"
            );
            hosts.add(host, "agent", &rest);
        }
        SERVERS.into_iter().chain(AGENTS).for_each(|host| hosts.begin(host));
        hosts.wait_until_whole();
        hosts
    }

    fn add(&mut self, host: &'static str, role: &'static str, rest: &str) {
        let config = write_config(&self.folder, host, role, &self.folder.join(host), rest);
        self.members.push(Member::new(host.into(), role, config));
    }

    /// Starts the server or agent of a host; it must not be running.
    pub fn begin(&mut self, host: &str) {
        let (place, on) = (self.place(host), self.network.on(host));
        let limits = match SERVERS.contains(&host) {
            _ if !self.is_limited => &[][..],
            true => &SERVER_LIMITS[..],
            false => &AGENT_LIMITS[..],
        };
        self.members[place].begin(&[&["ip"], &on[..], limits].concat(), binary::lockmesh());
    }

    /// Starts clients that take all connections of the servers or agents on these hosts.
    pub fn flood(&mut self, hosts: &[&'static str]) {
        let monitor = |host| (self.network.address(host), MONITOR_PORT).into();
        let address = |host: &&'static str| match SERVERS.contains(host) {
            true => Address::Tcp(monitor(host)),
            false => Address::Unix(self.socket(host)),
        };
        self.network.join();
        self.floods = hosts.iter().map(address).map(Flood::start).collect();
    }

    /// Disconnects all of these clients.
    pub fn end_floods(&mut self) {
        self.floods.drain(..).for_each(Flood::end);
    }

    /// Returns the number of log lines of a host's server or agent about connections that it cannot
    /// accept, or accepts again.
    pub fn accept_lines(&self, host: &str) -> usize {
        let said = self.process(host).said();
        let is_one = |line: &&str| line.contains("cannot accept") || line.contains("accepting connections");
        said.lines().filter(is_one).count()
    }

    /// Runs a command on a host.
    pub fn run(&self, host: &str, command: &[&str]) -> Process {
        Process::start(Path::new("ip"), &[&self.network.on(host)[..], command].concat())
    }

    /// Sends SIGKILL to every process of a host at once.
    pub fn kill_host(&mut self, host: &str) {
        let numbers = self.network.processes(host).join(" ");
        // A process that has ended since the listing needs no signal.
        fleet::shell(&format!("kill -9 {numbers} 2>/dev/null"));
        self.wait_for_end(host);
    }

    /// Sends SIGTERM to a host's server or agent, and waits until it has exited.
    pub fn terminate(&mut self, host: &str) {
        self.process(host).signal("TERM");
        self.wait_for_end(host);
    }

    /// Waits for the exit of a host's server or agent.
    pub fn wait_for_end(&mut self, host: &str) {
        let place = self.place(host);
        self.members[place].wait_for_end();
    }

    /// Sends SIGSTOP to a host's server or agent, and waits until all of its threads have stopped.
    pub fn freeze(&self, host: &str) {
        freeze(&self.process(host).number().to_string());
    }

    /// Resumes it with SIGCONT.
    pub fn thaw(&self, host: &str) {
        self.process(host).signal("CONT");
    }

    /// Returns the process number of a host's server or agent.
    pub fn number(&self, host: &str) -> u32 {
        self.process(host).number()
    }

    fn process(&self, host: &str) -> &Process {
        self.members[self.place(host)].process()
    }

    fn place(&self, host: &str) -> usize {
        let place = self.members.iter().position(|member| member.name == host);
        place.expect("it is one of the hosts")
    }

    /// Returns the socket of a host's agent.
    pub fn socket(&self, host: &str) -> PathBuf {
        self.folder.join(format!("{host}.sock"))
    }

    /// Returns the socket as a command-line option.
    pub fn socket_option(&self, host: &str) -> String {
        format!("unix://{}", text(&self.socket(host)))
    }

    /// Returns a client of a host's agent.
    pub fn client(&self, host: &str) -> Client {
        Client { address: Address::Unix(self.socket(host)) }
    }

    /// Returns the JSON of a successful reply of a host's agent.
    pub fn json(&self, host: &str, path: &str) -> Option<Value> {
        json(&self.client(host), path)
    }

    /// Returns the leader's host, as a host's agent knows it.
    pub fn leader(&self, host: &str) -> &'static str {
        self.wait_for("a leader", || {
            let configuration = self.json(host, "/v1/operator/raft/configuration")?;
            let leader =
                configuration["Servers"].as_array()?.iter().find(|server| server["Leader"] == true)?;
            SERVERS.into_iter().find(|server| leader["Node"] == *server)
        })
    }

    /// Waits until a write succeeds through every running agent, and all agents know every server
    /// as a voter.
    pub fn wait_until_whole(&self) {
        for host in AGENTS {
            self.wait_for(&format!("an answer on {host}"), || idle_write(&self.client(host)));
            self.wait_for(&format!("three voters known to {host}"), || {
                let configuration = self.json(host, "/v1/operator/raft/configuration")?;
                let servers = configuration["Servers"].as_array()?;
                (servers.iter().filter(|server| server["Voter"] == true).count() == SERVERS.len())
                    .then_some(())
            });
        }
    }

    /// Polls until there is a value; panics after a timeout.
    #[track_caller]
    pub fn wait_for<T>(&self, what: &str, look: impl FnMut() -> Option<T>) -> T {
        wait_within(TIMEOUT, look).unwrap_or_else(|| panic!("timed out waiting for {what}"))
    }

    /// Ends all processes on the hosts. Returns their network.
    pub fn end(self) -> Network {
        self.network
    }

    /// Writes the output of every process to a file each.
    pub fn save_said(&self, folder: &Path) {
        self.members.iter().for_each(|member| member.save_said(folder));
    }
}

/// Returns the JSON of an agent's successful reply.
pub fn json(client: &Client, path: &str) -> Option<Value> {
    let answer = ask_quickly(client, "GET", path)?;
    (answer.status == 200).then(|| serde_json::from_slice(&answer.body).ok())?
}

/// Polls until there is a value; returns `None` after `limit`.
pub fn wait_within<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let begun = Instant::now();
    loop {
        let found = look();
        if found.is_some() || begun.elapsed() > limit {
            return found;
        }
        let_pass(GLANCE);
    }
}
