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

/// The maximum length of a check's output in a loss, in bytes.
const LOSS_OUTPUT_MAX: usize = 200;

/// The format version from which a loss has the output of its check.
const OUTPUT_SINCE_FORMAT: u8 = 5;

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
        let cause = critical_cause(step, &stored);
        end_sessions_of_check(step, &key, &cause);
    }
    store_check(step, key, stored);
    Ok(())
}

/// Returns the cause of the losses that a critical check brings. Replicas must agree on it.
pub(super) fn critical_cause(step: &Step<'_>, check: &Check) -> LossCause {
    let line = check.output.trim_ascii_start().lines().next().unwrap_or_default();
    let end = (0..=line.len().min(LOSS_OUTPUT_MAX)).rev().find(|end| line.is_char_boundary(*end));
    let output = line[..end.unwrap_or(0)].replace(char::is_control, " ");
    let (id, output) = (check.id.clone(), output.trim_ascii());
    if output.is_empty() || step.state.format() < OUTPUT_SINCE_FORMAT {
        return LossCause::CheckCritical(id);
    }
    LossCause::CheckFailed { check: id, output: output.into() }
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
