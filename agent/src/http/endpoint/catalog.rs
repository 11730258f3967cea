//! `/v1/catalog/…`, the read part: nodes, services, datacenters.

use super::super::answer::{self, Failure, MetaKind};
use super::super::body::Body;
use super::super::call::{Call, ReadOptions};
use super::super::fields::{Row, RowFilter};
use super::super::shapes;
use super::instances::{self, Listed, NodeMeta, is_of_peer, marked, newest};
use crate::upstream::calls::Read;
use http::Response;
use lockmesh_client::shape::catalog::{Node, NodeServiceList, NodeServices, Service, ServiceNode};
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::query::{Answer, Query, Rows};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::task::JoinSet;

/// The number of services whose instances are read at the same time, for a filtered list of
/// services.
const CONCURRENT_READS: usize = 16;

pub(super) async fn nodes(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let (answer, options, mut filter) = read(call, Query::Nodes).await?;
    let Rows::Nodes(nodes) = &answer.rows else { return Err(super::misfit::wrong_rows()) };
    let wanted = NodeMeta::of(call);
    let listed = nodes.iter().filter(|node| !is_of_peer(call) && wanted.matches(node));
    let shapes = filter.select(listed.map(|node| shapes::node(node))).await?;
    Ok(rendered(call, &shapes, &answer, options))
}

pub(super) async fn node(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let NodeRead { answer, options, shape } = read_node(call).await?;
    let shape = shape.map(|(node, services)| NodeServices {
        node,
        services: services.into_iter().map(|service| (service.id.clone(), service)).collect(),
    });
    Ok(rendered(call, &shape, &answer, options))
}

pub(super) async fn node_services(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let NodeRead { answer, options, shape } = read_node(call).await?;
    let shape = shape.map(|(node, services)| NodeServiceList { node: Some(node), services: Some(services) });
    Ok(rendered(call, &shape.unwrap_or_default(), &answer, options))
}

/// A node with its services that the filter selects.
struct NodeRead {
    answer: Arc<Answer>,
    options: ReadOptions,
    shape: Option<(Node, Vec<Service>)>,
}

async fn read_node(call: &Call<'_>) -> Result<NodeRead, Failure> {
    if call.tail.is_empty() {
        return Err(Failure::bad_request("Missing node name"));
    }
    let (answer, options, mut filter) = read(call, Query::Node(NodeName::from(call.tail))).await?;
    let Rows::Node(found) = &answer.rows else { return Err(super::misfit::wrong_rows()) };
    let shape = match found.as_ref().filter(|_| !is_of_peer(call)) {
        Some((node, services)) => {
            let services = filter.select(services.iter().map(|service| shapes::service(service))).await?;
            Some((shapes::node(node), services))
        }
        None => None,
    };
    Ok(NodeRead { answer, options, shape })
}

pub(super) async fn services(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let options = call.read_options()?;
    let mut filter = RowFilter::of(call)?;
    let wanted = NodeMeta::of(call);
    let kind = MetaKind::Effective(options.consistency);
    let answers = call.read_together(wanted.queries(Query::Services), options, Some(kind)).await?;
    let answer = newest(&answers);
    let Rows::Services(services) = &answers[0].rows else { return Err(super::misfit::wrong_rows()) };
    let listed = services.iter().filter(|_| !is_of_peer(call));
    let response = match filter.is_set() || wanted.is_set() {
        true => {
            let names = listed.map(|(name, _)| name.as_str());
            let shape = selected_services(call, (&wanted, &mut filter), names, options).await?;
            rendered(call, &shape, answer, options)
        }
        false => {
            let shape: BTreeMap<&str, &[String]> =
                listed.map(|(name, tags)| (name.as_str(), tags.as_slice())).collect();
            rendered(call, &shape, answer, options)
        }
    };
    Ok(marked(call, response))
}

/// Returns the services with an instance that both filters select, each with the tags of these
/// instances. The list of services has no instances: they are read per service, a few at a time.
async fn selected_services(
    call: &Call<'_>,
    (wanted, filter): (&NodeMeta<'_>, &mut RowFilter<ServiceNode>),
    mut names: impl Iterator<Item = &str>,
    options: ReadOptions,
) -> Result<BTreeMap<String, BTreeSet<String>>, Failure> {
    let mut selected: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut reads = JoinSet::new();
    loop {
        while reads.len() < CONCURRENT_READS
            && let Some(name) = names.next()
        {
            let (upstream, query) = (call.api.upstream.clone(), Query::ServiceInstances(name.into()));
            let read = Read { query, consistency: options.consistency, blocking: None };
            reads.spawn(async move { upstream.call(read).await });
        }
        let Some(read) = reads.join_next().await else { return Ok(selected) };
        let kind = MetaKind::Effective(options.consistency);
        let answer = read
            .expect("a read neither panics nor is cancelled")
            .map_err(|unavailable| Failure::from(unavailable).with_meta(kind))?;
        let Rows::Instances(instances) = &answer.rows else { return Err(super::misfit::wrong_rows()) };
        let instances = instances.iter().filter(|instance| wanted.matches(&instance.node));
        for row in filter.select(instances.map(shapes::service_node)).await? {
            selected.entry(row.service_name).or_default().extend(row.service_tags);
        }
    }
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

async fn read<T: Row>(
    call: &Call<'_>,
    query: Query,
) -> Result<(Arc<Answer>, ReadOptions, RowFilter<T>), Failure> {
    let options = call.read_options()?;
    let filter = RowFilter::of(call)?;
    let answer = call.read(query, options, Some(MetaKind::Effective(options.consistency))).await?;
    Ok((answer, options, filter))
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
