//! The result of a migration: counts, and the first keys of each kind.

use super::super::error::CliError;
use super::super::output::{json, printable, warn};
use serde::Serialize;
use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

/// The maximum number of keys that a list of the report names.
const MAX_NAMED: usize = 100;

/// The same of a list on the screen.
const MAX_SHOWN: usize = 10;

/// The interval between two reports of progress: on a terminal, and in a log.
const PROGRESS_INTERVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// A list of keys of any length, of which the first ones are named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Listed {
    pub(super) count: u64,
    pub(super) keys: Vec<Named>,
}

/// A key, and why it is listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Named {
    pub(super) key: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) reason: String,
}

impl Listed {
    pub(super) fn add(&mut self, key: &str, reason: impl Into<String>) {
        self.count += 1;
        if self.keys.len() < MAX_NAMED {
            self.keys.push(Named { key: key.into(), reason: reason.into() });
        }
    }

    /// A headline, and the first keys with their reasons; empty without any.
    pub(super) fn lines(&self, headline: &str) -> Vec<String> {
        if self.count == 0 {
            return Vec::new();
        }
        let shown = self.keys.iter().take(MAX_SHOWN).map(|named| match named.reason.is_empty() {
            true => format!("  {}", printable(&named.key)),
            false => format!("  {}: {}", printable(&named.key), named.reason),
        });
        let more = self.count - self.keys.len().min(MAX_SHOWN) as u64;
        let more = (more > 0).then(|| format!("  … and {more} more"));
        std::iter::once(headline.replace("{}", &self.count.to_string())).chain(shown).chain(more).collect()
    }
}

/// The result of comparing both sides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Comparison {
    /// Keys in Consul.
    pub(super) keys: u64,
    /// The size of their values in bytes.
    pub(super) bytes: u64,
    pub(super) equal: u64,
    /// Keys to create, update and delete in Lockmesh.
    pub(super) missing: u64,
    pub(super) outdated: u64,
    pub(super) obsolete: u64,
    /// Keys in Lockmesh that the migration wrote.
    #[serde(skip)]
    pub(super) owned: u64,
    /// Keys that differ, with the reason: all of the above, conflicts, and keys that do not fit.
    pub(super) differing: Listed,
    /// Keys that differ, and that this migration did not write.
    pub(super) conflicts: Listed,
    /// Keys that Lockmesh cannot have.
    pub(super) unfit: Listed,
    /// Keys that a session holds in Consul.
    pub(super) locked: Listed,
    /// Keys that Consul does not have and that this migration did not write.
    pub(super) only_in_lockmesh: Listed,
}

/// The writes of a migration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Written {
    pub(super) passes: u64,
    pub(super) copied: u64,
    pub(super) updated: u64,
    pub(super) deleted: u64,
}

impl Written {
    pub(super) fn total(&self) -> u64 {
        self.copied + self.updated + self.deleted
    }
}

/// The report.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Report {
    pub(super) from: String,
    pub(super) prefixes: Vec<String>,
    pub(super) to_prefix: String,
    pub(super) dry_run: bool,
    #[serde(flatten)]
    pub(super) written: Written,
    #[serde(flatten)]
    pub(super) comparison: Comparison,
    pub(super) seconds: f64,
}

impl Report {
    /// The report as it is printed.
    pub(super) fn rendered(&self, as_json: bool) -> Result<Vec<u8>, CliError> {
        if as_json { json(self) } else { Ok(format!("{}\n", self.text()).into()) }
    }

    pub(super) fn text(&self) -> String {
        let (written, found) = (&self.written, &self.comparison);
        let mut lines = match self.dry_run {
            true => vec![format!(
                "Nothing was written. {} keys in Consul, {} MB: {} to copy, {} to update, {} equal; {} \
                to delete in \
                 Lockmesh",
                found.keys,
                found.bytes / 1_000_000,
                found.missing,
                found.outdated,
                found.equal,
                found.obsolete,
            )],
            false => vec![format!(
                "copied {}, updated {}, deleted {} keys in {} passes and {:.1} s; equal {}, differing {}",
                written.copied,
                written.updated,
                written.deleted,
                written.passes,
                self.seconds,
                found.equal,
                found.differing.count
            )],
        };
        if !self.dry_run {
            lines.extend(found.differing.lines("{} keys differ:"));
        }
        lines.extend(found.only_in_lockmesh.lines("{} keys are only in Lockmesh, and were left alone:"));
        lines.extend(found.locked.lines(
            "{} keys are locked in Consul. Their values are copied, the locks are not: restart the \
            holders against \
             Lockmesh:",
        ));
        lines.push("Sessions, locks, services, checks and ACLs are not copied.".into());
        lines.join("\n")
    }
}

/// The progress of long work, on stderr.
#[derive(Debug)]
pub(super) struct Progress {
    interval: Duration,
    next: Instant,
}

impl Progress {
    pub(super) fn new() -> Self {
        let (terminal, log) = PROGRESS_INTERVAL;
        let interval = if stderr().is_terminal() { terminal } else { log };
        Self { interval, next: Instant::now() + interval }
    }

    pub(super) fn report(&mut self, text: impl FnOnce() -> String) {
        if Instant::now() >= self.next {
            self.next = Instant::now() + self.interval;
            warn(&text());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_any_length_names_its_first_keys() {
        let mut listed = Listed::default();
        assert!(listed.lines("{} keys:").is_empty());
        for number in 0..250 {
            listed.add(&format!("k\n{number}"), if number == 0 { "why" } else { "" });
        }
        assert_eq!((listed.count, listed.keys.len()), (250, MAX_NAMED));
        let lines = listed.lines("{} keys:");
        assert_eq!(lines[..3], ["250 keys:", "  k\\n0: why", "  k\\n1"]);
        assert_eq!((lines.len(), lines.last().expect("one").as_str()), (12, "  … and 240 more"));
    }
}
