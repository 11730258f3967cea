//! Every input of a [`Frontend`](super::Frontend): a closed list.

use crate::input::Input;
use crate::raft::log::SnapshotMeta;
use crate::state::State;
use lockmesh_protocol::acl;
use lockmesh_protocol::id::ServerId;
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
        /// The client for which its agent sends it.
        client: acl::Caller,
        /// The request.
        request: Request,
    },
    /// The caller no longer waits for this call: a parked reader is freed, a write may still take
    /// effect.
    Cancel(CallRef),
    /// A connection closed, with all its calls.
    Disconnected(Caller),
    /// An input of the core without a caller. The frontend passes it on, after its own part in
    /// messages from other servers and in checkpoints.
    Core(Input),
    /// The program version of a server, possibly this one.
    Version(ServerId, String),
    /// The fetched snapshot: its metadata and state. `None` if the fetch was given up.
    SnapshotFetched(Option<(SnapshotMeta, Box<State>)>),
    /// The disk began to reject writes, or accepts them again.
    Disk(DiskHealth),
    /// The last part of the open reader with this number was read.
    ReaderFinished(u64),
    /// The open reader with this number was closed.
    ReaderClosed(u64),
    /// Another server reports that this one was removed from the quorum.
    Removed,
    /// This server is about to stop: if it leads, it must hand over. Confirmed by
    /// [`super::Actions::may_leave`].
    Leave,
}

impl From<Input> for Event {
    fn from(input: Input) -> Self {
        Self::Core(input)
    }
}
