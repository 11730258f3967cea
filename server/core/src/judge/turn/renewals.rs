//! Renewals as they arrive, and their acknowledgement.
//!
//! A window starts when the renewal arrives, before anybody knows whether this server leads still:
//! if it does not, it has only moved a deadline that counts for nobody. The acknowledgement waits
//! for a read round that begins after the arrival. The end of a lease waits for one too: the word
//! of a deposed leader must not end it.

use crate::core::Core;
use crate::input::{CallToken, LeaseCaller};
use crate::judge::messages::LeaseAnswer;
use crate::outbox::{Outbox, not_leader};
use crate::read_index::Reader;
use lockmesh_protocol::given_up::NodeAnswer;
use lockmesh_protocol::lease::{Challenge, LeaseAck, LeaseId, Renewal};
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;

impl Core {
    /// An agent renews its lease at this server.
    pub(crate) fn renew_lease(&mut self, now: Time, token: CallToken, renewal: Renewal, outbox: &mut Outbox) {
        match self.engine.leader() {
            Some(leader) if leader == self.config.id => {
                self.hear_call(now, LeaseCaller::Call(token), renewal, outbox);
            }
            Some(leader) => {
                // It lives, whether the leader comes to hear it in time or not.
                if self.state.is_authentic(&renewal) {
                    self.judge.juror.heard(renewal.lease);
                }
                self.relay(now, leader, (token, renewal), outbox);
            }
            None => outbox.fail(token, not_leader()),
        }
    }

    /// A node was asked whether it lives.
    pub(crate) fn challenged(
        &mut self,
        now: Time,
        challenge: Challenge,
        answer: Option<NodeAnswer>,
        outbox: &mut Outbox,
    ) {
        if let Some(given_up) = answer.and_then(|answer| answer.given_up) {
            self.take_given_up(&given_up, outbox);
        }
        let answer = answer.map(|answer| answer.renewal);
        let is_answer = |renewal: &Renewal| {
            (renewal.lease, renewal.nonce) == (challenge.lease, challenge.nonce)
                && self.state.is_authentic(renewal)
        };
        let answer = answer.filter(is_answer);
        if !self.judge.juror.challenged(now, challenge, answer) {
            return;
        }
        match answer {
            Some(renewal) if self.is_serving() => drop(self.hear_answer(now, renewal, outbox)),
            Some(renewal) => self.relay_answer(now, renewal, outbox),
            None => {}
        }
    }

    /// A renewal arrived at this leader that somebody waits for.
    pub(super) fn hear_call(
        &mut self,
        now: Time,
        caller: LeaseCaller,
        renewal: Renewal,
        outbox: &mut Outbox,
    ) {
        if let Some(why) = self.renewal_refusal(&renewal) {
            self.observer.observed.renewals_refused += 1;
            return self.judge.answer(caller, LeaseAnswer::Unavailable(why), outbox);
        }
        self.hear(now, renewal, outbox);
        self.read_index.arrive(now, Reader::Lease(caller, renewal));
    }

    /// What a node answered to a juror; whether it counts.
    pub(super) fn hear_answer(&mut self, now: Time, renewal: Renewal, outbox: &mut Outbox) -> bool {
        // Nobody waits, so nothing is promised: one that answers an older check may be old itself.
        if self.judge.checks.nonce(renewal.lease) != Some(renewal.nonce) {
            return false;
        }
        self.observer.observed.forged_answers += u64::from(!self.state.is_authentic(&renewal));
        let counts = self.renewal_refusal(&renewal).is_none();
        if counts {
            self.hear(now, renewal, outbox);
        }
        counts
    }

    /// Why a renewal counts for nothing.
    fn renewal_refusal(&self, renewal: &Renewal) -> Option<Unavailable> {
        if !self.is_serving() {
            return Some(not_leader());
        }
        if !self.state.is_authentic(renewal) {
            let why = "this renewal was not made with the secret of its lease: register anew";
            return Some(Unavailable::Denied(why.into()));
        }
        self.is_deciding(renewal.lease).then(|| {
            let why =
                "a majority of the servers did not hear from this node: whether it failed is being decided";
            Unavailable::Unknown(why.into())
        })
    }

    /// Whether a verdict on the agent is proposed, and its outcome is not known.
    fn is_deciding(&self, lease: LeaseId) -> bool {
        self.judge.deciding.contains(&lease.agent)
    }

    /// The window starts anew, and whoever asked whether the node lives knows it.
    fn hear(&mut self, now: Time, renewal: Renewal, outbox: &mut Outbox) {
        let lease = renewal.lease;
        // A failed one too, where sessions are left to it: its answers keep them.
        let Some(agent) = self.state.agent_of(lease) else { return };
        let shortest = self.state.shortest_window(&agent.node);
        self.blame_accuser(now, lease.agent);
        self.judge.windows.heard(now, lease, shortest);
        self.note_whether_it_renews(now, renewal);
        self.judge.juror.heard(lease);
        self.refuse_registrations(now, renewal, outbox);
        if !self.judge.registrations.wait_for(lease) {
            self.judge.checks.close(lease.agent);
        }
    }

    /// After the round: an end that was committed before it is applied by now, whoever led then.
    pub(crate) fn answer_renewal(&mut self, caller: LeaseCaller, renewal: Renewal, outbox: &mut Outbox) {
        let Renewal { lease, sequence, .. } = renewal;
        let answer = match (self.renewal_refusal(&renewal), self.state.lease_end(lease)) {
            (Some(why), _) => {
                self.observer.observed.renewals_refused += 1;
                LeaseAnswer::Unavailable(why)
            }
            (None, Some(why)) => LeaseAnswer::Ended(lease, why),
            (None, None) => {
                self.observer.observed.renewals_acknowledged += 1;
                let agent = self.state.agent_of(lease);
                let shortest = agent.and_then(|agent| self.state.shortest_window(&agent.node));
                let keeps_from = agent.and_then(|agent| agent.former_sessions_until).unwrap_or_default();
                let (leader, term) = (self.config.id, self.engine.term());
                LeaseAnswer::Renewed(LeaseAck { lease, sequence, shortest, keeps_from, leader, term })
            }
        };
        self.judge.answer(caller, answer, outbox);
    }

    /// The round did not come to its end.
    pub(crate) fn refuse_renewal(&mut self, caller: LeaseCaller, outbox: &mut Outbox) {
        self.judge.answer(caller, LeaseAnswer::Unavailable(not_leader()), outbox);
    }
}
