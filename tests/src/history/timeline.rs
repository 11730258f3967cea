//! The states of every key, from one index to the next.

use super::model::{Entry, Place};
use super::operation::Seen;
use std::collections::BTreeMap;

/// The state of a key from an index on.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    pub(super) from: Place,
    /// `None` for an absent key.
    pub(super) entry: Option<Entry>,
    /// The operation that created it; `None` for an act without a request.
    pub(super) by: Option<u64>,
}

/// The stages of all keys.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    keys: BTreeMap<String, Vec<Stage>>,
}

impl Timeline {
    /// Builds it from stages in the order of the log. Of several at one index only the last was
    /// ever observable.
    pub(super) fn new(stages: Vec<(String, Stage)>) -> Self {
        let mut keys: BTreeMap<String, Vec<Stage>> = BTreeMap::new();
        for (key, stage) in stages {
            let of_key = keys.entry(key).or_default();
            if of_key.last().is_some_and(|last| last.from == stage.from && matches!(stage.from, Place::At(_)))
            {
                of_key.pop();
            }
            of_key.push(stage);
        }
        Self { keys }
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = (&String, &Vec<Stage>)> {
        self.keys.iter()
    }

    pub(super) fn stages(&self, key: &str) -> &[Stage] {
        self.keys.get(key).map_or(&[], Vec::as_slice)
    }

    pub(super) fn keys_under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a String> {
        self.keys
            .range(prefix.to_owned()..)
            .map(|(key, _)| key)
            .take_while(move |key| key.starts_with(prefix))
    }

    /// Returns the first position at or behind `from` where the key can have been observed in this
    /// state; `None` if there is no such position.
    pub(super) fn first_match(&self, key: &str, seen: Option<&Seen>, from: u64) -> Option<u64> {
        let stages = self.stages(key);
        let matches = |entry: Option<&Entry>| match (entry, seen) {
            (None, None) => true,
            (Some(entry), Some(seen)) => entry.is(seen),
            _ => false,
        };
        // Before the first stage the key is absent.
        let first_begins = stages.first().map_or(u64::MAX, |stage| stage.from.latest());
        if seen.is_none() && from < first_begins {
            return Some(from);
        }
        // Skips stages that ended before `from`; uncertain ones are included.
        let passed = stages.partition_point(|stage| stage.from.latest() <= from).saturating_sub(2);
        (passed..stages.len()).find_map(|number| {
            let stage = &stages[number];
            let at = from.max(stage.from.earliest());
            let ends = stages.get(number + 1).map_or(u64::MAX, |next| next.from.latest());
            (matches(stage.entry.as_ref()) && at < ends).then_some(at)
        })
    }
}
