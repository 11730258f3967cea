//! The table of all endpoints: path, methods with the right that each needs and the place of its
//! keys, the judge of tokens, and handler. An endpoint that lacks one of them does not compile.

use super::acl::{binding, policy, role, settings, template, token};
use super::{
    agent, autopilot, catalog, check, coordinate, event, gossip, health, kv, lockmesh, machine, membership,
    monitoring, operator, prepared_query, registration, service, session, session_events, snapshot, status,
    txn,
};
use crate::http::answer::Failure;
use crate::http::body::Body;
use crate::http::call::Call;
use crate::http::rights::Judge;
use http::{Method, Response};
use lockmesh_protocol::acl::Resource;
use lockmesh_protocol::record::CheckStatus;

const GET: &[Verb] = &[read(Method::GET)];
/// Sessions, and services and checks of this agent.
const PUT_LOCK: &[Verb] = &[lock(Method::PUT)];
const PUT: &[Verb] = &[write(Method::PUT)];
/// An operator's write.
const OPERATE: &[Verb] = &[operate(Method::PUT)];
/// The log, which names keys, and backups.
const MONITOR: &[Verb] = &[verb(Method::GET, Right::Operate, KeyPlace::All)];
const BACKUPS: &[Verb] =
    &[verb(Method::GET, Right::Operate, KeyPlace::All), verb(Method::PUT, Right::Operate, KeyPlace::All)];
/// Settings that every client reads and operators change.
const GET_OR_OPERATE: &[Verb] = &[read(Method::GET), operate(Method::PUT)];
const OPERATE_DELETE: &[Verb] = &[operate(Method::DELETE)];
const OPERATE_POST: &[Verb] = &[operate(Method::POST)];
const KEYS: &[Verb] = &[
    verb(Method::GET, Right::Read, KeyPlace::Path),
    verb(Method::PUT, PUT_KEY, KeyPlace::Path),
    verb(Method::DELETE, DELETE_KEY, KeyPlace::Path),
];
const OPERATIONS: &[Verb] = &[verb(Method::PUT, Right::Operations, KeyPlace::Body)];
const QUERIES: &[Verb] = &[read(Method::GET), write(Method::POST)];
const QUERY: &[Verb] = &[read(Method::GET), write(Method::PUT), write(Method::DELETE)];
/// A row of a table, by id.
const ROW: &[Verb] = &[read(Method::GET), write(Method::PUT), write(Method::DELETE)];
/// Questions with a body.
const ASK: &[Verb] = &[read(Method::POST)];
/// Locks and waits below `?prefix`.
const BELOW: &[Verb] = &[verb(Method::GET, Right::Read, KeyPlace::Prefix)];
/// A list without `?prefix`.
const LOSSES: &[Verb] = &[verb(Method::GET, Right::Read, KeyPlace::All)];
const DEADLOCKS: &[Verb] = &[verb(Method::GET, Right::Read, KeyPlace::All), operate(Method::PUT)];
const ACQUIRE: &[Verb] = &[verb(Method::PUT, Right::Lock, KeyPlace::Body)];
const VERIFY: &[Verb] = &[verb(Method::PUT, Right::Read, KeyPlace::Body)];
/// Endpoints for monitoring.
const GET_OR_HEAD: &[Verb] = &[read(Method::GET), read(Method::HEAD)];

const PUT_KEY: Right =
    Right::WriteUnless(&["acquire", "release", "cas"], "add `acquire`, `release` or `cas` to the query");
const DELETE_KEY: Right = Right::WriteUnless(&["cas"], "add `cas` to the query");

const OPEN: Judge = Judge::Open;
const SERVERS: Judge = Judge::Servers;
const ENDPOINT: Judge = Judge::Endpoint;
const AGENT: Judge = Judge::Router(Resource::Agent);
const NODE: Judge = Judge::Router(Resource::Node);
const OPERATOR: Judge = Judge::Router(Resource::Operator);
const SESSION: Judge = Judge::Router(Resource::Session);

/// The kind of a request, which decides which clients may send it. The rules of `[access]` compare
/// its level: see [`crate::http::access`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Right {
    /// Changes nothing.
    Read,
    /// Changes what depends on the client itself: its sessions and locks, and services and checks
    /// of this agent.
    Lock,
    /// A write of a key: unconditional, unless the query has one of these parameters. Otherwise
    /// equal to [`Right::Lock`]. The text advises a client that may not write unconditionally.
    WriteUnless(&'static [&'static str], &'static str),
    /// Each operation of the body needs its own right.
    Operations,
    /// Any other write of an application: events, the catalog, prepared queries.
    Write,
    /// Changes the servers, the mesh, this agent or its node's membership; reads or replaces the
    /// whole state at once; or reads this agent's log. Accepted only on the Unix socket, if there
    /// is one, and written to the audit log.
    Operate,
}

/// The part of a request that names keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum KeyPlace {
    /// None: the request reads and writes no keys.
    None,
    /// The rest of the path: a key or a prefix.
    Path,
    /// `?prefix`.
    Prefix,
    /// The body, which the endpoint has judged.
    Body,
    /// The response or the body may have any key.
    All,
}

/// A method of a route, the right that it needs, and the part of the request that names keys.
#[derive(Debug)]
pub(in crate::http) struct Verb {
    pub(in crate::http) method: Method,
    pub(in crate::http) right: Right,
    pub(in crate::http) keys: KeyPlace,
}

const fn verb(method: Method, right: Right, keys: KeyPlace) -> Verb {
    Verb { method, right, keys }
}

const fn read(method: Method) -> Verb {
    verb(method, Right::Read, KeyPlace::None)
}

const fn lock(method: Method) -> Verb {
    verb(method, Right::Lock, KeyPlace::None)
}

const fn write(method: Method) -> Verb {
    verb(method, Right::Write, KeyPlace::None)
}

const fn operate(method: Method) -> Verb {
    verb(method, Right::Operate, KeyPlace::None)
}

/// An endpoint's path and methods.
#[derive(Debug)]
pub(in crate::http) struct Route {
    /// Its path, also its name in the metrics.
    pub(in crate::http) path: &'static str,
    /// Its methods, as `Allow` lists them.
    pub(in crate::http) verbs: &'static [Verb],
    /// The judge of the rights of a client's token.
    pub(in crate::http) judge: Judge,
    endpoint: Endpoint,
}

/// Declares all endpoints: for each its name, path, methods, judge and handler.
macro_rules! endpoints {
    (|$call:ident, $body:ident| $($name:ident $path:literal $verbs:ident $judge:ident => $answer:expr,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Endpoint {
            $($name,)*
        }

        /// Every endpoint with its path and its methods.
        pub(in crate::http) static ROUTES: &[Route] =
            &[$(Route { path: $path, verbs: $verbs, judge: $judge, endpoint: Endpoint::$name },)*];

        impl Route {
            /// Answers a request to this endpoint.
            pub(in crate::http) async fn answer(
                &self,
                $call: &Call<'_>,
                $body: Body,
            ) -> Result<Response<Body>, Failure> {
                match self.endpoint {
                    $(Endpoint::$name => $answer,)*
                }
            }
        }
    };
}

// Rare ones are boxed, so that a waiting request on a key costs little memory.
endpoints! { |call, body|
    Kv                     "/v1/kv/"                               KEYS           SERVERS  => kv::run(call, body).await,
    SessionCreate          "/v1/session/create"                    PUT_LOCK       SERVERS  => Box::pin(session::create(call, body)).await,
    SessionDestroy         "/v1/session/destroy/"                  PUT_LOCK       SERVERS  => session::destroy(call).await,
    SessionRenew           "/v1/session/renew/"                    PUT_LOCK       SERVERS  => session::renew(call).await,
    SessionInfo            "/v1/session/info/"                     GET            SERVERS  => session::info(call).await,
    SessionNode            "/v1/session/node/"                     GET            SERVERS  => session::node(call).await,
    SessionList            "/v1/session/list"                      GET            SERVERS  => session::list(call).await,
    SessionEvents          "/v1/session/events/"                   GET            SESSION  => Box::pin(session_events::events(call)).await,
    EventFire              "/v1/event/fire/"                       PUT            ENDPOINT => Box::pin(event::fire(call, body)).await,
    EventList              "/v1/event/list"                        GET            ENDPOINT => Box::pin(event::list(call)).await,
    StatusLeader           "/v1/status/leader"                     GET            OPEN     => status::leader(call).await,
    StatusPeers            "/v1/status/peers"                      GET            OPEN     => status::peers(call).await,
    Txn                    "/v1/txn"                               OPERATIONS     SERVERS  => Box::pin(txn::run(call, body)).await,
    CatalogRegister        "/v1/catalog/register"                  PUT            SERVERS  => Box::pin(registration::register(call, body)).await,
    CatalogDeregister      "/v1/catalog/deregister"                PUT            SERVERS  => Box::pin(registration::deregister(call, body)).await,
    CatalogDatacenters     "/v1/catalog/datacenters"               GET            OPEN     => catalog::datacenters(call),
    CatalogNodes           "/v1/catalog/nodes"                     GET            SERVERS  => catalog::nodes(call).await,
    CatalogNode            "/v1/catalog/node/"                     GET            SERVERS  => catalog::node(call).await,
    CatalogNodeServices    "/v1/catalog/node-services/"            GET            SERVERS  => catalog::node_services(call).await,
    CatalogServices        "/v1/catalog/services"                  GET            SERVERS  => catalog::services(call).await,
    CatalogService         "/v1/catalog/service/"                  GET            SERVERS  => catalog::service(call).await,
    CatalogConnect         "/v1/catalog/connect/"                  GET            SERVERS  => Box::pin(catalog::connect(call)).await,
    CatalogGatewayServices "/v1/catalog/gateway-services/"         GET            SERVERS  => catalog::gateway_services(call).await,
    HealthNode             "/v1/health/node/"                      GET            SERVERS  => health::node(call).await,
    HealthChecks           "/v1/health/checks/"                    GET            SERVERS  => health::checks(call).await,
    HealthState            "/v1/health/state/"                     GET            SERVERS  => health::state(call).await,
    HealthService          "/v1/health/service/"                   GET            SERVERS  => health::service(call).await,
    HealthConnect          "/v1/health/connect/"                   GET            SERVERS  => Box::pin(health::connect(call)).await,
    HealthIngress          "/v1/health/ingress/"                   GET            SERVERS  => health::ingress(call).await,
    CoordinateDatacenters  "/v1/coordinate/datacenters"            GET            OPEN     => coordinate::datacenters(call).await,
    CoordinateNodes        "/v1/coordinate/nodes"                  GET            SERVERS  => coordinate::nodes(call).await,
    CoordinateNode         "/v1/coordinate/node/"                  GET            SERVERS  => coordinate::node(call).await,
    CoordinateUpdate       "/v1/coordinate/update"                 PUT            SERVERS  => Box::pin(coordinate::update(call, body)).await,
    Queries                "/v1/query"                             QUERIES        SERVERS  => Box::pin(prepared_query::all(call, body)).await,
    Query                  "/v1/query/"                            QUERY          SERVERS  => Box::pin(prepared_query::one(call, body)).await,
    QueryExecute           "/v1/query/*/execute"                   GET            SERVERS  => Box::pin(prepared_query::execute(call)).await,
    QueryExplain           "/v1/query/*/explain"                   GET            SERVERS  => Box::pin(prepared_query::explain(call)).await,
    AgentSelf              "/v1/agent/self"                        GET            AGENT    => Box::pin(agent::describe_self(call)).await,
    AgentMembers           "/v1/agent/members"                     GET            ENDPOINT => Box::pin(membership::members(call)).await,
    AgentLeave             "/v1/agent/leave"                       OPERATE        AGENT    => Box::pin(membership::leave(call)).await,
    AgentForceLeave        "/v1/agent/force-leave/"                OPERATE        OPERATOR => Box::pin(membership::force_leave(call)).await,
    AgentJoin              "/v1/agent/join/"                       OPERATE        AGENT    => Box::pin(membership::join(call)).await,
    AgentMaintenance       "/v1/agent/maintenance"                 OPERATE        NODE     => Box::pin(check::maintain(call)).await,
    AgentMetrics           "/v1/agent/metrics"                     GET            AGENT    => agent::metrics(call),
    AgentHost              "/v1/agent/host"                        GET            OPERATOR => machine::host(call).await,
    AgentVersion           "/v1/agent/version"                     GET            AGENT    => agent::version(call),
    AgentMonitor           "/v1/agent/monitor"                     MONITOR        AGENT    => agent::monitor(call),
    AgentReload            "/v1/agent/reload"                      OPERATE        AGENT    => agent::reload(call).await,
    AgentChecks            "/v1/agent/checks"                      GET            ENDPOINT => Box::pin(check::list(call)).await,
    CheckRegister          "/v1/agent/check/register"              PUT_LOCK       ENDPOINT => Box::pin(check::register(call, body)).await,
    CheckDeregister        "/v1/agent/check/deregister/"           PUT_LOCK       ENDPOINT => Box::pin(check::deregister(call)).await,
    CheckPass              "/v1/agent/check/pass/"                 PUT_LOCK       ENDPOINT => Box::pin(check::report(call, CheckStatus::Passing)).await,
    CheckWarn              "/v1/agent/check/warn/"                 PUT_LOCK       ENDPOINT => Box::pin(check::report(call, CheckStatus::Warning)).await,
    CheckFail              "/v1/agent/check/fail/"                 PUT_LOCK       ENDPOINT => Box::pin(check::report(call, CheckStatus::Critical)).await,
    CheckUpdate            "/v1/agent/check/update/"               PUT_LOCK       ENDPOINT => Box::pin(check::update(call, body)).await,
    AgentServices          "/v1/agent/services"                    GET            ENDPOINT => Box::pin(service::list(call)).await,
    AgentService           "/v1/agent/service/"                    GET            ENDPOINT => Box::pin(service::info(call)).await,
    ServiceRegister        "/v1/agent/service/register"            PUT_LOCK       ENDPOINT => Box::pin(service::register(call, body)).await,
    ServiceDeregister      "/v1/agent/service/deregister/"         PUT_LOCK       ENDPOINT => Box::pin(service::deregister(call)).await,
    ServiceMaintenance     "/v1/agent/service/maintenance/"        PUT_LOCK       ENDPOINT => Box::pin(service::maintain(call)).await,
    ServiceHealthById      "/v1/agent/health/service/id/"          GET            ENDPOINT => Box::pin(service::health_by_id(call)).await,
    ServiceHealthByName    "/v1/agent/health/service/name/"        GET            ENDPOINT => Box::pin(service::health_by_name(call)).await,
    RaftConfiguration      "/v1/operator/raft/configuration"       GET            OPERATOR => Box::pin(operator::configuration(call)).await,
    RaftPeer               "/v1/operator/raft/peer"                OPERATE_DELETE SERVERS  => Box::pin(operator::remove_peer(call)).await,
    RaftTransferLeader     "/v1/operator/raft/transfer-leader"     OPERATE_POST   SERVERS  => Box::pin(operator::transfer_leader(call)).await,
    AutopilotConfiguration "/v1/operator/autopilot/configuration"  GET_OR_OPERATE OPERATOR => Box::pin(autopilot::configuration(call, body)).await,
    AutopilotHealth        "/v1/operator/autopilot/health"         GET            OPERATOR => Box::pin(autopilot::health(call)).await,
    GossipKey              "/v1/operator/gossip"                   GET            SERVERS  => Box::pin(gossip::key(call)).await,
    GossipRotate           "/v1/operator/gossip/rotate"            OPERATE        SERVERS  => Box::pin(gossip::rotate(call)).await,
    Snapshot               "/v1/snapshot"                          BACKUPS        SERVERS  => Box::pin(snapshot::run(call, body)).await,
    AclBootstrap           "/v1/acl/bootstrap"                     OPERATE        SERVERS  => Box::pin(settings::bootstrap(call, body)).await,
    AclReplication         "/v1/acl/replication"                   GET            OPEN     => settings::replication(call),
    AclTokens              "/v1/acl/tokens"                        GET            SERVERS  => Box::pin(token::list(call)).await,
    AclToken               "/v1/acl/token"                         PUT            SERVERS  => Box::pin(token::create(call, body)).await,
    AclTokenOne            "/v1/acl/token/"                        ROW            SERVERS  => Box::pin(token::one(call, body)).await,
    AclTokenSelf           "/v1/acl/token/self"                    GET            SERVERS  => Box::pin(token::own(call)).await,
    AclTokenClone          "/v1/acl/token/*/clone"                 PUT            SERVERS  => Box::pin(token::copy(call, body)).await,
    AclPolicies            "/v1/acl/policies"                      GET            SERVERS  => Box::pin(policy::list(call)).await,
    AclPolicy              "/v1/acl/policy"                        PUT            SERVERS  => Box::pin(policy::create(call, body)).await,
    AclPolicyOne           "/v1/acl/policy/"                       ROW            SERVERS  => Box::pin(policy::one(call, body)).await,
    AclPolicyNamed         "/v1/acl/policy/name/"                  GET            SERVERS  => Box::pin(policy::named(call)).await,
    AclRoles               "/v1/acl/roles"                         GET            SERVERS  => Box::pin(role::list(call)).await,
    AclRole                "/v1/acl/role"                          PUT            SERVERS  => Box::pin(role::create(call, body)).await,
    AclRoleOne             "/v1/acl/role/"                         ROW            SERVERS  => Box::pin(role::one(call, body)).await,
    AclRoleNamed           "/v1/acl/role/name/"                    GET            SERVERS  => Box::pin(role::named(call)).await,
    AuthMethods            "/v1/acl/auth-methods"                  GET            SERVERS  => Box::pin(binding::methods(call)).await,
    AuthMethod             "/v1/acl/auth-method"                   PUT            SERVERS  => Box::pin(binding::create_method(call, body)).await,
    AuthMethodOne          "/v1/acl/auth-method/"                  ROW            SERVERS  => Box::pin(binding::method(call, body)).await,
    BindingRules           "/v1/acl/binding-rules"                 GET            SERVERS  => Box::pin(binding::rules(call)).await,
    BindingRule            "/v1/acl/binding-rule"                  PUT            SERVERS  => Box::pin(binding::create_rule(call, body)).await,
    BindingRuleOne         "/v1/acl/binding-rule/"                 ROW            SERVERS  => Box::pin(binding::rule(call, body)).await,
    AclLogin               "/v1/acl/login"                         ASK            OPEN     => binding::login(),
    AclLogout              "/v1/acl/logout"                        ASK            OPEN     => binding::login(),
    AclTemplates           "/v1/acl/templated-policies"            GET            ENDPOINT => Box::pin(template::list(call)).await,
    AclTemplate            "/v1/acl/templated-policy/name/"        GET            ENDPOINT => Box::pin(template::named(call)).await,
    AclTemplatePreview     "/v1/acl/templated-policy/preview/"     ASK            ENDPOINT => Box::pin(template::preview(call, body)).await,
    AclAuthorize           "/v1/internal/acl/authorize"            ASK            ENDPOINT => Box::pin(settings::authorize(call, body)).await,
    AclSettings            "/v1/lockmesh/acl"                      GET_OR_OPERATE SERVERS  => Box::pin(settings::settings(call, body)).await,
    AgentToken             "/v1/agent/token/"                      OPERATE        AGENT    => Box::pin(settings::agent_token(call, body)).await,
    Servers                "/v1/lockmesh/servers"                  GET_OR_OPERATE OPERATOR => Box::pin(operator::servers(call)).await,
    Locks                  "/v1/lockmesh/locks"                    BELOW          SERVERS  => lockmesh::locks(call).await,
    AcquireLocks           "/v1/lockmesh/acquire"                  ACQUIRE        SERVERS  => Box::pin(lockmesh::acquire(call, body)).await,
    VerifyFences           "/v1/lockmesh/fence/verify"             VERIFY         SERVERS  => lockmesh::verify_fences(call, body).await,
    Losses                 "/v1/lockmesh/losses"                   LOSSES         SERVERS  => lockmesh::losses(call).await,
    Waits                  "/v1/lockmesh/waits"                    BELOW          SERVERS  => lockmesh::waits(call).await,
    OperatorHosts          "/v1/lockmesh/operator-hosts"           GET_OR_OPERATE SERVERS  => Box::pin(lockmesh::operator_hosts(call, body)).await,
    Deadlocks              "/v1/lockmesh/deadlocks"                DEADLOCKS      SERVERS  => Box::pin(lockmesh::deadlocks(call, body)).await,
    Metrics                "/metrics"                              GET_OR_HEAD    OPEN     => Ok(monitoring::metrics(call)),
    Live                   "/health/live"                          GET_OR_HEAD    OPEN     => Ok(monitoring::live()),
    Ready                  "/health/ready"                         GET_OR_HEAD    OPEN     => Ok(Box::pin(monitoring::ready(call)).await),
}

impl Route {
    /// Returns the verb of a method; `None` if the route lacks the method.
    pub(in crate::http) fn verb(&self, method: &Method) -> Option<&'static Verb> {
        self.verbs.iter().find(|verb| verb.method == method)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operator_routes() {
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
                "GET /v1/agent/monitor",
                "PUT /v1/agent/reload",
                "DELETE /v1/operator/raft/peer",
                "POST /v1/operator/raft/transfer-leader",
                "PUT /v1/operator/autopilot/configuration",
                "PUT /v1/operator/gossip/rotate",
                "GET /v1/snapshot",
                "PUT /v1/snapshot",
                "PUT /v1/acl/bootstrap",
                "PUT /v1/lockmesh/acl",
                "PUT /v1/agent/token/",
                "PUT /v1/lockmesh/servers",
                "PUT /v1/lockmesh/operator-hosts",
                "PUT /v1/lockmesh/deadlocks",
            ]
        );
        let is_read = |verb: &&Verb| verb.right == Right::Read && verb.method != Method::GET;
        let others = ROUTES.iter().filter(|route| route.verbs.iter().any(|verb| is_read(&verb)));
        assert_eq!(
            others.map(|route| route.path).collect::<Vec<_>>(),
            [
                "/v1/acl/login",
                "/v1/acl/logout",
                "/v1/acl/templated-policy/preview/",
                "/v1/internal/acl/authorize",
                "/v1/lockmesh/fence/verify",
                "/metrics",
                "/health/live",
                "/health/ready"
            ]
        );
    }
}
