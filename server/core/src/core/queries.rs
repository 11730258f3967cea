//! Queries of the state, the time of the next deadline, and the reason to stop.

use super::Core;
use crate::raft::log::{Membership, SnapshotMeta};
use crate::state::Listing;
use lockmesh_protocol::acl::Rights;
use lockmesh_protocol::format::FormatError;
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use lockmesh_protocol::query::{Query, Rows};
use lockmesh_protocol::reply::Reply;
use lockmesh_protocol::time::Time;
use std::sync::Arc;

impl Core {
    /// Returns the snapshot that the disk of each initial voter represents before the first start.
    pub fn bootstrap_snapshot(voters: &[ServerId]) -> SnapshotMeta {
        SnapshotMeta { index: LogIndex(1), term: Term(1), membership: Membership::of_voters(voters) }
    }

    /// Answers a query from the state. Remaining lock-delays come from the leader's timers.
    pub fn query(&self, now: Time, query: &Query) -> (LogIndex, Rows) {
        let (index, mut rows) = self.replica.state.query(query);
        if let Rows::QueuePosition(Reply::Delayed { remaining }) = &mut rows {
            *remaining = self.deadlines.left_of_delays(now, query.queues(), *remaining);
        }
        (index, rows)
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

/// Answers a query that may match very many rows: returns at most `limit` bytes, or a listing
/// to build elsewhere.
pub(crate) fn query_view(
    core: &Core,
    now: Time,
    query: &Query,
    limit: usize,
    rights: Option<&Arc<Rights>>,
) -> (LogIndex, Listing) {
    match query {
        Query::QueuePosition { .. } | Query::RequestOutcome { .. } => {
            let (index, rows) = core.query(now, query);
            (index, Listing::Rows(rows, false))
        }
        query => crate::state::query_view(&core.replica.state, query, limit, rights),
    }
}
