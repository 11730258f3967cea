//! The health of writes: failing and stalled disks, and the cause that requests behind them get.

use super::event::DiskHealth;
use crate::core::Core;
use crate::outbox::not_leader;
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// The minimum time without a durable write that explains a delayed request.
const EXPLAINS_DELAY: Duration = Duration::from_secs(1);
/// The minimum interval between log lines about timed-out requests.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The health of this server's disk, and of writes on a majority of the servers.
#[derive(Debug, Default)]
pub(super) struct WriteHealth {
    disk: DiskHealth,
    /// The reason why no majority of the servers can write, as of the last tick.
    no_majority: Option<String>,
    /// The last time at which timed-out requests were logged.
    delay_logged: Option<Time>,
}

impl WriteHealth {
    /// Sets the health of this server's disk.
    pub(super) fn set_disk(&mut self, health: DiskHealth) {
        self.disk = health;
    }

    /// Sets the reason why no majority of the servers can write, and logs a change.
    pub(super) fn set_no_majority(&mut self, why: Option<String>) {
        match (&self.no_majority, &why) {
            (None, Some(reason)) => tracing::error!(%reason, "no majority of the servers can write"),
            (Some(_), None) => tracing::info!("a majority of the servers can write again"),
            (Some(_), Some(_)) | (None, None) => {}
        }
        self.no_majority = why;
    }

    /// Returns the reason why this server's disk rejects writes, if it does.
    pub(super) fn disk_failure(&self) -> Option<&str> {
        match &self.disk {
            DiskHealth::Failing(reason) => Some(reason),
            DiskHealth::Good => None,
        }
    }

    /// Returns `true` unless the disks of a majority of the servers reject writes.
    pub(super) fn can_majority_write(&self) -> bool {
        self.no_majority.is_none()
    }

    /// Returns `true` if this server cannot write and another server could lead.
    pub(super) fn needs_other_leader(&self) -> bool {
        // If no majority can write, no other server can be elected.
        self.disk_failure().is_some() && self.no_majority.is_none()
    }

    /// Rejects a leader's writes that cannot become durable. If another server could lead, agents
    /// are redirected; otherwise they get the reason.
    pub(super) fn check(&self, has_other_voters: bool) -> Result<(), Unavailable> {
        match (&self.no_majority, &self.disk) {
            (Some(why), _) => Err(Unavailable::Disk(why.clone())),
            // The agent retries until another server leads, which this one arranges with its next
            // tick.
            (None, DiskHealth::Failing(_)) if has_other_voters => Err(not_leader()),
            // A single voter has no alternative: the agent gets the reason.
            (None, DiskHealth::Failing(reason)) => Err(Unavailable::Disk(reason.clone())),
            (None, DiskHealth::Good) => Ok(()),
        }
    }

    /// Returns the cause of a leader's delay, as far as known. `unpersisted` is the time since its
    /// disk has completed no write; the servers `behind` have not stored its writes.
    pub(super) fn cause_of_delay(&self, unpersisted: Option<Duration>, behind: &[&str]) -> String {
        if let Some(why) = &self.no_majority {
            return format!("no majority of the servers can write: {why}");
        }
        if let Some(reason) = self.disk_failure() {
            return format!("the leader cannot write to its disk: {reason}");
        }
        if let Some(stalled) = unpersisted.filter(|age| *age >= EXPLAINS_DELAY) {
            let seconds = stalled.as_secs_f64();
            return format!("the leader's disk has not taken a write for {seconds:.1} s");
        }
        match behind.is_empty() {
            true => "the leader did not answer in time".into(),
            false => format!("these servers have not stored the leader's writes: {}", behind.join(", ")),
        }
    }

    /// Logs timed-out requests, at most once per [`LOG_INTERVAL`].
    pub(super) fn log_delay(&mut self, now: Time, requests: usize, cause: &str) {
        if self.delay_logged.is_none_or(|at| now.since(at) >= LOG_INTERVAL) {
            self.delay_logged = Some(now);
            tracing::warn!(requests, %cause, "requests timed out");
        }
    }
}

/// Returns `true` if the quorum has more than one voter.
pub(super) fn has_other_voters(core: &Core) -> bool {
    core.replica().membership().voters.len() > 1
}

/// Returns the nodes of the other voters that have not stored the whole log.
pub(super) fn servers_behind(core: &Core, me: ServerId) -> Vec<&str> {
    let LogIndex(last) = core.replica().log_status().last_index;
    let voters = core.replica().membership().voters.iter().filter(|id| **id != me);
    let behind = voters.filter(|id| core.replica().progress(**id).unwrap_or_default().matched.0 < last);
    behind.map(|id| core.replica().node_of(*id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirect_requires_other_writable_server() {
        let mut health = WriteHealth::default();
        assert_eq!(health.check(true), Ok(()));
        health.set_disk(DiskHealth::Failing("full".into()));
        assert!(health.needs_other_leader());
        assert_eq!(health.check(true), Err(not_leader()));
        assert_eq!(health.check(false), Err(Unavailable::Disk("full".into())));
        health.set_no_majority(Some("all full".into()));
        assert!(!health.needs_other_leader() && !health.can_majority_write());
        assert_eq!(health.check(true), Err(Unavailable::Disk("all full".into())));
    }

    #[test]
    fn delay_reports_most_certain_cause() {
        let mut health = WriteHealth::default();
        let cause = |health: &WriteHealth, age| health.cause_of_delay(Some(age), &["b", "c"]);
        assert!(cause(&health, EXPLAINS_DELAY / 2).ends_with("writes: b, c"));
        assert!(cause(&health, EXPLAINS_DELAY).contains("has not taken a write for 1.0 s"));
        health.set_disk(DiskHealth::Failing("full".into()));
        assert!(cause(&health, EXPLAINS_DELAY).ends_with("to its disk: full"));
        assert_eq!(WriteHealth::default().cause_of_delay(None, &[]), "the leader did not answer in time");
    }
}
