//! Every effect of a [`Frontend`](super::Frontend), in the order in which it was decided.

use super::event::CallRef;
use crate::outbox::ShellEffects;
use crate::raft::log::{LogWrite, SnapshotMeta};
use crate::state::LongRead;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::record::Server;
use lockmesh_protocol::rpc::Response;

/// The effects of a turn. The shell executes and empties them after [`super::Frontend::decide`] and
/// again after [`super::Frontend::settle`].
#[derive(Debug, Default)]
pub struct Actions {
    /// Work for the disk, in this order.
    pub storage: Vec<Storage>,
    /// Effects of the core that the frontend passes on.
    pub shell: ShellEffects,
    /// Replies. A promise in them is durable.
    pub answers: Vec<CallAnswer>,
    /// Replies with very many rows, to be built outside the critical path, up to the size of a
    /// frame.
    pub long_reads: Vec<(CallRef, LongRead)>,
    /// Readers of the durable checkpoint to open; each then serves its first part to the call.
    pub open_readers: Vec<OpenReader>,
    /// Open readers to close, by their numbers.
    pub close_readers: Vec<u64>,
    /// Requested parts of open readers.
    pub parts: Vec<PartWanted>,
    /// A snapshot to fetch; its outcome is reported as [`super::Event::SnapshotFetched`].
    pub fetch: Option<SnapshotFetch>,
    /// Set when the servers of the quorum or their addresses may have changed.
    pub roster: Option<RosterChange>,
    /// Set when the sender of [`super::Event::Leave`] need not wait any longer.
    pub may_leave: bool,
    /// Servers that were removed and do not know it: their messages were dropped, and they must be
    /// notified.
    pub removed_senders: Vec<ServerId>,
    /// Set when this server was removed from the quorum: the disk must record it, so that the
    /// server never serves again.
    pub removed: bool,
    /// Set when this server's state was found corrupt: the disk must record it, so that the server
    /// never serves an agent again.
    pub corrupt: bool,
}

/// Work for the disk.
#[derive(Debug)]
pub enum Storage {
    /// A write to the log. Writes become durable in this order and are then reported as
    /// [`crate::Input::Persisted`].
    Write(LogWrite),
    /// Rows for the next checkpoint.
    Record(Vec<Change>),
    /// Writes all recorded rows; the checkpoint then has this metadata.
    Checkpoint(SnapshotMeta),
    /// The same at a corruption check: the checkpoint must represent exactly this index once,
    /// regardless of other waiting work. Its checksum is reported as [`crate::Input::Summed`].
    ExactCheckpoint(SnapshotMeta),
    /// The fetched snapshot replaces everything: the log's reset follows among the writes. Earlier
    /// recorded rows are obsolete.
    Install(SnapshotMeta),
    /// The index up to which the log may be compacted.
    Compact(LogIndex),
}

/// A reply to a caller.
#[derive(Debug)]
pub struct CallAnswer {
    /// The call.
    pub to: CallRef,
    /// The reply.
    pub response: Response,
    /// The kind of request, for the counters.
    pub kind: AnswerKind,
}

/// The kind of request that a reply belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerKind {
    /// A query.
    Read,
    /// A query that may block until a change.
    BlockingRead,
    /// A command, a renewal, or an operator's request.
    Write,
    /// Any other request.
    Other,
}

/// The purpose of reading the durable checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointReader {
    /// An operator's backup.
    Backup,
    /// A snapshot for a server that is too far behind to follow the log.
    Snapshot,
}

/// A reader to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenReader {
    /// Its number.
    pub number: u64,
    /// Its purpose.
    pub kind: CheckpointReader,
    /// The call that its first part answers.
    pub first: CallRef,
}

/// A requested part of an open reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartWanted {
    /// The reader's number.
    pub reader: u64,
    /// The number of the part, from 0.
    pub number: u32,
    /// The call that requests it.
    pub to: CallRef,
}

/// A snapshot to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotFetch {
    /// The server to fetch it from.
    pub from: ServerId,
    /// The minimum index of the snapshot.
    pub least: LogIndex,
}

/// The servers may have changed: the state lists them. An announcement in progress ends.
#[derive(Debug, Default)]
pub struct RosterChange {
    /// Set when this server must announce its address to the quorum.
    pub announce: Option<Announcement>,
    /// Set if the roster has this server's current record.
    pub is_current: bool,
}

/// This server's current record, and the recipients.
#[derive(Debug)]
pub struct Announcement {
    /// The server's current record.
    pub me: Server,
    /// Possible addresses of the leader.
    pub addresses: Vec<String>,
}

impl Actions {
    pub(super) fn answer(&mut self, to: CallRef, response: Response, kind: AnswerKind) {
        self.answers.push(CallAnswer { to, response, kind });
    }
}
