//! The execution of a prepared query: the instances in good health that have all it asks for, in
//! random order, so that clients spread over them; or by their distance from a node. Its `Failover`
//! to other datacenters is stored and not tried: there is one datacenter.

use crate::instances::{Listed, Named, has_tag};
use crate::near::Origin;
use lockmesh_protocol::prepared_query::QueryService;
use lockmesh_protocol::query::{Instance, Query};
use lockmesh_protocol::random::Random;
use lockmesh_protocol::record::{CheckStatus, Service};
use std::collections::BTreeMap;

/// The number of instances among which the near node itself is moved to the front. With a sort by
/// distance it is never behind these.
const NEAR_DEPTH: usize = 10;

/// The execution of a query whose template is filled.
#[derive(Clone, Debug)]
pub struct Execution {
    query: QueryService,
    listed: Listed,
}

impl Execution {
    /// `connect` is set if the request asks for the service mesh, as the query itself may.
    pub fn new(query: QueryService, connect: bool) -> Self {
        let listed = if connect || query.connect { Listed::Connect } else { Listed::Own };
        Self { query, listed }
    }

    /// Returns the queries for the instances. For a peer there is none: no cluster has peers.
    pub fn queries(&self) -> Vec<Query> {
        match self.query.peer.as_str() {
            "" => self.listed.queries(&self.query.service),
            _ => Vec::new(),
        }
    }

    /// Returns the selected ones of these instances: up to `limit`, in the order that the seed
    /// decides, or by their distance from the origin, whose own instance comes first.
    pub fn run(
        &self,
        instances: &[Instance],
        origin: Option<&Origin>,
        seed: u64,
        limit: usize,
    ) -> Vec<Instance> {
        let mut named = Named::new(self.listed, &self.query.service);
        let is_wanted = |instance: &&Instance| named.is_new(instance) && self.selects(instance);
        let mut selected: Vec<Instance> = instances.iter().filter(is_wanted).cloned().collect();
        shuffle(&mut selected, seed);
        if let Some(origin) = origin {
            origin.sort_by(&mut selected, |instance| &instance.node.name);
            let node = origin.node.folded();
            let is_there = |instance: &Instance| instance.node.name.folded() == node;
            if let Some(place) = selected.iter().take(NEAR_DEPTH).position(is_there) {
                selected.swap(0, place);
            }
        }
        selected.truncate(limit);
        selected
    }

    fn selects(&self, instance: &Instance) -> bool {
        is_healthy(instance, &self.query)
            && has_pairs(&self.query.node_meta, &instance.node.meta)
            && has_pairs(&self.query.service_meta, &instance.service.meta)
            && has_tags(self.query.tags.as_deref().unwrap_or_default(), &instance.service)
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

fn has_tags(wanted: &[String], service: &Service) -> bool {
    wanted.iter().all(|tag| match tag.strip_prefix('!') {
        Some(tag) => !has_tag(service, tag),
        None => has_tag(service, tag),
    })
}

fn shuffle<T>(rows: &mut [T], seed: u64) {
    let mut random = Random::new(seed);
    for last in (1..rows.len()).rev() {
        // The bias of a remainder is below 2^-40 for as many rows as there can be.
        rows.swap(last, (random.number() % (last as u64 + 1)) as usize);
    }
}
