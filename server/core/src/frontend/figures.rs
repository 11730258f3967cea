//! A server in figures: where it stands now, for whoever watches it. Every one is kept, none is
//! searched for.

use super::Frontend;
use crate::corruption::Finding;
use crate::state::MemberCounts;
use lockmesh_protocol::id::{LogIndex, NodeName, ServerId, Term};
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// Where a server stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Its term.
    pub term: Term,
    /// Whether it leads and serves.
    pub is_leader: bool,
    /// Whether it knows who leads.
    pub is_leader_known: bool,
    /// How often it saw another server begin to lead, or the same one in a later term, after the
    /// first one.
    pub leader_changes: u64,
    /// The last index of its log, on disk or not.
    pub last_index: LogIndex,
    /// The last committed index.
    pub commit_index: LogIndex,
    /// The last applied index.
    pub applied_index: LogIndex,
    /// Bytes of log in memory.
    pub log_bytes: usize,
    /// Sessions.
    pub sessions: usize,
    /// Keys that are held.
    pub locks_held: usize,
    /// Waiters in the queues of all locks.
    pub lock_waiters: usize,
    /// Keys.
    pub keys: usize,
    /// Blocking queries that are parked here.
    pub watches: usize,
    /// Since when the disk has been given writes and has not taken any.
    pub unpersisted_since: Option<Time>,
    /// Set while the server has the lowest election priority after disk stalls.
    pub has_lowered_priority: bool,
    /// Set unless the disks of a majority of the servers refuse writes.
    pub can_majority_write: bool,
    /// Members, by how they stand.
    pub members: MemberCounts,
    /// Nodes that are silent, and asked whether they live, where this one leads.
    pub open_checks: usize,
    /// On the leader, the number of nodes that answer challenges and do not renew.
    pub nodes_without_renewals: usize,
    /// Agents in the mesh.
    pub mesh_members: usize,
    /// The cells that they are in.
    pub mesh_cells: usize,
    /// The number of the gossip key that is in use.
    pub gossip_key: u32,
    /// Whether very many are, so that the servers' windows are long.
    pub is_braking: bool,
    /// Whether its state was found to be corrupt.
    pub is_corrupt: bool,
    /// Whether the leader's newest corruption check found states that differ.
    pub states_differ: bool,
    /// The other servers, where this one leads.
    pub followers: Vec<FollowerFigures>,
}

/// How a leader sees another server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowerFigures {
    /// Its node.
    pub node: NodeName,
    /// How many entries of the leader's log it is not known to have on disk.
    pub lag: u64,
    /// How long ago it was heard.
    pub last_contact: Duration,
}

/// The leaders that a server has known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeaderHistory {
    newest: Option<(ServerId, Term)>,
    changes: u64,
}

impl Frontend {
    /// Where this server stands.
    pub fn figures(&self, now: Time) -> Figures {
        let (log, state) = (self.core.log_status(), self.core.state());
        Figures {
            term: log.term,
            is_leader: self.core.is_serving(),
            is_leader_known: self.core.leader().is_some(),
            leader_changes: self.leaders.changes,
            last_index: log.last_index,
            commit_index: log.commit_index,
            applied_index: log.applied_index,
            log_bytes: log.log_bytes,
            sessions: state.sessions().len(),
            locks_held: state.held_count(),
            lock_waiters: state.waiter_count(),
            keys: state.key_count(),
            watches: self.watches.len(),
            unpersisted_since: self.core.unpersisted_since(),
            has_lowered_priority: self.core.has_lowered_priority(),
            can_majority_write: self.no_majority_writes.is_none(),
            members: state.member_counts(),
            open_checks: self.core.judge.open_checks(),
            nodes_without_renewals: self.core.judge.cut_off_len(),
            mesh_members: self.core.mesh_len(),
            mesh_cells: self.core.mesh_cells(),
            gossip_key: state.gossip_key(),
            is_braking: self.core.is_braking(),
            is_corrupt: self.corrupt,
            states_differ: *self.core.corruption_checks().finding() != Finding::Alike,
            followers: self.follower_figures(now, log.last_index),
        }
    }

    fn follower_figures(&self, now: Time, last_index: LogIndex) -> Vec<FollowerFigures> {
        if !self.core.is_serving() {
            return Vec::new();
        }
        let me = self.config.own_record.id;
        let others = self.core.membership().all().into_iter().filter(|id| *id != me);
        let figures = others.filter_map(|id| {
            let node = self.core.state().server(id)?.node.clone();
            let matched = self.core.progress(id).unwrap_or_default().matched;
            let lag = last_index.0.saturating_sub(matched.0);
            Some(FollowerFigures { node, lag, last_contact: self.core.silence_of(now, id) })
        });
        figures.collect()
    }

    /// Notices that another server leads, or the same one anew.
    pub(super) fn notice_leader(&mut self) {
        let Some(leader) = self.core.leader() else { return };
        let known = (leader, self.core.log_position().term);
        let before = self.leaders.newest.replace(known);
        self.leaders.changes += u64::from(before.is_some_and(|before| before != known));
    }
}
