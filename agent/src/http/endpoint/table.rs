//! The table that names every endpoint, with its path and its methods.

use http::Method;

const GET: &[Method] = &[Method::GET];
const PUT: &[Method] = &[Method::PUT];
/// What monitoring may use.
const GET_OR_HEAD: &[Method] = &[Method::GET, Method::HEAD];

/// What answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Endpoint {
    Kv,
    SessionCreate,
    SessionDestroy,
    SessionRenew,
    SessionInfo,
    SessionNode,
    SessionList,
    SessionEvents,
    EventFire,
    EventList,
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
    AgentLeave,
    AgentForceLeave,
    AgentJoin,
    AgentMaintenance,
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
    GossipKey,
    GossipRotate,
    Servers,
    Snapshot,
    Locks,
    Losses,
    Metrics,
    Live,
    Ready,
}

/// An endpoint in the table.
#[derive(Debug)]
pub(in crate::http) struct Route {
    /// Its path, also its name in the metrics.
    pub(in crate::http) path: &'static str,
    /// Its methods, as `Allow` lists them.
    pub(in crate::http) methods: &'static [Method],
    /// What answers.
    pub(in crate::http) endpoint: Endpoint,
}

/// Every endpoint with its path and its methods.
pub(in crate::http) static ROUTES: &[Route] = &[
    route("/v1/kv/", &[Method::GET, Method::PUT, Method::DELETE], Endpoint::Kv),
    route("/v1/session/create", PUT, Endpoint::SessionCreate),
    route("/v1/session/destroy/", PUT, Endpoint::SessionDestroy),
    route("/v1/session/renew/", PUT, Endpoint::SessionRenew),
    route("/v1/session/info/", GET, Endpoint::SessionInfo),
    route("/v1/session/node/", GET, Endpoint::SessionNode),
    route("/v1/session/list", GET, Endpoint::SessionList),
    route("/v1/session/events/", GET, Endpoint::SessionEvents),
    route("/v1/event/fire/", PUT, Endpoint::EventFire),
    route("/v1/event/list", GET, Endpoint::EventList),
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
    route("/v1/agent/leave", PUT, Endpoint::AgentLeave),
    route("/v1/agent/force-leave/", PUT, Endpoint::AgentForceLeave),
    route("/v1/agent/join/", PUT, Endpoint::AgentJoin),
    route("/v1/agent/maintenance", PUT, Endpoint::AgentMaintenance),
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
    route("/v1/operator/gossip", GET, Endpoint::GossipKey),
    route("/v1/operator/gossip/rotate", PUT, Endpoint::GossipRotate),
    route("/v1/snapshot", &[Method::GET, Method::PUT], Endpoint::Snapshot),
    route("/v1/lockmesh/servers", &[Method::GET, Method::PUT], Endpoint::Servers),
    route("/v1/lockmesh/locks", GET, Endpoint::Locks),
    route("/v1/lockmesh/losses", GET, Endpoint::Losses),
    route("/metrics", GET_OR_HEAD, Endpoint::Metrics),
    route("/health/live", GET_OR_HEAD, Endpoint::Live),
    route("/health/ready", GET_OR_HEAD, Endpoint::Ready),
];

const fn route(path: &'static str, methods: &'static [Method], endpoint: Endpoint) -> Route {
    Route { path, methods, endpoint }
}
