//! Requests that the agent judges itself, because it answers them from its own memory.
//!
//! The table of endpoints names the judge of each route, so that no route is forgotten.

use super::answer::Failure;
use super::call::Call;
use super::endpoint::table::Route;
use http::{Method, StatusCode};
use lockmesh_client::outcome::Outcome;
use lockmesh_protocol::acl::{Access, Resource, Rights, Who};
use lockmesh_protocol::record::Check;
use lockmesh_protocol::rpc::Unavailable;
use std::sync::Arc;

const DISABLED: &str = "ACL support disabled";
const UNKNOWN_RIGHTS: &str = "Permission denied: no server answers, and this agent does not know the rights of this token; \
                              retry when the agent is connected";

/// The judge of a route's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judge {
    /// None: every client may send them.
    Open,
    /// The servers: everything that the endpoint answers comes from a call with the client's
    /// token.
    Servers,
    /// The endpoint, by what it finds in the request or in the agent's memory.
    Endpoint,
    /// The router: reads need `read`, and other requests `write`, of the agent's node or of a
    /// resource without names.
    Router(Resource),
}

/// The rights of a request's client; without access control, it may do everything.
#[derive(Clone, Debug)]
pub(super) struct Judgement(Option<Arc<Rights>>);

impl Judgement {
    /// Returns `true` if the client may access an object.
    pub(super) fn permits(&self, resource: Resource, access: Access, name: &str) -> bool {
        self.0.as_ref().is_none_or(|rights| rights.permit(resource, access, name))
    }

    /// Rejects the request unless its client may access an object.
    pub(super) fn check(&self, resource: Resource, access: Access, name: &str) -> Result<(), Failure> {
        match &self.0 {
            Some(rights) => {
                rights.check(resource, access, name).map_err(|why| Unavailable::NoAccess(why).into())
            }
            None => Ok(()),
        }
    }

    /// Returns `true` if the client may read a check: as its service, or as its node.
    pub(super) fn permits_check(&self, check: &Check) -> bool {
        let (resource, name) = owner(check);
        self.permits(resource, Access::Read, name)
    }

    /// Rejects the request unless its client may change a check.
    pub(super) fn check_check(&self, check: &Check) -> Result<(), Failure> {
        let (resource, name) = owner(check);
        self.check(resource, Access::Write, name)
    }
}

/// Returns the object whose rights are those of a check.
fn owner(check: &Check) -> (Resource, &str) {
    match check.service_name.as_str() {
        "" => (Resource::Node, check.node.as_str()),
        service => (Resource::Service, service),
    }
}

impl Call<'_> {
    /// Returns the rights of this client, from a server or as last known.
    pub(super) async fn judgement(&self) -> Result<Judgement, Failure> {
        match self.api.acl.rights(&self.upstream, &self.caller).await {
            Ok(rights) => Ok(Judgement(rights)),
            Err(refused @ Unavailable::NoAccess(_)) => Err(refused.into()),
            Err(_) => Err(Failure::new(StatusCode::FORBIDDEN, UNKNOWN_RIGHTS).with_outcome(Outcome::NotDone)),
        }
    }

    /// Returns the accessor id of this client's token, if it has one and requests are judged.
    pub(super) async fn accessor(&self) -> Option<String> {
        let Ok(Judgement(Some(rights))) = self.judgement().await else { return None };
        match &rights.who {
            Who::Token(accessor) => Some(accessor.clone()),
            Who::Peer { uid, node, .. } => Some(format!("unix:{node}:{uid}")),
            Who::Agent(_) | Who::Anonymous => None,
        }
    }

    /// Returns the name of this agent's node.
    pub(super) fn own_node(&self) -> &str {
        self.api.identity.node.as_str()
    }
}

/// Rejects a request about access control while there is none.
pub(super) fn check_enabled(call: &Call<'_>, route: &Route) -> Result<(), Failure> {
    match is_about_acls(route.path) && call.api.acl.is_off() {
        true => Err(disabled()),
        false => Ok(()),
    }
}

/// The failure of a request about access control while there is none.
pub(super) fn disabled() -> Failure {
    Failure::new(StatusCode::UNAUTHORIZED, DISABLED)
}

/// Rejects a request that the router judges and for which the client has no right.
pub(super) async fn judge(call: &Call<'_>, route: &Route) -> Result<(), Failure> {
    let Judge::Router(resource) = route.judge else { return Ok(()) };
    let access = match *call.method() {
        Method::GET | Method::HEAD => Access::Read,
        _ => Access::Write,
    };
    let name = if resource.is_single() { "" } else { call.own_node() };
    call.judgement().await?.check(resource, access, name)
}

/// Returns `true` for the path of an endpoint that exists with access control only.
pub(super) fn is_about_acls(path: &str) -> bool {
    ["/v1/acl/", "/v1/agent/token/", "/v1/internal/acl/"].iter().any(|prefix| path.starts_with(prefix))
}
