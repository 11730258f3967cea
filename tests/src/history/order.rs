//! Real time against the log: an operation that ended before another one began precedes it.
//!
//! One sweep over all beginnings and ends. Some operations have a position in the order of the log:
//! a write at its index, a read of the newest state at the first position whose state matches its
//! answer. Each of them must be behind all operations that had ended when it began. The *first*
//! position of a read is never wrong: positions only bound later operations from below.

use super::evidence::seen_by;
use super::operation::{Moment, Operation, Outcome, Request};
use super::verdict::Violation;
use std::collections::BTreeMap;

/// The lowest possible log position of an operation, and the operation that proves it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Floor {
    pub(super) index: u64,
    pub(super) by: u64,
}

/// Visits all operations by time; `place` returns the position of each one, given its floor.
/// Returns the floors.
pub(super) fn sweep(
    operations: &[Operation],
    mut place: impl FnMut(&Operation, Floor) -> Option<u64>,
) -> BTreeMap<u64, Floor> {
    // At the same moment beginnings come first: such operations overlap.
    let mut events: Vec<(Moment, bool, usize)> = Vec::with_capacity(operations.len() * 2);
    for (at, operation) in operations.iter().enumerate() {
        events.push((operation.begun, false, at));
        events.push((operation.ended, true, at));
    }
    events.sort_unstable();
    let (mut highest, mut floors) = (Floor::default(), BTreeMap::new());
    for (_, is_end, at) in events {
        let operation = &operations[at];
        if !is_end {
            floors.insert(operation.number, highest);
        } else if let Some(index) = place(operation, floors[&operation.number])
            && index > highest.index
        {
            highest = Floor { index, by: operation.number };
        }
    }
    floors
}

/// Returns the floors that follow from indexes alone, before any replay.
pub(super) fn floors(operations: &[Operation]) -> BTreeMap<u64, Floor> {
    sweep(operations, |operation, _| known_index(operation))
}

/// Returns an index that an operation has certainly read or created: the newest state was at least
/// that new when it ended.
pub(super) fn known_index(operation: &Operation) -> Option<u64> {
    let Outcome::Answered { index, .. } = &operation.outcome else { return None };
    match &operation.request {
        Request::Read(read) if read.stale => None,
        Request::Read(_) => seen_by(operation).iter().map(|seen| seen.modify_index).chain(*index).max(),
        Request::Write(_) => operation.last_index(),
        Request::Renew(_) => *index,
    }
}

/// Checks that every acknowledged write has its own index.
pub(super) fn indexes_are_distinct(operations: &[Operation]) -> Vec<Violation> {
    let rule = "every acknowledged write has an index of its own";
    let (mut taken, mut violations) = (BTreeMap::new(), Vec::new());
    for operation in operations.iter().filter(|operation| operation.write().is_some()) {
        match (&operation.outcome, operation.write_index()) {
            (_, Some(index)) => {
                if let Some(other) = taken.insert(index, operation.number) {
                    let text = format!("{operation}, but that is the index of #{other}");
                    violations.push(Violation::new(rule, &[other, operation.number], text));
                }
            }
            (Outcome::Answered { reply, .. }, None) if !is_refusal(reply) => {
                violations.push(Violation::new(
                    rule,
                    &[operation.number],
                    format!("{operation}, without an index"),
                ));
            }
            _ => {}
        }
    }
    violations
}

fn is_refusal(reply: &super::operation::Reply) -> bool {
    matches!(reply, super::operation::Reply::Refused(_))
}

/// The earliest and the latest time at which each index was applied, derived from the answers to
/// its neighbors.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// By index: the latest beginning of any operation up to it.
    earliest: BTreeMap<u64, Moment>,
    /// By index: the earliest end of any operation from it on.
    latest: BTreeMap<u64, Moment>,
}

impl Times {
    pub(super) fn new(operations: &[Operation]) -> Self {
        let writes = operations.iter().filter_map(|operation| Some((operation.write_index()?, operation)));
        let spans: BTreeMap<u64, (Moment, Moment)> =
            writes.map(|(index, write)| (index, (write.begun, write.ended))).collect();
        let mut times = Self::default();
        // An index is applied before an answer that contains it.
        for operation in operations {
            if let Some(index) = known_index(operation) {
                let latest = times.latest.entry(index).or_insert(operation.ended);
                *latest = (*latest).min(operation.ended);
            }
        }
        let mut newest = Moment(0);
        for (index, (begun, _)) in &spans {
            newest = newest.max(*begun);
            times.earliest.insert(*index, newest);
        }
        let mut oldest = Moment(u64::MAX);
        for latest in times.latest.values_mut().rev() {
            oldest = oldest.min(*latest);
            *latest = oldest;
        }
        times
    }

    pub(super) fn earliest(&self, index: u64) -> Moment {
        self.earliest.range(..=index).next_back().map_or(Moment(0), |(_, moment)| *moment)
    }

    pub(super) fn latest(&self, index: u64) -> Moment {
        self.latest.range(index..).next().map_or(Moment(u64::MAX), |(_, moment)| *moment)
    }
}
