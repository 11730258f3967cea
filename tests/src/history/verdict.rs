//! The result of a check: the violations, each with the operations that prove it, and the numbers
//! of checked operations.

use serde::Serialize;
use std::fmt;

/// A broken guarantee.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The guarantee, in a few words.
    pub rule: &'static str,
    /// The operations that prove it, by number.
    pub operations: Vec<u64>,
    /// The observation, and the expectation.
    pub text: String,
}

impl Violation {
    pub(super) fn new(rule: &'static str, operations: &[u64], text: impl Into<String>) -> Self {
        Self { rule, operations: operations.to_vec(), text: text.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.text)
    }
}

/// The numbers of checked operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// All operations.
    pub operations: u64,
    /// Answered writes.
    pub acknowledged: u64,
    /// Operations that certainly had no effect.
    pub certainly_not: u64,
    /// Writes with an unknown outcome.
    pub unknown: u64,
    /// Unknown writes that took effect, according to later observations.
    pub unknown_placed: u64,
    /// Ends of sessions without a request, according to later observations.
    pub ends_inferred: u64,
    /// Reads of the newest state, including watches.
    pub reads: u64,
    /// Reads of any state.
    pub stale_reads: u64,
    /// Reads that waited for a change.
    pub watches: u64,
    /// Granted locks.
    pub grants: u64,
    /// The steps of the replay: indexes explained, including repetitions, and unobserved acts
    /// tried.
    pub steps: u64,
    /// Keys at the end that no client read after the last write.
    pub unread_at_end: u64,
    /// Keys whose histories went through the independent checker.
    pub keys_checked_independently: u64,
    /// Keys whose histories were too long for it.
    pub keys_too_long: u64,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The numbers of checked operations.
    pub counts: Counts,
    /// The violations.
    pub violations: Vec<Violation>,
}

impl Verdict {
    /// Fails with all violations, if there are any.
    #[track_caller]
    pub fn expect_clean(&self) {
        let lines: Vec<String> = self.violations.iter().map(Violation::to_string).collect();
        assert!(lines.is_empty(), "{} violations:\n{}", lines.len(), lines.join("\n"));
    }
}
