//! Translates a guard's requests into calls of its agent, and the agent's replies into responses of
//! the guard. This is the layer that HTTP provides in production.

use super::draw::Draw;
use super::judge::Judge;
use lockmesh_agent_core::quorum_client::{Answered, EndReason, LocalCall};
use lockmesh_client::holder::{
    EndReason as Ending, MAX_STALENESS, Moment, NodeLease, Request, Response, Write,
};
use lockmesh_client::shape::session::SessionEvent;
use lockmesh_client::{Acquired, Consistency as Freshness, Entry, Error, HealthWindow as Window, Read};
use lockmesh_protocol::command::{Command, KvCommand, NewEntry};
use lockmesh_protocol::id::{Key, LogIndex, SessionId};
use lockmesh_protocol::lease::HealthWindow;
use lockmesh_protocol::query::{Answer, Blocking, Consistency, Query, Rows};
use lockmesh_protocol::record::{Behavior, LockMode, RequestedLock, SessionSpec};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Request as Asked, Response as Answers, Unavailable};
use std::time::Duration;

/// Name of every guard's session.
pub const SESSION_NAME: &str = "guard";

/// Timeout of a request that does not block on purpose.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Extra time that a blocking request may take beyond its wait.
const BLOCKING_SLACK: Duration = Duration::from_secs(15);

/// Returns the timeout of a request.
pub fn limit(request: &Request) -> Duration {
    match request {
        Request::Renew(_, limit) | Request::FindSession(_, limit) => *limit,
        Request::Get(_, read)
        | Request::GetHeld(_, _, read)
        | Request::List(_, read)
        | Request::NodeLease(_, read)
            if read.index > 0 =>
        {
            read.wait.unwrap_or_default() + BLOCKING_SLACK
        }
        Request::Acquire(_, _, Some(wait)) | Request::AcquireShared(_, _, Some(wait)) => {
            *wait + BLOCKING_SLACK
        }
        _ => CALL_TIMEOUT,
    }
}

/// Parses a session ID that a guard received.
pub fn id_of(session: &str) -> SessionId {
    SessionId::parse(session).expect("guards name sessions by the ids that they were given")
}

/// Converts a guard's request into a call of the agent with this number.
pub fn local_call(draw: &mut Draw, agent: usize, request: Request) -> LocalCall {
    let command = match request {
        Request::CreateSession(options) => {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&draw.bits().to_be_bytes());
            bytes[8..].copy_from_slice(&draw.bits().to_be_bytes());
            Command::CreateSession(SessionSpec {
                id: SessionId::from_random(bytes),
                name: options.name,
                node: format!("n{agent}").into(),
                lock_delay: options.lock_delay.unwrap_or_default(),
                behavior: if options.delete_keys { Behavior::Delete } else { Behavior::Release },
                ttl_text: String::new(),
                ttl: options.ttl.filter(|ttl| !ttl.is_zero()),
                checks: Vec::new(),
                node_checks: vec!["serfHealth".into()],
                service_checks: None,
                health_window: window(options.health_window),
            })
        }
        Request::Renew(session, _) => return LocalCall::Ask(Asked::Renew(id_of(&session))),
        Request::FindSession(session, _) => {
            return read(Query::Session(id_of(&session)), Read::default());
        }
        Request::NodeLease(..) => unreachable!("not a call of the quorum"),
        Request::GetAll(..) | Request::AcquireAll(..) | Request::ReleaseAll(..) => {
            unreachable!("the guards here hold one lock each")
        }
        Request::Get(key, how) => return read(Query::Entry(key.into()), how),
        Request::GetHeld(key, session, how) => {
            return read(Query::HeldEntry { key: key.into(), session: id_of(&session) }, how);
        }
        Request::List(prefix, how) => return read(Query::Entries(prefix.into()), how),
        Request::Acquire(write, session, Some(wait)) => {
            return LocalCall::Acquire { locks: vec![entry(write).into()], session: id_of(&session), wait };
        }
        Request::AcquireShared(write, session, wait) => {
            let locks = vec![RequestedLock { mode: LockMode::Shared, ..entry(write).into() }];
            let session = id_of(&session);
            match wait {
                Some(wait) => return LocalCall::Acquire { locks, session, wait },
                None => Command::AcquireLocks { locks, session, wait: Duration::ZERO },
            }
        }
        Request::Acquire(write, session, None) => {
            Command::Kv(KvCommand::Acquire(entry(write), id_of(&session)))
        }
        Request::EndSession(session, reason) => {
            let reason = match reason {
                Ending::Closed => EndReason::Closed,
                Ending::GivenUp(silent_for) => EndReason::GivenUp(silent_for),
            };
            return LocalCall::EndSession { session: id_of(&session), reason };
        }
        Request::Release(write, session) => Command::Kv(KvCommand::Release(entry(write), id_of(&session))),
        Request::Cas(write, index) => {
            Command::Kv(KvCommand::Cas(entry(write), Some(index).filter(|index| *index > 0).map(LogIndex)))
        }
        Request::Delete(key) => Command::Kv(KvCommand::Delete(key.into())),
    };
    LocalCall::Propose(command)
}

fn window(window: Option<Window>) -> HealthWindow {
    let word = window.map(Window::as_str);
    word.and_then(HealthWindow::parse).unwrap_or_default()
}

fn read(query: Query, how: Read) -> LocalCall {
    let consistency = match how.consistency {
        Freshness::Default => Consistency::Default,
        Freshness::Consistent => Consistency::Consistent,
        Freshness::Stale => Consistency::Stale,
    };
    let wait = how.wait.unwrap_or_default();
    let blocking = (how.index > 0).then_some(Blocking { index: LogIndex(how.index), wait });
    LocalCall::Read { query, consistency, blocking }
}

fn entry(write: Write) -> NewEntry {
    NewEntry { key: Key::from(write.key), value: write.value, flags: write.flags }
}

/// The part of a request that is needed to interpret its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Requested a lock.
    Acquire,
    /// Read a key.
    Look,
    /// Read a key, perhaps of a server that is behind.
    StaleLook,
    /// Any other request.
    Other,
}

/// Returns the kind of a request.
pub fn kind(request: &Request) -> Kind {
    match request {
        Request::Acquire(..) | Request::AcquireShared(..) => Kind::Acquire,
        Request::Get(_, read) | Request::GetHeld(_, _, read) if read.consistency == Freshness::Stale => {
            Kind::StaleLook
        }
        Request::Get(..) | Request::GetHeld(..) => Kind::Look,
        _ => Kind::Other,
    }
}

/// Converts the agent's reply into the guard's response.
///
/// # Errors
/// The error that the guard receives, with the outcome of its request: refused, not done, or
/// unknown.
pub fn response(kind: Kind, answer: Result<Answered, Unavailable>) -> Result<Response, Error> {
    match answer {
        Ok(Answered::Response(Answers::Applied(applied)) | Answered::Acquired(_, applied)) => {
            written(kind, applied)
        }
        Ok(Answered::Response(Answers::Answer(answer))) => {
            let is_outdated = kind == Kind::StaleLook && answer.last_contact > MAX_STALENESS;
            Ok(if is_outdated { Response::Outdated } else { rows(&answer) })
        }
        Ok(Answered::Shared(answer)) => Ok(rows(&answer)),
        Ok(Answered::Response(Answers::Done)) => Ok(Response::Done),
        Ok(Answered::Response(Answers::Renewed(found))) => Ok(Response::Found(found.is_some())),
        Ok(Answered::Response(Answers::Unavailable(reason))) | Err(reason) => Err(unavailable(&reason)),
        Ok(Answered::Response(other)) => unreachable!("no guard sends this request: {other:?}"),
    }
}

fn written(kind: Kind, applied: Applied) -> Result<Response, Error> {
    Ok(match applied.reply {
        Reply::Session(id) => Response::Created(id.to_string().into()),
        Reply::Granted { fence } => Response::Acquired(Acquired::Granted { fence: Some(fence.0) }),
        Reply::Delayed { remaining } => Response::Acquired(Acquired::Refused { delay: Some(remaining) }),
        Reply::Succeeded(_) if kind == Kind::Acquire => Response::Acquired(Acquired::Refused { delay: None }),
        Reply::Succeeded(verdict) => Response::Verdict(verdict),
        Reply::Refused(refusal) => return Err(Error::Refused { status: 500, text: refusal.to_string() }),
        _ => Response::Done,
    })
}

fn rows(answer: &Answer) -> Response {
    match &answer.rows {
        Rows::Sessions(sessions) => Response::Found(!sessions.is_empty()),
        Rows::Entries(entries) => {
            let entry = |entry: &std::sync::Arc<lockmesh_protocol::record::Entry>| Entry {
                key: entry.key.as_str().to_owned(),
                value: entry.value.clone(),
                flags: entry.flags,
                session: entry.lock.session.as_ref().map(|session| session.to_string()),
                lock_index: entry.lock.index,
                create_index: entry.create_index.0,
                modify_index: entry.modify_index.0,
                fence: entry.lock.session.map(|_| entry.lock.fence.0),
            };
            Response::Entries(entries.iter().map(entry).collect(), answer.index.0)
        }
        other => unreachable!("no guard sends this request: {other:?}"),
    }
}

fn unavailable(reason: &Unavailable) -> Error {
    let text = reason.to_string();
    if reason.certainly_not_done() {
        Error::Unavailable { status: 500, text }
    } else {
        Error::UnknownOutcome { status: 500, text }
    }
}

/// Converts the agent's report on a session into the response that the guard receives now.
///
/// # Errors
/// The error that the guard receives: the state of the session is not known.
pub fn node_lease(told: Result<SessionEvent, Unavailable>, now: Moment) -> Result<Response, Error> {
    let event = told.map_err(|reason| unavailable(&reason))?;
    let lease = NodeLease::of(event, now).expect("agents send what their guards understand");
    Ok(Response::NodeLease(lease))
}

/// The connection broke, or the request timed out.
pub fn unanswered() -> Error {
    Error::UnknownOutcome { status: 500, text: "no answer".into() }
}

/// Returns `true` if a live session belongs to a guard.
pub fn is_of_a_guard(judge: &Judge, session: &SessionId) -> bool {
    judge.history.state().session(*session).is_some_and(|session| session.spec.name == SESSION_NAME)
}
