//! All inputs of a [`QuorumClient`](super::QuorumClient), as a closed list.

use crate::cluster::ClusterChoice;
use core::net::IpAddr;
use lockmesh_protocol::acl::Caller;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::SessionId;
use lockmesh_protocol::lease::Challenge;
use lockmesh_protocol::query::{Blocking, Consistency, Query};
use lockmesh_protocol::record::RequestedLock;
use lockmesh_protocol::rpc::{CallId, Request, Response};
use std::collections::BTreeMap;
use std::time::Duration;

/// The id of an attempt to connect and of the resulting connection; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// The id of a local call; never reused and increasing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallToken(pub u64);

/// An input.
#[derive(Debug)]
pub enum Input {
    /// A local caller starts a call, with the rights of a client or of the agent. Every call is
    /// answered once, unless it is cancelled before.
    Call(CallToken, Caller, LocalCall),
    /// The caller is gone, or its reply can no longer be delivered. A change may still take effect,
    /// except a lock that was waited for, which is released.
    Cancel(CallToken),
    /// The caller received the grant that followed a wait, and owns the lock.
    Heard(CallToken),
    /// A server challenges this agent. Answered at once, like a call.
    Challenge(CallToken, Challenge),
    /// A connection was made: calls may be sent on it.
    Connected(ConnectionId),
    /// A connection was lost or could not be made.
    Ended(ConnectionId, ConnectionEnd),
    /// The amount of data received on a connection so far, in any unit; reported from time to time.
    Received(ConnectionId, u64),
    /// A server answered calls.
    Answers(ConnectionId, Vec<(CallId, Response)>),
    /// A call does not fit into a frame, for this reason.
    Unsendable(ConnectionId, CallId, String),
    /// `true` if the connection's send queue is full and requests should wait.
    Backlog(ConnectionId, bool),
    /// The agent's node is about to leave: the agent does not register again on its own.
    Leave,
    /// The node did not leave after all: the agent continues, and registers again if the node may
    /// have left.
    Stay {
        /// `true` if the servers may have recorded that the node left.
        may_have_left: bool,
    },
    /// Adds a server by address, as `host:port`; it is never forgotten.
    AddServer(String),
    /// The address at which others reach this agent has changed.
    OwnAddress(IpAddr),
    /// The metadata of this agent's node has changed.
    NodeMeta(BTreeMap<String, String>),
    /// The configuration selects another cluster, or none.
    ChooseCluster(ClusterChoice),
    /// Blocking reads and lock waits are answered with the current state, now and from now on.
    Hurry,
    /// Shuts down.
    Close,
    /// Time has passed without another input.
    Tick,
}

/// A request of a local caller.
#[derive(Clone, Debug)]
pub enum LocalCall {
    /// Changes the state, exactly once.
    Propose(Command),
    /// A read, or an idempotent request.
    Ask(Request),
    /// Asks the home server once, and only if it is connected. A mesh query without a reply does
    /// not indicate a failed server.
    AskHome(Request),
    /// Reads; a blocking read shares its upstream call with all identical ones, and keeps its own
    /// timeout.
    Read {
        /// The query.
        query: Query,
        /// The consistency mode.
        consistency: Consistency,
        /// Parameters of a blocking read.
        blocking: Option<Blocking>,
    },
    /// Ends a session. Retried until the servers report the outcome, even if the caller is gone.
    EndSession {
        /// The session.
        session: SessionId,
        /// The reason why it ends.
        reason: EndReason,
    },
    /// Acquires locks, all or none, or waits in their queues.
    Acquire {
        /// The locks, ascending by key, at least one.
        locks: Vec<RequestedLock>,
        /// The session that is to hold them.
        session: SessionId,
        /// The maximum wait.
        wait: Duration,
    },
}

/// The reason why a client ends a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The client no longer needs the session. It waits for the outcome.
    Closed,
    /// The guard received no acknowledged renewal for this long; `None` if it lost the node's
    /// lease, which the agent knows of. A time longer than the agent's own is shortened. Answered
    /// at once.
    GivenUp(Option<Duration>),
    /// The same, after a silence of this length, which this agent confirms. Answered at once.
    Confirmed(Duration),
    /// The client gave the session up, for a reason that this agent cannot confirm: the session is
    /// recorded as destroyed. Answered at once.
    Unconfirmed,
    /// The process of a bound session has exited. The caller waits for the outcome.
    ProcessExited,
}

/// The reason why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// The connection was lost, or the server was not reached.
    Lost(String),
    /// The server and this agent rejected each other's certificates.
    NotAdmitted(String),
}
