//! What is counted on the way to the quorum, for metrics.

use std::sync::atomic::AtomicU64;

/// What is counted on the way, for metrics; everything only grows.
#[derive(Debug, Default)]
pub struct UpstreamCounters {
    /// Calls that were sent or would have been.
    pub attempts: AtomicU64,
    /// Attempts after the first one of a request.
    pub retries: AtomicU64,
    /// Frames of calls that were sent.
    pub call_frames: AtomicU64,
    /// Frames of answers that arrived.
    pub reply_frames: AtomicU64,
    /// Attempts to connect after the first one.
    pub reconnects: AtomicU64,
    /// Registrations of this agent.
    pub registrations: AtomicU64,
    /// Questions for a server's status that this agent had itself.
    pub questions: AtomicU64,
    /// How often a leader was found.
    pub leaders: AtomicU64,
    /// Renewals of the node's lease that were sent.
    pub renewals: AtomicU64,
    /// Renewals that were acknowledged.
    pub renewals_acknowledged: AtomicU64,
    /// Challenges of servers that were answered with a renewal.
    pub challenges: AtomicU64,
}
