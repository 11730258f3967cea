//! Every input of a server: a closed list.

use crate::durability::checksum::Checksum;
use crate::proposal::Proposal;
use crate::raft::log::{LogPosition, SnapshotMeta};
use crate::raft::message::PeerMessage;
use crate::state::State;
use bytes::Bytes;
use lockmesh_protocol::given_up::{GivenUp, NodeAnswer};
use lockmesh_protocol::id::{AgentNumber, LogIndex, ServerId, SessionId, WallTime};
use lockmesh_protocol::lease::{Challenge, LeaseId, Renewal};
use lockmesh_protocol::query::Consistency;

/// Identifies the waiting caller of a reply; assigned by the shell, opaque to the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallToken(pub u64);

/// The caller that waits for the reply to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseCaller {
    /// A direct caller of this server.
    Call(CallToken),
    /// Another server that relayed the renewal, under this number of its own.
    Server(ServerId, u64),
}

/// An input.
#[derive(Debug)]
pub enum Input {
    /// A tick. The shell sends one every [`crate::raft::TICK`], late ones too, but never two for
    /// one. It carries the wall clock, for people.
    Tick(WallTime),
    /// A deadline between two ticks: the time of [`crate::Core::next_deadline`] has come. Consensus
    /// ignores it.
    Deadline(WallTime),
    /// A message from another server; the shell has bound the sender to its certificate.
    Peer(ServerId, PeerMessage),
    /// A fetched checkpoint: the one that another server announced in this message, or a newer one
    /// of the same server, with its metadata and state.
    Install(ServerId, PeerMessage, SnapshotMeta, Box<State>),
    /// Another server remembers that this one had reached this position.
    SetBack(ServerId, LogPosition),
    /// The shell lost messages in transit to a server.
    Unreachable(ServerId),
    /// A request to change the state.
    Propose(CallToken, Proposal),
    /// A read request; answered by a [`Outbox::readable`] token when the state may be read.
    Read(CallToken, Consistency),
    /// A renewal of a session.
    Renew(CallToken, SessionId),
    /// A user event that this agent fired.
    Spread(CallToken, AgentNumber, Bytes),
    /// An input of the failure detector.
    Node(NodeInput),
    /// All log writes up to this number are durable.
    Persisted(u64),
    /// This checkpoint of the state is durable: the log behind it may be compacted.
    CheckpointDurable(SnapshotMeta),
    /// The checkpoint at the index of a corruption check is durable and has this checksum.
    Summed(LogIndex, Checksum),
    /// A request that concerns the servers of the quorum.
    Servers(ServerRequest),
}

impl Input {
    /// Returns the caller that waits for a reply, if any.
    pub(crate) fn caller(&self) -> Option<CallToken> {
        match self {
            Self::Propose(token, _)
            | Self::Read(token, _)
            | Self::Renew(token, _)
            | Self::Spread(token, ..) => Some(*token),
            Self::Node(input) => input.caller(),
            Self::Servers(request) => Some(request.caller()),
            Self::Tick(_)
            | Self::Deadline(_)
            | Self::Peer(..)
            | Self::Install(..)
            | Self::SetBack(..)
            | Self::Unreachable(_)
            | Self::Persisted(_)
            | Self::CheckpointDurable(_)
            | Self::Summed(..) => None,
        }
    }
}

/// An input of the failure detector from outside this server.
#[derive(Debug)]
pub enum NodeInput {
    /// An agent's renewal of its node lease, and the sessions that its guards gave up, if any.
    RenewLease(CallToken, Renewal, Option<Box<GivenUp>>),
    /// A suspicion: the agent with the first lease could not reach the agents with the other leases
    /// by mesh probes.
    Suspect(CallToken, LeaseId, Vec<LeaseId>),
    /// A node's reply to a challenge, see [`crate::outbox::ShellEffects::challenges`]; `None` if
    /// the node was unreachable or did not reply in time.
    Challenged(Challenge, Option<Box<NodeAnswer>>),
    /// A node's reply that arrived through an agent, see
    /// [`crate::outbox::ShellEffects::questions`].
    AgentAnswered(Box<NodeAnswer>),
}

impl NodeInput {
    /// Returns the caller that waits for a reply, if any.
    pub(crate) fn caller(&self) -> Option<CallToken> {
        match self {
            Self::RenewLease(token, ..) | Self::Suspect(token, ..) => Some(*token),
            Self::Challenged(..) | Self::AgentAnswered(_) => None,
        }
    }
}

/// A request that concerns the servers of the quorum.
#[derive(Debug)]
pub enum ServerRequest {
    /// An operator's request to transfer leadership; `None` selects any capable server.
    TransferLeader(CallToken, Option<ServerId>),
    /// A request to add a server of the roster; it is promoted to voter once it has caught up.
    AddServer(CallToken, ServerId),
    /// An operator's request to remove a server.
    RemoveServer(CallToken, ServerId),
}

impl ServerRequest {
    /// Returns the caller that waits for a reply.
    pub(crate) fn caller(&self) -> CallToken {
        match self {
            Self::TransferLeader(token, _) | Self::AddServer(token, _) | Self::RemoveServer(token, _) => {
                *token
            }
        }
    }
}

impl From<NodeInput> for Input {
    fn from(input: NodeInput) -> Self {
        Self::Node(input)
    }
}

impl From<ServerRequest> for Input {
    fn from(request: ServerRequest) -> Self {
        Self::Servers(request)
    }
}
