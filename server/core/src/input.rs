//! Everything that can happen to a server: a closed list.

use crate::raft::message::PeerMessage;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{RequestId, ServerId, SessionId};
use lockmesh_protocol::query::Consistency;

/// Which waiting asker an answer belongs to; given by the shell, opaque to the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What happened.
#[derive(Debug)]
pub enum Input {
    /// Time went on. The shell sends one every [`crate::raft::TICK`], late ones too, but never two for one.
    Tick,
    /// Another server said something; the shell has bound the sender to its certificate.
    Peer(ServerId, PeerMessage),
    /// Somebody wants the state changed.
    Propose(Ticket, Option<RequestId>, Command),
    /// Somebody wants to read; answered by a [`Outbox::readable`] ticket when the state may be looked at.
    Read(Ticket, Consistency),
    /// Somebody keeps a session alive.
    Renew(Ticket, SessionId),
    /// Every log write up to this number is on disk.
    Persisted(u64),
    /// An operator wants another leader; any that can where none is named.
    TransferLeader(Ticket, Option<ServerId>),
    /// An operator wants a server out of the quorum.
    RemoveServer(Ticket, ServerId),
}
