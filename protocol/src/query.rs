//! Queries of the state, and their results.

use crate::acl::{AclSettings, AuthMethod, BindingRule, Policy, Rights, Role, Token};
use crate::command::{KvVerb, TxnOp};
use crate::deadlock::{Deadlock, DeadlockPolicy, LockWait};
use crate::id::{Fence, Key, LogIndex, NodeName, QueryId, SessionId, WallTime};
use crate::prepared_query::PreparedQuery;
use crate::record::{
    Agent, Check, CheckStatus, Coordinate, Entry, LockDelay, Loss, Node, ProcessBinding, Service, Session,
};
use crate::reply::{Reply, TxnError, TxnResult};
use crate::wire;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// A query. Its result depends only on the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Query {
    /// One key.
    Entry(Key),
    /// All keys under a prefix, with their entries.
    Entries(Key),
    /// The names under a prefix, each cut after the first separator after the prefix.
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
    /// The instances of a service with their nodes and checks; see [`Service::proxies_of`].
    ServiceInstances(String),
    /// A transaction without a write.
    Txn(Vec<TxnOp>),
    /// The lock holders under a prefix, and the keys blocked by a lock-delay.
    Locks(Key),
    /// The loss history, newest first.
    Losses,
    /// The registered agents.
    Agents,
    /// The outcome of a position in a key's queue. Its index exceeds the queue position once the
    /// position is removed or granted, which is final. Therefore any server that has applied the
    /// queue position may reply.
    QueuePosition {
        /// The key.
        key: Key,
        /// The session that waits or waited.
        session: SessionId,
        /// The queue position.
        queue_position: LogIndex,
        /// The index of the request in question.
        enqueued_at_index: LogIndex,
    },
    /// The number of the gossip key in use; never the key.
    GossipKey,
    /// The network coordinates of all nodes. Since
    /// [`Dialect::Fifth`](crate::dialect::Dialect::Fifth).
    Coordinates,
    /// All prepared queries, ordered by id. Since
    /// [`Dialect::Fifth`](crate::dialect::Dialect::Fifth), as are the next two.
    PreparedQueries,
    /// One prepared query.
    PreparedQuery(QueryId),
    /// The prepared query for a text: with this id, with this name, or else the template with the
    /// longest prefix of it.
    ResolvePreparedQuery(String),
    /// The newest grants of these locks. Since [`Dialect::Sixth`](crate::dialect::Dialect::Sixth).
    Grants(Vec<Key>),
    /// The sessions of a node that are bound to processes, with these. Since
    /// [`Dialect::Sixth`](crate::dialect::Dialect::Sixth).
    Bindings(NodeName),
    /// One key as [`Query::Entry`], but it names this session as the holder if it is any of the
    /// shared ones. The index also moves when its hold ends. Since
    /// [`Dialect::Seventh`](crate::dialect::Dialect::Seventh), as is the next one.
    HeldEntry {
        /// The key.
        key: Key,
        /// The session.
        session: SessionId,
    },
    /// The outcome of a request for several locks, as [`Query::QueuePosition`] is for one.
    RequestOutcome {
        /// Its keys.
        keys: Vec<Key>,
        /// The session that waits or waited.
        session: SessionId,
        /// The queue position.
        queue_position: LogIndex,
        /// The index of the request in question.
        enqueued_at_index: LogIndex,
    },
    /// The requests that wait for locks under a prefix, by queue position. Since
    /// [`Dialect::Eighth`](crate::dialect::Dialect::Eighth), as is the next one. Both are read at
    /// once; no index moves with them.
    Waits(Key),
    /// The policy for deadlocks, and those found.
    Deadlocks,
    /// The nodes whose agents may send operator requests. Since
    /// [`Dialect::Ninth`](crate::dialect::Dialect::Ninth).
    OperatorHosts,
    /// The settings of the access control lists. Since
    /// [`Dialect::Tenth`](crate::dialect::Dialect::Tenth), as are the next ones.
    AclSettings,
    /// The rights of the caller.
    Rights,
    /// The token of the caller.
    OwnToken,
    /// All tokens, or the one with this accessor id.
    Tokens(Option<String>),
    /// All policies, or the one with this id or name.
    Policies(Option<String>),
    /// All roles, or the one with this id or name.
    Roles(Option<String>),
    /// All auth methods, or the one with this name.
    AuthMethods(Option<String>),
    /// All binding rules, or the one with this id.
    BindingRules(Option<String>),
}

impl Query {
    /// Returns the keys of the queues in which its request waits or waited.
    pub fn queues(&self) -> &[Key] {
        match self {
            Self::QueuePosition { key, .. } => std::slice::from_ref(key),
            Self::RequestOutcome { keys, .. } => keys,
            _ => &[],
        }
    }

    /// Returns `true` if it shows the tables of the access control lists.
    pub fn is_of_acl_tables(&self) -> bool {
        matches!(
            self,
            Self::Tokens(_)
                | Self::Policies(_)
                | Self::Roles(_)
                | Self::AuthMethods(_)
                | Self::BindingRules(_)
        )
    }

    /// Returns `true` if the rows of the whole cluster may answer it, and not only those of one
    /// key, session or node.
    pub fn is_long(&self) -> bool {
        match self {
            Self::Entries(_)
            | Self::Keys { .. }
            | Self::Sessions
            | Self::Nodes
            | Self::ServiceChecks(_)
            | Self::ChecksInState(_)
            | Self::Services
            | Self::ServiceInstances(_)
            | Self::Locks(_)
            | Self::Losses
            | Self::Agents
            | Self::Coordinates
            | Self::PreparedQueries
            | Self::Waits(_)
            | Self::Tokens(_)
            | Self::Policies(_)
            | Self::Roles(_)
            | Self::BindingRules(_) => true,
            // The other operations read one row each, of a limited number.
            Self::Txn(ops) => ops.iter().any(|op| matches!(op, TxnOp::Kv(op) if op.verb == KvVerb::GetTree)),
            Self::Entry(_)
            | Self::Session(_)
            | Self::NodeSessions(_)
            | Self::Node(_)
            | Self::NodeChecks(_)
            | Self::QueuePosition { .. }
            | Self::GossipKey
            | Self::PreparedQuery(_)
            | Self::ResolvePreparedQuery(_)
            // One small row for each key of the request.
            | Self::Grants(_)
            | Self::Bindings(_)
            | Self::HeldEntry { .. }
            | Self::RequestOutcome { .. }
            | Self::Deadlocks
            | Self::OperatorHosts
            | Self::AclSettings
            | Self::AuthMethods(_)
            | Self::Rights
            | Self::OwnToken => false,
        }
    }
}

/// The consistency of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Consistency {
    /// From the leader, after it has confirmed its leadership.
    #[default]
    Default,
    /// The same; clients that request it keep it even if the default becomes weaker.
    Consistent,
    /// From any server, of any age.
    Stale,
}

/// A blocking query: waits until the result's index exceeds `index`, for at most `wait`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocking {
    /// The index that the caller knows.
    pub index: LogIndex,
    /// The maximum time to wait. With zero the current result is returned at once; its index is
    /// lower than the caller's only if the caller's does not belong to this state.
    pub wait: Duration,
}

impl Blocking {
    /// Returns `true` if the caller waits.
    pub fn waits(&self) -> bool {
        !self.wait.is_zero()
    }
}

/// A result with its consistency information.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The query's index; 0 if nothing was ever written: see [`Blocking`].
    pub index: LogIndex,
    /// The result.
    pub rows: Rows,
    /// Set if the server that replied knows a leader.
    pub known_leader: bool,
    /// The time since that server last had contact with the leader; zero on the leader itself.
    pub last_contact: Duration,
    /// Set if rows are left out to which the caller has no right. Sent as
    /// [`Response::FilteredAnswer`](crate::rpc::Response::FilteredAnswer).
    #[serde(skip)]
    pub is_filtered: bool,
}

/// The result of a query. In ascending order by key, id or name, unless noted otherwise.
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
    /// The result of the acquire at that position; [`Reply::Queued`] while it is still queued.
    QueuePosition(Reply),
    /// The number of a gossip key.
    GossipKey(u32),
    /// The coordinates of nodes, each with its node's name as registered.
    Coordinates(Vec<(NodeName, Arc<Coordinate>)>),
    /// Prepared queries.
    PreparedQueries(Vec<Arc<PreparedQuery>>),
    /// Grants, in the order of the requested keys.
    Grants(Vec<Grant>),
    /// Bound sessions.
    Bindings(Vec<(SessionId, ProcessBinding)>),
    /// Requests that wait.
    Waits(Vec<LockWait>),
    /// The policy for deadlocks and those found, with `true` for each that still exists.
    Deadlocks(DeadlockPolicy, Vec<(Arc<Deadlock>, bool)>),
    /// Nodes.
    OperatorHosts(Vec<NodeName>),
    /// Settings.
    AclSettings(AclSettings),
    /// Rights; `None` if requests are not judged.
    Rights(Option<Arc<Rights>>),
    /// Tokens, each with the names of its policies and roles.
    Tokens(Vec<(Arc<Token>, LinkNames)>),
    /// Policies.
    Policies(Vec<Arc<Policy>>),
    /// Roles, each with the names of its policies.
    Roles(Vec<(Arc<Role>, LinkNames)>),
    /// Auth methods.
    AuthMethods(Vec<Arc<AuthMethod>>),
    /// Binding rules.
    BindingRules(Vec<Arc<BindingRule>>),
}

/// The names of the policies and roles that a token or a role links, in the order of its links.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkNames {
    /// Names of policies.
    pub policies: Vec<String>,
    /// Names of roles.
    pub roles: Vec<String>,
}

impl Rows {
    /// Returns the number of rows of a list, and 1 for any other result.
    #[expect(clippy::len_without_is_empty, reason = "most results are no lists")]
    pub fn len(&self) -> usize {
        match self {
            Self::Entries(rows) => rows.len(),
            Self::Keys(rows) => rows.len(),
            Self::Sessions(rows) => rows.len(),
            Self::Nodes(rows) => rows.len(),
            Self::Checks(rows) => rows.len(),
            Self::Services(rows) => rows.len(),
            Self::Instances(rows) => rows.len(),
            Self::Locks(rows) => rows.len(),
            Self::Losses(rows) => rows.len(),
            Self::Agents(rows) => rows.len(),
            Self::Coordinates(rows) => rows.len(),
            Self::PreparedQueries(rows) => rows.len(),
            Self::Grants(rows) => rows.len(),
            Self::Bindings(rows) => rows.len(),
            Self::Waits(rows) => rows.len(),
            Self::Deadlocks(_, rows) => rows.len(),
            Self::OperatorHosts(rows) => rows.len(),
            Self::Tokens(rows) => rows.len(),
            Self::Policies(rows) => rows.len(),
            Self::Roles(rows) => rows.len(),
            Self::AuthMethods(rows) => rows.len(),
            Self::BindingRules(rows) => rows.len(),
            Self::Node(_)
            | Self::Txn(_)
            | Self::QueuePosition(_)
            | Self::GossipKey(_)
            | Self::AclSettings(_)
            | Self::Rights(_) => 1,
        }
    }

    /// Returns the rows behind the first `after`, up to about `bytes` in their encoded form but at
    /// least one, and the position of the rest, if any. Results that are no list are not divided.
    pub fn part(&self, after: usize, bytes: usize) -> (Self, Option<usize>) {
        fn part<T: Serialize + Clone>(
            rows: &[T],
            (after, bytes): (usize, usize),
            wrap: impl Fn(Vec<T>) -> Rows,
        ) -> (Rows, Option<usize>) {
            let rest = rows.get(after..).unwrap_or_default();
            let (mut encoded, mut count) = (Vec::new(), 0);
            // At least one row, however long: a part without rows would never end the list.
            while count < rest.len() && encoded.len() < bytes {
                wire::encode_into(&rest[count], &mut encoded);
                count += 1;
            }
            (wrap(rest[..count].to_vec()), (count < rest.len()).then_some(after + count))
        }
        let limits = (after, bytes);
        match self {
            Self::Entries(rows) => part(rows, limits, Self::Entries),
            Self::Keys(rows) => part(rows, limits, Self::Keys),
            Self::Sessions(rows) => part(rows, limits, Self::Sessions),
            Self::Nodes(rows) => part(rows, limits, Self::Nodes),
            Self::Node(Some((node, rows))) => {
                part(rows, limits, |services| Self::Node(Some((Arc::clone(node), services))))
            }
            Self::Checks(rows) => part(rows, limits, Self::Checks),
            Self::Services(rows) => part(rows, limits, Self::Services),
            Self::Instances(rows) => part(rows, limits, Self::Instances),
            Self::Locks(rows) => part(rows, limits, Self::Locks),
            Self::Losses(rows) => part(rows, limits, Self::Losses),
            Self::Agents(rows) => part(rows, limits, Self::Agents),
            Self::Coordinates(rows) => part(rows, limits, Self::Coordinates),
            Self::PreparedQueries(rows) => part(rows, limits, Self::PreparedQueries),
            Self::Grants(rows) => part(rows, limits, Self::Grants),
            Self::Bindings(rows) => part(rows, limits, Self::Bindings),
            Self::Waits(rows) => part(rows, limits, Self::Waits),
            Self::Deadlocks(policy, rows) => part(rows, limits, |rows| Self::Deadlocks(*policy, rows)),
            Self::OperatorHosts(rows) => part(rows, limits, Self::OperatorHosts),
            Self::Tokens(rows) => part(rows, limits, Self::Tokens),
            Self::Policies(rows) => part(rows, limits, Self::Policies),
            Self::Roles(rows) => part(rows, limits, Self::Roles),
            Self::AuthMethods(rows) => part(rows, limits, Self::AuthMethods),
            Self::BindingRules(rows) => part(rows, limits, Self::BindingRules),
            whole @ (Self::Node(None)
            | Self::Txn(_)
            | Self::QueuePosition(_)
            | Self::GossipKey(_)
            | Self::AclSettings(_)
            | Self::Rights(_)) => (whole.clone(), None),
        }
    }
}

/// An instance of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// The node.
    pub node: Arc<Node>,
    /// The service.
    pub service: Arc<Service>,
    /// The checks of both.
    pub checks: Vec<Arc<Check>>,
}

/// A lock that is held, or blocked by a lock-delay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockInfo {
    /// The key.
    pub key: Key,
    /// The session that holds it.
    pub session: Option<Arc<Session>>,
    /// The fencing token of the grant.
    pub fence: Fence,
    /// The time of the grant; zero if there is no entry.
    pub granted_at: WallTime,
    /// The number of grants since the entry was created.
    pub lock_index: u64,
    /// The index of its entry's last change; 0 if there is no entry.
    pub modify_index: LogIndex,
    /// The lock-delay that blocks it.
    pub delay: Option<LockDelay>,
    /// The number of waiting sessions.
    pub waiters: u64,
}

/// The newest grant of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Its fencing token; 0 if the key is absent or was never locked since its creation.
    pub fence: Fence,
    /// Set while the lock is held by that grant.
    pub is_held: bool,
}
