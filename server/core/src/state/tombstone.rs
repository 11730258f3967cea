//! Tombstones: what is remembered of deleted keys, so that the index of a prefix does not go back
//! when its newest key goes.
//!
//! Tombstones are forgotten by a command of the leader, never by the passing of time here.

use super::State;
use super::step::Step;
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::id::{Key, LogIndex};
use lockmesh_protocol::query::Query;
use lockmesh_protocol::record::Entry;
use lockmesh_protocol::reply::Reply;
use std::sync::Arc;

impl Step<'_> {
    /// Remembers that a key was deleted by this command.
    pub(super) fn bury(&mut self, key: &Key) {
        self.set(Change::Tombstone(key.clone(), Some(self.index)));
        self.touch(Table::Tombstones);
    }

    /// Forgets all tombstones up to an index. No table's index moves.
    pub(super) fn reap_tombstones(&mut self, up_to: LogIndex) -> Reply {
        let tombstones = self.state.tombstones.iter();
        let reaped: Vec<Key> =
            tombstones.filter(|(_, index)| **index <= up_to).map(|(key, _)| key.clone()).collect();
        let newest = reaped.iter().filter_map(|key| self.state.tombstones.get(key.as_str())).max().copied();
        if let Some(newest) = newest.filter(|index| *index > self.state.forgotten_tombstones) {
            self.set(Change::ForgottenTombstones(newest));
        }
        for key in reaped {
            self.set(Change::Tombstone(key, None));
        }
        Reply::Done
    }
}

impl State {
    /// The entries whose key starts with a prefix, ascending.
    pub(super) fn entries_under(&self, prefix: &str) -> impl Iterator<Item = &Arc<Entry>> {
        self.entries.under(prefix).map(|(_, entry)| entry)
    }

    /// The index of an absent key: no write to any key is newer.
    pub(super) fn keys_index(&self) -> LogIndex {
        self.table_index(Table::Entries).max(self.table_index(Table::Tombstones))
    }

    /// The index of a prefix: that of its newest change or delete, or the whole table's where it
    /// never had one.
    pub(super) fn prefix_index(&self, prefix: &str) -> LogIndex {
        if prefix.is_empty() {
            return self.keys_index();
        }
        // Both: when the newest key goes, its tombstone speaks for the prefix.
        let changed = self.entries.newest_under(prefix);
        let deleted = self.tombstones.newest_under(prefix);
        // A prefix that never had a key: whatever is written next is newer than this.
        changed.max(deleted).unwrap_or_else(|| self.keys_index())
    }

    /// The index with which somebody is answered who knows all up to `known`; none where there is
    /// no news, and he waits.
    ///
    /// An index of a prefix goes back, or stays, when what was deleted under it is forgotten. Where
    /// a tombstone was forgotten that is newer than `known`, whether it was of this prefix cannot
    /// be told any more: he is told the newest index that was forgotten, and looks again.
    pub fn news(&self, query: &Query, known: LogIndex) -> Option<LogIndex> {
        let forgotten = if names_prefix(query) { self.forgotten_tombstones } else { LogIndex(0) };
        Some(self.index_of(query).max(forgotten)).filter(|index| *index > known)
    }

    /// The least index with which somebody is answered who has waited in vain: he need not begin
    /// anew, although the index of what he asks for lies before the one he knows.
    pub fn least_index(&self, query: &Query, known: LogIndex) -> LogIndex {
        let is_known = names_prefix(query) && known <= self.forgotten_tombstones;
        if is_known { known } else { LogIndex(0) }
    }
}

/// Whether a query's index is one of a prefix.
fn names_prefix(query: &Query) -> bool {
    matches!(query, Query::Entries(_) | Query::Keys { .. } | Query::Locks(_))
}
