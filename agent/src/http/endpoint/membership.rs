//! `/v1/agent/members`, `leave`, `force-leave/…` and `join/…`: the members of the cluster, and how
//! nodes leave.
//!
//! | status here | in Consul's numbers |
//! |---|---|
//! | alive, restarting | 1 |
//! | left | 3 |
//! | failed | 4 |

use super::super::answer::{self, Failure};
use super::super::body::Body;
use super::super::call::Call;
use super::super::shapes;
use crate::node::Identity;
use crate::upstream::Upstream;
use crate::upstream::calls::{Read, StatusOf};
use http::Response;
use lockmesh_client::shape::agent::Member;
use lockmesh_protocol::acl::{Access, Resource};
use lockmesh_protocol::command::{Command, NodeLeave};
use lockmesh_protocol::host_port::HostPort;
use lockmesh_protocol::id::{AgentNumber, NodeName};
use lockmesh_protocol::lease::{LeaseId, NodeLease, NodeLeaseQuery};
use lockmesh_protocol::query::{Consistency, Query, Rows};
use lockmesh_protocol::record::{Agent, MemberStatus, Node};
use lockmesh_protocol::reply::{Refusal, Reply};
use lockmesh_protocol::rpc::{ServerStatus, Status};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

const ALIVE: u8 = 1;
const LEFT: u8 = 3;
const FAILED: u8 = 4;

/// The timeout for additional details from the quorum.
pub(super) const DETAILS_TIMEOUT: Duration = Duration::from_secs(2);

/// The default port of a server's address.
const SERVER_PORT: u16 = 8300;

/// Removes this agent's node from the cluster; the process exits after the response.
pub(super) async fn leave(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    call.api.reload.leave().await?;
    Ok(answer::nothing())
}

/// Makes a failed node leave. For a live node the response is the same and nothing changes, as in
/// Consul, whose agent refutes it.
pub(super) async fn force_leave(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let named = NodeName::from(call.tail);
    let node = match call.params.has("wan") {
        true => {
            wide_area_node(call.tail, &call.api.identity.datacenter).ok_or(Refusal::UnknownMember(named))?
        }
        false => named,
    };
    let prune = call.params.has("prune");
    match call.upstream.call(Command::LeaveNode(NodeLeave { node, lease: None, prune })).await?.reply {
        Reply::Refused(refusal) => Err(refusal.into()),
        _ => Ok(answer::nothing()),
    }
}

/// In Consul's wide area, the name of a member ends with its datacenter.
fn wide_area_node(name: &str, datacenter: &str) -> Option<NodeName> {
    let node = name.strip_suffix(datacenter)?.strip_suffix('.')?;
    Some(NodeName::from(node))
}

/// Adds a server to this agent's list, as a fallback when no other server is reachable.
pub(super) async fn join(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    if call.params.non_empty("wan").is_some() {
        return Err(Failure::refused("Failed to join: there is no wide area: a cluster is one datacenter"));
    }
    let named = Named::parse(call.tail);
    // First, because no server answers at such an address. Its agent is in the cluster already.
    if matches!(named, Some(Named::Port(_))) && is_member(call, named).await {
        return Ok(answer::nothing());
    }
    let address = HostPort::with_default_port(call.tail, SERVER_PORT).map_err(|_| {
        Failure::refused(format!("Failed to join {:?}: name a server as host:port", call.tail))
    })?;
    let address = address.to_string();
    if let Err(unavailable) = call.api.upstream.join(&address).await {
        // As in Consul, it is no error to join the address of a member.
        if is_member(call, named).await {
            return Ok(answer::nothing());
        }
        let words = format!("Failed to join {address}: {unavailable}");
        return Err(Failure::from(unavailable).in_words(words));
    }
    tracing::info!(server = %address, "added a server as a fallback for leader discovery");
    Ok(answer::nothing())
}

/// The address in a request to join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    Host(IpAddr),
    Port(SocketAddr),
}

impl Named {
    /// Parses an IP address, with or without a port; returns `None` for a host name.
    fn parse(address: &str) -> Option<Self> {
        let host = || address.trim_start_matches('[').trim_end_matches(']').parse().map(Self::Host);
        address.parse().map(Self::Port).or_else(|_| host()).ok()
    }

    /// Returns `true` if an agent is at this address: that for probes, or that for gossip.
    fn is_of(self, agent: &Agent) -> bool {
        let probes = agent.address.parse().map(|ip| SocketAddr::new(ip, agent.port)).ok();
        let mut known = probes.into_iter().chain(agent.gossip);
        let of = |known: SocketAddr| known.ip().to_canonical();
        known.any(|known| match self {
            Self::Host(ip) => of(known) == ip.to_canonical(),
            Self::Port(address) => (of(known), known.port()) == (of(address), address.port()),
        })
    }
}

/// Returns `true` if a member that has not left is at this address.
async fn is_member(call: &Call<'_>, named: Option<Named>) -> bool {
    let Some(named) = named else { return false };
    // A server is joined most often when none is reachable.
    let read = tokio::time::timeout(DETAILS_TIMEOUT, agents(&call.api.upstream, Consistency::Stale)).await;
    let Ok(Ok(agents)) = read else { return false };
    agents.iter().any(|agent| agent.status != MemberStatus::Left && named.is_of(agent))
}

/// Lists every node in the roster that an agent registered, and every server; at least this node.
/// With `?wan` only the servers are listed, each with its datacenter's name. With `?lease` members
/// are shown with their nodes' leases, which costs a request to the leader for every few hundred
/// nodes. Without it they are not, because clients of Consul list members often and do not use
/// leases.
pub(super) async fn members(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    refuse_filter(call)?;
    let wan = call.params.non_empty("wan").is_some();
    check_segment(call, wan)?;
    // As in Consul, only servers know the wide area.
    if wan && call.api.identity.server_rpc.is_none() {
        return Ok(answer::json(&serde_json::Value::Null, call.layout()));
    }
    // Concurrently: without a leader each of the two runs into its timeout.
    let (status, leases) = tokio::join!(seen_by_leader_or_nearest(call), leases_where_wanted(call));
    let servers = &status.servers;
    let (mut members, mut is_filtered) = registered_members(call, servers, &leases).await.unwrap_or_default();
    let own = call.api.identity.node.folded();
    // Also before it is registered, and if the roster cannot be read.
    members.entry(own).or_insert_with(|| own_member(&call.api.identity, servers));
    let datacenter = &call.api.identity.datacenter;
    for server in servers {
        let folded = NodeName::from(server.node.as_str()).folded();
        // A server without an agent on its machine is not in the roster of agents.
        members.entry(folded).or_insert_with(|| server_member(server, &status, datacenter));
    }
    let mut members: Vec<Member> = members.into_values().collect();
    // The servers have not filtered their own rows, nor that of this agent.
    let (judgement, count) = (call.judgement().await?, members.len());
    members.retain(|member| judgement.permits(Resource::Node, Access::Read, &member.name));
    is_filtered |= members.len() < count;
    if wan {
        // A port among the tags distinguishes servers from other members.
        members.retain(|member| member.tags.contains_key("port"));
        members.iter_mut().for_each(|member| member.name = format!("{}.{datacenter}", member.name));
    }
    Ok(answer::filtered_if(is_filtered, answer::json(&members, call.layout())))
}

/// Rejects a filter: ignoring it would return wrong answers.
fn refuse_filter(call: &Call<'_>) -> Result<(), Failure> {
    match call.params.non_empty("filter") {
        Some(_) => Err(Failure::refused(
            "Failed to create boolean expression evaluator: members cannot be filtered: leave ?filter out \
             and select from the whole answer",
        )),
        None => Ok(()),
    }
}

/// Rejects a network segment: there is only the one without a name, and the name for all of them.
fn check_segment(call: &Call<'_>, wan: bool) -> Result<(), Failure> {
    match call.params.non_empty("segment").filter(|segment| !wan && *segment != "_all") {
        Some(segment) => Err(Failure::refused(format!("segment {segment:?} not found"))),
        None => Ok(()),
    }
}

/// Returns the leader's view, because only the leader knows the servers' health; without a leader,
/// the nearest server's view of the members.
async fn seen_by_leader_or_nearest(call: &Call<'_>) -> Status {
    let by_leader = tokio::time::timeout(DETAILS_TIMEOUT, call.upstream.leader_status()).await;
    match by_leader {
        Ok(Ok(status)) => status,
        _ => call.upstream.call(StatusOf::Nearest).await.unwrap_or_default(),
    }
}

/// Returns the leases of nodes if requested, as far as the leader answers in time.
async fn leases_where_wanted(call: &Call<'_>) -> Vec<NodeLease> {
    let mut leases = Vec::new();
    if !call.params.has("lease") {
        return leases;
    }
    let parts = async {
        let mut next = Some(AgentNumber::default());
        while let Some(first) = next {
            // Earlier parts are shown in any case.
            let Ok(part) = call.upstream.call(NodeLeaseQuery::From(first)).await else { return };
            leases.extend(part.leases);
            // A part that does not advance would be read for ever.
            next = part.next.filter(|next| *next > first);
        }
    };
    // Leases not received by then are omitted.
    let _ = tokio::time::timeout(DETAILS_TIMEOUT, parts).await;
    leases
}

/// Returns the members of the roster that the client may read, each under its node's folded name;
/// and `true` if there are others.
async fn registered_members(
    call: &Call<'_>,
    servers: &[ServerStatus],
    leases: &[NodeLease],
) -> Result<(BTreeMap<NodeName, Member>, bool), Failure> {
    // From any server: members are most often listed when there is no leader.
    let agents = agents(&call.upstream, Consistency::Stale).await?;
    let read = Read { query: Query::Nodes, consistency: Consistency::Stale, blocking: None };
    let (mut nodes, mut is_filtered): (BTreeMap<NodeName, Arc<Node>>, _) = (BTreeMap::new(), false);
    for answer in call.upstream.read_all(read).await? {
        is_filtered |= answer.is_filtered;
        let Rows::Nodes(rows) = &answer.rows else { return Err(super::misfit::wrong_rows()) };
        nodes.extend(rows.iter().map(|node| (node.name.folded(), Arc::clone(node))));
    }
    let mut newest: BTreeMap<NodeName, &Arc<Agent>> = BTreeMap::new();
    for agent in &agents {
        let member = newest.entry(agent.node.folded()).or_insert(agent);
        // A name may have belonged to another agent: the one with the newest lease counts.
        if (member.lease_began, member.number) < (agent.lease_began, agent.number) {
            *member = agent;
        }
    }
    let identity = &call.api.identity;
    let leases: BTreeMap<LeaseId, &NodeLease> = leases.iter().map(|lease| (lease.lease, lease)).collect();
    let member = |(folded, agent): (NodeName, &Arc<Agent>)| {
        let shape = roster_member(agent, nodes.get(&folded), identity, servers);
        let lease = leases.get(&agent.lease());
        let node_lease = lease.map(|lease| shapes::node_lease(lease, Some(lease.window())));
        (folded, Member { node_lease, ..shape })
    };
    Ok((newest.into_iter().map(member).collect(), is_filtered))
}

/// Returns a member of the roster. A member that left is no longer in the catalog.
fn roster_member(
    agent: &Agent,
    node: Option<&Arc<Node>>,
    identity: &Identity,
    servers: &[ServerStatus],
) -> Member {
    let (status, word) = match agent.status {
        MemberStatus::Alive => (ALIVE, "alive"),
        MemberStatus::Restarting => (ALIVE, "restarting"),
        MemberStatus::Left => (LEFT, "left"),
        MemberStatus::Failed => (FAILED, "failed"),
    };
    let described = MemberOf {
        name: node.map_or(agent.node.as_str(), |node| node.name.as_str()),
        address: node.map_or(&agent.address, |node| &node.address),
        id: node.map_or(&agent.node_id, |node| &node.id),
        datacenter: node.map_or(&identity.datacenter, |node| &node.datacenter),
        version: &agent.version,
    };
    let shape = described.shape(status, server_port(identity, servers, &agent.node_id));
    Member {
        // If the agent has none, a server's port is used.
        port: if agent.port == 0 { shape.port } else { agent.port },
        state: word.into(),
        since_ms: agent.status_since.0,
        ..shape
    }
}

/// Returns a server without an agent on its machine.
fn server_member(server: &ServerStatus, status: &Status, datacenter: &str) -> Member {
    // Only the leader knows the health of others, so in other views no server is reported as
    // failed.
    let is_lost = status.leader == Some(status.server) && !server.healthy;
    let address: Option<HostPort> = server.address.parse().ok();
    let described = MemberOf {
        name: &server.node,
        // Without brackets, as in Consul.
        address: address.as_ref().map_or(server.address.as_str(), HostPort::host),
        id: &server.node_id,
        datacenter,
        version: &server.version,
    };
    described.shape(if is_lost { FAILED } else { ALIVE }, Some(address.as_ref().map_or(0, HostPort::port)))
}

/// The row of this agent among the members, as far as the servers returned it.
pub(super) struct OwnRow {
    agent: Option<Arc<Agent>>,
    node: Option<Arc<Node>>,
}

impl OwnRow {
    /// Reads the row. Clients describe an agent often, so the roster is read once for each lease.
    pub(super) async fn read(call: &Call<'_>) -> Self {
        let of_agent = tokio::time::timeout(DETAILS_TIMEOUT, own_agent(call));
        let of_node = tokio::time::timeout(DETAILS_TIMEOUT, own_node(call));
        let (agent, node) = tokio::join!(of_agent, of_node);
        Self { agent: agent.ok().flatten(), node: node.ok().flatten() }
    }

    /// Returns the row, or this agent as it knows itself.
    pub(super) fn member(&self, identity: &Identity, servers: &[ServerStatus]) -> Member {
        match &self.agent {
            Some(agent) => roster_member(agent, self.node.as_ref(), identity, servers),
            None => own_member(identity, servers),
        }
    }
}

/// Returns this agent's entry of the roster; `None` if it is not registered.
async fn own_agent(call: &Call<'_>) -> Option<Arc<Agent>> {
    let lease = call.api.upstream.registered_lease()?;
    let kept = || call.api.own.agent.lock().unwrap_or_else(PoisonError::into_inner);
    // While it lasts, its status changes only at a restart, which ends this process.
    if let Some(agent) = kept().as_ref().filter(|agent| agent.lease() == lease) {
        return Some(Arc::clone(agent));
    }
    // From the leader: another server may not have applied the registration yet.
    let agents = agents(&call.api.upstream, Consistency::Default).await.ok()?;
    let agent = agents.into_iter().find(|agent| agent.lease() == lease)?;
    *kept() = Some(Arc::clone(&agent));
    Some(agent)
}

/// Returns all registered agents.
async fn agents(upstream: &Upstream, consistency: Consistency) -> Result<Vec<Arc<Agent>>, Failure> {
    let read = Read { query: Query::Agents, consistency, blocking: None };
    let mut agents = Vec::new();
    for answer in upstream.read_all(read).await? {
        let Rows::Agents(rows) = &answer.rows else { return Err(super::misfit::wrong_rows()) };
        agents.extend_from_slice(rows);
    }
    Ok(agents)
}

async fn own_node(call: &Call<'_>) -> Option<Arc<Node>> {
    let query = Query::Node(call.api.identity.node.clone());
    let read = Read { query, consistency: Consistency::Stale, blocking: None };
    // Each part has the node.
    let first = call.api.upstream.read_any(read).await.ok()?;
    let Rows::Node(found) = &first.answer.rows else { return None };
    found.as_ref().map(|(node, _)| Arc::clone(node))
}

/// Returns this agent as it knows itself.
fn own_member(identity: &Identity, servers: &[ServerStatus]) -> Member {
    let described = MemberOf {
        name: identity.node.as_str(),
        address: &identity.advertise.ip().to_string(),
        id: &identity.node_id,
        datacenter: &identity.datacenter,
        version: &identity.version,
    };
    described.shape(ALIVE, server_port(identity, servers, &identity.node_id))
}

/// Returns the RPC port of the server on a node, if there is one.
fn server_port(identity: &Identity, servers: &[ServerStatus], node_id: &str) -> Option<u16> {
    // The server in this process is known before any quorum knows it.
    if node_id.eq_ignore_ascii_case(&identity.node_id)
        && let Some(own) = identity.server_rpc
    {
        return Some(own.port());
    }
    let server = servers.iter().find(|server| server.node_id.eq_ignore_ascii_case(node_id))?;
    server.address.parse().ok().map(|address: HostPort| address.port())
}

/// The properties of a member.
struct MemberOf<'a> {
    name: &'a str,
    address: &'a str,
    id: &'a str,
    datacenter: &'a str,
    version: &'a str,
}

impl MemberOf<'_> {
    fn shape(&self, status: u8, server_port: Option<u16>) -> Member {
        let role = if server_port.is_some() { "consul" } else { "node" };
        let tags =
            [("id", self.id), ("dc", self.datacenter), ("role", role), ("build", self.version), ("vsn", "2")];
        let mut tags: BTreeMap<String, String> =
            tags.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        if let Some(port) = server_port {
            tags.insert("port".into(), port.to_string());
            tags.insert("raft_vsn".into(), "3".into());
        }
        Member {
            name: self.name.into(),
            addr: self.address.into(),
            port: server_port.unwrap_or_default(),
            tags,
            status,
            // The versions of Consul's agents, which its programs print.
            protocol_min: 1,
            protocol_max: 5,
            protocol_cur: 2,
            delegate_min: 2,
            delegate_max: 5,
            delegate_cur: 4,
            ..Member::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_protocol::id::{LogIndex, ServerId};

    #[test]
    fn server_member_splits_host_port() {
        let shown = |address: &str| {
            let server = ServerStatus {
                id: ServerId(1),
                node_id: String::new(),
                node: "s1".into(),
                address: address.into(),
                voter: true,
                last_index: LogIndex(0),
                last_contact: None,
                healthy: true,
                stable_since: None,
                version: String::new(),
            };
            let member = server_member(&server, &Status::default(), "dc1");
            (member.addr, member.port, member.tags["port"].clone())
        };
        for (address, addr, port) in [
            ("10.0.0.5:8300", "10.0.0.5", 8300),
            ("[::1]:19301", "::1", 19301),
            ("[fe80::1%eth0]:8300", "fe80::1%eth0", 8300),
            ("s1.internal:8300", "s1.internal", 8300),
        ] {
            assert_eq!(shown(address), (addr.into(), port, port.to_string()), "{address}");
        }
    }

    #[test]
    fn wan_name_requires_datacenter_suffix() {
        assert_eq!(wide_area_node("a.b.dc1", "dc1"), Some("a.b".into()));
        assert_eq!(wide_area_node("a", "dc1"), None);
        assert_eq!(wide_area_node("adc1", "dc1"), None);
    }
}
