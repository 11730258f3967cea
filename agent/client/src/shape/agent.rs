//! What an agent says of itself, of its members and of its machine.

use super::null_as_default;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The answer of `GET /v1/agent/self`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AgentSelf {
    /// Who it is.
    pub config: AgentConfig,
    /// How it was started; for people.
    #[serde(deserialize_with = "null_as_default")]
    pub debug_config: Map<String, Value>,
    /// Always empty: there are no network coordinates.
    #[serde(deserialize_with = "null_as_default")]
    pub coord: Map<String, Value>,
    /// It as a member.
    pub member: Member,
    /// Figures, in groups.
    #[serde(deserialize_with = "null_as_default")]
    pub stats: BTreeMap<String, BTreeMap<String, String>>,
    /// Words about the node.
    #[serde(deserialize_with = "null_as_default")]
    pub meta: BTreeMap<String, String>,
    /// Always empty.
    #[serde(rename = "xDS", deserialize_with = "null_as_default")]
    pub xds: Map<String, Value>,
}

/// Who an agent is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AgentConfig {
    /// Its datacenter.
    pub datacenter: String,
    /// The same.
    pub primary_datacenter: String,
    /// Its node's name.
    pub node_name: String,
    /// Its node's UUID.
    #[serde(rename = "NodeID")]
    pub node_id: String,
    /// The source that it was built from; empty where unknown.
    pub revision: String,
    /// Whether its process is a server too.
    pub server: bool,
    /// Its version.
    pub version: String,
    /// When it was built; empty where unknown.
    pub build_date: String,
}

/// A member of the fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Member {
    /// Its node's name.
    pub name: String,
    /// Its address.
    pub addr: String,
    /// The port at which it is asked whether it lives; a server's RPC port where it has none.
    pub port: u16,
    /// `role`, `dc`, `id`, …
    #[serde(deserialize_with = "null_as_default")]
    pub tags: BTreeMap<String, String>,
    /// 0 none, 1 alive, 2 leaving, 3 left, 4 failed.
    pub status: u8,
    /// Carried, as are the numbers that follow.
    pub protocol_min: u8,
    /// See above.
    pub protocol_max: u8,
    /// See above.
    pub protocol_cur: u8,
    /// See above.
    pub delegate_min: u8,
    /// See above.
    pub delegate_max: u8,
    /// See above.
    pub delegate_cur: u8,
    /// `alive`, `restarting`, `left` or `failed`; empty where nobody knows more than the status.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// Since when: milliseconds since 1970 by the leader's clock; 0 where nobody knows.
    #[serde(rename = "SinceMs", skip_serializing_if = "is_zero")]
    pub since_ms: u64,
    /// How its node's lease stands, where `?lease` asks for it; left out where nobody knows, as
    /// without a leader, and of those that have none. Consul has no such field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_lease: Option<NodeLease>,
}

/// How a node's lease stands, as the servers' leader judges it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeLease {
    /// The number of its agent and the index at which it began, such as `3-1234`; empty where the
    /// node has none.
    #[serde(rename = "ID")]
    pub id: String,
    /// `fast`, `default` or `safe`: of a session its own window, of a member the shortest one in
    /// use; empty where no silence of the node counts.
    pub health_window: String,
    /// How long until that window is over, unless the node is heard before, in milliseconds; left
    /// out while no silence ends anything, as during an announced restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_in_ms: Option<u64>,
    /// How long ago the leader heard the node, in milliseconds; left out where it has not yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_heard_ago_ms: Option<u64>,
    /// Set when the node answers challenges, but none of its renewals has reached the servers for
    /// its window, so its guards give up their locks.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub servers_unreachable: bool,
    /// Nodes that say that this one does not answer them, at most a few.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub suspected_by: Vec<String>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The body of `PUT /v1/agent/check/register` for the kind of check that runs: a TTL.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NewCheck {
    /// Its id; its name where empty.
    #[serde(rename = "ID", skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// Its name.
    pub name: String,
    /// Words about it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub notes: String,
    /// How it stands at first; `critical` where empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// A Go duration.
    #[serde(rename = "TTL")]
    pub ttl: String,
}

/// The body of `PUT /v1/agent/check/update/<id>`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct CheckUpdate {
    /// `passing`, `warning` or `critical`.
    pub status: String,
    /// What it says.
    pub output: String,
}

/// The answer of `GET /v1/agent/metrics`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Metrics {
    /// When, such as `2026-01-02 15:04:05 +0000 UTC`.
    pub timestamp: String,
    /// What stands at a value.
    #[serde(deserialize_with = "null_as_default")]
    pub gauges: Vec<Gauge>,
    /// Always empty.
    #[serde(deserialize_with = "null_as_default")]
    pub points: Vec<Value>,
    /// What only grows.
    #[serde(deserialize_with = "null_as_default")]
    pub counters: Vec<Sample>,
    /// What is spread.
    #[serde(deserialize_with = "null_as_default")]
    pub samples: Vec<Sample>,
}

/// A value at a moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Gauge {
    /// Its dotted name.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Its labels.
    #[serde(deserialize_with = "null_as_default")]
    pub labels: BTreeMap<String, String>,
}

/// A count, or a spread of values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Sample {
    /// Its dotted name.
    pub name: String,
    /// How many.
    pub count: u64,
    /// How many a second.
    pub rate: f64,
    /// Their sum.
    pub sum: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation.
    pub stddev: f64,
    /// Its labels.
    #[serde(deserialize_with = "null_as_default")]
    pub labels: BTreeMap<String, String>,
}
