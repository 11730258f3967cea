//! Readiness of a server, and the reasons against it.
//!
//! Monitoring and rolling restarts use this; no request is rejected because of it.

use super::status::StatusView;
use std::fmt;
use std::time::Duration;

/// A reason why a server cannot serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotReady {
    /// The server was removed from the quorum.
    Removed,
    /// A corruption check found its state corrupt.
    Corrupt,
    /// Its disk was set back.
    SetBack,
    /// Its disk rejects writes, for this reason.
    DiskFailing(String),
    /// Its disk is stalled: it has completed no write for this long.
    DiskStalled(Duration),
    /// It knows no leader.
    NoLeader,
    /// It leads, but has received no message from a majority of the servers lately.
    NoQuorum,
    /// It has received no message from the leader lately.
    LeaderSilent,
}

impl NotReady {
    /// Returns `true` if the server has no working leader.
    pub fn is_leaderless(&self) -> bool {
        matches!(self, Self::NoLeader | Self::NoQuorum | Self::LeaderSilent)
    }
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Removed => f.write_str("this server was removed from the quorum"),
            Self::Corrupt => f.write_str("the state of this server is corrupt"),
            Self::SetBack => f.write_str("the disk of this server was set back"),
            Self::DiskFailing(reason) => write!(f, "the disk refuses writes: {reason}"),
            Self::DiskStalled(age) => {
                write!(f, "the disk has not taken a write for {} s", age.as_secs())
            }
            Self::NoLeader => f.write_str("no leader is known"),
            Self::NoQuorum => {
                f.write_str("this server leads, but has lost contact with a majority of the servers")
            }
            Self::LeaderSilent => f.write_str("no recent contact with the leader"),
        }
    }
}

/// Returns the reasons why this server cannot serve now; empty if it can.
pub(super) fn not_ready(view: &StatusView<'_>) -> Vec<NotReady> {
    let mut reasons = Vec::new();
    if view.eligibility.is_removed() {
        reasons.push(NotReady::Removed);
    }
    if view.eligibility.is_corrupt() {
        reasons.push(NotReady::Corrupt);
    }
    if view.core.replica().set_back().is_some() {
        reasons.push(NotReady::SetBack);
    }
    if let Some(reason) = view.write_health.disk_failure() {
        reasons.push(NotReady::DiskFailing(reason.into()));
    }
    reasons.extend(view.core.disk().stalled_for(view.now).map(NotReady::DiskStalled));
    reasons.extend(not_led(view));
    reasons
}

/// Returns the reason why this server has no working leader, if so.
fn not_led(view: &StatusView<'_>) -> Option<NotReady> {
    let autopilot = view.core.autopilot(view.now);
    let silence_allowed = autopilot.longest_silence();
    let Some(leader) = view.core.replica().leader() else { return Some(NotReady::NoLeader) };
    if leader == view.config.own_record.id {
        return (!autopilot.hears_majority(silence_allowed)).then_some(NotReady::NoQuorum);
    }
    let is_heard = view.core.last_contact(view.now, leader).is_some_and(|silence| silence <= silence_allowed);
    (!is_heard).then_some(NotReady::LeaderSilent)
}
