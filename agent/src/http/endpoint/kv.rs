//! `/v1/kv/…`: keys, and the locks on them. The hot path of the whole API.

use super::super::answer::{self, Failure, MetaKind};
use super::super::audit::{self, Action};
use super::super::body::Body;
use super::super::call::{Call, ReadOptions};
use super::super::listing::{Form, Listing, Piece};
use super::super::shapes;
use crate::go::number::parse_u64;
use crate::upstream::calls::Acquire;
use http::header::{self, HeaderValue};
use http::{Method, Response};
use lockmesh_client::shape::json::Layout;
use lockmesh_protocol::command::{Command, KvCommand, NewEntry};
use lockmesh_protocol::id::{Key, LogIndex, SessionId};
use lockmesh_protocol::query::{Answer, Query, Rows};
use lockmesh_protocol::record::{LockMode, RequestedLock};
use lockmesh_protocol::reply::{Applied, Refusal, Reply};
use std::time::Duration;

/// The documentation of the limit; part of a text that clients know.
const VALUE_SIZE_HELP: &str =
    "https://developer.hashicorp.com/docs/agent/config/config-files#kv_max_value_size";

pub(super) async fn run(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    match *call.method() {
        Method::PUT => put(call, body).await,
        // Boxed, so that a waiting request on a key costs no memory for it.
        Method::DELETE if call.params.has("recurse") => {
            Box::pin(audit::recorded(call, Action::DeleteTree, &[call.tail], delete(call))).await
        }
        Method::DELETE => delete(call).await,
        _ => get(call).await,
    }
}

async fn get(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let options = call.read_options()?;
    let prefix = Key::from(call.tail);
    if call.params.has("keys") {
        return keys(call, prefix, options).await;
    }
    let recurse = call.params.has("recurse");
    if call.tail.is_empty() && !recurse {
        return Err(missing_key());
    }
    if recurse {
        return list(call, Query::Entries(prefix), options, false).await;
    }
    let query = match call.params.non_empty("holder").map(named_session) {
        Some(session) => Query::HeldEntry { key: prefix, session },
        None => Query::Entry(prefix),
    };
    let answer = call.read(query, options, None).await?;
    let Rows::Entries(entries) = &answer.rows else { return Err(super::misfit::wrong_rows()) };
    match entries.first() {
        None => Ok(absent(&answer)),
        // The key has the replacement characters itself, and is not the one in the path.
        Some(_) if call.is_lossy => Ok(absent(&answer)),
        Some(entry) if call.params.has("raw") => {
            Ok(answer::with_meta(raw(&entry.value), &answer, MetaKind::Plain))
        }
        Some(entry) => {
            let json = answer::json(&[shapes::entry(entry)], call.layout());
            Ok(answer::with_meta(json, &answer, MetaKind::Plain))
        }
    }
}

async fn keys(call: &Call<'_>, prefix: Key, options: ReadOptions) -> Result<Response<Body>, Failure> {
    // Some clients misspell it.
    let separator = call.params.non_empty("separator").or_else(|| call.params.non_empty("seperator"));
    let query = Query::Keys { prefix, separator: separator.unwrap_or_default().into() };
    // A list of all keys may be empty.
    list(call, query, options, call.tail.is_empty()).await
}

/// Returns entries or names, or 404 without any.
async fn list(
    call: &Call<'_>,
    query: Query,
    options: ReadOptions,
    may_be_empty: bool,
) -> Result<Response<Body>, Failure> {
    if call.is_lossy {
        return Ok(absent(call.read(query, options, None).await?.as_ref()));
    }
    let first = call.read_list(query, options, None).await?;
    // The first part of a long list has rows.
    if first.answer.rows.len() == 0 && !may_be_empty {
        return Ok(absent(&first.answer));
    }
    let form = Form { layout: call.layout(), meta: MetaKind::Plain, is_costly: false };
    Listing::from(first).respond(form, rendered).await
}

fn rendered(rows: &Rows, layout: Layout) -> Result<Piece, Failure> {
    match rows {
        Rows::Keys(keys) => Piece::array(keys.iter().map(Ok), layout),
        Rows::Entries(entries) => Piece::array(entries.iter().map(|entry| Ok(shapes::entry(entry))), layout),
        _ => Err(super::misfit::wrong_rows()),
    }
}

/// Returns 404 without a body: its index lets a client wait for the key.
fn absent(answer: &Answer) -> Response<Body> {
    answer::with_meta(answer::absent(), answer, MetaKind::Plain)
}

/// Returns the bare value, protected from a browser that would render it as a page.
fn raw(value: &bytes::Bytes) -> Response<Body> {
    let mut response = Response::new(Body::from(value.clone()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    response
}

async fn put(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    if call.tail.is_empty() {
        return Err(missing_key());
    }
    refuse_conflict(call, &["cas", "acquire", "release"])?;
    let flags = call.params.value("flags").map(number).transpose()?.unwrap_or(0);
    let expected = call.params.value("cas").map(number).transpose()?;
    let wait = if call.params.has("acquire") { call.lock_wait()? } else { None };
    let mode = mode(call.params.value("mode").filter(|_| call.params.has("acquire")))?;
    let value = value(call, body).await?;
    let entry = NewEntry { key: Key::from(call.tail), value, flags };
    let named = call.params.value("acquire").or(call.params.value("release"));
    let session = |name| call.params.value(name).map(named_session);
    if call.params.value("release").is_some_and(str::is_empty) {
        return Err(invalid_session(""));
    }
    if let (Some(session), Some(wait)) = (session("acquire"), wait) {
        let _waits = crate::metrics::BlockedWatcher::begin();
        let locks = vec![RequestedLock { mode, ..entry.into() }];
        let (asked, applied) = call.upstream.call(Acquire { locks, session, wait }).await?;
        let granted = applied.index;
        let response = written(call, as_named(named, applied)?)?;
        // Granted at once: it was never in the queue.
        return Ok(if asked == granted { response } else { answer::with_queued(response, asked) });
    }
    let command = match (expected, session("acquire"), session("release")) {
        (Some(expected), ..) => {
            // 0 requires that the key does not exist.
            KvCommand::Cas(entry, Some(expected).filter(|index| *index > 0).map(LogIndex))
        }
        (_, Some(session), _) if mode == LockMode::Shared => {
            let locks = vec![RequestedLock { mode, ..entry.into() }];
            let command = Command::AcquireLocks { locks, session, wait: Duration::ZERO };
            return written(call, as_named(named, call.propose(command).await?)?);
        }
        (_, Some(session), _) => KvCommand::Acquire(entry, session),
        (.., Some(session)) => KvCommand::Release(entry, session),
        _ => KvCommand::Set(entry),
    };
    let applied = call.propose(Command::Kv(command)).await?;
    written(call, as_named(named, applied)?)
}

async fn delete(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let recurse = call.params.has("recurse");
    if call.tail.is_empty() && !recurse {
        return Err(missing_key());
    }
    refuse_conflict(call, &["recurse", "cas"])?;
    let key = Key::from(call.tail);
    let command = match call.params.value("cas").map(number).transpose()? {
        Some(expected) => KvCommand::DeleteCas(key, LogIndex(expected)),
        None if recurse => KvCommand::DeleteTree(key),
        None => KvCommand::Delete(key),
    };
    written(call, call.propose(Command::Kv(command)).await?)
}

async fn value(call: &Call<'_>, body: Body) -> Result<bytes::Bytes, Failure> {
    let limit = call.api.limits.kv_max_value_size;
    let too_large = |length: Option<u64>| {
        let measured = length.map(|length| format!("({length} bytes)")).unwrap_or_default();
        format!("Request body{measured} too large, max size: {limit} bytes. See {VALUE_SIZE_HELP}.")
    };
    call.body(body, limit, too_large).await
}

/// Returns `true` or `false`, with Lockmesh's headers: the write's index, the grant's fence, the
/// remaining lock-delay.
fn written(call: &Call<'_>, applied: Applied) -> Result<Response<Body>, Failure> {
    let layout = call.layout();
    let response = match applied.reply {
        Reply::Done => answer::flag(true, layout),
        Reply::Succeeded(done) => answer::flag(done, layout),
        Reply::Granted { fence } => answer::with_fence(answer::flag(true, layout), fence.0),
        Reply::Delayed { remaining } => answer::with_lock_delay(answer::flag(false, layout), remaining),
        Reply::Refused(refusal) => return Err(refusal.into()),
        other => return Err(super::misfit::wrong_reply(&other)),
    };
    Ok(answer::with_write_index(response, applied.index))
}

/// Parses the mode of a lock; exclusive by default.
pub(super) fn mode(text: Option<&str>) -> Result<LockMode, Failure> {
    let unknown = |text| Failure::bad_request(format!("Unknown mode {text:?}: use exclusive or shared"));
    text.map_or(Ok(LockMode::Exclusive), |text| LockMode::parse(text).ok_or_else(|| unknown(text)))
}

/// Returns the session that a client names; an invalid id becomes the nil id, which the state
/// rejects.
pub(super) fn named_session(text: &str) -> SessionId {
    SessionId::parse(text).unwrap_or(SessionId::NIL)
}

/// Returns the state's reply; an unknown session is reported under the name that the client sent.
pub(super) fn as_named(named: Option<&str>, applied: Applied) -> Result<Applied, Failure> {
    match (named, &applied.reply) {
        (Some(text), Reply::Refused(Refusal::InvalidSession(_))) => Err(invalid_session(text)),
        _ => Ok(applied),
    }
}

fn invalid_session(text: &str) -> Failure {
    let failure = Failure::from(Refusal::InvalidSession(named_session(text)));
    match text {
        "" => failure.in_words("missing session"),
        text => failure.in_words(format!("invalid session {text:?}")),
    }
}

fn missing_key() -> Failure {
    Failure::bad_request("Missing key name")
}

fn number(text: &str) -> Result<u64, Failure> {
    parse_u64(text).map_err(|error| Failure::refused(error.to_string()))
}

fn refuse_conflict(call: &Call<'_>, flags: &[&str]) -> Result<(), Failure> {
    if flags.iter().filter(|flag| call.params.has(flag)).count() > 1 {
        return Err(Failure::bad_request(format!("Conflicting flags: {}\n", call.params.encode())));
    }
    Ok(())
}
