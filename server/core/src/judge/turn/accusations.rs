//! Accusations of the mesh: an agent has probed another one in vain, so the servers look whether it
//! lives, before its renewal is overdue.
//!
//! **Invariant:** an accusation opens a check and does nothing else. Whoever answers is kept, and
//! no window ends sooner: a mesh that lies costs challenges.

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

/// How many checks are open at most that accusations opened: far fewer than there may be, so that
/// those whose renewals are overdue never wait for them.
const MAX_ACCUSED: usize = 64;

impl Core {
    /// An agent accuses others at this server. Answered before anything comes of it.
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

    /// Lets the leader know. What is too much, or lost, is lost: a renewal that is overdue opens
    /// the check all the same.
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

    /// Accusations reached this leader: who accuses, and whom.
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
        // It said itself that it is away for a while.
        let is_away = member.is_restarting();
        let Some(node) = self.accuser(accuser).filter(|_| accuser != accused) else {
            return Accusation::IgnoredAccuser;
        };
        if is_away {
            return Accusation::Known;
        }
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

    /// The folded name of whoever accuses; none where it is no member, or may not accuse now: whom
    /// the servers do not hear may hear nobody.
    fn accuser(&self, lease: LeaseId) -> Option<NodeName> {
        let is_well = |agent: &&Arc<Agent>| {
            agent.lease() == lease
                && agent.status == MemberStatus::Alive
                && !self.judge.checks.is_open(agent.number)
        };
        let agent = self.state.agent(lease.agent)?;
        self.state.living_member(&agent.node).filter(is_well).map(|agent| agent.node.folded())
    }

    /// A node under check has answered: whoever had it asked was wrong.
    pub(super) fn blame_accuser(&mut self, now: Time, number: AgentNumber) {
        // Where its renewal is overdue there was something to see.
        let is_late = self.judge.windows.member(number).is_some_and(|member| member.is_overdue(now));
        if let Some(accuser) = self.judge.checks.take_accuser(number).filter(|_| !is_late) {
            self.judge.accusers.was_wrong(now, &accuser);
        }
    }

    /// The nodes that say that an agent's node does not answer them, by their folded names, at most
    /// a few: those of its check, where this server leads and one is open.
    pub fn suspected_by(&self, number: AgentNumber) -> &[NodeName] {
        self.judge.checks.suspected_by(number)
    }
}
