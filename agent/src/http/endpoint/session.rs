//! `/v1/session/…`: sessions, and the defaults of their fields.

use super::super::answer::{self, Failure, MetaKind};
use super::super::body::Body;
use super::super::call::{Call, check_datacenter};
use super::super::listing::Piece;
use super::super::shapes;
use super::membership::DETAILS_TIMEOUT;
use crate::bound_sessions::{BindError, WantedProcess};
use crate::go::duration::{self, clamped};
use crate::go::json::{JsonError, Object, first_value};
use crate::metrics::LIMITS;
use crate::upstream::calls::{EndSession, Renew};
use http::Response;
use lockmesh_agent_core::quorum_client::EndReason;
use lockmesh_client::shape;
use lockmesh_client::shape::json::Layout;
use lockmesh_net::random;
use lockmesh_protocol::acl::{Access, Resource};
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{CheckId, NodeName, SessionId};
use lockmesh_protocol::lease::{HealthWindow, NodeLeaseQuery};
use lockmesh_protocol::query::{Answer, Query, Rows};
use lockmesh_protocol::record::{Behavior, SERF_HEALTH, ServiceCheck, SessionSpec};
use lockmesh_protocol::reply::{Applied, Refusal, Reply};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// The default lock-delay.
const DEFAULT_LOCK_DELAY_NANOSECONDS: i64 = 15_000_000_000;
/// A lock-delay below this counts as seconds: clients that send plain numbers mean these.
const SECONDS_BELOW_NANOSECONDS: i64 = 1_000;
const TTL_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// The maximum number of draws of an id. Even a second draw is practically impossible.
const ID_DRAWS: u32 = 4;

/// A session as a client described it: unvalidated texts, except the lock-delay and the checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// The display name.
    pub name: String,
    /// The node; `None` for the agent's own.
    pub node: Option<String>,
    /// In nanoseconds.
    pub lock_delay: i64,
    /// As it was sent.
    pub behavior: String,
    /// As it was sent.
    pub ttl: String,
    /// The deprecated list.
    pub checks: Vec<String>,
    /// Checks of the node.
    pub node_checks: Vec<String>,
    /// Checks of services: id and namespace.
    pub service_checks: Option<Vec<(String, String)>>,
    /// The health window, as text; empty for the agent's default.
    pub health_window: String,
    /// Empty for the agent's own.
    pub datacenter: String,
    /// The process that ends the session.
    pub process: Option<WantedProcess>,
    /// Set if the client named the lock-delay.
    pub names_lock_delay: bool,
}

impl Default for Draft {
    fn default() -> Self {
        Self {
            name: String::new(),
            node: None,
            lock_delay: DEFAULT_LOCK_DELAY_NANOSECONDS,
            behavior: String::new(),
            ttl: String::new(),
            checks: Vec::new(),
            node_checks: vec![SERF_HEALTH.into()],
            service_checks: None,
            health_window: String::new(),
            datacenter: String::new(),
            process: None,
            names_lock_delay: false,
        }
    }
}

/// Parses the body of a session's creation. An empty one is a session with all defaults.
///
/// # Errors
/// The client has to change its request. No session was created.
pub fn parse_body(body: &[u8]) -> Result<Draft, JsonError> {
    let value = match first_value(body) {
        Err(JsonError::Empty) => return Ok(Draft::default()),
        other => other?,
    };
    let object = Object::new("Session", &value)?;
    let (checks, node_checks) = resolve_checks(&object)?;
    Ok(Draft {
        name: object.string("Name")?.into(),
        node: object.optional_string("Node")?.map(str::to_owned),
        lock_delay: parse_lock_delay(object.value("LockDelay"))?,
        behavior: object.string("Behavior")?.into(),
        ttl: object.string("TTL")?.into(),
        checks,
        node_checks,
        service_checks: parse_service_checks(&object)?,
        health_window: object.string("HealthWindow")?.into(),
        datacenter: object.string("Datacenter")?.into(),
        process: parse_process(&object)?,
        names_lock_delay: object.value("LockDelay").is_some(),
    })
}

/// Returns the process that ends the session. A named one comes before the client's own.
fn parse_process(object: &Object<'_>) -> Result<Option<WantedProcess>, JsonError> {
    let named = u32::try_from(object.u64("Pid")?).map_err(|error| JsonError::Value(error.to_string()))?;
    Ok(match named {
        0 => object.bool("BindProcess")?.then_some(WantedProcess::Client),
        pid => Some(WantedProcess::Named(pid)),
    })
}

/// Returns the two lists of checks. Both default to the node's health; the body overrides them.
fn resolve_checks(object: &Object<'_>) -> Result<(Vec<String>, Vec<String>), JsonError> {
    let list = |name: &str| -> Result<Vec<String>, JsonError> {
        // An empty list means no check; an absent one means the default.
        match object.sent(name) {
            Some(_) => Ok(object.strings(name)?.into_iter().map(str::to_owned).collect()),
            None => Ok(vec![SERF_HEALTH.into()]),
        }
    };
    let (checks, node_checks) = (list("Checks")?, list("NodeChecks")?);
    // As in Consul: the default of the older list never overrides `NodeChecks`.
    Ok(if checks.is_empty() {
        (Vec::new(), Vec::new())
    } else if checks == [SERF_HEALTH] || node_checks.is_empty() {
        (Vec::new(), node_checks)
    } else {
        (checks, node_checks)
    })
}

fn parse_service_checks(object: &Object<'_>) -> Result<Option<Vec<(String, String)>>, JsonError> {
    if object.value("ServiceChecks").is_none() {
        return Ok(None);
    }
    let mut checks = Vec::new();
    for element in object.list("ServiceChecks", "[]structs.ServiceCheck")? {
        let check = Object::new("ServiceCheck", element)?;
        checks.push((check.string("ID")?.into(), check.string("Namespace")?.into()));
    }
    Ok(Some(checks))
}

/// Parses a duration, or a number of nanoseconds; small numbers are seconds. Other types count as
/// 0.
fn parse_lock_delay(value: Option<&Value>) -> Result<i64, JsonError> {
    let nanoseconds = match value {
        None => return Ok(DEFAULT_LOCK_DELAY_NANOSECONDS),
        Some(Value::String(text)) => {
            duration::parse(text).map_err(|error| JsonError::Value(error.to_string()))?
        }
        // A number beyond 64 bits or with a fraction is truncated.
        Some(Value::Number(number)) => number.as_i64().unwrap_or(number.as_f64().unwrap_or(0.0) as i64),
        Some(_) => 0,
    };
    Ok(match nanoseconds {
        small if small < SECONDS_BELOW_NANOSECONDS => small.saturating_mul(1_000_000_000),
        nanoseconds => nanoseconds,
    })
}

pub(super) async fn create(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let body = call.small_body(body).await?;
    let draft =
        parse_body(&body).map_err(|error| Failure::bad_request(format!("Request decode failed: {error}")))?;
    check_datacenter(call.api, &draft.datacenter)?;
    let (process, keeps_lock_delay) = (draft.process, draft.names_lock_delay);
    let mut session = judged(call, draft)?;
    let bound_sessions = &call.api.feeds.bound_sessions;
    // Before the session exists: there is no moment at which nobody watches the process.
    let client = call.peer.socket_client();
    let mut bound = process.map(|wanted| bound_sessions.watch(client, &session.node, wanted)).transpose()?;
    let own = call.api.identity.node.folded();
    for _ in 0..ID_DRAWS {
        let command = match &bound {
            None if session.node.folded() != own && !call.may_operate() => {
                Command::CreateSession(session.clone()).restricted()
            }
            None => Command::CreateSession(session.clone()),
            Some(process) => {
                let binding = bound_sessions.binding(process, keeps_lock_delay);
                Command::CreateBoundSession(session.clone(), binding)
            }
        };
        let applied = call.propose(command).await?;
        match applied.reply {
            Reply::Session(id) => {
                if let Some(process) = bound.take() {
                    bound_sessions.created(id, applied.index, process);
                }
                let created = shape::session::Created { id: id.to_string() };
                let response = answer::with_write_index(answer::json(&created, call.layout()), applied.index);
                return Ok(answer::with_health_window(response, session.health_window));
            }
            // The id belongs to another session. An earlier attempt of this command would have
            // returned its first reply.
            Reply::Refused(Refusal::SessionIdInUse(_)) => session.id = fresh_id()?,
            Reply::Refused(refusal) => return Err(refusal.into()),
            other => return Err(super::misfit::wrong_reply(&other)),
        }
    }
    Err(Failure::not_done("no free session id was found: the random source of this machine repeats itself"))
}

impl From<BindError> for Failure {
    fn from(error: BindError) -> Self {
        if matches!(error, BindError::Full(_)) {
            LIMITS.with_label_values(&["bound_sessions"]).inc();
            return Self::not_done(error.to_string());
        }
        Self::bad_request(error.to_string())
    }
}

/// Validates the fields that only the creator can have wrong; the state validates the rest.
fn judged(call: &Call<'_>, draft: Draft) -> Result<SessionSpec, Failure> {
    let node = match draft.node.as_deref() {
        Some("") => return Err(Failure::refused("Must provide Node")),
        Some(named) => NodeName::from(named),
        None => call.api.identity.node.clone(),
    };
    let behavior = match draft.behavior.as_str() {
        "" | "release" => Behavior::Release,
        "delete" => Behavior::Delete,
        other => return Err(Failure::refused(format!("Invalid Behavior setting '{other}'"))),
    };
    let health_window = match draft.health_window.as_str() {
        "" => call.api.limits.default_health_window,
        word => HealthWindow::parse(word).ok_or_else(|| {
            Failure::refused(format!("Invalid HealthWindow '{word}': use fast, default or safe"))
        })?,
    };
    let ttl = judged_ttl(&draft.ttl, call.api.limits.session_ttl_min)?;
    let ids = |names: Vec<String>| names.into_iter().map(CheckId::from).collect::<Vec<_>>();
    let service_check = |(id, namespace): (String, String)| ServiceCheck { id: id.into(), namespace };
    Ok(SessionSpec {
        id: fresh_id()?,
        name: draft.name,
        node,
        lock_delay: clamped(draft.lock_delay),
        behavior,
        ttl_text: draft.ttl,
        ttl,
        checks: ids(draft.checks),
        node_checks: ids(draft.node_checks),
        service_checks: draft.service_checks.map(|list| list.into_iter().map(service_check).collect()),
        health_window,
    })
}

fn judged_ttl(text: &str, least: Duration) -> Result<Option<Duration>, Failure> {
    if text.is_empty() {
        return Ok(None);
    }
    let nanoseconds = duration::parse(text)
        .map_err(|error| Failure::refused(format!("Session TTL '{text}' invalid: {error}")))?;
    let ttl = clamped(nanoseconds);
    // 0 means no TTL, as an empty text does.
    if nanoseconds != 0 && (ttl < least || ttl > TTL_MAX) {
        let (least, most) = (duration::format_duration(least), duration::format_duration(TTL_MAX));
        return Err(Failure::refused(format!(
            "Invalid Session TTL '{nanoseconds}', must be between [{least}={most}]"
        )));
    }
    Ok(Some(ttl).filter(|ttl| !ttl.is_zero()))
}

fn fresh_id() -> Result<SessionId, Failure> {
    let bytes = random::bytes().map_err(|error| Failure::not_done(error.to_string()))?;
    Ok(SessionId::from_random(bytes))
}

pub(super) async fn destroy(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let session = named(call)?;
    if let Some(reason) = end_reason(call, session)?
        && may_end_own(call).await
    {
        match call.upstream.call(EndSession { session, reason }).await? {
            // The agent retries only ends of sessions of its own node.
            Some(Applied { reply: Reply::Refused(_), .. }) if call.may_operate() => {}
            Some(Applied { reply: Reply::Refused(refusal), .. }) => return Err(refusal.into()),
            _ => return Ok(answer::flag(true, call.layout())),
        }
    }
    let applied = call.propose(Command::DestroySession(session)).await?;
    match applied.reply {
        Reply::Refused(refusal) => Err(refusal.into()),
        _ => Ok(answer::with_write_index(answer::flag(true, call.layout()), applied.index)),
    }
}

/// Returns `true` if the client may end the sessions of this node. Only then does the agent name
/// the session in renewals of the node's lease, which the servers do not judge.
async fn may_end_own(call: &Call<'_>) -> bool {
    let judgement = call.judgement().await;
    judgement.is_ok_and(|rights| rights.permits(Resource::Session, Access::Write, call.own_node()))
}

/// Returns the reason why a guard ends its session; `None` for a plain destroy. With a reason the
/// agent retries the end until the servers report it done, even if the client is gone. Every user
/// of the host can name a reason, so only one that this agent confirms is recorded.
fn end_reason(call: &Call<'_>, session: SessionId) -> Result<Option<EndReason>, Failure> {
    let Some(given_up) = call.params.value("given-up") else {
        return Ok(call.params.has("retry").then_some(EndReason::Closed));
    };
    let claimed = match given_up {
        "" => None,
        text => Some(duration::parse(text).map(clamped).map_err(|error| {
            Failure::refused(format!("Invalid given-up {text:?}: {error}; use a duration such as 3s"))
        })?),
    };
    Ok(Some(call.api.feeds.session_watches.end_reason(session, claimed)))
}

pub(super) async fn renew(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    match call.upstream.call(Renew(named(call)?)).await? {
        Some(session) => {
            call.api.feeds.session_watches.renewed(session.spec.id, session.spec.ttl);
            Ok(answer::json(&[shapes::session(&session)], call.layout()))
        }
        None => Err(Failure::not_found(format!("Session id '{}' not found", call.tail))),
    }
}

/// Returns a session. With `?lease` it includes the lease of its node, which costs a request to the
/// leader.
pub(super) async fn info(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let (answer, mut shown) = read(call, Query::Session(named(call)?)).await?;
    if call.params.has("lease")
        && let (Rows::Sessions(sessions), Some(shown)) = (&answer.rows, shown.first_mut())
        && let Some(session) = sessions.first()
    {
        shown.node_lease = node_lease(call, &session.spec).await;
    }
    Ok(answered(call, &answer, &shown))
}

/// Returns the lease of a session's node, or that it has none; `None` if unknown. Only the leader
/// knows it.
async fn node_lease(call: &Call<'_>, session: &SessionSpec) -> Option<shape::agent::NodeLease> {
    let asked = call.upstream.call(NodeLeaseQuery::Of(session.node.clone()));
    let answer = tokio::time::timeout(DETAILS_TIMEOUT, asked).await.ok()?.ok()?;
    let depends = session.all_checks().any(|check| check.as_str() == SERF_HEALTH);
    let window = Some(session.health_window).filter(|_| depends);
    Some(answer.leases.first().map(|lease| shapes::node_lease(lease, window)).unwrap_or_default())
}

pub(super) async fn list(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.list(Query::Sessions, call.read_options()?, rendered).await
}

pub(super) async fn node(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    if call.tail.is_empty() {
        return Err(Failure::bad_request("Missing node name"));
    }
    let query = Query::NodeSessions(NodeName::from(call.tail));
    call.list(query, call.read_options()?, rendered).await
}

fn rendered(rows: &Rows, layout: Layout) -> Result<Piece, Failure> {
    let Rows::Sessions(sessions) = rows else { return Err(super::misfit::wrong_rows()) };
    Piece::array(sessions.iter().map(|session| Ok(shapes::session(session))), layout)
}

/// Returns the answer to a query for sessions, and the rendered sessions.
async fn read(call: &Call<'_>, query: Query) -> Result<(Arc<Answer>, Vec<shape::session::Session>), Failure> {
    let answer = call.read(query, call.read_options()?, Some(MetaKind::Plain)).await?;
    let Rows::Sessions(sessions) = &answer.rows else { return Err(super::misfit::wrong_rows()) };
    let shown = sessions.iter().map(|session| shapes::session(session)).collect();
    Ok((answer, shown))
}

fn answered(call: &Call<'_>, answer: &Answer, shown: &[shape::session::Session]) -> Response<Body> {
    answer::with_meta(answer::json(shown, call.layout()), answer, MetaKind::Plain)
}

/// Returns the session of the path. An invalid id is merely unknown.
pub(super) fn named(call: &Call<'_>) -> Result<SessionId, Failure> {
    if call.tail.is_empty() {
        return Err(Failure::bad_request("Missing session"));
    }
    Ok(SessionId::parse(call.tail).unwrap_or(SessionId::NIL))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(body: &str) -> Draft {
        parse_body(body.as_bytes()).unwrap()
    }

    #[test]
    fn empty_body_yields_defaults() {
        assert_eq!(parsed(""), Draft::default());
        assert_eq!(parsed("{}"), Draft::default());
        assert_eq!(parsed("null"), Draft::default());
        assert_eq!(parsed(r#"{"ID":"x","CreateIndex":"nonsense","Unknown":[1]}"#), Draft::default());
    }

    #[test]
    fn names_are_read_without_case() {
        let draft =
            parsed(r#"{"name":"n","node":"m","ttl":"15.0s","behavior":"delete","lockdelay":"0.001s"}"#);
        assert_eq!((draft.name.as_str(), draft.node.as_deref()), ("n", Some("m")));
        assert_eq!((draft.ttl.as_str(), draft.behavior.as_str()), ("15.0s", "delete"));
        assert_eq!(draft.lock_delay, 1_000_000);
    }

    #[test]
    fn lock_delays_have_many_forms() {
        for (text, nanoseconds) in [
            ("\"15s\"", 15_000_000_000),
            ("\"0s\"", 0),
            ("\"0\"", 0),
            ("0", 0),
            ("5", 5_000_000_000),
            ("1.5", 1_000_000_000),
            ("\"500ns\"", 500_000_000_000),
            ("1000", 1_000),
            ("15000000000", 15_000_000_000),
            ("null", 15_000_000_000),
            ("true", 0),
            ("[]", 0),
            ("-1", -1_000_000_000),
            ("1e300", i64::MAX),
        ] {
            assert_eq!(parsed(&format!("{{\"LockDelay\":{text}}}")).lock_delay, nanoseconds, "{text}");
        }
        let error = parse_body(br#"{"LockDelay":"abc"}"#).unwrap_err().to_string();
        assert_eq!(error, "time: invalid duration \"abc\"");
    }

    #[test]
    fn checks_and_node_checks_resolution() {
        let serf = || vec![SERF_HEALTH.to_owned()];
        let one = || vec!["x".to_owned()];
        for (body, checks, node_checks) in [
            ("{}", vec![], serf()),
            (r#"{"Checks":[]}"#, vec![], vec![]),
            (r#"{"Checks":null}"#, vec![], vec![]),
            (r#"{"Checks":[],"NodeChecks":["x"]}"#, vec![], vec![]),
            (r#"{"Checks":["serfHealth"],"NodeChecks":["x"]}"#, vec![], one()),
            (r#"{"NodeChecks":[]}"#, vec![], vec![]),
            (r#"{"NodeChecks":null}"#, vec![], vec![]),
            (r#"{"Checks":["x"],"NodeChecks":[]}"#, vec![], vec![]),
            (r#"{"Checks":["x"]}"#, one(), serf()),
        ] {
            let draft = parsed(body);
            assert_eq!((draft.checks, draft.node_checks), (checks, node_checks), "{body}");
        }
    }

    #[test]
    fn wrong_types_are_refused() {
        for body in [r#"{"TTL":10}"#, r#"{"Name":1}"#, r#"{"NodeChecks":"x"}"#, "[]", "\"x\"", "{"] {
            assert!(parse_body(body.as_bytes()).is_err(), "{body}");
        }
    }

    #[test]
    fn ttl_bounds_enforced() {
        let least = Duration::from_secs(10);
        for good in ["", "0s", "10s", "15.0s", "24h"] {
            assert!(judged_ttl(good, least).is_ok(), "{good}");
        }
        for (bad, nanoseconds) in
            [("9s", "9000000000"), ("86401s", "86401000000000"), ("-10s", "-10000000000")]
        {
            let text = format!("Invalid Session TTL '{nanoseconds}', must be between [10s=24h0m0s]");
            assert!(format!("{:?}", judged_ttl(bad, least).unwrap_err()).contains(&text), "{bad}");
        }
        let error = format!("{:?}", judged_ttl("15", least).unwrap_err());
        assert!(error.contains("Session TTL '15' invalid: time: missing unit in duration"), "{error}");
    }

    proptest! {
        #[test]
        fn no_body_is_a_panic(body in r#"[{}\[\]",:a-zA-Z0-9 .-]{0,48}"#) {
            let _ = parse_body(body.as_bytes());
        }
    }
}
