//! The server's configuration: one tree of plain values with defaults.
//!
//! Values are read once, from a file, the environment or flags, and checked by
//! [`ServerConfig::check`]. They are never parsed again. Unknown keys are rejected. Every key is
//! documented with its default in `deploy/config/server.toml`; a test keeps that file equal to
//! [`ServerConfig::default`].

use lockmesh_net::config::{
    ConfigError, LogConfig, NodeConfig, TlsConfig, check_length, check_path, check_range, empty_is_none,
};
use lockmesh_protocol::duration;
use lockmesh_protocol::host_port::HostPort;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The maximum number of addresses in `quorum.join`.
const MAX_JOIN: usize = 64;

/// The configuration of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// The folder of log and state. Created if missing; never shared by two processes.
    pub data_dir: PathBuf,
    /// A file that holds the process id while the server runs; empty for none.
    pub pid_file: PathBuf,
    /// The number of threads that serve connections; the disk has two of its own. 1 to 256.
    pub threads: usize,
    /// The identity of this machine.
    pub node: NodeConfig,
    /// The address for agents and other servers.
    pub rpc: RpcConfig,
    /// The endpoint for metrics and health.
    pub http: HttpConfig,
    /// The certificates for agents and other servers.
    pub tls: TlsConfig,
    /// Cluster bootstrap and elections.
    pub quorum: QuorumConfig,
    /// The storage of log and state on disk.
    pub storage: StorageConfig,
    /// The rules of sessions that the leader enforces.
    pub sessions: SessionConfig,
    /// The retention of deletes.
    pub tombstones: TombstoneConfig,
    /// The retention of failed members.
    pub members: MemberConfig,
    /// The limits beyond which the server reports that it is overloaded.
    pub limits: LimitConfig,
    /// The log's level and format.
    pub log: LogConfig,
}

/// The address for agents and other servers: one UDP port for QUIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RpcConfig {
    /// The address to listen on, IPv4 or IPv6, as `ip:port`. Port 0 selects a free one.
    pub listen: SocketAddr,
    /// The address announced to others, as `host:port`; empty for the one listened on, which then
    /// must not be a wildcard.
    pub advertise: String,
}

/// Cluster bootstrap, and the election timeout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QuorumConfig {
    /// The number of servers that found the cluster, the same on each of them; an odd number is
    /// best. 0: this server founds none, and joins the one that `join` or an operator names. 1: it
    /// founds one alone, unless `join` names servers. At most 9.
    pub bootstrap_expect: u32,
    /// The id under which the cluster is founded, the same on all founders: the UUID of a lost
    /// cluster that is rebuilt. Empty to draw one.
    pub cluster_id: String,
    /// The addresses of other servers, each as `host:port`. A name may resolve to several
    /// addresses. A member that has no working leader calls them too, to find servers that moved.
    /// At most 64.
    pub join: Vec<String>,
    /// A follower that receives nothing from its leader for one to two times this long stands for
    /// election; a leader that receives nothing from a majority for this long steps down. The same
    /// on all servers: 100 ms to 1 min, at least ten times the round trip between servers.
    #[serde(with = "duration::text")]
    pub election_timeout: Duration,
}

/// The endpoint for metrics and health, read-only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// The TCP address to listen on, IPv4 or IPv6, as `ip:port`; empty for none. Port 0 selects a
    /// free one.
    #[serde(with = "empty_is_none")]
    pub listen: Option<SocketAddr>,
    /// The maximum number of connections. 1 to 10,000.
    pub max_connections: usize,
    /// The longest head of a request in bytes. 8 KiB to 1 MiB.
    pub max_header_bytes: usize,
    /// The timeout for receiving a request's head, and for an idle client. 1 s to 10 m.
    #[serde(with = "duration::text")]
    pub read_timeout: Duration,
}

/// The storage of log and state on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StorageConfig {
    /// The longest time between two checkpoints of the state while something changes. 100 ms to 1
    /// h.
    #[serde(with = "duration::text")]
    pub checkpoint_interval: Duration,
    /// The number of changed rows that triggers an early checkpoint. 1 to 10,000,000.
    pub checkpoint_changes: u64,
    /// The bytes of log kept behind the checkpoint for lagging followers, on disk and in memory. A
    /// follower that lags further receives a snapshot. 0 for none, at most 1 TiB.
    pub log_keep_bytes: u64,
    /// The bytes kept while a follower fetches a snapshot, so that it can continue from there. If
    /// this is less than `log_keep_bytes`, that applies. 0 to 1 TiB.
    pub log_keep_fetching_bytes: u64,
    /// The cache of each of the two database files in bytes. 1 MiB to 64 GiB.
    pub cache_bytes: u64,
    /// The interval between corruption checks, in which the leader compares the state of all
    /// servers; skipped if nothing was written. 1 s to 1 day.
    #[serde(with = "duration::text")]
    pub corruption_check_interval: Duration,
    /// The time without a durable write after which the disk is stalled: the server is not ready,
    /// and a leader hands over. 300 ms to 60 s; never less than two election timeouts.
    #[serde(with = "duration::text")]
    pub stall_timeout: Duration,
}

/// The rules of sessions that the leader enforces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionConfig {
    /// A session expires if it is not renewed for its TTL times this. 1 to 10; clients of Consul
    /// rely on 2.
    pub ttl_multiplier: u32,
}

/// The retention of deletes, so that the index of a prefix never goes back for a reader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TombstoneConfig {
    /// The retention. 1 s to 24 h.
    #[serde(with = "duration::text")]
    pub ttl: Duration,
    /// Deletes this close together are forgotten together. 1 ms up to `ttl`.
    #[serde(with = "duration::text")]
    pub granularity: Duration,
}

/// The retention of failed members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemberConfig {
    /// The leader removes a member that has been failed for this long, and its node with everything
    /// on it, unless sessions without checks exist there. A new leader starts the time again. 1 min
    /// to 365 days.
    #[serde(with = "duration::text")]
    pub reap_failed_after: Duration,
}

/// The limits beyond which the server reports that it is overloaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitConfig {
    /// Events that wait for the driver. 16 to 1,048,576.
    pub queued_events: usize,
    /// Blocking queries that are parked. 1 to 100,000,000.
    pub watches: usize,
    /// QUIC connections. 1 to 1,000,000.
    pub connections: usize,
    /// Handshakes of new connections in progress. 1 to 1,000,000.
    pub handshakes: usize,
    /// Calls in flight on one connection. 1 to 1,048,576.
    pub calls_per_connection: usize,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            data_dir: "/var/lib/lockmesh/server".into(),
            pid_file: PathBuf::new(),
            threads: 1,
            node: NodeConfig::default(),
            rpc: RpcConfig::default(),
            http: HttpConfig::default(),
            tls: TlsConfig::of_role("server"),
            quorum: QuorumConfig::default(),
            storage: StorageConfig::default(),
            sessions: SessionConfig::default(),
            tombstones: TombstoneConfig::default(),
            members: MemberConfig::default(),
            limits: LimitConfig::default(),
            log: LogConfig::default(),
        }
    }
}

impl ServerConfig {
    /// Rejects values that cannot work, each by its key.
    ///
    /// # Errors
    /// The first key whose value cannot be used, and its allowed values. Nothing was started.
    pub fn check(&self) -> Result<(), ConfigError> {
        check_path("data_dir", &self.data_dir)?;
        check_range("threads", self.threads as u64, 1, 256)?;
        self.node.check()?;
        self.rpc.check()?;
        self.http.check()?;
        self.tls.check()?;
        self.quorum.check()?;
        let storage = &self.storage;
        let second = Duration::from_secs(1);
        check_length("storage.checkpoint_interval", storage.checkpoint_interval, second / 10, second * 3600)?;
        check_range("storage.checkpoint_changes", storage.checkpoint_changes, 1, 10_000_000)?;
        let interval = storage.corruption_check_interval;
        check_length("storage.corruption_check_interval", interval, second, second * 86_400)?;
        check_length("storage.stall_timeout", storage.stall_timeout, second * 3 / 10, second * 60)?;
        check_range("storage.log_keep_bytes", storage.log_keep_bytes, 0, 1 << 40)?;
        check_range("storage.log_keep_fetching_bytes", storage.log_keep_fetching_bytes, 0, 1 << 40)?;
        check_range("storage.cache_bytes", storage.cache_bytes, 1 << 20, 64 << 30)?;
        check_range("sessions.ttl_multiplier", self.sessions.ttl_multiplier.into(), 1, 10)?;
        let tombstones = &self.tombstones;
        check_length("tombstones.ttl", tombstones.ttl, second, second * 86_400)?;
        check_length("tombstones.granularity", tombstones.granularity, second / 1000, tombstones.ttl)?;
        let reap_after = self.members.reap_failed_after;
        check_length("members.reap_failed_after", reap_after, second * 60, second * 86_400 * 365)?;
        let limits = &self.limits;
        check_range("limits.queued_events", limits.queued_events as u64, 16, 1 << 20)?;
        check_range("limits.watches", limits.watches as u64, 1, 100_000_000)?;
        check_range("limits.connections", limits.connections as u64, 1, 1_000_000)?;
        check_range("limits.handshakes", limits.handshakes as u64, 1, 1_000_000)?;
        check_range("limits.calls_per_connection", limits.calls_per_connection as u64, 1, 1 << 20)
    }
}

impl Default for RpcConfig {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 8300)), advertise: String::new() }
    }
}

impl RpcConfig {
    /// Returns the address announced to others, as far as it is known before listening.
    ///
    /// # Errors
    /// The key, its value and its allowed values: only the operator knows the address under which
    /// others reach this server.
    pub fn advertised(&self) -> Result<String, ConfigError> {
        match self.advertise.as_str() {
            "" if self.listen.ip().is_unspecified() => Err(ConfigError::new(
                "rpc.advertise",
                format!("must be given, because `rpc.listen` is the wildcard {}", self.listen),
            )),
            "" => Ok(self.listen.to_string()),
            text => {
                let is_wildcard = |ip: &HostPort| ip.literal().is_some_and(|ip| ip.ip().is_unspecified());
                let address = text.parse().ok().filter(|address| !is_wildcard(address));
                address.map(|address| address.to_string()).ok_or_else(|| {
                    let problem = format!("is {text:?}, but must be a `host:port` that others can reach");
                    ConfigError::new("rpc.advertise", problem)
                })
            }
        }
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.advertised().map(|_| ())
    }
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
            max_connections: 64,
            max_header_bytes: 16 << 10,
            read_timeout: Duration::from_secs(10),
        }
    }
}

impl HttpConfig {
    fn check(&self) -> Result<(), ConfigError> {
        let second = Duration::from_secs(1);
        check_range("http.max_connections", self.max_connections as u64, 1, 10_000)?;
        check_range("http.max_header_bytes", self.max_header_bytes as u64, 8 << 10, 1 << 20)?;
        check_length("http.read_timeout", self.read_timeout, second, second * 600)
    }
}

impl Default for QuorumConfig {
    fn default() -> Self {
        let election_timeout = Duration::from_millis(200);
        Self { bootstrap_expect: 0, cluster_id: String::new(), join: Vec::new(), election_timeout }
    }
}

impl QuorumConfig {
    /// Returns the number of servers that found the cluster, this one included; 0 if it founds
    /// none.
    pub fn founders(&self) -> u32 {
        match self.bootstrap_expect {
            1 if !self.join.is_empty() => 0,
            expect => expect,
        }
    }

    /// Returns the id under which this server founds a cluster, if one is configured.
    pub fn cluster_id(&self) -> Option<String> {
        (!self.cluster_id.is_empty()).then(|| self.cluster_id.to_lowercase())
    }

    fn check(&self) -> Result<(), ConfigError> {
        check_range("quorum.bootstrap_expect", self.bootstrap_expect.into(), 0, 9)?;
        check_cluster_id(&self.cluster_id)?;
        let (least, most) = (Duration::from_millis(100), Duration::from_secs(60));
        check_length("quorum.election_timeout", self.election_timeout, least, most)?;
        if self.join.len() > MAX_JOIN {
            let problem = format!("has {} addresses, but at most {MAX_JOIN} are called", self.join.len());
            return Err(ConfigError::new("quorum.join", problem));
        }
        match self.join.iter().find(|address| address.parse::<HostPort>().is_err()) {
            None => Ok(()),
            Some(wrong) => {
                let problem = format!("holds {wrong:?}, but must hold host:port, such as \"10.0.0.5:8300\"");
                Err(ConfigError::new("quorum.join", problem))
            }
        }
    }
}

fn check_cluster_id(id: &str) -> Result<(), ConfigError> {
    let is_digit = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    if id.is_empty() || (id.len() == 36 && id.bytes().enumerate().all(is_digit)) {
        return Ok(());
    }
    Err(ConfigError::new("quorum.cluster_id", format!("is {id:?}, but must be a cluster's UUID, or empty")))
}

impl Default for StorageConfig {
    fn default() -> Self {
        Self {
            checkpoint_interval: Duration::from_secs(1),
            checkpoint_changes: 10_000,
            log_keep_bytes: 32 << 20,
            log_keep_fetching_bytes: 128 << 20,
            cache_bytes: 16 << 20,
            corruption_check_interval: Duration::from_secs(300),
            stall_timeout: Duration::from_secs(1),
        }
    }
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self { ttl_multiplier: 2 }
    }
}

impl Default for TombstoneConfig {
    fn default() -> Self {
        Self { ttl: Duration::from_secs(15 * 60), granularity: Duration::from_secs(30) }
    }
}

impl Default for MemberConfig {
    fn default() -> Self {
        Self { reap_failed_after: Duration::from_secs(72 * 3600) }
    }
}

impl Default for LimitConfig {
    fn default() -> Self {
        Self {
            queued_events: 16_384,
            watches: 1_000_000,
            connections: 20_000,
            handshakes: 512,
            calls_per_connection: 65_536,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(change: impl FnOnce(&mut ServerConfig)) -> String {
        let mut config = ServerConfig::default();
        change(&mut config);
        config.check().expect_err("the value is wrong").to_string()
    }

    #[test]
    fn the_defaults_are_good() {
        assert_eq!(ServerConfig::default().check(), Ok(()));
    }

    #[test]
    fn a_wrong_value_is_refused_by_its_key() {
        assert!(complaint(|c| c.node.id = "6f2d".into()).starts_with("`node.id` must be a UUID"));
        assert!(complaint(|c| c.node.name = "a b".into()).starts_with("`node.name`"));
        assert!(complaint(|c| c.node.datacenter = "DC1".into()).starts_with("`node.datacenter`"));
        assert!(complaint(|c| c.data_dir = PathBuf::new()).starts_with("`data_dir`"));
        assert!(complaint(|c| c.tls.key = PathBuf::new()).starts_with("`tls.key`"));
        assert_eq!(
            complaint(|c| c.limits.queued_events = 0),
            "`limits.queued_events` is 0, but must be 16 to 1048576"
        );
        assert_eq!(
            complaint(|c| c.tombstones.granularity = Duration::from_secs(3600)),
            "`tombstones.granularity` is 1h0m0s, but must be 1ms to 15m0s"
        );
        assert_eq!(
            complaint(|c| c.members.reap_failed_after = Duration::from_secs(59)),
            "`members.reap_failed_after` is 59s, but must be 1m0s to 8760h0m0s"
        );
    }

    #[test]
    fn a_server_that_joins_founds_nothing_unless_told() {
        let founders = |bootstrap_expect, join: &[&str]| {
            let join = join.iter().map(ToString::to_string).collect();
            QuorumConfig { bootstrap_expect, join, ..QuorumConfig::default() }.founders()
        };
        assert_eq!(
            [founders(1, &[]), founders(1, &["a:1"]), founders(3, &["a:1"]), founders(0, &[])],
            [1, 0, 3, 0]
        );
        assert!(complaint(|c| c.quorum.join = vec!["a".into()]).starts_with("`quorum.join` holds \"a\""));
        assert!(
            complaint(|c| c.quorum.cluster_id = "c1".into()).starts_with("`quorum.cluster_id` is \"c1\"")
        );
        assert_eq!(ServerConfig::default().quorum.founders(), 0, "no server founds a cluster by accident");
        assert!(complaint(|c| c.quorum.bootstrap_expect = 10).starts_with("`quorum.bootstrap_expect`"));
    }

    #[test]
    fn a_wildcard_is_not_told_to_others() {
        let wildcard = |c: &mut ServerConfig| c.rpc.listen = SocketAddr::from(([0, 0, 0, 0], 8300));
        assert!(complaint(wildcard).starts_with("`rpc.advertise` must be given"));
        assert!(complaint(|c| c.rpc.advertise = "[::]:8300".into()).starts_with("`rpc.advertise`"));
        let mut rpc = RpcConfig { listen: SocketAddr::from(([0, 0, 0, 0], 8300)), advertise: String::new() };
        for advertise in ["[2001:db8::1]:8300", "[fe80::1%eth0]:8300", "s1.internal:8300"] {
            rpc.advertise = advertise.into();
            assert_eq!(rpc.advertised().expect("it is an address"), advertise);
        }
        assert!(complaint(|c| c.rpc.advertise = "s1".into()).contains("must be a `host:port`"));
    }
}
