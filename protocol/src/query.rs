//! What can be asked of the state, and the answers.

use crate::command::TxnOp;
use crate::id::{Fence, Key, LogIndex, NodeName, SessionId, WallTime};
use crate::record::{Agent, Check, CheckStatus, Entry, LockDelay, Loss, Node, Service, Session};
use crate::reply::{Reply, TxnError, TxnResult};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// A question. Its answer depends on the state alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Query {
    /// One key.
    Entry(Key),
    /// All keys under a prefix, with their entries.
    Entries(Key),
    /// The names under a prefix, each cut after the first separator that follows the prefix.
    Keys {
        /// The prefix; empty for all.
        prefix: Key,
        /// The separator; empty for none.
        separator: String,
    },
    /// One session.
    Session(SessionId),
    /// All sessions.
    Sessions,
    /// All sessions of a node.
    NodeSessions(NodeName),
    /// All nodes.
    Nodes,
    /// One node with its services.
    Node(NodeName),
    /// The checks of a node.
    NodeChecks(NodeName),
    /// The checks of a service.
    ServiceChecks(String),
    /// The checks in a state; `None` for all.
    ChecksInState(Option<CheckStatus>),
    /// The names and tags of all services.
    Services,
    /// The instances of a service with their nodes and checks.
    ServiceInstances(String),
    /// A transaction without a write.
    Txn(Vec<TxnOp>),
    /// Who holds what under a prefix, and what is closed by a delay.
    Locks(Key),
    /// The loss history, newest first.
    Losses,
    /// The agents that registered.
    Agents,
    /// What became of a position in a key's queue. Its index exceeds the queue position as soon as
    /// the position is given up or granted, which nothing undoes: any server that has applied the
    /// queue position may answer.
    QueuePosition {
        /// Which key.
        key: Key,
        /// Who waits, or waited.
        session: SessionId,
        /// Its position.
        queue_position: LogIndex,
        /// The index of the request that is asked about.
        enqueued_at_index: LogIndex,
    },
    /// The number of the gossip key that is in use; never the key.
    GossipKey,
}

/// How fresh an answer must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Consistency {
    /// The leader's, after it made sure that it is the leader.
    #[default]
    Default,
    /// The same; clients that say so are held to it even if the default becomes weaker.
    Consistent,
    /// Any server's, of any age.
    Stale,
}

/// Wait until the answer's index exceeds this, but not for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocking {
    /// The index that the caller knows.
    pub index: LogIndex,
    /// How long to wait at most; not at all where it is zero: then the caller is told what there
    /// is, with an index that lies before its own only where that is none of this state.
    pub wait: Duration,
}

impl Blocking {
    /// Whether the caller waits.
    pub fn waits(&self) -> bool {
        !self.wait.is_zero()
    }
}

/// An answer with what the caller needs to judge it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The query's index, 0 where nothing was ever written: see [`Blocking`].
    pub index: LogIndex,
    /// What was asked for.
    pub rows: Rows,
    /// Whether the server that answered knows a leader.
    pub known_leader: bool,
    /// How long ago it heard from that leader; zero from the leader itself.
    pub last_contact: Duration,
}

/// What was asked for. Orders are ascending by key, id or name unless said otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rows {
    /// Entries.
    Entries(Vec<Arc<Entry>>),
    /// Names, cut and without duplicates.
    Keys(Vec<String>),
    /// Sessions.
    Sessions(Vec<Arc<Session>>),
    /// Nodes.
    Nodes(Vec<Arc<Node>>),
    /// A node with its services.
    Node(Option<(Arc<Node>, Vec<Arc<Service>>)>),
    /// Checks.
    Checks(Vec<Arc<Check>>),
    /// Services by name, each with its tags.
    Services(Vec<(String, Vec<String>)>),
    /// Instances of a service.
    Instances(Vec<Instance>),
    /// A read-only transaction's results, or its errors.
    Txn(Result<Vec<TxnResult>, Vec<TxnError>>),
    /// Locks.
    Locks(Vec<LockInfo>),
    /// Losses.
    Losses(Vec<Arc<Loss>>),
    /// Agents.
    Agents(Vec<Arc<Agent>>),
    /// What an acquire would have answered in that position; [`Reply::Queued`] as long as it is
    /// kept.
    QueuePosition(Reply),
    /// The number of a gossip key.
    GossipKey(u32),
}

/// An instance of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// Where it runs.
    pub node: Arc<Node>,
    /// What it is.
    pub service: Arc<Service>,
    /// The node's checks and its own.
    pub checks: Vec<Arc<Check>>,
}

/// A lock that is held, or closed by a delay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockInfo {
    /// Which key.
    pub key: Key,
    /// Who holds it.
    pub session: Option<Arc<Session>>,
    /// The token of the grant.
    pub fence: Fence,
    /// When that grant was made; zero where there is no entry.
    pub granted_at: WallTime,
    /// How often it was granted in the entry's life.
    pub lock_index: u64,
    /// The index of its entry's last change; 0 where there is no entry.
    pub modify_index: LogIndex,
    /// The delay that closes it.
    pub delay: Option<LockDelay>,
    /// How many sessions wait for it.
    pub waiters: u64,
}
