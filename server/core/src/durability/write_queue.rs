//! The write queue: log commits, checkpoints and compaction in the order in which they may reach
//! the disk. It implements group commit as a plain value, driven by threads or by the simulator.
//!
//! ```text
//! push ──> queue ──> begin_commit ── one commit for all waiting writes ──> committed
//! hand_over ─> line ─> begin_checkpoint ── commit index durable? ──> checkpointed
//!                      refused ─> backoff ─> the same again, until accepted
//! ```
//!
//! At most one commit of the log and one checkpoint are in progress; the writer that began one
//! reports its outcome.
//!
//! **Invariants:** a checkpoint of an applied index begins only after a durable commit index that
//! reaches it. The log is reset or compacted only after the durable checkpoint. Once begun, a write
//! is neither changed nor overtaken. A checkpoint of exactly one index is never joined with a newer
//! one, except with another server's snapshot, which makes it useless.

use crate::fault_injection::{FaultPoint, Rule};
use crate::raft::log::{LogWrite, OwnMemory, SnapshotMeta};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::LogIndex;
use std::collections::VecDeque;
use std::time::Duration;

/// The maximum number of waiting writes. Beyond it the producer must wait.
pub const MAX_QUEUED_WRITES: usize = 16_384;

/// The approximate maximum size of a commit's entries: it takes waiting writes until it reaches
/// this.
const MAX_COMMIT_BYTES: usize = 8 << 20;

/// The initial and the maximum backoff after a rejected write.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// The maximum number of waiting checkpoints. If the disk stays behind for so long, corruption
/// checks get no reply.
const MAX_QUEUED_CHECKPOINTS: usize = 4;

/// The rows of a checkpoint, in any representation.
pub trait CheckpointRows {
    /// Adds later changes, in log order.
    fn record_all(&mut self, changes: Vec<Change>);
    /// Adds the server's own memory, which alone is no reason to write.
    fn remember(&mut self, own: &OwnMemory);
    /// Takes all rows and leaves none.
    #[must_use]
    fn take(&mut self) -> Self;
    /// Adds the rows of a later checkpoint.
    fn absorb(&mut self, later: Self);
    /// Returns the maximum number of rows; 0 only if there is nothing to write.
    fn row_count(&self) -> usize;
}

/// Changes in log order, for tests.
impl CheckpointRows for Vec<Change> {
    fn record_all(&mut self, changes: Vec<Change>) {
        self.extend(changes);
    }

    fn remember(&mut self, _: &OwnMemory) {}

    fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    fn absorb(&mut self, later: Self) {
        self.extend(later);
    }

    fn row_count(&self) -> usize {
        self.len()
    }
}

/// A checkpoint to be made.
#[derive(Clone, Debug)]
pub struct Checkpoint<R> {
    /// Its metadata.
    pub mark: SnapshotMeta,
    /// The changes since the last one.
    pub rows: R,
    /// `true` if it comes from another server, so the log does not lead to it.
    pub installed: bool,
    /// `true` if its checksum is needed, of exactly this index.
    pub is_exact: bool,
}

impl<R: CheckpointRows> Checkpoint<R> {
    /// Joins a newer checkpoint into this one, which then represents the newer index.
    fn join(&mut self, newer: Self) {
        self.rows.absorb(newer.rows);
        self.mark = newer.mark;
        self.installed |= newer.installed;
        // The checksum of the older index is dropped: it would be the checksum of another state.
        self.is_exact = newer.is_exact;
    }
}

/// One commit of the log.
#[derive(Clone, Debug, Default)]
pub struct LogCommit {
    /// The writes; empty if only a commit index or a compaction is needed.
    pub writes: Vec<LogWrite>,
    /// The commit index that it must make durable at least.
    pub least_commit: LogIndex,
}

/// A writer of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreWriter {
    /// The log's writer.
    Log = 0,
    /// The checkpoint's writer.
    Checkpoint = 1,
}

/// The waiting work, and the progress of each part.
#[derive(Clone, Debug)]
pub struct WriteQueue<R> {
    writes: VecDeque<LogWrite>,
    /// The number of the last write in the commit in progress.
    last_begun: Option<u64>,
    /// In index order; only the newest is joined with another one.
    waiting: VecDeque<Checkpoint<R>>,
    /// A checkpoint that accepts no more rows but may wait for its commit index.
    begun: Option<Checkpoint<R>>,
    /// The index of the checkpoint that is being written.
    writing: Option<LogIndex>,
    /// The index up to which the log may be compacted.
    compact_to: LogIndex,
    /// The commit index that must be durable before a checkpoint can be written.
    wanted_commit: LogIndex,
    durable_commit: LogIndex,
    durable_checkpoint: LogIndex,
    /// Each writer's failure while the disk rejects its writes.
    failures: [Option<DiskFailure>; 2],
    /// Set when a writer has ended.
    ended: [bool; 2],
    closing: bool,
    fault_point: FaultPoint,
}

/// A failure of the disk.
#[derive(Clone, Debug)]
struct DiskFailure {
    reason: String,
    backoff: Duration,
}

impl<R: CheckpointRows> WriteQueue<R> {
    /// Returns an empty queue of a store with these durable indexes.
    pub fn new(durable_commit: LogIndex, durable_checkpoint: LogIndex) -> Self {
        Self {
            writes: VecDeque::new(),
            last_begun: None,
            waiting: VecDeque::new(),
            begun: None,
            writing: None,
            compact_to: LogIndex(0),
            wanted_commit: LogIndex(0),
            durable_commit,
            durable_checkpoint,
            failures: [None, None],
            ended: [false; 2],
            closing: false,
            fault_point: FaultPoint::default(),
        }
    }

    /// Breaks a rule on purpose.
    #[cfg(feature = "fault-injection")]
    pub fn break_rule(&mut self, rule: Rule) {
        self.fault_point.break_rule(rule);
    }

    /// Queues a write of the log, even if the queue is full.
    pub fn push(&mut self, write: LogWrite) {
        // The core has numbered this write already, so it cannot be rejected: the driver of the
        // core waits while the queue is full.
        self.writes.push_back(write);
    }

    /// Returns `true` if the producer must wait.
    pub fn is_full(&self) -> bool {
        // A closing queue accepts everything: its writer may be gone, so waiting for room could
        // hang.
        self.writes.len() >= MAX_QUEUED_WRITES && !self.closing
    }

    /// Returns the number of waiting writes.
    pub fn queued_writes(&self) -> usize {
        self.writes.len()
    }

    /// Adds a checkpoint. It is joined to one that was not begun yet, unless the older one must be
    /// exact.
    pub fn hand_over(&mut self, newer: Checkpoint<R>) {
        // Another server's snapshot replaces the whole state, so older waiting checkpoints need not
        // be written separately.
        if newer.installed {
            self.join_waiting();
        }
        let is_full = self.waiting.len() >= MAX_QUEUED_CHECKPOINTS;
        match self.waiting.back_mut() {
            // Nothing newer is joined to an exact checkpoint, unless the disk is so slow that the
            // queue is full: then memory matters more than its checksum.
            Some(last) if newer.installed || !last.is_exact || is_full => last.join(newer),
            _ => self.waiting.push_back(newer),
        }
    }

    /// Joins all waiting checkpoints into one.
    fn join_waiting(&mut self) {
        let joined = self.waiting.drain(..).reduce(|mut older, newer| {
            older.join(newer);
            older
        });
        self.waiting.extend(joined);
    }

    /// Allows compaction up to an index, or up to the durable checkpoint if that is less.
    pub fn compact(&mut self, up_to: LogIndex) {
        // Compacted entries must be in a checkpoint that survives a crash (thesis, 5).
        let limit = match self.fault_point.breaks(Rule::CompactionStaysBehindTheCheckpoint) {
            true => LogIndex(up_to.0 + 8),
            false => up_to.min(self.durable_checkpoint),
        };
        self.compact_to = self.compact_to.max(limit);
    }

    /// Returns the index up to which the next commit may compact the log.
    pub fn compact_to(&self) -> LogIndex {
        self.compact_to
    }

    /// Returns the number of writes that the next commit can take: it stops at a reset whose
    /// checkpoint is not durable.
    pub fn ready_writes(&self) -> usize {
        let blocked = |write: &LogWrite| self.waits_for_checkpoint(write);
        self.writes.iter().position(blocked).unwrap_or(self.writes.len())
    }

    /// Returns `true` if a write resets the log to a checkpoint that is not durable yet.
    fn waits_for_checkpoint(&self, write: &LogWrite) -> bool {
        // If the log were emptied before the checkpoint is durable, a crash would leave neither.
        let ahead = write.reset.as_ref().is_some_and(|mark| mark.index > self.durable_checkpoint);
        ahead && !self.fault_point.breaks(Rule::ResetsWaitForTheirCheckpoint)
    }

    /// Returns the next commit of the log, with at most `most` writes; `None` if there is nothing
    /// to commit. `can_compact` is set if the log holds entries that may be compacted.
    pub fn begin_commit(&mut self, most: usize, can_compact: bool) -> Option<LogCommit> {
        let writes = self.take_writes(most);
        // A checkpoint may wait for a commit index that no write would carry for a while.
        let wants_commit = self.wanted_commit > self.durable_commit;
        // No compaction while closing: a later checkpoint after the next start makes up for it.
        if writes.is_empty() && !wants_commit && (!can_compact || self.closing) {
            return None;
        }
        self.last_begun = writes.last().map(|write| write.number);
        Some(LogCommit { writes, least_commit: self.wanted_commit })
    }

    fn take_writes(&mut self, most: usize) -> Vec<LogWrite> {
        let mut taken = Vec::new();
        let mut bytes = 0;
        // By bytes, so that a commit of huge values does not delay the acknowledgements of all
        // later writes.
        while bytes < MAX_COMMIT_BYTES && taken.len() < most {
            if self.writes.front().is_some_and(|write| self.waits_for_checkpoint(write)) {
                break;
            }
            let Some(write) = self.writes.pop_front() else { break };
            bytes += write.entries.iter().map(|entry| entry.data.len()).sum::<usize>();
            taken.push(write);
        }
        taken
    }

    /// Completes the commit in progress, with its durable commit index. Returns the number of its
    /// last write, if any.
    pub fn committed(&mut self, durable_commit: LogIndex) -> Option<u64> {
        self.durable_commit = durable_commit;
        self.last_begun.take()
    }

    /// Returns the checkpoint to write now; `None` if there is none, if one is being written, or if
    /// it waits for its commit index.
    pub fn begin_checkpoint(&mut self) -> Option<Checkpoint<R>> {
        // Each builds on the rows of the one before it, so only one is written at a time.
        if self.writing.is_some() {
            return None;
        }
        if self.begun.is_none() {
            self.begun = self.waiting.pop_front();
            // An installed one comes from another server's log: the reset that follows carries the
            // commit index.
            let applied = self.begun.as_ref().filter(|checkpoint| !checkpoint.installed);
            let wanted = applied.map_or(LogIndex(0), |checkpoint| checkpoint.mark.index);
            self.wanted_commit = self.wanted_commit.max(wanted);
        }
        // At the next start the engine needs a commit index that reaches the applied index: a
        // checkpoint must not be ahead of its log.
        if self.checkpoint_waits() && !self.fault_point.breaks(Rule::CheckpointsWaitForTheirCommit) {
            return None;
        }
        // It stays in `begun` until here, so that nothing newer is joined to it while its commit
        // index is awaited.
        let checkpoint = self.begun.take()?;
        self.writing = Some(checkpoint.mark.index);
        Some(checkpoint)
    }

    /// Returns `true` if a begun checkpoint waits for its commit index.
    pub fn checkpoint_waits(&self) -> bool {
        let waits = |begun: &Checkpoint<R>| !begun.installed && self.durable_commit < begun.mark.index;
        self.begun.as_ref().is_some_and(waits)
    }

    /// Completes the checkpoint in progress.
    pub fn checkpointed(&mut self) {
        if let Some(index) = self.writing.take() {
            self.durable_checkpoint = index;
        }
    }

    /// Returns `true` if no checkpoint is waiting or being written.
    pub fn is_checkpoint_idle(&self) -> bool {
        // A caller that waits for the last checkpoint must not wait for a writer that is gone.
        let is_idle = self.waiting.is_empty() && self.begun.is_none() && self.writing.is_none();
        is_idle || self.has_ended(StoreWriter::Checkpoint)
    }

    /// Returns the index of the durable checkpoint.
    pub fn durable_checkpoint(&self) -> LogIndex {
        self.durable_checkpoint
    }

    /// Records that the disk rejected a writer's work. Returns the backoff, and `true` if
    /// [`WriteQueue::failure`] has changed.
    pub fn refused(&mut self, writer: StoreWriter, reason: String) -> (Duration, bool) {
        let before = self.failure().map(str::to_owned);
        let slot = &mut self.failures[writer as usize];
        let backoff = slot.as_ref().map_or(RETRY_BACKOFF.0, |last| (last.backoff * 2).min(RETRY_BACKOFF.1));
        *slot = Some(DiskFailure { reason, backoff });
        (backoff, self.failure() != before.as_deref())
    }

    /// Records that the disk accepted a writer's work. Returns `true` if [`WriteQueue::failure`]
    /// has changed.
    pub fn accepted(&mut self, writer: StoreWriter) -> bool {
        let before = self.failure().map(str::to_owned);
        self.failures[writer as usize] = None;
        self.failure() != before.as_deref()
    }

    /// Returns the reason why the disk rejects writes, if it does. The log's failure comes first,
    /// since clients wait for the log.
    pub fn failure(&self) -> Option<&str> {
        self.failures.iter().flatten().next().map(|failure| failure.reason.as_str())
    }

    /// Closes the queue: no more work is queued.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// Returns `true` if no more work is queued.
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// Records that a writer has ended, so that no caller waits for it. Without it the store is
    /// unusable.
    pub fn end(&mut self, writer: StoreWriter) {
        self.ended[writer as usize] = true;
        // The other writer must not continue alone: half a store keeps no promise.
        self.closing = true;
    }

    /// Returns `true` if a writer has ended.
    pub fn has_ended(&self, writer: StoreWriter) -> bool {
        self.ended[writer as usize]
    }

    /// Returns `true` if an idle writer may end, because no more work will arrive for it.
    pub fn may_end(&self, writer: StoreWriter) -> bool {
        match writer {
            // The last checkpoint may still need a commit index from this writer.
            StoreWriter::Log => self.closing && self.is_checkpoint_idle(),
            StoreWriter::Checkpoint => {
                // The writer that would make it durable is gone: waiting for it would block the
                // shutdown forever.
                let commit_never_comes = self.has_ended(StoreWriter::Log) && self.checkpoint_waits();
                commit_never_comes || (self.closing && self.waiting.is_empty() && self.begun.is_none())
            }
        }
    }

    /// Returns all waiting writes that were not begun: a power failure loses these.
    pub fn into_waiting(self) -> Vec<LogWrite> {
        self.writes.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::log::{EntryKind, LogEntry};
    use bytes::Bytes;
    use lockmesh_protocol::id::{Fence, Term};

    type Queue = WriteQueue<Vec<Change>>;

    fn mark(index: u64) -> SnapshotMeta {
        SnapshotMeta { index: LogIndex(index), term: Term(1), ..SnapshotMeta::default() }
    }

    fn write(number: u64, bytes: usize) -> LogWrite {
        let (index, term) = (LogIndex(number), Term(1));
        let data = Bytes::from(vec![0; bytes]);
        let entry = LogEntry { index, term, kind: EntryKind::Normal, data, context: Bytes::new() };
        LogWrite { number, reset: None, entries: vec![entry], hard_state: None }
    }

    fn checkpoint(index: u64, installed: bool) -> Checkpoint<Vec<Change>> {
        Checkpoint { mark: mark(index), rows: vec![Change::Fence(Fence(index))], installed, is_exact: false }
    }

    fn exact(index: u64) -> Checkpoint<Vec<Change>> {
        Checkpoint { is_exact: true, ..checkpoint(index, false) }
    }

    /// Writes every waiting checkpoint and returns the index, number of rows and exactness of each.
    fn drained(mut queue: Queue) -> Vec<(u64, usize, bool)> {
        let next = || {
            let checkpoint = queue.begin_checkpoint()?;
            queue.checkpointed();
            Some((checkpoint.mark.index.0, checkpoint.rows.len(), checkpoint.is_exact))
        };
        std::iter::from_fn(next).collect()
    }

    fn numbers(commit: Option<LogCommit>) -> Option<Vec<u64>> {
        commit.map(|commit| commit.writes.iter().map(|write| write.number).collect())
    }

    #[test]
    fn commit_batch_ordered_and_byte_limited() {
        let mut queue = Queue::new(LogIndex(1), LogIndex(1));
        assert!(queue.begin_commit(usize::MAX, false).is_none());
        (2..=4).for_each(|number| queue.push(write(number, MAX_COMMIT_BYTES / 2)));
        assert_eq!(numbers(queue.begin_commit(usize::MAX, false)), Some(vec![2, 3]));
        assert_eq!(queue.committed(LogIndex(1)), Some(3));
        assert_eq!(numbers(queue.begin_commit(usize::MAX, false)), Some(vec![4]));
    }

    #[test]
    fn checkpoint_waits_for_commit_index() {
        let mut queue = Queue::new(LogIndex(5), LogIndex(1));
        queue.hand_over(checkpoint(6, false));
        assert!(queue.begin_checkpoint().is_none() && queue.checkpoint_waits());
        // Later checkpoints are not part of it.
        queue.hand_over(checkpoint(7, false));
        queue.hand_over(checkpoint(8, false));
        let commit = queue.begin_commit(usize::MAX, false).expect("a commit index is required");
        assert_eq!((commit.writes.len(), commit.least_commit), (0, LogIndex(6)));
        assert_eq!(queue.committed(commit.least_commit), None);
        let begun = queue.begin_checkpoint().expect("its commit index is durable");
        assert_eq!((begun.mark, begun.rows.len()), (mark(6), 1));
        assert!(queue.begin_checkpoint().is_none(), "one at a time");
        queue.checkpointed();
        assert_eq!(queue.durable_checkpoint(), LogIndex(6));
        assert!(queue.begin_checkpoint().is_none() && !queue.is_checkpoint_idle());
        queue.committed(LogIndex(8));
        assert_eq!(queue.begin_checkpoint().expect("the two are joined").rows.len(), 2);
    }

    #[test]
    fn exact_checkpoint_joins_only_older() {
        let mut queue = Queue::new(LogIndex(100), LogIndex(1));
        [checkpoint(2, false), exact(3), checkpoint(4, false), checkpoint(5, false), exact(6)]
            .into_iter()
            .for_each(|checkpoint| queue.hand_over(checkpoint));
        assert_eq!(drained(queue.clone()), [(3, 2, true), (6, 3, true)]);
        queue.hand_over(checkpoint(7, false));
        queue.hand_over(checkpoint(8, false));
        assert_eq!(drained(queue), [(3, 2, true), (6, 3, true), (8, 2, false)]);
    }

    #[test]
    fn exact_checkpoint_backlog_is_bounded() {
        let mut queue = Queue::new(LogIndex(100), LogIndex(1));
        (2..=9).for_each(|index| queue.hand_over(exact(index)));
        assert_eq!(drained(queue.clone()), [(2, 1, true), (3, 1, true), (4, 1, true), (9, 5, true)]);
        queue.hand_over(checkpoint(10, false));
        assert_eq!(drained(queue).last(), Some(&(10, 6, false)), "joined with a newer one, it is not exact");
    }

    #[test]
    fn installed_checkpoint_supersedes_waiting() {
        let mut queue = Queue::new(LogIndex(1), LogIndex(1));
        [exact(3), checkpoint(4, false), checkpoint(50, true)]
            .into_iter()
            .for_each(|one| queue.hand_over(one));
        let begun = queue.begin_checkpoint().expect("an installed one needs no commit index");
        assert_eq!((begun.mark, begun.rows.len(), begun.is_exact), (mark(50), 3, false));
        queue.checkpointed();
        assert!(queue.is_checkpoint_idle());
    }

    #[test]
    fn reset_blocks_writes_until_checkpoint() {
        let mut queue = Queue::new(LogIndex(1), LogIndex(1));
        queue.push(write(2, 1));
        queue.push(LogWrite { reset: Some(mark(50)), ..write(3, 1) });
        queue.push(write(4, 1));
        assert_eq!(queue.ready_writes(), 1);
        assert_eq!(numbers(queue.begin_commit(usize::MAX, false)), Some(vec![2]));
        queue.committed(LogIndex(1));
        assert!(queue.begin_commit(usize::MAX, false).is_none());
        queue.hand_over(checkpoint(50, true));
        assert!(queue.begin_checkpoint().is_some(), "it needs no commit of the own log");
        assert!(queue.begin_commit(usize::MAX, false).is_none(), "the checkpoint is not durable yet");
        queue.checkpointed();
        assert_eq!(numbers(queue.begin_commit(usize::MAX, false)), Some(vec![3, 4]));
    }

    #[test]
    fn compaction_limited_to_durable_checkpoint() {
        let mut queue = Queue::new(LogIndex(9), LogIndex(4));
        queue.compact(LogIndex(8));
        assert_eq!(queue.compact_to(), LogIndex(4));
        assert!(queue.begin_commit(usize::MAX, true).is_some(), "a compaction alone is a commit");
        queue.close();
        assert!(queue.begin_commit(usize::MAX, true).is_none(), "no compaction while closing");
    }

    #[test]
    fn rejected_write_backs_off_reported_once() {
        let mut queue = Queue::new(LogIndex(1), LogIndex(1));
        let full = || "full".to_owned();
        let waits: Vec<u128> =
            (0..8).map(|_| queue.refused(StoreWriter::Log, full()).0.as_millis()).collect();
        assert_eq!(waits, [50, 100, 200, 400, 800, 1_600, 2_000, 2_000]);
        assert!(!queue.refused(StoreWriter::Log, full()).1, "the reason is the same");
        assert!(!queue.refused(StoreWriter::Checkpoint, "broken".into()).1, "the log's failure comes first");
        assert!(queue.accepted(StoreWriter::Log) && queue.failure() == Some("broken"));
        assert!(queue.accepted(StoreWriter::Checkpoint) && queue.failure().is_none());
        assert!(!queue.accepted(StoreWriter::Log), "no change");
        assert_eq!(queue.refused(StoreWriter::Log, full()).0, RETRY_BACKOFF.0);
    }

    #[test]
    fn close_writes_checkpoint_if_committable() {
        let mut queue = Queue::new(LogIndex(5), LogIndex(1));
        queue.hand_over(checkpoint(6, false));
        queue.close();
        assert!(!queue.may_end(StoreWriter::Log) && !queue.may_end(StoreWriter::Checkpoint));
        assert!(queue.begin_checkpoint().is_none());
        let mut failed = queue.clone();
        failed.end(StoreWriter::Log);
        assert!(failed.may_end(StoreWriter::Checkpoint));
        queue.committed(LogIndex(6));
        assert!(queue.begin_checkpoint().is_some() && !queue.may_end(StoreWriter::Log));
        queue.checkpointed();
        assert!(queue.may_end(StoreWriter::Checkpoint) && queue.may_end(StoreWriter::Log));
    }
}
