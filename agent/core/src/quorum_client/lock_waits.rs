//! Lock waits: a position in the lock's queue, kept while a caller waits for the reply.
//!
//! ```text
//! Enqueue ──▶ Granted, or refused: the reply, at once
//!        └──▶ Queued{queue position} ──▶ QueuePosition, parked ──▶ granted, or not: the reply
//!                  ├─ timeout ──▶ StopWaiting ──▶ QueuePosition: granted, or not: the reply
//!                  └─ the client is gone, the agent stops ──▶ Leave
//! ```
//!
//! The wait itself holds no sequence of the request ids; only the commands before and after it do.
//!
//! **Invariant:** an undelivered grant is released. If the caller is gone before the reply, its
//! position leaves the queue. A lock that was granted to it meanwhile is released, unless its
//! session has acquired it again. That includes a grant that takes effect after the hold timeout:
//! the enqueue is retried under its request id until its outcome is known. A caller that receives
//! *no* was granted nothing. A grant that came before the wait was stopped is delivered; a grant
//! that is released is reported as *unknown*.
//!
//! Requests of one session share a position, possibly at different agents: the newest one owns it,
//! and the grant. An older one receives *no* for its position, but its session holds the lock then,
//! so it acquires the lock again, as the holder may. Then neither request's agent can release a
//! grant that the other caller received.
//!
//! A release of the same lock by the same session is sent only after the outcome of an earlier
//! enqueue is known. Otherwise a retried enqueue could be granted after the release, and the
//! client, which renews the session for other holds, would not know that it holds the lock.

use super::context::Timer;
use super::input::CallToken;
use super::outbox::{Answered, Notice};
use super::owner::{Effort, Owner, RequestNumber, RequestResult};
use super::requests::Upstream;
use lockmesh_protocol::acl::Caller;
use lockmesh_protocol::command::{Command, KvCommand, KvVerb, NewEntry, TxnKv, TxnOp};
use lockmesh_protocol::id::{Key, LogIndex, SessionId};
use lockmesh_protocol::query::{Answer, Blocking, Consistency, Query, Rows};
use lockmesh_protocol::record::{LockMode, RequestedLock};
use lockmesh_protocol::reply::{Applied, Refusal, Reply};
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The time that the agent waits beyond the end of the wait. The servers end the wait by their own
/// clock; an election delays that, and the client need not wait for it.
const GRACE_WINDOW: Duration = Duration::from_secs(1);

/// The interval between queries of a position. A server answers an undecided position only when the
/// query's own wait is over.
const QUESTION_INTERVAL: Duration = Duration::from_millis(50);

/// The number of attempts to release an undelivered grant, and the pause between them. Overloaded
/// servers reject an attempt immediately.
const TAKE_BACK_ATTEMPTS: u32 = 20;
const TAKE_BACK_PAUSE: Duration = Duration::from_millis(500);

/// A caller's wait for a lock, and its stage.
#[derive(Debug)]
pub(super) struct LockWait {
    /// The identity with which it is enqueued. All other requests of the wait are the agent's own:
    /// a caller that lost its rights must still leave the queue.
    caller: Caller,
    /// The locks, ascending by key.
    locks: Vec<RequestedLock>,
    session: SessionId,
    wait: Duration,
    /// The index of the newest enqueue, and the position in the queue, once they are known.
    enqueued_at_index: LogIndex,
    queue_position: LogIndex,
    /// The time at which the wait ends, once it has started.
    until: Option<Time>,
    /// `true` if the caller is gone.
    is_gone: bool,
    /// Set once the caller may not end the wait any more, and the agent does.
    ends_as_agent: bool,
    stage: WaitStage,
}

#[derive(Debug)]
enum WaitStage {
    /// The enqueue is under way.
    Enqueuing,
    /// The position is in the queue. The request asks for its outcome, for the last time once the
    /// wait is stopped.
    Queued { request: RequestNumber, is_last: bool },
    /// The same, between two queries; the next one starts at this time.
    Pausing { at: Time },
    /// The wait timed out: the position is given up, but not a grant.
    Stopping,
    /// The position is gone without a grant to this request. The lock's holder is read: it may be
    /// the session itself, through another request.
    Superseded,
    /// The position is given up, including a grant; `failure` is the error that caused this, if
    /// any.
    Leaving { failure: Option<Unavailable> },
    /// The lock was granted, and the caller has not confirmed the reply yet.
    Granted,
    /// The grant was not delivered: it is released, by this attempt.
    TakingBack { attempt: u32 },
    /// The same, between two attempts.
    PausingToTakeBack { attempt: u32 },
}

/// All lock waits.
#[derive(Debug, Default)]
pub(super) struct LockWaits {
    waits: BTreeMap<CallToken, LockWait>,
    by_lock: BTreeSet<(Key, SessionId, CallToken)>,
}

impl LockWait {
    fn first_key(&self) -> Key {
        self.locks[0].key.clone()
    }

    /// Returns the command that enqueues the request. Builds before format 8 know it for one
    /// exclusive lock.
    fn enqueue(&self) -> Command {
        let (session, wait) = (self.session, self.wait);
        match &self.locks[..] {
            [RequestedLock { key, mode: LockMode::Exclusive, value, flags }] => {
                let new = NewEntry { key: key.clone(), value: value.clone(), flags: *flags };
                Command::Kv(KvCommand::Enqueue { new, session, wait })
            }
            locks => Command::AcquireLocks { locks: locks.to_vec(), session, wait },
        }
    }

    /// Returns the query of the outcome.
    fn position(&self) -> Query {
        let Self { session, queue_position, enqueued_at_index, .. } = *self;
        match &self.locks[..] {
            [RequestedLock { key, .. }] => {
                Query::QueuePosition { key: key.clone(), session, queue_position, enqueued_at_index }
            }
            locks => {
                let keys = locks.iter().map(|lock| lock.key.clone()).collect();
                Query::RequestOutcome { keys, session, queue_position, enqueued_at_index }
            }
        }
    }

    /// Returns the query of the first lock's holder.
    fn holder(&self) -> Query {
        match &self.locks[..] {
            [RequestedLock { key, mode: LockMode::Exclusive, .. }] => Query::Entry(key.clone()),
            _ => Query::HeldEntry { key: self.first_key(), session: self.session },
        }
    }

    fn may_stay_granted(&self, failure: Unavailable) -> Notice {
        Notice::MayStayGranted(self.first_key(), self.session, failure)
    }
}

/// Returns `true` for the grant of a lock, or of several.
fn is_grant(reply: &Reply) -> bool {
    matches!(reply, Reply::Granted { .. } | Reply::GrantedAll(_))
}

impl LockWaits {
    /// Returns `true` if the outcome of a wait must precede this request, which releases its lock.
    pub(super) fn must_precede(&self, request: &Request) -> bool {
        let is_unlock = |op: &TxnOp| match op {
            TxnOp::Kv(TxnKv { verb: KvVerb::Unlock, key, session: Some(session), .. }) => {
                SessionId::parse(session).is_some_and(|session| self.is_unresolved(key, session))
            }
            _ => false,
        };
        match request {
            Request::Propose(_, Command::Kv(KvCommand::Release(entry, session))) => {
                self.is_unresolved(&entry.key, *session)
            }
            Request::Propose(_, command) if !self.waits.is_empty() => {
                command.operations().is_some_and(|operations| operations.iter().any(is_unlock))
            }
            _ => false,
        }
    }

    /// Returns `true` if a wait of this session may still be granted the lock without a caller.
    fn is_unresolved(&self, key: &Key, session: SessionId) -> bool {
        // Most agents have no wait: this saves a copy of the key for each release.
        if self.waits.is_empty() {
            return false;
        }
        let first = (key.clone(), session, CallToken(0));
        let of_lock = self
            .by_lock
            .range(first..)
            .map_while(|(of, by, token)| (of == key && *by == session).then_some(token));
        of_lock
            .filter_map(|token| self.waits.get(token))
            .any(|wait| wait.is_gone || matches!(wait.stage, WaitStage::Enqueuing))
    }

    /// Acquires locks, or waits in their queues for up to `wait`.
    pub(super) fn acquire(
        &mut self,
        (token, caller): (CallToken, Caller),
        locks: Vec<RequestedLock>,
        session: SessionId,
        wait: Duration,
        up: &mut Upstream,
    ) {
        self.by_lock.extend(locks.iter().map(|lock| (lock.key.clone(), session, token)));
        let (enqueued_at_index, queue_position) = (LogIndex(0), LogIndex(0));
        let (until, is_gone, stage) = (None, false, WaitStage::Enqueuing);
        let lock_wait = LockWait {
            caller,
            locks,
            session,
            wait,
            enqueued_at_index,
            queue_position,
            until,
            is_gone,
            ends_as_agent: false,
            stage,
        };
        self.waits.insert(token, lock_wait);
        self.propose_enqueue(token, up);
    }

    fn propose_enqueue(&mut self, token: CallToken, up: &mut Upstream) {
        let Some(lock_wait) = self.waits.get(&token) else { return };
        let (caller, command) = (lock_wait.caller.clone(), lock_wait.enqueue());
        up.requests.propose(caller, Owner::LockWait(token), command, up.cx);
    }

    /// Handles the reply to a request of a lock wait.
    pub(super) fn answered(&mut self, token: CallToken, result: RequestResult, up: &mut Upstream) {
        let Some(lock_wait) = self.waits.get_mut(&token) else { return };
        let result = match (result, &lock_wait.stage) {
            (
                Ok(Response::Applied(Applied { reply: Reply::Refused(Refusal::NoAccess(why)), .. })),
                WaitStage::Stopping | WaitStage::Leaving { .. } | WaitStage::TakingBack { .. },
            ) => {
                // The caller's rights have changed: the agent ends what it has begun for its node.
                if !std::mem::replace(&mut lock_wait.ends_as_agent, true) {
                    return self.propose_end(token, up);
                }
                Err(Unavailable::NoAccess(why))
            }
            (result, _) => result,
        };
        match std::mem::replace(&mut lock_wait.stage, WaitStage::Enqueuing) {
            WaitStage::Enqueuing => self.enqueued(token, result, up),
            WaitStage::Queued { is_last, .. } => self.position_answered(token, is_last, result, up),
            WaitStage::Stopping => self.stopped(token, result, up),
            WaitStage::Superseded => self.holder_read(token, result, up),
            WaitStage::Leaving { failure } => self.left(token, failure, result, up),
            WaitStage::TakingBack { attempt } => self.grant_released(token, attempt, result, up),
            stage
            @ (WaitStage::Pausing { .. } | WaitStage::PausingToTakeBack { .. } | WaitStage::Granted) => {
                lock_wait.stage = stage;
            }
        }
    }

    fn grant_released(&mut self, token: CallToken, attempt: u32, result: RequestResult, up: &mut Upstream) {
        let (Some(lock_wait), Err(reason)) = (self.waits.get(&token), result) else {
            return self.remove(token, up);
        };
        // A grant that cannot be released lasts as long as its session. No caller is left to
        // receive an error.
        if attempt == 1 {
            up.cx.notify(lock_wait.may_stay_granted(reason));
        }
        if attempt == TAKE_BACK_ATTEMPTS || up.cx.in_hurry {
            return self.remove(token, up);
        }
        up.cx.start_timer(up.cx.now + TAKE_BACK_PAUSE, Timer::Question(token));
        self.set_stage(token, WaitStage::PausingToTakeBack { attempt: attempt + 1 }, up);
    }

    /// Handles an enqueue whose outcome is unknown after the hold timeout: reports that to the
    /// caller, if it is still there. The request continues, and a grant that results from it is
    /// released.
    pub(super) fn unresolved(&mut self, token: CallToken, failure: Unavailable, up: &mut Upstream) {
        let Some(lock_wait) = self.waits.get_mut(&token) else { return };
        if std::mem::replace(&mut lock_wait.is_gone, true) {
            return up.cx.notify(lock_wait.may_stay_granted(failure));
        }
        up.cx.reply(token, Err(failure));
    }

    fn enqueued(&mut self, token: CallToken, result: RequestResult, up: &mut Upstream) {
        let applied = match result {
            Ok(Response::Applied(applied)) => applied,
            Ok(other) => return self.settle_unknown(token, super::unexpected(&other), up),
            Err(reason) => return self.settle_unknown(token, reason, up),
        };
        let Some(lock_wait) = self.waits.get_mut(&token) else { return };
        lock_wait.enqueued_at_index = applied.index;
        let Reply::Queued { queue_position } = applied.reply else {
            return self.settle(token, Ok(applied), up);
        };
        let until = up.cx.now + lock_wait.wait + GRACE_WINDOW;
        (lock_wait.queue_position, lock_wait.until) = (queue_position, Some(until));
        // The caller is gone, or waits are disabled: the position must not be granted.
        let is_over = lock_wait.is_gone || up.cx.in_hurry;
        up.cx.start_timer(until, Timer::Caller(token));
        match is_over {
            true => self.leave(token, WaitStage::Leaving { failure: None }, up),
            false => self.query_position(token, false, up),
        }
    }

    fn query_position(&mut self, token: CallToken, is_last: bool, up: &mut Upstream) {
        let Some(lock_wait) = self.waits.get(&token) else { return };
        let query = lock_wait.position();
        let blocking = Blocking { index: lock_wait.queue_position, wait: lock_wait.wait + GRACE_WINDOW };
        // The last query is not parked: the wait was stopped, so the current state is the result.
        let (blocking, effort) =
            if is_last { (None, Effort::Held) } else { (Some(blocking), Effort::Endless) };
        let request = Request::Read { query, consistency: Consistency::Default, blocking };
        let request = up.requests.begin(Owner::LockWait(token), request, effort, up.cx);
        self.set_stage(token, WaitStage::Queued { request, is_last }, up);
    }

    /// Handles the outcome of a position: the index of a grant, or the position's own index if
    /// there is none.
    fn position_answered(
        &mut self,
        token: CallToken,
        is_last: bool,
        result: RequestResult,
        up: &mut Upstream,
    ) {
        let Some(lock_wait) = self.waits.get(&token) else { return };
        let failure = match result {
            Ok(Response::Answer(answer)) => match answer.rows {
                Rows::QueuePosition(Reply::Queued { .. }) if is_last => None,
                Rows::QueuePosition(Reply::Queued { .. }) => {
                    let at = up.cx.now + QUESTION_INTERVAL;
                    up.cx.start_timer(at, Timer::Question(token));
                    return self.set_stage(token, WaitStage::Pausing { at }, up);
                }
                // A session may hold some of several locks, whatever became of its request.
                Rows::QueuePosition(Reply::Succeeded(false))
                    if lock_wait.locks.len() == 1 && !up.cx.in_hurry && !lock_wait.is_gone =>
                {
                    let query = lock_wait.holder();
                    let request = Request::Read { query, consistency: Consistency::Default, blocking: None };
                    up.requests.begin(Owner::LockWait(token), request, Effort::Held, up.cx);
                    return self.set_stage(token, WaitStage::Superseded, up);
                }
                Rows::QueuePosition(reply) => {
                    let is_granted = is_grant(&reply);
                    let index = if is_granted { answer.index } else { lock_wait.enqueued_at_index };
                    return self.settle(token, Ok(Applied { index, reply }), up);
                }
                _ => {
                    let why = "the server replied with something other than a position";
                    Some(Unavailable::Unknown(why.into()))
                }
            },
            Ok(other) => Some(super::unexpected(&other)),
            Err(reason) => Some(reason),
        };
        // No caller will receive the outcome, so the position is given up with another attempt.
        // While it remains queued, it may be granted.
        self.leave(token, WaitStage::Leaving { failure }, up);
    }

    /// Ends a wait without a grant, unless its session holds the lock through another request: then
    /// the lock is acquired again, or waited for if it is released before.
    fn holder_read(&mut self, token: CallToken, result: RequestResult, up: &mut Upstream) {
        let Some(lock_wait) = self.waits.get_mut(&token) else { return };
        let is_holder = match &result {
            Ok(Response::Answer(Answer { rows: Rows::Entries(entries), .. })) => {
                entries.first().is_some_and(|entry| entry.lock.session == Some(lock_wait.session))
            }
            // The request was granted nothing, whoever holds the lock.
            _ => false,
        };
        if !is_holder || lock_wait.is_gone {
            let refused = Applied { index: lock_wait.enqueued_at_index, reply: Reply::Succeeded(false) };
            return self.settle(token, Ok(refused), up);
        }
        let end = lock_wait.until.take().unwrap_or(up.cx.now);
        lock_wait.wait = end.since(up.cx.now + GRACE_WINDOW);
        up.cx.stop_timer(end, Timer::Caller(token));
        self.set_stage(token, WaitStage::Enqueuing, up);
        self.propose_enqueue(token, up);
    }

    /// Handles the reply to `StopWaiting`: nothing is granted from now on, but a grant may have
    /// come before.
    fn stopped(&mut self, token: CallToken, result: RequestResult, up: &mut Upstream) {
        match (result, self.waits.get(&token)) {
            (Err(reason), _) => self.leave(token, WaitStage::Leaving { failure: Some(reason) }, up),
            // The caller of a possible grant is gone, so the grant is given up as well.
            (Ok(_), Some(LockWait { is_gone: true, .. })) => {
                self.leave(token, WaitStage::Leaving { failure: None }, up);
            }
            (Ok(_), _) => self.query_position(token, true, up),
        }
    }

    /// Gives up the position, including a grant, and waits in a stage for the outcome; afterwards
    /// the session holds nothing from this wait.
    fn leave(&mut self, token: CallToken, stage: WaitStage, up: &mut Upstream) {
        self.set_stage(token, stage, up);
        self.propose_end(token, up);
    }

    /// Proposes the command that ends a wait, as its caller or as the agent.
    fn propose_end(&mut self, token: CallToken, up: &mut Upstream) {
        let Some(lock_wait) = self.waits.get(&token) else { return };
        let LockWait { session, enqueued_at_index, .. } = *lock_wait;
        let key = lock_wait.first_key();
        let command = match lock_wait.stage {
            WaitStage::Stopping => KvCommand::StopWaiting { key, session, enqueued_at_index },
            _ => KvCommand::Leave { key, session, enqueued_at_index },
        };
        let caller = if lock_wait.ends_as_agent { Caller::Agent } else { lock_wait.caller.clone() };
        up.requests.propose(caller, Owner::LockWait(token), Command::Kv(command), up.cx);
    }

    fn left(
        &mut self,
        token: CallToken,
        failure: Option<Unavailable>,
        result: RequestResult,
        up: &mut Upstream,
    ) {
        let Some(&LockWait { enqueued_at_index, is_gone, .. }) = self.waits.get(&token) else { return };
        let outcome = match (result, failure) {
            (Ok(Response::Applied(Applied { reply: Reply::Done, .. })), _) => {
                // The session held the lock for a moment, and others may have seen that: a plain
                // *no* would be wrong.
                let why = "the lock was granted when its wait was over, and was released";
                Err(Unavailable::Unknown(why.into()))
            }
            (Ok(_), None) => Ok(Applied { index: enqueued_at_index, reply: Reply::Succeeded(false) }),
            (Ok(_), Some(failure)) => Err(failure),
            // A position that remains would be granted without a caller, so the leave is tried
            // again.
            (Err(reason), None) => {
                return self.leave(token, WaitStage::Leaving { failure: Some(reason) }, up);
            }
            // The position may remain and be granted, independent of the first failure.
            (Err(reason), Some(_)) if is_gone => {
                self.stop_timer(token, up);
                return self.grant_released(token, 1, Err(reason), up);
            }
            (Err(_), Some(failure)) => {
                return self.settle_unknown(token, Unavailable::Unknown(failure.to_string()), up);
            }
        };
        self.settle(token, outcome, up);
    }

    /// Ends a wait whose lock may still be granted, unless the failure excludes it. Without a
    /// caller, operators are notified.
    fn settle_unknown(&mut self, token: CallToken, failure: Unavailable, up: &mut Upstream) {
        if let Some(lock_wait) = self.waits.get(&token).filter(|lock_wait| lock_wait.is_gone)
            && !failure.certainly_not_done()
        {
            up.cx.notify(lock_wait.may_stay_granted(failure.clone()));
        }
        self.settle(token, Err(failure), up);
    }

    /// Ends a wait: replies to its caller, or releases a grant if the caller is gone.
    fn settle(&mut self, token: CallToken, outcome: Result<Applied, Unavailable>, up: &mut Upstream) {
        self.stop_timer(token, up);
        let Some(&LockWait { enqueued_at_index, is_gone, .. }) = self.waits.get(&token) else { return };
        match &outcome {
            // Kept until the caller confirms: a grant whose reply is lost has to be released.
            Ok(applied) if is_grant(&applied.reply) => {
                self.set_stage(token, WaitStage::Granted, up);
            }
            _ => self.remove(token, up),
        }
        if is_gone {
            return self.release_grant(token, up);
        }
        up.cx.reply(token, outcome.map(|applied| Answered::Acquired(enqueued_at_index, applied)));
    }

    fn is_granted(&self, token: CallToken) -> bool {
        self.waits.get(&token).is_some_and(|lock_wait| matches!(lock_wait.stage, WaitStage::Granted))
    }

    /// Releases an undelivered grant.
    fn release_grant(&mut self, token: CallToken, up: &mut Upstream) {
        if self.is_granted(token) {
            self.leave(token, WaitStage::TakingBack { attempt: 1 }, up);
        }
    }

    /// Records that the caller received the grant.
    pub(super) fn grant_received(&mut self, token: CallToken, up: &mut Upstream) {
        if self.is_granted(token) {
            self.remove(token, up);
        }
    }

    /// Ends the wait of a caller that is gone.
    pub(super) fn abandon(&mut self, token: CallToken, up: &mut Upstream) {
        let Some(lock_wait) = self.waits.get_mut(&token) else { return };
        lock_wait.is_gone = true;
        // A request under way is not cancelled here: its reply shows whether there is a grant to
        // release.
        self.end(token, up);
        self.release_grant(token, up);
    }

    /// Stops a wait that the servers' own clock should have ended: after an election, or because
    /// their replies were lost.
    pub(super) fn stop(&mut self, token: CallToken, up: &mut Upstream) {
        if !self.stop_queries(token, up) {
            return;
        }
        // Stopped, not left: an earlier grant belongs to the caller.
        self.set_stage(token, WaitStage::Stopping, up);
        self.propose_end(token, up);
    }

    /// Gives up the position of a wait.
    pub(super) fn end(&mut self, token: CallToken, up: &mut Upstream) {
        if self.stop_queries(token, up) {
            self.leave(token, WaitStage::Leaving { failure: None }, up);
        }
    }

    /// Stops the queries of a queued position. Returns `false` in any other stage: there is no
    /// position yet, or the wait is already ending.
    fn stop_queries(&mut self, token: CallToken, up: &mut Upstream) -> bool {
        match self.waits.get(&token).map(|lock_wait| &lock_wait.stage) {
            Some(WaitStage::Queued { request, .. }) => up.requests.cancel(*request, up.cx),
            Some(WaitStage::Pausing { at }) => up.cx.stop_timer(*at, Timer::Question(token)),
            _ => return false,
        }
        true
    }

    /// Gives up every position.
    pub(super) fn end_all(&mut self, up: &mut Upstream) {
        let tokens: Vec<CallToken> = self.waits.keys().copied().collect();
        for token in tokens {
            self.end(token, up);
        }
    }

    /// Repeats the query of a position, or the release of a grant.
    pub(super) fn question_is_due(&mut self, token: CallToken, up: &mut Upstream) {
        match self.waits.get(&token).map(|lock_wait| &lock_wait.stage) {
            Some(WaitStage::Pausing { .. }) => self.query_position(token, false, up),
            Some(WaitStage::PausingToTakeBack { attempt }) => {
                self.leave(token, WaitStage::TakingBack { attempt: *attempt }, up);
            }
            _ => {}
        }
    }

    fn set_stage(&mut self, token: CallToken, stage: WaitStage, up: &mut Upstream) {
        if let Some(lock_wait) = self.waits.get_mut(&token) {
            lock_wait.stage = stage;
        }
        up.requests.continue_releases(up.cx);
    }

    fn remove(&mut self, token: CallToken, up: &mut Upstream) {
        if let Some(LockWait { locks, session, .. }) = self.waits.remove(&token) {
            for RequestedLock { key, .. } in locks {
                self.by_lock.remove(&(key, session, token));
            }
        }
        up.requests.continue_releases(up.cx);
    }

    fn stop_timer(&mut self, token: CallToken, up: &mut Upstream) {
        if let Some(until) = self.waits.get_mut(&token).and_then(|lock_wait| lock_wait.until.take()) {
            up.cx.stop_timer(until, Timer::Caller(token));
        }
    }
}
