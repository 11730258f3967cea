//! The records of the replicated state. Each is a row of the checkpoint on disk, so it only changes
//! with the version of its [`format`](crate::format).

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

/// A key with its value and its lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// The value; empty and absent are equivalent.
    pub value: Bytes,
    /// An opaque number for clients.
    pub flags: u64,
    /// The lock; plain writes keep it.
    pub lock: Lock,
    /// The log index of its creation.
    pub create_index: LogIndex,
    /// The log index of its last change.
    pub modify_index: LogIndex,
}

/// The lock of an entry: its holder, and the current or last grant. A new entry has the default
/// lock.
///
/// A plain write keeps all of it, including the index: it is part of a holder's sequencer, and only
/// a new grant may change it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// The session that holds it.
    pub session: Option<SessionId>,
    /// Consul's `LockIndex`: the number of grants since the entry was created.
    pub index: u64,
    /// The fencing token of the grant.
    pub fence: Fence,
    /// The time of the grant.
    pub granted_at: WallTime,
    /// The log index of the waiting acquire that this grant answers. `None` for a grant without
    /// waiting, and once the holder acquires again: from then on the hold is known to its holder
    /// and independent of that request.
    pub granted_for: Option<LogIndex>,
}

impl Lock {
    /// Returns the lock after its release or loss.
    #[must_use]
    pub fn freed(self) -> Self {
        // The index stays: the next holder's must be larger, otherwise old sequencers would become
        // valid again.
        Self { session: None, granted_for: None, ..self }
    }
}

/// The mode of a lock. Stored: only appended to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LockMode {
    /// One holder.
    #[default]
    Exclusive,
    /// Any number of holders, all in this mode.
    Shared,
}

impl LockMode {
    /// Returns the API's name of the mode.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
        }
    }

    /// Parses the API's name of a mode.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Exclusive, Self::Shared].into_iter().find(|mode| mode.as_str() == word)
    }

    /// Returns `true` if a lock cannot be held in both modes at once.
    pub fn conflicts_with(self, other: Self) -> bool {
        self == Self::Exclusive || other == Self::Exclusive
    }
}

/// A holder of a lock in [shared mode](LockMode::Shared). The entry names the oldest one; all have
/// the fence of the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedHold {
    /// The log index of the grant.
    pub granted_index: LogIndex,
    /// Its position in the queue; 0 if it was granted at once, or is the first of its period.
    pub queue_position: LogIndex,
    /// The time of the grant.
    pub granted_at: WallTime,
    /// The log index of the waiting request that the grant answers, as in [`Lock::granted_for`].
    pub granted_for: Option<LogIndex>,
}

/// A lock of a request, and what its grant writes. A grant in shared mode writes no value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestedLock {
    /// The key.
    pub key: Key,
    /// The mode.
    pub mode: LockMode,
    /// The value.
    pub value: Bytes,
    /// An opaque number for clients.
    pub flags: u64,
}

impl SharedHold {
    /// Returns a number that is lower for older holders of a lock.
    pub fn age(&self) -> (LogIndex, LogIndex) {
        (self.granted_index, self.queue_position)
    }
}

/// The maximum number of locks of one request.
pub const MAX_REQUESTED_LOCKS: usize = 64;

/// A request that waits in the queues of its locks, with one position for all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRequest {
    /// The waiting session.
    pub session: SessionId,
    /// The locks, ascending by key, at least one; granted all at once.
    pub locks: Vec<RequestedLock>,
    /// The maximum time to wait.
    pub wait: Duration,
    /// The log index of the newest request for this position, unique to it.
    pub enqueued_at_index: LogIndex,
    /// The time of that request; 0 if a build before format 8 wrote it.
    pub enqueued_at: WallTime,
}

impl LockRequest {
    /// Returns the request for a lock, if it is one of its locks.
    pub fn of(&self, key: &Key) -> Option<&RequestedLock> {
        let found = self.locks.binary_search_by_key(&key, |lock| &lock.key).ok()?;
        self.locks.get(found)
    }

    /// Returns the mode in which it wants a lock.
    pub fn mode_of(&self, key: &Key) -> Option<LockMode> {
        self.of(key).map(|lock| lock.mode)
    }

    /// Returns the first of its keys.
    pub fn first_key(&self) -> &Key {
        &self.locks[0].key
    }
}

/// The treatment of a session's keys when the session ends. Stored: only appended to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Behavior {
    /// The locks are released, the entries stay.
    #[default]
    Release,
    /// The entries are deleted.
    Delete,
}

/// A health check of a service, as referenced by a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceCheck {
    /// The check's id on the session's node.
    pub id: CheckId,
    /// Stored for clients that send it; unused.
    pub namespace: String,
}

/// The id of the check for the health of a node's agent.
pub const SERF_HEALTH: &str = "serfHealth";

/// The specification of a session by its creator; the agent has resolved defaults and checked
/// limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSpec {
    /// A new random id. An id in use is rejected, and the agent generates another.
    pub id: SessionId,
    /// A human-readable name; not unique.
    pub name: String,
    /// The node whose failure ends it; case-insensitive.
    pub node: NodeName,
    /// The lock-delay of its keys after an invalidation, as specified; limited to 60 s when used.
    pub lock_delay: Duration,
    /// The treatment of its keys at its end.
    pub behavior: Behavior,
    /// The TTL exactly as sent by the client, such as `15.0s`; empty for none.
    pub ttl_text: String,
    /// The TTL; never zero.
    pub ttl: Option<Duration>,
    /// The deprecated list of checks, if a client sent one.
    pub checks: Vec<CheckId>,
    /// The node checks that it depends on.
    pub node_checks: Vec<CheckId>,
    /// The service checks that it depends on.
    pub service_checks: Option<Vec<ServiceCheck>>,
    /// The maximum outage of its node, if it depends on the node's `serfHealth`.
    pub health_window: HealthWindow,
}

impl SessionSpec {
    /// Returns a session that ends with its node by the default window, with defaults for
    /// everything else.
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

    /// Returns every check that the session depends on, in the order: checks, node checks, service
    /// checks.
    pub fn all_checks(&self) -> impl Iterator<Item = &CheckId> {
        let service_checks = self.service_checks.iter().flatten().map(|check| &check.id);
        self.checks.iter().chain(&self.node_checks).chain(service_checks)
    }
}

/// The process whose end ends a session, as the kernel of its host knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessBinding {
    /// Its id, as its host's agent sees it.
    pub pid: u32,
    /// Its start time in clock ticks since boot, as in `/proc/PID/stat`: it distinguishes the
    /// process from a later one with the same id.
    pub started_at: u64,
    /// The id of that boot.
    pub boot_id: [u8; 16],
    /// Set if the session's lock-delay follows the end of the process too, as its creator asked.
    pub keeps_lock_delay: bool,
}

/// A session: while it exists, its locks are held. It never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The specification by its creator.
    pub spec: SessionSpec,
    /// The time of its creation.
    pub created_at: WallTime,
    /// The log index of its creation.
    pub create_index: LogIndex,
}

/// A node of the catalog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its name as registered.
    pub name: NodeName,
    /// Its UUID in lower case; empty if unknown.
    pub id: String,
    /// Its address, without a port.
    pub address: String,
    /// Its datacenter.
    pub datacenter: String,
    /// Addresses by tag (`lan`, `lan_ipv4`, `wan`, `wan_ipv4`, …).
    pub tagged_addresses: BTreeMap<String, String>,
    /// Metadata.
    pub meta: BTreeMap<String, String>,
    /// The log index of its creation.
    pub create_index: LogIndex,
    /// The log index of its last change.
    pub modify_index: LogIndex,
}

impl Node {
    /// Returns a node in the default datacenter, with defaults for everything else.
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

/// The status of a check. Stored: only appended to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CheckStatus {
    /// The check succeeds.
    Passing,
    /// Needs attention; ends no session.
    Warning,
    /// Ends every session that depends on the check.
    #[default]
    Critical,
}

impl CheckStatus {
    /// Returns the API's name of the status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passing => "passing",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }

    /// Parses the API's name of a status.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Passing, Self::Warning, Self::Critical].into_iter().find(|status| status.as_str() == word)
    }
}

/// The id of the check that marks the whole node as in maintenance.
pub const NODE_MAINTENANCE: &str = "_node_maintenance";

/// The prefix of the id of the check that marks a service as in maintenance; the service's id
/// follows.
pub const SERVICE_MAINTENANCE: &str = "_service_maintenance:";

/// Returns `true` for the id of a check of maintenance: lower-case, except for the service in it.
pub fn is_maintenance(check: &str) -> bool {
    check == NODE_MAINTENANCE || check.starts_with(SERVICE_MAINTENANCE)
}

/// The health of a service: the worst of its checks and of its node's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aggregate {
    /// All checks pass; also without checks.
    #[default]
    Passing,
    /// A check is a warning.
    Warning,
    /// A check is critical.
    Critical,
    /// The service or the node is in maintenance.
    Maintenance,
}

impl Aggregate {
    /// Returns the worst of these checks, given by their ids and statuses.
    pub fn of<'a>(checks: impl IntoIterator<Item = (&'a str, CheckStatus)>) -> Self {
        let of_one = |(id, status)| match status {
            // As in Consul, such a check counts by its id and not by its status.
            _ if is_maintenance(id) => Self::Maintenance,
            CheckStatus::Passing => Self::Passing,
            CheckStatus::Warning => Self::Warning,
            CheckStatus::Critical => Self::Critical,
        };
        checks.into_iter().map(of_one).max().unwrap_or_default()
    }

    /// Returns the API's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passing => "passing",
            Self::Warning => "warning",
            Self::Critical => "critical",
            Self::Maintenance => "maintenance",
        }
    }
}

/// A health check of a node or of a service on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// The node that the check belongs to.
    pub node: NodeName,
    /// Its id on that node.
    pub id: CheckId,
    /// A human-readable name.
    pub name: String,
    /// Its status.
    pub status: CheckStatus,
    /// A description.
    pub notes: String,
    /// The last output.
    pub output: String,
    /// The service that the check belongs to; `None` for the node itself.
    pub service_id: Option<ServiceId>,
    /// That service's name, filled in by the state.
    pub service_name: String,
    /// That service's tags, filled in by the state.
    pub service_tags: Vec<String>,
    /// Its kind, such as `ttl`; empty if unspecified.
    pub kind: String,
    /// The interval between runs, in Go's notation.
    pub interval: String,
    /// The timeout of a run, in Go's notation.
    pub timeout: String,
    /// Stored for clients; unused.
    pub exposed_port: u16,
    /// The definition as compact JSON; `{}` or empty if there is none. Opaque to servers.
    pub definition: String,
    /// The log index of its creation.
    pub create_index: LogIndex,
    /// The log index of its last change.
    pub modify_index: LogIndex,
}

impl Check {
    /// Returns a check of a node, named like its id, with defaults for everything else.
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

/// The address of a service for a tag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceAddress {
    /// The host name or address.
    pub address: String,
    /// The port.
    pub port: u16,
}

/// The key of metadata that names the service behind a proxy. A control character is valid
/// in no key of Consul's metadata, so no client uses it.
pub const PROXY_OF: &str = "\u{0}proxy-of";

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
    /// Its address; empty for the node's address.
    pub address: String,
    /// Addresses by tag.
    pub tagged_addresses: BTreeMap<String, ServiceAddress>,
    /// Metadata.
    pub meta: BTreeMap<String, String>,
    /// Its port.
    pub port: u16,
    /// The weights while passing, and while warning.
    pub weights: (u32, u32),
    /// Set if other clients may change its tags.
    pub enable_tag_override: bool,
    /// The log index of its creation.
    pub create_index: LogIndex,
    /// The log index of its last change.
    pub modify_index: LogIndex,
}

impl Service {
    /// Returns the name under which the proxies of a service are found, in addition to their own.
    pub fn proxies_of(service: &str) -> String {
        format!("{PROXY_OF}:{service}")
    }

    /// Returns a service of a node, with defaults for everything else.
    pub fn of(node: NodeName, id: ServiceId, name: &str) -> Self {
        Self {
            node,
            id,
            name: name.into(),
            tags: Vec::new(),
            address: String::new(),
            tagged_addresses: BTreeMap::new(),
            meta: BTreeMap::new(),
            port: 0,
            // Consul's default.
            weights: (1, 1),
            enable_tag_override: false,
            create_index: LogIndex(0),
            modify_index: LogIndex(0),
        }
    }
}

/// The identity that an agent's lease is bound to: one process on one boot of one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incarnation {
    /// A random number generated when the process started.
    pub process: [u8; 16],
    /// The kernel's boot id.
    pub boot: [u8; 16],
    /// The fingerprint of the agent's certificate.
    pub certificate: [u8; 32],
}

impl Incarnation {
    /// Returns `true` if both are processes of the same boot of one host: sessions survive the
    /// change from one to the other.
    pub fn is_same_host(&self, other: &Self) -> bool {
        self.boot == other.boot && self.certificate == other.certificate
    }
}

/// A number that is neither infinite nor NaN, and zero only as positive zero: equal numbers have
/// equal bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Finite(f64);

// No value is NaN, so every value equals itself.
impl Eq for Finite {}

impl From<Finite> for f64 {
    fn from(number: Finite) -> Self {
        number.0
    }
}

/// The number is infinite or NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a number is infinite or not a number")]
pub struct NotFinite;

impl TryFrom<f64> for Finite {
    type Error = NotFinite;

    fn try_from(number: f64) -> Result<Self, NotFinite> {
        // The sum of negative and positive zero is positive.
        number.is_finite().then_some(Self(number + 0.0)).ok_or(NotFinite)
    }
}

/// The number of dimensions of a network coordinate.
pub const DIMENSIONS: usize = 8;

/// A node's position in the Vivaldi network coordinate system: the distance of two coordinates
/// estimates the round trip time of their nodes. In seconds, except for the error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coordinate {
    /// The position in Euclidean space.
    pub vec: [Finite; DIMENSIONS],
    /// The confidence in the position, without a unit.
    pub error: Finite,
    /// A correction of each distance, learned from recent observations.
    pub adjustment: Finite,
    /// The access delay of the node, part of each distance.
    pub height: Finite,
}

impl Default for Coordinate {
    /// Returns the coordinate of a node that has measured no distance yet, as in serf.
    fn default() -> Self {
        Self {
            vec: [Finite(0.0); DIMENSIONS],
            error: Finite(1.5),
            adjustment: Finite(0.0),
            height: Finite(1e-5),
        }
    }
}

impl Coordinate {
    /// Returns the estimated round trip time to another coordinate.
    pub fn distance_to(&self, other: &Self) -> Duration {
        let squares = self.vec.iter().zip(&other.vec).map(|(a, b)| (a.0 - b.0) * (a.0 - b.0));
        let raw = squares.sum::<f64>().sqrt() + self.height.0 + other.height.0;
        let adjusted = raw + self.adjustment.0 + other.adjustment.0;
        // As in serf: an adjustment must not make a distance negative.
        let seconds = if adjusted > 0.0 { adjusted } else { raw };
        // Only the order counts, so a distance beyond all limits is the longest one.
        Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
    }
}

/// The status of a member of the cluster. Stored: only appended to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberStatus {
    /// Alive, as far as the servers know.
    Alive,
    /// It announced a restart: it may be unreachable for longer, once.
    Restarting,
    /// It left, or was forced to leave.
    Left,
    /// A majority of the servers could not reach it for its window.
    Failed,
}

/// A registered agent, a member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    /// Its number, which never changes.
    pub number: AgentNumber,
    /// Its current generation.
    pub generation: Generation,
    /// Its node.
    pub node: NodeName,
    /// The node's UUID, which identifies the agent.
    pub node_id: String,
    /// The port for the servers' probes; 0 for none.
    pub port: u16,
    /// The address for its gossip datagrams; `None` if it is not in the mesh.
    pub gossip: Option<SocketAddr>,
    /// Its cell of the mesh; after its departure, its last one.
    pub cell: CellNumber,
    /// Its program version.
    pub version: String,
    /// The registered process.
    pub incarnation: Incarnation,
    /// The index of its lease's first registration.
    pub lease_began: LogIndex,
    /// The index before which its node's sessions belong to an earlier host: they end when that
    /// host's lease would have ended.
    pub former_sessions_until: Option<LogIndex>,
    /// The index of an announced restart, until its time is over. Guards on its host consider its
    /// sessions, including those of its next process, alive for that time, so an outage ends none
    /// of them.
    pub restart_announced: Option<LogIndex>,
    /// Its status.
    pub status: MemberStatus,
    /// The time of the last status change.
    pub status_since: WallTime,
    /// The address that it registered its node with; the catalog removes the address of a node that
    /// left.
    pub address: String,
}

impl Agent {
    /// Returns its lease.
    pub fn lease(&self) -> LeaseId {
        LeaseId { agent: self.number, began: self.lease_began }
    }
}

/// A lock-delay: a key that may not be acquired for a while, because its holder's session was
/// invalidated.
///
/// The state has no clock: the leader counts `duration` from when it applied `started_at_index`,
/// then commits the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockDelay {
    /// The log index of the invalidation; distinguishes an old end from a new delay.
    pub started_at_index: LogIndex,
    /// The duration, already limited to 60 s.
    pub duration: Duration,
}

/// A session that waits for a lock: one position in a key's queue.
///
/// The state has no clock: the leader counts `wait` from when it applied `enqueued_at_index`, then
/// commits the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// The waiting session, at most once per queue.
    pub session: SessionId,
    /// The value that the grant writes.
    pub value: Bytes,
    /// The flags that the grant writes.
    pub flags: u64,
    /// The maximum time to wait.
    pub wait: Duration,
    /// The log index of the latest request; distinguishes an old end from a new wait.
    pub enqueued_at_index: LogIndex,
}

/// A server of the quorum's roster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// Its Raft id, never reused.
    pub id: ServerId,
    /// Its node's name, which its certificate names too.
    pub node: NodeName,
    /// Its node's UUID.
    pub node_id: String,
    /// Its address for agents and other servers, as `host:port`.
    pub address: String,
    /// A UUID generated with its data folder: a server whose folder was emptied is another one.
    pub instance_id: String,
    /// The newest format that its build reads.
    pub format: u8,
}

/// A server that requests to join the quorum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewServer {
    /// See [`Server`], as for all fields that follow.
    pub node: NodeName,
    /// Its node's UUID.
    pub node_id: String,
    /// Its address.
    pub address: String,
    /// Its instance id: a repeated request with the same id is assigned the same Raft id.
    pub instance_id: String,
    /// The newest format that its build reads.
    pub format: u8,
}

impl NewServer {
    /// Returns the roster's row of this server with its assigned id.
    pub fn with_id(&self, id: ServerId) -> Server {
        let Self { node, node_id, address, instance_id, format } = self.clone();
        Server { id, node, node_id, address, instance_id, format }
    }
}

/// The autopilot configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Autopilot {
    /// Set to remove a dead server once a replacement has joined.
    pub cleanup_dead_servers: bool,
    /// The time without contact after which a server is unhealthy.
    pub last_contact_threshold: Duration,
    /// The maximum lag of a healthy server's log, in entries.
    pub max_trailing_logs: u64,
    /// The time that a new server must be healthy before it is promoted to voter.
    pub server_stabilization_time: Duration,
    /// The minimum number of voters that must remain when a server is removed; 0 for no limit.
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

/// The cause of a session's end. Stored: only appended to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LossCause {
    /// It was destroyed on request.
    Destroyed,
    /// It was not renewed in time.
    TtlExpired,
    /// One of its checks turned critical. The output is unknown: it was blank, or the cluster was
    /// not yet at format 5.
    CheckCritical(CheckId),
    /// One of its checks was deregistered.
    CheckDeregistered(CheckId),
    /// Its node was deregistered.
    NodeDeregistered,
    /// A majority of the servers could not reach its node.
    NodeFailed {
        /// The health window that expired.
        window: HealthWindow,
        /// The nodes of the servers that confirmed the failure.
        confirmed_by: Vec<NodeName>,
        /// The time from the leader's last contact with the node to the verdict.
        silent_for: Duration,
    },
    /// Its node's host was replaced or rebooted.
    HostReplaced,
    /// Its node left.
    NodeLeft,
    /// Its node was forced to leave.
    NodeForcedToLeave,
    /// Its node was failed for so long that it was removed.
    NodeReaped,
    /// Its guard gave it up, because no renewal was acknowledged for this time.
    GivenUp {
        /// The time since the last acknowledged renewal.
        silent_for: Duration,
    },
    /// A key was deleted while its session held it. The session lives.
    KeyDeleted,
    /// One of its checks turned critical, with this output.
    CheckFailed {
        /// The check.
        check: CheckId,
        /// The first line of its output that is not blank, up to 200 bytes, without control
        /// characters.
        output: String,
    },
    /// The process that it was bound to has exited.
    ProcessExited {
        /// The process's id.
        pid: u32,
    },
}

impl LossCause {
    /// Returns the category, by which the loss history is bounded. All servers must agree on which
    /// loss they evict, so it is part of the format: no number ever changes its meaning.
    pub fn category(&self) -> u8 {
        match self {
            Self::Destroyed => 0,
            Self::TtlExpired => 1,
            Self::CheckCritical(_) | Self::CheckFailed { .. } => 2,
            Self::CheckDeregistered(_) => 3,
            Self::NodeDeregistered => 4,
            Self::NodeFailed { .. } => 5,
            Self::HostReplaced => 6,
            Self::NodeLeft => 7,
            Self::NodeForcedToLeave => 8,
            Self::NodeReaped => 9,
            Self::GivenUp { .. } => 10,
            Self::KeyDeleted => 11,
            Self::ProcessExited { .. } => 12,
        }
    }
}

/// The loss of a session's locks: one entry of the bounded loss history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// The log index of the loss.
    pub index: LogIndex,
    /// The time of the loss.
    pub at: WallTime,
    /// The session that ended.
    pub session: SessionId,
    /// Its name.
    pub session_name: String,
    /// The node that it was bound to.
    pub node: NodeName,
    /// The cause of its end.
    pub cause: LossCause,
    /// The keys that it held, with the fence of each; at most 64.
    pub keys: Vec<(Key, Fence)>,
    /// The total number of keys that it held.
    pub key_count: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire;
    use CheckStatus::{Critical, Passing, Warning};

    fn finite(number: f64) -> Finite {
        Finite::try_from(number).expect("it is finite")
    }

    #[test]
    fn coordinate_components_finite_and_zero_normalized() {
        for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(Finite::try_from(number), Err(NotFinite));
            let error = wire::decode::<Finite, 100>(&wire::encode(&number)).expect_err("it is not finite");
            assert!(error.to_string().contains("infinite or not a number"), "{error}");
        }
        assert_eq!(wire::encode(&finite(-0.0)), wire::encode(&0.0));
        assert_eq!(wire::decode::<Finite, 100>(&wire::encode(&-1.5)), Ok(finite(-1.5)));
    }

    #[test]
    fn distance_includes_heights_and_adjustments() {
        let at = |x, y, height, adjustment| {
            let mut vec = [Finite::default(); DIMENSIONS];
            (vec[0], vec[7]) = (finite(x), finite(y));
            let (height, adjustment) = (finite(height), finite(adjustment));
            Coordinate { vec, height, adjustment, ..Coordinate::default() }
        };
        let origin = Coordinate::default();
        for (to, micros) in [
            (origin.clone(), 20),
            (at(0.003, 0.004, 0.0, 0.0), 5_010),
            (at(0.003, 0.004, 0.002, 0.0), 7_010),
            (at(0.003, 0.004, 0.002, 0.001), 8_010),
            // An adjustment that would make the distance negative is not applied.
            (at(0.003, 0.004, 0.0, -0.004), 1_010),
            (at(0.003, 0.004, 0.0, -0.006), 5_010),
            (at(0.0, 0.0, -1.0, 0.0), 0),
        ] {
            let distance = origin.distance_to(&to);
            let off = distance.abs_diff(Duration::from_micros(micros));
            assert!(off < Duration::from_nanos(2), "{to:?}: {distance:?}");
            assert_eq!(distance, to.distance_to(&origin));
        }
        assert_eq!(origin.distance_to(&at(f64::MAX, f64::MAX, 0.0, 0.0)), Duration::MAX);
    }

    #[test]
    fn worst_check_or_maintenance_wins() {
        for (checks, expected) in [
            (&[][..], Aggregate::Passing),
            (&[("a", Passing)], Aggregate::Passing),
            (&[("a", Passing), ("b", Warning)], Aggregate::Warning),
            (&[("b", Critical), ("c", Warning)], Aggregate::Critical),
            (&[("a", Passing), (NODE_MAINTENANCE, Critical)], Aggregate::Maintenance),
            (&[("_service_maintenance:web", Critical), ("c", Critical)], Aggregate::Maintenance),
        ] {
            assert_eq!(Aggregate::of(checks.iter().copied()), expected, "{checks:?}");
        }
    }
}
