//! The checksums of a snapshot: the only file of this crate that uses sha2.

use sha2::{Digest as _, Sha256};

/// A checksum.
pub(super) type Digest = [u8; 32];

/// Returns the checksum of a part.
pub(super) fn of_part(number: u32, mark: &[u8], rows: &[u8]) -> Digest {
    let mut hash = Sha256::new();
    hash.update(number.to_be_bytes());
    hash.update((mark.len() as u64).to_be_bytes());
    hash.update(mark);
    hash.update(rows);
    hash.finalize().into()
}

/// Returns the checksum of all parts, computed from theirs.
pub(super) fn of_all(parts: &[Digest]) -> Digest {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().into()
}
