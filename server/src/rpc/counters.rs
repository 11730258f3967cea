//! What the QUIC service counts, for metrics; and warnings that cannot flood the log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// At most one warning of a kind in this time.
const WARNING_INTERVAL: Duration = Duration::from_secs(1);

/// Counters of the service; all but `connections` only grow.
#[derive(Debug, Default)]
pub struct RpcCounters {
    /// Connections that stand now.
    pub connections: AtomicU64,
    /// Frames of calls that arrived.
    pub call_frames: AtomicU64,
    /// Calls that arrived.
    pub calls: AtomicU64,
    /// Calls that were cancelled by their caller.
    pub cancels: AtomicU64,
    /// Frames of answers that were sent.
    pub reply_frames: AtomicU64,
    /// Answers that were sent.
    pub replies: AtomicU64,
    /// Calls that were turned away because the driver's event queue or the connection's own limit
    /// was full.
    pub overloaded: AtomicU64,
    /// Answers that fit no frame, and were replaced by a refusal.
    pub too_long: AtomicU64,
    /// Frames of other servers that arrived.
    pub peer_frames: AtomicU64,
    /// Messages of other servers that arrived.
    pub peer_messages: AtomicU64,
    /// Messages of other servers that were dropped because the driver's event queue was full.
    pub peer_dropped: AtomicU64,
    /// Peers turned away because all connections were taken.
    pub full: Refusals,
    /// Peers turned away for now because very many handshakes were under way.
    pub crowded: Refusals,
    /// Peers without a certificate that is trusted here, or that did not finish the handshake.
    pub strangers: Refusals,
    /// Peers that wanted what their certificate does not allow.
    pub denied: Refusals,
    /// Peers that sent something that cannot be understood.
    pub malformed: Refusals,
}

/// Counts one event more.
pub(crate) fn one_more(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Refusals of a kind: each is counted, and one a second is said aloud.
#[derive(Debug, Default)]
pub struct Refusals {
    count: AtomicU64,
    said: Mutex<Option<(Instant, u64)>>,
}

impl Refusals {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn count_and_warn(&self, text: impl FnOnce() -> String) {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(unsaid) = self.due(count) {
            match unsaid {
                0 => tracing::warn!("{}", text()),
                unsaid => tracing::warn!("{} (and {unsaid} times more like this)", text()),
            }
        }
    }

    /// How many were not said since the last one that was, if one may be said now.
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
    fn a_flood_is_counted_and_said_once() {
        let refusals = Refusals::default();
        assert_eq!(refusals.due(1), Some(0));
        assert_eq!(refusals.due(2), None);
        *refusals.said.lock().unwrap() = Some((std::time::Instant::now() - super::WARNING_INTERVAL, 1));
        assert_eq!(refusals.due(5), Some(3));
    }
}
