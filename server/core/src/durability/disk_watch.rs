//! Disk stalls: when a server's own disk counts as stalled, and when a stalled leader hands over.
//!
//! Heartbeats and read rounds need no disk, so Raft's failure detector overlooks a leader whose
//! disk hangs. Its followers commit entries that it cannot apply, and no client gets a reply until
//! the disk returns.
//!
//! ```text
//! no write durable for `stall_timeout` ──> the disk is stalled: readiness, health, peers, metric
//!   and commit index > persisted index ──> transfer to a voter that acknowledged past the
//!                                          persisted index, to the next one after an election
//!                                          timeout; after the last one, step down
//! after a stall                        ──> lowest election priority until the disk is fast again
//! ```
//!
//! **Invariants:** an idle server is never stalled. Time in which this process did not run does not
//! count. A leader steps down only if its commit index is ahead of its persisted index: then the
//! other servers have a majority that can write.

use lockmesh_protocol::time::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// The time for which a disk must be fast after a stall before its server competes in elections
/// again.
const PRIORITY_DELAY: Duration = Duration::from_secs(30);
/// The same after [`FREQUENT`] stalls within [`FREQUENT_WINDOW`].
const LONG_PRIORITY_DELAY: Duration = Duration::from_secs(5 * 60);
/// The number of stalls that shows a failing disk instead of an incident.
const FREQUENT: usize = 3;
/// The time within which that many stalls count as frequent.
const FREQUENT_WINDOW: Duration = Duration::from_secs(10 * 60);

/// Measures how long writes take to become durable.
#[derive(Debug)]
pub struct DiskWatch {
    /// The time without a durable write after which the disk is stalled.
    stall_timeout: Duration,
    in_flight: Option<InFlight>,
    /// The time since which this leader's commit index has been ahead of its persisted index.
    overtaken_since: Option<Time>,
    is_stalled: bool,
    /// Start times of the newest stalls, at most [`FREQUENT`] of them.
    stalls: VecDeque<Time>,
    convalescence: Option<Convalescence>,
}

/// Writes that were submitted to the disk and are not durable.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    /// The number of the last one.
    last: u64,
    /// The submission of the oldest write, or the completion of the write before it.
    since: Time,
}

/// The time after a stall in which a server has the lowest election priority.
#[derive(Clone, Copy, Debug)]
struct Convalescence {
    /// The last time at which a write was slower than half the stall timeout.
    last_slow: Time,
    /// The required duration of fast writes from then on.
    calm: Duration,
}

/// A change that [`DiskWatch::tick`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskChange {
    /// The disk stalled.
    Stalled,
    /// A write became durable after a stall.
    Recovered,
    /// The disk has been fast for long enough after a stall.
    Calm,
}

impl DiskWatch {
    pub(crate) fn new(stall_timeout: Duration) -> Self {
        Self {
            stall_timeout,
            in_flight: None,
            overtaken_since: None,
            is_stalled: false,
            stalls: VecDeque::new(),
            convalescence: None,
        }
    }

    /// Records that writes up to number `last` were submitted to the disk.
    pub(crate) fn written(&mut self, now: Time, last: u64) {
        let since = self.unpersisted_since().unwrap_or(now);
        self.in_flight = Some(InFlight { last, since });
    }

    /// Records that all writes up to `number` are durable. The time of the later ones begins now.
    pub(crate) fn persisted(&mut self, now: Time, number: u64) {
        self.note_slowness(now);
        let left = self.in_flight.filter(|in_flight| in_flight.last > number);
        self.in_flight = left.map(|in_flight| InFlight { since: now, ..in_flight });
    }

    /// Returns the time since which writes are in flight without a completion.
    pub fn unpersisted_since(&self) -> Option<Time> {
        self.in_flight.map(|in_flight| in_flight.since)
    }

    /// Returns how long the disk has been stalled without a durable write; `None` if it is not
    /// stalled.
    pub fn stalled_for(&self, now: Time) -> Option<Duration> {
        Some(now.since(self.in_flight?.since)).filter(|age| *age >= self.stall_timeout)
    }

    /// Returns the time without a durable write after which a disk is stalled.
    pub(crate) fn stall_timeout(&self) -> Duration {
        self.stall_timeout
    }

    /// Returns `true` if followers have been committing entries that are not durable here for so
    /// long that this server must not lead.
    pub(crate) fn must_hand_over(&self, now: Time) -> bool {
        let overtaken = self.overtaken_since.map(|since| now.since(since));
        self.stalled_for(now).is_some() && overtaken.is_some_and(|age| age >= self.stall_timeout)
    }

    /// Returns `true` while this server has the lowest election priority.
    pub fn lowers_priority(&self) -> bool {
        self.convalescence.is_some()
    }

    /// Excludes a pause of this process: completions may be unread.
    pub(crate) fn was_late(&mut self, now: Time, late: Duration) {
        let moved = |since: Time| (since + late).min(now);
        self.in_flight = self.in_flight.map(|one| InFlight { since: moved(one.since), ..one });
        self.overtaken_since = self.overtaken_since.map(moved);
    }

    /// Advances time, and logs a change. `is_overtaken` is set for a leader whose commit index is
    /// ahead of its persisted index.
    pub(crate) fn tick(&mut self, now: Time, is_leader: bool, is_overtaken: bool) -> Option<DiskChange> {
        let in_flight = self.unpersisted_since().map_or(Duration::ZERO, |since| now.since(since));
        let unpersisted_ms = in_flight.as_millis() as u64;
        let change = self.follow(now, is_overtaken);
        match change {
            Some(DiskChange::Stalled) => tracing::warn!(unpersisted_ms, is_leader, "disk stalled"),
            Some(DiskChange::Recovered) => tracing::info!("disk recovered from a stall"),
            Some(DiskChange::Calm) => tracing::info!("disk is fast again: election priority restored"),
            None => {}
        }
        change
    }

    fn follow(&mut self, now: Time, is_overtaken: bool) -> Option<DiskChange> {
        self.overtaken_since = is_overtaken.then(|| self.overtaken_since.unwrap_or(now));
        self.note_slowness(now);
        let is_stalled = self.stalled_for(now).is_some();
        let was_stalled = std::mem::replace(&mut self.is_stalled, is_stalled);
        match (was_stalled, self.is_stalled) {
            (false, true) => {
                self.note_stall(now);
                Some(DiskChange::Stalled)
            }
            (true, false) => Some(DiskChange::Recovered),
            _ => {
                self.convalescence.take_if(|it| now.since(it.last_slow) >= it.calm).map(|_| DiskChange::Calm)
            }
        }
    }

    fn note_stall(&mut self, now: Time) {
        self.stalls.push_back(now);
        if self.stalls.len() > FREQUENT {
            self.stalls.pop_front();
        }
        let is_frequent = self.stalls.len() == FREQUENT && now.since(self.stalls[0]) <= FREQUENT_WINDOW;
        let calm = if is_frequent { LONG_PRIORITY_DELAY } else { PRIORITY_DELAY };
        self.convalescence = Some(Convalescence { last_slow: now, calm });
    }

    fn note_slowness(&mut self, now: Time) {
        let age = self.unpersisted_since().map_or(Duration::ZERO, |since| now.since(since));
        if let Some(convalescence) = self.convalescence.as_mut().filter(|_| age > self.stall_timeout / 2) {
            convalescence.last_slow = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DiskChange, DiskWatch, LONG_PRIORITY_DELAY, PRIORITY_DELAY};
    use lockmesh_protocol::time::Time;
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: f64) -> Time {
        Time(0) + Duration::from_secs_f64(seconds)
    }

    /// A stall that begins at `from`, is detected by ticks, and ends after 2 s.
    fn stall(watch: &mut DiskWatch, number: u64, from: f64) {
        watch.written(at(from), number);
        assert_eq!(watch.follow(at(from + 1.0), true), Some(DiskChange::Stalled));
        watch.persisted(at(from + 2.0), number);
        assert_eq!(watch.follow(at(from + 2.0), false), Some(DiskChange::Recovered));
    }

    #[test]
    fn leader_overtaken_for_timeout_hands_over() {
        let mut watch = DiskWatch::new(SECOND);
        watch.written(at(0.0), 1);
        assert_eq!(watch.follow(at(0.5), true), None);
        assert_eq!(watch.follow(at(1.0), true), Some(DiskChange::Stalled));
        assert!(!watch.must_hand_over(at(1.2)) && watch.must_hand_over(at(1.5)));
        assert_eq!(watch.follow(at(2.0), false), None);
        assert!(!watch.must_hand_over(at(9.0)), "every committed entry is durable here");
    }

    #[test]
    fn durable_write_restarts_stall_timeout() {
        let mut watch = DiskWatch::new(SECOND);
        watch.written(at(0.0), 1);
        watch.written(at(0.5), 2);
        watch.persisted(at(0.9), 1);
        assert_eq!((watch.follow(at(1.8), true), watch.stalled_for(at(1.9))), (None, Some(SECOND)));
        watch.persisted(at(1.95), 2);
        assert_eq!((watch.follow(at(99.0), true), watch.stalled_for(at(99.0))), (None, None), "it is idle");
    }

    #[test]
    fn process_pause_excluded_from_stall() {
        let mut watch = DiskWatch::new(SECOND);
        watch.written(at(0.0), 1);
        watch.follow(at(0.1), true);
        watch.was_late(at(5.1), 5 * SECOND);
        assert_eq!((watch.follow(at(5.9), true), watch.must_hand_over(at(5.9))), (None, false));
        watch.was_late(at(6.0), 60 * SECOND);
        assert_eq!(watch.unpersisted_since(), Some(at(6.0)), "never in the future");
    }

    #[test]
    fn priority_restored_later_after_frequent_stalls() {
        let mut watch = DiskWatch::new(SECOND);
        stall(&mut watch, 1, 0.0);
        assert!(watch.lowers_priority());
        watch.written(at(20.0), 2);
        watch.persisted(at(20.6), 2);
        assert_eq!(watch.follow(at(50.0), false), None, "a write took more than half the timeout");
        assert_eq!(watch.follow(at(20.6) + PRIORITY_DELAY, false), Some(DiskChange::Calm));
        assert!(!watch.lowers_priority());
        stall(&mut watch, 3, 100.0);
        stall(&mut watch, 4, 200.0);
        assert_eq!(
            watch.follow(at(202.0) + PRIORITY_DELAY, false),
            None,
            "the third stall within ten minutes"
        );
        assert_eq!(watch.follow(at(202.0) + LONG_PRIORITY_DELAY, false), Some(DiskChange::Calm));
    }
}
