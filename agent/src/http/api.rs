//! What every request is served from.

use super::audit::Audit;
use super::token::Tokens;
use crate::checks::Checks;
use crate::events::Events;
use crate::node::Identity;
use crate::reload::Asking;
use crate::session_watches::SessionWatches;
use crate::upstream::Upstream;
use lockmesh_protocol::lease::HealthWindow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How much a client may ask for. Sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// The longest value of a key.
    pub kv_max_value_size: usize,
    /// The longest body of a transaction; the longest value counts where that is more.
    pub txn_max_req_len: usize,
    /// The longest body of any other request, but a snapshot's.
    pub max_body_size: usize,
    /// The longest snapshot that is taken.
    pub max_snapshot_size: u64,
    /// The most operations in a transaction.
    pub txn_max_operations: usize,
    /// The shortest TTL of a session, except none.
    pub session_ttl_min: Duration,
    /// How long a blocking query waits where the client does not say.
    pub default_query_time: Duration,
    /// How long the node of a session may stay silent, where its creator does not say.
    pub default_health_window: HealthWindow,
    /// The most sessions that are followed at a time.
    pub max_watched_sessions: usize,
    /// How long a blocking query, or an acquire for a lock, waits at most.
    pub max_query_time: Duration,
    /// How long a request's head may take to arrive.
    pub header_read_timeout: Duration,
    /// How long a request's body may take to arrive; a snapshot's may take that between any two
    /// pieces.
    pub body_read_timeout: Duration,
    /// The longest head, all header lines together.
    pub max_header_size: usize,
    /// The most connections from one address that is not this machine's own.
    pub connections_per_client: usize,
    /// The most connections in all.
    pub connections: usize,
    /// How long requests that are under way may still take at shutdown.
    pub shutdown_grace: Duration,
    /// Whether every answer is indented, not only those of `?pretty`.
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
            max_query_time: Duration::from_secs(600),
            header_read_timeout: Duration::from_secs(10),
            body_read_timeout: Duration::from_secs(30),
            max_header_size: 128 * 1024,
            connections_per_client: 200,
            connections: 50_000,
            shutdown_grace: Duration::from_secs(5),
            indent_always: false,
        }
    }
}

/// Everything that a request is served from.
#[derive(Debug)]
pub struct Api {
    /// The way to the quorum.
    pub upstream: Upstream,
    /// Who this agent is.
    pub identity: Identity,
    /// What clients may ask for.
    pub limits: HttpLimits,
    /// This agent's own checks.
    pub checks: Arc<Checks>,
    /// The sessions that guards follow.
    pub session_watches: Arc<SessionWatches>,
    /// The user events of this host.
    pub events: Arc<Events>,
    /// How to ask this process to reload.
    pub reload: Asking,
    /// The names, besides its own, by which requests over TCP may call this host.
    pub allowed_hosts: Vec<String>,
    /// The Unix socket on which alone operators' requests are accepted; none if every client may
    /// send them.
    pub operator_socket: Option<PathBuf>,
    pub(super) audit: Audit,
    pub(super) tokens: Tokens,
}

impl Api {
    /// Puts the parts together, of an agent that is in no mesh. Nothing runs yet: see
    /// [`crate::http::serve`] and [`Checks::run`].
    pub fn new(upstream: Upstream, identity: Identity, limits: HttpLimits, checks: Arc<Checks>) -> Self {
        let most = limits.max_watched_sessions;
        let events = Events::alone(identity.node.clone());
        let session_watches = SessionWatches::new(upstream.clone(), identity.node.clone(), most);
        Self {
            upstream,
            identity,
            limits,
            checks,
            session_watches,
            events,
            reload: Asking::default(),
            allowed_hosts: Vec::new(),
            operator_socket: None,
            audit: Audit::default(),
            tokens: Tokens::default(),
        }
    }

    /// The same, with the events of the mesh.
    #[must_use]
    pub fn with_events(self, events: Arc<Events>) -> Self {
        Self { events, ..self }
    }

    /// The same, in a process that can be asked to reload.
    #[must_use]
    pub fn with_reload(self, reload: Asking) -> Self {
        Self { reload, ..self }
    }

    /// The same, under more names than its own.
    #[must_use]
    pub fn with_allowed_hosts(self, allowed_hosts: Vec<String>) -> Self {
        Self { allowed_hosts, ..self }
    }

    /// The same, with operators' requests accepted on this Unix socket alone.
    #[must_use]
    pub fn with_operator_socket(self, operator_socket: Option<PathBuf>) -> Self {
        Self { operator_socket, ..self }
    }

    /// The same, with requests that carry a token rejected, if `refuse` is set. Otherwise tokens
    /// are ignored.
    #[must_use]
    pub fn with_tokens_refused(self, refuse: bool) -> Self {
        Self { tokens: Tokens::new(refuse), ..self }
    }
}
