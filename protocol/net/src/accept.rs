//! Failures to accept connections, mostly caused by a lack of file descriptors: one log line when
//! a series of them begins and one when it has ended, regardless of the number of retries.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// The pause of an accept loop after a failure: other connections have to end first.
const BACKOFF: Duration = Duration::from_millis(50);

/// The time without a failure after which a series has ended. Connections that end let single ones
/// succeed meanwhile.
const RECOVERY_TIME: Duration = Duration::from_secs(10);

/// The failures of the accept loops of one process part; clones share one series.
#[derive(Clone, Debug, Default)]
pub struct AcceptFailures(Arc<Mutex<Option<Series>>>);

/// A series of failures that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Series {
    began: Instant,
    last: Instant,
    count: u64,
}

impl AcceptFailures {
    /// Logs a failure unless one of the same series was logged, and pauses the accept loop. Must be
    /// called on a runtime.
    pub async fn pause(&self, error: &io::Error) {
        if self.begins(Instant::now()) {
            tracing::warn!(
                %error,
                "cannot accept connections; retrying: raise the limit of open files (LimitNOFILE, ulimit -n)"
            );
            // In a task of its own: the accept loop retries long before the series can end.
            tokio::spawn(self.clone().log_end());
        }
        sleep(BACKOFF).await;
    }

    async fn log_end(self) {
        let ended = loop {
            match self.end(Instant::now()) {
                Ok(series) => break series,
                Err(earliest) => sleep_until(earliest).await,
            }
        };
        let lasted_s = (ended.last - ended.began).as_secs();
        tracing::info!(failures = ended.count, lasted_s, "accepting connections again");
    }

    /// Counts a failure; `true` if it is the first of a series.
    fn begins(&self, now: Instant) -> bool {
        let mut series = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = series.is_none();
        let series = series.get_or_insert(Series { began: now, last: now, count: 0 });
        (series.last, series.count) = (now, series.count + 1);
        is_first
    }

    /// Ends the series if there was no failure for a while.
    ///
    /// # Errors
    /// The earliest time at which it can end. It continues.
    fn end(&self, now: Instant) -> Result<Series, Instant> {
        let mut series = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let earliest = series.map_or(now + RECOVERY_TIME, |series| series.last + RECOVERY_TIME);
        if now < earliest {
            return Err(earliest);
        }
        series.take().ok_or(earliest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_logs_start_and_end() {
        let failures = AcceptFailures::default();
        let began = Instant::now();
        assert!(failures.begins(began));
        let times = (1..=1_000).map(|count| began + BACKOFF * count);
        assert_eq!(times.filter(|at| failures.begins(*at)).count(), 0);
        let last = began + BACKOFF * 1_000;
        assert_eq!(failures.end(last + BACKOFF), Err(last + RECOVERY_TIME));
        assert_eq!(failures.end(last + RECOVERY_TIME), Ok(Series { began, last, count: 1_001 }));
        assert!(failures.end(last + RECOVERY_TIME).is_err(), "it is logged once");
        assert!(failures.begins(last + 2 * RECOVERY_TIME));
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_failures_share_series() {
        let failures = AcceptFailures::default();
        let error = io::Error::from_raw_os_error(24);
        let other = failures.clone();
        tokio::join!(failures.pause(&error), other.pause(&error));
        let count = failures.0.lock().unwrap().map(|series| series.count);
        assert_eq!(count, Some(2));
        failures.clone().log_end().await;
        assert_eq!(*failures.0.lock().unwrap(), None);
    }
}
