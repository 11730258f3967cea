//! Members: the status of an agent's node, and its sessions when it fails or leaves.
//!
//! | status | the node | `serfHealth` | its sessions |
//! |---|---|---|---|
//! | alive, restarting | registered | passing | live |
//! | failed | registered | critical | `fast`, `default` ended; `safe` end with their own verdict |
//! | left | deregistered | – | all ended |
//!
//! **Invariants:** a verdict has no effect in another term than the one that decided it, for
//! another lease than the silent one, or without confirmations: see [`NodeFailure`]. From an
//! announced restart until its end in the log, silence ends no session of the node, whichever
//! process or host has registered since. `serfHealth` follows the member's status, not the reverse.

use super::State;
use super::agent::{alive_check, failed_check};
use super::catalog::CheckKey;
use super::cell::Cells;
use super::check::{critical_cause, store_check};
use super::invalidation::end_sessions;
use super::node::{SERF_HEALTH, delete_node};
use super::replies::forget_all;
use super::rows::take_out;
use super::step::Step;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{NodeFailure, NodeLeave};
use lockmesh_protocol::given_up::GivenUp;
use lockmesh_protocol::id::{AgentNumber, CheckId, LogIndex, NodeName, Term};
use lockmesh_protocol::lease::{HealthWindow, LeaseEnd, LeaseId, Renewal};
use lockmesh_protocol::record::{Agent, Check, CheckStatus, LossCause, MemberStatus, Session};
use lockmesh_protocol::reply::{Refusal, Reply};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The number of members in each status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberCounts {
    /// See [`MemberStatus::Alive`].
    pub alive: usize,
    /// See [`MemberStatus::Restarting`].
    pub restarting: usize,
    /// See [`MemberStatus::Left`].
    pub left: usize,
    /// See [`MemberStatus::Failed`].
    pub failed: usize,
}

impl MemberCounts {
    pub(super) fn of(&mut self, status: MemberStatus) -> &mut usize {
        match status {
            MemberStatus::Alive => &mut self.alive,
            MemberStatus::Restarting => &mut self.restarting,
            MemberStatus::Left => &mut self.left,
            MemberStatus::Failed => &mut self.failed,
        }
    }
}

/// The agents, as the members of their nodes. No derived set is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Members {
    pub(super) agents: BTreeMap<AgentNumber, Arc<Agent>>,
    pub(super) last_agent: AgentNumber,
    /// The agent of the node with each UUID.
    pub(super) by_node_id: BTreeMap<String, AgentNumber>,
    /// The agents that registered for each node, by the node's folded name; the one with the newest
    /// lease is its agent.
    pub(super) by_node: BTreeMap<NodeName, BTreeSet<(LogIndex, AgentNumber)>>,
    /// The number of agents in each status.
    pub(super) counts: MemberCounts,
    /// The number of agents in each cell of the mesh.
    pub(super) cells: Cells,
}

impl Members {
    pub(super) fn rows(&self) -> impl Iterator<Item = Change> + '_ {
        self.agents.iter().map(|(number, row)| Change::Agent(*number, Some(row.clone())))
    }

    pub(super) fn load(&mut self, number: AgentNumber, agent: Option<Arc<Agent>>) {
        if let Some(before) = self.agents.remove(&number) {
            self.by_node_id.remove(&before.node_id);
            take_out(&mut self.by_node, &before.node.folded(), &(before.lease_began, number));
            *self.counts.of(before.status) -= 1;
            self.cells.remove(&before);
        }
        if let Some(agent) = agent {
            self.by_node_id.insert(agent.node_id.clone(), number);
            let of_node = self.by_node.entry(agent.node.folded()).or_default();
            of_node.insert((agent.lease_began, number));
            *self.counts.of(agent.status) += 1;
            self.cells.insert(&agent);
            self.agents.insert(number, agent);
        }
    }

    /// The agent to which a verdict on this lease applies. Failed ones are included: sessions with
    /// longer windows end with their own verdict.
    fn judged(&self, lease: LeaseId) -> Option<&Arc<Agent>> {
        // The name may belong to another agent by now, and the sessions with it.
        self.with_lease(lease).filter(|agent| agent.status != MemberStatus::Left && self.is_member(agent))
    }

    /// `true` for the agent to which its node's name belongs.
    pub(super) fn is_member(&self, agent: &Agent) -> bool {
        self.of_node(&agent.node.folded()).is_some_and(|member| member.number == agent.number)
    }

    /// The agent with this lease, in any status.
    pub(super) fn with_lease(&self, lease: LeaseId) -> Option<&Arc<Agent>> {
        self.agents.get(&lease.agent).filter(|agent| agent.lease() == lease)
    }

    /// The agent with this lease, if the lease can be renewed.
    pub(super) fn living(&self, lease: LeaseId) -> Option<&Arc<Agent>> {
        self.with_lease(lease).filter(|agent| is_living(agent))
    }

    /// The reason why a lease cannot be renewed; `None` if it can.
    fn lease_end(&self, lease: LeaseId) -> Option<LeaseEnd> {
        let Some(agent) = self.agents.get(&lease.agent) else { return Some(LeaseEnd::Unknown) };
        match agent.status {
            _ if agent.lease_began > lease.began => Some(LeaseEnd::Superseded),
            _ if agent.lease_began < lease.began => Some(LeaseEnd::Unknown),
            MemberStatus::Failed => Some(LeaseEnd::Failed),
            MemberStatus::Left => Some(LeaseEnd::Left),
            MemberStatus::Alive | MemberStatus::Restarting => None,
        }
    }

    /// The member of a node, by the node's folded name.
    pub(super) fn of_node(&self, folded: &NodeName) -> Option<&Arc<Agent>> {
        let (_, number) = self.by_node.get(folded)?.last()?;
        self.agents.get(number)
    }

    /// The agent of the node with this UUID.
    pub(super) fn of_node_id(&self, node_id: &str) -> Option<&Arc<Agent>> {
        let number = self.by_node_id.get(&node_id.to_ascii_lowercase())?;
        self.agents.get(number)
    }

    /// All agents that registered for a node.
    pub(super) fn registered_for(&self, folded: &NodeName) -> impl Iterator<Item = AgentNumber> {
        let agents = self.by_node.get(folded).into_iter().flatten();
        agents.map(|(_, number)| *number)
    }
}

/// Applies a verdict of the leader and a majority; the reply is `false` if it had no effect.
pub(super) fn fail_node(step: &mut Step<'_>, failure: &NodeFailure) -> Reply {
    let NodeFailure { lease, window, confirmed_by, silent_for, term, base } = failure;
    let is_current = step.is_current(*term, *base);
    let agent = step.state.members.judged(*lease).filter(|agent| !is_restarting(agent)).cloned();
    let Some(agent) = agent.filter(|_| is_current && !confirmed_by.is_empty()) else {
        return Reply::Succeeded(false);
    };
    let nodes = confirmed_by.iter().filter_map(|id| step.state.server(*id));
    let confirmed_by: Vec<NodeName> = nodes.map(|server| server.node.clone()).collect();
    let cause = LossCause::NodeFailed { window: *window, confirmed_by, silent_for: *silent_for };
    let ending = step.state.sessions.within(&agent.node, *window, None);
    end_sessions(step, ending, &cause);
    // Sessions may choose faster windows for failure. The check becomes critical only after the
    // window that other users of a catalog expect.
    if *window >= HealthWindow::Default && agent.status != MemberStatus::Failed {
        set_member_status(step, &agent, MemberStatus::Failed);
        write_health(step, &agent.node, failed_check(&agent.node));
    }
    Reply::Succeeded(true)
}

/// Ends the sessions of a former host whose window has ended.
pub(super) fn end_former_sessions(
    step: &mut Step<'_>,
    lease: LeaseId,
    window: HealthWindow,
    term: Term,
    base: u64,
) -> Reply {
    let is_current = step.is_current(term, base);
    let agent =
        step.state.members.with_lease(lease).filter(|agent| is_current && !is_restarting(agent)).cloned();
    if let Some(agent) = agent
        && let Some(until) = agent.former_sessions_until
    {
        let ending = step.state.sessions.within(&agent.node, window, Some(until));
        end_sessions(step, ending, &LossCause::HostReplaced);
        if window == HealthWindow::Safe {
            set_agent(step, Agent { former_sessions_until: None, ..Agent::clone(&agent) });
        }
    }
    Reply::Done
}

/// Applies a leave or a force-leave of a node.
pub(super) fn leave_node(step: &mut Step<'_>, leave: &NodeLeave) -> Reply {
    let folded = leave.node.folded();
    let agent = match leave.lease {
        // A member that failed meanwhile leaves too: otherwise it would stay failed.
        Some(lease) => step.state.members.with_lease(lease).cloned(),
        None => step.state.members.of_node(&folded).cloned(),
    };
    let Some(agent) = agent else {
        return match leave.lease {
            // It left before, or its node was taken over: already done.
            Some(_) => Reply::Done,
            None => Reply::Refused(Refusal::UnknownMember(leave.node.clone())),
        };
    };
    let cause = if leave.lease.is_some() { LossCause::NodeLeft } else { LossCause::NodeForcedToLeave };
    delete_node(step, &agent.node.folded(), &cause);
    if leave.prune {
        forget_member(step, agent.number);
    } else if agent.status != MemberStatus::Left {
        let agent = Agent { restart_announced: None, ..Agent::clone(&agent) };
        set_member_status(step, &agent, MemberStatus::Left);
    }
    Reply::Done
}

/// Announces a restart of an agent. Allowed once per registration: an agent that repeats it
/// would never fail.
pub(super) fn announce_restart(step: &mut Step<'_>, lease: LeaseId) -> Reply {
    let agent =
        step.state.members.with_lease(lease).filter(|agent| agent.status == MemberStatus::Alive).cloned();
    let Some(agent) = agent else { return Reply::Succeeded(false) };
    let agent = Agent { restart_announced: Some(step.index), ..Agent::clone(&agent) };
    set_member_status(step, &agent, MemberStatus::Restarting);
    Reply::Succeeded(true)
}

/// Ends an announced restart: the node is judged like any other.
pub(super) fn end_restart(
    step: &mut Step<'_>,
    number: AgentNumber,
    announced_at: LogIndex,
    term: Term,
    base: u64,
) -> Reply {
    let is_current = step.is_current(term, base);
    let is_same = |agent: &&Arc<Agent>| agent.restart_announced == Some(announced_at);
    let agent = step.state.members.agents.get(&number).filter(is_same).filter(|_| is_current).cloned();
    if let Some(agent) = agent {
        set_agent(step, Agent { restart_announced: None, ..Agent::clone(&agent) });
    }
    Reply::Done
}

/// Reconciles the catalog with the roster of members (anti-entropy).
pub(super) fn reconcile(step: &mut Step<'_>, members: &[AgentNumber], strangers: &[NodeName]) -> Reply {
    for number in members {
        if let Some(agent) = step.state.members.agents.get(number).cloned() {
            reconcile_member(step, &agent);
        }
    }
    for stranger in strangers {
        // An agent may have registered for it since the leader's comparison.
        if step.state.is_stranger(stranger) {
            delete_node(step, stranger, &LossCause::NodeDeregistered);
        }
    }
    Reply::Done
}

/// Forgets a member that failed long ago, and its node.
pub(super) fn reap_member(step: &mut Step<'_>, lease: LeaseId, term: Term, base: u64) -> Reply {
    let is_current = step.is_current(term, base);
    let agent = step.state.members.with_lease(lease).cloned();
    let is_failed = |agent: &Arc<Agent>| agent.status == MemberStatus::Failed;
    if let Some(agent) = agent.filter(|agent| is_current && is_failed(agent)) {
        // Sessions without checks must not be ended by health (decision D6).
        if step.state.sessions.any_without_checks(&agent.node) {
            return Reply::Succeeded(false);
        }
        delete_node(step, &agent.node.folded(), &LossCause::NodeReaped);
        forget_member(step, agent.number);
    }
    Reply::Succeeded(true)
}

/// Sets the status of a member.
pub(super) fn set_member_status(step: &mut Step<'_>, agent: &Agent, status: MemberStatus) {
    set_agent(step, Agent { status, status_since: step.at, ..agent.clone() });
}

pub(super) fn set_agent(step: &mut Step<'_>, agent: Agent) {
    step.set(Change::Agent(agent.number, Some(Arc::new(agent))));
}

/// Removes a member with its replies: if it returns, it registers with a new number.
pub(super) fn forget_member(step: &mut Step<'_>, number: AgentNumber) {
    forget_all(step, number);
    step.set(Change::Agent(number, None));
}

fn reconcile_member(step: &mut Step<'_>, agent: &Agent) {
    let folded = agent.node.folded();
    match agent.status {
        MemberStatus::Left => delete_node(step, &folded, &LossCause::NodeLeft),
        // A node that a client removed from the catalog returns with its agent's next
        // registration, which alone has all its data, and follows its next renewal.
        _ if !step.state.catalog.nodes.contains_key(&folded) => {}
        MemberStatus::Failed => {
            // A client wrote that it is healthy, and sessions may have been created on it
            // since.
            let ending = step.state.sessions.within(&agent.node, HealthWindow::Default, None);
            let check = failed_check(&agent.node);
            let cause = critical_cause(step, &check);
            end_sessions(step, ending, &cause);
            write_health(step, &agent.node, check);
        }
        MemberStatus::Alive | MemberStatus::Restarting => {
            write_health(step, &agent.node, alive_check(&agent.node));
        }
    }
}

/// Writes `serfHealth` without ending the sessions that depend on it: the verdict decides which
/// of them end. An unchanged check is not written.
fn write_health(step: &mut Step<'_>, node: &NodeName, check: Check) {
    // A client may have removed the node from the catalog since its agent registered.
    if !step.state.catalog.nodes.contains_key(&node.folded()) {
        return;
    }
    let key = CheckKey::new(node, &CheckId::from(SERF_HEALTH));
    let is_same = |known: &Arc<Check>| (known.status, &known.output) == (check.status, &check.output);
    if !step.state.catalog.checks.get(&key).is_some_and(is_same) {
        store_check(step, key, check);
    }
}

impl State {
    /// The agent with this lease, in any status.
    pub fn agent_of(&self, lease: LeaseId) -> Option<&Arc<Agent>> {
        self.members.with_lease(lease)
    }

    /// The agent with this lease, if the lease can be renewed.
    pub fn living_agent(&self, lease: LeaseId) -> Option<&Arc<Agent>> {
        self.members.living(lease)
    }

    /// Returns whether a renewal was made with the secret of its lease.
    pub fn is_authentic(&self, renewal: &Renewal) -> bool {
        self.lease_key.secret(renewal.lease).made(renewal)
    }

    /// `true` if a list of given-up sessions was made with the secret of its lease.
    pub fn is_authentic_list(&self, given_up: &GivenUp) -> bool {
        self.lease_key.secret(given_up.lease).made_list(given_up)
    }

    /// The address for challenges to an agent as `host:port`; `None` if it does not listen.
    pub fn agent_address(&self, agent: &Agent) -> Option<String> {
        let node = self.catalog.nodes.get(&agent.node.folded()).filter(|_| agent.port != 0)?;
        // An IPv6 address contains colons.
        let is_bare_v6 = node.address.contains(':') && !node.address.starts_with('[');
        let host = if is_bare_v6 { format!("[{}]", node.address) } else { node.address.clone() };
        Some(format!("{host}:{}", agent.port))
    }

    /// Returns whether a session ends with its node's silence.
    pub fn depends_on_its_node(session: &Session) -> bool {
        session.spec.all_checks().any(|check| check.as_str() == SERF_HEALTH)
    }

    /// The reason why a lease cannot be renewed; `None` if it can.
    pub fn lease_end(&self, lease: LeaseId) -> Option<LeaseEnd> {
        self.members.lease_end(lease).or_else(|| {
            // A client removed the node, and its sessions with it: its agent must register again.
            let agent = self.members.with_lease(lease)?;
            (!self.catalog.nodes.contains_key(&agent.node.folded())).then_some(LeaseEnd::Unknown)
        })
    }

    /// The number of members in each status.
    pub fn member_counts(&self) -> MemberCounts {
        self.members.counts
    }

    /// The member of a node, by the node's folded name.
    pub fn member(&self, folded: &NodeName) -> Option<&Arc<Agent>> {
        self.members.of_node(folded)
    }

    /// The shortest window of the sessions that depend on a node's health; `None` without such
    /// sessions.
    pub fn shortest_window(&self, node: &NodeName) -> Option<HealthWindow> {
        self.sessions.dependent_on(node).map(|session| session.spec.health_window).min()
    }

    /// The windows of the sessions that depend on a node's health.
    pub fn windows_in_use(&self, node: &NodeName) -> BTreeSet<HealthWindow> {
        self.sessions.dependent_on(node).map(|session| session.spec.health_window).collect()
    }

    /// The members whose catalog entry differs from the roster, and the nodes with a `serfHealth`
    /// but no agent; at most `most` of each.
    pub fn unreconciled(&self, most: usize) -> (Vec<AgentNumber>, Vec<NodeName>) {
        let members = self.members.agents.values().filter(|agent| self.is_unreconciled(agent));
        let members = members.map(|agent| agent.number).take(most).collect();
        let strangers = self.catalog.nodes.keys().filter(|folded| self.is_stranger(folded));
        (members, strangers.take(most).cloned().collect())
    }

    fn is_unreconciled(&self, agent: &Agent) -> bool {
        let folded = agent.node.folded();
        // The name may belong to another agent by now.
        if !self.members.is_member(agent) {
            return false;
        }
        let (is_there, health) = (self.catalog.nodes.contains_key(&folded), self.catalog.health_of(&folded));
        match agent.status {
            MemberStatus::Left => is_there,
            MemberStatus::Failed => is_there && health != Some(CheckStatus::Critical),
            MemberStatus::Alive | MemberStatus::Restarting => {
                is_there && health != Some(CheckStatus::Passing)
            }
        }
    }

    fn is_stranger(&self, folded: &NodeName) -> bool {
        self.catalog.health_of(folded).is_some() && !self.members.by_node.contains_key(folded)
    }
}

/// Returns whether guards may still rely on an announced restart.
fn is_restarting(agent: &Agent) -> bool {
    agent.restart_announced.is_some()
}

/// Returns whether an agent neither failed nor left.
pub(super) fn is_living(agent: &Agent) -> bool {
    matches!(agent.status, MemberStatus::Alive | MemberStatus::Restarting)
}
