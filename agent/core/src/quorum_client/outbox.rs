//! Everything that a [`QuorumClient`](super::QuorumClient) wants done.

use super::input::{CallToken, ConnectionId};
use crate::cluster::Pin;
use crate::request_ids::Registration;
use lockmesh_protocol::id::{Key, LogIndex, SessionId};
use lockmesh_protocol::lease::LeaseEnd;
use lockmesh_protocol::query::Answer;
use lockmesh_protocol::reply::Applied;
use lockmesh_protocol::rpc::{Call, Response, Unavailable};
use std::sync::Arc;

/// What shall happen, in this order. The shell carries it out and empties it after each input.
#[derive(Debug, Default)]
pub struct Outbox {
    /// To be connected; told as [`super::Input::Connected`] and [`super::Input::Ended`].
    pub connect: Vec<Dial>,
    /// Calls for servers that are connected, in this order on each connection.
    pub calls: Vec<(ConnectionId, Call)>,
    /// Connections that are given up, with what was to be sent on them. Nothing more is heard of
    /// them.
    pub disconnect: Vec<ConnectionId>,
    /// Answers for local callers, and for servers that challenge.
    pub answers: Vec<(CallToken, Result<Answered, Unavailable>)>,
    /// What operators should know.
    pub notices: Vec<Notice>,
}

/// A connection that shall be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dial {
    /// Its number.
    pub connection: ConnectionId,
    /// Where to, as `host:port`.
    pub address: String,
}

/// What a local call came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answered {
    /// What a server said.
    Response(Response),
    /// What a server said to all who shared a blocking read.
    Shared(Arc<Answer>),
    /// What became of a wait for a lock, and the index at which it was asked for. A grant has to be
    /// [heard](super::Input::Heard) or cancelled.
    Acquired(LogIndex, Applied),
}

/// Something that operators should know, told once for each change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The leader was found, at this address.
    LeaderFound(String),
    /// The leader is not known any more.
    LeaderLost,
    /// The servers of this cluster registered this agent.
    Registered {
        /// As what.
        registration: Registration,
        /// The cluster's id; empty where its roster has not been heard yet.
        cluster: String,
    },
    /// They did not, for this reason.
    NotRegistered(String),
    /// The agent belongs to this cluster from now on, also after a restart.
    Pinned(Pin),
    /// Servers are refused because they are not of this agent's cluster.
    ClusterMismatch(String),
    /// None is any more.
    ClusterMismatchOver,
    /// A server was not reached, or lost; it is tried again.
    ConnectionFailed(String),
    /// A lock that nobody waits for any more may stay granted until its session ends, for this
    /// reason.
    MayStayGranted(Key, SessionId, Unavailable),
    /// The servers ended this node's lease, for this reason; the agent registers anew, unless it
    /// leaves.
    LeaseLost(LeaseEnd),
}

/// What a caller is told whose server answered with something that does not fit.
pub fn unexpected(response: &Response) -> Unavailable {
    Unavailable::Unknown(format!("the server answered something else: {response:?}"))
}
