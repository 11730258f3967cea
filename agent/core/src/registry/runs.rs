//! When the checks that the agent runs are run, and how many at a time.
//!
//! The first run is at a random time within the interval, so that many checks that are registered
//! together do not run together; each further run is an interval after the end of the one before.
//! Restored checks have their first run at once, and the second at a random time within the
//! interval. If more are due than may run, those that are due longest go first.

use super::{LocalCheck, Outbox, Registry};
use crate::definitions::Probe;
use lockmesh_protocol::id::CheckId;
use lockmesh_protocol::record::CheckStatus;
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The maximum duration of a run, unless the interval is longer.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);

/// The number of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunId(u64);

/// A run of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its number.
    pub id: RunId,
    /// The check.
    pub check: CheckId,
    /// What is probed.
    pub probe: Probe,
    /// The maximum size of the captured output, in bytes.
    pub max_output_bytes: usize,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The status that it found.
    pub status: CheckStatus,
    /// Its output.
    pub output: String,
}

/// The runs in progress.
#[derive(Debug, Default)]
pub(super) struct Runs {
    last: u64,
    /// The checks that run, by their folded ids.
    running: BTreeMap<RunId, CheckId>,
    /// The same checks.
    checks: BTreeSet<CheckId>,
}

impl Runs {
    /// Returns the number of runs in progress.
    pub(super) fn count(&self) -> usize {
        self.running.len()
    }

    /// Returns `true` if a check runs, by its folded id.
    pub(super) fn runs(&self, check: &CheckId) -> bool {
        self.checks.contains(check)
    }

    /// Returns the number of a run that begins.
    fn begin(&mut self, check: CheckId) -> RunId {
        self.last += 1;
        self.checks.insert(check.clone());
        self.running.insert(RunId(self.last), check);
        RunId(self.last)
    }

    /// Returns the check of a run that ended.
    fn end(&mut self, run: RunId) -> Option<CheckId> {
        let check = self.running.remove(&run)?;
        self.checks.remove(&check);
        Some(check)
    }
}

impl Registry {
    /// Returns the time of the next run; `None` while no further check may run, because the end of
    /// a run is an input.
    pub(super) fn next_run(&self) -> Option<Time> {
        let has_room = self.runs.count() < self.limits.max_running;
        let mut waiting = self.tables.runs.iter().filter(|(_, key)| !self.runs.checks.contains(key));
        waiting.next().filter(|_| has_room).map(|(at, _)| *at)
    }

    /// Starts the runs that are due.
    pub(super) fn start_runs(&mut self, now: Time, outbox: &mut Outbox) {
        let room = self.limits.max_running.saturating_sub(self.runs.count());
        if room == 0 {
            return;
        }
        // A check that was registered again during a run waits for the end of that run.
        let is_idle = |key: &&CheckId| !self.runs.checks.contains(*key);
        let due: Vec<_> = self.tables.runs.due(now).filter(is_idle).take(room).cloned().collect();
        for key in due {
            self.tables.change_check(&key, |check| check.next_run = None);
            let Some(check) = self.tables.checks().get(&key) else { continue };
            let Some(probe) = check.definition.kind.probe() else { continue };
            // A run that never ends would take the place of another check.
            let timeout = probe.timeout.unwrap_or(probe.target.default_timeout());
            let timeout = Some(timeout.min(probe.interval.max(MAX_TIMEOUT)));
            outbox.runs.push(Run {
                id: self.runs.begin(key),
                check: check.record.id.clone(),
                probe: Probe { timeout, ..probe.clone() },
                max_output_bytes: check.max_output_bytes(&self.limits),
            });
        }
    }

    /// Handles the result of a run.
    pub(super) fn ran(&mut self, now: Time, run: RunId, outcome: Outcome, outbox: &mut Outbox) {
        let Some(id) = self.runs.end(run) else { return };
        let is_bunched = self.tables.checks().get(&id).is_some_and(|check| check.is_bunched);
        // Above 0, at most 1: two runs of a check are never further apart than its interval.
        let share = is_bunched.then(|| 1.0 - self.random.fraction());
        let turned = self.tables.change_check(&id, |check| {
            // Registered again during the run: the new definition has its own runs.
            if check.next_run.is_some() {
                return None;
            }
            let interval = check.definition.kind.probe()?.interval;
            check.next_run = Some(now + share.map_or(interval, |share| interval.mul_f64(share)));
            check.is_bunched = false;
            Some(check.count(outcome.status))
        });
        let Some((turned, has_counted)) = turned.flatten() else { return };
        if let Some(status) = turned {
            self.turn(now, &id, (status, outcome.output), outbox);
        }
        outbox.stores.extend(self.tables.checks().get(&id).filter(|_| has_counted).map(LocalCheck::store));
    }
}

impl LocalCheck {
    /// Counts a result. Returns the status that it leads to, if any, and whether the data folder
    /// must have the count.
    fn count(&mut self, result: CheckStatus) -> (Option<CheckStatus>, bool) {
        let (limits, before) = (self.definition.thresholds, self.streak);
        let turned = self.streak.count(limits, result);
        (turned, self.streak.kept(limits) != before.kept(limits))
    }
}
