//! Aliases: checks that follow the checks of a service, or of a node.

use super::definition::CheckKind;
use super::{Outbox, Registry};
use lockmesh_protocol::id::{CheckId, NodeName, ServiceId};
use lockmesh_protocol::record::{Check, CheckStatus};
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Another node that an alias follows, as the catalog has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AliasedNode {
    /// The ids of its services.
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
            Ok(found) => {
                let has_service = service.is_none_or(|service| found.services.contains(service));
                summary(node, service, has_service, found.checks.iter().map(Arc::as_ref))
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

    /// Updates every alias whose checks changed. An alias may follow another one.
    pub(super) fn follow_aliases(&mut self, now: Time, outbox: &mut Outbox) {
        let followed = self.aliased_nodes();
        self.aliased.0.retain(|node, _| followed.contains(node));
        let is_alias = |kind: &CheckKind| matches!(kind, CheckKind::Alias { .. });
        let aliases = self.checks.values().filter(|check| is_alias(&check.definition.kind));
        let aliases: Vec<_> = aliases.map(|check| check.record.id.clone()).collect();
        // Aliases that follow each other in a circle have no result that stays.
        for _ in 0..aliases.len() {
            let before = self.version;
            for id in &aliases {
                if let Some(news) = self.followed(id) {
                    self.turn(now, id, news, outbox);
                }
            }
            if self.version == before {
                break;
            }
        }
    }

    /// Returns the status and the output of an alias; `None` before its node was read.
    fn followed(&self, id: &CheckId) -> Option<(CheckStatus, String)> {
        let check = self.checks.get(id)?;
        let CheckKind::Alias { node, service } = &check.definition.kind else { return None };
        if let Some(other) = node.as_ref().filter(|node| node.folded() != self.node.folded()) {
            return self.aliased.followed(other, service.as_ref());
        }
        let has_service = service.as_ref().is_none_or(|service| self.services.contains_key(service));
        let others = self.checks.values().map(|check| &check.record).filter(|record| record.id != *id);
        Some(summary(&self.node, service.as_ref(), has_service, others))
    }
}

/// Returns the worst of the checks of a service and of its node, and the first check that has it.
fn summary<'a>(
    node: &NodeName,
    service: Option<&ServiceId>,
    has_service: bool,
    checks: impl Iterator<Item = &'a Check>,
) -> (CheckStatus, String) {
    if let Some(service) = service.filter(|_| !has_service) {
        return (CheckStatus::Critical, format!("Service {service} could not be found on node {node}"));
    }
    let is_followed = |check: &&Check| check.service_id.is_none() || check.service_id.as_ref() == service;
    let mut worst: Option<&Check> = None;
    for check in checks.filter(is_followed) {
        if worst.is_none_or(|worst| check.status > worst.status) {
            worst = Some(check);
        }
    }
    match worst {
        None => (CheckStatus::Passing, "No checks found.".into()),
        Some(check) if check.status == CheckStatus::Passing => {
            (CheckStatus::Passing, "All checks passing.".into())
        }
        Some(check) => (check.status, format!("Aliased check \"{}\" failing: {}", check.name, check.output)),
    }
}
