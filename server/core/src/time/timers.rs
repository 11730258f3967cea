//! The leader's deadlines: session TTLs, lock-delays, waits for locks, tombstones.
//!
//! A timer never changes the state: when it is due, the leader proposes a command. After an
//! election every deadline restarts in full; a clock can therefore lengthen a delay but never
//! shorten it.

use crate::state::State;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{Key, LogIndex, SessionId};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The maximum number of changes of one command that are noted at once; more are noted turn by
/// turn.
const NOTED_A_TURN: usize = 500;

/// Durations of the deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerConfig {
    /// A session expires this many TTLs after its last renewal; at least 1.
    pub ttl_multiplier: u32,
    /// The lifetime of a tombstone.
    pub tombstone_ttl: Duration,
    /// Tombstones that are made within this time are reaped together.
    pub tombstone_granularity: Duration,
    /// The time for which a failed member is kept.
    pub reap_failed_after: Duration,
}

impl Default for TimerConfig {
    fn default() -> Self {
        Self {
            ttl_multiplier: 2,
            tombstone_ttl: Duration::from_secs(15 * 60),
            tombstone_granularity: Duration::from_secs(30),
            reap_failed_after: Duration::from_secs(72 * 3600),
        }
    }
}

/// The subject of a deadline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    /// The session was not renewed.
    Session(SessionId),
    /// The key's lock-delay is over.
    LockDelay(Key),
    /// The wait at this queue position is over.
    Wait(LogIndex),
    /// The tombstones up to this index are old.
    Tombstones(LogIndex),
}

/// A deadline's key in the queue: of deadlines with the same time, the one set first comes first.
type TimerKey = (Time, u64);

/// Deadlines by time and by subject.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    config: TimerConfig,
    deadlines: BTreeMap<Subject, TimerKey>,
    queue: BTreeMap<TimerKey, Subject>,
    /// The number of deadlines ever set.
    armed: u64,
    /// Subjects whose end was proposed and not decided yet, with the expired deadline.
    deciding: BTreeMap<Subject, Time>,
    /// The newest bin of tombstones: its deadline and the last index in it.
    youngest_bin: Option<(Time, LogIndex)>,
    /// Changes still to be noted, and their times. While there are any, nothing is due.
    behind: VecDeque<(Time, DeadlineChange)>,
}

/// An event that starts or ends a deadline.
#[derive(Debug)]
enum DeadlineChange {
    Change(Change),
    Renewal(SessionId, Option<Duration>),
}

impl Timers {
    pub(crate) fn new(config: TimerConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// Clears all deadlines, when this server stops leading.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.config);
    }

    /// Restarts every deadline, when this server begins to lead.
    pub(crate) fn restart(&mut self, now: Time, state: &State) {
        self.clear();
        // All in full: only the clock of another server knows the remaining times, and clocks are
        // never compared.
        for session in state.sessions() {
            self.arm_session(now, session.spec.id, session.spec.ttl);
        }
        for (key, delay) in state.delays() {
            self.arm(Subject::LockDelay(key.clone()), now + delay.duration);
        }
        for (queue_position, request) in state.requests() {
            self.arm(Subject::Wait(*queue_position), now + request.wait);
        }
        // One bin for all: they only have to live long enough, and their age is unknown.
        if let Some(newest) = state.tombstones().map(|(_, index)| index).max() {
            self.arm_tombstone(now, newest);
        }
    }

    /// Follows applied changes, in log order. The end of a node with very many locks is noted in
    /// portions, so that it blocks no other request: see [`Timers::catch_up`].
    pub(crate) fn note_all(&mut self, now: Time, changes: &[Change]) {
        let are_few = changes.len() <= NOTED_A_TURN;
        // Small changes must also queue behind waiting ones, or the end of a deadline would be
        // noted before its start.
        let (at_once, before) = (are_few && self.behind.is_empty(), self.behind.len());
        for change in changes {
            match change {
                _ if at_once => self.note(now, change),
                Change::Cleared => self.clear(),
                Change::Session(..)
                | Change::LockDelay(..)
                | Change::SharedDelay(..)
                | Change::Waiter(..)
                | Change::LockRequest(..)
                | Change::Tombstone(_, Some(_)) => {
                    self.behind.push_back((now, DeadlineChange::Change(change.clone())));
                }
                _ => {}
            }
        }
        // Each turn processes a portion, so a steady flow of small changes must not lengthen the
        // queue.
        if are_few {
            self.catch_up_by(self.behind.len().saturating_sub(before));
        }
    }

    /// Notes a portion of the waiting changes.
    pub(crate) fn catch_up(&mut self) {
        self.catch_up_by(NOTED_A_TURN);
    }

    fn catch_up_by(&mut self, count: usize) {
        // With the time at which it happened: a late note makes no deadline later.
        for (then, news) in self.behind.drain(..self.behind.len().min(count)).collect::<Vec<_>>() {
            match news {
                DeadlineChange::Change(change) => self.note(then, &change),
                DeadlineChange::Renewal(id, ttl) => self.arm_session(then, id, ttl),
            }
        }
    }

    fn note(&mut self, now: Time, change: &Change) {
        match change {
            Change::Session(id, Some(session)) => self.arm_session(now, *id, session.spec.ttl),
            Change::Session(id, None) => self.disarm(&Subject::Session(*id)),
            Change::LockDelay(key, Some(delay)) | Change::SharedDelay(key, Some(delay)) => {
                self.arm(Subject::LockDelay(key.clone()), now + delay.duration);
            }
            Change::LockDelay(key, None) | Change::SharedDelay(key, None) => {
                self.disarm(&Subject::LockDelay(key.clone()));
            }
            Change::Waiter(_, queue_position, Some(waiter)) => {
                self.arm(Subject::Wait(*queue_position), now + waiter.wait);
            }
            Change::LockRequest(queue_position, Some(request)) => {
                self.arm(Subject::Wait(*queue_position), now + request.wait);
            }
            Change::Waiter(_, queue_position, None) | Change::LockRequest(queue_position, None) => {
                self.disarm(&Subject::Wait(*queue_position));
            }
            Change::Tombstone(_, Some(index)) => self.arm_tombstone(now, *index),
            Change::Cleared => self.clear(),
            _ => {}
        }
    }

    /// Restarts a session's deadline. A session whose end is being decided is left unchanged.
    pub(crate) fn renew(&mut self, now: Time, id: SessionId, ttl: Option<Duration>) {
        // Between the proposal of its end and the outcome a renewal must change nothing, here or in
        // the reply.
        if self.is_deciding(id) {
            return;
        }
        if self.behind.is_empty() {
            self.arm_session(now, id, ttl);
        } else {
            // In order: the creation of this session may be among the waiting changes.
            self.behind.push_back((now, DeadlineChange::Renewal(id, ttl)));
            self.catch_up_by(1);
        }
    }

    /// Returns `true` if the session's expiry was proposed and not decided yet.
    pub(crate) fn is_deciding(&self, id: SessionId) -> bool {
        self.deciding.contains_key(&Subject::Session(id))
    }

    /// Returns how long a key stays closed; zero if the delay is over and its end not applied yet.
    pub(crate) fn remaining(&self, now: Time, key: &Key) -> Option<Duration> {
        let subject = Subject::LockDelay(key.clone());
        let deadline = self.deadlines.get(&subject).map(|(deadline, _)| deadline);
        Some(deadline.or_else(|| self.deciding.get(&subject))?.since(now))
    }

    /// Returns the next deadline, unless waiting changes may contain an earlier one.
    pub(crate) fn next(&self) -> Option<Time> {
        let (deadline, _) = self.queue.first_key_value().filter(|_| self.behind.is_empty())?.0;
        Some(*deadline)
    }

    /// Takes the next subject that is due; it is being decided until [`Timers::failed`] or a
    /// change.
    pub(crate) fn next_due(&mut self, now: Time) -> Option<Subject> {
        let subject = self.queue.first_key_value()?.1.clone();
        self.take_due(now, &subject).then_some(subject)
    }

    /// Takes this subject if it is due: it is then being decided.
    pub(crate) fn take_due(&mut self, now: Time, subject: &Subject) -> bool {
        let key = self.deadlines.get(subject).copied();
        // Nothing is due while renewals may wait to be noted: a renewed session must not end.
        let Some(key) = key.filter(|(deadline, _)| *deadline <= now && self.behind.is_empty()) else {
            return false;
        };
        self.queue.remove(&key);
        self.deadlines.remove(subject);
        // Kept, since the proposal may fail: otherwise the subject would be lost.
        self.deciding.insert(subject.clone(), key.0);
        true
    }

    /// Sets a new deadline at `again` after a proposal about `subject` failed.
    pub(crate) fn failed(&mut self, subject: Subject, again: Time) {
        if self.deciding.remove(&subject).is_some() {
            self.arm(subject, again);
        }
    }

    /// Records that a proposal about `subject` was applied.
    pub(crate) fn decided(&mut self, subject: &Subject) {
        self.deciding.remove(subject);
    }

    /// Extends every deadline: this server was paused for `gap` and received no renewals.
    pub(crate) fn postpone(&mut self, gap: Duration) {
        let queue = std::mem::take(&mut self.queue);
        let moved =
            queue.into_iter().map(|((deadline, number), subject)| ((deadline + gap, number), subject));
        self.queue = moved.collect();
        self.deadlines.values_mut().for_each(|(deadline, _)| *deadline = *deadline + gap);
        self.behind.iter_mut().for_each(|(then, _)| *then = *then + gap);
        self.youngest_bin = self.youngest_bin.map(|(deadline, index)| (deadline + gap, index));
    }

    fn arm_session(&mut self, now: Time, id: SessionId, ttl: Option<Duration>) {
        if let Some(ttl) = ttl {
            // More than one TTL by default, as in Consul: a client renews in time, but its reply
            // may be late.
            let window = ttl.saturating_mul(self.config.ttl_multiplier.max(1));
            self.arm(Subject::Session(id), now + window);
        }
    }

    /// Adds the tombstone to the newest bin, or starts a new one.
    fn arm_tombstone(&mut self, now: Time, index: LogIndex) {
        let fresh = now + self.config.tombstone_ttl;
        match self.youngest_bin {
            // Bins limit the number of deadlines when very many keys are deleted; a tombstone lives
            // a little longer.
            Some((deadline, last)) if fresh.since(deadline) < self.config.tombstone_granularity => {
                self.disarm(&Subject::Tombstones(last));
                let deadline = fresh.max(deadline);
                self.youngest_bin = Some((deadline, index.max(last)));
                self.arm(Subject::Tombstones(index.max(last)), deadline);
            }
            _ => {
                self.youngest_bin = Some((fresh, index));
                self.arm(Subject::Tombstones(index), fresh);
            }
        }
    }

    fn arm(&mut self, subject: Subject, deadline: Time) {
        self.armed += 1;
        let key = (deadline, self.armed);
        // A change of the same subject settles a pending decision, regardless of the proposal.
        self.decided(&subject);
        if let Some(before) = self.deadlines.insert(subject.clone(), key) {
            self.queue.remove(&before);
        }
        self.queue.insert(key, subject);
    }

    fn disarm(&mut self, subject: &Subject) {
        self.decided(subject);
        if let Some(key) = self.deadlines.remove(subject) {
            self.queue.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{NOTED_A_TURN, Subject, TimerConfig, Timers};
    use lockmesh_protocol::change::Change;
    use lockmesh_protocol::id::{LogIndex, SessionId};
    use lockmesh_protocol::record::LockDelay;
    use lockmesh_protocol::time::Time;
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn deferred_changes_keep_original_time() {
        let mut timers = Timers::new(TimerConfig::default());
        let session = SessionId::from_random([7; 16]);
        timers.renew(Time(0), session, Some(SECOND));
        let delay = LockDelay { started_at_index: LogIndex(1), duration: SECOND };
        let delays = 2 * NOTED_A_TURN;
        let closed = |key: usize| Change::LockDelay(format!("k{key}").into(), Some(delay));
        timers.note_all(Time(0), &(0..delays).map(closed).collect::<Vec<_>>());
        let late = Time(0) + 3 * SECOND;
        assert_eq!(timers.next_due(late), None, "nothing is due while changes wait");
        timers.renew(Time(0) + SECOND, session, Some(SECOND));
        (0..3).for_each(|_| timers.catch_up());
        assert_eq!(timers.remaining(Time(0), &"k7".into()), Some(SECOND));
        for _ in 0..delays {
            assert!(matches!(timers.next_due(late), Some(Subject::LockDelay(_))));
        }
        assert_eq!(timers.next_due(Time(late.0 - 1)), None, "the renewal was noted in order");
        assert_eq!(timers.next_due(late), Some(Subject::Session(session)));
    }

    #[test]
    fn ended_delay_in_backlog_dropped() {
        let mut timers = Timers::new(TimerConfig::default());
        let delay = LockDelay { started_at_index: LogIndex(1), duration: SECOND };
        let closed = |key: usize| Change::LockDelay(format!("k{key}").into(), Some(delay));
        timers.note_all(Time(0), &(0..=NOTED_A_TURN).map(closed).collect::<Vec<_>>());
        timers.note_all(Time(0), &[Change::LockDelay("k7".into(), None)]);
        timers.catch_up();
        timers.catch_up();
        assert_eq!(timers.remaining(Time(0), &"k7".into()), None);
        assert_eq!(timers.remaining(Time(0), &"k8".into()), Some(SECOND));
    }
}
