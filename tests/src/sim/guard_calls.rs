//! What a guard's requests are to its agent, and what the agent's answers are to the guard: what
//! lies between them over HTTP.

use super::draw::Draw;
use super::judge::Judge;
use lockmesh_agent_core::quorum_client::{Answered, EndReason, LocalCall};
use lockmesh_client::holder::{EndReason as Ending, Moment, NodeLease, Request, Response, Write};
use lockmesh_client::shape::session::SessionEvent;
use lockmesh_client::{Acquired, Consistency as Freshness, Entry, Error, HealthWindow as Window, Read};
use lockmesh_protocol::command::{Command, KvCommand, NewEntry};
use lockmesh_protocol::id::{Key, LogIndex, SessionId};
use lockmesh_protocol::lease::HealthWindow;
use lockmesh_protocol::query::{Answer, Blocking, Consistency, Query, Rows};
use lockmesh_protocol::record::{Behavior, SessionSpec};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Request as Asked, Response as Answers, Unavailable};
use std::time::Duration;

/// By which name the sessions of guards are known.
pub const SESSION_NAME: &str = "guard";

/// How long a request may take that does not block on purpose.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// How much later than its wait a blocking request may be answered.
const BLOCKING_SLACK: Duration = Duration::from_secs(15);

/// After how long a request is given up.
pub fn limit(request: &Request) -> Duration {
    match request {
        Request::Renew(_, limit) | Request::FindSession(_, limit) => *limit,
        Request::Get(_, read) | Request::List(_, read) | Request::NodeLease(_, read) if read.index > 0 => {
            read.wait.unwrap_or_default() + BLOCKING_SLACK
        }
        Request::Acquire(_, _, Some(wait)) => *wait + BLOCKING_SLACK,
        _ => CALL_TIMEOUT,
    }
}

/// The id that a guard was told.
pub fn id_of(session: &str) -> SessionId {
    SessionId::parse(session).expect("guards name sessions by the ids that they were given")
}

/// What a request is to the agent of this number.
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
        Request::NodeLease(..) => unreachable!("that is no call of the quorum"),
        Request::Get(key, how) => return read(Query::Entry(key.into()), how),
        Request::List(prefix, how) => return read(Query::Entries(prefix.into()), how),
        Request::Acquire(write, session, Some(wait)) => {
            return LocalCall::Acquire { new: entry(write), session: id_of(&session), wait };
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

/// What a guard must remember of a request to understand the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It asked for a lock.
    Acquire,
    /// It looked at a key.
    Look,
    /// It asked for something else.
    Other,
}

/// What kind a request is of.
pub fn kind(request: &Request) -> Kind {
    match request {
        Request::Acquire(..) => Kind::Acquire,
        Request::Get(..) => Kind::Look,
        _ => Kind::Other,
    }
}

/// What the agent's answer is to the guard.
///
/// # Errors
/// The failure that a guard is told, with what became of its request: refused, not done, or
/// unknown.
pub fn response(kind: Kind, answer: Result<Answered, Unavailable>) -> Result<Response, Error> {
    match answer {
        Ok(Answered::Response(Answers::Applied(applied)) | Answered::Acquired(_, applied)) => {
            written(kind, applied)
        }
        Ok(Answered::Response(Answers::Answer(answer))) => Ok(rows(&answer)),
        Ok(Answered::Shared(answer)) => Ok(rows(&answer)),
        Ok(Answered::Response(Answers::Done)) => Ok(Response::Done),
        Ok(Answered::Response(Answers::Renewed(found))) => Ok(Response::Found(found.is_some())),
        Ok(Answered::Response(Answers::Unavailable(reason))) | Err(reason) => Err(unavailable(&reason)),
        Ok(Answered::Response(other)) => unreachable!("no guard asks for this: {other:?}"),
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
            };
            Response::Entries(entries.iter().map(entry).collect(), answer.index.0)
        }
        other => unreachable!("no guard asks for this: {other:?}"),
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

/// What the agent says of a guard's session, to the guard that hears it now.
///
/// # Errors
/// The failure that a guard is told: nothing is known of the session.
pub fn node_lease(told: Result<SessionEvent, Unavailable>, now: Moment) -> Result<Response, Error> {
    let event = told.map_err(|reason| unavailable(&reason))?;
    let lease = NodeLease::of(event, now).expect("agents say what their guards understand");
    Ok(Response::NodeLease(lease))
}

/// The connection broke, or the time ran out.
pub fn unanswered() -> Error {
    Error::UnknownOutcome { status: 500, text: "no answer".into() }
}

/// Whether a session that lives is a guard's.
pub fn is_of_a_guard(judge: &Judge, session: &SessionId) -> bool {
    judge.history.state().session(*session).is_some_and(|session| session.spec.name == SESSION_NAME)
}
