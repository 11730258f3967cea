//! The start of a member: its store, its core, and the driver that owns them.

use crate::bootstrap::{BootstrapState, Membership, Record, RecordError};
use crate::config::ServerConfig;
use crate::driver::{Driver, DriverParts};
use crate::event_queue::{EventReceiver, EventSender};
use crate::health::Health;
use crate::peers::{Me, Peers};
use crate::recover::begin_cluster_of_one;
use crate::stopped::FolderError;
use crate::store::{HeldFolder, Origins, SEGMENT_BYTES, StoreError, StoreOptions};
use lockmesh_core::raft::log::{self, SnapshotMeta};
use lockmesh_core::raft::{ElectionTimeout, membership_after};
use lockmesh_core::{ClusterStart, Core, CoreConfig, TimerConfig};
use lockmesh_net::admission::Admission;
use lockmesh_protocol::format;
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::lease::LeaseKey;
use lockmesh_protocol::record::{NewServer, Server};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// The maximum number of writes that wait for their commit.
const MAX_PENDING_PROPOSALS: usize = 65_536;

/// The inputs of the start besides the record.
#[derive(Debug)]
pub(crate) struct ServerStart {
    pub(crate) config: ServerConfig,
    pub(crate) folder: HeldFolder,
    pub(crate) me: NewServer,
    pub(crate) seed: u64,
    pub(crate) lease_key: LeaseKey,
    pub(crate) sender: EventSender,
    pub(crate) peers: Arc<Peers>,
    pub(crate) admission: Admission,
    pub(crate) health: Health,
}

/// The reason that a member could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data folder cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The data folder's record of the cluster cannot be used.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Log and state are gone.
    #[error(
        "{folder} belongs to server {server} of the cluster {cluster_id}, but its log and its state are gone, \
         and its votes are lost: empty the whole folder, so that it comes back as a new server"
    )]
    Emptied {
        /// The data folder.
        folder: PathBuf,
        /// The former server.
        server: ServerId,
        /// Its cluster.
        cluster_id: String,
    },
    /// The server was removed from its quorum.
    #[error(
        "{folder} belongs to server {server} of the cluster {cluster_id}, which was removed from the quorum: empty the whole \
         folder, so that it joins as a new server"
    )]
    Removed {
        /// The data folder.
        folder: PathBuf,
        /// The former server.
        server: ServerId,
        /// Its cluster.
        cluster_id: String,
    },
    /// Log and state exist, but not the record of their owner.
    #[error(
        "{folder} holds a log and a state, but no {file}, which names their server; if this is one of several \
         servers, empty the whole folder and start it: it joins as a new one; if it is alone, move the folder away, \
         start it, and restore a saved backup into it"
    )]
    Unknown {
        /// The data folder.
        folder: PathBuf,
        /// The missing file.
        file: &'static str,
    },
    /// The state is another cluster's.
    #[error("{folder} holds the state of the cluster {found}, but should hold that of {expected}")]
    OtherCluster {
        /// The data folder.
        folder: PathBuf,
        /// The cluster of the state.
        found: String,
        /// The expected cluster.
        expected: String,
    },
    /// The configuration names another cluster than the data folder.
    #[error(
        "{folder} holds a server of the cluster {found}, but `quorum.cluster_id` is {expected}: correct the key, or empty \
         the whole folder to found or join the other cluster; nothing was changed"
    )]
    NotConfigured {
        /// The data folder.
        folder: PathBuf,
        /// The cluster of the folder.
        found: String,
        /// The configured cluster.
        expected: String,
    },
    /// The files are copies, and the server is one of several.
    #[error(
        "{folder} is a copy: its log ({}) and its state ({}) are not those of server {server} of the cluster {cluster_id} \
         ({}; {}); a copy lacks the votes and acknowledgements made since it was taken, and the original may \
         still run; nothing was changed. Empty the whole folder and start the server: it joins as a new one. Only if it \
         was stopped, then moved here whole, and nothing has run on the original since, accept it with `lockmesh operator \
         raft moved --data-dir {folder}`", .files.1.log, .files.1.state, .files.0.log, .files.0.state, folder = .folder.display()
    )]
    Copied {
        /// The data folder.
        folder: PathBuf,
        /// The server of the original.
        server: ServerId,
        /// Its cluster.
        cluster_id: String,
        /// The expected files, and the actual ones.
        files: Box<(Origins, Origins)>,
    },
    /// A lone server's folder was copied, and cannot be taken over.
    #[error("the data folder is a copy, and cannot be taken over: {0}")]
    Copy(Box<FolderError>),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

impl ServerStart {
    /// Opens the store, or creates it if this server has just become a member, and records the
    /// membership.
    ///
    /// # Panics
    /// If the record holds no membership.
    pub(crate) fn open(self, mut record: Record, receiver: EventReceiver) -> Result<Driver, StartError> {
        let membership = record.membership().expect("the bootstrap ends with a membership");
        let path = self.config.data_dir.clone();
        let first_snapshot = self.first_snapshot(&record, &membership)?;
        let cache_bytes = usize::try_from(self.config.storage.cache_bytes).unwrap_or(usize::MAX);
        let options = StoreOptions {
            server: membership.server,
            first_snapshot,
            cache_bytes,
            accept_loss: false,
            segment_bytes: SEGMENT_BYTES,
        };
        if let Some(files) = record.copied(&self.folder.origins()?) {
            self.take_copy(&membership, &options, files)?;
        }
        let (store, recovered) = self.folder.open(&options)?;
        let Membership { server: id, cluster_id, servers } = membership.clone();
        self.check_cluster(recovered.state.cluster_id(), &cluster_id)?;
        // A crash before this line finds a store in which nothing has happened yet.
        record.state = BootstrapState::Member(membership);
        record.files = self.folder.origins()?.first().copied();
        record.write(&path)?;
        // Both are valid until here.
        self.folder.remove_former_log()?;
        let post = self.sender.clone();
        let store = store.start(move |event| {
            // Never rejected for lack of room; a driver that has stopped needs no events.
            let _ = post.post(event);
        });
        let store = store.map_err(StartError::Thread)?;
        self.log_membership(&record, id, &cluster_id);
        let core = Core::new(self.core_config(id, &cluster_id, &servers), recovered);
        let own_record = Server { instance_id: record.instance_id.clone(), ..self.me.with_id(id) };
        self.begin_peers(&core, &own_record, (&cluster_id, &servers));
        let (storage, peers, admission) = (self.config.storage, self.peers, self.admission);
        Ok(Driver::new(DriverParts {
            core,
            receiver,
            store,
            own_record,
            cluster_id,
            watches: self.config.limits.watches,
            storage,
            peers,
            admission,
            record,
            data_dir: path,
            health: self.health,
        }))
    }

    /// Rejects the state of another cluster.
    fn check_cluster(&self, found: &str, expected: &str) -> Result<(), StartError> {
        if found.is_empty() || found == expected {
            return Ok(());
        }
        let (folder, found, expected) = (self.config.data_dir.clone(), found.to_owned(), expected.to_owned());
        Err(StartError::OtherCluster { folder, found, expected })
    }

    /// Connects to the other servers of the cluster.
    fn begin_peers(&self, core: &Core, own: &Server, (cluster_id, servers): (&str, &[Server])) {
        // Before the first hello, which contains this server's position.
        self.peers.note(core.replica().log_position(), core.replica().peer_memory());
        self.peers.begin(Me { id: own.id, cluster_id: cluster_id.to_owned(), address: own.address.clone() });
        self.peers.update(servers.iter(), servers.iter().map(|server| server.id).max().unwrap_or(own.id));
        self.peers.search_at(self.config.quorum.join.clone());
    }

    /// Logs the server and its cluster.
    fn log_membership(&self, record: &Record, id: ServerId, cluster_id: &str) {
        tracing::info!(
            cluster = cluster_id,
            server = id.0,
            node = %self.me.node,
            format = format::NEWEST,
            "this server is a member of the cluster"
        );
        if record.corrupt {
            tracing::error!(
                folder = %self.config.data_dir.display(), server = id.0,
                "the state of this server is corrupt, as found by a corruption check: it votes, but serves no agent. \
                 Stop it, empty the whole folder and start it: it joins as a new server"
            );
        }
    }

    fn core_config(&self, id: ServerId, cluster_id: &str, servers: &[Server]) -> CoreConfig {
        CoreConfig {
            format: format::NEWEST,
            id,
            seed: self.seed,
            cluster_start: ClusterStart {
                cluster_id: cluster_id.into(),
                servers: servers.to_vec(),
                lease_key: self.lease_key,
                acl: self.config.acl.start(&self.config.node.datacenter),
            },
            timers: timers(&self.config),
            max_pending_proposals: MAX_PENDING_PROPOSALS,
            log_keep_bytes: self.config.storage.log_keep_bytes,
            log_keep_fetching_bytes: self.config.storage.log_keep_fetching_bytes,
            election: ElectionTimeout::with_timeout(self.config.quorum.election_timeout),
            corruption_check_interval: self.config.storage.corruption_check_interval,
            stall_timeout: self.config.storage.stall_timeout,
        }
    }

    /// Takes over a copy of a lone server's folder, above all that the original may have assigned.
    /// Rejects a copy of one of several servers, and changes nothing then.
    ///
    /// May be repeated: until the record names the new files, a crash only repeats the takeover.
    fn take_copy(
        &self,
        membership: &Membership,
        options: &StoreOptions,
        files: (Origins, Origins),
    ) -> Result<(), StartError> {
        let folder = &self.config.data_dir;
        let found = self.folder.inspect(options)?;
        let voters = found.map(|found| membership_after(&found.recovered));
        // By the last membership in the log, committed or not: if others ever voted, the original
        // may have acknowledged entries with them that this copy lacks.
        if voters != Some(log::Membership::of_voters(&[membership.server])) {
            let Membership { server, cluster_id, .. } = membership.clone();
            let (folder, files) = (folder.clone(), Box::new(files));
            return Err(StartError::Copied { folder, server, cluster_id, files });
        }
        tracing::warn!(
            folder = %folder.display(),
            "the data folder is a copy: indexes and fencing tokens continue far above those of the original; if \
             a server still runs on the original, stop it"
        );
        begin_cluster_of_one(&self.folder, folder, membership, false)
            .map_err(|error| StartError::Copy(Box::new(error)))?;
        Ok(())
    }

    /// Returns the first snapshot of a new store.
    fn first_snapshot(&self, record: &Record, membership: &Membership) -> Result<SnapshotMeta, StartError> {
        match &record.state {
            // Its votes are lost with the files, so it must not come back under the same id.
            BootstrapState::Member(_) if !self.folder.has_store()? => Err(StartError::Emptied {
                folder: self.config.data_dir.clone(),
                server: membership.server,
                cluster_id: membership.cluster_id.clone(),
            }),
            // Every founder begins with the same membership, which needs no prior agreement in a
            // log.
            BootstrapState::Promised(plan) => {
                let voters: Vec<_> = plan.servers.iter().map(|server| server.id).collect();
                Ok(Core::bootstrap_snapshot(&voters))
            }
            _ => Ok(SnapshotMeta::default()),
        }
    }
}

fn timers(config: &ServerConfig) -> TimerConfig {
    TimerConfig {
        ttl_multiplier: config.sessions.ttl_multiplier,
        tombstone_ttl: config.tombstones.ttl,
        tombstone_granularity: config.tombstones.granularity,
        reap_failed_after: config.members.reap_failed_after,
    }
}
