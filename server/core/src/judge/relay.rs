//! Renewals that a follower relays: in one batch a turn to the leader, and the answers back.
//!
//! A renewal that is not answered in time is refused, so that its agent tries another way. An
//! answer counts only for the renewal that it names: numbers of a former process may come late.

use super::messages::{BATCH, LeaseAnswer};
use crate::core::Core;
use crate::input::CallToken;
use crate::outbox::{Outbox, not_leader};
use crate::raft::message::MessageKind;
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::lease::Renewal;
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// How many renewals a follower keeps that the leader has not answered.
const MAX_RELAYED: usize = 16_384;
/// How long it keeps one.
const RELAY_TIMEOUT: Duration = Duration::from_secs(1);

/// Renewals on their way to the leader.
#[derive(Debug)]
pub(super) struct Relay {
    /// The leader to whom they are on their way.
    leader: Option<ServerId>,
    last_number: u64,
    waiting: BTreeMap<u64, Relayed>,
    /// Renewals for the next batch; answers of jurors have nobody who waits.
    gathered: Vec<(u64, Renewal)>,
}

#[derive(Debug)]
struct Relayed {
    came: Time,
    token: CallToken,
    renewal: Renewal,
}

impl Relay {
    /// One whose numbers begin behind this one.
    pub(super) fn new(first: u64) -> Self {
        // Far from the end, so that they never wrap.
        Self { leader: None, last_number: first >> 1, waiting: BTreeMap::new(), gathered: Vec::new() }
    }

    fn gather(&mut self, renewal: Renewal) -> u64 {
        self.last_number += 1;
        self.gathered.push((self.last_number, renewal));
        self.last_number
    }

    /// Takes whoever waits for this answer.
    fn take(&mut self, number: u64, answer: &LeaseAnswer) -> Option<CallToken> {
        let waits_for = |relayed: &&Relayed| {
            let Renewal { lease, sequence, .. } = relayed.renewal;
            match answer {
                LeaseAnswer::Renewed(ack) => (ack.lease, ack.sequence) == (lease, sequence),
                LeaseAnswer::Ended(ended, _) => *ended == lease,
                LeaseAnswer::Unavailable(_) => true,
            }
        };
        self.waiting.get(&number).filter(waits_for)?;
        self.waiting.remove(&number).map(|relayed| relayed.token)
    }

    /// Everybody who waits for too long, or for another leader than this one.
    fn refused(&mut self, now: Time, leader: Option<ServerId>) -> Vec<CallToken> {
        let is_other = self.leader != leader;
        self.leader = leader;
        if is_other {
            self.gathered.clear();
        }
        let is_refused = |relayed: &Relayed| is_other || now.since(relayed.came) >= RELAY_TIMEOUT;
        let refused: Vec<_> = self
            .waiting
            .iter()
            .filter(|(_, relayed)| is_refused(relayed))
            .map(|(number, _)| *number)
            .collect();
        refused.iter().filter_map(|number| self.waiting.remove(number)).map(|relayed| relayed.token).collect()
    }
}

impl Core {
    /// A renewal came to a server that follows this leader.
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

    /// The same for what a node answered to this juror: the leader must hear it, and nobody waits.
    pub(super) fn relay_answer(&mut self, now: Time, renewal: Renewal, outbox: &mut Outbox) {
        // Before this server serves itself there is nobody to tell, and all windows start then.
        if let Some(leader) = self.engine.leader().filter(|leader| *leader != self.config.id) {
            self.refuse_those_of_another_leader(now, Some(leader), outbox);
            self.judge.relay.gather(renewal);
        }
    }

    /// The leader answered a renewal.
    pub(super) fn relayed_answer(&mut self, number: u64, answer: LeaseAnswer, outbox: &mut Outbox) {
        if let Some(token) = self.judge.relay.take(number, &answer) {
            outbox.replies.push((token, answer.into_response()));
        }
    }

    /// Refuses those that the leader has not answered, and will not.
    pub(super) fn refuse_relayed(&mut self, now: Time, outbox: &mut Outbox) {
        let follows = |leader: &ServerId| *leader != self.config.id && self.set_back().is_none();
        let leader = self.engine.leader().filter(follows);
        self.refuse_those_of_another_leader(now, leader, outbox);
    }

    fn refuse_those_of_another_leader(&mut self, now: Time, leader: Option<ServerId>, outbox: &mut Outbox) {
        for token in self.judge.relay.refused(now, leader) {
            outbox.fail(token, not_leader());
        }
    }

    pub(super) fn flush_relay(&mut self, outbox: &mut Outbox) {
        let gathered = std::mem::take(&mut self.judge.relay.gathered);
        if let Some(leader) = self.judge.relay.leader {
            for batch in gathered.chunks(BATCH) {
                self.send(leader, MessageKind::LeaseRenewals, &batch, outbox);
            }
        }
    }
}
