//! Checks, and services with their checks.

use super::catalog::{Node, Service};
use super::null_as_default;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A check. The catalog and the agent's own list use the same shape.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Check {
    /// The node that the check belongs to.
    pub node: String,
    /// Its id on that node.
    #[serde(rename = "CheckID")]
    pub check_id: String,
    /// A human-readable name.
    pub name: String,
    /// `passing`, `warning` or `critical`.
    pub status: String,
    /// A description.
    pub notes: String,
    /// The last output.
    pub output: String,
    /// The service that the check belongs to; empty for the node.
    #[serde(rename = "ServiceID")]
    pub service_id: String,
    /// That service's name.
    pub service_name: String,
    /// That service's tags; `None` if empty in the results of a transaction.
    pub service_tags: Option<Vec<String>>,
    /// Its kind, such as `ttl`.
    #[serde(rename = "Type")]
    pub kind: String,
    /// The interval between runs.
    pub interval: String,
    /// The timeout of a run.
    pub timeout: String,
    /// Unused.
    pub exposed_port: u16,
    /// Its definition, opaque.
    #[serde(deserialize_with = "null_as_default")]
    pub definition: Map<String, Value>,
    /// The index of its creation.
    pub create_index: u64,
    /// The index of its last change.
    pub modify_index: u64,
}

/// An instance of a service with its node and the checks of both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceInstance {
    /// The node.
    pub node: Node,
    /// The service.
    pub service: Service,
    /// The checks of both.
    #[serde(deserialize_with = "null_as_default")]
    pub checks: Vec<Check>,
}
