//! Requests that have waited for too long at a leader: behind its disk, or for a majority of the
//! servers to store them.
//!
//! A leader keeps its role while its disk takes no write, since heartbeats need none. What waits
//! for that disk ends here, with the reason, before the agents that sent it give up. A write stays
//! in the log and may still be committed, so its outcome is unknown: the agent sends it again under
//! the same request id. **Invariant:** a renewal that ends here was not acknowledged, so the
//! session may expire from then on.

use crate::core::{Core, Origin};
use crate::input::CallToken;
use crate::judge::LeaseAnswer;
use crate::outbox::Outbox;
use crate::read_index::{REQUEST_TIMEOUT, Reader};
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;

/// The requests that have waited for too long.
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
    /// Takes out the requests that have waited for too long at this leader. Each of them is to be
    /// answered by [`Core::end_overdue`].
    pub(crate) fn take_overdue(&mut self, now: Time) -> Overdue {
        // After a pause the answer of the disk may lie unread.
        if !self.engine.is_leader() || !self.is_running(now) {
            return Overdue::default();
        }
        let mut writes = Vec::new();
        for origin in self.pending_origins() {
            let Origin::Client(token, came) = *origin else { continue };
            // In the order of their arrival: those behind it have waited for less.
            if now.since(came) < REQUEST_TIMEOUT {
                break;
            }
            writes.push(token);
            *origin = Origin::Nobody;
        }
        Overdue { writes, readers: self.read_index.older_than(now, REQUEST_TIMEOUT) }
    }

    /// Answers requests that have waited for too long.
    pub(crate) fn end_overdue(&mut self, overdue: Overdue, cause: &str, outbox: &mut Outbox) {
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
                    let answer = LeaseAnswer::Unavailable(not_known("the lease was renewed"));
                    self.judge.answer(caller, answer, outbox);
                }
            }
        }
    }
}
