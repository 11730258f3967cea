//! Everything that a [`Frontend`](super::Frontend) is told: a closed list.

use crate::checksum::Checksum;
use crate::raft::log::SnapshotMeta;
use crate::raft::message::PeerMessage;
use crate::setback::LogPosition;
use crate::state::State;
use lockmesh_protocol::given_up::NodeAnswer;
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::lease::Challenge;
use lockmesh_protocol::peer::Peer;
use lockmesh_protocol::rpc::{CallId, Request};
use std::sync::Arc;

/// A connection, by a number that is never used twice in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Caller(pub u64);

/// One call of one connection: where its answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallRef {
    /// Which connection.
    pub caller: Caller,
    /// Which of its calls.
    pub call: CallId,
}

/// Whether the disk takes writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DiskHealth {
    /// It does.
    #[default]
    Good,
    /// It does not, for this reason. The store goes on trying; nothing new should be proposed
    /// meanwhile.
    Failing(String),
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// Somebody asks. Every call is answered once, unless it is cancelled before.
    Call {
        /// Where the answer goes.
        from: CallRef,
        /// Who asks, as the certificate says.
        peer: Arc<Peer>,
        /// What is asked.
        request: Request,
    },
    /// Nobody waits for this call any more: a parked reader is freed, a write may still take
    /// effect.
    Cancel(CallRef),
    /// A connection ended, and all its calls with it.
    Disconnected(Caller),
    /// Another server said something; the shell has bound the sender to its certificate.
    Peer(ServerId, PeerMessage),
    /// Another server remembers that this one had come so far, and it holds less.
    SetBack(ServerId, LogPosition),
    /// The version of the program that a server runs, which may be this one.
    Version(ServerId, String),
    /// What was on its way to another server may be lost.
    Unreachable(ServerId),
    /// The snapshot that was to be fetched is here: what it stands for, and the state. None where
    /// it was given up.
    SnapshotFetched(Option<(SnapshotMeta, Box<State>)>),
    /// Every log write up to this number is on disk.
    Persisted(u64),
    /// This checkpoint is on disk.
    Checkpointed(SnapshotMeta),
    /// The checkpoint of exactly this index is on disk, and this is its checksum.
    Summed(LogIndex, Checksum),
    /// What came of a challenge, see [`super::Actions::challenges`].
    Challenged {
        /// Which one.
        challenge: Challenge,
        /// What the node answered; none where it could not be reached, or did not answer in time.
        answer: Option<NodeAnswer>,
    },
    /// What a node answered to an agent that asked it, see [`super::Actions::questions`].
    AgentAnswered(NodeAnswer),
    /// The disk began to refuse, or takes writes again.
    Disk(DiskHealth),
    /// One of the readers of a checkpoint that were opened is closed.
    ReaderClosed,
    /// Another server says that this one was removed from the quorum.
    Removed,
    /// This server is about to stop: if it leads, another one shall. Told as
    /// [`super::Actions::may_leave`].
    Leave,
}
