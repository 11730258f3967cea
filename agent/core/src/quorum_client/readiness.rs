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
        // Refused servers beside a leader that serves are reported, and keep no call from its
        // answer.
        let complaint = self.complaint.clone().filter(|_| self.leader.is_none());
        reasons.extend(self.refusal.clone().or(complaint).map(NotReady::NotAdmitted));
        if self.registration().is_none() {
            reasons.push(NotReady::NotRegistered);
        }
        if self.leader.is_none() {
            reasons.push(NotReady::NoLeader);
        }
        reasons
    }
}
