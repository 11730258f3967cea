//! The nouns that the replicated state holds. Every one is a row of the checkpoint on disk, so none
//! of them changes but with the version of its [`format`](crate::format).

use crate::id::{
    AgentNumber, CellNumber, CheckId, Fence, Generation, Key, LogIndex, NodeName, ServerId, ServiceId,
    SessionId, WallTime,
};
use crate::lease::{HealthWindow, LeaseId};
use bytes::Bytes;
use core::net::SocketAddr;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// One key with its value and its lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name.
    pub key: Key,
    /// Its value; empty and absent are the same thing.
    pub value: Bytes,
    /// A number that belongs to the client.
    pub flags: u64,
    /// Its lock; kept by plain writes.
    pub lock: Lock,
    /// The log index that created this entry.
    pub create_index: LogIndex,
    /// The log index that changed it last.
    pub modify_index: LogIndex,
}

/// The lock of an entry: who holds it, and the grant that stands, or stood last. That of a new
/// entry is the default.
///
/// A plain write keeps all of it, the index included: that is what a holder's sequencer is made of,
/// and nobody but a new holder may change it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// Who holds it.
    pub session: Option<SessionId>,
    /// Consul's `LockIndex`: how often the lock was granted in the entry's life.
    pub index: u64,
    /// The fencing token of the grant.
    pub fence: Fence,
    /// When that grant was made.
    pub granted_at: WallTime,
    /// The waiting acquire that this grant answers, by its log index. None for a grant that nobody
    /// waited for, and as soon as the holder acquires again: then somebody knows of the hold, and
    /// it no longer goes with that request.
    pub granted_for: Option<LogIndex>,
}

impl Lock {
    /// The lock once its holder has given it back, or has lost it.
    #[must_use]
    pub fn freed(self) -> Self {
        // The index stays: the next holder's must be larger, or old sequencers would fit again.
        Self { session: None, granted_for: None, ..self }
    }
}

/// What happens to a session's keys when the session ends. Stored: only appended to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Behavior {
    /// The locks are released, the entries stay.
    #[default]
    Release,
    /// The entries are deleted.
    Delete,
}

/// A health check of a service, as a session names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceCheck {
    /// The check's id on the session's node.
    pub id: CheckId,
    /// Carried for clients that send it; it has no meaning here.
    pub namespace: String,
}

/// The check that says whether a node's agent lives.
pub const SERF_HEALTH: &str = "serfHealth";

/// A session as its creator wants it; the agent has resolved defaults and checked limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSpec {
    /// A fresh random id. One that is in use is refused, and the agent draws another.
    pub id: SessionId,
    /// A name for people; not unique.
    pub name: String,
    /// The node that it dies with; compared without regard to case.
    pub node: NodeName,
    /// How long its keys stay closed after an invalidation, as given: clamped to 60 s when used.
    pub lock_delay: Duration,
    /// What happens to its keys at its end.
    pub behavior: Behavior,
    /// The TTL exactly as the client wrote it, such as `15.0s`; empty for none.
    pub ttl_text: String,
    /// The TTL's length; never zero.
    pub ttl: Option<Duration>,
    /// The deprecated list of checks, where a client named its own.
    pub checks: Vec<CheckId>,
    /// Checks of the node that it depends on.
    pub node_checks: Vec<CheckId>,
    /// Checks of services that it depends on.
    pub service_checks: Option<Vec<ServiceCheck>>,
    /// How long its node may stay silent, where it depends on the node's `serfHealth`.
    pub health_window: HealthWindow,
}

impl SessionSpec {
    /// A session that ends with its node by the default window, and of which nothing more is said.
    pub fn of(id: SessionId, node: NodeName) -> Self {
        Self {
            id,
            name: String::new(),
            node,
            lock_delay: Duration::ZERO,
            behavior: Behavior::Release,
            ttl_text: String::new(),
            ttl: None,
            checks: Vec::new(),
            node_checks: vec![SERF_HEALTH.into()],
            service_checks: None,
            health_window: HealthWindow::Default,
        }
    }

    /// Every check that the session depends on, in the order: checks, node checks, service checks.
    pub fn all_checks(&self) -> impl Iterator<Item = &CheckId> {
        let service_checks = self.service_checks.iter().flatten().map(|check| &check.id);
        self.checks.iter().chain(&self.node_checks).chain(service_checks)
    }
}

/// A contract between a holder and the cluster: while it lives, its locks are held. It never
/// changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// What its creator wanted.
    pub spec: SessionSpec,
    /// When it was created.
    pub created_at: WallTime,
    /// The log index that created it.
    pub create_index: LogIndex,
}

/// A machine of the fleet, as the catalog knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its name as registered.
    pub name: NodeName,
    /// Its UUID in lower case; empty where nobody gave one.
    pub id: String,
    /// Its address, without a port.
    pub address: String,
    /// Its datacenter.
    pub datacenter: String,
    /// Addresses by tag (`lan`, `lan_ipv4`, `wan`, `wan_ipv4`, …).
    pub tagged_addresses: BTreeMap<String, String>,
    /// Words about it.
    pub meta: BTreeMap<String, String>,
    /// The log index that created it.
    pub create_index: LogIndex,
    /// The log index that changed it last.
    pub modify_index: LogIndex,
}

impl Node {
    /// A node of which nothing more is said, in the datacenter that there is by default.
    pub fn of(name: NodeName, id: String, address: &str) -> Self {
        Self {
            name,
            id,
            address: address.into(),
            datacenter: "dc1".into(),
            tagged_addresses: BTreeMap::new(),
            meta: BTreeMap::new(),
            create_index: LogIndex(0),
            modify_index: LogIndex(0),
        }
    }
}

/// How a check stands. Stored: only appended to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CheckStatus {
    /// All is well.
    Passing,
    /// Worth a look; ends no session.
    Warning,
    /// Ends every session that depends on the check.
    #[default]
    Critical,
}

impl CheckStatus {
    /// The word that clients use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passing => "passing",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }

    /// Reads the word that clients use.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Passing, Self::Warning, Self::Critical].into_iter().find(|status| status.as_str() == word)
    }
}

/// A health check of a node or of a service on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// The node that it is about.
    pub node: NodeName,
    /// Its id on that node.
    pub id: CheckId,
    /// Its name for people.
    pub name: String,
    /// How it stands.
    pub status: CheckStatus,
    /// Words about the check.
    pub notes: String,
    /// What it said last.
    pub output: String,
    /// The service that it is about; none for the node itself.
    pub service_id: Option<ServiceId>,
    /// That service's name, filled in by the state.
    pub service_name: String,
    /// That service's tags, filled in by the state.
    pub service_tags: Vec<String>,
    /// Its kind, such as `ttl`; empty where nobody said.
    pub kind: String,
    /// How often it runs, in Go's notation.
    pub interval: String,
    /// How long a run may take, in Go's notation.
    pub timeout: String,
    /// Carried for clients; it has no meaning here.
    pub exposed_port: u16,
    /// The definition as compact JSON; `{}` or empty where there is none. Opaque to servers.
    pub definition: String,
    /// The log index that created it.
    pub create_index: LogIndex,
    /// The log index that changed it last.
    pub modify_index: LogIndex,
}

impl Check {
    /// A check of a node of which nothing more is said; it is called as its id is.
    pub fn of(node: NodeName, id: CheckId, status: CheckStatus) -> Self {
        Self {
            node,
            name: id.to_string(),
            id,
            status,
            notes: String::new(),
            output: String::new(),
            service_id: None,
            service_name: String::new(),
            service_tags: Vec::new(),
            kind: String::new(),
            interval: String::new(),
            timeout: String::new(),
            exposed_port: 0,
            definition: String::new(),
            create_index: LogIndex(0),
            modify_index: LogIndex(0),
        }
    }
}

/// Where a service can be reached under a tag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceAddress {
    /// Host name or address.
    pub address: String,
    /// Port.
    pub port: u16,
}

/// A service on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// The node that it runs on.
    pub node: NodeName,
    /// Its id on that node.
    pub id: ServiceId,
    /// Its name, shared by its instances.
    pub name: String,
    /// Its tags.
    pub tags: Vec<String>,
    /// Its address; empty for the node's.
    pub address: String,
    /// Addresses by tag.
    pub tagged_addresses: BTreeMap<String, ServiceAddress>,
    /// Words about it.
    pub meta: BTreeMap<String, String>,
    /// Its port.
    pub port: u16,
    /// Weight while passing, and while warning.
    pub weights: (u32, u32),
    /// Whether others may change its tags.
    pub enable_tag_override: bool,
    /// The log index that created it.
    pub create_index: LogIndex,
    /// The log index that changed it last.
    pub modify_index: LogIndex,
}

/// What an agent's lease hangs on: one process on one boot of one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incarnation {
    /// Drawn when the process started.
    pub process: [u8; 16],
    /// The kernel's boot id.
    pub boot: [u8; 16],
    /// The fingerprint of the agent's certificate.
    pub certificate: [u8; 32],
}

impl Incarnation {
    /// Whether both are processes of one boot of one host: sessions outlive the change from one to
    /// the other.
    pub fn is_same_host(&self, other: &Self) -> bool {
        self.boot == other.boot && self.certificate == other.certificate
    }
}

/// How a member of the cluster stands. Stored: only appended to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberStatus {
    /// It lives, as far as the servers know.
    Alive,
    /// It said that it stops for a moment: it may be silent for longer, once.
    Restarting,
    /// It left, or was made to.
    Left,
    /// A majority of the servers did not hear from it for its window.
    Failed,
}

/// An agent that registered, a member of the cluster: who it is, in which of its lives, and how it
/// stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    /// Its number, for life.
    pub number: AgentNumber,
    /// Its present life.
    pub generation: Generation,
    /// The node that it speaks for.
    pub node: NodeName,
    /// That node's UUID: an agent is the same one if this is the same.
    pub node_id: String,
    /// The port at which servers ask it whether it lives; 0 where it listens at none.
    pub port: u16,
    /// Where its datagrams of the mesh are received; none where it is not in the mesh.
    pub gossip: Option<SocketAddr>,
    /// The cell of the mesh that it is in; of one that left, the one that it was in.
    pub cell: CellNumber,
    /// The version of the program that it runs.
    pub version: String,
    /// The process that registered.
    pub incarnation: Incarnation,
    /// The index at which its lease began.
    pub lease_began: LogIndex,
    /// Sessions that were made before this index are of a host that was there before this one: they
    /// end when its lease would have.
    pub former_sessions_until: Option<LogIndex>,
    /// The index at which it announced a restart, until the time of that is over: guards on its
    /// host believe in its sessions for as long, also in those of its next process, so none of them
    /// ends by its silence.
    pub restart_announced: Option<LogIndex>,
    /// How it stands.
    pub status: MemberStatus,
    /// Since when.
    pub status_since: WallTime,
    /// The address that it registered its node with; the catalog forgets the one of a node that
    /// left.
    pub address: String,
}

impl Agent {
    /// Its lease.
    pub fn lease(&self) -> LeaseId {
        LeaseId { agent: self.number, began: self.lease_began }
    }
}

/// A key that nobody may acquire for a while, because its holder's session was invalidated.
///
/// The state knows no time: the leader counts `duration` from when it applied `started_at_index`,
/// then commits the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockDelay {
    /// The log index of the invalidation; tells an old end from a new delay.
    pub started_at_index: LogIndex,
    /// How long, clamped to 60 s already.
    pub duration: Duration,
}

/// A session that waits for a lock: one position in a key's queue.
///
/// The state knows no time: the leader counts `wait` from when it applied `enqueued_at_index`, then
/// commits the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// Who waits, once in each queue.
    pub session: SessionId,
    /// What the grant writes.
    pub value: Bytes,
    /// The flags that it writes.
    pub flags: u64,
    /// How long it waits.
    pub wait: Duration,
    /// The log index of the request that asked last; tells an old end from a new wait.
    pub enqueued_at_index: LogIndex,
}

/// A server of the quorum, as its roster knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// Its Raft id, never given to another one.
    pub id: ServerId,
    /// Its node's name; its certificate names the same.
    pub node: NodeName,
    /// Its node's UUID.
    pub node_id: String,
    /// Where agents and other servers reach it, as `host:port`.
    pub address: String,
    /// A UUID drawn when its data folder was made: a server whose folder was emptied is another
    /// one.
    pub instance_id: String,
    /// The newest format that its build reads.
    pub format: u8,
}

/// A server that wants to belong to the quorum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewServer {
    /// See [`Server`], as for all fields that follow.
    pub node: NodeName,
    /// Its node's UUID.
    pub node_id: String,
    /// Where it is reached.
    pub address: String,
    /// When it asks again, it says the same and gets the same id.
    pub instance_id: String,
    /// The newest format that its build reads.
    pub format: u8,
}

impl NewServer {
    /// The roster's row of this server under the id that it was given.
    pub fn with_id(&self, id: ServerId) -> Server {
        let Self { node, node_id, address, instance_id, format } = self.clone();
        Server { id, node, node_id, address, instance_id, format }
    }
}

/// How the leader looks after the quorum's servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Autopilot {
    /// Whether a server that is dead is taken out once another one has come in its place.
    pub cleanup_dead_servers: bool,
    /// A server that was not heard for so long is unhealthy.
    pub last_contact_threshold: Duration,
    /// A server whose log lags by more entries than this is unhealthy.
    pub max_trailing_logs: u64,
    /// How long a new server must have been healthy before it gets its vote.
    pub server_stabilization_time: Duration,
    /// No server is taken out if fewer voters than this would remain; 0 for no such limit.
    pub min_quorum: u32,
}

impl Default for Autopilot {
    fn default() -> Self {
        Self {
            cleanup_dead_servers: true,
            last_contact_threshold: Duration::from_millis(200),
            max_trailing_logs: 250,
            server_stabilization_time: Duration::from_secs(1),
            min_quorum: 0,
        }
    }
}

/// What ended a session. Stored: only appended to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LossCause {
    /// Somebody destroyed it.
    Destroyed,
    /// It was not renewed in time.
    TtlExpired,
    /// One of its checks turned critical.
    CheckCritical(CheckId),
    /// One of its checks was deregistered.
    CheckDeregistered(CheckId),
    /// Its node was deregistered.
    NodeDeregistered,
    /// A majority of the servers did not hear from its node.
    NodeFailed {
        /// For how long it may be silent.
        window: HealthWindow,
        /// The nodes of the servers that confirmed it.
        confirmed_by: Vec<NodeName>,
        /// How long before the verdict it was heard last, as the leader knows it.
        silent_for: Duration,
    },
    /// Its node's host is another one by now, or was started anew.
    HostReplaced,
    /// Its node left.
    NodeLeft,
    /// Somebody made its node leave.
    NodeForcedToLeave,
    /// Its node was failed for so long that it was forgotten.
    NodeReaped,
    /// Its guard gave it up, because no renewal was acknowledged for so long.
    GivenUp {
        /// The time since the last acknowledged renewal.
        silent_for: Duration,
    },
    /// A key was deleted while its session held it. The session lives.
    KeyDeleted,
}

/// Why a lock was lost: one line of the bounded loss history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// The log index of the loss.
    pub index: LogIndex,
    /// When it happened.
    pub at: WallTime,
    /// The session that ended.
    pub session: SessionId,
    /// Its name.
    pub session_name: String,
    /// The node that it was bound to.
    pub node: NodeName,
    /// Why it ended.
    pub cause: LossCause,
    /// The keys that it held, with the fence of each; cut off after 64.
    pub keys: Vec<(Key, Fence)>,
    /// How many keys it held in all.
    pub key_count: u64,
}
