//! Arriving renewals and their acknowledgement.
//!
//! A window starts when the renewal arrives, before this server knows whether it still leads: if
//! not, only a deadline without effect has moved. The acknowledgement waits for a read round that
//! begins after the arrival. So does the report that a lease has ended: a deposed leader must not
//! end it.

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
    /// Takes an agent's renewal of its lease.
    pub(crate) fn renew_lease(&mut self, now: Time, token: CallToken, renewal: Renewal, outbox: &mut Outbox) {
        match self.engine.leader() {
            Some(leader) if leader == self.config.id => {
                self.hear_call(now, LeaseCaller::Call(token), renewal, outbox);
            }
            Some(leader) => {
                // The node is alive, even if the leader does not learn it in time.
                if self.state.is_authentic(&renewal) {
                    self.judge.juror.heard(renewal.lease);
                }
                self.relay(now, leader, (token, renewal), outbox);
            }
            None => outbox.fail(token, not_leader()),
        }
    }

    /// Takes the outcome of a challenge.
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

    /// Takes a renewal with a waiting caller at the leader.
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

    /// Takes a node's answer to a juror; returns whether it counts.
    pub(super) fn hear_answer(&mut self, now: Time, renewal: Renewal, outbox: &mut Outbox) -> bool {
        // No caller waits, so the answer to an older check may be dropped: it may be old itself.
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

    /// The reason why a renewal is refused.
    fn renewal_refusal(&self, renewal: &Renewal) -> Option<Unavailable> {
        if !self.is_serving() {
            return Some(not_leader());
        }
        if !self.state.is_authentic(renewal) {
            let why = "the renewal was not made with the secret of its lease: register again";
            return Some(Unavailable::Denied(why.into()));
        }
        self.is_deciding(renewal.lease).then(|| {
            let why = "a majority of the servers got no reply from this node: its failure is being decided";
            Unavailable::Unknown(why.into())
        })
    }

    /// Returns whether a verdict on the agent is proposed and its outcome unknown.
    fn is_deciding(&self, lease: LeaseId) -> bool {
        self.judge.deciding.contains(&lease.agent)
    }

    /// Restarts the window of a node and closes its check.
    fn hear(&mut self, now: Time, renewal: Renewal, outbox: &mut Outbox) {
        let lease = renewal.lease;
        // Failed members count too if they have sessions: their answers keep those.
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

    /// Replies after the read round: an end that was committed before it is applied by now, under
    /// any leader.
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

    /// Refuses a renewal whose read round failed.
    pub(crate) fn refuse_renewal(&mut self, caller: LeaseCaller, outbox: &mut Outbox) {
        self.judge.answer(caller, LeaseAnswer::Unavailable(not_leader()), outbox);
    }
}
