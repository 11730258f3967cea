//! Reads and renewals, which a read round of a majority precedes.

use super::Core;
use super::overdue::expiry_is_being_decided;
use crate::fault_injection::Rule;
use crate::input::CallToken;
use crate::judge::JudgeInput;
use crate::outbox::{Outbox, not_leader};
use crate::read_index::Reader;
use lockmesh_protocol::id::{LogIndex, SessionId};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::Response;
use lockmesh_protocol::time::Time;

impl Core {
    pub(super) fn read(&mut self, now: Time, token: CallToken, outbox: &mut Outbox) {
        if self.replica.engine.is_leader()
            && self.replica.engine.fault_point.breaks(Rule::ReadsWaitForTheirRound)
        {
            outbox.readable.push(token);
        } else if self.replica.engine.leader().is_some() {
            self.replica.read_index.arrive(now, Reader::Query(token));
        } else {
            self.refuse_reader(now, Reader::Query(token), outbox);
        }
    }

    /// Acknowledges a renewal after a round that begins after its arrival. Until then the session
    /// does not expire.
    pub(super) fn renew(&mut self, now: Time, token: CallToken, id: SessionId, outbox: &mut Outbox) {
        // Between the proposal of an expiry and its outcome, a renewal would be acknowledged for a
        // session that the next entry ends.
        if self.deadlines.timers.is_deciding(id) {
            return outbox.fail(token, expiry_is_being_decided());
        }
        if self.replica.is_serving()
            && self.replica.engine.fault_point.breaks(Rule::RenewalsWaitForTheirRound)
        {
            self.acknowledge_renewal(now, token, id, outbox);
        } else if self.replica.engine.is_leader() {
            self.replica.read_index.arrive(now, Reader::Renewal(token, id));
        } else {
            outbox.fail(token, not_leader());
        }
    }

    /// Replies to a renewal after its round: any expiry that was committed before the round is
    /// applied by now, whichever server led. The session gets a full TTL from the acknowledgement.
    fn acknowledge_renewal(&mut self, now: Time, token: CallToken, id: SessionId, outbox: &mut Outbox) {
        // The expiry was proposed because an earlier renewal had waited too long.
        let is_expiring = self.deadlines.timers.is_deciding(id);
        if is_expiring {
            return outbox.fail(token, expiry_is_being_decided());
        }
        let session = self.replica.state.session(id).cloned();
        if let Some(session) = session.as_ref().filter(|_| self.replica.is_serving()) {
            self.deadlines.timers.renew(now, id, session.spec.ttl);
        }
        outbox.replies.push((token, Response::Renewed(session)));
    }

    pub(super) fn serve_readers(&mut self, now: Time, outbox: &mut Outbox) {
        for reader in self.replica.read_index.ready(self.replica.applied.0) {
            match reader {
                Reader::Query(token) => outbox.readable.push(token),
                Reader::Renewal(token, id) => self.acknowledge_renewal(now, token, id, outbox),
                Reader::Lease(caller, renewal) => {
                    self.judge(now, JudgeInput::RoundOver(caller, renewal), outbox);
                }
                // The node was alive when the round began, so its force-leave has no effect.
                // Consul's reply is the same.
                Reader::Unchanged(token) => {
                    let index = LogIndex(self.replica.applied.0.0 + self.replica.state.index_base());
                    let applied = Applied { index, reply: Reply::Done };
                    outbox.replies.push((token, Response::Applied(applied)));
                }
            }
        }
    }

    /// Repeats late rounds, and rejects readers that would wait too long. Runs once per tick.
    pub(super) fn retry_readers(&mut self, now: Time, outbox: &mut Outbox) {
        let rejected = self.replica.retry_reads(now);
        rejected.into_iter().for_each(|reader| self.refuse_reader(now, reader, outbox));
    }

    pub(super) fn refuse_reader(&mut self, now: Time, reader: Reader, outbox: &mut Outbox) {
        match reader {
            Reader::Query(token) => outbox.refused_reads.push((token, not_leader())),
            Reader::Renewal(token, _) | Reader::Unchanged(token) => outbox.fail(token, not_leader()),
            Reader::Lease(caller, _) => {
                self.judge(now, JudgeInput::RoundFailed(caller, not_leader()), outbox);
            }
        }
    }
}
