//! Errors of a stopped server's data folder, for the commands that read or change one.

use crate::bootstrap::{Record, RecordError};
use crate::store::StoreError;
use lockmesh_protocol::id::LogIndex;
use std::io;
use std::path::{Path, PathBuf};

/// The reason that a stopped server's folder cannot be used. It is unchanged, unless the disk
/// failed half-way: then retry.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Log or state cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The folder's record of the cluster cannot be used.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The folder holds no usable data.
    #[error("{folder}: {problem}")]
    Nothing {
        /// The data folder.
        folder: PathBuf,
        /// The missing data.
        problem: &'static str,
    },
    /// An entry of the log cannot be read.
    #[error("entry {index} of the log cannot be read ({reason}): was it written by a newer version?")]
    Entry {
        /// Its index.
        index: LogIndex,
        /// The decoding error.
        reason: String,
    },
    /// The disk rejected a write.
    #[error("the disk rejected a write; try again: {0}")]
    Disk(String),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

impl FolderError {
    pub(crate) fn never_a_member(folder: &Path) -> Self {
        Self::nothing(folder, "its server never belonged to a cluster")
    }

    pub(crate) fn no_store(folder: &Path) -> Self {
        Self::nothing(folder, "its log and its state are gone")
    }

    pub(crate) fn nothing(folder: &Path, problem: &'static str) -> Self {
        Self::Nothing { folder: folder.into(), problem }
    }
}

/// Returns the record of a folder, which must exist.
pub(crate) fn record(folder: &Path) -> Result<Record, FolderError> {
    let nothing = || FolderError::nothing(folder, "it holds no server data");
    Record::read(folder)?.ok_or_else(nothing)
}
