//! `/v1/catalog/…`, the read part: nodes, services, datacenters.

use super::super::answer::{self, Failure, MetaKind};
use super::super::body::Body;
use super::super::call::{Call, ReadOptions};
use super::super::shapes;
use super::instances::{self, Listed, NodeMeta, is_of_peer, marked};
use http::Response;
use lockmesh_client::shape::catalog::{NodeServiceList, NodeServices};
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
    let shapes: Vec<_> = nodes
        .iter()
        .filter(|node| !is_of_peer(call) && wanted.matches(node))
        .map(|node| shapes::node(node))
        .collect();
    Ok(rendered(call, &shapes, &answer, options))
}

pub(super) async fn node(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let (answer, options) = read_node(call).await?;
    let shape = found_node(call, &answer)?.map(|(node, services)| NodeServices {
        node: shapes::node(node),
        services: services.iter().map(|service| (service.id.to_string(), shapes::service(service))).collect(),
    });
    Ok(rendered(call, &shape, &answer, options))
}

pub(super) async fn node_services(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let (answer, options) = read_node(call).await?;
    let found = found_node(call, &answer)?.map(|(node, services)| NodeServiceList {
        node: Some(shapes::node(node)),
        services: Some(services.iter().map(|service| shapes::service(service)).collect()),
    });
    Ok(rendered(call, &found.unwrap_or_default(), &answer, options))
}

async fn read_node(call: &Call<'_>) -> Result<(Arc<Answer>, ReadOptions), Failure> {
    if call.tail.is_empty() {
        return Err(Failure::bad_request("Missing node name"));
    }
    read(call, Query::Node(NodeName::from(call.tail))).await
}

/// A node with its services.
type NodeRows<'a> = (&'a Node, &'a [Arc<Service>]);

fn found_node<'a>(call: &Call<'_>, answer: &'a Answer) -> Result<Option<NodeRows<'a>>, Failure> {
    let Rows::Node(found) = &answer.rows else { return Err(super::misfit::wrong_rows()) };
    let found = found.as_ref().filter(|_| !is_of_peer(call));
    Ok(found.map(|(node, services)| (&**node, services.as_slice())))
}

pub(super) async fn services(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let (answer, options) = read(call, Query::Services).await?;
    let Rows::Services(services) = &answer.rows else { return Err(super::misfit::wrong_rows()) };
    let shape: BTreeMap<&str, &[String]> = services
        .iter()
        .filter(|_| !is_of_peer(call))
        .map(|(name, tags)| (name.as_str(), tags.as_slice()))
        .collect();
    Ok(marked(call, rendered(call, &shape, &answer, options)))
}

pub(super) async fn service(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    instances::list(call, Listed::Own, false, shapes::service_node).await
}

pub(super) async fn connect(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    instances::list(call, Listed::Connect, false, shapes::service_node).await
}

pub(super) async fn gateway_services(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    if call.tail.is_empty() {
        return Err(Failure::bad_request("Missing gateway name"));
    }
    instances::list(call, Listed::Gateways, false, shapes::service_node).await
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
