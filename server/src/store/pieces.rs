//! Rows of the checkpoint as a stream of bytes in pieces of one size, sent from one server to
//! another.
//!
//! Each row follows its length in four bytes. A piece may end anywhere, even within a row, since a
//! row may exceed the size of a message.

use lockmesh_core::durability::checksum::Checksum;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::format::{self, FormatError};

/// The bytes of a row's length.
const LENGTH_BYTES: usize = 4;

/// A piece in preparation.
pub(super) struct RowPiece {
    bytes: Vec<u8>,
    limit: usize,
    /// The number of the next row's bytes in earlier pieces.
    skip: usize,
}

impl RowPiece {
    pub(super) fn new(limit: usize, skip: usize) -> Self {
        Self { bytes: Vec::new(), limit, skip }
    }

    /// Appends as much of a row as fits; returns the number of its bytes sent so far if its end did
    /// not fit.
    pub(super) fn append(&mut self, row: &[u8]) -> Option<usize> {
        let length = u32::try_from(row.len()).expect("the file holds no row of 4 GiB").to_be_bytes();
        let skip = std::mem::take(&mut self.skip);
        let room = self.limit - self.bytes.len();
        let end = (skip + room).min(LENGTH_BYTES + row.len());
        self.bytes.extend(length.iter().take(end).skip(skip));
        if let Some(row) = row.get(skip.saturating_sub(LENGTH_BYTES)..end.saturating_sub(LENGTH_BYTES)) {
            self.bytes.extend_from_slice(row);
        }
        (end < LENGTH_BYTES + row.len()).then_some(end)
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Reassembles rows.
#[derive(Debug, Default)]
pub struct RowReader {
    /// The beginning of an incomplete row.
    begun: Vec<u8>,
    /// The checksum of the complete rows.
    checksum: Checksum,
}

impl RowReader {
    /// Accepts a piece and returns the rows that end in it.
    ///
    /// # Errors
    /// The bytes are no rows that this build reads. No row of the piece was returned: fetch the
    /// whole snapshot again with another reader.
    pub fn add(&mut self, piece: &[u8]) -> Result<Vec<Change>, FormatError> {
        self.begun.extend_from_slice(piece);
        let mut rows = Vec::new();
        let mut rest = self.begun.as_slice();
        while let Some((length, behind)) = rest.split_first_chunk::<LENGTH_BYTES>()
            && let Some((row, behind)) = behind.split_at_checked(u32::from_be_bytes(*length) as usize)
        {
            rows.push(format::decode(row)?);
            self.checksum.add(row);
            rest = behind;
        }
        let used = self.begun.len() - rest.len();
        self.begun.drain(..used);
        Ok(rows)
    }

    /// Returns the checksum of the returned rows.
    pub fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// Returns `true` if no row is incomplete.
    pub fn is_done(&self) -> bool {
        self.begun.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::{RowPiece, RowReader};
    use crate::store::rows::encode;
    use lockmesh_core::durability::checksum::Checksum;
    use lockmesh_protocol::change::Change;
    use lockmesh_protocol::id::Fence;

    /// Sends rows in pieces of one size, as a file is read: from the row and offset at which the
    /// last piece ended.
    fn sent(rows: &[Change], limit: usize) -> Vec<Vec<u8>> {
        let rows: Vec<_> = rows.iter().map(encode).collect();
        let (mut pieces, mut next) = (Vec::new(), Some((0, 0)));
        while let Some((first, skip)) = next.take() {
            let mut piece = RowPiece::new(limit, skip);
            for (number, row) in rows.iter().enumerate().skip(first) {
                next = piece.append(row).map(|at| (number, at));
                if next.is_some() {
                    break;
                }
            }
            pieces.push(piece.into_bytes());
        }
        pieces
    }

    #[test]
    fn rows_survive_any_piece_size() {
        let rows =
            [Change::ClusterId("x".repeat(300)), Change::Fence(Fence(7)), Change::ClusterId(String::new())];
        for limit in (1..40).chain([310, 1 << 20]) {
            let pieces = sent(&rows, limit);
            assert!(pieces.iter().rev().skip(1).all(|piece| piece.len() == limit));
            let mut reader = RowReader::default();
            let read: Vec<_> =
                pieces.iter().flat_map(|piece| reader.add(piece).expect("whole rows")).collect();
            assert!(reader.is_done());
            assert_eq!(read, rows, "in pieces of {limit}");
            assert_eq!(reader.checksum(), Checksum::of(rows.clone()));
        }
    }

    #[test]
    fn malformed_or_truncated_row_rejected() {
        assert!(RowReader::default().add(b"\0\0\0\x01\xff").is_err());
        let mut cut_off = RowReader::default();
        assert_eq!(cut_off.add(b"\0\0\0\x09x"), Ok(Vec::new()));
        assert!(!cut_off.is_done());
    }
}
