//! Checkpoints of the state: when they are written, their readers, and their replacement by another
//! server's snapshot.

use super::Frontend;
use super::actions::{Actions, AnswerKind, CheckpointReader, SnapshotFetch, Storage};
use super::event::{CallRef, Caller};
use crate::input::Input;
use crate::outbox::Outbox;
use crate::raft::log::SnapshotMeta;
use crate::raft::message::PeerMessage;
use crate::state::State;
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::rpc::{Response, Unavailable};
use lockmesh_protocol::time::Time;

/// The maximum number of open readers of checkpoints: each prevents old pages of the file from
/// being reused.
const MAX_READERS: usize = 8;

/// Checkpoint work in progress.
#[derive(Debug)]
pub(super) struct Checkpoints {
    /// The index of the checkpoint on disk.
    durable: LogIndex,
    /// The index of the newest checkpoint that was handed to the disk and is not durable yet.
    under_way: Option<LogIndex>,
    /// Start time of the last checkpoint.
    last: Time,
    /// Readers that wait for a checkpoint of at least an index.
    waiting: Vec<WaitingReader>,
    /// The number of open readers.
    open_readers: usize,
    /// `true` if a follower needs a checkpoint that is newer than the one on disk.
    wanted_by_follower: bool,
    /// The newest announcement of a snapshot that is being fetched.
    fetching: Option<(ServerId, PeerMessage)>,
}

#[derive(Debug)]
struct WaitingReader {
    index: LogIndex,
    from: CallRef,
    reader: CheckpointReader,
}

impl Checkpoints {
    /// Returns the state for a disk that holds this checkpoint.
    pub(super) fn new(now: Time, durable: LogIndex) -> Self {
        Self {
            durable,
            under_way: None,
            last: now,
            waiting: Vec::new(),
            open_readers: 0,
            wanted_by_follower: false,
            fetching: None,
        }
    }
}

impl Frontend {
    /// Begins a checkpoint if the last one is long ago or very many rows have changed since.
    pub(super) fn checkpoint_if_due(&mut self, now: Time, dirty_rows: usize, actions: &mut Actions) {
        let due = now.since(self.checkpoints.last) >= self.config.checkpoint_interval;
        let many = dirty_rows as u64 >= self.config.checkpoint_changes;
        if dirty_rows > 0 && (due || many) {
            self.checkpoint(now, actions);
        }
    }

    /// Records the changes of a turn for the next checkpoint; each corruption check has one of its
    /// own in between.
    pub(super) fn record(&mut self, now: Time, outbox: &mut Outbox, actions: &mut Actions) {
        let mut changes = std::mem::take(&mut outbox.changes);
        let mut recorded = 0;
        // A check's checksum covers one index: later changes must not be in the same checkpoint.
        for (before, mark) in outbox.checks.drain(..) {
            let later = changes.split_off(before - recorded);
            recorded = before;
            actions.storage.push(Storage::Record(std::mem::replace(&mut changes, later)));
            self.checkpoints.under_way = Some(mark.index);
            self.checkpoints.last = now;
            actions.storage.push(Storage::ExactCheckpoint(mark));
        }
        if !changes.is_empty() {
            actions.storage.push(Storage::Record(changes));
        }
    }

    /// Begins a checkpoint for a follower that needs a snapshot, as soon as none is in progress.
    pub(super) fn checkpoint_for_follower(&mut self, now: Time, actions: &mut Actions) {
        // Kept until one begins: the one in progress may be older than needed.
        self.checkpoints.wanted_by_follower = true;
        self.checkpoint(now, actions);
    }

    /// Begins a checkpoint, unless one is in progress.
    fn checkpoint(&mut self, now: Time, actions: &mut Actions) {
        // One at a time, so that a slow disk merges the work instead of queuing it.
        if self.checkpoints.under_way.is_some() {
            return;
        }
        let mark = self.core.snapshot_meta();
        self.checkpoints.under_way = Some(mark.index);
        self.checkpoints.last = now;
        self.checkpoints.wanted_by_follower = false;
        actions.storage.push(Storage::Checkpoint(mark));
    }

    /// Requests a backup: a checkpoint that holds everything applied up to now.
    pub(super) fn want_backup(&mut self, now: Time, from: CallRef, actions: &mut Actions) {
        // Of the current applied index: the backup then holds the operator's own earlier writes.
        let index = self.core.snapshot_meta().index;
        self.want_reader(now, WaitingReader { index, from, reader: CheckpointReader::Backup }, actions);
    }

    /// Requests the snapshot that was announced to another server, or a newer one.
    pub(super) fn want_snapshot(&mut self, now: Time, least: LogIndex, from: CallRef, actions: &mut Actions) {
        let waiting = WaitingReader { index: least, from, reader: CheckpointReader::Snapshot };
        self.want_reader(now, waiting, actions);
    }

    fn want_reader(&mut self, now: Time, waiting: WaitingReader, actions: &mut Actions) {
        let refusal = if self.checkpoints.open_readers + self.checkpoints.waiting.len() >= MAX_READERS {
            Some(Unavailable::Overloaded("too many backups are being read".into()))
        } else if waiting.index > self.core.snapshot_meta().index {
            // It would have to wait for the log; the server that announced it holds it already.
            Some(Unavailable::Denied("this server has not reached the requested snapshot index".into()))
        } else {
            None
        };
        if let Some(refusal) = refusal {
            return actions.answer(waiting.from, Response::Unavailable(refusal), AnswerKind::Other);
        }
        let is_there = waiting.index <= self.checkpoints.durable;
        self.checkpoints.waiting.push(waiting);
        if is_there {
            self.open_readers(actions);
        } else {
            self.checkpoint(now, actions);
        }
    }

    /// Handles a newly durable checkpoint.
    pub(super) fn checkpointed(&mut self, now: Time, mark: SnapshotMeta, actions: &mut Actions) {
        let index = mark.index;
        self.input(now, Input::CheckpointDurable(mark));
        self.checkpoints.durable = index;
        // A newer one may have been handed over since, as at a corruption check: then the newer one
        // is awaited.
        self.checkpoints.under_way = self.checkpoints.under_way.filter(|under_way| *under_way > index);
        self.open_readers(actions);
        // Requests from the meantime need a newer checkpoint, and nothing else would start it.
        if self.checkpoints.wanted_by_follower || !self.checkpoints.waiting.is_empty() {
            self.checkpoint(now, actions);
        }
    }

    fn open_readers(&mut self, actions: &mut Actions) {
        let durable = self.checkpoints.durable;
        let waiting = std::mem::take(&mut self.checkpoints.waiting);
        let (ready, later): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|waiting| waiting.index <= durable);
        self.checkpoints.waiting = later;
        self.checkpoints.open_readers += ready.len();
        actions.open_readers.extend(ready.into_iter().map(|ready| (ready.reader, ready.from)));
    }

    /// Cancels the reader of a call that is cancelled before its checkpoint exists.
    pub(super) fn cancel_reader(&mut self, call: CallRef) {
        self.checkpoints.waiting.retain(|waiting| waiting.from != call);
    }

    /// Cancels the readers of all calls of a closed connection.
    pub(super) fn cancel_readers(&mut self, caller: Caller) {
        self.checkpoints.waiting.retain(|waiting| waiting.from.caller != caller);
    }

    pub(super) fn reader_closed(&mut self) {
        self.checkpoints.open_readers = self.checkpoints.open_readers.saturating_sub(1);
    }

    /// Handles another server's announcement that this one is too far behind to follow its log.
    pub(super) fn fetch_snapshot(
        &mut self,
        now: Time,
        from: ServerId,
        message: PeerMessage,
        actions: &mut Actions,
    ) {
        let Some(mark) = &message.snapshot else { return };
        let least = mark.index;
        if least <= self.core.snapshot_meta().index {
            // The leader does not know yet that this server has that state: the reply to the last
            // snapshot was lost.
            return self.input(now, Input::Peer(from, message));
        }
        // A running download continues: a snapshot holds committed entries only, so an older one is
        // valid too.
        if self.checkpoints.fetching.replace((from, message)).is_none() {
            actions.fetch = Some(SnapshotFetch { from, least });
        }
    }

    /// Handles the end of a fetch: the snapshot, or `None` if the fetch was given up.
    pub(super) fn snapshot_fetched(&mut self, now: Time, fetched: Option<(SnapshotMeta, Box<State>)>) {
        let Some((from, message)) = self.checkpoints.fetching.take() else { return };
        // After a failure the leader announces its snapshot again, and the fetch restarts.
        if let Some((mark, state)) = fetched {
            self.input(now, Input::Install(from, message, mark, state));
        }
    }

    /// Handles a snapshot that the core accepted: it replaces everything on disk too.
    pub(super) fn install(&mut self, mark: SnapshotMeta, actions: &mut Actions) {
        self.checkpoints.under_way = Some(mark.index);
        self.wake_all();
        actions.storage.push(Storage::Install(mark));
        self.notice_roster(actions);
    }
}
