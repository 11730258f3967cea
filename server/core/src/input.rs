//! Everything that can happen to a server: a closed list.

use crate::checksum::Checksum;
use crate::proposal::Proposal;
use crate::raft::log::SnapshotMeta;
use crate::raft::message::PeerMessage;
use crate::setback::LogPosition;
use crate::state::State;
use bytes::Bytes;
use lockmesh_protocol::given_up::NodeAnswer;
use lockmesh_protocol::id::{AgentNumber, LogIndex, ServerId, SessionId, WallTime};
use lockmesh_protocol::lease::{Challenge, LeaseId, Renewal};
use lockmesh_protocol::query::Consistency;

/// Which waiting caller an answer belongs to; given by the shell, opaque to the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallToken(pub u64);

/// Who waits for the answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseCaller {
    /// Somebody who called this server.
    Call(CallToken),
    /// Another server that relayed it, under this number of its own.
    Server(ServerId, u64),
}

/// What happened.
#[derive(Debug)]
pub enum Input {
    /// Time went on. The shell sends one every [`crate::raft::TICK`], late ones too, but
    /// never two for one; with it comes the wall clock, for people.
    Tick(WallTime),
    /// Between two ticks: what [`crate::Core::next_deadline`] told is due. Consensus does not
    /// notice.
    Deadline(WallTime),
    /// Another server said something; the shell has bound the sender to its certificate.
    Peer(ServerId, PeerMessage),
    /// The checkpoint that another server announced in this message was fetched, or a newer one of
    /// the same server: what it stands for, and the state that it holds.
    Install(ServerId, PeerMessage, SnapshotMeta, Box<State>),
    /// Another server remembers that this one had come so far.
    SetBack(ServerId, LogPosition),
    /// The shell lost what was on its way to a server.
    Unreachable(ServerId),
    /// Somebody wants the state changed.
    Propose(CallToken, Proposal),
    /// Somebody wants to read; answered by a [`Outbox::readable`] token when the state may be
    /// looked at.
    Read(CallToken, Consistency),
    /// Somebody keeps a session alive.
    Renew(CallToken, SessionId),
    /// An agent keeps the sessions of its node alive.
    RenewLease(CallToken, Renewal),
    /// An agent in the mesh, which has the first lease, has probed those with the others in vain.
    Accuse(CallToken, LeaseId, Vec<LeaseId>),
    /// This agent has fired a user event.
    Spread(CallToken, AgentNumber, Bytes),
    /// What a node answered that was to be asked whether it lives, see
    /// [`crate::Outbox::challenges`]; none where it could not be reached, or did not answer in
    /// time.
    Challenged(Challenge, Option<NodeAnswer>),
    /// What a node answered to an agent that was to ask it, see [`crate::Outbox::questions`].
    AgentAnswered(NodeAnswer),
    /// Every log write up to this number is on disk.
    Persisted(u64),
    /// This checkpoint of the state is on disk: the log behind it may be compacted.
    CheckpointDurable(SnapshotMeta),
    /// The checkpoint at the index of a corruption check is on disk, and this is its checksum.
    Summed(LogIndex, Checksum),
    /// An operator wants another leader; any that can where none is named.
    TransferLeader(CallToken, Option<ServerId>),
    /// A server of the roster shall follow; it gets its vote when it has caught up.
    AddServer(CallToken, ServerId),
    /// An operator wants a server out of the quorum.
    RemoveServer(CallToken, ServerId),
}
