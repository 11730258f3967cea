//! Responses and failures, with exactly the headers that Consul's clients expect.

use super::body::Body;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use lockmesh_client::outcome::{self, Outcome};
use lockmesh_client::shape::json::{Layout, render};
use lockmesh_protocol::id::LogIndex;
use lockmesh_protocol::lease::HealthWindow;
use lockmesh_protocol::query::{Answer, Consistency};
use lockmesh_protocol::reply::Refusal;
use lockmesh_protocol::rpc::Unavailable;
use serde::Serialize;
use std::time::Duration;

const INDEX: HeaderName = HeaderName::from_static("x-consul-index");
const KNOWN_LEADER: HeaderName = HeaderName::from_static("x-consul-knownleader");
const LAST_CONTACT: HeaderName = HeaderName::from_static("x-consul-lastcontact");
const QUERY_BACKEND: HeaderName = HeaderName::from_static("x-consul-query-backend");
const EFFECTIVE_CONSISTENCY: HeaderName = HeaderName::from_static("x-consul-effective-consistency");
const CACHE: HeaderName = HeaderName::from_static("x-cache");
pub(super) const FILTERED: HeaderName = HeaderName::from_static("x-consul-results-filtered-by-acls");
const OUR_INDEX: HeaderName = HeaderName::from_static("x-lockmesh-index");
const OUR_QUEUED: HeaderName = HeaderName::from_static("x-lockmesh-queued");
const OUR_FENCE: HeaderName = HeaderName::from_static("x-lockmesh-fence");
const OUR_HEALTH_WINDOW: HeaderName = HeaderName::from_static("x-lockmesh-health-window");
const OUR_CHANGES: HeaderName = HeaderName::from_static("x-lockmesh-reloaded");
const OUR_OUTCOME: HeaderName = HeaderName::from_static(outcome::HEADER);
const OUR_LOCK_DELAY: HeaderName = HeaderName::from_static("x-lockmesh-lock-delay");

/// The seconds after which a client that exceeds a limit may retry.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("10");
/// The beginning of a refusal for lack of a right, which Consul's clients match.
const NO_RIGHT: &str = "Permission denied";
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The content type of a text for humans.
pub(super) const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// A request that is answered with an error.
#[derive(Debug)]
pub(super) struct Failure {
    status: StatusCode,
    text: Words,
    /// The outcome of the request.
    outcome: Outcome,
    /// Set to send the headers of a read that found nothing.
    with_meta: Option<MetaKind>,
}

/// The read headers that an endpoint sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetaKind {
    /// Index, leader and contact: keys and sessions.
    Plain,
    /// Also the effective consistency: catalog and health.
    Effective(Consistency),
}

/// The text of a failure, which is never empty: many clients show only the body.
#[derive(Debug)]
struct Words(String);

impl Words {
    /// Wraps a text; a blank one is replaced by the status and its reason.
    fn new(status: StatusCode, text: String) -> Self {
        match text.trim().is_empty() {
            true => Self(status.to_string()),
            false => Self(text),
        }
    }
}

impl Failure {
    /// Creates a refusal with any status; the text is the whole body.
    pub(super) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: Words::new(status, text.into()), outcome: Outcome::Refused, with_meta: None }
    }

    /// 400: the client has to change its request.
    pub(super) fn bad_request(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    /// 404.
    pub(super) fn not_found(text: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, text)
    }

    /// 500 for a refusal: Consul's status for errors without a more specific one.
    pub(super) fn refused(text: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    }

    /// 500 for a request that was not done, for a temporary reason.
    pub(super) fn not_done(text: impl Into<String>) -> Self {
        Self::refused(text).with_outcome(Outcome::NotDone)
    }

    /// 500 for a request that may have been done.
    pub(super) fn unknown(text: impl Into<String>) -> Self {
        Self::refused(text).with_outcome(Outcome::Unknown)
    }

    /// Returns the status of the response.
    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the text of the response.
    pub(super) fn reason(&self) -> &str {
        &self.text.0
    }

    /// Replaces the outcome.
    pub(super) fn with_outcome(self, outcome: Outcome) -> Self {
        Self { outcome, ..self }
    }

    /// Replaces the text.
    pub(super) fn in_words(self, text: impl Into<String>) -> Self {
        Self { text: Words::new(self.status, text.into()), ..self }
    }

    /// Adds the headers of a read that had no answer: index 1, no known leader.
    pub(super) fn with_meta(mut self, kind: MetaKind) -> Self {
        self.with_meta = Some(kind);
        self
    }

    /// Returns the response.
    pub(super) fn into_response(self) -> Response<Body> {
        let mut response = with_outcome(text(self.status, self.text.0), self.outcome);
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        if let Some(kind) = self.with_meta {
            write_meta(response.headers_mut(), LogIndex(1), false, Duration::ZERO);
            write_effective(response.headers_mut(), kind);
        }
        response
    }
}

/// Converts a missing reply: 500, because clients retry after that and no other status; but 413 if
/// a retry only costs the servers the same work again.
impl From<Unavailable> for Failure {
    fn from(unavailable: Unavailable) -> Self {
        crate::metrics::UNAVAILABLE.with_label_values(&[unavailable_kind(&unavailable)]).inc();
        let text = unavailable.to_string();
        match unavailable {
            Unavailable::AnswerTooLong { .. } => Self::new(StatusCode::PAYLOAD_TOO_LARGE, text),
            Unavailable::NoAccess(_) => Self::new(StatusCode::FORBIDDEN, text),
            Unavailable::Denied(_) if text.starts_with(NO_RIGHT) => Self::new(StatusCode::FORBIDDEN, text),
            // Because of the request, not for lack of a server: clients must not retry it on their
            // own.
            Unavailable::Denied(_) => Self::refused(text),
            Unavailable::NotLeader { .. }
            | Unavailable::Overloaded(_)
            | Unavailable::Disk(_)
            | Unavailable::Removed
            | Unavailable::NotAdmitted(_)
            | Unavailable::Corrupt => Self::not_done(text),
            Unavailable::Unknown(_) => Self::unknown(text),
        }
    }
}

/// Converts a refusal of the state: 500 with the state's own text.
impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        crate::metrics::REFUSALS.with_label_values(&[refusal_kind(&refusal)]).inc();
        let failure = match &refusal {
            // No client of Consul sends such a request.
            Refusal::Lock(_) => Self::new(StatusCode::CONFLICT, refusal.to_string()),
            // Not the one for a wrong index of a reset.
            Refusal::AclBootstrap(text) if text.starts_with(NO_RIGHT) => {
                Self::new(StatusCode::FORBIDDEN, text)
            }
            Refusal::TooManySessions(..) => Self::new(StatusCode::TOO_MANY_REQUESTS, refusal.to_string()),
            Refusal::OtherNode(_)
            | Refusal::NotOperatorHost(_)
            | Refusal::NoAccess(_)
            | Refusal::AclBootstrap(_) => Self::new(StatusCode::FORBIDDEN, refusal.to_string()),
            _ => Self::refused(refusal.to_string()),
        };
        match refusal {
            // Room may come, and another id is drawn: the same request may succeed.
            Refusal::QueueFull(_) | Refusal::SessionIdInUse(_) | Refusal::TooManySessions(..) => {
                failure.with_outcome(Outcome::NotDone)
            }
            // An earlier attempt was answered, and that reply is no longer known.
            Refusal::Forgotten => failure.with_outcome(Outcome::Unknown),
            _ => failure,
        }
    }
}

fn unavailable_kind(unavailable: &Unavailable) -> &'static str {
    match unavailable {
        Unavailable::NotLeader { .. } => "no_leader",
        Unavailable::Overloaded(_) => "overloaded",
        Unavailable::Disk(_) => "disk",
        Unavailable::Denied(_) => "denied",
        Unavailable::Unknown(_) => "unknown",
        Unavailable::AnswerTooLong { .. } => "too_long",
        Unavailable::Removed => "removed",
        Unavailable::NotAdmitted(_) => "not_admitted",
        Unavailable::Corrupt => "corrupt",
        Unavailable::NoAccess(_) => "no_access",
    }
}

fn refusal_kind(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::InvalidSession(_) => "invalid_session",
        Refusal::SessionIdInUse(_) => "session_id_in_use",
        Refusal::MissingNode => "missing_node",
        Refusal::UnknownMember(_) => "unknown_member",
        Refusal::MissingCheck(_) => "missing_check",
        Refusal::CriticalCheck(_) => "critical_check",
        Refusal::QueueFull(_) => "queue_full",
        Refusal::Catalog(_) => "catalog",
        Refusal::Forgotten => "forgotten",
        Refusal::Roster(_) => "roster",
        Refusal::Restore(_) => "restore",
        Refusal::PreparedQuery(_) => "prepared_query",
        Refusal::Lock(_) => "lock",
        Refusal::OtherNode(_) => "other_node",
        Refusal::NotOperatorHost(_) => "not_operator_host",
        Refusal::TooManySessions(..) => "too_many_sessions",
        Refusal::NoAccess(_) => "no_access",
        Refusal::Acl(_) => "acl",
        Refusal::AclBootstrap(_) => "acl_bootstrap",
    }
}

/// Returns 404 without a body: not a failure, but the answer that there is no such key.
pub(super) fn absent() -> Response<Body> {
    text(StatusCode::NOT_FOUND, "")
}

/// Returns a text for humans; an empty one has no content type.
pub(super) fn text(status: StatusCode, text: impl Into<String>) -> Response<Body> {
    let text = text.into();
    let typed = !text.is_empty();
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    if typed {
        response.headers_mut().insert(header::CONTENT_TYPE, TEXT);
    }
    response
}

/// Returns 200 without a body, for an endpoint without a result.
pub(super) fn nothing() -> Response<Body> {
    Response::new(Body::empty())
}

/// Returns 200 with a value as JSON.
pub(super) fn json<T: Serialize + ?Sized>(value: &T, layout: Layout) -> Response<Body> {
    json_bytes(StatusCode::OK, render(value, layout))
}

/// Returns any status with rendered JSON.
pub(super) fn json_bytes(status: StatusCode, bytes: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(bytes.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

/// Returns 200 with `true` or `false`.
pub(super) fn flag(value: bool, layout: Layout) -> Response<Body> {
    // Every write of a lock is answered with one of these, so nothing is rendered or allocated.
    let bytes: &'static [u8] = match (value, layout.newline) {
        (true, false) => b"true",
        (false, false) => b"false",
        (true, true) => b"true\n",
        (false, true) => b"false\n",
    };
    json_bytes(StatusCode::OK, bytes)
}

/// Adds the headers of a read.
pub(super) fn with_meta(mut response: Response<Body>, answer: &Answer, kind: MetaKind) -> Response<Body> {
    let headers = response.headers_mut();
    write_meta(headers, answer.index, answer.known_leader, answer.last_contact);
    write_effective(headers, kind);
    filtered_if(answer.is_filtered, response)
}

/// Marks an answer without the rows to which the client has no right. The router removes the mark
/// for clients without a token.
pub(super) fn filtered(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(FILTERED, HeaderValue::from_static("true"));
    response
}

/// The same for an answer that may have all rows.
pub(super) fn filtered_if(is_filtered: bool, response: Response<Body>) -> Response<Body> {
    if is_filtered { filtered(response) } else { response }
}

/// Adds the index of an answer that is not read from the state.
pub(super) fn with_index(mut response: Response<Body>, index: u64) -> Response<Body> {
    response.headers_mut().insert(INDEX, index.into());
    response
}

/// Adds only what is known of the leader, for a read without an index of its own.
pub(super) fn with_contact(mut response: Response<Body>, answer: &Answer) -> Response<Body> {
    write_contact(response.headers_mut(), answer.known_leader, answer.last_contact);
    filtered_if(answer.is_filtered, response)
}

/// Marks the answer to `?cached` as fresh: nothing is cached here.
pub(super) fn with_cache_miss(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CACHE, HeaderValue::from_static("MISS"));
    response
}

/// Adds the index at which a write took effect: a Lockmesh header, which Consul's clients ignore.
pub(super) fn with_write_index(mut response: Response<Body>, index: LogIndex) -> Response<Body> {
    response.headers_mut().insert(OUR_INDEX, index.0.into());
    response
}

/// Adds the index of the enqueue of a lock that was granted after a wait.
pub(super) fn with_queued(mut response: Response<Body>, asked: LogIndex) -> Response<Body> {
    response.headers_mut().insert(OUR_QUEUED, asked.0.into());
    response
}

/// Adds the health window of a created session, which its creator may have omitted.
pub(super) fn with_health_window(mut response: Response<Body>, window: HealthWindow) -> Response<Body> {
    response.headers_mut().insert(OUR_HEALTH_WINDOW, HeaderValue::from_static(window.as_str()));
    response
}

/// Adds the outcome of a failed request.
pub(super) fn with_outcome(mut response: Response<Body>, outcome: Outcome) -> Response<Body> {
    response.headers_mut().insert(OUR_OUTCOME, HeaderValue::from_static(outcome.word()));
    response
}

/// Adds the fencing token of a grant.
pub(super) fn with_fence(mut response: Response<Body>, fence: u64) -> Response<Body> {
    response.headers_mut().insert(OUR_FENCE, fence.into());
    response
}

/// Adds the changes of a reload, separated by semicolons.
pub(super) fn with_changes(mut response: Response<Body>, changes: &[String]) -> Response<Body> {
    // A header value allows nothing else, and paths may contain any character.
    let printable = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
    let text: String = changes.join("; ").chars().map(printable).collect();
    let value = HeaderValue::try_from(text).expect("it is printable ASCII");
    response.headers_mut().insert(OUR_CHANGES, value);
    response
}

/// Adds the remaining lock-delay that refused a grant.
pub(super) fn with_lock_delay(mut response: Response<Body>, remaining: Duration) -> Response<Body> {
    let text = crate::go::duration::format_duration(remaining);
    // Go writes microseconds with a non-ASCII letter; header values are ASCII.
    let value = HeaderValue::try_from(text.replace('µ', "u")).expect("a duration is printable ASCII");
    response.headers_mut().insert(OUR_LOCK_DELAY, value);
    response
}

/// Writes the headers of a read, with an index that is never 0.
pub(super) fn write_meta(
    headers: &mut HeaderMap,
    index: LogIndex,
    known_leader: bool,
    last_contact: Duration,
) {
    // A client that receives 0 polls without waiting.
    headers.insert(INDEX, index.0.max(1).into());
    write_contact(headers, known_leader, last_contact);
    headers.insert(QUERY_BACKEND, HeaderValue::from_static("blocking-query"));
}

fn write_contact(headers: &mut HeaderMap, known_leader: bool, last_contact: Duration) {
    let known = if known_leader { "true" } else { "false" };
    headers.insert(KNOWN_LEADER, HeaderValue::from_static(known));
    let milliseconds = u64::try_from(last_contact.as_millis()).unwrap_or(u64::MAX);
    headers.insert(LAST_CONTACT, milliseconds.into());
}

fn write_effective(headers: &mut HeaderMap, kind: MetaKind) {
    let MetaKind::Effective(consistency) = kind else { return };
    headers.insert(EFFECTIVE_CONSISTENCY, HeaderValue::from_static(consistency_name(consistency)));
}

/// Returns the API's name of a consistency mode.
pub(super) fn consistency_name(consistency: Consistency) -> &'static str {
    match consistency {
        // Consul's name for its default.
        Consistency::Default => "leader",
        Consistency::Consistent => "consistent",
        Consistency::Stale => "stale",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_text_is_never_empty() {
        for blank in ["", " ", "\n"] {
            assert_eq!(Failure::bad_request(blank).text.0, "400 Bad Request");
            assert_eq!(Failure::refused(blank).text.0, "500 Internal Server Error");
            let replaced = Failure::not_found("no such thing").in_words(blank);
            assert_eq!(replaced.text.0, "404 Not Found");
        }
        let unnamed = StatusCode::from_u16(599).expect("a status");
        assert!(!Failure::new(unnamed, "").text.0.trim().is_empty());
        assert_eq!(Failure::refused("Invalid index\n").text.0, "Invalid index\n", "as it was sent");
    }
}
