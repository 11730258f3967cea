//! The commands that change the replicated state, *including* expiry and the end of a lock-delay.
//!
//! A command contains everything that it needs: applying it uses neither a clock nor randomness.

use crate::acl::AclCommand;
use crate::deadlock::DeadlockPolicy;
use crate::id::{
    AgentNumber, CheckId, Key, LogIndex, NodeName, QueryId, ServerId, ServiceId, SessionId, Term,
};
use crate::lease::{HealthWindow, LeaseId, LeaseKey};
use crate::node_command::NodeCommand;
use crate::prepared_query::QuerySpec;
use crate::record::{
    Autopilot, Check, Coordinate, Incarnation, LockMode, NewServer, Node, ProcessBinding, RequestedLock,
    Server, Service, SessionSpec,
};
use bytes::Bytes;
use core::net::SocketAddr;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// One command of the replicated state machine. Stored: variants are only appended, see
/// [`crate::format`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Writes one key, or all keys under a prefix.
    Kv(KvCommand),
    /// Creates a session.
    CreateSession(SessionSpec),
    /// Ends a session on request. An unknown session is a success.
    DestroySession(SessionId),
    /// Runs several operations atomically.
    Txn(Vec<TxnOp>),
    /// Writes a node, a service and checks into the catalog.
    Register(Registration),
    /// Removes a node, a service or a check from the catalog.
    Deregister(Deregistration),
    /// Registers an agent after its start: its node is registered with `serfHealth` passing.
    RegisterAgent(AgentRegistration),
    /// Ends a session that was not renewed, as found by the leader of `term`. Does nothing in
    /// another term.
    ExpireSession {
        /// The session.
        session: SessionId,
        /// The term in which this was decided.
        term: Term,
        /// The index base at that time: a session that was restored since has not expired.
        base: u64,
    },
    /// Ends a lock-delay that has passed. Does nothing unless the index is the delay's own.
    EndLockDelay {
        /// The key.
        key: Key,
        /// The index at which the delay started.
        started_at_index: LogIndex,
        /// The index base at that time, as in [`Command::ExpireSession`].
        base: u64,
    },
    /// Ends a wait for a lock that has timed out. Does nothing unless the index is the wait's own.
    EndWait {
        /// The key.
        key: Key,
        /// The position in its queue.
        queue_position: LogIndex,
        /// The index of the wait, unique to it.
        enqueued_at_index: LogIndex,
    },
    /// Removes all tombstones up to an index.
    ReapTombstones {
        /// The last index to remove.
        up_to: LogIndex,
    },
    /// A step of restoring a backup; the last step changes the state atomically.
    Restore(RestoreStep),
    /// The first command of a cluster. Does nothing if the cluster already has an id.
    Bootstrap {
        /// The cluster's id, a UUID.
        cluster_id: String,
        /// Its first servers.
        servers: Vec<Server>,
        /// The key from which the secrets of its leases are derived.
        lease_key: LeaseKey,
    },
    /// Adds a server to the quorum: it gets a new id, or the id that it was assigned before.
    AdmitServer(NewServer),
    /// Updates a server of the roster.
    UpdateServer(Server),
    /// Removes a server that is no longer a member: its row is deleted, its id is never reused.
    ForgetServer(ServerId),
    /// Changes the autopilot configuration; with an index, only if it was not changed since.
    ConfigureAutopilot(Autopilot, Option<LogIndex>),
    /// Changes nothing: the servers compare their states at exactly this index.
    CorruptionCheck,
    /// Raises the cluster to this format version. Does nothing unless every server of the roster
    /// supports it.
    RaiseFormat(u8),
    /// Fails a node that a majority of the servers could not reach: its sessions of this window,
    /// and of shorter ones, end.
    FailNode(NodeFailure),
    /// Ends the windows of a host that preceded this lease. Does nothing in another term.
    EndFormerSessions {
        /// The current lease of the node.
        lease: LeaseId,
        /// Sessions with this window or a shorter one end.
        window: HealthWindow,
        /// The term in which this was decided.
        term: Term,
        /// The index base at that time, as in [`Command::ExpireSession`].
        base: u64,
    },
    /// Deregisters a node that leaves or is forced to leave; its sessions end.
    LeaveNode(NodeLeave),
    /// Announces a restart of an agent: nothing of its node fails before the announced time is
    /// over. The reply is `true` if the announcement is in effect; it is made once per
    /// registration.
    AnnounceRestart(LeaseId),
    /// Updates the catalog's data about these members from the roster.
    Reconcile {
        /// The members.
        members: Vec<AgentNumber>,
        /// Nodes with a `serfHealth` check but without an agent: they are deregistered.
        strangers: Vec<NodeName>,
    },
    /// Removes a member that has been failed for long, unless a session without checks exists on
    /// its node. Does nothing in another term.
    ReapMember {
        /// The failed lease.
        lease: LeaseId,
        /// The term in which this was decided.
        term: Term,
        /// The index base at that time.
        base: u64,
    },
    /// Ends an announced restart: its time is over, or the agent's next process says that no guard
    /// relies on it any more. Does nothing in another term, or if the agent has announced another
    /// restart since.
    EndRestart {
        /// The agent.
        agent: AgentNumber,
        /// The index of the announcement. An agent gives the beginning of its lease instead, and
        /// means the restart that was announced before; the leader fills in the rest.
        announced_at: LogIndex,
        /// The term in which this was decided.
        term: Term,
        /// The index base at that time.
        base: u64,
    },
    /// Rotates to the next gossip key, if this one is still in use: a repeated command has no
    /// further effect. The reply is the key in use afterwards.
    RotateGossipKey {
        /// The number of the key that the requester knows.
        from: u32,
    },
    /// Ends a session that its guard gave up, because no renewal was acknowledged for this time. An
    /// unknown session is a success.
    GiveUpSession {
        /// The session.
        session: SessionId,
        /// The time since the last acknowledged renewal.
        silent_for: Duration,
    },
    /// Stores the network coordinate of a node. An unknown node is a success, and nothing is
    /// stored.
    UpdateCoordinate {
        /// The node; case-insensitive.
        node: NodeName,
        /// Its coordinate.
        coordinate: Coordinate,
    },
    /// Writes a prepared query.
    PreparedQuery(QueryCommand),
    /// Creates a session that ends with a process of its node.
    CreateBoundSession(SessionSpec, ProcessBinding),
    /// Ends a session whose process has exited. An unknown session, or one without a process, is a
    /// success and stays.
    EndOfProcess(SessionId),
    /// Acquires one lock in any mode, or several at once: all or none. With a wait, the request
    /// gets a position in their queues: [`crate::reply::Reply::Queued`].
    AcquireLocks {
        /// The locks, ascending by key; no key is empty or twice in it.
        locks: Vec<RequestedLock>,
        /// The session.
        session: SessionId,
        /// The maximum time to wait; zero for a reply at once.
        wait: Duration,
    },
    /// Changes the reaction to requests that would close a circle of waits.
    ConfigureDeadlocks(DeadlockPolicy),
    /// Executes the command of a client without an operator's right. It is refused if it is about
    /// another agent's node.
    Restricted(NodeCommand),
    /// Sets the nodes whose agents may send operator requests; with none, every agent may.
    ConfigureOperatorHosts(BTreeSet<NodeName>),
    /// Changes the access control lists.
    Acl(AclCommand),
}

/// A verdict: a majority of the servers could not reach a node for a window. It does nothing in
/// another term, for another lease, or if the confirming servers are not a majority of the voters
/// at its index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFailure {
    /// The lease that was not renewed.
    pub lease: LeaseId,
    /// The expired window.
    pub window: HealthWindow,
    /// The servers that probed the node without a reply.
    pub confirmed_by: Vec<ServerId>,
    /// The time from the leader's last contact with the node to the verdict.
    pub silent_for: Duration,
    /// The term in which this was decided.
    pub term: Term,
    /// The index base at that time, as in [`Command::ExpireSession`].
    pub base: u64,
}

/// The departure of a node from the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLeave {
    /// The node.
    pub node: NodeName,
    /// The lease of an agent that leaves gracefully; `None` for a forced departure.
    pub lease: Option<LeaseId>,
    /// Set to remove the member at once, instead of showing it as left.
    pub prune: bool,
}

impl Command {
    /// Returns the format version that the cluster needs before this command is proposed: older
    /// servers cannot parse it.
    pub fn since(&self) -> u8 {
        match self {
            // Without a catch-all, so that no new command counts as one that older servers can
            // parse.
            Self::Kv(_)
            | Self::CreateSession(_)
            | Self::DestroySession(_)
            | Self::Txn(_)
            | Self::Register(_)
            | Self::Deregister(_)
            | Self::RegisterAgent(_)
            | Self::ExpireSession { .. }
            | Self::EndLockDelay { .. }
            | Self::EndWait { .. }
            | Self::ReapTombstones { .. }
            | Self::Bootstrap { .. }
            | Self::AdmitServer(_)
            | Self::UpdateServer(_)
            | Self::ForgetServer(_)
            | Self::ConfigureAutopilot(..)
            | Self::CorruptionCheck
            | Self::RaiseFormat(_)
            | Self::FailNode(_)
            | Self::EndFormerSessions { .. }
            | Self::LeaveNode(_)
            | Self::AnnounceRestart(_)
            | Self::Reconcile { .. }
            | Self::ReapMember { .. }
            | Self::EndRestart { .. }
            | Self::RotateGossipKey { .. } => 1,
            // Servers of older builds cannot parse newer rows of a backup either.
            Self::Restore(RestoreStep::Part { rows, .. }) => {
                rows.iter().map(crate::change::Change::since).max().unwrap_or(1)
            }
            Self::Restore(RestoreStep::Begin { .. } | RestoreStep::Commit { .. }) => 1,
            Self::GiveUpSession { .. } => 2,
            Self::UpdateCoordinate { .. } | Self::PreparedQuery(_) => 6,
            Self::CreateBoundSession(..) | Self::EndOfProcess(_) => 7,
            Self::AcquireLocks { .. } => 8,
            Self::ConfigureDeadlocks(_) => 9,
            Self::Restricted(_) | Self::ConfigureOperatorHosts(_) => 10,
            Self::Acl(_) => 11,
        }
    }
}

/// A write of a prepared query. Stored: only appended to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum QueryCommand {
    /// Creates a query under a new random id.
    Create(QueryId, Box<NewQuery>),
    /// Replaces a query.
    Update(QueryId, Box<NewQuery>),
    /// Deletes a query.
    Delete(QueryId),
}

/// The new content of a prepared query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewQuery {
    /// The description.
    pub spec: QuerySpec,
    /// The reason why its template is invalid, as found by the agent: libraries for regular
    /// expressions differ between versions, so the state cannot compile one. It is returned after
    /// the state's own reasons, as in Consul.
    pub template_error: Option<String>,
}

/// A write to the key-value store. The value is empty if the client sent none. Stored: only
/// appended to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KvCommand {
    /// Writes unconditionally.
    Set(NewEntry),
    /// Writes if the modify index matches; `None` requires that the key does not exist.
    Cas(NewEntry, Option<LogIndex>),
    /// Acquires the lock, or updates the value if the session already holds it.
    Acquire(NewEntry, SessionId),
    /// Acquires the lock, or a position in the key's queue: [`crate::reply::Reply::Queued`]. The
    /// command that releases the lock also grants it to the first waiter in the queue. A session
    /// that is already queued keeps its position.
    Enqueue {
        /// The data that the grant writes.
        new: NewEntry,
        /// The waiting session.
        session: SessionId,
        /// The maximum time to wait.
        wait: Duration,
    },
    /// Cancels the [`KvCommand::Enqueue`] at this index, whose caller no longer waits. Its position
    /// is removed, or the granted lock is released, unless the session has acquired it again since.
    /// The reply is [`crate::reply::Reply::Succeeded`] for a position, `true` if there was one, and
    /// `Done` for a lock.
    Leave {
        /// The key.
        key: Key,
        /// The session.
        session: SessionId,
        /// The index of the cancelled request.
        enqueued_at_index: LogIndex,
    },
    /// Releases the lock, or the session's position in its queue. The reply is `true` if it held
    /// the lock.
    Release(NewEntry, SessionId),
    /// Deletes one key.
    Delete(Key),
    /// Deletes one key if its modify index is this one; an absent key is a success.
    DeleteCas(Key, LogIndex),
    /// Deletes every key with this prefix.
    DeleteTree(Key),
    /// Times out the [`KvCommand::Enqueue`] at this index: its position is removed, if it still has
    /// one. A grant stays in effect. The reply is `true` if there was a position.
    StopWaiting {
        /// The key.
        key: Key,
        /// The waiting session.
        session: SessionId,
        /// The index of the request.
        enqueued_at_index: LogIndex,
    },
}

/// The data that a write stores in an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewEntry {
    /// The key.
    pub key: Key,
    /// Its new value.
    pub value: Bytes,
    /// Its new flags.
    pub flags: u64,
}

impl From<NewEntry> for RequestedLock {
    /// Returns the lock in exclusive mode.
    fn from(NewEntry { key, value, flags }: NewEntry) -> Self {
        Self { key, mode: LockMode::Exclusive, value, flags }
    }
}

/// One operation of a transaction. Stored: only appended to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TxnOp {
    /// An operation on a key.
    Kv(TxnKv),
    /// An operation on a node. `expected` is the modify index for `cas` and `delete-cas`.
    Node {
        /// The verb.
        verb: CatalogVerb,
        /// The node; looked up by id if it has one, otherwise by name.
        node: Node,
        /// The modify index for a conditional verb.
        expected: LogIndex,
    },
    /// An operation on a service; the service names its node.
    Service {
        /// The verb.
        verb: CatalogVerb,
        /// The service.
        service: Service,
        /// The modify index for a conditional verb.
        expected: LogIndex,
    },
    /// An operation on a check.
    Check {
        /// The verb.
        verb: CatalogVerb,
        /// The check.
        check: Check,
        /// The modify index for a conditional verb.
        expected: LogIndex,
    },
}

impl TxnOp {
    /// Returns `true` if the operation may change the state. A transaction without a write is a
    /// read.
    pub fn is_write(&self) -> bool {
        match self {
            Self::Kv(op) => op.verb.is_write(),
            Self::Node { verb, .. } | Self::Service { verb, .. } | Self::Check { verb, .. } => {
                *verb != CatalogVerb::Get
            }
        }
    }
}

/// An operation on a key inside a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TxnKv {
    /// The verb.
    pub verb: KvVerb,
    /// The key or prefix.
    pub key: Key,
    /// The value, for writes.
    pub value: Bytes,
    /// The flags, for writes.
    pub flags: u64,
    /// The modify index for conditional verbs.
    pub index: LogIndex,
    /// The session as sent by the client. A text that is not a [`SessionId`] refers to no session,
    /// and errors quote it.
    pub session: Option<String>,
}

/// The verbs for keys in a transaction. Stored: only appended to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KvVerb {
    /// Writes.
    Set,
    /// Writes if unchanged.
    Cas,
    /// Acquires the lock.
    Lock,
    /// Releases the lock.
    Unlock,
    /// Deletes a key.
    Delete,
    /// Deletes a prefix.
    DeleteTree,
    /// Deletes if unchanged.
    DeleteCas,
    /// Reads; an absent key fails.
    Get,
    /// Reads; an absent key returns an empty entry.
    GetOrEmpty,
    /// Reads a prefix.
    GetTree,
    /// Fails unless this session holds the key.
    CheckSession,
    /// Fails unless the modify index matches.
    CheckIndex,
    /// Fails if the key exists.
    CheckNotExists,
    /// An unknown verb; it fails as an operation, together with the others.
    Unknown(String),
}

impl KvVerb {
    /// All verbs with their names in the API.
    pub const WORDS: [(&'static str, KvVerb); 13] = [
        ("set", Self::Set),
        ("cas", Self::Cas),
        ("lock", Self::Lock),
        ("unlock", Self::Unlock),
        ("delete", Self::Delete),
        ("delete-tree", Self::DeleteTree),
        ("delete-cas", Self::DeleteCas),
        ("get", Self::Get),
        ("get-or-empty", Self::GetOrEmpty),
        ("get-tree", Self::GetTree),
        ("check-session", Self::CheckSession),
        ("check-index", Self::CheckIndex),
        ("check-not-exists", Self::CheckNotExists),
    ];

    /// Parses the API's name of a verb.
    pub fn parse(word: &str) -> Self {
        let known = Self::WORDS.into_iter().find(|(known, _)| *known == word);
        known.map_or_else(|| Self::Unknown(word.into()), |(_, verb)| verb)
    }

    /// Returns `true` if the verb may change the state. An unknown verb does not: it is always
    /// rejected.
    pub fn is_write(&self) -> bool {
        // The reads are listed: a verb that is missing counts as a write, which is only slower.
        !matches!(
            self,
            Self::Unknown(_)
                | Self::Get
                | Self::GetOrEmpty
                | Self::GetTree
                | Self::CheckSession
                | Self::CheckIndex
                | Self::CheckNotExists
        )
    }
}

/// The verbs for nodes, services and checks in a transaction. Stored: only appended to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CatalogVerb {
    /// Reads.
    Get,
    /// Writes.
    Set,
    /// Writes if unchanged.
    Cas,
    /// Deletes.
    Delete,
    /// Deletes if unchanged.
    DeleteCas,
    /// An unknown verb.
    Unknown(String),
}

impl CatalogVerb {
    /// Parses the API's name of a verb.
    pub fn parse(word: &str) -> Self {
        match word {
            "get" => Self::Get,
            "set" => Self::Set,
            "cas" => Self::Cas,
            "delete" => Self::Delete,
            "delete-cas" => Self::DeleteCas,
            other => Self::Unknown(other.into()),
        }
    }
}

/// The records that a catalog registration writes. Indexes inside the records are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// The node.
    pub node: Node,
    /// Set to create a missing node without changing an existing one.
    pub skip_node_update: bool,
    /// A service on it.
    pub service: Option<Service>,
    /// Checks on it; an empty node name in a check is replaced by this registration's node.
    pub checks: Vec<Check>,
}

/// The record that a catalog deregistration removes: a service, a check, or otherwise the whole
/// node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deregistration {
    /// The node.
    pub node: NodeName,
    /// The service to remove, with its checks.
    pub service: Option<ServiceId>,
    /// The check to remove.
    pub check: Option<CheckId>,
}

/// An agent's registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentRegistration {
    /// Its node, as stored in the catalog.
    pub node: Node,
    /// Services that belong to the node itself, such as `consul` on a server.
    pub services: Vec<Service>,
    /// The registering process: the same one keeps its lease.
    pub incarnation: Incarnation,
    /// The port for probes; 0 for none.
    pub port: u16,
    /// The address for its gossip datagrams; `None` if it is not in the mesh.
    pub gossip: Option<SocketAddr>,
    /// The program's version.
    pub version: String,
}

impl AgentRegistration {
    /// Returns the registration of an agent with only a node.
    pub fn of(node: Node) -> Self {
        let (incarnation, version) = (Incarnation::default(), String::new());
        Self { node, services: Vec::new(), incarnation, port: 0, gossip: None, version }
    }
}

/// A step of restoring a backup. Stored: only appended to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RestoreStep {
    /// Starts a restore; discards the parts of any other restore.
    Begin {
        /// The id of the restore.
        id: u64,
    },
    /// A part: encoded changes, at most 1 MiB.
    Part {
        /// The id of the restore.
        id: u64,
        /// Its number, from 0.
        number: u32,
        /// A sequence of [`crate::change::Change`] that sets every row.
        rows: Vec<crate::change::Change>,
    },
    /// Replaces the whole state with the collected rows.
    Commit {
        /// The id of the restore.
        id: u64,
        /// The expected number of parts.
        parts: u32,
    },
}
