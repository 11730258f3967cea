//! What passes between an agent and its surroundings, as somebody sees it who looks at its sockets
//! and knows nothing of what goes on inside.

use lockmesh_agent_core::quorum_client::{Answered, CallToken, LocalCall};
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::query::Consistency;
use lockmesh_protocol::rpc::{CallId, Request, Response, Unavailable};

/// One thing that passed. Connections have numbers that no other connection of any agent has.
#[derive(Debug)]
pub enum AgentEvent<'a> {
    /// Its process began.
    Started,
    /// It dials a server.
    Dialled {
        /// The connection.
        connection: u64,
        /// The address.
        address: &'a str,
        /// Who is there.
        server: ServerId,
    },
    /// A connection has ended, or was given up.
    Ended {
        /// Which.
        connection: u64,
    },
    /// It sent a call.
    Sent {
        /// On which connection.
        connection: u64,
        /// The call.
        call: CallId,
        /// What it asks.
        request: &'a Request,
    },
    /// It told a server that nobody waits for a call any more.
    Cancelled {
        /// On which connection.
        connection: u64,
        /// The call.
        call: CallId,
    },
    /// A server's answer arrived on a connection that stands.
    Replied {
        /// On which connection.
        connection: u64,
        /// The call.
        call: CallId,
        /// What the server said.
        response: &'a Response,
    },
    /// It says at which address the leader is; nowhere where it is not known.
    Leader(Option<&'a str>),
    /// A local caller wants something.
    Called {
        /// The caller.
        token: CallToken,
        /// What it wants.
        call: &'a LocalCall,
        /// What had been answered to anybody then.
        bound: LogIndex,
    },
    /// A local caller wants nothing more.
    Left {
        /// The caller.
        token: CallToken,
    },
    /// A local caller was told something.
    Told {
        /// The caller.
        token: CallToken,
        /// What.
        answer: &'a Result<Answered, Unavailable>,
        /// How far the server that said so had applied the log, where a server has just said so.
        as_of: Option<LogIndex>,
    },
    /// It has done all that followed from what it was told.
    Settled,
}

/// Whether only a server that leads can do what is asked. Others may take the rest, too.
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
