//! `/v1/catalog/…`, the read part: nodes, services, datacenters.

use super::super::answer::{self, Failure, MetaKind};
use super::super::body::Body;
use super::super::call::{Call, ReadOptions};
use super::super::shapes;
use http::Response;
use lockmesh_client::shape::catalog::NodeServices;
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::query::{Answer, Query, Rows};
use lockmesh_protocol::record::{Node, Service};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) async fn nodes(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let (answer, options) = read(call, Query::Nodes).await?;
    let Rows::Nodes(nodes) = &answer.rows else { return Err(super::misfit::wrong_rows()) };
    let wanted = NodeMeta::of(call);
    let shapes: Vec<_> =
        nodes.iter().filter(|node| wanted.matches(node)).map(|node| shapes::node(node)).collect();
    Ok(rendered(call, &shapes, &answer, options))
}

pub(super) async fn node(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    if call.tail.is_empty() {
        return Err(Failure::bad_request("Missing node name"));
    }
    let (answer, options) = read(call, Query::Node(NodeName::from(call.tail))).await?;
    let Rows::Node(found) = &answer.rows else { return Err(super::misfit::wrong_rows()) };
    let shape = found.as_ref().map(|(node, services)| NodeServices {
        node: shapes::node(node),
        services: services.iter().map(|service| (service.id.to_string(), shaped_service(service))).collect(),
    });
    Ok(rendered(call, &shape, &answer, options))
}

fn shaped_service(service: &Arc<Service>) -> lockmesh_client::shape::catalog::Service {
    shapes::service(service)
}

pub(super) async fn services(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let (answer, options) = read(call, Query::Services).await?;
    let Rows::Services(services) = &answer.rows else { return Err(super::misfit::wrong_rows()) };
    let shape: BTreeMap<&str, &[String]> =
        services.iter().map(|(name, tags)| (name.as_str(), tags.as_slice())).collect();
    Ok(marked(call, rendered(call, &shape, &answer, options)))
}

pub(super) async fn service(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    if call.tail.is_empty() {
        return Err(Failure::bad_request("Missing service name"));
    }
    let (answer, options) = read(call, Query::ServiceInstances(call.tail.into())).await?;
    let Rows::Instances(instances) = &answer.rows else { return Err(super::misfit::wrong_rows()) };
    let wanted = NodeMeta::of(call);
    let selected = instances
        .iter()
        .filter(|instance| wanted.matches(&instance.node) && has_tags(call, &instance.service));
    let shapes: Vec<_> = selected.map(shapes::service_node).collect();
    Ok(marked(call, rendered(call, &shapes, &answer, options)))
}

/// Returns the only datacenter. It has no read headers, because the state is not read.
pub(super) fn datacenters(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    Ok(marked(call, answer::json(&[&call.api.identity.datacenter], call.layout())))
}

async fn read(call: &Call<'_>, query: Query) -> Result<(Arc<Answer>, ReadOptions), Failure> {
    let options = call.read_options()?;
    call.refuse_filter()?;
    let answer = call.read(query, options, Some(MetaKind::Effective(options.consistency))).await?;
    Ok((answer, options))
}

fn rendered<T: Serialize + ?Sized>(
    call: &Call<'_>,
    shape: &T,
    answer: &Answer,
    options: ReadOptions,
) -> Response<Body> {
    let kind = MetaKind::Effective(options.consistency);
    answer::with_meta(answer::json(shape, call.layout()), answer, kind)
}

/// Answers `?cached` where Consul has a cache.
pub(super) fn marked(call: &Call<'_>, response: Response<Body>) -> Response<Body> {
    if call.params.has("cached") { answer::with_cache_miss(response) } else { response }
}

/// Returns `true` if a service has every requested tag, ignoring case.
pub(super) fn has_tags(call: &Call<'_>, service: &Service) -> bool {
    let has = |tag: &str| service.tags.iter().any(|known| known.eq_ignore_ascii_case(tag));
    call.params.all("tag").filter(|tag| !tag.is_empty()).all(has)
}

/// A filter on node metadata: `?node-meta=key:value`, all of which must match.
pub(super) struct NodeMeta<'a> {
    pairs: Vec<(&'a str, &'a str)>,
}

impl<'a> NodeMeta<'a> {
    pub(super) fn of(call: &'a Call<'_>) -> Self {
        let pairs = call.params.all("node-meta").map(|pair| pair.split_once(':').unwrap_or((pair, "")));
        Self { pairs: pairs.collect() }
    }

    pub(super) fn matches(&self, node: &Node) -> bool {
        self.pairs.iter().all(|(key, value)| node.meta.get(*key).is_some_and(|known| known == value))
    }
}
