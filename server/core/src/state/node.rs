//! Nodes, which sessions depend on. Names are compared case-insensitively; a node's UUID outlives
//! its name. Nodes may have network coordinates (Vivaldi), by which clients sort them by distance.
//! The servers measure none: clients store them.

use super::State;
use super::catalog::{Catalog, CheckKey, ServiceKey};
use super::error::CatalogError;
use super::invalidation::end_sessions_of_node;
use super::rows::put;
use super::step::Step;
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::id::{CheckId, LogIndex, NodeName};
pub(super) use lockmesh_protocol::record::SERF_HEALTH;
use lockmesh_protocol::record::{CheckStatus, Coordinate, LossCause, Node};
use lockmesh_protocol::reply::Reply;
use std::sync::Arc;

/// Writes a node. A known UUID under another name is a rename: the old node is deleted, with
/// its sessions.
pub(super) fn ensure_node(step: &mut Step<'_>, node: &Node) -> Result<(), CatalogError> {
    let folded = node.name.folded();
    let id = node.id.to_ascii_lowercase();
    let known_as = step.state.catalog.node_ids.get(&id).cloned();
    let mut existing = known_as.as_ref().and_then(|name| step.state.catalog.nodes.get(name)).cloned();
    if !id.is_empty() && known_as.as_ref() != Some(&folded) {
        name_is_free(step, node, &id, known_as.is_none())?;
        if let Some(old_name) = &known_as {
            delete_node(step, old_name, &LossCause::NodeDeregistered);
        }
    }
    existing = existing.or_else(|| step.state.catalog.nodes.get(&folded).cloned());
    store_node(step, folded, node, id, existing.as_deref());
    Ok(())
}

/// Gives a node another UUID. Its sessions, services and checks stay.
pub(super) fn set_node_id(step: &mut Step<'_>, name: &NodeName, id: &str) {
    let folded = name.folded();
    if let Some(node) = step.state.catalog.nodes.get(&folded) {
        let node = Node { id: id.to_ascii_lowercase(), modify_index: step.index, ..Node::clone(node) };
        step.set(Change::Node(folded.clone(), Some(Arc::new(node))));
        touch_node(step, &folded);
    }
}

/// Deletes a node with its sessions, services, checks and coordinate. Deleting an absent one
/// succeeds.
pub(super) fn delete_node(step: &mut Step<'_>, name: &NodeName, cause: &LossCause) {
    let folded = name.folded();
    if !step.state.catalog.nodes.contains_key(&folded) {
        return;
    }
    // First the sessions: none may exist without its node and its checks.
    end_sessions_of_node(step, &folded, cause);
    let services: Vec<ServiceKey> =
        step.state.catalog.services_of(&folded).map(|(key, _)| key.clone()).collect();
    for key in services {
        step.set(Change::Service(key.node, key.id, None));
        step.touch(Table::Services);
    }
    let checks: Vec<CheckKey> = step.state.catalog.checks_of(&folded).map(|(key, _)| key.clone()).collect();
    for key in checks {
        step.set(Change::Check(key.node, key.id, None));
        step.touch(Table::Checks);
    }
    if step.state.catalog.coordinates.contains_key(&folded) {
        step.set(Change::Coordinate(folded.clone(), None));
        step.touch(Table::Coordinates);
    }
    step.set(Change::NodeIndex(folded.clone(), None));
    step.set(Change::Node(folded, None));
    step.touch(Table::Nodes);
    step.touch(Table::NodeDeletions);
}

/// Records that a node or one of its services changed.
pub(super) fn touch_node(step: &mut Step<'_>, folded: &NodeName) {
    if step.state.catalog.node_indexes.get(folded) != Some(&step.index) {
        step.set(Change::NodeIndex(folded.clone(), Some(step.index)));
    }
    step.touch(Table::Nodes);
}

/// Stores the coordinate of a node; one of an unknown node is dropped, as in Consul, where the
/// update may arrive after the node has left.
pub(super) fn update_coordinate(step: &mut Step<'_>, node: &NodeName, coordinate: &Coordinate) -> Reply {
    let (folded, catalog) = (node.folded(), &step.state.catalog);
    let known = catalog.coordinates.get(&folded).map(|known| &**known);
    // An unchanged coordinate moves no index.
    if catalog.nodes.contains_key(&folded) && known != Some(coordinate) {
        step.set(Change::Coordinate(folded, Some(Arc::new(coordinate.clone()))));
        step.touch(Table::Coordinates);
    }
    Reply::Done
}

fn store_node(step: &mut Step<'_>, folded: NodeName, node: &Node, id: String, existing: Option<&Node>) {
    let mut stored = Node { id, ..node.clone() };
    (stored.create_index, stored.modify_index) = (step.index, step.index);
    if let Some(existing) = existing {
        stored.create_index = existing.create_index;
        // A registration without a UUID keeps the known one.
        if stored.id.is_empty() {
            stored.id.clone_from(&existing.id);
        }
        let unchanged = Node { modify_index: existing.modify_index, ..stored.clone() };
        if unchanged == *existing && step.state.catalog.nodes.contains_key(&folded) {
            return;
        }
    }
    step.set(Change::Node(folded.clone(), Some(Arc::new(stored))));
    touch_node(step, &folded);
}

/// Checks that a name is free. It belongs to its node while that node's agent is alive. A node
/// without an agent, or without a UUID to distinguish it, gives the name up.
fn name_is_free(step: &Step<'_>, node: &Node, id: &str, is_new: bool) -> Result<(), CatalogError> {
    let folded = node.name.folded();
    let Some(owner) = step.state.catalog.nodes.get(&folded).filter(|owner| owner.id != id) else {
        return Ok(());
    };
    let health = step.state.catalog.check_of(&folded, &CheckId::from(SERF_HEALTH));
    let is_alive = health.is_some_and(|check| check.status != CheckStatus::Critical);
    if !is_alive || (owner.id.is_empty() && is_new) {
        return Ok(());
    }
    let claimant = if is_new { format!("{id:?}") } else { format!("{id:?} ({})", node.address) };
    Err(CatalogError::NameReserved { claimant, name: node.name.clone(), owner: owner.clone() })
}

impl Catalog {
    /// A node by UUID if given, otherwise by name.
    pub(super) fn node_by_id_or_name(&self, id: &str, name: &NodeName) -> Option<&Arc<Node>> {
        if id.is_empty() {
            return self.nodes.get(&name.folded());
        }
        let name = self.node_ids.get(&id.to_ascii_lowercase())?;
        self.nodes.get(name)
    }

    pub(super) fn load_coordinate(&mut self, name: NodeName, row: Option<Arc<Coordinate>>) {
        if self.coordinates.contains_key(&name) {
            self.replaced.add_bytes(size_of::<Coordinate>());
        }
        put(&mut self.coordinates, name, row);
    }
}

impl State {
    /// The index of a node with its services; for an unknown node, that of the last deletion of any
    /// node.
    pub(super) fn node_index(&self, folded: &NodeName) -> LogIndex {
        // A blocking query on a deleted node wakes on the next deletion, not on every change.
        self.catalog
            .node_indexes
            .get(folded)
            .copied()
            .unwrap_or_else(|| self.table_index(Table::NodeDeletions))
    }

    /// The coordinates of all nodes that have one: a node without an agent has none until a client
    /// stores one. Ordered by folded name.
    pub(super) fn coordinates(&self) -> Vec<(NodeName, Arc<Coordinate>)> {
        let zero = Arc::new(Coordinate::default());
        let of_node = |folded: &NodeName| {
            let stored = self.catalog.coordinates.get(folded).cloned();
            stored.or_else(|| self.members.of_node(folded).map(|_| Arc::clone(&zero)))
        };
        let nodes = self.catalog.nodes.iter();
        nodes.filter_map(|(folded, node)| Some((node.name.clone(), of_node(folded)?))).collect()
    }
}
