//! `log.redb`: the log's entries and the hard state, one durable commit per batch (group commit).
//!
//! All entries of a batch are in one row under the first one's index. The head (hard state and
//! compaction index) follows them under the highest key. The newest row and the head share a page,
//! so that a small commit touches one page of one table.
//!
//! Each commit has a number, one more than the one before; `reported.rs` remembers the newest that
//! was reported as durable.
//!
//! **Invariants:** rows follow each other without a gap, the first one right behind the base. The
//! commit index on disk never goes back. The base never passes the durable checkpoint, which
//! [`LogStore::compact`] receives.

use super::error::StoreError;
use super::file::{RedbFile, StoreFault, TableName, Writing};
use super::reported::ReportedFile;
use lockmesh_core::raft::log::{HardState, LogBatch, LogEntry, LogWrite};
use lockmesh_protocol::format::{self, Stored};
use lockmesh_protocol::id::{LogIndex, Term};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

const ROWS: TableName = TableName::new("log");

/// The key of the head: behind every index.
const HEAD_KEY: [u8; 8] = [0xff; 8];

/// A row is closed when its entries' data reach this many bytes. One entry may be longer.
const ROW_BYTES: usize = 256 << 10;

/// The maximum number of rows compacted in one commit, so that compaction never delays a batch.
const COMPACT_ROWS: usize = 64;

/// The log on disk. One thread writes it.
#[derive(Debug)]
pub(super) struct LogStore {
    file: RedbFile,
    head: LogHead,
    rows: VecDeque<LogRow>,
    /// Rows that end here or before are to be compacted.
    compact_to: LogIndex,
    /// The file with the number of the newest commit; `None` before the log is trusted.
    reported: Option<ReportedFile>,
}

/// The log's metadata apart from its entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LogHead {
    pub(super) hard_state: HardState,
    /// The entry before the first: index and term.
    pub(super) base: (LogIndex, Term),
    /// The number of the commit that wrote this.
    pub(super) commit_number: u64,
}

impl Stored for LogHead {}

/// The entries of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LogRow {
    first: LogIndex,
    last: LogIndex,
    last_term: Term,
}

/// The changes of one commit.
#[derive(Debug, Default, PartialEq, Eq)]
struct CommitPlan {
    head: LogHead,
    /// The number of rows compacted at the front.
    compact: usize,
    /// The number of rows kept, from the front.
    keep: usize,
    /// The new content of the last kept row, if its tail is replaced.
    trimmed: Option<(LogRow, Vec<u8>)>,
    /// New rows.
    added: Vec<(LogRow, Vec<u8>)>,
}

impl LogStore {
    /// Writes the first content of a new log.
    pub(super) fn fill(writing: &mut Writing<'_>, head: &LogHead) -> Result<(), StoreFault> {
        writing.table(ROWS)?.put(&HEAD_KEY, &format::encode(head))
    }

    /// Reads all entries of an opened log.
    pub(super) fn load(file: RedbFile) -> Result<(Self, Vec<LogEntry>), StoreError> {
        let mut head: Option<LogHead> = None;
        let mut rows = VecDeque::new();
        let mut entries: Vec<LogEntry> = Vec::new();
        let reading = file.read()?;
        reading
            .each(ROWS, &[], |key, value| {
                if key == HEAD_KEY {
                    head = Some(format::decode(value)?);
                    return Ok(true);
                }
                let LogBatch(batch) = format::decode(value)?;
                // Each row is checked against the one before: no single row reveals a missing one.
                rows.push_back(checked_row(key, &batch, entries.last())?);
                entries.extend(batch);
                Ok(true)
            })
            .map_err(|fault| file.fault(fault))?;
        drop(reading);
        let head = head.ok_or_else(|| file.damaged("it has no hard state"))?;
        // A gap between base and rows would look like entries that never existed.
        if let Some(row) = rows.front().filter(|row| row.first != head.base.0.next()) {
            let reason =
                format!("it was compacted up to index {}, but continues at index {}", head.base.0, row.first);
            return Err(file.damaged(reason));
        }
        let compact_to = LogIndex(0);
        Ok((Self { file, head, rows, compact_to, reported: None }, entries))
    }

    /// Starts to record the number of each commit: the log is trusted.
    pub(super) fn record_commits(&mut self, mut reported: ReportedFile) {
        // At once, since the file may be missing or older after a power cut.
        reported.record(self.head.commit_number);
        self.reported = Some(reported);
    }

    /// Accepts the loss of commits that were reported as durable, up to the number `told`: numbers
    /// continue behind it.
    pub(super) fn accept_loss(&mut self, told: u64) -> Result<(), StoreError> {
        // Above the reported number, or the next start would find the log short again.
        self.head.commit_number = told;
        self.carry_out(CommitPlan { head: self.head, keep: self.rows.len(), ..CommitPlan::default() })
    }

    /// Returns the file of the log.
    pub(super) fn file(&self) -> &RedbFile {
        &self.file
    }

    /// Returns the durable hard state and base.
    pub(super) fn head(&self) -> LogHead {
        self.head
    }

    /// Makes writes durable, all or none, in their order. May be called again with the same
    /// arguments after an error.
    ///
    /// # Panics
    /// If entries do not follow the log or would replace compacted ones: the engine's state is
    /// invalid.
    pub(super) fn commit(&mut self, writes: &[LogWrite], least_commit: LogIndex) -> Result<(), StoreError> {
        let plan = self.plan(writes, least_commit)?;
        // A commit costs a sync even if it changes nothing, such as for a commit index that is
        // durable already.
        let nothing = CommitPlan { head: self.head, keep: self.rows.len(), ..CommitPlan::default() };
        if plan != nothing {
            self.carry_out(plan)?;
        }
        Ok(())
    }

    /// Makes a plan durable, and records its number.
    fn carry_out(&mut self, mut plan: CommitPlan) -> Result<(), StoreError> {
        plan.head.commit_number = self.head.commit_number + 1;
        let rows = &self.rows;
        self.file.write(|writing| plan.write(rows, writing))?;
        // Only after the commit: if it fails, the same plan is computed again from the same state.
        self.adopt(plan);
        // After the commit and before any report: the file never names a commit that is not
        // durable.
        if let Some(reported) = &mut self.reported {
            reported.record(self.head.commit_number);
        }
        Ok(())
    }

    /// Prepares the file for closing. Commits stay durable even if this fails.
    pub(super) fn finish(&self) {
        self.file.finish(|writing| Self::fill(writing, &self.head));
    }

    /// Marks everything up to an index for compaction, one portion with each commit; the durable
    /// checkpoint contains it already.
    pub(super) fn compact(&mut self, up_to: LogIndex) {
        self.compact_to = self.compact_to.max(up_to);
    }

    /// Returns `true` if there is a row left to compact.
    pub(super) fn must_compact(&self) -> bool {
        self.rows.front().is_some_and(|row| row.last <= self.compact_to)
    }

    /// Restarts the log behind a checkpoint: the term and the vote stay.
    pub(super) fn reset(&mut self, base: (LogIndex, Term)) -> Result<(), StoreError> {
        self.carry_out(CommitPlan { head: self.head.begun_anew(base), ..CommitPlan::default() })
    }

    /// Computes the commit of these writes.
    fn plan(&self, writes: &[LogWrite], least_commit: LogIndex) -> Result<CommitPlan, StoreError> {
        let mut head = self.head;
        let mut keep = self.rows.len();
        let mut replaced_from: Option<LogIndex> = None;
        let mut tail: Vec<LogEntry> = Vec::new();
        // All writes at once: an entry that a later write replaces is never written.
        for write in writes {
            // Everything before it in this commit belongs to the log that the checkpoint replaces.
            if let Some(mark) = &write.reset {
                head.base = (mark.index, mark.term);
                // A checkpoint contains committed entries, so its index is committed too; the
                // engine may not have recorded that yet.
                head.hard_state.commit = head.hard_state.commit.max(mark.index);
                (keep, replaced_from) = (0, None);
                tail.clear();
            }
            if let Some(first) = write.entries.first() {
                append(&mut tail, &write.entries);
                replaced_from = Some(replaced_from.map_or(first.index, |from| from.min(first.index)));
                assert!(first.index > head.base.0, "an entry would replace compacted entries");
            }
            if let Some(hard_state) = write.hard_state {
                // An older one may still be in flight when a checkpoint has raised the commit
                // index.
                let commit = hard_state.commit.max(head.hard_state.commit);
                head.hard_state = HardState { commit, ..hard_state };
            }
        }
        // A checkpoint waits until this index is durable, with any write.
        head.hard_state.commit = head.hard_state.commit.max(least_commit);
        let mut trimmed = None;
        if let Some(from) = replaced_from {
            keep = keep.min(self.rows.partition_point(|row| row.first < from));
            trimmed = self.trim(keep, from)?;
            let before = trimmed.as_ref().map(|(row, _)| row.last);
            let before = before.or(keep.checked_sub(1).map(|last| self.rows[last].last));
            let follows = before.unwrap_or(head.base.0).next();
            assert_eq!(follows, from, "entries must follow the log without a gap");
        }
        let mut compact = 0;
        // A row that is trimmed in this commit is not compacted in it.
        let whole = keep - usize::from(trimmed.is_some());
        while compact < COMPACT_ROWS.min(whole) && self.rows[compact].last <= self.compact_to {
            // With the rows, in one commit: the next append is checked against the term of the last
            // compacted entry (paper, 5.3).
            head.base = (self.rows[compact].last, self.rows[compact].last_term);
            compact += 1;
        }
        Ok(CommitPlan { head, compact, keep, trimmed, added: into_rows(tail) })
    }

    /// Returns the rest of the last kept row, if it extends beyond the index from which the log is
    /// replaced.
    fn trim(&self, keep: usize, from: LogIndex) -> Result<Option<(LogRow, Vec<u8>)>, StoreError> {
        let Some(row) = keep.checked_sub(1).map(|last| self.rows[last]).filter(|row| row.last >= from) else {
            return Ok(None);
        };
        // Only when a new leader replaces the end of the log (paper, 5.3), so a read is acceptable.
        let reading = self.file.read()?;
        let bytes = reading.get(ROWS, &key(row.first)).map_err(|fault| self.file.fault(fault))?;
        let bytes = bytes.ok_or_else(|| self.file.damaged("a row of the log is missing"))?;
        let batch = format::decode(&bytes).map_err(|error| self.file.fault(error.into()))?;
        let LogBatch(mut entries) = batch;
        entries.retain(|entry| entry.index < from);
        Ok(into_rows(entries).pop())
    }

    /// Updates the state in memory after a plan became durable.
    fn adopt(&mut self, plan: CommitPlan) {
        self.head = plan.head;
        self.rows.truncate(plan.keep);
        if let Some((row, _)) = plan.trimmed {
            self.rows.pop_back();
            self.rows.push_back(row);
        }
        self.rows.drain(..plan.compact);
        self.rows.extend(plan.added.into_iter().map(|(row, _)| row));
    }
}

impl LogHead {
    /// Returns the head of a log that restarts behind a checkpoint: the term and the vote stay.
    pub(super) fn begun_anew(self, base: (LogIndex, Term)) -> Self {
        let HardState { term, vote, .. } = self.hard_state;
        // Term and vote survive the log: a forgotten vote could be given twice (paper, 5.2).
        let hard_state = match term < base.1 {
            // No vote exists in a term that was never seen.
            true => HardState { term: base.1, vote: Default::default(), commit: base.0 },
            false => HardState { term, vote, commit: base.0 },
        };
        Self { hard_state, base, ..self }
    }
}

impl CommitPlan {
    fn write(&self, rows: &VecDeque<LogRow>, writing: &mut Writing<'_>) -> Result<(), StoreFault> {
        let mut table = writing.table(ROWS)?;
        for row in rows.range(..self.compact).chain(rows.range(self.keep..)) {
            table.remove(&key(row.first))?;
        }
        for (row, bytes) in self.trimmed.iter().chain(&self.added) {
            table.put(&key(row.first), bytes)?;
        }
        table.put(&HEAD_KEY, &format::encode(&self.head))
    }
}

/// Adds entries to the tail written in one commit; they replace everything from the first one's
/// index on.
fn append(tail: &mut Vec<LogEntry>, entries: &[LogEntry]) {
    let first = entries.first().map(|entry| entry.index);
    tail.retain(|entry| Some(entry.index) < first);
    if let (Some(last), Some(first)) = (tail.last(), first) {
        assert_eq!(last.index.next(), first, "entries must follow each other without a gap");
    }
    tail.extend_from_slice(entries);
}

/// Divides consecutive entries into rows.
fn into_rows(entries: Vec<LogEntry>) -> Vec<(LogRow, Vec<u8>)> {
    let mut rows = Vec::new();
    let mut batch: Vec<LogEntry> = Vec::new();
    let mut batch_bytes = 0;
    for entry in entries {
        let entry_bytes = entry.data.len() + entry.context.len();
        if !batch.is_empty() && batch_bytes + entry_bytes > ROW_BYTES {
            rows.extend(into_row(std::mem::take(&mut batch)));
            batch_bytes = 0;
        }
        batch_bytes += entry_bytes;
        batch.push(entry);
    }
    rows.extend(into_row(batch));
    rows
}

fn into_row(batch: Vec<LogEntry>) -> Option<(LogRow, Vec<u8>)> {
    let (first, last) = (batch.first()?, batch.last()?);
    let row = LogRow { first: first.index, last: last.index, last_term: last.term };
    Some((row, format::encode(&LogBatch(batch))))
}

/// Checks a row against its key and the entry before it.
fn checked_row(key: &[u8], batch: &[LogEntry], before: Option<&LogEntry>) -> Result<LogRow, StoreFault> {
    let damaged = |reason: String| StoreFault::Damaged(reason);
    let key: [u8; 8] = key.try_into().map_err(|_| damaged("a row of the log has no index".to_owned()))?;
    let first = LogIndex(u64::from_be_bytes(key));
    let mut expected = before.map_or(first, |entry| entry.index.next());
    let mut term = before.map_or(Term(0), |entry| entry.term);
    if first != expected {
        return Err(damaged(format!("index {expected} is missing in the log")));
    }
    for entry in batch {
        // Terms never fall along a log (paper, 5.3): an entry with a lower term is of another log.
        if entry.index != expected || entry.term < term {
            return Err(damaged(format!(
                "the log's entry at index {expected} does not follow the one before"
            )));
        }
        (expected, term) = (expected.next(), entry.term);
    }
    let last = batch.last().ok_or_else(|| damaged(format!("index {expected} is missing in the log")))?;
    Ok(LogRow { first, last: last.index, last_term: last.term })
}

fn key(first: LogIndex) -> [u8; 8] {
    first.0.to_be_bytes()
}
