//! The leader's deadlines: a session's TTL, lock-delays, waits for locks, tombstones.
//!
//! A timer never changes the state: when it is due, the leader proposes a command that says so.
//! After an election every deadline starts afresh, in full; a clock can therefore lengthen a delay
//! but never shorten it.

use crate::state::State;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{Key, LogIndex, SessionId};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// How many changes of one command are noted at once; more of them are noted turn by turn.
const NOTED_A_TURN: usize = 500;

/// How long things may last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerConfig {
    /// A session expires this many TTLs after its last renewal; at least 1.
    pub ttl_multiplier: u32,
    /// How long a tombstone is kept.
    pub tombstone_ttl: Duration,
    /// Tombstones that are made within this time are forgotten together.
    pub tombstone_granularity: Duration,
    /// How long a failed member is remembered.
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

/// What a deadline is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    /// The session was not renewed.
    Session(SessionId),
    /// The key's lock-delay is over.
    LockDelay(Key),
    /// The wait at this position of the key's queue is over.
    Wait(Key, LogIndex),
    /// The tombstones up to this index are old.
    Tombstones(LogIndex),
}

/// A deadline's key in the queue: among those of one time, the one that was set first comes first.
type TimerKey = (Time, u64);

/// Deadlines by time and by subject.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    config: TimerConfig,
    deadlines: BTreeMap<Subject, TimerKey>,
    queue: BTreeMap<TimerKey, Subject>,
    /// How many deadlines were ever set.
    armed: u64,
    /// Subjects whose end was proposed and is not yet known, with the deadline that passed.
    deciding: BTreeMap<Subject, Time>,
    /// The youngest bin of tombstones: its deadline and the last index in it.
    youngest_bin: Option<(Time, LogIndex)>,
    /// What is still to be noted, and when it happened. As long as there is any, nothing is due.
    behind: VecDeque<(Time, DeadlineChange)>,
}

/// What starts or ends a deadline.
#[derive(Debug)]
enum DeadlineChange {
    Change(Change),
    Renewal(SessionId, Option<Duration>),
}

impl Timers {
    pub(crate) fn new(config: TimerConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// Forgets everything: this server no longer leads.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.config);
    }

    /// Starts every deadline afresh: this server begins to lead.
    pub(crate) fn restart(&mut self, now: Time, state: &State) {
        self.clear();
        // All in full: how much of each was left is known to the clock of another server, and
        // clocks are never compared.
        for session in state.sessions() {
            self.arm_session(now, session.spec.id, session.spec.ttl);
        }
        for (key, delay) in state.delays() {
            self.arm(Subject::LockDelay(key.clone()), now + delay.duration);
        }
        for (key, queue_position, waiter) in state.waiters() {
            self.arm(Subject::Wait(key.clone(), queue_position), now + waiter.wait);
        }
        // One bin for all: they only have to live long enough, and nothing is known of their age.
        if let Some(newest) = state.tombstones().map(|(_, index)| index).max() {
            self.arm_tombstone(now, newest);
        }
    }

    /// Learns what became true, in log order. The end of a node with very many locks is learned bit
    /// by bit, since nobody is to wait for that: see [`Timers::catch_up`].
    pub(crate) fn note_all(&mut self, now: Time, changes: &[Change]) {
        let are_few = changes.len() <= NOTED_A_TURN;
        // Also few must queue up behind what waits, or the end of a deadline would be noted before
        // its beginning.
        let (at_once, before) = (are_few && self.behind.is_empty(), self.behind.len());
        for change in changes {
            match change {
                _ if at_once => self.note(now, change),
                Change::Cleared => self.clear(),
                Change::Session(..)
                | Change::LockDelay(..)
                | Change::Waiter(..)
                | Change::Tombstone(_, Some(_)) => {
                    self.behind.push_back((now, DeadlineChange::Change(change.clone())));
                }
                _ => {}
            }
        }
        // Each turn takes some of it off, so the many that go on coming a few at a time must not
        // add to it.
        if are_few {
            self.catch_up_by(self.behind.len().saturating_sub(before));
        }
    }

    /// Learns a bit of what it is behind with.
    pub(crate) fn catch_up(&mut self) {
        self.catch_up_by(NOTED_A_TURN);
    }

    fn catch_up_by(&mut self, count: usize) {
        // Under the time at which it happened: that it is noted late makes no deadline later.
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
            Change::LockDelay(key, Some(delay)) => {
                self.arm(Subject::LockDelay(key.clone()), now + delay.duration);
            }
            Change::LockDelay(key, None) => self.disarm(&Subject::LockDelay(key.clone())),
            Change::Waiter(key, queue_position, Some(waiter)) => {
                self.arm(Subject::Wait(key.clone(), *queue_position), now + waiter.wait);
            }
            Change::Waiter(key, queue_position, None) => {
                self.disarm(&Subject::Wait(key.clone(), *queue_position));
            }
            Change::Tombstone(_, Some(index)) => self.arm_tombstone(now, *index),
            Change::Cleared => self.clear(),
            _ => {}
        }
    }

    /// Starts a session's deadline afresh. A session whose end is being decided is left alone.
    pub(crate) fn renew(&mut self, now: Time, id: SessionId, ttl: Option<Duration>) {
        // From the proposal of its end until the outcome a renewal must change nothing, here or in
        // the answer.
        if self.is_deciding(id) {
            return;
        }
        if self.behind.is_empty() {
            self.arm_session(now, id, ttl);
        } else {
            // In its order: the creation of the very session may be among what waits.
            self.behind.push_back((now, DeadlineChange::Renewal(id, ttl)));
            self.catch_up_by(1);
        }
    }

    /// Whether the session's expiry was proposed, and its outcome is not known.
    pub(crate) fn is_deciding(&self, id: SessionId) -> bool {
        self.deciding.contains_key(&Subject::Session(id))
    }

    /// How long a key stays closed; zero where that is over and only not applied yet.
    pub(crate) fn remaining(&self, now: Time, key: &Key) -> Option<Duration> {
        let subject = Subject::LockDelay(key.clone());
        let deadline = self.deadlines.get(&subject).map(|(deadline, _)| deadline);
        Some(deadline.or_else(|| self.deciding.get(&subject))?.since(now))
    }

    /// The next deadline, unless something is still to be noted that may come before it.
    pub(crate) fn next(&self) -> Option<Time> {
        let (deadline, _) = self.queue.first_key_value().filter(|_| self.behind.is_empty())?.0;
        Some(*deadline)
    }

    /// Takes the next subject whose time has come; it is being decided until [`Timers::failed`] or
    /// a change.
    pub(crate) fn next_due(&mut self, now: Time) -> Option<Subject> {
        let subject = self.queue.first_key_value()?.1.clone();
        self.take_due(now, &subject).then_some(subject)
    }

    /// Takes this subject, if its time has come: then it is being decided.
    pub(crate) fn take_due(&mut self, now: Time, subject: &Subject) -> bool {
        let key = self.deadlines.get(subject).copied();
        // Nothing is due while renewals may wait to be noted: a session must not end that was
        // renewed.
        let Some(key) = key.filter(|(deadline, _)| *deadline <= now && self.behind.is_empty()) else {
            return false;
        };
        self.queue.remove(&key);
        self.deadlines.remove(subject);
        // Kept, since the proposal may come to nothing: then the subject would be forgotten for
        // good.
        self.deciding.insert(subject.clone(), key.0);
        true
    }

    /// A proposal about `subject` came to nothing: try again at `again`.
    pub(crate) fn failed(&mut self, subject: Subject, again: Time) {
        if self.deciding.remove(&subject).is_some() {
            self.arm(subject, again);
        }
    }

    /// A proposal about `subject` was applied.
    pub(crate) fn decided(&mut self, subject: &Subject) {
        self.deciding.remove(subject);
    }

    /// Moves every deadline: this server did not run for `gap`, and heard no renewal meanwhile.
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
            // More than one TTL by default, as in Consul: a client renews in time and its answer
            // may still be late.
            let window = ttl.saturating_mul(self.config.ttl_multiplier.max(1));
            self.arm(Subject::Session(id), now + window);
        }
    }

    /// Puts the tombstone into the youngest bin, or begins a new one.
    fn arm_tombstone(&mut self, now: Time, index: LogIndex) {
        let fresh = now + self.config.tombstone_ttl;
        match self.youngest_bin {
            // Bins keep the deadlines few where very many keys are deleted; a tombstone lives a
            // little longer for it.
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
        // A change of the same subject settles what was being decided, whatever becomes of the
        // proposal.
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
    fn what_is_noted_late_counts_from_when_it_was() {
        let mut timers = Timers::new(TimerConfig::default());
        let session = SessionId::from_random([7; 16]);
        timers.renew(Time(0), session, Some(SECOND));
        let delay = LockDelay { started_at_index: LogIndex(1), duration: SECOND };
        let delays = 2 * NOTED_A_TURN;
        let closed = |key: usize| Change::LockDelay(format!("k{key}").into(), Some(delay));
        timers.note_all(Time(0), &(0..delays).map(closed).collect::<Vec<_>>());
        let late = Time(0) + 3 * SECOND;
        assert_eq!(timers.next_due(late), None, "nothing is due as long as something is not noted");
        timers.renew(Time(0) + SECOND, session, Some(SECOND));
        (0..3).for_each(|_| timers.catch_up());
        assert_eq!(timers.remaining(Time(0), &"k7".into()), Some(SECOND));
        for _ in 0..delays {
            assert!(matches!(timers.next_due(late), Some(Subject::LockDelay(_))));
        }
        assert_eq!(timers.next_due(Time(late.0 - 1)), None, "the renewal was noted in its turn");
        assert_eq!(timers.next_due(late), Some(Subject::Session(session)));
    }

    #[test]
    fn what_ends_before_it_is_noted_is_gone() {
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
