//! Renewals that a follower relays: one batch per turn to the leader, and the replies.
//!
//! A renewal without a timely reply is refused, so that its agent tries another server. A reply
//! counts only for the renewal that it names: numbers of a former process may arrive late.

use super::messages::{BATCH, LeaseAnswer};
use crate::cluster::Turn;
use crate::input::CallToken;
use crate::raft::message::MessageKind;
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::lease::{LeaseId, Renewal};
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// The maximum number of relayed renewals without a reply.
const MAX_RELAYED: usize = 16_384;
/// The timeout of a relayed renewal.
const RELAY_TIMEOUT: Duration = Duration::from_secs(1);

/// Renewals in transit to the leader.
#[derive(Debug)]
pub(super) struct Relay {
    /// The leader to which they are relayed.
    leader: Option<ServerId>,
    last_number: u64,
    pub(super) waiting: BTreeMap<u64, Relayed>,
    /// Renewals for the next batch. No caller waits for the answers of jurors.
    pub(super) gathered: Vec<(u64, Renewal)>,
    /// Suspicions for the next batch, at most one batch: the reporter and the suspected lease.
    suspicions: Vec<(LeaseId, LeaseId)>,
}

#[derive(Debug)]
pub(super) struct Relayed {
    pub(super) came: Time,
    pub(super) token: CallToken,
    pub(super) renewal: Renewal,
}

impl Relay {
    /// Creates a relay whose numbers start after this one.
    pub(super) fn new(first: u64) -> Self {
        // Far below the maximum, so that numbers never wrap.
        let (gathered, suspicions) = (Vec::new(), Vec::new());
        Self { leader: None, last_number: first >> 1, waiting: BTreeMap::new(), gathered, suspicions }
    }

    pub(super) fn gather(&mut self, renewal: Renewal) -> u64 {
        self.last_number += 1;
        self.gathered.push((self.last_number, renewal));
        self.last_number
    }

    /// Takes the caller that waits for this reply.
    pub(super) fn take(&mut self, number: u64, answer: &LeaseAnswer) -> Option<CallToken> {
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

    /// Takes all callers that have timed out, or whose leader is no longer this one.
    pub(super) fn refused(&mut self, now: Time, leader: Option<ServerId>) -> Vec<CallToken> {
        let is_other = self.leader != leader;
        self.leader = leader;
        if is_other {
            self.gathered.clear();
            self.suspicions.clear();
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

    /// Relays a renewal that reached a follower of this leader.
    pub(super) fn relay(
        &mut self,
        turn: &mut Turn<'_>,
        leader: ServerId,
        token: CallToken,
        renewal: Renewal,
    ) {
        turn.refuse(self.refused(turn.now, Some(leader)));
        if self.waiting.len() >= MAX_RELAYED {
            let what = format!("{MAX_RELAYED} renewals wait for the leader");
            return turn.fail(token, Unavailable::Overloaded(what));
        }
        let number = self.gather(renewal);
        self.waiting.insert(number, Relayed { came: turn.now, token, renewal });
    }

    /// Relays a node's answer to this juror, which the leader must receive. No caller waits for it.
    pub(super) fn relay_answer(&mut self, turn: &mut Turn<'_>, renewal: Renewal) {
        // Without another leader there is no recipient; a new leader restarts all windows.
        if let Some(leader) = turn.view.other_leader() {
            turn.refuse(self.refused(turn.now, Some(leader)));
            self.gather(renewal);
        }
    }

    /// Relays suspicions to the leader; returns their number. Those beyond the batch size are
    /// dropped, and messages may be lost: an overdue renewal opens the check in any case.
    pub(super) fn relay_suspicions(
        &mut self,
        turn: &mut Turn<'_>,
        leader: ServerId,
        suspicions: impl Iterator<Item = (LeaseId, LeaseId)>,
    ) -> u64 {
        turn.refuse(self.refused(turn.now, Some(leader)));
        let before = self.suspicions.len();
        self.suspicions.extend(suspicions.take(BATCH - before));
        (self.suspicions.len() - before) as u64
    }

    /// Returns the leader's reply to a renewal.
    pub(super) fn answered(&mut self, turn: &mut Turn<'_>, number: u64, answer: LeaseAnswer) {
        if let Some(token) = self.take(number, &answer) {
            turn.reply(token, answer.into_response());
        }
    }

    /// Refuses the renewals that the leader has not answered in time.
    pub(super) fn refuse_late(&mut self, turn: &mut Turn<'_>) {
        let leader = turn.view.other_leader().filter(|_| !turn.view.is_set_back);
        turn.refuse(self.refused(turn.now, leader));
    }

    /// Sends the gathered renewals and suspicions to the leader.
    pub(super) fn flush(&mut self, turn: &mut Turn<'_>) {
        let gathered = std::mem::take(&mut self.gathered);
        let suspicions = std::mem::take(&mut self.suspicions);
        if let Some(leader) = self.leader {
            for batch in gathered.chunks(BATCH) {
                turn.send(leader, MessageKind::LeaseRenewals, &batch);
            }
            if !suspicions.is_empty() {
                turn.send(leader, MessageKind::Suspicions, &suspicions);
            }
        }
    }
}
