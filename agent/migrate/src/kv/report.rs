//! The result of a migration: counts, and the first keys of each kind.

use crate::MigrateError;
use lockmesh_agent::monitor::printable;
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
        // Memory must not grow with the number of keys.
        if self.keys.len() < MAX_NAMED {
            self.keys.push(Named { key: key.into(), reason: reason.into() });
        }
    }

    /// Adds all keys of another list.
    pub(super) fn extend(&mut self, other: &Self) {
        self.count += other.count;
        let room = MAX_NAMED.saturating_sub(self.keys.len());
        self.keys.extend(other.keys.iter().take(room).cloned());
    }

    /// A headline, and the first keys with their reasons; empty without any.
    pub(super) fn lines(&self, headline: &str) -> Vec<String> {
        if self.count == 0 {
            return Vec::new();
        }
        let shown = self.keys.iter().take(MAX_SHOWN).map(|named| match named.reason.is_empty() {
            // A key may contain characters that control a terminal.
            true => format!("  {}", printable(&named.key)),
            false => format!("  {}: {}", printable(&named.key), named.reason),
        });
        let more = self.count - self.keys.len().min(MAX_SHOWN) as u64;
        let more = (more > 0).then(|| format!("  … and {more} more"));
        std::iter::once(headline.replace("{} keys", &keys(self.count)).replace("{}", &self.count.to_string()))
            .chain(shown)
            .chain(more)
            .collect()
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
pub struct Report {
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
    /// Fails with the number of keys that differ, unless nothing was to be written.
    ///
    /// # Errors
    /// Keys differ.
    pub fn verdict(&self, verify_only: bool) -> Result<(), MigrateError> {
        let count = self.comparison.differing.count;
        if self.dry_run || count == 0 {
            return Ok(());
        }
        let advice = match verify_only {
            true => "run the command without --verify-only to copy them",
            false => "stop the writers on Consul, then run the same command again",
        };
        Err(MigrateError::failed(format!("{} with differences: {advice}", keys(count))))
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let (written, found) = (&self.written, &self.comparison);
        let mut lines = match self.dry_run {
            true => vec![format!(
                "Nothing was written. {} in Consul, {}: {} to copy, {} to update, {} equal; {} to delete in Lockmesh",
                keys(found.keys),
                size(found.bytes),
                found.missing,
                found.outdated,
                found.equal,
                found.obsolete,
            )],
            false if written.passes == 0 => vec![format!(
                "compared {} in {:.1} s: equal {}, differing {}",
                keys(found.keys),
                self.seconds,
                found.equal,
                found.differing.count
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
            lines.extend(found.differing.lines("{} keys with differences:"));
        }
        lines.extend(found.only_in_lockmesh.lines("{} keys only in Lockmesh, left alone:"));
        lines.extend(found.locked.lines(
            "{} keys locked in Consul. Values are copied, locks are not: restart the holders against Lockmesh:",
        ));
        lines.push("Sessions, locks, services, checks and ACLs are not copied.".into());
        lines.join("\n")
    }
}

/// `1 key`, `2 keys`.
fn keys(count: u64) -> String {
    if count == 1 { "1 key".into() } else { format!("{count} keys") }
}

/// A number of bytes for people.
fn size(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} bytes"),
        1_000..1_000_000 => format!("{} kB", bytes / 1_000),
        _ => format!("{} MB", bytes / 1_000_000),
    }
}

/// The progress of long work, on stderr.
#[derive(Debug)]
pub(super) struct CopyProgress {
    notify: fn(&str),
    interval: Duration,
    next: Instant,
}

impl CopyProgress {
    pub(super) fn new(notify: fn(&str)) -> Self {
        let (terminal, log) = PROGRESS_INTERVAL;
        let interval = if stderr().is_terminal() { terminal } else { log };
        Self { notify, interval, next: Instant::now() + interval }
    }

    pub(super) fn report(&mut self, text: impl FnOnce() -> String) {
        if Instant::now() >= self.next {
            self.next = Instant::now() + self.interval;
            (self.notify)(&text());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_list_names_first_keys() {
        let mut listed = Listed::default();
        assert!(listed.lines("{} keys:").is_empty());
        for number in 0..250 {
            listed.add(&format!("k\n{number}"), if number == 0 { "why" } else { "" });
        }
        assert_eq!((listed.count, listed.keys.len()), (250, MAX_NAMED));
        let lines = listed.lines("{} keys:");
        assert_eq!(lines[..3], ["250 keys:", "  k\\n0: why", "  k\\n1"]);
        assert_eq!((keys(1), keys(2)), ("1 key".into(), "2 keys".into()));
        assert_eq!(
            (size(999), size(4_100), size(4_100_000)),
            ("999 bytes".into(), "4 kB".into(), "4 MB".into())
        );
        assert_eq!((lines.len(), lines.last().expect("one").as_str()), (12, "  … and 240 more"));
    }
}
