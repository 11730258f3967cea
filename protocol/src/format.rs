//! The format of everything that is stored or replicated: rows of the state, log entries, snapshots
//! and backups.
//!
//! Each value starts with one byte, its format version. A build reads every version up to
//! [`NEWEST`]. It writes each value in the oldest version that supports it ([`Stored::version`]),
//! so that replicas of different builds write the same bytes. A cluster has one version.
//! [`Command::RaiseFormat`](crate::command::Command::RaiseFormat) raises it once every server of
//! the roster supports the next one; before that no command of a newer version is proposed. Until
//! then servers of both builds work together, and a downgrade is possible. Afterwards the older
//! build fails with [`FormatError::Unknown`].
//!
//! **Invariant:** stored enums are only appended to, and stored structs never change. Samples of
//! every variant are in `tests/tests/format/` and must stay readable forever, from release 1.0 on,
//! which promises it. Until then a changed format gets another number in the files, and a folder
//! with a different number is rejected with an error that names it.
//!
//! | version | adds |
//! |---|---|
//! | 1 | everything else |
//! | 2 | [`Command::GiveUpSession`] and [`LossCause::GivenUp`] |
//! | 3 | [`LossCause::KeyDeleted`], and a history of losses that is kept by cause |
//! | 4 | other rules for names of nodes: those of restarting nodes pass to another node id, failed owners are forgotten, and restores keep the ids of living agents; nothing new is stored |
//! | 5 | [`LossCause::CheckFailed`] |
//! | 6 | [`Command::UpdateCoordinate`], [`Change::Coordinate`] and [`Table::Coordinates`]; [`Command::PreparedQuery`], [`Change::PreparedQuery`], [`Table::PreparedQueries`] and [`Refusal::PreparedQuery`] |
//! | 7 | [`Command::CreateBoundSession`], [`Command::EndOfProcess`], [`Change::Binding`] and [`LossCause::ProcessExited`] |
//! | 8 | [`Command::AcquireLocks`], [`Change::LockRequest`], [`Change::SharedHold`], [`Change::SharedDelay`], [`Reply::GrantedAll`] and [`Refusal::Lock`] |
//! | 9 | [`Command::ConfigureDeadlocks`], [`Change::Deadlocks`] and [`LockRefusal::Deadlock`] |
//! | 10 | [`Command::Restricted`], [`Command::ConfigureOperatorHosts`], [`Change::OperatorHosts`], [`Refusal::OtherNode`], [`Refusal::NotOperatorHost`] and [`Refusal::TooManySessions`] |
//! | 11 | the caller of a proposal; [`Command::Acl`], the rows and tables of the access control lists, their replies and refusals |
//!
//! [`Command::GiveUpSession`]: crate::command::Command::GiveUpSession
//! [`LossCause::GivenUp`]: crate::record::LossCause::GivenUp
//! [`LossCause::KeyDeleted`]: crate::record::LossCause::KeyDeleted
//! [`LossCause::CheckFailed`]: crate::record::LossCause::CheckFailed
//! [`Command::UpdateCoordinate`]: crate::command::Command::UpdateCoordinate
//! [`Table::Coordinates`]: crate::change::Table::Coordinates
//! [`Command::PreparedQuery`]: crate::command::Command::PreparedQuery
//! [`Table::PreparedQueries`]: crate::change::Table::PreparedQueries
//! [`Refusal::PreparedQuery`]: crate::reply::Refusal::PreparedQuery
//! [`Command::CreateBoundSession`]: crate::command::Command::CreateBoundSession
//! [`Command::EndOfProcess`]: crate::command::Command::EndOfProcess
//! [`LossCause::ProcessExited`]: crate::record::LossCause::ProcessExited
//! [`Command::AcquireLocks`]: crate::command::Command::AcquireLocks
//! [`Reply::GrantedAll`]: crate::reply::Reply::GrantedAll
//! [`Refusal::Lock`]: crate::reply::Refusal::Lock
//! [`Command::ConfigureDeadlocks`]: crate::command::Command::ConfigureDeadlocks
//! [`LockRefusal::Deadlock`]: crate::reply::LockRefusal::Deadlock
//! [`Command::Restricted`]: crate::command::Command::Restricted
//! [`Command::ConfigureOperatorHosts`]: crate::command::Command::ConfigureOperatorHosts
//! [`Refusal::OtherNode`]: crate::reply::Refusal::OtherNode
//! [`Refusal::NotOperatorHost`]: crate::reply::Refusal::NotOperatorHost
//! [`Refusal::TooManySessions`]: crate::reply::Refusal::TooManySessions
//! [`Command::Acl`]: crate::command::Command::Acl
//!
//! To add version 12:
//!
//! 1. Append the new variant to its enum. [`Command::since`](crate::command::Command::since)
//!    returns 12 for a new command, which is not proposed before the cluster is at 12.
//!    [`Stored::version`] returns 12 for each value that contains a new variant.
//! 2. Copy the old form of a struct that changes into a module `v11` beside it, with a
//!    `From<v11::It>` for the new one. [`Stored::decode_version`] of the type that contains it
//!    decodes older versions as `v11` and converts.
//! 3. Set [`NEWEST`] to 12, and record the samples of version 12 beside the others, which stay.

use crate::change::Change;
use crate::rpc::MAX_FRAME_BYTES;
use crate::wire::{self, WireError};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The version of a new cluster.
pub const FIRST: u8 = 1;

/// The newest version that this build reads.
pub const NEWEST: u8 = 11;

/// The reason why stored bytes cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// There is no version byte.
    #[error("there are no stored bytes")]
    Empty,
    /// A newer build wrote it, or the version is invalid.
    #[error("it has format {found}, but this build reads formats up to {known}: install a newer lockmesh")]
    Unknown {
        /// Its version.
        found: u8,
        /// The newest supported version.
        known: u8,
    },
    /// The content does not match its version.
    #[error(transparent)]
    Malformed(#[from] WireError),
}

/// A value that is stored after its format version.
pub trait Stored: Serialize + DeserializeOwned {
    /// Returns the oldest version that supports this value.
    fn version(&self) -> u8 {
        FIRST
    }

    /// Appends the bytes after the version, in the form of [`Stored::version`].
    fn encode_version(&self, bytes: &mut Vec<u8>) {
        wire::encode_into(self, bytes);
    }

    /// Decodes the bytes after the version.
    ///
    /// # Errors
    /// The version is unknown, or the bytes do not match it. Nothing was decoded.
    fn decode_version(version: u8, body: &[u8]) -> Result<Self, FormatError> {
        decode_as(version, body)
    }
}

impl Stored for Change {
    fn version(&self) -> u8 {
        self.since()
    }
}

impl Stored for Vec<Change> {
    fn version(&self) -> u8 {
        self.iter().map(Change::since).max().unwrap_or(FIRST)
    }
}

/// Decodes the bytes after a version of this build's formats, in a form that the version has. Bytes
/// that fit into a frame may not claim more than a frame.
///
/// # Errors
/// The version is unknown, or the bytes are corrupt.
pub fn decode_as<T: DeserializeOwned>(version: u8, body: &[u8]) -> Result<T, FormatError> {
    if !(FIRST..=NEWEST).contains(&version) {
        return Err(FormatError::Unknown { found: version, known: NEWEST });
    }
    Ok(match body.len() {
        ..=MAX_FRAME_BYTES => wire::decode_bare::<_, MAX_FRAME_BYTES>(body)?,
        _ => wire::decode_stored(body)?,
    })
}

/// Encodes a value after its format version.
pub fn encode<T: Stored>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    encode_into(value, &mut bytes);
    bytes
}

/// Appends a value after its format version.
pub fn encode_into<T: Stored>(value: &T, bytes: &mut Vec<u8>) {
    bytes.push(value.version());
    value.encode_version(bytes);
}

/// Decodes the output of [`encode`] of this or an earlier build.
///
/// # Errors
/// It was written by a later build, or is corrupt. Nothing was decoded.
pub fn decode<T: Stored>(bytes: &[u8]) -> Result<T, FormatError> {
    let (version, body) = bytes.split_first().ok_or(FormatError::Empty)?;
    T::decode_version(*version, body)
}

/// Checks that stored bytes have a version that a build up to version `known` reads.
///
/// # Errors
/// They do not.
pub fn check_version(bytes: &[u8], known: u8) -> Result<(), FormatError> {
    match *bytes.first().ok_or(FormatError::Empty)? {
        found if (FIRST..=known).contains(&found) => Ok(()),
        found => Err(FormatError::Unknown { found, known }),
    }
}

#[cfg(test)]
mod tests {
    use super::{FormatError, NEWEST, Stored, check_version, decode, encode};
    use crate::change::Change;
    use crate::id::Fence;
    use crate::wire;
    use serde::{Deserialize, Serialize};

    /// A record of a later build: its count became larger, and a reason was added.
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Record {
        name: String,
        count: u64,
        reason: Option<String>,
    }

    mod v1 {
        /// The record of the first build.
        #[derive(serde::Serialize, serde::Deserialize)]
        pub(super) struct Record {
            pub(super) name: String,
            pub(super) count: u8,
        }
    }

    impl From<v1::Record> for Record {
        fn from(old: v1::Record) -> Self {
            Self { name: old.name, count: old.count.into(), reason: None }
        }
    }

    impl Stored for Record {
        fn decode_version(version: u8, body: &[u8]) -> Result<Self, FormatError> {
            match version {
                1 => Ok(wire::decode_stored::<v1::Record>(body)?.into()),
                2 => Ok(wire::decode_stored(body)?),
                found => Err(FormatError::Unknown { found, known: 2 }),
            }
        }
    }

    fn stored(version: u8, record: &impl Serialize) -> Vec<u8> {
        let mut bytes = vec![version];
        wire::encode_into(record, &mut bytes);
        bytes
    }

    #[test]
    fn decodes_older_versions() {
        let old = stored(1, &v1::Record { name: "a".into(), count: 7 });
        let read = Record { name: "a".into(), count: 7, reason: None };
        assert_eq!(decode::<Record>(&old), Ok(read));
        let new = Record { name: "a".into(), count: 300, reason: Some("more".into()) };
        assert_eq!(decode::<Record>(&stored(2, &new)), Ok(new));
    }

    #[test]
    fn newer_or_malformed_record_rejected() {
        let record = Record { name: "a".into(), count: 300, reason: None };
        let error = decode::<Record>(&stored(3, &record)).expect_err("an unknown version").to_string();
        assert_eq!(error, "it has format 3, but this build reads formats up to 2: install a newer lockmesh");
        let mut row = encode(&Change::Fence(Fence(7)));
        assert_eq!(decode::<Change>(&row), Ok(Change::Fence(Fence(7))));
        row[0] = NEWEST + 1;
        assert_eq!(decode::<Change>(&row), Err(FormatError::Unknown { found: NEWEST + 1, known: NEWEST }));
        assert_eq!(decode::<Change>(&[]), Err(FormatError::Empty));
        assert!(matches!(decode::<Change>(&[NEWEST, 250]), Err(FormatError::Malformed(_))));
    }

    #[test]
    fn accepts_versions_first_through_newest() {
        for (bytes, is_known) in
            [(&[1, 9][..], true), (&[2], true), (&[3], false), (&[0], false), (&[], false)]
        {
            assert_eq!(check_version(bytes, 2).is_ok(), is_known, "{bytes:?}");
        }
    }
}
