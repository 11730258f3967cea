//! The store at work: a thread that writes the log, a thread that writes the checkpoint, and what
//! they wait for.
//!
//! ```text
//! driver ── write ──> queue ──> log thread ── one commit for all that waits ──> Persisted
//!        ─ checkpoint ─> slot ─> checkpoint thread ── commit index durable? one commit ──> Checkpoint
//! ```
//!
//! What may be written when, and what is tried again after how long, [`WriteQueue`] decides: here
//! are only the threads that ask it, the files, and the waiting. The checkpoint's thread lets
//! others go first: of all clients only backups wait for it, and beside them a server that takes a
//! snapshot.

use super::checkpoint::{Backup, CheckpointStore};
use super::error::StoreError;
use super::events::{StoreEvent, StoreHealth};
use super::log::LogStore;
use super::rows::DirtyRows;
use crate::background::yield_to_others;
use crate::metrics::SERVER;
use lockmesh_core::checksum::Checksum;
use lockmesh_core::raft::log::{LogWrite, SnapshotMeta};
use lockmesh_core::write_queue::{CheckpointRows, LogCommit, StoreWriter, WriteQueue};
use lockmesh_protocol::id::LogIndex;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub use lockmesh_core::write_queue::MAX_QUEUED_WRITES;

/// How long the checkpoint's thread rests between two portions of rows that it removes: about as
/// long as one takes.
const PORTION_INTERVAL: Duration = Duration::from_millis(2);

/// A checkpoint to be made.
type Checkpoint = lockmesh_core::write_queue::Checkpoint<DirtyRows>;

/// What the driver holds of a store at work. Closes it when dropped.
pub struct StoreHandle {
    shared: Arc<StoreShared>,
    checkpoints: Arc<CheckpointStore>,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads and the driver share.
struct StoreShared {
    state: Mutex<WriterState>,
    /// Told when there is something for the log's thread.
    log_news: Condvar,
    /// Told when there is something for the checkpoint's thread.
    checkpoint_news: Condvar,
    /// Told when there is room for more writes, and somebody waits for it.
    room: Condvar,
    listener: Box<dyn Fn(StoreEvent) + Send + Sync>,
}

/// What there is to do, and who waits for it.
struct WriterState {
    queue: WriteQueue<DirtyRows>,
    /// Whether somebody waits until fewer writes are queued.
    waits_for_room: bool,
}

impl StoreHandle {
    /// Starts the threads.
    pub(super) fn start(
        log: LogStore,
        checkpoints: CheckpointStore,
        durable_checkpoint: LogIndex,
        listener: impl Fn(StoreEvent) + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let queue = WriteQueue::new(log.head().hard_state.commit, durable_checkpoint);
        let state = WriterState { queue, waits_for_room: false };
        let shared = Arc::new(StoreShared {
            state: Mutex::new(state),
            log_news: Condvar::new(),
            checkpoint_news: Condvar::new(),
            room: Condvar::new(),
            listener: Box::new(listener),
        });
        let checkpoints = Arc::new(checkpoints);
        let files = [("log", log.file().path()), ("state", checkpoints.file().path())];
        let mut handle =
            Self { shared: Arc::clone(&shared), checkpoints: Arc::clone(&checkpoints), threads: Vec::new() };
        let log_shared = Arc::clone(&shared);
        let log_thread = thread::Builder::new().name("log writer".to_owned());
        handle.threads.push(log_thread.spawn(move || write_log(log, &log_shared))?);
        let checkpoint_thread = thread::Builder::new().name("checkpoint writer".to_owned());
        handle.threads.push(checkpoint_thread.spawn(move || {
            yield_to_others();
            write_checkpoints(&checkpoints, &shared, &files);
        })?);
        Ok(handle)
    }

    /// Queues log writes. They become durable in this order; [`StoreEvent::Persisted`] tells how
    /// far.
    ///
    /// Waits only while [`MAX_QUEUED_WRITES`] wait already. A write that resets the log waits, and
    /// all behind it, until the checkpoint that it names is durable: [`StoreHandle::install`] that
    /// first.
    ///
    /// # Errors
    /// [`StoreError::Closed`]: this write and those behind it were not queued, those before it are
    /// written still. A disk that refuses is no error here: the thread tries again, and
    /// [`StoreEvent::Health`] tells.
    pub fn write(&self, writes: impl IntoIterator<Item = LogWrite>) -> Result<(), StoreError> {
        let mut state = self.shared.state();
        for write in writes {
            // The driver waits here, and with it everybody whose events it does not take: that is
            // the backpressure of the disk.
            while state.queue.is_full() {
                // The log's thread may not know yet of what fills the queue.
                self.shared.log_news.notify_one();
                state.waits_for_room = true;
                state = wait(&self.shared.room, state);
            }
            if state.queue.is_closing() {
                return Err(StoreError::Closed);
            }
            state.queue.push(write);
        }
        drop(state);
        // Once for all of them, and not under the lock that the thread needs.
        self.shared.log_news.notify_one();
        Ok(())
    }

    /// How many log writes wait for the disk.
    pub fn queued_writes(&self) -> usize {
        self.shared.state().queue.queued_writes()
    }

    /// Makes the checkpoint stand for an index of another server's, to which the own log does not
    /// lead. The rows begin with [`lockmesh_protocol::change::Change::Cleared`]; a
    /// [`LogWrite::reset`] to the same mark must follow.
    pub fn install(&self, mark: SnapshotMeta, rows: DirtyRows) {
        self.hand_over(Checkpoint { mark, rows, installed: true, is_exact: false });
    }

    /// Makes a checkpoint as soon as the checkpoint thread is free. What it has not begun yet is
    /// joined to it, but to one that is exact nothing is, so this never waits.
    pub(crate) fn hand_over(&self, newer: Checkpoint) {
        self.shared.state().queue.hand_over(newer);
        self.shared.checkpoint_news.notify_one();
    }

    /// Lets the log go up to an index, or up to the durable checkpoint if that is less; a little
    /// with each commit. Rows are compacted whole, so a few entries before the index may stay.
    pub fn compact(&self, up_to: LogIndex) {
        self.shared.state().queue.compact(up_to);
        self.shared.log_news.notify_one();
    }

    /// Whether the disk takes writes.
    pub fn health(&self) -> StoreHealth {
        health(&self.shared.state().queue)
    }

    /// Begins a backup of what the durable checkpoint holds. A newer one is had by a checkpoint
    /// first.
    ///
    /// # Errors
    /// The checkpoint cannot be read. The store is as it was.
    pub fn backup(&self) -> Result<Backup, StoreError> {
        self.checkpoints.backup()
    }

    /// Writes what is queued, ends the threads and closes the files.
    ///
    /// A disk that refuses is not waited for: what it has not taken was not acknowledged.
    pub fn close(self) {
        drop(self);
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        self.shared.state().queue.close();
        self.shared.tell_everybody();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the store panicked");
            }
        }
    }
}

impl StoreShared {
    /// A panic while the lock was held leaves plain data that is still whole.
    fn state(&self) -> MutexGuard<'_, WriterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell_everybody(&self) {
        for news in [&self.log_news, &self.checkpoint_news, &self.room] {
            news.notify_all();
        }
    }

    /// Tries a write until the disk takes it; false where the store was closed before it did. The
    /// attempt is told whether it is a repetition: then the file must be opened anew first.
    fn retry_until_written(
        &self,
        writer: StoreWriter,
        mut attempt: impl FnMut(bool) -> Result<(), StoreError>,
    ) -> bool {
        let mut done = attempt(false);
        while let Err(error) = done {
            tracing::error!(%error, "the disk refuses; trying again");
            let mut state = self.state();
            let (backoff, is_news) = state.queue.refused(writer, error.to_string());
            // Before the pause, so that a leader can step down while the disk still refuses.
            self.tell_health(state, is_news);
            if !self.pause(writer, backoff) {
                return false;
            }
            done = attempt(true);
        }
        let mut state = self.state();
        let is_news = state.queue.accepted(writer);
        self.tell_health(state, is_news);
        true
    }

    /// Waits; false where the store is being closed.
    fn pause(&self, writer: StoreWriter, backoff: Duration) -> bool {
        let news = match writer {
            StoreWriter::Log => &self.log_news,
            StoreWriter::Checkpoint => &self.checkpoint_news,
        };
        // Woken at once where the store is closed, whatever is left of the pause.
        let waited = news.wait_timeout_while(self.state(), backoff, |state| !state.queue.is_closing());
        !waited.unwrap_or_else(PoisonError::into_inner).0.queue.is_closing()
    }

    /// Tells the listener where the health of the whole has changed.
    fn tell_health(&self, state: MutexGuard<'_, WriterState>, is_news: bool) {
        let now = health(&state.queue);
        // The listener is never called under the lock that the driver and both threads need.
        drop(state);
        if is_news {
            (self.listener)(StoreEvent::Health(now));
        }
    }
}

fn health(queue: &WriteQueue<DirtyRows>) -> StoreHealth {
    queue.failure().map_or(StoreHealth::Good, |reason| StoreHealth::Failing(reason.to_owned()))
}

fn wait<'a>(news: &Condvar, state: MutexGuard<'a, WriterState>) -> MutexGuard<'a, WriterState> {
    news.wait(state).unwrap_or_else(PoisonError::into_inner)
}

/// Says at the end of a thread that it is gone, so that the other one does not wait for it.
struct Leaving<'a>(&'a StoreShared, StoreWriter);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        // A thread goes early only where it panicked.
        self.0.state().queue.end(self.1);
        self.0.tell_everybody();
    }
}

/// The log thread: one commit for all that waits, again and again.
fn write_log(mut log: LogStore, shared: &StoreShared) {
    let _leaving = Leaving(shared, StoreWriter::Log);
    while let Some(LogCommit { writes, least_commit }) = next_commit(&mut log, shared) {
        let written = shared.retry_until_written(StoreWriter::Log, |again| {
            // After an error redb takes nothing more, and what it wrote before may be there or not.
            if again {
                log.file().reopen()?;
            }
            let begun = Instant::now();
            log.commit(&writes, least_commit)?;
            SERVER.times.fsyncs.observe(begun.elapsed().as_secs_f64());
            Ok(())
        });
        if !written {
            tracing::warn!(
                writes = writes.len(),
                "closed while the disk refused: these writes are not durable"
            );
            // Without the last commit: the file is in doubt, and the next start looks at it with
            // suspicion.
            return;
        }
        let mut state = shared.state();
        // Asked before the commit index moves: afterwards the same checkpoint waits no more.
        let checkpoint_waits = state.queue.checkpoint_waits();
        let last = state.queue.committed(log.head().hard_state.commit);
        drop(state);
        if checkpoint_waits {
            shared.checkpoint_news.notify_one();
        }
        if let Some(number) = last {
            (shared.listener)(StoreEvent::Persisted(number));
        }
    }
    log.finish();
}

/// Waits for something to commit: writes, a commit index, or rows to compact. None where there will
/// be nothing more.
fn next_commit(log: &mut LogStore, shared: &StoreShared) -> Option<LogCommit> {
    let mut state = shared.state();
    loop {
        log.compact(state.queue.compact_to());
        if let Some(commit) = state.queue.begin_commit(usize::MAX, log.must_compact()) {
            if std::mem::take(&mut state.waits_for_room) {
                shared.room.notify_all();
            }
            return Some(commit);
        }
        if state.queue.may_end(StoreWriter::Log) {
            return None;
        }
        state = wait(&shared.log_news, state);
    }
}

/// The checkpoint thread: one checkpoint after the other.
fn write_checkpoints(checkpoints: &CheckpointStore, shared: &StoreShared, files: &[(&str, PathBuf)]) {
    let _leaving = Leaving(shared, StoreWriter::Checkpoint);
    show_sizes(files);
    while let Some(mut checkpoint) = next_checkpoint(shared) {
        let begun = Instant::now();
        // Here and not in the driver, whose turn must be short.
        checkpoint.rows.sort();
        let mut sum = Checksum::default();
        let written = shared.retry_until_written(StoreWriter::Checkpoint, |again| {
            if again {
                checkpoints.file().reopen()?;
            }
            // At the end of the store there is nobody left to make room for.
            let rest = || {
                shared.pause(StoreWriter::Checkpoint, PORTION_INTERVAL);
            };
            // The sum of the attempt that succeeds: a failed one may have counted half of it.
            sum = checkpoints.write(&checkpoint.mark, &checkpoint.rows, rest)?;
            Ok(())
        });
        if !written {
            return;
        }
        let (rows, took_ms) = (checkpoint.rows.row_count(), begun.elapsed().as_millis());
        tracing::debug!(index = checkpoint.mark.index.0, rows, took_ms, "the checkpoint is durable");
        SERVER.times.checkpoints.observe(begun.elapsed().as_secs_f64());
        show_sizes(files);
        // Before the driver is told, so that a compaction that follows finds the checkpoint
        // durable.
        shared.state().queue.checkpointed();
        // A reset may wait for exactly this checkpoint.
        shared.log_news.notify_one();
        let index = checkpoint.mark.index;
        (shared.listener)(StoreEvent::Checkpointed(checkpoint.mark));
        if checkpoint.is_exact {
            (shared.listener)(StoreEvent::Summed(index, sum));
        }
    }
    checkpoints.finish();
}

/// Shows how long the files are. One that cannot be asked keeps the size that it had.
fn show_sizes(files: &[(&str, PathBuf)]) {
    for (file, path) in files {
        if let Ok(found) = fs::metadata(path) {
            SERVER.levels.show_database(file, found.len());
        }
    }
}

/// Waits for a checkpoint, and until it may be made. None where there will be no more.
fn next_checkpoint(shared: &StoreShared) -> Option<Checkpoint> {
    let mut state = shared.state();
    loop {
        if let Some(checkpoint) = state.queue.begin_checkpoint() {
            return Some(checkpoint);
        }
        if state.queue.may_end(StoreWriter::Checkpoint) {
            return None;
        }
        // The log's thread may be asleep, and would not know that a commit index is wanted.
        if state.queue.checkpoint_waits() {
            shared.log_news.notify_one();
        }
        state = wait(&shared.checkpoint_news, state);
    }
}
