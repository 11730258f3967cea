//! Keeps the catalog equal to the registry (anti-entropy).
//!
//! A round removes what has departed, writes what changed, and from time to time compares the whole
//! node: the catalog gets back what it lost (a restored backup, a node removed by hand) and loses
//! what others put there. It does so soon after a restore, or when the agent had to register again.
//! A failure ends the round, and the next one begins after a pause that grows.

use super::services::LocalService;
use super::stored::{Source, Store};
use super::tables::Tables;
use super::thresholds::Streak;
use super::{LocalCheck, Notice, Order, Outbox, Registry, Unwritten};
use crate::definitions::{CheckKind, NewCheck};
use lockmesh_protocol::backoff::Backoff;
use lockmesh_protocol::id::{CheckId, LogIndex, ServiceId};
use lockmesh_protocol::log_on_change::LogOnChange;
use lockmesh_protocol::random::Random;
use lockmesh_protocol::record::{Check, SERF_HEALTH, Service};
use lockmesh_protocol::time::Time;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// The maximum time until a failed round is repeated when a leader is found. Random, because the
/// agents of a fleet find it at the same time.
const HASTENED_WITHIN: Duration = Duration::from_millis(200);
/// The maximum time until the comparison after a restore or a registration. Random, because the
/// agents of a fleet learn of a restore within one renewal interval, and renew together after an
/// election.
const COMPARED_WITHIN: Duration = Duration::from_millis(500);
/// The minimum interval between comparisons; as much again is added at random.
const COMPARE_INTERVAL: Duration = Duration::from_secs(60);
/// The maximum number of checks in one command.
const MAX_CHECKS_PER_WRITE: usize = 64;
/// The maximum size of the checks in one command; servers refuse commands above 4 MiB. A
/// larger check is written alone.
const MAX_BYTES_PER_WRITE: usize = 512 << 10;
/// The service of the servers, which no agent owns.
const SERVERS: &str = "consul";

/// What was deregistered here, but not in the catalog yet, by folded id.
#[derive(Debug, Default)]
pub(super) struct Departed {
    pub(super) services: BTreeSet<ServiceId>,
    /// Checks, each with the service with which it departed: the catalog removes them together.
    pub(super) checks: BTreeMap<CheckId, Option<ServiceId>>,
}

/// The state of the synchronization.
#[derive(Debug)]
pub(super) struct CatalogSync {
    /// The version up to which the catalog has all urgent changes.
    written: u64,
    /// The time of the next comparison.
    compare_at: Time,
    /// Set if it became due during another one, whose reads may be older than the reason.
    compares_again: bool,
    /// Set after a refused write: the catalog is not as assumed, so it is compared before changes
    /// are written.
    compares_first: bool,
    /// The time of the next round; `None` after a successful one, which any change follows.
    retry_at: Option<Time>,
    backoff: Backoff,
    log: LogOnChange,
    /// Set until what an earlier process left in the catalog was adopted.
    adopts: bool,
    round: Option<Round>,
}

/// A round with a call under way.
#[derive(Debug)]
struct Round {
    /// The version of the registry at its beginning.
    version: u64,
    departures: VecDeque<Departure>,
    /// Entries to write, each with one command.
    writes: VecDeque<Write>,
    comparison: Comparison,
    pending: Pending,
}

#[derive(Clone, Debug)]
enum Departure {
    Service(ServiceId),
    Check(CheckId),
}

/// A service, or none, and checks.
#[derive(Debug)]
struct Write(Option<ServiceId>, Vec<CheckId>);

/// The comparison of a round with the catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    NotDue,
    /// After the changes, which do not wait for the whole node.
    Due,
    /// The changes are those that it found.
    Done,
}

/// The call under way.
#[derive(Debug)]
enum Pending {
    None,
    Departure(Departure),
    /// The written entries, with their versions.
    Write(Option<(ServiceId, u64)>, Vec<(CheckId, u64)>),
    /// The version of the registry at the beginning of the read.
    Services(u64),
    /// The same, with the services that were read.
    Checks(u64, Vec<Arc<Service>>),
}

impl Departed {
    pub(super) fn is_empty(&self) -> bool {
        self.services.is_empty() && self.checks.is_empty()
    }

    /// Returns what has to be removed: services, which take their checks along, and other checks.
    fn departures(&self) -> VecDeque<Departure> {
        let is_alone = |service: &Option<ServiceId>| {
            service.as_ref().is_none_or(|service| !self.services.contains(service))
        };
        let checks = self.checks.iter().filter(|(_, service)| is_alone(service));
        let services = self.services.iter().cloned().map(Departure::Service);
        services.chain(checks.map(|(check, _)| Departure::Check(check.clone()))).collect()
    }

    /// Returns `true` if something is still to be removed.
    fn has(&self, departure: &Departure) -> bool {
        match departure {
            Departure::Service(id) => self.services.contains(id),
            Departure::Check(id) => self.checks.contains_key(id),
        }
    }

    fn applied(&mut self, departure: &Departure) {
        match departure {
            Departure::Check(check) => drop(self.checks.remove(check)),
            Departure::Service(service) => {
                self.services.remove(service);
                self.checks.retain(|_, of| of.as_ref() != Some(service));
            }
        }
    }
}

impl CatalogSync {
    /// Compares the node before further changes are written.
    pub(super) fn compare_first(&mut self) {
        self.compares_first = true;
    }

    /// Compares the catalog soon, or after the round under way.
    pub(super) fn catalog_lost(&mut self, now: Time, random: &mut Random) {
        // Changes of checks would be refused without their services.
        self.compares_first = true;
        self.compares_again = self.round.is_some();
        if self.retry_at.is_none_or(|at| at > now + COMPARED_WITHIN) {
            self.retry_at = Some(now + COMPARED_WITHIN.mul_f64(random.fraction()));
        }
    }

    pub(super) fn new(seed: u64, now: Time, adopts: bool) -> Self {
        Self {
            written: 0,
            compare_at: now,
            compares_again: false,
            // What the catalog has may be newer than a definition without a status.
            compares_first: adopts,
            retry_at: None,
            backoff: Backoff::new(RETRY_BACKOFF, seed),
            log: LogOnChange::default(),
            adopts,
            round: None,
        }
    }

    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Returns the time of the next round, if the next write is due at `write`; `None` during a
    /// round.
    pub(super) fn wakes_at(&self, write: Option<Time>) -> Option<Time> {
        let compare_at = if self.compares_first { Time::default() } else { self.compare_at };
        let due = write.map_or(compare_at, |write| write.min(compare_at));
        self.round.is_none().then(|| self.retry_at.unwrap_or(due))
    }
}

impl Registry {
    /// Begins a round, unless one is under way or a failed one is not to be retried yet. Changes
    /// must not speed up retries.
    pub(super) fn synchronize(&mut self, now: Time, outbox: &mut Outbox) {
        if self.sync.round.is_some() || self.sync.retry_at.is_some_and(|at| at > now) {
            return;
        }
        let is_due = self.sync.compare_at <= now;
        let comparison = if is_due { Comparison::Due } else { Comparison::NotDue };
        let mut round = self.round(now, comparison);
        if self.sync.compares_first {
            (round.departures, round.writes) = (VecDeque::new(), VecDeque::new());
            (round.comparison, round.version) = (Comparison::Due, self.sync.written);
        }
        self.advance(now, round, outbox);
    }

    /// Returns a round with the changes that are due.
    fn round(&self, now: Time, comparison: Comparison) -> Round {
        let (version, writes) = (self.tables.version, self.tables.writes(now));
        let departures = self.departed.departures();
        Round { version, departures, writes, comparison, pending: Pending::None }
    }

    /// Orders the next call of a round, or ends it.
    fn advance(&mut self, now: Time, mut round: Round, outbox: &mut Outbox) {
        while let Some(Write(service, checks)) = round.writes.pop_front() {
            if let Some((order, pending)) = self.tables.write(service, &checks) {
                (outbox.order, round.pending) = (Some(order), pending);
                self.sync.round = Some(round);
                return;
            }
        }
        // After the writes: a check that moved to another service must not depart with its old one.
        while let Some(departure) = round.departures.pop_front() {
            if !self.departed.has(&departure) {
                continue;
            }
            outbox.order = Some(match departure.clone() {
                Departure::Service(id) => Order::DeregisterService(id),
                Departure::Check(id) => Order::DeregisterCheck(id),
            });
            round.pending = Pending::Departure(departure);
            self.sync.round = Some(round);
            return;
        }
        self.sync.written = self.sync.written.max(round.version);
        match round.comparison {
            Comparison::Due => {
                outbox.order = Some(Order::ReadServices);
                round.pending = Pending::Services(self.tables.version);
                self.sync.round = Some(round);
            }
            Comparison::Done => {
                self.sync.compare_at = now + COMPARE_INTERVAL + self.jitter(COMPARE_INTERVAL);
                self.sync_succeeded(outbox);
            }
            Comparison::NotDue => self.sync_succeeded(outbox),
        }
    }

    /// Continues the round after an applied write.
    pub(super) fn write_applied(&mut self, now: Time, outbox: &mut Outbox) {
        let Some(mut round) = self.sync.round.take() else { return };
        outbox.notices.push(Notice::Written);
        match std::mem::replace(&mut round.pending, Pending::None) {
            Pending::Departure(departure) => {
                self.departed.applied(&departure);
                // It may be registered again while its removal was written.
                match departure {
                    Departure::Service(id) => self.tables.write_service(now, &id),
                    Departure::Check(id) => self.tables.write_check(now, &id),
                }
            }
            Pending::Write(service, checks) => {
                if let Some((id, version)) = service {
                    self.tables.change_service(&id, |service| service.unwritten.written(version));
                }
                for (id, version) in checks {
                    self.tables.change_check(&id, |check| check.unwritten.written(version));
                }
            }
            Pending::Services(_) | Pending::Checks(..) | Pending::None => {}
        }
        self.advance(now, round, outbox);
    }

    /// Keeps the services that were read, and orders the read of the checks.
    pub(super) fn services_read(&mut self, services: Vec<Arc<Service>>, outbox: &mut Outbox) {
        let Some(round) = &mut self.sync.round else { return };
        let Pending::Services(before) = round.pending else { return };
        round.pending = Pending::Checks(before, services);
        outbox.order = Some(Order::ReadChecks);
    }

    /// Marks every entry that differs from the catalog, and writes these; what only the catalog has
    /// is adopted once, and removed later.
    pub(super) fn compare(&mut self, now: Time, checks: &[Arc<Check>], outbox: &mut Outbox) {
        let Some(round) = self.sync.round.take() else { return };
        let Pending::Checks(before, services) = round.pending else { return };
        self.sync.compares_first = std::mem::take(&mut self.sync.compares_again);
        // Once: what appears there later, or was removed here, is not left from before.
        let adopts = std::mem::take(&mut self.sync.adopts);
        let is_own = |service: &&Arc<Service>| service.id.folded().as_str() != SERVERS;
        let services: Vec<_> = services.iter().filter(is_own).collect();
        let health = CheckId::from(SERF_HEALTH).folded();
        let is_own = |check: &&Arc<Check>| check.id.folded() != health;
        let checks: Vec<_> = checks.iter().filter(is_own).collect();
        if adopts {
            services.iter().for_each(|left| self.adopt_service(left, outbox));
            checks.iter().for_each(|left| self.adopt_check(now, left, outbox));
            outbox.stores.push(Store::Adopted);
        }
        self.mark_services(now, before, &services, outbox);
        self.mark_checks(now, before, &checks, outbox);
        let round = self.round(now, Comparison::Done);
        self.advance(now, round, outbox);
    }

    fn mark_services(&mut self, now: Time, before: u64, catalog: &[&Arc<Service>], outbox: &mut Outbox) {
        let catalog: BTreeMap<_, _> = catalog.iter().map(|service| (service.id.folded(), service)).collect();
        let (mut overridden, mut differing) = (Vec::new(), Vec::new());
        for (id, service) in self.tables.services() {
            // Changes made while the catalog answered are newer than its answer.
            if service.unwritten.version > before || service.unwritten.at.is_some() {
                continue;
            }
            let known = catalog.get(id).map(|known| without_indexes((***known).as_ref().clone()));
            let Some(mut known) = known else {
                differing.push(id.clone());
                continue;
            };
            if service.record.enable_tag_override && service.record.tags != known.tags {
                overridden.push((id.clone(), known.tags.clone()));
                known.tags.clone_from(&service.record.tags);
            }
            if service.record != known {
                differing.push(id.clone());
            }
        }
        for id in differing {
            self.tables.change_service(&id, |service| service.unwritten.at = Some(now));
        }
        let foreign = catalog.into_keys().filter(|id| !self.tables.services().contains_key(id));
        for id in foreign {
            if self.departed.services.insert(id.clone()) {
                outbox.notices.push(Notice::Foreign(format!("service {id}")));
            }
        }
        for (id, tags) in overridden {
            self.tables.version += 1;
            self.tables.change_service(&id, |service| {
                service.record.tags = tags;
                outbox.stores.push(service.store());
            });
            self.tables.describe_checks(now, &id);
        }
    }

    fn mark_checks(&mut self, now: Time, before: u64, catalog: &[&Arc<Check>], outbox: &mut Outbox) {
        let catalog: BTreeMap<_, _> = catalog.iter().map(|check| (check.id.folded(), check)).collect();
        let mut differing = Vec::new();
        for (id, check) in self.tables.checks() {
            if check.unwritten.version > before || check.unwritten.at.is_some() {
                continue;
            }
            let Some(known) = catalog.get(id) else {
                differing.push(id.clone());
                continue;
            };
            let known = Check {
                create_index: LogIndex(0),
                modify_index: LogIndex(0),
                output: check.record.output.clone(),
                ..(***known).as_ref().clone()
            };
            if check.record != known {
                differing.push(id.clone());
            }
        }
        differing.iter().for_each(|id| self.tables.write_check(now, id));
        for (id, check) in catalog.into_iter().filter(|(id, _)| !self.tables.checks().contains_key(id)) {
            if let Entry::Vacant(entry) = self.departed.checks.entry(id) {
                outbox.notices.push(Notice::Foreign(format!("check {}", entry.key())));
                entry.insert(check.service_id.as_ref().map(ServiceId::folded));
            }
        }
    }

    /// Adopts a service that an earlier process left in the catalog.
    fn adopt_service(&mut self, left: &Service, outbox: &mut Outbox) {
        let key = left.id.folded();
        if self.tables.services().contains_key(&key) || self.departed.services.contains(&key) {
            return;
        }
        outbox.notices.push(Notice::AdoptedService(left.id.clone()));
        self.tables.version += 1;
        // The catalog is up to date.
        let unwritten = Unwritten { at: None, version: self.tables.version };
        let record = without_indexes(left.clone());
        let service = LocalService { record, source: Source::Api, is_sidecar: false, unwritten };
        outbox.stores.push(service.store());
        self.tables.insert_service(service);
    }

    /// Adopts a check that an earlier process left in the catalog.
    fn adopt_check(&mut self, now: Time, left: &Check, outbox: &mut Outbox) {
        let key = left.id.folded();
        if self.tables.checks().get(&key).is_some_and(|known| !known.is_found) {
            // A definition says nothing about the present: what the catalog has is known.
            self.tables.change_check(&key, |known| {
                (known.record.status, known.record.output) = (left.status, left.output.clone());
                known.streak = Streak::of_status(known.definition.thresholds, left.status);
                outbox.stores.push(known.store());
            });
            return self.tables.touch(&key);
        }
        let Some(kind) = CheckKind::adoptable(left) else { return };
        let services = self.tables.services();
        let has_service = left.service_id.as_ref().is_none_or(|id| services.contains_key(&id.folded()));
        // Reports since this agent started are newer than the catalog's status.
        let is_known = self.tables.checks().contains_key(&key) || self.departed.checks.contains_key(&key);
        if is_known || !has_service {
            return;
        }
        outbox.notices.push(Notice::Adopted(left.id.clone(), kind.ttl()));
        self.tables.version += 1;
        let definition = NewCheck {
            name: left.name.clone(),
            notes: left.notes.clone(),
            service: left.service_id.clone(),
            shows_unset_durations: !left.interval.is_empty(),
            ..NewCheck::of(left.id.clone(), left.status, kind)
        };
        let record = Check { create_index: LogIndex(0), modify_index: LogIndex(0), ..left.clone() };
        // A whole TTL: the application could not report while no agent ran.
        let mut check = LocalCheck::new(now, definition, record, Source::Api);
        check.last_report.clone_from(&left.output);
        check.keeps_deadline = check.deadline.is_some();
        // The catalog is up to date.
        check.unwritten = Unwritten { at: None, version: self.tables.version };
        outbox.stores.push(check.store());
        self.tables.insert_check(check);
    }

    fn sync_succeeded(&mut self, outbox: &mut Outbox) {
        self.sync.retry_at = None;
        self.sync.backoff.reset();
        if self.sync.log.reset() {
            outbox.notices.push(Notice::SyncRecovered);
        }
    }

    /// Ends a round whose write the servers refused: the catalog is not as assumed.
    pub(super) fn write_refused(&mut self, now: Time, reason: String, outbox: &mut Outbox) {
        self.sync.compare_first();
        self.sync_failed(now, reason, outbox);
    }

    /// Repeats a failed round soon. The next pause is as long as without.
    pub(super) fn hasten_round(&mut self, now: Time) {
        if let Some(at) = self.sync.retry_at {
            self.sync.retry_at = Some(at.min(now + self.jitter(HASTENED_WITHIN)));
        }
    }

    pub(super) fn sync_failed(&mut self, now: Time, reason: String, outbox: &mut Outbox) {
        if self.sync.round.take().is_some() {
            // A repeated failure is logged once, not at every attempt.
            let is_new = self.sync.log.is_new(&reason);
            outbox.notices.push(Notice::SyncFailed { reason, is_new });
            self.sync.retry_at = Some(now + self.sync.backoff.next_pause());
        }
    }
}

impl Tables {
    /// Returns the entries to write that are due.
    fn writes(&self, now: Time) -> VecDeque<Write> {
        let services: BTreeSet<_> = self.service_writes.due(now).cloned().collect();
        let due: BTreeSet<_> = self.check_writes.due(now).cloned().collect();
        let mut of_services = BTreeMap::<_, Vec<_>>::new();
        let mut others = Vec::new();
        for key in due {
            let service = self.checks().get(&key).and_then(LocalCheck::service);
            match service.filter(|service| services.contains(service)) {
                Some(service) => of_services.entry(service).or_default().push(key),
                None => others.push(key),
            }
        }
        let mut writes = VecDeque::new();
        let size = |id: &CheckId| self.checks().get(id).map_or(0, |check| size(&check.record));
        for key in services {
            // A service never appears without its checks.
            let mut checks = of_services.remove(&key).unwrap_or_default();
            others.extend(checks.split_off(fitting(&checks, size)));
            writes.push_back(Write(Some(key), checks));
        }
        while !others.is_empty() {
            let rest = others.split_off(fitting(&others, size));
            writes.push_back(Write(None, std::mem::replace(&mut others, rest)));
        }
        writes
    }

    /// Returns the command that writes what is still registered of these entries.
    fn write(&self, service: Option<ServiceId>, checks: &[CheckId]) -> Option<(Order, Pending)> {
        let service = service.and_then(|key| self.services().get_key_value(&key));
        let is_in_catalog = |(_, check): &(&CheckId, &LocalCheck)| match check.service() {
            Some(key) if service.is_none_or(|(written, _)| *written != key) => {
                // A service that was registered during the round is written by the next one.
                self.services().get(&key).is_some_and(|service| service.unwritten.at.is_none())
            }
            _ => true,
        };
        let checks = checks.iter().filter_map(|key| self.checks().get_key_value(key)).filter(is_in_catalog);
        let checks: Vec<_> = checks.collect();
        if service.is_none() && checks.is_empty() {
            return None;
        }
        let versions = checks.iter().map(|(key, check)| ((*key).clone(), check.unwritten.version));
        let version = service.map(|(key, service)| (key.clone(), service.unwritten.version));
        let pending = Pending::Write(version, versions.collect());
        let records = checks.iter().map(|(_, check)| check.record.clone()).collect();
        Some((Order::Register(service.map(|(_, service)| service.record.clone()), records), pending))
    }

    /// Marks a service and its checks as not in the catalog.
    fn write_service(&mut self, now: Time, id: &ServiceId) {
        self.change_service(id, |service| service.unwritten.at = Some(now));
        self.checks_of(id).iter().for_each(|check| self.write_check(now, check));
    }

    /// Marks a check as not in the catalog.
    fn write_check(&mut self, now: Time, id: &CheckId) {
        self.change_check(id, |check| check.unwritten.at = Some(now));
    }
}

/// Returns the number of checks that fit into a command: at least one.
fn fitting(checks: &[CheckId], size: impl Fn(&CheckId) -> usize) -> usize {
    let mut bytes = 0;
    let fits = checks.iter().take(MAX_CHECKS_PER_WRITE).take_while(|id| {
        bytes += size(id);
        bytes <= MAX_BYTES_PER_WRITE
    });
    fits.count().max(1).min(checks.len())
}

/// Returns about how many bytes a check takes in a command.
fn size(check: &Check) -> usize {
    let texts = [&check.name, &check.notes, &check.output, &check.definition, &check.service_name];
    texts.into_iter().chain(&check.service_tags).map(String::len).sum()
}

/// Returns a service of the catalog as an agent registers it.
fn without_indexes(service: Service) -> Service {
    Service { create_index: LogIndex(0), modify_index: LogIndex(0), ..service }
}
