//! The instances of a service: read, selected by the request's parameters, and rendered in the form
//! of the catalog or of the health endpoints, in the same order.

use super::super::answer::{self, Failure};
use super::super::body::Body;
use super::super::call::Call;
use super::super::fields::{Row, RowFilter};
use super::super::listing::{Form, Listing, Piece, joined};
use super::super::near;
use super::misfit;
use crate::upstream::parts::Part;
use http::Response;
use lockmesh_agent_core::instances::{Listed, Named, has_tag};
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::query::{Instance, Query, Rows};
use lockmesh_protocol::record::{CheckStatus, Node};
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Answers with the instances of a service in the form that `shape` returns.
pub(super) async fn list<T: Row + Serialize + 'static>(
    call: &Call<'_>,
    listed: Listed,
    only_passing: bool,
    shape: fn(&Instance) -> T,
) -> Result<Response<Body>, Failure> {
    if call.tail.is_empty() {
        return Err(Failure::bad_request("Missing service name"));
    }
    let options = call.read_options()?;
    let mut filter = RowFilter::of(call)?;
    let form = Form::of(call, options);
    let answers = call.read_together(listed.queries(call.tail), options, Some(form.meta)).await?;
    let wanted = InstanceQuery::of(call, only_passing);
    let mut named = Named::new(listed, call.tail);
    let render = move |rows: &Rows, layout| {
        let Rows::Instances(instances) = rows else { return Err(misfit::wrong_rows()) };
        let selected = instances.iter().filter(|instance| named.is_new(instance) && wanted.selects(instance));
        Piece::array(filter.select(selected.map(shape)), layout)
    };
    let answers = near::sorted_as_requested(call, options, answers).await?;
    let response = Listing::from_iter(answers).respond(form, render).await?;
    Ok(marked(call, response))
}

/// The instances that a request selects.
struct InstanceQuery {
    tags: Vec<String>,
    node_meta: NodeMeta,
    only_passing: bool,
    is_of_peer: bool,
}

impl InstanceQuery {
    fn of(call: &Call<'_>, only_passing: bool) -> Self {
        Self {
            tags: call.params.all("tag").map(str::to_owned).collect(),
            node_meta: NodeMeta::of(call),
            only_passing,
            is_of_peer: is_of_peer(call),
        }
    }

    fn selects(&self, instance: &Instance) -> bool {
        let all_pass = || instance.checks.iter().all(|check| check.status == CheckStatus::Passing);
        !self.is_of_peer
            && self.node_meta.matches(&instance.node)
            && self.tags.iter().all(|tag| has_tag(&instance.service, tag))
            && (!self.only_passing || all_pass())
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

/// A filter on node metadata: `?node-meta=key:value`, all of which must match.
#[derive(Default)]
pub(super) struct NodeMeta(Vec<(String, String)>);

impl NodeMeta {
    pub(super) fn of(call: &Call<'_>) -> Self {
        let pairs = call.params.all("node-meta").map(|pair| pair.split_once(':').unwrap_or((pair, "")));
        Self(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    /// Returns `true` if the request has such a filter.
    pub(super) fn is_set(&self) -> bool {
        !self.0.is_empty()
    }

    /// Returns a query whose rows have no nodes, followed by that for the nodes if there is a
    /// filter.
    pub(super) fn queries(&self, query: Query) -> Vec<Query> {
        [query].into_iter().chain(self.is_set().then_some(Query::Nodes)).collect()
    }

    /// Returns the first answer to these queries, which has the newest index, and the folded names
    /// of the selected nodes; `None` for all.
    pub(super) async fn selected(
        &self,
        mut answers: Vec<Part>,
    ) -> Result<(Part, Option<BTreeSet<NodeName>>), Failure> {
        let mut first = answers.remove(0);
        if answers.is_empty() {
            return Ok((first, None));
        }
        let nodes = joined(answers).await?;
        // A change of a node changes the selection, too: a blocking query must see it.
        if nodes.index > first.answer.index {
            Arc::make_mut(&mut first.answer).index = nodes.index;
        }
        let Rows::Nodes(nodes) = &nodes.rows else { return Err(misfit::wrong_rows()) };
        let selected = nodes.iter().filter(|node| self.matches(node)).map(|node| node.name.folded());
        Ok((first, Some(selected.collect())))
    }

    pub(super) fn matches(&self, node: &Node) -> bool {
        self.0.iter().all(|(key, value)| node.meta.get(key) == Some(value))
    }
}
