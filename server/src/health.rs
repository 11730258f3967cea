//! What the driver last said of itself, for whoever asks over HTTP while the driver is busy, or its
//! disk stalls.
//!
//! Whether a server can serve is decided by its frontend; here is only kept what it said, and
//! noticed when it says nothing any more.

use lockmesh_core::frontend::NotReady;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A driver that has said nothing for so long is stuck: it speaks with every tick.
const STUCK_TIMEOUT: Duration = Duration::from_secs(2);

/// A server's health; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Health(Arc<Mutex<Phase>>);

/// How far a server has come.
#[derive(Debug, Default)]
enum Phase {
    /// There is no driver yet.
    #[default]
    Starting,
    /// There is no driver yet, because this server waits for that.
    Waiting(String),
    /// The driver runs.
    Running(Report),
    /// There is no driver any more.
    Ended,
}

/// What a driver says of itself.
#[derive(Debug)]
pub(crate) struct Report {
    /// When it says so.
    pub(crate) at: Instant,
    /// Why it cannot serve.
    pub(crate) not_ready: Vec<NotReady>,
    /// Since when its disk has been given writes and has not taken any.
    pub(crate) unpersisted_since: Option<Instant>,
}

impl Health {
    /// The driver says how it is.
    pub(crate) fn report(&self, report: Report) {
        *self.phase() = Phase::Running(report);
    }

    /// The server belongs to no cluster yet, and waits for that.
    pub(crate) fn wait(&self, what: &str) {
        let mut phase = self.phase();
        // It is told again and again.
        if !matches!(&*phase, Phase::Waiting(known) if known == what) {
            *phase = Phase::Waiting(what.into());
        }
    }

    /// There is no driver any more.
    pub(crate) fn end(&self) {
        *self.phase() = Phase::Ended;
    }

    /// Whether there is a driver, or will be.
    pub(crate) fn is_live(&self) -> bool {
        !matches!(*self.phase(), Phase::Ended)
    }

    /// Why the server cannot serve at `now`, in words; nothing where it can.
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

    /// For how long the disk has been given writes and has not taken any.
    pub(crate) fn unpersisted(&self) -> Duration {
        match &*self.phase() {
            Phase::Running(report) => {
                report.unpersisted_since.map_or(Duration::ZERO, |since| since.elapsed())
            }
            Phase::Starting | Phase::Waiting(_) | Phase::Ended => Duration::ZERO,
        }
    }

    /// A panic while it was held left plain data that is still whole.
    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that there is no driver any more, however that came.
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
    fn a_server_is_ready_when_its_driver_says_so_and_goes_on_to() {
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
    fn a_stalled_disk_shows_while_it_stalls() {
        let (health, now) = (Health::default(), Instant::now());
        assert_eq!(health.unpersisted(), Duration::ZERO);
        let since = now.checked_sub(Duration::from_secs(3));
        health.report(Report { unpersisted_since: since, ..report(now, Vec::new()) });
        assert!(health.unpersisted() >= Duration::from_secs(3));
    }
}
