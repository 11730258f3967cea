//! The delete of all keys under a prefix: one change and few moves, however many keys there are.
//!
//! The rows leave the state by page, and are given to whoever applies the command: to free very
//! many of them takes longer than anybody may wait. What has to be looked at one by one are the
//! locks and the queues under the prefix.

use super::State;
use super::removed::{Tree, TreeBefore};
use super::rows::take_out;
use super::step::Step;
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::id::{Key, SessionId};
use std::collections::BTreeMap;
use std::ops::Bound;

impl Step<'_> {
    /// Deletes every key under a prefix and leaves one tombstone for all of them.
    ///
    /// The older tombstones under it go. If they stayed, a longer prefix would find one of them
    /// instead of falling back to the whole table's index, and its index would go back. For the
    /// same reason the empty prefix needs no tombstone of its own: once all others are gone, the
    /// table's index speaks for it.
    pub(super) fn delete_tree(&mut self, prefix: &Key) {
        if self.state.entries_under(prefix.as_str()).next().is_none() {
            return;
        }
        self.record_deleted(self.state.holders_under(prefix));
        self.set(Change::TreeDeleted(prefix.clone()));
        if !prefix.as_str().is_empty() {
            self.bury(prefix);
        }
        self.touch(Table::Entries);
    }
}

impl State {
    /// Removes every entry and tombstone under a prefix, with what follows from them.
    pub(super) fn take_tree(&mut self, prefix: &Key) -> Tree {
        // One by one, but only those that are held; all the rest goes by page.
        for (key, session) in self.holders_under(prefix) {
            take_out(&mut self.derived.held, &session, &key);
            self.derived.holders.remove(&key);
        }
        let entries = self.entries.remove_under(prefix.as_str());
        Tree { entries, tombstones: self.tombstones.remove_under(prefix.as_str()) }
    }

    /// What brings a tree back, as long as it is not deleted yet.
    pub(super) fn tree_before(&self, prefix: &Key) -> TreeBefore {
        let tree = Tree { entries: self.entries.clone(), tombstones: self.tombstones.clone() };
        TreeBefore { tree, held: self.holders_under(prefix) }
    }

    /// Undoes the delete of a tree, when everything later is undone.
    pub(super) fn bring_tree_back(&mut self, before: TreeBefore) {
        let TreeBefore { tree, held } = before;
        // The pages as they were: everything later was undone before, so nothing is lost with them.
        (self.entries, self.tombstones) = (tree.entries, tree.tombstones);
        held.into_iter().for_each(|(key, session)| self.note_holder(key, session));
    }

    /// The keys under a prefix that are held, and by whom.
    fn holders_under(&self, prefix: &Key) -> Vec<(Key, SessionId)> {
        let held = under(&self.derived.holders, prefix.as_str());
        held.map(|(key, session)| (key.clone(), *session)).collect()
    }
}

/// What a map holds under a prefix.
pub(super) fn under<'a, V>(
    map: &'a BTreeMap<Key, V>,
    prefix: &'a str,
) -> impl Iterator<Item = (&'a Key, &'a V)> {
    let range = map.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
    range.take_while(move |(key, _)| key.as_str().starts_with(prefix))
}
