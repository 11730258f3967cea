//! Readiness: whether an agent can serve requests now, and the reasons if it cannot.

use super::QuorumClient;
use std::fmt;

/// The reason why an agent cannot serve requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotReady {
    /// It is shutting down.
    Stopping,
    /// No server accepts it, for this reason.
    NotAdmitted(String),
    /// Its own cluster serves, but a listed server belongs to another one.
    MixedServers(String),
    /// It has not registered since it started.
    NotRegistered,
    /// It knows of no leader.
    NoLeader,
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopping => f.write_str("this agent is shutting down"),
            Self::NotAdmitted(reason) => write!(f, "no server accepts this agent: {reason}"),
            Self::MixedServers(reason) => f.write_str(reason),
            Self::NotRegistered => f.write_str("this agent is not registered with the servers yet"),
            Self::NoLeader => f.write_str("no leader is known"),
        }
    }
}

impl QuorumClient {
    /// Returns the reasons why this agent cannot serve requests now; empty if it can.
    pub fn not_ready(&self) -> Vec<NotReady> {
        let mut reasons = Vec::new();
        if self.is_closed || self.in_hurry {
            reasons.push(NotReady::Stopping);
        }
        let complaint = self.complaint.clone();
        reasons.extend(match (self.refusal.clone(), self.leader) {
            (Some(refusal), _) => Some(NotReady::NotAdmitted(refusal)),
            (None, None) => complaint.map(NotReady::NotAdmitted),
            // Calls are answered, but an agent with the same list and no pin may register with the
            // other cluster, and both clusters then grant one lock.
            (None, Some(_)) => {
                complaint.filter(|_| self.tracker.lists_another_cluster()).map(NotReady::MixedServers)
            }
        });
        if self.registration().is_none() {
            reasons.push(NotReady::NotRegistered);
        }
        if self.leader.is_none() {
            reasons.push(NotReady::NoLeader);
        }
        reasons
    }
}
