//! Three real servers and some agents as separate processes, connected by a network that the test
//! controls.
//!
//! Every server advertises its relay in [`crate::chaos::proxy`], so all traffic between servers,
//! and from agents to servers, passes through the relays. A process keeps its ports and folders
//! across restarts.

use crate::binary;
use crate::chaos::proxy::{Network, Place, Rule};
use crate::dialect::let_pass;
use crate::http::{Address, Answer, Client};
use crate::member::{Member, make_authority, write_config};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The number of servers. They have places 0, 1 and 2; the agents follow.
pub const SERVERS: usize = 3;
/// The maximum time until the cluster must serve again.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The interval between polls of a condition.
const GLANCE: Duration = Duration::from_millis(25);

/// The servers, the agents and their network. Dropping it ends all processes.
pub struct Cluster {
    /// The network between the processes.
    pub network: Arc<Network>,
    members: Vec<Member>,
    /// The data folder of each member, and the HTTP address of an agent.
    homes: Vec<(PathBuf, Option<SocketAddr>)>,
    folder: TempDir,
    /// The program for processes that start from now on.
    program: PathBuf,
}

impl Cluster {
    /// Starts three servers with data in `disks`, and one agent per element of `agents`, each
    /// configured with those servers.
    pub fn start(disks: &[PathBuf], agents: &[&[Place]], seed: u64) -> Self {
        let folder =
            tempfile::Builder::new().prefix("lockmesh-cluster-").tempdir().expect("a temporary folder");
        let network = Network::new(seed);
        make_authority(folder.path());
        let program = binary::lockmesh().to_owned();
        let mut cluster = Self { network, members: Vec::new(), homes: Vec::new(), folder, program };
        let ports: Vec<SocketAddr> = (0..SERVERS).map(|_| free_udp_port()).collect();
        let relay =
            |(place, port): (usize, &SocketAddr)| cluster.network.relay(place, *port).expect("a relay");
        let relays: Vec<SocketAddr> = ports.iter().enumerate().map(relay).collect();
        for place in 0..SERVERS {
            let rest = server_config(ports[place], relays[place], &relays);
            cluster.add(&format!("s{}", place + 1), "server", &disks[place], None, &rest);
        }
        for (number, knows) in agents.iter().enumerate() {
            let http = free_tcp_port();
            let servers: Vec<String> =
                knows.iter().map(|place| format!("{:?}", relays[*place].to_string())).collect();
            let rest = agent_config(http, &servers.join(", "));
            let name = format!("a{}", number + 1);
            let data = cluster.folder.path().join(&name);
            cluster.add(&name, "agent", &data, Some(http), &rest);
        }
        (0..cluster.members.len()).for_each(|place| cluster.begin(place));
        cluster
    }

    fn add(&mut self, name: &str, role: &'static str, data: &Path, http: Option<SocketAddr>, rest: &str) {
        let config = write_config(self.folder.path(), name, role, data, rest);
        self.members.push(Member::new(name.to_owned(), role, config));
        self.homes.push((data.to_path_buf(), http));
    }

    /// Starts the process at a place; none may be running there.
    pub fn begin(&mut self, place: Place) {
        self.members[place].begin(&[], &self.program);
        self.network.settle(place, self.process_number(place));
    }

    /// Uses another program for processes that start from now on.
    pub fn use_program(&mut self, program: &Path) {
        self.program = program.to_owned();
    }

    /// Kills the process with `kill -9`.
    pub fn kill(&mut self, place: Place) {
        self.members[place].kill();
    }

    /// Sends SIGTERM and waits until the process has exited.
    pub fn end_kindly(&mut self, place: Place) {
        self.signal(place, "TERM");
        let code = self.members[place].wait_for_end();
        assert_eq!(code, 0, "{} exited with an error", self.name(place));
    }

    /// Sends a signal, by its name.
    pub fn signal(&self, place: Place, name: &str) {
        self.members[place].process().signal(name);
    }

    /// Returns the process number at a place.
    pub fn process_number(&self, place: Place) -> u32 {
        self.members[place].process().number()
    }

    /// Returns the data folder of a member.
    pub fn data(&self, place: Place) -> &Path {
        &self.homes[place].0
    }

    /// Returns the name of a member.
    pub fn name(&self, place: Place) -> &str {
        &self.members[place].name
    }

    /// Returns the place of an agent, counted from 0.
    pub fn agent(&self, number: usize) -> Place {
        SERVERS + number
    }

    /// Returns a client of an agent, counted from 0.
    pub fn client(&self, number: usize) -> Client {
        let http = self.homes[SERVERS + number].1.expect("an agent answers HTTP");
        Client { address: Address::Tcp(http) }
    }

    /// Returns the Raft configuration as reported by the first agent that replies.
    fn configuration(&self) -> Option<serde_json::Value> {
        let agents = 0..self.members.len() - SERVERS;
        agents.into_iter().find_map(|number| {
            let answer = ask_quickly(&self.client(number), "GET", "/v1/operator/raft/configuration")?;
            (answer.status == 200).then(|| serde_json::from_slice(&answer.body).ok())?
        })
    }

    /// Returns the place of the leader, or `None` if no agent knows a leader.
    pub fn leader(&self) -> Option<Place> {
        let configuration = self.configuration()?;
        let leader = configuration["Servers"].as_array()?.iter().find(|server| server["Leader"] == true)?;
        self.members.iter().position(|member| leader["Node"] == member.name.as_str())
    }

    /// Waits for a leader.
    #[track_caller]
    pub fn wait_for_leader(&self) -> Place {
        self.wait_for("a leader", || self.leader())
    }

    /// Waits until a write through every agent succeeds and every server has applied the writes.
    /// Returns the time it took.
    #[track_caller]
    pub fn wait_until_whole(&self) -> Duration {
        let begun = Instant::now();
        let agents = self.members.len() - SERVERS;
        let newest =
            (0..agents).map(|number| self.wait_for("an answer", || idle_write(&self.client(number)))).max();
        self.wait_for("three servers to catch up", || {
            let configuration = self.configuration()?;
            let servers = configuration["Servers"].as_array()?;
            let has_all = |server: &serde_json::Value| server["LastIndex"].as_u64() >= newest;
            let voters = servers.iter().filter(|server| server["Voter"] == true);
            (servers.len() == SERVERS && voters.count() == SERVERS && servers.iter().all(has_all))
                .then_some(())
        });
        begun.elapsed()
    }

    #[track_caller]
    fn wait_for<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(
                begun.elapsed() < TIMEOUT,
                "timed out waiting for {what}; the output is:\n{}",
                self.said()
            );
            let_pass(GLANCE);
        }
    }

    /// Blocks all traffic from one place to others.
    pub fn cut(&self, from: Place, to: impl IntoIterator<Item = Place>) {
        to.into_iter().for_each(|to| self.network.rule(from, to, Rule::CUT));
    }

    /// Returns the output of the current process at a place.
    pub fn said_at(&self, place: Place) -> String {
        self.members[place].process().said()
    }

    /// Returns the last lines of output of every process.
    pub fn said(&self) -> String {
        let tail = |member: &Member| {
            let text = member.said();
            let lines: Vec<&str> = text.lines().collect();
            format!("== {} ==\n{}\n", member.name, lines[lines.len().saturating_sub(40)..].join("\n"))
        };
        self.members.iter().map(tail).collect()
    }

    /// Writes the output of every process to a file each.
    pub fn save_said(&self, folder: &Path) {
        self.members.iter().for_each(|member| member.save_said(folder));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.members.clear();
        self.network.end();
    }
}

fn server_config(listen: SocketAddr, relay: SocketAddr, relays: &[SocketAddr]) -> String {
    let others: Vec<String> = relays.iter().map(|relay| format!("{:?}", relay.to_string())).collect();
    // A short log and frequent checkpoints: a server that was down for a while needs a snapshot.
    format!(
        "[rpc]\nlisten = \"{listen}\"\nadvertise = \"{relay}\"\n[quorum]\nbootstrap_expect = {SERVERS}\n\
         join = [{}]\n[storage]\nlog_keep_bytes = 262144\ncheckpoint_interval = \"500ms\"\n",
        others.join(", ")
    )
}

fn agent_config(http: SocketAddr, servers: &str) -> String {
    format!(
        "listen = \"127.0.0.1:0\"\n[http]\ntcp = \"{http}\"\nsocket = \"\"\nsession_ttl_min = \"1s\"\n[upstream]\nservers = [{servers}]\n"
    )
}

/// Sends one request on a connection of its own. Gives up after 10 seconds of silence.
pub(crate) fn ask_quickly(client: &Client, method: &str, path: &str) -> Option<Answer> {
    let mut connection = client.connect().ok()?;
    connection.be_patient_for(Duration::from_secs(10)).ok()?;
    connection.ask(method, path, &[], b"").ok()
}

/// Returns the index of a write that changes nothing, or `None` without a reply.
pub(crate) fn idle_write(client: &Client) -> Option<u64> {
    let path = "/v1/session/destroy/00000000-0000-0000-0000-000000000000";
    let answer = ask_quickly(client, "PUT", path)?;
    (answer.status == 200).then(|| answer.header("X-Lockmesh-Index")?.parse().ok())?
}

fn free_udp_port() -> SocketAddr {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    socket.local_addr().expect("it is bound")
}

fn free_tcp_port() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("it is bound")
}
