//! All effects that a [`QuorumClient`](super::QuorumClient) requests.

use super::input::{CallToken, ConnectionId};
use crate::cluster::Pin;
use crate::request_ids::Registration;
use lockmesh_protocol::id::{Key, LogIndex, SessionId};
use lockmesh_protocol::lease::LeaseEnd;
use lockmesh_protocol::query::Answer;
use lockmesh_protocol::reply::Applied;
use lockmesh_protocol::rpc::{Call, Response, Unavailable};
use std::sync::Arc;

/// The effects, to execute in this order. The shell empties it after each input.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Connections to make; reported as [`super::Input::Connected`] and [`super::Input::Ended`].
    pub connect: Vec<Dial>,
    /// Calls for connected servers, in this order on each connection.
    pub calls: Vec<(ConnectionId, Call)>,
    /// Connections to close, together with their unsent data. No further events of them are
    /// expected.
    pub disconnect: Vec<ConnectionId>,
    /// Replies for local callers, and for servers that challenge.
    pub answers: Vec<(CallToken, Result<Answered, Unavailable>)>,
    /// Notices for operators.
    pub notices: Vec<Notice>,
}

/// A connection to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dial {
    /// The connection's id.
    pub connection: ConnectionId,
    /// The address, as `host:port`.
    pub address: String,
}

/// The result of a local call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answered {
    /// A server's reply.
    Response(Response),
    /// A server's reply to all callers that shared a blocking read.
    Shared(Arc<Answer>),
    /// The outcome of a lock wait, and the index of its enqueue. A grant must be
    /// [confirmed](super::Input::Heard) or cancelled.
    Acquired(LogIndex, Applied),
}

/// An event for operators, reported once for each change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The leader was found, at this address.
    LeaderFound(String),
    /// The leader is unknown.
    LeaderLost,
    /// The servers of this cluster registered this agent.
    Registered {
        /// The registration.
        registration: Registration,
        /// The cluster id; empty until its roster is received.
        cluster: String,
    },
    /// The registration failed, for this reason.
    NotRegistered(String),
    /// The agent belongs to this cluster from now on, even after a restart.
    Pinned(Pin),
    /// Servers are rejected because they do not belong to this agent's cluster.
    ClusterMismatch(String),
    /// No server is rejected any more.
    ClusterMismatchOver,
    /// A server was not reached, or its connection was lost; it is retried.
    ConnectionFailed(String),
    /// A lock without a waiting caller may stay granted until its session ends, for this reason.
    MayStayGranted(Key, SessionId, Unavailable),
    /// A backup was restored. The servers keep this node's lease, but what the node had registered
    /// may be lost.
    Restored,
    /// The servers ended this node's lease, for this reason; the agent registers again, unless it
    /// is leaving.
    LeaseLost(LeaseEnd),
}

/// Returns the error for a caller whose server sent an unexpected reply.
pub fn unexpected(response: &Response) -> Unavailable {
    match response {
        // In place of a request that an earlier version does not support, it receives this one.
        Response::Status(_) => {
            Unavailable::Denied("the server is of an earlier version without this request: upgrade it".into())
        }
        _ => Unavailable::Unknown(format!("the server sent an unexpected reply: {response:?}")),
    }
}
