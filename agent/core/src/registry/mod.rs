//! This agent's own services and health checks: registered by applications and configuration files,
//! kept here, and written to the catalog.
//!
//! A check has a [kind](crate::definitions::CheckKind), a status and an output. The kind decides
//! how the status is found: an application reports it within a TTL, the agent runs a probe, or the
//! check follows others (alias). [`Registry`] is the list; `sync.rs` keeps the catalog equal to it
//! (anti-entropy).
//!
//! The agent's data folder has what is registered, with the status of each check
//! ([`Store`]), so that sessions that depend on it survive a restart of the agent: a restored check
//! keeps its status until it has run, or until its TTL is over. An agent whose folder is new adopts
//! the services of an earlier process from the catalog, and the checks that applications report.
//!
//! A restart extends the TTL of a check once: the first start after a report writes the deadline
//! into the folder, and later starts keep it until the next report.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the value, its inputs and effects, and the changes of one check |
//! | `tables.rs` | the tables of services and checks, and their indexes |
//! | `agenda.rs` | ids in order of the times at which something is due |
//! | `services.rs` | services, their maintenance and their aggregate health |
//! | `sidecar.rs` | proxies that are registered with their service |
//! | `runs.rs` | when checks run, and how many at a time |
//! | `thresholds.rs` | after how many results a status changes |
//! | `alias.rs` | checks that follow other checks |
//! | `stored.rs` | what the data folder has, and how a registry begins with it |
//! | `undo.rs` | takes back what could not be stored |
//! | `sync.rs` | anti-entropy |
//!
//! **Invariants:** the agent owns its node in the catalog, except for the node's health and the
//! servers' own service: entries of others are removed, and its own return. Restarts, however many,
//! keep a check without reports from its expiry for one TTL in all, and delay no deregistration.

mod agenda;
mod alias;
mod runs;
mod services;
mod sidecar;
mod stored;
mod sync;
mod tables;
#[cfg(test)]
mod tests;
mod thresholds;
mod undo;

pub use alias::AliasedNode;
pub use runs::{Outcome, Run, RunId};
pub use services::ServiceHealth;
pub use sidecar::SIDECAR_PORTS;
pub use stored::{Source, Store, Stored, StoredCheck, StoredService, StoredTimes};
pub use undo::Undo;

use crate::definitions::NewCheck;
use lockmesh_protocol::id::{CheckId, NodeName, ServiceId};
use lockmesh_protocol::random::Random;
use lockmesh_protocol::record::{Check, CheckStatus, NODE_MAINTENANCE, Service};
use lockmesh_protocol::reply::Reply;
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;
use runs::Runs;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use sync::{CatalogSync, Departed};
use tables::Tables;
use thresholds::Streak;

const EXPIRED: &str = "TTL expired";

/// The minimum time in critical state after which a service is deregistered.
const MIN_DEREGISTER_AFTER: Duration = Duration::from_secs(60);

/// Limits on the numbers of services and checks, and on the checks' output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The mean delay before a change of a check's output alone is written to the catalog.
    pub update_interval: Duration,
    /// The maximum size of a check's output, in bytes.
    pub max_output_bytes: usize,
    /// The maximum number of checks.
    pub max_checks: usize,
    /// The maximum number of services.
    pub max_services: usize,
    /// The maximum number of checks that run at a time.
    pub max_running: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            update_interval: Duration::from_secs(5 * 60),
            max_output_bytes: 4_096,
            max_checks: 4_096,
            max_services: 4_096,
            max_running: 64,
        }
    }
}

/// The reason why nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// There is no such service.
    #[error("No service registered with ID {0:?}")]
    UnknownService(ServiceId),
    /// A check names a service that is not registered.
    #[error(
        "ServiceID {0:?} does not exist: register the service with this agent first, or omit its ID for a \
         check of the node"
    )]
    NoService(ServiceId),
    /// The maximum number of checks is reached.
    #[error("this agent has reached its limit of {0} checks: deregister one, or raise registry.max_checks")]
    TooManyChecks(usize),
    /// The maximum number of services is reached.
    #[error(
        "this agent has reached its limit of {0} services: deregister one, or raise registry.max_services"
    )]
    TooManyServices(usize),
    /// All ports for sidecars are taken.
    #[error(
        "no port provided for sidecar_service and none left in the range [{}, {}]: \
         set its Port, or deregister a sidecar", SIDECAR_PORTS.start(), SIDECAR_PORTS.end()
    )]
    NoSidecarPort,
    /// There is no such check, or it has no TTL, so no application reports its status.
    #[error("CheckID {0:?} does not have associated TTL")]
    NoTtl(CheckId),
}

/// An input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The result of the ordered write; the reason, if the outcome is unknown or it was not done.
    Written(Result<Reply, Unavailable>),
    /// The node's services in the catalog, which were to be read; the reason, if they were not
    /// read.
    Services(Result<Vec<Arc<Service>>, Unavailable>),
    /// The node's checks in the catalog, which were to be read; the reason, if they were not read.
    Checks(Result<Vec<Arc<Check>>, Unavailable>),
    /// The result of a run.
    Ran(RunId, Outcome),
    /// The checks of another node, which an alias follows; the reason, if they were not read.
    Aliased(NodeName, Result<AliasedNode, Unavailable>),
    /// A leader was found: a failed round is repeated soon.
    LeaderFound,
    /// The catalog may have lost the node's services and checks, or have older ones: it is compared
    /// at once.
    CatalogLost,
    /// Time has passed without another input, or the registry was changed.
    Tick,
}

/// A call to the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Writes a service of this node, and checks; the catalog gets the node itself if it lacks it.
    Register(Option<Service>, Vec<Check>),
    /// Removes a service of this node, with its checks.
    DeregisterService(ServiceId),
    /// Removes a check of this node.
    DeregisterCheck(CheckId),
    /// Reads all services of this node.
    ReadServices,
    /// Reads all checks of this node.
    ReadChecks,
}

/// An event for operators and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A service was registered, for the first time or with another definition.
    Registered(ServiceId),
    /// A service was deregistered.
    Deregistered(ServiceId),
    /// A service was deregistered because this check was critical for too long.
    Reaped(ServiceId, CheckId),
    /// A check turned critical because no report arrived within its TTL.
    Expired(CheckId),
    /// The status of a check that the agent runs, or of an alias, changed; with its output.
    Turned(CheckId, CheckStatus, String),
    /// A service of an earlier process was adopted.
    AdoptedService(ServiceId),
    /// A check of an earlier process was adopted, with its TTL if it has one.
    Adopted(CheckId, Option<Duration>),
    /// The node is in maintenance, for this reason.
    MaintenanceBegan(String),
    /// The node is no longer in maintenance.
    MaintenanceEnded,
    /// Another client registered this service or check on the agent's node: it is removed.
    Foreign(String),
    /// A write to the catalog was applied.
    Written,
    /// The catalog was not updated; it is retried.
    SyncFailed {
        /// The reason.
        reason: String,
        /// `true` if this reason is new since the last success.
        is_new: bool,
    },
    /// The catalog was updated, after a failure.
    SyncRecovered,
}

/// The effects of an input or of a change.
#[derive(Debug, Default)]
pub struct Outbox {
    /// The call to make. Its result is the next [`Input::Written`], [`Input::Services`] or
    /// [`Input::Checks`]; there is no other order before that.
    pub order: Option<Order>,
    /// The checks to run. Each results in one [`Input::Ran`].
    pub runs: Vec<Run>,
    /// What the data folder must have, in this order.
    pub stores: Vec<Store>,
    /// Events for operators and metrics.
    pub notices: Vec<Notice>,
}

/// The services and checks of this agent.
#[derive(Debug)]
pub struct Registry {
    limits: Limits,
    tables: Tables,
    departed: Departed,
    runs: Runs,
    sync: CatalogSync,
    /// The restored checks whose deadlines the data folder does not have yet.
    unstored: BTreeSet<CheckId>,
    random: Random,
}

/// A change that is not in the catalog yet.
#[derive(Clone, Copy, Debug)]
struct Unwritten {
    /// The time at which it is written; `None` if the catalog is up to date.
    at: Option<Time>,
    /// The version of the registry at the last change.
    version: u64,
}

#[derive(Clone, Debug)]
struct LocalCheck {
    definition: NewCheck,
    source: Source,
    record: Check,
    /// The application's last report, for the output of an expiry.
    last_report: String,
    /// The time at which it turns critical; `None` once it has, or if it has no expiry.
    deadline: Option<Time>,
    /// Set while the data folder has the deadline: from a start until the first report.
    keeps_deadline: bool,
    /// The time of its next run; `None` during a run, or if the agent does not run it.
    next_run: Option<Time>,
    /// Set until the end of the first run of a restored check, which all of them have together.
    is_bunched: bool,
    streak: Streak,
    /// The time since which reports or runs find it critical.
    critical_since: Option<Time>,
    /// Set once a report, a run or the end of its TTL found its status: the catalog is not adopted.
    is_found: bool,
    unwritten: Unwritten,
}

impl Registry {
    /// Returns every check, in order of their ids.
    pub fn checks(&self) -> Vec<Check> {
        self.tables.checks().values().map(|check| check.record.clone()).collect()
    }

    /// Returns the numbers of services, of checks, and of checks that run now.
    pub fn counts(&self) -> [usize; 3] {
        [self.tables.services().len(), self.tables.checks().len(), self.runs.count()]
    }

    /// Returns the number of changes so far: what is read from the registry is the same until it
    /// increases.
    pub fn version(&self) -> u64 {
        self.tables.version
    }

    /// Returns the version up to which the catalog has all urgent changes.
    pub fn written(&self) -> u64 {
        self.sync.written()
    }

    /// Handles one input. A change requires an [`Input::Tick`] after it.
    pub fn handle(&mut self, now: Time, input: Input, outbox: &mut Outbox) {
        match input {
            Input::Written(Ok(Reply::Refused(refusal))) => {
                self.write_refused(now, refusal.to_string(), outbox);
            }
            Input::Written(Ok(_)) => self.write_applied(now, outbox),
            Input::Services(Ok(services)) => self.services_read(services, outbox),
            Input::Checks(Ok(checks)) => self.compare(now, &checks, outbox),
            Input::Written(Err(reason)) | Input::Services(Err(reason)) | Input::Checks(Err(reason)) => {
                self.sync_failed(now, reason.to_string(), outbox);
            }
            Input::Ran(run, outcome) => self.ran(now, run, outcome, outbox),
            Input::Aliased(node, found) => self.tables.aliases.found(node, found),
            Input::LeaderFound => self.hasten_round(now),
            Input::CatalogLost => self.sync.catalog_lost(now, &mut self.random),
            Input::Tick => {}
        }
        let unstored = std::mem::take(&mut self.unstored);
        let unstored = unstored.iter().filter_map(|key| self.tables.checks().get(key));
        outbox.stores.extend(unstored.map(LocalCheck::store));
        self.expire(now, outbox);
        self.reap(now, outbox);
        self.follow_aliases(now, outbox);
        self.start_runs(now, outbox);
        self.synchronize(now, outbox);
    }

    /// Returns the time of the next [`Input::Tick`], unless another input arrives before.
    pub fn wakes_at(&self) -> Option<Time> {
        let Tables { expiries, reapings, check_writes, service_writes, .. } = &self.tables;
        let write = match self.departed.is_empty() {
            true => [check_writes.next(), service_writes.next()].into_iter().flatten().min(),
            false => Some(Time::default()),
        };
        let times = [expiries.next(), reapings.next(), self.next_run(), self.sync.wakes_at(write)];
        times.into_iter().flatten().min()
    }

    /// Adds a check, or changes the one with that id, which keeps its status. Returns the version
    /// to wait for.
    ///
    /// # Errors
    /// The registry is unchanged, and nothing is written to the catalog.
    /// [`RegistryError::NoService`]: the service has to be registered first.
    /// [`RegistryError::TooManyChecks`]: the operator has to make room.
    pub fn register_check(
        &mut self,
        now: Time,
        new: NewCheck,
        source: Source,
        outbox: &mut Outbox,
    ) -> Result<u64, RegistryError> {
        match &new.service {
            Some(service) if !self.tables.services().contains_key(&service.folded()) => {
                return Err(RegistryError::NoService(service.clone()));
            }
            _ => self.tables.has_room(&self.limits, [&new])?,
        }
        Ok(self.insert_check(now, new, source, outbox))
    }

    /// Records an application's report. The TTL restarts.
    ///
    /// # Errors
    /// Nothing was changed. [`RegistryError::NoTtl`]: the application must register a check with
    /// a TTL first.
    pub fn report(
        &mut self,
        now: Time,
        id: &CheckId,
        (status, output): (CheckStatus, &str),
        outbox: &mut Outbox,
    ) -> Result<u64, RegistryError> {
        let reported = self.tables.change_check(&id.folded(), |check| {
            let ttl = check.definition.kind.ttl().ok_or_else(|| RegistryError::NoTtl(id.clone()))?;
            let output = truncated(output, check.max_output_bytes(&self.limits));
            // Kept apart from the record's output, which an expiry replaces.
            check.last_report.clone_from(&output);
            check.deadline = Some(now + ttl);
            Ok(output)
        });
        let output = reported.ok_or_else(|| RegistryError::NoTtl(id.clone()))??;
        self.update(now, id, (status, output), outbox);
        Ok(self.tables.version)
    }

    /// Removes a check, here and from the catalog. Returns `false` if it was not registered.
    pub fn deregister_check(&mut self, id: &CheckId, outbox: &mut Outbox) -> bool {
        let key = id.folded();
        let Some(check) = self.tables.remove_check(&key) else { return false };
        outbox.stores.push(Store::Check(key.clone(), None));
        // Kept until the catalog is updated, however long that takes.
        self.departed.checks.insert(key, check.service());
        self.limit_departed();
        self.tables.version += 1;
        true
    }

    /// Puts the node into maintenance with this reason, or ends it without one. A node already in
    /// maintenance keeps its first reason. Not subject to the limit of checks, because an operator
    /// requests it.
    pub fn maintain(&mut self, now: Time, reason: Option<&str>, outbox: &mut Outbox) -> u64 {
        let id = CheckId::from(NODE_MAINTENANCE);
        match reason {
            Some(reason) if !self.tables.checks().contains_key(&id) => {
                let notes = maintenance_notes(reason, "node");
                outbox.notices.push(Notice::MaintenanceBegan(notes.clone()));
                self.insert_check(now, NewCheck::maintenance(id, None, &notes), Source::Api, outbox);
            }
            None if self.deregister_check(&id, outbox) => {
                outbox.notices.push(Notice::MaintenanceEnded);
            }
            _ => {}
        }
        self.tables.version
    }

    /// Forgets what has departed if that is too much: the next comparison finds it as foreign.
    fn limit_departed(&mut self) {
        let most = self.limits.max_checks + self.limits.max_services;
        if self.departed.services.len() + self.departed.checks.len() > most {
            self.departed = Departed::default();
            self.sync.compare_first();
        }
    }

    /// Inserts a check; critical until a report or a run, unless the registration sets another
    /// status.
    fn insert_check(&mut self, now: Time, new: NewCheck, source: Source, outbox: &mut Outbox) -> u64 {
        let key = new.id.folded();
        let mut record = new.record(&self.tables.node);
        self.tables.describe_service(&mut record);
        let first_run = new.kind.probe().map(|probe| now + self.jitter(probe.interval));
        let mut check = LocalCheck::new(now, new, record, source);
        check.next_run = first_run;
        // An application registers again when it restarts, which does not indicate its health.
        let existing = self.tables.checks().get(&key);
        if let Some(existing) = existing {
            check.continue_from(existing);
        }
        if existing.is_none_or(|existing| existing.store() != check.store()) {
            outbox.stores.push(check.store());
        }
        self.tables.version += 1;
        check.unwritten = Unwritten { at: Some(now), version: self.tables.version };
        // It is registered again, so its removal need not reach the catalog.
        self.departed.checks.remove(&key);
        self.tables.insert_check(check);
        self.tables.version
    }

    /// Sets the status and the output of a check.
    fn update(&mut self, now: Time, id: &CheckId, news: (CheckStatus, String), outbox: &mut Outbox) {
        // A random delay, so that the agents of a cluster do not write at the same time.
        let delay = self.limits.update_interval.mul_f64(0.5 + self.random.fraction());
        let key = id.folded();
        let kept = |tables: &Tables| tables.checks().get(&key).map(LocalCheck::kept);
        let before = kept(&self.tables);
        self.tables.update(now, &key, news, delay);
        if kept(&self.tables) != before {
            outbox.stores.extend(self.tables.checks().get(&key).map(LocalCheck::store));
        }
    }

    /// Sets what a run or an alias found, if it differs.
    fn turn(
        &mut self,
        now: Time,
        id: &CheckId,
        (status, output): (CheckStatus, String),
        outbox: &mut Outbox,
    ) {
        let Some(check) = self.tables.checks().get(&id.folded()) else { return };
        let has_turned = check.record.status != status;
        if has_turned {
            outbox.notices.push(Notice::Turned(id.clone(), status, output.clone()));
        }
        let is_first_failure = status == CheckStatus::Critical && check.critical_since.is_none();
        if has_turned || is_first_failure || !check.is_found || check.record.output != output {
            self.update(now, id, (status, output), outbox);
        }
    }

    /// Turns every check critical whose application did not report within its TTL.
    fn expire(&mut self, now: Time, outbox: &mut Outbox) {
        let due: BTreeSet<_> = self.tables.expiries.due(now).cloned().collect();
        for key in due {
            let expired = self.tables.change_check(&key, |check| {
                // It stays critical until the next report, and expires only once.
                check.deadline = None;
                let output = match check.last_report.as_str() {
                    "" => EXPIRED.to_owned(),
                    last => format!("{EXPIRED} (last output before timeout follows): {last}"),
                };
                (check.record.id.clone(), output)
            });
            let Some((id, output)) = expired else { continue };
            outbox.notices.push(Notice::Expired(id.clone()));
            self.update(now, &id, (CheckStatus::Critical, output), outbox);
        }
    }

    /// Deregisters every service with a check that was critical for too long.
    fn reap(&mut self, now: Time, outbox: &mut Outbox) {
        let due: BTreeSet<_> = self.tables.reapings.due(now).collect();
        let due = due.into_iter().filter_map(|key| self.tables.checks().get(key));
        let due = due.filter_map(|check| Some((check.record.service_id.clone()?, check.record.id.clone())));
        for (service, check) in due.collect::<Vec<_>>() {
            if self.deregister_service(&service, outbox) {
                outbox.notices.push(Notice::Reaped(service, check));
            }
        }
    }

    /// Returns a random time, at most this long.
    fn jitter(&mut self, longest: Duration) -> Duration {
        longest.mul_f64(self.random.fraction())
    }
}

impl Unwritten {
    /// Marks this version as written. A later change has to be written again.
    fn written(&mut self, version: u64) {
        if self.version == version {
            self.at = None;
        }
    }
}

impl LocalCheck {
    /// Creates a check that is not in the catalog yet, and that does not run yet.
    fn new(now: Time, definition: NewCheck, record: Check, source: Source) -> Self {
        Self {
            record,
            source,
            last_report: String::new(),
            deadline: definition.kind.ttl().map(|ttl| now + ttl),
            keeps_deadline: false,
            next_run: None,
            is_bunched: false,
            streak: Streak::of_new(definition.thresholds),
            critical_since: None,
            is_found: false,
            unwritten: Unwritten { at: Some(now), version: 0 },
            definition,
        }
    }

    /// Continues with the status and the results of the check that it replaces.
    fn continue_from(&mut self, existing: &Self) {
        self.record.status = existing.record.status;
        self.record.output.clone_from(&existing.record.output);
        self.last_report.clone_from(&existing.last_report);
        self.critical_since = existing.critical_since;
        self.streak = existing.streak;
        self.is_found = existing.is_found;
        // An application that registers often would postpone the run forever, or have its result
        // ignored.
        if self.definition.kind == existing.definition.kind {
            (self.next_run, self.is_bunched) = (existing.next_run, existing.is_bunched);
            // A file says nothing about its application: reloads would keep it from its expiry.
            if self.source == Source::Config {
                (self.deadline, self.keeps_deadline) = (existing.deadline, existing.keeps_deadline);
            }
        }
    }

    /// Sets a status and an output; returns `true` if either changed. A change of status is urgent;
    /// a change of output alone may wait for `delay`.
    fn update(&mut self, now: Time, (status, output): (CheckStatus, String), delay: Duration) -> bool {
        self.keeps_deadline = false;
        self.critical_since = match status {
            CheckStatus::Critical => Some(self.critical_since.unwrap_or(now)),
            _ => None,
        };
        if self.record.status != status {
            self.unwritten.at = Some(now);
        } else if self.record.output != output {
            // Never later than planned: a check that reports often would postpone it forever.
            let later = now + delay;
            self.unwritten.at = Some(self.unwritten.at.map_or(later, |at| at.min(later)));
        } else {
            return false;
        }
        (self.record.status, self.record.output) = (status, output);
        true
    }

    /// Returns what the data folder must have soon; it may have an older output.
    fn kept(&self) -> (CheckStatus, Option<Time>, bool) {
        (self.record.status, self.critical_since, self.keeps_deadline)
    }

    /// Returns the folded id of its service.
    fn service(&self) -> Option<ServiceId> {
        self.record.service_id.as_ref().map(ServiceId::folded)
    }

    /// Returns the time at which its service is deregistered.
    fn reaped_at(&self) -> Option<Time> {
        self.record.service_id.as_ref()?;
        // What an earlier process found may be over: the first run is soon.
        if !self.is_found && self.definition.kind.probe().is_some() {
            return None;
        }
        Some(self.critical_since? + self.definition.deregister_after?.max(MIN_DEREGISTER_AFTER))
    }

    /// Returns the times at which it expires, is reaped, runs and is written.
    fn times(&self) -> [Option<Time>; 4] {
        [self.deadline, self.reaped_at(), self.next_run, self.unwritten.at]
    }

    fn max_output_bytes(&self, limits: &Limits) -> usize {
        self.definition
            .max_output_bytes
            .map_or(limits.max_output_bytes, |own| own.min(limits.max_output_bytes))
    }
}

/// Returns the notes of a maintenance check.
fn maintenance_notes(reason: &str, of_what: &str) -> String {
    match reason {
        "" => format!(
            "Maintenance mode is enabled for this {of_what}, but no reason was provided. This is a default message."
        ),
        reason => reason.into(),
    }
}

/// Returns the number of bytes to which a text can be cut, at most this many: a cut within a
/// character would be invalid text.
pub fn floor_char_boundary(text: &str, bytes: usize) -> usize {
    (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0)
}

/// Truncates an output that is too long, and appends a note about it.
fn truncated(output: &str, limit: usize) -> String {
    if output.len() <= limit {
        return output.to_owned();
    }
    let end = floor_char_boundary(output, limit);
    format!("{} ... (captured {end} of {} bytes)", &output[..end], output.len())
}
