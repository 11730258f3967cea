//! `log.told`: the number of the log's newest commit that was reported as durable.
//!
//! After a power cut the log ends before its torn record. That is right: the torn record was never
//! reported. But a newest record that was damaged later looks the same, and an acknowledged write,
//! or a vote, would be lost silently. This file detects it: a log that ends before the recorded
//! number has lost reported commits.
//!
//! The file is synced only when the store is closed. A killed process leaves it intact; after a
//! power cut it may be older, torn or missing, and then detects less. **Invariant:** it never names
//! a commit that is not durable.

use super::disk::Disk;
use super::names::REPORTED;
use redb::StorageBackend;
use std::io;
use std::sync::Arc;

/// The version that this build writes.
const VERSION: u32 = 1;
/// Version, pair, number, checksum.
const BYTES: usize = 4 + 16 + 8 + 8;

/// The file, for writing. A failed write is logged once; the log does not wait for it.
#[derive(Debug)]
pub(super) struct ReportedFile {
    disk: Arc<dyn Disk>,
    /// The pair of the store's files: a number of another store is meaningless.
    pair: u128,
    file: Option<Box<dyn StorageBackend>>,
    is_failing: bool,
}

impl ReportedFile {
    /// Returns the file of a pair; it is opened or created by the first write.
    pub(super) fn new(disk: Arc<dyn Disk>, pair: u128) -> Self {
        Self { disk, pair, file: None, is_failing: false }
    }

    /// Writes the number of a durable commit.
    pub(super) fn record(&mut self, number: u64) {
        match self.write(number) {
            Ok(()) => self.is_failing = false,
            Err(error) => {
                self.file = None;
                if !std::mem::replace(&mut self.is_failing, true) {
                    let file = self.disk.path(REPORTED);
                    tracing::warn!(
                        file = %file.display(), %error,
                        "cannot record the newest commit; damage to its page may go undetected at the next start"
                    );
                }
            }
        }
    }

    /// Makes the file durable: nothing is written any more.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| file.sync_data())?;
        self.disk.sync("")
    }

    fn write(&mut self, number: u64) -> io::Result<()> {
        if self.file.is_none() {
            let there = self.disk.open(REPORTED)?;
            let file = there.map_or_else(|| self.disk.create(REPORTED), Ok)?;
            if file.len()? != BYTES as u64 {
                file.set_len(BYTES as u64)?;
            }
            self.file = Some(file);
        }
        self.file.as_ref().map_or(Ok(()), |file| file.write(0, &encode(self.pair, number)))
    }
}

/// Returns the number of a pair's newest reported commit; 0 if unknown.
pub(super) fn read(disk: &dyn Disk, pair: u128) -> io::Result<u64> {
    let Some(file) = disk.open(REPORTED)? else { return Ok(0) };
    let mut bytes = [0; BYTES];
    if file.len()? != BYTES as u64 {
        return Ok(0);
    }
    file.read(0, &mut bytes)?;
    let number = u64::from_le_bytes(bytes[20..28].try_into().expect("eight bytes are eight bytes"));
    // A file that is torn, of another store, or of a newer version counts as unknown.
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

/// FNV-1a: it only has to detect torn writes.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
