//! Rows that a command removed many at once, and what brings them back.

use super::pages::Pages;
use lockmesh_protocol::id::{Key, LogIndex, SessionId};
use lockmesh_protocol::record::Entry;
use std::sync::Arc;

/// Rows that commands removed many at once. Nobody needs them any more, and to drop them may take a
/// while.
#[derive(Debug, Default)]
pub struct Removed(Vec<Tree>);

impl Removed {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.0.iter().map(|tree| tree.entries.len() + tree.tombstones.len()).sum()
    }

    /// Takes all of them out.
    #[must_use]
    pub fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    /// Adds all of another list.
    pub fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    pub(super) fn push(&mut self, tree: Tree) {
        if !tree.entries.is_empty() || !tree.tombstones.is_empty() {
            self.0.push(tree);
        }
    }
}

/// What was under a prefix.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) entries: Pages<Arc<Entry>>,
    pub(super) tombstones: Pages<LogIndex>,
}

/// What brings a tree back that a command deletes: the maps as they were, which share their pages
/// with what is removed.
#[derive(Debug)]
pub(super) struct TreeBefore {
    pub(super) tree: Tree,
    pub(super) held: Vec<(Key, SessionId)>,
}
