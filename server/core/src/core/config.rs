//! The configuration of a server's core.

use crate::acl_upkeep::AclStart;
use crate::raft::ElectionTimeout;
use crate::time::timers::TimerConfig;
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::lease::LeaseKey;
use lockmesh_protocol::record::Server;
use std::time::Duration;

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// The server's id.
    pub id: ServerId,
    /// Seed of its random numbers.
    pub seed: u64,
    /// The initial content of the cluster, used until the cluster exists.
    pub cluster_start: ClusterStart,
    /// Windows and delays.
    pub timers: TimerConfig,
    /// The maximum number of uncommitted proposals.
    pub max_pending_proposals: usize,
    /// Bytes of log to keep behind a durable snapshot for followers that lag.
    pub log_keep_bytes: u64,
    /// Bytes of log to keep behind a snapshot that a follower may be fetching; at least
    /// `log_keep_bytes`.
    pub log_keep_fetching_bytes: u64,
    /// The election timeout.
    pub election: ElectionTimeout,
    /// The newest format that this build reads: [`lockmesh_protocol::format::NEWEST`].
    pub format: u8,
    /// Interval between corruption checks. A leader skips a check if nothing was written since the
    /// last one.
    pub corruption_check_interval: Duration,
    /// The time without a durable write after which the disk is stalled; at least two election
    /// timeouts.
    pub stall_timeout: Duration,
}

/// The content that the first leader of a cluster writes into its state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterStart {
    /// The cluster's id, a UUID.
    pub cluster_id: String,
    /// Its first servers.
    pub servers: Vec<Server>,
    /// The random key from which lease secrets are derived; known to the servers only.
    pub lease_key: LeaseKey,
    /// The access control lists.
    pub acl: AclStart,
}
