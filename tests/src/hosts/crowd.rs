//! Three servers and hundreds of agents in one network namespace, on loopback.
//!
//! An agent's metrics are read over its Unix socket, which sends no packet. A query of the servers'
//! state uses the loopback interface, where traffic is counted, so callers keep such queries rare.

use super::members::{SERVERS, TIMEOUT, json, wait_within};
use crate::binary;
use crate::cluster::{ask_quickly, idle_write};
use crate::figures::Figures;
use crate::fleet::shell;
use crate::http::{Address, Client};
use crate::member::Member;
use crate::member::{certificates, configure, make_authority, write_config};
use crate::stand_ins::issue;
use lockmesh_net::Authority;
use lockmesh_protocol::id::NodeName;
use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;

/// The first server's port; the others use the next ports.
const SERVER_PORT: usize = 8300;
/// The first agent's port; its mesh uses the next one. The others follow, below the system's
/// ephemeral ports.
const AGENT_PORT: usize = 10_000;
/// Gives the servers priority over the agents; in production they have processors of their own.
/// Behind hundreds of connecting agents, a server would not be scheduled before its socket buffer
/// overflows, and all agents would reconnect.
const YIELDING: [&str; 3] = ["nice", "-n", "19"];
/// The agent that is queried for the servers' state; it is never killed.
pub const OBSERVER: usize = 0;
/// The number of agents whose logs are kept, in addition to those that broke an expectation.
const LOGS: usize = 20;
/// The maximum number of agents listed by name.
const NAMED: usize = 10;

/// See the [module](self). Dropping it kills all processes.
pub struct Crowd {
    servers: Vec<Member>,
    agents: Vec<Agent>,
}

struct Agent {
    member: Member,
    client: Client,
}

impl Crowd {
    /// Starts the servers and the observer; the other agents do not run yet.
    pub fn new(folder: &Path, agents: usize) -> Self {
        let home = folder.join("crowd");
        fs::create_dir(&home).expect("the folder can be written to");
        make_authority(&home);
        let addresses: Vec<String> =
            (0..SERVERS.len()).map(|place| format!("127.0.0.1:{}", SERVER_PORT + place)).collect();
        let servers = SERVERS.iter().zip(&addresses).map(|(name, address)| {
            let rest = format!(
                "[rpc]\nlisten = \"{address}\"\n[quorum]\nbootstrap_expect = {}\njoin = {addresses:?}\n",
                SERVERS.len()
            );
            let config = write_config(&home, name, "server", &home.join(name), &rest);
            Member::new((*name).into(), "server", config)
        });
        let authority = Authority::load(&home.join("ca/ca.pem"), &home.join("ca/ca-key.pem"));
        let authority = authority.expect("it was just made");
        let agent = |number| Agent::new(&home, &authority, number, &addresses);
        let mut crowd = Self { servers: servers.collect(), agents: (0..agents).map(agent).collect() };
        crowd.servers.iter_mut().for_each(|server| server.begin(&[], binary::lockmesh()));
        crowd.begin(OBSERVER..OBSERVER + 1);
        wait_within(TIMEOUT, || idle_write(&crowd.agents[OBSERVER].client)).expect("the servers serve");
        crowd
    }

    /// Returns the number of agents, running or not.
    pub fn agents(&self) -> usize {
        self.agents.len()
    }

    /// Returns an agent's node.
    pub fn name(&self, agent: usize) -> &str {
        &self.agents[agent].member.name
    }

    /// Returns the nodes of agents; a long list is truncated.
    pub fn names(&self, agents: &[usize]) -> String {
        let names: Vec<&str> = agents.iter().take(NAMED).map(|agent| self.name(*agent)).collect();
        format!("{}{}", names.join(", "), if agents.len() > NAMED { ", …" } else { "" })
    }

    /// Starts agents that are not running.
    pub fn begin(&mut self, agents: Range<usize>) {
        self.agents[agents].iter_mut().for_each(|agent| agent.member.begin(&YIELDING, binary::lockmesh()));
    }

    /// Sends SIGKILL to agents at once.
    pub fn kill(&mut self, agents: Range<usize>) {
        let numbers: Vec<String> = agents.map(|agent| self.number(agent).to_string()).collect();
        assert!(shell(&format!("kill -9 {}", numbers.join(" "))), "an agent had already exited");
    }

    /// Waits for the exit of killed agents.
    pub fn wait_for_end(&mut self, agents: Range<usize>) {
        self.agents[agents].iter_mut().for_each(|agent| _ = agent.member.wait_for_end());
    }

    /// Returns the process number of an agent.
    pub fn number(&self, agent: usize) -> u32 {
        self.agents[agent].member.process().number()
    }

    /// Returns the process numbers of the servers.
    pub fn servers(&self) -> Vec<u32> {
        self.servers.iter().map(|server| server.process().number()).collect()
    }

    /// Returns a metric of an agent, or `None` without a reply.
    pub fn figure(&self, agent: usize, series: &str) -> Option<f64> {
        let answer = ask_quickly(&self.agents[agent].client, "GET", "/metrics")?;
        Figures::parse(answer.text()).series.get(series).copied()
    }

    /// Returns the state of each node, as the servers know it.
    pub fn states(&self) -> Option<BTreeMap<String, String>> {
        let listed = json(&self.agents[OBSERVER].client, "/v1/agent/members")?;
        let text = |field: &serde_json::Value| Some(field.as_str()?.to_owned());
        let with_state = listed.as_array()?.iter();
        Some(
            with_state.filter_map(|member| Some((text(&member["Name"])?, text(&member["State"])?))).collect(),
        )
    }

    /// Waits for a change of the failed nodes since this index. Returns all failed nodes and the
    /// next index.
    pub fn failed_since(&self, index: u64) -> Option<(u64, Vec<String>)> {
        let path = format!("/v1/health/state/critical?wait=2s&index={index}");
        let answer = ask_quickly(&self.agents[OBSERVER].client, "GET", &path)?;
        if answer.status != 200 {
            return None;
        }
        let listed = answer.json();
        let nodes = listed.as_array()?.iter().filter_map(|check| Some(check["Node"].as_str()?.to_owned()));
        Some((answer.index(), nodes.collect()))
    }

    /// Saves the output of the servers, of some agents and of these agents.
    pub fn save_said(&self, folder: &Path, unwell: &[usize]) {
        self.servers.iter().for_each(|server| server.save_said(folder));
        let some =
            (0..self.agents()).step_by(self.agents().div_ceil(LOGS)).chain(unwell.iter().copied().take(LOGS));
        some.for_each(|agent| self.agents[agent].member.save_said(folder));
    }
}

impl Agent {
    fn new(home: &Path, authority: &Authority, number: usize, servers: &[String]) -> Self {
        let name = format!("a{}", number + 1);
        let own = certificates(home, &name);
        fs::create_dir(&own).expect("the folder can be written to");
        issue(authority, NodeName::from(name.as_str()), &own);
        let socket = home.join(format!("{name}.sock"));
        let rest = format!(
            "listen = \"127.0.0.1:{}\"\n[http]\ntcp = \"\"\nsocket = {socket:?}\n[upstream]\nservers = {servers:?}\n",
            AGENT_PORT + 2 * number
        );
        let config = configure(home, "ca", &name, "agent", &home.join(&name), &rest);
        Self { member: Member::new(name, "agent", config), client: Client { address: Address::Unix(socket) } }
    }
}
