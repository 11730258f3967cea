//! Suspicions from the mesh (accusations): an agent's probes of another node failed. The servers
//! then check the node before its renewal is overdue.
//!
//! **Invariant:** a suspicion opens a check and does nothing else. A node that answers stays a
//! member (the suspicion is refuted), and no window ends sooner: false suspicions cost only
//! challenges.

use super::Judge;
use crate::cluster::Turn;
use crate::input::CallToken;
use crate::observed::Accusation;
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
const MAX_ACCUSED: usize = 64;

impl Judge {
    /// Handles an agent's suspicions at this server. The reply is sent before any check.
    pub(super) fn accuse(
        &mut self,
        turn: &mut Turn<'_>,
        token: CallToken,
        accuser: LeaseId,
        accused: Vec<LeaseId>,
    ) {
        let accusations = accused.into_iter().map(|accused| (accuser, accused));
        match turn.view.other_leader() {
            Some(leader) => {
                let relayed = self.relay.relay_accusations(turn, leader, accusations);
                self.counts.accusations[Accusation::Relayed as usize] += relayed;
            }
            None if turn.view.is_serving() => self.hear_accusations(turn.now, turn.view.state, accusations),
            None => return turn.fail(token, not_leader()),
        }
        turn.reply(token, Response::Done);
    }

    /// Handles suspicions at the leader, as pairs of accuser and accused.
    pub(super) fn hear_accusations(
        &mut self,
        now: Time,
        state: &State,
        accusations: impl IntoIterator<Item = (LeaseId, LeaseId)>,
    ) {
        for (accuser, accused) in accusations {
            let outcome = self.hear_accusation(now, state, accuser, accused);
            self.counts.accusations[outcome as usize] += 1;
        }
    }

    fn hear_accusation(
        &mut self,
        now: Time,
        state: &State,
        accuser: LeaseId,
        accused: LeaseId,
    ) -> Accusation {
        let number = accused.agent;
        let member = self.windows.member(number).filter(|member| member.lease == accused);
        let Some(member) = member else { return Accusation::NoMember };
        // The node announced that it is away for a while.
        let is_away = member.is_restarting();
        let Some(node) = self.accuser(state, accuser).filter(|_| accuser != accused) else {
            return Accusation::IgnoredAccuser;
        };
        if is_away {
            return Accusation::Known;
        }
        self.reachability.suspected(now, state, accused, &node);
        let counts = self.accusers.listen(now, &node, number);
        if self.checks.is_open(number) {
            if counts {
                self.checks.suspect(number, node);
            }
            return Accusation::Known;
        }
        if !counts {
            return Accusation::IgnoredAccuser;
        }
        if self.checks.accused_count() >= MAX_ACCUSED || !self.may_open_check() {
            return Accusation::TooMany;
        }
        self.open_check(now, accused);
        self.checks.accuse(number, node);
        Accusation::Opened
    }

    /// The folded name of the accuser; `None` if it is not an alive member or is under check
    /// itself: a node that the servers cannot reach may be unable to reach others.
    fn accuser(&self, state: &State, lease: LeaseId) -> Option<NodeName> {
        let is_well = |agent: &&Arc<Agent>| {
            agent.lease() == lease
                && agent.status == MemberStatus::Alive
                && !self.checks.is_open(agent.number)
        };
        let agent = state.agent(lease.agent)?;
        state.living_member(&agent.node).filter(is_well).map(|agent| agent.node.folded())
    }

    /// Blames the accuser of a node under check that has answered.
    pub(super) fn blame_accuser(&mut self, now: Time, number: AgentNumber) {
        // With an overdue renewal the suspicion was justified.
        let is_late = self.windows.member(number).is_some_and(|member| member.is_overdue(now));
        if let Some(accuser) = self.checks.take_accuser(number).filter(|_| !is_late) {
            self.accusers.was_wrong(now, &accuser);
        }
    }
}
