//! How to read: how fresh the answer must be, and whether to wait for news.

use std::time::Duration;

/// How fresh an answer must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// The leader's.
    #[default]
    Default,
    /// The leader's, after it made sure that it is still the leader.
    Consistent,
    /// Any server's, of any age.
    Stale,
}

/// How to read: how fresh, and whether to wait for news.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// How fresh the answer must be.
    pub consistency: Consistency,
    /// Wait until the answer's index exceeds this; 0 for an answer at once.
    pub index: u64,
    /// How long to wait at most for that; `None` for the agent's default of five minutes, and at
    /// most ten.
    pub wait: Option<Duration>,
}

impl Read {
    /// From the leader, made sure.
    pub fn consistent() -> Self {
        Self { consistency: Consistency::Consistent, ..Self::default() }
    }

    /// From any server.
    pub fn stale() -> Self {
        Self { consistency: Consistency::Stale, ..Self::default() }
    }

    /// The same, but waits until something newer than `index` is there, or `wait` is over.
    #[must_use]
    pub fn newer_than(self, index: u64, wait: Duration) -> Self {
        Self { index, wait: Some(wait), ..self }
    }
}
