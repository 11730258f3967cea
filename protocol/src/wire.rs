//! How everything becomes bytes: the one file that names bincode.
//!
//! A message is one version byte and then the value. Decoding takes only the version it knows, never reads
//! more than the limit it is given, and refuses bytes that are left over.

use serde::{Serialize, de::DeserializeOwned};

/// The version that this build writes and reads.
pub const VERSION: u8 = 1;

/// Why bytes are not a message. Nothing was taken from them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// There is not even a version.
    #[error("an empty message")]
    Empty,
    /// Somebody speaks another version.
    #[error("message version {0}, but this build speaks version {VERSION}")]
    Version(u8),
    /// More bytes than allowed.
    #[error("a message of {length} bytes, but at most {limit} are allowed")]
    TooLong {
        /// How many there are.
        length: usize,
        /// How many there may be.
        limit: usize,
    },
    /// The bytes do not spell the type that was expected.
    #[error("a malformed message: {0}")]
    Malformed(String),
    /// Bytes are left over.
    #[error("{0} bytes are left over after the message")]
    Trailing(usize),
}

/// Encodes a value, with its version in front.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    encode_into(value, &mut bytes);
    bytes
}

/// Appends a value, without a version: for a part of something that carries one.
pub fn encode_into<T: Serialize>(value: &T, bytes: &mut Vec<u8>) {
    let config = bincode::config::standard();
    // Writing to memory cannot fail, and our own types have no map or sequence of unknown length.
    bincode::serde::encode_into_std_write(value, bytes, config).expect("our own types are encodable");
}

/// Decodes a message of at most `LIMIT` bytes.
pub fn decode<T: DeserializeOwned, const LIMIT: usize>(bytes: &[u8]) -> Result<T, WireError> {
    let (version, body) = bytes.split_first().ok_or(WireError::Empty)?;
    if *version != VERSION {
        return Err(WireError::Version(*version));
    }
    decode_bare::<T, LIMIT>(body)
}

/// Decodes what [`encode_into`] wrote.
pub fn decode_bare<T: DeserializeOwned, const LIMIT: usize>(bytes: &[u8]) -> Result<T, WireError> {
    if bytes.len() > LIMIT {
        return Err(WireError::TooLong { length: bytes.len(), limit: LIMIT });
    }
    let config = bincode::config::standard().with_limit::<LIMIT>();
    let (value, read) = bincode::serde::decode_from_slice(bytes, config)
        .map_err(|error| WireError::Malformed(error.to_string()))?;
    match bytes.len() - read {
        0 => Ok(value),
        left => Err(WireError::Trailing(left)),
    }
}
