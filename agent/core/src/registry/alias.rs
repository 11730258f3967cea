//! Aliases: checks that follow the checks of a service, or of a node.

use super::definition::CheckKind;
use super::{LocalCheck, Outbox, Registry, truncated};
use lockmesh_protocol::id::{CheckId, NodeName, ServiceId};
use lockmesh_protocol::record::{Check, CheckStatus};
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Another node that an alias follows, as the catalog has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AliasedNode {
    /// Set if the catalog has the node.
    pub exists: bool,
    /// The folded ids of its services.
    pub services: BTreeSet<ServiceId>,
    /// Its checks.
    pub checks: Vec<Arc<Check>>,
}

/// The other nodes that aliases follow; the reason, if one was never read.
#[derive(Debug, Default)]
pub(super) struct Aliased(BTreeMap<NodeName, Result<AliasedNode, Unavailable>>);

impl Aliased {
    /// Keeps what was read of a node. A failed read does not replace an earlier result.
    pub(super) fn found(&mut self, node: NodeName, found: Result<AliasedNode, Unavailable>) {
        if found.is_ok() || !self.0.contains_key(&node) {
            self.0.insert(node, found);
        }
    }

    /// Returns the status and the output of an alias of a node; `None` before the node was read.
    fn followed(&self, node: &NodeName, service: Option<&ServiceId>) -> Option<(CheckStatus, String)> {
        Some(match self.0.get(node)? {
            Ok(found) if !found.exists => (CheckStatus::Critical, format!("Node {node} could not be found")),
            Ok(found) => {
                let has_service = service.is_none_or(|service| found.services.contains(&service.folded()));
                let checks = found.checks.iter().map(|check| (check.as_ref(), check.status, false));
                summary(node, service, has_service, checks)
            }
            Err(reason) => (CheckStatus::Critical, format!("Failure checking aliased node {node}: {reason}")),
        })
    }
}

impl Registry {
    /// Returns the other nodes whose checks have to be read, because aliases follow them.
    pub fn aliased_nodes(&self) -> BTreeSet<NodeName> {
        let nodes = self.checks.values().filter_map(|check| match &check.definition.kind {
            CheckKind::Alias { node: Some(node), .. } => Some(node),
            _ => None,
        });
        nodes.filter(|node| node.folded() != self.node.folded()).cloned().collect()
    }

    /// Updates every alias. An alias may follow another one: all begin as passing and only get
    /// worse, so that aliases that follow each other are critical only for a reason outside of
    /// them.
    pub(super) fn follow_aliases(&mut self, now: Time, outbox: &mut Outbox) {
        let is_alias = |check: &LocalCheck| matches!(check.definition.kind, CheckKind::Alias { .. });
        let aliases = self.checks.iter().filter(|(_, check)| is_alias(check));
        let aliases: Vec<_> = aliases.map(|(key, _)| key.clone()).collect();
        if aliases.is_empty() {
            return;
        }
        let followed = self.aliased_nodes();
        self.aliased.0.retain(|node, _| followed.contains(node));
        let mut found = BTreeMap::new();
        for id in &aliases {
            // An alias whose node was not read yet has the status of its registration.
            let status = match self.followed(id, &found) {
                Some(_) => CheckStatus::Passing,
                None => self.checks.get(id).map(|check| check.record.status).unwrap_or_default(),
            };
            found.insert(id.clone(), status);
        }
        loop {
            let worse: Vec<_> = aliases
                .iter()
                .filter_map(|id| Some((id, self.followed(id, &found)?.0)))
                .filter(|(id, status)| found.get(*id).is_some_and(|known| status > known))
                .map(|(id, status)| (id.clone(), status))
                .collect();
            if worse.is_empty() {
                break;
            }
            found.extend(worse);
        }
        for id in &aliases {
            if let Some((status, output)) = self.followed(id, &found) {
                let output = truncated(&output, self.limits.max_output_bytes);
                self.turn(now, id, (status, output), outbox);
            }
        }
    }

    /// Returns the status and the output of an alias, given the statuses of aliases; `None` before
    /// its node was read.
    fn followed(
        &self,
        id: &CheckId,
        aliases: &BTreeMap<CheckId, CheckStatus>,
    ) -> Option<(CheckStatus, String)> {
        let CheckKind::Alias { node, service } = &self.checks.get(id)?.definition.kind else { return None };
        if let Some(other) = node.as_ref().filter(|node| node.folded() != self.node.folded()) {
            return self.aliased.followed(other, service.as_ref());
        }
        let has_service =
            service.as_ref().is_none_or(|service| self.services.contains_key(&service.folded()));
        let others = self.checks.iter().filter(|(key, _)| *key != id);
        let others = others.map(|(key, check)| match aliases.get(key) {
            Some(status) => (&check.record, *status, true),
            None => (&check.record, check.record.status, false),
        });
        Some(summary(&self.node, service.as_ref(), has_service, others))
    }
}

/// Returns the worst of the checks of a service and of its node, and the first check that has it.
/// Each check has its status, and whether it is an alias: another check is the better reason.
fn summary<'a>(
    node: &NodeName,
    service: Option<&ServiceId>,
    has_service: bool,
    checks: impl Iterator<Item = (&'a Check, CheckStatus, bool)>,
) -> (CheckStatus, String) {
    if let Some(service) = service.filter(|_| !has_service) {
        return (CheckStatus::Critical, format!("Service {service} could not be found on node {node}"));
    }
    let mut worst: Option<(&Check, CheckStatus, bool)> = None;
    let service = service.map(ServiceId::folded);
    for (check, status, is_alias) in checks {
        let own = check.service_id.as_ref().map(ServiceId::folded);
        if own.is_some() && own != service {
            continue;
        }
        if worst.is_none_or(|(_, known, known_alias)| (status, !is_alias) > (known, !known_alias)) {
            worst = Some((check, status, is_alias));
        }
    }
    match worst {
        None => (CheckStatus::Passing, "No checks found.".into()),
        Some((_, CheckStatus::Passing, _)) => (CheckStatus::Passing, "All checks passing.".into()),
        // The output of an alias would repeat that of others.
        Some((check, status, true)) => (status, format!("Aliased check \"{}\" failing", check.name)),
        Some((check, status, false)) => {
            (status, format!("Aliased check \"{}\" failing: {}", check.name, check.output))
        }
    }
}
