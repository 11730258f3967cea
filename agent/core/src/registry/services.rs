//! Services of this agent: registration, maintenance, aggregate health.

use super::sidecar::Part;
use super::stored::{Source, Store, StoredService};
use super::tables::Tables;
use super::{Notice, Outbox, Registry, RegistryError, Unwritten, maintenance_notes};
use crate::definitions::{NewCheck, ServiceRegistration, sidecar_of};
use core::net::IpAddr;
use lockmesh_protocol::id::{CheckId, ServiceId};
use lockmesh_protocol::record::{
    Aggregate, Check, SERVICE_MAINTENANCE, Service, ServiceAddress, is_maintenance,
};
use lockmesh_protocol::time::Time;
use std::collections::BTreeSet;

/// A service of this agent.
#[derive(Clone, Debug)]
pub(super) struct LocalService {
    pub(super) record: Service,
    pub(super) source: Source,
    /// Set if it was registered as the sidecar of another one, with which it is removed.
    pub(super) is_sidecar: bool,
    pub(super) unwritten: Unwritten,
}

/// A service with the checks that decide its health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceHealth {
    /// Its health.
    pub aggregate: Aggregate,
    /// The service.
    pub service: Service,
    /// Its checks and the node's, in order of their ids.
    pub checks: Vec<Check>,
}

impl Registry {
    /// Returns every service, in order of their ids.
    pub fn services(&self) -> Vec<Service> {
        self.tables.services().values().map(|service| service.record.clone()).collect()
    }

    /// Returns a service with its health.
    pub fn service_health(&self, id: &ServiceId) -> Option<ServiceHealth> {
        let key = id.folded();
        let service = self.tables.services().get(&key)?.record.clone();
        let checks = self.tables.deciding(Some(key)).into_iter();
        let checks: Vec<Check> = checks.map(|(_, check)| check.record.clone()).collect();
        let aggregate = Aggregate::of(checks.iter().map(|check| (check.id.as_str(), check.status)));
        Some(ServiceHealth { aggregate, service, checks })
    }

    /// Registers a service with its checks, or changes the one with that id. Its checks keep their
    /// status. Those that are not named again stay, unless `replaces_checks`; so does a sidecar.
    /// Returns the version to wait for.
    ///
    /// # Errors
    /// The registry is unchanged: the operator has to make room.
    pub fn register_service(
        &mut self,
        now: Time,
        registration: ServiceRegistration,
        source: Source,
        outbox: &mut Outbox,
    ) -> Result<u64, RegistryError> {
        let replaces_checks = registration.replaces_checks;
        let parts = registration.fitting(self.tables.services(), self.limits.max_services)?;
        self.tables.has_room(&self.limits, parts.iter().flat_map(|part| &part.checks))?;
        for Part { service, checks, is_sidecar } in parts {
            let id = service.id.clone();
            let record = Service { node: self.tables.node.clone(), ..service };
            self.insert_service(now, LocalService::new(record, source, is_sidecar), outbox);
            let named: BTreeSet<_> = checks.iter().map(|check| check.id.folded()).collect();
            for check in checks {
                self.insert_check(now, NewCheck { service: Some(id.clone()), ..check }, source, outbox);
            }
            let is_dropped = |check: &CheckId| {
                replaces_checks && !named.contains(check) && !is_maintenance(check.as_str())
            };
            for check in self.tables.checks_of(&id.folded()).into_iter().filter(is_dropped) {
                self.deregister_check(&check, outbox);
            }
        }
        Ok(self.tables.version)
    }

    /// Removes a service with its checks and its sidecar, here and from the catalog. Returns
    /// `false` if it was not registered.
    pub fn deregister_service(&mut self, id: &ServiceId, outbox: &mut Outbox) -> bool {
        let key = id.folded();
        if self.tables.remove_service(&key).is_none() {
            return false;
        }
        outbox.stores.push(Store::Service(key.clone(), None));
        for check in self.tables.checks_of(&key) {
            self.tables.remove_check(&check);
            outbox.stores.push(Store::Check(check.clone(), None));
            self.departed.checks.insert(check, Some(key.clone()));
        }
        self.departed.services.insert(key);
        self.limit_departed();
        self.tables.version += 1;
        outbox.notices.push(Notice::Deregistered(id.clone()));
        let sidecar = ServiceId::from(sidecar_of(id.as_str()));
        // Another service may have that id by chance.
        if self.tables.services().get(&sidecar.folded()).is_some_and(|known| known.is_sidecar) {
            self.deregister_service(&sidecar, outbox);
        }
        true
    }

    /// Puts a service into maintenance with this reason, or ends it without one. A service already
    /// in maintenance keeps its first reason.
    ///
    /// # Errors
    /// [`RegistryError::UnknownService`]: nothing was changed.
    pub fn maintain_service(
        &mut self,
        now: Time,
        service: &ServiceId,
        reason: Option<&str>,
        outbox: &mut Outbox,
    ) -> Result<u64, RegistryError> {
        let known = self.tables.services().get(&service.folded());
        let service = &known.ok_or_else(|| RegistryError::UnknownService(service.clone()))?.record.id.clone();
        let id = CheckId::from(format!("{SERVICE_MAINTENANCE}{service}"));
        match reason {
            Some(reason) if !self.tables.checks().contains_key(&id.folded()) => {
                let notes = maintenance_notes(reason, "service");
                let check = NewCheck::maintenance(id, Some(service.clone()), &notes);
                self.insert_check(now, check, Source::Api, outbox);
            }
            Some(_) => {}
            None => {
                self.deregister_check(&id, outbox);
            }
        }
        Ok(self.tables.version)
    }

    /// Inserts a service; its checks get its name and its tags.
    fn insert_service(&mut self, now: Time, mut service: LocalService, outbox: &mut Outbox) {
        self.tables.version += 1;
        service.unwritten = Unwritten { at: Some(now), version: self.tables.version };
        let (id, key) = (service.record.id.clone(), service.record.id.folded());
        let known = self.tables.services().get(&key);
        if let Some(known) = known.filter(|_| service.source == Source::Config)
            && service.record.enable_tag_override
            && known.record.enable_tag_override
        {
            // Another client may have set them since the file was written.
            service.record.tags.clone_from(&known.record.tags);
        }
        if known.is_none_or(|known| known.record != service.record) {
            outbox.notices.push(Notice::Registered(id));
        }
        if known.is_none_or(|known| known.store() != service.store()) {
            outbox.stores.push(service.store());
        }
        // It is registered again, so its removal need not reach the catalog.
        self.departed.services.remove(&key);
        self.tables.insert_service(service);
        self.tables.describe_checks(now, &key);
    }
}

impl Tables {
    /// Gives the checks of a service, by its folded id, its name and its tags.
    pub(super) fn describe_checks(&mut self, now: Time, key: &ServiceId) {
        let Some(service) = self.services().get(key).map(|service| service.record.clone()) else { return };
        let unwritten = Unwritten { at: Some(now), version: self.version };
        for check in self.checks_of(key) {
            self.change_check(&check, |check| {
                let before = check.record.clone();
                describe(&mut check.record, &service);
                if check.record != before {
                    check.unwritten = unwritten;
                }
            });
        }
    }

    /// Sets the fields of a check that are its service's.
    pub(super) fn describe_service(&self, record: &mut Check) {
        let service = record.service_id.as_ref().and_then(|id| self.services().get(&id.folded()));
        if let Some(service) = service {
            describe(record, &service.record);
        }
    }
}

impl LocalService {
    /// Creates a service that the catalog need not get.
    pub(super) fn new(record: Service, source: Source, is_sidecar: bool) -> Self {
        let mut service = Self { record, source, is_sidecar, unwritten: Unwritten { at: None, version: 0 } };
        add_automatic_addresses(&mut service.record);
        service
    }

    /// Returns what the data folder must have of it.
    pub(super) fn store(&self) -> Store {
        let Self { record, source, is_sidecar, .. } = self;
        let stored = StoredService { service: record.clone(), source: *source, is_sidecar: *is_sidecar };
        Store::Service(self.record.id.folded(), Some(Box::new(stored)))
    }
}

/// Adds the tagged addresses that clients expect of a service with an IP address.
fn add_automatic_addresses(service: &mut Service) {
    let family = match service.address.parse() {
        Ok(IpAddr::V4(_)) => "ipv4",
        Ok(IpAddr::V6(_)) => "ipv6",
        Err(_) => return,
    };
    for network in ["lan", "wan"] {
        let address = ServiceAddress { address: service.address.clone(), port: service.port };
        service.tagged_addresses.entry(format!("{network}_{family}")).or_insert(address);
    }
}

fn describe(check: &mut Check, service: &Service) {
    check.service_name.clone_from(&service.name);
    check.service_tags.clone_from(&service.tags);
}
