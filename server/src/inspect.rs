//! Reads the consensus state in a stopped server's data folder. Writes nothing, and prevents the
//! server from running meanwhile.
//!
//! The result shows which of several survivors has the longest log, before one of them restarts the
//! cluster alone.

use crate::stopped::{self, FolderError};
use crate::store::{Formats, Inspected, Store};
use lockmesh_core::raft::log::{HardState, Membership, SnapshotMeta};
use lockmesh_core::raft::membership_after;
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use lockmesh_protocol::record::Server;
use std::path::Path;

/// The cache of each file in bytes.
const CACHE_BYTES: usize = 16 << 20;

/// The consensus state of a data folder.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The server of the folder.
    pub server: ServerId,
    /// Its cluster.
    pub cluster_id: String,
    /// Term, vote and commit index.
    pub hard_state: HardState,
    /// The last entry of the log. Of two servers the one with the higher pair has more.
    pub last: (Term, LogIndex),
    /// The index and the term of the state's checkpoint.
    pub checkpoint: (LogIndex, Term),
    /// The last membership in the log, committed or not.
    pub membership: Membership,
    /// All servers that it knows of.
    pub servers: Vec<Server>,
    /// The number of the log's newest commits that were acknowledged and are lost.
    pub lost_commits: u64,
    /// `true` if a corruption check found its state to be corrupt.
    pub corrupt: bool,
    /// The formats of log and state.
    pub formats: Formats,
    /// The format of the record of the cluster.
    pub record_format: u32,
}

/// Inspects the data folder of a stopped server.
///
/// # Errors
/// Nothing is ever changed.
pub fn inspect(folder: &Path) -> Result<Inspection, FolderError> {
    let record = stopped::record(folder)?;
    let membership = record.membership().ok_or_else(|| FolderError::never_a_member(folder))?;
    let found = Store::inspect(folder, membership.server, CACHE_BYTES)?;
    let Inspected { recovered, formats, lost_commits } =
        found.ok_or_else(|| FolderError::no_store(folder))?;
    let SnapshotMeta { index, term, .. } = recovered.snapshot;
    let last = recovered.entries.last().map_or(recovered.base, |entry| (entry.index, entry.term));
    let rows: Vec<Server> = recovered.state.servers().map(|row| (**row).clone()).collect();
    Ok(Inspection {
        server: membership.server,
        cluster_id: membership.cluster_id,
        hard_state: recovered.hard_state,
        last: (last.1, last.0),
        checkpoint: (index, term),
        membership: membership_after(&recovered),
        servers: if rows.is_empty() { membership.servers } else { rows },
        lost_commits,
        corrupt: record.corrupt,
        formats,
        record_format: record.version(),
    })
}
