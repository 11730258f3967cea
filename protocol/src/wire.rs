//! How everything becomes bytes: the one file that names bincode.
//!
//! A message is one version byte and then the value. Decoding takes only the version it knows,
//! never reads more than the limit it is given, and refuses bytes that are left over.

use serde::{Serialize, de::DeserializeOwned};
use std::io;

/// The longest frame in bytes.
pub const MAX_FRAME_BYTES: usize = 8 << 20;

/// The version that this build writes and reads.
pub const VERSION: u8 = 2;

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

/// Appends a value, without a version, if it takes at most `limit` bytes. Of a longer one nothing
/// is appended, and no more than that is encoded.
///
/// # Errors
/// The value is longer.
pub fn encode_within<T: Serialize>(value: &T, bytes: &mut Vec<u8>, limit: usize) -> Result<(), LimitReached> {
    let start = bytes.len();
    let mut bounded = Bounded { end: start.saturating_add(limit), bytes };
    // Nothing but the limit can keep our own types from being encoded.
    let encoded = bincode::serde::encode_into_std_write(value, &mut bounded, bincode::config::standard());
    if encoded.is_err() {
        bytes.truncate(start);
        return Err(LimitReached { limit });
    }
    Ok(())
}

/// A value takes more bytes than it may. Nothing of it was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {limit} bytes")]
pub struct LimitReached {
    /// How many it may take.
    pub limit: usize,
}

/// Takes bytes up to an end.
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
/// The bytes are not one whole message of this version. Nothing was taken from them; whoever sent
/// them is at fault, or runs another build.
pub fn decode<T: DeserializeOwned, const LIMIT: usize>(bytes: &[u8]) -> Result<T, WireError> {
    let (version, body) = bytes.split_first().ok_or(WireError::Empty)?;
    if *version != VERSION {
        return Err(WireError::Version(*version));
    }
    decode_bare::<T, LIMIT>(body)
}

/// What a decoder may claim while it reads. The decoder counts a number as if it were written in
/// full, up to eight times its real length, so this leaves room for a frame full of small numbers.
const CLAIM_LIMIT: usize = 8 * MAX_FRAME_BYTES;

/// Decodes what [`encode_into`] wrote. `LIMIT` is at most [`MAX_FRAME_BYTES`].
///
/// # Errors
/// The bytes are not one whole value. Nothing was taken from them; whoever sent them is at fault.
pub fn decode_bare<T: DeserializeOwned, const LIMIT: usize>(bytes: &[u8]) -> Result<T, WireError> {
    if bytes.len() > LIMIT {
        return Err(WireError::TooLong { length: bytes.len(), limit: LIMIT });
    }
    const { assert!(LIMIT <= MAX_FRAME_BYTES, "the claim limit is made for frames") };
    let config = bincode::config::standard().with_limit::<CLAIM_LIMIT>();
    whole(bytes, bincode::serde::decode_from_slice(bytes, config))
}

/// What a decoder of stored bytes may claim: far more than any row holds, and less than a damaged
/// length asks for.
const STORED_CLAIM_LIMIT: usize = 1 << 30;

/// Decodes what [`encode_into`] wrote to our own disk, however many bytes that are. Never for bytes
/// of a peer.
///
/// # Errors
/// The bytes are not one whole value: they are damaged, or another build's. Nothing was taken from
/// them, and whoever keeps the file must not write over them.
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
    fn a_frame_full_of_small_numbers_is_decoded() {
        const LIMIT: usize = 64 << 10;
        let calls = CallFrame(vec![Call::Cancel(CallId(1)); LIMIT / 2 - 8]);
        let bytes = encode(&calls);
        assert!(bytes.len() > LIMIT - 100);
        assert_eq!(decode::<CallFrame, LIMIT>(&bytes), Ok(calls));
    }

    #[test]
    fn what_is_longer_than_a_frame_can_be_stored() {
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
    fn what_is_longer_than_its_limit_leaves_nothing_behind() {
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
    fn what_is_no_message_is_an_error() {
        let error = |bytes: &[u8]| decode::<CallFrame, 100>(bytes).expect_err("this is no message");
        assert_eq!(error(&[]), WireError::Empty);
        assert_eq!(error(&[9, 0]), WireError::Version(9));
        assert_eq!(error(&[0; 102][..]), WireError::Version(0));
        assert_eq!(error(&[2; 102][..]), WireError::TooLong { length: 101, limit: 100 });
        assert_eq!(error(&[2, 0, 0]), WireError::Trailing(1));
        assert!(matches!(error(&[2, 253, 255, 255, 255, 255, 255, 255, 255, 255]), WireError::Malformed(_)));
    }
}
