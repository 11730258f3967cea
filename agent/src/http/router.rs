//! From a request to an endpoint and back: paths, methods, and everything common to all endpoints.
//!
//! One table lists every endpoint. A path in it that ends with `/` matches everything below it; the
//! longest match wins. A `*` matches any text in the middle.

use super::access;
use super::answer::{FILTERED, Failure, nothing, text};
use super::api::Api;
use super::audit::{self, Action};
use super::body::Body;
use super::call::Call;
use super::compression;
use super::endpoint::table::{ROUTES, Right, Route};
use super::host;
use super::peer::Peer;
use super::rights::{self, Judge};
use super::token;
use crate::acl;
use crate::consul::{self, Row};
use crate::go::query::Params;
use crate::go::{path, query};
use crate::metrics;
use http::header::{self, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use lockmesh_protocol::acl::{Caller, DefaultPolicy};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Instant;

const DEFAULT_ACL_POLICY: HeaderName = HeaderName::from_static("x-consul-default-acl-policy");
const ABSENT: StatusCode = StatusCode::NOT_IMPLEMENTED;
const NO_SUCH_ENDPOINT: &str = "Invalid URL path: not a recognized HTTP API endpoint\n";
const NO_VERSION: &str =
    "Invalid URL path: if attempting to use the HTTP API, ensure the path starts with '/v1/'\n";
const NO_UI: &str =
    "Lockmesh has no web page: use `lockmesh locks`, `lockmesh members` or the HTTP API below /v1/";

/// Answers one request. Dropping the future cancels its pending work.
pub async fn respond(api: &Api, peer: Peer, request: Request<Body>) -> Response<Body> {
    let arrived = Instant::now();
    let (head, body) = request.into_parts();
    if matches!(peer, Peer::Tcp(_))
        && let Err(failure) = host::check(api, &head)
    {
        let response = failure.into_response();
        metrics::count_request("host", response.status().as_str(), false, arrived.elapsed());
        return response;
    }
    let (response, name) = answer(api, peer, &head, body).await;
    let may_wait = may_wait(head.uri.query().unwrap_or_default());
    metrics::count_request(name, response.status().as_str(), may_wait, arrived.elapsed());
    match head.method {
        // It has no body, and its headers are those of the plain response.
        Method::HEAD => response,
        _ => compression::respond(&head.headers, api.limits.compress_min_bytes, response),
    }
}

/// Returns the response, and its endpoint's name in the metrics.
async fn answer(api: &Api, peer: Peer, head: &Parts, body: Body) -> (Response<Body>, &'static str) {
    // It would return the request's headers, tokens included. No path has a use for it.
    if head.method == Method::TRACE {
        let failure = Failure::new(StatusCode::METHOD_NOT_ALLOWED, "method TRACE not allowed");
        return (failure.into_response(), "invalid");
    }
    let Some(path::Decoded { text: decoded, is_lossy }) = path::decode(head.uri.path()) else {
        let failure = Failure::bad_request("400 Bad Request: invalid URL escape");
        return (failure.into_response(), "invalid");
    };
    // As Consul does: no tool could show such a key correctly.
    if let Some(character) = path::unprintable(&decoded) {
        return (not_printable(character).into_response(), "invalid");
    }
    if let Some(clean) = path::cleaned(&decoded).filter(|_| !is_lossy) {
        return (redirect(head, &clean), "redirect");
    }
    let Some((route, tail)) = find(&decoded) else {
        // Go's router takes `/v1/kv` for a misspelled `/v1/kv/`.
        return match (below(&decoded), consul::route(&decoded)) {
            (Some(clean), _) => (redirect(head, &clean), "redirect"),
            (None, _) if rights::is_about_acls(&decoded) && api.acl.is_off() => {
                (rights::disabled().into_response(), "absent")
            }
            (None, Some(row)) => (absent(head, &decoded, row), "absent"),
            (None, None) => (unknown(&decoded), "unknown"),
        };
    };
    let mut response = guarded((api, peer), head, route, (tail, is_lossy), body).await;
    let policy = match api.acl.default_policy() {
        DefaultPolicy::Allow => "allow",
        DefaultPolicy::Deny => "deny",
    };
    response.headers_mut().insert(DEFAULT_ACL_POLICY, HeaderValue::from_static(policy));
    (response, route.path)
}

fn not_printable(character: char) -> Failure {
    Failure::bad_request(format!(
        "Invalid URL path: it has the character U+{:04X}, which cannot be printed; use another name",
        u32::from(character),
    ))
}

/// Performs the common checks before an endpoint: query string, `OPTIONS`, method, the right to it,
/// token.
async fn guarded(
    (api, peer): (&Api, Peer),
    head: &Parts,
    route: &Route,
    (tail, is_lossy): (&str, bool),
    body: Body,
) -> Response<Body> {
    let params = match query::parse(head.uri.query().unwrap_or_default()) {
        Ok(params) => params,
        Err(error) => return Failure::refused(error.to_string()).into_response(),
    };
    if head.method == Method::OPTIONS {
        return allowing(nothing(), route);
    }
    let Some(verb) = route.verb(&head.method) else {
        let words = format!("method {} not allowed", head.method);
        return allowing(Failure::new(StatusCode::METHOD_NOT_ALLOWED, words).into_response(), route);
    };
    // There is nothing of such a name to read, and nothing may be written under another one.
    if is_lossy && verb.right != Right::Read {
        let text = "Invalid URL path: it is not UTF-8; encode names as UTF-8 before escaping them";
        return Failure::bad_request(text).into_response();
    }
    let caller = caller(api, peer, head, &params);
    let upstream = api.upstream.for_caller(caller.clone());
    let call = Call { api, upstream, caller, peer, head, tail, is_lossy, params };
    let allowed = access::check(&call, [access::need_of(verb, &call)])
        .and_then(|()| check_token(&call))
        .and_then(|()| rights::check_enabled(&call, route));
    let allowed = match (allowed, route.judge) {
        (Ok(()), Judge::Router(_)) => Box::pin(rights::judge(&call, route)).await,
        (allowed, _) => allowed,
    };
    let answer = match (verb.right, allowed) {
        // Boxed, so that the hot paths do not pay for it in memory.
        (Right::Operate, allowed) => Box::pin(operated(&call, route, body, allowed)).await,
        (_, Ok(())) => route.answer(&call, body).await,
        (_, Err(failure)) => Err(failure),
    };
    let mut response = answer.unwrap_or_else(Failure::into_response);
    // The mark would tell a client without a token what exists.
    if !matches!(call.caller, Caller::Token(_)) {
        response.headers_mut().remove(FILTERED);
    }
    response
}

/// Returns the identity of a request's client.
fn caller(api: &Api, peer: Peer, head: &Parts, params: &Params<'_>) -> Caller {
    // A token decides alone, also one that names nobody.
    if let Some(sent) = token::sent(&head.headers, params).and_then(acl::caller) {
        return sent;
    }
    let default = api.acl.tokens.default_caller();
    match peer.user().filter(|_| !api.acl.is_off()) {
        Some(user) => api.acl.peers.caller(user, &default),
        None => default,
    }
}

/// Runs an operator request, if it is allowed: only from the operators' socket, and always with a
/// line in the audit log.
async fn operated(
    call: &Call<'_>,
    route: &Route,
    body: Body,
    allowed: Result<(), Failure>,
) -> Result<Response<Body>, Failure> {
    let answer = async {
        allowed?;
        check_operator(call)?;
        route.answer(call, body).await
    };
    audit::recorded(call, Action::Operate, &[], answer).await
}

fn check_token(call: &Call<'_>) -> Result<(), Failure> {
    match call.api.acl.is_off() && token::sent(&call.head.headers, &call.params).is_some() {
        true => call.api.access.tokens.judge(call.peer),
        false => Ok(()),
    }
}

/// Rejects an operator request that any user of this host, or any host, could have sent.
fn check_operator(call: &Call<'_>) -> Result<(), Failure> {
    let (Peer::Tcp(_), Some(socket)) = (call.peer, &call.api.access.operator_socket) else { return Ok(()) };
    metrics::LIMITS.with_label_values(&["operator_over_tcp"]).inc();
    Err(Failure::new(
        StatusCode::FORBIDDEN,
        format!(
            "{} {} is an operator request, which this agent accepts on its Unix socket only: set \
             CONSUL_HTTP_ADDR=unix://{}, as a user who may open that socket, or set `http.operator_over_tcp = true` in \
             the agent's configuration",
            call.head.method,
            call.head.uri.path(),
            socket.display(),
        ),
    ))
}

fn allowing(mut response: Response<Body>, route: &Route) -> Response<Body> {
    let mut list = String::from("OPTIONS");
    for verb in route.verbs {
        list.push(',');
        list.push_str(verb.method.as_str());
    }
    let value = HeaderValue::try_from(list).expect("methods are ASCII words");
    response.headers_mut().insert(header::ALLOW, value);
    response
}

/// The routes of each family, the longest path first.
static FAMILIES: LazyLock<BTreeMap<&str, Vec<&Route>>> = LazyLock::new(|| {
    let mut families: BTreeMap<&str, Vec<&Route>> = BTreeMap::new();
    ROUTES.iter().for_each(|route| families.entry(family(route.path)).or_default().push(route));
    families.values_mut().for_each(|routes| routes.sort_by_key(|route| Reverse(route.path.len())));
    families
});

/// Returns the part of a path that chooses among the families of endpoints, such as `kv`.
fn family(path: &str) -> &str {
    path.strip_prefix("/v1/").and_then(|rest| rest.split('/').next()).unwrap_or_default()
}

/// Returns the route of a path, and the rest of the path after it.
fn find(path: &str) -> Option<(&'static Route, &str)> {
    FAMILIES.get(family(path))?.iter().find_map(|route| {
        let tail = match route.path.split_once('*') {
            Some((before, behind)) => path.strip_prefix(before)?.strip_suffix(behind)?,
            None => path.strip_prefix(route.path)?,
        };
        let is_found = tail.is_empty() || route.path.ends_with('/') || route.path.contains('*');
        is_found.then_some((*route, tail))
    })
}

/// Returns the same path with a trailing `/`, if there is a route for it.
fn below(path: &str) -> Option<String> {
    let with_slash = format!("{path}/");
    ROUTES.iter().any(|route| route.path == with_slash).then_some(with_slash)
}

/// Returns 301 to another path with the same query.
fn redirect(head: &Parts, to: &str) -> Response<Body> {
    let mut location = path::encode(to);
    if let Some(query) = head.uri.query() {
        location.push('?');
        location.push_str(query);
    }
    // As Go does: a page for clients that may be a browser, nothing for the rest.
    let body = match head.method {
        Method::GET => format!("<a href=\"{}\">Moved Permanently</a>.\n\n", location.replace('&', "&amp;")),
        _ => String::new(),
    };
    let mut response = text(StatusCode::MOVED_PERMANENTLY, body);
    if head.method == Method::GET {
        let html = HeaderValue::from_static("text/html; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, html);
    }
    if let Ok(value) = HeaderValue::try_from(location) {
        response.headers_mut().insert(header::LOCATION, value);
    }
    response
}

/// A route of Consul whose feature Lockmesh does not have. 501, because clients take a 404 for an
/// answer: that there is no such service, or no such query.
fn absent(head: &Parts, path: &str, row: &Row) -> Response<Body> {
    let failure = match row.disabled {
        Some((status, text)) => Failure::new(StatusCode::from_u16(status).unwrap_or(ABSENT), text),
        None => Failure::new(ABSENT, row.explain(&format!("{} {path}", head.method))),
    };
    let mut response = failure.into_response();
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn unknown(path: &str) -> Response<Body> {
    // The client expects Consul's web page.
    if path == "/" {
        return text(StatusCode::OK, NO_UI);
    }
    let words = if path.contains("/v1/") { NO_SUCH_ENDPOINT } else { NO_VERSION };
    let mut response = Failure::not_found(words).into_response();
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Returns `true` if a request with this query string may wait, for a change or for a lock.
fn may_wait(query: &str) -> bool {
    let has = |name: &str| {
        let value = |parameter: &str| parameter.strip_prefix(name)?.strip_prefix('=').map(str::to_owned);
        query.split('&').find_map(value).is_some_and(|value| !value.is_empty() && value != "0")
    };
    has("index") || (has("acquire") && has("wait"))
}

/// Returns every endpoint's name in the metrics.
pub(super) fn endpoint_names() -> impl Iterator<Item = &'static str> {
    ROUTES.iter().map(|route| route.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_route_prefix_wins() {
        let name = |path: &str| find(path).map(|(route, tail)| (route.path, tail.to_owned()));
        assert_eq!(name("/v1/kv/a/b/"), Some(("/v1/kv/", "a/b/".into())));
        assert_eq!(name("/v1/kv/"), Some(("/v1/kv/", String::new())));
        assert_eq!(name("/v1/session/renew/x"), Some(("/v1/session/renew/", "x".into())));
        assert_eq!(name("/v1/session/list"), Some(("/v1/session/list", String::new())));
        assert_eq!(name("/v1/session/list/x"), None);
        assert_eq!(name("/v1/kvs"), None);
        assert_eq!(name("/v1/query/a/b/execute"), Some(("/v1/query/*/execute", "a/b".into())));
        assert_eq!(name("/v1/query/execute"), Some(("/v1/query/", "execute".into())));
    }

    #[test]
    fn blocking_requires_index_or_lock_wait() {
        let waiting = ["index=7", "stale&index=7&wait=1s", "acquire=s&wait=10s"];
        assert!(waiting.iter().all(|query| may_wait(query)));
        let others = ["", "index=0", "index=", "wait=10s", "acquire=s", "acquire=s&wait=", "myindex=7"];
        assert!(!others.iter().any(|query| may_wait(query)));
    }

    #[test]
    fn missing_trailing_slash_redirects() {
        assert_eq!(below("/v1/kv").as_deref(), Some("/v1/kv/"));
        assert_eq!(below("/v1/nonsense"), None);
    }

    #[test]
    fn no_served_route_listed_absent() {
        for name in consul::ROUTES.iter().flat_map(|row| row.names) {
            assert!(find(name).is_none(), "{name} is served: remove it from consul/table.rs");
        }
    }

    #[test]
    fn every_route_found_by_path() {
        for route in ROUTES {
            let found = find(route.path).map(|(found, _)| found.path);
            assert_eq!(found, Some(route.path));
        }
    }

    #[test]
    fn route_paths_unique() {
        let mut paths: Vec<_> = ROUTES.iter().map(|route| route.path).collect();
        paths.sort_unstable();
        let count = paths.len();
        paths.dedup();
        assert_eq!(paths.len(), count);
    }
}
