//! Starts the parts of a server, and stops them in the reverse order.

use crate::bootstrap::{BootstrapLoop, BootstrapState, Membership, Record};
use crate::config::ServerConfig;
use crate::driver::Driver;
use crate::event_queue::{DriverEvent, EventReceiver, EventSender, event_queue};
use crate::health::{EndGuard, Health};
use crate::http::HttpPort;
use crate::metrics;
use crate::peers::{Peers, dial_options};
use crate::readings;
use crate::rpc::counters::RpcCounters;
use crate::rpc::{RpcOptions, RpcService};
use crate::start::{ServerStart, StartError};
use crate::store::{HeldFolder, Store, StoreError};
use lockmesh_net::quic::QuicOptions;
use lockmesh_net::{CertificateLife, Endpoint, Identity, Role, expiry};
use lockmesh_protocol::format;
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::lease::LeaseKey;
use lockmesh_protocol::peer::WrongCertificate;
use lockmesh_protocol::record::NewServer;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::{AbortHandle, JoinHandle};

/// The timeout of a leadership handover before a server stops regardless.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// The time for connected peers to receive the notice that a server stops.
const GOODBYE_TIMEOUT: Duration = Duration::from_millis(200);

/// The inputs of a server.
#[derive(Debug)]
pub struct ServerOptions {
    /// Its configuration.
    pub config: ServerConfig,
    /// Its node's name.
    pub node: String,
    /// Its node's UUID.
    pub node_id: String,
    /// Its certificate.
    pub identity: Identity,
    /// A fresh UUID: the server's instance id, if its data folder is empty.
    pub instance_id: String,
    /// The seed of its random draws.
    pub seed: u64,
    /// The random key from which the secrets of the cluster's leases are derived, if this server
    /// begins one.
    pub lease_key: LeaseKey,
    /// A socket that was bound before, to listen on instead of `rpc.listen`.
    pub socket: Option<UdpSocket>,
}

/// The reason that a server could not start. Nothing was left running.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The data folder cannot be used.
    #[error(transparent)]
    ServerStart(#[from] StartError),
    /// Other servers would reject this server's certificate.
    #[error(transparent)]
    Certificate(#[from] WrongCertificate),
    /// The address cannot be used.
    #[error("cannot listen on {address} (UDP): {error}; choose another `rpc.listen`")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// The address for metrics and health cannot be used.
    #[error(
        "cannot listen on {address} (TCP) for metrics and health: {error}; choose another `http.listen`, port 0 for any \
         free one, or \"\" for none"
    )]
    Http {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// The socket for calls to other servers cannot be created.
    #[error("cannot create a socket for calls to other servers: {0}")]
    Dial(io::Error),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The socket's address cannot be read.
    #[error("cannot read the address of the socket: {0}")]
    Address(io::Error),
}

impl From<StoreError> for ServerError {
    fn from(error: StoreError) -> Self {
        Self::ServerStart(error.into())
    }
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    endpoint: Arc<Endpoint>,
    /// The endpoint for calls to other servers.
    dialling: Arc<Endpoint>,
    address: SocketAddr,
    sender: EventSender,
    peers: Arc<Peers>,
    driver: JoinHandle<()>,
    ended: watch::Receiver<()>,
    tasks: [AbortHandle; 2],
    http: Option<HttpPort>,
    lives: watch::Sender<Vec<CertificateLife>>,
}

impl Server {
    /// Opens the data folder and starts to serve, or to look for a quorum. Must be called on a
    /// runtime.
    ///
    /// # Errors
    /// No part of the server runs, and the folder is free again. The files are unchanged, except
    /// those that a first start creates. The error contains the remedy.
    pub fn start(options: ServerOptions) -> Result<Self, ServerError> {
        let ServerOptions { config, node, node_id, identity, instance_id, seed, lease_key, socket } = options;
        // First: while another process holds the folder, nothing in it may be read.
        let folder = Store::hold(&config.data_dir)?;
        let record = record(&config, &folder, instance_id)?;
        let node = NodeName::from(node);
        // Before listening: other servers would reject this one, with no error here.
        identity.peer().admits(Role::Server, &node)?;
        let endpoint = Arc::new(listen(&config, &identity, socket)?);
        let dialling = Arc::new(Endpoint::dial_only(&identity, &dial_options()).map_err(ServerError::Dial)?);
        let address = endpoint.local_address().map_err(ServerError::Address)?;
        let me = NewServer {
            node,
            node_id,
            address: advertised(&config, address),
            instance_id: record.instance_id.clone(),
            format: format::NEWEST,
        };
        let (sender, receiver) = event_queue(config.limits.queued_events);
        let (counters, health) = (Arc::new(RpcCounters::default()), Health::default());
        readings::show_server(readings::MetricsSource {
            rpc: Arc::clone(&counters),
            sender: sender.clone(),
            health: health.clone(),
        });
        let http = open_http(&config, &health)?;
        let peers = Peers::new(Arc::clone(&dialling), sender.clone());
        let service = RpcService::new(sender.clone(), rpc_options(&config), counters);
        let service = service.with_peers(Arc::clone(&peers));
        let start = ServerStart {
            config,
            folder,
            me,
            seed,
            lease_key,
            sender: sender.clone(),
            peers: Arc::clone(&peers),
            admission: service.admission(),
            health,
        };
        let bootstrap_loop = bootstrap_loop(&start, record, Arc::clone(&dialling));
        // Before the service, so that every connection is answered.
        let (driver, ended) = start_driver(bootstrap_loop, start, receiver)?;
        let service = tokio::spawn(service.run(Arc::clone(&endpoint)));
        let (lives, watched) = watch::channel(identity.lives().to_vec());
        let expiry = expiry::watch(watched, |first| metrics::CERTIFICATE_EXPIRY.set(first.ends_at()));
        let tasks = [service.abort_handle(), tokio::spawn(expiry).abort_handle()];
        tracing::info!(%address, "the server listens");
        Ok(Self { endpoint, dialling, address, sender, peers, driver, ended, tasks, http, lives })
    }

    /// Returns the address listened on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address for metrics and health, if configured.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(HttpPort::address)
    }

    /// Returns `true` if its driver has ended. Without [`Server::stop`] that happens only on a
    /// fatal error.
    pub fn has_ended(&self) -> bool {
        self.driver.is_finished()
    }

    /// Waits until its driver ends because of an error, which was logged.
    pub async fn ended(&self) {
        // No value is ever sent: the channel closes when the driver ends.
        let _ = self.ended.clone().changed().await;
    }

    /// Replaces the certificate; open connections keep theirs.
    pub fn replace_identity(&self, identity: &Identity) {
        self.endpoint.replace_identity(identity);
        self.dialling.replace_identity(identity);
        self.lives.send_replace(identity.lives().to_vec());
    }

    /// Hands over the leadership if it has it, notifies its peers, makes all decisions durable and
    /// closes the files.
    pub async fn stop(self) {
        let Self { endpoint, dialling, sender, peers, driver, tasks, http, .. } = self;
        let (leave, left) = oneshot::channel();
        // Never rejected for lack of room; a driver that has stopped has nothing to hand over.
        let _ = sender.post(DriverEvent::Leave(leave));
        if !driver.is_finished() && tokio::time::timeout(LEAVE_TIMEOUT, left).await.is_err() {
            tracing::warn!("leadership handover timed out; the other servers will elect a leader");
        }
        // After the handover, which needs messages; before the notice, so that no peer is dialed
        // again.
        peers.close();
        let goodbye = async {
            tokio::join!(endpoint.close("server shutting down"), dialling.close("server shutting down"))
        };
        // A peer that misses the notice detects the end by its timeouts.
        let _ = tokio::time::timeout(GOODBYE_TIMEOUT, goodbye).await;
        tasks.iter().for_each(AbortHandle::abort);
        // Never rejected for lack of room; a driver that is gone has stopped.
        let _ = sender.post(DriverEvent::Stop);
        if driver.await.is_err() {
            tracing::error!("driver task panicked");
        }
        if let Some(http) = http {
            // Waits for a thread.
            let _ = tokio::task::spawn_blocking(move || http.close()).await;
        }
    }
}

/// Returns the data folder's record of the cluster; a fresh one for an empty folder.
fn record(config: &ServerConfig, folder: &HeldFolder, instance_id: String) -> Result<Record, StartError> {
    if let Some(record) = Record::read(&config.data_dir)? {
        // A removed server must never serve again, even if its log lacks the removal.
        if let Some(Membership { server, cluster_id, .. }) = record.membership().filter(|_| record.removed) {
            return Err(StartError::Removed { folder: config.data_dir.clone(), server, cluster_id });
        }
        let configured = config.quorum.cluster_id();
        if let (Some(expected), Some(Membership { cluster_id: found, .. })) =
            (configured, record.membership())
            && found != expected
        {
            return Err(StartError::NotConfigured { folder: config.data_dir.clone(), found, expected });
        }
        return Ok(record);
    }
    // Without the record its promises are unknown: a new instance id would make it two servers.
    if folder.has_store()? {
        return Err(StartError::Unknown { folder: config.data_dir.clone(), file: Record::FILE });
    }
    let record = Record::fresh(instance_id);
    // A server that founds a cluster alone is unknown to others before it has promised that.
    if config.quorum.founders() != 1 {
        record.write(&config.data_dir)?;
    }
    Ok(record)
}

/// Returns the bootstrap of the server that starts; it calls other servers over `endpoint`.
fn bootstrap_loop(start: &ServerStart, record: Record, endpoint: Arc<Endpoint>) -> BootstrapLoop {
    let (folder, quorum) = (start.config.data_dir.clone(), &start.config.quorum);
    BootstrapLoop {
        folder,
        record,
        me: start.me.clone(),
        expect: quorum.founders(),
        join: quorum.join.clone(),
        cluster_id: quorum.cluster_id(),
        health: start.health.clone(),
        endpoint,
        sender: start.sender.clone(),
        runtime: Handle::current(),
    }
}

/// Returns the address under which other servers reach this one, which listens on `address`.
fn advertised(config: &ServerConfig, address: SocketAddr) -> String {
    let configured = Some(config.rpc.advertise.clone()).filter(|address| !address.is_empty());
    configured.unwrap_or_else(|| address.to_string())
}

fn rpc_options(config: &ServerConfig) -> RpcOptions {
    RpcOptions {
        connections: config.limits.connections,
        handshakes: config.limits.handshakes,
        calls_per_connection: config.limits.calls_per_connection,
        ..RpcOptions::default()
    }
}

/// Returns `false` if it starts without others, alone or as a member: then the caller can receive
/// its errors.
fn waits_for_others(bootstrap_loop: &BootstrapLoop) -> bool {
    match &bootstrap_loop.record.state {
        BootstrapState::Free => bootstrap_loop.expect != 1,
        BootstrapState::Promised(plan) => plan.servers.len() > 1,
        BootstrapState::Admitted(_) | BootstrapState::Member(_) => false,
    }
}

/// Starts the driver's task, once there is a quorum. If none has to be found, errors of the
/// driver's start are returned here.
fn start_driver(
    bootstrap_loop: BootstrapLoop,
    start: ServerStart,
    receiver: EventReceiver,
) -> Result<(JoinHandle<()>, watch::Receiver<()>), ServerError> {
    let (ended_guard, ended) = watch::channel(());
    let guard = (EndGuard(start.health.clone()), ended_guard);
    let driver = if waits_for_others(&bootstrap_loop) {
        // Both wait for the disk, the bootstrap loop for other servers too; a plain thread does not
        // delay the runtime's end.
        let (sender, begun) = oneshot::channel();
        // After the server was dropped, the receiver is gone.
        let bootstrap_loop = move || drop(sender.send(begin(bootstrap_loop, start, receiver)));
        std::thread::Builder::new()
            .name("lockmesh-bootstrap".into())
            .spawn(bootstrap_loop)
            .map_err(ServerError::Thread)?;
        tokio::spawn(async move {
            let _guard = guard;
            match begun.await {
                Ok(Ok(Some(driver))) => Box::pin(driver.run()).await,
                Ok(Ok(None)) => {}
                Ok(Err(error)) => tracing::error!(%error, "fatal error, shutting down"),
                Err(_) => tracing::error!("startup aborted"),
            }
        })
    } else {
        let driver = begin(bootstrap_loop, start, receiver)?.expect("no stop was requested");
        tokio::spawn(async move {
            let _guard = guard;
            Box::pin(driver.run()).await;
        })
    };
    Ok((driver, ended))
}

/// Waits for a quorum and opens its store; `None` on a stop.
fn begin(
    bootstrap_loop: BootstrapLoop,
    start: ServerStart,
    receiver: EventReceiver,
) -> Result<Option<Driver>, StartError> {
    match bootstrap_loop.wait(&receiver)? {
        Some(record) => start.open(record, receiver).map(Some),
        None => Ok(None),
    }
}

fn open_http(config: &ServerConfig, health: &Health) -> Result<Option<HttpPort>, ServerError> {
    let address = config.http.listen.unwrap_or(config.rpc.listen);
    HttpPort::open(&config.http, health).map_err(|error| ServerError::Http { address, error })
}

fn listen(
    config: &ServerConfig,
    identity: &Identity,
    socket: Option<UdpSocket>,
) -> Result<Endpoint, ServerError> {
    let (address, options) = (config.rpc.listen, QuicOptions::default());
    let listening = match socket {
        Some(socket) => Endpoint::listen_on(socket, identity, &options),
        None => Endpoint::listen(address, identity, &options),
    };
    listening.map_err(|error| ServerError::Listen { address, error })
}
