//! `/v1/agent/checks` and `/v1/agent/check/…`: the checks of this agent, which it runs or which
//! applications of this machine report.
//!
//! A write is answered when it is stored and the catalog is updated, or after a short while if the
//! catalog cannot be reached.

use super::super::access::{self, Keys, Need};
use super::super::answer::{self, Failure};
use super::super::body::Body;
use super::super::call::Call;
use super::super::fields::RowFilter;
use super::super::peer::Peer;
use super::super::rights::Judgement;
use super::super::shapes;
use crate::config::{Level, Scripts};
use crate::definitions::{DefinitionError, parse_check_registration};
use crate::go::json::{JsonError, Object, first_value};
use crate::go::number::parse_bool;
use crate::registry::ChangeError;
use http::Response;
use lockmesh_agent_core::definitions::NewCheck;
use lockmesh_agent_core::registry::RegistryError;
use lockmesh_protocol::acl::{Access, Resource};
use lockmesh_protocol::id::CheckId;
use lockmesh_protocol::record::CheckStatus;
use std::collections::BTreeMap;
use std::time::Duration;

/// The maximum time that a write waits for the catalog.
const CATALOG_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) async fn list(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let mut filter = RowFilter::of(call)?;
    let (judgement, all) = (call.judgement().await?, call.api.registry.checks());
    let checks: Vec<_> = all.iter().filter(|check| judgement.permits_check(check)).collect();
    let is_filtered = checks.len() < all.len();
    let shapes = filter.select_in_turns(checks.into_iter().map(shapes::check)).await?;
    let shapes: BTreeMap<_, _> = shapes.iter().map(|check| (&check.check_id, check)).collect();
    Ok(answer::filtered_if(is_filtered, answer::json(&shapes, call.layout())))
}

pub(super) async fn register(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let body = call.small_body(body).await?;
    let new = parse_check_registration(&body)?;
    check_scripts(call, [&new])?;
    let judgement = call.judgement().await?;
    check_present(call, &judgement, &new.id)?;
    match &new.service {
        Some(service) => super::service::check_present(call, &judgement, service)?,
        None => judgement.check(Resource::Node, Access::Write, call.own_node())?,
    }
    written(call, call.api.registry.register_check(new).await).await
}

/// `pass`, `warn` and `fail`: the note is the output.
pub(super) async fn report(call: &Call<'_>, status: CheckStatus) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let note = call.params.value("note").unwrap_or_default();
    let check = CheckId::from(call.tail);
    check_present(call, &call.judgement().await?, &check)?;
    reported(call, call.api.registry.report(&check, status, note)).await
}

pub(super) async fn update(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let body = call.small_body(body).await?;
    let undecodable = |error: JsonError| Failure::bad_request(format!("Request decode failed: {error}"));
    let value = first_value(&body).map_err(undecodable)?;
    let object = Object::new("checkUpdate", &value).map_err(undecodable)?;
    object.refuse_unknown(&["Status", "Output"]).map_err(undecodable)?;
    let word = object.string("Status").map_err(undecodable)?;
    let status = CheckStatus::parse(word)
        .ok_or_else(|| Failure::bad_request(format!("Invalid check status: '{word}'")))?;
    let output = object.string("Output").map_err(undecodable)?;
    let check = CheckId::from(call.tail);
    check_present(call, &call.judgement().await?, &check)?;
    reported(call, call.api.registry.report(&check, status, output)).await
}

pub(super) async fn deregister(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    if call.tail.is_empty() {
        return Err(Failure::refused("CheckID missing"));
    }
    let check = CheckId::from(call.tail);
    check_present(call, &call.judgement().await?, &check)?;
    written(call, call.api.registry.deregister_check(&check).await).await
}

/// Rejects the request unless its client may change the check with this id, if there is one.
fn check_present(call: &Call<'_>, judgement: &Judgement, id: &CheckId) -> Result<(), Failure> {
    let checks = call.api.registry.checks();
    let present = checks.iter().find(|check| check.id.folded() == id.folded());
    present.map_or(Ok(()), |check| judgement.check_check(check))
}

/// Puts the whole node into maintenance, or ends it.
pub(super) async fn maintain(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let reason = maintenance_reason(call)?;
    written(call, call.api.registry.maintain(reason).await).await
}

/// Returns the reason for maintenance, or `None` to end it.
pub(super) fn maintenance_reason<'a>(call: &'a Call<'_>) -> Result<Option<&'a str>, Failure> {
    let word = call.params.value("enable").ok_or_else(|| Failure::bad_request("Missing value for enable"))?;
    let enable = parse_bool(word)
        .ok_or_else(|| Failure::bad_request(format!("Invalid value for enable: {word:?}")))?;
    Ok(enable.then(|| call.params.value("reason").unwrap_or_default()))
}

/// Rejects script checks, unless the agent permits them to this client.
pub(super) fn check_scripts<'a>(
    call: &Call<'_>,
    checks: impl IntoIterator<Item = &'a NewCheck>,
) -> Result<(), Failure> {
    if !checks.into_iter().any(NewCheck::runs_script) {
        return Ok(());
    }
    if call.api.access.scripts == Scripts::UnixSocket && matches!(call.peer, Peer::Unix { .. }) {
        // It runs as the agent's user, who may do everything.
        let instead = "register a check without a script";
        return access::check(call, [Need { level: Level::All, keys: Keys::All, instead }]);
    }
    Err(Failure::refused(
        "Scripts are disabled on this agent from remote calls; to enable, set 'registry.scripts' to \
         \"unix_socket\", and register over the Unix socket",
    ))
}

impl From<DefinitionError> for Failure {
    fn from(error: DefinitionError) -> Self {
        match error {
            DefinitionError::Wrong(text) => Self::bad_request(text),
            DefinitionError::Unusable(text) => Self::refused(text),
        }
    }
}

/// Answers a change, which is stored, once it is within limits in the catalog.
pub(super) async fn written(
    call: &Call<'_>,
    outcome: Result<u64, ChangeError>,
) -> Result<Response<Body>, Failure> {
    let version = outcome.map_err(|error| match error {
        ChangeError::Refused(error) => refused(error),
        ChangeError::NotStored(_) => Failure::not_done(error.to_string()),
        ChangeError::Unknown(_) => Failure::unknown(error.to_string()),
    })?;
    call.api.registry.wait_written(version, CATALOG_TIMEOUT).await;
    Ok(answer::nothing())
}

/// Answers a report once it is, within limits, in the catalog: a disk that is full must not keep an
/// application from it.
async fn reported(call: &Call<'_>, outcome: Result<u64, RegistryError>) -> Result<Response<Body>, Failure> {
    call.api.registry.wait_written(outcome.map_err(refused)?, CATALOG_TIMEOUT).await;
    Ok(answer::nothing())
}

fn refused(error: RegistryError) -> Failure {
    let text = error.to_string();
    let limit = match error {
        RegistryError::UnknownService(_) => return Failure::not_found(text),
        RegistryError::NoService(_) | RegistryError::NoTtl(_) | RegistryError::NoSidecarPort => {
            return Failure::refused(text);
        }
        RegistryError::TooManyChecks(_) => "checks",
        RegistryError::TooManyServices(_) => "services",
    };
    crate::metrics::LIMITS.with_label_values(&[limit]).inc();
    Failure::refused(text)
}
