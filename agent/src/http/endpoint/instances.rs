//! The instances of a service: read, selected by the request's parameters, and rendered in the form
//! of the catalog or of the health endpoints, in the same order.

use super::super::answer::{self, Failure, MetaKind};
use super::super::body::Body;
use super::super::call::{Call, ReadOptions};
use super::super::fields::{Row, RowFilter};
use super::super::service_mesh::MeshFields;
use super::misfit;
use http::Response;
use lockmesh_agent_core::registry::sidecar_of;
use lockmesh_protocol::query::{Answer, Blocking, Instance, Query, Rows};
use lockmesh_protocol::record::{CheckStatus, Node, Service};
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

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
    let answers = read(call, listed, call.tail, options).await?;
    let wanted = NodeMeta::of(call);
    let is_wanted = |instance: &&Instance| {
        !is_of_peer(call)
            && wanted.matches(&instance.node)
            && has_tags(call, &instance.service)
            && (!only_passing || all_pass(instance))
    };
    let instances = named(&answers, listed, call.tail)?;
    let shapes = filter.select(instances.into_iter().filter(is_wanted).map(&shape)).await?;
    let newest = answers.iter().max_by_key(|answer| answer.index).expect("there is one");
    let response = answer::json(&shapes, call.layout());
    Ok(marked(call, answer::with_meta(response, newest, MetaKind::Effective(options.consistency))))
}

/// Reads the instances that may be listed for a name.
pub(super) async fn read(
    call: &Call<'_>,
    listed: Listed,
    name: &str,
    options: ReadOptions,
) -> Result<Vec<Arc<Answer>>, Failure> {
    match listed {
        Listed::Connect => with_proxies(call, name, options).await,
        Listed::Own | Listed::Gateways => Ok(vec![read_one(call, name.into(), options).await?]),
    }
}

/// Returns the instances that are listed for a name, each once.
pub(super) fn named<'a>(
    answers: &'a [Arc<Answer>],
    listed: Listed,
    name: &str,
) -> Result<Vec<&'a Instance>, Failure> {
    let (mut named, mut seen) = (Vec::new(), BTreeSet::new());
    for answer in answers {
        let Rows::Instances(instances) = &answer.rows else { return Err(misfit::wrong_rows()) };
        // A proxy may be found by more than one name.
        let new = instances.iter().filter(|instance| {
            let service = &instance.service;
            is_listed(listed, name, service) && seen.insert((&service.node, &service.id))
        });
        named.extend(new);
    }
    Ok(named)
}

async fn read_one(call: &Call<'_>, name: String, options: ReadOptions) -> Result<Arc<Answer>, Failure> {
    call.read(Query::ServiceInstances(name), options, Some(MetaKind::Effective(options.consistency))).await
}

/// Reads a service and its proxies.
async fn with_proxies(
    call: &Call<'_>,
    name: &str,
    options: ReadOptions,
) -> Result<Vec<Arc<Answer>>, Failure> {
    // Proxies that an earlier version registered are found only by their usual name.
    let names = [name.to_owned(), Service::proxies_of(name), sidecar_of(name)];
    if let Some(blocking) = options.blocking.filter(Blocking::waits) {
        let waiting = ReadOptions { blocking: Some(blocking), ..options };
        let [own, proxies, sidecars] = names.clone().map(|name| read_one(call, name, waiting));
        // A change of any ends the wait.
        tokio::select! {
            answer = own => answer?,
            answer = proxies => answer?,
            answer = sidecars => answer?,
        };
    }
    let blocking = options.blocking.map(|blocking| Blocking { wait: Duration::ZERO, ..blocking });
    let options = ReadOptions { blocking, ..options };
    let [own, proxies, sidecars] = names.map(|name| read_one(call, name, options));
    Ok(vec![own.await?, proxies.await?, sidecars.await?])
}

fn is_listed(listed: Listed, name: &str, service: &Service) -> bool {
    let is_named = || service.name.to_lowercase() == name.to_lowercase();
    match listed {
        Listed::Own => true,
        Listed::Connect => {
            let mesh = MeshFields::of(service);
            mesh.is_proxy_of(name) || (mesh.is_native() && is_named())
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
