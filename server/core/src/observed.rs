//! What a server measures of its own work, for whoever watches it: how long commits and waits for
//! locks took, and which sessions and locks were lost.
//!
//! Everything is in the times that the shell gives, and nothing decides by it. It is the leader's
//! view alone: the sums over all servers count everything once, and a log that is applied again at
//! a start counts nothing again.

use crate::state::State;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{Key, LogIndex, SessionId};
use lockmesh_protocol::record::{Loss, LossCause};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Why sessions are lost, in the order of [`Losses`], in words for labels.
pub const LOSS_CAUSES: [&str; 12] = [
    "destroyed",
    "ttl_expired",
    "check_critical",
    "check_deregistered",
    "node_deregistered",
    "node_failed",
    "host_replaced",
    "node_left",
    "node_forced_to_leave",
    "node_reaped",
    "given_up",
    "key_deleted",
];

/// What became of accusations of agents in the mesh, in the order of [`Accusation`], in words for
/// labels.
pub const ACCUSATION_OUTCOMES: [&str; 6] =
    ["opened", "known", "ignored_accuser", "no_member", "too_many", "relayed"];

/// What became of an accusation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accusation {
    /// It opened a check.
    Opened,
    /// The node is under check already, or said itself that it is away.
    Known,
    /// Whoever accuses is no member that is well, or was wrong too often.
    IgnoredAccuser,
    /// No member has this lease.
    NoMember,
    /// Too many checks are open.
    TooMany,
    /// This server does not lead, and let the leader know.
    Relayed,
}

/// What became of events that agents fired at a server, in the order of [`EventOutcome`], in words
/// for labels.
pub const EVENT_OUTCOMES: [&str; 4] = ["taken", "known", "malformed", "too_many"];

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventOutcome {
    /// It is told.
    Taken,
    /// It was told already.
    Known,
    /// It is no event.
    Malformed,
    /// Its agent fires too many, or all of them do.
    TooMany,
}

/// What was measured since somebody took it: the shell empties it after every turn.
#[derive(Debug, Default)]
pub struct Observed {
    /// Requests that waited at this leader for too long.
    pub requests_timed_out: u64,
    /// Stalls of this server's disk that began.
    pub disk_stalls: u64,
    /// From the proposal of a batch of commands to its commit.
    pub commits: Vec<Duration>,
    /// From being enqueued for a lock to its grant.
    pub lock_waits: Vec<Duration>,
    /// What was lost, by cause in the order of [`LOSS_CAUSES`].
    pub losses: [Losses; LOSS_CAUSES.len()],
    /// Renewals of leases that were acknowledged.
    pub renewals_acknowledged: u64,
    /// Renewals of leases that were refused: a verdict was on its way, this server did not lead, or
    /// they were forged.
    pub renewals_refused: u64,
    /// Checks that were opened.
    pub checks_opened: u64,
    /// Accusations of agents in the mesh, in the order of [`Accusation`].
    pub accusations: [u64; ACCUSATION_OUTCOMES.len()],
    /// User events of agents, in the order of [`EventOutcome`].
    pub events: [u64; EVENT_OUTCOMES.len()],
    /// Answers to agents that asked what they lack of the mesh.
    pub mesh_syncs: u64,
    /// Answers of nodes under check that came through agents before any server heard the node.
    pub saved_by_agents: u64,
    /// Nodes that answer challenges and whose renewals stopped arriving.
    pub nodes_cut_off: u64,
    /// Answers of nodes under check that were not made with the secret of the node's lease: whoever
    /// handed them on has lied.
    pub forged_answers: u64,
    /// Sessions that were ended because an answer to a challenge named them as given up.
    pub given_up_by_answer: u64,
    /// Verdicts that were applied, by window in the order of
    /// [`lockmesh_protocol::lease::HealthWindow::ALL`].
    pub verdicts: [u64; 3],
}

/// Sessions that ended, and what they held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// How many sessions ended.
    pub sessions: u64,
    /// How many locks they held.
    pub locks: u64,
}

/// Since when what is under way has been so.
#[derive(Debug, Default)]
pub(crate) struct Observer {
    /// The last index of each batch in the log that is not committed, and when it was proposed.
    proposed: VecDeque<(LogIndex, Time)>,
    /// The sessions that were seen to begin to wait for a lock, by their position in its queue.
    waiting: BTreeMap<(Key, LogIndex), (SessionId, Time)>,
    /// What is to be told.
    pub(crate) observed: Observed,
}

impl Observer {
    /// A batch that ends at this index went into the log.
    pub(crate) fn proposed(&mut self, now: Time, last: LogIndex) {
        self.proposed.push_back((last, now));
    }

    /// Everything up to this index is committed.
    pub(crate) fn committed(&mut self, now: Time, index: LogIndex) {
        while self.proposed.front().is_some_and(|(last, _)| *last <= index) {
            let (_, proposed) = self.proposed.pop_front().expect("the front was just seen");
            self.observed.commits.push(now.since(proposed));
        }
    }

    /// The leader applied a command that changed this; `state` is the one after it.
    pub(crate) fn applied(&mut self, now: Time, changes: &[Change], state: &State) {
        // A restore: the losses that it brings are the backup's, counted when they happened.
        if changes.iter().any(|change| matches!(change, Change::Cleared)) {
            return self.waiting.clear();
        }
        for change in changes {
            match change {
                Change::Waiter(key, queue_position, Some(waiter)) => {
                    let since = || (waiter.session, now);
                    self.waiting.entry((key.clone(), *queue_position)).or_insert_with(since);
                }
                Change::Waiter(key, queue_position, None) => {
                    self.left_queue(now, (key.clone(), *queue_position), state);
                }
                Change::Loss(_, Some(loss)) => self.lost(loss),
                _ => {}
            }
        }
    }

    /// This server no longer leads: what it began to measure ends elsewhere.
    pub(crate) fn step_down(&mut self) {
        self.proposed.clear();
        self.waiting.clear();
    }

    /// Whoever is granted a lock leaves its queue in the same command; others leave it without the
    /// lock.
    fn left_queue(&mut self, now: Time, position: (Key, LogIndex), state: &State) {
        let Some((session, since)) = self.waiting.remove(&position) else { return };
        if state.holder(&position.0) == Some(&session) {
            self.observed.lock_waits.push(now.since(since));
        }
    }

    fn lost(&mut self, loss: &Loss) {
        let losses = &mut self.observed.losses[number_of(&loss.cause)];
        // The session of a deleted key lives.
        losses.sessions += u64::from(loss.cause != LossCause::KeyDeleted);
        losses.locks += loss.key_count;
    }
}

/// The index of a cause in [`LOSS_CAUSES`].
pub(crate) fn number_of(cause: &LossCause) -> usize {
    match cause {
        LossCause::Destroyed => 0,
        LossCause::TtlExpired => 1,
        LossCause::CheckCritical(_) => 2,
        LossCause::CheckDeregistered(_) => 3,
        LossCause::NodeDeregistered => 4,
        LossCause::NodeFailed { .. } => 5,
        LossCause::HostReplaced => 6,
        LossCause::NodeLeft => 7,
        LossCause::NodeForcedToLeave => 8,
        LossCause::NodeReaped => 9,
        LossCause::GivenUp { .. } => 10,
        LossCause::KeyDeleted => 11,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_protocol::id::{NodeName, WallTime};
    use std::sync::Arc;

    fn at(millis: u64) -> Time {
        Time(millis * 1_000)
    }

    #[test]
    fn a_commit_counts_once_a_batch_and_none_that_a_deposed_leader_left() {
        let mut observer = Observer::default();
        observer.proposed(at(0), LogIndex(3));
        observer.proposed(at(2), LogIndex(5));
        observer.committed(at(4), LogIndex(4));
        observer.committed(at(7), LogIndex(5));
        let millis = Duration::from_millis;
        assert_eq!(observer.observed.commits, [millis(4), millis(5)]);
        observer.proposed(at(8), LogIndex(6));
        observer.step_down();
        observer.committed(at(9), LogIndex(6));
        assert_eq!(observer.observed.commits.len(), 2);
    }

    #[test]
    fn losses_count_by_cause_with_the_locks_that_were_held() {
        let loss = |cause, key_count| {
            let loss = Loss {
                index: LogIndex(1),
                at: WallTime(0),
                session: SessionId::from_random([1; 16]),
                session_name: String::new(),
                node: NodeName::from("n"),
                cause,
                keys: Vec::new(),
                key_count,
            };
            Change::Loss(0, Some(Arc::new(loss)))
        };
        let changes = [loss(LossCause::TtlExpired, 2), loss(LossCause::TtlExpired, 0), Change::Loss(0, None)];
        let mut observer = Observer::default();
        observer.applied(at(0), &changes, &State::default());
        let number = LOSS_CAUSES.iter().position(|cause| *cause == "ttl_expired").expect("it is one of them");
        assert_eq!(observer.observed.losses[number], Losses { sessions: 2, locks: 2 });
        let restore = [Change::Cleared, loss(LossCause::TtlExpired, 1)];
        observer.applied(at(1), &restore, &State::default());
        let count = observer.observed.losses.iter().map(|losses| losses.sessions).sum::<u64>();
        assert_eq!(count, 2, "a backup's losses were counted when they happened");
    }
}
