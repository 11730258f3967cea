//! This agent's own health checks: reported by applications, kept here, shown to the cluster
//! through the catalog.
//!
//! The checks that run are TTL checks: an application reports within its TTL, or the check turns
//! critical. [`Checks`] is the list, `sync` keeps the catalog equal to it.
//!
//! The list is in memory. A check that an earlier life of this agent left in the catalog is
//! adopted: it keeps its status and its TTL begins anew, so that sessions which depend on it
//! survive a restart of the agent, and end if its application is gone. **Invariant:** only checks
//! whose definition in the catalog carries a TTL are adopted, and the one of the node's
//! maintenance; what others wrote there on this node's name is never touched. Once the node has
//! left, nothing is written: that would bring it back.

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

/// The check that says that the whole node is in maintenance.
pub const NODE_MAINTENANCE: &str = "_node_maintenance";
const MAINTENANCE_KIND: &str = "maintenance";
const NO_REASON: &str =
    "Maintenance mode is enabled for this node, but no reason was provided. This is a default message.";

/// How many checks there may be, and how much they may say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckLimits {
    /// How long a change of a check's output alone may wait before the catalog is told.
    pub update_interval: Duration,
    /// How much of a check's output is kept, in bytes.
    pub max_output_bytes: usize,
    /// The most checks.
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
    /// Its name for people.
    pub name: String,
    /// Words about it.
    pub notes: String,
    /// How it stands at first; the status that it has where it is registered again.
    pub status: CheckStatus,
    /// How often its application reports at least; longer than zero.
    pub ttl: Duration,
    /// How much of its output is kept, where that is less than the agent's limit.
    pub max_output_bytes: Option<usize>,
}

/// Why a check was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// No such check.
    #[error("Unknown check ID {0:?}. Ensure that the check ID is passed, not the check name.")]
    Unknown(CheckId),
    /// There are as many as there may be.
    #[error("this agent has {0} checks, as many as it may have: deregister one, or raise checks.max_checks")]
    TooMany(usize),
    /// It has no TTL, so nobody reports how it stands.
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
    /// Something is to be told to the catalog, or a deadline moved.
    changed: Notify,
    /// The version up to which the catalog knows everything that is urgent.
    told: watch::Sender<u64>,
    /// Whether the catalog is told nothing any more; held while it is told something.
    is_silent: tokio::sync::Mutex<bool>,
}

#[derive(Debug, Default)]
struct CheckTable {
    checks: BTreeMap<CheckId, LocalCheck>,
    /// Deregistered here, but the catalog does not know it yet.
    departed: BTreeSet<CheckId>,
    /// Counts changes.
    version: u64,
}

#[derive(Clone, Debug)]
struct LocalCheck {
    record: Check,
    /// None for the node's maintenance, which stands as long as nobody ends it.
    ttl: Option<Duration>,
    max_output_bytes: usize,
    /// What the application said last, for the words of an expiry.
    last_report: String,
    /// When it turns critical; none once it has.
    deadline: Option<Instant>,
    /// When the catalog is to be told; none where it knows.
    tell_at: Option<Instant>,
    version: u64,
}

impl Checks {
    /// None yet. Nothing reaches the catalog until [`Self::run`] runs.
    pub fn new(upstream: Upstream, identity: Identity, limits: CheckLimits) -> Arc<Self> {
        let (told, _) = watch::channel(0);
        let table = Mutex::default();
        let is_silent = tokio::sync::Mutex::new(false);
        Arc::new(Self { upstream, identity, limits, table, changed: Notify::new(), told, is_silent })
    }

    /// Every check, in order of their ids.
    pub fn list(&self) -> Vec<Check> {
        self.table().checks.values().map(|check| check.record.clone()).collect()
    }

    /// Adds a check, or changes the one of that id, which keeps its status. Returns the version to
    /// wait for.
    ///
    /// # Errors
    /// [`CheckError::TooMany`]: the list is as it was, and the catalog is told nothing. The
    /// operator makes room.
    pub fn register(&self, new: NewCheck) -> Result<u64, CheckError> {
        let now = Instant::now();
        let mut table = self.table();
        // One that is registered again takes no more room.
        if table.checks.len() >= self.limits.max_checks && !table.checks.contains_key(&new.id) {
            return Err(CheckError::TooMany(table.checks.len()));
        }
        let mut check = self.local(&new, now);
        // An application that starts again registers again: that says nothing of its health.
        if let Some(existing) = table.checks.get(&new.id) {
            check.record.status = existing.record.status;
            check.record.output.clone_from(&existing.record.output);
            check.last_report.clone_from(&existing.last_report);
        }
        // It is here again: the catalog need not hear that it went.
        table.departed.remove(&new.id);
        check.version = table.next_version();
        let version = check.version;
        table.checks.insert(new.id, check);
        drop(table);
        self.changed.notify_one();
        Ok(version)
    }

    /// An application reports. The TTL begins anew.
    ///
    /// # Errors
    /// Nothing was changed. [`CheckError::Unknown`]: the application registers the check first.
    /// [`CheckError::NoTtl`]: there is nothing to report.
    pub fn report(&self, id: &CheckId, status: CheckStatus, output: &str) -> Result<u64, CheckError> {
        let now = Instant::now();
        let mut table = self.table();
        let version = table.next_version();
        let check = table.checks.get_mut(id).ok_or_else(|| CheckError::Unknown(id.clone()))?;
        let ttl = check.ttl.ok_or_else(|| CheckError::NoTtl(id.clone()))?;
        let output = truncated(output, check.max_output_bytes);
        // Apart from the record's output, which an expiry replaces.
        check.last_report.clone_from(&output);
        check.deadline = Some(now + ttl);
        check.say(status, output, now, self.limits.update_interval, version);
        drop(table);
        self.changed.notify_one();
        Ok(version)
    }

    /// Takes a check out, here and in the catalog.
    ///
    /// # Errors
    /// [`CheckError::Unknown`]: nothing was changed, here or in the catalog.
    pub fn deregister(&self, id: &CheckId) -> Result<u64, CheckError> {
        let mut table = self.table();
        table.checks.remove(id).ok_or_else(|| CheckError::Unknown(id.clone()))?;
        // Remembered until the catalog has heard it, however long that takes.
        table.departed.insert(id.clone());
        let version = table.next_version();
        drop(table);
        self.changed.notify_one();
        Ok(version)
    }

    /// Puts the node into maintenance, for this reason; or out of it, where there is none. One that
    /// is in maintenance stays so for the first reason. Beyond the limit of checks: an operator
    /// wants it.
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
                tracing::info!("this node is not in maintenance any more");
            }
            _ => {}
        }
        let version = table.version;
        drop(table);
        self.changed.notify_one();
        version
    }

    /// Waits until the catalog is told nothing, and sees to it that it is told nothing as long as
    /// what is returned is held; and after that, where it is set to `true`.
    pub async fn silence(&self) -> tokio::sync::MutexGuard<'_, bool> {
        self.is_silent.lock().await
    }

    /// Waits until the catalog knows everything urgent up to a version, but not for long: the
    /// catalog will be told.
    pub async fn told(&self, version: u64, timeout: Duration) {
        let mut told = self.told.subscribe();
        let _ = tokio::time::timeout(timeout, told.wait_for(|known| *known >= version)).await;
    }

    /// The check that a registration describes; critical until told otherwise unless it says so
    /// itself.
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

    /// The check that a node in maintenance has: critical, for this reason.
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

    /// A check of this node about which nothing more is known.
    fn record(&self, id: CheckId, name: &str, kind: &str) -> Check {
        Check {
            name: name.into(),
            kind: kind.into(),
            ..Check::of(self.identity.node.clone(), id, CheckStatus::Critical)
        }
    }

    /// Takes up what an earlier life left in the catalog.
    fn adopt(&self, table: &mut CheckTable, left: &Check, now: Instant) {
        let ttl = defined_ttl(left);
        // Without a TTL of ours somebody else wrote it, and looks after it.
        if ttl.is_none() && !is_maintenance(left) {
            return;
        }
        // What was said since this agent started is newer than what was left.
        if table.checks.contains_key(&left.id) || table.departed.contains(&left.id) {
            return;
        }
        let told = ttl.map(format_duration).unwrap_or_default();
        tracing::info!(check = %left.id, ttl = %told, "taking up a check of this agent's earlier life");
        let check = LocalCheck {
            record: left.clone(),
            ttl,
            max_output_bytes: self.limits.max_output_bytes,
            last_report: left.output.clone(),
            // A whole TTL: the application could not report while no agent ran.
            deadline: ttl.map(|ttl| now + ttl),
            // The catalog has it as it stands here.
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

    /// Turns every check critical whose application was silent for its TTL.
    fn expire(&mut self, now: Instant, update_interval: Duration) {
        let version = self.version + 1;
        let due = |check: &&mut LocalCheck| check.deadline.is_some_and(|deadline| deadline <= now);
        for check in self.checks.values_mut().filter(due) {
            // It stays critical until somebody reports, and expires only once.
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

    /// When the next check turns critical.
    fn next_expiry(&self) -> Option<Instant> {
        self.checks.values().filter_map(|check| check.deadline).min()
    }

    /// When something is to be done next.
    fn next_deadline(&self) -> Option<Instant> {
        self.checks.values().flat_map(|check| [check.deadline, check.tell_at]).flatten().min()
    }
}

impl LocalCheck {
    /// A change of status is urgent; one of words alone may wait.
    fn say(&mut self, status: CheckStatus, output: String, now: Instant, timeout: Duration, version: u64) {
        if self.record.status != status {
            self.tell_at = Some(now);
        } else if self.record.output != output {
            // Never later than was planned: a check that talks a lot would put it off for ever.
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

/// The TTL that a check of the catalog was registered with by an agent.
fn defined_ttl(check: &Check) -> Option<Duration> {
    if check.kind != KIND {
        return None;
    }
    let definition: serde_json::Value = serde_json::from_str(&check.definition).ok()?;
    parse_duration(definition.get(DEFINITION_TTL)?.as_str()?).ok().filter(|ttl| !ttl.is_zero())
}

/// Cuts an output that is too long, and says so.
fn truncated(output: &str, limit: usize) -> String {
    if output.len() <= limit {
        return output.to_owned();
    }
    // A cut within a character would leave no text.
    let end = (0..=limit).rev().find(|end| output.is_char_boundary(*end)).unwrap_or(0);
    format!("{} ... (captured {end} of {} bytes)", &output[..end], output.len())
}
