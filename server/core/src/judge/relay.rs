//! Renewals that a follower relays: one batch per turn to the leader, and the replies.
//!
//! A renewal without a timely reply is refused, so that its agent tries another server. A reply
//! counts only for the renewal that it names: numbers of a former process may arrive late.

use super::messages::LeaseAnswer;
use crate::input::CallToken;
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::lease::{LeaseId, Renewal};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// The maximum number of relayed renewals without a reply.
pub(super) const MAX_RELAYED: usize = 16_384;
/// The timeout of a relayed renewal.
const RELAY_TIMEOUT: Duration = Duration::from_secs(1);

/// Renewals in transit to the leader.
#[derive(Debug)]
pub(super) struct Relay {
    /// The leader to which they are relayed.
    pub(super) leader: Option<ServerId>,
    pub(super) last_number: u64,
    pub(super) waiting: BTreeMap<u64, Relayed>,
    /// Renewals for the next batch. No caller waits for the answers of jurors.
    pub(super) gathered: Vec<(u64, Renewal)>,
    /// Suspicions for the next batch, at most one batch: the accuser and the suspected lease.
    pub(super) accusations: Vec<(LeaseId, LeaseId)>,
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
        let (gathered, accusations) = (Vec::new(), Vec::new());
        Self { leader: None, last_number: first >> 1, waiting: BTreeMap::new(), gathered, accusations }
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
            self.accusations.clear();
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
