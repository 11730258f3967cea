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
use super::check::store_check;
use super::invalidation::end_sessions;
use super::node::{SERF_HEALTH, delete_node};
use super::replies::forget_all;
use super::rows::{CheckKey, MemberCounts};
use super::step::Step;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{NodeFailure, NodeLeave};
use lockmesh_protocol::given_up::GivenUp;
use lockmesh_protocol::id::{AgentNumber, CheckId, LogIndex, NodeName, SessionId, Term};
use lockmesh_protocol::lease::{HealthWindow, LeaseEnd, LeaseId, Renewal};
use lockmesh_protocol::record::{Agent, Check, CheckStatus, LossCause, MemberStatus, Session};
use lockmesh_protocol::reply::{Refusal, Reply};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Applies a verdict of the leader and a majority; the reply is `false` if it had no effect.
pub(super) fn fail_node(step: &mut Step<'_>, failure: &NodeFailure) -> Reply {
    let NodeFailure { lease, window, confirmed_by, silent_for, term, base } = failure;
    let is_current = step.is_current(*term, *base);
    let agent = step.state.judged_agent(*lease).filter(|agent| !is_restarting(agent)).cloned();
    let Some(agent) = agent.filter(|_| is_current && !confirmed_by.is_empty()) else {
        return Reply::Succeeded(false);
    };
    let nodes = confirmed_by.iter().filter_map(|id| step.state.server(*id));
    let confirmed_by: Vec<NodeName> = nodes.map(|server| server.node.clone()).collect();
    let cause = LossCause::NodeFailed { window: *window, confirmed_by, silent_for: *silent_for };
    let ending = step.state.sessions_within(&agent.node, *window, None);
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
    let agent = step.state.agent_of(lease).filter(|agent| is_current && !is_restarting(agent)).cloned();
    if let Some(agent) = agent
        && let Some(until) = agent.former_sessions_until
    {
        let ending = step.state.sessions_within(&agent.node, window, Some(until));
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
        Some(lease) => step.state.agent_of(lease).cloned(),
        None => step.state.member(&folded).cloned(),
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
    let agent = step.state.agent_of(lease).filter(|agent| agent.status == MemberStatus::Alive).cloned();
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
    let agent = step.state.agents.get(&number).filter(is_same).filter(|_| is_current).cloned();
    if let Some(agent) = agent {
        set_agent(step, Agent { restart_announced: None, ..Agent::clone(&agent) });
    }
    Reply::Done
}

/// Reconciles the catalog with the roster of members (anti-entropy).
pub(super) fn reconcile(step: &mut Step<'_>, members: &[AgentNumber], strangers: &[NodeName]) -> Reply {
    for number in members {
        if let Some(agent) = step.state.agents.get(number).cloned() {
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
    let agent = step.state.agent_of(lease).cloned();
    let is_failed = |agent: &Arc<Agent>| agent.status == MemberStatus::Failed;
    if let Some(agent) = agent.filter(|agent| is_current && is_failed(agent)) {
        // Sessions without checks must not be ended by health (decision D6).
        if step.state.has_sessions_without_checks(&agent.node) {
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
        // registration, which alone has all its data.
        _ if !step.state.nodes.contains_key(&folded) => {}
        MemberStatus::Failed => {
            // A client wrote that it is healthy, and sessions may have been created on it
            // since.
            let ending = step.state.sessions_within(&agent.node, HealthWindow::Default, None);
            end_sessions(step, ending, &LossCause::CheckCritical(CheckId::from(SERF_HEALTH)));
            write_health(step, &agent.node, failed_check(&agent.node));
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
    if !step.state.nodes.contains_key(&node.folded()) {
        return;
    }
    let key = CheckKey::new(node, &CheckId::from(SERF_HEALTH));
    let is_same = |known: &Arc<Check>| (known.status, &known.output) == (check.status, &check.output);
    if !step.state.checks.get(&key).is_some_and(is_same) {
        store_check(step, key, check);
    }
}

impl State {
    /// The agent with this lease, in any status.
    pub fn agent_of(&self, lease: LeaseId) -> Option<&Arc<Agent>> {
        self.agents.get(&lease.agent).filter(|agent| agent.lease() == lease)
    }

    /// The agent with this lease, if the lease can be renewed.
    pub fn living_agent(&self, lease: LeaseId) -> Option<&Arc<Agent>> {
        self.agent_of(lease).filter(|agent| is_living(agent))
    }

    /// The agent to which a verdict on this lease applies. Failed ones are included: sessions with
    /// longer windows end with their own verdict.
    fn judged_agent(&self, lease: LeaseId) -> Option<&Arc<Agent>> {
        // The name may belong to another agent by now, and the sessions with it.
        let is_member = |agent: &&Arc<Agent>| {
            self.member(&agent.node.folded()).is_some_and(|member| member.number == agent.number)
        };
        self.agent_of(lease).filter(|agent| agent.status != MemberStatus::Left).filter(is_member)
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
        let node = self.nodes.get(&agent.node.folded()).filter(|_| agent.port != 0)?;
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
        let Some(agent) = self.agents.get(&lease.agent) else { return Some(LeaseEnd::Unknown) };
        match agent.status {
            _ if agent.lease_began > lease.began => Some(LeaseEnd::Superseded),
            _ if agent.lease_began < lease.began => Some(LeaseEnd::Unknown),
            MemberStatus::Failed => Some(LeaseEnd::Failed),
            MemberStatus::Left => Some(LeaseEnd::Left),
            MemberStatus::Alive | MemberStatus::Restarting => None,
        }
    }

    /// The number of members in each status.
    pub fn member_counts(&self) -> MemberCounts {
        self.derived.member_counts
    }

    /// The member of a node, by the node's folded name.
    pub fn member(&self, folded: &NodeName) -> Option<&Arc<Agent>> {
        let (_, number) = self.derived.members.get(folded)?.last()?;
        self.agents.get(number)
    }

    /// The shortest window of the sessions that depend on a node's health; `None` without such
    /// sessions.
    pub fn shortest_window(&self, node: &NodeName) -> Option<HealthWindow> {
        self.dependent_sessions(node).map(|session| session.spec.health_window).min()
    }

    /// The windows of the sessions that depend on a node's health.
    pub fn windows_in_use(&self, node: &NodeName) -> BTreeSet<HealthWindow> {
        self.dependent_sessions(node).map(|session| session.spec.health_window).collect()
    }

    /// The members whose catalog entry differs from the roster, and the nodes with a `serfHealth`
    /// but no agent; at most `most` of each.
    pub fn unreconciled(&self, most: usize) -> (Vec<AgentNumber>, Vec<NodeName>) {
        let members = self.agents.values().filter(|agent| self.is_unreconciled(agent));
        let members = members.map(|agent| agent.number).take(most).collect();
        let strangers = self.nodes.keys().filter(|folded| self.is_stranger(folded));
        (members, strangers.take(most).cloned().collect())
    }

    fn is_unreconciled(&self, agent: &Agent) -> bool {
        let folded = agent.node.folded();
        // The name may belong to another agent by now.
        if self.member(&folded).is_none_or(|member| member.number != agent.number) {
            return false;
        }
        let (is_there, health) = (self.nodes.contains_key(&folded), self.health_of(&folded));
        match agent.status {
            MemberStatus::Left => is_there,
            MemberStatus::Failed => is_there && health != Some(CheckStatus::Critical),
            MemberStatus::Alive | MemberStatus::Restarting => {
                is_there && health != Some(CheckStatus::Passing)
            }
        }
    }

    fn is_stranger(&self, folded: &NodeName) -> bool {
        self.health_of(folded).is_some() && !self.derived.members.contains_key(folded)
    }

    fn health_of(&self, folded: &NodeName) -> Option<CheckStatus> {
        self.check_of(folded, &CheckId::from(SERF_HEALTH)).map(|check| check.status)
    }

    /// The sessions that end after silence for this window; for a former host only those created
    /// before an index.
    fn sessions_within(
        &self,
        node: &NodeName,
        window: HealthWindow,
        made_before: Option<LogIndex>,
    ) -> Vec<SessionId> {
        let is_old = |session: &Session| made_before.is_none_or(|until| session.create_index < until);
        let sessions = self.dependent_sessions(node);
        let ending = sessions.filter(|session| session.spec.health_window <= window && is_old(session));
        ending.map(|session| session.spec.id).collect()
    }

    fn dependent_sessions(&self, node: &NodeName) -> impl Iterator<Item = &Arc<Session>> {
        let key = CheckKey::new(node, &CheckId::from(SERF_HEALTH));
        let ids = self.derived.by_check.get(&key).into_iter().flatten();
        ids.filter_map(|id| self.sessions.get(id))
    }

    fn has_sessions_without_checks(&self, node: &NodeName) -> bool {
        let ids = self.derived.by_node.get(&node.folded()).into_iter().flatten();
        let mut sessions = ids.filter_map(|id| self.sessions.get(id));
        sessions.any(|session| session.spec.all_checks().next().is_none())
    }
}

/// Returns whether guards may still rely on an announced restart.
fn is_restarting(agent: &Agent) -> bool {
    agent.restart_announced.is_some()
}

fn is_living(agent: &Agent) -> bool {
    matches!(agent.status, MemberStatus::Alive | MemberStatus::Restarting)
}
