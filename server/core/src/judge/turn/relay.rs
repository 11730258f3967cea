//! Renewals that this follower relays, and the replies that it returns.

use crate::core::Core;
use crate::input::CallToken;
use crate::judge::messages::{BATCH, LeaseAnswer};
use crate::judge::relay::{MAX_RELAYED, Relayed};
use crate::outbox::{Outbox, not_leader};
use crate::raft::message::MessageKind;
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::lease::Renewal;
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;

impl Core {
    /// Relays a renewal that reached a follower of this leader.
    pub(super) fn relay(
        &mut self,
        now: Time,
        leader: ServerId,
        (token, renewal): (CallToken, Renewal),
        outbox: &mut Outbox,
    ) {
        self.refuse_those_of_another_leader(now, Some(leader), outbox);
        let relay = &mut self.judge.relay;
        if relay.waiting.len() >= MAX_RELAYED {
            let what = format!("{MAX_RELAYED} renewals wait for the leader");
            return outbox.fail(token, Unavailable::Overloaded(what));
        }
        let number = relay.gather(renewal);
        relay.waiting.insert(number, Relayed { came: now, token, renewal });
    }

    /// Relays a node's answer to this juror, which the leader must receive. No caller waits for it.
    pub(super) fn relay_answer(&mut self, now: Time, renewal: Renewal, outbox: &mut Outbox) {
        // Without another leader there is no recipient; a new leader restarts all windows.
        if let Some(leader) = self.engine.leader().filter(|leader| *leader != self.config.id) {
            self.refuse_those_of_another_leader(now, Some(leader), outbox);
            self.judge.relay.gather(renewal);
        }
    }

    /// Returns the leader's reply to a renewal.
    pub(super) fn relayed_answer(&mut self, number: u64, answer: LeaseAnswer, outbox: &mut Outbox) {
        if let Some(token) = self.judge.relay.take(number, &answer) {
            outbox.replies.push((token, answer.into_response()));
        }
    }

    /// Refuses the renewals that the leader has not answered in time.
    pub(super) fn refuse_relayed(&mut self, now: Time, outbox: &mut Outbox) {
        let follows = |leader: &ServerId| *leader != self.config.id && self.set_back().is_none();
        let leader = self.engine.leader().filter(follows);
        self.refuse_those_of_another_leader(now, leader, outbox);
    }

    pub(super) fn refuse_those_of_another_leader(
        &mut self,
        now: Time,
        leader: Option<ServerId>,
        outbox: &mut Outbox,
    ) {
        for token in self.judge.relay.refused(now, leader) {
            outbox.fail(token, not_leader());
        }
    }

    pub(super) fn flush_relay(&mut self, outbox: &mut Outbox) {
        let gathered = std::mem::take(&mut self.judge.relay.gathered);
        let accusations = std::mem::take(&mut self.judge.relay.accusations);
        if let Some(leader) = self.judge.relay.leader {
            for batch in gathered.chunks(BATCH) {
                self.send(leader, MessageKind::LeaseRenewals, &batch, outbox);
            }
            if !accusations.is_empty() {
                self.send(leader, MessageKind::Accusations, &accusations, outbox);
            }
        }
    }
}
