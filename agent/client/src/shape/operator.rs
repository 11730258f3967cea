//! The quorum, for operators.

use super::null_as_default;
use serde::{Deserialize, Serialize};

/// The answer of `GET /v1/operator/raft/configuration`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RaftConfiguration {
    /// Every server of the quorum.
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
    /// Whether it leads.
    pub leader: bool,
    /// Always `3`.
    pub protocol_version: String,
    /// Whether it votes.
    pub voter: bool,
    /// The last index it is known to have.
    pub last_index: u64,
}

/// The answer of `POST /v1/operator/raft/transfer-leader`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Transferred {
    /// Whether another server leads now.
    pub success: bool,
}

/// How the leader looks after the servers: `/v1/operator/autopilot/configuration`. Durations are in
/// Go's words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AutopilotConfiguration {
    /// Whether a dead server is taken out once another one has come in its place.
    pub cleanup_dead_servers: bool,
    /// A server that the leader has not heard for so long is unhealthy.
    pub last_contact_threshold: String,
    /// A server whose log lags by more entries than this is unhealthy.
    pub max_trailing_logs: u64,
    /// No server is taken out if fewer voters than this would remain; 0 for no such limit.
    pub min_quorum: u64,
    /// How long a new server must have been healthy before it gets its vote.
    pub server_stabilization_time: String,
    /// Always empty.
    pub redundancy_zone_tag: String,
    /// Always false.
    pub disable_upgrade_migration: bool,
    /// Always empty.
    pub upgrade_version_tag: String,
    /// The same as the next one.
    pub create_index: u64,
    /// The index of the last change; 0 before the first.
    pub modify_index: u64,
}

/// The answer of `GET /v1/operator/gossip` and of `PUT /v1/operator/gossip/rotate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct GossipKey {
    /// The number of the key that the mesh is sealed with; 0 is the first.
    pub number: u32,
}

/// The answer of `GET /v1/operator/autopilot/health`, the same whether its status is 200 or 429.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AutopilotHealth {
    /// Whether every server is healthy.
    pub healthy: bool,
    /// How many more servers may die before the quorum stands still.
    pub failure_tolerance: u64,
    /// Every server of the quorum.
    #[serde(deserialize_with = "null_as_default")]
    pub servers: Vec<ServerHealth>,
}

/// One server of the quorum, as the leader finds it.
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
    /// `alive`, or `failed` where the leader does not hear it.
    pub serf_status: String,
    /// The version of the program that it runs; empty where the leader has not met it yet.
    pub version: String,
    /// Whether it leads.
    pub leader: bool,
    /// How long ago the leader heard from it, in Go's words; `never` where it has not.
    pub last_contact: String,
    /// The leader's term.
    pub last_term: u64,
    /// The last index it is known to have.
    pub last_index: u64,
    /// Whether the leader hears it, and it does not lag.
    pub healthy: bool,
    /// Since when the leader has found it as healthy, or as unhealthy, as it is now; the year 1
    /// where it cannot say.
    pub stable_since: String,
    /// Whether it votes.
    pub voter: bool,
}
