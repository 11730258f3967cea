//! Deadlines become commands: with a tick, between two ticks, and in front of whoever asks for a
//! lock.
//!
//! The state knows no time, so the end of a lock-delay is a command that the leader proposes.
//! Whoever asks for a lock whose delay is over does not wait for the tick that would notice: the
//! end goes into the log in front of the request, in the same batch. **Invariant:** a server that
//! did not run for a while moves its deadlines before it handles any input, and lets none pass
//! before the next tick.

use crate::core::{Core, Origin};
use crate::fault_injection::Rule;
use crate::raft::TICK;
use crate::timers::Subject;
use lockmesh_protocol::command::{Command, KvCommand, KvVerb, TxnKv, TxnOp};
use lockmesh_protocol::id::{Key, WallTime};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// A tick that comes later than this means that the server was not running: its deadlines move.
const LATE: Duration = Duration::from_millis(200);
/// The least that is told of a lock-delay that still closes a key: "closed for 0 s" tells nobody
/// when to ask again.
const LEAST_REMAINING: Duration = Duration::from_millis(1);

impl Core {
    /// When [`crate::Input::Deadline`] is due; none before the next tick where nothing may pass
    /// until then.
    pub fn next_deadline(&self) -> Option<Time> {
        // Otherwise the shell would wake again and again for deadlines that may not pass before the
        // tick.
        self.timers.next().filter(|_| self.may_pass > 0)
    }

    /// Moves the deadlines of a server that was not running by the time that it missed. Before any
    /// input: what arrives after the pause must not move, and what came during it lies unread.
    pub(crate) fn move_deadlines_if_late(&mut self, now: Time) {
        let gap = self.ran_until.map_or(Duration::ZERO, |at| now.since(at));
        if gap <= 2 * TICK {
            return;
        }
        self.ran_until = Some(now);
        self.disk.was_late(now, gap - TICK);
        // Renewals that came meanwhile may lie unread: to end their sessions would be this server's
        // fault.
        if gap > TICK + LATE {
            let gap_ms = gap.as_millis() as u64;
            tracing::warn!(gap_ms, "this server was not running for a while: its deadlines move");
            self.timers.postpone(gap - TICK);
            self.judge.was_late(now, gap - TICK);
        }
    }

    /// Where a test broke a rule of deadlines: they end with the election.
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

    /// Between two ticks. One that is late must come first: it may have to move the deadlines.
    pub(crate) fn pass_deadlines_early(&mut self, now: Time, wall: WallTime) {
        self.wall = wall;
        // Nothing is lost where it is not: the late tick follows, moves the deadlines, and comes
        // here.
        if self.is_running(now) {
            self.pass_deadlines(now);
        }
    }

    /// Proposes the end of what is due.
    pub(crate) fn pass_deadlines(&mut self, now: Time) {
        while self.may_pass > 0
            && let Some(subject) = self.timers.next_due(now)
        {
            if let Some(until) = self.renewal_waits_until(&subject) {
                // At least a tick, so that a deadline which passes late is not looked at forever.
                self.timers.failed(subject, until.max(now + TICK));
                continue;
            }
            // Each is an entry of the log: a node with very many sessions must not fill it in front
            // of everybody else.
            self.may_pass -= 1;
            self.decide_about(subject);
        }
    }

    /// The time until which a renewal of this session may wait: before then its expiry is not
    /// proposed.
    fn renewal_waits_until(&self, subject: &Subject) -> Option<Time> {
        match subject {
            Subject::Session(session) => self.read_index.renewal_waits_until(*session),
            Subject::LockDelay(_) | Subject::Wait(..) | Subject::Tombstones(_) => None,
        }
    }

    /// Proposes the end of every lock-delay that is over and that a command would run into.
    pub(crate) fn end_delays_that_are_over(&mut self, now: Time, command: &Command) {
        // Its deadlines may have to move first. Whoever asks is told to wait, which is safe.
        if !self.is_running(now) {
            return;
        }
        for key in locks_of(command) {
            let subject = Subject::LockDelay(key.clone());
            // Not counted against what may pass: the request itself is bounded, and it pays with an
            // entry of its own.
            if self.timers.take_due(now, &subject) {
                self.decide_about(subject);
            }
        }
    }

    /// The state knows how long a delay is; only the leader knows how much of it was left when the
    /// request came.
    pub(crate) fn with_remaining_delay(&self, came: Time, command: &Command, applied: &Applied) -> Applied {
        let mut applied = applied.clone();
        if let (Reply::Delayed { remaining }, Some(key)) = (&mut applied.reply, locks_of(command).next()) {
            *remaining = self.left_of_delay(came, key, *remaining);
        }
        applied
    }

    /// How long a key is still closed, from `then` on, by a delay that lasts so long in all.
    pub(crate) fn left_of_delay(&self, then: Time, key: &Key, whole: Duration) -> Duration {
        // Where it is not noted yet, or this server does not lead, all of it may be left: the safe
        // side.
        self.timers.remaining(then, key).unwrap_or(whole).min(whole).max(LEAST_REMAINING)
    }

    /// Whether no tick is so late that deadlines may have to move.
    pub(crate) fn is_running(&self, now: Time) -> bool {
        self.last_tick.is_some_and(|last| now.since(last) <= TICK + LATE)
    }

    fn decide_about(&mut self, subject: Subject) {
        match self.end_of(&subject) {
            Some(command) => self.batch.push((self.own(command), Origin::Timer(subject))),
            None => self.timers.decided(&subject),
        }
    }

    /// The command that says that a deadline has passed.
    pub(crate) fn end_of(&self, subject: &Subject) -> Option<Command> {
        // A restore in between may bring other rows under the same ids and indexes; the base tells
        // them apart.
        let base = self.state.index_base();
        match subject {
            Subject::Session(session) => {
                // With the term: an entry of this leader that a later one commits must not cut
                // short the TTL that the later one gave anew.
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

/// The keys whose locks a command would take.
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
