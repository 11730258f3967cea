//! Everything that a [`Frontend`](super::Frontend) wants done, in the order in which it was
//! decided.

use super::event::CallRef;
use crate::outbox::{ChallengeWanted, MeshItemsWanted, QuestionWanted};
use crate::raft::log::{LogWrite, SnapshotMeta};
use crate::raft::message::PeerMessage;
use crate::state::{LongRead, Removed};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::record::Server;
use lockmesh_protocol::rpc::Response;

/// What shall happen. The shell carries it out and empties it after [`super::Frontend::decide`] and
/// again after [`super::Frontend::settle`].
#[derive(Debug, Default)]
pub struct Actions {
    /// For the disk, in this order.
    pub storage: Vec<Storage>,
    /// Messages for other servers.
    pub messages: Vec<(ServerId, PeerMessage)>,
    /// Answers. A promise in here is durable.
    pub answers: Vec<CallAnswer>,
    /// Answers of very many rows, to be built where nobody waits; as many bytes as a frame has.
    pub long_reads: Vec<(CallRef, LongRead)>,
    /// Rows that were removed many at once: to be dropped where nobody waits.
    pub removed_rows: Removed,
    /// Readers of the durable checkpoint that shall be opened; each then serves its first part to
    /// the call.
    pub open_readers: Vec<(CheckpointReader, CallRef)>,
    /// Parts that are wanted of open readers.
    pub parts: Vec<PartWanted>,
    /// A snapshot that shall be fetched; its end is told as [`super::Event::SnapshotFetched`].
    pub fetch: Option<SnapshotFetch>,
    /// The servers of the quorum, or where they are, may have changed.
    pub roster: Option<RosterChange>,
    /// Whoever told [`super::Event::Leave`] need not wait any longer.
    pub may_leave: bool,
    /// Servers that were removed and do not know it: what they said was dropped, and they shall be
    /// told.
    pub removed_senders: Vec<ServerId>,
    /// Nodes that shall be asked whether they live, each for 250 ms: what came of each is told as
    /// [`super::Event::Challenged`].
    pub challenges: Vec<ChallengeWanted>,
    /// Agents that shall ask a node whether it lives: only an answer is told, as
    /// [`super::Event::AgentAnswered`].
    pub questions: Vec<QuestionWanted>,
    /// Agents in the mesh that shall be told what is new.
    pub mesh_items: Vec<MeshItemsWanted>,
    /// This server was removed from the quorum: that must be kept on disk, so that it never serves
    /// again.
    pub removed: bool,
    /// This server's state was found to be corrupt: that must be kept on disk, so that it answers
    /// no agent again.
    pub corrupt: bool,
}

/// What the disk shall do.
#[derive(Debug)]
pub enum Storage {
    /// Put this into the log. Becomes durable in this order, and is then told as
    /// [`super::Event::Persisted`].
    Write(LogWrite),
    /// These rows are to be part of the next checkpoint.
    Record(Vec<Change>),
    /// Write all that was recorded; afterwards the checkpoint stands for this.
    Checkpoint(SnapshotMeta),
    /// The same at a corruption check: the checkpoint must stand for exactly this index once,
    /// whatever else waits. Its checksum is told as [`super::Event::Summed`].
    ExactCheckpoint(SnapshotMeta),
    /// The snapshot that was fetched takes the place of everything: the log's reset follows among
    /// the writes. What was recorded before is of no use any more.
    Install(SnapshotMeta),
    /// The log may be compacted up to this index.
    Compact(LogIndex),
}

/// An answer on its way to a caller.
#[derive(Debug)]
pub struct CallAnswer {
    /// To which call.
    pub to: CallRef,
    /// The answer.
    pub response: Response,
    /// What it answers, for the counters.
    pub kind: AnswerKind,
}

/// What an answer answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerKind {
    /// A query.
    Read,
    /// A query that may wait for news.
    BlockingRead,
    /// A command, a renewal, or an operator's order.
    Write,
    /// Anything else.
    Other,
}

/// For whom the durable checkpoint is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointReader {
    /// For an operator: a backup.
    Backup,
    /// For a server that is too far behind to follow the log: a snapshot.
    Snapshot,
}

/// A part of what an open reader reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartWanted {
    /// The reader's number, as the shell gave it.
    pub reader: u64,
    /// Which part, from 0.
    pub number: u32,
    /// Who wants it.
    pub to: CallRef,
}

/// A snapshot to be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotFetch {
    /// From which server.
    pub from: ServerId,
    /// It must stand for this index or a later one.
    pub least: LogIndex,
}

/// The servers may have changed: the state says who they are. An announcement that is under way
/// ends.
#[derive(Debug, Default)]
pub struct RosterChange {
    /// The quorum must be told where this server is now.
    pub announce: Option<Announcement>,
}

/// Where this server is, and whom to tell.
#[derive(Debug)]
pub struct Announcement {
    /// The server as it is now.
    pub me: Server,
    /// Where the leader may be.
    pub addresses: Vec<String>,
}

impl Actions {
    pub(super) fn answer(&mut self, to: CallRef, response: Response, kind: AnswerKind) {
        self.answers.push(CallAnswer { to, response, kind });
    }
}
