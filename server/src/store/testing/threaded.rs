//! Checkpoints by hand of a store with threads; the driver hands over the frontend's checkpoints.

use crate::store::{DirtyRows, StoreHandle};
use lockmesh_core::durability::write_queue::Checkpoint;
use lockmesh_core::raft::log::SnapshotMeta;

impl StoreHandle {
    /// Moves the checkpoint to an applied index. A queued checkpoint that has not begun is merged
    /// with it.
    pub fn checkpoint(&self, mark: SnapshotMeta, rows: DirtyRows) {
        self.hand_over(Checkpoint { mark, rows, installed: false, is_exact: false });
    }

    /// The same, but nothing newer is merged with it: [`crate::store::StoreEvent::Summed`] reports
    /// the checksum of exactly this index.
    pub fn checkpoint_exactly(&self, mark: SnapshotMeta, rows: DirtyRows) {
        self.hand_over(Checkpoint { mark, rows, installed: false, is_exact: true });
    }
}
