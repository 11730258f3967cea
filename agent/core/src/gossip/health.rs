//! The local health of a member: a process that runs late or receives nothing finds all other
//! members unresponsive.

use super::engine::PROBE_INTERVAL;
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// The delay of a timer from which this process counts as paused.
const PAUSE_FROM: Duration = Duration::from_millis(200);

/// The number of intervals without a received packet after which this process may be isolated.
const SILENT_INTERVALS: u32 = 3;

/// The maximum health score. Probes take up to `MAX_SCORE + 1` times as long.
const MAX_SCORE: u32 = 8;

/// The health of this member, by which it stretches its timeouts.
#[derive(Clone, Debug)]
pub(super) struct Health {
    /// The number of recent mistakes: Lifeguard's local health multiplier.
    score: u32,
    heard: Time,
    /// The last time when this process was found to have paused.
    lagged: Option<Time>,
}

impl Health {
    pub(super) fn new(now: Time) -> Self {
        Self { score: 0, heard: now, lagged: None }
    }

    /// Returns the factor by which probes are slowed down.
    pub(super) fn stretch(&self) -> u32 {
        1 + self.score
    }

    /// Records a timer that was due at `due` and fires at `now`.
    pub(super) fn fires(&mut self, due: Time, now: Time) {
        if now.since(due) > PAUSE_FROM {
            self.lagged = Some(now);
        }
    }

    /// Records a packet from another member.
    pub(super) fn record_packet(&mut self, now: Time) {
        self.heard = now;
    }

    /// Records an answered probe.
    pub(super) fn succeeds(&mut self) {
        self.score = self.score.saturating_sub(1);
    }

    /// Records an unanswered probe, or a suspicion of this process.
    pub(super) fn doubts(&mut self) {
        self.score = (self.score + 1).min(MAX_SCORE);
    }

    /// Returns `true` if missing replies since `began` are the target's fault.
    pub(super) fn may_suspect(&self, began: Time, now: Time) -> bool {
        let ran = self.lagged.is_none_or(|lagged| lagged < began);
        ran && now.since(self.heard) < PROBE_INTERVAL * SILENT_INTERVALS
    }
}
