//! Fencing tokens: every grant's token is above those of all grants before it in the log.

use super::candidates::kv_writes;
use super::model::{Grant, Place};
use super::operation::{KvWrite, Operation};
use super::verdict::Violation;
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn fences(operations: &[Operation], grants: &[Grant]) -> Vec<Violation> {
    let rule = "fencing tokens only grow";
    // After an unanswered acquire, the next one of the same session may have been answered with
    // that older hold.
    let unanswered = operations.iter().filter(|operation| operation.is_unknown()).flat_map(kv_writes);
    let may_be_older: BTreeSet<(&str, &str)> = unanswered
        .filter_map(|write| match write {
            KvWrite::Acquire { key, session, .. } | KvWrite::Enqueue { key, session, .. } => {
                Some((key.as_str(), session.as_str()))
            }
            _ => None,
        })
        .collect();
    let is_certain = |grant: &Grant| !may_be_older.contains(&(grant.key.as_str(), grant.session.as_str()));
    let told = grants.iter().filter_map(|grant| Some((grant.fence?, grant)));
    let mut violations = Vec::new();
    let mut taken: BTreeMap<u64, &Grant> = BTreeMap::new();
    for (fence, grant) in told {
        if let Some(other) = taken.insert(fence, grant) {
            violations.push(violation(rule, fence, other, grant, "the same token"));
        }
    }
    // In the order of the tokens the log positions must not go back.
    let mut before: Option<(u64, &Grant)> = None;
    for (fence, grant) in taken.iter().filter(|(_, grant)| is_certain(grant)) {
        if let Some((lower, other)) = before
            && latest(grant.place) <= other.place.earliest()
        {
            let text = format!("a later grant has the lower token {lower}");
            violations.push(violation(rule, *fence, other, grant, &text));
        }
        if before.is_none_or(|(_, other)| grant.place.earliest() > other.place.earliest()) {
            before = Some((*fence, grant));
        }
    }
    violations
}

/// Returns the last index at which it can have happened.
fn latest(place: Place) -> u64 {
    match place {
        Place::At(index) => index,
        Place::Between { before, .. } => before - 1,
    }
}

fn violation(rule: &'static str, fence: u64, one: &Grant, other: &Grant, what: &str) -> Violation {
    let name = |grant: &Grant| match grant.by {
        Some(number) => format!("#{number} at {}", grant.place),
        None => format!("at {}", grant.place),
    };
    let operations: Vec<u64> = [one.by, other.by].into_iter().flatten().collect();
    let text = format!("fence {fence} of {} and {}: {what}", name(one), name(other));
    Violation::new(rule, &operations, text)
}
