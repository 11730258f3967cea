//! `/v1/health/…`: the health of nodes and services.

use super::super::answer::Failure;
use super::super::body::Body;
use super::super::call::Call;
use super::super::fields::RowFilter;
use super::super::listing::{Form, Listing, Piece};
use super::super::near;
use super::super::shapes;
use super::instances::{self, NodeMeta, is_of_peer};
use crate::go::number::parse_bool;
use http::Response;
use lockmesh_agent_core::instances::Listed;
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::query::{Query, Rows};
use lockmesh_protocol::record::CheckStatus;

pub(super) async fn node(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    if call.tail.is_empty() {
        return Err(Failure::bad_request("Missing node name"));
    }
    let query = Query::NodeChecks(NodeName::from(call.tail));
    listed_checks(call, query, NodeMeta::default()).await
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
        // No check is ever in a state that does not exist, or of a service without a name.
        (_, None) => checks_of(call, Query::ServiceChecks(String::new())).await,
    }
}

async fn checks_of(call: &Call<'_>, query: Query) -> Result<Response<Body>, Failure> {
    listed_checks(call, query, NodeMeta::of(call)).await
}

async fn listed_checks(call: &Call<'_>, query: Query, wanted: NodeMeta) -> Result<Response<Body>, Failure> {
    let options = call.read_options()?;
    let mut filter = RowFilter::of(call)?;
    let form = Form::of(call, options);
    let is_of_peer = is_of_peer(call);
    let answers = call.read_together(wanted.queries(query), options, Some(form.meta)).await?;
    let (checks, nodes) = wanted.selected(answers).await?;
    let checks = near::sorted_as_requested(call, options, vec![checks]).await?;
    let render = move |rows: &Rows, layout| {
        let Rows::Checks(checks) = rows else { return Err(super::misfit::wrong_rows()) };
        let is_selected = |node: &NodeName| nodes.as_ref().is_none_or(|nodes| nodes.contains(&node.folded()));
        let listed = checks.iter().filter(|check| !is_of_peer && is_selected(&check.node));
        Piece::array(filter.select(listed.map(|check| shapes::check(check))), layout)
    };
    Listing::from_iter(checks).respond(form, render).await
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
