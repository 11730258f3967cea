//! The instances that a query returns: those in good health that have all it asks for, in random
//! order, so that clients spread over them.

use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::prepared_query::QueryService;
use lockmesh_protocol::query::Instance;
use lockmesh_protocol::random::Random;
use lockmesh_protocol::record::CheckStatus;
use std::borrow::Borrow;
use std::collections::BTreeMap;

/// The number of instances among which the near node itself is moved to the front. With a sort by
/// distance it is never behind these.
const NEAR_DEPTH: usize = 10;

/// Returns the instances that a query selects, in the order that this seed decides.
pub fn selected<'a>(
    instances: impl IntoIterator<Item = &'a Instance>,
    query: &QueryService,
    seed: u64,
) -> Vec<&'a Instance> {
    let is_wanted = |instance: &&Instance| {
        is_healthy(instance, query)
            && has_pairs(&query.node_meta, &instance.node.meta)
            && has_pairs(&query.service_meta, &instance.service.meta)
            && has_tags(query.tags.as_deref().unwrap_or_default(), &instance.service.tags)
    };
    let mut selected: Vec<&Instance> = instances.into_iter().filter(is_wanted).collect();
    shuffle(&mut selected, seed);
    selected
}

/// Swaps the instance on this node with the first one, if it is near the front.
pub fn move_to_front(selected: &mut [impl Borrow<Instance>], node: &NodeName) {
    let folded = node.folded();
    let is_there = |instance: &_| Borrow::<Instance>::borrow(instance).node.name.folded() == folded;
    if let Some(place) = selected.iter().take(NEAR_DEPTH).position(is_there) {
        selected.swap(0, place);
    }
}

/// Returns `true` if no check of the instance or its node that counts is critical, or with
/// `only_passing` if all pass.
fn is_healthy(instance: &Instance, query: &QueryService) -> bool {
    let is_ignored = |id: &str| query.ignore_check_ids.iter().flatten().any(|ignored| ignored == id);
    let worst = if query.only_passing { CheckStatus::Passing } else { CheckStatus::Warning };
    instance.checks.iter().all(|check| check.status <= worst || is_ignored(check.id.as_str()))
}

fn has_pairs(wanted: &Option<BTreeMap<String, String>>, meta: &BTreeMap<String, String>) -> bool {
    wanted.iter().flatten().all(|(key, value)| meta.get(key) == Some(value))
}

fn has_tags(wanted: &[String], tags: &[String]) -> bool {
    let has = |tag: &str| tags.iter().any(|known| known.eq_ignore_ascii_case(tag));
    wanted.iter().all(|tag| match tag.strip_prefix('!') {
        Some(tag) => !has(tag),
        None => has(tag),
    })
}

fn shuffle<T>(rows: &mut [T], seed: u64) {
    let mut random = Random::new(seed);
    for last in (1..rows.len()).rev() {
        // The bias of a remainder is below 2^-40 for as many rows as there can be.
        rows.swap(last, (random.number() % (last as u64 + 1)) as usize);
    }
}
