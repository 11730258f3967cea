//! The format of all that is stored or replicated: rows of the state, log entries, snapshots and
//! backups.
//!
//! Each of these begins with one byte, the version of its format. A build reads every version up to
//! [`NEWEST`], and writes each value in the oldest version that can hold it ([`Stored::version`]), so
//! that replicas of different builds write the same bytes. A cluster is at one version, which
//! [`Command::RaiseFormat`](crate::command::Command::RaiseFormat) raises once every server of the
//! roster can read the next; until then no command of a newer version is proposed. So servers of
//! both builds work together, and the older build may come back; afterwards it may not, and says so
//! ([`FormatError::Unknown`]).
//!
//! **Invariant:** an enum that is stored is only appended to, and no struct that is stored changes.
//! Samples of every variant lie in `tests/tests/format/` and must be read
//! for ever, from the release on that promises it (1.0); until then a changed format gets another
//! number in the files, and a folder of another one is refused by name.
//!
//! | version | adds |
//! |---|---|
//! | 1 | everything else |
//! | 2 | [`Command::GiveUpSession`](crate::command::Command::GiveUpSession) and [`LossCause::GivenUp`](crate::record::LossCause::GivenUp) |
//! | 3 | [`LossCause::KeyDeleted`](crate::record::LossCause::KeyDeleted), and a history of losses that is kept by cause |
//!
//! How to add version 4:
//!
//! 1. An enum gets its new variant at its end, and
//!    [`Command::since`](crate::command::Command::since) says 4 for a new command: it is not
//!    proposed before the cluster is at 4. [`Stored::version`] says 4 for each value that holds a
//!    new variant.
//! 2. A struct that changes is copied as it was into a module `v3` beside it, with a `From<v3::It>`
//!    for the new one, and [`Stored::decode_version`] of the type that holds it reads the older
//!    versions as `v3` and converts.
//! 3. [`NEWEST`] becomes 4, and the samples of version 4 are recorded beside those of the others,
//!    which stay.

use crate::change::Change;
use crate::rpc::MAX_FRAME_BYTES;
use crate::wire::{self, WireError};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The version that a new cluster begins with.
pub const FIRST: u8 = 1;

/// The newest version that this build reads.
pub const NEWEST: u8 = 3;

/// Why stored bytes cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// There is not even a version.
    #[error("nothing is stored there")]
    Empty,
    /// A newer build wrote it, or it is no version at all.
    #[error("it has format {found}, but this build reads formats up to {known}: install a newer lockmesh")]
    Unknown {
        /// Its version.
        found: u8,
        /// The newest that is read.
        known: u8,
    },
    /// It is not what its version says.
    #[error(transparent)]
    Malformed(#[from] WireError),
}

/// What is stored behind the version of its format.
pub trait Stored: Serialize + DeserializeOwned {
    /// The oldest version that can hold this value.
    fn version(&self) -> u8 {
        FIRST
    }

    /// Reads what stands behind the version.
    ///
    /// # Errors
    /// Nothing was taken: the version is not known, or the bytes are not of it.
    fn decode_version(version: u8, body: &[u8]) -> Result<Self, FormatError> {
        match version {
            FIRST..=NEWEST => decode_body(body),
            found => Err(FormatError::Unknown { found, known: NEWEST }),
        }
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

/// Decodes what stands behind a version: what is no longer than a frame may claim no more than one.
///
/// # Errors
/// It is damaged.
fn decode_body<T: Stored>(body: &[u8]) -> Result<T, FormatError> {
    Ok(match body.len() {
        ..=MAX_FRAME_BYTES => wire::decode_bare::<_, MAX_FRAME_BYTES>(body)?,
        _ => wire::decode_stored(body)?,
    })
}

/// Encodes a value behind the version of its format.
pub fn encode<T: Stored>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    encode_into(value, &mut bytes);
    bytes
}

/// Appends a value behind the version of its format.
pub fn encode_into<T: Stored>(value: &T, bytes: &mut Vec<u8>) {
    bytes.push(value.version());
    wire::encode_into(value, bytes);
}

/// Decodes what [`encode`] of this or an earlier build wrote.
///
/// # Errors
/// Nothing was taken: it is of a later build, or damaged.
pub fn decode<T: Stored>(bytes: &[u8]) -> Result<T, FormatError> {
    let (version, body) = bytes.split_first().ok_or(FormatError::Empty)?;
    T::decode_version(*version, body)
}

/// Whether stored bytes are of a version that a build reads which knows none above `known`.
///
/// # Errors
/// They are not.
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

    /// A record as a later build has it: its count became larger, and got a reason.
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Record {
        name: String,
        count: u64,
        reason: Option<String>,
    }

    mod v1 {
        /// The record as the first build had it.
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
    fn a_later_build_reads_what_an_earlier_one_wrote() {
        let old = stored(1, &v1::Record { name: "a".into(), count: 7 });
        let read = Record { name: "a".into(), count: 7, reason: None };
        assert_eq!(decode::<Record>(&old), Ok(read));
        let new = Record { name: "a".into(), count: 300, reason: Some("more".into()) };
        assert_eq!(decode::<Record>(&stored(2, &new)), Ok(new));
    }

    #[test]
    fn what_a_later_build_wrote_is_refused_in_words() {
        let record = Record { name: "a".into(), count: 300, reason: None };
        let error = decode::<Record>(&stored(3, &record)).expect_err("nobody knows it").to_string();
        assert_eq!(error, "it has format 3, but this build reads formats up to 2: install a newer lockmesh");
        let mut row = encode(&Change::Fence(Fence(7)));
        assert_eq!(decode::<Change>(&row), Ok(Change::Fence(Fence(7))));
        row[0] = NEWEST + 1;
        assert_eq!(decode::<Change>(&row), Err(FormatError::Unknown { found: NEWEST + 1, known: NEWEST }));
        assert_eq!(decode::<Change>(&[]), Err(FormatError::Empty));
        assert!(matches!(decode::<Change>(&[NEWEST, 250]), Err(FormatError::Malformed(_))));
    }

    #[test]
    fn a_version_is_known_from_the_first_to_the_newest() {
        for (bytes, is_known) in
            [(&[1, 9][..], true), (&[2], true), (&[3], false), (&[0], false), (&[], false)]
        {
            assert_eq!(check_version(bytes, 2).is_ok(), is_known, "{bytes:?}");
        }
    }
}
