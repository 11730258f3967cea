//! `/v1/health/…`: the health of nodes and services.

use super::super::answer::{self, Failure, MetaKind};
use super::super::body::Body;
use super::super::call::Call;
use super::super::fields::RowFilter;
use super::super::go::number::parse_bool;
use super::super::shapes;
use super::instances::{self, Listed, NodeMeta, is_of_peer, newest};
use http::Response;
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::query::{Query, Rows};
use lockmesh_protocol::record::{Check, CheckStatus};

pub(super) async fn node(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    if call.tail.is_empty() {
        return Err(Failure::bad_request("Missing node name"));
    }
    let query = Query::NodeChecks(NodeName::from(call.tail));
    selected_checks(call, query, NodeMeta::default(), |_| true).await
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
        (_, None) => selected_checks(call, Query::ChecksInState(None), NodeMeta::default(), |_| false).await,
    }
}

async fn checks_of(call: &Call<'_>, query: Query) -> Result<Response<Body>, Failure> {
    selected_checks(call, query, NodeMeta::of(call), |_| true).await
}

async fn selected_checks(
    call: &Call<'_>,
    query: Query,
    node_meta: NodeMeta<'_>,
    wanted: impl Fn(&Check) -> bool + Sync,
) -> Result<Response<Body>, Failure> {
    let options = call.read_options()?;
    let mut filter = RowFilter::of(call)?;
    let kind = MetaKind::Effective(options.consistency);
    let answers = call.read_together(node_meta.queries(query), options, Some(kind)).await?;
    let Rows::Checks(checks) = &answers[0].rows else { return Err(super::misfit::wrong_rows()) };
    let nodes = node_meta.selected(&answers);
    let is_on_node = |check: &Check| nodes.as_ref().is_none_or(|nodes| nodes.contains(&check.node.folded()));
    let listed = checks.iter().filter(|check| !is_of_peer(call) && wanted(check) && is_on_node(check));
    let shapes = filter.select(listed.map(|check| shapes::check(check))).await?;
    Ok(answer::with_meta(answer::json(&shapes, call.layout()), newest(&answers), kind))
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
