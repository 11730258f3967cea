//! The delete of all keys under a prefix: one change and few moves, however many keys there are.
//!
//! The rows leave the state by page and are handed to the caller: freeing very many of them would
//! block the loop. Only the locks and the queues under the prefix are handled one by one.

use super::entry::end_shared_holds;
use super::invalidation::record_deleted;
use super::keys::Keys;
use super::removed::{Tree, TreeBefore};
use super::rows::take_out;
use super::step::Step;
use super::tombstone::bury;
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::id::{Key, SessionId};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Deletes every key under a prefix and leaves one tombstone for all of them.
///
/// The older tombstones under it are removed. Otherwise a longer prefix would find one of them
/// instead of the whole table's index, and its index would go back. For the same reason the
/// empty prefix needs no tombstone of its own: without any others, the table's index is used.
pub(super) fn delete_tree(step: &mut Step<'_>, prefix: &Key) {
    if step.state.keys.entries_under(prefix.as_str()).next().is_none() {
        return;
    }
    let keys = &step.state.keys;
    let held: Vec<Key> = under(&keys.holders, prefix.as_str()).map(|(key, _)| key.clone()).collect();
    let holders = held.iter().flat_map(|key| keys.holders_of(key).into_iter().map(|id| (key.clone(), id)));
    record_deleted(step, holders.collect());
    held.iter().for_each(|key| end_shared_holds(step, key));
    step.set(Change::TreeDeleted(prefix.clone()));
    if !prefix.as_str().is_empty() {
        bury(step, prefix);
    }
    step.touch(Table::Entries);
}

impl Keys {
    /// Removes every entry and tombstone under a prefix, with their derived rows.
    pub(super) fn take_tree(&mut self, prefix: &Key) -> Tree {
        // Only held keys are handled one by one; the rest is removed by page.
        for (key, session) in self.holders_under(prefix) {
            take_out(&mut self.held, &session, &key);
            self.holders.remove(&key);
        }
        let entries = self.entries.remove_under(prefix.as_str());
        Tree { entries, tombstones: self.tombstones.remove_under(prefix.as_str()) }
    }

    /// The data to undo the delete of a tree, taken before it.
    pub(super) fn tree_before(&self, prefix: &Key) -> TreeBefore {
        let tree = Tree { entries: self.entries.clone(), tombstones: self.tombstones.clone() };
        TreeBefore { tree, held: self.holders_under(prefix) }
    }

    /// Undoes the delete of a tree, after all later changes are undone.
    pub(super) fn bring_tree_back(&mut self, before: TreeBefore) {
        let TreeBefore { tree, held } = before;
        // The former pages: all later changes are already undone, so none is lost.
        (self.entries, self.tombstones) = (tree.entries, tree.tombstones);
        held.into_iter().for_each(|(key, session)| self.note_holder(key, session));
    }

    /// The held keys under a prefix, with their holders.
    fn holders_under(&self, prefix: &Key) -> Vec<(Key, SessionId)> {
        let held = under(&self.holders, prefix.as_str());
        held.map(|(key, session)| (key.clone(), *session)).collect()
    }
}

/// The rows of a map under a prefix.
pub(super) fn under<'a, V>(
    map: &'a BTreeMap<Key, V>,
    prefix: &'a str,
) -> impl Iterator<Item = (&'a Key, &'a V)> {
    let range = map.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
    range.take_while(move |(key, _)| key.as_str().starts_with(prefix))
}
