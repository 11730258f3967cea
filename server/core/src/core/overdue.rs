//! Requests that have waited too long at a leader: for its disk, or for a majority of the servers
//! to store them.
//!
//! A leader keeps its role while its disk accepts no writes, since heartbeats need none. Requests
//! that wait for that disk end here, with the reason, before the agents that sent them give up. A
//! write stays in the log and may still be committed, so its outcome is unknown: the agent retries
//! it under the same request id. **Invariant:** a renewal that ends here was not acknowledged, so
//! the session may expire from then on.

use super::Core;
use crate::input::CallToken;
use crate::judge::JudgeInput;
use crate::outbox::Outbox;
use crate::read_index::{REQUEST_TIMEOUT, Reader};
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;

/// The requests that have waited too long.
#[derive(Debug, Default)]
pub(crate) struct Overdue {
    writes: Vec<CallToken>,
    readers: Vec<Reader>,
}

impl Overdue {
    /// The number of requests.
    pub(crate) fn len(&self) -> usize {
        self.writes.len() + self.readers.len()
    }
}

impl Core {
    /// Takes the requests that have waited too long at this leader. The caller must answer each of
    /// them with [`Core::end_overdue`].
    pub(crate) fn take_overdue(&mut self, now: Time) -> Overdue {
        // After a pause the disk's completions may be unread.
        if !self.replica.engine.is_leader() || !self.deadlines.is_running(now) {
            return Overdue::default();
        }
        let writes = self.replica.proposals.take_overdue(now, REQUEST_TIMEOUT);
        Overdue { writes, readers: self.replica.read_index.older_than(now, REQUEST_TIMEOUT) }
    }

    /// Replies to requests that have waited too long.
    pub(crate) fn end_overdue(&mut self, now: Time, overdue: Overdue, cause: &str, outbox: &mut Outbox) {
        self.observer.observed.requests_timed_out += overdue.len() as u64;
        let not_known = |what: &str| Unavailable::Unknown(format!("{cause}; it is unknown whether {what}"));
        for token in overdue.writes {
            outbox.fail(token, not_known("the request was applied"));
        }
        for reader in overdue.readers {
            match reader {
                Reader::Query(token) => {
                    let why = Unavailable::Unknown(format!("{cause}; the read was not answered"));
                    outbox.refused_reads.push((token, why));
                }
                Reader::Renewal(token, _) => outbox.fail(token, not_known("the session was renewed")),
                Reader::Unchanged(token) => outbox.fail(token, not_known("the request was applied")),
                Reader::Lease(caller, _) => {
                    let why = not_known("the lease was renewed");
                    self.judge(now, JudgeInput::RoundFailed(caller, why), outbox);
                }
            }
        }
    }
}

/// The reply to a renewal of a session whose expiry is proposed.
pub(crate) fn expiry_is_being_decided() -> Unavailable {
    let why = "the session was not renewed in time: its expiry is being decided";
    Unavailable::Unknown(why.into())
}
