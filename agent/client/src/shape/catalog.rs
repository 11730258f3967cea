//! Nodes, services and registrations.

use super::null_as_default;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Node {
    /// Its UUID.
    #[serde(rename = "ID")]
    pub id: String,
    /// Its name.
    pub node: String,
    /// Its address, without a port.
    pub address: String,
    /// Its datacenter.
    pub datacenter: String,
    /// Addresses by tag.
    pub tagged_addresses: Option<BTreeMap<String, String>>,
    /// Metadata of the node.
    pub meta: Option<BTreeMap<String, String>>,
    /// The index of its creation.
    pub create_index: u64,
    /// The index of its last change.
    pub modify_index: u64,
}

/// The network coordinate of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeCoordinate {
    /// The name of the node.
    pub node: String,
    /// Its network segment; always empty.
    pub segment: String,
    /// Its coordinate.
    pub coord: Coordinate,
}

/// A network coordinate, in seconds, except for the error.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Coordinate {
    /// The position in Euclidean space.
    pub vec: Vec<f64>,
    /// The confidence in the position, without a unit.
    pub error: f64,
    /// A correction of each distance.
    pub adjustment: f64,
    /// The access delay of the node, part of each distance.
    pub height: f64,
}

/// The coordinates of the servers of a datacenter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct CoordinateMap {
    /// The datacenter.
    pub datacenter: String,
    /// The network area; always `wan`.
    #[serde(rename = "AreaID")]
    pub area_id: String,
    /// The coordinates.
    pub coordinates: Vec<NodeCoordinate>,
}

/// A service of a node, as part of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Service {
    /// Its kind in a service mesh; empty for a usual service.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Its id on the node.
    #[serde(rename = "ID")]
    pub id: String,
    /// Its name.
    pub service: String,
    /// Its tags; `None` if empty in the results of a transaction.
    pub tags: Option<Vec<String>>,
    /// Its address; empty for the node's address.
    pub address: String,
    /// Addresses by tag.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_as_default")]
    pub tagged_addresses: BTreeMap<String, ServiceAddress>,
    /// Metadata of the service.
    pub meta: Option<BTreeMap<String, String>>,
    /// Its port.
    pub port: u16,
    /// Its Unix socket; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub socket_path: String,
    /// Its weights.
    pub weights: Weights,
    /// Set if other clients may change its tags.
    pub enable_tag_override: bool,
    /// Its region and zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locality: Option<Locality>,
    /// Its settings as a proxy, as they were registered.
    pub proxy: Proxy,
    /// Its settings for a service mesh, as they were registered.
    pub connect: Map<String, Value>,
    /// The index of its creation.
    pub create_index: u64,
    /// The index of its last change.
    pub modify_index: u64,
}

/// The settings of a service as a proxy. All are empty for a service that is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Proxy {
    /// `DestinationServiceName`, `Upstreams` and others, if set.
    #[serde(flatten)]
    pub more: Map<String, Value>,
    /// Its mode.
    pub mode: String,
    /// Its settings for mesh gateways.
    pub mesh_gateway: Map<String, Value>,
    /// Its exposed paths.
    pub expose: Map<String, Value>,
}

/// The address of a service for a tag.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceAddress {
    /// The host name or address.
    pub address: String,
    /// The port.
    pub port: u16,
}

/// The place of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Locality {
    /// The region; empty if unknown.
    pub region: String,
    /// The zone within the region; empty if unknown.
    pub zone: String,
}

/// The load-balancing weights of a service instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Weights {
    /// The weight while all of its checks pass.
    pub passing: u32,
    /// The weight while a check is in the warning state.
    pub warning: u32,
}

impl Default for Weights {
    fn default() -> Self {
        Self { passing: 1, warning: 1 }
    }
}

/// A node with its services by id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeServices {
    /// The node.
    pub node: Node,
    /// Its services.
    #[serde(deserialize_with = "null_as_default")]
    pub services: BTreeMap<String, Service>,
}

/// A node with a list of its services; both are absent for an unknown node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeServiceList {
    /// The node.
    pub node: Option<Node>,
    /// Its services.
    pub services: Option<Vec<Service>>,
}

/// An instance of a service and its node, in one flat object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceNode {
    /// The node's UUID.
    #[serde(rename = "ID")]
    pub id: String,
    /// The node's name.
    pub node: String,
    /// The node's address.
    pub address: String,
    /// The node's datacenter.
    pub datacenter: String,
    /// The node's addresses by tag.
    pub tagged_addresses: Option<BTreeMap<String, String>>,
    /// Metadata of the node.
    pub node_meta: Option<BTreeMap<String, String>>,
    /// The service's kind in a service mesh; empty for a usual service.
    pub service_kind: String,
    /// The service's id.
    #[serde(rename = "ServiceID")]
    pub service_id: String,
    /// The service's name.
    pub service_name: String,
    /// The service's tags.
    #[serde(deserialize_with = "null_as_default")]
    pub service_tags: Vec<String>,
    /// The service's address.
    pub service_address: String,
    /// The service's addresses by tag.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_as_default")]
    pub service_tagged_addresses: BTreeMap<String, ServiceAddress>,
    /// The service's weights.
    pub service_weights: Weights,
    /// Metadata of the service.
    #[serde(deserialize_with = "null_as_default")]
    pub service_meta: BTreeMap<String, String>,
    /// The service's port.
    pub service_port: u16,
    /// The service's Unix socket; empty for none.
    pub service_socket_path: String,
    /// Set if other clients may change its tags.
    pub service_enable_tag_override: bool,
    /// The service's settings as a proxy, as they were registered.
    pub service_proxy: Proxy,
    /// The service's settings for a service mesh, as they were registered.
    pub service_connect: Map<String, Value>,
    /// The service's region and zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_locality: Option<Locality>,
    /// The index of its creation.
    pub create_index: u64,
    /// The index of its last change.
    pub modify_index: u64,
}
