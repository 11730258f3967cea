//! A new log as a whole, and the log of builds before segments: `log.redb`, one redb file.
//!
//! A new log is made under another name: its segment, its identity, then the folder's own name. A
//! crash on the way leaves a folder that does not count. The former log stays until the server's
//! record names the new one.

use super::identity::{Conversion, LogIdentity};
use super::record::{self, Payload, Place};
use super::{LogHead, recovery, segments};
use crate::store::disk::Disk;
use crate::store::error::StoreError;
use crate::store::file::{FileIdentity, RedbFile, TableName, io_error};
use crate::store::names::{FORMER_LOG, LOG, NEW_LOG};
use lockmesh_core::raft::log::{LogBatch, LogEntry};
use lockmesh_protocol::format;
use redb::StorageBackend;
use std::io;
use std::sync::Arc;

/// The number of the first segment.
const FIRST_SEGMENT: u64 = 1;

/// A record of a new log is closed when its entries' data reach this many bytes. One entry may be
/// longer.
const RECORD_BYTES: usize = 1 << 20;

/// The table of entries, in rows of consecutive ones under the first one's index.
const ROWS: TableName = TableName::new("log");

/// The key of the head: behind every index.
const HEAD_KEY: [u8; 8] = [0xff; 8];

/// `log.redb`, open and read.
#[derive(Debug)]
pub(in crate::store) struct FormerLog {
    pub(in crate::store) file: RedbFile,
    pub(in crate::store) head: LogHead,
    pub(in crate::store) entries: Vec<LogEntry>,
}

impl FormerLog {
    /// Reads the file without changing it; `None` if it is missing.
    pub(in crate::store) fn load(
        disk: &Arc<dyn Disk>,
        cache_bytes: usize,
    ) -> Result<Option<Self>, StoreError> {
        let Some(file) = RedbFile::open(Arc::clone(disk), FORMER_LOG, cache_bytes)? else { return Ok(None) };
        file.format()?;
        let (mut head, mut entries): (Option<LogHead>, Vec<LogEntry>) = (None, Vec::new());
        let reading = file.read()?;
        let read = reading.each(ROWS, &[], |key, value| {
            if key == HEAD_KEY {
                head = Some(format::decode(value)?);
                return Ok(true);
            }
            let LogBatch(batch) = format::decode(value)?;
            for entry in batch {
                recovery::check_order(entries.last(), &entry)?;
                entries.push(entry);
            }
            Ok(true)
        });
        drop(reading);
        read.map_err(|fault| file.fault(fault))?;
        let head = head.ok_or_else(|| file.damaged("it has no hard state"))?;
        match entries.first().filter(|first| first.index != head.base.0.next()) {
            Some(first) => Err(file.damaged(format!(
                "it was compacted up to index {}, but continues at index {}",
                head.base.0, first.index
            ))),
            None => Ok(Some(Self { file, head, entries })),
        }
    }

    /// Returns `true` if it has later commits than at the conversion into this log.
    pub(in crate::store) fn is_newer_than(&self, converted: &LogIdentity) -> bool {
        converted.former.is_some_and(|former| former.last != self.head.commit_number)
    }

    /// Makes the new log from it.
    pub(in crate::store) fn convert(self, disk: &dyn Disk, segment_bytes: u64) -> Result<(), StoreError> {
        let identity = self.file.identity()?;
        let Self { head, entries, .. } = self;
        let count = entries.len();
        write_new(disk, identity, (head, entries), Some(head.commit_number), segment_bytes)?;
        // An earlier one that was never used. Without its identity it does not count.
        let removed = disk.remove(&LogIdentity::name(LOG)).and_then(|()| match disk.exists(LOG)? {
            true => disk.sync(LOG).and_then(|()| disk.remove(LOG)),
            false => Ok(()),
        });
        removed.map_err(io_error(&disk.path(LOG), "cannot remove the folder"))?;
        finish_new(disk)?;
        tracing::info!(folder = %disk.path(LOG).display(), entries = count, "converted the log into segments");
        Ok(())
    }
}

/// Writes entries as commits, of which the head has the first number. Returns the last number.
fn write_records(
    file: &dyn StorageBackend,
    place: Place,
    head: LogHead,
    entries: Vec<LogEntry>,
) -> io::Result<u64> {
    let mut number = head.commit_number;
    let (mut at, mut buffer) = (0, Vec::new());
    let mut batches = batches(entries).peekable();
    while let Some(batch) = batches.next() {
        let payload = Payload {
            head: LogHead { commit_number: number, ..head },
            last: batch.last().map_or(head.base.0, |entry| entry.index),
            is_reset: false,
            entries: LogBatch(batch),
        };
        record::begin(&payload, &mut buffer);
        record::seal(&mut buffer, place, number, number.saturating_sub(1));
        file.write(at, &buffer)?;
        at += buffer.len() as u64;
        number += u64::from(batches.peek().is_some());
    }
    Ok(number)
}

/// Writes a new log under its draft name, durably.
pub(in crate::store) fn write_new(
    disk: &dyn Disk,
    identity: FileIdentity,
    (head, entries): (LogHead, Vec<LogEntry>),
    former: Option<u64>,
    segment_bytes: u64,
) -> Result<(), StoreError> {
    let made = || -> io::Result<()> {
        disk.remove(NEW_LOG)?;
        disk.make_folder(NEW_LOG)?;
        let name = segments::name(NEW_LOG, FIRST_SEGMENT);
        segments::fill(disk, &name, segment_bytes)?;
        let file = disk.open(&name)?.ok_or(io::ErrorKind::NotFound)?;
        let place = Place { pair: identity.pair, segment: FIRST_SEGMENT };
        // The number of a converted log's newest commit may have been reported: numbers continue.
        let first = head.commit_number + u64::from(former.is_some());
        let end = write_records(&*file, place, LogHead { commit_number: first, ..head }, entries)?;
        file.sync_data()?;
        let former = former.map(|last| Conversion { last, end });
        // Last of all: it makes the log complete.
        disk.sync(NEW_LOG)?;
        LogIdentity { file: identity.clone(), former }.write(disk, NEW_LOG)?;
        disk.sync(NEW_LOG)
    };
    made().map_err(|source| {
        // Room for the former one.
        let _ = disk.remove(NEW_LOG);
        io_error(&disk.path(NEW_LOG), "cannot write the new log")(source)
    })
}

/// Gives a new log its name.
pub(in crate::store) fn finish_new(disk: &dyn Disk) -> Result<(), StoreError> {
    let renamed = disk.rename(NEW_LOG, LOG).and_then(|()| disk.sync(""));
    renamed.map_err(io_error(&disk.path(NEW_LOG), "cannot rename the folder"))
}

/// Divides entries into records; there is at least one.
fn batches(entries: Vec<LogEntry>) -> impl Iterator<Item = Vec<LogEntry>> {
    let mut batches = vec![Vec::new()];
    let mut bytes = 0;
    for entry in entries {
        let entry_bytes = entry.data.len() + entry.context.len();
        if bytes > 0 && bytes + entry_bytes > RECORD_BYTES {
            batches.push(Vec::new());
            bytes = 0;
        }
        bytes += entry_bytes;
        batches.last_mut().expect("there is one").push(entry);
    }
    batches.into_iter()
}
