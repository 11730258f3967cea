//! Stalled and full disks: exchanges their state with the other servers, and ends requests that
//! wait behind them, with the cause.

use super::Frontend;
use super::event::DiskHealth;
use lockmesh_protocol::id::LogIndex;
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// The minimum time without a durable write that explains a delayed request.
const EXPLAINS_DELAY: Duration = Duration::from_secs(1);
/// The minimum interval between log lines about timed-out requests.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

impl Frontend {
    /// Reports to the other servers if this one's disk rejects writes, and updates whether a
    /// majority can write.
    pub(super) fn look_at_disks(&mut self, now: Time) {
        let own = match &self.disk {
            DiskHealth::Failing(reason) => Some(reason.as_str()),
            DiskHealth::Good => None,
        };
        if let Some(reason) = own {
            self.core.report_refusing_disk(now, reason, &mut self.outbox);
        }
        // A single voter reports its own reason.
        let why = self.core.why_no_majority_writes(now, own).filter(|_| self.has_other_voters());
        match (&self.no_majority_writes, &why) {
            (None, Some(reason)) => tracing::error!(%reason, "no majority of the servers can write"),
            (Some(_), None) => tracing::info!("a majority of the servers can write again"),
            (Some(_), Some(_)) | (None, None) => {}
        }
        self.no_majority_writes = why;
    }

    /// Replies to requests that have waited too long.
    pub(super) fn end_overdue(&mut self, now: Time) {
        let overdue = self.core.take_overdue(now);
        if overdue.len() == 0 {
            return;
        }
        let cause = self.cause_of_delay(now);
        if self.delay_logged.is_none_or(|at| now.since(at) >= LOG_INTERVAL) {
            self.delay_logged = Some(now);
            tracing::warn!(requests = overdue.len(), %cause, "requests timed out");
        }
        self.core.end_overdue(now, overdue, &cause, &mut self.outbox);
    }

    /// Returns the reason for this leader's delay, as far as it knows.
    fn cause_of_delay(&self, now: Time) -> String {
        if let Some(why) = &self.no_majority_writes {
            return format!("no majority of the servers can write: {why}");
        }
        if let DiskHealth::Failing(reason) = &self.disk {
            return format!("the leader cannot write to its disk: {reason}");
        }
        let unpersisted = self.core.disk().unpersisted_since().map(|since| now.since(since));
        if let Some(stalled) = unpersisted.filter(|age| *age >= EXPLAINS_DELAY) {
            let seconds = stalled.as_secs_f64();
            return format!("the leader's disk has not taken a write for {seconds:.1} s");
        }
        let behind = self.servers_behind();
        match behind.is_empty() {
            true => "the leader did not answer in time".into(),
            false => format!("these servers have not stored the leader's writes: {}", behind.join(", ")),
        }
    }

    /// Returns the nodes of the other voters that have not stored the whole log.
    fn servers_behind(&self) -> Vec<String> {
        let me = self.config.own_record.id;
        let LogIndex(last) = self.core.log_status().last_index;
        let voters = self.core.membership().voters.iter().filter(|id| **id != me);
        let behind = voters.filter(|id| self.core.progress(**id).unwrap_or_default().matched.0 < last);
        behind.map(|id| self.core.node_of(*id).to_string()).collect()
    }
}
