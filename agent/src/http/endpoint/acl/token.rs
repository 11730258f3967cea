//! `/v1/acl/token…`: tokens.

use super::super::super::answer::{self, Failure, MetaKind};
use super::super::super::body::Body;
use super::super::super::call::{Call, ReadOptions};
use super::super::super::listing::{Form, Listing, Piece};
use super::super::misfit;
use super::body::{self, TokenBody};
use super::{audited, check_named, decoded, delete, fresh_id, propose, read_row, same_id, shape, shown};
use crate::go::duration::{clamped, format_duration};
use crate::upstream::Upstream;
use crate::upstream::calls::Read;
use http::{Method, Response};
use lockmesh_protocol::acl::{AclCommand, Caller, DefaultPolicy, NewToken, Token};
use lockmesh_protocol::id::WallTime;
use lockmesh_protocol::query::{Answer, Consistency, LinkNames, Query, Rows};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::Unavailable;
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time after which a token may end.
const LIFETIME_MIN: Duration = Duration::from_secs(60);
const LIFETIME_MAX: Duration = Duration::from_secs(24 * 60 * 60);

type Row = (Arc<Token>, LinkNames);

pub(in super::super) async fn list(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let options = call.read_options()?;
    let text = |name| call.params.non_empty(name).map(str::to_owned);
    let [policy, role, service] = ["policy", "role", "servicename"].map(text);
    // No token comes from a login.
    let is_of_method = call.params.non_empty("authmethod").is_some();
    let selects = move |token: &Token| {
        let links = &token.links;
        let has = |ids: &[String], wanted: &Option<String>| {
            wanted.as_ref().is_none_or(|wanted| ids.iter().any(|id| id.eq_ignore_ascii_case(wanted)))
        };
        let services = || links.service_identities.iter().map(|identity| &identity.service);
        !is_of_method
            && has(&links.policies, &policy)
            && has(&links.roles, &role)
            && service.as_ref().is_none_or(|service| services().any(|name| name == service))
    };
    let first = call.read_list(Query::Tokens(None), options, Some(MetaKind::Plain)).await?;
    let form = Form { layout: call.layout(), meta: MetaKind::Plain, is_costly: false };
    Listing::from(first)
        .respond(form, move |rows, layout| {
            let Rows::Tokens(rows) = rows else { return Err(misfit::wrong_rows()) };
            let selected = rows.iter().filter(|(token, _)| selects(token));
            Piece::array(selected.map(|(token, names)| Ok(shape::token(token, names))), layout)
        })
        .await
}

/// Creates a token.
pub(in super::super) async fn create(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    audited(call, async {
        let body = decoded(call, body, "Token", body::token).await?;
        let expires_at = checked_expiry(&body)?;
        let new = NewToken { expires_at, ..new_token(body)? };
        written(call, AclCommand::CreateToken(Box::new(with_ids(new)?))).await
    })
    .await
}

/// One token: read, replaced or deleted.
pub(in super::super) async fn one(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    check_named(call, "token AccessorID")?;
    match *call.method() {
        Method::GET => read(call).await,
        Method::PUT => audited(call, update(call, body)).await,
        _ => {
            call.check_place()?;
            delete(call, "token", AclCommand::DeleteToken(call.tail.into())).await
        }
    }
}

async fn update(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    let body = decoded(call, body, "Token", body::token).await?;
    let accessor = same_id(call, &body.accessor, "Token Accessor")?;
    let expires_at = body.expires_at.or(body.ttl.map(|ttl| WallTime(now().0 + milliseconds(clamped(ttl)))));
    let new = NewToken { accessor, expires_at, ..new_token(body)? };
    written(call, AclCommand::UpdateToken(Box::new(new))).await
}

/// Creates a token with the rights of another one.
pub(in super::super) async fn copy(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    check_named(call, "token AccessorID")?;
    audited(call, async {
        let description = decoded(call, body, "Token", body::token).await?.description;
        let options = ReadOptions::default();
        let answer = call.read(Query::Tokens(Some(call.tail.into())), options, None).await?;
        let Rows::Tokens(rows) = &answer.rows else { return Err(misfit::wrong_rows()) };
        let (of, _) = rows.first().ok_or_else(super::unknown_token)?;
        let new = NewToken {
            accessor: String::new(),
            secret: String::new(),
            description: if description.is_empty() { of.description.clone() } else { description },
            links: of.links.clone(),
            is_local: of.is_local,
            expires_at: of.expires_at,
        };
        written(call, AclCommand::CreateToken(Box::new(with_ids(new)?))).await
    })
    .await
}

/// The token of the request; in its place, a user of this host that binding rules select.
pub(in super::super) async fn own(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let options = call.read_options()?;
    let answer = call.try_read(Query::OwnToken, options).await.map_err(|unavailable| match unavailable {
        Unavailable::NoAccess(_) => Failure::not_found("Supplied token does not exist"),
        other => other.into(),
    })?;
    shown(call, &answer, |rows| match (first(rows), &call.caller) {
        (Some((token, names)), _) => Some(shape::token(token, names)),
        (None, Caller::Peer(peer)) => Some(shape::peer(peer, call.own_node())),
        (None, _) => None,
    })
}

/// A token with the policies and roles that it links.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Expanded {
    #[serde(flatten)]
    token: shape::Token,
    expanded_policies: Vec<shape::Policy>,
    expanded_roles: Vec<shape::Role>,
    #[serde(rename = "AgentACLDefaultPolicy")]
    default_policy: &'static str,
    #[serde(rename = "AgentACLDownPolicy")]
    down_policy: &'static str,
    resolved_by_agent: String,
}

async fn read(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let answer = read_row(call, "token", Query::Tokens).await?;
    if !call.params.has("expanded") {
        return shown(call, &answer, |rows| first(rows).map(|(token, names)| shape::token(token, names)));
    }
    let (token, names) = first(&answer.rows).ok_or_else(misfit::wrong_rows)?;
    let options = ReadOptions { blocking: None, ..call.read_options()? };
    let (policies, roles) =
        (call.read(Query::Policies(None), options, None).await?, linked_roles(call, token, options).await?);
    let Rows::Policies(policies) = &policies.rows else { return Err(misfit::wrong_rows()) };
    let linked: BTreeSet<&String> =
        token.links.policies.iter().chain(roles.iter().flat_map(|(role, _)| &role.links.policies)).collect();
    let expanded = Expanded {
        token: shape::token(token, names),
        expanded_policies: policies
            .iter()
            .filter(|it| linked.contains(&it.id))
            .map(|it| shape::policy(it))
            .collect(),
        expanded_roles: roles.iter().map(|(role, names)| shape::role(role, names)).collect(),
        default_policy: match call.api.acl.default_policy() {
            DefaultPolicy::Allow => "allow",
            DefaultPolicy::Deny => "deny",
        },
        down_policy: "extend-cache",
        resolved_by_agent: call.own_node().into(),
    };
    Ok(answer::with_meta(answer::json(&expanded, call.layout()), &answer, MetaKind::Plain))
}

async fn linked_roles(
    call: &Call<'_>,
    token: &Token,
    options: ReadOptions,
) -> Result<Vec<(Arc<lockmesh_protocol::acl::Role>, LinkNames)>, Failure> {
    if token.links.roles.is_empty() {
        return Ok(Vec::new());
    }
    let answer = call.read(Query::Roles(None), options, None).await?;
    let Rows::Roles(roles) = &answer.rows else { return Err(misfit::wrong_rows()) };
    Ok(roles.iter().filter(|(role, _)| token.links.roles.contains(&role.id)).cloned().collect())
}

fn first(rows: &Rows) -> Option<&Row> {
    let Rows::Tokens(rows) = rows else { return None };
    rows.first()
}

/// Proposes a token, and answers with it.
pub(super) async fn written(call: &Call<'_>, command: AclCommand) -> Result<Response<Body>, Failure> {
    let Applied { index, reply } = propose(call, command).await?;
    let Reply::Token(token) = reply else { return Err(misfit::wrong_reply(&reply)) };
    let shape = shape::token(&token, &names_for(&call.upstream, &token).await);
    Ok(answer::with_write_index(answer::json(&shape, call.layout()), index))
}

/// Returns the names of what a new token links. It is created, so a failure only leaves them out.
pub(super) async fn names_for(upstream: &Upstream, token: &Token) -> LinkNames {
    if token.links.policies.is_empty() && token.links.roles.is_empty() {
        return LinkNames::default();
    }
    let query = Query::Tokens(Some(token.accessor.clone()));
    let read = Read { query, consistency: Consistency::Default, blocking: None };
    let names = |answer: Arc<Answer>| first(&answer.rows).map(|(_, names)| names.clone());
    upstream.call(read).await.ok().and_then(names).unwrap_or_default()
}

fn with_ids(new: NewToken) -> Result<NewToken, Failure> {
    let or_fresh = |id: String| if id.is_empty() { fresh_id() } else { Ok(id) };
    Ok(NewToken { accessor: or_fresh(new.accessor)?, secret: or_fresh(new.secret)?, ..new })
}

fn new_token(body: TokenBody) -> Result<NewToken, Failure> {
    if body.has_method {
        return Err(Failure::refused("AuthMethod field is disallowed outside of Login"));
    }
    if body.has_rules {
        return Err(Failure::refused("Rules cannot be specified for this token"));
    }
    let TokenBody { accessor, secret, description, links, is_local, .. } = body;
    Ok(NewToken { accessor, secret, description, links, is_local, expires_at: None })
}

/// Returns the time at which a new token ends, by this host's clock.
fn checked_expiry(body: &TokenBody) -> Result<Option<WallTime>, Failure> {
    let now = now();
    let lifetime = match (body.ttl, body.expires_at) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            return Err(Failure::refused("Expiration TTL and Expiration Time cannot both be set"));
        }
        (Some(ttl), None) if ttl < 0 => {
            let text = format_duration(Duration::from_nanos(ttl.unsigned_abs()));
            return Err(Failure::refused(format!("Token Expiration TTL '-{text}' should be > 0")));
        }
        (Some(ttl), None) => clamped(ttl),
        (None, Some(at)) => Duration::from_millis(at.0.saturating_sub(now.0)),
    };
    let limits =
        [(lifetime < LIFETIME_MIN, "less", LIFETIME_MIN), (lifetime > LIFETIME_MAX, "more", LIFETIME_MAX)];
    match limits.into_iter().find(|(is_beyond, ..)| *is_beyond) {
        Some((_, word, limit)) => Err(Failure::refused(format!(
            "ExpirationTime cannot be {word} than {} in the future (was {})",
            format_duration(limit),
            format_duration(lifetime),
        ))),
        None => Ok(Some(body.expires_at.unwrap_or(WallTime(now.0 + milliseconds(lifetime))))),
    }
}

fn now() -> WallTime {
    WallTime(milliseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
