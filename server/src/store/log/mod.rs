//! `log/`, the write-ahead log: the entries and the hard state, one record and one sync per batch
//! (group commit).
//!
//! The records are appended to segments, see `segments.rs`. Each has a number, one more than the
//! one before, and holds the whole head: the hard state and the compaction index. `recovery.rs`
//! reads them back; `reported.rs` remembers the newest that was reported as durable.
//!
//! A write that finds no room is repeated in place. After any other failure the segment is closed
//! for ever, and the record goes to a new one: the effect of a failed sync is unknown.
//!
//! **Invariants:** entries follow each other without a gap, the first one right behind the base.
//! The commit index on disk never goes back. The base never passes the durable checkpoint, which
//! [`LogStore::compact`] receives. A segment is recycled only once a durable record in a later one
//! says that its entries are compacted.

mod conversion;
mod identity;
mod record;
mod recovery;
mod segments;

pub(super) use conversion::{FormerLog, finish_new, write_new};
pub(super) use identity::{LOG_FORMAT, LogIdentity};
pub(super) use segments::{SegmentPool, is_of_log};

use self::record::{Payload, Place};
use self::recovery::{Chain, LastSegment};
use self::segments::Segment;
use super::disk::Disk;
use super::error::StoreError;
use super::file::io_error;
use super::names::LOG;
use super::reported::ReportedFile;
use lockmesh_core::raft::log::{HardState, LogBatch, LogEntry, LogWrite};
use lockmesh_protocol::format::Stored;
use lockmesh_protocol::id::{LogIndex, Term};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;

/// The log on disk. One thread writes it.
#[derive(Debug)]
pub(super) struct LogStore {
    disk: Arc<dyn Disk>,
    identity: LogIdentity,
    pool: Arc<SegmentPool>,
    head: LogHead,
    /// The number of the newest durable commit; the head's may be higher after an accepted loss.
    previous: u64,
    /// The entries behind the base.
    runs: VecDeque<Run>,
    /// The segments before the one that is written, each with the index of its newest entry.
    closed: VecDeque<(u64, LogIndex)>,
    /// The segment that is written; `None` before the next one is begun.
    segment: Option<Segment>,
    /// The index of the newest entry in it.
    newest: LogIndex,
    /// Entries that end here or before are to be compacted.
    compact_to: LogIndex,
    /// The file with the number of the newest commit; `None` before the log is trusted.
    reported: Option<ReportedFile>,
    buffer: Vec<u8>,
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

/// Consecutive entries of one term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    last: LogIndex,
    term: Term,
}

/// The changes of one commit.
#[derive(Debug, Default, PartialEq, Eq)]
struct CommitPlan {
    head: LogHead,
    /// Set if all earlier entries are dropped.
    is_reset: bool,
    /// New entries, which replace all from the first of them on.
    entries: Vec<LogEntry>,
}

/// A log that was read, and not written yet.
#[derive(Debug)]
pub(super) struct LoadedLog {
    pub(super) log: LogStore,
    pub(super) entries: Vec<LogEntry>,
    /// The newest commit that was lost, and the segment in which commits are missing.
    pub(super) lost: Option<(u64, PathBuf)>,
}

impl LogStore {
    /// Reads the log without changing it; `None` if there is none.
    pub(super) fn load(disk: &Arc<dyn Disk>, segment_bytes: u64) -> Result<Option<LoadedLog>, StoreError> {
        let Some(identity) = LogIdentity::read(&**disk, LOG)? else { return Ok(None) };
        let chain = Chain::read(&**disk, LOG, identity.file.pair)?;
        let Chain { head, entries, mut closed, last, spares, next, lost } = chain;
        let LastSegment { number, end, newest } = last;
        let place = (Arc::clone(disk), LOG);
        let pool = SegmentPool::new(place, segment_bytes, next, spares);
        // After a loss the next record goes to a new segment: its number is behind all others.
        let segment = match lost {
            Some(_) => None,
            None => Some(pool.open(number, end)?),
        };
        if segment.is_none() {
            closed.push_back((number, newest));
        }
        let mut log = Self {
            disk: Arc::clone(disk),
            identity,
            pool: Arc::new(pool),
            head,
            previous: head.commit_number,
            runs: VecDeque::new(),
            closed,
            segment,
            newest,
            compact_to: LogIndex(0),
            reported: None,
            buffer: Vec::new(),
        };
        entries.iter().for_each(|entry| log.extend_runs(entry));
        Ok(Some(LoadedLog { log, entries, lost }))
    }

    /// Makes the names durable that were read: the log is trusted.
    pub(super) fn release(&self) -> Result<(), StoreError> {
        self.disk.sync(LOG).map_err(io_error(&self.disk.path(LOG), "cannot sync the folder"))
    }

    /// Starts to record the number of each commit: the log is trusted.
    pub(super) fn record_commits(&mut self, mut reported: ReportedFile) {
        // At once, since the file may be missing or older after a power cut.
        reported.record(self.head.commit_number);
        self.reported = Some(reported);
    }

    /// Accepts the loss of commits that were reported as durable, up to the number `told`: numbers
    /// continue behind it.
    pub(super) fn accept_loss(&mut self, reported: u64) -> Result<(), StoreError> {
        // Above the reported number, or the next start would find the log short again.
        self.head.commit_number = reported.max(self.head.commit_number);
        self.close_segment();
        self.carry_out(CommitPlan { head: self.head, ..CommitPlan::default() })
    }

    /// Returns the folder of the log, for messages.
    pub(super) fn path(&self) -> PathBuf {
        self.disk.path(LOG)
    }

    /// Returns the log's identity.
    pub(super) fn identity(&self) -> &LogIdentity {
        &self.identity
    }

    /// Returns the segments that are not in use.
    pub(super) fn pool(&self) -> &Arc<SegmentPool> {
        &self.pool
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
        let plan = self.plan(writes, least_commit);
        // A commit costs a sync even if it changes nothing, such as for a commit index that is
        // durable already.
        if plan != (CommitPlan { head: self.head, ..CommitPlan::default() }) {
            self.carry_out(plan)?;
        }
        Ok(())
    }

    /// Makes a plan durable, and records its number.
    fn carry_out(&mut self, mut plan: CommitPlan) -> Result<(), StoreError> {
        plan.head.commit_number = self.head.commit_number + 1;
        let CommitPlan { head, is_reset, entries } = plan;
        let last = match (entries.last(), is_reset) {
            (Some(entry), _) => entry.index,
            (None, true) => head.base.0,
            (None, false) => self.last_index(),
        };
        let payload = Payload { head, last, is_reset, entries: LogBatch(entries) };
        record::begin(&payload, &mut self.buffer);
        self.append(head.commit_number)?;
        // Only after the commit: if it fails, the same plan is computed again from the same state.
        self.adopt(payload);
        // After the commit and before any report: the file never names a commit that is not
        // durable.
        if let Some(reported) = &mut self.reported {
            reported.record(self.head.commit_number);
        }
        Ok(())
    }

    /// Closes a segment for ever after a failed write or sync, unless the disk was full.
    fn write_failed(&mut self, segment: Segment, source: &io::Error) {
        let number = segment.number;
        let is_full = matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
        // Without a durable record the number may be used again, for another file.
        let again = match (is_full, segment.end) {
            (true, _) => Some(segment),
            (false, 0) => self.pool.create(number, segment.size).ok(),
            (false, _) => None,
        };
        if again.is_none() {
            self.closed.push_back((number, self.newest));
        }
        self.segment = again;
    }

    /// Makes the record in the buffer durable.
    fn append(&mut self, commit_number: u64) -> Result<(), StoreError> {
        let record_bytes = self.buffer.len() as u64;
        if self.segment.as_ref().is_some_and(|it| it.end > 0 && it.end + record_bytes > it.size) {
            self.close_segment();
        }
        let mut segment = match self.segment.take() {
            Some(segment) => segment,
            None => {
                self.newest = LogIndex(0);
                self.pool.take()?
            }
        };
        let (number, path) = (segment.number, self.path_of(segment.number));
        // Before the record: the name may still be that of another segment on disk.
        if !segment.is_named {
            let named = self.disk.sync(LOG);
            segment.is_named = named.is_ok();
            if let Err(source) = named {
                self.segment = Some(segment);
                return Err(StoreError::Io { path, doing: "cannot sync the folder", source });
            }
        }
        let place = Place { pair: self.identity.file.pair, segment: number };
        record::seal(&mut self.buffer, place, commit_number, self.previous);
        let written = segment.file.write(segment.end, &self.buffer);
        let synced = written.and_then(|()| segment.file.sync_data());
        if let Err(source) = synced {
            self.write_failed(segment, &source);
            return Err(StoreError::Io { path, doing: "cannot write the log", source });
        }
        segment.end += record_bytes;
        self.segment = Some(segment);
        Ok(())
    }

    /// Closes the segment that is written.
    fn close_segment(&mut self) {
        let closed = self.segment.take().map(|segment| (segment.number, self.newest));
        self.closed.extend(closed);
    }

    /// Prepares the files for closing. Commits stay durable even if this fails.
    pub(super) fn finish(&self) {
        if let Some(Err(error)) = self.reported.as_ref().map(ReportedFile::sync) {
            tracing::warn!(%error, "cannot make the number of the newest commit durable");
        }
    }

    fn path_of(&self, segment: u64) -> PathBuf {
        self.disk.path(&segments::name(LOG, segment))
    }

    /// Marks everything up to an index for compaction with the next commit; the durable checkpoint
    /// contains it already.
    pub(super) fn compact(&mut self, up_to: LogIndex) {
        self.compact_to = self.compact_to.max(up_to);
    }

    /// Returns `true` if a commit would free a segment.
    pub(super) fn must_compact(&self) -> bool {
        let (base, _) = self.head.base;
        self.closed.front().is_some_and(|(_, newest)| (base.next()..=self.compact_to).contains(newest))
    }

    /// Restarts the log behind a checkpoint: the term and the vote stay.
    pub(super) fn reset(&mut self, base: (LogIndex, Term)) -> Result<(), StoreError> {
        self.carry_out(CommitPlan {
            head: self.head.restarted_behind(base),
            is_reset: true,
            entries: Vec::new(),
        })
    }

    /// Computes the commit of these writes.
    fn plan(&self, writes: &[LogWrite], least_commit: LogIndex) -> CommitPlan {
        let mut head = self.head;
        let mut is_reset = false;
        let mut entries: Vec<LogEntry> = Vec::new();
        // The last index that is kept.
        let mut kept = self.last_index();
        // All writes at once: an entry that a later write replaces is never written.
        for write in writes {
            // Everything before it in this commit belongs to the log that the checkpoint replaces.
            if let Some(mark) = &write.reset {
                head.base = (mark.index, mark.term);
                // A checkpoint contains committed entries, so its index is committed too; the
                // engine may not have recorded that yet.
                head.hard_state.commit = head.hard_state.commit.max(mark.index);
                (is_reset, kept) = (true, mark.index);
                entries.clear();
            }
            if let Some(first) = write.entries.first() {
                assert!(first.index > head.base.0, "an entry would replace compacted entries");
                append(&mut entries, &write.entries);
                kept = kept.min(LogIndex(first.index.0 - 1));
            }
            if let Some(hard_state) = write.hard_state {
                // It may be older than a checkpoint that has raised the commit index.
                let commit = hard_state.commit.max(head.hard_state.commit);
                head.hard_state = HardState { commit, ..hard_state };
            }
        }
        if let Some(first) = entries.first() {
            assert_eq!(kept.next(), first.index, "entries must follow the log without a gap");
        }
        // A checkpoint waits until this index is durable, with any write.
        head.hard_state.commit = head.hard_state.commit.max(least_commit);
        let base = self.compact_to.min(kept);
        if !is_reset && base > head.base.0 {
            // The next append is checked against the term of the last compacted entry (paper, 5.3).
            head.base = (base, self.term_at(base));
        }
        CommitPlan { head, is_reset, entries }
    }

    /// Updates the state in memory after a commit became durable.
    fn adopt(&mut self, payload: Payload) {
        let Payload { head, is_reset, entries: LogBatch(entries), .. } = payload;
        if let Some(first) = entries.first().map(|entry| entry.index).filter(|_| !is_reset) {
            self.truncate_runs(first);
        }
        if is_reset {
            self.runs.clear();
        }
        (self.head, self.previous) = (head, head.commit_number);
        entries.iter().for_each(|entry| self.extend_runs(entry));
        self.newest = self.newest.max(entries.last().map_or(LogIndex(0), |entry| entry.index));
        let (base, _) = head.base;
        while self.runs.front().is_some_and(|run| run.last <= base) {
            self.runs.pop_front();
        }
        while let Some((number, newest)) = self.closed.front().copied()
            && (newest <= base || is_reset)
        {
            self.closed.pop_front();
            self.pool.retire(number);
        }
    }

    fn last_index(&self) -> LogIndex {
        self.runs.back().map_or(self.head.base.0, |run| run.last)
    }

    /// Returns the term of an entry behind the base.
    fn term_at(&self, index: LogIndex) -> Term {
        self.runs[self.runs.partition_point(|run| run.last < index)].term
    }

    fn extend_runs(&mut self, entry: &LogEntry) {
        match self.runs.back_mut() {
            Some(run) if run.term == entry.term => run.last = entry.index,
            _ => self.runs.push_back(Run { last: entry.index, term: entry.term }),
        }
    }

    /// Removes the entries from an index on.
    fn truncate_runs(&mut self, from: LogIndex) {
        let before = LogIndex(from.0 - 1);
        let whole = self.runs.partition_point(|run| run.last <= before);
        let end_of_whole = whole.checked_sub(1).map_or(self.head.base.0, |last| self.runs[last].last);
        if let Some(run) = self.runs.get_mut(whole).filter(|_| end_of_whole < before) {
            run.last = before;
            self.runs.truncate(whole + 1);
        } else {
            self.runs.truncate(whole);
        }
    }
}

impl LogHead {
    /// Returns the head of a log that restarts behind a checkpoint: the term and the vote stay.
    pub(super) fn restarted_behind(self, base: (LogIndex, Term)) -> Self {
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

/// Adds entries to those written in one commit; they replace everything from the first one's index
/// on.
fn append(entries: &mut Vec<LogEntry>, more: &[LogEntry]) {
    let first = more.first().map(|entry| entry.index);
    entries.retain(|entry| Some(entry.index) < first);
    if let (Some(last), Some(first)) = (entries.last(), first) {
        assert_eq!(last.index.next(), first, "entries must follow each other without a gap");
    }
    entries.extend_from_slice(more);
}
