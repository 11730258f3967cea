//! What a command answers, and why it may refuse.
//!
//! Three families of bad news, told apart by type: a [`Refusal`] is the state's deterministic
//! answer and part of the reply; [`crate::rpc::Unavailable`] means that no answer could be had;
//! anything fatal stops the process.

use crate::id::{AgentNumber, CheckId, Fence, Generation, LogIndex, NodeName, ServerId, SessionId};
use crate::lease::{LeaseId, LeaseSecret};
use crate::record::{Check, Entry, Node, Service};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// A reply with the log index of its command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// The command's log index: where in the one order of all writes it took effect.
    pub index: LogIndex,
    /// What it answered.
    pub reply: Reply,
}

/// What a command answers. Stored: only appended to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done; there is nothing more to say.
    Done,
    /// Whether a conditional write took effect.
    Succeeded(bool),
    /// The lock is the session's, under this fencing token.
    Granted {
        /// The grant's token; the same again when the holder acquires again.
        fence: Fence,
    },
    /// The lock is free, but closed by a lock-delay.
    Delayed {
        /// How long still, as the leader knows it; the whole delay where it does not.
        remaining: Duration,
    },
    /// The lock is another session's, or closed: the session is in the key's queue.
    Queued {
        /// Its position there: the log index of the first request that asked for it.
        queue_position: LogIndex,
    },
    /// A new session.
    Session(SessionId),
    /// The transaction took effect.
    Txn(Vec<TxnResult>),
    /// The transaction changed nothing, for these reasons.
    TxnFailed(Vec<TxnError>),
    /// An agent's new life.
    Agent {
        /// Its number.
        number: AgentNumber,
        /// Its life.
        generation: Generation,
        /// Its lease: the same again where the same process registers again.
        lease: LeaseId,
        /// The lease's secret.
        secret: LeaseSecret,
    },
    /// A server's id.
    Server(ServerId),
    /// Nothing changed, for this reason.
    Refused(Refusal),
    /// The number of the gossip key that is in use.
    GossipKey(u32),
}

/// One element of a transaction's results. Stored: only appended to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TxnResult {
    /// An entry; its value is empty after a write.
    Kv(Arc<Entry>),
    /// A node.
    Node(Arc<Node>),
    /// A service.
    Service(Arc<Service>),
    /// A check.
    Check(Arc<Check>),
}

/// Why one operation of a transaction failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TxnError {
    /// The operation's position in the list, from 0.
    pub op_index: u32,
    /// In Consul's words.
    pub what: String,
}

/// Why a command was refused. The text is what a client sees. Stored: only appended to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// No such session. What a client wrote that is no id stands as [`SessionId::NIL`].
    #[error("invalid session {0:?}")]
    InvalidSession(SessionId),
    /// The id is in use; draw another.
    #[error("session id {0:?} is in use; draw another")]
    SessionIdInUse(SessionId),
    /// The session's node is not registered.
    #[error("Missing node registration")]
    MissingNode,
    /// The session's check is not registered on its node.
    #[error("Missing check '{0}' registration")]
    MissingCheck(CheckId),
    /// The session's check is critical.
    #[error("Check '{0}' is in critical state")]
    CriticalCheck(CheckId),
    /// The key's queue is full.
    #[error("{0} sessions wait for this lock already: try again later")]
    QueueFull(usize),
    /// A catalog write that cannot be made, in Consul's words.
    #[error("{0}")]
    Catalog(String),
    /// A request id that was answered and forgotten, or of an agent's earlier generation.
    #[error("this request was answered before and its answer was forgotten: send a new one")]
    Forgotten,
    /// A server that cannot be taken into the roster, or is not there.
    #[error("{0}")]
    Roster(String),
    /// A restore whose parts do not fit together.
    #[error("the backup cannot be restored: {0}")]
    Restore(String),
    /// No member has this name.
    #[error("agent: No node found with name '{0}'")]
    UnknownMember(NodeName),
}
