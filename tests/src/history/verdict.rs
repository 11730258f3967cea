//! What a check found: the violations, each with the operations that show it, and how much was
//! looked at.

use serde::Serialize;
use std::fmt;

/// A promise that a history shows to be broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Which promise, in a few words.
    pub rule: &'static str,
    /// The operations that show it, by number.
    pub operations: Vec<u64>,
    /// What was seen, and what was expected.
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

/// What a check looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// All operations.
    pub operations: u64,
    /// Writes that were answered.
    pub acknowledged: u64,
    /// Operations of which it is certain that they changed nothing.
    pub certainly_not: u64,
    /// Writes of which it is unknown.
    pub unknown: u64,
    /// How many of those took effect, as later observations show.
    pub unknown_placed: u64,
    /// Ends of sessions that nobody asked for, as later observations show.
    pub ends_inferred: u64,
    /// Reads of the newest state, watches among them.
    pub reads: u64,
    /// Reads of any state.
    pub stale_reads: u64,
    /// Reads that waited for a change.
    pub watches: u64,
    /// Locks that were granted.
    pub grants: u64,
    /// The steps that the replay took: indexes that it explained, over again too, and unseen acts
    /// that it tried.
    pub steps: u64,
    /// Keys at the end that nobody read after the last write.
    pub unread_at_end: u64,
    /// Keys whose histories went through the independent checker.
    pub keys_checked_independently: u64,
    /// Keys whose histories were too long for it.
    pub keys_too_long: u64,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// How much was looked at.
    pub counts: Counts,
    /// What is wrong.
    pub violations: Vec<Violation>,
}

impl Verdict {
    /// Fails with every violation, unless there is none.
    #[track_caller]
    pub fn expect_clean(&self) {
        let lines: Vec<String> = self.violations.iter().map(Violation::to_string).collect();
        assert!(lines.is_empty(), "{} violations:\n{}", lines.len(), lines.join("\n"));
    }
}
