//! Three servers and very many agents in one network namespace, on loopback.
//!
//! An agent is asked for its figures over its Unix socket: asking sends no packet. What the servers
//! know goes over loopback, as everything else does that is counted there, so whoever counts asks
//! for little of it.

use super::member::Member;
use super::members::{SERVERS, TIMEOUT, json, wait_within};
use crate::cluster::{ask_quickly, certificates, configure, idle_write, make_authority, write_config};
use crate::figures::Figures;
use crate::fleet::shell;
use crate::http::{Address, Client};
use crate::stand_ins::issue;
use lockmesh_net::Authority;
use lockmesh_protocol::id::NodeName;
use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;

/// Where the first server listens; the others at the next ports.
const SERVER_PORT: usize = 8300;
/// Where the first agent listens, and at the next port its mesh; the others behind it, below the
/// ports that the system gives away.
const AGENT_PORT: usize = 10_000;
/// Agents leave the processors to the servers, which would have some of their own: behind hundreds
/// of agents that connect, a server has no turn before what they sent it overflows its socket, and
/// all connect anew.
const YIELDING: [&str; 3] = ["nice", "-n", "19"];
/// Which agent is asked what the servers know; it is never killed.
pub const OBSERVER: usize = 0;
/// Of so many agents the logs are kept, beside those that were not as they should be.
const LOGS: usize = 20;
/// Of more agents not all are named.
const NAMED: usize = 10;

/// See the [module](self). All is killed when it is dropped.
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
        crowd.servers.iter_mut().for_each(|server| server.begin(&[]));
        crowd.begin(OBSERVER..OBSERVER + 1);
        wait_within(TIMEOUT, || idle_write(&crowd.agents[OBSERVER].client)).expect("the servers serve");
        crowd
    }

    /// How many agents there are, whether they run or not.
    pub fn agents(&self) -> usize {
        self.agents.len()
    }

    /// An agent's node.
    pub fn name(&self, agent: usize) -> &str {
        &self.agents[agent].member.name
    }

    /// The nodes of agents, or of some where they are many.
    pub fn names(&self, agents: &[usize]) -> String {
        let names: Vec<&str> = agents.iter().take(NAMED).map(|agent| self.name(*agent)).collect();
        format!("{}{}", names.join(", "), if agents.len() > NAMED { ", …" } else { "" })
    }

    /// Starts agents that do not run.
    pub fn begin(&mut self, agents: Range<usize>) {
        self.agents[agents].iter_mut().for_each(|agent| agent.member.begin(&YIELDING));
    }

    /// SIGKILL to agents at once.
    pub fn kill(&mut self, agents: Range<usize>) {
        let numbers: Vec<String> = agents.map(|agent| self.number(agent).to_string()).collect();
        assert!(shell(&format!("kill -9 {}", numbers.join(" "))), "an agent had ended by itself");
    }

    /// Waits for the end of killed agents.
    pub fn wait_for_end(&mut self, agents: Range<usize>) {
        self.agents[agents].iter_mut().for_each(|agent| agent.member.wait_for_end());
    }

    /// The number of an agent's process.
    pub fn number(&self, agent: usize) -> u32 {
        self.agents[agent].member.process().number()
    }

    /// The numbers of the servers' processes.
    pub fn servers(&self) -> Vec<u32> {
        self.servers.iter().map(|server| server.process().number()).collect()
    }

    /// A figure of an agent; none where it does not answer.
    pub fn figure(&self, agent: usize, series: &str) -> Option<f64> {
        let answer = ask_quickly(&self.agents[agent].client, "GET", "/metrics")?;
        Figures::parse(answer.text()).series.get(series).copied()
    }

    /// The state of each node, as the servers know it.
    pub fn states(&self) -> Option<BTreeMap<String, String>> {
        let listed = json(&self.agents[OBSERVER].client, "/v1/agent/members")?;
        let text = |field: &serde_json::Value| Some(field.as_str()?.to_owned());
        let with_state = listed.as_array()?.iter();
        Some(
            with_state.filter_map(|member| Some((text(&member["Name"])?, text(&member["State"])?))).collect(),
        )
    }

    /// Waits for a while until the servers know of other failed nodes than at this index, and
    /// answers them all, with the next index.
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

    /// Writes down what the servers, some agents and these agents said.
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
        let config = configure(home, &name, "agent", &home.join(&name), &rest);
        Self { member: Member::new(name, "agent", config), client: Client { address: Address::Unix(socket) } }
    }
}
