//! Suspicions from the mesh (accusations): an agent's probes of another node failed. The servers
//! then check the node before its renewal is overdue.
//!
//! **Invariant:** a suspicion opens a check and does nothing else. A node that answers stays a
//! member, and no window ends sooner: false suspicions cost only challenges.

use crate::core::Core;
use crate::input::CallToken;
use crate::judge::messages::BATCH;
use crate::observed::Accusation;
use crate::outbox::{Outbox, not_leader};
use lockmesh_protocol::id::{AgentNumber, NodeName, ServerId};
use lockmesh_protocol::lease::LeaseId;
use lockmesh_protocol::record::{Agent, MemberStatus};
use lockmesh_protocol::rpc::Response;
use lockmesh_protocol::time::Time;
use std::sync::Arc;

/// The maximum number of open checks that suspicions opened. It is far below the limit of all
/// checks, so nodes with overdue renewals never wait for them.
const MAX_ACCUSED: usize = 64;

impl Core {
    /// Takes an agent's suspicions at this server. The reply is sent before any check.
    pub(crate) fn accuse(
        &mut self,
        now: Time,
        token: CallToken,
        (accuser, accused): (LeaseId, Vec<LeaseId>),
        outbox: &mut Outbox,
    ) {
        let accusations = accused.into_iter().map(|accused| (accuser, accused));
        match self.engine.leader() {
            Some(leader) if leader != self.config.id => {
                self.relay_accusations(now, leader, accusations, outbox);
            }
            Some(_) if self.is_serving() => self.hear_accusations(now, accusations),
            _ => return outbox.fail(token, not_leader()),
        }
        outbox.replies.push((token, Response::Done));
    }

    /// Relays suspicions to the leader. Those beyond the batch size are dropped, and messages may
    /// be lost: an overdue renewal opens the check in any case.
    fn relay_accusations(
        &mut self,
        now: Time,
        leader: ServerId,
        accusations: impl Iterator<Item = (LeaseId, LeaseId)>,
        outbox: &mut Outbox,
    ) {
        self.refuse_those_of_another_leader(now, Some(leader), outbox);
        let gathered = &mut self.judge.relay.accusations;
        let before = gathered.len();
        gathered.extend(accusations.take(BATCH - before));
        let relayed = (gathered.len() - before) as u64;
        self.observer.observed.accusations[Accusation::Relayed as usize] += relayed;
    }

    /// Takes suspicions at the leader, as pairs of accuser and accused.
    pub(super) fn hear_accusations(
        &mut self,
        now: Time,
        accusations: impl IntoIterator<Item = (LeaseId, LeaseId)>,
    ) {
        for (accuser, accused) in accusations {
            let outcome = self.hear_accusation(now, accuser, accused);
            self.observer.observed.accusations[outcome as usize] += 1;
        }
    }

    fn hear_accusation(&mut self, now: Time, accuser: LeaseId, accused: LeaseId) -> Accusation {
        let number = accused.agent;
        let member = self.judge.windows.member(number).filter(|member| member.lease == accused);
        let Some(member) = member else { return Accusation::NoMember };
        // The node announced that it is away for a while.
        let is_away = member.is_restarting();
        let Some(node) = self.accuser(accuser).filter(|_| accuser != accused) else {
            return Accusation::IgnoredAccuser;
        };
        if is_away {
            return Accusation::Known;
        }
        self.note_failed_probe(now, accused, &node);
        let counts = self.judge.accusers.listen(now, &node, number);
        if self.judge.checks.is_open(number) {
            if counts {
                self.judge.checks.suspect(number, node);
            }
            return Accusation::Known;
        }
        if !counts {
            return Accusation::IgnoredAccuser;
        }
        if self.judge.checks.accused_count() >= MAX_ACCUSED || !self.may_open_check() {
            return Accusation::TooMany;
        }
        self.open_check(now, accused);
        self.judge.checks.accuse(number, node);
        Accusation::Opened
    }

    /// The folded name of the accuser; `None` if it is not an alive member or is under check
    /// itself: a node that the servers cannot reach may be unable to reach others.
    fn accuser(&self, lease: LeaseId) -> Option<NodeName> {
        let is_well = |agent: &&Arc<Agent>| {
            agent.lease() == lease
                && agent.status == MemberStatus::Alive
                && !self.judge.checks.is_open(agent.number)
        };
        let agent = self.state.agent(lease.agent)?;
        self.state.living_member(&agent.node).filter(is_well).map(|agent| agent.node.folded())
    }

    /// Blames the accuser of a node under check that has answered.
    pub(super) fn blame_accuser(&mut self, now: Time, number: AgentNumber) {
        // With an overdue renewal the suspicion was justified.
        let is_late = self.judge.windows.member(number).is_some_and(|member| member.is_overdue(now));
        if let Some(accuser) = self.judge.checks.take_accuser(number).filter(|_| !is_late) {
            self.judge.accusers.was_wrong(now, &accuser);
        }
    }

    /// The folded names of the nodes that report failed probes of an agent's node, at most a few.
    /// They belong to its open check, so the list is empty except on the leader.
    pub fn suspected_by(&self, number: AgentNumber) -> &[NodeName] {
        self.judge.checks.suspected_by(number)
    }
}
