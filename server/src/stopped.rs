//! What may be wrong with the data folder of a server that is stopped, for those who look into one
//! or change it by hand.

use crate::bootstrap::{Record, RecordError};
use crate::store::StoreError;
use lockmesh_protocol::id::LogIndex;
use std::io;
use std::path::{Path, PathBuf};

/// Why a stopped server's folder was of no use. It is as it was, unless the disk failed half-way:
/// then try again.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Log or state cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What the folder says of the cluster cannot be used.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// There is nothing to work with.
    #[error("{folder}: {problem}")]
    Nothing {
        /// The data folder.
        folder: PathBuf,
        /// What is missing.
        problem: &'static str,
    },
    /// An entry of the log cannot be read.
    #[error("entry {index} of the log cannot be read ({reason}): was it written by a newer version?")]
    Entry {
        /// Which entry.
        index: LogIndex,
        /// What is wrong with it.
        reason: String,
    },
    /// The disk refused.
    #[error("the disk refused, so try again: {0}")]
    Disk(String),
    /// No thread could be had.
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

/// The record of a folder, which must be there.
pub(crate) fn record(folder: &Path) -> Result<Record, FolderError> {
    let nothing = || FolderError::nothing(folder, "there is no server's data in it");
    Record::read(folder)?.ok_or_else(nothing)
}
