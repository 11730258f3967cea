//! The store at work: a thread that writes the log, a thread that writes the image, and what they wait for.
//!
//! ```text
//! driver ── write ──> queue ──> log thread ── one commit for all that waits ──> Persisted
//!        ─ checkpoint ─> slot ─> image thread ── commit index durable? one commit ──> Image
//! ```
//!
//! What may be written when, and what is tried again after how long, [`WriteQueue`] decides: here are only the threads that
//! ask it, the files, and the waiting. The image's thread lets others go first: of all clients only backups wait for it, and
//! beside them a server that takes a snapshot.

use super::error::StoreError;
use super::events::{StoreEvent, StoreHealth};
use super::image::{Backup, ImageStore};
use super::log::LogStore;
use super::rows::DirtyRows;
use crate::background::yield_to_others;
use lockmesh_core::checksum::Checksum;
use lockmesh_core::raft::log::{ImageMark, LogWrite};
use lockmesh_core::write_queue::{CheckpointRows, LogCommit, WriteQueue, Writer};
use lockmesh_protocol::id::LogIndex;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub use lockmesh_core::write_queue::MAX_QUEUED_WRITES;

/// How long the image's thread rests between two portions of rows that it removes: about as long as one takes.
const PORTION_REST: Duration = Duration::from_millis(2);

/// An image to be made.
type Checkpoint = lockmesh_core::write_queue::Checkpoint<DirtyRows>;

/// What the driver holds of a store at work. Closes it when dropped.
pub struct StoreHandle {
    shared: Arc<Shared>,
    image: Arc<ImageStore>,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads and the driver share.
struct Shared {
    desk: Mutex<Desk>,
    /// Told when there is something for the log's thread.
    log_news: Condvar,
    /// Told when there is something for the image's thread.
    image_news: Condvar,
    /// Told when there is room for more writes, and somebody waits for it.
    room: Condvar,
    listener: Box<dyn Fn(StoreEvent) + Send + Sync>,
}

/// What there is to do, and who waits for it.
struct Desk {
    queue: WriteQueue<DirtyRows>,
    /// Whether somebody waits until fewer writes are queued.
    waits_for_room: bool,
}

impl StoreHandle {
    /// Starts the threads.
    pub(super) fn start(
        log: LogStore,
        image: ImageStore,
        durable_image: LogIndex,
        listener: impl Fn(StoreEvent) + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let queue = WriteQueue::new(log.head().hard_state.commit, durable_image);
        let desk = Desk { queue, waits_for_room: false };
        let shared = Arc::new(Shared {
            desk: Mutex::new(desk),
            log_news: Condvar::new(),
            image_news: Condvar::new(),
            room: Condvar::new(),
            listener: Box::new(listener),
        });
        let image = Arc::new(image);
        let mut handle = Self { shared: Arc::clone(&shared), image: Arc::clone(&image), threads: Vec::new() };
        let log_shared = Arc::clone(&shared);
        let log_thread = thread::Builder::new().name("log writer".to_owned());
        handle.threads.push(log_thread.spawn(move || write_log(log, &log_shared))?);
        let image_thread = thread::Builder::new().name("image writer".to_owned());
        handle.threads.push(image_thread.spawn(move || {
            yield_to_others();
            write_image(&image, &shared);
        })?);
        Ok(handle)
    }

    /// Queues log writes. They become durable in this order; [`StoreEvent::Persisted`] tells how far.
    ///
    /// Waits only while [`MAX_QUEUED_WRITES`] wait already. A write that resets the log waits, and all behind it,
    /// until the image that it names is durable: [`StoreHandle::install`] that first.
    pub fn write(&self, writes: impl IntoIterator<Item = LogWrite>) -> Result<(), StoreError> {
        let mut desk = self.shared.desk();
        for write in writes {
            while desk.queue.is_full() {
                self.shared.log_news.notify_one();
                desk.waits_for_room = true;
                desk = wait(&self.shared.room, desk);
            }
            if desk.queue.is_closing() {
                return Err(StoreError::Closed);
            }
            desk.queue.push(write);
        }
        drop(desk);
        self.shared.log_news.notify_one();
        Ok(())
    }

    /// How many log writes wait for the disk.
    pub fn queued_writes(&self) -> usize {
        self.shared.desk().queue.queued_writes()
    }

    /// Makes the image stand for an index of another server's, to which the own log does not lead. The rows begin
    /// with [`lockmesh_protocol::change::Change::Cleared`]; a [`LogWrite::reset`] to the same mark must follow.
    pub fn install(&self, mark: ImageMark, rows: DirtyRows) {
        self.hand_over(Checkpoint { mark, rows, installed: true, is_exact: false });
    }

    /// Makes a checkpoint as soon as the image thread is free. What it has not begun yet is joined to it, but to one that
    /// is exact nothing is, so this never waits.
    pub(crate) fn hand_over(&self, newer: Checkpoint) {
        self.shared.desk().queue.hand_over(newer);
        self.shared.image_news.notify_one();
    }

    /// Lets the log go up to an index, or up to the durable image if that is less; a little with each commit.
    /// Rows are cut off whole, so a few entries before the index may stay.
    pub fn cut(&self, up_to: LogIndex) {
        self.shared.desk().queue.compact(up_to);
        self.shared.log_news.notify_one();
    }

    /// Whether the disk takes writes.
    pub fn health(&self) -> StoreHealth {
        health(&self.shared.desk().queue)
    }

    /// Begins a backup of what the durable image holds. A newer one is had by a checkpoint first.
    pub fn backup(&self) -> Result<Backup, StoreError> {
        self.image.backup()
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
        self.shared.desk().queue.close();
        self.shared.tell_everybody();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the store panicked");
            }
        }
    }
}

impl Shared {
    /// A panic while the lock was held leaves plain data that is still whole.
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell_everybody(&self) {
        for news in [&self.log_news, &self.image_news, &self.room] {
            news.notify_all();
        }
    }

    /// Tries a write until the disk takes it; false where the store was closed before it did. The attempt is told
    /// whether it is a repetition: then the file must be opened anew first.
    fn insist(&self, writer: Writer, mut attempt: impl FnMut(bool) -> Result<(), StoreError>) -> bool {
        let mut done = attempt(false);
        while let Err(error) = done {
            tracing::error!(%error, "the disk refuses; trying again");
            let mut desk = self.desk();
            let (backoff, is_news) = desk.queue.refused(writer, error.to_string());
            self.tell_health(desk, is_news);
            if !self.pause(writer, backoff) {
                return false;
            }
            done = attempt(true);
        }
        let mut desk = self.desk();
        let is_news = desk.queue.accepted(writer);
        self.tell_health(desk, is_news);
        true
    }

    /// Waits; false where the store is being closed.
    fn pause(&self, writer: Writer, backoff: Duration) -> bool {
        let news = match writer {
            Writer::Log => &self.log_news,
            Writer::Checkpoint => &self.image_news,
        };
        let waited = news.wait_timeout_while(self.desk(), backoff, |desk| !desk.queue.is_closing());
        !waited.unwrap_or_else(PoisonError::into_inner).0.queue.is_closing()
    }

    /// Tells the listener where the health of the whole has changed.
    fn tell_health(&self, desk: MutexGuard<'_, Desk>, is_news: bool) {
        let now = health(&desk.queue);
        drop(desk);
        if is_news {
            (self.listener)(StoreEvent::Health(now));
        }
    }
}

fn health(queue: &WriteQueue<DirtyRows>) -> StoreHealth {
    queue.failure().map_or(StoreHealth::Good, |reason| StoreHealth::Failing(reason.to_owned()))
}

fn wait<'a>(news: &Condvar, desk: MutexGuard<'a, Desk>) -> MutexGuard<'a, Desk> {
    news.wait(desk).unwrap_or_else(PoisonError::into_inner)
}

/// Says at the end of a thread that it is gone, so that the other one does not wait for it.
struct Leaving<'a>(&'a Shared, Writer);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        // A thread goes early only where it panicked.
        self.0.desk().queue.end(self.1);
        self.0.tell_everybody();
    }
}

/// The log thread: one commit for all that waits, again and again.
fn write_log(mut log: LogStore, shared: &Shared) {
    let _leaving = Leaving(shared, Writer::Log);
    while let Some(LogCommit { writes, least_commit }) = next_commit(&mut log, shared) {
        let written = shared.insist(Writer::Log, |again| {
            if again {
                log.file().reopen()?;
            }
            log.commit(&writes, least_commit)
        });
        if !written {
            tracing::warn!(
                writes = writes.len(),
                "closed while the disk refused: these writes are not durable"
            );
            return;
        }
        let mut desk = shared.desk();
        let checkpoint_waits = desk.queue.checkpoint_waits();
        let last = desk.queue.committed(log.head().hard_state.commit);
        drop(desk);
        if checkpoint_waits {
            shared.image_news.notify_one();
        }
        if let Some(number) = last {
            (shared.listener)(StoreEvent::Persisted(number));
        }
    }
    log.finish();
}

/// Waits for something to commit: writes, a commit index, or rows to cut off. None where there will be nothing more.
fn next_commit(log: &mut LogStore, shared: &Shared) -> Option<LogCommit> {
    let mut desk = shared.desk();
    loop {
        log.cut(desk.queue.compact_to());
        if let Some(commit) = desk.queue.begin_commit(usize::MAX, log.has_cuts()) {
            if std::mem::take(&mut desk.waits_for_room) {
                shared.room.notify_all();
            }
            return Some(commit);
        }
        if desk.queue.may_end(Writer::Log) {
            return None;
        }
        desk = wait(&shared.log_news, desk);
    }
}

/// The image thread: one checkpoint after the other.
fn write_image(image: &ImageStore, shared: &Shared) {
    let _leaving = Leaving(shared, Writer::Checkpoint);
    while let Some(mut checkpoint) = next_checkpoint(shared) {
        let begun = Instant::now();
        checkpoint.rows.sort();
        let mut sum = Checksum::default();
        let written = shared.insist(Writer::Checkpoint, |again| {
            if again {
                image.file().reopen()?;
            }
            // At the end of the store there is nobody left to make room for.
            let rest = || {
                shared.pause(Writer::Checkpoint, PORTION_REST);
            };
            sum = image.checkpoint(&checkpoint.mark, &checkpoint.rows, rest)?;
            Ok(())
        });
        if !written {
            return;
        }
        let (rows, took_ms) = (checkpoint.rows.row_count(), begun.elapsed().as_millis());
        tracing::debug!(index = %checkpoint.mark.index, rows, took_ms, "the image is durable");
        shared.desk().queue.checkpointed();
        shared.log_news.notify_one();
        let index = checkpoint.mark.index;
        (shared.listener)(StoreEvent::Image(checkpoint.mark));
        if checkpoint.is_exact {
            (shared.listener)(StoreEvent::Summed(index, sum));
        }
    }
    image.finish();
}

/// Waits for a checkpoint, and until it may be made. None where there will be no more.
fn next_checkpoint(shared: &Shared) -> Option<Checkpoint> {
    let mut desk = shared.desk();
    loop {
        if let Some(checkpoint) = desk.queue.begin_checkpoint() {
            return Some(checkpoint);
        }
        if desk.queue.may_end(Writer::Checkpoint) {
            return None;
        }
        if desk.queue.checkpoint_waits() {
            shared.log_news.notify_one();
        }
        desk = wait(&shared.image_news, desk);
    }
}
