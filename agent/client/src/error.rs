//! Errors, sorted by who must act and by the outcome of the request.
//!
//! Errors are never logged here: the code that handles an error decides that.

use crate::address::Address;
use crate::duration::format_duration;
use crate::loss::Loss;
use crate::outcome::Outcome;
use std::io;
use std::time::Duration;

/// The reason why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Invalid settings; no request was sent. The text describes the correction.
    #[error("{0}")]
    Settings(String),
    /// No agent listens at the address; certainly nothing was done.
    #[error("cannot connect to the agent at {address}: {source}; {}", advice(address))]
    Unreachable {
        /// The expected address of the agent.
        address: Address,
        /// The connection error.
        source: io::Error,
    },
    /// The connection broke or the request timed out before a reply arrived. The outcome of a write
    /// is unknown: read the state to find out.
    #[error("no reply from the agent at {address}: {reason}; the outcome of the request is unknown")]
    Unanswered {
        /// The agent's address.
        address: Address,
        /// The reason why no reply arrived.
        reason: String,
    },
    /// The agent or the cluster is temporarily unavailable; certainly nothing was done. Retry
    /// later.
    #[error("unavailable, try again later ({status}): {text}")]
    Unavailable {
        /// The HTTP status.
        status: u16,
        /// The agent's message.
        text: String,
    },
    /// The request failed on its way, or a Consul agent replied without an outcome: a write may or
    /// may not have been done. Read the state before retrying, unless the write is idempotent.
    #[error("unknown whether the request was carried out ({status}): {text}")]
    UnknownOutcome {
        /// The HTTP status.
        status: u16,
        /// The agent's message.
        text: String,
    },
    /// The request was rejected and will be rejected again. Nothing was done.
    #[error("refused ({status}): {text}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The agent's message.
        text: String,
    },
    /// The reply violates the API. The listener may not be a Lockmesh agent.
    #[error("unexpected reply from the agent at {address}: {reason}; is it a Lockmesh agent?")]
    Garbled {
        /// The agent's address.
        address: Address,
        /// The defect of the reply.
        reason: String,
    },
    /// This client has too many concurrent requests; nothing was sent.
    #[error("this client already has {limit} requests in flight: let some finish first")]
    Saturated {
        /// The maximum number of concurrent requests of a client.
        limit: usize,
    },
    /// The key has another use; nothing was changed.
    #[error("{key:?} {reason}: choose another name, or remove it")]
    Conflict {
        /// The key.
        key: String,
        /// The other use: "is a semaphore, not a lock".
        reason: String,
    },
    /// Others use the semaphore with another number of slots; nothing was changed.
    #[error(
        "the semaphore {prefix:?} has {stored} slots, not {wanted}: use {stored} as the number of slots, as its \
         holders do, or wait until all holders have left"
    )]
    SlotCount {
        /// The prefix of the semaphore.
        prefix: String,
        /// The number of slots that its holders use.
        stored: usize,
        /// The number of slots that this client uses.
        wanted: usize,
    },
    /// The session has ended: start again with a new one.
    #[error("the session has ended: {0}")]
    SessionLost(Loss),
    /// Reading the backup's source or writing to its destination failed.
    #[error("cannot copy the backup: {0}")]
    Copy(#[source] io::Error),
}

impl Error {
    /// Returns `true` if the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::Unanswered { .. }
                | Self::Unavailable { .. }
                | Self::UnknownOutcome { .. }
                | Self::Saturated { .. }
        )
    }

    /// Returns `true` if the call certainly changed nothing.
    pub fn certainly_not_done(&self) -> bool {
        !matches!(
            self,
            Self::Unanswered { .. } | Self::UnknownOutcome { .. } | Self::Garbled { .. } | Self::Copy(_)
        )
    }

    /// Classifies an unsuccessful reply: by the outcome that it names, otherwise by status and
    /// text, as for Consul's replies.
    pub(crate) fn from_answer(status: u16, outcome: Option<&str>, text: String) -> Self {
        match outcome.and_then(Outcome::parse).unwrap_or_else(|| guessed(status, &text)) {
            Outcome::Refused => Self::Refused { status, text: reworded(text) },
            Outcome::NotDone => Self::Unavailable { status, text },
            Outcome::Unknown => Self::UnknownOutcome { status, text },
        }
    }

    /// Returns `true` if the server rejected the request because a session in it does not exist.
    pub(crate) fn is_invalid_session(&self) -> bool {
        matches!(self, Self::Refused { text, .. } if text.contains("invalid session"))
    }
}

/// Replaces Consul's words where they mislead: a TTL in nanoseconds, and the documentation of a key
/// that agents of Lockmesh do not have.
fn reworded(text: String) -> String {
    const DOCUMENTATION: &str = "See https://developer.hashicorp.com/docs/agent/config/config-files#";
    if let Some(ttl) = reworded_ttl(&text) {
        return ttl;
    }
    [
        ("kv_max_value_size.", "The limit is `http.max_value_bytes` of the agent."),
        ("txn_max_req_len.", "The limit is `http.max_transaction_bytes` of the agent."),
    ]
    .into_iter()
    .fold(text, |text, (key, limit)| text.replace(&format!("{DOCUMENTATION}{key}"), limit))
}

fn reworded_ttl(text: &str) -> Option<String> {
    let (nanoseconds, range) =
        text.strip_prefix("Invalid Session TTL '")?.split_once("', must be between [")?;
    let (least, most) = range.trim_end().strip_suffix(']')?.split_once('=')?;
    let ttl = format_duration(Duration::from_nanos(nanoseconds.parse().ok()?));
    Some(format!("TTL {ttl} is not between {least} (`http.session_ttl_min` of the agent) and {most}"))
}

/// Guesses the outcome of a reply that does not name it: Consul uses 500 both for temporary
/// unavailability and for many refusals.
fn guessed(status: u16, text: &str) -> Outcome {
    match status {
        // Rejected before it was processed.
        429 => Outcome::NotDone,
        500.. if is_refusal(text) => Outcome::Refused,
        500.. => Outcome::Unknown,
        // The request itself is invalid and was rejected before anything was done.
        _ => Outcome::Refused,
    }
}

/// Returns `true` if the text of Consul's 500 is permanent, so that a retry is pointless. An
/// unknown text counts as unavailability: a holder that retries without success gives up at its
/// deadline, but a holder that gives up wrongly loses its lock.
fn is_refusal(text: &str) -> bool {
    const REFUSALS: [&str; 14] = [
        "invalid session",
        "missing session",
        "Missing node registration",
        "Missing check",
        "is in critical state",
        "Must provide",
        "Invalid Behavior",
        "Invalid Session TTL",
        "Session TTL '",
        "strconv.",
        "Failed to create boolean expression evaluator",
        "No path to datacenter",
        "was not found in the Raft configuration",
        "cannot be restored",
    ];
    // Anywhere in the text: servers of Consul prefix an error that they pass on.
    REFUSALS.iter().any(|refusal| text.contains(refusal))
}

fn advice(address: &Address) -> &'static str {
    match address {
        Address::Unix(_) => {
            "is `lockmesh agent` or `lockmesh dev` running, is this its socket, and may this user open it?"
        }
        Address::Tcp { .. } => {
            "is `lockmesh agent` or `lockmesh dev` running? Set LOCKMESH_HTTP_ADDR if the agent listens elsewhere"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declared_outcome_overrides_text() {
        let error = |word, text: &str| Error::from_answer(500, Some(word), text.into());
        assert!(matches!(error("refused", "No cluster leader"), Error::Refused { status: 500, .. }));
        assert!(matches!(error("not-done", "invalid session"), Error::Unavailable { status: 500, .. }));
        assert!(error("not-done", "x").is_transient() && error("not-done", "x").certainly_not_done());
        assert!(matches!(error("unknown", "Missing check"), Error::UnknownOutcome { status: 500, .. }));
        assert!(error("unknown", "x").is_transient() && !error("unknown", "x").certainly_not_done());
        // This build ignores an outcome that only a later build knows.
        assert!(error("postponed", "No cluster leader").is_transient());
        assert!(!error("postponed", "No cluster leader").certainly_not_done());
    }

    #[test]
    fn classifies_consul_status_and_text() {
        let transient = |status, text: &str| Error::from_answer(status, None, text.into()).is_transient();
        assert!(Error::from_answer(429, None, "slow down".into()).certainly_not_done());
        assert!(!Error::from_answer(500, None, "No cluster leader".into()).certainly_not_done());
        assert!(transient(500, "No cluster leader"));
        assert!(transient(500, "an unknown text"));
        assert!(transient(503, ""));
        assert!(transient(429, "slow down"));
        assert!(!transient(500, "invalid session \"x\""));
        assert!(!transient(500, "raft apply failed: invalid session \"x\""));
        assert!(!transient(400, "Invalid index"));
        assert!(!transient(413, "too large"));
    }

    #[test]
    fn misleading_consul_errors_rewritten() {
        let told = |text: &str| Error::from_answer(500, Some("refused"), text.into()).to_string();
        let ttl = told("Invalid Session TTL '5000000000', must be between [10s=24h0m0s]");
        assert!(
            ttl.ends_with("TTL 5s is not between 10s (`http.session_ttl_min` of the agent) and 24h0m0s"),
            "{ttl}"
        );
        let size = told(
            "Request body(9 bytes) too large, max size: 8 bytes. See \
             https://developer.hashicorp.com/docs/agent/config/config-files#kv_max_value_size.",
        );
        assert!(
            size.ends_with("max size: 8 bytes. The limit is `http.max_value_bytes` of the agent."),
            "{size}"
        );
        assert!(told("Missing check 'x'").ends_with("Missing check 'x'"));
    }

    #[test]
    fn an_unreachable_agent_is_named() {
        let source = io::Error::from(io::ErrorKind::NotFound);
        let text = Error::Unreachable { address: Address::Unix("/run/x.sock".into()), source }.to_string();
        assert!(text.contains("unix:///run/x.sock") && text.contains("lockmesh agent"), "{text}");
    }
}
