//! What becomes of the frontend's [`Storage`] actions: which rows go with which checkpoint.
//!
//! ```text
//! Record     ──> dirty rows ──┐
//! Checkpoint ─────────────────┴──> a checkpoint of what was applied, and nothing is dirty
//! arrive     ──> a snapshot's rows ──┐
//! Install    ────────────────────────┴──> a checkpoint that takes the place of everything, and nothing is dirty
//! ```
//!
//! **Invariants:** a row that changed is in exactly one checkpoint of what was applied, the next
//! one. What changed before a snapshot was installed is written over it never.

use crate::fault_injection::{FaultPoint, Rule};
use crate::frontend::Storage;
use crate::raft::log::{LogWrite, OwnMemory, SnapshotMeta};
use crate::write_queue::{Checkpoint, CheckpointRows};
use lockmesh_protocol::id::LogIndex;

/// What a store is given, in this order.
#[derive(Clone, Debug)]
pub enum StoreOrder<R> {
    /// For the log.
    Write(LogWrite),
    /// A checkpoint, to be made as soon as it may be.
    Checkpoint(Checkpoint<R>),
    /// The log may go up to this index.
    Compact(LogIndex),
}

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub struct Unwritten<R> {
    /// What has changed since the last checkpoint.
    dirty: R,
    /// The rows of a snapshot that the frontend has been given in this turn.
    arrived: Option<R>,
    fault_point: FaultPoint,
}

impl<R: CheckpointRows> Unwritten<R> {
    /// Breaks a rule on purpose.
    #[cfg(feature = "fault-injection")]
    pub fn break_rule(&mut self, rule: Rule) {
        self.fault_point.break_rule(rule);
    }

    /// How many rows a checkpoint would write at most; 0 only where there is nothing for one to do.
    pub fn row_count(&self) -> usize {
        self.dirty.row_count()
    }

    /// The rows of a snapshot that the frontend is given now; the first of them removes all that is
    /// there.
    pub fn arrive(&mut self, rows: R) {
        self.arrived = Some(rows);
    }

    /// At the end of a turn: a snapshot that was not installed is of no use.
    pub fn end_turn(&mut self) {
        self.arrived = None;
    }

    /// Takes an action; what the store is to be given now. `own` goes with each checkpoint.
    pub fn take(&mut self, action: Storage, own: &OwnMemory) -> Option<StoreOrder<R>> {
        match action {
            Storage::Write(write) => Some(StoreOrder::Write(write)),
            Storage::Record(changes) => {
                self.dirty.record_all(changes);
                None
            }
            Storage::Checkpoint(mark) => Some(self.checkpoint(mark, own, false)),
            Storage::ExactCheckpoint(mark) => Some(self.checkpoint(mark, own, true)),
            Storage::Install(mark) => {
                // Changes of the state that is gone, written behind the snapshot, would put its old
                // rows back.
                if !self.fault_point.breaks(Rule::InstalledRowsStandAlone) {
                    drop(self.dirty.take());
                }
                // The core installs in the turn in which the snapshot came, or never.
                let mut rows = self.arrived.take().expect("what is installed has arrived in this turn");
                // Its rows are all the other server's; what this one knows for itself must not be
                // lost with the old ones.
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
        assert!(unwritten.take(Storage::Record(changes), &OwnMemory::default()).is_none());
        unwritten
    }

    fn checkpoint(unwritten: &mut Unwritten<Vec<Change>>, action: Storage) -> (Vec<Change>, bool) {
        match unwritten.take(action, &OwnMemory::default()) {
            Some(StoreOrder::Checkpoint(checkpoint)) => (checkpoint.rows, checkpoint.installed),
            other => panic!("no checkpoint: {other:?}"),
        }
    }

    fn mark(index: u64) -> SnapshotMeta {
        SnapshotMeta { index: LogIndex(index), ..SnapshotMeta::default() }
    }

    #[test]
    fn each_row_goes_with_one_checkpoint() {
        let mut unwritten = unwritten(&[1, 2]);
        assert_eq!(unwritten.row_count(), 2);
        assert_eq!(checkpoint(&mut unwritten, Storage::Checkpoint(mark(2))).0.len(), 2);
        assert_eq!(unwritten.row_count(), 0);
        assert_eq!(checkpoint(&mut unwritten, Storage::Checkpoint(mark(3))), (vec![], false));
    }

    #[test]
    fn nothing_is_written_over_a_snapshot_that_was_applied_before_it() {
        let mut unwritten = unwritten(&[1]);
        unwritten.arrive(vec![Change::Cleared, Change::Fence(Fence(9))]);
        let installed = checkpoint(&mut unwritten, Storage::Install(mark(9)));
        assert_eq!(installed, (vec![Change::Cleared, Change::Fence(Fence(9))], true));
        assert_eq!(unwritten.row_count(), 0);
        assert_eq!(checkpoint(&mut unwritten, Storage::Checkpoint(mark(9))).0, vec![]);
    }

    #[test]
    fn a_snapshot_that_is_not_installed_leaves_what_is_dirty() {
        let mut unwritten = unwritten(&[1]);
        unwritten.arrive(vec![Change::Cleared]);
        unwritten.end_turn();
        assert_eq!(checkpoint(&mut unwritten, Storage::Checkpoint(mark(1))).0, vec![Change::Fence(Fence(1))]);
    }
}
