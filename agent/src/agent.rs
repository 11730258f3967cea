//! Starts all parts of an agent, and stops them in the reverse order. No other file does.

use crate::acl::{Acl, AgentTokens};
use crate::config::{AgentConfig, HttpConfig, RegistryConfig, SessionConfig, UpstreamConfig};
use crate::error::AgentError;
use crate::events::Events;
use crate::handover::{self, HandoverFile};
use crate::http::{self, Access, Api, Feeds, HttpLimits, Listeners, Rules, SharedRules, UnixSocket};
use crate::incarnation;
use crate::listener::Listener;
use crate::mesh::Member;
use crate::mesh_questions::MeshQuestions;
use crate::metrics;
use crate::node::{self, NodeIdentity, NodeMeta};
use crate::own_address::OwnAddress;
use crate::pin::PinStore;
use crate::registry::Registry;
use crate::reload::Asking;
use crate::upstream::calls::StatusOf;
use crate::upstream::{Upstream, UpstreamOptions};
use crate::{BUILD, COMMIT, VERSION};
use lockmesh_agent_core::cluster::ClusterChoice;
use lockmesh_agent_core::handover::Handover;
use lockmesh_agent_core::registry::Limits;
use lockmesh_net::config::Section;
use lockmesh_net::datagram::DatagramSocket;
use lockmesh_net::{CertificateLife, Endpoint, Identity, QuicOptions, Role, expiry};
use lockmesh_protocol::command::AgentRegistration;
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::record::Service;
use lockmesh_protocol::rpc::Unavailable;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};

/// The interval at which startup checks whether the cluster serves.
const READY_INTERVAL: Duration = Duration::from_millis(20);

/// The inputs of an agent.
#[derive(Debug)]
pub struct AgentOptions {
    /// Its configuration.
    pub config: AgentConfig,
    /// The identity of this machine.
    pub node: NodeIdentity,
    /// Its certificate.
    pub identity: Identity,
    /// The address at which this process also runs a server, if it does.
    pub server: Option<SocketAddr>,
    /// The channel on which its API requests a reload of this process.
    pub reload: Asking,
}

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    identity: node::Identity,
    upstream: Upstream,
    registry: Arc<Registry>,
    rules: SharedRules,
    acl: Arc<Acl>,
    has_left: AtomicBool,
    tcp: Vec<SocketAddr>,
    socket: Option<PathBuf>,
    shutdown: watch::Sender<bool>,
    /// Serve applications, and keep the catalog equal to the registry.
    tasks: [JoinHandle<()>; 2],
    feeds: Feeds,
    handover: HandoverFile,
    taking_over: JoinHandle<()>,
    lives: watch::Sender<Vec<CertificateLife>>,
}

impl Agent {
    /// Binds the sockets and begins to serve; must be called on a runtime. Requests are answered
    /// once the quorum answers.
    ///
    /// # Errors
    /// No part of the agent runs: bound sockets are closed. The error names the key, file or
    /// address, and what to do about it.
    pub fn start(options: AgentOptions) -> Result<Self, AgentError> {
        let AgentOptions { config, node, identity, server, reload } = options;
        config.check()?;
        // The servers would reject a registration with another certificate.
        identity.peer().admits(Role::Agent, &node.name)?;
        tracing::info!(node = %node.name, version = VERSION, commit = COMMIT, "starting an agent");
        let limits = limits(&config.http, &config.session, http::serve::raise_open_files_limit());
        // Before any part is started that would have to be stopped again if this fails.
        let Sockets { listeners, endpoint, datagrams } = Sockets::bind(&config, &identity)?;
        let access = Access::new(&config)?;
        let folder = Some(config.data_dir.as_path()).filter(|_| config.acl.enable_token_persistence);
        let tokens = AgentTokens::open(&config.acl.tokens.default, folder)?;
        let lives = show_metrics(&identity);
        let local = local_identity(&config, &node, server);
        let upstream = start_upstream(&config, identity, &local, (&endpoint, datagrams.as_ref()))?;
        let registry = open_registry(&config, &upstream, &local)?;
        let (shutdown, stopping) = watch::channel(false);
        let events = join_mesh(endpoint, datagrams, node.name, &upstream, &stopping);
        let feeds = Feeds::new(&upstream, &limits, events);
        tokio::spawn(Arc::clone(&feeds.intervals).run(upstream.clone(), stopping.clone()));
        let (handover, taking_over) = handover::begin(&config.data_dir, &feeds.session_watches, &upstream);
        let (tcp, socket) = (listeners.tcp_addresses(), config.http.socket_path().map(PathBuf::from));
        let api = Api::new(upstream.clone(), local.clone(), limits, Arc::clone(&registry));
        let rules = access.rules.clone();
        let acl = Acl::start(&upstream, tokens, Some(&config.data_dir));
        let api = Api { access, acl: Arc::clone(&acl), feeds: feeds.clone(), reload, ..api };
        let http = tokio::spawn(http::serve(Arc::new(api), listeners, stopping.clone()));
        let registry_loop = tokio::spawn(Arc::clone(&registry).run(stopping));
        Ok(Self {
            identity: local,
            upstream,
            registry,
            rules,
            acl,
            has_left: AtomicBool::new(false),
            tcp,
            socket,
            shutdown,
            tasks: [http, registry_loop],
            feeds,
            handover,
            taking_over,
            lives,
        })
    }

    /// Waits until there is a leader, and this agent is registered and knows the mode of access
    /// control.
    pub async fn ready(&self) {
        while !self.serves().await {
            tokio::time::sleep(READY_INTERVAL).await;
        }
    }

    async fn serves(&self) -> bool {
        self.upstream.is_registered()
            && self.acl.is_known()
            && self.upstream.call(StatusOf::Nearest).await.is_ok_and(|status| status.leader.is_some())
    }

    /// Returns the leader's address, as far as this agent knows.
    pub async fn leader(&self) -> Option<String> {
        let status = self.upstream.call(StatusOf::Nearest).await.ok()?;
        let leader = status.servers.iter().find(|server| Some(server.id) == status.leader)?;
        Some(leader.address.clone())
    }

    /// Returns the TCP addresses that it listens on.
    pub fn tcp_addresses(&self) -> &[SocketAddr] {
        &self.tcp
    }

    /// Returns the Unix socket that it listens on.
    pub fn socket(&self) -> Option<&PathBuf> {
        self.socket.as_ref()
    }

    /// Replaces the certificate; established connections keep the old one.
    pub fn replace_identity(&self, identity: &Identity) {
        self.upstream.replace_identity(identity);
        self.lives.send_replace(identity.lives().to_vec());
    }

    /// Applies another choice of its cluster.
    pub fn choose_cluster(&self, choice: ClusterChoice) {
        self.upstream.choose_cluster(choice);
    }

    /// Replaces the services and checks of the configuration. Their sessions stay.
    ///
    /// # Errors
    /// Nothing is changed: a definition cannot be used, or the operator has to make room.
    pub fn configure(&self, config: &AgentConfig) -> Result<(), AgentError> {
        self.registry.configure(config.configured()?)?;
        Ok(())
    }

    /// Replaces the rules for its clients. Requests under way continue.
    pub fn set_rules(&self, rules: Rules) {
        self.rules.replace(rules);
    }

    /// Replaces the configured metadata of its node. The node is registered again under its lease.
    pub fn set_node_meta(&self, configured: &BTreeMap<String, String>) {
        self.identity.meta.replace(configured);
        self.upstream.set_node_meta(self.identity.node_meta());
    }

    /// Removes its node from the cluster: the node is deregistered, and its sessions end. The agent
    /// cannot serve afterwards and must be stopped.
    ///
    /// # Errors
    /// The agent continues as before. Unless [`Unavailable::certainly_not_done`], its node may have
    /// left, and is registered again.
    pub async fn leave(&self) -> Result<(), Unavailable> {
        // A check written after the node has left would bring the node back.
        let mut is_silent = self.registry.silence().await;
        let node = &self.identity.node;
        let outcome = self.upstream.leave(node).await;
        // After a failed leave the node stays, and its checks are written again.
        *is_silent = outcome.is_ok();
        self.has_left.store(outcome.is_ok(), Ordering::Relaxed);
        match &outcome {
            Ok(()) => tracing::info!(%node, "this node left the cluster: stopping"),
            Err(reason) => tracing::error!(%node, %reason, "this node cannot leave the cluster"),
        }
        outcome
    }

    /// Stops the agent. Unless the node has left, the servers are notified that it will return, and
    /// guards learn how long their sessions stay valid without this agent. New requests are
    /// rejected from then on. Requests under way may finish within a grace period; blocking ones
    /// are answered at once with the current state.
    pub async fn stop(mut self) {
        // First: guards must be notified before their streams and polls end.
        if !self.has_left.load(Ordering::Relaxed) {
            // It must not replace the announcement.
            self.taking_over.abort();
            let _ = (&mut self.taking_over).await;
            match self.handover.announced().await {
                Ok(()) => self.upstream.announce_restart().await,
                Err(error) => {
                    tracing::warn!(%error, "cannot announce the restart: the data folder is not writable");
                }
            }
        }
        self.feeds.stop();
        self.registry.stop();
        // There is no receiver any more if both tasks have already ended.
        let _ = self.shutdown.send(true);
        // Blocking requests would use up the grace period, and then be cut.
        self.upstream.hurry();
        for task in self.tasks {
            if let Err(error) = task.await {
                tracing::error!("a part of the agent panicked: {error}");
            }
        }
        // After the last report to a guard.
        let left = match self.has_left.load(Ordering::Relaxed) {
            true => Handover::of([]),
            false => self.feeds.session_watches.handover(),
        };
        self.handover.leave(&left).await;
        // Last: requests under way and the last reports of checks still need the servers.
        self.upstream.close().await;
    }
}

/// Shows the build and the certificates. Returns the channel for other certificates.
fn show_metrics(identity: &Identity) -> watch::Sender<Vec<CertificateLife>> {
    metrics::show_build(VERSION, COMMIT, "agent");
    let (lives, watched) = watch::channel(identity.lives().to_vec());
    tokio::spawn(expiry::watch(watched, |first| metrics::CERTIFICATE_EXPIRY.set(first.ends_at())));
    lives
}

/// The sockets of an agent.
struct Sockets {
    /// For applications.
    listeners: Listeners,
    /// For calls from servers and to servers.
    endpoint: Arc<Endpoint>,
    /// For gossip, if the configuration has an address for it.
    datagrams: Option<DatagramSocket>,
}

impl Sockets {
    fn bind(config: &AgentConfig, identity: &Identity) -> Result<Self, AgentError> {
        let listeners = listen(&config.http)?;
        let address = config.listen;
        let endpoint = Endpoint::listen(address, identity, &QuicOptions::default());
        let endpoint = endpoint.map_err(|error| AgentError::Socket { address, error })?;
        let bind =
            |address| DatagramSocket::bind(address).map_err(|error| AgentError::Gossip { address, error });
        let datagrams = config.gossip_address().map(bind).transpose()?;
        Ok(Self { listeners, endpoint: Arc::new(endpoint), datagrams })
    }
}

fn start_upstream(
    config: &AgentConfig,
    identity: Identity,
    local: &node::Identity,
    (endpoint, datagrams): (&Arc<Endpoint>, Option<&DatagramSocket>),
) -> Result<Upstream, AgentError> {
    let incarnation = incarnation::of_this_process(&identity).map_err(AgentError::Random)?;
    // The configured port may be 0, which means any free one.
    let port = endpoint.local_address().map_or(config.listen.port(), |address| address.port());
    let gossip_port = datagrams.and_then(|socket| socket.local_address().ok());
    let gossip = gossip_port.map(|gossip| SocketAddr::new(local.advertise.ip(), gossip.port()));
    // Under the name that Consul's tools look for.
    let consul = || Service::of(local.node.clone(), "consul".into(), "consul");
    let server = |rpc: SocketAddr| Service { port: rpc.port(), ..consul() };
    let registration = AgentRegistration {
        incarnation,
        port,
        gossip,
        services: local.server_rpc.map(server).into_iter().collect(),
        version: BUILD.into(),
        ..AgentRegistration::of(local.record())
    };
    let (pins, pin) = PinStore::open(&config.data_dir)?;
    let UpstreamConfig { servers, hold_timeout, probe_after, .. } = &config.upstream;
    let options = UpstreamOptions {
        cluster: config.upstream.cluster(),
        pin,
        pins: Arc::new(pins),
        own_address: local.advertise.clone(),
        hold_time: *hold_timeout,
        probe_after: *probe_after,
        ..UpstreamOptions::new(servers.clone(), identity, registration)
    };
    Ok(Upstream::start_on(Arc::clone(endpoint), options))
}

fn listen(config: &HttpConfig) -> Result<Listeners, http::ListenError> {
    let unix = config.socket_path().map(|path| UnixSocket {
        path: path.into(),
        mode: config.socket_mode.0,
        group: Some(config.socket_group.clone()).filter(|group| !group.is_empty()),
    });
    Listeners::bind(config.tcp.as_slice(), unix.as_ref(), config.allow_non_loopback)
}

/// Joins the mesh if there is a socket for it, and answers the servers' calls. Returns the events
/// of this host.
fn join_mesh(
    endpoint: Arc<Endpoint>,
    datagrams: Option<DatagramSocket>,
    node: NodeName,
    upstream: &Upstream,
    stopping: &watch::Receiver<bool>,
) -> Arc<Events> {
    let (events, questions) = match datagrams {
        Some(socket) => start_gossip(socket, node, upstream, stopping),
        None => (Events::alone(node), MeshQuestions::default()),
    };
    // It ends with the upstream, which closes the endpoint.
    tokio::spawn(Listener::new(endpoint, upstream.clone(), questions).run());
    events
}

/// Returns the events of this host, and the channel for challenges to others.
fn start_gossip(
    socket: DatagramSocket,
    node: NodeName,
    upstream: &Upstream,
    stopping: &watch::Receiver<bool>,
) -> (Arc<Events>, MeshQuestions) {
    // Set from the start, like every series: the mesh itself begins with the first registration.
    metrics::MESH_MEMBERS.set(0);
    metrics::MESH_PROBE_STRETCH.set(1);
    let (events, fired) = Events::in_mesh(node);
    let (questions, asked) = MeshQuestions::channel();
    let member = Member::new(socket, upstream.clone(), (Arc::clone(&events), fired), asked);
    let member = tokio::spawn(member.run(stopping.clone()));
    tokio::spawn(log_end_of_gossip(member, stopping.clone()));
    (events, questions)
}

/// The agent continues without gossip, so its end would go unnoticed without a log line.
async fn log_end_of_gossip(member: JoinHandle<()>, stopping: watch::Receiver<bool>) {
    let outcome = member.await;
    // Dropping the agent stops it as well.
    let is_stopping = *stopping.borrow() || stopping.has_changed().is_err();
    if let Some(reason) = why_gossip_ended(outcome, is_stopping) {
        metrics::MESH_MEMBERS.set(0);
        tracing::error!(
            reason,
            "gossip has ended: this agent probes no hosts and receives no events of other hosts, and the \
             servers detect a failure of its host by missed renewals alone; restart it"
        );
    }
}

/// Returns `None` if it ended as intended.
fn why_gossip_ended(outcome: Result<(), JoinError>, is_stopping: bool) -> Option<String> {
    match outcome {
        Err(error) => Some(error.to_string()),
        Ok(()) if is_stopping => None,
        Ok(()) => Some("its socket failed, or the channel to the servers is closed".into()),
    }
}

fn limits(config: &HttpConfig, session: &SessionConfig, open_files: u64) -> HttpLimits {
    HttpLimits {
        default_health_window: session.default_health_window.0,
        max_watched_sessions: session.max_watched,
        max_bound_sessions: session.max_bound,
        compress_min_bytes: config.compress_min_bytes,
        max_monitors: config.max_monitors,
        kv_max_value_size: config.max_value_bytes,
        txn_max_req_len: config.max_transaction_bytes,
        txn_max_operations: config.max_transaction_operations,
        session_ttl_min: config.session_ttl_min,
        default_query_time: config.default_query_time,
        max_query_time: config.max_query_time,
        socket_check_interval: config.socket_check_interval,
        header_read_timeout: config.read_timeout,
        idle_timeout: Some(config.idle_timeout).filter(|limit| !limit.is_zero()),
        tcp_keep_alive: Some(config.tcp_keep_alive).filter(|idle| !idle.is_zero()),
        body_read_timeout: config.read_timeout,
        connections_per_client: config.max_connections_per_address,
        connections: http::serve::connections_that_fit(open_files, config.max_connections),
        ..HttpLimits::default()
    }
}

/// Opens the services and checks that an earlier process left, and adds those of the configuration.
fn open_registry(
    config: &AgentConfig,
    upstream: &Upstream,
    identity: &node::Identity,
) -> Result<Arc<Registry>, AgentError> {
    let RegistryConfig { update_interval, max_output_bytes, max_checks, max_services, max_running, scripts } =
        config.registry;
    let limits = Limits { update_interval, max_output_bytes, max_checks, max_services, max_running };
    let configured = config.configured()?;
    let (upstream, identity) = (upstream.clone(), identity.clone());
    let registry = Registry::open(upstream, identity, limits, &config.data_dir, |check, source| {
        scripts.permit(check, source)
    });
    let registry = registry.map_err(|error| AgentError::Registry(config.data_dir.clone(), error))?;
    registry.configure(configured).map_err(AgentError::Configured)?;
    Ok(registry)
}

fn local_identity(
    config: &AgentConfig,
    node: &NodeIdentity,
    server_rpc: Option<SocketAddr>,
) -> node::Identity {
    node::Identity {
        node: node.name.clone(),
        node_id: node.id.clone(),
        datacenter: config.node.datacenter.clone(),
        version: BUILD.into(),
        advertise: OwnAddress::find(config.advertised().as_ref(), &config.upstream.servers),
        meta: NodeMeta::from(config.node_meta.clone()),
        server_rpc,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn gossip_end_reported_unless_stopping() {
        assert_eq!(why_gossip_ended(Ok(()), true), None);
        assert!(why_gossip_ended(Ok(()), false).is_some_and(|reason| reason.contains("socket")));
        let panicked = tokio::spawn(async { panic!("a fault") }).await;
        assert!(why_gossip_ended(panicked, true).is_some_and(|reason| reason.contains("panic")));
    }
}
