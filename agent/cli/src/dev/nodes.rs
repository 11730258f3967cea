//! `lockmesh dev --nodes 5`: servers and agents, each with its own process as on separate hosts, so
//! that a node can be killed and its locks observed.

use super::agents::{self, AgentFolder};
use super::child::Child;
use super::children::{Processes, how_to, process_line, server_lines, start_command, watch_ends};
use super::folder::absolute;
use super::member;
use super::options::DevOptions;
use super::ports::Ports;
use super::setup::{DevFolder, announce, upstream};
use crate::error::RunError;
use crate::signals::Signals;
use lockmesh_agent::node;
use lockmesh_client::{Address, Client};
use lockmesh_net::Development;
use lockmesh_protocol::rpc::Unavailable;
use std::cell::Cell;
use std::path::Path;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// The default number of servers.
pub(super) const SERVERS: u8 = 3;

/// The interval between requests to an agent that does not serve yet.
const READY_INTERVAL: Duration = Duration::from_millis(50);

/// The time that an agent gets to name the leader when all processes are stopped.
const LEADER_TIMEOUT: Duration = Duration::from_secs(1);

/// The servers and agents with their processes.
struct Nodes {
    all: Processes,
    agents: Vec<AgentFolder>,
}

/// Runs all of it until a signal stops the process.
pub(super) async fn run(options: DevOptions, nodes: u8, servers: u8) -> Result<(), RunError> {
    // Requests over the API go to the agents, which are other processes.
    let (mut signals, _asking) = Signals::new()?;
    let folder = DevFolder::open(&options)?;
    let _held = folder.hold()?;
    let path = absolute(&folder.path)?;
    let certificates = Development::prepare(&path.join("tls"), &node::host_name().into())?;
    let are_old = member::members_with_data(&path) > 0;
    let mut ports = Ports::default();
    let cluster = (options.node.datacenter.as_str(), &options.acl);
    let servers = member::prepare(&path, servers, cluster, &certificates, &mut ports)?;

    let (mut all, mut ends) = Processes::of(servers, nodes, options.log_format);
    let began = async {
        let known = all.start_servers(&mut signals, &mut ends).await?;
        let Some(cluster_id) = known else { return Ok(None) };
        let upstream = upstream(all.server_addresses(), &cluster_id);
        let agents =
            agents::prepare(&path, nodes, &options, (&upstream, are_old), &certificates, &mut ports)?;
        for agent in &agents {
            all.start(&agent.home, agent.settings(&options, &cluster_id))?;
        }
        Ok(Some(agents))
    };
    let began = began.await;
    let Some((all, agents)) = all.unless_failed(began).await? else { return Ok(()) };
    let this = Nodes { all, agents };
    let is_ready = Cell::new(false);
    let say_ready = || {
        is_ready.set(true);
        this.announce(&folder, &path);
    };
    // There is no agent in this process to receive the request.
    let leave = async || Err(Unavailable::Denied("each node leaves by itself".into()));
    let ended = tokio::select! {
        failed = watch_ends(&mut ends, &is_ready) => Err(failed),
        _ = signals.serve(this.ready(), say_ready, || Ok(this.all.reload()), leave) => Ok(()),
    };
    let leader = this.leader().await;
    this.all.stop(leader).await;
    ended
}

impl Nodes {
    /// Each agent with its process.
    fn agents(&self) -> impl Iterator<Item = (&AgentFolder, &Child)> {
        self.agents.iter().zip(self.all.children.iter().skip(self.all.servers.len()))
    }

    /// Waits until every agent serves that has not ended before.
    async fn ready(&self) {
        for (agent, child) in self.agents() {
            let client = client(agent);
            while !child.has_ended() && !client.agent().is_ready().await.unwrap_or(false) {
                sleep(READY_INTERVAL).await;
            }
        }
    }

    fn announce(&self, folder: &DevFolder, path: &Path) {
        let mut lines = server_lines(&self.all.servers, &self.all.children);
        for (agent, child) in self.agents() {
            lines.extend(agent_lines(agent, child));
        }
        // The last one, because only the first has a TCP port.
        if let Some(AgentFolder { home, .. }) = self.agents.last() {
            let (name, socket) = (&home.name, home.socket());
            let hold = format!("LOCKMESH_HTTP_ADDR=unix://{} lockmesh lock job sleep 600", socket.display());
            lines.push(how_to("hold a lock", &hold));
            lines.push(how_to("see its holder", &format!("lockmesh locks{}", self.http_address())));
            lines
                .push(how_to("kill one", &format!("lockmesh dev kill {name} --data-dir {}", path.display())));
            lines.push(how_to("start it again", &start_command(home)));
        }
        let kept = folder.kept();
        lines.push(format!("  Killed processes are not restarted. The data is kept {kept}.\n"));
        let Some(first) = self.agents.first() else { return };
        announce(first.http.as_slice(), Some(&first.home.socket()), &lines.join("\n"));
    }

    /// The options with which a command finds the first agent.
    fn http_address(&self) -> String {
        let usual = DevOptions::default().http;
        let http = self.agents.first().and_then(|agent| agent.http).filter(|http| *http != usual);
        http.map(|http| format!(" --http-addr {http}")).unwrap_or_default()
    }

    /// The leader's address, by the first agent that knows one.
    async fn leader(&self) -> Option<String> {
        for (agent, _) in self.agents().filter(|(_, child)| !child.has_ended()) {
            let client = client(agent);
            if let Ok(Ok(Some(leader))) = timeout(LEADER_TIMEOUT, client.leader()).await {
                return Some(leader);
            }
        }
        None
    }
}

fn client(agent: &AgentFolder) -> Client {
    Client::new(Address::Unix(agent.home.socket()))
}

fn agent_lines(agent: &AgentFolder, child: &Child) -> [String; 2] {
    let (place, socket) = (agent.home.path.display(), agent.home.socket());
    let http = agent.http.map(|http| format!("  http://{http}")).unwrap_or_default();
    let metrics = match agent.http {
        Some(http) => format!("http://{http}/metrics, /health/live, /health/ready"),
        None => format!("curl --unix-socket {} http://localhost/metrics", socket.display()),
    };
    [
        process_line(child, &format!("{place}/{{agent.sock,agent.toml,log,data}}{http}")),
        format!("      metrics and health: {metrics}"),
    ]
}
