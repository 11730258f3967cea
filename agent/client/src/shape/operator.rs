//! The quorum, for operators.

use super::null_as_default;
use serde::{Deserialize, Serialize};

/// The reply of `GET /v1/operator/raft/configuration`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RaftConfiguration {
    /// All servers of the quorum.
    #[serde(deserialize_with = "null_as_default")]
    pub servers: Vec<RaftServer>,
    /// Always 0.
    pub index: u64,
}

/// One server of the quorum.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RaftServer {
    /// Its node's UUID.
    #[serde(rename = "ID")]
    pub id: String,
    /// Its node's name.
    pub node: String,
    /// Its RPC address as `ip:port`.
    pub address: String,
    /// Set if it is the leader.
    pub leader: bool,
    /// Always `3`.
    pub protocol_version: String,
    /// Set if it is a voter.
    pub voter: bool,
    /// The last index that it is known to have.
    pub last_index: u64,
}

/// The reply of `POST /v1/operator/raft/transfer-leader`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Transferred {
    /// Set if another server leads now.
    pub success: bool,
}

/// The autopilot configuration: `/v1/operator/autopilot/configuration`. Durations are Go durations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AutopilotConfiguration {
    /// Set to remove a dead server once a replacement has joined.
    pub cleanup_dead_servers: bool,
    /// The time without contact to the leader after which a server is unhealthy.
    pub last_contact_threshold: String,
    /// The maximum lag of a healthy server's log, in entries.
    pub max_trailing_logs: u64,
    /// The minimum number of voters that must remain when a server is removed; 0 for no limit.
    pub min_quorum: u64,
    /// The time that a new server must be healthy before it is promoted to voter.
    pub server_stabilization_time: String,
    /// Always empty.
    pub redundancy_zone_tag: String,
    /// Always false.
    pub disable_upgrade_migration: bool,
    /// Always empty.
    pub upgrade_version_tag: String,
    /// The same as `modify_index`.
    pub create_index: u64,
    /// The index of the last change; 0 before the first.
    pub modify_index: u64,
}

/// The reply of `GET /v1/operator/gossip` and of `PUT /v1/operator/gossip/rotate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct GossipKey {
    /// The number of the key that encrypts the gossip; 0 is the first.
    pub number: u32,
}

/// The reply of `GET /v1/operator/autopilot/health`, the same for the statuses 200 and 429.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AutopilotHealth {
    /// Set if every server is healthy.
    pub healthy: bool,
    /// The number of further servers that may fail before the quorum is lost.
    pub failure_tolerance: u64,
    /// All servers of the quorum.
    #[serde(deserialize_with = "null_as_default")]
    pub servers: Vec<ServerHealth>,
}

/// The health of one server, as determined by the leader.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServerHealth {
    /// Its node's UUID.
    #[serde(rename = "ID")]
    pub id: String,
    /// Its node's name.
    pub name: String,
    /// Its RPC address as `host:port`.
    pub address: String,
    /// `alive`, or `failed` if the leader has no contact with it.
    pub serf_status: String,
    /// Its program version; empty if the leader had no contact with it yet.
    pub version: String,
    /// Set if it is the leader.
    pub leader: bool,
    /// The time since the leader last had contact with it, as a Go duration; `never` if it never
    /// had.
    pub last_contact: String,
    /// The leader's term.
    pub last_term: u64,
    /// The last index that it is known to have.
    pub last_index: u64,
    /// Set if the leader has contact with it and it does not lag.
    pub healthy: bool,
    /// The time of the last change between healthy and unhealthy; the year 1 if unknown.
    pub stable_since: String,
    /// Set if it is a voter.
    pub voter: bool,
}
