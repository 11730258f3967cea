//! Autopilot state about the other servers: last contact, health, replication progress, and the
//! changes in progress.

mod leader;

use crate::input::CallToken;
use crate::outbox::{Outbox, lost_leadership};
use lockmesh_protocol::id::{LogIndex, ServerId, WallTime};
use lockmesh_protocol::rpc::Response;
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Knowledge about the other servers. Only the leader uses the fields other than the contact times.
#[derive(Debug, Default)]
pub(crate) struct AutopilotState {
    /// Time of the last message from each server.
    heard: BTreeMap<ServerId, Time>,
    /// Time at which this server became leader.
    led_since: Time,
    /// Health of each member at the last tick.
    health: BTreeMap<ServerId, Health>,
    /// Learners that qualify for a vote, each with the time since which it qualifies.
    ready: BTreeMap<ServerId, Time>,
    /// Servers that were offered a snapshot and have not installed it yet.
    fetching: BTreeMap<ServerId, Fetching>,
    /// Voters that were dead when another server was promoted.
    replaced: BTreeSet<ServerId>,
    /// Servers that are no longer members and whose rows are not removed yet.
    leaving: BTreeSet<ServerId>,
    /// The caller that waits for a leadership transfer, and the start of the transfer.
    transfer: Option<(CallToken, Time)>,
    /// Voters that an unfit leader has tried to hand over to.
    pub(crate) tried: BTreeSet<ServerId>,
    /// The index that each member had acknowledged at the last tick, and the time of its last
    /// progress.
    acknowledged: BTreeMap<ServerId, (LogIndex, Time)>,
    /// The index of the entry that settles the newest membership, once it is proposed.
    settled_by: Option<LogIndex>,
    /// Calls that wait until the membership is settled and the rows of removed servers are gone.
    pub(crate) waits_for_membership: Vec<CallToken>,
}

/// Health of a server, and the time since which it is unchanged.
#[derive(Clone, Copy, Debug)]
struct Health {
    is_healthy: bool,
    since: WallTime,
}

/// A server that was offered a snapshot and may be fetching it.
#[derive(Debug)]
struct Fetching {
    /// The first snapshot that was offered. Later offers are newer.
    snapshot: LogIndex,
    /// Time of the last offer.
    told: Time,
}

impl AutopilotState {
    /// Records a message from a server.
    pub(crate) fn heard(&mut self, now: Time, server: ServerId) {
        self.heard.insert(server, now);
    }

    /// Resets the leader's state when this server steps down.
    pub(crate) fn step_down(&mut self, outbox: &mut Outbox) {
        // The transfer is done: its caller only wanted this server to step down.
        if let Some((token, _)) = self.transfer.take() {
            outbox.replies.push((token, Response::Done));
        }
        for token in self.waits_for_membership.drain(..) {
            outbox.fail(token, lost_leadership());
        }
        // Contact times remain valid under another leader, so this server's next term starts with
        // them.
        let heard = std::mem::take(&mut self.heard);
        *self = Self { heard, ..Self::default() };
    }

    fn last_heard(&self, now: Time, server: ServerId) -> Option<Duration> {
        self.heard.get(&server).map(|heard| now.since(*heard))
    }

    /// Returns the time since the leader last received a message from a server. A server that never
    /// sent one may have talked to the previous leader, so the time counts from the start of the
    /// term.
    fn unheard_for(&self, now: Time, server: ServerId) -> Duration {
        now.since(self.heard.get(&server).copied().unwrap_or_default().max(self.led_since))
    }
}
