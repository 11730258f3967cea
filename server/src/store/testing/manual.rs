//! Both files of a store, written on the caller's thread: the two writers without their threads.

use super::disk::FaultyDisk;
use crate::store::checkpoint::CheckpointStore;
use crate::store::log::LogStore;
use crate::store::{Backup, DirtyRows, Store, StoreError, StoreOptions, open};
use lockmesh_core::durability::checksum::Checksum;
use lockmesh_core::durability::write_queue::LogCommit;
use lockmesh_core::raft::log::{HardState, Recovered, SnapshotMeta};
use lockmesh_protocol::id::{LogIndex, Term};
use std::sync::Arc;

/// A store whose caller makes the writes. A failed write must be repeated, as the threads do.
#[derive(Debug)]
pub struct ManualStore {
    log: LogStore,
    checkpoints: CheckpointStore,
    /// `true` if the file must be reopened, since its last write failed.
    checkpoint_failed: bool,
}

impl ManualStore {
    /// Opens the store on a disk, or creates it there.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open(disk: &FaultyDisk, options: &StoreOptions) -> Result<(Self, Recovered), StoreError> {
        let (Store { log, checkpoints, .. }, recovered) = open::open(Arc::new(disk.clone()), options)?;
        Ok((Self { log, checkpoints, checkpoint_failed: false }, recovered))
    }

    /// Marks the log for compaction up to an index with the next commits; returns `true` if a
    /// commit is needed for that.
    pub fn compact(&mut self, up_to: LogIndex) -> bool {
        self.log.compact(up_to);
        self.log.must_compact()
    }

    /// Makes a commit of the log durable.
    ///
    /// # Errors
    /// The disk returned an error. Nothing new counts as durable: call it again with the same
    /// commit.
    pub fn commit(&mut self, commit: &LogCommit) -> Result<(), StoreError> {
        self.log.commit(&commit.writes, commit.least_commit)
    }

    /// Makes a checkpoint durable; returns the checksum of all its rows.
    ///
    /// # Errors
    /// The disk returned an error. Nothing new counts as durable: call it again with the same
    /// checkpoint, which reopens the file first.
    pub fn checkpoint(&mut self, mark: &SnapshotMeta, rows: &mut DirtyRows) -> Result<Checksum, StoreError> {
        self.log.pool().give_space_back();
        if std::mem::replace(&mut self.checkpoint_failed, true) {
            self.checkpoints.file().reopen()?;
        }
        rows.sort();
        let checksum = self.checkpoints.write(mark, rows, || ())?;
        self.checkpoint_failed = false;
        self.log.pool().checkpointed();
        // As the checkpoint's thread does between two checkpoints: the log works without it.
        while self.log.pool().is_due() && self.log.pool().prepare().is_ok() {}
        Ok(checksum)
    }

    /// Returns the durable hard state.
    pub fn hard_state(&self) -> HardState {
        self.log.head().hard_state
    }

    /// Returns the entry before the log's first.
    pub fn base(&self) -> (LogIndex, Term) {
        self.log.head().base
    }

    /// Begins to read the durable checkpoint.
    ///
    /// # Errors
    /// The checkpoint cannot be read. The store is unchanged.
    pub fn backup(&self) -> Result<Backup, StoreError> {
        self.checkpoints.backup()
    }
}
