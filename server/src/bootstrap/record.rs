//! `quorum.json`: the durable record of the cluster that a server founds or belongs to.
//!
//! **Invariant:** its content is durable before it is announced or acted on: an instance id before
//! the first introduction, a promise before it is sent, membership before Raft begins.

use crate::store::Origins;
use lockmesh_net::files::FileError;
use lockmesh_net::{owner, private};
use lockmesh_protocol::bootstrap::BootstrapPlan;
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::record::Server;
use lockmesh_protocol::rpc::Joined;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The version that this build reads and writes. The promise to read older versions begins with it.
const VERSION: u32 = 2;

/// The contents of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    version: u32,
    /// The server's instance id, drawn with the data folder.
    pub(crate) instance_id: String,
    pub(crate) state: BootstrapState,
    /// The store's files, as this server made or last used them; any others are copies. `None`
    /// before the first membership, and in folders of versions that did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) files: Option<Origins>,
    /// `true` if the server was removed from its quorum.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) removed: bool,
    /// `true` if a corruption check found that the server's state is corrupt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) corrupt: bool,
}

/// The part of the file that every version has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// The progress of a server's bootstrap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum BootstrapState {
    /// The server belongs to no cluster.
    Free,
    /// The server founds this cluster, or none. Its store may exist, but Raft has not begun.
    Promised(BootstrapPlan),
    /// A cluster has admitted the server. Its store may exist, but Raft has not begun.
    Admitted(Membership),
    /// The server belongs to a cluster, and its store exists.
    Member(Membership),
}

/// A server's identity in its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Membership {
    pub(crate) server: ServerId,
    pub(crate) cluster_id: String,
    /// The servers when it became a member; superseded by the replicated state.
    pub(crate) servers: Vec<Server>,
}

/// The reason that a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file cannot be read or written.
    #[error("cannot {doing} {path}: {source}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Written by a newer build, or by one older than the first that promises to read its files
    /// forever.
    #[error(
        "{path} has version {found}, but this build reads version {known} only: start the lockmesh that wrote it, or \
         empty the whole data folder and start this one: if it is one of several servers it joins as a new one; nothing \
         was changed"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The version that this build reads.
        known: u32,
    },
    /// The file does not hold a record.
    #[error(
        "{path} is damaged ({reason}); if this is one of several servers, empty its whole data \
             folder and start it: it joins as a new one; if it is alone, move the folder away, start it, and restore a \
             saved backup into it"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The parse error.
        reason: String,
    },
}

impl Record {
    /// The file's name in the data folder.
    pub(crate) const FILE: &str = "quorum.json";
    /// The file's name while it is being written.
    pub(crate) const NEW_FILE: &str = "quorum.json.new";

    /// Returns the record of a new data folder.
    pub(crate) fn fresh(instance_id: String) -> Self {
        Self {
            version: VERSION,
            instance_id,
            state: BootstrapState::Free,
            files: None,
            removed: false,
            corrupt: false,
        }
    }

    /// Returns the version of the file's format.
    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    /// Reads the record of a data folder; `None` if there is no file.
    pub(crate) fn read(folder: &Path) -> Result<Option<Self>, RecordError> {
        let path = folder.join(Self::FILE);
        let text = match owner::read(&path) {
            Ok(text) => text,
            // A new data folder. Only a missing file proves it: any other error may hide a promise.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(RecordError::Io { doing: "read", path, source }),
        };
        // The version comes first: the fields of other versions are unknown.
        let version = serde_json::from_str::<Versioned>(&text).map(|record| record.version);
        if let Some(found) = version.ok().filter(|found| *found != VERSION) {
            return Err(RecordError::Version { path, found, known: VERSION });
        }
        let record = serde_json::from_str(&text);
        record.map(Some).map_err(|error| RecordError::Damaged { path, reason: error.to_string() })
    }

    /// Makes the record durable, atomically.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), RecordError> {
        let path = folder.join(Self::FILE);
        self.write_and_rename(folder, &path).map_err(|source| RecordError::Io {
            doing: "write",
            path,
            source,
        })
    }

    /// Returns the expected and the actual files of the store if they differ: they are copies. Any
    /// of those found counts, see [`crate::store::HeldFolder::origins`].
    pub(crate) fn copied(&self, found: &[Origins]) -> Option<(Origins, Origins)> {
        // Nothing is recorded before the membership, and a crash during the store's creation is no
        // copy.
        let recorded = matches!(self.state, BootstrapState::Member(_)).then_some(self.files?)?;
        (!found.contains(&recorded)).then_some((recorded, *found.first()?))
    }

    /// Returns this server's identity in its cluster, once it has promised to found it or was
    /// admitted.
    pub(crate) fn membership(&self) -> Option<Membership> {
        match &self.state {
            BootstrapState::Free => None,
            // A founder that is not in its own plan has none: the plan dates from before its folder
            // was emptied.
            BootstrapState::Promised(plan) => Membership::of_founder(plan, &self.instance_id),
            BootstrapState::Admitted(membership) | BootstrapState::Member(membership) => {
                Some(membership.clone())
            }
        }
    }

    fn write_and_rename(&self, folder: &Path, path: &Path) -> io::Result<()> {
        private::make_folder(folder).map_err(FileError::into_source)?;
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        // Written beside the file and renamed over it: a crash leaves the old one or the new one.
        let temporary = folder.join(Self::NEW_FILE);
        let mut file = private::create_file(&temporary)?;
        file.write_all(text.as_bytes())?;
        // Before the rename: a name on disk must not refer to contents that are not.
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(folder)?.sync_all()
    }
}

impl Membership {
    /// Returns the membership of a founder; `None` if it is not in the plan.
    fn of_founder(plan: &BootstrapPlan, instance_id: &str) -> Option<Self> {
        let server = plan.server(instance_id)?.id;
        let BootstrapPlan { cluster_id, servers } = plan.clone();
        Some(Self { server, cluster_id, servers })
    }
}

impl From<Joined> for Membership {
    fn from(joined: Joined) -> Self {
        let Joined { server, cluster_id, servers } = joined;
        Self { server, cluster_id, servers }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cluster_of;
    use super::{BootstrapState, Membership, Record, RecordError};
    use crate::store::{Origin, Origins};
    use lockmesh_protocol::id::ServerId;

    #[test]
    fn written_record_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        assert_eq!(Record::read(&data).unwrap(), None);
        let mut record = Record::fresh("b".into());
        record.write(&data).unwrap();
        assert_eq!(Record::read(&data).unwrap(), Some(record.clone()));
        let membership = Membership { server: ServerId(3), cluster_id: "c".into(), servers: Vec::new() };
        assert_eq!(cluster_of(&data).unwrap(), None, "it belongs to nothing yet");
        record.state = BootstrapState::Member(membership);
        record.write(&data).unwrap();
        assert_eq!(Record::read(&data).unwrap(), Some(record.clone()));
        assert_eq!(cluster_of(&data).unwrap().as_deref(), Some("c"));
        record.files = Some(files(1));
        record.write(&data).unwrap();
        assert_eq!(Record::read(&data).unwrap(), Some(record));
        assert_eq!(std::fs::read_dir(&data).unwrap().count(), 1);
    }

    fn files(made: i64) -> Origins {
        Origins { log: Origin::Made(made, 7), state: Origin::Made(made, 8) }
    }

    #[test]
    fn changed_member_files_are_copies() {
        let membership = Membership { server: ServerId(3), cluster_id: "c".into(), servers: Vec::new() };
        let mut record = Record::fresh("b".into());
        // The files are made before the record says that their server is a member: a crash in
        // between makes no copy.
        record.state = BootstrapState::Admitted(membership.clone());
        assert_eq!(record.copied(&[files(2)]), None);
        record.state = BootstrapState::Member(membership);
        assert_eq!(record.copied(&[files(2)]), None, "an older version noted nothing");
        record.files = Some(files(1));
        assert_eq!(record.copied(&[files(1)]), None);
        assert_eq!(record.copied(&[]), None, "that they are gone is another error");
        assert_eq!(record.copied(&[files(2)]), Some((files(1), files(2))));
        let log_alone = Origins { log: Origin::Inode(5), ..files(1) };
        assert_eq!(record.copied(&[log_alone]), Some((files(1), log_alone)));
        assert_eq!(record.copied(&[log_alone, files(1)]), None, "a converted log, and the former one");
    }

    #[test]
    fn damaged_record_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["", "{}", r#"{"instance_id": "b", "state": "free"}"#, r#"{"version": 2}"#] {
            std::fs::write(folder.path().join(Record::FILE), text).unwrap();
            assert!(matches!(Record::read(folder.path()), Err(RecordError::Damaged { .. })), "{text}");
        }
    }

    #[test]
    fn other_record_version_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        // The first was written by the builds that had no versions of rows.
        let others = [
            (
                1,
                r#"{"version": 1, "birth": "b", "place": {"member": {"server": 1, "cluster_id": "c", "servers": []}}}"#,
            ),
            (3, r#"{"version": 3, "future": []}"#),
        ];
        for (version, text) in others {
            std::fs::write(folder.path().join(Record::FILE), text).unwrap();
            let error = Record::read(folder.path()).expect_err("this build does not read it");
            assert!(
                matches!(error, RecordError::Version { found, known: 2, .. } if found == version),
                "{text}"
            );
            assert!(error.to_string().contains("quorum.json has version"), "{error}");
        }
    }
}
