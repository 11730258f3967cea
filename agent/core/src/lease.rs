//! The node lease as the agent keeps it: until when the sessions of this node are surely alive.
//!
//! Guards on this host take their deadlines from here. A deadline counts from when the renewal was
//! *sent* that the leader acknowledged, so it ends before the servers' window does. The same holds
//! for a restart that the agent announced: what the servers promised then outlives the agent.

use lockmesh_protocol::id::LogIndex;
use lockmesh_protocol::lease::{HealthWindow, LeaseEnd, RESTART_WINDOW};
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// How much earlier an agent's deadline is than the servers' is: whoever believes must stop
/// before anybody else may begin.
pub const fn margin(window: HealthWindow) -> Duration {
    margin_of(window.duration())
}

/// For how long after an announced restart was sent the node's sessions are surely alive.
pub const RESTART_BELIEF: Duration = RESTART_WINDOW.saturating_sub(margin_of(RESTART_WINDOW));

const fn margin_of(length: Duration) -> Duration {
    let twentieth = length.as_millis() as u64 / 20;
    Duration::from_millis(if twentieth > 50 { twentieth } else { 50 })
}

/// What guards on this host may believe of the node's sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseState {
    /// When the newest acknowledged renewal was sent, on the clock that runs on while the host is
    /// suspended; none before the first one.
    pub renewed: Option<Time>,
    /// Why the lease is none any more, as the servers said last; none while it is one.
    pub ended: Option<LeaseEnd>,
    /// When the restart was announced for which the servers keep the node, on the same clock; none
    /// where they did not say that they do.
    pub announced: Option<Time>,
    /// What the lease keeps: sessions that were made from this index on. Known with the first
    /// acknowledgement.
    pub keeps_from: LogIndex,
}

impl LeaseState {
    /// Until when a session of this window is surely alive, as far as its node is concerned.
    pub fn deadline(&self, window: HealthWindow) -> Option<Time> {
        let renewed = self.renewed.map(|renewed| renewed + (window.validity() - margin(window)));
        let announced = self.announced.map(|announced| announced + RESTART_BELIEF);
        renewed.max(announced)
    }
}
