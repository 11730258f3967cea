//! Ends of sessions that the agent sees through, although the client that asked for one is gone.
//! A guard that stops believing in its session ends it, so that the locks pass on. Often no server
//! can be reached at that moment, and the client process ends soon after. The agent outlives it: it
//! retries the end until the servers report it done, and names the session in each answer to a
//! challenge, which may reach a server when no command does.
//! **Invariant:** an end is never taken back. A session whose end was ordered is in the list until
//! the servers report the outcome or the agent stops.

use super::input::{CallToken, EndReason};
use super::outbox::Answered;
use super::owner::Owner;
use super::{Caller, QuorumClient};
use lockmesh_protocol::command::Command;
use lockmesh_protocol::given_up::{GivenUpSession, GivenUpSessions, MAX_GIVEN_UP};
use lockmesh_protocol::id::SessionId;
use lockmesh_protocol::rpc::{Response, Unavailable};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

/// The maximum number of ends under way: each keeps a request id in use.
const MAX_ENDS: usize = 1_024;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct SessionEnds {
    under_way: BTreeMap<SessionId, SessionEnd>,
    /// The session that was named last in an answer to a challenge.
    named_last: Option<SessionId>,
}

#[derive(Debug)]
struct SessionEnd {
    silent_for: Option<Duration>,
    /// The callers that wait for the outcome.
    callers: Vec<CallToken>,
}

impl SessionEnds {
    /// The next sessions to name; none where no end is under way. Where there are more than fit,
    /// all of them have their turn.
    pub(super) fn next_named(&mut self) -> Option<GivenUpSessions> {
        let after = self.named_last.map_or(Bound::Unbounded, Bound::Excluded);
        let listed = |(session, end): (&SessionId, &SessionEnd)| GivenUpSession {
            session: *session,
            silent_for: end.silent_for,
        };
        let later = self.under_way.range((after, Bound::Unbounded)).map(listed);
        let named: Vec<_> = later.chain(self.under_way.iter().map(listed)).collect();
        let count = MAX_GIVEN_UP.min(self.under_way.len());
        let named = GivenUpSessions::try_from(named.get(..count)?).ok()?;
        self.named_last = Some(named.as_slice().last()?.session);
        Some(named)
    }

    /// A caller no longer waits; the end goes on.
    pub(super) fn leave(&mut self, session: &SessionId, token: CallToken) {
        if let Some(end) = self.under_way.get_mut(session) {
            end.callers.retain(|caller| *caller != token);
        }
    }
}

impl QuorumClient {
    /// The number of ends under way.
    pub fn session_ends(&self) -> usize {
        self.session_ends.under_way.len()
    }

    /// Ends a session. The caller of one that was given up is answered at once.
    pub(super) fn end_session(&mut self, token: CallToken, session: SessionId, reason: EndReason) {
        let is_known = self.session_ends.under_way.contains_key(&session);
        if !is_known && self.session_ends.under_way.len() >= MAX_ENDS {
            let what = format!("{MAX_ENDS} sessions are being ended by this agent");
            return self.outbox.answers.push((token, Err(Unavailable::Overloaded(what))));
        }
        let silent_for = match reason {
            EndReason::Closed => None,
            EndReason::GivenUp(silent_for) => Some(silent_for.unwrap_or_else(|| self.unrenewed_for())),
        };
        if !is_known {
            let command = match silent_for {
                Some(silent_for) => Command::GiveUpSession { session, silent_for },
                None => Command::DestroySession(session),
            };
            self.propose(Owner::SessionEnd(session), command);
        }
        let end = SessionEnd { silent_for, callers: Vec::new() };
        let end = self.session_ends.under_way.entry(session).or_insert(end);
        match reason {
            EndReason::Closed => {
                end.callers.push(token);
                self.callers.insert(token, Caller::SessionEnd(session));
            }
            EndReason::GivenUp(_) => {
                self.outbox.answers.push((token, Ok(Answered::Response(Response::Done))));
            }
        }
    }

    /// The time since the last acknowledged renewal was sent, in whole milliseconds: under whatever
    /// lease of this node, and since the agent started if there was none.
    fn unrenewed_for(&self) -> Duration {
        let silent_for = self.now.since(self.renewals.unrenewed_since());
        Duration::from_millis(u64::try_from(silent_for.as_millis()).unwrap_or(u64::MAX))
    }

    /// The outcome is still unknown when the hold timeout is over, or the servers refuse for now:
    /// the callers are told, and the end goes on.
    pub(super) fn session_end_unresolved(&mut self, session: &SessionId, failure: &Unavailable) {
        let Some(end) = self.session_ends.under_way.get_mut(session) else { return };
        for token in std::mem::take(&mut end.callers) {
            self.callers.remove(&token);
            self.outbox.answers.push((token, Err(failure.clone())));
        }
    }

    /// The servers reported the outcome, or there is no other attempt.
    pub(super) fn session_end_answered(&mut self, session: SessionId, result: Result<Response, Unavailable>) {
        let Some(end) = self.session_ends.under_way.remove(&session) else { return };
        for token in end.callers {
            self.callers.remove(&token);
            self.outbox.answers.push((token, result.clone().map(Answered::Response)));
        }
    }
}
