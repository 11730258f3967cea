//! One typed fact that became true. A change sets or removes one row of the state, whole; two are
//! about very many at once.
//!
//! **Invariant:** the state is the sum of its changes. Store, timers and watchers learn what
//! happened in no other way, and a state rebuilt from the rows of a checkpoint equals the state
//! that wrote them.
//!
//! **Invariant:** no change holds a change, or a peer could nest them until the stack of its reader
//! overflows.

use crate::id::{AgentNumber, CheckId, Fence, Key, LogIndex, NodeName, ServerId, ServiceId, SessionId};
use crate::lease::LeaseKey;
use crate::record::{
    Agent, Autopilot, Check, Entry, LockDelay, Loss, LossCause, Node, Server, Service, Session, Waiter,
};
use crate::reply::Applied;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// One row's new content; `None` where the row is gone. Stored: variants are only appended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// A key.
    Entry(Key, Option<Arc<Entry>>),
    /// A session.
    Session(SessionId, Option<Arc<Session>>),
    /// A node, under its folded name.
    Node(NodeName, Option<Arc<Node>>),
    /// A service, under its node's folded name and its own folded id.
    Service(NodeName, ServiceId, Option<Arc<Service>>),
    /// A check, under its node's folded name and its own folded id.
    Check(NodeName, CheckId, Option<Arc<Check>>),
    /// A tombstone with the index of the delete; the key may be a prefix.
    Tombstone(Key, Option<LogIndex>),
    /// A lock-delay.
    LockDelay(Key, Option<LockDelay>),
    /// A position in a key's queue, by its queue position.
    Waiter(Key, LogIndex, Option<Arc<Waiter>>),
    /// An agent's registration.
    Agent(AgentNumber, Option<Arc<Agent>>),
    /// A kept reply: agent, sequence.
    Reply(AgentNumber, u64, Option<Arc<Applied>>),
    /// The sequence below which an agent's commands are refused, since their replies are forgotten.
    LowestSequence(AgentNumber, u64),
    /// A line of the loss history, by its number; the oldest goes when a new one comes.
    Loss(u64, Option<Arc<Loss>>),
    /// The last index that changed a node or one of its services, under the node's folded name.
    NodeIndex(NodeName, Option<LogIndex>),
    /// The last index that changed a table.
    TableIndex(Table, LogIndex),
    /// The fencing token given last.
    Fence(Fence),
    /// The number given to an agent last.
    LastAgent(AgentNumber),
    /// What is added to a log index to make the index that clients see; raised by a restore.
    IndexBase(u64),
    /// The cluster's id.
    ClusterId(String),
    /// A server of the quorum.
    Server(ServerId, Option<Arc<Server>>),
    /// The id given to a server last.
    LastServer(ServerId),
    /// How the leader looks after the servers, and the index at which somebody said so.
    Autopilot(Autopilot, LogIndex),
    /// A part of a restore that is being gathered: id, number, and its rows as bytes that only the
    /// state reads.
    RestorePart(u64, u32, Option<Bytes>),
    /// Everything that was there is gone; the changes that follow set every row anew.
    Cleared,
    /// Every key under a prefix is gone, and every tombstone under it: one change, however many
    /// they are.
    TreeDeleted(Key),
    /// The version of the format that the cluster is at; see [`crate::format`].
    Format(u8),
    /// The newest index of a tombstone that was forgotten.
    ForgottenTombstones(LogIndex),
    /// What the secrets of the cluster's leases are derived from. In no backup.
    LeaseKey(LeaseKey),
    /// The number of the gossip key that is in use. In no backup.
    GossipKey(u32),
}

impl Change {
    /// The oldest version of the [`format`](crate::format) that can hold it.
    pub fn since(&self) -> u8 {
        match self {
            Self::Loss(_, Some(loss)) => match loss.cause {
                LossCause::GivenUp { .. } => 2,
                LossCause::KeyDeleted => 3,
                _ => 1,
            },
            _ => 1,
        }
    }
}

/// The tables whose last change is remembered, for blocking queries. Stored: only appended to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Table {
    /// Entries.
    Entries,
    /// Tombstones.
    Tombstones,
    /// Sessions.
    Sessions,
    /// Nodes.
    Nodes,
    /// Services.
    Services,
    /// Checks.
    Checks,
    /// Deletions of nodes.
    NodeDeletions,
}
