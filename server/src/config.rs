//! The server's configuration: one tree of plain values with defaults.
//!
//! Values are read once, from a file, the environment or flags, and checked. They are never parsed
//! again. Unknown keys are rejected. Every key is documented with its default in
//! `deploy/config/server.toml`; a test keeps that file equal to [`ServerConfig::default`].

use lockmesh_core::AclStart;
use lockmesh_net::config::{
    ConfigError, LogConfig, NodeConfig, Section, TlsConfig, check_path, empty_is_none, hours, is_uuid, mins,
    ms, secs,
};
use lockmesh_net::sections;
use lockmesh_protocol::acl::{AclChange, AclMode, DefaultPolicy};
use lockmesh_protocol::duration;
use lockmesh_protocol::host_port::HostPort;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The maximum number of addresses in `quorum.join`.
const MAX_JOIN: usize = 64;

sections! {
    /// The configuration of a server.
    pub struct ServerConfig {
        /// The folder of log and state. Created if missing; never shared by two processes.
        data_dir: PathBuf = "/var/lib/lockmesh/server".into(), by check_path;
        /// A file that holds the process id while the server runs; empty for none.
        pid_file: PathBuf = PathBuf::new();
        /// `true` if files and folders of other users are used, who can replace them.
        allow_other_owners: bool = false;
        /// The number of threads that serve connections; the disk has two of its own.
        threads: usize = 1, in 1..=256;
        /// The identity of this machine.
        node: NodeConfig;
        /// The address for agents and other servers.
        rpc: RpcConfig;
        /// The endpoint for metrics and health.
        http: HttpConfig;
        /// The certificates for agents and other servers.
        tls: TlsConfig = TlsConfig::of_role("server"), by Section::check_at;
        /// Cluster bootstrap and elections.
        quorum: QuorumConfig;
        /// The storage of log and state on disk.
        storage: StorageConfig;
        /// The rules of sessions that the leader enforces.
        sessions: SessionConfig;
        /// The access control lists of a cluster that has none yet.
        acl: AclConfig;
        /// The retention of deletes.
        tombstones: TombstoneConfig;
        /// The retention of failed members.
        members: MemberConfig;
        /// The limits beyond which the server reports that it is overloaded.
        limits: LimitConfig;
        /// The log's level and format.
        log: LogConfig;
    }

    /// The address for agents and other servers: one UDP port for QUIC.
    pub struct RpcConfig by Self::check_advertised {
        /// The address to listen on, IPv4 or IPv6, as `ip:port`. Port 0 selects a free one.
        listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 8300));
        /// The address announced to others, as `host:port`; empty for the one listened on, which
        /// then must not be a wildcard.
        advertise: String = String::new();
    }

    /// The access control lists with which a cluster begins. Ignored once it has settings of its
    /// own.
    pub struct AclConfig {
        /// Whether requests are judged: `off`, `log` for refusals that are only logged, `enforce`.
        mode: AclMode = AclMode::Off;
        /// The reaction to requests for which there is no rule.
        default_policy: DefaultPolicy = DefaultPolicy::Allow;
        /// The secret of the first management token; empty for none.
        initial_management: String = String::new();
    }

    /// Cluster bootstrap, and the election timeout.
    pub struct QuorumConfig {
        /// The number of servers that found the cluster, the same on each of them; an odd number is
        /// best. 0: this server founds none, and joins the one that `join` or an operator names. 1:
        /// it founds one alone, unless `join` names servers.
        bootstrap_expect: u32 = 0, in 0..=9;
        /// The id under which the cluster is founded, the same on all founders: the UUID of a lost
        /// cluster that is rebuilt. Empty to draw one.
        cluster_id: String = String::new(), by check_cluster_id;
        /// The addresses of other servers, each as `host:port`. A name may resolve to several
        /// addresses. A member that has no working leader calls them too, to find servers that
        /// moved. At most 64.
        join: Vec<String> = Vec::new(), by check_join;
        /// A follower that receives nothing from its leader for one to two times this long stands
        /// for election; a leader that receives nothing from a majority for this long steps down.
        /// The same on all servers, at least ten times the round trip between servers.
        election_timeout: Duration as "duration::text" = ms(200), in ms(100)..=mins(1);
    }

    /// The endpoint for metrics and health, read-only.
    pub struct HttpConfig {
        /// The TCP address to listen on, IPv4 or IPv6, as `ip:port`; empty for none. Port 0 selects
        /// a free one.
        listen: Option<SocketAddr> as "empty_is_none" = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        /// The maximum number of connections.
        max_connections: usize = 64, in 1..=10_000;
        /// The longest head of a request in bytes.
        max_header_bytes: usize = 16 << 10, in 8 << 10..=1 << 20;
        /// The timeout for receiving a request's head, and for an idle client.
        read_timeout: Duration as "duration::text" = secs(10), in secs(1)..=mins(10);
    }

    /// The storage of log and state on disk.
    pub struct StorageConfig {
        /// The longest time between two checkpoints of the state while something changes.
        checkpoint_interval: Duration as "duration::text" = secs(1), in ms(100)..=hours(1);
        /// The number of changed rows that triggers an early checkpoint.
        checkpoint_changes: u64 = 10_000, in 1..=10_000_000;
        /// The bytes of log kept behind the checkpoint for lagging followers, on disk and in
        /// memory. A follower that lags further receives a snapshot.
        log_keep_bytes: u64 = 32 << 20, in 0..=1 << 40;
        /// The bytes kept while a follower fetches a snapshot, so that it can continue from there.
        /// If this is less than `log_keep_bytes`, that applies.
        log_keep_fetching_bytes: u64 = 128 << 20, in 0..=1 << 40;
        /// The cache of each of the two database files in bytes.
        cache_bytes: u64 = 16 << 20, in 1 << 20..=64 << 30;
        /// The interval between corruption checks, in which the leader compares the state of all
        /// servers; skipped if nothing was written.
        corruption_check_interval: Duration as "duration::text" = mins(5), in secs(1)..=hours(24);
        /// The time without a durable write after which the disk is stalled: the server is not
        /// ready, and a leader hands over. Never less than two election timeouts.
        stall_timeout: Duration as "duration::text" = secs(1), in ms(300)..=mins(1);
    }

    /// The rules of sessions that the leader enforces.
    pub struct SessionConfig {
        /// A session expires if it is not renewed for its TTL times this. Clients of Consul rely on
        /// 2.
        ttl_multiplier: u32 = 2, in 1..=10;
    }

    /// The retention of deletes, so that the index of a prefix never goes back for a reader.
    pub struct TombstoneConfig {
        /// The retention.
        ttl: Duration as "duration::text" = mins(15), in secs(1)..=hours(24);
        /// Deletes this close together are forgotten together.
        granularity: Duration as "duration::text" = secs(30), in ms(1)..=*ttl;
    }

    /// The retention of failed members.
    pub struct MemberConfig {
        /// The leader removes a member that has been failed for this long, and its node with
        /// everything on it, unless sessions without checks exist there. A new leader starts the
        /// time again.
        reap_failed_after: Duration as "duration::text" = hours(72), in mins(1)..=hours(365 * 24);
    }

    /// The limits beyond which the server reports that it is overloaded.
    pub struct LimitConfig {
        /// Events that wait for the driver.
        queued_events: usize = 16_384, in 16..=1 << 20;
        /// Blocking queries that are parked.
        watches: usize = 1_000_000, in 1..=100_000_000;
        /// QUIC connections of agents.
        connections: usize = 20_000, in 1..=1_000_000;
        /// Handshakes of new connections in progress.
        handshakes: usize = 512, in 1..=1_000_000;
        /// Calls in flight on one connection.
        calls_per_connection: usize = 65_536, in 1..=1 << 20;
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

    fn check_advertised(&self) -> Result<(), ConfigError> {
        self.advertised().map(drop)
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
}

impl AclConfig {
    /// Returns the first access control lists of a cluster in a datacenter.
    pub(crate) fn start(&self, datacenter: &str) -> AclStart {
        let settings = AclChange {
            mode: Some(self.mode),
            default_policy: Some(self.default_policy),
            datacenter: datacenter.into(),
            ..AclChange::default()
        };
        let secret = &self.initial_management;
        AclStart { settings, initial_management: (!secret.is_empty()).then(|| secret.clone()) }
    }
}

fn check_cluster_id(id: &str, key: &str) -> Result<(), ConfigError> {
    match id.is_empty() || is_uuid(id) {
        true => Ok(()),
        false => Err(ConfigError::new(key, format!("is {id:?}, but must be a cluster's UUID, or empty"))),
    }
}

fn check_join(join: &[String], key: &str) -> Result<(), ConfigError> {
    if join.len() > MAX_JOIN {
        let problem = format!("has {} addresses, but at most {MAX_JOIN} are called", join.len());
        return Err(ConfigError::new(key, problem));
    }
    match join.iter().find(|address| address.parse::<HostPort>().is_err()) {
        None => Ok(()),
        Some(wrong) => {
            let problem = format!("holds {wrong:?}, but must hold host:port, such as \"10.0.0.5:8300\"");
            Err(ConfigError::new(key, problem))
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
    fn invalid_value_names_its_key() {
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
    fn join_disables_founding_by_default() {
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
    fn wildcard_address_is_not_advertised() {
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
