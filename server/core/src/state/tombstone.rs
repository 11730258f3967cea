//! Tombstones: what is remembered of deleted keys, so that the index of a prefix does not go back when its newest key goes.
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

    /// The index of a prefix: that of its newest change or delete, or the whole table's where it never had one.
    pub(super) fn prefix_index(&self, prefix: &str) -> LogIndex {
        if prefix.is_empty() {
            return self.keys_index();
        }
        let changed = self.entries.newest_under(prefix);
        let deleted = self.tombstones.newest_under(prefix);
        changed.max(deleted).unwrap_or_else(|| self.keys_index())
    }

    /// An index that somebody must be told who asks what is new under a prefix and was away for so long that its
    /// tombstones are forgotten; none for everybody else. The prefix's index may then lie before the one he knows, and
    /// whether he missed a delete cannot be told any more: he is told the newest delete of all, and looks again.
    pub fn index_beyond(&self, query: &Query, known: LogIndex) -> Option<LogIndex> {
        let (Query::Entries(prefix) | Query::Keys { prefix, .. } | Query::Locks(prefix)) = query else {
            return None;
        };
        let deleted = self.table_index(Table::Tombstones);
        (known < deleted && self.prefix_index(prefix.as_str()) < known).then_some(deleted)
    }
}
