//! Prepared queries: their descriptions, and the results of executing and explaining them.

use super::health::ServiceInstance;
use super::null_as_default;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A prepared query. Lists and maps that were not sent are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PreparedQuery {
    /// Its id; empty to create a query.
    #[serde(rename = "ID")]
    pub id: String,
    /// Its name; of a template, the prefix of names.
    pub name: String,
    /// The session whose end deletes it; empty for none.
    pub session: String,
    /// Unused.
    pub token: String,
    /// Its template.
    #[serde(deserialize_with = "null_as_default")]
    pub template: Template,
    /// The service to look up.
    #[serde(deserialize_with = "null_as_default")]
    pub service: Service,
    /// Its settings for DNS.
    #[serde(rename = "DNS", deserialize_with = "null_as_default")]
    pub dns: Dns,
    /// The index of its creation.
    pub create_index: u64,
    /// The index of its last change.
    pub modify_index: u64,
}

/// The template of a prepared query.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Template {
    /// `name_prefix_match`; empty for a query that is no template.
    #[serde(rename = "Type")]
    pub kind: String,
    /// A regular expression for the name.
    pub regexp: String,
    /// Set to drop tags that became empty.
    pub remove_empty_tags: bool,
}

/// The service of a prepared query.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Service {
    /// Its name.
    pub service: String,
    /// Always empty.
    pub sameness_group: String,
    /// The places to try when no instance is left. There is one datacenter, so none is tried.
    #[serde(deserialize_with = "null_as_default")]
    pub failover: Failover,
    /// Set to select only instances whose checks all pass.
    pub only_passing: bool,
    /// The checks whose status does not count.
    #[serde(rename = "IgnoreCheckIDs")]
    pub ignore_check_ids: Option<Vec<String>>,
    /// The node to sort by distance from; `_agent` for the agent's.
    pub near: String,
    /// Tags that an instance must have, or must not have after a `!`.
    pub tags: Option<Vec<String>>,
    /// Metadata that the node must have.
    pub node_meta: Option<BTreeMap<String, String>>,
    /// Metadata that the service must have.
    pub service_meta: Option<BTreeMap<String, String>>,
    /// Set to select the service's proxies instead.
    pub connect: bool,
    /// The peer cluster to look in. No cluster has peers.
    pub peer: String,
}

/// The places to try when no instance is left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Failover {
    /// The number of datacenters by distance.
    pub nearest_n: u64,
    /// Datacenters.
    pub datacenters: Option<Vec<String>>,
    /// Peers and datacenters.
    pub targets: Option<Vec<Target>>,
}

/// One place to try.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Target {
    /// A peer cluster.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub peer: String,
    /// A datacenter.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub datacenter: String,
}

/// The settings of a prepared query for DNS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dns {
    /// The TTL, as sent.
    #[serde(rename = "TTL")]
    pub ttl: String,
}

/// The result of an execution.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Executed {
    /// The service's name.
    pub service: String,
    /// The selected instances.
    #[serde(deserialize_with = "null_as_default")]
    pub nodes: Vec<ServiceInstance>,
    /// The settings for DNS.
    #[serde(rename = "DNS", deserialize_with = "null_as_default")]
    pub dns: Dns,
    /// The datacenter of the instances.
    pub datacenter: String,
    /// Always empty.
    pub peer_name: String,
    /// Always 0.
    pub failovers: u64,
    /// The origin of the result.
    #[serde(flatten)]
    pub meta: Meta,
}

/// The result of an explanation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Explained {
    /// The query that the name finds, with its template filled.
    pub query: PreparedQuery,
    /// The origin of the result.
    #[serde(flatten)]
    pub meta: Meta,
}

/// The origin of a result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Meta {
    /// Always 0.
    pub index: u64,
    /// The time since the server's last contact with the leader, in nanoseconds.
    pub last_contact: u64,
    /// Set if the server knew a leader.
    pub known_leader: bool,
    /// `leader`, `consistent` or `stale`.
    pub consistency_level: String,
}
