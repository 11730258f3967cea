//! Whether an agent can have requests answered now, and why it cannot.

use super::QuorumClient;
use std::fmt;

/// Why an agent cannot have requests answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotReady {
    /// It is about to stop.
    Stopping,
    /// No server takes it, for this reason.
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
            Self::Stopping => f.write_str("this agent is about to stop"),
            Self::NotAdmitted(reason) => write!(f, "no server takes this agent: {reason}"),
            Self::MixedServers(reason) => f.write_str(reason),
            Self::NotRegistered => f.write_str("this agent is not registered with the servers yet"),
            Self::NoLeader => f.write_str("no leader is known"),
        }
    }
}

impl QuorumClient {
    /// Why this agent cannot have requests answered now; nothing where it can.
    pub fn not_ready(&self) -> Vec<NotReady> {
        let mut reasons = Vec::new();
        if self.is_closed || self.in_hurry {
            reasons.push(NotReady::Stopping);
        }
        let complaint = self.complaint.clone();
        reasons.extend(match (self.refusal.clone(), self.leader) {
            (Some(refusal), _) => Some(NotReady::NotAdmitted(refusal)),
            (None, None) => complaint.map(NotReady::NotAdmitted),
            // Calls are answered, but an agent with the same list and no pin may register with
            // the other cluster, and both clusters then grant one lock.
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
