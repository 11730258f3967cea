//! The file that permits another bootstrap of the access control lists, for operators who lost the
//! management token: it proves access to the data folder of the leader. It holds the index that the
//! refusal of a bootstrap names, and is removed once a bootstrap has used it.

use lockmesh_protocol::id::LogIndex;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file's name, as in Consul.
const FILE: &str = "acl-bootstrap-reset";

/// The interval at which it is read.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);

/// The reset that the file permits.
#[derive(Debug)]
pub(super) struct AclReset {
    path: PathBuf,
    permitted: Option<LogIndex>,
    /// `true` if that was the index of the last bootstrap when it was read.
    was_valid: bool,
}

impl AclReset {
    pub(super) fn in_folder(data_dir: &Path) -> Self {
        Self { path: data_dir.join(FILE), permitted: None, was_valid: false }
    }

    /// Reads the file, and removes one that was used. `bootstrapped_at` is the index of the last
    /// bootstrap.
    pub(super) fn read(&mut self, bootstrapped_at: LogIndex) -> Option<LogIndex> {
        let text = std::fs::read_to_string(&self.path).ok();
        let index = text.and_then(|text| text.trim().parse().ok()).map(LogIndex);
        // One that was wrong from the beginning stays, for its operator to see.
        let was_used = index.is_some() && index == self.permitted && index < Some(bootstrapped_at);
        if was_used && self.was_valid {
            match std::fs::remove_file(&self.path) {
                Ok(()) => tracing::info!(file = ?self.path, "ACL bootstrap reset used, file removed"),
                Err(error) => {
                    tracing::warn!(file = ?self.path, %error, "ACL bootstrap reset used, file not removed");
                }
            }
            (self.permitted, self.was_valid) = (None, false);
            return None;
        }
        if index == Some(bootstrapped_at) && index != self.permitted {
            tracing::warn!(file = ?self.path, "the next ACL bootstrap is permitted");
        }
        (self.permitted, self.was_valid) = (index, index == Some(bootstrapped_at));
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Contract: 133.
    #[test]
    fn file_permits_one_reset() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut reset = AclReset::in_folder(folder.path());
        let file = folder.path().join(FILE);
        assert_eq!(reset.read(LogIndex(7)), None);
        std::fs::write(&file, "7\n").expect("the file is written");
        assert_eq!(reset.read(LogIndex(7)), Some(LogIndex(7)));
        assert_eq!(reset.read(LogIndex(9)), None);
        assert!(!file.exists(), "it was used");
        std::fs::write(&file, "5").expect("the file is written");
        assert_eq!(reset.read(LogIndex(9)), Some(LogIndex(5)), "the bootstrap is refused with both numbers");
        assert_eq!(reset.read(LogIndex(9)), Some(LogIndex(5)));
    }
}
