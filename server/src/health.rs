//! The driver's last report, for HTTP requests while the driver is busy or its disk stalls.
//!
//! The frontend decides if a server can serve. This module only keeps the report, and detects when
//! reports stop.

use lockmesh_core::frontend::NotReady;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A driver without a report for this time is stuck: it reports at every tick.
const STUCK_TIMEOUT: Duration = Duration::from_secs(2);

/// A server's health; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Health(Arc<Mutex<Phase>>);

/// The phase of a server's life.
#[derive(Debug, Default)]
enum Phase {
    /// There is no driver yet.
    #[default]
    Starting,
    /// There is no driver yet, because this server waits for the named event.
    Waiting(String),
    /// The driver runs.
    Running(Report),
    /// The driver has ended.
    Ended,
}

/// A driver's report.
#[derive(Debug)]
pub(crate) struct Report {
    /// The time of the report.
    pub(crate) at: Instant,
    /// The reasons that it cannot serve.
    pub(crate) not_ready: Vec<NotReady>,
    /// The time since which its disk has had writes and made none durable.
    pub(crate) unpersisted_since: Option<Instant>,
}

impl Health {
    /// Stores the driver's report.
    pub(crate) fn report(&self, report: Report) {
        *self.phase() = Phase::Running(report);
    }

    /// The server belongs to no cluster yet, and waits for `what`.
    pub(crate) fn wait(&self, what: &str) {
        let mut phase = self.phase();
        // Callers repeat the same text.
        if !matches!(&*phase, Phase::Waiting(known) if known == what) {
            *phase = Phase::Waiting(what.into());
        }
    }

    /// The driver has ended.
    pub(crate) fn end(&self) {
        *self.phase() = Phase::Ended;
    }

    /// Returns `true` if there is a driver, or will be.
    pub(crate) fn is_live(&self) -> bool {
        !matches!(*self.phase(), Phase::Ended)
    }

    /// Returns the reasons that the server cannot serve at `now`; empty if it can.
    pub(crate) fn not_ready(&self, now: Instant) -> Vec<String> {
        match &*self.phase() {
            Phase::Starting => {
                vec!["this server is starting, or waits for others to bootstrap the cluster".into()]
            }
            Phase::Waiting(what) => vec![what.clone()],
            Phase::Ended => vec!["this server has ended".into()],
            Phase::Running(report) => {
                let silence = now.saturating_duration_since(report.at);
                let stuck = (silence >= STUCK_TIMEOUT)
                    .then(|| format!("the driver has not run for {} s", silence.as_secs()));
                stuck.into_iter().chain(report.not_ready.iter().map(NotReady::to_string)).collect()
            }
        }
    }

    /// Returns the time for which the disk has had writes and made none durable.
    pub(crate) fn unpersisted(&self) -> Duration {
        match &*self.phase() {
            Phase::Running(report) => {
                report.unpersisted_since.map_or(Duration::ZERO, |since| since.elapsed())
            }
            Phase::Starting | Phase::Waiting(_) | Phase::Ended => Duration::ZERO,
        }
    }

    /// A panic under the lock leaves plain data that is still valid.
    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reports the driver's end on drop, for any cause.
pub(crate) struct EndGuard(pub(crate) Health);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(at: Instant, not_ready: Vec<NotReady>) -> Report {
        Report { at, not_ready, unpersisted_since: None }
    }

    #[test]
    fn ready_only_while_driver_reports() {
        let (health, now) = (Health::default(), Instant::now());
        assert!(health.is_live() && health.not_ready(now).len() == 1, "there is no driver yet");
        health.wait("waiting for 2 more of 3 servers");
        assert_eq!(health.not_ready(now), ["waiting for 2 more of 3 servers"]);
        health.report(report(now, Vec::new()));
        assert_eq!(health.not_ready(now), [] as [String; 0]);
        assert_eq!(health.not_ready(now + 2 * STUCK_TIMEOUT), ["the driver has not run for 4 s"]);
        health.report(report(now, vec![NotReady::NoLeader]));
        assert_eq!(health.not_ready(now), ["no leader is known"]);
        drop(EndGuard(health.clone()));
        assert!(!health.is_live() && health.not_ready(now) == ["this server has ended"]);
    }

    #[test]
    fn disk_stall_duration_is_reported() {
        let (health, now) = (Health::default(), Instant::now());
        assert_eq!(health.unpersisted(), Duration::ZERO);
        let since = now.checked_sub(Duration::from_secs(3));
        health.report(Report { unpersisted_since: since, ..report(now, Vec::new()) });
        assert!(health.unpersisted() >= Duration::from_secs(3));
    }
}
