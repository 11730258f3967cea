//! An agent's description of itself, its members and its metrics.

use super::catalog::{Locality, Proxy, ServiceAddress, Weights};
use super::health::Check;
use super::null_as_default;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The reply of `GET /v1/agent/self`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AgentSelf {
    /// The agent's identity.
    pub config: AgentConfig,
    /// Its configuration at startup; for humans.
    #[serde(deserialize_with = "null_as_default")]
    pub debug_config: Map<String, Value>,
    /// Always empty: there are no network coordinates.
    #[serde(deserialize_with = "null_as_default")]
    pub coord: Map<String, Value>,
    /// The agent as a member.
    pub member: Member,
    /// Statistics, in groups.
    #[serde(deserialize_with = "null_as_default")]
    pub stats: BTreeMap<String, BTreeMap<String, String>>,
    /// Metadata of the node.
    #[serde(deserialize_with = "null_as_default")]
    pub meta: BTreeMap<String, String>,
    /// Always empty.
    #[serde(rename = "xDS", deserialize_with = "null_as_default")]
    pub xds: Map<String, Value>,
}

/// A service of an agent, as the agent has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Service {
    /// Its kind in a service mesh; empty for a usual service.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Its id on the agent.
    #[serde(rename = "ID")]
    pub id: String,
    /// Its name.
    pub service: String,
    /// Its tags.
    #[serde(deserialize_with = "null_as_default")]
    pub tags: Vec<String>,
    /// Its metadata.
    #[serde(deserialize_with = "null_as_default")]
    pub meta: BTreeMap<String, String>,
    /// Its port.
    pub port: u16,
    /// Its address; empty for the node's address.
    pub address: String,
    /// Its Unix socket; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub socket_path: String,
    /// Addresses by tag.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_as_default")]
    pub tagged_addresses: BTreeMap<String, ServiceAddress>,
    /// Its weights.
    pub weights: Weights,
    /// Set if other clients may change its tags.
    pub enable_tag_override: bool,
    /// A hash of everything else, in a reply about one service.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub content_hash: String,
    /// Its settings as a proxy, as they were registered; absent unless it is a proxy or a gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy: Option<Proxy>,
    /// Its settings for a service mesh, as they were registered.
    #[serde(skip_serializing_if = "Map::is_empty", deserialize_with = "null_as_default")]
    pub connect: Map<String, Value>,
    /// The datacenter of the agent.
    pub datacenter: String,
    /// Its region and zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locality: Option<Locality>,
}

/// The health of a service on an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceHealth {
    /// `passing`, `warning`, `critical` or `maintenance`.
    pub aggregated_status: String,
    /// The service; `None` if it is unknown.
    pub service: Option<Service>,
    /// Its checks and those of the node; `None` if the service is unknown.
    pub checks: Option<Vec<Check>>,
}

/// The identity of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AgentConfig {
    /// Its datacenter.
    pub datacenter: String,
    /// The same as `datacenter`.
    pub primary_datacenter: String,
    /// Its node's name.
    pub node_name: String,
    /// Its node's UUID.
    #[serde(rename = "NodeID")]
    pub node_id: String,
    /// The source revision of the build; empty if unknown.
    pub revision: String,
    /// Set if its process is also a server.
    pub server: bool,
    /// Its version.
    pub version: String,
    /// The build date; empty if unknown.
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
    /// The port for probes; a server's RPC port if it has none.
    pub port: u16,
    /// `role`, `dc`, `id`, …
    #[serde(deserialize_with = "null_as_default")]
    pub tags: BTreeMap<String, String>,
    /// 0 none, 1 alive, 2 leaving, 3 left, 4 failed.
    pub status: u8,
    /// Unused, like the numbers that follow; kept for compatibility.
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
    /// `alive`, `restarting`, `left` or `failed`; empty if only the status is known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// The time of the last state change: milliseconds since 1970 by the leader's clock; 0 if
    /// unknown.
    #[serde(rename = "SinceMs", skip_serializing_if = "is_zero")]
    pub since_ms: u64,
    /// The state of its node's lease, if requested with `?lease`. Absent if unknown, for example
    /// without a leader, and for members without a lease. Consul has no such field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_lease: Option<NodeLease>,
}

/// The state of a node's lease, as determined by the servers' leader.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeLease {
    /// The number of its agent and the index of its registration, such as `3-1234`; empty if the
    /// node has none.
    #[serde(rename = "ID")]
    pub id: String,
    /// `fast`, `default` or `safe`. For a session, its own window; for a member, the shortest one
    /// in use. Empty if no outage of the node counts.
    pub health_window: String,
    /// The time until that window ends, unless the node is reached before, in milliseconds. Absent
    /// while no outage ends anything, for example during an announced restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_in_ms: Option<u64>,
    /// The time since the leader last received a message from the node, in milliseconds; absent if
    /// it never has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_heard_ago_ms: Option<u64>,
    /// Set if the node answers challenges, but none of its renewals has reached the servers for its
    /// window, so that its guards give up their locks.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub servers_unreachable: bool,
    /// Set if other agents have not been able to probe the node for a minute, although it renews
    /// its lease: its failure is detected later.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub probes_fail: bool,
    /// A few of the nodes that report that this one does not answer their probes.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub suspected_by: Vec<String>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The body of `PUT /v1/agent/service/register`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NewService {
    /// Its id; empty to use its name.
    #[serde(rename = "ID", skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its tags.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Its address; empty for the node's address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// Its port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Its metadata.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub meta: BTreeMap<String, String>,
    /// Its checks, without an id of their own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<NewCheck>,
    /// Other fields of Consul's API, as they are sent.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// The body of `PUT /v1/agent/check/register`, and a check of a new service. It has a TTL, or an
/// interval and a target that the agent checks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NewCheck {
    /// Its id; empty to use its name.
    #[serde(rename = "ID", skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// Its name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// A description.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub notes: String,
    /// The id of its service; empty for the node.
    #[serde(rename = "ServiceID", skip_serializing_if = "String::is_empty")]
    pub service_id: String,
    /// Its initial status; `critical` if empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// The TTL, as a Go duration.
    #[serde(rename = "TTL", skip_serializing_if = "String::is_empty")]
    pub ttl: String,
    /// The URL that the agent requests.
    #[serde(rename = "HTTP", skip_serializing_if = "String::is_empty")]
    pub http: String,
    /// The `host:port` that the agent connects to.
    #[serde(rename = "TCP", skip_serializing_if = "String::is_empty")]
    pub tcp: String,
    /// The `host:port` or `host:port/service` whose health the agent queries with gRPC.
    #[serde(rename = "GRPC", skip_serializing_if = "String::is_empty")]
    pub grpc: String,
    /// The interval between runs, as a Go duration.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub interval: String,
    /// The timeout of a run, as a Go duration.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub timeout: String,
    /// The time in the critical state after which its service is deregistered, as a Go duration.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub deregister_critical_service_after: String,
}

/// The body of `PUT /v1/agent/check/update/<id>`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct CheckUpdate {
    /// `passing`, `warning` or `critical`.
    pub status: String,
    /// The output of the check.
    pub output: String,
}

/// The reply of `GET /v1/agent/metrics`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Metrics {
    /// The time at which the interval of the counters and samples began, such as
    /// `2026-01-02 15:04:05 +0000 UTC`.
    pub timestamp: String,
    /// Current values.
    #[serde(deserialize_with = "null_as_default")]
    pub gauges: Vec<Gauge>,
    /// Always empty.
    #[serde(deserialize_with = "null_as_default")]
    pub points: Vec<Value>,
    /// Counters that increased in the interval.
    #[serde(deserialize_with = "null_as_default")]
    pub counters: Vec<Sample>,
    /// Distributions with values in the interval.
    #[serde(deserialize_with = "null_as_default")]
    pub samples: Vec<Sample>,
}

/// A current value.
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

/// The increase of a counter, or a distribution of values, in one interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Sample {
    /// Its dotted name.
    pub name: String,
    /// The number of values.
    pub count: u64,
    /// The sum of the values per second.
    pub rate: f64,
    /// The sum of the values.
    pub sum: f64,
    /// The minimum, as far as the buckets of a histogram tell.
    pub min: f64,
    /// The maximum, as far as the buckets tell.
    pub max: f64,
    /// The mean.
    pub mean: f64,
    /// The standard deviation, as far as the buckets tell.
    pub stddev: f64,
    /// Its labels.
    #[serde(deserialize_with = "null_as_default")]
    pub labels: BTreeMap<String, String>,
}
