//! Every input of a [`Frontend`](super::Frontend): a closed list.

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

/// A connection, identified by a number that is never reused within a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Caller(pub u64);

/// A call of a connection: the destination of its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallRef {
    /// The connection.
    pub caller: Caller,
    /// The call within the connection.
    pub call: CallId,
}

/// The health of the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DiskHealth {
    /// It accepts writes.
    #[default]
    Good,
    /// It rejects writes, for this reason. The store keeps retrying; nothing new should be proposed
    /// meanwhile.
    Failing(String),
}

/// An input.
#[derive(Debug)]
pub enum Event {
    /// A call. Every call is answered once, unless it is cancelled before.
    Call {
        /// The destination of the reply.
        from: CallRef,
        /// The caller, as authenticated by its certificate.
        peer: Arc<Peer>,
        /// The request.
        request: Request,
    },
    /// The caller no longer waits for this call: a parked reader is freed, a write may still take
    /// effect.
    Cancel(CallRef),
    /// A connection closed, with all its calls.
    Disconnected(Caller),
    /// A message from another server; the shell has bound the sender to its certificate.
    Peer(ServerId, PeerMessage),
    /// Another server remembers a position of this one beyond what it holds.
    SetBack(ServerId, LogPosition),
    /// The program version of a server, possibly this one.
    Version(ServerId, String),
    /// Messages in transit to another server may be lost.
    Unreachable(ServerId),
    /// The fetched snapshot: its metadata and state. `None` if the fetch was given up.
    SnapshotFetched(Option<(SnapshotMeta, Box<State>)>),
    /// All log writes up to this number are durable.
    Persisted(u64),
    /// This checkpoint is durable.
    Checkpointed(SnapshotMeta),
    /// The checkpoint of exactly this index is durable and has this checksum.
    Summed(LogIndex, Checksum),
    /// The outcome of a challenge, see [`super::Actions::challenges`].
    Challenged {
        /// The challenge.
        challenge: Challenge,
        /// The node's reply; `None` if the node was unreachable or did not reply in time.
        answer: Option<Box<NodeAnswer>>,
    },
    /// A node's reply that arrived through an agent, see [`super::Actions::questions`].
    AgentAnswered(Box<NodeAnswer>),
    /// The disk began to reject writes, or accepts them again.
    Disk(DiskHealth),
    /// One of the open readers of a checkpoint was closed.
    ReaderClosed,
    /// Another server reports that this one was removed from the quorum.
    Removed,
    /// This server is about to stop: if it leads, it must hand over. Confirmed by
    /// [`super::Actions::may_leave`].
    Leave,
}
