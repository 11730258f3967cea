//! Both files of a store, written when whoever drives them says so: the two writers without their
//! threads.

use super::disk::FaultyDisk;
use crate::store::checkpoint::CheckpointStore;
use crate::store::log::LogStore;
use crate::store::{Backup, DirtyRows, Store, StoreError, StoreOptions, open};
use lockmesh_core::checksum::Checksum;
use lockmesh_core::raft::log::{HardState, Recovered, SnapshotMeta};
use lockmesh_core::write_queue::LogCommit;
use lockmesh_protocol::id::{LogIndex, Term};
use std::sync::Arc;

/// A store whose writers wait to be told. What a disk has refused is to be told again, as the
/// threads do.
#[derive(Debug)]
pub struct ManualStore {
    log: LogStore,
    checkpoints: CheckpointStore,
    /// Whether each file must be opened anew, since the disk has refused the last write.
    log_failed: bool,
    checkpoint_failed: bool,
}

impl ManualStore {
    /// Opens the store on a disk, or makes it there.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open(disk: &FaultyDisk, options: &StoreOptions) -> Result<(Self, Recovered), StoreError> {
        let (Store { log, checkpoints, .. }, recovered) = open::open(Arc::new(disk.clone()), options)?;
        Ok((Self { log, checkpoints, log_failed: false, checkpoint_failed: false }, recovered))
    }

    /// Lets the log go up to an index with the next commits; whether one is wanted for that.
    pub fn compact(&mut self, up_to: LogIndex) -> bool {
        self.log.compact(up_to);
        self.log.must_compact()
    }

    /// Makes a commit of the log durable.
    ///
    /// # Errors
    /// The disk refused. Nothing new counts as durable: give the same again, which opens the file
    /// anew first.
    pub fn commit(&mut self, commit: &LogCommit) -> Result<(), StoreError> {
        if std::mem::replace(&mut self.log_failed, true) {
            self.log.file().reopen()?;
        }
        self.log.commit(&commit.writes, commit.least_commit)?;
        self.log_failed = false;
        Ok(())
    }

    /// Makes a checkpoint durable; the checksum of all its rows.
    ///
    /// # Errors
    /// The disk refused. Nothing new counts as durable: give the same again, which opens the file
    /// anew first.
    pub fn checkpoint(&mut self, mark: &SnapshotMeta, rows: &mut DirtyRows) -> Result<Checksum, StoreError> {
        if std::mem::replace(&mut self.checkpoint_failed, true) {
            self.checkpoints.file().reopen()?;
        }
        rows.sort();
        let checksum = self.checkpoints.write(mark, rows, || ())?;
        self.checkpoint_failed = false;
        Ok(checksum)
    }

    /// The hard state that is durable.
    pub fn hard_state(&self) -> HardState {
        self.log.head().hard_state
    }

    /// The entry before the log's first.
    pub fn base(&self) -> (LogIndex, Term) {
        self.log.head().base
    }

    /// Begins to read the durable checkpoint.
    ///
    /// # Errors
    /// The checkpoint cannot be read. The store is as it was.
    pub fn backup(&self) -> Result<Backup, StoreError> {
        self.checkpoints.backup()
    }
}
