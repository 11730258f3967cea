//! Takes a data folder that was moved while its server was stopped for the original, which it is.
//!
//! **Nothing here can know whether anything ran on the original since**: if it did, the server has
//! forgotten what it voted and acknowledged there.

use crate::bootstrap::{BootstrapState, Membership};
use crate::stopped::{self, FolderError};
use crate::store::Store;
use std::path::Path;

/// Whose folder was taken.
#[derive(Clone, Debug)]
pub struct Moved {
    /// The server's id.
    pub server: u64,
    /// Its cluster.
    pub cluster_id: String,
    /// Whether the folder had been moved, as far as can be seen.
    pub was_moved: bool,
}

/// Notes that the files in a folder are the ones that its server left, wherever they lie now.
///
/// # Errors
/// Nothing was changed.
pub fn moved(folder: &Path) -> Result<Moved, FolderError> {
    // Looked at before the folder is held, which would make it where it is missing.
    stopped::record(folder)?;
    let held = Store::hold(folder)?;
    // And again now: a server may have run until a moment ago.
    let mut record = stopped::record(folder)?;
    let BootstrapState::Member(Membership { server, cluster_id, .. }) = record.state.clone() else {
        return Err(FolderError::never_a_member(folder));
    };
    let found = held.origins()?.ok_or_else(|| FolderError::no_store(folder))?;
    let was_moved = record.copied(Some(found)).is_some();
    record.files = Some(found);
    record.write(folder)?;
    Ok(Moved { server: server.0, cluster_id, was_moved })
}
