//! The endpoints, one file per family, and the table that lists them all.
//!
//! An endpoint parses, asks the state once, and renders. It keeps no state between requests.

pub mod check;
pub mod registration;
pub mod session;
pub mod txn;

mod agent;
mod autopilot;
mod catalog;
mod event;
mod gossip;
mod health;
mod kv;
mod lockmesh;
mod membership;
mod misfit;
mod monitoring;
mod operator;
mod session_events;
mod snapshot;
mod status;
pub(super) mod table;

use super::answer::Failure;
use super::body::Body;
use super::call::Call;
use http::Response;
use lockmesh_protocol::record::CheckStatus;
use table::Endpoint;

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
        Endpoint::SessionEvents => Box::pin(session_events::events(call)).await,
        Endpoint::EventFire => Box::pin(event::fire(call, body)).await,
        Endpoint::EventList => Box::pin(event::list(call)).await,
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
        Endpoint::AgentMembers => Box::pin(membership::members(call)).await,
        Endpoint::AgentLeave => Box::pin(membership::leave(call)).await,
        Endpoint::AgentForceLeave => Box::pin(membership::force_leave(call)).await,
        Endpoint::AgentJoin => Box::pin(membership::join(call)).await,
        Endpoint::AgentMaintenance => Box::pin(check::maintain(call)).await,
        Endpoint::AgentMetrics => agent::metrics(call),
        Endpoint::AgentHost => agent::host(call),
        Endpoint::AgentVersion => agent::version(call),
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
        Endpoint::GossipKey => Box::pin(gossip::key(call)).await,
        Endpoint::GossipRotate => Box::pin(gossip::rotate(call)).await,
        Endpoint::Servers => Box::pin(operator::servers(call)).await,
        Endpoint::Snapshot => Box::pin(snapshot::run(call, body)).await,
        Endpoint::Locks => lockmesh::locks(call).await,
        Endpoint::Losses => lockmesh::losses(call).await,
        Endpoint::Metrics => Ok(monitoring::metrics(call)),
        Endpoint::Live => Ok(monitoring::live()),
        Endpoint::Ready => Ok(Box::pin(monitoring::ready(call)).await),
    }
}
