//! Counters of the upstream, for metrics.

use std::sync::atomic::AtomicU64;

/// Counters of the upstream, for metrics; each only grows.
#[derive(Debug, Default)]
pub struct UpstreamCounters {
    /// Calls for requests, including those that could not be sent.
    pub attempts: AtomicU64,
    /// Attempts after the first one of a request.
    pub retries: AtomicU64,
    /// Frames of calls that were sent.
    pub call_frames: AtomicU64,
    /// Frames of replies that arrived.
    pub reply_frames: AtomicU64,
    /// Attempts to connect after the first one.
    pub reconnects: AtomicU64,
    /// Registrations of this agent.
    pub registrations: AtomicU64,
    /// Status queries for this agent's own use.
    pub questions: AtomicU64,
    /// The number of times that a leader was found.
    pub leaders: AtomicU64,
    /// Renewals of the node's lease that were sent.
    pub renewals: AtomicU64,
    /// Renewals that were acknowledged.
    pub renewals_acknowledged: AtomicU64,
    /// Challenges of servers that were answered with a renewal.
    pub challenges: AtomicU64,
}
