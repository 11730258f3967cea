//! Reading the segments of a log: the chain of its commits, a torn write at its end, and what is
//! missing in it.
//!
//! Each record names the commit before it, so the commits form a chain. The chain continues in the
//! next segment, whose first record decides where the older segments end: their later records do
//! not count. Records behind the end of the chain are the remains of the last write, which a power
//! cut tore: it was never reported. But a commit is only written once the one before it is durable.
//! So a number behind the next one proves that a durable commit was lost.

use super::record::{self, Header, Place, SECTOR_BYTES};
use super::segments;
use super::{LogHead, Payload};
use crate::store::disk::Disk;
use crate::store::error::StoreError;
use crate::store::file::{StoreFault, io_error};
use lockmesh_core::raft::log::{LogBatch, LogEntry};
use lockmesh_protocol::id::LogIndex;
use std::collections::VecDeque;
use std::path::PathBuf;

/// The content of the segments.
#[derive(Debug)]
pub(super) struct Chain {
    pub(super) head: LogHead,
    pub(super) entries: Vec<LogEntry>,
    /// The segments before the last one, each with the index of its newest entry.
    pub(super) closed: VecDeque<(u64, LogIndex)>,
    /// The last segment with a record.
    pub(super) last: LastSegment,
    /// Segments without a record.
    pub(super) spares: VecDeque<(u64, bool)>,
    /// The number of the next segment.
    pub(super) next: u64,
    /// The newest commit that was lost, and the segment in which the chain breaks.
    pub(super) lost: Option<(u64, PathBuf)>,
}

/// The last segment with a record.
#[derive(Debug)]
pub(super) struct LastSegment {
    pub(super) number: u64,
    pub(super) end: u64,
    /// The index of its newest entry.
    pub(super) newest: LogIndex,
}

/// The records at the beginning of a segment.
struct Prefix {
    number: u64,
    /// The commits, each with the number before it, its payload and the offset of its end.
    commits: Vec<(Header, Payload, u64)>,
    /// The highest number behind them.
    behind: u64,
}

impl Chain {
    /// Reads all segments in the folder of a log.
    pub(super) fn read(disk: &dyn Disk, folder: &'static str, pair: u128) -> Result<Self, StoreError> {
        let path = |number| disk.path(&segments::name(folder, number));
        let numbers = numbers(disk, folder)?;
        let mut prefixes = Vec::new();
        for number in &numbers {
            prefixes.push(Prefix::read(disk, folder, Place { pair, segment: *number })?);
        }
        let damaged =
            |reason: &str| StoreError::Damaged { path: disk.path(folder), reason: reason.to_owned() };
        let Some(last) = prefixes.iter().rposition(|prefix| !prefix.commits.is_empty()) else {
            return Err(damaged("it holds no commit"));
        };
        // A segment without a record among those in use was closed after a failed write.
        let spares = numbers[last + 1..].iter().map(|number| (*number, false)).collect();
        let behind = prefixes[last..].iter().map(|prefix| prefix.behind).max().unwrap_or(0);
        prefixes.truncate(last + 1);
        // The first commit of a segment decides how many of the earlier segments count.
        let mut limits = vec![u64::MAX; prefixes.len()];
        let mut limit = u64::MAX;
        for (place, prefix) in prefixes.iter().enumerate().rev() {
            limits[place] = limit;
            limit = prefix.commits.first().map_or(limit, |(first, ..)| limit.min(first.previous));
        }
        let (mut chain, mut lost): (Vec<(u64, u64, Payload)>, _) = (Vec::new(), None);
        let (mut closed, mut end) = (VecDeque::new(), 0);
        for (Prefix { number, commits, .. }, limit) in prefixes.into_iter().zip(limits) {
            let newest = commits
                .iter()
                .filter_map(|(_, payload, _)| payload.entries.0.last())
                .map(|entry| entry.index);
            closed.push_back((number, newest.max().unwrap_or_default()));
            if let Some((_, _, at)) = commits.last() {
                end = *at;
            }
            let commits = commits.into_iter().filter(|(header, ..)| header.number <= limit);
            for (header, payload, _) in commits {
                if let Some((segment, before, _)) = chain.last()
                    && header.previous > *before
                    && lost.is_none()
                {
                    // The first segment without the next commit.
                    lost = Some((*before, (segment + 1).min(number - 1).max(*segment)));
                }
                chain.push((number, header.number, payload));
            }
        }
        let (number, newest) = closed.pop_back().ok_or_else(|| damaged("it holds no commit"))?;
        let Some(head) = chain.last().map(|(.., payload)| payload.head) else {
            return Err(damaged("it holds no commit"));
        };
        if lost.is_none() && behind > head.commit_number + 1 {
            lost = Some((head.commit_number, number));
        }
        // The commits in front of the break are all that can be kept.
        let reported = behind.max(head.commit_number);
        if let Some((before, _)) = lost {
            chain.retain(|(_, number, _)| *number <= before);
        }
        let lost = lost.map(|(_, number)| (reported, path(number)));
        let (head, last_index) = chain.last().map_or((head, LogIndex(0)), |(.., it)| (it.head, it.last));
        let entries =
            replay(chain).map_err(|fault| fault.of_file(disk.path(folder), "cannot read the log"))?;
        let next = numbers.last().map_or(1, |number| number + 1);
        let last = LastSegment { number, end, newest };
        let chain = Self { head, entries, closed, last, spares, next, lost };
        chain.checked(last_index, damaged)
    }

    /// Checks that the entries follow the base, up to the last one.
    fn checked(mut self, last: LogIndex, damaged: impl Fn(&str) -> StoreError) -> Result<Self, StoreError> {
        let (base, _) = self.head.base;
        let compacted = self.entries.partition_point(|entry| entry.index <= base);
        self.entries.drain(..compacted);
        let first = self.entries.first().map_or(base.next(), |entry| entry.index);
        let found = self.entries.last().map_or(base, |entry| entry.index);
        if first == base.next() && found == last {
            return Ok(self);
        }
        // The commit that compacted them is among the lost ones.
        if self.lost.is_some() {
            self.entries.clear();
            return Ok(self);
        }
        let first = first.min(found.next());
        Err(damaged(&format!(
            "it should hold the entries from index {} to {last}, but holds those from {first} to {found}: a segment \
             before the last one is missing or damaged",
            base.next()
        )))
    }
}

/// Returns the numbers of the segments, which follow each other.
fn numbers(disk: &dyn Disk, folder: &'static str) -> Result<Vec<u64>, StoreError> {
    let names = disk.list(folder).map_err(io_error(&disk.path(folder), "cannot read the folder"))?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| segments::number(name)).collect();
    numbers.sort_unstable();
    let path = |number| disk.path(&segments::name(folder, number));
    match numbers.windows(2).find(|pair| pair[0] + 1 != pair[1]) {
        Some(pair) => Err(StoreError::Missing { missing: path(pair[0] + 1), present: path(pair[1]) }),
        None => Ok(numbers),
    }
}

impl Prefix {
    fn read(disk: &dyn Disk, folder: &'static str, place: Place) -> Result<Self, StoreError> {
        let name = segments::name(folder, place.segment);
        let path = disk.path(&name);
        let bytes = segments::read(disk, &name).map_err(io_error(&path, "cannot read the file"))?;
        let bytes = bytes.unwrap_or_default();
        let mut prefix = Self { number: place.segment, commits: Vec::new(), behind: 0 };
        let mut at = 0;
        while let Some(header) = Header::read(&bytes[at..], place)
            && prefix.commits.last().is_none_or(|(before, ..)| before.number == header.previous)
            && let Some(payload) = header.payload(&bytes[at..], place)
        {
            let payload = record::decode(payload)
                .map_err(|error| StoreFault::from(error).of_file(path.clone(), "cannot read the file"))?;
            // The file may end before the record's last sector does.
            let end = at + header.record_bytes();
            prefix.commits.push((header, payload, end as u64));
            at = end.min(bytes.len());
        }
        let behind = bytes[at..].chunks(SECTOR_BYTES).filter_map(|sector| Header::read(sector, place));
        prefix.behind = behind.map(|header| header.number).max().unwrap_or(0);
        Ok(prefix)
    }
}

/// Returns the entries that the commits leave.
fn replay(chain: Vec<(u64, u64, Payload)>) -> Result<Vec<LogEntry>, StoreFault> {
    let mut entries: Vec<LogEntry> = Vec::new();
    for (_, _, Payload { is_reset, entries: LogBatch(batch), .. }) in chain {
        if is_reset {
            entries.clear();
        }
        if let Some(first) = batch.first() {
            entries.truncate(entries.partition_point(|entry| entry.index < first.index));
        }
        for entry in batch {
            check_order(entries.last(), &entry)?;
            entries.push(entry);
        }
    }
    Ok(entries)
}

/// Checks an entry against the one before it.
pub(super) fn check_order(before: Option<&LogEntry>, entry: &LogEntry) -> Result<(), StoreFault> {
    let Some(before) = before else { return Ok(()) };
    let expected = before.index.next();
    if entry.index != expected {
        return Err(StoreFault::Damaged(format!("index {expected} is missing in the log")));
    }
    // Terms never fall along a log (paper, 5.3): an entry with a lower term is of another log.
    if entry.term < before.term {
        let reason = format!("the log's entry at index {expected} does not follow the one before");
        return Err(StoreFault::Damaged(reason));
    }
    Ok(())
}
