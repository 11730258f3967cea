//! Recorded histories, and two checkers that hold them to what was promised.
//!
//! In reading order:
//!
//! | module | is |
//! |---|---|
//! | `operation` | what a history is made of, free of HTTP and of the product's own types |
//! | `convert` | the same from the product's own words, for those who drive the core itself |
//! | `recorder` | writes down what clients ask and are told |
//! | `verdict` | what a check found |
//! | `model` , `queue` , `txn` | keys, sessions, locks, delays and who waits, written anew from the rules |
//! | `evidence` | the versions of keys that clients were shown |
//! | `candidates` , `replay` | all writes in the order of the log, and what became of those that were not answered |
//! | `timeline` | what every key was, from one index to the next |
//! | `order` , `reads` | real time against the log: reads by their bounds, watches |
//! | `sessions` , `fences` | sessions by time; fencing tokens |
//! | `independent` | short histories of single keys, through a checker of linearizability that others wrote |
//!
//! **Invariant:** nothing here asks the product what would have been right.

mod candidates;
pub mod convert;
mod evidence;
mod fences;
mod independent;
mod model;
pub mod operation;
mod order;
mod queue;
mod reads;
mod recorder;
mod replay;
mod sessions;
mod timeline;
mod txn;
mod verdict;

use evidence::Evidence;
use operation::{Operation, Outcome, Reply, Request};
use order::Times;
use replay::{Facts, replay};
use std::io::{self, BufRead, Write};
use std::time::Duration;

pub use recorder::Recorder;
pub use verdict::{Counts, Verdict, Violation};

/// What some clients asked and were told. It must be whole: what it leaves out looks like a fault
/// where it shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// All operations, in the order in which they began.
    pub operations: Vec<Operation>,
}

/// What a check takes for granted.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// How long after a change was acknowledged a watch of its key may still sleep.
    pub wake_limit: Duration,
    /// Whether the histories of single keys also go through the independent checker, which takes
    /// more time.
    pub independently: bool,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { wake_limit: Duration::MAX, independently: true }
    }
}

impl History {
    /// A history of these operations, in whatever order they come.
    pub fn new(mut operations: Vec<Operation>) -> Self {
        operations.sort_by_key(|operation| (operation.begun, operation.number));
        Self { operations }
    }

    /// Writes it as lines of JSON, one an operation.
    ///
    /// # Errors
    /// `to` takes no more. It may hold a part of the operations.
    pub fn write(&self, mut to: impl Write) -> io::Result<()> {
        for operation in &self.operations {
            serde_json::to_writer(&mut to, operation)?;
            to.write_all(b"\n")?;
        }
        to.flush()
    }

    /// Reads what [`History::write`] wrote.
    ///
    /// # Errors
    /// `from` cannot be read, or a line of it is no operation. Nothing is kept of those before it.
    pub fn read(from: impl BufRead) -> io::Result<Self> {
        let operations = from.lines().map(|line| Ok(serde_json::from_str(&line?)?));
        Ok(Self::new(operations.collect::<io::Result<_>>()?))
    }
}

/// Holds a history to everything that was promised.
pub fn check(history: &History) -> Verdict {
    check_within(history, &Bounds::default())
}

/// The same, with bounds.
pub fn check_within(history: &History, bounds: &Bounds) -> Verdict {
    let operations = &history.operations;
    let (evidence, mut violations) = Evidence::gather(operations);
    violations.extend(order::indexes_are_distinct(operations));
    let mut counts = count(operations);
    if violations.is_empty() {
        let (floors, times) = (order::floors(operations), Times::new(operations));
        let replayed = replay(&Facts { operations, evidence, floors, times });
        counts.unknown_placed = replayed.placed.len() as u64;
        counts.ends_inferred = replayed.ends_inferred;
        counts.steps = replayed.steps;
        counts.grants = replayed.grants.len() as u64;
        counts.unread_at_end = reads::unread_at_end(history, &replayed.timeline).len() as u64;
        violations.extend(fences::fences(operations, &replayed.grants));
        match replayed.violation.clone() {
            Some(violation) => violations.push(violation),
            None => {
                violations.extend(reads::real_time_order(history, &replayed));
                violations.extend(reads::stale_reads(history, &replayed.timeline));
                violations.extend(reads::watches(history, &replayed.timeline, bounds.wake_limit));
            }
        }
    }
    violations.extend(sessions::sessions(operations));
    if bounds.independently {
        let keys = independent::keys(operations);
        (counts.keys_checked_independently, counts.keys_too_long) = (keys.checked, keys.too_long);
        violations.extend(keys.violations);
    }
    Verdict { counts, violations }
}

fn count(operations: &[Operation]) -> Counts {
    let mut counts = Counts { operations: operations.len() as u64, ..Counts::default() };
    for operation in operations {
        let is_write = operation.write().is_some();
        counts.acknowledged += u64::from(is_write && operation.reply().is_some());
        counts.unknown += u64::from(is_write && operation.is_unknown());
        counts.certainly_not += u64::from(matches!(operation.outcome, Outcome::CertainlyNot(_)));
        if let (Request::Read(read), Some(Reply::Entries(_) | Reply::Alive(_))) =
            (&operation.request, operation.reply())
        {
            counts.stale_reads += u64::from(read.stale);
            counts.reads += u64::from(!read.stale);
            counts.watches += u64::from(read.after.is_some());
        }
    }
    counts
}
