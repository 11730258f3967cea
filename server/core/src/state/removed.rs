//! Rows that a command removed in bulk, and the data to restore them.

use super::pages::Pages;
use lockmesh_protocol::id::{Key, LogIndex, SessionId};
use lockmesh_protocol::record::Entry;
use std::sync::Arc;

/// Rows that commands removed in bulk. They are no longer needed, but freeing them may take a
/// while.
#[derive(Debug, Default)]
pub struct Removed(Vec<Tree>);

impl Removed {
    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.0.iter().map(|tree| tree.entries.len() + tree.tombstones.len()).sum()
    }

    /// Takes all rows out.
    #[must_use]
    pub fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    /// Appends another list.
    pub fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    pub(super) fn push(&mut self, tree: Tree) {
        if !tree.entries.is_empty() || !tree.tombstones.is_empty() {
            self.0.push(tree);
        }
    }
}

/// The rows under a prefix.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) entries: Pages<Arc<Entry>>,
    pub(super) tombstones: Pages<LogIndex>,
}

/// The data to undo the delete of a tree: the former maps, which share their pages with the removed
/// rows.
#[derive(Debug)]
pub(super) struct TreeBefore {
    pub(super) tree: Tree,
    pub(super) held: Vec<(Key, SessionId)>,
}
