//! Checkpoints by hand of a store with threads; the driver hands over what the frontend made of its
//! own.

use crate::store::{DirtyRows, StoreHandle};
use lockmesh_core::raft::log::SnapshotMeta;
use lockmesh_core::write_queue::Checkpoint;

impl StoreHandle {
    /// Makes the checkpoint stand for an index that was applied. What the checkpoint thread has not
    /// begun yet is joined to it.
    pub fn checkpoint(&self, mark: SnapshotMeta, rows: DirtyRows) {
        self.hand_over(Checkpoint { mark, rows, installed: false, is_exact: false });
    }

    /// The same, but nothing newer is joined to it: [`crate::store::StoreEvent::Summed`] tells the
    /// checksum of exactly this index.
    pub fn checkpoint_exactly(&self, mark: SnapshotMeta, rows: DirtyRows) {
        self.hand_over(Checkpoint { mark, rows, installed: false, is_exact: true });
    }
}
