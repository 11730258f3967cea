//! The in-memory log after the compaction index, as the engine reads it, and its compaction.
//!
//! Its entries need not be durable yet; durability is reported to the engine separately.

use crate::raft::log::{HardState, LogEntry, SnapshotMeta};
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use std::cell::Cell;
use std::collections::VecDeque;

/// The memory of an entry besides its payload, in bytes.
const OVERHEAD: usize = size_of::<LogEntry>();

/// Entries without gaps after a base.
#[derive(Debug, Default)]
pub(crate) struct MemoryLog {
    /// The entry before the first one, which a follower must have to accept the first.
    base: (LogIndex, Term),
    entries: VecDeque<LogEntry>,
    bytes: usize,
    /// The newest hard state, durable or not.
    pub(crate) hard_state: HardState,
    /// The newest durable snapshot.
    pub(crate) snapshot: SnapshotMeta,
    /// Set if a server needs a newer snapshot than that.
    pub(crate) snapshot_wanted: Cell<bool>,
}

impl MemoryLog {
    pub(crate) fn new(base: (LogIndex, Term), entries: Vec<LogEntry>) -> Self {
        let bytes = entries.iter().map(size).sum();
        Self { base, entries: entries.into(), bytes, ..Self::default() }
    }

    pub(crate) fn first_index(&self) -> LogIndex {
        self.base.0.next()
    }

    pub(crate) fn last_index(&self) -> LogIndex {
        LogIndex(self.base.0.0 + self.entries.len() as u64)
    }

    /// The size of the entries' payloads, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The term at an index, for the base and everything after it.
    pub(crate) fn term(&self, index: LogIndex) -> Option<Term> {
        // The engine reads it to check that a follower's log matches before the first entry (paper,
        // 5.3).
        if index == self.base.0 {
            return Some(self.base.1);
        }
        self.entry(index).map(|entry| entry.term)
    }

    /// The entries in `[low, high)` up to `max_bytes`, at least one.
    pub(crate) fn range(
        &self,
        low: LogIndex,
        high: LogIndex,
        max_bytes: u64,
    ) -> impl Iterator<Item = &LogEntry> {
        let from = (low.0 - self.first_index().0) as usize;
        let until = (high.0 - self.first_index().0) as usize;
        let mut bytes = 0;
        self.entries
            .range(from..until)
            .enumerate()
            .take_while(move |(offset, entry)| {
                bytes += size(entry) as u64;
                // An entry above the limit must still be sent, or its follower would never advance.
                *offset == 0 || bytes <= max_bytes
            })
            .map(|(_, entry)| entry)
    }

    /// Appends entries; they replace everything from the first one's index on.
    pub(crate) fn append(&mut self, entries: &[LogEntry]) {
        let Some(first) = entries.first() else { return };
        assert!(first.index > self.base.0, "an entry behind the compaction index cannot be replaced");
        assert!(first.index <= self.last_index().next(), "the log has no gaps");
        // A new leader's entries replace those that were never committed (paper, 5.3).
        while self.last_index() >= first.index {
            let gone = self.entries.pop_back().expect("the log reaches this index");
            self.bytes -= size(&gone);
        }
        self.bytes += entries.iter().map(size).sum::<usize>();
        self.entries.extend(entries.iter().cloned());
    }

    /// Removes everything up to an index, which becomes the base.
    pub(crate) fn compact(&mut self, up_to: LogIndex) {
        while self.base.0 < up_to {
            let Some(gone) = self.entries.pop_front() else { return };
            self.bytes -= size(&gone);
            self.base = (gone.index, gone.term);
        }
    }

    /// The last index that can be compacted if this many bytes of entries are kept, overhead
    /// included.
    pub(crate) fn index_before_last(&self, bytes: u64) -> LogIndex {
        let mut left = (self.bytes + self.entries.len() * OVERHEAD) as u64;
        let gone = self.entries.iter().take_while(|entry| {
            let is_over = left > bytes;
            left -= (size(entry) + OVERHEAD) as u64;
            is_over
        });
        LogIndex(self.base.0.0 + gone.count() as u64)
    }

    /// Replaces everything with a snapshot.
    pub(crate) fn reset(&mut self, mark: &SnapshotMeta) {
        self.base = (mark.index, mark.term);
        self.entries.clear();
        self.bytes = 0;
    }

    /// The snapshot to send to a server: it must connect to the log, reach the index and contain
    /// the server.
    pub(crate) fn snapshot_for(&self, server: ServerId, index: LogIndex) -> Option<&SnapshotMeta> {
        let snapshot = Some(&self.snapshot).filter(|snapshot| {
            // A snapshot that ends before the log begins would leave a gap. A server ignores one
            // that does not contain it.
            snapshot.index >= index.max(self.base.0)
                && snapshot.index.0 > 0
                && snapshot.membership.contains(server)
        });
        self.snapshot_wanted.set(self.snapshot_wanted.get() || snapshot.is_none());
        snapshot
    }

    fn entry(&self, index: LogIndex) -> Option<&LogEntry> {
        let offset = index.0.checked_sub(self.first_index().0)?;
        self.entries.get(usize::try_from(offset).ok()?)
    }
}

fn size(entry: &LogEntry) -> usize {
    entry.data.len() + entry.context.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::log::{EntryKind, Membership};
    use bytes::Bytes;

    fn entry(index: u64, term: u64) -> LogEntry {
        let data = Bytes::from_static(b"1234");
        let (index, term) = (LogIndex(index), Term(term));
        LogEntry { index, term, kind: EntryKind::Normal, data, context: Bytes::new() }
    }

    #[test]
    fn append_replaces_conflicting_tail() {
        let mut log = MemoryLog::new((LogIndex(4), Term(1)), vec![entry(5, 1), entry(6, 1), entry(7, 1)]);
        log.append(&[entry(6, 2)]);
        assert_eq!(log.last_index(), LogIndex(6));
        assert_eq!(log.term(LogIndex(6)), Some(Term(2)));
        assert_eq!(log.term(LogIndex(7)), None);
        assert_eq!(log.bytes(), 8);
    }

    #[test]
    fn compaction_keeps_base_term() {
        let mut log = MemoryLog::new((LogIndex(0), Term(0)), vec![entry(1, 1), entry(2, 2), entry(3, 2)]);
        log.compact(LogIndex(2));
        assert_eq!((log.first_index(), log.term(LogIndex(2))), (LogIndex(3), Some(Term(2))));
        assert_eq!(log.term(LogIndex(1)), None);
        assert_eq!(log.bytes(), 4);
    }

    #[test]
    fn the_newest_bytes_stay() {
        let log = MemoryLog::new((LogIndex(4), Term(1)), vec![entry(5, 1), entry(6, 1), entry(7, 1)]);
        let before = |entries: f64| log.index_before_last((entries * (4 + OVERHEAD) as f64) as u64).0;
        assert_eq!([0.0, 0.9, 1.0, 2.0, 2.9, 3.0].map(before), [7, 7, 6, 5, 5, 4]);
    }

    #[test]
    fn snapshot_served_only_to_its_members() {
        let mut log = MemoryLog::new((LogIndex(4), Term(1)), vec![entry(5, 1)]);
        let membership = Membership::of_voters(&[ServerId(1)]);
        log.snapshot = SnapshotMeta { index: LogIndex(5), term: Term(1), membership };
        assert!(log.snapshot_for(ServerId(1), LogIndex(0)).is_some() && !log.snapshot_wanted.take());
        assert!(log.snapshot_for(ServerId(2), LogIndex(0)).is_none() && log.snapshot_wanted.take());
        assert!(log.snapshot_for(ServerId(1), LogIndex(6)).is_none() && log.snapshot_wanted.take());
    }

    #[test]
    fn range_returns_at_least_one_entry() {
        let log = MemoryLog::new((LogIndex(0), Term(0)), vec![entry(1, 1), entry(2, 1), entry(3, 1)]);
        assert_eq!(log.range(LogIndex(1), LogIndex(4), 1).count(), 1);
        assert_eq!(log.range(LogIndex(1), LogIndex(4), 8).count(), 2);
        assert_eq!(log.range(LogIndex(2), LogIndex(4), u64::MAX).count(), 2);
    }
}
