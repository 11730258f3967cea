//! The node lease as the agent keeps it: until when the sessions of this node are surely alive.
//!
//! Guards on this host take their deadlines from here. A deadline counts from when the renewal was
//! *sent* that the leader acknowledged, so it ends before the servers' window does.

use lockmesh_protocol::lease::{HealthWindow, LeaseEnd};
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// How much earlier an agent's deadline is than the window allows: whoever believes must stop
/// before anybody else may begin.
pub const fn margin(window: HealthWindow) -> Duration {
    let twentieth = window.duration().as_millis() as u64 / 20;
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
}

impl LeaseState {
    /// Until when a session of this window is surely alive, as far as its node is concerned.
    pub fn deadline(&self, window: HealthWindow) -> Option<Time> {
        Some(self.renewed? + (window.duration() - margin(window)))
    }
}
