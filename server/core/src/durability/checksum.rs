//! The checksum of a state: one number over all rows, independent of their order, updated row by
//! row.
//!
//! It is the sum, modulo 2^128, of the first half of the SHA-256 of each row's bytes. Writing a row
//! costs two hashes, of the old and the new bytes, and reads no other rows. This is the only file
//! of the crate that names sha2.
//!
//! **Invariant:** two states with the same rows have the same checksum, regardless of their
//! history. A server's own rows (its memory of its peers and the metadata of its checkpoint) are
//! excluded.

use lockmesh_protocol::change::Change;
use lockmesh_protocol::format::encode_into;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt::{self, Display, Formatter};

/// The format of the checksum. It increases when the bytes of a row or the algorithm change:
/// checksums of different formats cannot be compared.
pub const FORMAT: u32 = 6;

/// The checksum of a state: the sum of its rows' checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Checksum(u128);

impl Checksum {
    /// Returns the checksum of a state, from the changes that set its rows.
    pub fn of(rows: impl IntoIterator<Item = Change>) -> Self {
        let (mut sum, mut bytes) = (Self::default(), Vec::new());
        for row in rows {
            bytes.clear();
            encode_into(&row, &mut bytes);
            sum.add(&bytes);
        }
        sum
    }

    /// Adds a row.
    pub fn add(&mut self, row: &[u8]) {
        self.0 = self.0.wrapping_add(hash(row));
    }

    /// Removes a row.
    pub fn remove(&mut self, row: &[u8]) {
        self.0 = self.0.wrapping_sub(hash(row));
    }
}

impl Display for Checksum {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

fn hash(row: &[u8]) -> u128 {
    let digest: [u8; 32] = Sha256::digest(row).into();
    let (half, _) = digest.split_first_chunk().expect("it has twice as many bytes");
    u128::from_le_bytes(*half)
}

#[cfg(test)]
mod tests {
    use super::Checksum;
    use crate::state::State;
    use lockmesh_protocol::change::Change;
    use lockmesh_protocol::format::encode_into;
    use lockmesh_protocol::id::{Fence, LogIndex};

    fn bytes(row: &Change) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode_into(row, &mut bytes);
        bytes
    }

    #[test]
    fn ignores_row_order_and_history() {
        let rows = [Change::Fence(Fence(1)), Change::Fence(Fence(2)), Change::ClusterId("c".into())];
        let [one, other, kept] = rows.each_ref().map(bytes);
        let mut sum = Checksum::default();
        [&one, &kept, &other].into_iter().for_each(|row| sum.add(row));
        sum.remove(&one);
        assert_eq!(sum, Checksum::of([rows[2].clone(), rows[1].clone()]));
        assert_ne!(sum, Checksum::of([rows[2].clone(), rows[0].clone()]));
        [&kept, &other].into_iter().for_each(|row| sum.remove(row));
        assert_eq!(sum, Checksum::default(), "of nothing");
    }

    #[test]
    fn reflects_current_state_rows() {
        let mut state = State::new();
        state.load(Change::Tombstone("b".into(), Some(LogIndex(7))));
        state.load(Change::Tombstone("a".into(), Some(LogIndex(8))));
        let before = Checksum::of(state.rows());
        state.load(Change::Tombstone("a".into(), Some(LogIndex(9))));
        assert_ne!(Checksum::of(state.rows()), before);
        state.load(Change::Tombstone("a".into(), Some(LogIndex(8))));
        assert_eq!(Checksum::of(state.rows()), before);
    }
}
