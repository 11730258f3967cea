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
    /// The index of the last change of the membership.
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
