//! Deadlines become commands: at a tick, between two ticks, and before a lock request.
//!
//! The state holds no time, so the end of a lock-delay is a command that the leader proposes. A
//! lock request need not wait for the tick that would notice an expired delay: the end is appended
//! to the log before the request, in the same batch. **Invariant:** a server that was paused
//! extends its deadlines before it handles any input, and lets none expire before the next tick.

use crate::cluster::{ClusterView, Decision, Turn};
use crate::fault_injection::Rule;
use crate::proposals::Origin;
use crate::raft::TICK;
use crate::time::timers::{Subject, TimerConfig, Timers};
use lockmesh_protocol::command::{Command, KvCommand, KvVerb, TxnKv, TxnOp};
use lockmesh_protocol::id::Key;
use lockmesh_protocol::record::RequestedLock;
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// A tick that is later than this means that the server was paused: its deadlines are extended.
const MAX_TICK_DELAY: Duration = Duration::from_millis(200);
/// The minimum remaining lock-delay in a reply while a key is closed: after "closed for 0 s" a
/// client could not choose a time to retry.
const MIN_REMAINING_DELAY: Duration = Duration::from_millis(1);
/// The maximum number of deadlines that expire per tick: one node's expire together.
const DEADLINES_A_TICK: usize = 200;

/// A server's deadlines, which expire only while it leads.
#[derive(Debug)]
pub(crate) struct Deadlines {
    pub(crate) timers: Timers,
    /// The number of deadlines that may still expire before the next tick.
    may_pass: usize,
    last_tick: Option<Time>,
    /// The time until which this server ran; a later input detects the pause since then.
    ran_until: Option<Time>,
}

/// A pause of this server, in which it received nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    pub(crate) length: Duration,
    /// Set if the pause extended the deadlines.
    pub(crate) is_long: bool,
}

impl Deadlines {
    pub(crate) fn new(config: TimerConfig) -> Self {
        Self { timers: Timers::new(config), may_pass: 0, last_tick: None, ran_until: None }
    }

    /// Returns the time at which [`crate::Input::Deadline`] is due; `None` if nothing may expire
    /// before the next tick.
    pub(crate) fn next(&self) -> Option<Time> {
        // Otherwise the shell would wake repeatedly for deadlines that may not expire before the
        // tick.
        self.timers.next().filter(|_| self.may_pass > 0)
    }

    /// Returns the pause that ends with an input at this time, and extends the deadlines by it.
    /// This happens before any input: deadlines from input after the pause must not be extended,
    /// and input from during it is unread.
    pub(crate) fn end_pause(&mut self, now: Time) -> Option<Pause> {
        let gap = self.ran_until.map_or(Duration::ZERO, |at| now.since(at));
        if gap <= 2 * TICK {
            return None;
        }
        self.ran_until = Some(now);
        // Renewals that arrived during the pause may be unread; this server must not expire their
        // sessions.
        let (length, is_long) = (gap - TICK, gap > TICK + MAX_TICK_DELAY);
        if is_long {
            let gap_ms = gap.as_millis() as u64;
            tracing::warn!(gap_ms, "this server was not running for a while: extending its deadlines");
            self.timers.postpone(length);
        }
        Some(Pause { length, is_long })
    }

    /// Records a tick: deadlines may expire again.
    pub(crate) fn tick(&mut self, now: Time) {
        (self.last_tick, self.ran_until) = (Some(now), Some(now));
        self.may_pass = DEADLINES_A_TICK;
    }

    /// Restarts the deadlines of a leader that begins to serve.
    pub(crate) fn start(&mut self, turn: &mut Turn<'_>) {
        let state = turn.view.state;
        // In full, regardless of the time left: clocks of two servers are never compared, so a
        // delay may last longer, never shorter.
        self.timers.restart(turn.now, state);
        // They end with the election if a test broke that rule.
        let (delays, sessions) = (
            state.fault_point.breaks(Rule::DelaysOutliveElections),
            state.fault_point.breaks(Rule::SessionsOutliveElections),
        );
        let delays = state.delays().filter(|_| delays).map(|(key, _)| Subject::LockDelay(key.clone()));
        let with_ttl = state.sessions().filter(|session| sessions && session.spec.ttl.is_some());
        let subjects = delays.chain(with_ttl.map(|session| Subject::Session(session.spec.id)));
        for end in subjects.filter_map(|subject| end_of(turn.view, &subject)) {
            turn.propose_own(end);
        }
    }

    /// Proposes the end of everything that is due.
    pub(crate) fn expire(&mut self, turn: &mut Turn<'_>) {
        while self.may_pass > 0
            && let Some(subject) = self.timers.next_due(turn.now)
        {
            if let Some(until) = renewal_waits_until(turn.view, &subject) {
                // At least one tick, so that a late deadline does not loop forever.
                self.timers.failed(subject, until.max(turn.now + TICK));
                continue;
            }
            // Each expiry is a log entry: a node with very many sessions must not fill the log
            // ahead of other requests.
            self.may_pass -= 1;
            self.end(turn, subject);
        }
    }

    /// Proposes the end of every expired lock-delay that would affect a command.
    pub(crate) fn end_delays_that_are_over(&mut self, turn: &mut Turn<'_>, command: &Command) {
        // The deadlines may have to be extended first. The client is asked to wait, which is safe.
        if !self.is_running(turn.now) {
            return;
        }
        for key in locks_of(command) {
            let subject = Subject::LockDelay(key.clone());
            // Not counted against `may_pass`: the request itself is bounded, and it adds an entry
            // of its own.
            if self.timers.take_due(turn.now, &subject) {
                self.end(turn, subject);
            }
        }
    }

    /// Sets the remaining lock-delay in a reply. The state knows the length of a delay; only the
    /// leader knows the rest at the time of the request.
    pub(crate) fn with_remaining_delay(&self, came: Time, command: &Command, applied: &Applied) -> Applied {
        let mut applied = applied.clone();
        if let Reply::Delayed { remaining } = &mut applied.reply {
            *remaining = self.left_of_delays(came, locks_of(command), *remaining);
        }
        applied
    }

    /// Returns how long the first of these keys that is closed stays so, given the full length.
    pub(crate) fn left_of_delays<'a>(
        &self,
        then: Time,
        keys: impl IntoIterator<Item = &'a Key>,
        whole: Duration,
    ) -> Duration {
        let left = keys.into_iter().map(|key| self.left_of_delay(then, key, whole)).min();
        left.unwrap_or(whole)
    }

    /// Returns how long a key stays closed after `then`, given the full length of the delay.
    fn left_of_delay(&self, then: Time, key: &Key, whole: Duration) -> Duration {
        // If the delay is not noted yet, or this server does not lead, all of it may remain: the
        // safe side.
        self.timers.remaining(then, key).unwrap_or(whole).min(whole).max(MIN_REMAINING_DELAY)
    }

    /// Returns `true` unless a tick is so late that deadlines may have to be extended.
    pub(crate) fn is_running(&self, now: Time) -> bool {
        self.last_tick.is_some_and(|last| now.since(last) <= TICK + MAX_TICK_DELAY)
    }

    fn end(&mut self, turn: &mut Turn<'_>, subject: Subject) {
        match end_of(turn.view, &subject) {
            Some(command) => turn.decide(Decision::ProposeOwn(command, Origin::Timer(subject))),
            None => self.timers.decided(&subject),
        }
    }
}

/// Returns the time until which a renewal of this session may wait: before then its expiry is not
/// proposed.
fn renewal_waits_until(view: &ClusterView<'_>, subject: &Subject) -> Option<Time> {
    match subject {
        Subject::Session(session) => view.readers.renewal_waits_until(*session),
        Subject::LockDelay(_) | Subject::Wait(..) | Subject::Tombstones(_) => None,
    }
}

/// Returns the command that ends the subject of a deadline.
fn end_of(view: &ClusterView<'_>, subject: &Subject) -> Option<Command> {
    // A restore in between may bring other rows under the same ids and indexes; the base
    // distinguishes them.
    let (state, base) = (view.state, view.state.index_base());
    match subject {
        Subject::Session(session) => {
            // With the term: if a later leader commits this leader's entry, it must not cut short
            // the TTL that the later leader restarted.
            Some(Command::ExpireSession { session: *session, term: view.serving?, base })
        }
        Subject::LockDelay(key) => {
            let started_at_index = state.lock_delay(key)?.started_at_index;
            Some(Command::EndLockDelay { key: key.clone(), started_at_index, base })
        }
        Subject::Wait(queue_position) => {
            let request = state.requests().get(queue_position)?;
            let (key, queue_position) = (request.first_key().clone(), *queue_position);
            let enqueued_at_index = request.enqueued_at_index;
            Some(Command::EndWait { key, queue_position, enqueued_at_index })
        }
        Subject::Tombstones(up_to) => Some(Command::ReapTombstones { up_to: *up_to }),
    }
}

/// Returns the keys whose locks a command would acquire.
fn locks_of(command: &Command) -> impl Iterator<Item = &Key> {
    let alone = match command {
        Command::Kv(KvCommand::Acquire(new, _) | KvCommand::Enqueue { new, .. }) => Some(&new.key),
        _ => None,
    };
    let operations = command.operations().unwrap_or_default();
    let several: &[RequestedLock] = match command {
        Command::AcquireLocks { locks, .. } => locks,
        _ => &[],
    };
    let locked = operations.iter().filter_map(|operation| match operation {
        TxnOp::Kv(TxnKv { verb: KvVerb::Lock, key, .. }) => Some(key),
        _ => None,
    });
    alone.into_iter().chain(locked).chain(several.iter().map(|lock| &lock.key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::SampleCluster;
    use crate::input::CallToken;
    use crate::read_index::{ReadIndex, Reader};
    use lockmesh_protocol::id::SessionId;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u32) -> Time {
        Time(0) + SECOND * seconds
    }

    fn session(number: usize) -> SessionId {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&(number as u64).to_be_bytes());
        SessionId::from_random(id)
    }

    /// Sessions with a TTL of 1 s, which expire after 2 s.
    fn with_sessions(count: usize) -> Deadlines {
        let mut deadlines = Deadlines::new(TimerConfig::default());
        (0..count).for_each(|number| deadlines.timers.renew(Time(0), session(number), Some(SECOND)));
        deadlines
    }

    /// Returns the number of sessions that expire now.
    fn expired(deadlines: &mut Deadlines, cluster: &SampleCluster, now: Time) -> usize {
        let mut decisions = Vec::new();
        deadlines.expire(&mut Turn { view: &cluster.view(), now, decisions: &mut decisions });
        let is_expiry = |decision: &Decision| {
            matches!(decision, Decision::ProposeOwn(Command::ExpireSession { .. }, Origin::Timer(_)))
        };
        assert!(decisions.iter().all(is_expiry), "{decisions:?}");
        decisions.len()
    }

    #[test]
    fn session_expiries_bounded_per_tick() {
        let (mut deadlines, cluster) = (with_sessions(DEADLINES_A_TICK + 1), SampleCluster::of(&[1]));
        assert_eq!(expired(&mut deadlines, &cluster, at(3)), 0, "before the first tick");
        deadlines.tick(at(3));
        assert_eq!(deadlines.next(), Some(at(2)));
        assert_eq!(expired(&mut deadlines, &cluster, at(3)), DEADLINES_A_TICK);
        assert_eq!((expired(&mut deadlines, &cluster, at(3)), deadlines.next()), (0, None));
        deadlines.tick(at(4));
        assert_eq!(expired(&mut deadlines, &cluster, at(4)), 1);
    }

    #[test]
    fn pause_extends_deadlines() {
        let (mut deadlines, cluster) = (with_sessions(1), SampleCluster::of(&[1]));
        deadlines.tick(at(1));
        assert_eq!(deadlines.end_pause(at(1) + 2 * TICK), None);
        let short = Pause { length: 2 * TICK, is_long: false };
        assert_eq!(deadlines.end_pause(at(1) + 3 * TICK), Some(short));
        deadlines.tick(at(1));
        assert!(!deadlines.is_running(at(5)));
        let long = Pause { length: 4 * SECOND - TICK, is_long: true };
        assert_eq!((deadlines.end_pause(at(5)), deadlines.end_pause(at(5))), (Some(long), None));
        deadlines.tick(at(5));
        assert!(deadlines.is_running(at(5)));
        assert_eq!(expired(&mut deadlines, &cluster, at(5) + (SECOND - 2 * TICK)), 0);
        assert_eq!(expired(&mut deadlines, &cluster, at(2) + long.length), 1);
    }

    #[test]
    fn pending_renewal_defers_session_expiry() {
        let (mut deadlines, mut cluster) = (with_sessions(2), SampleCluster::of(&[1]));
        cluster.readers.arrive(at(1), Reader::Renewal(CallToken(1), session(0)));
        deadlines.tick(at(3));
        assert_eq!(expired(&mut deadlines, &cluster, at(3)), 1, "the other one");
        let until = cluster.readers.renewal_waits_until(session(0)).expect("its renewal waits");
        deadlines.tick(until);
        assert_eq!(expired(&mut deadlines, &cluster, until), 0, "it is still unanswered");
        cluster.readers = ReadIndex::default();
        deadlines.tick(until + TICK);
        assert_eq!(expired(&mut deadlines, &cluster, until + TICK), 1);
    }
}
