//! The exchange between an agent and its environment, as visible at its sockets.

use lockmesh_agent_core::quorum_client::{Answered, CallToken, LocalCall};
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::query::Consistency;
use lockmesh_protocol::rpc::{CallId, Request, Response, Unavailable};

/// An event. Connection numbers are unique among all agents.
#[derive(Debug)]
pub enum AgentEvent<'a> {
    /// The process started.
    Started,
    /// The agent connects to a server.
    Dialled {
        /// The connection.
        connection: u64,
        /// The address.
        address: &'a str,
        /// The server at that address.
        server: ServerId,
    },
    /// A connection has ended, or was given up.
    Ended {
        /// The connection.
        connection: u64,
    },
    /// The agent sent a call.
    Sent {
        /// The connection.
        connection: u64,
        /// The call.
        call: CallId,
        /// The request.
        request: &'a Request,
    },
    /// The agent cancelled a call at a server.
    Cancelled {
        /// The connection.
        connection: u64,
        /// The call.
        call: CallId,
    },
    /// A server's reply arrived on a connection that is up.
    Replied {
        /// The connection.
        connection: u64,
        /// The call.
        call: CallId,
        /// The reply.
        response: &'a Response,
    },
    /// The agent reports the leader's address; `None` if it is unknown.
    Leader(Option<&'a str>),
    /// A local caller made a call.
    Called {
        /// The caller.
        token: CallToken,
        /// The call.
        call: &'a LocalCall,
        /// The newest index in any reply at that time.
        bound: LogIndex,
    },
    /// A local caller no longer waits.
    Left {
        /// The caller.
        token: CallToken,
    },
    /// A local caller received a reply.
    Told {
        /// The caller.
        token: CallToken,
        /// The reply.
        answer: &'a Result<Answered, Unavailable>,
        /// The applied index of the server that has just sent it, if a server did.
        as_of: Option<LogIndex>,
    },
    /// The agent has finished processing its input.
    Settled,
}

/// Returns `true` if only a leader can serve the request. Other servers may accept the rest, too.
pub fn needs_leader(request: &Request) -> bool {
    match request {
        Request::Propose(..)
        | Request::Renew(_)
        | Request::TransferLeader(_)
        | Request::Autopilot
        | Request::NodeLeases(_) => true,
        Request::Read { consistency, blocking, .. } => {
            blocking.is_none() && *consistency != Consistency::Stale
        }
        _ => false,
    }
}
