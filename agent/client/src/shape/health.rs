//! Checks, and services with their checks.

use super::catalog::{Node, Service};
use super::null_as_default;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A check. The same shape in the catalog and in the agent's own list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Check {
    /// The node that it is about.
    pub node: String,
    /// Its id on that node.
    #[serde(rename = "CheckID")]
    pub check_id: String,
    /// Its name for people.
    pub name: String,
    /// `passing`, `warning` or `critical`.
    pub status: String,
    /// Words about the check.
    pub notes: String,
    /// What it said last.
    pub output: String,
    /// The service that it is about; empty for the node.
    #[serde(rename = "ServiceID")]
    pub service_id: String,
    /// That service's name.
    pub service_name: String,
    /// That service's tags; `None` for none inside a transaction's results.
    pub service_tags: Option<Vec<String>>,
    /// Its kind, such as `ttl`.
    #[serde(rename = "Type")]
    pub kind: String,
    /// How often it runs.
    pub interval: String,
    /// How long a run may take.
    pub timeout: String,
    /// Carried, without a meaning.
    pub exposed_port: u16,
    /// Its definition, opaque.
    #[serde(deserialize_with = "null_as_default")]
    pub definition: Map<String, Value>,
    /// The index that created it.
    pub create_index: u64,
    /// The index that changed it last.
    pub modify_index: u64,
}

/// An instance of a service with its node and the checks of both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceInstance {
    /// Where it runs.
    pub node: Node,
    /// What it is.
    pub service: Service,
    /// How both stand.
    #[serde(deserialize_with = "null_as_default")]
    pub checks: Vec<Check>,
}
