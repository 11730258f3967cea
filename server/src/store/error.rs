//! The errors of opening and writing the store, each with its remedy.
//!
//! **Invariant:** an error while opening leaves every byte of the folder unchanged.

use lockmesh_core::raft::log::SnapshotMeta;
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use std::io;
use std::path::PathBuf;

/// The remedy for a file that cannot be used.
///
/// Never an older copy: a server of a quorum would forget its votes and acknowledgements.
const HOW_TO_GO_ON: &str = "nothing was changed; if this is one of several servers, empty its whole data folder and \
     start it: it joins as a new one; if it is alone, move the folder away, start it, and restore a saved backup into it";

/// The reason that the store cannot be opened or written.
///
/// All except [`StoreError::Io`] and [`StoreError::Closed`] are fatal to the server's start: an
/// operator must act.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process holds the folder.
    #[error("{}: another lockmesh runs on this folder; stop it, or give this one a folder of its own", .0.display())]
    Held(PathBuf),
    /// The file is of another kind.
    #[error("{}: this is not a file of lockmesh ({reason}); {HOW_TO_GO_ON}", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Its actual kind.
        reason: String,
    },
    /// The file was ours, but is truncated, overwritten or otherwise broken.
    #[error("{}: the file is damaged ({reason}); {HOW_TO_GO_ON}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The kind of damage.
        reason: String,
    },
    /// A newer build wrote the file.
    #[error(
        "{}: the file has format version {found}, but this build knows versions up to {known}; start the newer \
         lockmesh that wrote it; nothing was changed", .path.display()
    )]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest version that this build knows.
        known: u32,
    },
    /// Written by a build before the first that promises to read its formats forever.
    #[error(
        "{}: the file has format version {found}, but this build reads version {known} only: the promise to read older \
         folders begins with that one; keep the older lockmesh for this folder, or empty the whole data folder and start \
         this one: what was in it is not read by this build, and neither are backups of the older one; nothing was changed",
        .path.display()
    )]
    OlderFormat {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The version that this build reads.
        known: u32,
    },
    /// The file belongs to another server of the cluster.
    #[error(
        "{}: the file belongs to server {found}, but this is server {expected}; give every server its own folder; \
         nothing was changed", .path.display()
    )]
    OtherServer {
        /// The file.
        path: PathBuf,
        /// Its server.
        found: ServerId,
        /// This server.
        expected: ServerId,
    },
    /// The two files were not made together.
    #[error("{} and {}: the two files do not belong together; {HOW_TO_GO_ON}", .log.display(), .checkpoints.display())]
    Mismatched {
        /// The log.
        log: PathBuf,
        /// The checkpoint.
        checkpoints: PathBuf,
    },
    /// One of the two files is missing.
    #[error("{}: the file is missing, though {} is there; {HOW_TO_GO_ON}", .missing.display(), .present.display())]
    Missing {
        /// The missing file.
        missing: PathBuf,
        /// The existing file.
        present: PathBuf,
    },
    /// The log does not reach back to the checkpoint.
    #[error(
        "{} and {}: the checkpoint ends at index {checkpoint_index}, but the log begins behind index {base} (term {base_term}): \
         the checkpoint is older than its log; {HOW_TO_GO_ON}", .log.display(), .checkpoints.display()
    )]
    Gap {
        /// The log.
        log: PathBuf,
        /// The checkpoint.
        checkpoints: PathBuf,
        /// The checkpoint's index.
        checkpoint_index: LogIndex,
        /// The last index that was compacted from the log.
        base: LogIndex,
        /// Its term.
        base_term: Term,
    },
    /// Commits that were reported as durable are lost.
    #[error(
        "{}: the newest commits of the log are gone: it ends with commit {found}, but commit {reported} was acknowledged, a \
         write or a vote; its page was damaged since, or the file is older than {}; nothing was changed; if this is one of \
         several servers, empty its whole data folder and start it: it joins as a new one; if it is alone, restore a saved \
         backup into a new folder, or continue without the lost commits with `lockmesh operator raft recover --accept-loss`",
        .path.display(), super::names::REPORTED
    )]
    Lost {
        /// The log.
        path: PathBuf,
        /// Its newest commit.
        found: u64,
        /// The newest commit that was reported as durable.
        reported: u64,
    },
    /// The disk returned an error. No acknowledged write is lost; the store's threads retry.
    #[error("{}: {doing}: {source}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The failed operation.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    /// Returns `true` if a retry can help: an operator may free space or repair the disk meanwhile.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Io { .. })
    }

    /// Returns the error of a log that begins behind its checkpoint.
    pub(super) fn gap(
        log: PathBuf,
        checkpoints: PathBuf,
        mark: &SnapshotMeta,
        base: (LogIndex, Term),
    ) -> Self {
        Self::Gap { log, checkpoints, checkpoint_index: mark.index, base: base.0, base_term: base.1 }
    }
}
