//! The configuration of an agent: one tree of plain values with defaults.
//!
//! It is read once, from a file, the environment or flags, and checked. Unknown keys are rejected.
//! `deploy/config/agent.toml` lists every key with its default and a comment; a test keeps that
//! file equal to [`AgentConfig::default`].

mod access;
pub mod definitions;
mod hosts;
mod scripts;
mod value;

pub use access::{AccessConfig, Level, OVERFLOW_ID, Origins, Subject, UserRule, rule_key};
pub use hosts::{HostPattern, HostPatternError};
pub use scripts::Scripts;
pub use value::{FileMode, WindowWord};

use lockmesh_agent_core::cluster::ClusterChoice;
use lockmesh_agent_core::definitions::{Configured, NewCheck, ServiceRegistration};
use lockmesh_agent_core::definitions::{MAX_META, check_meta};
use lockmesh_agent_core::registry::{Limits, Source};
use lockmesh_net::config::{
    ConfigError, LogConfig, NodeConfig, Section, TlsConfig, check_path, empty_is_none, hours, mins, ms, secs,
};
use lockmesh_net::sections;
use lockmesh_protocol::duration;
use lockmesh_protocol::host_port::{Host, HostPort};
use lockmesh_protocol::lease::HealthWindow;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The maximum number of host names in `allowed_hosts`.
const MAX_ALLOWED_HOSTS: usize = 64;

sections! {
    /// The configuration of an agent.
    pub struct AgentConfig by Self::check_together {
        /// The directory for data that must outlive the process: the node's UUID and the cluster
        /// pin.
        data_dir: PathBuf = "/var/lib/lockmesh/agent".into(), by check_path;
        /// A file that holds the process id while it runs; empty for none.
        pid_file: PathBuf = PathBuf::new();
        /// `true` if files and folders of other users are used, who can replace them.
        allow_other_owners: bool = false;
        /// The UDP address at which servers challenge this agent, and from which it calls them:
        /// IPv4 or IPv6, as `ip:port`. `[::]` means all addresses of both families, or of IPv4 on a
        /// host without IPv6. Port 0 selects a free one.
        listen: SocketAddr = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 8301));
        /// The address in the catalog at which servers reach `listen`: an IP address, or a name
        /// that is resolved with every connection. Empty for the listen address, or for the source
        /// address of the connections to the servers if that is a wildcard.
        advertise: Option<Host> as "empty_is_none" = None, by check_advertise;
        /// The number of threads that serve applications and the connections to the servers.
        threads: usize = 1, in 1..=256;
        /// `true` if the node leaves the cluster on SIGTERM. Otherwise the servers are notified
        /// that it will return, and keep its sessions for a while.
        leave_on_terminate: bool = false;
        /// Services of this host, with the fields of Consul's service definitions.
        services: Vec<Value> = Vec::new();
        /// Health checks of this host, with the fields of Consul's check definitions.
        checks: Vec<Value> as "value::definitions" = Vec::new();
        /// Metadata of this node: at most 64 pairs, with the rules of a service's metadata.
        node_meta: BTreeMap<String, String> = BTreeMap::new(), by check_node_meta;
        /// The agent's role in the mesh.
        gossip: GossipConfig;
        /// The identity of this machine.
        node: NodeConfig;
        /// The API for applications on this host.
        http: HttpConfig;
        /// The requests that clients may send.
        access: AccessConfig;
        /// The agent's own tokens.
        acl: AclConfig;
        /// Defaults and limits of sessions.
        session: SessionConfig;
        /// The connection to the quorum.
        upstream: UpstreamConfig;
        /// The agent's certificate.
        tls: TlsConfig = TlsConfig::of_role("agent"), by Section::check_at;
        /// Limits of services and health checks.
        registry: RegistryConfig;
        /// Logging.
        log: LogConfig;
    }

    /// The API for applications on this host: its listeners and limits.
    pub struct HttpConfig by Self::check_addresses {
        /// The TCP address, IPv4 or IPv6, as `ip:port`; empty for none.
        tcp: Option<SocketAddr> as "empty_is_none" = Some(SocketAddr::from(([127, 0, 0, 1], 8500)));
        /// `true` if `tcp` may be reachable from other hosts, whose clients are not authenticated.
        allow_non_loopback: bool = false;
        /// The `Host` names accepted over TCP besides `localhost` and the node's name: names,
        /// suffixes such as `.svc.cluster.local`, or `*` for all. At most 64.
        allowed_hosts: Vec<String> = Vec::new(), by check_hosts;
        /// `true` if operator requests are accepted over TCP even if there is a Unix socket;
        /// without a socket they always are.
        operator_over_tcp: bool = false;
        /// `true` to reject requests that carry a token with 403 while access control is off.
        /// Otherwise the token is ignored then, with one warning per client.
        refuse_tokens: bool = false;
        /// The path of the Unix socket; empty for none.
        socket: PathBuf = "/run/lockmesh/agent.sock".into();
        /// The socket's permissions, octal.
        socket_mode: FileMode = FileMode(0o660);
        /// The socket's group, by name or number; empty for the process's own.
        socket_group: String = String::new();
        /// The interval at which the socket is checked, and bound again if its file is gone.
        socket_check_interval: Duration as "duration::text" = mins(1), in ms(100)..=hours(1);
        /// The minimum session TTL.
        session_ttl_min: Duration as "duration::text" = secs(10), in ms(100)..=hours(24);
        /// The maximum size of a value in bytes.
        max_value_bytes: usize = 512 << 10, in 1..=4 << 20;
        /// The maximum size of a transaction's body in bytes.
        max_transaction_bytes: usize = 512 << 10, in 1..=4 << 20;
        /// The maximum number of operations in a transaction.
        max_transaction_operations: usize = 128, in 1..=128;
        /// The default wait of a blocking query.
        default_query_time: Duration as "duration::text" = mins(5), in secs(1)..=*max_query_time;
        /// The maximum wait of a blocking query, or of an acquire for a lock.
        max_query_time: Duration as "duration::text" = mins(10), in secs(1)..=hours(1);
        /// The timeout for a request's head, and for each further part of its body.
        read_timeout: Duration as "duration::text" = secs(10), in secs(1)..=mins(10);
        /// The maximum idle time of a TCP connection between requests; 0 for no limit.
        idle_timeout: Duration as "duration::text" = mins(5), in secs(1)..=hours(24), or secs(0);
        /// The idle time before the first TCP keep-alive probe; 0 for no probes. A client that
        /// acknowledges nothing for twice this time is disconnected.
        tcp_keep_alive: Duration as "duration::text" = secs(15), in secs(1)..=hours(1), or secs(0);
        /// The maximum number of connections, of which an eighth is reserved for the Unix socket
        /// and for guards.
        max_connections: usize = 65_536, in 16..=1_000_000;
        /// The maximum number of connections of one client address other than loopback.
        max_connections_per_address: usize = 200, in 1..=*max_connections;
        /// The minimum size in bytes of a response that is compressed with gzip for clients that
        /// accept it; 0 for no compression.
        compress_min_bytes: usize = 1400, in 256..=64 << 20, or 0;
        /// The maximum number of clients that read this process's log at a time; 0 for none.
        max_monitors: usize = 8, in 0..=64;
    }

    /// The agent's role in the mesh, in which agents detect failed hosts.
    pub struct GossipConfig {
        /// `true` if the agent joins the mesh.
        enabled: bool = true;
        /// The UDP address for datagrams of other agents, as `ip:port`; empty for the address of
        /// the agent's own `listen`, with the next higher port.
        listen: Option<SocketAddr> as "empty_is_none" = None;
    }

    /// Access control on this agent. Its settings are those of the cluster.
    pub struct AclConfig {
        /// `true` if tokens that are set with `PUT /v1/agent/token/NAME` outlive the process.
        enable_token_persistence: bool = false;
        /// The agent's own tokens.
        tokens: AclTokens;
    }

    /// The agent's own tokens.
    pub struct AclTokens {
        /// The secret of the token for requests without one; empty for none.
        default: String = String::new();
    }

    /// Sessions that are created through this agent, and those that guards follow here.
    pub struct SessionConfig {
        /// The default health window of a session: how long its node may be silent.
        default_health_window: WindowWord = WindowWord(HealthWindow::Default);
        /// The maximum number of sessions that guards follow here at a time.
        max_watched: usize = 16_384, in 1..=1_000_000;
        /// The maximum number of sessions that are bound to processes of this host.
        max_bound: usize = 1_024, in 0..=100_000;
    }

    /// The connection to the quorum.
    pub struct UpstreamConfig {
        /// The servers as `host:port`. One that answers is enough; it reports the others.
        servers: Vec<String> = vec!["127.0.0.1:8300".into()], by check_servers;
        /// The cluster that the agent belongs to: its UUID; empty for the first one that registers
        /// the agent; `any` for any cluster that answers.
        cluster_id: String = String::new(), by check_cluster_id;
        /// The time for which a request is retried without a leader, and the reply timeout, which
        /// is at least 7 s, and 10 s longer for a list that may wait for a view.
        hold_timeout: Duration as "duration::text" = secs(7), in secs(0)..=mins(10);
        /// The time without a reply from the leader after which the other servers are asked for a
        /// new one.
        probe_after: Duration as "duration::text" = ms(100), in ms(10)..=secs(10);
    }

    /// Limits of services and health checks.
    pub struct RegistryConfig {
        /// The mean delay before a change of a check's output alone is written to the catalog.
        update_interval: Duration as "duration::text" = Limits::default().update_interval,
            in secs(0)..=hours(24);
        /// The maximum size of a check's output in bytes.
        max_output_bytes: usize = Limits::default().max_output_bytes, in 1..=1 << 20;
        /// The maximum number of checks.
        max_checks: usize = Limits::default().max_checks, in 1..=100_000;
        /// The maximum number of services.
        max_services: usize = Limits::default().max_services, in 1..=100_000;
        /// The maximum number of checks that run at a time.
        max_running: usize = Limits::default().max_running, in 1..=10_000;
        /// Who may define checks that run a script.
        scripts: Scripts = Scripts::Disabled;
    }
}

impl AgentConfig {
    /// Returns the services and checks of this host.
    ///
    /// # Errors
    /// The first definition that has to be changed.
    pub fn configured(&self) -> Result<Configured, ConfigError> {
        let configured = definitions::configured(&self.services, &self.checks)?;
        let of_services = configured.services.iter().flat_map(ServiceRegistration::all_checks);
        let is_refused = |check: &&NewCheck| !self.registry.scripts.permit(check, Source::Config);
        let refused = of_services.chain(&configured.checks).find(is_refused);
        if let Some(NewCheck { id, .. }) = refused {
            let problem = format!("is \"disabled\", but the check {id:?} runs a script: use \"config\"");
            return Err(ConfigError::new("registry.scripts", problem));
        }
        Ok(configured)
    }

    fn check_together(&self) -> Result<(), ConfigError> {
        self.check_mesh()?;
        self.configured().map(|_| ())
    }

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
        // Without names, which are resolved with every connection, perhaps to other addresses.
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

    /// Checks `listen`, and that an agent in the mesh has an address for it.
    fn check_mesh(&self) -> Result<(), ConfigError> {
        self.check_listen()?;
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
            // If `listen` has any free port, so has gossip: the port above it is not known yet.
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

fn check_advertise(advertise: &Option<Host>, key: &str) -> Result<(), ConfigError> {
    match advertise {
        Some(Host::Ip(address)) if address.is_unspecified() => {
            Err(ConfigError::new(key, "must be an address that others can reach"))
        }
        _ => Ok(()),
    }
}

fn check_node_meta(meta: &BTreeMap<String, String>, key: &str) -> Result<(), ConfigError> {
    let (pairs, in_key, in_value) = MAX_META;
    check_meta(meta).map_err(|reason| {
        let rule = format!(
            "use at most {pairs} pairs, keys of up to {in_key} letters, digits, `-` and `_`, and values of up to \
             {in_value} bytes"
        );
        ConfigError::new(key, format!("cannot be used: {reason}; {rule}"))
    })
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

    /// Returns the patterns of `allowed_hosts`.
    ///
    /// # Errors
    /// The first value that can match no request, with what to write instead.
    pub fn host_patterns(&self) -> Result<Vec<HostPattern>, ConfigError> {
        host_patterns(&self.allowed_hosts, "http.allowed_hosts")
    }

    /// Returns `true` if other hosts can reach the TCP address.
    fn is_reached_by_others(&self) -> bool {
        // `::ffff:127.0.0.1` is loopback too.
        self.tcp.is_some_and(|address| !address.ip().to_canonical().is_loopback())
    }

    fn check_addresses(&self) -> Result<(), ConfigError> {
        match self.tcp {
            Some(address) if self.is_reached_by_others() && !self.allow_non_loopback => {
                let problem = format!(
                    "is {address}, which other hosts may reach, and clients are not authenticated: use 127.0.0.1 or \
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

fn check_hosts(hosts: &[String], key: &str) -> Result<(), ConfigError> {
    if hosts.len() > MAX_ALLOWED_HOSTS {
        return Err(ConfigError::new(key, format!("must have at most {MAX_ALLOWED_HOSTS} names")));
    }
    host_patterns(hosts, key).map(drop)
}

fn host_patterns(hosts: &[String], key: &str) -> Result<Vec<HostPattern>, ConfigError> {
    let patterns = hosts.iter().map(|text| HostPattern::parse(text)).collect::<Result<_, _>>();
    patterns.map_err(|error: HostPatternError| ConfigError::new(key, error.to_string()))
}

impl UpstreamConfig {
    /// Returns the cluster that the agent belongs to.
    pub fn cluster(&self) -> ClusterChoice {
        cluster(&self.cluster_id)
    }
}

fn cluster(id: &str) -> ClusterChoice {
    match id {
        "" => ClusterChoice::First,
        "any" => ClusterChoice::Any,
        // Servers report their cluster in this spelling.
        id => ClusterChoice::Id(id.to_lowercase()),
    }
}

fn check_servers(servers: &[String], key: &str) -> Result<(), ConfigError> {
    if servers.is_empty() {
        return Err(ConfigError::new(key, "must name at least one server as `host:port`"));
    }
    match servers.iter().find(|server| server.parse::<HostPort>().is_err()) {
        None => Ok(()),
        Some(wrong) => {
            Err(ConfigError::new(key, format!("has {wrong:?}, but a server is named as `host:port`")))
        }
    }
}

fn check_cluster_id(id: &str, key: &str) -> Result<(), ConfigError> {
    match cluster(id) {
        ClusterChoice::Id(id) if uuid::Uuid::try_parse(&id).is_err() => {
            let problem = format!("is {id:?}, but must be a cluster's UUID, \"any\", or empty");
            Err(ConfigError::new(key, problem))
        }
        _ => Ok(()),
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
    fn non_loopback_needs_explicit_permission() {
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
    fn invalid_value_names_its_key() {
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
    fn gossip_defaults_to_next_port() {
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
