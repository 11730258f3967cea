//! Translates the frontend's [`Storage`] actions: assigns rows to checkpoints.
//!
//! ```text
//! Record     ──> dirty rows ──┐
//! Checkpoint ─────────────────┴──> a checkpoint of the applied state
//! arrive     ──> a snapshot's rows ──┐
//! Install    ────────────────────────┴──> a checkpoint that replaces everything
//! ```
//!
//! After either checkpoint no dirty rows remain.
//!
//! **Invariants:** a changed row is in exactly one checkpoint of the applied state, the next one.
//! Changes from before the installation of a snapshot are never written over it.

use crate::durability::write_queue::{Checkpoint, CheckpointRows};
use crate::fault_injection::{FaultPoint, Rule};
use crate::frontend::Storage;
use crate::raft::log::{LogWrite, OwnMemory, SnapshotMeta};
use lockmesh_protocol::id::LogIndex;

/// Orders for a store, in sequence.
#[derive(Clone, Debug)]
pub enum StoreOrder<R> {
    /// A write to the log.
    Write(LogWrite),
    /// A checkpoint, to be made as soon as it is allowed.
    Checkpoint(Checkpoint<R>),
    /// The index up to which the log may be compacted.
    Compact(LogIndex),
}

/// The changes since the last checkpoint, and the rows of a snapshot that has just arrived.
#[derive(Clone, Debug, Default)]
pub struct Unwritten<R> {
    /// Changes since the last checkpoint.
    dirty: R,
    /// The rows of a snapshot that the frontend received in this turn.
    arrived: Option<R>,
    fault_point: FaultPoint,
}

impl<R: CheckpointRows> Unwritten<R> {
    /// Breaks a rule on purpose.
    #[cfg(feature = "fault-injection")]
    pub fn break_rule(&mut self, rule: Rule) {
        self.fault_point.break_rule(rule);
    }

    /// Returns the maximum number of rows that a checkpoint would write; 0 only if a checkpoint has
    /// nothing to do.
    pub fn row_count(&self) -> usize {
        self.dirty.row_count()
    }

    /// Sets the rows of a snapshot that the frontend receives now; the first of them removes all
    /// existing rows.
    pub fn arrive(&mut self, rows: R) {
        self.arrived = Some(rows);
    }

    /// Ends a turn: a snapshot that was not installed is dropped.
    pub fn end_turn(&mut self) {
        self.arrived = None;
    }

    /// Handles an action and returns the order for the store. `own` goes with each checkpoint.
    pub fn handle(&mut self, action: Storage, own: &OwnMemory) -> Option<StoreOrder<R>> {
        match action {
            Storage::Write(write) => Some(StoreOrder::Write(write)),
            Storage::Record(changes) => {
                self.dirty.record_all(changes);
                None
            }
            Storage::Checkpoint(mark) => Some(self.checkpoint(mark, own, false)),
            Storage::ExactCheckpoint(mark) => Some(self.checkpoint(mark, own, true)),
            Storage::Install(mark) => {
                // Changes of the replaced state, written after the snapshot, would restore its old
                // rows.
                if !self.fault_point.breaks(Rule::InstalledRowsStandAlone) {
                    drop(self.dirty.take());
                }
                // The core installs a snapshot in the turn in which it arrived, or never.
                let mut rows = self.arrived.take().expect("the snapshot arrived in this turn");
                // Its rows are all the other server's; this server's own memory must not be lost
                // with the old ones.
                rows.remember(own);
                Some(StoreOrder::Checkpoint(Checkpoint { mark, rows, installed: true, is_exact: false }))
            }
            Storage::Compact(index) => Some(StoreOrder::Compact(index)),
        }
    }

    fn checkpoint(&mut self, mark: SnapshotMeta, own: &OwnMemory, is_exact: bool) -> StoreOrder<R> {
        self.dirty.remember(own);
        let rows = self.dirty.take();
        StoreOrder::Checkpoint(Checkpoint { mark, rows, installed: false, is_exact })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_protocol::change::Change;
    use lockmesh_protocol::id::Fence;

    fn unwritten(fences: &[u64]) -> Unwritten<Vec<Change>> {
        let mut unwritten = Unwritten::default();
        let changes = fences.iter().map(|fence| Change::Fence(Fence(*fence))).collect();
        assert!(unwritten.handle(Storage::Record(changes), &OwnMemory::default()).is_none());
        unwritten
    }

    fn checkpoint(unwritten: &mut Unwritten<Vec<Change>>, action: Storage) -> (Vec<Change>, bool) {
        match unwritten.handle(action, &OwnMemory::default()) {
            Some(StoreOrder::Checkpoint(checkpoint)) => (checkpoint.rows, checkpoint.installed),
            other => panic!("expected a checkpoint: {other:?}"),
        }
    }

    fn mark(index: u64) -> SnapshotMeta {
        SnapshotMeta { index: LogIndex(index), ..SnapshotMeta::default() }
    }

    #[test]
    fn row_belongs_to_one_checkpoint() {
        let mut unwritten = unwritten(&[1, 2]);
        assert_eq!(unwritten.row_count(), 2);
        assert_eq!(checkpoint(&mut unwritten, Storage::Checkpoint(mark(2))).0.len(), 2);
        assert_eq!(unwritten.row_count(), 0);
        assert_eq!(checkpoint(&mut unwritten, Storage::Checkpoint(mark(3))), (vec![], false));
    }

    #[test]
    fn installed_snapshot_discards_earlier_rows() {
        let mut unwritten = unwritten(&[1]);
        unwritten.arrive(vec![Change::Cleared, Change::Fence(Fence(9))]);
        let installed = checkpoint(&mut unwritten, Storage::Install(mark(9)));
        assert_eq!(installed, (vec![Change::Cleared, Change::Fence(Fence(9))], true));
        assert_eq!(unwritten.row_count(), 0);
        assert_eq!(checkpoint(&mut unwritten, Storage::Checkpoint(mark(9))).0, vec![]);
    }

    #[test]
    fn uninstalled_snapshot_keeps_dirty_rows() {
        let mut unwritten = unwritten(&[1]);
        unwritten.arrive(vec![Change::Cleared]);
        unwritten.end_turn();
        assert_eq!(checkpoint(&mut unwritten, Storage::Checkpoint(mark(1))).0, vec![Change::Fence(Fence(1))]);
    }
}
