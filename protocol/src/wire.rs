//! The encoding of all messages: the only file that names bincode.
//!
//! A message is one version byte followed by the value. Decoding accepts only the known version,
//! never reads more than the given limit, and rejects trailing bytes.

use serde::{Serialize, de::DeserializeOwned};
use std::io;

/// The maximum size of a frame in bytes.
pub const MAX_FRAME_BYTES: usize = 8 << 20;

/// The version that this build writes and reads.
pub const VERSION: u8 = 2;

/// The reason why bytes are not a message. Nothing was decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// There is no version byte.
    #[error("an empty message")]
    Empty,
    /// The sender uses another version.
    #[error("message version {0}, but this build speaks version {VERSION}")]
    Version(u8),
    /// The message exceeds the limit.
    #[error("a message of {length} bytes, but at most {limit} are allowed")]
    TooLong {
        /// The size in bytes.
        length: usize,
        /// The maximum size in bytes.
        limit: usize,
    },
    /// The bytes are not a value of the expected type.
    #[error("a malformed message: {0}")]
    Malformed(String),
    /// There are trailing bytes.
    #[error("{0} bytes are left over after the message")]
    Trailing(usize),
}

/// Encodes a value, after its version.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    encode_into(value, &mut bytes);
    bytes
}

/// Appends a value without a version: for a part of a message that has one.
pub fn encode_into<T: Serialize>(value: &T, bytes: &mut Vec<u8>) {
    let config = bincode::config::standard();
    // Writing to memory cannot fail, and the protocol's types have no map or sequence of unknown
    // length.
    bincode::serde::encode_into_std_write(value, bytes, config).expect("our own types are encodable");
}

/// Appends a value without a version, if it takes at most `limit` bytes. Nothing of a longer value
/// is appended, and encoding stops at the limit.
///
/// # Errors
/// The value is longer.
pub fn encode_within<T: Serialize>(value: &T, bytes: &mut Vec<u8>, limit: usize) -> Result<(), LimitReached> {
    let start = bytes.len();
    let mut bounded = Bounded { end: start.saturating_add(limit), bytes };
    // Only the limit can make the encoding of the protocol's types fail.
    let encoded = bincode::serde::encode_into_std_write(value, &mut bounded, bincode::config::standard());
    if encoded.is_err() {
        // The rest of a value would be read as the beginning of the next one.
        bytes.truncate(start);
        return Err(LimitReached { limit });
    }
    Ok(())
}

/// A value exceeds its maximum size. Nothing of it was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {limit} bytes")]
pub struct LimitReached {
    /// The maximum size in bytes.
    pub limit: usize,
}

/// A writer with a size limit.
struct Bounded<'a> {
    bytes: &'a mut Vec<u8>,
    end: usize,
}

impl io::Write for Bounded<'_> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + piece.len() > self.end {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Decodes a message of at most `LIMIT` bytes.
///
/// # Errors
/// The bytes are not exactly one message of this version. Nothing was decoded; the sender is at
/// fault, or runs another build.
pub fn decode<T: DeserializeOwned, const LIMIT: usize>(bytes: &[u8]) -> Result<T, WireError> {
    let (version, body) = bytes.split_first().ok_or(WireError::Empty)?;
    if *version != VERSION {
        return Err(WireError::Version(*version));
    }
    decode_bare::<T, LIMIT>(body)
}

/// The maximum size that a decoder may claim for a frame. The decoder counts a number at its full
/// width, up to eight times its encoded size, so this leaves room for a frame full of small
/// numbers.
const CLAIM_LIMIT: usize = 8 * MAX_FRAME_BYTES;

/// Decodes the output of [`encode_into`]. `LIMIT` is at most [`MAX_FRAME_BYTES`].
///
/// # Errors
/// The bytes are not exactly one value. Nothing was decoded; the sender is at fault.
pub fn decode_bare<T: DeserializeOwned, const LIMIT: usize>(bytes: &[u8]) -> Result<T, WireError> {
    if bytes.len() > LIMIT {
        return Err(WireError::TooLong { length: bytes.len(), limit: LIMIT });
    }
    const { assert!(LIMIT <= MAX_FRAME_BYTES, "the claim limit is made for frames") };
    let config = bincode::config::standard().with_limit::<CLAIM_LIMIT>();
    whole(bytes, bincode::serde::decode_from_slice(bytes, config))
}

/// The maximum size that a decoder of stored bytes may claim: far more than any row contains, and
/// less than a corrupt length claims.
const STORED_CLAIM_LIMIT: usize = 1 << 30;

/// Decodes the output of [`encode_into`] from the local disk, of any size. Never for bytes of a
/// peer.
///
/// # Errors
/// The bytes are not exactly one value: they are corrupt, or another build's. Nothing was decoded,
/// and the file must not be overwritten.
pub fn decode_stored<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    let config = bincode::config::standard().with_limit::<STORED_CLAIM_LIMIT>();
    whole(bytes, bincode::serde::decode_from_slice(bytes, config))
}

fn whole<T>(bytes: &[u8], decoded: Result<(T, usize), bincode::error::DecodeError>) -> Result<T, WireError> {
    let (value, read) = decoded.map_err(|error| WireError::Malformed(error.to_string()))?;
    match bytes.len() - read {
        0 => Ok(value),
        left => Err(WireError::Trailing(left)),
    }
}

#[cfg(test)]
mod tests {
    use super::MAX_FRAME_BYTES;
    use super::{LimitReached, WireError, decode, decode_stored, encode, encode_into, encode_within};
    use crate::rpc::{Call, CallFrame, CallId};

    #[test]
    fn densely_packed_frame_decodes() {
        const LIMIT: usize = 64 << 10;
        let calls = CallFrame(vec![Call::Cancel(CallId(1)); LIMIT / 2 - 8]);
        let bytes = encode(&calls);
        assert!(bytes.len() > LIMIT - 100);
        assert_eq!(decode::<CallFrame, LIMIT>(&bytes), Ok(calls));
    }

    #[test]
    fn stored_values_may_exceed_frame_limit() {
        let long = vec!["x".repeat(1 << 20); 9];
        let mut bytes = Vec::new();
        encode_into(&long, &mut bytes);
        assert!(bytes.len() > MAX_FRAME_BYTES);
        assert_eq!(decode_stored::<Vec<String>>(&bytes), Ok(long));
        assert!(matches!(decode_stored::<Vec<String>>(&bytes[1..]), Err(WireError::Malformed(_))));
        let damaged = [253, 0, 0, 0, 0, 0, 0, 0, 16];
        assert!(matches!(decode_stored::<String>(&damaged), Err(WireError::Malformed(_))));
    }

    #[test]
    fn encoding_beyond_limit_writes_nothing() {
        let calls = CallFrame(vec![Call::Cancel(CallId(300)); 10]);
        let (mut whole, mut bytes) = (b"before".to_vec(), b"before".to_vec());
        encode_into(&calls, &mut whole);
        let length = whole.len() - bytes.len();
        assert_eq!(encode_within(&calls, &mut bytes, length - 1), Err(LimitReached { limit: length - 1 }));
        assert_eq!(bytes, b"before");
        assert_eq!(encode_within(&calls, &mut bytes, length), Ok(()));
        assert_eq!(bytes, whole);
    }

    #[test]
    fn invalid_frames_rejected() {
        let error = |bytes: &[u8]| decode::<CallFrame, 100>(bytes).expect_err("this is no message");
        assert_eq!(error(&[]), WireError::Empty);
        assert_eq!(error(&[9, 0]), WireError::Version(9));
        assert_eq!(error(&[0; 102][..]), WireError::Version(0));
        assert_eq!(error(&[2; 102][..]), WireError::TooLong { length: 101, limit: 100 });
        assert_eq!(error(&[2, 0, 0]), WireError::Trailing(1));
        assert!(matches!(error(&[2, 253, 255, 255, 255, 255, 255, 255, 255, 255]), WireError::Malformed(_)));
    }
}
