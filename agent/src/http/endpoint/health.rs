//! `/v1/health/…`: the health of nodes and services.

use super::super::answer::{self, Failure, MetaKind};
use super::super::body::Body;
use super::super::call::Call;
use super::super::fields::RowFilter;
use super::super::go::number::parse_bool;
use super::super::near;
use super::super::shapes;
use super::instances::{self, Listed, is_of_peer};
use http::Response;
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::query::{Query, Rows};
use lockmesh_protocol::record::{Check, CheckStatus};

pub(super) async fn node(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    if call.tail.is_empty() {
        return Err(Failure::bad_request("Missing node name"));
    }
    checks_of(call, Query::NodeChecks(NodeName::from(call.tail))).await
}

pub(super) async fn checks(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    if call.tail.is_empty() {
        return Err(Failure::bad_request("Missing service name"));
    }
    checks_of(call, Query::ServiceChecks(call.tail.into())).await
}

pub(super) async fn state(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    match (call.tail, CheckStatus::parse(call.tail)) {
        ("", _) => Err(Failure::bad_request("Missing check state")),
        ("any", _) => checks_of(call, Query::ChecksInState(None)).await,
        (_, Some(status)) => checks_of(call, Query::ChecksInState(Some(status))).await,
        // No check is ever in a state that does not exist.
        (_, None) => selected_checks(call, Query::ChecksInState(None), |_| false).await,
    }
}

async fn checks_of(call: &Call<'_>, query: Query) -> Result<Response<Body>, Failure> {
    selected_checks(call, query, |_| true).await
}

async fn selected_checks(
    call: &Call<'_>,
    query: Query,
    wanted: impl Fn(&Check) -> bool + Sync,
) -> Result<Response<Body>, Failure> {
    let options = call.read_options()?;
    let mut filter = RowFilter::of(call)?;
    let kind = MetaKind::Effective(options.consistency);
    let answer = call.read(query, options, Some(kind)).await?;
    let Rows::Checks(checks) = &answer.rows else { return Err(super::misfit::wrong_rows()) };
    let listed = checks.iter().filter(|check| !is_of_peer(call) && wanted(check));
    let mut shapes = filter.select(listed.map(|check| shapes::check(check))).await?;
    near::sort_as_requested(call, options, &mut shapes).await?;
    Ok(answer::with_meta(answer::json(&shapes, call.layout()), &answer, kind))
}

pub(super) async fn service(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    instances::list(call, Listed::Own, only_passing(call)?, shapes::instance).await
}

pub(super) async fn connect(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    instances::list(call, Listed::Connect, only_passing(call)?, shapes::instance).await
}

pub(super) async fn ingress(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    instances::list(call, Listed::Gateways, only_passing(call)?, shapes::instance).await
}

fn only_passing(call: &Call<'_>) -> Result<bool, Failure> {
    match call.params.value("passing") {
        None => Ok(false),
        Some("") => Ok(true),
        Some(word) => parse_bool(word).ok_or_else(|| Failure::bad_request("Invalid value for ?passing")),
    }
}
