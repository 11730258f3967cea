//! A server's current figures, for monitoring. Each is maintained incrementally; none requires a
//! scan of a table.

use super::status::StatusView;
use crate::corruption::Finding;
use crate::state::{DeadlockCounts, MemberCounts};
use lockmesh_protocol::id::{LogIndex, NodeName, Term};
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// A server's current figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// The term.
    pub term: Term,
    /// `true` if it leads and serves.
    pub is_leader: bool,
    /// The number of voters.
    pub voters: usize,
    /// On the leader, the number of healthy voters that may fail before the quorum is lost.
    pub failure_tolerance: usize,
    /// `true` if it knows the leader.
    pub is_leader_known: bool,
    /// The number of leader changes, including a new term of the same leader, after the first one.
    pub leader_changes: u64,
    /// The last index of its log, durable or not.
    pub last_index: LogIndex,
    /// The last committed index.
    pub commit_index: LogIndex,
    /// The last applied index.
    pub applied_index: LogIndex,
    /// Bytes of log in memory.
    pub log_bytes: usize,
    /// Sessions.
    pub sessions: usize,
    /// Held keys.
    pub locks_held: usize,
    /// Waiters in the queues of all locks.
    pub lock_waiters: usize,
    /// Deadlocks.
    pub deadlocks: DeadlockCounts,
    /// Keys.
    pub keys: usize,
    /// Parked blocking queries.
    pub watches: usize,
    /// The number of long answers that are being read in parts.
    pub views: usize,
    /// The number of requests that wait to read a long answer in parts.
    pub view_waiters: usize,
    /// The time since which the disk has had writes to persist and has completed none.
    pub unpersisted_since: Option<Time>,
    /// Set while the server has the lowest election priority after disk stalls.
    pub has_lowered_priority: bool,
    /// Set unless the disks of a majority of the servers reject writes.
    pub can_majority_write: bool,
    /// Members by status.
    pub members: MemberCounts,
    /// On the leader, the number of silent nodes under check.
    pub open_checks: usize,
    /// On the leader, the number of nodes that answer challenges but do not renew.
    pub nodes_without_renewals: usize,
    /// Nodes that renew, and that agents cannot probe.
    pub nodes_with_failed_probes: usize,
    /// Agents in the mesh.
    pub mesh_members: usize,
    /// Non-empty cells of the mesh.
    pub mesh_cells: usize,
    /// The number of the gossip key in use.
    pub gossip_key: u32,
    /// `true` while very many nodes are silent at once, so that the servers' windows are long.
    pub is_braking: bool,
    /// `true` if its state was found corrupt.
    pub is_corrupt: bool,
    /// `true` if the leader's newest corruption check found different states.
    pub states_differ: bool,
    /// The other servers; empty unless this one leads.
    pub followers: Vec<FollowerFigures>,
}

/// A leader's view of another server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowerFigures {
    /// The node.
    pub node: NodeName,
    /// The number of the leader's entries that the server is not known to have persisted.
    pub lag: u64,
    /// The time since the last message from it.
    pub last_contact: Duration,
}

/// Returns the server's current figures.
pub(super) fn figures(view: &StatusView<'_>) -> Figures {
    let (log, state) = (view.core.replica().log_status(), view.core.replica().state());
    Figures {
        term: log.term,
        is_leader: view.core.replica().is_serving(),
        voters: view.core.replica().membership().voters.len(),
        failure_tolerance: failure_tolerance(view),
        is_leader_known: view.core.replica().leader().is_some(),
        leader_changes: view.leaders.changes(),
        last_index: log.last_index,
        commit_index: log.commit_index,
        applied_index: log.applied_index,
        log_bytes: log.log_bytes,
        sessions: state.sessions().len(),
        locks_held: state.held_count(),
        lock_waiters: state.waiter_count(),
        deadlocks: DeadlockCounts::of(state),
        keys: state.key_count(),
        watches: view.watches,
        views: view.views.len(),
        view_waiters: view.views.waiting(),
        unpersisted_since: view.core.disk().unpersisted_since(),
        has_lowered_priority: view.core.disk().lowers_priority(),
        can_majority_write: view.write_health.can_majority_write(),
        members: state.member_counts(),
        open_checks: view.core.failure_detector().open_checks(),
        nodes_with_failed_probes: view.core.failure_detector().failed_probes_len(),
        nodes_without_renewals: view.core.failure_detector().cut_off_len(),
        mesh_members: view.core.mesh().len(),
        mesh_cells: view.core.mesh().cells(),
        gossip_key: state.gossip_key(),
        is_braking: view.core.failure_detector().is_braking(),
        is_corrupt: view.eligibility.is_corrupt(),
        states_differ: *view.core.corruption_checks().finding() != Finding::Alike,
        followers: follower_figures(view, log.last_index),
    }
}

fn failure_tolerance(view: &StatusView<'_>) -> usize {
    if !view.core.replica().is_serving() {
        return 0;
    }
    let (voters, autopilot) = (&view.core.replica().membership().voters, view.core.autopilot(view.now));
    let healthy = voters.iter().filter(|id| autopilot.is_healthy(**id)).count();
    healthy.saturating_sub(voters.len() / 2 + 1)
}

fn follower_figures(view: &StatusView<'_>, last_index: LogIndex) -> Vec<FollowerFigures> {
    if !view.core.replica().is_serving() {
        return Vec::new();
    }
    let (me, autopilot) = (view.config.own_record.id, view.core.autopilot(view.now));
    let others = view.core.replica().membership().all().into_iter().filter(|id| *id != me);
    let figures = others.filter_map(|id| {
        let node = view.core.replica().state().server(id)?.node.clone();
        let matched = view.core.replica().progress(id).unwrap_or_default().matched;
        let lag = last_index.0.saturating_sub(matched.0);
        let last_contact = autopilot.silence_of(id);
        Some(FollowerFigures { node, lag, last_contact })
    });
    figures.collect()
}
