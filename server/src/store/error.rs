//! Why the store cannot be opened or written, in words for whoever must act.
//!
//! **Invariant:** whatever refuses to open leaves every byte of the folder as it was.

use lockmesh_core::raft::log::SnapshotMeta;
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use std::io;
use std::path::PathBuf;

/// What to do about a file that cannot be used.
///
/// Never to put an older copy back: a server of a quorum would forget what it voted and
/// acknowledged.
const HOW_TO_GO_ON: &str = "nothing was changed; if this is one of several servers, empty its whole data folder and \
     start it: it joins as a new one; if it is alone, move the folder away, start it, and restore a saved backup into it";

/// Why the store cannot be opened or written.
///
/// All but [`StoreError::Io`] and [`StoreError::Closed`] are fatal to the server's start: an
/// operator must act.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has the folder.
    #[error("{}: another lockmesh runs on this folder; stop it, or give this one a folder of its own", .0.display())]
    Held(PathBuf),
    /// The file is something else.
    #[error("{}: this is not a file of lockmesh ({reason}); {HOW_TO_GO_ON}", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What was found instead.
        reason: String,
    },
    /// The file was ours, but is compacted, overwritten or otherwise broken.
    #[error("{}: the file is damaged ({reason}); {HOW_TO_GO_ON}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
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
    /// A build before the first that promises to read its formats for ever wrote the file.
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
        /// Whose it is.
        found: ServerId,
        /// Who we are.
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
    /// Of the two files there is only one.
    #[error("{}: the file is missing, though {} is there; {HOW_TO_GO_ON}", .missing.display(), .present.display())]
    Missing {
        /// The file that should be there.
        missing: PathBuf,
        /// The file that is there.
        present: PathBuf,
    },
    /// The log does not reach back to the checkpoint.
    #[error(
        "{} and {}: the checkpoints ends at index {checkpoint_index}, but the log begins behind index {base} (term {base_term}): \
         the checkpoint is older than its log; {HOW_TO_GO_ON}", .log.display(), .checkpoints.display()
    )]
    Gap {
        /// The log.
        log: PathBuf,
        /// The checkpoint.
        checkpoints: PathBuf,
        /// What the checkpoint stands for.
        checkpoint_index: LogIndex,
        /// The last index that was compacted the log.
        base: LogIndex,
        /// Its term.
        base_term: Term,
    },
    /// Commits that were told as durable are not there any more.
    #[error(
        "{}: the newest commits of the log are gone: it ends with commit {found}, but commit {told} was acknowledged, a \
         write or a vote; its page was damaged since, or the file is older than {}; nothing was changed; if this is one of \
         several servers, empty its whole data folder and start it: it joins as a new one; if it is alone, restore a saved \
         backup into a new folder, or go on without what was lost by `lockmesh operator raft recover --accept-loss`",
        .path.display(), super::names::TOLD
    )]
    Lost {
        /// The log.
        path: PathBuf,
        /// Its newest commit.
        found: u64,
        /// The newest that was told as durable.
        told: u64,
    },
    /// The disk refused. Nothing that was acknowledged is lost; the store's threads go on trying.
    #[error("{}: {doing}: {source}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    /// Whether trying again can help: an operator may free space or mend the disk meanwhile.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Io { .. })
    }

    /// A log that begins behind its checkpoint.
    pub(super) fn gap(
        log: PathBuf,
        checkpoints: PathBuf,
        mark: &SnapshotMeta,
        base: (LogIndex, Term),
    ) -> Self {
        Self::Gap { log, checkpoints, checkpoint_index: mark.index, base: base.0, base_term: base.1 }
    }
}
