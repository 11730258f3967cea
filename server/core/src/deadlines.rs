//! Deadlines become commands: at a tick, between two ticks, and before a lock request.
//!
//! The state holds no time, so the end of a lock-delay is a command that the leader proposes. A
//! lock request need not wait for the tick that would notice an expired delay: the end is appended
//! to the log before the request, in the same batch. **Invariant:** a server that was paused
//! extends its deadlines before it handles any input, and lets none expire before the next tick.

use crate::core::{Core, Origin};
use crate::fault_injection::Rule;
use crate::raft::TICK;
use crate::timers::Subject;
use lockmesh_protocol::command::{Command, KvCommand, KvVerb, TxnKv, TxnOp};
use lockmesh_protocol::id::{Key, WallTime};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// A tick that is later than this means that the server was paused: its deadlines are extended.
const LATE: Duration = Duration::from_millis(200);
/// The minimum remaining lock-delay in a reply while a key is closed: after "closed for 0 s" a
/// client could not choose a time to retry.
const LEAST_REMAINING: Duration = Duration::from_millis(1);

impl Core {
    /// Returns the time at which [`crate::Input::Deadline`] is due; `None` if nothing may expire
    /// before the next tick.
    pub fn next_deadline(&self) -> Option<Time> {
        // Otherwise the shell would wake repeatedly for deadlines that may not expire before the
        // tick.
        self.timers.next().filter(|_| self.may_pass > 0)
    }

    /// Extends the deadlines of a paused server by the length of the pause. This happens before any
    /// input: deadlines from input after the pause must not be extended, and input from during it
    /// is unread.
    pub(crate) fn move_deadlines_if_late(&mut self, now: Time) {
        let gap = self.ran_until.map_or(Duration::ZERO, |at| now.since(at));
        if gap <= 2 * TICK {
            return;
        }
        self.ran_until = Some(now);
        self.disk.was_late(now, gap - TICK);
        // Renewals that arrived during the pause may be unread; this server must not expire their
        // sessions.
        if gap > TICK + LATE {
            let gap_ms = gap.as_millis() as u64;
            tracing::warn!(gap_ms, "this server was not running for a while: extending its deadlines");
            self.timers.postpone(gap - TICK);
            self.judge.was_late(now, gap - TICK);
        }
    }

    /// Ends deadlines with the election if a test broke that rule.
    pub(crate) fn forget_deadlines(&mut self) {
        let fault_point = &self.engine.fault_point;
        let (delays, sessions) = (
            fault_point.breaks(Rule::DelaysOutliveElections),
            fault_point.breaks(Rule::SessionsOutliveElections),
        );
        let delays = self.state.delays().filter(|_| delays).map(|(key, _)| Subject::LockDelay(key.clone()));
        let with_ttl = self.state.sessions().filter(|session| sessions && session.spec.ttl.is_some());
        let subjects: Vec<_> =
            delays.chain(with_ttl.map(|session| Subject::Session(session.spec.id))).collect();
        let ends: Vec<_> = subjects.iter().filter_map(|subject| self.end_of(subject)).collect();
        ends.into_iter().for_each(|end| self.gather_own(end));
    }

    /// Expires deadlines between two ticks. A late tick must come first: it may extend the
    /// deadlines.
    pub(crate) fn pass_deadlines_early(&mut self, now: Time, wall: WallTime) {
        self.wall = wall;
        // Nothing is lost otherwise: the late tick follows, extends the deadlines, and expires
        // them.
        if self.is_running(now) {
            self.pass_deadlines(now);
        }
    }

    /// Proposes the end of everything that is due.
    pub(crate) fn pass_deadlines(&mut self, now: Time) {
        while self.may_pass > 0
            && let Some(subject) = self.timers.next_due(now)
        {
            if let Some(until) = self.renewal_waits_until(&subject) {
                // At least one tick, so that a late deadline does not loop forever.
                self.timers.failed(subject, until.max(now + TICK));
                continue;
            }
            // Each expiry is a log entry: a node with very many sessions must not fill the log
            // ahead of other requests.
            self.may_pass -= 1;
            self.decide_about(subject);
        }
    }

    /// Returns the time until which a renewal of this session may wait: before then its expiry is
    /// not proposed.
    fn renewal_waits_until(&self, subject: &Subject) -> Option<Time> {
        match subject {
            Subject::Session(session) => self.read_index.renewal_waits_until(*session),
            Subject::LockDelay(_) | Subject::Wait(..) | Subject::Tombstones(_) => None,
        }
    }

    /// Proposes the end of every expired lock-delay that would affect a command.
    pub(crate) fn end_delays_that_are_over(&mut self, now: Time, command: &Command) {
        // The deadlines may have to be extended first. The client is asked to wait, which is safe.
        if !self.is_running(now) {
            return;
        }
        for key in locks_of(command) {
            let subject = Subject::LockDelay(key.clone());
            // Not counted against `may_pass`: the request itself is bounded, and it adds an entry
            // of its own.
            if self.timers.take_due(now, &subject) {
                self.decide_about(subject);
            }
        }
    }

    /// Sets the remaining lock-delay in a reply. The state knows the length of a delay; only the
    /// leader knows the rest at the time of the request.
    pub(crate) fn with_remaining_delay(&self, came: Time, command: &Command, applied: &Applied) -> Applied {
        let mut applied = applied.clone();
        if let (Reply::Delayed { remaining }, Some(key)) = (&mut applied.reply, locks_of(command).next()) {
            *remaining = self.left_of_delay(came, key, *remaining);
        }
        applied
    }

    /// Returns how long a key stays closed after `then`, given the full length of the delay.
    pub(crate) fn left_of_delay(&self, then: Time, key: &Key, whole: Duration) -> Duration {
        // If the delay is not noted yet, or this server does not lead, all of it may remain: the
        // safe side.
        self.timers.remaining(then, key).unwrap_or(whole).min(whole).max(LEAST_REMAINING)
    }

    /// Returns `true` unless a tick is so late that deadlines may have to be extended.
    pub(crate) fn is_running(&self, now: Time) -> bool {
        self.last_tick.is_some_and(|last| now.since(last) <= TICK + LATE)
    }

    fn decide_about(&mut self, subject: Subject) {
        match self.end_of(&subject) {
            Some(command) => self.batch.push((self.own(command), Origin::Timer(subject))),
            None => self.timers.decided(&subject),
        }
    }

    /// Returns the command that ends the subject of a deadline.
    pub(crate) fn end_of(&self, subject: &Subject) -> Option<Command> {
        // A restore in between may bring other rows under the same ids and indexes; the base
        // distinguishes them.
        let base = self.state.index_base();
        match subject {
            Subject::Session(session) => {
                // With the term: if a later leader commits this leader's entry, it must not cut
                // short the TTL that the later leader restarted.
                Some(Command::ExpireSession { session: *session, term: self.serving?, base })
            }
            Subject::LockDelay(key) => {
                let started_at_index = self.state.lock_delay(key)?.started_at_index;
                Some(Command::EndLockDelay { key: key.clone(), started_at_index, base })
            }
            Subject::Wait(key, queue_position) => {
                let enqueued_at_index = self.state.waiter(key, *queue_position)?.enqueued_at_index;
                Some(Command::EndWait {
                    key: key.clone(),
                    queue_position: *queue_position,
                    enqueued_at_index,
                })
            }
            Subject::Tombstones(up_to) => Some(Command::ReapTombstones { up_to: *up_to }),
        }
    }
}

/// Returns the keys whose locks a command would acquire.
fn locks_of(command: &Command) -> impl Iterator<Item = &Key> {
    let (alone, operations): (_, &[TxnOp]) = match command {
        Command::Kv(KvCommand::Acquire(new, _) | KvCommand::Enqueue { new, .. }) => (Some(&new.key), &[]),
        Command::Txn(operations) => (None, operations),
        _ => (None, &[]),
    };
    let locked = operations.iter().filter_map(|operation| match operation {
        TxnOp::Kv(TxnKv { verb: KvVerb::Lock, key, .. }) => Some(key),
        _ => None,
    });
    alone.into_iter().chain(locked)
}
