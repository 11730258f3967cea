//! The store at work: a thread that writes the log, a thread that writes the image, and what they wait for.
//!
//! ```text
//! driver ── write ──> queue ──> log thread ── one commit for all that waits ──> Persisted
//!        ─ checkpoint ─> slot ─> image thread ── commit index durable? one commit ──> Image
//! ```
//!
//! **Invariants:** an image of an applied index becomes durable only behind a durable commit index that reaches it.
//! The log is reset or cut only behind the durable image. A refused commit is tried again, unchanged, until it
//! works or the store is closed; nothing overtakes it.

use super::error::StoreError;
use super::events::{StoreEvent, StoreHealth};
use super::image::{Backup, ImageStore};
use super::log::LogStore;
use super::rows::DirtyRows;
use lockmesh_core::raft::log::{ImageMark, LogWrite};
use lockmesh_protocol::id::LogIndex;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How many writes may wait. Whoever writes more than that waits.
pub const MAX_QUEUED_WRITES: usize = 16_384;

/// How many bytes of entries one commit carries, about: it takes what waits until it has that many.
const MAX_COMMIT_BYTES: usize = 8 << 20;

/// How long the image's thread rests between two portions of rows that it removes: about as long as one takes.
const PORTION_REST: Duration = Duration::from_millis(2);

/// How long after a refused write it is tried again: at first, and at most.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

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

/// What there is to do, and how far it is done.
#[derive(Default)]
struct Desk {
    writes: VecDeque<LogWrite>,
    checkpoint: Option<Checkpoint>,
    /// Whether the image thread is at work.
    checkpointing: bool,
    /// How far the log may be cut off.
    cut_to: LogIndex,
    /// The commit index that must be durable before the image thread can go on.
    wanted_commit: LogIndex,
    durable_commit: LogIndex,
    durable_image: LogIndex,
    /// What the disk said to the log's thread, and to the image's.
    health: [StoreHealth; 2],
    /// Whether the log's thread has ended, and the image's.
    gone: [bool; 2],
    closing: bool,
    /// Whether somebody waits until fewer writes are queued.
    waits_for_room: bool,
}

/// An image to be made.
struct Checkpoint {
    mark: ImageMark,
    rows: DirtyRows,
    /// Whether it comes from another server, and the log does not lead to it.
    installed: bool,
}

/// Whose health it is.
#[derive(Clone, Copy)]
enum Part {
    Log = 0,
    Image = 1,
}

impl StoreHandle {
    /// Starts the threads.
    pub(super) fn start(
        log: LogStore,
        image: ImageStore,
        durable_image: LogIndex,
        listener: impl Fn(StoreEvent) + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let durable_commit = log.head().hard_state.commit;
        let desk = Desk { durable_commit, durable_image, ..Desk::default() };
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
        handle.threads.push(image_thread.spawn(move || write_image(&image, &shared))?);
        Ok(handle)
    }

    /// Queues log writes. They become durable in this order; [`StoreEvent::Persisted`] tells how far.
    ///
    /// Waits only while [`MAX_QUEUED_WRITES`] wait already. A write that resets the log waits, and all behind it,
    /// until the image that it names is durable: [`StoreHandle::install`] that first.
    pub fn write(&self, writes: impl IntoIterator<Item = LogWrite>) -> Result<(), StoreError> {
        let mut desk = self.shared.desk();
        for write in writes {
            while desk.writes.len() >= MAX_QUEUED_WRITES && !desk.closing {
                self.shared.log_news.notify_one();
                desk.waits_for_room = true;
                desk = wait(&self.shared.room, desk);
            }
            if desk.closing {
                return Err(StoreError::Closed);
            }
            desk.writes.push_back(write);
        }
        drop(desk);
        self.shared.log_news.notify_one();
        Ok(())
    }

    /// How many log writes wait for the disk.
    pub fn queued_writes(&self) -> usize {
        self.shared.desk().writes.len()
    }

    /// Makes the image stand for an index that was applied, as soon as the image thread is free. What it has not
    /// begun yet is joined to it, so this never waits.
    pub fn checkpoint(&self, mark: ImageMark, rows: DirtyRows) {
        self.hand_over(Checkpoint { mark, rows, installed: false });
    }

    /// Makes the image stand for an index of another server's, to which the own log does not lead. The rows begin
    /// with [`lockmesh_protocol::change::Change::Cleared`]; a [`LogWrite::reset`] to the same mark must follow.
    pub fn install(&self, mark: ImageMark, rows: DirtyRows) {
        self.hand_over(Checkpoint { mark, rows, installed: true });
    }

    fn hand_over(&self, newer: Checkpoint) {
        let mut desk = self.shared.desk();
        match &mut desk.checkpoint {
            Some(waiting) => {
                waiting.rows.absorb(newer.rows);
                waiting.mark = newer.mark;
                waiting.installed |= newer.installed;
            }
            None => desk.checkpoint = Some(newer),
        }
        self.shared.image_news.notify_one();
    }

    /// Whether no image waits to be made or is being made.
    pub fn image_is_idle(&self) -> bool {
        self.shared.desk().image_is_done()
    }

    /// The index that the durable image stands for.
    pub fn durable_image(&self) -> LogIndex {
        self.shared.desk().durable_image
    }

    /// Lets the log go up to an index, or up to the durable image if that is less; a little with each commit.
    /// Rows are cut off whole, so a few entries before the index may stay.
    pub fn cut(&self, up_to: LogIndex) {
        let mut desk = self.shared.desk();
        desk.cut_to = desk.cut_to.max(up_to.min(desk.durable_image));
        self.shared.log_news.notify_one();
    }

    /// Whether the disk takes writes.
    pub fn health(&self) -> StoreHealth {
        self.shared.desk().health()
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
        self.shared.desk().closing = true;
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
    fn insist(&self, part: Part, mut attempt: impl FnMut(bool) -> Result<(), StoreError>) -> bool {
        let mut done = attempt(false);
        let mut pause = RETRY_AFTER.0;
        while let Err(error) = done {
            tracing::error!(%error, "the disk refuses; trying again");
            self.report(part, StoreHealth::Failing(error.to_string()));
            if !self.pause(part, pause) {
                return false;
            }
            pause = (pause * 2).min(RETRY_AFTER.1);
            done = attempt(true);
        }
        self.report(part, StoreHealth::Good);
        true
    }

    /// Waits; false where the store is being closed.
    fn pause(&self, part: Part, pause: Duration) -> bool {
        let news = match part {
            Part::Log => &self.log_news,
            Part::Image => &self.image_news,
        };
        let waited = news.wait_timeout_while(self.desk(), pause, |desk| !desk.closing);
        !waited.unwrap_or_else(PoisonError::into_inner).0.closing
    }

    /// Tells the listener where the health of the whole has changed.
    fn report(&self, part: Part, health: StoreHealth) {
        let mut desk = self.desk();
        if desk.health[part as usize] == health {
            return;
        }
        let before = desk.health();
        desk.health[part as usize] = health;
        let now = desk.health();
        drop(desk);
        if before != now {
            (self.listener)(StoreEvent::Health(now));
        }
    }
}

fn wait<'a>(news: &Condvar, desk: MutexGuard<'a, Desk>) -> MutexGuard<'a, Desk> {
    news.wait(desk).unwrap_or_else(PoisonError::into_inner)
}

impl Desk {
    /// The log's trouble comes first: it is what clients wait for.
    fn health(&self) -> StoreHealth {
        let failing = self.health.iter().find(|health| **health != StoreHealth::Good);
        failing.cloned().unwrap_or_default()
    }

    /// Whether the image thread has nothing more to do.
    fn image_is_done(&self) -> bool {
        self.gone[Part::Image as usize] || (self.checkpoint.is_none() && !self.checkpointing)
    }

    /// Whether the first write is one that must wait for its image.
    fn waits_for_image(&self) -> bool {
        let reset = self.writes.front().and_then(|write| write.reset.as_ref());
        reset.is_some_and(|mark| mark.index > self.durable_image)
    }

    /// Takes the writes for one commit: what waits, up to a limit and to a reset whose image is not durable.
    fn take_writes(&mut self) -> Vec<LogWrite> {
        let mut taken = Vec::new();
        let mut bytes = 0;
        while bytes < MAX_COMMIT_BYTES && !self.waits_for_image() {
            let Some(write) = self.writes.pop_front() else { break };
            bytes += write.entries.iter().map(|entry| entry.data.len()).sum::<usize>();
            taken.push(write);
        }
        taken
    }
}

/// Says at the end of a thread that it is gone, so that the other one does not wait for it.
struct Leaving<'a>(&'a Shared, Part);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let mut desk = self.0.desk();
        desk.gone[self.1 as usize] = true;
        // A thread goes early only where it panicked: without it the store is of no use.
        desk.closing = true;
        drop(desk);
        self.0.tell_everybody();
    }
}

/// The log thread: one commit for all that waits, again and again.
fn write_log(mut log: LogStore, shared: &Shared) {
    let _leaving = Leaving(shared, Part::Log);
    while let Some((writes, wanted_commit)) = next_writes(&mut log, shared) {
        let written = shared.insist(Part::Log, |again| {
            if again {
                log.file().reopen()?;
            }
            log.commit(&writes, wanted_commit)
        });
        if !written {
            tracing::warn!(
                writes = writes.len(),
                "closed while the disk refused: these writes are not durable"
            );
            return;
        }
        let mut desk = shared.desk();
        desk.durable_commit = log.head().hard_state.commit;
        if desk.checkpointing {
            shared.image_news.notify_one();
        }
        drop(desk);
        if let Some(write) = writes.last() {
            (shared.listener)(StoreEvent::Persisted(write.number));
        }
    }
    log.finish();
}

/// Waits for something to commit: writes, a commit index, or rows to cut off. None where there will be nothing more.
fn next_writes(log: &mut LogStore, shared: &Shared) -> Option<(Vec<LogWrite>, LogIndex)> {
    let mut desk = shared.desk();
    loop {
        log.cut(desk.cut_to);
        let writes = desk.take_writes();
        let has_cuts = log.has_cuts() && !desk.closing;
        if !writes.is_empty() || desk.wanted_commit > desk.durable_commit || has_cuts {
            let wanted_commit = desk.wanted_commit;
            if std::mem::take(&mut desk.waits_for_room) {
                shared.room.notify_all();
            }
            return Some((writes, wanted_commit));
        }
        if desk.closing && desk.image_is_done() {
            return None;
        }
        desk = wait(&shared.log_news, desk);
    }
}

/// The image thread: one checkpoint after the other.
fn write_image(image: &ImageStore, shared: &Shared) {
    let _leaving = Leaving(shared, Part::Image);
    while let Some(mut checkpoint) = next_checkpoint(shared) {
        let begun = Instant::now();
        checkpoint.rows.sort();
        let written = shared.insist(Part::Image, |again| {
            if again {
                image.file().reopen()?;
            }
            // At the end of the store there is nobody left to make room for.
            let rest = || {
                shared.pause(Part::Image, PORTION_REST);
            };
            image.checkpoint(&checkpoint.mark, &checkpoint.rows, rest)
        });
        if !written {
            return;
        }
        let (rows, took_ms) = (checkpoint.rows.len(), begun.elapsed().as_millis());
        tracing::debug!(index = %checkpoint.mark.index, rows, took_ms, "the image is durable");
        let mut desk = shared.desk();
        desk.checkpointing = false;
        desk.durable_image = checkpoint.mark.index;
        drop(desk);
        shared.log_news.notify_one();
        (shared.listener)(StoreEvent::Image(checkpoint.mark));
    }
    image.finish();
}

/// Waits for a checkpoint, and until it may be made. None where there will be no more.
fn next_checkpoint(shared: &Shared) -> Option<Checkpoint> {
    let mut desk = shared.desk();
    let checkpoint = loop {
        if let Some(checkpoint) = desk.checkpoint.take() {
            break checkpoint;
        }
        if desk.closing {
            return None;
        }
        desk = wait(&shared.image_news, desk);
    };
    desk.checkpointing = true;
    if checkpoint.installed {
        return Some(checkpoint);
    }
    desk.wanted_commit = desk.wanted_commit.max(checkpoint.mark.index);
    shared.log_news.notify_one();
    while desk.durable_commit < checkpoint.mark.index {
        if desk.gone[Part::Log as usize] {
            return None;
        }
        desk = wait(&shared.image_news, desk);
    }
    Some(checkpoint)
}
