//! This agent's own health checks: reported by applications, kept here, published to the cluster
//! through the catalog.
//!
//! The checks are TTL checks: an application reports within its TTL, or the check turns critical.
//! [`Checks`] is the list, and `sync` keeps the catalog equal to it (anti-entropy).
//!
//! The list is in memory. A check that an earlier process of this agent left in the catalog is
//! adopted: it keeps its status, and its TTL restarts. Sessions that depend on it therefore survive
//! a restart of the agent, and end if its application is gone.
//!
//! **Invariant:** only checks whose definition in the catalog carries a TTL are adopted, and the
//! node's maintenance check; checks that others registered for this node are never changed. After
//! the node has left, nothing is written: that would bring it back.

mod sync;

use crate::node::Identity;
use crate::upstream::Upstream;
use lockmesh_protocol::duration::{format as format_duration, parse as parse_duration};
use lockmesh_protocol::id::CheckId;
use lockmesh_protocol::record::{Check, CheckStatus};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// The field of a check's definition that holds its TTL; the catalog does not show it.
pub const DEFINITION_TTL: &str = "TTL";
const KIND: &str = "ttl";
const EXPIRED: &str = "TTL expired";

/// The check that marks the whole node as in maintenance.
pub const NODE_MAINTENANCE: &str = "_node_maintenance";
const MAINTENANCE_KIND: &str = "maintenance";
const NO_REASON: &str =
    "Maintenance mode is enabled for this node, but no reason was provided. This is a default message.";

/// Limits on the number of checks and on their output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckLimits {
    /// The maximum delay before a change of a check's output alone is written to the catalog.
    pub update_interval: Duration,
    /// The maximum size of a check's output, in bytes.
    pub max_output_bytes: usize,
    /// The maximum number of checks.
    pub max_checks: usize,
}

impl Default for CheckLimits {
    fn default() -> Self {
        Self { update_interval: Duration::from_secs(300), max_output_bytes: 4096, max_checks: 1_000 }
    }
}

/// A check as an application registers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCheck {
    /// Its id, unique on this agent.
    pub id: CheckId,
    /// Its display name.
    pub name: String,
    /// Notes about it.
    pub notes: String,
    /// Its initial status; ignored if the check is registered again.
    pub status: CheckStatus,
    /// The maximum interval between reports of its application; longer than zero.
    pub ttl: Duration,
    /// The maximum size of its output, if that is less than the agent's limit.
    pub max_output_bytes: Option<usize>,
}

/// The reason why a check was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// There is no such check.
    #[error("Unknown check ID {0:?}. Ensure that the check ID is passed, not the check name.")]
    Unknown(CheckId),
    /// The maximum number of checks is reached.
    #[error("this agent has reached its limit of {0} checks: deregister one, or raise checks.max_checks")]
    TooMany(usize),
    /// It has no TTL, so no application reports its status.
    #[error("CheckID {0:?} does not have associated TTL")]
    NoTtl(CheckId),
}

/// The checks of this agent.
#[derive(Debug)]
pub struct Checks {
    upstream: Upstream,
    identity: Identity,
    limits: CheckLimits,
    table: Mutex<CheckTable>,
    /// Signals that the catalog is out of date, or that a deadline moved.
    changed: Notify,
    /// The version up to which the catalog has all urgent changes.
    told: watch::Sender<u64>,
    /// `true` once nothing more is written to the catalog; held during a write.
    is_silent: tokio::sync::Mutex<bool>,
}

#[derive(Debug, Default)]
struct CheckTable {
    checks: BTreeMap<CheckId, LocalCheck>,
    /// Deregistered here, but not in the catalog yet.
    departed: BTreeSet<CheckId>,
    /// Counts changes.
    version: u64,
}

#[derive(Clone, Debug)]
struct LocalCheck {
    record: Check,
    /// `None` for the node's maintenance check, which has no expiry.
    ttl: Option<Duration>,
    max_output_bytes: usize,
    /// The application's last report, for the output of an expiry.
    last_report: String,
    /// The time at which it turns critical; `None` once it has.
    deadline: Option<Instant>,
    /// The time at which it is written to the catalog; `None` if the catalog is up to date.
    tell_at: Option<Instant>,
    version: u64,
}

impl Checks {
    /// Creates an empty list. Nothing is written to the catalog until [`Self::run`] runs.
    pub fn new(upstream: Upstream, identity: Identity, limits: CheckLimits) -> Arc<Self> {
        let (told, _) = watch::channel(0);
        let table = Mutex::default();
        let is_silent = tokio::sync::Mutex::new(false);
        Arc::new(Self { upstream, identity, limits, table, changed: Notify::new(), told, is_silent })
    }

    /// Returns every check, in order of their ids.
    pub fn list(&self) -> Vec<Check> {
        self.table().checks.values().map(|check| check.record.clone()).collect()
    }

    /// Adds a check, or changes the one with that id, which keeps its status. Returns the version
    /// to wait for.
    ///
    /// # Errors
    /// [`CheckError::TooMany`]: the list is unchanged, and nothing is written to the catalog. The
    /// operator has to make room.
    pub fn register(&self, new: NewCheck) -> Result<u64, CheckError> {
        let now = Instant::now();
        let mut table = self.table();
        // A check that is registered again needs no additional room.
        if table.checks.len() >= self.limits.max_checks && !table.checks.contains_key(&new.id) {
            return Err(CheckError::TooMany(table.checks.len()));
        }
        let mut check = self.local(&new, now);
        // An application registers again when it restarts, which does not indicate its health.
        if let Some(existing) = table.checks.get(&new.id) {
            check.record.status = existing.record.status;
            check.record.output.clone_from(&existing.record.output);
            check.last_report.clone_from(&existing.last_report);
        }
        // It is registered again, so its removal need not reach the catalog.
        table.departed.remove(&new.id);
        check.version = table.next_version();
        let version = check.version;
        table.checks.insert(new.id, check);
        drop(table);
        self.changed.notify_one();
        Ok(version)
    }

    /// Records an application's report. The TTL restarts.
    ///
    /// # Errors
    /// Nothing was changed. [`CheckError::Unknown`]: the application must register the check first.
    /// [`CheckError::NoTtl`]: there is nothing to report.
    pub fn report(&self, id: &CheckId, status: CheckStatus, output: &str) -> Result<u64, CheckError> {
        let now = Instant::now();
        let mut table = self.table();
        let version = table.next_version();
        let check = table.checks.get_mut(id).ok_or_else(|| CheckError::Unknown(id.clone()))?;
        let ttl = check.ttl.ok_or_else(|| CheckError::NoTtl(id.clone()))?;
        let output = truncated(output, check.max_output_bytes);
        // Kept apart from the record's output, which an expiry replaces.
        check.last_report.clone_from(&output);
        check.deadline = Some(now + ttl);
        check.say(status, output, now, self.limits.update_interval, version);
        drop(table);
        self.changed.notify_one();
        Ok(version)
    }

    /// Removes a check, here and from the catalog.
    ///
    /// # Errors
    /// [`CheckError::Unknown`]: nothing was changed, here or in the catalog.
    pub fn deregister(&self, id: &CheckId) -> Result<u64, CheckError> {
        let mut table = self.table();
        table.checks.remove(id).ok_or_else(|| CheckError::Unknown(id.clone()))?;
        // Kept until the catalog is updated, however long that takes.
        table.departed.insert(id.clone());
        let version = table.next_version();
        drop(table);
        self.changed.notify_one();
        Ok(version)
    }

    /// Puts the node into maintenance with this reason, or ends it without one. A node already in
    /// maintenance keeps its first reason. Not subject to the limit of checks, because an operator
    /// requests it.
    pub fn maintain(&self, reason: Option<&str>) -> u64 {
        let id = CheckId::from(NODE_MAINTENANCE);
        let mut table = self.table();
        match (reason, table.checks.contains_key(&id)) {
            (Some(reason), false) => {
                table.departed.remove(&id);
                let mut check = self.maintenance(reason, Instant::now());
                check.version = table.next_version();
                tracing::warn!(reason = check.record.notes, "this node is in maintenance");
                table.checks.insert(id, check);
            }
            (None, true) => {
                table.checks.remove(&id);
                table.departed.insert(id);
                table.next_version();
                tracing::info!("this node is no longer in maintenance");
            }
            _ => {}
        }
        let version = table.version;
        drop(table);
        self.changed.notify_one();
        version
    }

    /// Waits for the current write to the catalog to end, and prevents further writes while the
    /// returned guard is held. If the guard is set to `true`, writes stay disabled afterwards.
    pub async fn silence(&self) -> tokio::sync::MutexGuard<'_, bool> {
        self.is_silent.lock().await
    }

    /// Waits for a limited time until the catalog has all urgent changes up to a version; they are
    /// written in any case.
    pub async fn told(&self, version: u64, timeout: Duration) {
        let mut told = self.told.subscribe();
        let _ = tokio::time::timeout(timeout, told.wait_for(|known| *known >= version)).await;
    }

    /// Returns the check of a registration; critical until a report, unless it sets another status.
    fn local(&self, new: &NewCheck, now: Instant) -> LocalCheck {
        let definition = serde_json::json!({ DEFINITION_TTL: format_duration(new.ttl) });
        let record = Check {
            status: new.status,
            notes: new.notes.clone(),
            interval: "0s".into(),
            timeout: "0s".into(),
            definition: definition.to_string(),
            ..self.record(new.id.clone(), &new.name, KIND)
        };
        let limit = self.limits.max_output_bytes;
        LocalCheck {
            record,
            ttl: Some(new.ttl),
            max_output_bytes: new.max_output_bytes.map_or(limit, |wanted| wanted.min(limit)),
            last_report: String::new(),
            deadline: Some(now + new.ttl),
            tell_at: Some(now),
            version: 0,
        }
    }

    /// Returns the check of a node in maintenance: critical, with this reason.
    fn maintenance(&self, reason: &str, now: Instant) -> LocalCheck {
        let notes = if reason.is_empty() { NO_REASON } else { reason };
        let id = CheckId::from(NODE_MAINTENANCE);
        let record = Check {
            status: CheckStatus::Critical,
            notes: notes.into(),
            ..self.record(id, "Node Maintenance Mode", MAINTENANCE_KIND)
        };
        LocalCheck {
            record,
            ttl: None,
            max_output_bytes: self.limits.max_output_bytes,
            last_report: String::new(),
            deadline: None,
            tell_at: Some(now),
            version: 0,
        }
    }

    /// Returns a check of this node without further details.
    fn record(&self, id: CheckId, name: &str, kind: &str) -> Check {
        Check {
            name: name.into(),
            kind: kind.into(),
            ..Check::of(self.identity.node.clone(), id, CheckStatus::Critical)
        }
    }

    /// Adopts a check that an earlier process left in the catalog.
    fn adopt(&self, table: &mut CheckTable, left: &Check, now: Instant) {
        let ttl = defined_ttl(left);
        // Without a TTL of this agent, another client registered it and maintains it.
        if ttl.is_none() && !is_maintenance(left) {
            return;
        }
        // Reports since this agent started are newer than the catalog's status.
        if table.checks.contains_key(&left.id) || table.departed.contains(&left.id) {
            return;
        }
        let told = ttl.map(format_duration).unwrap_or_default();
        tracing::info!(check = %left.id, ttl = %told, "adopting a check of this agent's earlier process");
        let check = LocalCheck {
            record: left.clone(),
            ttl,
            max_output_bytes: self.limits.max_output_bytes,
            last_report: left.output.clone(),
            // A whole TTL: the application could not report while no agent ran.
            deadline: ttl.map(|ttl| now + ttl),
            // The catalog is up to date.
            tell_at: None,
            version: table.next_version(),
        };
        table.checks.insert(left.id.clone(), check);
    }

    fn table(&self) -> MutexGuard<'_, CheckTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CheckTable {
    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// Turns every check critical whose application did not report within its TTL.
    fn expire(&mut self, now: Instant, update_interval: Duration) {
        let version = self.version + 1;
        let due = |check: &&mut LocalCheck| check.deadline.is_some_and(|deadline| deadline <= now);
        for check in self.checks.values_mut().filter(due) {
            // It stays critical until the next report, and expires only once.
            check.deadline = None;
            self.version = version;
            let output = match check.last_report.as_str() {
                "" => EXPIRED.to_owned(),
                last => format!("{EXPIRED} (last output before timeout follows): {last}"),
            };
            crate::metrics::CHECK_EXPIRIES.inc();
            tracing::warn!(check = %check.record.id, "no report within the TTL: the check is critical");
            check.say(CheckStatus::Critical, output, now, update_interval, version);
        }
    }

    /// Returns when the next check turns critical.
    fn next_expiry(&self) -> Option<Instant> {
        self.checks.values().filter_map(|check| check.deadline).min()
    }

    /// Returns when the next action is due.
    fn next_deadline(&self) -> Option<Instant> {
        self.checks.values().flat_map(|check| [check.deadline, check.tell_at]).flatten().min()
    }
}

impl LocalCheck {
    /// Sets a status and an output. A change of status is urgent; a change of output alone may
    /// wait.
    fn say(&mut self, status: CheckStatus, output: String, now: Instant, timeout: Duration, version: u64) {
        if self.record.status != status {
            self.tell_at = Some(now);
        } else if self.record.output != output {
            // Never later than planned: a check that reports often would postpone it forever.
            let later = now + timeout;
            self.tell_at = Some(self.tell_at.map_or(later, |at| at.min(later)));
        }
        self.record.status = status;
        self.record.output = output;
        self.version = version;
    }
}

fn is_maintenance(check: &Check) -> bool {
    check.id.as_str() == NODE_MAINTENANCE && check.kind == MAINTENANCE_KIND
}

/// Returns the TTL with which an agent registered a check of the catalog.
fn defined_ttl(check: &Check) -> Option<Duration> {
    if check.kind != KIND {
        return None;
    }
    let definition: serde_json::Value = serde_json::from_str(&check.definition).ok()?;
    parse_duration(definition.get(DEFINITION_TTL)?.as_str()?).ok().filter(|ttl| !ttl.is_zero())
}

/// Truncates an output that is too long, and appends a note about it.
fn truncated(output: &str, limit: usize) -> String {
    if output.len() <= limit {
        return output.to_owned();
    }
    // A cut within a character would be invalid text.
    let end = (0..=limit).rev().find(|end| output.is_char_boundary(*end)).unwrap_or(0);
    format!("{} ... (captured {end} of {} bytes)", &output[..end], output.len())
}
