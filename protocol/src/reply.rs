//! Results of commands, and reasons to reject one.
//!
//! The three kinds of failure have different types. A [`Refusal`] is the state's deterministic
//! result and part of the reply; [`crate::rpc::Unavailable`] means that there is no result;
//! anything fatal stops the process.

use crate::acl::{AuthMethod, BindingRule, NoAccess, Policy, Role, Token};
use crate::id::{AgentNumber, CheckId, Fence, Generation, Key, LogIndex, NodeName, ServerId, SessionId};
use crate::lease::{LeaseId, LeaseSecret};
use crate::record::{Check, Entry, Node, Service};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// A reply with the log index of its command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// The command's log index: its position in the total order of all writes.
    pub index: LogIndex,
    /// The result.
    pub reply: Reply,
}

/// The result of a command. Stored: only appended to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done, without a value.
    Done,
    /// `true` if a conditional write took effect.
    Succeeded(bool),
    /// The session holds the lock, with this fencing token.
    Granted {
        /// The grant's token; unchanged when the holder acquires again.
        fence: Fence,
    },
    /// The lock is free but blocked by a lock-delay.
    Delayed {
        /// The remaining time, as known to the leader; otherwise the whole delay.
        remaining: Duration,
    },
    /// Another session holds the lock, or a lock-delay blocks it: the session is in the key's
    /// queue.
    Queued {
        /// Its queue position: the log index of its first request.
        queue_position: LogIndex,
    },
    /// A new session.
    Session(SessionId),
    /// The transaction took effect.
    Txn(Vec<TxnResult>),
    /// The transaction changed nothing, for these reasons.
    TxnFailed(Vec<TxnError>),
    /// An agent's registration.
    Agent {
        /// Its number.
        number: AgentNumber,
        /// Its generation.
        generation: Generation,
        /// Its lease, unchanged if the same process registers again.
        lease: LeaseId,
        /// The lease's secret.
        secret: LeaseSecret,
    },
    /// A server's id.
    Server(ServerId),
    /// The command was rejected and changed nothing.
    Refused(Refusal),
    /// The number of the gossip key in use.
    GossipKey(u32),
    /// The session holds several locks, with these fencing tokens, in the order of the request.
    GrantedAll(Vec<Fence>),
    /// A token as it is now.
    Token(Arc<Token>),
    /// A policy as it is now.
    Policy(Arc<Policy>),
    /// A role as it is now.
    Role(Arc<Role>),
    /// An auth method as it is now.
    AuthMethod(Arc<AuthMethod>),
    /// A binding rule as it is now.
    BindingRule(Arc<BindingRule>),
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

/// The reason why one operation of a transaction failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TxnError {
    /// The operation's position in the list, from 0.
    pub op_index: u32,
    /// Consul's error text.
    pub what: String,
}

/// The reason why a command was rejected. Clients see the text. Stored: only appended to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// There is no such session. A text that is not an id is represented by [`SessionId::NIL`].
    #[error("invalid session {0:?}")]
    InvalidSession(SessionId),
    /// The id is in use; generate another.
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
    #[error("the lock's queue is full ({0} sessions): retry later")]
    QueueFull(usize),
    /// An invalid catalog write, with Consul's text.
    #[error("{0}")]
    Catalog(String),
    /// A request id whose reply was discarded, or that belongs to an agent's earlier generation.
    #[error("this request was answered before and its answer was forgotten: send a new one")]
    Forgotten,
    /// A server that cannot be added to the roster, or is not in it.
    #[error("{0}")]
    Roster(String),
    /// A restore whose parts are inconsistent.
    #[error("the backup cannot be restored: {0}")]
    Restore(String),
    /// No member has this name.
    #[error("agent: No node found with name '{0}'")]
    UnknownMember(NodeName),
    /// An invalid write of a prepared query, with Consul's text.
    #[error("{0}")]
    PreparedQuery(String),
    /// A request for locks that could never be granted.
    #[error("{0}")]
    Lock(LockRefusal),
    /// A write about another agent's node, from a client without an operator's right.
    #[error(
        "Permission denied: {0:?} is another agent's node, so this needs an operator's right: send it on that host, or \
         with the right `all` on an agent's Unix socket"
    )]
    OtherNode(NodeName),
    /// An operator request through the agent of a node that is not an operator host.
    #[error(
        "Permission denied: {0:?} is not an operator host: send it on one of those that `lockmesh operator hosts` lists"
    )]
    NotOperatorHost(NodeName),
    /// The node has the maximum number of sessions.
    #[error("node {0:?} has {1} sessions, the maximum: end sessions that nothing needs, and retry")]
    TooManySessions(NodeName, usize),
    /// The caller has no right to the request.
    #[error("{0}")]
    NoAccess(NoAccess),
    /// An invalid change of the access control lists, with Consul's text.
    #[error("{0}")]
    Acl(String),
    /// A bootstrap that is no longer allowed, or a reset with a wrong index.
    #[error("{0}")]
    AclBootstrap(String),
}

/// The reason why a request for locks was rejected. Stored: only appended to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum LockRefusal {
    /// Two shared holders that wait for the exclusive lock would wait for each other.
    #[error("another shared holder of {0:?} waits for the exclusive lock: release the shared one first")]
    UpgradeWaits(Key),
    /// A shared holder asks for several locks, this one in exclusive mode.
    #[error("the session holds {0:?} in shared mode: release it before asking for several locks")]
    UpgradeOfSeveral(Key),
    /// The session waits for this lock in a request for other locks.
    #[error("the session waits for {0:?} with another request: end that one first")]
    WaitsAlready(Key),
    /// The request would close a circle of waits, and the cluster refuses such requests.
    #[error("{}", deadlock_in_words(*length, waits))]
    Deadlock {
        /// The number of sessions in the circle.
        length: u64,
        /// The first of them, each with the key that it waits for, or would wait for.
        waits: Vec<(SessionId, Key)>,
    },
}

fn deadlock_in_words(length: u64, waits: &[(SessionId, Key)]) -> String {
    let waits: Vec<String> = waits.iter().map(|(id, key)| format!("{id} waits for {key:?}")).collect();
    let more = if waits.len() as u64 == length { "" } else { ", …" };
    format!(
        "a deadlock of {length} sessions would begin: {}{more}: release a lock that others wait for, and ask again",
        waits.join(", ")
    )
}
