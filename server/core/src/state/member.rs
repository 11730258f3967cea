//! Members: how an agent's node stands, and what becomes of its sessions when it fails or leaves.
//!
//! | status | the node | `serfHealth` | its sessions |
//! |---|---|---|---|
//! | alive, restarting | registered | passing | live |
//! | failed | registered | critical | `fast` and `default` ones ended; `safe` ones end with their own verdict |
//! | left | deregistered | – | all ended |
//!
//! **Invariants:** a verdict does nothing in another term than the one that decided it, for another
//! lease than the one that was silent, or where nobody confirms it: see
//! [`NodeFailure`]. From an announced restart until its end in the log no silence ends a session of
//! the node, whichever process or host has registered since. `serfHealth` follows the member's
//! status, not the other way round.

use super::State;
use super::agent::{alive_check, failed_check};
use super::node::SERF_HEALTH;
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

impl Step<'_> {
    /// A verdict of the leader and a majority of the servers. Answered with whether it was one.
    pub(super) fn fail_node(&mut self, failure: &NodeFailure) -> Reply {
        let NodeFailure { lease, window, confirmed_by, silent_for, term, base } = failure;
        let is_ours = *term == self.term && *base == self.state.index_base;
        let agent = self.state.judged_agent(*lease).filter(|agent| !is_restarting(agent)).cloned();
        let Some(agent) = agent.filter(|_| is_ours && !confirmed_by.is_empty()) else {
            return Reply::Succeeded(false);
        };
        let nodes = confirmed_by.iter().filter_map(|id| self.state.server(*id));
        let confirmed_by: Vec<NodeName> = nodes.map(|server| server.node.clone()).collect();
        let cause = LossCause::NodeFailed { window: *window, confirmed_by, silent_for: *silent_for };
        let ending = self.state.sessions_within(&agent.node, *window, None);
        self.end_sessions(ending, &cause);
        // Sessions may name a node's check however fast they want to be failed: the check waits for
        // what the other users of a catalog call dead.
        if *window >= HealthWindow::Default && agent.status != MemberStatus::Failed {
            self.set_member_status(&agent, MemberStatus::Failed);
            self.write_health(&agent.node, failed_check(&agent.node));
        }
        Reply::Succeeded(true)
    }

    /// The windows of a host that was there before are over: what was made there ends.
    pub(super) fn end_former_sessions(
        &mut self,
        lease: LeaseId,
        window: HealthWindow,
        term: Term,
        base: u64,
    ) -> Reply {
        let is_ours = term == self.term && base == self.state.index_base;
        let agent = self.state.agent_of(lease).filter(|agent| is_ours && !is_restarting(agent)).cloned();
        if let Some(agent) = agent
            && let Some(until) = agent.former_sessions_until
        {
            let ending = self.state.sessions_within(&agent.node, window, Some(until));
            self.end_sessions(ending, &LossCause::HostReplaced);
            if window == HealthWindow::Safe {
                self.set_agent(Agent { former_sessions_until: None, ..Agent::clone(&agent) });
            }
        }
        Reply::Done
    }

    /// A node leaves, or is made to.
    pub(super) fn leave_node(&mut self, leave: &NodeLeave) -> Reply {
        let folded = leave.node.folded();
        let agent = match leave.lease {
            // One that was failed meanwhile leaves too: it would be called failed otherwise.
            Some(lease) => self.state.agent_of(lease).cloned(),
            None => self.state.member(&folded).cloned(),
        };
        let Some(agent) = agent else {
            return match leave.lease {
                // It left before, or its node was taken over: it is gone, as it wants to be.
                Some(_) => Reply::Done,
                None => Reply::Refused(Refusal::UnknownMember(leave.node.clone())),
            };
        };
        let cause = if leave.lease.is_some() { LossCause::NodeLeft } else { LossCause::NodeForcedToLeave };
        self.delete_node(&agent.node.folded(), &cause);
        if leave.prune {
            self.forget_member(agent.number);
        } else if agent.status != MemberStatus::Left {
            let agent = Agent { restart_announced: None, ..Agent::clone(&agent) };
            self.set_member_status(&agent, MemberStatus::Left);
        }
        Reply::Done
    }

    /// An agent stops for a moment. Once for each registration: one that said it again and again
    /// would never be failed.
    pub(super) fn announce_restart(&mut self, lease: LeaseId) -> Reply {
        let agent = self.state.agent_of(lease).filter(|agent| agent.status == MemberStatus::Alive).cloned();
        let Some(agent) = agent else { return Reply::Succeeded(false) };
        let agent = Agent { restart_announced: Some(self.index), ..Agent::clone(&agent) };
        self.set_member_status(&agent, MemberStatus::Restarting);
        Reply::Succeeded(true)
    }

    /// The time of an announced restart is over: the node is judged as any other.
    pub(super) fn end_restart(
        &mut self,
        number: AgentNumber,
        announced_at: LogIndex,
        term: Term,
        base: u64,
    ) -> Reply {
        let is_ours = term == self.term && base == self.state.index_base;
        let is_same = |agent: &&Arc<Agent>| agent.restart_announced == Some(announced_at);
        let agent = self.state.agents.get(&number).filter(is_same).filter(|_| is_ours).cloned();
        if let Some(agent) = agent {
            self.set_agent(Agent { restart_announced: None, ..Agent::clone(&agent) });
        }
        Reply::Done
    }

    /// Makes the catalog say of members what the roster says.
    pub(super) fn reconcile(&mut self, members: &[AgentNumber], strangers: &[NodeName]) -> Reply {
        for number in members {
            if let Some(agent) = self.state.agents.get(number).cloned() {
                self.reconcile_member(&agent);
            }
        }
        for stranger in strangers {
            // An agent may have registered for it since the leader looked.
            if self.state.is_stranger(stranger) {
                self.delete_node(stranger, &LossCause::NodeDeregistered);
            }
        }
        Reply::Done
    }

    /// Forgets a member that has been failed for long, and its node.
    pub(super) fn reap_member(&mut self, lease: LeaseId, term: Term, base: u64) -> Reply {
        let is_ours = term == self.term && base == self.state.index_base;
        let agent = self.state.agent_of(lease).cloned();
        let is_failed = |agent: &Arc<Agent>| agent.status == MemberStatus::Failed;
        if let Some(agent) = agent.filter(|agent| is_ours && is_failed(agent)) {
            // They said that no check is to end them (decision D6).
            if self.state.has_sessions_without_checks(&agent.node) {
                return Reply::Succeeded(false);
            }
            self.delete_node(&agent.node.folded(), &LossCause::NodeReaped);
            self.forget_member(agent.number);
        }
        Reply::Succeeded(true)
    }

    /// Changes how a member stands.
    pub(super) fn set_member_status(&mut self, agent: &Agent, status: MemberStatus) {
        self.set_agent(Agent { status, status_since: self.at, ..agent.clone() });
    }

    pub(super) fn set_agent(&mut self, agent: Agent) {
        self.set(Change::Agent(agent.number, Some(Arc::new(agent))));
    }

    /// Its replies go with it: it registers as another one if it comes back.
    fn forget_member(&mut self, number: AgentNumber) {
        self.forget_all(number);
        self.set(Change::Agent(number, None));
    }

    fn reconcile_member(&mut self, agent: &Agent) {
        let folded = agent.node.folded();
        match agent.status {
            MemberStatus::Left => self.delete_node(&folded, &LossCause::NodeLeft),
            // A node that somebody took out of the catalog comes back with its agent's next
            // registration, which alone knows all of it.
            _ if !self.state.nodes.contains_key(&folded) => {}
            MemberStatus::Failed => {
                // Somebody wrote that it is well, and others may have begun to rely on that.
                let ending = self.state.sessions_within(&agent.node, HealthWindow::Default, None);
                self.end_sessions(ending, &LossCause::CheckCritical(CheckId::from(SERF_HEALTH)));
                self.write_health(&agent.node, failed_check(&agent.node));
            }
            MemberStatus::Alive | MemberStatus::Restarting => {
                self.write_health(&agent.node, alive_check(&agent.node));
            }
        }
    }

    /// Writes `serfHealth` without ending the sessions that depend on it: which of them end is the
    /// verdict's business. One that is as it shall be is not written again.
    fn write_health(&mut self, node: &NodeName, check: Check) {
        // Somebody may have taken the node out of the catalog since its agent registered.
        if !self.state.nodes.contains_key(&node.folded()) {
            return;
        }
        let key = CheckKey::new(node, &CheckId::from(SERF_HEALTH));
        let is_same = |known: &Arc<Check>| (known.status, &known.output) == (check.status, &check.output);
        if !self.state.checks.get(&key).is_some_and(is_same) {
            self.store_check(key, check);
        }
    }
}

impl State {
    /// The agent that has a lease, however it stands.
    pub fn agent_of(&self, lease: LeaseId) -> Option<&Arc<Agent>> {
        self.agents.get(&lease.agent).filter(|agent| agent.lease() == lease)
    }

    /// The agent that has a lease which can be renewed.
    pub fn living_agent(&self, lease: LeaseId) -> Option<&Arc<Agent>> {
        self.agent_of(lease).filter(|agent| is_living(agent))
    }

    /// The agent on whose lease a verdict counts. A failed one is among them: sessions that may
    /// wait for longer end with their own verdict.
    fn judged_agent(&self, lease: LeaseId) -> Option<&Arc<Agent>> {
        // The name may be another agent's by now, and the sessions with it.
        let is_member = |agent: &&Arc<Agent>| {
            self.member(&agent.node.folded()).is_some_and(|member| member.number == agent.number)
        };
        self.agent_of(lease).filter(|agent| agent.status != MemberStatus::Left).filter(is_member)
    }

    /// Whether a renewal was made with the secret of its lease.
    pub fn is_authentic(&self, renewal: &Renewal) -> bool {
        self.lease_key.secret(renewal.lease).made(renewal)
    }

    /// `true` if a list of given-up sessions was made with the secret of its lease.
    pub fn is_authentic_list(&self, given_up: &GivenUp) -> bool {
        self.lease_key.secret(given_up.lease).made_list(given_up)
    }

    /// Where an agent is asked whether it lives, as `host:port`; none where it listens nowhere.
    pub fn agent_address(&self, agent: &Agent) -> Option<String> {
        let node = self.nodes.get(&agent.node.folded()).filter(|_| agent.port != 0)?;
        // An IPv6 address has colons of its own.
        let is_bare_v6 = node.address.contains(':') && !node.address.starts_with('[');
        let host = if is_bare_v6 { format!("[{}]", node.address) } else { node.address.clone() };
        Some(format!("{host}:{}", agent.port))
    }

    /// Whether a session ends with its node's silence.
    pub fn depends_on_its_node(session: &Session) -> bool {
        session.spec.all_checks().any(|check| check.as_str() == SERF_HEALTH)
    }

    /// Why a lease cannot be renewed; none if it can.
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

    /// How many members stand in each way.
    pub fn member_counts(&self) -> MemberCounts {
        self.derived.member_counts
    }

    /// The member of a node, by the node's folded name.
    pub fn member(&self, folded: &NodeName) -> Option<&Arc<Agent>> {
        let (_, number) = self.derived.members.get(folded)?.last()?;
        self.agents.get(number)
    }

    /// The shortest window of the sessions that depend on a node's life; none where there are none.
    pub fn shortest_window(&self, node: &NodeName) -> Option<HealthWindow> {
        self.dependent_sessions(node).map(|session| session.spec.health_window).min()
    }

    /// The windows of the sessions that depend on a node's life.
    pub fn windows_in_use(&self, node: &NodeName) -> BTreeSet<HealthWindow> {
        self.dependent_sessions(node).map(|session| session.spec.health_window).collect()
    }

    /// The members of which the catalog says something else than the roster, and the nodes with a
    /// `serfHealth` that no agent speaks for; at most so many of each.
    pub fn unreconciled(&self, most: usize) -> (Vec<AgentNumber>, Vec<NodeName>) {
        let members = self.agents.values().filter(|agent| self.is_unreconciled(agent));
        let members = members.map(|agent| agent.number).take(most).collect();
        let strangers = self.nodes.keys().filter(|folded| self.is_stranger(folded));
        (members, strangers.take(most).cloned().collect())
    }

    fn is_unreconciled(&self, agent: &Agent) -> bool {
        let folded = agent.node.folded();
        // The name may be another agent's by now.
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

    /// The sessions that end with a node's silence for this window; of a former host only those
    /// that were made before an index.
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

/// Whether guards may still believe what they were told for an announced restart.
fn is_restarting(agent: &Agent) -> bool {
    agent.restart_announced.is_some()
}

fn is_living(agent: &Agent) -> bool {
    matches!(agent.status, MemberStatus::Alive | MemberStatus::Restarting)
}
