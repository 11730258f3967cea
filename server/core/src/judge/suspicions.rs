//! Suspicions from the mesh: an agent's probes of another node failed. The servers
//! then check the node before its renewal is overdue.
//!
//! **Invariant:** a suspicion opens a check and does nothing else. A node that answers stays a
//! member (the suspicion is refuted), and no window ends sooner: false suspicions cost only
//! challenges.

use super::Judge;
use crate::cluster::Turn;
use crate::input::CallToken;
use crate::observed::Suspicion;
use crate::outbox::not_leader;
use crate::state::State;
use lockmesh_protocol::id::{AgentNumber, NodeName};
use lockmesh_protocol::lease::LeaseId;
use lockmesh_protocol::record::{Agent, MemberStatus};
use lockmesh_protocol::rpc::Response;
use lockmesh_protocol::time::Time;
use std::sync::Arc;

/// The maximum number of open checks that suspicions opened. It is far below the limit of all
/// checks, so nodes with overdue renewals never wait for them.
const MAX_SUSPECTED: usize = 64;

impl Judge {
    /// Handles an agent's suspicions at this server. The reply is sent before any check.
    pub(super) fn suspect(
        &mut self,
        turn: &mut Turn<'_>,
        token: CallToken,
        reporter: LeaseId,
        suspected: Vec<LeaseId>,
    ) {
        let suspicions = suspected.into_iter().map(|suspected| (reporter, suspected));
        match turn.view.other_leader() {
            Some(leader) => {
                let relayed = self.relay.relay_suspicions(turn, leader, suspicions);
                self.counts.suspicions[Suspicion::Relayed as usize] += relayed;
            }
            None if turn.view.is_serving() => self.hear_suspicions(turn.now, turn.view.state, suspicions),
            None => return turn.fail(token, not_leader()),
        }
        turn.reply(token, Response::Done);
    }

    /// Handles suspicions at the leader, as pairs of reporter and suspected.
    pub(super) fn hear_suspicions(
        &mut self,
        now: Time,
        state: &State,
        suspicions: impl IntoIterator<Item = (LeaseId, LeaseId)>,
    ) {
        for (reporter, suspected) in suspicions {
            let outcome = self.hear_suspicion(now, state, reporter, suspected);
            self.counts.suspicions[outcome as usize] += 1;
        }
    }

    fn hear_suspicion(
        &mut self,
        now: Time,
        state: &State,
        reporter: LeaseId,
        suspected: LeaseId,
    ) -> Suspicion {
        let number = suspected.agent;
        let member = self.windows.member(number).filter(|member| member.lease == suspected);
        let Some(member) = member else { return Suspicion::NoMember };
        // The node announced that it is away for a while.
        let is_away = member.is_restarting();
        let Some(node) = self.reporter(state, reporter).filter(|_| reporter != suspected) else {
            return Suspicion::IgnoredReporter;
        };
        if is_away {
            return Suspicion::Known;
        }
        self.reachability.suspected(now, state, suspected, &node);
        let counts = self.reporters.listen(now, &node, number);
        if self.checks.is_open(number) {
            if counts {
                self.checks.suspect(number, node);
            }
            return Suspicion::Known;
        }
        if !counts {
            return Suspicion::IgnoredReporter;
        }
        if self.checks.suspected_count() >= MAX_SUSPECTED || !self.may_open_check() {
            return Suspicion::TooMany;
        }
        self.open_check(now, suspected);
        self.checks.opened_by(number, node);
        Suspicion::Opened
    }

    /// The folded name of the reporter; `None` if it is not an alive member or is under check
    /// itself: a node that the servers cannot reach may be unable to reach others.
    fn reporter(&self, state: &State, lease: LeaseId) -> Option<NodeName> {
        let is_well = |agent: &&Arc<Agent>| {
            agent.lease() == lease
                && agent.status == MemberStatus::Alive
                && !self.checks.is_open(agent.number)
        };
        let agent = state.agent(lease.agent)?;
        state.living_member(&agent.node).filter(is_well).map(|agent| agent.node.folded())
    }

    /// Blames the reporter of a node under check that has answered.
    pub(super) fn blame_reporter(&mut self, now: Time, number: AgentNumber) {
        // With an overdue renewal the suspicion was justified.
        let is_late = self.windows.member(number).is_some_and(|member| member.is_overdue(now));
        if let Some(reporter) = self.checks.take_reporter(number).filter(|_| !is_late) {
            self.reporters.was_wrong(now, &reporter);
        }
    }
}
