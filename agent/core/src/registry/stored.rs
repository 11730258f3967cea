//! What the agent's data folder has of its services and checks, and how a registry begins with it.
//!
//! Definitions of configuration files are in the folder too, for the status of their checks: a
//! restart of the agent must not end the sessions that depend on them.

use super::runs::Runs;
use super::services::LocalService;
use super::sidecar::SIDECAR_PORTS;
use super::sync::CatalogSync;
use super::tables::Tables;
use super::thresholds::Streak;
use super::{Departed, EXPIRED, Limits, LocalCheck, Outbox, Registry, RegistryError, Unwritten};
use crate::definitions::{Configured, NewCheck, ServiceRegistration};
use lockmesh_protocol::id::{CheckId, NodeName, ServiceId};
use lockmesh_protocol::random::Random;
use lockmesh_protocol::record::{CheckStatus, Service};
use lockmesh_protocol::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The maximum time until the first run of a restored check. If the whole host was down, its node
/// becomes healthy again within about this time, and the stored status is wrong until the run.
const RESTORED_RUN_WITHIN: Duration = Duration::from_millis(200);

/// The origin of a definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// An application registered it.
    Api,
    /// A configuration file has it.
    Config,
}

/// A service in the data folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredService {
    /// The service.
    pub service: Service,
    /// Its origin.
    pub source: Source,
    /// Set if it was registered as the sidecar of another one.
    #[serde(default)]
    pub is_sidecar: bool,
}

/// A check in the data folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredCheck {
    /// Its definition.
    pub check: NewCheck,
    /// Its origin.
    pub source: Source,
    /// Its status at the last change.
    pub status: CheckStatus,
    /// Its output then.
    pub output: String,
    /// The times that continue across restarts.
    #[serde(default)]
    pub times: StoredTimes,
    /// The numbers of consecutive successes and failures, up to the thresholds; `None` if an
    /// earlier version wrote it.
    #[serde(default)]
    pub results: Option<(u32, u32)>,
}

/// The times of a check that continue across restarts of the agent, on the clock of the registry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredTimes {
    /// The boot of the host on whose clock they are. The registry leaves it to the data folder,
    /// which drops the times of an earlier boot: they begin again.
    pub boot: String,
    /// The time at which it turns critical without a report. Written by the first start after a
    /// report, and removed by the next report, so that reports write nothing otherwise.
    pub deadline: Option<Time>,
    /// The time since which reports or runs find it critical.
    pub critical_since: Option<Time>,
}

/// A change of the data folder: an entry to write, or `None` to remove it, or the note about the
/// adoption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    /// A service, by its folded id.
    Service(ServiceId, Option<Box<StoredService>>),
    /// A check, by its folded id.
    Check(CheckId, Option<Box<StoredCheck>>),
    /// What an earlier process left in the catalog was adopted.
    Adopted,
}

/// The content of the data folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// The services.
    pub services: Vec<StoredService>,
    /// The checks.
    pub checks: Vec<StoredCheck>,
    /// Set if what an earlier process left in the catalog was adopted.
    pub is_adopted: bool,
}

impl Stored {
    /// Removes the checks whose service is gone, and returns their ids.
    pub fn drop_orphans(&mut self) -> Vec<CheckId> {
        let services: BTreeSet<_> = self.services.iter().map(|stored| stored.service.id.folded()).collect();
        let is_orphan = |stored: &mut StoredCheck| {
            stored.check.service.as_ref().is_some_and(|service| !services.contains(&service.folded()))
        };
        self.checks.extract_if(.., is_orphan).map(|stored| stored.check.id).collect()
    }
}

impl Registry {
    /// Creates a registry with the content of the data folder. With a new folder, it adopts what an
    /// earlier process left in the catalog. Equal seeds give equal pauses.
    pub fn new(node: NodeName, limits: Limits, seed: u64, now: Time, stored: Stored) -> Self {
        let mut random = Random::new(seed);
        let mut registry = Self {
            limits,
            tables: Tables::new(node),
            departed: Departed::default(),
            runs: Runs::default(),
            sync: CatalogSync::new(random.number(), now, !stored.is_adopted),
            unstored: BTreeSet::new(),
            random,
        };
        registry.restore(now, stored);
        registry
    }

    fn restore(&mut self, now: Time, mut stored: Stored) {
        stored.drop_orphans();
        // Written only if the catalog differs, which the first comparison finds.
        let unwritten = Unwritten { at: None, version: self.tables.version };
        for StoredService { service, source, is_sidecar } in stored.services {
            let record = Service { node: self.tables.node.clone(), ..service };
            self.tables.insert_service(LocalService { record, source, is_sidecar, unwritten });
        }
        for stored in stored.checks {
            self.restore_check(now, stored, unwritten);
        }
    }

    fn restore_check(&mut self, now: Time, stored: StoredCheck, unwritten: Unwritten) {
        let StoredCheck { check: definition, source, status, output, times, results } = stored;
        let mut record = definition.record(&self.tables.node);
        self.tables.describe_service(&mut record);
        (record.status, record.output) = (status, output);
        let streak = Streak::restored(definition.thresholds, status, results);
        let first_run = definition.kind.probe().map(|probe| probe.interval.min(RESTORED_RUN_WITHIN));
        let first_run = first_run.map(|within| now + self.jitter(within));
        let mut check = LocalCheck::new(now, definition, record, source);
        if check.record.output.starts_with(EXPIRED) {
            // The catalog may not have it yet, and must not be adopted instead.
            (check.deadline, check.is_found) = (None, true);
        } else {
            check.last_report.clone_from(&check.record.output);
            check.keep_deadline(&times);
            self.unstored.extend((check.deadline != times.deadline).then(|| check.record.id.folded()));
        }
        check.critical_since =
            times.critical_since.filter(|_| status == CheckStatus::Critical).map(|at| at.min(now));
        (check.streak, check.next_run, check.unwritten) = (streak, first_run, unwritten);
        check.is_bunched = true;
        self.tables.insert_check(check);
    }

    /// Replaces the services and checks of the configuration files. They win over applications'
    /// definitions with the same id, and keep the status of their checks.
    ///
    /// # Errors
    /// The errors of a registration. Nothing is changed.
    pub fn configure(
        &mut self,
        now: Time,
        configured: Configured,
        outbox: &mut Outbox,
    ) -> Result<u64, RegistryError> {
        let parts: Vec<_> = configured.services.iter().flat_map(|new| new.clone().parts(0)).collect();
        let services: BTreeSet<_> = parts.iter().map(|part| part.service.id.folded()).collect();
        let of_services = parts.iter().flat_map(|part| &part.checks);
        let checks: BTreeSet<_> =
            of_services.chain(&configured.checks).map(|check| check.id.folded()).collect();
        self.tables.has_room_for(&self.limits, &services, &checks)?;
        has_services_of(self.tables.services(), &services, &configured.checks)?;
        has_sidecar_ports(self.tables.services(), &services, &configured.services)?;
        let is_gone = |source: Source, is_named: bool| source == Source::Config && !is_named;
        let known = self.tables.services().iter();
        let gone = known.filter(|(id, service)| is_gone(service.source, services.contains(*id)));
        for id in gone.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            // A sidecar may be gone with its service.
            self.deregister_service(&id, outbox);
        }
        let gone = self.tables.checks().iter().filter(|(id, it)| is_gone(it.source, checks.contains(*id)));
        for id in gone.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.deregister_check(&id, outbox);
        }
        for service in configured.services {
            self.register_service(now, service, Source::Config, outbox)?;
        }
        for check in configured.checks {
            self.register_check(now, check, Source::Config, outbox)?;
        }
        Ok(self.tables.version)
    }
}

/// Returns an error if there are fewer free ports than sidecars that need one.
fn has_sidecar_ports(
    registered: &BTreeMap<ServiceId, LocalService>,
    defined: &BTreeSet<ServiceId>,
    configured: &[ServiceRegistration],
) -> Result<(), RegistryError> {
    let stays =
        |(id, known): &(&ServiceId, &LocalService)| known.source == Source::Api || defined.contains(*id);
    let kept: BTreeMap<_, _> =
        registered.iter().filter(stays).map(|(id, known)| (id, known.record.port)).collect();
    let sidecars = || configured.iter().filter_map(|new| Some(&new.sidecar.as_ref()?.service));
    let set = configured.iter().map(|new| new.service.port).chain(sidecars().map(|proxy| proxy.port));
    let used: BTreeSet<u16> = set.chain(kept.values().copied()).collect();
    let used = SIDECAR_PORTS.filter(|port| used.contains(port)).count();
    let has_port = |proxy: &Service| {
        proxy.port > 0 || kept.get(&proxy.id.folded()).is_some_and(|port| SIDECAR_PORTS.contains(port))
    };
    let wanted = sidecars().filter(|proxy| !has_port(proxy)).count();
    match used + wanted > SIDECAR_PORTS.len() {
        true => Err(RegistryError::NoSidecarPort),
        false => Ok(()),
    }
}

/// Returns an error if a check is of a service that is neither defined nor an application's.
fn has_services_of(
    registered: &BTreeMap<ServiceId, LocalService>,
    defined: &BTreeSet<ServiceId>,
    checks: &[NewCheck],
) -> Result<(), RegistryError> {
    let of_application = |id: &ServiceId| registered.get(id).is_some_and(|known| known.source == Source::Api);
    let is_there = |id: &ServiceId| defined.contains(&id.folded()) || of_application(&id.folded());
    let missing = checks.iter().filter_map(|check| check.service.as_ref()).find(|id| !is_there(id));
    missing.map_or(Ok(()), |id| Err(RegistryError::NoService(id.clone())))
}

impl LocalCheck {
    /// Continues with the deadline of an earlier process, which may have had a longer TTL.
    fn keep_deadline(&mut self, times: &StoredTimes) {
        self.deadline = self.deadline.map(|whole| times.deadline.map_or(whole, |kept| kept.min(whole)));
        self.keeps_deadline = self.deadline.is_some();
    }

    /// Returns what the data folder must have of it.
    pub(super) fn store(&self) -> Store {
        let stored = StoredCheck {
            check: self.definition.clone(),
            source: self.source,
            status: self.record.status,
            output: self.record.output.clone(),
            times: StoredTimes {
                boot: String::new(),
                deadline: self.deadline.filter(|_| self.keeps_deadline),
                critical_since: self.critical_since,
            },
            results: Some(self.streak.kept(self.definition.thresholds)),
        };
        Store::Check(self.record.id.folded(), Some(Box::new(stored)))
    }
}
