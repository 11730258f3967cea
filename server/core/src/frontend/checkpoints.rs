//! When the state's checkpoint is written, who reads it, and when another server's snapshot takes
//! its place.

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

/// How many readers of checkpoints may be open: each keeps old pages of the file from being used
/// again.
const MAX_READERS: usize = 8;

/// What is under way.
#[derive(Debug)]
pub(super) struct Checkpoints {
    /// The index of the checkpoint that is on disk.
    durable: LogIndex,
    /// The index of the newest that was handed to the disk and is not there yet.
    under_way: Option<LogIndex>,
    /// When the last one was begun.
    last: Time,
    /// Those who wait for a checkpoint of at least an index.
    waiting: Vec<WaitingReader>,
    /// How many readers are open.
    open_readers: usize,
    /// Whether a follower needs a checkpoint that is newer than the one on disk.
    wanted_by_follower: bool,
    /// The newest word of a snapshot that is being fetched.
    fetching: Option<(ServerId, PeerMessage)>,
}

#[derive(Debug)]
struct WaitingReader {
    index: LogIndex,
    from: CallRef,
    reader: CheckpointReader,
}

impl Checkpoints {
    /// A server whose disk holds this checkpoint.
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
    /// Begins a checkpoint where the last one is long ago, or very many rows have changed since.
    pub(super) fn checkpoint_if_due(&mut self, now: Time, dirty_rows: usize, actions: &mut Actions) {
        let due = now.since(self.checkpoints.last) >= self.config.checkpoint_interval;
        let many = dirty_rows as u64 >= self.config.checkpoint_changes;
        if dirty_rows > 0 && (due || many) {
            self.checkpoint(now, actions);
        }
    }

    /// What became true is recorded for the next checkpoint; each corruption check has one of its
    /// own in between.
    pub(super) fn record(&mut self, now: Time, outbox: &mut Outbox, actions: &mut Actions) {
        let mut changes = std::mem::take(&mut outbox.changes);
        let mut recorded = 0;
        // A check's checksum is of one index: what was applied behind it must not be in the same
        // checkpoint.
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

    /// A follower needs a snapshot: as soon as no checkpoint is on its way, a new one is begun.
    pub(super) fn checkpoint_for_follower(&mut self, now: Time, actions: &mut Actions) {
        // Kept until one begins: the one on its way may be older than what is needed.
        self.checkpoints.wanted_by_follower = true;
        self.checkpoint(now, actions);
    }

    /// Begins a checkpoint, unless one is on its way.
    fn checkpoint(&mut self, now: Time, actions: &mut Actions) {
        // One after the other, so that a slow disk joins the work instead of piling it up.
        if self.checkpoints.under_way.is_some() {
            return;
        }
        let mark = self.core.snapshot_meta();
        self.checkpoints.under_way = Some(mark.index);
        self.checkpoints.last = now;
        self.checkpoints.wanted_by_follower = false;
        actions.storage.push(Storage::Checkpoint(mark));
    }

    /// A backup is of a checkpoint that holds everything applied up to now.
    pub(super) fn want_backup(&mut self, now: Time, from: CallRef, actions: &mut Actions) {
        // Of what is applied now: an operator's own writes from before are in the backup.
        let index = self.core.snapshot_meta().index;
        self.want_reader(now, WaitingReader { index, from, reader: CheckpointReader::Backup }, actions);
    }

    /// Another server wants the snapshot that it was told of, or a newer one.
    pub(super) fn want_snapshot(&mut self, now: Time, least: LogIndex, from: CallRef, actions: &mut Actions) {
        let waiting = WaitingReader { index: least, from, reader: CheckpointReader::Snapshot };
        self.want_reader(now, waiting, actions);
    }

    fn want_reader(&mut self, now: Time, waiting: WaitingReader, actions: &mut Actions) {
        let refusal = if self.checkpoints.open_readers + self.checkpoints.waiting.len() >= MAX_READERS {
            Some(Unavailable::Overloaded("too many backups are being read".into()))
        } else if waiting.index > self.core.snapshot_meta().index {
            // It would have to wait for the log; the server that announced it holds it already.
            Some(Unavailable::Denied("this server has no snapshot that is so new".into()))
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

    /// The checkpoint on disk is a newer one now.
    pub(super) fn checkpointed(&mut self, now: Time, mark: SnapshotMeta, actions: &mut Actions) {
        let index = mark.index;
        self.input(now, Input::CheckpointDurable(mark));
        self.checkpoints.durable = index;
        // A newer one may have been handed over since, as at a corruption check: then that one is
        // awaited.
        self.checkpoints.under_way = self.checkpoints.under_way.filter(|under_way| *under_way > index);
        self.open_readers(actions);
        // What came while it was written needs a newer one, and nobody would ask for it otherwise.
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

    /// Opens no reader for a call that is given up before there is a checkpoint for it.
    pub(super) fn cancel_reader(&mut self, call: CallRef) {
        self.checkpoints.waiting.retain(|waiting| waiting.from != call);
    }

    /// The same for all calls of a connection that ended.
    pub(super) fn cancel_readers(&mut self, caller: Caller) {
        self.checkpoints.waiting.retain(|waiting| waiting.from.caller != caller);
    }

    pub(super) fn reader_closed(&mut self) {
        self.checkpoints.open_readers = self.checkpoints.open_readers.saturating_sub(1);
    }

    /// Another server says that this one is too far behind to follow its log.
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
            // The leader has not heard that this server is there already: the answer to the last
            // snapshot was lost.
            return self.input(now, Input::Peer(from, message));
        }
        // The download that runs goes on: a snapshot is of committed entries only, so an older one
        // is good too.
        if self.checkpoints.fetching.replace((from, message)).is_none() {
            actions.fetch = Some(SnapshotFetch { from, least });
        }
    }

    /// The snapshot is here, or was given up.
    pub(super) fn snapshot_fetched(&mut self, now: Time, fetched: Option<(SnapshotMeta, Box<State>)>) {
        let Some((from, message)) = self.checkpoints.fetching.take() else { return };
        // Where it was given up the leader tells of its snapshot again, and the fetch begins anew.
        if let Some((mark, state)) = fetched {
            self.input(now, Input::Install(from, message, mark, state));
        }
    }

    /// The core has taken the snapshot that it was given: it takes the place of everything on disk
    /// too.
    pub(super) fn install(&mut self, mark: SnapshotMeta, actions: &mut Actions) {
        self.checkpoints.under_way = Some(mark.index);
        self.wake_all();
        actions.storage.push(Storage::Install(mark));
        self.notice_roster(actions);
    }
}
