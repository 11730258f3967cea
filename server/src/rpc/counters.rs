//! The counters of the QUIC service, for metrics; and rate-limited warnings.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The minimum time between two warnings of a kind.
const WARNING_INTERVAL: Duration = Duration::from_secs(1);

/// Counters of the service; all except `connections` only grow.
#[derive(Debug, Default)]
pub struct RpcCounters {
    /// Open connections.
    pub connections: AtomicU64,
    /// Frames of calls received.
    pub call_frames: AtomicU64,
    /// Calls received.
    pub calls: AtomicU64,
    /// Calls canceled by their caller.
    pub cancels: AtomicU64,
    /// Frames of answers sent.
    pub reply_frames: AtomicU64,
    /// Answers sent.
    pub replies: AtomicU64,
    /// Calls rejected because the driver's event queue or the connection's own limit was full.
    pub overloaded: AtomicU64,
    /// Answers that fit no frame, and were replaced by an error.
    pub too_long: AtomicU64,
    /// Frames of other servers received.
    pub peer_frames: AtomicU64,
    /// Messages of other servers received.
    pub peer_messages: AtomicU64,
    /// Messages of other servers dropped because the driver's event queue was full.
    pub peer_dropped: AtomicU64,
    /// Agents rejected because all connections were in use.
    pub full: Refusals,
    /// Connections closed because their node opened newer ones.
    pub displaced: Refusals,
    /// Peers rejected for now because too many handshakes were in progress.
    pub crowded: Refusals,
    /// Peers whose address was validated first because many handshakes were in progress.
    pub retries: AtomicU64,
    /// Peers without a trusted certificate, or that did not finish the handshake.
    pub strangers: Refusals,
    /// Servers that were removed, belong to another cluster, or mean another server.
    pub mismatched: Refusals,
    /// Peers whose certificate does not allow their request.
    pub denied: Refusals,
    /// Peers that sent malformed data.
    pub malformed: Refusals,
}

/// Adds one to a counter.
pub(crate) fn one_more(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Rejections of a kind: each is counted, and one a second is logged.
#[derive(Debug, Default)]
pub struct Refusals {
    count: AtomicU64,
    said: Mutex<Option<(Instant, u64)>>,
}

impl Refusals {
    /// Returns their number.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn count_and_warn(&self, text: impl FnOnce() -> String) {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(unsaid) = self.due(count) {
            match unsaid {
                0 => tracing::warn!("{}", text()),
                unsaid => tracing::warn!("{} (and {unsaid} similar warnings)", text()),
            }
        }
    }

    /// Returns the number not logged since the last log line, if one may be logged now.
    fn due(&self, count: u64) -> Option<u64> {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let unsaid = match *said {
            Some((at, _)) if now.duration_since(at) < WARNING_INTERVAL => return None,
            Some((_, last)) => count.saturating_sub(last + 1),
            None => 0,
        };
        *said = Some((now, count));
        Some(unsaid)
    }
}

#[cfg(test)]
mod tests {
    use super::Refusals;

    #[test]
    fn flood_logged_once_with_count() {
        let refusals = Refusals::default();
        assert_eq!(refusals.due(1), Some(0));
        assert_eq!(refusals.due(2), None);
        *refusals.said.lock().unwrap() = Some((std::time::Instant::now() - super::WARNING_INTERVAL, 1));
        assert_eq!(refusals.due(5), Some(3));
    }
}
