//! Autopilot, what it knows of the other servers: who was heard when, who is healthy, who has
//! caught up, and what is under way about them.

mod leader;

use crate::input::CallToken;
use crate::outbox::{Outbox, lost_leadership};
use lockmesh_protocol::id::{LogIndex, ServerId, WallTime};
use lockmesh_protocol::rpc::Response;
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What is known of the other servers. All but `heard` is the leader's.
#[derive(Debug, Default)]
pub(crate) struct AutopilotState {
    /// When each was heard last.
    heard: BTreeMap<ServerId, Time>,
    /// When this server began to lead.
    led_since: Time,
    /// How each member was found at the last tick.
    health: BTreeMap<ServerId, Health>,
    /// Since when a learner could have its vote.
    ready: BTreeMap<ServerId, Time>,
    /// Servers that were told of a snapshot and are not there yet.
    fetching: BTreeMap<ServerId, Fetching>,
    /// Servers that were dead when another one got its vote.
    replaced: BTreeSet<ServerId>,
    /// Servers that are no members any more, until their rows are gone.
    leaving: BTreeSet<ServerId>,
    /// A transfer of leadership, and when it began.
    pub(crate) transfer: Option<(CallToken, Time)>,
    /// Voters that an unfit leader has tried to hand over to.
    pub(crate) tried: BTreeSet<ServerId>,
    /// What each member had acknowledged at the last tick, and when that last made progress.
    acknowledged: BTreeMap<ServerId, (LogIndex, Time)>,
    /// The entry behind the newest membership that settles it, where there is one already.
    settled_by: Option<LogIndex>,
    /// Those who wait until the membership is settled, and the rows of those who left are gone.
    pub(crate) waits_for_membership: Vec<CallToken>,
}

/// Whether a server is well, and since when that has been so without a break.
#[derive(Clone, Copy, Debug)]
struct Health {
    is_healthy: bool,
    since: WallTime,
}

/// A server that was told of a snapshot, and may be fetching it ever since.
#[derive(Debug)]
struct Fetching {
    /// The snapshot that it was told of first. Later ones are newer.
    snapshot: LogIndex,
    /// When it was told last.
    told: Time,
}

impl AutopilotState {
    /// A server said something.
    pub(crate) fn heard(&mut self, now: Time, server: ServerId) {
        self.heard.insert(server, now);
    }

    /// This server no longer leads.
    pub(crate) fn step_down(&mut self, outbox: &mut Outbox) {
        // This server leads no more, which is all that was asked for.
        if let Some((token, _)) = self.transfer.take() {
            outbox.replies.push((token, Response::Done));
        }
        for token in self.waits_for_membership.drain(..) {
            outbox.fail(token, lost_leadership());
        }
        // When others were heard is true whoever leads, and the next term of this server need not
        // learn it anew.
        let heard = std::mem::take(&mut self.heard);
        *self = Self { heard, ..Self::default() };
    }

    fn last_heard(&self, now: Time, server: ServerId) -> Option<Duration> {
        self.heard.get(&server).map(|heard| now.since(*heard))
    }

    /// For how long a leader has waited for a word: whoever it never heard may have spoken to the
    /// one before it.
    fn unheard_for(&self, now: Time, server: ServerId) -> Duration {
        now.since(self.heard.get(&server).copied().unwrap_or_default().max(self.led_since))
    }
}
