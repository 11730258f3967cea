//! What can go wrong, sorted by who must act and what became of the request.
//!
//! Nothing here is logged: whoever handles an error decides that.

use crate::address::Address;
use crate::loss::Loss;
use crate::outcome::Outcome;
use std::io;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The settings make no sense; nothing was tried. The text says what to change.
    #[error("{0}")]
    Settings(String),
    /// There is nobody at the agent's socket; certainly nothing was done.
    #[error("cannot connect to the agent at {address}: {source}; {}", advice(address))]
    Unreachable {
        /// Where the agent should be.
        address: Address,
        /// Why it is not.
        source: io::Error,
    },
    /// The connection broke or time ran out before an answer came: a write may or may not have been
    /// done. Ask.
    #[error(
        "no answer from the agent at {address}: {reason}; whether the request was carried out is unknown"
    )]
    Unanswered {
        /// The agent that was asked.
        address: Address,
        /// How it ended.
        reason: String,
    },
    /// The agent or the cluster cannot do it at present; certainly nothing was done. Try again
    /// later.
    #[error("unavailable, try again later ({status}): {text}")]
    Unavailable {
        /// The HTTP status.
        status: u16,
        /// The agent's words.
        text: String,
    },
    /// It failed on its way, or the agent is Consul's and does not say: a write may or may not have
    /// been done. Look before trying again, unless it may be done twice.
    #[error("unknown whether the request was carried out ({status}): {text}")]
    UnknownOutcome {
        /// The HTTP status.
        status: u16,
        /// The agent's words.
        text: String,
    },
    /// The request was understood and refused; the same one will be refused again. Nothing was
    /// done.
    #[error("refused ({status}): {text}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The agent's words.
        text: String,
    },
    /// The answer is not what the API promises. Is something else listening there?
    #[error(
        "the agent at {address} answered something else than expected: {reason}; is it a Lockmesh agent?"
    )]
    Garbled {
        /// The agent that was asked.
        address: Address,
        /// What is wrong with its answer.
        reason: String,
    },
    /// This client has too many requests under way; nothing was sent.
    #[error("more than {limit} requests are under way in this client: let some finish first")]
    Saturated {
        /// How many a client may have.
        limit: usize,
    },
    /// The key is used by something else than what was asked for; nothing was changed.
    #[error("{key:?} is in use for something else: {reason}; choose another key or remove it")]
    Conflict {
        /// Which key.
        key: String,
        /// How that shows.
        reason: String,
    },
    /// The session that this rests on has ended: begin again with a new one.
    #[error("the session has ended: {0}")]
    SessionLost(Loss),
    /// Reading the backup's source or writing to its destination failed.
    #[error("cannot copy the backup: {0}")]
    Copy(#[source] io::Error),
}

impl Error {
    /// Whether the same call may well succeed a little later.
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

    /// Whether it is certain that the call changed nothing.
    pub fn certainly_not_done(&self) -> bool {
        !matches!(
            self,
            Self::Unanswered { .. } | Self::UnknownOutcome { .. } | Self::Garbled { .. } | Self::Copy(_)
        )
    }

    /// Sorts an answer that is not a success: by what it says of its outcome, or else, as Consul's
    /// answers, by status and words.
    pub(crate) fn from_answer(status: u16, outcome: Option<&str>, text: String) -> Self {
        match outcome.and_then(Outcome::parse).unwrap_or_else(|| guessed(status, &text)) {
            Outcome::Refused => Self::Refused { status, text },
            Outcome::NotDone => Self::Unavailable { status, text },
            Outcome::Unknown => Self::UnknownOutcome { status, text },
        }
    }

    /// Whether the server refused because a session named in the request does not exist.
    pub(crate) fn is_invalid_session(&self) -> bool {
        matches!(self, Self::Refused { text, .. } if text.contains("invalid session"))
    }
}

/// What became of a request whose answer does not say so: Consul says 500 both for "cannot at
/// present" and for a good many refusals.
fn guessed(status: u16, text: &str) -> Outcome {
    match status {
        // Turned away before it was looked at.
        429 => Outcome::NotDone,
        500.. if is_refusal(text) => Outcome::Refused,
        500.. => Outcome::Unknown,
        // The request itself is at fault, and was refused before anything was done.
        _ => Outcome::Refused,
    }
}

/// What a 500 of Consul's says when asking again is pointless. An unknown text is taken for
/// unavailability: a holder that asks again in vain gives up at its own deadline, one that gives up
/// in vain has lost a lock.
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
    fn an_answer_that_tells_its_outcome_is_believed_whatever_its_words() {
        let error = |word, text: &str| Error::from_answer(500, Some(word), text.into());
        assert!(matches!(error("refused", "No cluster leader"), Error::Refused { status: 500, .. }));
        assert!(matches!(error("not-done", "invalid session"), Error::Unavailable { status: 500, .. }));
        assert!(error("not-done", "x").is_transient() && error("not-done", "x").certainly_not_done());
        assert!(matches!(error("unknown", "Missing check"), Error::UnknownOutcome { status: 500, .. }));
        assert!(error("unknown", "x").is_transient() && !error("unknown", "x").certainly_not_done());
        // A word of a later build tells nothing to this one.
        assert!(error("postponed", "No cluster leader").is_transient());
        assert!(!error("postponed", "No cluster leader").certainly_not_done());
    }

    #[test]
    fn an_answer_of_consuls_is_sorted_by_status_and_words() {
        let transient = |status, text: &str| Error::from_answer(status, None, text.into()).is_transient();
        assert!(Error::from_answer(429, None, "slow down".into()).certainly_not_done());
        assert!(!Error::from_answer(500, None, "No cluster leader".into()).certainly_not_done());
        assert!(transient(500, "No cluster leader"));
        assert!(transient(500, "some words that nobody foresaw"));
        assert!(transient(503, ""));
        assert!(transient(429, "slow down"));
        assert!(!transient(500, "invalid session \"x\""));
        assert!(!transient(500, "raft apply failed: invalid session \"x\""));
        assert!(!transient(400, "Invalid index"));
        assert!(!transient(413, "too large"));
    }

    #[test]
    fn an_unreachable_agent_is_named() {
        let source = io::Error::from(io::ErrorKind::NotFound);
        let text = Error::Unreachable { address: Address::Unix("/run/x.sock".into()), source }.to_string();
        assert!(text.contains("unix:///run/x.sock") && text.contains("lockmesh agent"), "{text}");
    }
}
