//! Reads against the timeline: the allowed results of reads of the newest state, of stale reads,
//! and of watches.

use super::History;
use super::evidence::seen_by;
use super::operation::{Moment, Operation, Outcome, Query, Read, Reply, Request, Seen};
use super::order::{Floor, known_index, sweep};
use super::replay::Replayed;
use super::timeline::Timeline;
use super::verdict::Violation;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Checks that every operation can be placed in the log behind all that had ended before it began.
pub(super) fn real_time_order(history: &History, replayed: &Replayed) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut fail = |rule, operation: &Operation, floor: Floor, text: &str| {
        let text = format!(
            "{operation}, but #{} had ended at index {} before it began{text}",
            floor.by, floor.index
        );
        violations.push(Violation::new(rule, &[floor.by, operation.number], text));
    };
    sweep(&history.operations, |operation, floor| match &operation.request {
        Request::Read(read) if read.stale || !is_of_keys(read) => None,
        Request::Read(read) => {
            let from = known_index(operation)?.max(floor.index);
            let found = first_place(&replayed.timeline, operation, read, from);
            if found.is_none() {
                let text = expected(&replayed.timeline, read, from);
                fail("a read shows the newest state", operation, floor, &text);
            }
            found
        }
        Request::Write(_) => {
            let index = operation.write_index();
            let placed = replayed.placed.get(&operation.number).map(|place| place.latest());
            if index.or(placed).is_some_and(|index| index <= floor.index) {
                fail("the log has the order of real time", operation, floor, "");
            }
            operation.last_index()
        }
        Request::Renew(_) => None,
    });
    violations
}

/// Checks that every stale read shows a state that existed at some time before it ended.
pub(super) fn stale_reads(history: &History, timeline: &Timeline) -> Vec<Violation> {
    let rule = "a stale read shows a state that was there";
    // The lowest index of any write that began at a time or later: a read that ended before cannot
    // have seen it.
    let mut ceilings: BTreeMap<Moment, u64> = BTreeMap::new();
    let mut writes: Vec<(Moment, u64)> =
        history.operations.iter().filter_map(|write| Some((write.begun, write.write_index()?))).collect();
    writes.sort_unstable();
    let mut lowest = u64::MAX;
    for (begun, index) in writes.into_iter().rev() {
        lowest = lowest.min(index);
        ceilings.insert(begun, lowest);
    }
    let mut violations = Vec::new();
    for operation in &history.operations {
        let (Request::Read(read), Outcome::Answered { index, .. }) = (&operation.request, &operation.outcome)
        else {
            continue;
        };
        if !read.stale || !is_of_keys(read) {
            continue;
        }
        let from = seen_by(operation).iter().map(|seen| seen.modify_index).chain(*index).max().unwrap_or(0);
        let after = Moment(operation.ended.0 + 1);
        let ceiling = ceilings.range(after..).next().map_or(u64::MAX, |(_, lowest)| *lowest);
        if first_place(timeline, operation, read, from).is_none_or(|place| place >= ceiling) {
            violations.push(Violation::new(rule, &[operation.number], operation.to_string()));
        }
    }
    violations
}

/// Checks that a watch never goes back behind its given index, and does not miss a change.
pub(super) fn watches(history: &History, timeline: &Timeline, wake_limit: Duration) -> Vec<Violation> {
    let by_number: BTreeMap<u64, &Operation> =
        history.operations.iter().map(|operation| (operation.number, operation)).collect();
    let mut violations = Vec::new();
    for operation in &history.operations {
        let Request::Read(Read { query, after: Some(after), stale }) = &operation.request else { continue };
        let Outcome::Answered { index: Some(index), .. } = &operation.outcome else { continue };
        if index < after && !stale {
            let text = format!("{operation}");
            violations.push(Violation::new("a watch never goes back", &[operation.number], text));
        }
        let Query::Key(key) = query else { continue };
        // The first change behind the watch's index, if its writer was answered: that answer bounds
        // the time of the change.
        let change = timeline.stages(key).iter().find(|stage| stage.from.earliest() > *after);
        let Some(writer) = change.and_then(|stage| by_number.get(&stage.by?)) else { continue };
        let known = writer.ended.max(operation.begun);
        let limit = u64::try_from(wake_limit.as_nanos()).unwrap_or(u64::MAX);
        if writer.write_index().is_some() && operation.ended.0 > known.0.saturating_add(limit) {
            let text = format!("{operation} slept through {writer}");
            violations.push(Violation::new(
                "a watch sees the change",
                &[writer.number, operation.number],
                text,
            ));
        }
    }
    violations
}

/// Returns the keys that ever existed, and that no read of the newest state saw after the last
/// write.
pub(super) fn unread_at_end<'t>(history: &History, timeline: &'t Timeline) -> BTreeSet<&'t str> {
    let writes = history.operations.iter().filter(|operation| operation.write().is_some());
    let last = writes.map(|write| write.ended).max().unwrap_or_default();
    let mut unread: BTreeSet<&str> = timeline.keys().map(|(key, _)| key.as_str()).collect();
    for operation in history.operations.iter().filter(|operation| operation.begun >= last) {
        let (Request::Read(read), Some(_)) = (&operation.request, operation.reply()) else { continue };
        match &read.query {
            _ if read.stale => {}
            Query::Key(key) => unread.retain(|unread| unread != key),
            Query::Together(keys) => unread.retain(|key| !keys.iter().any(|read| read == key)),
            Query::Prefix(prefix) => unread.retain(|key| !key.starts_with(prefix)),
            Query::Session(_) => {}
        }
    }
    unread
}

fn is_of_keys(read: &Read) -> bool {
    !matches!(read.query, Query::Session(_))
}

/// Returns the first position at or behind `from` where every key matches the read.
fn first_place(timeline: &Timeline, operation: &Operation, read: &Read, from: u64) -> Option<u64> {
    let Some(Reply::Entries(shown)) = operation.reply() else { return None };
    let find = |key: &str| -> Option<&Seen> { shown.iter().find(|seen| seen.key == key) };
    let keys: Vec<&str> = match &read.query {
        Query::Key(key) => vec![key],
        Query::Together(keys) => keys.iter().map(String::as_str).collect(),
        Query::Prefix(prefix) => timeline.keys_under(prefix).map(String::as_str).collect(),
        Query::Session(_) => return None,
    };
    let is_asked_for = |seen: &Seen| keys.contains(&seen.key.as_str());
    if !shown.iter().all(is_asked_for) {
        return None;
    }
    let mut place = from;
    loop {
        let before = place;
        for key in &keys {
            place = timeline.first_match(key, find(key), place)?;
        }
        if place == before {
            return Some(place);
        }
    }
}

/// Describes the expected answer to a read.
fn expected(timeline: &Timeline, read: &Read, from: u64) -> String {
    let keys: Vec<&str> = match &read.query {
        Query::Key(key) => vec![key],
        Query::Together(keys) => keys.iter().map(String::as_str).collect(),
        Query::Prefix(prefix) => timeline.keys_under(prefix).map(String::as_str).collect(),
        Query::Session(_) => Vec::new(),
    };
    let mut text = format!("; at {from} or later there should be:");
    for key in keys {
        let stages = timeline.stages(key);
        let current = stages.partition_point(|stage| stage.from.latest() <= from);
        match current.checked_sub(1).map(|current| &stages[current]) {
            Some(stage) => match &stage.entry {
                Some(entry) => text.push_str(&format!(" {key}={entry}")),
                None => text.push_str(&format!(" no {key} since {}", stage.from)),
            },
            None => text.push_str(&format!(" no {key}")),
        }
    }
    text
}
