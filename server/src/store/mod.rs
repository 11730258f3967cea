//! The server's storage: `log/`, the replicated log in segments, and `state.redb`, a checkpoint of
//! the state.
//!
//! State = checkpoint + the log's suffix behind it. Its use by a driver:
//!
//! ```text
//! let (store, recovered) = Store::open(folder, &StoreOptions { server, first_snapshot, cache_bytes, .. })?;
//! let store = store.start(move |event: StoreEvent| ...)?;    // two threads; events come from them
//!
//! store.write(outbox.writes)?;            // first in, first out; waits only while the queue is full
//!     StoreEvent::Persisted(number)       // -> Input::Persisted
//!     StoreEvent::Health(health)          // Failing: answer new proposals with Unavailable::Disk
//!
//! store.hand_over(Checkpoint { mark, rows, .. });      // about once a second, rows: DirtyRows
//!     StoreEvent::Checkpointed(mark)             // durable: store.compact(min(its index, slowest follower))
//!
//! let mut backup = store.backup()?;       // the content of the newest durable checkpoint
//! backup.part(0)?;                        // changes that set every row, about 1 MiB at most
//!
//! store.close();                          // writes the queue, ends the threads
//! ```
//!
//! Reading order: this file, `open.rs` (the pair and its recovery), `threads.rs` (the writer
//! threads), `log/`, `checkpoint.rs` with `rows.rs` and `pieces.rs`, and below them `file.rs`,
//! `guard.rs`, `disk.rs`, the only users of redb. `testing/` is for tests and the simulator: a disk
//! with faults, and the store without its threads.

mod checkpoint;
mod dead_space;
mod disk;
mod error;
mod events;
mod file;
mod guard;
mod log;
mod names;
mod open;
mod origin;
mod pieces;
mod reported;
mod rows;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod threads;

pub use checkpoint::{Backup, Part, RawPart};
pub use disk::FIRST_FILES;
pub use error::StoreError;
pub use events::{StoreEvent, StoreHealth};
pub use open::{Formats, Inspected, Store, StoreOptions};
pub use origin::{Origin, Origins};
pub use pieces::RowReader;
pub use rows::DirtyRows;
pub use threads::{MAX_QUEUED_WRITES, StoreHandle};

use lockmesh_core::raft::log::{Recovered, SnapshotMeta};
use lockmesh_protocol::id::ServerId;
use std::path::Path;
use std::sync::Arc;

/// The smallest size of a log's segments.
pub const SEGMENT_BYTES: u64 = 1 << 20;

/// A folder that this process holds; the clones share one lock.
#[derive(Clone, Debug)]
pub struct HeldFolder(Arc<disk::Folder>);

impl HeldFolder {
    /// Returns `true` if any of a store's files exists.
    ///
    /// # Errors
    /// The disk cannot be read. Nothing was changed.
    pub fn has_store(&self) -> Result<bool, StoreError> {
        open::has_store(&*self.0)
    }

    /// Returns the origins of log and checkpoint; empty if one of them is missing. There are two
    /// while the conversion of a former log is unfinished: the new one comes first.
    ///
    /// # Errors
    /// The disk cannot be read. Nothing was changed.
    pub fn origins(&self) -> Result<Vec<Origins>, StoreError> {
        let Some(state) = self.0.origin(names::STATE)? else { return Ok(Vec::new()) };
        let logs = [self.0.origin(&log::LogIdentity::name(names::LOG))?, self.0.origin(names::FORMER_LOG)?];
        Ok(logs.into_iter().flatten().map(|log| Origins { log, state }).collect())
    }

    /// Removes the former log after its conversion: the server's record must name the new one.
    ///
    /// # Errors
    /// The disk refuses it. Call it again after the next start.
    pub fn remove_former_log(&self) -> Result<(), StoreError> {
        open::remove_former_log(&*self.0)
    }

    /// See [`Store::inspect`].
    ///
    /// # Errors
    /// A file cannot be used; the error names it and the remedy. Every byte of the folder is
    /// unchanged.
    pub fn inspect(&self, options: &StoreOptions) -> Result<Option<Inspected>, StoreError> {
        let disk: Arc<dyn disk::Disk> = Arc::clone(&self.0) as _;
        open::inspect(&disk, options)
    }

    /// See [`Store::open`].
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open(&self, options: &StoreOptions) -> Result<(Store, Recovered), StoreError> {
        open::open(Arc::clone(&self.0) as _, options)
    }
}

impl Store {
    /// Locks a folder, and creates it if it is missing. No other process can lock it until the
    /// result is dropped.
    ///
    /// # Errors
    /// Another process holds the folder, or it cannot be created. Nothing in it was read.
    pub fn hold(folder: &Path) -> Result<HeldFolder, StoreError> {
        Ok(HeldFolder(Arc::new(disk::Folder::hold(folder)?)))
    }

    /// Reads the state with which a server would start in a folder; `None` if there is no store.
    /// Nothing is written, and no server can use the folder meanwhile.
    ///
    /// # Errors
    /// Another process holds the folder, or a file cannot be used; the error names it and the
    /// remedy. Every byte of the folder is unchanged.
    pub fn inspect(
        folder: &Path,
        server: ServerId,
        cache_bytes: usize,
    ) -> Result<Option<Inspected>, StoreError> {
        let disk: Arc<dyn disk::Disk> = Arc::new(disk::ReadOnlyFolder::hold(folder)?);
        let options = StoreOptions {
            server,
            first_snapshot: SnapshotMeta::default(),
            cache_bytes,
            accept_loss: false,
            segment_bytes: SEGMENT_BYTES,
        };
        open::inspect(&disk, &options)
    }

    /// Opens the store in a folder, or creates it if it is missing, and reads its whole content.
    ///
    /// The folder is held until the store is closed. A rejected file keeps every byte.
    ///
    /// # Errors
    /// An operator must act, unless [`StoreError::is_transient`]: the error names the file and the
    /// remedy.
    pub fn open(folder: &Path, options: &StoreOptions) -> Result<(Self, Recovered), StoreError> {
        Self::hold(folder)?.open(options)
    }

    /// Starts the threads that write. `listener` is called from them and must never block.
    ///
    /// # Errors
    /// The system cannot start a thread. Nothing was written, and the files are closed.
    pub fn start(
        self,
        listener: impl Fn(StoreEvent) + Send + Sync + 'static,
    ) -> std::io::Result<StoreHandle> {
        StoreHandle::start(self.log, self.checkpoints, self.durable_checkpoint, listener)
    }
}

#[cfg(test)]
mod tests;
