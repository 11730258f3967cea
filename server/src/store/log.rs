//! `log.redb`: the log's entries and the hard state, one durable commit a batch.
//!
//! All entries of a batch lie in one row under the first one's index, and the head (hard state and
//! where the log was compacted) lies behind them under the highest key: the newest row and the head
//! share a page, so that a small commit touches one page of one table.
//!
//! Each commit has a number, one more than the one before; `told.rs` remembers the newest that was
//! told as durable.
//!
//! **Invariants:** rows follow each other without a gap, the first one right behind the base. The
//! commit index on disk never goes back. The base never passes the durable checkpoint, which
//! [`LogStore::compact`] is told.

use super::error::StoreError;
use super::file::{RedbFile, StoreFault, TableName, Writing};
use super::told::ToldFile;
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

/// How many rows one commit compacts at most, so that compaction never holds up a batch.
const COMPACT_ROWS: usize = 64;

/// The log on disk. One thread writes it.
#[derive(Debug)]
pub(super) struct LogStore {
    file: RedbFile,
    head: LogHead,
    rows: VecDeque<LogRow>,
    /// Rows that end here or before are to be compacted.
    compact_to: LogIndex,
    /// Where the number of each commit is noted; none before the log is trusted.
    told: Option<ToldFile>,
}

/// What is known of the log apart from its entries.
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

/// What one commit does.
#[derive(Debug, Default, PartialEq, Eq)]
struct CommitPlan {
    head: LogHead,
    /// Rows compacted at the front.
    compact: usize,
    /// Rows that stay, from the front.
    keep: usize,
    /// What the last row that stays becomes, where its tail is replaced.
    trimmed: Option<(LogRow, Vec<u8>)>,
    /// New rows.
    added: Vec<(LogRow, Vec<u8>)>,
}

impl LogStore {
    /// What a new log begins with.
    pub(super) fn fill(writing: &mut Writing<'_>, head: &LogHead) -> Result<(), StoreFault> {
        writing.table(ROWS)?.put(&HEAD_KEY, &format::encode(head))
    }

    /// Reads a log that was opened, with all its entries.
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
                // Each row against the one before: that one is missing shows in no row by itself.
                rows.push_back(checked_row(key, &batch, entries.last())?);
                entries.extend(batch);
                Ok(true)
            })
            .map_err(|fault| file.fault(fault))?;
        drop(reading);
        let head = head.ok_or_else(|| file.damaged("it has no hard state"))?;
        // A gap between base and rows would be taken for entries that never were.
        if let Some(row) = rows.front().filter(|row| row.first != head.base.0.next()) {
            let reason =
                format!("it was compacted at index {}, but goes on at index {}", head.base.0, row.first);
            return Err(file.damaged(reason));
        }
        let compact_to = LogIndex(0);
        Ok((Self { file, head, rows, compact_to, told: None }, entries))
    }

    /// From now on the number of each commit is noted: the log is trusted.
    pub(super) fn tell(&mut self, mut told: ToldFile) {
        // At once, since the file may be missing or older after a power cut.
        told.tell(self.head.commit_number);
        self.told = Some(told);
    }

    /// Goes on without commits that were told as durable, up to the number `told`: numbers go on
    /// behind it.
    pub(super) fn accept_loss(&mut self, told: u64) -> Result<(), StoreError> {
        // Above what was told, or the next start would find the log short again.
        self.head.commit_number = told;
        self.carry_out(CommitPlan { head: self.head, keep: self.rows.len(), ..CommitPlan::default() })
    }

    /// The file behind the log.
    pub(super) fn file(&self) -> &RedbFile {
        &self.file
    }

    /// What is durable of the hard state and the base.
    pub(super) fn head(&self) -> LogHead {
        self.head
    }

    /// Makes writes durable, all or none, in their order. May be called again with the same after
    /// an error.
    ///
    /// # Panics
    /// Where entries do not follow the log or would replace what was compacted: the engine has lost
    /// its way.
    pub(super) fn commit(&mut self, writes: &[LogWrite], least_commit: LogIndex) -> Result<(), StoreError> {
        let plan = self.plan(writes, least_commit)?;
        // A commit costs a sync, also where it changes nothing, as for a commit index that is there
        // already.
        let nothing = CommitPlan { head: self.head, keep: self.rows.len(), ..CommitPlan::default() };
        if plan != nothing {
            self.carry_out(plan)?;
        }
        Ok(())
    }

    /// Makes a plan durable, and notes that.
    fn carry_out(&mut self, mut plan: CommitPlan) -> Result<(), StoreError> {
        plan.head.commit_number = self.head.commit_number + 1;
        let rows = &self.rows;
        self.file.write(|writing| plan.write(rows, writing))?;
        // Only after the commit: where it failed, the same plan is worked out again from what was
        // there.
        self.adopt(plan);
        // After the commit and before anybody is told: the file never names what is not durable.
        if let Some(told) = &mut self.told {
            told.tell(self.head.commit_number);
        }
        Ok(())
    }

    /// Makes the file ready to be closed. What was committed stays, ready or not.
    pub(super) fn finish(&self) {
        self.file.finish(|writing| Self::fill(writing, &self.head));
    }

    /// Marks everything up to an index, which the durable checkpoint holds already, as to be
    /// compacted: a portion with each commit.
    pub(super) fn compact(&mut self, up_to: LogIndex) {
        self.compact_to = self.compact_to.max(up_to);
    }

    /// Whether there is a row left to compact.
    pub(super) fn must_compact(&self) -> bool {
        self.rows.front().is_some_and(|row| row.last <= self.compact_to)
    }

    /// Begins the log anew behind a checkpoint: the term and the vote stay.
    pub(super) fn reset(&mut self, base: (LogIndex, Term)) -> Result<(), StoreError> {
        self.carry_out(CommitPlan { head: self.head.begun_anew(base), ..CommitPlan::default() })
    }

    /// Works out what the writes come to.
    fn plan(&self, writes: &[LogWrite], least_commit: LogIndex) -> Result<CommitPlan, StoreError> {
        let mut head = self.head;
        let mut keep = self.rows.len();
        let mut replaced_from: Option<LogIndex> = None;
        let mut tail: Vec<LogEntry> = Vec::new();
        // All writes at once: an entry that a later write replaces is never written.
        for write in writes {
            // Whatever lies before it in this commit is of the log that the checkpoint replaces.
            if let Some(mark) = &write.reset {
                head.base = (mark.index, mark.term);
                // The checkpoint is of committed entries, so its index is too; the engine may not
                // have said so yet.
                head.hard_state.commit = head.hard_state.commit.max(mark.index);
                (keep, replaced_from) = (0, None);
                tail.clear();
            }
            if let Some(first) = write.entries.first() {
                append(&mut tail, &write.entries);
                replaced_from = Some(replaced_from.map_or(first.index, |from| from.min(first.index)));
                assert!(first.index > head.base.0, "an entry would replace what was compacted the log");
            }
            if let Some(hard_state) = write.hard_state {
                // An older one may still be on its way when a checkpoint has raised the commit
                // index.
                let commit = hard_state.commit.max(head.hard_state.commit);
                head.hard_state = HardState { commit, ..hard_state };
            }
        }
        // A checkpoint waits for this index to be durable, with whichever write.
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
            // With the rows, in one commit: the term of the last compacted entry is what the next
            // append is checked against (paper, 5.3).
            head.base = (self.rows[compact].last, self.rows[compact].last_term);
            compact += 1;
        }
        Ok(CommitPlan { head, compact, keep, trimmed, added: into_rows(tail) })
    }

    /// What is left of the last row that is kept, where it reaches beyond the index from which the
    /// log is replaced.
    fn trim(&self, keep: usize, from: LogIndex) -> Result<Option<(LogRow, Vec<u8>)>, StoreError> {
        let Some(row) = keep.checked_sub(1).map(|last| self.rows[last]).filter(|row| row.last >= from) else {
            return Ok(None);
        };
        // Only when a new leader replaces the end of the log (paper, 5.3), so it may cost a read.
        let reading = self.file.read()?;
        let bytes = reading.get(ROWS, &key(row.first)).map_err(|fault| self.file.fault(fault))?;
        let bytes = bytes.ok_or_else(|| self.file.damaged("a row of the log has gone"))?;
        let batch = format::decode(&bytes).map_err(|error| self.file.fault(error.into()))?;
        let LogBatch(mut entries) = batch;
        entries.retain(|entry| entry.index < from);
        Ok(into_rows(entries).pop())
    }

    /// Takes over what a plan made durable.
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
    /// What is left of it where the log begins anew behind a checkpoint: the term and the vote.
    pub(super) fn begun_anew(self, base: (LogIndex, Term)) -> Self {
        let HardState { term, vote, .. } = self.hard_state;
        // Term and vote stay, whatever became of the log: a vote that is forgotten could be given
        // twice (paper, 5.2).
        let hard_state = match term < base.1 {
            // Nobody was voted for in a term that was never seen.
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

/// Adds entries to the tail that one commit writes; the first one's index replaces everything from
/// there on.
fn append(tail: &mut Vec<LogEntry>, entries: &[LogEntry]) {
    let first = entries.first().map(|entry| entry.index);
    tail.retain(|entry| Some(entry.index) < first);
    if let (Some(last), Some(first)) = (tail.last(), first) {
        assert_eq!(last.index.next(), first, "entries must follow each other without a gap");
    }
    tail.extend_from_slice(entries);
}

/// Divides entries that follow each other into rows.
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

/// Checks a row that was read against its key and the entry before it.
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
        // Terms never fall along a log (paper, 5.3): one that does is of another log.
        if entry.index != expected || entry.term < term {
            return Err(damaged(format!("the log's entry at index {expected} is another one")));
        }
        (expected, term) = (expected.next(), entry.term);
    }
    let last = batch.last().ok_or_else(|| damaged(format!("index {expected} is missing in the log")))?;
    Ok(LogRow { first, last: last.index, last_term: last.term })
}

fn key(first: LogIndex) -> [u8; 8] {
    first.0.to_be_bytes()
}
