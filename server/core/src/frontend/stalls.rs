//! Ends requests that wait behind a disk which takes no write, and tells their callers the cause.

use super::Frontend;
use super::event::DiskHealth;
use lockmesh_protocol::id::LogIndex;
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// The shortest time without a durable write that explains why a request has waited.
const EXPLAINS_DELAY: Duration = Duration::from_secs(1);
/// The shortest time between two lines of the log that say so.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

impl Frontend {
    /// Answers the requests that have waited for too long.
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
        self.core.end_overdue(overdue, &cause, &mut self.outbox);
    }

    /// The reason why this leader answers nothing, as far as it knows.
    fn cause_of_delay(&self, now: Time) -> String {
        if let DiskHealth::Failing(reason) = &self.disk {
            return format!("the leader cannot write to its disk: {reason}");
        }
        let unpersisted = self.core.unpersisted_since().map(|since| now.since(since));
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

    /// The nodes of the other voters that have not stored everything that is to be committed.
    fn servers_behind(&self) -> Vec<String> {
        let me = self.config.own_record.id;
        let LogIndex(last) = self.core.log_status().last_index;
        let voters = self.core.membership().voters.iter().filter(|id| **id != me);
        let behind = voters.filter(|id| self.core.progress(**id).unwrap_or_default().matched.0 < last);
        behind.map(|id| self.core.node_of(*id).to_string()).collect()
    }
}
