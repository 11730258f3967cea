//! The endpoints, one file a family, and the table that names them all.
//!
//! An endpoint parses, asks the state once, and renders. It never keeps anything between two requests.

pub mod session;

mod kv;
mod status;

use super::answer::Failure;
use super::call::Call;
use super::router::Route;
use axum::body::Body;
use http::{Method, Response};
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
    }
}

/// A server that answers a query with other rows is of another build.
fn wrong_rows() -> Failure {
    Failure::internal(
        "the server answered with other rows than were asked for: agent and server differ in version",
    )
}

/// A server that answers a command with a reply of another kind is of another build.
fn wrong_reply(reply: &Reply) -> Failure {
    Failure::internal(format!("the server answered with another reply than expected: {reply:?}"))
}
