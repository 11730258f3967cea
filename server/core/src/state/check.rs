//! Health checks. Each write of a critical check ends the sessions that depend on it.

use super::catalog::{Catalog, CheckKey};
use super::error::CatalogError;
use super::invalidation::end_sessions_of_check;
use super::node::SERF_HEALTH;
use super::step::Step;
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::id::{CheckId, NodeName};
use lockmesh_protocol::record::{Check, CheckStatus, LossCause};
use std::sync::Arc;

/// Writes a check. Its node, and its service if it has one, must be registered.
pub(super) fn ensure_check(step: &mut Step<'_>, check: &Check) -> Result<(), CatalogError> {
    let Some(node) = step.state.catalog.nodes.get(&check.node.folded()) else {
        return Err(CatalogError::MissingNode);
    };
    let id = check_id(check);
    if id.as_str().is_empty() {
        return Err(CatalogError::NoCheckId);
    }
    let key = CheckKey::new(&check.node, &id);
    let mut stored = Check { id, node: node.name.clone(), ..check.clone() };
    fill_in_service(step, &mut stored)?;
    if stored.status == CheckStatus::Critical {
        end_sessions_of_check(step, &key, &LossCause::CheckCritical(stored.id.clone()));
    }
    store_check(step, key, stored);
    Ok(())
}

/// Deletes a check and ends the sessions that depend on it. Deleting an absent one succeeds.
pub(super) fn delete_check(step: &mut Step<'_>, node: &NodeName, id: &CheckId) {
    delete_check_at(step, &CheckKey::new(node, id));
}

/// The same, by key.
pub(super) fn delete_check_at(step: &mut Step<'_>, key: &CheckKey) {
    let Some(check) = step.state.catalog.checks.get(key).cloned() else { return };
    end_sessions_of_check(step, key, &LossCause::CheckDeregistered(check.id.clone()));
    step.set(Change::Check(key.node.clone(), key.id.clone(), None));
    step.touch(Table::Checks);
}

fn fill_in_service(step: &Step<'_>, check: &mut Check) -> Result<(), CatalogError> {
    let Some(id) = &check.service_id else { return Ok(()) };
    let service = step.state.catalog.service(&check.node, id).ok_or(CatalogError::MissingService)?;
    check.service_name.clone_from(&service.name);
    check.service_tags.clone_from(&service.tags);
    Ok(())
}

pub(super) fn store_check(step: &mut Step<'_>, key: CheckKey, mut check: Check) {
    (check.create_index, check.modify_index) = (step.index, step.index);
    if let Some(existing) = step.state.catalog.checks.get(&key) {
        // Compared under the old indexes: an unchanged check moves no index.
        (check.create_index, check.modify_index) = (existing.create_index, existing.modify_index);
        if check == **existing {
            return;
        }
        check.modify_index = step.index;
    }
    step.set(Change::Check(key.node, key.id, Some(Arc::new(check))));
    step.touch(Table::Checks);
}

impl Catalog {
    /// The checks of a node, ordered by id.
    pub(super) fn checks_of(&self, folded: &NodeName) -> impl Iterator<Item = (&CheckKey, &Arc<Check>)> {
        let range = self.checks.range(CheckKey::new(folded, &CheckId::from(""))..);
        let folded = folded.clone();
        range.take_while(move |(key, _)| key.node == folded)
    }

    /// A check of a node.
    pub(super) fn check_of(&self, node: &NodeName, id: &CheckId) -> Option<&Arc<Check>> {
        self.checks.get(&CheckKey::new(node, id))
    }

    pub(super) fn health_of(&self, folded: &NodeName) -> Option<CheckStatus> {
        self.check_of(folded, &CheckId::from(SERF_HEALTH)).map(|check| check.status)
    }
}

/// The id of a check, which defaults to its name.
pub(super) fn check_id(check: &Check) -> CheckId {
    if check.id.as_str().is_empty() { CheckId::from(check.name.as_str()) } else { check.id.clone() }
}
