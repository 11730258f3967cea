//! The file that keeps the agent's cluster pin, so that a restart follows no other cluster.
//!
//! `agent/core` decides which cluster is pinned. **Invariant:** no pin is kept after a clean leave.

use crate::node::write_durably;
use lockmesh_agent_core::cluster::Pin;
use lockmesh_net::owner;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The file in the data directory.
pub const FILE: &str = "cluster.json";

/// The contents of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    cluster_id: String,
    index_base: u64,
}

/// The reason why the pin of an earlier process is unknown.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// The file cannot be read.
    #[error("cannot read the cluster pin {path}: {error}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file does not hold a pin.
    #[error(
        "{path} does not hold a cluster pin ({reason}): set `upstream.cluster_id` to the id of this agent's \
         cluster and remove the file"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The parse error.
        reason: String,
    },
}

/// The file of the cluster pin, and the newest pin.
#[derive(Debug, Default)]
pub struct PinStore {
    /// `None` without a data directory: the pin is then valid for this process only.
    path: Option<PathBuf>,
    /// The newest pin; writes may be executed in any order.
    newest: Mutex<Newest>,
}

#[derive(Debug, Default)]
struct Newest {
    pin: Option<Pin>,
    has_left: bool,
}

impl PinStore {
    /// Opens the pin of a data directory, and reads it. Without a directory nothing is kept.
    ///
    /// # Errors
    /// The file cannot be read, or does not hold a pin. The agent must not start, because it would
    /// follow any cluster that answers.
    pub fn open(folder: &Path) -> Result<(Self, Option<Pin>), PinError> {
        let path = folder.join(FILE);
        let pin = match owner::read(&path) {
            Ok(text) => Some(parse(&path, &text)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(PinError::Unreadable { path, error }),
        };
        let path = folder.exists().then_some(path);
        Ok((Self { path, ..Self::default() }, pin))
    }

    /// Records the newest pin; [`Self::write`] makes it durable.
    pub fn note(&self, pin: Pin) {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner).pin = Some(pin);
    }

    /// Writes the newest pin. Waits for the disk.
    pub fn write(&self) {
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        // A late write must not bring back the pin of a node that has left.
        let (Some(path), Some(pin), false) = (&self.path, &newest.pin, newest.has_left) else { return };
        let kept = Kept { cluster_id: pin.cluster_id.clone(), index_base: pin.index_base };
        let text = serde_json::to_string(&kept).expect("strings and numbers become JSON");
        if let Err(error) = write_durably(path, &text) {
            let path = path.display();
            tracing::error!(%path, %error, "cannot keep the cluster pin; it is valid for this process only");
        }
    }

    /// Removes the pin permanently: the node has left the cluster.
    pub fn forget(&self) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        newest.has_left = true;
        let Some(path) = &self.path else { return };
        if let Err(error) = fs::remove_file(path)
            && error.kind() != io::ErrorKind::NotFound
        {
            let path = path.display();
            tracing::error!(%path, %error, "cannot remove the cluster pin: remove it before this agent joins another cluster");
        }
    }
}

fn parse(path: &Path, text: &str) -> Result<Pin, PinError> {
    let damaged = |reason: String| PinError::Damaged { path: path.into(), reason };
    let Kept { cluster_id, index_base } =
        serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
    if cluster_id.is_empty() {
        return Err(damaged("its cluster id is empty".into()));
    }
    Ok(Pin { cluster_id, index_base })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pin_kept_until_leave() {
        let folder = tempfile::tempdir().expect("a folder");
        let (store, pin) = PinStore::open(folder.path()).expect("nothing is there");
        assert_eq!(pin, None);
        let wanted = Pin { cluster_id: "c".into(), index_base: 1 << 32 };
        store.note(wanted.clone());
        store.write();
        let (store, pin) = PinStore::open(folder.path()).expect("it is good");
        assert_eq!(pin, Some(wanted.clone()));
        store.forget();
        store.note(wanted);
        store.write();
        assert_eq!(PinStore::open(folder.path()).expect("it is gone").1, None);
    }

    #[test]
    fn missing_folder_ignored_damaged_pin_fails() {
        let folder = tempfile::tempdir().expect("a folder");
        let (store, _) = PinStore::open(&folder.path().join("none")).expect("nothing is there");
        store.note(Pin::default());
        store.write();
        assert!(!folder.path().join("none").exists());
        for text in ["", "{}", r#"{"cluster_id":"","index_base":0}"#] {
            fs::write(folder.path().join(FILE), text).expect("a file");
            let error = PinStore::open(folder.path()).expect_err("it is no pin").to_string();
            assert!(error.contains(FILE) && error.contains("`upstream.cluster_id`"), "{error}");
        }
    }
}
