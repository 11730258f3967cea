//! Services on nodes. Locks need them only as the owners of checks.

use super::catalog::{Catalog, CheckKey, ServiceKey};
use super::check::delete_check_at;
use super::error::CatalogError;
use super::node::touch_node;
use super::step::Step;
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::id::{NodeName, ServiceId};
use lockmesh_protocol::record::{Check, Service};
use std::sync::Arc;

/// Writes a service. Its node must be registered.
pub(super) fn ensure_service(step: &mut Step<'_>, service: &Service) -> Result<(), CatalogError> {
    let folded = service.node.folded();
    let Some(node) = step.state.catalog.nodes.get(&folded) else {
        return Err(CatalogError::MissingNode);
    };
    let id = service_id(service);
    let key = ServiceKey::new(&service.node, &id);
    let mut stored = Service { id, node: node.name.clone(), ..service.clone() };
    (stored.create_index, stored.modify_index) = (step.index, step.index);
    if let Some(existing) = step.state.catalog.services.get(&key) {
        (stored.create_index, stored.modify_index) = (existing.create_index, existing.modify_index);
        if stored == **existing {
            return Ok(());
        }
        stored.modify_index = step.index;
    }
    step.set(Change::Service(key.node, key.id, Some(Arc::new(stored))));
    step.touch(Table::Services);
    touch_node(step, &folded);
    Ok(())
}

/// Deletes a service with its checks. Deleting an absent one succeeds.
pub(super) fn delete_service(step: &mut Step<'_>, node: &NodeName, id: &ServiceId) {
    let folded = node.folded();
    let key = ServiceKey::new(node, id);
    let Some(service) = step.state.catalog.services.get(&key).cloned() else { return };
    let is_about =
        |check: &Check| check.service_id.as_ref().is_some_and(|id| id.folded() == service.id.folded());
    let checks = step.state.catalog.checks_of(&folded).filter(|(_, check)| is_about(check));
    let checks: Vec<CheckKey> = checks.map(|(key, _)| key.clone()).collect();
    // Checks first, and with them the sessions: no check may exist without its service.
    for check in &checks {
        delete_check_at(step, check);
    }
    step.set(Change::Service(key.node, key.id, None));
    step.touch(Table::Services);
    touch_node(step, &folded);
}

impl Catalog {
    /// The services of a node, ordered by id.
    pub(super) fn services_of(
        &self,
        folded: &NodeName,
    ) -> impl Iterator<Item = (&ServiceKey, &Arc<Service>)> {
        let range = self.services.range(ServiceKey::new(folded, &ServiceId::from(""))..);
        let folded = folded.clone();
        range.take_while(move |(key, _)| key.node == folded)
    }

    /// A service of a node.
    pub(super) fn service(&self, node: &NodeName, id: &ServiceId) -> Option<&Arc<Service>> {
        self.services.get(&ServiceKey::new(node, id))
    }
}

/// The id of a service, which defaults to its name.
pub(super) fn service_id(service: &Service) -> ServiceId {
    if service.id.as_str().is_empty() { ServiceId::from(service.name.as_str()) } else { service.id.clone() }
}
