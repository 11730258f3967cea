//! The table of all endpoints, with their paths, methods, and the right that each method needs. A
//! route without one does not compile.

use http::Method;

const GET: &[Verb] = &[read(Method::GET)];
const PUT: &[Verb] = &[write(Method::PUT)];
/// An operator's write.
const OPERATE: &[Verb] = &[operate(Method::PUT)];
/// Settings that every client reads and operators change.
const GET_OR_OPERATE: &[Verb] = &[read(Method::GET), operate(Method::PUT)];
const OPERATE_DELETE: &[Verb] = &[operate(Method::DELETE)];
const OPERATE_POST: &[Verb] = &[operate(Method::POST)];
const KEYS: &[Verb] = &[read(Method::GET), write(Method::PUT), write(Method::DELETE)];
/// Endpoints for monitoring.
const GET_OR_HEAD: &[Verb] = &[read(Method::GET), read(Method::HEAD)];

/// The kind of a request, which decides which clients may send it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Right {
    /// Changes nothing. Open to every client.
    Read,
    /// A write of an application: keys, sessions, checks, events, the catalog. Open to every
    /// client, as in Consul without access control.
    Write,
    /// Changes the servers, the mesh, this agent or its node's membership, or the whole state at
    /// once. Accepted only on the Unix socket, if there is one, and written to the audit log.
    Operate,
}

/// A method of a route, and the right that it needs.
#[derive(Debug)]
pub(in crate::http) struct Verb {
    pub(in crate::http) method: Method,
    pub(in crate::http) right: Right,
}

const fn read(method: Method) -> Verb {
    Verb { method, right: Right::Read }
}

const fn write(method: Method) -> Verb {
    Verb { method, right: Right::Write }
}

const fn operate(method: Method) -> Verb {
    Verb { method, right: Right::Operate }
}

/// The handler of a request.
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
    pub(in crate::http) verbs: &'static [Verb],
    /// Its handler.
    pub(in crate::http) endpoint: Endpoint,
}

/// Every endpoint with its path and its methods.
pub(in crate::http) static ROUTES: &[Route] = &[
    route("/v1/kv/", KEYS, Endpoint::Kv),
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
    route("/v1/agent/leave", OPERATE, Endpoint::AgentLeave),
    route("/v1/agent/force-leave/", OPERATE, Endpoint::AgentForceLeave),
    route("/v1/agent/join/", OPERATE, Endpoint::AgentJoin),
    route("/v1/agent/maintenance", OPERATE, Endpoint::AgentMaintenance),
    route("/v1/agent/metrics", GET, Endpoint::AgentMetrics),
    route("/v1/agent/host", GET, Endpoint::AgentHost),
    route("/v1/agent/version", GET, Endpoint::AgentVersion),
    route("/v1/agent/reload", OPERATE, Endpoint::AgentReload),
    route("/v1/agent/checks", GET, Endpoint::AgentChecks),
    route("/v1/agent/check/register", PUT, Endpoint::CheckRegister),
    route("/v1/agent/check/deregister/", PUT, Endpoint::CheckDeregister),
    route("/v1/agent/check/pass/", PUT, Endpoint::CheckPass),
    route("/v1/agent/check/warn/", PUT, Endpoint::CheckWarn),
    route("/v1/agent/check/fail/", PUT, Endpoint::CheckFail),
    route("/v1/agent/check/update/", PUT, Endpoint::CheckUpdate),
    route("/v1/operator/raft/configuration", GET, Endpoint::RaftConfiguration),
    route("/v1/operator/raft/peer", OPERATE_DELETE, Endpoint::RaftPeer),
    route("/v1/operator/raft/transfer-leader", OPERATE_POST, Endpoint::RaftTransferLeader),
    route("/v1/operator/autopilot/configuration", GET_OR_OPERATE, Endpoint::AutopilotConfiguration),
    route("/v1/operator/autopilot/health", GET, Endpoint::AutopilotHealth),
    route("/v1/operator/gossip", GET, Endpoint::GossipKey),
    route("/v1/operator/gossip/rotate", OPERATE, Endpoint::GossipRotate),
    route("/v1/snapshot", GET_OR_OPERATE, Endpoint::Snapshot),
    route("/v1/lockmesh/servers", GET_OR_OPERATE, Endpoint::Servers),
    route("/v1/lockmesh/locks", GET, Endpoint::Locks),
    route("/v1/lockmesh/losses", GET, Endpoint::Losses),
    route("/metrics", GET_OR_HEAD, Endpoint::Metrics),
    route("/health/live", GET_OR_HEAD, Endpoint::Live),
    route("/health/ready", GET_OR_HEAD, Endpoint::Ready),
];

const fn route(path: &'static str, verbs: &'static [Verb], endpoint: Endpoint) -> Route {
    Route { path, verbs, endpoint }
}

impl Route {
    /// Returns the right that a method needs; `None` if the route lacks the method.
    pub(in crate::http) fn right(&self, method: &Method) -> Option<Right> {
        self.verbs.iter().find(|verb| verb.method == method).map(|verb| verb.right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_an_operator_is_this() {
        let operated = ROUTES.iter().flat_map(|route| {
            let verbs = route.verbs.iter().filter(|verb| verb.right == Right::Operate);
            verbs.map(|verb| format!("{} {}", verb.method, route.path))
        });
        assert_eq!(
            operated.collect::<Vec<_>>(),
            [
                "PUT /v1/agent/leave",
                "PUT /v1/agent/force-leave/",
                "PUT /v1/agent/join/",
                "PUT /v1/agent/maintenance",
                "PUT /v1/agent/reload",
                "DELETE /v1/operator/raft/peer",
                "POST /v1/operator/raft/transfer-leader",
                "PUT /v1/operator/autopilot/configuration",
                "PUT /v1/operator/gossip/rotate",
                "PUT /v1/snapshot",
                "PUT /v1/lockmesh/servers",
            ]
        );
        let reads = ROUTES.iter().flat_map(|route| route.verbs).filter(|verb| verb.right == Right::Read);
        assert!(reads.into_iter().all(|verb| verb.method == Method::GET || verb.method == Method::HEAD));
    }
}
