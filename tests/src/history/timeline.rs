//! What every key was, from one index to the next.

use super::model::{Entry, Place};
use super::operation::Seen;
use std::collections::BTreeMap;

/// What a key was from an index on.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    pub(super) from: Place,
    /// None for an absent key.
    pub(super) entry: Option<Entry>,
    /// Whose write made it; none for what nobody asked for.
    pub(super) by: Option<u64>,
}

/// The stages of all keys.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    keys: BTreeMap<String, Vec<Stage>>,
}

impl Timeline {
    /// From stages in the order of the log. Of several at one place only the last was ever there to
    /// be seen.
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

    /// The first place at or behind `from` where the key can have been as it was seen; none if
    /// there is no such place.
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
        // Stages that ended before `from` need no look; those that may still be there do.
        let passed = stages.partition_point(|stage| stage.from.latest() <= from).saturating_sub(2);
        (passed..stages.len()).find_map(|number| {
            let stage = &stages[number];
            let at = from.max(stage.from.earliest());
            let ends = stages.get(number + 1).map_or(u64::MAX, |next| next.from.latest());
            (matches(stage.entry.as_ref()) && at < ends).then_some(at)
        })
    }
}
