//! Measurements of a server's own work, for monitoring: durations of commits and lock waits, and
//! lost sessions and locks.
//!
//! All times come from the shell, and no decision depends on them. Only the leader measures: sums
//! over all servers count each event once, and replaying the log at a start counts nothing again.

use crate::state::State;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{Key, LogIndex, SessionId};
use lockmesh_protocol::record::{Loss, LossCause};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Label values for the causes of lost sessions, by [`LossCause::category`].
pub const LOSS_CAUSES: [&str; 13] = [
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
    "process_exited",
];

/// Label values for the outcomes of mesh agents' suspicions, in the order of [`Suspicion`].
pub const SUSPICION_OUTCOMES: [&str; 6] =
    ["opened", "known", "ignored_reporter", "no_member", "too_many", "relayed"];

/// The outcome of a suspicion that an agent reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspicion {
    /// It opened a check.
    Opened,
    /// The node is already under check, or has announced that it is away.
    Known,
    /// The reporting agent is not a healthy member, or was wrong too often.
    IgnoredReporter,
    /// No member has this lease.
    NoMember,
    /// Too many checks are open.
    TooMany,
    /// This server does not lead and forwarded it to the leader.
    Relayed,
}

/// Label values for the outcomes of events that agents fired at a server, in the order of
/// [`EventOutcome`].
pub const EVENT_OUTCOMES: [&str; 4] = ["taken", "known", "malformed", "too_many"];

/// The outcome of a user event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventOutcome {
    /// Accepted for delivery.
    Taken,
    /// Accepted before.
    Known,
    /// Not a valid event.
    Malformed,
    /// The agent fires too many events, or all agents together do.
    TooMany,
}

/// Measurements since the last collection: the shell empties this after every turn.
#[derive(Debug, Default)]
pub struct Observed {
    /// Requests that waited too long at this leader.
    pub requests_timed_out: u64,
    /// Stalls of this server's disk that began.
    pub disk_stalls: u64,
    /// Views that were not read and whose places were needed.
    pub views_ended_idle: u64,
    /// Backups and snapshots that were refused because too many were being read.
    pub backups_refused: u64,
    /// From the proposal of a batch of commands to its commit.
    pub commits: Vec<Duration>,
    /// From enqueuing for a lock to its grant.
    pub lock_waits: Vec<Duration>,
    /// Losses by category of their cause, see [`LOSS_CAUSES`].
    pub losses: [Losses; LOSS_CAUSES.len()],
    /// Those of the failure detector.
    pub judge: JudgeCounts,
    /// Those of the mesh.
    pub mesh: MeshCounts,
}

/// Counts of the mesh since the last collection.
#[derive(Debug, Default)]
pub struct MeshCounts {
    /// User events from agents, in the order of [`EventOutcome`].
    pub events: [u64; EVENT_OUTCOMES.len()],
    /// Replies to agents that synced their mesh data.
    pub syncs: u64,
}

/// Counts of the failure detector since the last collection.
#[derive(Debug, Default)]
pub struct JudgeCounts {
    /// Acknowledged lease renewals.
    pub renewals_acknowledged: u64,
    /// Rejected lease renewals: a verdict was in progress, this server did not lead, or they were
    /// forged.
    pub renewals_refused: u64,
    /// Opened checks.
    pub checks_opened: u64,
    /// Suspicions from agents in the mesh, in the order of [`Suspicion`].
    pub suspicions: [u64; SUSPICION_OUTCOMES.len()],
    /// Replies of nodes under check that arrived through agents before any server received one from
    /// the node.
    pub saved_by_agents: u64,
    /// Nodes that answer challenges but whose renewals stopped arriving.
    pub nodes_cut_off: u64,
    /// Replies of nodes under check that were not made with the secret of the node's lease: an
    /// agent forged them.
    pub forged_answers: u64,
    /// Sessions that ended because a reply to a challenge named them as given up.
    pub given_up_by_answer: u64,
    /// Applied verdicts by window, in the order of [`lockmesh_protocol::lease::HealthWindow::ALL`].
    pub verdicts: [u64; 3],
}

/// Ended sessions, and the locks that they held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// The number of sessions.
    pub sessions: u64,
    /// The number of locks that they held.
    pub locks: u64,
}

/// Start times of the operations in progress.
#[derive(Debug, Default)]
pub(crate) struct Observer {
    /// The last index of each uncommitted batch in the log, and the time of its proposal.
    proposed: VecDeque<(LogIndex, Time)>,
    /// The sessions waiting for a lock, by queue position, and the start of the wait.
    waiting: BTreeMap<LogIndex, (Key, SessionId, Time)>,
    /// The measurements to collect.
    pub(crate) observed: Observed,
}

impl Observer {
    /// Records a batch that was appended to the log and ends at this index.
    pub(crate) fn proposed(&mut self, now: Time, last: LogIndex) {
        self.proposed.push_back((last, now));
    }

    /// Records that everything up to this index is committed.
    pub(crate) fn committed(&mut self, now: Time, index: LogIndex) {
        while self.proposed.front().is_some_and(|(last, _)| *last <= index) {
            let (_, proposed) = self.proposed.pop_front().expect("the front was just seen");
            self.observed.commits.push(now.since(proposed));
        }
    }

    /// Records the changes of a command that the leader applied; `state` is the state after it.
    pub(crate) fn applied(&mut self, now: Time, changes: &[Change], state: &State) {
        // A restore: its losses belong to the backup and were counted when they happened.
        if changes.iter().any(|change| matches!(change, Change::Cleared)) {
            return self.waiting.clear();
        }
        for change in changes {
            match change {
                Change::Waiter(key, queue_position, Some(waiter)) => {
                    let since = || (key.clone(), waiter.session, now);
                    self.waiting.entry(*queue_position).or_insert_with(since);
                }
                Change::LockRequest(queue_position, Some(request)) => {
                    let since = || (request.first_key().clone(), request.session, now);
                    self.waiting.entry(*queue_position).or_insert_with(since);
                }
                Change::Waiter(_, queue_position, None) | Change::LockRequest(queue_position, None) => {
                    self.left_queue(now, *queue_position, state);
                }
                Change::Loss(_, Some(loss)) => self.lost(loss),
                _ => {}
            }
        }
    }

    /// Drops the measurements in progress: this server no longer leads.
    pub(crate) fn step_down(&mut self) {
        self.proposed.clear();
        self.waiting.clear();
    }

    /// Records the end of a wait. A granted session leaves the queue in the same command; others
    /// leave it without the lock.
    fn left_queue(&mut self, now: Time, position: LogIndex, state: &State) {
        let Some((key, session, since)) = self.waiting.remove(&position) else { return };
        if state.mode_held(&key, session).is_some() {
            self.observed.lock_waits.push(now.since(since));
        }
    }

    fn lost(&mut self, loss: &Loss) {
        let losses = &mut self.observed.losses[usize::from(loss.cause.category())];
        // The session of a deleted key lives.
        losses.sessions += u64::from(loss.cause != LossCause::KeyDeleted);
        losses.locks += loss.key_count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_protocol::id::{NodeName, WallTime};
    use lockmesh_protocol::lease::HealthWindow;
    use std::sync::Arc;

    fn at(millis: u64) -> Time {
        Time(millis * 1_000)
    }

    #[test]
    fn each_cause_has_its_label() {
        let window = HealthWindow::Default;
        let node_failed =
            LossCause::NodeFailed { window, confirmed_by: Vec::new(), silent_for: Duration::ZERO };
        for (cause, label) in [
            (LossCause::Destroyed, "destroyed"),
            (LossCause::TtlExpired, "ttl_expired"),
            (LossCause::CheckCritical("web".into()), "check_critical"),
            (LossCause::CheckFailed { check: "web".into(), output: String::new() }, "check_critical"),
            (LossCause::CheckDeregistered("web".into()), "check_deregistered"),
            (LossCause::NodeDeregistered, "node_deregistered"),
            (node_failed, "node_failed"),
            (LossCause::HostReplaced, "host_replaced"),
            (LossCause::NodeLeft, "node_left"),
            (LossCause::NodeForcedToLeave, "node_forced_to_leave"),
            (LossCause::NodeReaped, "node_reaped"),
            (LossCause::GivenUp { silent_for: Duration::ZERO }, "given_up"),
            (LossCause::KeyDeleted, "key_deleted"),
            (LossCause::ProcessExited { pid: 1 }, "process_exited"),
        ] {
            assert_eq!(LOSS_CAUSES[usize::from(cause.category())], label);
        }
    }

    #[test]
    fn commits_counted_per_batch_while_leader() {
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
    fn losses_and_locks_counted_by_cause() {
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
        let number =
            LOSS_CAUSES.iter().position(|cause| *cause == "ttl_expired").expect("the cause is listed");
        assert_eq!(observer.observed.losses[number], Losses { sessions: 2, locks: 2 });
        let restore = [Change::Cleared, loss(LossCause::TtlExpired, 1)];
        observer.applied(at(1), &restore, &State::default());
        let count = observer.observed.losses.iter().map(|losses| losses.sessions).sum::<u64>();
        assert_eq!(count, 2, "a backup's losses were counted when they happened");
    }
}
