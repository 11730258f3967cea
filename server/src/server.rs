//! The one file that starts what a server consists of, and stops it in the reverse order.

use crate::config::ServerConfig;
use crate::driver::{Driver, DriverLimits};
use crate::mailbox::{Mail, mailbox};
use crate::metrics;
use crate::rpc::counters::RpcCounters;
use crate::rpc::{RpcOptions, RpcService};
use crate::store::{Store, StoreError, StoreOptions};
use lockmesh_core::raft::Election;
use lockmesh_core::{Core, CoreConfig, Formation, TimerConfig};
use lockmesh_net::quic::QuicOptions;
use lockmesh_net::{CertificateLife, Endpoint, Identity, expiry};
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::record;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// The id of a quorum's first server.
const FIRST: ServerId = ServerId(1);
/// How many writes may wait for their commit.
const MAX_PENDING_PROPOSALS: usize = 65_536;

/// What a server must be given.
#[derive(Debug)]
pub struct ServerOptions {
    /// What it was told.
    pub config: ServerConfig,
    /// Its node's name.
    pub node: String,
    /// Its node's UUID.
    pub node_id: String,
    /// Its certificate.
    pub identity: Identity,
    /// The id that the cluster gets if this is its first start.
    pub fresh_cluster_id: String,
    /// Where its random draws begin.
    pub seed: u64,
}

/// Why a server could not be started. Nothing was left running.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The data folder cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The address cannot be used.
    #[error("cannot listen on {address} (UDP): {error}; choose another `rpc.listen`")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
    /// No thread could be had.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// A server at work.
#[derive(Debug)]
pub struct Server {
    endpoint: Arc<Endpoint>,
    address: SocketAddr,
    mailbox: crate::mailbox::Mailbox,
    driver: JoinHandle<()>,
    tasks: [AbortHandle; 2],
    lives: watch::Sender<Vec<CertificateLife>>,
}

impl Server {
    /// Opens the data folder and begins to serve. Must be called on a runtime.
    pub fn start(options: ServerOptions) -> Result<Self, ServerError> {
        let ServerOptions { config, node, node_id, identity, fresh_cluster_id, seed } = options;
        let first_image = Core::bootstrap_image(&[FIRST]);
        let cache_bytes = usize::try_from(config.storage.cache_bytes).unwrap_or(usize::MAX);
        let store_options = StoreOptions { server: FIRST, first_image, cache_bytes };
        let (store, recovered) = Store::open(&config.data_dir, &store_options)?;
        let endpoint = listen(&config, &identity)?;
        let address = endpoint.local_address().map_err(ServerError::Thread)?;

        let (mailbox, inbox) = mailbox(config.limits.mailbox_inputs);
        let post = mailbox.clone();
        let store = store.start(move |event| {
            // Events always get in; when the driver is gone nobody is left to hear them.
            let _ = post.post(Mail::Store(event));
        });
        let store = store.map_err(ServerError::Thread)?;
        let advertised = Some(config.rpc.advertise.clone()).filter(|address| !address.is_empty());
        let portrait = record::Server {
            id: FIRST,
            node: node.into(),
            node_id,
            address: advertised.unwrap_or_else(|| address.to_string()),
            birth: fresh_cluster_id.clone(),
        };
        let core = Core::new(
            CoreConfig {
                id: FIRST,
                seed,
                formation: Formation { cluster_id: fresh_cluster_id, servers: vec![portrait.clone()] },
                timers: timers(&config),
                max_pending_proposals: MAX_PENDING_PROPOSALS,
                log_keep_bytes: config.storage.log_keep_bytes,
                election: Election::default(),
            },
            recovered,
        );
        let limits = DriverLimits { watches: config.limits.watches };
        let driver = Driver::new(core, inbox, store, portrait, limits, config.storage.clone());
        let thread = std::thread::Builder::new().name("lockmesh-driver".into());
        let driver = thread.spawn(move || driver.run()).map_err(ServerError::Thread)?;

        let counters = Arc::new(RpcCounters::default());
        metrics::register_rpc(&counters);
        let rpc = RpcOptions {
            connections: config.limits.connections,
            calls_per_connection: config.limits.calls_per_connection,
            ..RpcOptions::default()
        };
        let endpoint = Arc::new(endpoint);
        let service = RpcService::new(mailbox.clone(), rpc, counters);
        let service = tokio::spawn(service.run(Arc::clone(&endpoint)));
        let (lives, watched) = watch::channel(identity.lives().to_vec());
        let expiry = expiry::watch(watched, |left| metrics::CERTIFICATE_SECONDS.set(left));
        let tasks = [service.abort_handle(), tokio::spawn(expiry).abort_handle()];
        tracing::info!(%address, "the server listens");
        Ok(Self { endpoint, address, mailbox, driver, tasks, lives })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether its driver has ended, which it does by itself only when it must not go on.
    pub fn has_ended(&self) -> bool {
        self.driver.is_finished()
    }

    /// Takes another certificate into use; connections that stand keep theirs.
    pub fn replace_identity(&self, identity: &Identity) {
        self.endpoint.replace_identity(identity);
        self.lives.send_replace(identity.lives().to_vec());
    }

    /// Says goodbye, writes what was decided and closes the files.
    pub async fn stop(self) {
        let Self { endpoint, mailbox, driver, tasks, .. } = self;
        endpoint.close("the server stops").await;
        tasks.iter().for_each(AbortHandle::abort);
        // It always gets in; a driver that is gone has stopped.
        let _ = mailbox.post(Mail::Stop);
        let joined = tokio::task::spawn_blocking(move || driver.join()).await;
        if !matches!(joined, Ok(Ok(()))) {
            tracing::error!("the driver did not end well");
        }
    }
}

fn listen(config: &ServerConfig, identity: &Identity) -> Result<Endpoint, ServerError> {
    let address = config.rpc.listen;
    Endpoint::listen(address, identity, &QuicOptions::default())
        .map_err(|error| ServerError::Listen { address, error })
}

fn timers(config: &ServerConfig) -> TimerConfig {
    TimerConfig {
        ttl_multiplier: config.sessions.ttl_multiplier,
        tombstone_ttl: config.tombstones.ttl,
        tombstone_granularity: config.tombstones.granularity,
    }
}
