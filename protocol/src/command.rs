//! Everything that may change the replicated state, *including* expiry and the end of a delay.
//!
//! A command carries all that it needs: no clock and no random draw when it is applied.

use crate::id::{AgentNumber, CheckId, Key, LogIndex, NodeName, ServerId, ServiceId, SessionId, Term};
use crate::lease::{HealthWindow, LeaseId, LeaseKey};
use crate::record::{Autopilot, Check, Incarnation, NewServer, Node, Server, Service, SessionSpec};
use bytes::Bytes;
use core::net::SocketAddr;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// One step of the replicated state machine. Stored: variants are only appended, see
/// [`crate::format`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// A write to one key, or to all under a prefix.
    Kv(KvCommand),
    /// Makes a session.
    CreateSession(SessionSpec),
    /// Ends a session because somebody said so. An unknown one is a success.
    DestroySession(SessionId),
    /// Several operations, all or none.
    Txn(Vec<TxnOp>),
    /// Writes a node, a service and checks into the catalog.
    Register(Registration),
    /// Takes a node, a service or a check out of the catalog.
    Deregister(Deregistration),
    /// An agent begins a new life: its node is registered with `serfHealth` passing.
    RegisterAgent(AgentRegistration),
    /// The leader of `term` saw that the session was not renewed. Does nothing in another term.
    ExpireSession {
        /// Which session.
        session: SessionId,
        /// The term that decided it.
        term: Term,
        /// The index base at that time: what a restore brought back is not what was waited for.
        base: u64,
    },
    /// The leader waited a lock-delay out. Does nothing when the index is not the
    /// delay's own.
    EndLockDelay {
        /// Which key.
        key: Key,
        /// The delay that was waited out.
        started_at_index: LogIndex,
        /// The index base at that time, as in [`Command::ExpireSession`].
        base: u64,
    },
    /// The leader saw a wait for a lock come to its end. Does nothing when the index is not
    /// the wait's own.
    EndWait {
        /// Which key.
        key: Key,
        /// The position in its queue.
        queue_position: LogIndex,
        /// The wait that came to its end; no other one ever has the same.
        enqueued_at_index: LogIndex,
    },
    /// Forgets all tombstones up to an index.
    ReapTombstones {
        /// The last index that is forgotten.
        up_to: LogIndex,
    },
    /// A step of restoring a backup; the state changes at the last step, all at once.
    Restore(RestoreStep),
    /// The first command of a cluster's life. Does nothing when the cluster has an id.
    Bootstrap {
        /// The cluster's id, a UUID.
        cluster_id: String,
        /// Its first servers.
        servers: Vec<Server>,
        /// What the secrets of its leases are derived from.
        lease_key: LeaseKey,
    },
    /// A server comes to the quorum: it gets an id that none had before, or the one it was given
    /// already.
    AdmitServer(NewServer),
    /// A server of the roster moved.
    UpdateServer(Server),
    /// A server is no longer a member: its row goes, its id is never given again.
    ForgetServer(ServerId),
    /// Changes how the leader looks after the servers; with an index, only if nobody did since.
    ConfigureAutopilot(Autopilot, Option<LogIndex>),
    /// Changes nothing: the servers compare the states that they hold at exactly this index.
    CorruptionCheck,
    /// The cluster goes on to this version of the format. Does nothing unless every server of the
    /// roster reads it.
    RaiseFormat(u8),
    /// A majority of the servers did not hear from a node: its sessions of this window, and of
    /// shorter ones, end.
    FailNode(NodeFailure),
    /// The windows of a host that was there before this lease are over. Does nothing in another
    /// term.
    EndFormerSessions {
        /// The present lease of the node.
        lease: LeaseId,
        /// Sessions of this window and of shorter ones end.
        window: HealthWindow,
        /// The term that decided it.
        term: Term,
        /// The index base at that time, as in [`Command::ExpireSession`].
        base: u64,
    },
    /// A node leaves, or is made to: it is deregistered, and its sessions end.
    LeaveNode(NodeLeave),
    /// An agent stops for a moment, and comes back: nothing of its node fails before its time is
    /// over. Answered with whether that is so: it is announced once for each registration.
    AnnounceRestart(LeaseId),
    /// What the catalog says of these members is made what the roster says.
    Reconcile {
        /// Which members.
        members: Vec<AgentNumber>,
        /// Nodes with a `serfHealth` that no agent speaks for: they are deregistered.
        strangers: Vec<NodeName>,
    },
    /// A member that has been failed for long is forgotten, unless a session without checks lives
    /// on its node. Does nothing in another term.
    ReapMember {
        /// The lease that failed.
        lease: LeaseId,
        /// The term that decided it.
        term: Term,
        /// The index base at that time.
        base: u64,
    },
    /// The time of a restart that was announced is over. Does nothing in another term, or where the
    /// agent has announced another one since.
    EndRestart {
        /// Whose restart.
        agent: AgentNumber,
        /// The index of the announcement.
        announced_at: LogIndex,
        /// The term that decided it.
        term: Term,
        /// The index base at that time.
        base: u64,
    },
    /// The mesh goes on to the next gossip key, if this one is in use still: an order that is given
    /// twice is carried out once. Answered with the key that is in use then.
    RotateGossipKey {
        /// The number of the key that whoever orders it knows.
        from: u32,
    },
    /// Ends a session that its guard gave up, because no renewal was acknowledged for so long. An
    /// unknown one is a success.
    GiveUpSession {
        /// The session.
        session: SessionId,
        /// The time since the last acknowledged renewal.
        silent_for: Duration,
    },
}

/// A verdict: a majority of the servers did not hear from a node for a window. Does nothing in
/// another term, for another lease, or where those who confirm it are no majority of the voters of
/// its index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFailure {
    /// The lease that was not renewed.
    pub lease: LeaseId,
    /// The window that is over.
    pub window: HealthWindow,
    /// The servers that asked the node and heard nothing.
    pub confirmed_by: Vec<ServerId>,
    /// How long before the leader heard from it last.
    pub silent_for: Duration,
    /// The term that decided it.
    pub term: Term,
    /// The index base at that time, as in [`Command::ExpireSession`].
    pub base: u64,
}

/// A node leaves the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLeave {
    /// Which node.
    pub node: NodeName,
    /// The lease of the agent that leaves in order; none where somebody else makes it leave.
    pub lease: Option<LeaseId>,
    /// Whether the member is forgotten at once, instead of being shown as left.
    pub prune: bool,
}

impl Command {
    /// The version of the format that a cluster must be at before this command is proposed: whoever
    /// is behind could not read it.
    pub fn since(&self) -> u8 {
        match self {
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
            Self::Restore(RestoreStep::Part { rows, .. }) => {
                rows.iter().map(crate::change::Change::since).max().unwrap_or(1)
            }
            Self::Restore(RestoreStep::Begin { .. } | RestoreStep::Commit { .. }) => 1,
            Self::GiveUpSession { .. } => 2,
        }
    }
}

/// A write to the key-value store. The value is empty where the client sent none. Stored: only
/// appended to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KvCommand {
    /// Writes whatever is there.
    Set(NewEntry),
    /// Writes if the modify index is this one; none means that the key must be absent.
    Cas(NewEntry, Option<LogIndex>),
    /// Takes the lock, or updates the value if the session holds it already.
    Acquire(NewEntry, SessionId),
    /// Takes the lock, or a position in the key's queue: [`crate::reply::Reply::Queued`]. Whoever
    /// frees the lock grants it to the first in the queue by the same command. A session that is
    /// queued already keeps its position.
    Enqueue {
        /// What the grant writes.
        new: NewEntry,
        /// Who wants it.
        session: SessionId,
        /// How long it waits.
        wait: Duration,
    },
    /// Nobody waits any more for the answer to the [`KvCommand::Enqueue`] at this index: its
    /// position is given up, or the lock that it was granted given back, unless the session has
    /// acquired it again since. Answered with [`crate::reply::Reply::Succeeded`] for a position,
    /// true where there was one, and with `Done` for a lock.
    Leave {
        /// Which key.
        key: Key,
        /// Who waited.
        session: SessionId,
        /// The index of the request that nobody waits for.
        enqueued_at_index: LogIndex,
    },
    /// Gives the lock back, or the session's position in its queue. Answered with whether it held
    /// the lock.
    Release(NewEntry, SessionId),
    /// Deletes one key.
    Delete(Key),
    /// Deletes one key if its modify index is this one; an absent key is a success.
    DeleteCas(Key, LogIndex),
    /// Deletes every key that starts with this.
    DeleteTree(Key),
    /// The [`KvCommand::Enqueue`] at this index has waited long enough: its position is given up,
    /// if it has one still. What it was granted stays. Answered with whether there was one.
    StopWaiting {
        /// Which key.
        key: Key,
        /// Who waits.
        session: SessionId,
        /// The index of the request.
        enqueued_at_index: LogIndex,
    },
}

/// What a write puts into an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewEntry {
    /// Which key.
    pub key: Key,
    /// Its new value.
    pub value: Bytes,
    /// Its new flags.
    pub flags: u64,
}

/// One operation of a transaction. Stored: only appended to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TxnOp {
    /// On a key.
    Kv(TxnKv),
    /// On a node. `expected` is the modify index for `cas` and `delete-cas`.
    Node {
        /// What to do.
        verb: CatalogVerb,
        /// To which node; looked up by id if there is one, else by name.
        node: Node,
        /// The modify index that a conditional verb wants.
        expected: LogIndex,
    },
    /// On a service of a node (named inside the service).
    Service {
        /// What to do.
        verb: CatalogVerb,
        /// To which service.
        service: Service,
        /// The modify index that a conditional verb wants.
        expected: LogIndex,
    },
    /// On a check.
    Check {
        /// What to do.
        verb: CatalogVerb,
        /// To which check.
        check: Check,
        /// The modify index that a conditional verb wants.
        expected: LogIndex,
    },
}

impl TxnOp {
    /// Whether the operation may change anything. A transaction without a write is a read.
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
    /// What to do.
    pub verb: KvVerb,
    /// To which key (or prefix).
    pub key: Key,
    /// The value, for writes.
    pub value: Bytes,
    /// The flags, for writes.
    pub flags: u64,
    /// The modify index that conditional verbs want.
    pub index: LogIndex,
    /// The session, as the client wrote it: whatever is no [`SessionId`] names none, and errors
    /// repeat the text.
    pub session: Option<String>,
}

/// What a transaction can do with a key. Stored: only appended to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KvVerb {
    /// Writes.
    Set,
    /// Writes if unchanged.
    Cas,
    /// Takes the lock.
    Lock,
    /// Gives it back.
    Unlock,
    /// Deletes a key.
    Delete,
    /// Deletes a prefix.
    DeleteTree,
    /// Deletes if unchanged.
    DeleteCas,
    /// Reads; an absent key fails.
    Get,
    /// Reads; an absent key gives an empty entry.
    GetOrEmpty,
    /// Reads a prefix.
    GetTree,
    /// Fails unless this session holds the key.
    CheckSession,
    /// Fails unless the modify index is this one.
    CheckIndex,
    /// Fails if the key is there.
    CheckNotExists,
    /// A word that no one knows; it fails as an operation, together with the others.
    Unknown(String),
}

impl KvVerb {
    /// Every verb with the word that clients use.
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

    /// Reads the word that clients use.
    pub fn parse(word: &str) -> Self {
        let known = Self::WORDS.into_iter().find(|(known, _)| *known == word);
        known.map_or_else(|| Self::Unknown(word.into()), |(_, verb)| verb)
    }

    /// Whether the verb may change anything. An unknown one does not: it is refused wherever it is
    /// looked at.
    pub fn is_write(&self) -> bool {
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

/// What a transaction can do with a node, a service or a check. Stored: only appended to.
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
    /// A word that no one knows.
    Unknown(String),
}

impl CatalogVerb {
    /// Reads the word that clients use.
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

/// What a catalog registration writes. Indexes inside the records are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// The node.
    pub node: Node,
    /// Create the node if it is missing, but never alter it.
    pub skip_node_update: bool,
    /// A service on it.
    pub service: Option<Service>,
    /// Checks on it; a node name inside is replaced by this registration's where empty.
    pub checks: Vec<Check>,
}

/// What a catalog deregistration removes: a service, a check, or else the whole node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deregistration {
    /// On which node.
    pub node: NodeName,
    /// This service with its checks.
    pub service: Option<ServiceId>,
    /// This check.
    pub check: Option<CheckId>,
}

/// An agent's registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentRegistration {
    /// Its node as the catalog shall show it.
    pub node: Node,
    /// Services that belong to the node itself, such as `consul` on a server.
    pub services: Vec<Service>,
    /// The process that registers: the same one keeps its lease.
    pub incarnation: Incarnation,
    /// The port at which it is asked whether it lives; 0 for none.
    pub port: u16,
    /// Where its datagrams of the mesh are received; none where it is not in the mesh.
    pub gossip: Option<SocketAddr>,
    /// The version of the program that it runs.
    pub version: String,
}

impl AgentRegistration {
    /// That of an agent with nothing but its node.
    pub fn of(node: Node) -> Self {
        let (incarnation, version) = (Incarnation::default(), String::new());
        Self { node, services: Vec::new(), incarnation, port: 0, gossip: None, version }
    }
}

/// A step of restoring a backup. Stored: only appended to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RestoreStep {
    /// Begins; what another restore had gathered is dropped.
    Begin {
        /// Which restore.
        id: u64,
    },
    /// A part: encoded changes, at most 1 MiB.
    Part {
        /// Which restore.
        id: u64,
        /// Its number, from 0.
        number: u32,
        /// A sequence of [`crate::change::Change`] that sets every row.
        rows: Vec<crate::change::Change>,
    },
    /// Puts the gathered rows in the place of all that was there.
    Commit {
        /// Which restore.
        id: u64,
        /// How many parts there must be.
        parts: u32,
    },
}
