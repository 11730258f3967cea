//! The context of every request.

use super::access::{Rules, SharedRules};
use super::audit::Audit;
use super::token::Tokens;
use super::unix_socket::SocketHealth;
use crate::acl::{Acl, AgentTokens};
use crate::bound_sessions::BoundSessions;
use crate::config::{AgentConfig, HostPattern, Scripts};
use crate::events::Events;
use crate::metrics::Intervals;
use crate::monitor::Monitors;
use crate::node::Identity;
use crate::registry::Registry;
use crate::reload::Asking;
use crate::session_watches::SessionWatches;
use crate::upstream::Upstream;
use lockmesh_net::config::ConfigError;
use lockmesh_protocol::lease::HealthWindow;
use lockmesh_protocol::record::Agent;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Limits on client requests. Sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// The maximum size of a value.
    pub kv_max_value_size: usize,
    /// The maximum size of a transaction's body; the maximum value size applies if that is larger.
    pub txn_max_req_len: usize,
    /// The maximum size of any other body, except a snapshot's.
    pub max_body_size: usize,
    /// The maximum size of a snapshot to restore.
    pub max_snapshot_size: u64,
    /// The maximum number of operations in a transaction.
    pub txn_max_operations: usize,
    /// The minimum session TTL, unless it is 0.
    pub session_ttl_min: Duration,
    /// The default wait of a blocking query.
    pub default_query_time: Duration,
    /// The default health window of a session: how long its node may be silent.
    pub default_health_window: HealthWindow,
    /// The maximum number of sessions followed at a time.
    pub max_watched_sessions: usize,
    /// The maximum number of sessions bound to processes at a time.
    pub max_bound_sessions: usize,
    /// The minimum size of a response that is compressed; 0 for no compression.
    pub compress_min_bytes: usize,
    /// The maximum number of monitors of the log at a time.
    pub max_monitors: usize,
    /// The maximum wait of a blocking query, or of an acquire for a lock.
    pub max_query_time: Duration,
    /// The timeout for a request's head.
    pub header_read_timeout: Duration,
    /// The maximum idle time of a TCP connection between requests; `None` for no limit.
    pub idle_timeout: Option<Duration>,
    /// The idle time before the first TCP keep-alive probe; `None` for no probes. See
    /// [`crate::http::listener`].
    pub tcp_keep_alive: Option<Duration>,
    /// The timeout for a request's body; for a snapshot, between any two pieces.
    pub body_read_timeout: Duration,
    /// The maximum size of a head, all header lines together.
    pub max_header_size: usize,
    /// The maximum number of connections from one non-loopback address.
    pub connections_per_client: usize,
    /// The maximum number of connections, of which an eighth is reserved for the Unix socket and
    /// for guards.
    pub connections: usize,
    /// The interval at which the Unix socket is checked, and bound again if its file is gone.
    pub socket_check_interval: Duration,
    /// The grace period for requests under way at shutdown.
    pub shutdown_grace: Duration,
    /// `true` if every response is indented, not only those of `?pretty`.
    pub indent_always: bool,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            kv_max_value_size: 512 * 1024,
            txn_max_req_len: 512 * 1024,
            max_body_size: 1024 * 1024,
            max_snapshot_size: 64 << 30,
            txn_max_operations: 128,
            session_ttl_min: Duration::from_secs(10),
            default_query_time: Duration::from_secs(300),
            default_health_window: HealthWindow::Default,
            max_watched_sessions: 16_384,
            max_bound_sessions: 1_024,
            compress_min_bytes: 1400,
            max_monitors: 8,
            max_query_time: Duration::from_secs(600),
            header_read_timeout: Duration::from_secs(10),
            idle_timeout: Some(Duration::from_secs(300)),
            tcp_keep_alive: Some(Duration::from_secs(15)),
            body_read_timeout: Duration::from_secs(30),
            max_header_size: 128 * 1024,
            connections_per_client: 200,
            connections: 50_000,
            socket_check_interval: Duration::from_secs(60),
            shutdown_grace: Duration::from_secs(5),
            indent_always: false,
        }
    }
}

/// The context of every request.
#[derive(Debug)]
pub struct Api {
    /// The upstream to the quorum.
    pub upstream: Upstream,
    /// The identity of this agent.
    pub identity: Identity,
    /// Limits on client requests.
    pub limits: HttpLimits,
    /// This agent's own services and checks.
    pub registry: Arc<Registry>,
    /// The requests that are accepted of each client.
    pub access: Access,
    /// Access control by tokens.
    pub acl: Arc<Acl>,
    /// What clients follow in this process.
    pub feeds: Feeds,
    /// The channel for reload and leave requests to this process.
    pub reload: Asking,
    pub(crate) own: OwnState,
}

/// The requests that are accepted of each client, and the record of privileged ones.
#[derive(Debug, Default)]
pub struct Access {
    /// The clients that may register script checks.
    pub scripts: Scripts,
    /// The `Host` names accepted of browsers over TCP besides this host's own.
    pub allowed_hosts: Vec<HostPattern>,
    /// The only socket that accepts operator requests; `None` if every client may send them.
    pub operator_socket: Option<PathBuf>,
    /// The ceiling on the requests of each client.
    pub(crate) rules: SharedRules,
    pub(super) tokens: Tokens,
    pub(super) audit: Audit,
}

/// What clients follow in this process: sessions, the log, metrics and user events.
#[derive(Clone, Debug)]
pub struct Feeds {
    /// The sessions that guards follow.
    pub session_watches: Arc<SessionWatches>,
    /// The sessions that end with processes.
    pub bound_sessions: Arc<BoundSessions>,
    /// The clients that read the log.
    pub monitors: Arc<Monitors>,
    /// The metrics of the last interval.
    pub intervals: Arc<Intervals>,
    /// The user events of this host.
    pub events: Arc<Events>,
}

/// What this agent knows about itself.
#[derive(Debug, Default)]
pub(crate) struct OwnState {
    /// Its entry of the roster, as last read: it does not change while its lease lasts.
    pub(super) agent: Mutex<Option<Arc<Agent>>>,
    pub(super) socket: SocketHealth,
}

impl Api {
    /// Creates the context of an agent outside the mesh, with default access. Nothing runs yet: see
    /// [`crate::http::serve`], [`Registry::run`] and [`Intervals::run`].
    pub fn new(upstream: Upstream, identity: Identity, limits: HttpLimits, registry: Arc<Registry>) -> Self {
        let feeds = Feeds::new(&upstream, &limits, Events::alone(identity.node.clone()));
        let acl = Acl::start(&upstream, AgentTokens::default(), None);
        let (access, reload, own) = (Access::default(), Asking::default(), OwnState::default());
        Self { upstream, identity, limits, registry, access, acl, feeds, reload, own }
    }
}

impl Access {
    /// Returns the access of this configuration.
    ///
    /// # Errors
    /// An allowed host can match no request, or a rule names an unknown user or group.
    pub fn new(config: &AgentConfig) -> Result<Self, ConfigError> {
        let AgentConfig { http, registry, access, .. } = config;
        Ok(Self {
            scripts: registry.scripts,
            rules: Rules::new(access)?.into(),
            allowed_hosts: http.host_patterns()?,
            operator_socket: http.operator_socket().map(PathBuf::from),
            tokens: Tokens::new(http.refuse_tokens),
            audit: Audit::default(),
        })
    }
}

impl Feeds {
    /// Creates the feeds of an agent with these user events.
    pub fn new(upstream: &Upstream, limits: &HttpLimits, events: Arc<Events>) -> Self {
        let (node, most) = (events.node.clone(), limits.max_watched_sessions);
        Self {
            session_watches: SessionWatches::new(upstream.clone(), node.clone(), most),
            bound_sessions: BoundSessions::start(upstream.clone(), node, limits.max_bound_sessions),
            monitors: Arc::new(Monitors::new(limits.max_monitors)),
            intervals: Arc::default(),
            events,
        }
    }

    /// Ends every stream and poll.
    pub fn stop(&self) {
        self.session_watches.stop();
        self.bound_sessions.stop();
        self.events.stop();
        self.monitors.stop();
    }
}
