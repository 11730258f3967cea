//! Agents: the clients of the servers. An agent keeps its number as long as it registers for the
//! same node UUID, and its lease as long as it is the same process. The status of members is in
//! [`member`](super::member).

use super::State;
use super::catalog::node_is_well_formed;
use super::check::ensure_check;
use super::error::CatalogError;
use super::member::{forget_member, is_living, set_agent};
use super::node::{SERF_HEALTH, ensure_node, set_node_id};
use super::replies::forget_all;
use super::service::ensure_service;
use super::step::{Step, reply_or_refusal};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::AgentRegistration;
use lockmesh_protocol::id::{AgentNumber, CheckId, Generation, LogIndex, NodeName};
use lockmesh_protocol::lease::LeaseId;
use lockmesh_protocol::record::{Agent, Check, CheckStatus, MemberStatus, Service};
use lockmesh_protocol::reply::Reply;
use std::sync::Arc;

/// The format version from which the name of a restarting node passes to another node id.
const NAMES_PASS_ON_SINCE: u8 = 4;

/// Begins a new generation of an agent: registers its healthy node, and forgets the replies
/// kept for earlier generations.
pub(super) fn register_agent(step: &mut Step<'_>, registration: &AgentRegistration) -> Reply {
    // Registering the node can fail half-way, so it comes first; the rest cannot fail.
    let former = step.state.restarting_owner(registration).map(|owner| owner.number);
    let outcome = step.attempt(|step| register_agent_node(step, registration, former));
    reply_or_refusal(outcome.map(|()| begin_generation(step, registration, former)))
}

fn register_agent_node(
    step: &mut Step<'_>,
    registration: &AgentRegistration,
    former: Option<AgentNumber>,
) -> Result<(), CatalogError> {
    let node = &registration.node;
    node_is_well_formed(node)?;
    if node.id.is_empty() {
        return Err(CatalogError::NoNodeId);
    }
    if former.is_some() {
        set_node_id(step, &node.name, &node.id);
    }
    ensure_node(step, node).map_err(|cause| CatalogError::Node(Box::new(cause)))?;
    for service in &registration.services {
        let service = Service { node: node.name.clone(), ..service.clone() };
        ensure_service(step, &service).map_err(|cause| CatalogError::Service(Box::new(cause)))?;
    }
    ensure_check(step, &alive_check(&node.name))
}

/// Begins a generation of the agent with the registration's node id. `former` is the agent
/// whose name it takes: it continues as that agent, so that the sessions of the node keep what
/// the restart announced.
fn begin_generation(
    step: &mut Step<'_>,
    registration: &AgentRegistration,
    former: Option<AgentNumber>,
) -> Reply {
    let node_id = registration.node.id.to_ascii_lowercase();
    let known = former.or_else(|| step.state.members.by_node_id.get(&node_id).copied());
    let number = known.unwrap_or_else(|| next_agent(step));
    let before = step.state.members.agents.get(&number).cloned();
    let generation = before.as_deref().map_or(Generation(1), |before| before.generation.next());
    let (lease_began, former_sessions_until) = lease_of(step, registration, before.as_deref());
    let cell = step.state.members.cells.of(before.as_deref());
    // Guards rely on an announced restart until this process has told them another deadline.
    let restart_announced = before.as_deref().and_then(|before| before.restart_announced);
    let lives_on = before.filter(|before| before.status == MemberStatus::Alive);
    let agent = Agent {
        number,
        generation,
        node: registration.node.name.clone(),
        node_id,
        port: registration.port,
        gossip: registration.gossip,
        cell,
        version: registration.version.clone(),
        incarnation: registration.incarnation,
        lease_began,
        former_sessions_until,
        restart_announced,
        status: MemberStatus::Alive,
        status_since: lives_on.map_or(step.at, |before| before.status_since),
        address: registration.node.address.clone(),
    };
    let lease = agent.lease();
    set_agent(step, agent);
    forget_former_owners(step, &registration.node.name.folded(), number);
    // Request ids restart with each generation; a kept reply of the former one would match the
    // wrong command.
    forget_all(step, number);
    Reply::Agent { number, generation, lease, secret: step.state.lease_key.secret(lease) }
}

/// Forgets the members with other node ids that failed or left under this name, as in Consul,
/// where a name is one member: they would be listed as failed beside the living one.
fn forget_former_owners(step: &mut Step<'_>, folded: &NodeName, owner: AgentNumber) {
    if !step.state.passes_names_on() {
        return;
    }
    let is_gone = |number: &AgentNumber| {
        let agent = step.state.members.agents.get(number).filter(|_| *number != owner);
        agent.is_some_and(|agent| matches!(agent.status, MemberStatus::Failed | MemberStatus::Left))
    };
    for number in step.state.members.registered_for(folded).filter(is_gone).collect::<Vec<_>>() {
        forget_member(step, number);
    }
}

/// The start of a registration's lease, and the index below which sessions belong to a former
/// host.
fn lease_of(
    step: &Step<'_>,
    registration: &AgentRegistration,
    before: Option<&Agent>,
) -> (LogIndex, Option<LogIndex>) {
    // A node that left has no sessions.
    let before = before.filter(|before| before.status != MemberStatus::Left);
    let Some(before) = before else { return (step.index, None) };
    // A failed lease never continues, because the verdict applies to it. Only the process is
    // compared: its certificate may have been renewed meanwhile.
    if is_living(before) && before.incarnation.process == registration.incarnation.process {
        return (before.lease_began, before.former_sessions_until);
    }
    if before.incarnation.is_same_host(&registration.incarnation) {
        return (step.index, before.former_sessions_until);
    }
    // Guards of the other host may rely on their sessions until its windows end.
    (step.index, Some(step.index))
}

fn next_agent(step: &mut Step<'_>) -> AgentNumber {
    let number = step.state.members.last_agent.next();
    step.set(Change::LastAgent(number));
    number
}

impl State {
    /// The agent of the node with this UUID.
    pub fn agent_of_node_id(&self, node_id: &str) -> Option<&Arc<Agent>> {
        self.members.of_node_id(node_id)
    }

    /// The agent that announced a restart, and whose name a registration with a node id that has
    /// no node and no agent claims, such as that of a container without a volume.
    pub fn restarting_owner(&self, registration: &AgentRegistration) -> Option<&Arc<Agent>> {
        let AgentRegistration { node, .. } = registration;
        let is_known = self.members.of_node_id(&node.id).is_some()
            || self.catalog.node_ids.contains_key(&node.id.to_ascii_lowercase());
        let owner = self.members.of_node(&node.name.folded())?;
        let is_free = !is_known && owner.status == MemberStatus::Restarting;
        (self.passes_names_on() && is_free && self.catalog.nodes.contains_key(&node.name.folded()))
            .then_some(owner)
    }

    /// The leases that may be older than the last restore, whose agents may not know of it. It
    /// changed every table, so it is not newer than any table's last change.
    pub(crate) fn leases_before_restore(&self) -> impl Iterator<Item = LeaseId> {
        // A table of a newer format may not have changed at all.
        let changed = self.table_indexes.iter().filter(|index| index.0 > 0);
        let oldest = changed.min().copied().filter(|_| self.index_base > 0).unwrap_or_default();
        self.agents().map(|agent| agent.lease()).filter(move |lease| lease.began < oldest)
    }

    /// `true` if all servers apply the rules of claims to names in the same way.
    pub(super) fn passes_names_on(&self) -> bool {
        self.format() >= NAMES_PASS_ON_SINCE
    }
}

/// The health check of a node while its agent is alive.
pub(super) fn alive_check(node: &NodeName) -> Check {
    health_check(node, CheckStatus::Passing, "Agent alive and reachable")
}

/// The health check of a node whose agent failed.
pub(super) fn failed_check(node: &NodeName) -> Check {
    health_check(node, CheckStatus::Critical, "Agent not live or unreachable")
}

fn health_check(node: &NodeName, status: CheckStatus, output: &str) -> Check {
    Check {
        name: "Serf Health Status".into(),
        output: output.into(),
        ..Check::of(node.clone(), CheckId::from(SERF_HEALTH), status)
    }
}
