//! This agent's own health checks: reported by applications, kept here, and written to the catalog.
//!
//! A check has a [kind](CheckKind), a status and an output. The kind decides how the status is
//! found: a TTL check turns critical unless its application reports within the TTL. [`Checks`] is
//! the list, and `sync.rs` keeps the catalog equal to it (anti-entropy).
//!
//! The list is in memory. A check that an earlier process of this agent left in the catalog is
//! adopted: it keeps its status, and its TTL restarts. Sessions that depend on it therefore survive
//! a restart of the agent, and end if its application is gone.
//!
//! A kind that the agent runs itself (HTTP, TCP, script) adds a variant to [`CheckKind`], an
//! [`Order`] to run it and an [`Input`] with the result; expiry and synchronization remain as they
//! are.
//!
//! **Invariant:** only checks that the agent could have registered are adopted, by their kind and
//! definition in the catalog. Checks that others registered for this node are never changed.

mod kind;
mod sync;
#[cfg(test)]
mod tests;

pub use kind::{CheckKind, DEFINITION_TTL, NODE_MAINTENANCE};

use lockmesh_protocol::id::{CheckId, NodeName};
use lockmesh_protocol::record::{Check, CheckStatus};
use lockmesh_protocol::reply::Reply;
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use sync::CatalogSync;

const EXPIRED: &str = "TTL expired";
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
        Self { update_interval: Duration::from_secs(5 * 60), max_output_bytes: 4_096, max_checks: 4_096 }
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
    /// Its kind.
    pub kind: CheckKind,
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

/// An input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The result of the ordered write; the reason, if the outcome is unknown or it was not done.
    Written(Result<Reply, Unavailable>),
    /// The node's checks in the catalog, which were to be read; the reason, if they were not read.
    Read(Result<Vec<Arc<Check>>, Unavailable>),
    /// Time has passed without another input, or an application changed a check.
    Tick,
}

/// A call to the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Writes checks of this node; the catalog gets the node itself if it lacks it.
    Register(Vec<Check>),
    /// Removes a check of this node.
    Deregister(CheckId),
    /// Reads all checks of this node.
    Read,
}

/// An event for operators and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A check turned critical because no report arrived within its TTL.
    Expired(CheckId),
    /// A check of an earlier process was adopted, with its TTL if it has one.
    Adopted(CheckId, Option<Duration>),
    /// The node is in maintenance, for this reason.
    MaintenanceBegan(String),
    /// The node is no longer in maintenance.
    MaintenanceEnded,
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

/// The effects of an input or of an application's change.
#[derive(Debug, Default)]
pub struct Outbox {
    /// The call to make. Its result is the next [`Input::Written`] or [`Input::Read`]; there is no
    /// other order before that.
    pub order: Option<Order>,
    /// Events for operators and metrics.
    pub notices: Vec<Notice>,
}

/// The checks of this agent.
#[derive(Debug)]
pub struct Checks {
    node: NodeName,
    limits: CheckLimits,
    checks: BTreeMap<CheckId, LocalCheck>,
    /// Deregistered here, but not in the catalog yet.
    departed: BTreeSet<CheckId>,
    /// The number of changes so far.
    version: u64,
    sync: CatalogSync,
}

#[derive(Clone, Debug)]
struct LocalCheck {
    record: Check,
    kind: CheckKind,
    max_output_bytes: usize,
    /// The application's last report, for the output of an expiry.
    last_report: String,
    /// The time at which it turns critical; `None` once it has, or if it has no expiry.
    deadline: Option<Time>,
    /// The time at which it is written to the catalog; `None` if the catalog is up to date.
    write_at: Option<Time>,
    version: u64,
}

impl Checks {
    /// Creates an empty list for a node. Equal seeds give equal pauses.
    pub fn new(node: NodeName, limits: CheckLimits, seed: u64, now: Time) -> Self {
        let (checks, departed) = (BTreeMap::new(), BTreeSet::new());
        Self { node, limits, checks, departed, version: 0, sync: CatalogSync::new(seed, now) }
    }

    /// Returns every check, in order of their ids.
    pub fn list(&self) -> Vec<Check> {
        self.checks.values().map(|check| check.record.clone()).collect()
    }

    /// Returns the version up to which the catalog has all urgent changes.
    pub fn written(&self) -> u64 {
        self.sync.written
    }

    /// Handles one input. A change by an application requires an [`Input::Tick`] after it.
    pub fn handle(&mut self, now: Time, input: Input, outbox: &mut Outbox) {
        match input {
            Input::Written(Ok(Reply::Refused(refusal))) => self.sync_failed(now, refusal.to_string(), outbox),
            Input::Written(Ok(_)) => self.write_applied(now, outbox),
            Input::Read(Ok(catalog)) => self.compare(now, &catalog, outbox),
            Input::Written(Err(reason)) | Input::Read(Err(reason)) => {
                self.sync_failed(now, reason.to_string(), outbox);
            }
            Input::Tick => {
                self.expire(now, outbox);
                self.synchronize(now, outbox);
            }
        }
    }

    /// Returns the time of the next [`Input::Tick`], unless another input arrives before.
    pub fn wakes_at(&self) -> Option<Time> {
        let expiry = self.checks.values().filter_map(|check| check.deadline).min();
        let write = match self.departed.is_empty() {
            true => self.checks.values().filter_map(|check| check.write_at).min(),
            false => Some(Time::default()),
        };
        [expiry, self.sync.wakes_at(write)].into_iter().flatten().min()
    }

    /// Adds a check, or changes the one with that id, which keeps its status. Returns the version
    /// to wait for.
    ///
    /// # Errors
    /// [`CheckError::TooMany`]: the list is unchanged, and nothing is written to the catalog. The
    /// operator has to make room.
    pub fn register(&mut self, now: Time, new: NewCheck) -> Result<u64, CheckError> {
        // A check that is registered again needs no additional room.
        if self.checks.len() >= self.limits.max_checks && !self.checks.contains_key(&new.id) {
            return Err(CheckError::TooMany(self.checks.len()));
        }
        Ok(self.insert(now, new))
    }

    /// Records an application's report. The TTL restarts.
    ///
    /// # Errors
    /// Nothing was changed. [`CheckError::Unknown`]: the application must register the check first.
    /// [`CheckError::NoTtl`]: there is nothing to report.
    pub fn report(
        &mut self,
        now: Time,
        id: &CheckId,
        status: CheckStatus,
        output: &str,
    ) -> Result<u64, CheckError> {
        let check = self.checks.get_mut(id).ok_or_else(|| CheckError::Unknown(id.clone()))?;
        let ttl = check.kind.ttl().ok_or_else(|| CheckError::NoTtl(id.clone()))?;
        let output = truncated(output, check.max_output_bytes);
        // Kept apart from the record's output, which an expiry replaces.
        check.last_report.clone_from(&output);
        check.deadline = Some(now + ttl);
        self.version += 1;
        check.update(now, (status, output), self.limits.update_interval, self.version);
        Ok(self.version)
    }

    /// Removes a check, here and from the catalog.
    ///
    /// # Errors
    /// [`CheckError::Unknown`]: nothing was changed, here or in the catalog.
    pub fn deregister(&mut self, id: &CheckId) -> Result<u64, CheckError> {
        self.checks.remove(id).ok_or_else(|| CheckError::Unknown(id.clone()))?;
        // Kept until the catalog is updated, however long that takes.
        self.departed.insert(id.clone());
        self.version += 1;
        Ok(self.version)
    }

    /// Puts the node into maintenance with this reason, or ends it without one. A node already in
    /// maintenance keeps its first reason. Not subject to the limit of checks, because an operator
    /// requests it.
    pub fn maintain(&mut self, now: Time, reason: Option<&str>, outbox: &mut Outbox) -> u64 {
        let id = CheckId::from(NODE_MAINTENANCE);
        match reason {
            Some(reason) if !self.checks.contains_key(&id) => {
                let notes = if reason.is_empty() { NO_REASON } else { reason };
                outbox.notices.push(Notice::MaintenanceBegan(notes.into()));
                self.insert(now, maintenance(id, notes));
            }
            None if self.deregister(&id).is_ok() => outbox.notices.push(Notice::MaintenanceEnded),
            _ => {}
        }
        self.version
    }

    /// Inserts a check; critical until a report, unless the registration sets another status.
    fn insert(&mut self, now: Time, new: NewCheck) -> u64 {
        let mut record = Check {
            name: new.name,
            notes: new.notes,
            ..Check::of(self.node.clone(), new.id.clone(), new.status)
        };
        new.kind.describe(&mut record);
        // An application registers again when it restarts, which does not indicate its health.
        let existing = self.checks.get(&new.id);
        if let Some(existing) = existing {
            record.status = existing.record.status;
            record.output.clone_from(&existing.record.output);
        }
        let limit = self.limits.max_output_bytes;
        // It is registered again, so its removal need not reach the catalog.
        self.departed.remove(&new.id);
        self.version += 1;
        let check = LocalCheck {
            record,
            max_output_bytes: new.max_output_bytes.map_or(limit, |wanted| wanted.min(limit)),
            last_report: existing.map(|existing| existing.last_report.clone()).unwrap_or_default(),
            deadline: new.kind.ttl().map(|ttl| now + ttl),
            kind: new.kind,
            write_at: Some(now),
            version: self.version,
        };
        self.checks.insert(new.id, check);
        self.version
    }

    /// Adopts a check that an earlier process left in the catalog.
    fn adopt(&mut self, now: Time, left: &Check, outbox: &mut Outbox) {
        // Without a kind of this agent, another client registered it and maintains it.
        let Some(kind) = CheckKind::of(left) else { return };
        // Reports since this agent started are newer than the catalog's status.
        if self.checks.contains_key(&left.id) || self.departed.contains(&left.id) {
            return;
        }
        outbox.notices.push(Notice::Adopted(left.id.clone(), kind.ttl()));
        self.version += 1;
        let check = LocalCheck {
            record: left.clone(),
            max_output_bytes: self.limits.max_output_bytes,
            last_report: left.output.clone(),
            // A whole TTL: the application could not report while no agent ran.
            deadline: kind.ttl().map(|ttl| now + ttl),
            kind,
            // The catalog is up to date.
            write_at: None,
            version: self.version,
        };
        self.checks.insert(left.id.clone(), check);
    }

    /// Turns every check critical whose application did not report within its TTL.
    fn expire(&mut self, now: Time, outbox: &mut Outbox) {
        let version = self.version + 1;
        let is_due = |check: &&mut LocalCheck| check.deadline.is_some_and(|deadline| deadline <= now);
        for check in self.checks.values_mut().filter(is_due) {
            // It stays critical until the next report, and expires only once.
            check.deadline = None;
            self.version = version;
            let output = match check.last_report.as_str() {
                "" => EXPIRED.to_owned(),
                last => format!("{EXPIRED} (last output before timeout follows): {last}"),
            };
            outbox.notices.push(Notice::Expired(check.record.id.clone()));
            check.update(now, (CheckStatus::Critical, output), self.limits.update_interval, version);
        }
    }
}

impl LocalCheck {
    /// Sets a status and an output. A change of status is urgent; a change of output alone may wait
    /// for `longest`.
    fn update(&mut self, now: Time, news: (CheckStatus, String), longest: Duration, version: u64) {
        let (status, output) = news;
        if self.record.status != status {
            self.write_at = Some(now);
        } else if self.record.output != output {
            // Never later than planned: a check that reports often would postpone it forever.
            let later = now + longest;
            self.write_at = Some(self.write_at.map_or(later, |at| at.min(later)));
        }
        self.record.status = status;
        self.record.output = output;
        self.version = version;
    }
}

/// Returns the check of a node in maintenance: critical, with this reason.
fn maintenance(id: CheckId, notes: &str) -> NewCheck {
    NewCheck {
        id,
        name: "Node Maintenance Mode".into(),
        notes: notes.into(),
        status: CheckStatus::Critical,
        kind: CheckKind::Maintenance,
        max_output_bytes: None,
    }
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
