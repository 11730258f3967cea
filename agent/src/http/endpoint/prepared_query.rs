//! `/v1/query…`: prepared queries, written, executed and explained.
//!
//! The servers store queries and find the one for a name. The agent checks a query before it
//! proposes it, fills a template, and selects the instances; `agent/core/src/prepared_query`
//! decides how.

use super::super::answer::{self, Failure, MetaKind};
use super::super::body::Body;
use super::super::call::{Call, ReadOptions};
use super::super::listing::{Form, Listing, Piece, apart, joined};
use super::super::near;
use super::super::shapes;
use super::instances;
use super::misfit;
use super::prepared_query_body::{self as query_body, Draft};
use crate::acl;
use crate::go::json::{JsonError, first_value};
use crate::go::number::{parse_bool, parse_int};
use http::{Method, Response};
use lockmesh_agent_core::prepared_query::{Execution, check, filled};
use lockmesh_client::shape::prepared_query::{Dns, Executed, Explained, Meta};
use lockmesh_client::shape::session::Created;
use lockmesh_client::shape::{self, json::Layout};
use lockmesh_net::random;
use lockmesh_protocol::acl::{Access, Resource};
use lockmesh_protocol::command::{Command, NewQuery, QueryCommand};
use lockmesh_protocol::id::{LogIndex, QueryId};
use lockmesh_protocol::prepared_query::{PreparedQuery, QUERY_NAME_MAX, TEMPLATE_ERROR_MAX};
use lockmesh_protocol::query::{Answer, Query, Rows};
use lockmesh_protocol::reply::{Applied, Refusal, Reply};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;

const NOT_FOUND: &str = "Query not found";

/// All queries: listed, or one created.
pub(super) async fn all(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    if call.method() == Method::POST {
        return create(call, body).await;
    }
    let options = call.read_options()?;
    let kind = MetaKind::Effective(options.consistency);
    let first = call.read_list(Query::PreparedQueries, options, Some(kind)).await?;
    let shows_tokens = shows_tokens(call).await?;
    let rendered = move |rows: &Rows, layout: Layout| {
        let Rows::PreparedQueries(queries) = rows else { return Err(misfit::wrong_rows()) };
        Piece::array(queries.iter().map(|query| Ok(shape(query, shows_tokens))), layout)
    };
    Listing::from(first).respond(Form::of(call, options), rendered).await
}

/// Returns `true` if the client may see the tokens of queries, which are secrets.
async fn shows_tokens(call: &Call<'_>) -> Result<bool, Failure> {
    Ok(call.judgement().await?.permits(Resource::Acl, Access::Write, ""))
}

fn shape(query: &PreparedQuery, shows_token: bool) -> shape::prepared_query::PreparedQuery {
    let mut shape = shapes::prepared_query(query);
    if !shows_token && !shape.token.is_empty() {
        shape.token = "<hidden>".into();
    }
    shape
}

/// One query: read, replaced or deleted.
pub(super) async fn one(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    match *call.method() {
        Method::GET => read(call).await,
        Method::PUT => update(call, body).await,
        _ => {
            call.check_place()?;
            let applied = propose(call, QueryCommand::Delete(id_of(call)?), "").await?;
            Ok(answer::with_write_index(answer::nothing(), applied.index))
        }
    }
}

async fn read(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let options = call.read_options()?;
    let kind = MetaKind::Effective(options.consistency);
    let answer = call.read(Query::PreparedQuery(id_of(call)?), options, Some(kind)).await?;
    if answer.rows.len() == 0 {
        return Err(Failure::not_found(NOT_FOUND));
    }
    let Rows::PreparedQueries(queries) = &answer.rows else { return Err(misfit::wrong_rows()) };
    let shows_tokens = shows_tokens(call).await?;
    let shapes: Vec<_> = queries.iter().map(|query| shape(query, shows_tokens)).collect();
    Ok(answer::with_meta(answer::json(&shapes, call.layout()), &answer, kind))
}

async fn create(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let body = call.small_body(body).await?;
    let draft = first_value(&body).and_then(|value| query_body::parse(&value)).map_err(undecodable)?;
    if !draft.id.is_empty() {
        return Err(Failure::refused("ID must be empty when creating a new prepared query"));
    }
    let (session, new) = (draft.session.clone(), judged(draft)?);
    let bytes = random::bytes().map_err(|error| Failure::not_done(error.to_string()))?;
    let id = QueryId::from_random(bytes);
    let applied = propose(call, QueryCommand::Create(id, Box::new(new)), &session).await?;
    let created = Created { id: id.to_string() };
    Ok(answer::with_write_index(answer::json(&created, call.layout()), applied.index))
}

async fn update(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let body = call.small_body(body).await?;
    let value = match first_value(&body) {
        // As in Consul, only a creation needs a body; what is lacking is then said.
        Err(JsonError::Empty) => Value::Object(Map::new()),
        other => other.map_err(undecodable)?,
    };
    let draft = query_body::parse(&value).map_err(undecodable)?;
    let id = id_of(call)?;
    let session = draft.session.clone();
    let new = match judged(draft) {
        Ok(new) => new,
        // An unknown id is the first reason that the client is to know.
        Err(failure) => {
            let answer = call.read(Query::PreparedQuery(id), ReadOptions::default(), None).await?;
            let unknown = || Failure::refused(format!("Cannot modify non-existent prepared query: '{id}'"));
            return Err(if answer.rows.len() == 0 { unknown() } else { failure });
        }
    };
    let applied = propose(call, QueryCommand::Update(id, Box::new(new)), &session).await?;
    Ok(answer::with_write_index(answer::nothing(), applied.index))
}

/// Checks a description. The state checks what depends on other queries and on sessions.
fn judged(draft: Draft) -> Result<NewQuery, Failure> {
    let Draft { spec, nearest_n, .. } = draft;
    check(&spec, nearest_n).map_err(|error| Failure::refused(format!("Invalid prepared query: {error}")))?;
    let error = filled(&spec, &spec.name).err().map(|error| error.to_string());
    let template_error = error.map(|text| text.chars().take(TEMPLATE_ERROR_MAX).collect());
    Ok(NewQuery { spec, template_error })
}

/// Proposes a write; `session` is the text of the session in it.
async fn propose(call: &Call<'_>, command: QueryCommand, session: &str) -> Result<Applied, Failure> {
    let applied = call.propose(Command::PreparedQuery(command)).await?;
    match &applied.reply {
        Reply::Done => Ok(applied),
        Reply::Refused(refusal @ Refusal::InvalidSession(_)) => {
            let failure = Failure::from(refusal.clone());
            Err(failure.in_words(format!("invalid session {session:?}")))
        }
        Reply::Refused(refusal) => Err(refusal.clone().into()),
        other => Err(misfit::wrong_reply(other)),
    }
}

fn undecodable(error: JsonError) -> Failure {
    Failure::bad_request(format!("Request decode failed: {error}"))
}

/// Returns the id in the path. A text that is no id names no query (D16).
fn id_of(call: &Call<'_>) -> Result<QueryId, Failure> {
    QueryId::parse(call.tail).ok_or_else(|| Failure::not_found(NOT_FOUND))
}

/// The instances that the query for a name selects.
pub(super) async fn execute(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let options = once(call)?;
    let limit = limit(call)?;
    let connect = match call.params.non_empty("connect") {
        Some(text) => parse_bool(text).ok_or_else(|| {
            let reason = format!("strconv.ParseBool: parsing {text:?}: invalid syntax");
            Failure::refused(format!("Error parsing 'connect' value: {reason}"))
        })?,
        None => false,
    };
    let (resolved, PreparedQuery { spec, .. }) = resolve(call, options).await?;
    // Read with the rights of the query's own token, if it has one.
    let upstream = acl::caller(&spec.token).map(|caller| call.api.upstream.for_caller(caller));
    let call = &Call { upstream: upstream.unwrap_or_else(|| call.upstream.clone()), ..call.clone() };
    let (service, near, dns) =
        (spec.service.service.clone(), spec.service.near.clone(), Dns { ttl: spec.dns_ttl });
    let execution = Execution::new(spec.service, connect);
    let queries = execution.queries();
    let answer = match queries.is_empty() {
        true => Answer { rows: Rows::Instances(Vec::new()), ..(*resolved).clone() },
        false => {
            let kind = MetaKind::Effective(options.consistency);
            joined(call.read_together(queries, options, Some(kind)).await?).await?
        }
    };
    let (count, meta) = (answer.rows.len(), meta(&answer, options));
    let Answer { rows, known_leader, last_contact, .. } = answer;
    let Rows::Instances(found) = rows else { return Err(misfit::wrong_rows()) };
    let origin = match call.params.non_empty("near").unwrap_or(&near) {
        "" => None,
        near => Some(near::origin(call, options, near, count).await?),
    };
    let (datacenter, layout) = (call.api.identity.datacenter.clone(), call.layout());
    let render = move || {
        let nodes = execution.run(&found, origin.as_ref(), random::seed(), limit);
        let nodes = nodes.iter().map(shapes::instance).collect();
        let peer_name = String::new();
        answer::json(&Executed { service, nodes, dns, datacenter, peer_name, failovers: 0, meta }, layout)
    };
    let response = with_meta(apart(count, render).await?, (known_leader, last_contact), options);
    Ok(instances::marked(call, response))
}

/// The query for a name, with its template filled.
pub(super) async fn explain(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let options = once(call)?;
    // Consul parses it too, without a use for it.
    limit(call)?;
    let (answer, query) = resolve(call, options).await?;
    let explained =
        Explained { query: shape(&query, shows_tokens(call).await?), meta: meta(&answer, options) };
    let contact = (answer.known_leader, answer.last_contact);
    Ok(with_meta(answer::json(&explained, call.layout()), contact, options))
}

/// Returns the options of a read that never waits.
fn once(call: &Call<'_>) -> Result<ReadOptions, Failure> {
    Ok(ReadOptions { blocking: None, ..call.read_options()? })
}

/// Reads the query for the name in the path, and fills its template.
async fn resolve(call: &Call<'_>, options: ReadOptions) -> Result<(Arc<Answer>, PreparedQuery), Failure> {
    if call.tail.len() > QUERY_NAME_MAX {
        let length = call.tail.len();
        return Err(Failure::bad_request(format!(
            "the name of the query has {length} bytes, the maximum is {QUERY_NAME_MAX}: use a shorter one"
        )));
    }
    let kind = MetaKind::Effective(options.consistency);
    let answer = call.read(Query::ResolvePreparedQuery(call.tail.into()), options, Some(kind)).await?;
    let Rows::PreparedQueries(queries) = &answer.rows else { return Err(misfit::wrong_rows()) };
    let query = queries.first().ok_or_else(|| Failure::not_found(NOT_FOUND))?;
    if query.spec.is_template() && QueryId::parse(call.tail) == Some(query.id) {
        let text = "prepared query templates can only be resolved up by name, not by ID";
        return Err(Failure::refused(text).with_meta(kind));
    }
    // It was checked by an agent whose library may differ.
    let spec = filled(&query.spec, call.tail)
        .map_err(|error| Failure::refused(format!("failed compiling template: {error}")))?;
    let query = PreparedQuery { spec, ..(**query).clone() };
    Ok((answer, query))
}

/// Returns the maximum number of instances. Without a positive limit all are wanted.
fn limit(call: &Call<'_>) -> Result<usize, Failure> {
    let Some(text) = call.params.non_empty("limit") else { return Ok(usize::MAX) };
    let limit = parse_int(text).map_err(|error| Failure::refused(format!("Bad limit: {error}")))?;
    Ok(usize::try_from(limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX))
}

fn meta(answer: &Answer, options: ReadOptions) -> Meta {
    Meta {
        index: 0,
        last_contact: u64::try_from(answer.last_contact.as_nanos()).unwrap_or(u64::MAX),
        known_leader: answer.known_leader,
        consistency_level: answer::consistency_name(options.consistency).into(),
    }
}

/// Adds the headers of a read whose index has no meaning, because no request waits for its change.
fn with_meta(
    response: Response<Body>,
    (known_leader, last_contact): (bool, Duration),
    options: ReadOptions,
) -> Response<Body> {
    let answer = Answer {
        index: LogIndex(1),
        rows: Rows::Keys(Vec::new()),
        known_leader,
        last_contact,
        is_filtered: false,
    };
    answer::with_meta(response, &answer, MetaKind::Effective(options.consistency))
}
