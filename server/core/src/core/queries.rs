//! What a server's state, log and role are at present.

use super::Core;
use crate::cluster::known_leader;
use crate::durability::setback::SetBack;
use crate::raft::Progress;
use crate::raft::log::{HardState, LogPosition, LogStatus, Membership, OwnMemory, PeerMemory, SnapshotMeta};
use crate::state::{Listing, State};
use lockmesh_protocol::format::FormatError;
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use lockmesh_protocol::query::{Query, Rows};
use lockmesh_protocol::reply::Reply;
use lockmesh_protocol::time::Time;

impl Core {
    /// Returns the snapshot that the disk of each initial voter represents before the first start.
    pub fn bootstrap_snapshot(voters: &[ServerId]) -> SnapshotMeta {
        SnapshotMeta { index: LogIndex(1), term: Term(1), membership: Membership::of_voters(voters) }
    }

    /// Returns the replicated state as applied by this server.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Answers a query from the state. Remaining lock-delays come from the leader's timers.
    pub fn query(&self, now: Time, query: &Query) -> (LogIndex, Rows) {
        let (index, mut rows) = self.state.query(query);
        if let (Rows::QueuePosition(Reply::Delayed { remaining }), Query::QueuePosition { key, .. }) =
            (&mut rows, query)
        {
            *remaining = self.deadlines.left_of_delay(now, key, *remaining);
        }
        (index, rows)
    }

    /// Answers a query that may match very many rows: returns at most `limit` bytes, or a listing
    /// to build elsewhere.
    pub fn query_view(&self, now: Time, query: &Query, limit: usize) -> (LogIndex, Listing) {
        match query {
            Query::QueuePosition { .. } => {
                let (index, rows) = self.query(now, query);
                (index, Listing::Rows(rows))
            }
            query => self.state.query_view(query, limit),
        }
    }

    /// Returns `true` if the outcome of a queue position can be reported at once: this server leads
    /// and has applied that index, so no other leader can undo it.
    pub fn knows_queue_position(&self, queue_position: LogIndex) -> bool {
        self.is_serving() && queue_position.0 <= self.applied.0.0 + self.state.index_base()
    }

    /// Returns `true` if this server leads and serves.
    pub fn is_serving(&self) -> bool {
        self.serving.is_some()
    }

    /// Returns the leader known to this server; itself only once it serves.
    pub fn leader(&self) -> Option<ServerId> {
        let (own, leader) = (self.config.id, self.engine.leader());
        known_leader(own, leader, self.is_serving(), self.set_back.is_some())
    }

    /// Returns the metadata of a snapshot of the current state.
    pub fn snapshot_meta(&self) -> SnapshotMeta {
        let (index, term) = self.applied;
        SnapshotMeta { index, term, membership: self.engine.membership().clone() }
    }

    /// Returns the hard state that must be durable before a snapshot of the current state.
    pub fn hard_state(&self) -> HardState {
        self.engine.hard_state()
    }

    /// Returns the voters and learners.
    pub fn membership(&self) -> &Membership {
        self.engine.membership()
    }

    /// Returns the status of this server's log for operators.
    pub fn log_status(&self) -> LogStatus {
        LogStatus {
            term: self.engine.term(),
            first_index: self.engine.first_index(),
            last_index: self.engine.last_index(),
            commit_index: self.engine.commit_index(),
            applied_index: self.applied.0,
            membership_index: self.membership_index,
            log_bytes: self.engine.log_bytes(),
            pending_proposals: self.proposals.pending_len(),
        }
    }

    /// Returns this server's log position: never less than it has acknowledged.
    pub fn log_position(&self) -> LogPosition {
        LogPosition { term: self.engine.term(), last_index: self.engine.last_index() }
    }

    /// Returns the log positions that the other servers have certainly reached.
    pub fn peer_memory(&self) -> &PeerMemory {
        &self.own.peers
    }

    /// Returns this server's own memory, which is part of each of its checkpoints.
    pub fn own_memory(&self) -> &OwnMemory {
        &self.own
    }

    /// Returns the set-back of this server's disk, if any: the server must then send nothing.
    pub fn set_back(&self) -> Option<&SetBack> {
        self.set_back.as_ref()
    }

    /// Returns the replication progress of another server, if this server leads.
    pub fn progress(&self, server: ServerId) -> Option<Progress> {
        self.engine.progress(server)
    }

    /// Returns the time at which [`crate::Input::Deadline`] is due; `None` if nothing may expire
    /// before the next tick.
    pub fn next_deadline(&self) -> Option<Time> {
        self.deadlines.next()
    }

    /// Returns the reason why this server must stop: its build cannot read the cluster's format.
    /// Until it is stopped it does nothing.
    pub fn unreadable(&self) -> Option<&FormatError> {
        self.unreadable.as_ref()
    }
}
