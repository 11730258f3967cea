//! `/v1/health/…`: the health of nodes and services.

use super::super::answer::{self, Failure, MetaKind};
use super::super::body::Body;
use super::super::call::Call;
use super::super::go::number::parse_bool;
use super::super::shapes;
use super::catalog::{NodeMeta, has_tags, marked};
use http::Response;
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::query::{Instance, Query, Rows};
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
    wanted: impl Fn(&Check) -> bool,
) -> Result<Response<Body>, Failure> {
    let options = call.read_options()?;
    call.refuse_filter()?;
    let kind = MetaKind::Effective(options.consistency);
    let answer = call.read(query, options, Some(kind)).await?;
    let Rows::Checks(checks) = &answer.rows else { return Err(super::misfit::wrong_rows()) };
    let shapes: Vec<_> =
        checks.iter().filter(|check| wanted(check)).map(|check| shapes::check(check)).collect();
    Ok(answer::with_meta(answer::json(&shapes, call.layout()), &answer, kind))
}

pub(super) async fn service(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    if call.tail.is_empty() {
        return Err(Failure::bad_request("Missing service name"));
    }
    let options = call.read_options()?;
    call.refuse_filter()?;
    let passing = match call.params.value("passing") {
        None => false,
        Some("") => true,
        Some(word) => parse_bool(word).ok_or_else(|| Failure::bad_request("Invalid value for ?passing"))?,
    };
    let kind = MetaKind::Effective(options.consistency);
    let answer = call.read(Query::ServiceInstances(call.tail.into()), options, Some(kind)).await?;
    let Rows::Instances(instances) = &answer.rows else { return Err(super::misfit::wrong_rows()) };
    let wanted = NodeMeta::of(call);
    let selected = instances.iter().filter(|instance| {
        wanted.matches(&instance.node)
            && has_tags(call, &instance.service)
            && (!passing || all_pass(instance))
    });
    let shapes: Vec<_> = selected.map(shapes::instance).collect();
    Ok(marked(call, answer::with_meta(answer::json(&shapes, call.layout()), &answer, kind)))
}

fn all_pass(instance: &Instance) -> bool {
    instance.checks.iter().all(|check| check.status == CheckStatus::Passing)
}
