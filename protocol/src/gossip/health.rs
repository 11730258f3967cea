//! How far a member may trust its own eyes: one that runs late, or hears nobody, finds everybody
//! else silent.

use super::engine::PROBE_INTERVAL;
use crate::time::Time;
use std::time::Duration;

/// A timer that is later than this shows that this process did not run.
const LAG: Duration = Duration::from_millis(200);

/// Who has heard nobody for so many intervals may be alone in the dark.
const SILENT_INTERVALS: u32 = 3;

/// Probes take at most so many times as long, and one more.
const MAX_SCORE: u32 = 8;

/// See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct Health {
    /// How often it was wrong of late: Lifeguard's local health.
    score: u32,
    heard: Time,
    /// When it last found that it had not run.
    lagged: Option<Time>,
}

impl Health {
    pub(super) fn new(now: Time) -> Self {
        Self { score: 0, heard: now, lagged: None }
    }

    /// How many times as long as usual its probes take.
    pub(super) fn stretch(&self) -> u32 {
        1 + self.score
    }

    /// A timer that was due then is delivered now.
    pub(super) fn fires(&mut self, due: Time, now: Time) {
        if now.since(due) > LAG {
            self.lagged = Some(now);
        }
    }

    /// Another member was heard.
    pub(super) fn hears(&mut self, now: Time) {
        self.heard = now;
    }

    /// A probe was answered.
    pub(super) fn succeeds(&mut self) {
        self.score = self.score.saturating_sub(1);
    }

    /// A probe was not answered, or this process is suspected itself.
    pub(super) fn doubts(&mut self) {
        self.score = (self.score + 1).min(MAX_SCORE);
    }

    /// Whether silence since then is the fault of whoever was silent.
    pub(super) fn may_accuse(&self, began: Time, now: Time) -> bool {
        let ran = self.lagged.is_none_or(|lagged| lagged < began);
        ran && now.since(self.heard) < PROBE_INTERVAL * SILENT_INTERVALS
    }
}
