//! The endpoints, one file a family, and the table that names them all.
//!
//! An endpoint parses, asks the state once, and renders. It never keeps anything between two requests.

pub mod check;
pub mod registration;
pub mod session;
pub mod txn;

mod agent;
mod autopilot;
mod catalog;
mod health;
mod kv;
mod lockmesh;
mod operator;
mod snapshot;
mod status;

use super::answer::Failure;
use super::body::Body;
use super::call::Call;
use super::router::Route;
use http::{Method, Response};
use lockmesh_protocol::record::CheckStatus;
use lockmesh_protocol::reply::Reply;

const GET: &[Method] = &[Method::GET];
const PUT: &[Method] = &[Method::PUT];

/// What answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Kv,
    SessionCreate,
    SessionDestroy,
    SessionRenew,
    SessionInfo,
    SessionNode,
    SessionList,
    StatusLeader,
    StatusPeers,
    Txn,
    CatalogRegister,
    CatalogDeregister,
    CatalogDatacenters,
    CatalogNodes,
    CatalogNode,
    CatalogServices,
    CatalogService,
    HealthNode,
    HealthChecks,
    HealthState,
    HealthService,
    AgentSelf,
    AgentMembers,
    AgentMetrics,
    AgentHost,
    AgentVersion,
    AgentRoots,
    AgentReload,
    AgentChecks,
    CheckRegister,
    CheckDeregister,
    CheckPass,
    CheckWarn,
    CheckFail,
    CheckUpdate,
    RaftConfiguration,
    RaftPeer,
    RaftTransferLeader,
    AutopilotConfiguration,
    AutopilotHealth,
    Servers,
    Snapshot,
    Locks,
    Losses,
}

/// Every endpoint with its path and its methods.
pub(super) static ROUTES: &[Route] = &[
    route("/v1/kv/", &[Method::GET, Method::PUT, Method::DELETE], Endpoint::Kv),
    route("/v1/session/create", PUT, Endpoint::SessionCreate),
    route("/v1/session/destroy/", PUT, Endpoint::SessionDestroy),
    route("/v1/session/renew/", PUT, Endpoint::SessionRenew),
    route("/v1/session/info/", GET, Endpoint::SessionInfo),
    route("/v1/session/node/", GET, Endpoint::SessionNode),
    route("/v1/session/list", GET, Endpoint::SessionList),
    route("/v1/status/leader", GET, Endpoint::StatusLeader),
    route("/v1/status/peers", GET, Endpoint::StatusPeers),
    route("/v1/txn", PUT, Endpoint::Txn),
    route("/v1/catalog/register", PUT, Endpoint::CatalogRegister),
    route("/v1/catalog/deregister", PUT, Endpoint::CatalogDeregister),
    route("/v1/catalog/datacenters", GET, Endpoint::CatalogDatacenters),
    route("/v1/catalog/nodes", GET, Endpoint::CatalogNodes),
    route("/v1/catalog/node/", GET, Endpoint::CatalogNode),
    route("/v1/catalog/services", GET, Endpoint::CatalogServices),
    route("/v1/catalog/service/", GET, Endpoint::CatalogService),
    route("/v1/health/node/", GET, Endpoint::HealthNode),
    route("/v1/health/checks/", GET, Endpoint::HealthChecks),
    route("/v1/health/state/", GET, Endpoint::HealthState),
    route("/v1/health/service/", GET, Endpoint::HealthService),
    route("/v1/agent/self", GET, Endpoint::AgentSelf),
    route("/v1/agent/members", GET, Endpoint::AgentMembers),
    route("/v1/agent/metrics", GET, Endpoint::AgentMetrics),
    route("/v1/agent/host", GET, Endpoint::AgentHost),
    route("/v1/agent/version", GET, Endpoint::AgentVersion),
    route("/v1/agent/connect/ca/roots", GET, Endpoint::AgentRoots),
    route("/v1/agent/reload", PUT, Endpoint::AgentReload),
    route("/v1/agent/checks", GET, Endpoint::AgentChecks),
    route("/v1/agent/check/register", PUT, Endpoint::CheckRegister),
    route("/v1/agent/check/deregister/", PUT, Endpoint::CheckDeregister),
    route("/v1/agent/check/pass/", PUT, Endpoint::CheckPass),
    route("/v1/agent/check/warn/", PUT, Endpoint::CheckWarn),
    route("/v1/agent/check/fail/", PUT, Endpoint::CheckFail),
    route("/v1/agent/check/update/", PUT, Endpoint::CheckUpdate),
    route("/v1/operator/raft/configuration", GET, Endpoint::RaftConfiguration),
    route("/v1/operator/raft/peer", &[Method::DELETE], Endpoint::RaftPeer),
    route("/v1/operator/raft/transfer-leader", &[Method::POST], Endpoint::RaftTransferLeader),
    route(
        "/v1/operator/autopilot/configuration",
        &[Method::GET, Method::PUT],
        Endpoint::AutopilotConfiguration,
    ),
    route("/v1/operator/autopilot/health", GET, Endpoint::AutopilotHealth),
    route("/v1/snapshot", &[Method::GET, Method::PUT], Endpoint::Snapshot),
    route("/v1/lockmesh/servers", &[Method::GET, Method::PUT], Endpoint::Servers),
    route("/v1/lockmesh/locks", GET, Endpoint::Locks),
    route("/v1/lockmesh/losses", GET, Endpoint::Losses),
];

const fn route(path: &'static str, methods: &'static [Method], endpoint: Endpoint) -> Route {
    Route { path, methods, endpoint }
}

/// Runs an endpoint. Rare ones are boxed, so that a waiting request on a key costs little memory.
pub(super) async fn run(endpoint: Endpoint, call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    match endpoint {
        Endpoint::Kv => kv::run(call, body).await,
        Endpoint::SessionCreate => Box::pin(session::create(call, body)).await,
        Endpoint::SessionDestroy => session::destroy(call).await,
        Endpoint::SessionRenew => session::renew(call).await,
        Endpoint::SessionInfo => session::info(call).await,
        Endpoint::SessionNode => session::node(call).await,
        Endpoint::SessionList => session::list(call).await,
        Endpoint::StatusLeader => status::leader(call).await,
        Endpoint::StatusPeers => status::peers(call).await,
        Endpoint::Txn => Box::pin(txn::run(call, body)).await,
        Endpoint::CatalogRegister => Box::pin(registration::register(call, body)).await,
        Endpoint::CatalogDeregister => Box::pin(registration::deregister(call, body)).await,
        Endpoint::CatalogDatacenters => catalog::datacenters(call),
        Endpoint::CatalogNodes => catalog::nodes(call).await,
        Endpoint::CatalogNode => catalog::node(call).await,
        Endpoint::CatalogServices => catalog::services(call).await,
        Endpoint::CatalogService => catalog::service(call).await,
        Endpoint::HealthNode => health::node(call).await,
        Endpoint::HealthChecks => health::checks(call).await,
        Endpoint::HealthState => health::state(call).await,
        Endpoint::HealthService => health::service(call).await,
        Endpoint::AgentSelf => Box::pin(agent::describe_self(call)).await,
        Endpoint::AgentMembers => Box::pin(agent::members(call)).await,
        Endpoint::AgentMetrics => agent::metrics(call),
        Endpoint::AgentHost => agent::host(call),
        Endpoint::AgentVersion => agent::version(call),
        Endpoint::AgentRoots => agent::roots(call),
        Endpoint::AgentReload => agent::reload(call).await,
        Endpoint::AgentChecks => check::list(call),
        Endpoint::CheckRegister => Box::pin(check::register(call, body)).await,
        Endpoint::CheckDeregister => Box::pin(check::deregister(call)).await,
        Endpoint::CheckPass => Box::pin(check::report(call, CheckStatus::Passing)).await,
        Endpoint::CheckWarn => Box::pin(check::report(call, CheckStatus::Warning)).await,
        Endpoint::CheckFail => Box::pin(check::report(call, CheckStatus::Critical)).await,
        Endpoint::CheckUpdate => Box::pin(check::update(call, body)).await,
        Endpoint::RaftConfiguration => Box::pin(operator::configuration(call)).await,
        Endpoint::RaftPeer => Box::pin(operator::remove_peer(call)).await,
        Endpoint::RaftTransferLeader => Box::pin(operator::transfer_leader(call)).await,
        Endpoint::AutopilotConfiguration => Box::pin(autopilot::configuration(call, body)).await,
        Endpoint::AutopilotHealth => Box::pin(autopilot::health(call)).await,
        Endpoint::Servers => Box::pin(operator::servers(call)).await,
        Endpoint::Snapshot => Box::pin(snapshot::run(call, body)).await,
        Endpoint::Locks => lockmesh::locks(call).await,
        Endpoint::Losses => lockmesh::losses(call).await,
    }
}

/// A server that answers a query with other rows is of another build.
fn wrong_rows() -> Failure {
    Failure::refused(
        "the server answered with other rows than were asked for: agent and server differ in version",
    )
}

/// A server that answers a command with a reply of another kind is of another build.
fn wrong_reply(reply: &Reply) -> Failure {
    Failure::unknown(format!("the server answered with another reply than expected: {reply:?}"))
}
