//! One commit of the log as bytes: a header and a payload, in whole sectors.
//!
//! A sector with an acknowledged record is never written again. Two checksums are seeded by the
//! pair of the store, the number of the segment and the number of the commit. So a record of
//! another store, or of the former use of a recycled file, is no record; and a value of a client
//! cannot look like one.
//!
//! | offset | content |
//! |---|---|
//! | 0 | the checksum of the rest of the header, 8 bytes |
//! | 8 | the number of the commit, 8 bytes |
//! | 16 | the number of the commit before it, 8 bytes |
//! | 24 | the checksum of the payload, 8 bytes |
//! | 32 | the length of the payload in bytes, 4 bytes |
//! | 36 | the payload: a stored [`Payload`] |
//!
//! All numbers are little-endian.

use super::LogHead;
use lockmesh_core::raft::log::LogBatch;
use lockmesh_protocol::format::{self, FormatError, Stored};
use lockmesh_protocol::id::LogIndex;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

/// The unit of a disk's writes.
pub(super) const SECTOR_BYTES: usize = 512;

const HEADER_BYTES: usize = 36;

/// The content of a commit.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Payload {
    pub(super) head: LogHead,
    /// The index of the last entry after this commit.
    pub(super) last: LogIndex,
    /// Set if the log restarts behind the head's base: all earlier entries are dropped.
    pub(super) is_reset: bool,
    /// Replace all entries from the first of them on.
    pub(super) entries: LogBatch,
}

impl Stored for Payload {}

/// The place of a record: it seeds the checksums.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) pair: u128,
    pub(super) segment: u64,
}

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The number of the commit.
    pub(super) number: u64,
    /// The number of the commit before it.
    pub(super) previous: u64,
    payload_sum: u64,
    payload_bytes: u32,
}

impl Place {
    fn seed(self, number: u64) -> u64 {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&self.pair.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.segment.to_le_bytes());
        bytes[24..].copy_from_slice(&number.to_le_bytes());
        XxHash3_64::oneshot(&bytes)
    }
}

/// Writes a payload into a buffer, behind room for its header. [`seal`] fills that.
pub(super) fn begin(payload: &Payload, buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.resize(HEADER_BYTES, 0);
    format::encode_into(payload, buffer);
    let payload_bytes = u32::try_from(buffer.len() - HEADER_BYTES).expect("a commit has a few MiB");
    buffer[32..HEADER_BYTES].copy_from_slice(&payload_bytes.to_le_bytes());
    buffer.resize(buffer.len().next_multiple_of(SECTOR_BYTES), 0);
}

/// Completes a record for its place. It may be sealed again for another one.
pub(super) fn seal(buffer: &mut [u8], place: Place, number: u64, previous: u64) {
    let seed = place.seed(number);
    let payload_bytes = u32::from_le_bytes(buffer[32..HEADER_BYTES].try_into().expect("four bytes"));
    let payload = &buffer[HEADER_BYTES..HEADER_BYTES + payload_bytes as usize];
    let payload_sum = XxHash3_64::oneshot_with_seed(seed, payload);
    buffer[8..16].copy_from_slice(&number.to_le_bytes());
    buffer[16..24].copy_from_slice(&previous.to_le_bytes());
    buffer[24..32].copy_from_slice(&payload_sum.to_le_bytes());
    let header_sum = XxHash3_64::oneshot_with_seed(seed, &buffer[8..HEADER_BYTES]);
    buffer[..8].copy_from_slice(&header_sum.to_le_bytes());
}

impl Header {
    /// Reads the header of a record at the beginning of these bytes; `None` if there is none.
    pub(super) fn read(bytes: &[u8], place: Place) -> Option<Self> {
        let header = bytes.get(..HEADER_BYTES)?;
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        let payload_bytes = u32::from_le_bytes(header[32..].try_into().expect("four bytes"));
        let (number, previous, payload_sum) = (word(8), word(16), word(24));
        // Most of an unused segment is zero.
        let is_whole =
            payload_bytes > 0 && word(0) == XxHash3_64::oneshot_with_seed(place.seed(number), &header[8..]);
        is_whole.then_some(Self { number, previous, payload_sum, payload_bytes })
    }

    /// Returns the length of the record, in whole sectors.
    pub(super) fn record_bytes(&self) -> usize {
        (HEADER_BYTES + self.payload_bytes as usize).next_multiple_of(SECTOR_BYTES)
    }

    /// Returns the payload behind the header; `None` if it is torn.
    pub(super) fn payload<'a>(&self, bytes: &'a [u8], place: Place) -> Option<&'a [u8]> {
        let payload = bytes.get(HEADER_BYTES..HEADER_BYTES + self.payload_bytes as usize)?;
        let sum = XxHash3_64::oneshot_with_seed(place.seed(self.number), payload);
        (sum == self.payload_sum).then_some(payload)
    }
}

/// Decodes a payload.
///
/// # Errors
/// A newer build wrote it, or it is corrupt.
pub(super) fn decode(payload: &[u8]) -> Result<Payload, FormatError> {
    format::decode(payload)
}
