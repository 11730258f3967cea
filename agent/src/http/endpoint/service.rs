//! `/v1/agent/services`, `/v1/agent/service/…` and `/v1/agent/health/service/…`: the services of
//! this agent, from its memory. They answer without a leader.

use super::super::answer::{self, Failure};
use super::super::body::Body;
use super::super::call::Call;
use super::super::fields::RowFilter;
use super::super::rights::Judgement;
use super::super::shapes;
use super::check::{check_scripts, maintenance_reason, written};
use crate::definitions::parse_service_registration;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use lockmesh_agent_core::registry::ServiceHealth;
use lockmesh_client::shape::agent::{Service as ServiceShape, ServiceHealth as HealthShape};
use lockmesh_protocol::acl::{Access, Resource};
use lockmesh_protocol::id::ServiceId;
use lockmesh_protocol::record::{Aggregate, Service};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use tokio::time::{Instant, timeout_at};

const CONTENT_HASH: HeaderName = HeaderName::from_static("x-consul-contenthash");
const REASON: HeaderName = HeaderName::from_static("x-consul-reason");

pub(super) async fn list(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let mut filter = RowFilter::of(call)?;
    let (judgement, all) = (call.judgement().await?, call.api.registry.services());
    let permitted = |service: &&Service| judgement.permits(Resource::Service, Access::Read, &service.name);
    let services: Vec<_> = all.iter().filter(permitted).collect();
    let is_filtered = services.len() < all.len();
    let shapes = filter.select_in_turns(services.into_iter().map(|service| shape(call, service))).await?;
    let shapes: BTreeMap<_, _> = shapes.iter().map(|service| (&service.id, service)).collect();
    Ok(answer::filtered_if(is_filtered, answer::json(&shapes, call.layout())))
}

pub(super) async fn info(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let known_hash = call.params.non_empty("hash");
    let until = Instant::now() + super::super::call::spread(call.wait(call.api.limits.default_query_time)?);
    let mut progress = call.api.registry.progress();
    let id = ServiceId::from(call.tail);
    if known_hash.is_some()
        && let Some(found) = call.api.registry.service_health(&id)
    {
        // First: a client without the right is not to wait.
        check_read(call, &found.service).await?;
    }
    loop {
        // Seen before the service is read, so that a later change ends the wait.
        let is_stopping = progress.borrow_and_update().is_stopping;
        let Some(found) = call.api.registry.service_health(&id) else {
            return Err(Failure::not_found(format!("unknown service ID: {}", call.tail)));
        };
        let shape = with_hash(shape(call, &found.service));
        let is_new = known_hash != Some(shape.content_hash.as_str());
        if is_stopping || is_new || timeout_at(until, progress.changed()).await.is_err() {
            check_read(call, &found.service).await?;
            return Ok(hashed(call, &shape));
        }
    }
}

/// Rejects the request unless its client may read the service.
async fn check_read(call: &Call<'_>, service: &Service) -> Result<(), Failure> {
    call.judgement().await?.check(Resource::Service, Access::Read, &service.name)
}

pub(super) async fn register(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let body = call.small_body(body).await?;
    let mut new = parse_service_registration(&body)?;
    check_scripts(call, new.all_checks())?;
    let judgement = call.judgement().await?;
    for service in new.sidecar.iter().map(|sidecar| &sidecar.service).chain([&new.service]) {
        // An id may change its name: the service of the other name ends.
        check_present(call, &judgement, &service.id)?;
        judgement.check(Resource::Service, Access::Write, &service.name)?;
    }
    // Only these two forms: Consul ignores every other value.
    new.replaces_checks =
        call.params.value("replace-existing-checks").is_some_and(|word| ["", "true"].contains(&word));
    written(call, call.api.registry.register_service(new).await).await
}

pub(super) async fn deregister(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    if call.tail.is_empty() {
        return Err(Failure::refused("ServiceID missing"));
    }
    let service = ServiceId::from(call.tail);
    check_present(call, &call.judgement().await?, &service)?;
    written(call, call.api.registry.deregister_service(&service).await).await
}

/// Rejects the request unless its client may change the service with this id, if there is one.
pub(super) fn check_present(call: &Call<'_>, judgement: &Judgement, id: &ServiceId) -> Result<(), Failure> {
    match call.api.registry.service_health(id) {
        Some(found) => judgement.check(Resource::Service, Access::Write, &found.service.name),
        None => Ok(()),
    }
}

pub(super) async fn maintain(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    if call.tail.is_empty() {
        return Err(Failure::bad_request("Missing service ID"));
    }
    let reason = maintenance_reason(call)?;
    let service = ServiceId::from(call.tail);
    check_present(call, &call.judgement().await?, &service)?;
    written(call, call.api.registry.maintain_service(&service, reason).await).await
}

pub(super) async fn health_by_id(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    if call.tail.is_empty() {
        return Err(Failure::bad_request("Missing serviceID"));
    }
    let found = call.api.registry.service_health(&ServiceId::from(call.tail));
    if let Some(health) = &found {
        check_read(call, &health.service).await?;
    }
    let aggregate = found.as_ref().map(|health| health.aggregate);
    let shape = match &found {
        Some(health) => health_shape(call, health),
        None => HealthShape { aggregated_status: "critical".into(), service: None, checks: None },
    };
    Ok(health_answer(call, aggregate, &shape, &format!("ServiceId {} not found", call.tail)))
}

pub(super) async fn health_by_name(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    if call.tail.is_empty() {
        return Err(Failure::bad_request("Missing service Name"));
    }
    call.judgement().await?.check(Resource::Service, Access::Read, call.tail)?;
    let services = call.api.registry.services();
    let named = services.iter().filter(|service| service.name == call.tail);
    let found: Vec<_> = named.filter_map(|service| call.api.registry.service_health(&service.id)).collect();
    let aggregate = found.iter().map(|health| health.aggregate).max();
    let shapes: Vec<_> = found.iter().map(|health| health_shape(call, health)).collect();
    Ok(health_answer(call, aggregate, &shapes, &format!("ServiceName {} Not Found", call.tail)))
}

/// Returns a health as a probe reads it: by the status code alone, if it wants.
fn health_answer(
    call: &Call<'_>,
    aggregate: Option<Aggregate>,
    shape: &impl serde::Serialize,
    not_found: &str,
) -> Response<Body> {
    let (status, reason) = match aggregate {
        Some(Aggregate::Passing) => (StatusCode::OK, "passing"),
        Some(Aggregate::Warning) => (StatusCode::TOO_MANY_REQUESTS, "warning"),
        Some(other) => (StatusCode::SERVICE_UNAVAILABLE, other.as_str()),
        None => (StatusCode::NOT_FOUND, not_found),
    };
    let accept = call.head.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let wants_text = call.params.value("format") == Some("text")
        || accept.is_some_and(|accept| accept.starts_with("text/plain"));
    let mut response = match wants_text {
        true => answer::text(status, aggregate.map_or(not_found, |aggregate| aggregate.as_str())),
        false => answer::json(shape, call.layout()),
    };
    *response.status_mut() = status;
    // The id in the path may have characters that no header can contain.
    if let Ok(reason) = HeaderValue::from_str(reason) {
        response.headers_mut().insert(REASON, reason);
    }
    response
}

fn health_shape(call: &Call<'_>, health: &ServiceHealth) -> HealthShape {
    let checks = health.checks.iter().map(|check| lockmesh_client::shape::health::Check {
        kind: String::new(),
        definition: serde_json::Map::new(),
        ..shapes::check(check)
    });
    HealthShape {
        aggregated_status: health.aggregate.as_str().into(),
        service: Some(shape(call, &health.service)),
        checks: Some(checks.collect()),
    }
}

fn shape(call: &Call<'_>, service: &Service) -> ServiceShape {
    shapes::agent_service(service, &call.api.identity.datacenter)
}

/// Adds a hash of all other fields, by which clients wait for a change.
fn with_hash(shape: ServiceShape) -> ServiceShape {
    let text = serde_json::to_vec(&shape).expect("a service has a JSON form");
    let mut hash = [0; 8];
    hash.copy_from_slice(&Sha256::digest(text)[..8]);
    ServiceShape { content_hash: format!("{:x}", u64::from_be_bytes(hash)), ..shape }
}

fn hashed(call: &Call<'_>, shape: &ServiceShape) -> Response<Body> {
    let mut response = answer::json(shape, call.layout());
    if let Ok(hash) = HeaderValue::from_str(&shape.content_hash) {
        response.headers_mut().insert(CONTENT_HASH, hash);
    }
    response
}
