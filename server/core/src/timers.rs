//! The leader's deadlines: sessions that must be renewed, lock-delays, waits for locks, tombstones.
//!
//! A timer never changes the state: when it is due, the leader proposes a command that says so. After an election
//! every deadline starts afresh, in full; a clock can therefore lengthen a delay but never shorten it.

use crate::state::State;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{Key, LogIndex, SessionId};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long things may last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerConfig {
    /// A session expires this many TTLs after its last renewal; at least 1.
    pub ttl_multiplier: u32,
    /// How long a tombstone is kept.
    pub tombstone_ttl: Duration,
    /// Tombstones that are made within this time are forgotten together.
    pub tombstone_granularity: Duration,
}

impl Default for TimerConfig {
    fn default() -> Self {
        Self {
            ttl_multiplier: 2,
            tombstone_ttl: Duration::from_secs(15 * 60),
            tombstone_granularity: Duration::from_secs(30),
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
    /// The wait in this place of the key's queue is over.
    Wait(Key, LogIndex),
    /// The tombstones up to this index are old.
    Tombstones(LogIndex),
}

/// Deadlines by time and by subject.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    config: TimerConfig,
    deadlines: BTreeMap<Subject, Time>,
    queue: BTreeSet<(Time, Subject)>,
    /// Subjects whose end was proposed and is not yet known.
    deciding: BTreeSet<Subject>,
    /// The youngest bin of tombstones: its deadline and the last index in it.
    youngest_bin: Option<(Time, LogIndex)>,
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
        for session in state.sessions() {
            self.arm_session(now, &session.id, session.ttl);
        }
        for (key, delay) in state.delays() {
            self.arm(Subject::LockDelay(key.clone()), now + delay.duration);
        }
        for (key, ticket, waiter) in state.waiters() {
            self.arm(Subject::Wait(key.clone(), ticket), now + waiter.wait);
        }
        if let Some(newest) = state.tombstones().map(|(_, index)| index).max() {
            self.arm_tombstone(now, newest);
        }
    }

    /// Learns what became true.
    pub(crate) fn note(&mut self, now: Time, change: &Change) {
        match change {
            Change::Session(id, Some(session)) => self.arm_session(now, id, session.ttl),
            Change::Session(id, None) => self.disarm(&Subject::Session(id.clone())),
            Change::LockDelay(key, Some(delay)) => {
                self.arm(Subject::LockDelay(key.clone()), now + delay.duration);
            }
            Change::LockDelay(key, None) => self.disarm(&Subject::LockDelay(key.clone())),
            Change::Waiter(key, ticket, Some(waiter)) => {
                self.arm(Subject::Wait(key.clone(), *ticket), now + waiter.wait);
            }
            Change::Waiter(key, ticket, None) => self.disarm(&Subject::Wait(key.clone(), *ticket)),
            Change::Tombstone(_, Some(index)) => self.arm_tombstone(now, *index),
            Change::Cleared => self.clear(),
            _ => {}
        }
    }

    /// Starts a session's deadline afresh. A session whose end is being decided is left alone.
    pub(crate) fn renew(&mut self, now: Time, id: &SessionId, ttl: Duration) {
        if !self.is_deciding(id) {
            self.arm_session(now, id, ttl);
        }
    }

    /// Whether the session's expiry was proposed, and its outcome is not known.
    pub(crate) fn is_deciding(&self, id: &SessionId) -> bool {
        self.deciding.contains(&Subject::Session(id.clone()))
    }

    /// How long a key stays closed.
    pub(crate) fn remaining(&self, now: Time, key: &Key) -> Option<Duration> {
        let deadline = self.deadlines.get(&Subject::LockDelay(key.clone()))?;
        Some(deadline.since(now))
    }

    /// Takes the next subject whose time has come; it is being decided until [`Timers::failed`] or a change.
    pub(crate) fn next_due(&mut self, now: Time) -> Option<Subject> {
        let (deadline, _) = self.queue.first()?;
        if *deadline > now {
            return None;
        }
        let (_, subject) = self.queue.pop_first()?;
        self.deadlines.remove(&subject);
        self.deciding.insert(subject.clone());
        Some(subject)
    }

    /// A proposal about `subject` came to nothing: try again at `again`.
    pub(crate) fn failed(&mut self, subject: Subject, again: Time) {
        if self.deciding.remove(&subject) {
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
        self.queue = queue.into_iter().map(|(deadline, subject)| (deadline + gap, subject)).collect();
        self.deadlines.values_mut().for_each(|deadline| *deadline = *deadline + gap);
        self.youngest_bin = self.youngest_bin.map(|(deadline, index)| (deadline + gap, index));
    }

    fn arm_session(&mut self, now: Time, id: &SessionId, ttl: Duration) {
        if !ttl.is_zero() {
            let window = ttl.saturating_mul(self.config.ttl_multiplier.max(1));
            self.arm(Subject::Session(id.clone()), now + window);
        }
    }

    /// Puts the tombstone into the youngest bin, or begins a new one.
    fn arm_tombstone(&mut self, now: Time, index: LogIndex) {
        let fresh = now + self.config.tombstone_ttl;
        match self.youngest_bin {
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
        self.disarm(&subject);
        self.queue.insert((deadline, subject.clone()));
        self.deadlines.insert(subject, deadline);
    }

    fn disarm(&mut self, subject: &Subject) {
        self.deciding.remove(subject);
        if let Some(deadline) = self.deadlines.remove(subject) {
            self.queue.remove(&(deadline, subject.clone()));
        }
    }
}
