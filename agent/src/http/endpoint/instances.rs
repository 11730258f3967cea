//! The instances of a service: read, selected by the request's parameters, and rendered in the form
//! of the catalog or of the health endpoints, in the same order.

use super::super::answer::{self, Failure, MetaKind};
use super::super::body::Body;
use super::super::call::Call;
use super::super::fields::{Row, RowFilter};
use super::super::service_mesh::MeshFields;
use super::misfit;
use http::Response;
use lockmesh_agent_core::registry::sidecar_of;
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::query::{Answer, Instance, Query, Rows};
use lockmesh_protocol::record::{CheckStatus, Node, Service};
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The instances that an endpoint lists for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listed {
    /// The service's own.
    Own,
    /// Its proxies, and its own if they are part of the service mesh themselves.
    Connect,
    /// The instances of its gateways: always empty, because configuration entries assign gateways.
    Gateways,
}

/// Answers with the instances of a service in the form that `shape` returns.
pub(super) async fn list<T: Row + Serialize>(
    call: &Call<'_>,
    listed: Listed,
    only_passing: bool,
    shape: impl Fn(&Instance) -> T + Sync,
) -> Result<Response<Body>, Failure> {
    if call.tail.is_empty() {
        return Err(Failure::bad_request("Missing service name"));
    }
    let options = call.read_options()?;
    let mut filter = RowFilter::of(call)?;
    let names = match listed {
        // Proxies that an earlier version registered are found only by their usual name.
        Listed::Connect => vec![call.tail.into(), Service::proxies_of(call.tail), sidecar_of(call.tail)],
        Listed::Own | Listed::Gateways => vec![call.tail.into()],
    };
    let queries = names.into_iter().map(Query::ServiceInstances).collect();
    let kind = MetaKind::Effective(options.consistency);
    let answers = call.read_together(queries, options, Some(kind)).await?;
    let wanted = NodeMeta::of(call);
    let is_wanted = |instance: &&Instance| {
        is_listed(call, listed, &instance.service)
            && wanted.matches(&instance.node)
            && has_tags(call, &instance.service)
            && (!only_passing || all_pass(instance))
    };
    let (mut shapes, mut seen) = (Vec::new(), BTreeSet::new());
    for answer in &answers {
        let Rows::Instances(instances) = &answer.rows else { return Err(misfit::wrong_rows()) };
        // A proxy may be found by more than one name.
        let instances = instances.iter().filter(is_wanted);
        let new = instances.filter(|instance| seen.insert((&instance.service.node, &instance.service.id)));
        shapes.extend(filter.select(new.map(&shape)).await?);
    }
    let response = answer::json(&shapes, call.layout());
    Ok(marked(call, answer::with_meta(response, newest(&answers), kind)))
}

fn is_listed(call: &Call<'_>, listed: Listed, service: &Service) -> bool {
    let is_named = || service.name.to_lowercase() == call.tail.to_lowercase();
    match listed {
        _ if is_of_peer(call) => false,
        Listed::Own => true,
        Listed::Connect => {
            let mesh = MeshFields::of(service);
            mesh.is_proxy_of(call.tail) || (mesh.is_native() && is_named())
        }
        Listed::Gateways => false,
    }
}

/// Returns `true` for a request about a peer cluster. No cluster has peers, so the result is empty.
pub(super) fn is_of_peer(call: &Call<'_>) -> bool {
    call.params.non_empty("peer").is_some()
}

/// Answers `?cached` where Consul has a cache.
pub(super) fn marked(call: &Call<'_>, response: Response<Body>) -> Response<Body> {
    if call.params.has("cached") { answer::with_cache_miss(response) } else { response }
}

/// Returns `true` if a service has every requested tag, ignoring case.
fn has_tags(call: &Call<'_>, service: &Service) -> bool {
    let has = |tag: &str| service.tags.iter().any(|known| known.eq_ignore_ascii_case(tag));
    call.params.all("tag").all(has)
}

fn all_pass(instance: &Instance) -> bool {
    instance.checks.iter().all(|check| check.status == CheckStatus::Passing)
}

/// Returns the answer with the index of answers that were read together.
pub(super) fn newest(answers: &[Arc<Answer>]) -> &Answer {
    answers.iter().max_by_key(|answer| answer.index).expect("there is one")
}

/// A filter on node metadata: `?node-meta=key:value`, all of which must match.
#[derive(Default)]
pub(super) struct NodeMeta<'a> {
    pairs: Vec<(&'a str, &'a str)>,
}

impl<'a> NodeMeta<'a> {
    pub(super) fn of(call: &'a Call<'_>) -> Self {
        let pairs = call.params.all("node-meta").map(|pair| pair.split_once(':').unwrap_or((pair, "")));
        Self { pairs: pairs.collect() }
    }

    /// Returns `true` if the request has such a filter.
    pub(super) fn is_set(&self) -> bool {
        !self.pairs.is_empty()
    }

    /// Returns a query whose rows have no nodes, followed by that for the nodes if there is a filter.
    pub(super) fn queries(&self, query: Query) -> Vec<Query> {
        [query].into_iter().chain(self.is_set().then_some(Query::Nodes)).collect()
    }

    /// Returns the folded names of the selected nodes in the answers to these queries; `None` for
    /// all.
    pub(super) fn selected(&self, answers: &[Arc<Answer>]) -> Option<BTreeSet<NodeName>> {
        let Rows::Nodes(nodes) = &answers.get(1)?.rows else { return None };
        Some(nodes.iter().filter(|node| self.matches(node)).map(|node| node.name.folded()).collect())
    }

    pub(super) fn matches(&self, node: &Node) -> bool {
        self.pairs.iter().all(|(key, value)| node.meta.get(*key).is_some_and(|known| known == value))
    }
}
