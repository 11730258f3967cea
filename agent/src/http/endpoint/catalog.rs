//! `/v1/catalog/…`, the read part: nodes, services, datacenters.

use super::super::answer::{self, Failure, MetaKind};
use super::super::body::Body;
use super::super::call::{Call, ReadOptions};
use super::super::fields::RowFilter;
use super::super::listing::{Form, Listing, Piece, Render};
use super::super::near;
use super::super::shapes;
use super::instances::{self, NodeMeta, is_of_peer, marked};
use crate::upstream::calls::Read;
use crate::upstream::parts::Part;
use http::Response;
use lockmesh_agent_core::instances::Listed;
use lockmesh_client::shape::catalog::{Node, NodeServiceList, NodeServices, Service, ServiceNode};
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::query::{Query, Rows};
use lockmesh_protocol::rpc::Unavailable;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::task::JoinSet;

/// The number of services whose instances are read at the same time, for a filtered list of
/// services.
const CONCURRENT_READS: usize = 16;

pub(super) async fn nodes(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let options = call.read_options()?;
    let mut filter = RowFilter::of(call)?;
    let (wanted, is_of_peer) = (NodeMeta::of(call), is_of_peer(call));
    list(call, Query::Nodes, options, move |rows, layout| {
        let Rows::Nodes(nodes) = rows else { return Err(super::misfit::wrong_rows()) };
        let listed = nodes.iter().filter(|node| !is_of_peer && wanted.matches(node));
        Piece::array(filter.select(listed.map(|node| shapes::node(node))), layout)
    })
    .await
}

pub(super) async fn node(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let by_id = |services: Vec<Service>| services.into_iter().map(|service| (service.id.clone(), service));
    node_with(call, b"}}", move |shape| {
        shape.map(|(node, services)| NodeServices { node, services: by_id(services).collect() })
    })
    .await
}

pub(super) async fn node_services(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    node_with(call, b"]}", |shape| {
        let listed =
            shape.map(|(node, services)| NodeServiceList { node: Some(node), services: Some(services) });
        listed.unwrap_or_default()
    })
    .await
}

/// Responds with a node and its services that the filter selects. The members of an object have no
/// order: they are sorted by id within each part.
async fn node_with<T: Serialize>(
    call: &Call<'_>,
    closing: &'static [u8],
    shape: impl Fn(Option<(Node, Vec<Service>)>) -> T + Send + 'static,
) -> Result<Response<Body>, Failure> {
    if call.tail.is_empty() {
        return Err(Failure::bad_request("Missing node name"));
    }
    let options = call.read_options()?;
    let mut filter = RowFilter::of(call)?;
    let is_of_peer = is_of_peer(call);
    list(call, Query::Node(NodeName::from(call.tail)), options, move |rows, layout| {
        let Rows::Node(found) = rows else { return Err(super::misfit::wrong_rows()) };
        let Some((node, services)) = found.as_ref().filter(|_| !is_of_peer) else {
            return Ok(Piece::whole(&shape(None), layout));
        };
        let services = filter.select(services.iter().map(|service| shapes::service(service)));
        let services = services.collect::<Result<Vec<_>, _>>()?;
        let empty = shape(Some((shapes::node(node), Vec::new())));
        Ok(Piece::nested((&shape(Some((shapes::node(node), services))), &empty), closing, layout))
    })
    .await
}

pub(super) async fn services(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let options = call.read_options()?;
    let filter = RowFilter::of(call)?;
    let (wanted, is_of_peer) = (NodeMeta::of(call), is_of_peer(call));
    let response = match filter.is_set() || wanted.is_set() {
        true => selected_services(call, (wanted, filter), options).await?,
        false => {
            list(call, Query::Services, options, move |rows, layout| {
                let services = services_of(rows)?.iter().filter(|_| !is_of_peer);
                let shape: BTreeMap<&str, &[String]> =
                    services.map(|(name, tags)| (name.as_str(), tags.as_slice())).collect();
                Ok(Piece::object(&shape, layout))
            })
            .await?
        }
    };
    Ok(marked(call, response))
}

fn services_of(rows: &Rows) -> Result<&[(String, Vec<String>)], Failure> {
    match rows {
        Rows::Services(services) => Ok(services),
        _ => Err(super::misfit::wrong_rows()),
    }
}

/// Responds with the services that have an instance that both filters select, each with the tags of
/// these instances. The list of services has no instances: they are read per service, a few at a
/// time. Of all of them only the names and tags are kept.
async fn selected_services(
    call: &Call<'_>,
    (wanted, mut filter): (NodeMeta, RowFilter<ServiceNode>),
    options: ReadOptions,
) -> Result<Response<Body>, Failure> {
    let (upstream, consistency) = (&call.upstream, options.consistency);
    let kind = MetaKind::Effective(consistency);
    let failed = |unavailable| Failure::from(unavailable).with_meta(kind);
    let answers = call.read_together(wanted.queries(Query::Services), options, Some(kind)).await?;
    let (first, _) = wanted.selected(answers).await?;
    let answer = Arc::clone(&first.answer);
    let mut names = Vec::new();
    let mut next = Some(first);
    while let Some(Part { answer, rest }) = next {
        names.extend(services_of(&answer.rows)?.iter().map(|(name, _)| name.clone()));
        next = Part::behind(rest).await.map_err(failed)?;
    }
    let mut names = names.into_iter().filter(|_| !is_of_peer(call));
    let mut selected: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut reads = JoinSet::new();
    loop {
        while reads.len() < CONCURRENT_READS
            && let Some(name) = names.next()
        {
            let (upstream, query) = (upstream.clone(), Query::ServiceInstances(name));
            let read = Read { query: query.clone(), consistency, blocking: None };
            reads.spawn(async move { (query, upstream.call(read).await) });
        }
        let Some(read) = reads.join_next().await else { break };
        let first = match read.expect("a read neither panics nor is cancelled") {
            (_, Ok(answer)) => Ok(Part::whole(answer)),
            // One at a time: servers have few views.
            (query, Err(Unavailable::AnswerTooLong { .. })) => upstream.read_parts(query, consistency).await,
            (_, Err(unavailable)) => Err(unavailable),
        };
        let mut next = Some(first.map_err(failed)?);
        while let Some(Part { answer, rest }) = next {
            let Rows::Instances(instances) = &answer.rows else { return Err(super::misfit::wrong_rows()) };
            let instances = instances.iter().filter(|instance| wanted.matches(&instance.node));
            for row in filter.select_in_turns(instances.map(shapes::service_node)).await? {
                selected.entry(row.service_name).or_default().extend(row.service_tags);
            }
            next = Part::behind(rest).await.map_err(failed)?;
        }
    }
    Ok(answer::with_meta(answer::json(&selected, call.layout()), &answer, kind))
}

async fn list(
    call: &Call<'_>,
    query: Query,
    options: ReadOptions,
    render: impl Render,
) -> Result<Response<Body>, Failure> {
    let form = Form::of(call, options);
    let first = call.read_list(query, options, Some(form.meta)).await?;
    let answers = near::sorted_as_requested(call, options, vec![first]).await?;
    Listing::from_iter(answers).respond(form, render).await
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
