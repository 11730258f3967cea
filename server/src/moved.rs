//! Accepts a data folder that was moved while its server was stopped: it counts as the original
//! from now on.
//!
//! **No check can detect that the server ran on the original since.** If it did, it has forgotten
//! its votes and acknowledgements there.

use crate::bootstrap::{BootstrapState, Membership};
use crate::stopped::{self, FolderError};
use crate::store::Store;
use std::path::Path;

/// The server of an accepted folder.
#[derive(Clone, Debug)]
pub struct Moved {
    /// The server's id.
    pub server: u64,
    /// Its cluster.
    pub cluster_id: String,
    /// `true` if the folder had been moved, as far as can be detected.
    pub was_moved: bool,
}

/// Records that the files in a folder are the ones that its server left, in their present location.
///
/// # Errors
/// Nothing was changed.
pub fn moved(folder: &Path) -> Result<Moved, FolderError> {
    // Read before the folder is held, which would create it if it is missing.
    stopped::record(folder)?;
    let held = Store::hold(folder)?;
    // Read again under the lock: a server may have run until a moment ago.
    let mut record = stopped::record(folder)?;
    let BootstrapState::Member(Membership { server, cluster_id, .. }) = record.state.clone() else {
        return Err(FolderError::never_a_member(folder));
    };
    let found = held.origins()?;
    let was_moved = record.copied(&found).is_some();
    record.files = Some(found.first().copied().ok_or_else(|| FolderError::no_store(folder))?);
    record.write(folder)?;
    Ok(Moved { server: server.0, cluster_id, was_moved })
}
