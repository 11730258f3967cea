//! Aliases: checks that follow the checks of a service, or of a node.

use super::tables::Tables;
use super::{Outbox, Registry, truncated};
use crate::definitions::CheckKind;
use lockmesh_protocol::id::{CheckId, NodeName, ServiceId};
use lockmesh_protocol::record::{Check, CheckStatus};
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;
use std::collections::btree_map::Entry;
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

/// The checks of a service by its folded id, or of the node itself; on another node, or on this
/// agent's.
type Place = (Option<NodeName>, Option<ServiceId>);

/// The aliases by what they follow.
#[derive(Debug)]
pub(super) struct Aliases {
    node: NodeName,
    /// The aliases that follow each node, after the service that they follow there.
    pub(super) followers: BTreeMap<Option<NodeName>, BTreeSet<(Option<ServiceId>, CheckId)>>,
    /// The other nodes that aliases follow; the reason, if one was never read.
    read: BTreeMap<NodeName, Result<AliasedNode, Unavailable>>,
    /// What changed since the aliases were updated.
    touched: BTreeSet<Place>,
}

impl Aliases {
    pub(super) fn new(node: NodeName) -> Self {
        Self { node, followers: BTreeMap::new(), read: BTreeMap::new(), touched: BTreeSet::new() }
    }

    /// Notes that the checks of a place changed.
    pub(super) fn touch(&mut self, place: Place) {
        if !self.followers.is_empty() {
            self.touched.insert(place);
        }
    }

    /// Keeps what was read of a node. A failed read does not replace an earlier result.
    pub(super) fn found(&mut self, node: NodeName, found: Result<AliasedNode, Unavailable>) {
        if found.is_ok() || !self.read.contains_key(&node) {
            self.touch((Some(node.clone()), None));
            self.read.insert(node, found);
        }
    }

    /// Returns the status and the output of an alias of a node; `None` before the node was read.
    fn followed(&self, node: &NodeName, service: Option<&ServiceId>) -> Option<(CheckStatus, String)> {
        Some(match self.read.get(node)? {
            Ok(found) if !found.exists => (CheckStatus::Critical, format!("Node {node} could not be found")),
            Ok(found) => {
                let has_service = service.is_none_or(|service| found.services.contains(&service.folded()));
                let checks = found.checks.iter().map(|check| (check.as_ref(), check.status, false));
                summary(node, service, has_service, checks)
            }
            Err(reason) => (CheckStatus::Critical, format!("Failure checking aliased node {node}: {reason}")),
        })
    }

    pub(super) fn insert(&mut self, id: &CheckId, kind: &CheckKind) {
        let Some((node, service)) = self.place(kind) else { return };
        self.followers.entry(node.clone()).or_default().insert((service.clone(), id.clone()));
        self.touch((node, service));
    }

    pub(super) fn remove(&mut self, id: &CheckId, kind: &CheckKind) {
        let Some((node, service)) = self.place(kind) else { return };
        self.touched.insert((node.clone(), service.clone()));
        let Entry::Occupied(mut followers) = self.followers.entry(node) else { return };
        followers.get_mut().remove(&(service, id.clone()));
        if followers.get().is_empty() {
            followers.remove();
        }
    }

    /// Returns what a check of this kind follows; `None` if it is no alias.
    fn place(&self, kind: &CheckKind) -> Option<Place> {
        let CheckKind::Alias { node, service } = kind else { return None };
        let other = node.clone().filter(|node| node.folded() != self.node.folded());
        Some((other, service.as_ref().map(ServiceId::folded)))
    }

    /// Returns the aliases that follow a place. Each alias follows the node itself, too.
    fn followers(&self, (node, service): &Place) -> impl Iterator<Item = &CheckId> {
        let from = (service.clone(), CheckId::from(""));
        let followers = self.followers.get(node).into_iter().flat_map(move |of| of.range(from.clone()..));
        let is_of_place = move |(of, _): &&(_, _)| service.is_none() || of == service;
        followers.take_while(is_of_place).map(|(_, alias)| alias)
    }
}

impl Registry {
    /// Returns the other nodes whose checks have to be read, because aliases follow them.
    pub fn aliased_nodes(&self) -> BTreeSet<NodeName> {
        self.tables.aliases.followers.keys().flatten().cloned().collect()
    }

    /// Updates the aliases of what changed. An alias may follow another one: all begin as passing
    /// and only get worse, so that aliases that follow each other are critical only for a reason
    /// outside of them.
    pub(super) fn follow_aliases(&mut self, now: Time, outbox: &mut Outbox) {
        let aliases = self.tables.concerned_aliases();
        if aliases.is_empty() {
            return;
        }
        let mut found = BTreeMap::new();
        for id in &aliases {
            // An alias whose node was not read yet has the status of its registration.
            let status = match self.tables.followed(id, &found) {
                Some(_) => CheckStatus::Passing,
                None => self.tables.checks().get(id).map(|check| check.record.status).unwrap_or_default(),
            };
            found.insert(id.clone(), status);
        }
        loop {
            let worse: Vec<_> = aliases
                .iter()
                .filter_map(|id| Some((id, self.tables.followed(id, &found)?.0)))
                .filter(|(id, status)| found.get(*id).is_some_and(|known| status > known))
                .map(|(id, status)| (id.clone(), status))
                .collect();
            if worse.is_empty() {
                break;
            }
            found.extend(worse);
        }
        for id in &aliases {
            if let Some((status, output)) = self.tables.followed(id, &found) {
                let output = truncated(&output, self.limits.max_output_bytes);
                self.turn(now, id, (status, output), outbox);
            }
        }
        // The aliases of these aliases are among them.
        self.tables.aliases.touched.clear();
    }
}

impl Tables {
    /// Returns the aliases that follow what changed, and the aliases that follow these.
    fn concerned_aliases(&mut self) -> BTreeSet<CheckId> {
        let mut places: Vec<_> = std::mem::take(&mut self.aliases.touched).into_iter().collect();
        let Aliases { followers, read, .. } = &mut self.aliases;
        if !places.is_empty() {
            read.retain(|node, _| followers.contains_key(&Some(node.clone())));
        }
        let mut concerned = BTreeSet::new();
        while let Some(place) = places.pop() {
            for id in self.aliases.followers(&place).filter(|id| concerned.insert((*id).clone())) {
                places.extend(self.checks().get(id).map(|alias| (None, alias.service())));
            }
        }
        concerned
    }

    /// Returns the status and the output of an alias, given the statuses of aliases; `None` before
    /// its node was read.
    fn followed(
        &self,
        id: &CheckId,
        aliases: &BTreeMap<CheckId, CheckStatus>,
    ) -> Option<(CheckStatus, String)> {
        let CheckKind::Alias { node, service } = &self.checks().get(id)?.definition.kind else { return None };
        if let Some(other) = node.as_ref().filter(|node| node.folded() != self.node.folded()) {
            return self.aliases.followed(other, service.as_ref());
        }
        let folded = service.as_ref().map(ServiceId::folded);
        let has_service = folded.as_ref().is_none_or(|service| self.services().contains_key(service));
        let others = self.deciding(folded).into_iter().filter(|(key, _)| *key != id);
        let others = others.map(|(key, check)| {
            let is_alias = matches!(check.definition.kind, CheckKind::Alias { .. });
            (&check.record, aliases.get(key).copied().unwrap_or(check.record.status), is_alias)
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
