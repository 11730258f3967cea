//! Read options: consistency and blocking queries.

use std::time::Duration;

/// The consistency of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// From the leader.
    #[default]
    Default,
    /// From the leader, after it has confirmed its leadership.
    Consistent,
    /// From any server, of any age.
    Stale,
}

/// Read options: consistency and blocking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// The consistency of the reply.
    pub consistency: Consistency,
    /// Blocks until the reply's index exceeds this value; 0 for an immediate reply.
    pub index: u64,
    /// The maximum time to block; `None` for the agent's default of five minutes. Limited to ten
    /// minutes.
    pub wait: Option<Duration>,
}

impl Read {
    /// Reads from the leader, which confirms its leadership first.
    pub fn consistent() -> Self {
        Self { consistency: Consistency::Consistent, ..Self::default() }
    }

    /// Reads from any server.
    pub fn stale() -> Self {
        Self { consistency: Consistency::Stale, ..Self::default() }
    }

    /// Also blocks until there is data newer than `index`, or until `wait` has passed.
    #[must_use]
    pub fn newer_than(self, index: u64, wait: Duration) -> Self {
        Self { index, wait: Some(wait), ..self }
    }
}
