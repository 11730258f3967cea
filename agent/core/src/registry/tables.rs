//! The tables of services and checks, and their indexes.
//!
//! Every change goes through [`Tables`], so that the indexes agree with the tables: the checks by
//! the times at which something is due, the checks by their services, and the aliases by what they
//! follow. The cost of an input depends on what is due, and not on the number of checks.

use super::agenda::Agenda;
use super::alias::Aliases;
use super::services::LocalService;
use super::stored::Source;
use super::undo::Undo;
use super::{Limits, LocalCheck, RegistryError};
use crate::definitions::NewCheck;
use lockmesh_protocol::id::{CheckId, NodeName, ServiceId};
use lockmesh_protocol::record::CheckStatus;
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The services and checks of this agent, with their indexes.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) node: NodeName,
    /// The number of changes so far.
    pub(super) version: u64,
    /// By folded id, as in the catalog.
    services: BTreeMap<ServiceId, LocalService>,
    /// By folded id, as in the catalog.
    checks: BTreeMap<CheckId, LocalCheck>,
    /// Each check, after the folded id of its service.
    of_services: BTreeSet<(Option<ServiceId>, CheckId)>,
    pub(super) aliases: Aliases,
    /// The checks by the times at which they turn critical.
    pub(super) expiries: Agenda<CheckId>,
    /// The checks by the times at which their services are deregistered.
    pub(super) reapings: Agenda<CheckId>,
    /// The checks by the times of their next runs.
    pub(super) runs: Agenda<CheckId>,
    /// The checks by the times at which they are written to the catalog.
    pub(super) check_writes: Agenda<CheckId>,
    /// The services by the times at which they are written to the catalog.
    pub(super) service_writes: Agenda<ServiceId>,
    /// What the change under way replaces, if it can be taken back.
    pub(super) undo: Option<Undo>,
}

impl Tables {
    pub(super) fn new(node: NodeName) -> Self {
        Self {
            aliases: Aliases::new(node.clone()),
            node,
            version: 0,
            services: BTreeMap::new(),
            checks: BTreeMap::new(),
            of_services: BTreeSet::new(),
            expiries: Agenda::new(),
            reapings: Agenda::new(),
            runs: Agenda::new(),
            check_writes: Agenda::new(),
            service_writes: Agenda::new(),
            undo: None,
        }
    }

    /// Returns the services by their folded ids.
    pub(super) fn services(&self) -> &BTreeMap<ServiceId, LocalService> {
        &self.services
    }

    /// Returns the checks by their folded ids.
    pub(super) fn checks(&self) -> &BTreeMap<CheckId, LocalCheck> {
        &self.checks
    }

    /// Returns the folded ids of the checks of a service, or of the node itself, in order.
    fn ids_of(&self, service: Option<ServiceId>) -> impl Iterator<Item = &CheckId> {
        let from = (service.clone(), CheckId::from(""));
        self.of_services.range(from..).take_while(move |(of, _)| *of == service).map(|(_, id)| id)
    }

    /// Returns the folded ids of a service's checks, by its own.
    pub(super) fn checks_of(&self, service: &ServiceId) -> Vec<CheckId> {
        self.ids_of(Some(service.clone())).cloned().collect()
    }

    /// Returns the checks of the node and of a service, by its folded id, in order of their ids.
    pub(super) fn deciding(&self, service: Option<ServiceId>) -> Vec<(&CheckId, &LocalCheck)> {
        let mut ids: Vec<_> = self.ids_of(None).collect();
        if service.is_some() {
            ids.extend(self.ids_of(service));
            ids.sort();
        }
        ids.into_iter().filter_map(|id| self.checks.get_key_value(id)).collect()
    }

    /// Inserts a service, or replaces the one with that id.
    pub(super) fn insert_service(&mut self, service: LocalService) {
        let id = service.record.id.folded();
        self.remove_service(&id);
        self.aliases.touch((None, Some(id.clone())));
        self.service_writes.move_to(&id, None, service.unwritten.at);
        self.services.insert(id, service);
    }

    pub(super) fn remove_service(&mut self, id: &ServiceId) -> Option<LocalService> {
        self.note_service(id);
        let service = self.services.remove(id)?;
        self.aliases.touch((None, Some(id.clone())));
        self.service_writes.move_to(id, service.unwritten.at, None);
        Some(service)
    }

    /// Changes a service, except for its id.
    pub(super) fn change_service(&mut self, id: &ServiceId, change: impl FnOnce(&mut LocalService)) {
        let Some(service) = self.services.get_mut(id) else { return };
        let before = service.unwritten.at;
        change(service);
        self.service_writes.move_to(id, before, service.unwritten.at);
    }

    /// Inserts a check, or replaces the one with that id.
    pub(super) fn insert_check(&mut self, check: LocalCheck) {
        let id = check.record.id.folded();
        self.remove_check(&id);
        self.move_check(&id, [None; 4], check.times());
        self.of_services.insert((check.service(), id.clone()));
        self.aliases.insert(&id, &check.definition.kind);
        self.aliases.touch((None, check.service()));
        self.checks.insert(id, check);
    }

    pub(super) fn remove_check(&mut self, id: &CheckId) -> Option<LocalCheck> {
        self.note_check(id);
        let check = self.checks.remove(id)?;
        self.move_check(id, check.times(), [None; 4]);
        self.of_services.remove(&(check.service(), id.clone()));
        self.aliases.remove(id, &check.definition.kind);
        self.aliases.touch((None, check.service()));
        Some(check)
    }

    fn note_service(&mut self, id: &ServiceId) {
        if let Some(undo) = &mut self.undo {
            undo.services.entry(id.clone()).or_insert_with(|| self.services.get(id).cloned());
        }
    }

    fn note_check(&mut self, id: &CheckId) {
        if let Some(undo) = &mut self.undo {
            undo.checks.entry(id.clone()).or_insert_with(|| self.checks.get(id).cloned());
        }
    }

    /// Changes a check, except for its id, its definition and its service. After a change of its
    /// status or of its output, [`Self::touch`] is due.
    pub(super) fn change_check<T>(
        &mut self,
        id: &CheckId,
        change: impl FnOnce(&mut LocalCheck) -> T,
    ) -> Option<T> {
        let check = self.checks.get_mut(id)?;
        let before = check.times();
        let result = change(check);
        let after = check.times();
        self.move_check(id, before, after);
        Some(result)
    }

    /// Notes that the status or the output of a check changed.
    pub(super) fn touch(&mut self, id: &CheckId) {
        self.version += 1;
        if let Some(check) = self.checks.get(id) {
            self.aliases.touch((None, check.service()));
        }
    }

    /// Sets a status and an output; see [`LocalCheck::update`].
    pub(super) fn update(&mut self, now: Time, id: &CheckId, news: (CheckStatus, String), delay: Duration) {
        let version = self.version + 1;
        let updated = self.change_check(id, |check| {
            check.is_found = true;
            // A repeated report must not keep a write of the check from being the last one.
            let has_changed = check.update(now, news, delay);
            if has_changed {
                check.unwritten.version = version;
            }
            has_changed
        });
        if updated == Some(true) {
            self.touch(id);
        }
    }

    fn move_check(&mut self, id: &CheckId, from: [Option<Time>; 4], to: [Option<Time>; 4]) {
        let agendas = [&mut self.expiries, &mut self.reapings, &mut self.runs, &mut self.check_writes];
        for (agenda, (from, to)) in agendas.into_iter().zip(from.into_iter().zip(to)) {
            agenda.move_to(id, from, to);
        }
    }

    /// Returns an error if these checks exceed the maximum; those that exist need no room.
    pub(super) fn has_room<'a>(
        &self,
        limits: &Limits,
        checks: impl IntoIterator<Item = &'a NewCheck>,
    ) -> Result<(), RegistryError> {
        let ids = checks.into_iter().map(|check| check.id.folded());
        let new = ids.filter(|id| !self.checks.contains_key(id));
        let new = new.collect::<BTreeSet<_>>().len();
        match self.checks.len() + new > limits.max_checks && new > 0 {
            true => Err(RegistryError::TooManyChecks(limits.max_checks)),
            false => Ok(()),
        }
    }

    /// Returns an error if the tables would exceed a maximum with the definitions of the
    /// configuration files, by their folded ids.
    pub(super) fn has_room_for(
        &self,
        limits: &Limits,
        services: &BTreeSet<ServiceId>,
        checks: &BTreeSet<CheckId>,
    ) -> Result<(), RegistryError> {
        let others = self.services.iter().filter(|(_, service)| service.source == Source::Api);
        let others = others.filter(|(id, _)| !services.contains(*id)).count();
        if others + services.len() > limits.max_services {
            return Err(RegistryError::TooManyServices(limits.max_services));
        }
        let others = self.checks.iter().filter(|(_, check)| check.source == Source::Api);
        let others = others.filter(|(id, _)| !checks.contains(*id)).count();
        if others + checks.len() > limits.max_checks {
            return Err(RegistryError::TooManyChecks(limits.max_checks));
        }
        Ok(())
    }

    /// Asserts that the indexes agree with the tables.
    #[cfg(test)]
    pub(super) fn assert_indexed(&self) {
        let mut rebuilt = Self::new(self.node.clone());
        self.services.values().for_each(|service| rebuilt.insert_service(service.clone()));
        self.checks.values().for_each(|check| rebuilt.insert_check(check.clone()));
        let indexes = |tables: &Self| {
            let Self { of_services, aliases, expiries, reapings, runs, check_writes, service_writes, .. } =
                tables;
            let agendas = [expiries, reapings, runs, check_writes];
            format!("{of_services:?} {:?} {agendas:?} {service_writes:?}", aliases.followers)
        };
        assert_eq!(indexes(self), indexes(&rebuilt));
    }
}
