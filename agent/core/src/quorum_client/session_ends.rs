//! Ends of sessions that the agent completes even if the client that requested one is gone.
//!
//! A guard that no longer trusts its session ends it, so that the locks are released. Often no
//! server is reachable at that moment, and the client process exits soon after. The agent outlives
//! it: it retries the end until the servers report it done. It also names the session in each reply
//! to a challenge and in overdue renewals, which may reach the leader when no command does.
//!
//! The end of a process is not named: such a list has no cause, and its session would end with the
//! lock-delay of a session that was destroyed.
//!
//! Sessions of other nodes with a living agent are refused by the servers: a guard's session is one
//! of its own node.
//!
//! **Invariant:** an end is never withdrawn. A session whose end was requested is in the list until
//! the servers report the outcome or the agent stops.

use super::context::Context;
use super::input::{CallToken, EndReason};
use super::outbox::Answered;
use super::owner::{Owner, RequestResult};
use super::requests::Upstream;
use lockmesh_protocol::acl::Caller;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::given_up::{GivenUpSession, GivenUpSessions, MAX_GIVEN_UP};
use lockmesh_protocol::id::SessionId;
use lockmesh_protocol::rpc::{Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

/// The maximum number of ends under way: each keeps a request id in use.
const MAX_ENDS: usize = 1_024;

/// The ends of sessions under way, by session and caller: each caller has its own rights.
#[derive(Debug, Default)]
pub(super) struct SessionEnds {
    under_way: BTreeMap<(SessionId, Caller), SessionEnd>,
    /// The last session named.
    named_last: Option<(SessionId, Caller)>,
}

#[derive(Debug)]
struct SessionEnd {
    silent_for: Option<Duration>,
    /// Not set for the end of a process.
    is_named: bool,
    /// The callers that wait for the outcome.
    callers: Vec<CallToken>,
}

impl SessionEnds {
    /// Returns the next sessions to name, `None` if there are none. If there are more than fit,
    /// they are named in turn.
    pub(super) fn next_named(&mut self) -> Option<GivenUpSessions> {
        let after = self.named_last.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let listed = |(key, end): (&(SessionId, Caller), &SessionEnd)| {
            let SessionEnd { silent_for, is_named, .. } = *end;
            is_named.then_some((key.clone(), GivenUpSession { session: key.0, silent_for }))
        };
        let later = self.under_way.range((after, Bound::Unbounded)).filter_map(listed);
        let earlier = self.under_way.iter().take_while(|(key, _)| Some(*key) <= self.named_last.as_ref());
        let named: Vec<_> = later.chain(earlier.filter_map(listed)).take(MAX_GIVEN_UP).collect();
        self.named_last = Some(named.last()?.0.clone());
        let mut named: Vec<_> = named.into_iter().map(|(_, end)| end).collect();
        named.dedup_by_key(|end| end.session);
        GivenUpSessions::try_from(named).ok()
    }

    /// Returns the number of ends under way.
    pub(super) fn len(&self) -> usize {
        self.under_way.len()
    }

    /// Removes a caller; the end continues.
    pub(super) fn leave(&mut self, token: CallToken) {
        for end in self.under_way.values_mut() {
            end.callers.retain(|caller| *caller != token);
        }
    }

    /// Ends a session. If it was given up, the caller is answered at once. `unrenewed_since` is the
    /// time at which the last acknowledged renewal of this node's lease was sent.
    pub(super) fn end(
        &mut self,
        (token, caller): (CallToken, Caller),
        (session, reason): (SessionId, EndReason),
        unrenewed_since: Time,
        Upstream { requests, cx }: &mut Upstream,
    ) {
        let key = (session, caller.clone());
        let is_known = self.under_way.contains_key(&key);
        if !is_known && self.under_way.len() >= MAX_ENDS {
            let what = format!("{MAX_ENDS} sessions are being ended by this agent");
            return cx.reply(token, Err(Unavailable::Overloaded(what)));
        }
        let silent_for = match reason {
            EndReason::Closed | EndReason::Unconfirmed | EndReason::ProcessExited => None,
            EndReason::Confirmed(silent_for) => Some(silent_for),
            EndReason::GivenUp(claimed) => {
                // In whole milliseconds.
                let silent_for = cx.now.since(unrenewed_since).as_millis();
                let known = Duration::from_millis(u64::try_from(silent_for).unwrap_or(u64::MAX));
                Some(claimed.map_or(known, |claimed| claimed.min(known)))
            }
        };
        if !is_known {
            let command = match silent_for {
                Some(silent_for) => Command::GiveUpSession { session, silent_for },
                None if reason == EndReason::ProcessExited => Command::EndOfProcess(session),
                None => Command::DestroySession(session),
            };
            // Every user of the host may request the end of any session.
            let owner = Owner::SessionEnd(session, caller.clone());
            requests.propose(caller, owner, command.restricted(), cx);
        }
        let is_named = reason != EndReason::ProcessExited;
        let end = SessionEnd { silent_for, is_named, callers: Vec::new() };
        let end = self.under_way.entry(key).or_insert(end);
        match reason {
            EndReason::Closed | EndReason::ProcessExited => end.callers.push(token),
            EndReason::GivenUp(_) | EndReason::Confirmed(_) | EndReason::Unconfirmed => {
                cx.reply(token, Ok(Answered::Response(Response::Done)));
            }
        }
    }

    /// Handles an outcome that is still unknown after the hold timeout, or a temporary rejection:
    /// the callers receive the failure, and the end is retried.
    pub(super) fn unresolved(&mut self, key: (SessionId, Caller), failure: &Unavailable, cx: &mut Context) {
        let Some(end) = self.under_way.get_mut(&key) else { return };
        for token in std::mem::take(&mut end.callers) {
            cx.reply(token, Err(failure.clone()));
        }
    }

    /// Handles the outcome, or the failure of the last attempt.
    pub(super) fn answered(&mut self, key: (SessionId, Caller), result: RequestResult, cx: &mut Context) {
        let Some(end) = self.under_way.remove(&key) else { return };
        for token in end.callers {
            cx.reply(token, result.clone().map(Answered::Response));
        }
    }
}
