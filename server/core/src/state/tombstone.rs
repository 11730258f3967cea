//! Tombstones of deleted keys, so that the index of a prefix does not go back when its newest key
//! is deleted.
//!
//! Tombstones are reaped by a command of the leader, never by the passing of time here.

use super::State;
use super::step::Step;
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::id::{Key, LogIndex};
use lockmesh_protocol::query::Query;
use lockmesh_protocol::reply::Reply;

/// Leaves a tombstone for a key that this command deleted.
pub(super) fn bury(step: &mut Step<'_>, key: &Key) {
    step.set(Change::Tombstone(key.clone(), Some(step.index)));
    step.touch(Table::Tombstones);
}

/// Reaps all tombstones up to an index. No table's index moves.
pub(super) fn reap_tombstones(step: &mut Step<'_>, up_to: LogIndex) -> Reply {
    let tombstones = step.state.keys.tombstones.iter();
    let reaped: Vec<Key> =
        tombstones.filter(|(_, index)| **index <= up_to).map(|(key, _)| key.clone()).collect();
    let newest = reaped.iter().filter_map(|key| step.state.keys.tombstones.get(key.as_str())).max().copied();
    if let Some(newest) = newest.filter(|index| *index > step.state.keys.forgotten_tombstones) {
        step.set(Change::ForgottenTombstones(newest));
    }
    for key in reaped {
        step.set(Change::Tombstone(key, None));
    }
    Reply::Done
}

impl State {
    /// The index of an absent key: no write to any key is newer.
    pub(super) fn keys_index(&self) -> LogIndex {
        self.table_index(Table::Entries).max(self.table_index(Table::Tombstones))
    }

    /// The index of a key.
    pub(super) fn key_index(&self, key: &Key) -> LogIndex {
        self.keys.entries.get(key.as_str()).map_or_else(|| self.keys_index(), |entry| entry.modify_index)
    }

    /// The index of a prefix: that of its newest change or delete, or the whole table's if it never
    /// had one.
    pub(super) fn prefix_index(&self, prefix: &str) -> LogIndex {
        if prefix.is_empty() {
            return self.keys_index();
        }
        // Both: after the newest key is deleted, its tombstone provides the prefix's index.
        let changed = self.keys.entries.newest_under(prefix);
        let deleted = self.keys.tombstones.newest_under(prefix);
        // For a prefix that never had a key, any later write is newer than this.
        changed.max(deleted).unwrap_or_else(|| self.keys_index())
    }

    /// The index for a blocking query that knows everything up to `known`; `None` if nothing is
    /// newer and it must wait.
    ///
    /// An index of a prefix goes back, or stays, when tombstones under it are reaped. If a
    /// tombstone newer than `known` was reaped, its prefix is no longer known. The query then
    /// returns with the newest reaped index, and the client reads again.
    pub fn news(&self, query: &Query, known: LogIndex) -> Option<LogIndex> {
        let forgotten = if names_prefix(query) { self.keys.forgotten_tombstones } else { LogIndex(0) };
        Some(self.index_of(query).max(forgotten)).filter(|index| *index > known)
    }

    /// The minimum index of a blocking query that timed out: it need not restart, although the
    /// index of its prefix or service is below the one it knows.
    pub fn least_index(&self, query: &Query, known: LogIndex) -> LogIndex {
        let newest = match query {
            // Another server may have replied with a higher index for the same instances.
            Query::ServiceInstances(_) => self.catalog_index(),
            query if names_prefix(query) => self.keys.forgotten_tombstones,
            _ => LogIndex(0),
        };
        if known <= newest { known } else { LogIndex(0) }
    }
}

/// Returns whether a query's index is one of a prefix.
fn names_prefix(query: &Query) -> bool {
    matches!(query, Query::Entries(_) | Query::Keys { .. } | Query::Locks(_))
}
