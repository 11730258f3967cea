//! The audit log: one line for each operator request and each recursive delete.
//!
//! A line has the target `audit`, the level INFO, and these fields: `peer` (`unix` or a TCP
//! address), `uid` and `pid` of a process on the Unix socket, `token` (the accessor id of the
//! request's token, with access control), `node` (this agent's), `request`
//! (method and path, without parameters that may hold a secret), `keys` (the prefixes of a
//! recursive delete) and `result` (the status of the response). Values of keys and tokens are never
//! logged.
//!
//! Each executed operator request has its line. Clients can cause any number of refused requests
//! and of recursive deletes, so those are limited to [`LINES_AT_ONCE`] lines and
//! [`LINES_PER_SECOND`] a second on average. `suppressed` of the next line, and
//! `lockmesh_http_limits_total`, count the rest.

use super::answer::Failure;
use super::body::Body;
use super::call::Call;
use crate::monitor::{AUDIT, cut};
use http::{Response, StatusCode};
use lockmesh_protocol::time::Time;
use lockmesh_protocol::token_bucket::TokenBucket;
use std::borrow::Cow;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The maximum number of lines of one kind at once.
const LINES_AT_ONCE: u64 = 100;

/// The maximum number of lines of one kind per second, on average.
const LINES_PER_SECOND: u64 = 10;

/// The maximum length of a text in a line, in bytes.
const MAX_TEXT: usize = 512;

/// The length of a UUID, and the number of its first characters that a line shows.
const UUID_LENGTH: usize = 36;
const SHOWN_ID: usize = 8;

/// The parameters that a line shows. A token is not among them.
const SHOWN: [&str; 8] = ["id", "address", "prune", "from", "enable", "recurse", "cas", "dc"];

/// The audited action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// An operator request.
    Operate,
    /// A delete by prefix.
    DeleteTree,
}

/// The quotas of an agent's audit log.
#[derive(Debug)]
pub(super) struct Audit {
    begun: Instant,
    failures: Mutex<Quota>,
    deletes: Mutex<Quota>,
}

#[derive(Debug)]
struct Quota {
    lines: TokenBucket,
    suppressed: u64,
}

impl Default for Audit {
    fn default() -> Self {
        let full = || {
            let lines = TokenBucket::full(Time(0), LINES_AT_ONCE, LINES_PER_SECOND);
            Mutex::new(Quota { lines, suppressed: 0 })
        };
        Self { begun: Instant::now(), failures: full(), deletes: full() }
    }
}

impl Audit {
    /// Returns the number of lines suppressed before this one; `None` if this one is suppressed.
    fn admit(&self, action: Action, status: Option<StatusCode>) -> Option<u64> {
        let now = Time(u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX));
        let quota = match (action, status) {
            (Action::DeleteTree, _) => &self.deletes,
            // Its outcome may be unknown: it counts as executed.
            (Action::Operate, None) => return Some(0),
            (Action::Operate, Some(status)) if status.is_success() => return Some(0),
            (Action::Operate, Some(_)) => &self.failures,
        };
        let admitted = quota.lock().unwrap_or_else(PoisonError::into_inner).admit(now);
        if admitted.is_none() {
            crate::metrics::LIMITS.with_label_values(&["audit"]).inc();
        }
        admitted
    }
}

impl Quota {
    fn admit(&mut self, now: Time) -> Option<u64> {
        if self.lines.takes(now, 1) {
            return Some(std::mem::take(&mut self.suppressed));
        }
        self.suppressed += 1;
        None
    }
}

/// Answers a request, and logs its client and its outcome. `keys` are the prefixes that are
/// deleted.
///
/// # Errors
/// Those of the response.
pub(super) async fn recorded(
    call: &Call<'_>,
    action: Action,
    keys: &[&str],
    answer: impl Future<Output = Result<Response<Body>, Failure>>,
) -> Result<Response<Body>, Failure> {
    // Deletes are frequent, and the servers have judged them.
    let token = if action == Action::Operate { call.accessor().await } else { None };
    let mut record = Record {
        call,
        action,
        token,
        // The debug format escapes line breaks, so that the keys stay on one line.
        keys: (!keys.is_empty()).then(|| cut(format!("{keys:?}"), MAX_TEXT)),
        status: None,
    };
    let answer = answer.await;
    record.status = Some(answer.as_ref().map_or_else(Failure::status, Response::status));
    answer
}

/// A request under way. Its line is written when it is dropped, even if its client is gone.
struct Record<'c> {
    call: &'c Call<'c>,
    action: Action,
    token: Option<String>,
    keys: Option<String>,
    status: Option<StatusCode>,
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        let Self { call, action, token, keys, status } = self;
        let Some(suppressed) = call.api.access.audit.admit(*action, *status) else { return };
        let suppressed = (suppressed > 0).then_some(suppressed);
        let (peer, uid, pid) = (call.peer, call.peer.uid(), call.peer.pid());
        let (node, request) = (&call.api.identity.node, request(call));
        let result = status.map_or_else(|| "unknown".into(), |status| status.as_u16().to_string());
        let keys = keys.as_deref();
        match action {
            Action::Operate => {
                let token = token.as_deref();
                tracing::info!(target: AUDIT, %peer, uid, pid, token, %node, request, keys, result, suppressed, "operator request");
            }
            Action::DeleteTree => {
                tracing::info!(target: AUDIT, %peer, uid, pid, %node, request, keys, result, suppressed, "recursive delete");
            }
        }
    }
}

/// Returns the method, the path and the parameters without secrets, as they were sent: escapes keep
/// it on one line.
fn request(call: &Call<'_>) -> String {
    let mut text = format!("{} {}", call.head.method, without_secret(call.head.uri.path()));
    let query = call.head.uri.query().unwrap_or_default();
    let shown = query.split('&').filter(|pair| {
        let name = pair.split_once('=').map_or(*pair, |(name, _)| name);
        SHOWN.contains(&name)
    });
    for (number, pair) in shown.enumerate() {
        text.push(if number == 0 { '?' } else { '&' });
        text.push_str(pair);
    }
    cut(text, MAX_TEXT)
}

/// Returns a path with only the start of a token's id: a client may have sent the secret instead.
fn without_secret(path: &str) -> Cow<'_, str> {
    const TOKEN: &str = "/v1/acl/token/";
    match path.strip_prefix(TOKEN).filter(|rest| *rest != "self") {
        Some(rest) if rest.len() >= UUID_LENGTH => {
            let shown: String = rest.chars().take(SHOWN_ID).collect();
            format!("{TOKEN}{shown}…").into()
        }
        Some(_) => format!("{TOKEN}…").into(),
        None => path.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_path_shown_without_secret() {
        let uuid = "b78d37b2-0f1d-4a1e-9f0b-3f0f5f0c8d11";
        for (path, shown) in [
            (format!("/v1/acl/token/{uuid}/clone"), "/v1/acl/token/b78d37b2…"),
            ("/v1/acl/token/root".into(), "/v1/acl/token/…"),
            ("/v1/acl/token/self".into(), "/v1/acl/token/self"),
            ("/v1/acl/policy/x".into(), "/v1/acl/policy/x"),
        ] {
            assert_eq!(without_secret(&path), shown);
        }
    }

    #[test]
    fn flood_logs_burst_and_suppressed_count() {
        let mut quota =
            Quota { lines: TokenBucket::full(Time(0), LINES_AT_ONCE, LINES_PER_SECOND), suppressed: 0 };
        let admitted = (0..1_000).filter_map(|_| quota.admit(Time(0))).collect::<Vec<_>>();
        assert_eq!(admitted, [0; 100]);
        assert_eq!(quota.admit(Time(1_000_000)), Some(900));
        assert_eq!(quota.admit(Time(1_000_000)), Some(0));
    }

    #[test]
    fn executed_requests_always_logged() {
        let audit = Audit::default();
        let admitted = |status| (0..1_000).filter(|_| audit.admit(Action::Operate, status).is_some()).count();
        assert_eq!((admitted(Some(StatusCode::OK)), admitted(None)), (1_000, 1_000));
        assert!(admitted(Some(StatusCode::FORBIDDEN)) < 200);
    }
}
