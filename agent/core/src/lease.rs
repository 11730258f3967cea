//! The node lease as the agent keeps it: the time until which the sessions of this node are
//! certainly valid.
//!
//! Guards on this host derive their deadlines from it. A deadline counts from the time at which the
//! acknowledged renewal was *sent*, so it ends before the servers' window does. The same holds for
//! an announced restart: the servers' promise then outlives the agent.

use lockmesh_protocol::id::LogIndex;
use lockmesh_protocol::lease::{HealthWindow, LeaseEnd, RESTART_WINDOW};
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// The safety margin: how much earlier the agent's deadline is than the servers'. A holder must
/// stop before another one may start.
pub const fn margin(window: HealthWindow) -> Duration {
    margin_of(window.duration())
}

/// The time after sending an announced restart for which the node's sessions are certainly valid.
pub const RESTART_BELIEF: Duration = RESTART_WINDOW.saturating_sub(margin_of(RESTART_WINDOW));

const fn margin_of(length: Duration) -> Duration {
    let twentieth = length.as_millis() as u64 / 20;
    Duration::from_millis(if twentieth > 50 { twentieth } else { 50 })
}

/// The lease as guards on this host see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseState {
    /// The time at which the newest acknowledged renewal was sent, on the clock that also counts
    /// suspends; `None` before the first one.
    pub renewed: Option<Time>,
    /// The reason why the lease ended, as last reported by the servers; `None` while it is valid.
    pub ended: Option<LeaseEnd>,
    /// The time at which the restart was announced for which the servers keep the node, on the same
    /// clock; `None` unless they confirmed that.
    pub announced: Option<Time>,
    /// `true` once the node has left the cluster, which ended its sessions.
    pub has_left: bool,
    /// The lease covers sessions created at or after this index. Known with the first
    /// acknowledgement.
    pub keeps_from: LogIndex,
}

impl LeaseState {
    /// Returns the time until which a session of this window is certainly valid, as far as its node
    /// is concerned.
    pub fn deadline(&self, window: HealthWindow) -> Option<Time> {
        let renewed = self.renewed.map(|renewed| renewed + (window.validity() - margin(window)));
        let announced = self.announced.map(|announced| announced + RESTART_BELIEF);
        renewed.max(announced)
    }
}
