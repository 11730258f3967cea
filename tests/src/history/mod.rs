//! Recorded histories, and two linearizability checkers that compare them with the guarantees.
//!
//! In reading order:
//!
//! | module | is |
//! |---|---|
//! | `operation` | the parts of a history, free of HTTP and of the product's own types |
//! | `convert` | the same from the product's own types, for tests that drive the core directly |
//! | `recorder` | records the clients' requests and answers |
//! | `verdict` | the result of a check |
//! | `model` , `queue` , `txn` | keys, sessions, locks, delays and waiters, reimplemented from the rules |
//! | `evidence` | the versions of keys that clients saw |
//! | `candidates` , `replay` | all writes in the order of the log, and the outcomes of unanswered ones |
//! | `timeline` | the states of every key, from one index to the next |
//! | `order` , `reads` | real time against the log: reads by their bounds, watches |
//! | `sessions` , `fences` | sessions by time; fencing tokens |
//! | `independent` | short histories of single keys, through a third-party linearizability checker |
//!
//! **Invariant:** nothing here uses the product to determine a correct result.

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

/// The requests and answers of some clients. It must be complete: a missing operation looks like a
/// fault elsewhere.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// All operations, in the order in which they began.
    pub operations: Vec<Operation>,
}

/// The assumptions of a check.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The longest time from the acknowledgement of a change to the answer of a watch of its key.
    pub wake_limit: Duration,
    /// `true` to also check the histories of single keys with the independent checker, which takes
    /// more time.
    pub independently: bool,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { wake_limit: Duration::MAX, independently: true }
    }
}

impl History {
    /// Creates a history of these operations, in any order.
    pub fn new(mut operations: Vec<Operation>) -> Self {
        operations.sort_by_key(|operation| (operation.begun, operation.number));
        Self { operations }
    }

    /// Writes it as lines of JSON, one per operation.
    ///
    /// # Errors
    /// `to` cannot be written. It may contain a part of the operations.
    pub fn write(&self, mut to: impl Write) -> io::Result<()> {
        for operation in &self.operations {
            serde_json::to_writer(&mut to, operation)?;
            to.write_all(b"\n")?;
        }
        to.flush()
    }

    /// Reads the output of [`History::write`].
    ///
    /// # Errors
    /// `from` cannot be read, or a line of it is no operation. Earlier operations are discarded.
    pub fn read(from: impl BufRead) -> io::Result<Self> {
        let operations = from.lines().map(|line| Ok(serde_json::from_str(&line?)?));
        Ok(Self::new(operations.collect::<io::Result<_>>()?))
    }
}

/// Checks a history against all guarantees.
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
