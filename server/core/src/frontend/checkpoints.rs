//! Checkpoints of the state: when they are written, their readers, and their replacement by another
//! server's snapshot.

use super::FrontendConfig;
use super::actions::{Actions, AnswerKind, CheckpointReader, OpenReader, SnapshotFetch, Storage};
use super::event::{CallRef, Caller};
use crate::input::Input;
use crate::outbox::Outbox;
use crate::raft::log::SnapshotMeta;
use crate::raft::message::PeerMessage;
use crate::state::State;
use lockmesh_protocol::id::{LogIndex, NodeName, ServerId};
use lockmesh_protocol::rpc::{Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;

/// The maximum number of readers of checkpoints for backups, and of those for servers, which have
/// one each: neither displaces the other. Each prevents old pages of the file from being reused.
const MAX_READERS: usize = 8;

/// The maximum number of them for the backups of one node.
const MAX_BACKUPS_OF_NODE: usize = 2;

/// Checkpoint work in progress.
#[derive(Debug)]
pub(super) struct Checkpoints {
    /// The index of the checkpoint on disk.
    durable: LogIndex,
    /// The index of the newest checkpoint that was handed to the disk and is not durable yet.
    under_way: Option<LogIndex>,
    /// Start time of the last checkpoint.
    last: Time,
    /// Readers that wait for their checkpoint.
    waiting: Vec<ReaderWanted>,
    /// The open readers by their numbers.
    readers: BTreeMap<u64, Reader>,
    last_reader: u64,
    /// Requests that were refused because too many readers were open, since the last collection.
    refused: u64,
    /// `true` if a follower needs a checkpoint that is newer than the one on disk.
    wanted_by_follower: bool,
    /// The newest announcement of a snapshot that is being fetched.
    fetching: Option<(ServerId, PeerMessage)>,
    /// The time at which this server learned that it needs a snapshot, and the index of that
    /// snapshot at least.
    behind: Option<(Time, LogIndex)>,
    /// The commit index of the first heartbeat that was ahead of this server's state, and its time.
    ahead: Option<(Time, LogIndex)>,
}

/// An open reader.
#[derive(Debug)]
struct Reader {
    kind: CheckpointReader,
    node: NodeName,
    /// `true` if its last part was read: it takes no place any more.
    is_finished: bool,
}

/// A requested reader of a checkpoint of at least an index.
#[derive(Debug)]
pub(super) struct ReaderWanted {
    pub(super) kind: CheckpointReader,
    /// The caller's node, in lower case.
    pub(super) node: NodeName,
    pub(super) index: LogIndex,
    pub(super) from: CallRef,
}

/// In the methods, `current` is the metadata of the state as applied now.
impl Checkpoints {
    /// Returns the state for a disk that holds this checkpoint.
    pub(super) fn new(now: Time, durable: LogIndex) -> Self {
        Self {
            durable,
            under_way: None,
            last: now,
            waiting: Vec::new(),
            readers: BTreeMap::new(),
            last_reader: 0,
            refused: 0,
            wanted_by_follower: false,
            fetching: None,
            behind: None,
            ahead: None,
        }
    }

    /// Returns `true` if the last checkpoint is long ago or very many rows have changed since.
    pub(super) fn is_due(&self, now: Time, dirty_rows: usize, config: &FrontendConfig) -> bool {
        let due = now.since(self.last) >= config.checkpoint_interval;
        let many = dirty_rows as u64 >= config.checkpoint_changes;
        dirty_rows > 0 && (due || many)
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
            self.under_way = Some(mark.index);
            self.last = now;
            actions.storage.push(Storage::ExactCheckpoint(mark));
        }
        if !changes.is_empty() {
            actions.storage.push(Storage::Record(changes));
        }
    }

    /// Begins a checkpoint for a follower that needs a snapshot, as soon as none is in progress.
    pub(super) fn begin_for_follower(&mut self, now: Time, current: SnapshotMeta, actions: &mut Actions) {
        // Kept until one begins: the one in progress may be older than needed.
        self.wanted_by_follower = true;
        self.begin(now, current, actions);
    }

    /// Begins a checkpoint of the current state, unless one is in progress.
    pub(super) fn begin(&mut self, now: Time, current: SnapshotMeta, actions: &mut Actions) {
        // One at a time, so that a slow disk merges the work instead of queuing it.
        if self.under_way.is_some() {
            return;
        }
        self.under_way = Some(current.index);
        self.last = now;
        self.wanted_by_follower = false;
        actions.storage.push(Storage::Checkpoint(current));
    }

    /// Requests a reader, which is opened as soon as there is a checkpoint for it.
    pub(super) fn want_reader(
        &mut self,
        now: Time,
        current: SnapshotMeta,
        wanted: ReaderWanted,
        actions: &mut Actions,
    ) -> Result<(), Unavailable> {
        self.check_room(&wanted).inspect_err(|_| self.refused += 1)?;
        if wanted.index > current.index {
            // It would have to wait for the log; the server that announced it holds it already.
            let why = "this server has not reached the requested snapshot index";
            return Err(Unavailable::Denied(why.into()));
        }
        if wanted.kind == CheckpointReader::Snapshot {
            self.end_snapshots(&wanted.node, actions);
        }
        let is_there = wanted.index <= self.durable;
        self.waiting.push(wanted);
        if is_there {
            self.open_readers(actions);
        } else {
            self.begin(now, current, actions);
        }
        Ok(())
    }

    /// Handles the checkpoint of an index, which is durable now.
    pub(super) fn completed(
        &mut self,
        now: Time,
        index: LogIndex,
        current: SnapshotMeta,
        actions: &mut Actions,
    ) {
        self.durable = index;
        // A newer one may have been handed over since, as at a corruption check: then the newer one
        // is awaited.
        self.under_way = self.under_way.filter(|under_way| *under_way > index);
        // A newer one than the snapshot that was fetched: this server follows the log again.
        self.behind = self.behind.filter(|(_, least)| *least >= index);
        self.open_readers(actions);
        // Requests from the meantime need a newer checkpoint, and nothing else would start it.
        if self.wanted_by_follower || !self.waiting.is_empty() {
            self.begin(now, current, actions);
        }
    }

    fn check_room(&self, wanted: &ReaderWanted) -> Result<(), Unavailable> {
        let open = self.readers.values().filter(|reader| !reader.is_finished);
        let open = open.map(|reader| (reader.kind, &reader.node));
        let waiting = self.waiting.iter().map(|waiting| (waiting.kind, &waiting.node));
        let of_kind = open.chain(waiting).filter(|(kind, _)| *kind == wanted.kind);
        let (mut all, mut of_node) = (0, 0);
        of_kind.for_each(|(_, node)| (all, of_node) = (all + 1, of_node + usize::from(*node == wanted.node)));
        let (what, others) = match wanted.kind {
            CheckpointReader::Backup => ("backups", all),
            // It replaces those of its own node.
            CheckpointReader::Snapshot => ("snapshots", all - of_node),
        };
        let why = if wanted.kind == CheckpointReader::Backup && of_node >= MAX_BACKUPS_OF_NODE {
            format!("too many backups: {of_node} of this host are being read; wait until one is complete")
        } else if others >= MAX_READERS {
            format!("too many {what}: {others} are being read on this server; retry in some seconds")
        } else {
            return Ok(());
        };
        Err(Unavailable::Overloaded(why))
    }

    /// Ends the readers of a server that begins again: it has restarted, or lost the first part.
    fn end_snapshots(&mut self, node: &NodeName, actions: &mut Actions) {
        let is_its = |kind, of: &NodeName| kind == CheckpointReader::Snapshot && of == node;
        let open = self.readers.iter().filter(|(_, reader)| is_its(reader.kind, &reader.node));
        actions.close_readers.extend(open.map(|(number, _)| *number));
        self.readers.retain(|_, reader| !is_its(reader.kind, &reader.node));
        for waiting in self.waiting.extract_if(.., |waiting| is_its(waiting.kind, &waiting.node)) {
            let why = Unavailable::Denied("this server has requested another snapshot".into());
            actions.answer(waiting.from, Response::Unavailable(why), AnswerKind::Other);
        }
    }

    fn open_readers(&mut self, actions: &mut Actions) {
        let durable = self.durable;
        let waiting = std::mem::take(&mut self.waiting);
        let (ready, later): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|waiting| waiting.index <= durable);
        self.waiting = later;
        for ReaderWanted { kind, node, from, .. } in ready {
            self.last_reader += 1;
            let opened = OpenReader { number: self.last_reader, kind, first: from };
            self.readers.insert(self.last_reader, Reader { kind, node, is_finished: false });
            actions.open_readers.push(opened);
        }
    }

    /// Checks that an open reader was opened for this purpose and node.
    pub(super) fn check_reader(
        &self,
        number: u64,
        kind: CheckpointReader,
        node: &NodeName,
    ) -> Result<(), Unavailable> {
        match self.readers.get(&number) {
            Some(reader) if reader.kind == kind && reader.node == *node => Ok(()),
            _ => Err(Unavailable::Denied("this backup was closed: begin a new one".into())),
        }
    }

    /// Cancels the reader of a call that is cancelled before its checkpoint exists.
    pub(super) fn cancel(&mut self, call: CallRef) {
        self.waiting.retain(|waiting| waiting.from != call);
    }

    /// Cancels the readers of all calls of a closed connection.
    pub(super) fn cancel_all(&mut self, caller: Caller) {
        self.waiting.retain(|waiting| waiting.from.caller != caller);
    }

    /// Handles the last part of an open reader, which may be requested again.
    pub(super) fn reader_finished(&mut self, number: u64) {
        if let Some(reader) = self.readers.get_mut(&number) {
            reader.is_finished = true;
        }
    }

    /// Handles the end of an open reader.
    pub(super) fn reader_closed(&mut self, number: u64) {
        self.readers.remove(&number);
    }

    /// Takes the number of requests that were refused because too many readers were open.
    pub(super) fn take_refused(&mut self) -> u64 {
        std::mem::take(&mut self.refused)
    }

    /// Handles another server's announcement that this one is too far behind to follow its log.
    /// Returns the message if this server has applied that state already.
    pub(super) fn fetch(
        &mut self,
        now: Time,
        from: ServerId,
        message: PeerMessage,
        applied: LogIndex,
        actions: &mut Actions,
    ) -> Option<PeerMessage> {
        let least = message.snapshot.as_ref()?.index;
        if least <= applied {
            // The leader does not know yet that this server has that state: the reply to the last
            // snapshot was lost.
            return Some(message);
        }
        // A state that is still the last snapshot's is as old as that one's announcement.
        let since = self.behind.filter(|(_, least)| applied <= *least).map_or(now, |(since, _)| since);
        self.behind = Some((since, least));
        // A running download continues: a snapshot holds committed entries only, so an older one is
        // valid too.
        if self.fetching.replace((from, message)).is_none() {
            actions.fetch = Some(SnapshotFetch { from, least });
        }
        None
    }

    /// Notes the commit index of a heartbeat.
    pub(super) fn heartbeat(&mut self, now: Time, committed: LogIndex, applied: LogIndex) {
        // The first one stays until it is reached: later ones are always a little ahead under load.
        if self.ahead.is_none_or(|(_, index)| index <= applied) {
            self.ahead = Some((now, committed));
        }
    }

    /// Returns the time since which this server's state is known to be too old: it needs a
    /// snapshot, or has not applied what the leader had committed then.
    pub(super) fn behind_since(&self, applied: LogIndex) -> Option<Time> {
        let needed = [self.behind, self.ahead].into_iter().flatten();
        needed.filter(|(_, index)| applied < *index).map(|(since, _)| since).min()
    }

    /// Handles the end of a fetch: the snapshot, or `None` if the fetch was given up. Returns the
    /// core's input.
    pub(super) fn fetched(&mut self, fetched: Option<(SnapshotMeta, Box<State>)>) -> Option<Input> {
        let (from, message) = self.fetching.take()?;
        // After a failure the leader announces its snapshot again, and the fetch restarts.
        let (mark, state) = fetched?;
        self.behind = self.behind.map(|(since, least)| (since, least.max(mark.index)));
        Some(Input::Install(from, message, mark, state))
    }

    /// Handles a snapshot that the core accepted: it replaces everything on disk too.
    pub(super) fn install(&mut self, mark: SnapshotMeta, actions: &mut Actions) {
        self.under_way = Some(mark.index);
        actions.storage.push(Storage::Install(mark));
    }
}
