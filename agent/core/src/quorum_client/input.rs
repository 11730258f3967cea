//! Everything that a [`QuorumClient`](super::QuorumClient) is told: a closed list.

use crate::cluster::ClusterChoice;
use lockmesh_protocol::command::{Command, NewEntry};
use lockmesh_protocol::id::SessionId;
use lockmesh_protocol::lease::Challenge;
use lockmesh_protocol::query::{Blocking, Consistency, Query};
use lockmesh_protocol::rpc::{CallId, Request, Response};
use std::time::Duration;

/// An attempt to connect and the connection that it leads to, by a number that is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// What a local caller waits for, by a number that is never used twice and only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallToken(pub u64);

/// What happened.
#[derive(Debug)]
pub enum Input {
    /// A local caller wants something. Every such call is answered once, unless it is cancelled
    /// before.
    Call(CallToken, LocalCall),
    /// Nobody waits for this call any more, or nobody hears its answer. What it may have changed
    /// may yet take effect, except for a lock that was waited for: that one is given back.
    Cancel(CallToken),
    /// A lock that was granted after a wait was heard of: it is the caller's.
    Heard(CallToken),
    /// A server asks whether this agent lives. Answered at once, as a call is.
    Challenge(CallToken, Challenge),
    /// There is a connection: calls may be sent on it.
    Connected(ConnectionId),
    /// There is none any more, or none could be made.
    Ended(ConnectionId, ConnectionEnd),
    /// How much has arrived on a connection so far, in whatever unit: told every now and then.
    Received(ConnectionId, u64),
    /// A server answered calls.
    Answers(ConnectionId, Vec<(CallId, Response)>),
    /// A call fits no frame, for this reason.
    Unsendable(ConnectionId, CallId, String),
    /// Whether so much waits to be sent on a connection that no more calls should.
    Backlog(ConnectionId, bool),
    /// The agent's node is about to leave: the agent does not register again by itself.
    Leave,
    /// The node did not leave after all: the agent goes on, and registers again where it may have
    /// left.
    Stay {
        /// Whether the servers may have it as one that left.
        may_have_left: bool,
    },
    /// There is a server at this address, as `host:port`: it is never forgotten.
    AddServer(String),
    /// The configuration names another cluster, or none.
    ChooseCluster(ClusterChoice),
    /// Blocking reads and waits for locks are answered with what there is, now and from now on.
    Hurry,
    /// Everything ends.
    Close,
    /// Nothing happened, but time has passed.
    Tick,
}

/// What a local caller wants.
#[derive(Clone, Debug)]
pub enum LocalCall {
    /// Changes the state, exactly once.
    Propose(Command),
    /// Asks what changes nothing, or the same however often it is asked.
    Ask(Request),
    /// Asks the home server once, and only if there is a connection. That a question of the mesh is
    /// not answered says nothing of the server.
    AskHome(Request),
    /// Reads; a blocking read shares its upstream call with all others like it, and keeps its own
    /// time.
    Read {
        /// What.
        query: Query,
        /// How fresh.
        consistency: Consistency,
        /// Whether to wait for news.
        blocking: Option<Blocking>,
    },
    /// Ends a session, and retries that until the servers report the outcome, also when the caller
    /// is gone.
    EndSession {
        /// The session.
        session: SessionId,
        /// Why it ends.
        reason: EndReason,
    },
    /// Takes a lock, or waits in its queue.
    Acquire {
        /// The lock's entry.
        new: NewEntry,
        /// Whose lock it shall be.
        session: SessionId,
        /// How long it is waited for.
        wait: Duration,
    },
}

/// Why a client ends a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// It needs the session no more. It waits for the outcome.
    Closed,
    /// No renewal was acknowledged for so long, as the guard knows; none where it was the node's
    /// lease, of which the agent knows. Answered at once.
    GivenUp(Option<Duration>),
}

/// Why a connection is none any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// It was lost, or the server was not reached.
    Lost(String),
    /// The server and this agent did not believe each other's certificates.
    NotAdmitted(String),
}
