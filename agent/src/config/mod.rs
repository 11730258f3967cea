//! The configuration of an agent: one tree of plain values with defaults.
//!
//! It is read once, from a file, the environment or flags, and checked by [`AgentConfig::check`].
//! Unknown keys are rejected. `deploy/config/agent.toml` lists every key with its default and a
//! comment; a test keeps that file equal to [`AgentConfig::default`].

mod hosts;
mod value;

pub use hosts::HostPattern;
pub use value::{FileMode, WindowWord};

use lockmesh_agent_core::checks::CheckLimits;
use lockmesh_agent_core::cluster::ClusterChoice;
use lockmesh_net::config::{
    ConfigError, LogConfig, NodeConfig, TlsConfig, check_length, check_path, check_range, empty_is_none,
};
use lockmesh_protocol::duration;
use lockmesh_protocol::host_port::{Host, HostPort};
use lockmesh_protocol::lease::HealthWindow;
use serde::{Deserialize, Serialize};
use std::net::{Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The maximum number of host names in `allowed_hosts`.
const MAX_ALLOWED_HOSTS: usize = 64;

/// The configuration of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentConfig {
    /// The directory for data that must outlive the process: the node's UUID and the cluster pin.
    pub data_dir: PathBuf,
    /// A file that holds the process id while it runs; empty for none.
    pub pid_file: PathBuf,
    /// The UDP address at which servers challenge this agent, and from which it calls them: IPv4 or
    /// IPv6, as `ip:port`. `[::]` means all addresses of both families, or of IPv4 on a host
    /// without IPv6. Port 0 selects a free one.
    pub listen: SocketAddr,
    /// The address in the catalog at which servers reach `listen`: an IP address, or a name that is
    /// resolved with every connection. Empty for the listen address, or for the source address of
    /// the connections to the servers if that is a wildcard.
    #[serde(with = "empty_is_none")]
    pub advertise: Option<Host>,
    /// The number of threads that serve applications and the connections to the servers. 1 to 256.
    pub threads: usize,
    /// `true` if the node leaves the cluster on SIGTERM. Otherwise the servers are notified that it
    /// will return, and keep its sessions for a while.
    pub leave_on_terminate: bool,
    /// The agent's role in the mesh.
    pub gossip: GossipConfig,
    /// The identity of this machine.
    pub node: NodeConfig,
    /// The API for applications on this host.
    pub http: HttpConfig,
    /// Defaults and limits of sessions.
    pub session: SessionConfig,
    /// The connection to the quorum.
    pub upstream: UpstreamConfig,
    /// The agent's certificate.
    pub tls: TlsConfig,
    /// Health checks that run here.
    pub checks: CheckConfig,
    /// Logging.
    pub log: LogConfig,
}

/// The API for applications on this host: its listeners and limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// The TCP address, IPv4 or IPv6, as `ip:port`; empty for none.
    #[serde(with = "empty_is_none")]
    pub tcp: Option<SocketAddr>,
    /// `true` if `tcp` may be reachable from other hosts, without any access control.
    pub allow_non_loopback: bool,
    /// The `Host` names accepted over TCP besides `localhost` and the node's name: names, suffixes
    /// such as `.svc.cluster.local`, or `*` for all. At most 64.
    pub allowed_hosts: Vec<String>,
    /// `true` if operator requests are accepted over TCP even if there is a Unix socket; without a
    /// socket they always are.
    pub operator_over_tcp: bool,
    /// `true` to reject requests that carry a token with 403. Otherwise the token is ignored,
    /// with one warning per client: there are no ACLs.
    pub refuse_tokens: bool,
    /// The path of the Unix socket; empty for none.
    pub socket: PathBuf,
    /// The socket's permissions, octal.
    pub socket_mode: FileMode,
    /// The socket's group, by name or number; empty for the process's own.
    pub socket_group: String,
    /// The interval at which the socket is checked, and bound again if its file is gone. 100 ms to
    /// 1 h.
    #[serde(with = "duration::text")]
    pub socket_check_interval: Duration,
    /// The minimum session TTL. 100 ms to 24 h.
    #[serde(with = "duration::text")]
    pub session_ttl_min: Duration,
    /// The maximum size of a value in bytes. 1 to 4 MiB.
    pub max_value_bytes: usize,
    /// The maximum size of a transaction's body in bytes. 1 to 4 MiB.
    pub max_transaction_bytes: usize,
    /// The maximum number of operations in a transaction. 1 to 128.
    pub max_transaction_operations: usize,
    /// The default wait of a blocking query. 1 s up to `max_query_time`.
    #[serde(with = "duration::text")]
    pub default_query_time: Duration,
    /// The maximum wait of a blocking query, or of an acquire for a lock. 1 s to 1 h.
    #[serde(with = "duration::text")]
    pub max_query_time: Duration,
    /// The timeout for a request's head, and for each further part of its body. 1 s to 10 m.
    #[serde(with = "duration::text")]
    pub read_timeout: Duration,
    /// The maximum idle time of a TCP connection between requests. 1 s to 24 h; 0 for no limit.
    #[serde(with = "duration::text")]
    pub idle_timeout: Duration,
    /// The idle time before the first TCP keep-alive probe. A client that acknowledges nothing for
    /// twice this time is disconnected. 1 s to 1 h; 0 for no probes.
    #[serde(with = "duration::text")]
    pub tcp_keep_alive: Duration,
    /// The maximum number of connections, of which an eighth is reserved for the Unix socket and
    /// for guards. 16 to 1,000,000.
    pub max_connections: usize,
    /// The maximum number of connections of one client address other than loopback. 1 up to
    /// `max_connections`.
    pub max_connections_per_address: usize,
}

/// The agent's role in the mesh, in which agents detect failed hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GossipConfig {
    /// `true` if the agent joins the mesh.
    pub enabled: bool,
    /// The UDP address for datagrams of other agents, as `ip:port`; empty for the address of the
    /// agent's own `listen`, with the next higher port.
    #[serde(with = "empty_is_none")]
    pub listen: Option<SocketAddr>,
}

/// Sessions that are created through this agent, and those that guards follow here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionConfig {
    /// The default health window of a session: how long its node may be silent.
    pub default_health_window: WindowWord,
    /// The maximum number of sessions that guards follow here at a time. 1 to 1,000,000.
    pub max_watched: usize,
}

/// The connection to the quorum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UpstreamConfig {
    /// The servers as `host:port`. One that answers is enough; it reports the others.
    pub servers: Vec<String>,
    /// The cluster that the agent belongs to: its UUID; empty for the first one that registers the
    /// agent; `any` for any cluster that answers.
    pub cluster_id: String,
    /// The time for which a request is retried without a leader, and the reply timeout, which is at
    /// least 7 s. 0 s to 10 m.
    #[serde(with = "duration::text")]
    pub hold_timeout: Duration,
    /// The time without a reply from the leader after which the other servers are asked for a new
    /// one. 10 ms to 10 s.
    #[serde(with = "duration::text")]
    pub probe_after: Duration,
}

/// Health checks that run in the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CheckConfig {
    /// The maximum delay before a change of a check's output alone is written to the catalog. 0 s
    /// to 24 h.
    #[serde(with = "duration::text")]
    pub update_interval: Duration,
    /// The maximum size of a check's output in bytes. 1 to 1 MiB.
    pub max_output_bytes: usize,
    /// The maximum number of checks. 1 to 100,000.
    pub max_checks: usize,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            data_dir: "/var/lib/lockmesh/agent".into(),
            pid_file: PathBuf::new(),
            listen: SocketAddr::from((Ipv6Addr::UNSPECIFIED, 8301)),
            advertise: None,
            threads: 1,
            leave_on_terminate: false,
            gossip: GossipConfig::default(),
            node: NodeConfig::default(),
            http: HttpConfig::default(),
            session: SessionConfig::default(),
            upstream: UpstreamConfig::default(),
            tls: TlsConfig::of_role("agent"),
            checks: CheckConfig::default(),
            log: LogConfig::default(),
        }
    }
}

impl AgentConfig {
    /// Rejects unusable values, each by its key.
    ///
    /// # Errors
    /// The first key whose value cannot be used, with what it must be. Nothing was started.
    pub fn check(&self) -> Result<(), ConfigError> {
        check_path("data_dir", &self.data_dir)?;
        if matches!(self.advertise, Some(Host::Ip(address)) if address.is_unspecified()) {
            return Err(ConfigError::new("advertise", "must be an address that others can reach"));
        }
        check_range("threads", self.threads as u64, 1, 256)?;
        self.check_listen()?;
        self.check_gossip()?;
        self.node.check()?;
        self.http.check()?;
        check_range("session.max_watched", self.session.max_watched as u64, 1, 1_000_000)?;
        self.upstream.check()?;
        self.tls.check()?;
        let second = Duration::from_secs(1);
        check_length("checks.update_interval", self.checks.update_interval, Duration::ZERO, second * 86_400)?;
        check_range("checks.max_output_bytes", self.checks.max_output_bytes as u64, 1, 1 << 20)?;
        check_range("checks.max_checks", self.checks.max_checks as u64, 1, 100_000)
    }
}

impl AgentConfig {
    /// Checks that `listen` can reach the servers and `advertise`. One socket serves and dials, so
    /// an address that it cannot reach is better reported here than by an agent that never
    /// connects.
    fn check_listen(&self) -> Result<(), ConfigError> {
        let listen = self.listen.ip();
        if listen.is_ipv4() && matches!(self.advertise, Some(Host::Ip(address)) if address.is_ipv6()) {
            let problem =
                format!("is the IPv4 address {listen}, where an `advertise` of IPv6 is not reached");
            return Err(ConfigError::new(
                "listen",
                format!("{problem}: use \"[::]:8301\" for both families"),
            ));
        }
        let servers = self.upstream.servers.iter().filter_map(|server| server.parse().ok());
        for server in servers.map(|server: SocketAddr| server.ip().to_canonical()) {
            let why = if listen.is_ipv4() && server.is_ipv6() {
                "use \"[::]:8301\" for both families"
            } else if listen.to_canonical().is_loopback() && !server.is_loopback() {
                "use an address of this host that the server reaches"
            } else {
                continue;
            };
            let problem = format!("is {listen}, from where the server {server} is not reached: {why}");
            return Err(ConfigError::new("listen", problem));
        }
        Ok(())
    }

    /// Checks that an agent in the mesh has an address for it.
    fn check_gossip(&self) -> Result<(), ConfigError> {
        if self.gossip.enabled && self.gossip_address().is_none() {
            let problem = "is empty, and there is no port above 65535, that of `listen`: name an address such \
                           as \"[::]:8302\", or listen on a lower port";
            return Err(ConfigError::new("gossip.listen", problem));
        }
        Ok(())
    }

    /// Returns the address for datagrams of the mesh; `None` if gossip is disabled, or if there is
    /// no port above that of `listen`, which [`Self::check`] rejects.
    pub fn gossip_address(&self) -> Option<SocketAddr> {
        let above = || match self.listen.port() {
            0 => Some(0),
            port => port.checked_add(1),
        };
        let beside = || Some(SocketAddr::new(self.listen.ip(), above()?));
        self.gossip.listen.or_else(beside).filter(|_| self.gossip.enabled)
    }

    /// Returns the address at which servers find this agent, if configured.
    pub fn advertised(&self) -> Option<Host> {
        let listens_at = || Some(self.listen.ip()).filter(|listen| !listen.is_unspecified()).map(Host::Ip);
        self.advertise.clone().or_else(listens_at)
    }
}

impl Default for GossipConfig {
    fn default() -> Self {
        Self { enabled: true, listen: None }
    }
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            tcp: Some(SocketAddr::from(([127, 0, 0, 1], 8500))),
            allow_non_loopback: false,
            allowed_hosts: Vec::new(),
            operator_over_tcp: false,
            refuse_tokens: false,
            socket: "/run/lockmesh/agent.sock".into(),
            socket_mode: FileMode(0o660),
            socket_group: String::new(),
            socket_check_interval: Duration::from_secs(60),
            session_ttl_min: Duration::from_secs(10),
            max_value_bytes: 512 << 10,
            max_transaction_bytes: 512 << 10,
            max_transaction_operations: 128,
            default_query_time: Duration::from_secs(5 * 60),
            max_query_time: Duration::from_secs(10 * 60),
            read_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(5 * 60),
            tcp_keep_alive: Duration::from_secs(15),
            max_connections: 65_536,
            max_connections_per_address: 200,
        }
    }
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self { default_health_window: WindowWord(HealthWindow::Default), max_watched: 16_384 }
    }
}

impl HttpConfig {
    /// Returns the path of the Unix socket, if configured.
    pub fn socket_path(&self) -> Option<&Path> {
        (!self.socket.as_os_str().is_empty()).then_some(self.socket.as_path())
    }

    /// Returns the only socket that accepts operator requests; `None` if every client may send
    /// them.
    pub fn operator_socket(&self) -> Option<&Path> {
        self.socket_path().filter(|_| !self.operator_over_tcp)
    }

    /// Rejects unusable values, each by its key.
    ///
    /// # Errors
    /// The first key whose value cannot be used, with what it must be. Nothing was started.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_addresses()?;
        self.check_hosts()?;
        let second = Duration::from_secs(1);
        check_length("http.socket_check_interval", self.socket_check_interval, second / 10, second * 3600)?;
        check_length("http.session_ttl_min", self.session_ttl_min, second / 10, second * 86_400)?;
        check_range("http.max_value_bytes", self.max_value_bytes as u64, 1, 4 << 20)?;
        check_range("http.max_transaction_bytes", self.max_transaction_bytes as u64, 1, 4 << 20)?;
        check_range("http.max_transaction_operations", self.max_transaction_operations as u64, 1, 128)?;
        // Before the default, whose upper limit it is.
        check_length("http.max_query_time", self.max_query_time, second, second * 3600)?;
        check_length("http.default_query_time", self.default_query_time, second, self.max_query_time)?;
        check_length("http.read_timeout", self.read_timeout, second, second * 600)?;
        if !self.idle_timeout.is_zero() {
            check_length("http.idle_timeout", self.idle_timeout, second, second * 86_400)?;
        }
        if !self.tcp_keep_alive.is_zero() {
            check_length("http.tcp_keep_alive", self.tcp_keep_alive, second, second * 3600)?;
        }
        let connections = self.max_connections as u64;
        check_range("http.max_connections", connections, 16, 1_000_000)?;
        check_range(
            "http.max_connections_per_address",
            self.max_connections_per_address as u64,
            1,
            connections,
        )
    }

    fn check_hosts(&self) -> Result<(), ConfigError> {
        const KEY: &str = "http.allowed_hosts";
        if self.allowed_hosts.len() > MAX_ALLOWED_HOSTS {
            return Err(ConfigError::new(KEY, format!("must have at most {MAX_ALLOWED_HOSTS} names")));
        }
        self.host_patterns().map(drop)
    }

    /// Returns the patterns of `allowed_hosts`.
    ///
    /// # Errors
    /// The first value that can match no request, with what to write instead.
    pub fn host_patterns(&self) -> Result<Vec<HostPattern>, ConfigError> {
        let parse = |text: &String| HostPattern::parse(text);
        let patterns = self.allowed_hosts.iter().map(parse).collect::<Result<_, _>>();
        patterns.map_err(|problem| ConfigError::new("http.allowed_hosts", problem))
    }

    /// Returns `true` if other hosts can reach the TCP address.
    pub fn is_reached_by_others(&self) -> bool {
        // `::ffff:127.0.0.1` is loopback too.
        self.tcp.is_some_and(|address| !address.ip().to_canonical().is_loopback())
    }

    fn check_addresses(&self) -> Result<(), ConfigError> {
        match self.tcp {
            Some(address) if self.is_reached_by_others() && !self.allow_non_loopback => {
                let problem = format!(
                    "is {address}, which other hosts may reach, and there is no access control: use 127.0.0.1 or \
                     [::1], or set `http.allow_non_loopback` if that is meant"
                );
                Err(ConfigError::new("http.tcp", problem))
            }
            None if self.socket_path().is_none() => Err(ConfigError::new(
                "http.socket",
                "and `http.tcp` are both empty: no client could reach the agent",
            )),
            _ => Ok(()),
        }
    }
}

impl Default for UpstreamConfig {
    fn default() -> Self {
        Self {
            servers: vec!["127.0.0.1:8300".into()],
            cluster_id: String::new(),
            hold_timeout: Duration::from_secs(7),
            probe_after: Duration::from_millis(100),
        }
    }
}

impl UpstreamConfig {
    /// Returns the cluster that the agent belongs to.
    pub fn cluster(&self) -> ClusterChoice {
        match self.cluster_id.as_str() {
            "" => ClusterChoice::First,
            "any" => ClusterChoice::Any,
            // Servers report their cluster in this spelling.
            id => ClusterChoice::Id(id.to_lowercase()),
        }
    }

    fn check(&self) -> Result<(), ConfigError> {
        if self.servers.is_empty() {
            return Err(ConfigError::new("upstream.servers", "must name at least one server as `host:port`"));
        }
        for server in &self.servers {
            if server.parse::<HostPort>().is_err() {
                let problem = format!("has {server:?}, but a server is named as `host:port`");
                return Err(ConfigError::new("upstream.servers", problem));
            }
        }
        if let ClusterChoice::Id(id) = self.cluster()
            && uuid::Uuid::try_parse(&id).is_err()
        {
            let problem = format!("is {id:?}, but must be a cluster's UUID, \"any\", or empty");
            return Err(ConfigError::new("upstream.cluster_id", problem));
        }
        let second = Duration::from_secs(1);
        check_length("upstream.hold_timeout", self.hold_timeout, Duration::ZERO, second * 600)?;
        check_length("upstream.probe_after", self.probe_after, second / 100, second * 10)
    }
}

impl Default for CheckConfig {
    fn default() -> Self {
        let CheckLimits { update_interval, max_output_bytes, max_checks } = CheckLimits::default();
        Self { update_interval, max_output_bytes, max_checks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(change: impl FnOnce(&mut AgentConfig)) -> String {
        let mut config = AgentConfig::default();
        change(&mut config);
        config.check().expect_err("the value is wrong").to_string()
    }

    #[test]
    fn the_defaults_are_good() {
        assert_eq!(AgentConfig::default().check(), Ok(()));
        let mut config = AgentConfig::default();
        (config.http.idle_timeout, config.http.tcp_keep_alive) = (Duration::ZERO, Duration::ZERO);
        assert_eq!(config.check(), Ok(()), "without limits");
    }

    #[test]
    fn an_open_door_must_be_asked_for_by_name() {
        let open = |c: &mut AgentConfig| c.http.tcp = Some(SocketAddr::from(([0, 0, 0, 0], 8500)));
        assert!(complaint(open).contains("set `http.allow_non_loopback`"));
        assert!(!AgentConfig::default().http.is_reached_by_others());
        let mut config = AgentConfig::default();
        open(&mut config);
        config.http.allow_non_loopback = true;
        assert_eq!(config.check(), Ok(()));
        assert!(config.http.is_reached_by_others());
        config.http = HttpConfig { tcp: "[::ffff:127.0.0.1]:8500".parse().ok(), ..HttpConfig::default() };
        assert_eq!(config.check(), Ok(()), "a mapped loopback address is loopback");
        assert!(!config.http.is_reached_by_others());
    }

    #[test]
    fn a_wrong_value_is_refused_by_its_key() {
        assert!(complaint(|c| c.upstream.servers.clear()).starts_with("`upstream.servers`"));
        assert!(complaint(|c| c.upstream.servers.push("host".into())).contains("\"host\""));
        assert!(complaint(|c| c.upstream.servers.push("host:0".into())).contains("\"host:0\""));
        assert!(
            complaint(|c| c.upstream.cluster_id = "c1".into()).starts_with("`upstream.cluster_id` is \"c1\"")
        );
        assert!(complaint(|c| c.upstream.probe_after = Duration::ZERO).starts_with("`upstream.probe_after`"));
        assert!(complaint(|c| c.http.max_transaction_operations = 129).contains("must be 1 to 128"));
        assert!(complaint(|c| c.http.idle_timeout = Duration::from_millis(1)).contains("must be 1s to 24h"));
        assert!(
            complaint(|c| c.http.tcp_keep_alive = Duration::from_secs(3601)).contains("must be 1s to 1h")
        );
        assert!(complaint(|c| c.advertise = "::".parse().ok()).starts_with("`advertise`"));
        let listen = |listen: &str, server: &str| {
            let (listen, server) = (listen.parse().expect("an address"), server.into());
            move |c: &mut AgentConfig| (c.listen, c.upstream.servers) = (listen, vec![server])
        };
        assert!(
            complaint(listen("0.0.0.0:1", "[2001:db8::1]:8300")).starts_with("`listen` is 0.0.0.0, from")
        );
        assert!(complaint(listen("127.0.0.1:1", "10.0.0.5:8300")).contains("server 10.0.0.5 is not reached"));
        let all_of_ipv4 = |c: &mut AgentConfig| c.listen = "0.0.0.0:1".parse().expect("an address");
        let advertised = complaint(|c| (all_of_ipv4(c), c.advertise = "2001:db8::1".parse().ok()).1);
        assert!(advertised.contains("for both families"), "{advertised}");
        for (at, server) in [("[::]:0", "10.0.0.5:8300"), ("[::]:0", "[::1]:1"), ("127.0.0.1:0", "s1:1")] {
            let mut config = AgentConfig::default();
            listen(at, server)(&mut config);
            assert_eq!(config.check(), Ok(()), "{at} reaches {server}");
        }
        let hosts = |name: &str, count: usize| {
            let names = vec![name.into(); count];
            complaint(|c| c.http.allowed_hosts = names)
        };
        assert!(
            hosts("host:8500", 1).ends_with("write \"host\"")
                && hosts("*.example", 1).ends_with("write \".example\"")
        );
        assert!(hosts("", 1).starts_with("`http.allowed_hosts`") && hosts("a", 65).contains("at most 64"));
        let unreachable = |c: &mut AgentConfig| (c.http.tcp, c.http.socket) = (None, PathBuf::new());
        assert!(complaint(unreachable).contains("no client could reach the agent"));
    }

    #[test]
    fn gossip_is_received_one_port_above_unless_an_address_is_named() {
        let address = |listen: &str, gossip: &str, enabled| {
            let gossip = GossipConfig { enabled, listen: gossip.parse().ok() };
            let listen = listen.parse().expect("an address");
            let config = AgentConfig { listen, gossip, ..AgentConfig::default() };
            config.check().map(|()| config.gossip_address().map(|address| address.to_string()))
        };
        for (listen, gossip, expected) in [
            ("[::]:8301", "", "[::]:8302"),
            ("[::]:0", "", "[::]:0"),
            ("[::]:65534", "", "[::]:65535"),
            ("[::]:65535", "10.0.0.7:8302", "10.0.0.7:8302"),
        ] {
            assert_eq!(address(listen, gossip, true), Ok(Some(expected.into())), "{listen}");
        }
        assert_eq!(address("[::]:65535", "", false), Ok(None), "gossip is disabled");
        let refused = address("[::]:65535", "", true).expect_err("no port is left").to_string();
        assert!(refused.starts_with("`gossip.listen`") && refused.contains("lower port"), "{refused}");
    }
}
