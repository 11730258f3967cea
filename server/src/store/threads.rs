//! The store's threads: one writes the log (group commit), one writes the checkpoint.
//!
//! ```text
//! driver ── write ──> queue ──> log thread ── one commit for all queued writes ──> Persisted
//!        ─ checkpoint ─> slot ─> checkpoint thread ── commit index durable? one commit ──> Checkpoint
//! ```
//!
//! [`WriteQueue`] decides the order of writes and the backoff of retries: this module has only the
//! threads, the files, and the waiting. The checkpoint's thread has a low priority: only backups
//! wait for it, and servers that install a snapshot.

use super::checkpoint::{Backup, CheckpointStore};
use super::dead_space::Looks;
use super::error::StoreError;
use super::events::{StoreEvent, StoreHealth};
use super::log::{LogStore, SegmentPool};
use super::rows::DirtyRows;
use crate::background::yield_to_others;
use crate::metrics;
use lockmesh_core::durability::checksum::Checksum;
use lockmesh_core::durability::write_queue::{CheckpointRows, LogCommit, StoreWriter, WriteQueue};
use lockmesh_core::raft::log::{LogWrite, SnapshotMeta};
use lockmesh_protocol::id::LogIndex;
use lockmesh_protocol::log_on_change::LogOnChange;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub use lockmesh_core::durability::write_queue::MAX_QUEUED_WRITES;

/// The pause of the checkpoint's thread between two portions of removed rows: about as long as one
/// takes.
const PORTION_INTERVAL: Duration = Duration::from_millis(2);

/// A checkpoint to be written.
type Checkpoint = lockmesh_core::durability::write_queue::Checkpoint<DirtyRows>;

/// The driver's handle of a running store. Closes it when dropped.
pub struct StoreHandle {
    shared: Arc<StoreShared>,
    checkpoints: Arc<CheckpointStore>,
    threads: Vec<JoinHandle<()>>,
}

/// The state shared by the threads and the driver.
struct StoreShared {
    state: Mutex<WriterState>,
    /// Notified when there is work for the log's thread.
    log_news: Condvar,
    /// Notified when there is work for the checkpoint's thread.
    checkpoint_news: Condvar,
    /// Notified when there is room for more writes, and a writer waits for it.
    room: Condvar,
    listener: Box<dyn Fn(StoreEvent) + Send + Sync>,
}

/// The queued work, and its waiters.
struct WriterState {
    queue: WriteQueue<DirtyRows>,
    /// `true` if a writer waits for room in the queue.
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
        let files = [("log", log.path()), ("state", checkpoints.file().path())];
        let pool = Arc::clone(log.pool());
        let mut handle =
            Self { shared: Arc::clone(&shared), checkpoints: Arc::clone(&checkpoints), threads: Vec::new() };
        let log_shared = Arc::clone(&shared);
        let log_thread = thread::Builder::new().name("log writer".to_owned());
        handle.threads.push(log_thread.spawn(move || write_log(log, &log_shared))?);
        let checkpoint_thread = thread::Builder::new().name("checkpoint writer".to_owned());
        handle.threads.push(checkpoint_thread.spawn(move || {
            yield_to_others();
            write_checkpoints((&checkpoints, &pool), &shared, &files);
        })?);
        Ok(handle)
    }

    /// Queues log writes. They become durable in this order; [`StoreEvent::Persisted`] reports the
    /// progress.
    ///
    /// Waits only while [`MAX_QUEUED_WRITES`] are queued. A write that resets the log waits, and
    /// all behind it, until the checkpoint that it names is durable: [`StoreHandle::install`] that
    /// first.
    ///
    /// # Errors
    /// Returns [`StoreError::Closed`]: this write and those behind it were not queued, earlier ones
    /// are still written. An error of the disk is no error here: the thread retries, and
    /// [`StoreEvent::Health`] reports it.
    pub fn write(&self, writes: impl IntoIterator<Item = LogWrite>) -> Result<(), StoreError> {
        let mut state = self.shared.state();
        for write in writes {
            // The driver waits here, and with it all senders of its events: the disk's
            // backpressure.
            while state.queue.is_full() {
                // The log's thread may not have been notified of the queued writes yet.
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

    /// Returns the number of queued log writes.
    pub fn queued_writes(&self) -> usize {
        self.shared.state().queue.queued_writes()
    }

    /// Moves the checkpoint to an index of another server's snapshot, to which this server's log
    /// does not lead. The rows begin with [`lockmesh_protocol::change::Change::Cleared`]; a
    /// [`LogWrite::reset`] to the same mark must follow.
    pub fn install(&self, mark: SnapshotMeta, rows: DirtyRows) {
        self.hand_over(Checkpoint { mark, rows, installed: true, is_exact: false });
    }

    /// Queues a checkpoint for the checkpoint thread. A queued one that has not begun is merged
    /// with it, unless that one is exact, so this never waits.
    pub(crate) fn hand_over(&self, newer: Checkpoint) {
        self.shared.state().queue.hand_over(newer);
        self.shared.checkpoint_news.notify_one();
    }

    /// Compacts the log up to an index, or up to the durable checkpoint if that is less; a portion
    /// with each commit. Rows are compacted whole, so a few entries before the index may stay.
    pub fn compact(&self, up_to: LogIndex) {
        self.shared.state().queue.compact(up_to);
        self.shared.log_news.notify_one();
    }

    /// Returns the health of the disk.
    pub fn health(&self) -> StoreHealth {
        health(&self.shared.state().queue)
    }

    /// Begins a backup of the durable checkpoint. For newer content, make a checkpoint first.
    ///
    /// # Errors
    /// The checkpoint cannot be read. The store is unchanged.
    pub fn backup(&self) -> Result<Backup, StoreError> {
        self.checkpoints.backup()
    }

    /// Writes the queue, ends the threads and closes the files.
    ///
    /// Does not wait for a failing disk: its pending writes were never acknowledged.
    pub fn close(self) {
        drop(self);
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        self.shared.state().queue.close();
        self.shared.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the store panicked");
            }
        }
    }
}

impl StoreShared {
    /// A panic under the lock leaves plain data that is still valid.
    fn state(&self) -> MutexGuard<'_, WriterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify_all(&self) {
        for news in [&self.log_news, &self.checkpoint_news, &self.room] {
            news.notify_all();
        }
    }

    /// Retries a write until the disk accepts it; returns `false` if the store was closed first.
    /// `attempt` receives `true` for a retry: then the file must be reopened first.
    fn retry_until_written(
        &self,
        writer: StoreWriter,
        mut attempt: impl FnMut(bool) -> Result<(), StoreError>,
    ) -> bool {
        let mut done = attempt(false);
        let mut log = LogOnChange::default();
        while let Err(error) = done {
            if log.is_new(&error.to_string()) {
                tracing::error!(?writer, %error, "write failed; retrying");
            }
            let mut state = self.state();
            let (backoff, is_news) = state.queue.refused(writer, error.to_string());
            // Before the pause, so that a leader can step down while the disk still fails.
            self.report_health(state, is_news);
            if !self.pause(writer, backoff) {
                return false;
            }
            done = attempt(true);
        }
        let mut state = self.state();
        if log.reset() {
            tracing::info!(?writer, "writes succeed again");
        }
        let is_news = state.queue.accepted(writer);
        self.report_health(state, is_news);
        true
    }

    /// Waits; returns `false` if the store is being closed.
    fn pause(&self, writer: StoreWriter, backoff: Duration) -> bool {
        let news = match writer {
            StoreWriter::Log => &self.log_news,
            StoreWriter::Checkpoint => &self.checkpoint_news,
        };
        // Woken at once when the store is closed, before the pause ends.
        let waited = news.wait_timeout_while(self.state(), backoff, |state| !state.queue.is_closing());
        !waited.unwrap_or_else(PoisonError::into_inner).0.queue.is_closing()
    }

    /// Reports the store's health to the listener if it has changed.
    fn report_health(&self, state: MutexGuard<'_, WriterState>, is_news: bool) {
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

/// Reports the end of a thread on drop, so that the other one does not wait for it.
struct Leaving<'a>(&'a StoreShared, StoreWriter);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        // A thread ends early only after a panic.
        self.0.state().queue.end(self.1);
        self.0.notify_all();
    }
}

/// The log thread: repeatedly makes one commit for all queued writes.
fn write_log(mut log: LogStore, shared: &StoreShared) {
    let _leaving = Leaving(shared, StoreWriter::Log);
    while let Some(LogCommit { writes, least_commit }) = next_commit(&mut log, shared) {
        let written = shared.retry_until_written(StoreWriter::Log, |_| {
            let begun = Instant::now();
            log.commit(&writes, least_commit)?;
            metrics::FSYNCS.observe(begun.elapsed().as_secs_f64());
            Ok(())
        });
        if !written {
            tracing::warn!(writes = writes.len(), "closed while writes failed; these writes are not durable");
            return;
        }
        let mut state = shared.state();
        // Read before the commit index moves: afterwards the same checkpoint no longer waits.
        let checkpoint_waits = state.queue.checkpoint_waits();
        let last = state.queue.committed(log.head().hard_state.commit);
        drop(state);
        if checkpoint_waits || log.pool().is_due() {
            shared.checkpoint_news.notify_one();
        }
        if let Some(number) = last {
            (shared.listener)(StoreEvent::Persisted(number));
        }
    }
    log.finish();
}

/// Waits for something to commit: writes, a commit index, or rows to compact. `None` when the store
/// is closed.
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
fn write_checkpoints(
    (checkpoints, pool): (&CheckpointStore, &SegmentPool),
    shared: &StoreShared,
    files: &[(&str, PathBuf)],
) {
    let _leaving = Leaving(shared, StoreWriter::Checkpoint);
    show_sizes(files);
    let mut looks = Looks::default();
    while let Some(work) = next_work(shared, pool, &looks) {
        let mut checkpoint = match work {
            Work::Checkpoint(checkpoint) => checkpoint,
            Work::PrepareSegment => {
                // The log works without it; only an error of the log itself counts.
                if let Err(error) = pool.prepare() {
                    tracing::warn!(%error, "cannot prepare a segment of the log");
                }
                continue;
            }
            Work::GiveSpaceBack => {
                give_space_back(checkpoints, &mut looks);
                show_sizes(files);
                continue;
            }
        };
        looks.checkpointed();
        let begun = Instant::now();
        // Here and not in the driver, whose turn must be short.
        checkpoint.rows.sort();
        let mut sum = Checksum::default();
        let written = shared.retry_until_written(StoreWriter::Checkpoint, |again| {
            // Before the checkpoint, which may need the space, and may take long.
            pool.give_space_back();
            if again {
                checkpoints.file().reopen()?;
            }
            // The pause ends at once when the store is closed.
            let rest = || {
                shared.pause(StoreWriter::Checkpoint, PORTION_INTERVAL);
            };
            // The sum of the successful attempt: a failed one may have counted half of it.
            sum = checkpoints.write(&checkpoint.mark, &checkpoint.rows, rest)?;
            Ok(())
        });
        if !written {
            return;
        }
        let (rows, took_ms) = (checkpoint.rows.row_count(), begun.elapsed().as_millis());
        tracing::debug!(index = checkpoint.mark.index.0, rows, took_ms, "the checkpoint is durable");
        metrics::CHECKPOINTS.observe(begun.elapsed().as_secs_f64());
        pool.checkpointed();
        show_sizes(files);
        report_checkpoint(shared, checkpoint, sum);
    }
    checkpoints.finish();
}

fn report_checkpoint(shared: &StoreShared, checkpoint: Checkpoint, sum: Checksum) {
    // Before the driver is notified, so that a compaction that follows finds the checkpoint
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

/// Gives dead space of the checkpoint back, and publishes the rest.
fn give_space_back(checkpoints: &CheckpointStore, looks: &mut Looks) {
    let began = Instant::now();
    match checkpoints.give_space_back() {
        Ok(space) => metrics::STATE_FREE_BYTES.set(space.free.cast_signed()),
        // The next checkpoint reopens the file.
        Err(error) => tracing::warn!(%error, "cannot give dead space of the checkpoint back"),
    }
    looks.looked(began, Instant::now());
}

/// Publishes the sizes of log and checkpoint. One that cannot be read keeps its last size.
fn show_sizes(files: &[(&str, PathBuf)]) {
    for (file, path) in files {
        if let Ok(bytes) = size_of(path) {
            metrics::show_database(file, bytes);
        }
    }
}

/// Returns the size of a file, or of the files in a folder.
fn size_of(path: &Path) -> std::io::Result<u64> {
    let found = fs::metadata(path)?;
    match found.is_dir() {
        true => fs::read_dir(path)?.map(|entry| Ok(entry?.metadata()?.len())).sum(),
        false => Ok(found.len()),
    }
}

/// The work of the checkpoint's thread.
enum Work {
    Checkpoint(Checkpoint),
    /// A segment of the log can be prepared, or removed.
    PrepareSegment,
    /// Nothing was written for a while: dead space can be given back.
    GiveSpaceBack,
}

/// Waits for a checkpoint, and until it may be written, or for an idle moment. `None` when the
/// store is closed.
fn next_work(shared: &StoreShared, pool: &SegmentPool, looks: &Looks) -> Option<Work> {
    let mut state = shared.state();
    let look_at = looks.wait(Instant::now()).map(|wait| Instant::now() + wait);
    loop {
        if let Some(checkpoint) = state.queue.begin_checkpoint() {
            return Some(Work::Checkpoint(checkpoint));
        }
        if pool.is_due() && !state.queue.is_closing() {
            return Some(Work::PrepareSegment);
        }
        if state.queue.may_end(StoreWriter::Checkpoint) {
            return None;
        }
        // The log's thread may be asleep, and must learn that a commit index is needed.
        if state.queue.checkpoint_waits() {
            shared.log_news.notify_one();
        }
        // A store that is being closed is not looked at.
        let Some(look_at) = look_at.filter(|_| !state.queue.is_closing()) else {
            state = wait(&shared.checkpoint_news, state);
            continue;
        };
        let left = look_at.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Some(Work::GiveSpaceBack);
        }
        let waited = shared.checkpoint_news.wait_timeout(state, left);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}
