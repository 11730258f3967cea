//! `log.told`: the number of the newest commit of the log that was told as durable.
//!
//! redb finds its newest commit torn and goes back to the one before, which is right after a power
//! cut: nobody was told of it. But a newest page that was damaged later looks the same to it, and
//! then an acknowledged write, or a vote, would be gone without a word. This file knows better: a
//! log that ends before the number in it has lost what was told.
//!
//! It is never synced. A process that is killed leaves it whole; after a power cut it may be older,
//! torn or missing, and then it only knows less. **Invariant:** it never names a commit that is not
//! durable.

use super::disk::Disk;
use super::names::TOLD;
use redb::StorageBackend;
use std::io;
use std::sync::Arc;

/// The version of what this build writes.
const VERSION: u32 = 1;
/// Version, pair, number, checksum.
const BYTES: usize = 4 + 16 + 8 + 8;

/// The file, to write to. What cannot be written is said once; the log does not wait for it.
#[derive(Debug)]
pub(super) struct ToldFile {
    disk: Arc<dyn Disk>,
    /// The pair of the store's files: a number of another store means nothing.
    pair: u128,
    file: Option<Box<dyn StorageBackend>>,
    is_failing: bool,
}

impl ToldFile {
    /// The file of a pair, where there is one or where it can be made.
    pub(super) fn new(disk: Arc<dyn Disk>, pair: u128) -> Self {
        Self { disk, pair, file: None, is_failing: false }
    }

    /// Writes the number of a commit that is durable.
    pub(super) fn tell(&mut self, number: u64) {
        match self.write(number) {
            Ok(()) => self.is_failing = false,
            Err(error) => {
                self.file = None;
                if !std::mem::replace(&mut self.is_failing, true) {
                    let file = self.disk.path(TOLD);
                    tracing::warn!(
                        file = %file.display(), %error,
                        "cannot note the newest commit: if its page is damaged, that may go unseen at the next start"
                    );
                }
            }
        }
    }

    fn write(&mut self, number: u64) -> io::Result<()> {
        if self.file.is_none() {
            let there = self.disk.open(TOLD)?;
            let file = there.map_or_else(|| self.disk.create(TOLD), Ok)?;
            if file.len()? != BYTES as u64 {
                file.set_len(BYTES as u64)?;
            }
            self.file = Some(file);
        }
        self.file.as_ref().map_or(Ok(()), |file| file.write(0, &encode(self.pair, number)))
    }
}

/// The number of the newest commit of a pair that was told; 0 where nothing says so.
pub(super) fn read(disk: &dyn Disk, pair: u128) -> io::Result<u64> {
    let Some(file) = disk.open(TOLD)? else { return Ok(0) };
    let mut bytes = [0; BYTES];
    if file.len()? != BYTES as u64 {
        return Ok(0);
    }
    file.read(0, &mut bytes)?;
    let number = u64::from_le_bytes(bytes[20..28].try_into().expect("eight bytes are eight bytes"));
    // What was torn, or is another store's, or a newer version's, tells nothing.
    Ok(if bytes == encode(pair, number) { number } else { 0 })
}

fn encode(pair: u128, number: u64) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..4].copy_from_slice(&VERSION.to_le_bytes());
    bytes[4..20].copy_from_slice(&pair.to_le_bytes());
    bytes[20..28].copy_from_slice(&number.to_le_bytes());
    let sum = checksum(&bytes[..28]);
    bytes[28..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// FNV-1a: it has only to tell torn from whole.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
