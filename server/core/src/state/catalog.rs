//! Catalog registration and deregistration: a node, a service and checks in one command, all or
//! none.

use super::check::{delete_check, ensure_check};
use super::error::{CatalogError, UuidError};
use super::node::{delete_node, ensure_node};
use super::service::{delete_service, ensure_service, service_id};
use super::service_index::{ServiceIndexes, ServiceNames};
use super::step::{Step, reply_or_refusal};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{Deregistration, Registration};
use lockmesh_protocol::id::{CheckId, LogIndex, NodeName, ServiceId};
use lockmesh_protocol::record::{Check, Coordinate, LossCause, Node, Service};
use lockmesh_protocol::reply::Reply;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A check's key: its node and its id, both folded, because lookups ignore case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CheckKey {
    pub(super) node: NodeName,
    pub(super) id: CheckId,
}

/// A service's key: its node and its id, both folded.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ServiceKey {
    pub(super) node: NodeName,
    pub(super) id: ServiceId,
}

/// The nodes with their services and checks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Catalog {
    /// By folded name.
    pub(super) nodes: BTreeMap<NodeName, Arc<Node>>,
    /// The last index that changed a node or its services, by folded name.
    pub(super) node_indexes: BTreeMap<NodeName, LogIndex>,
    pub(super) services: BTreeMap<ServiceKey, Arc<Service>>,
    pub(super) checks: BTreeMap<CheckKey, Arc<Check>>,
    /// By the folded name of the node.
    pub(super) coordinates: BTreeMap<NodeName, Arc<Coordinate>>,
    /// The folded name of the node with each UUID.
    pub(super) node_ids: BTreeMap<String, NodeName>,
    pub(super) names: ServiceNames,
    pub(super) indexes: ServiceIndexes,
    pub(super) replaced: Replaced,
}

/// The approximate size of all rows of a table that were replaced or removed, in bytes: at most
/// that much is kept by views alone. It is no part of the replicated state: all values are equal.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Replaced(pub(super) u64);

impl PartialEq for Replaced {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Replaced {}

impl Replaced {
    /// Adds a row with these long texts.
    pub(super) fn add<'a>(&mut self, texts: impl IntoIterator<Item = &'a String>) {
        /// The size of a row without its texts.
        const OTHERS: usize = 256;
        self.add_bytes(OTHERS + texts.into_iter().map(String::len).sum::<usize>());
    }

    /// Adds a row of this size.
    pub(super) fn add_bytes(&mut self, bytes: usize) {
        self.0 += bytes as u64;
    }
}

impl CheckKey {
    /// The key of the check `id` of `node`, ignoring case.
    pub(super) fn new(node: &NodeName, id: &CheckId) -> Self {
        Self { node: node.folded(), id: id.folded() }
    }
}

impl ServiceKey {
    /// The key of the service `id` of `node`, ignoring case.
    pub(super) fn new(node: &NodeName, id: &ServiceId) -> Self {
        Self { node: node.folded(), id: id.folded() }
    }
}

impl Catalog {
    pub(super) fn rows(&self) -> impl Iterator<Item = Change> + '_ {
        let nodes = self.nodes.iter().map(|(name, row)| Change::Node(name.clone(), Some(row.clone())));
        let node_indexes = self.node_indexes.iter();
        let services = self.services.iter();
        let checks = self.checks.iter();
        let coordinates = self.coordinates.iter();
        nodes
            .chain(node_indexes.map(|(name, index)| Change::NodeIndex(name.clone(), Some(*index))))
            .chain(
                services.map(|(at, row)| Change::Service(at.node.clone(), at.id.clone(), Some(row.clone()))),
            )
            .chain(checks.map(|(at, row)| Change::Check(at.node.clone(), at.id.clone(), Some(row.clone()))))
            .chain(coordinates.map(|(name, row)| Change::Coordinate(name.clone(), Some(row.clone()))))
    }

    /// Returns the change of one row of the catalog that would undo `change`.
    pub(super) fn inverse(&self, change: &Change) -> Change {
        match change {
            Change::Node(name, _) => Change::Node(name.clone(), self.nodes.get(name).cloned()),
            Change::NodeIndex(name, _) => {
                Change::NodeIndex(name.clone(), self.node_indexes.get(name).copied())
            }
            Change::Service(node, id, _) => {
                let row = self.services.get(&ServiceKey { node: node.clone(), id: id.clone() });
                Change::Service(node.clone(), id.clone(), row.cloned())
            }
            Change::Check(node, id, _) => {
                let row = self.checks.get(&CheckKey { node: node.clone(), id: id.clone() });
                Change::Check(node.clone(), id.clone(), row.cloned())
            }
            Change::Coordinate(name, _) => {
                Change::Coordinate(name.clone(), self.coordinates.get(name).cloned())
            }
            _ => unreachable!("{change:?} is of no row of the catalog"),
        }
    }

    pub(super) fn load_node(&mut self, name: NodeName, node: Option<Arc<Node>>) {
        if let Some(before) = self.nodes.remove(&name)
            // Its UUID may belong to another name by now.
            && self.node_ids.get(&before.id) == Some(&name)
        {
            self.node_ids.remove(&before.id);
        }
        if let Some(node) = node {
            if !node.id.is_empty() {
                self.node_ids.insert(node.id.clone(), name.clone());
            }
            self.nodes.insert(name, node);
        }
    }
}

pub(super) fn register(step: &mut Step<'_>, registration: &Registration) -> Reply {
    let outcome = step.attempt(|step| try_register(step, registration));
    reply_or_refusal(outcome.map(|()| Reply::Done))
}

/// Removes a service, a check, or else the whole node. Removing an absent one succeeds.
pub(super) fn deregister(step: &mut Step<'_>, deregistration: &Deregistration) -> Reply {
    let Deregistration { node, service, check } = deregistration;
    if node.as_str().is_empty() {
        return Reply::Refused(CatalogError::NoNodeName.into());
    }
    match (service, check) {
        (Some(service), _) => delete_service(step, node, service),
        (None, Some(check)) => delete_check(step, node, check),
        (None, None) => delete_node(step, node, &LossCause::NodeDeregistered),
    }
    Reply::Done
}

fn try_register(step: &mut Step<'_>, registration: &Registration) -> Result<(), CatalogError> {
    let node = &registration.node;
    node_is_well_formed(node)?;
    if node.address.is_empty() && !registration.skip_node_update {
        return Err(CatalogError::NoAddress);
    }
    if !(registration.skip_node_update && step.state.catalog.nodes.contains_key(&node.name.folded())) {
        ensure_node(step, node).map_err(|cause| CatalogError::Node(Box::new(cause)))?;
    }
    if let Some(service) = &registration.service {
        service_is_well_formed(service)?;
        let service = Service { node: node.name.clone(), ..service.clone() };
        ensure_service(step, &service).map_err(|cause| CatalogError::Service(Box::new(cause)))?;
    }
    registration.checks.iter().try_for_each(|check| register_check(step, node, check))
}

fn register_check(step: &mut Step<'_>, node: &Node, check: &Check) -> Result<(), CatalogError> {
    let mut check = check.clone();
    if check.node.as_str().is_empty() {
        check.node = node.name.clone();
    }
    if check.node.folded() != node.name.folded() {
        return Err(CatalogError::OtherNode { check: check.node, node: node.name.clone() });
    }
    let refused = |cause| CatalogError::Check { node: check.node.clone(), cause: Box::new(cause) };
    ensure_check(step, &check).map_err(refused)
}

/// Validates a node alone.
pub(super) fn node_is_well_formed(node: &Node) -> Result<(), CatalogError> {
    if node.name.as_str().is_empty() {
        return Err(CatalogError::NoNodeName);
    }
    if node.id.is_empty() {
        return Ok(());
    }
    uuid_is_well_formed(&node.id).map_err(CatalogError::BadNodeId)
}

/// Validates a service alone.
pub(super) fn service_is_well_formed(service: &Service) -> Result<(), CatalogError> {
    if service.name.is_empty() && !service_id(service).as_str().is_empty() {
        return Err(CatalogError::NoServiceNameWithId);
    }
    if service.name.is_empty() {
        return Err(CatalogError::NoServiceName);
    }
    Ok(())
}

fn uuid_is_well_formed(text: &str) -> Result<(), UuidError> {
    const HYPHENS: [usize; 4] = [8, 13, 18, 23];
    if text.len() != 36 {
        return Err(UuidError::Length);
    }
    if HYPHENS.iter().any(|at| text.as_bytes()[*at] != b'-') {
        return Err(UuidError::Hyphens);
    }
    let digits = text.bytes().enumerate().filter(|(at, _)| !HYPHENS.contains(at));
    match digits.map(|(_, byte)| byte).find(|byte| !byte.is_ascii_hexdigit()) {
        Some(byte) => Err(UuidError::Digit { byte }),
        None => Ok(()),
    }
}
