//! Keeps the catalog equal to the agent's list of checks (anti-entropy).
//!
//! A round removes departed checks, writes changed ones, and from time to time compares the whole
//! list, so that a catalog that lost a check (a restored backup, a node removed by hand) gets it
//! again. A failure ends the round, and the next one begins after a pause that grows.

use super::{Checks, Notice, Order, Outbox};
use lockmesh_protocol::backoff::Backoff;
use lockmesh_protocol::id::CheckId;
use lockmesh_protocol::log_on_change::LogOnChange;
use lockmesh_protocol::record::Check;
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
const COMPARE_INTERVAL: Duration = Duration::from_secs(60);

/// The state of the synchronization.
#[derive(Debug)]
pub(super) struct CatalogSync {
    /// The version up to which the catalog has all urgent changes.
    pub(super) written: u64,
    /// The time of the next comparison.
    compare_at: Time,
    /// The time of the next round; `None` after a successful one, which any change follows.
    retry_at: Option<Time>,
    backoff: Backoff,
    log: LogOnChange,
    /// `true` once the checks of an earlier process were searched for.
    has_adopted: bool,
    round: Option<Round>,
}

/// A round with a call under way.
#[derive(Debug)]
struct Round {
    /// The version of the list at its beginning.
    version: u64,
    departed: VecDeque<CheckId>,
    /// Checks to write, with their versions.
    changed: Vec<(Check, u64)>,
    comparison: Comparison,
    pending: Pending,
}

/// The comparison of a round with the catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    NotDue,
    /// After the changes, which do not wait for the whole list.
    Due,
    /// The changes are those that it found.
    Done,
}

/// The call under way.
#[derive(Debug)]
enum Pending {
    None,
    Departure(CheckId),
    /// The written checks, with their versions.
    Changes(Vec<(CheckId, u64)>),
    /// The version of the list at the beginning of the read.
    Read(u64),
}

impl CatalogSync {
    pub(super) fn new(seed: u64, now: Time) -> Self {
        Self {
            written: 0,
            compare_at: now,
            retry_at: None,
            backoff: Backoff::new(RETRY_BACKOFF, seed),
            log: LogOnChange::default(),
            has_adopted: false,
            round: None,
        }
    }

    /// Returns the time of the next round, if the next write is due at `write`; `None` during a
    /// round.
    pub(super) fn wakes_at(&self, write: Option<Time>) -> Option<Time> {
        let due = write.map_or(self.compare_at, |write| write.min(self.compare_at));
        self.round.is_none().then(|| self.retry_at.unwrap_or(due))
    }
}

impl Checks {
    /// Begins a round, unless one is under way or a failed one is not to be retried yet. Changes
    /// must not speed up retries.
    pub(super) fn synchronize(&mut self, now: Time, outbox: &mut Outbox) {
        if self.sync.round.is_none() && self.sync.retry_at.is_none_or(|at| at <= now) {
            let is_due = self.sync.compare_at <= now;
            let comparison = if is_due { Comparison::Due } else { Comparison::NotDue };
            let round = self.round(now, comparison);
            self.advance(now, round, outbox);
        }
    }

    /// Returns a round with the changes that are due.
    fn round(&self, now: Time, comparison: Comparison) -> Round {
        let due = self.checks.values().filter(|check| check.write_at.is_some_and(|at| at <= now));
        Round {
            version: self.version,
            departed: self.departed.iter().cloned().collect(),
            changed: due.map(|check| (check.record.clone(), check.version)).collect(),
            comparison,
            pending: Pending::None,
        }
    }

    /// Orders the next call of a round, or ends it.
    fn advance(&mut self, now: Time, mut round: Round, outbox: &mut Outbox) {
        if let Some(id) = round.departed.pop_front() {
            outbox.order = Some(Order::Deregister(id.clone()));
            round.pending = Pending::Departure(id);
        } else if !round.changed.is_empty() {
            let changed = std::mem::take(&mut round.changed);
            let versions = changed.iter().map(|(check, version)| (check.id.clone(), *version));
            round.pending = Pending::Changes(versions.collect());
            outbox.order = Some(Order::Register(changed.into_iter().map(|(check, _)| check).collect()));
        } else {
            self.sync.written = self.sync.written.max(round.version);
            match round.comparison {
                Comparison::Due => {
                    outbox.order = Some(Order::Read);
                    round.pending = Pending::Read(self.version);
                }
                Comparison::Done => {
                    self.sync.compare_at = now + COMPARE_INTERVAL;
                    return self.sync_succeeded(outbox);
                }
                Comparison::NotDue => return self.sync_succeeded(outbox),
            }
        }
        self.sync.round = Some(round);
    }

    /// Continues the round after an applied write.
    pub(super) fn write_applied(&mut self, now: Time, outbox: &mut Outbox) {
        let Some(mut round) = self.sync.round.take() else { return };
        outbox.notices.push(Notice::Written);
        match std::mem::replace(&mut round.pending, Pending::None) {
            Pending::Departure(id) => {
                self.departed.remove(&id);
                // Registered again while its removal was written: it has to be written again.
                if let Some(check) = self.checks.get_mut(&id) {
                    check.write_at = Some(now);
                }
            }
            Pending::Changes(written) => {
                for (id, version) in written {
                    // A check that changed during the write has to be written again.
                    if let Some(check) = self.checks.get_mut(&id).filter(|check| check.version == version) {
                        check.write_at = None;
                    }
                }
            }
            Pending::Read(_) | Pending::None => {}
        }
        self.advance(now, round, outbox);
    }

    /// Marks every check that differs from the catalog, and writes these; the first comparison also
    /// adopts the checks left there.
    pub(super) fn compare(&mut self, now: Time, catalog: &[Arc<Check>], outbox: &mut Outbox) {
        let Some(Round { pending: Pending::Read(before), .. }) = self.sync.round.take() else { return };
        // Once: a check that appears there later, or was removed here, is not left from before.
        if !std::mem::replace(&mut self.sync.has_adopted, true) {
            catalog.iter().for_each(|left| self.adopt(now, left, outbox));
        }
        let catalog: BTreeMap<_, _> = catalog.iter().map(|check| (&check.id, check)).collect();
        for (id, check) in &mut self.checks {
            let differs = catalog.get(id).is_none_or(|known| known.status != check.record.status);
            // Changes made while the catalog answered are newer than its answer.
            if differs && check.version <= before && check.write_at.is_none() {
                check.write_at = Some(now);
            }
        }
        let round = self.round(now, Comparison::Done);
        self.advance(now, round, outbox);
    }

    fn sync_succeeded(&mut self, outbox: &mut Outbox) {
        self.sync.retry_at = None;
        self.sync.backoff.reset();
        if self.sync.log.reset() {
            outbox.notices.push(Notice::SyncRecovered);
        }
    }

    pub(super) fn sync_failed(&mut self, now: Time, reason: String, outbox: &mut Outbox) {
        if self.sync.round.take().is_some() {
            // A repeated failure is logged once, not at every attempt.
            let is_new = self.sync.log.is_new(&reason);
            outbox.notices.push(Notice::SyncFailed { reason, is_new });
            self.sync.retry_at = Some(now + self.sync.backoff.next_pause());
        }
    }
}
