//! Takes back a change that could not be stored, so that a registration that fails has no effect.

use super::services::LocalService;
use super::stored::Store;
use super::{LocalCheck, Outbox, Registry, Source, Unwritten};
use lockmesh_protocol::id::{CheckId, ServiceId};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;

/// The services and checks before a change, by folded id; `None` if there was none.
#[derive(Clone, Debug, Default)]
pub struct Undo {
    /// The time of the change.
    at: Time,
    pub(super) services: BTreeMap<ServiceId, Option<LocalService>>,
    pub(super) checks: BTreeMap<CheckId, Option<LocalCheck>>,
}

impl Undo {
    /// Makes a change, and returns what takes it back with its result.
    pub fn of<T>(registry: &mut Registry, now: Time, change: impl FnOnce(&mut Registry) -> T) -> (T, Self) {
        registry.tables.undo = Some(Self { at: now, ..Self::default() });
        let result = change(registry);
        (result, registry.tables.undo.take().unwrap_or_default())
    }

    /// Returns the folded ids of the services that it replaced, added or removed.
    pub fn services(&self) -> impl Iterator<Item = &ServiceId> {
        self.services.keys()
    }

    /// Returns the folded ids of the checks that it replaced, added or removed.
    pub fn checks(&self) -> impl Iterator<Item = &CheckId> {
        self.checks.keys()
    }

    /// Takes a change of an application back, here and in the catalog. Reports, runs and
    /// definitions of the configuration since then stay.
    pub fn take_back(mut self, registry: &mut Registry, now: Time, outbox: &mut Outbox) {
        let is_configured = |source: Option<Source>| source == Some(Source::Config);
        let tables = &registry.tables;
        self.services.retain(|id, _| !is_configured(tables.services().get(id).map(|known| known.source)));
        self.checks.retain(|id, _| !is_configured(tables.checks().get(id).map(|known| known.source)));
        for (id, before) in self.services {
            registry.tables.version += 1;
            match before {
                Some(service) => {
                    let unwritten = Unwritten { at: Some(now), version: registry.tables.version };
                    registry.departed.services.remove(&id);
                    outbox.stores.push(service.store());
                    registry.tables.insert_service(LocalService { unwritten, ..service });
                    registry.tables.describe_checks(now, &id);
                }
                None if registry.tables.remove_service(&id).is_some() => {
                    outbox.stores.push(Store::Service(id.clone(), None));
                    registry.departed.services.insert(id);
                }
                None => {}
            }
        }
        for (id, before) in self.checks {
            registry.tables.version += 1;
            match before {
                Some(check) => Self::restore_check(registry, (self.at, now), (id, check), outbox),
                None => {
                    let Some(check) = registry.tables.remove_check(&id) else { continue };
                    outbox.stores.push(Store::Check(id.clone(), None));
                    registry.departed.checks.insert(id, check.service());
                }
            }
        }
        registry.limit_departed();
    }

    fn restore_check(
        registry: &mut Registry,
        (at, now): (Time, Time),
        (id, mut check): (CheckId, LocalCheck),
        outbox: &mut Outbox,
    ) {
        check.unwritten = Unwritten { at: Some(now), version: registry.tables.version };
        if let Some(since) = registry.tables.checks().get(&id) {
            check.continue_after_undo(since, at);
        }
        registry.tables.describe_service(&mut check.record);
        // The result of its run may have been dropped meanwhile.
        if let Some(probe) = check.definition.kind.probe().filter(|_| !registry.runs.runs(&id)) {
            check.next_run = Some(check.next_run.unwrap_or(now + probe.interval));
        }
        registry.departed.checks.remove(&id);
        outbox.stores.push(check.store());
        registry.tables.insert_check(check);
    }
}

impl LocalCheck {
    /// Continues with the reports and runs of a definition that replaced this one at a time.
    fn continue_after_undo(&mut self, since: &Self, at: Time) {
        let (deadline, keeps_deadline) = (self.deadline, self.keeps_deadline);
        self.continue_from(since);
        (self.deadline, self.keeps_deadline) = (deadline, keeps_deadline);
        let (Some(ttl), Some(other)) = (self.definition.kind.ttl(), since.definition.kind.ttl()) else {
            return;
        };
        // The registration itself is no report.
        let reported_after = since.deadline.map(|known| known.since(at + other)).unwrap_or_default();
        if !reported_after.is_zero() {
            self.deadline = self.deadline.max(Some(at + reported_after + ttl));
            self.keeps_deadline = false;
        }
    }
}
