//! Acquiring a hold.
//!
//! An attempt proceeds in turns: read the key, check that it is free and of the right kind, then
//! acquire it; a lock is awaited in its queue. Without queues, a waiter reads again with a blocking
//! query. An attempt that is given up or dropped leaves nothing held: an undelivered grant is
//! released. At the time limit it is given up in any state, whatever is in flight.

use super::context::Context;
use super::goal::{Goal, Look};
use super::hold::{Hold, HoldStage};
use super::input::{Response, WaitLimit};
use super::moment::Moment;
use super::outbox::{Event, Grant};
use super::session::Usable;
use super::watch::Watch;
use super::{SessionUse, WATCH_TIMEOUT};
use crate::backoff::Backoff;
use crate::entry::Acquired;
use crate::error::Error;
use crate::loss::Loss;
use crate::read::Read;
use std::time::Duration;

/// The spread of contenders at the end of a lock-delay.
const DELAY_SPREAD: Duration = Duration::from_millis(200);

/// The spread of contenders after one of them was faster.
pub(super) const OVERTAKEN_SPREAD_TIME: Duration = Duration::from_millis(50);

/// The poll interval of an acquisition that waits for the release of an earlier hold.
const RELEASE_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The pause for a lock-delay of unknown length, or when there is no index to wait for.
const UNTOLD_DELAY: Duration = Duration::from_secs(1);

/// The maximum pause after a failure. The agent holds each request until a leader is known or its
/// hold timeout expires, so such a pause is rare. A lock that becomes free during the pause is
/// acquired only after it.
const MAX_BACKOFF: Duration = Duration::from_millis(500);

/// The time after the limit for the reply to the last request: at the end of a wait in the queue,
/// it is sent at the limit.
const LAST_REPLY_TIMEOUT: Duration = Duration::from_millis(200);

/// A pending acquisition.
#[derive(Debug)]
pub(super) struct Attempt {
    wait_limit: WaitLimit,
    step: AttemptStep,
    /// The read options for the next turn.
    read: Read,
    /// The maximum time that this turn may wait in a queue.
    wait: Duration,
    /// Set once there was a session: from then on transient errors are retried.
    is_prepared: bool,
    /// Set while the agent is assumed to support waiting in the lock's queue.
    has_queues: bool,
    /// Set if an undelivered grant to the current session is possible.
    perhaps_granted: bool,
    /// Set if the current session has created its own key, which it needs.
    has_own_key: bool,
    backoff: Backoff,
    /// The time of the next read beside the acquire in flight.
    pub(super) checks_at: Option<Moment>,
    /// The number of reads in sequence that showed the lock free.
    pub(super) free_reads: u32,
}

/// The event that an attempt waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttemptStep {
    Pausing,
    AwaitingSession,
    TakingOwnKey,
    Looking,
    /// The time when the acquire was sent, and its wait in the queue, if there is one.
    Asking(Moment, Option<Duration>),
    LookingAgain,
}

/// The result of one turn.
pub(super) enum AttemptTurn {
    /// Granted, with these fences.
    Granted(Vec<u64>),
    /// Held by others; the index to wait for a change.
    Taken(u64),
    /// Free but blocked by a lock-delay, for about this long.
    Closed(Duration),
    /// The wait in the queue timed out.
    Waited,
    /// Another client changed the key at the same time.
    Overtaken,
}

impl Attempt {
    pub(super) fn new(wait_limit: WaitLimit) -> Self {
        Self {
            wait_limit,
            step: AttemptStep::Pausing,
            read: Read::default(),
            wait: Duration::ZERO,
            is_prepared: false,
            has_queues: true,
            perhaps_granted: false,
            has_own_key: false,
            backoff: Backoff::new(Duration::from_millis(100), MAX_BACKOFF),
            checks_at: None,
            free_reads: 0,
        }
    }

    /// Returns `true` if the agent may hold something for this attempt that must be released.
    pub(super) fn leaves_something(&self) -> bool {
        self.perhaps_granted || self.has_own_key
    }

    /// Returns `true` if the attempt ever had what it needs to begin.
    pub(super) fn is_prepared(&self) -> bool {
        self.is_prepared
    }

    /// Returns the time to give up, whatever is in flight.
    pub(super) fn gives_up_at(&self) -> Option<Moment> {
        match self.wait_limit {
            WaitLimit::Until(limit) => Some(limit + LAST_REPLY_TIMEOUT),
            WaitLimit::Endless | WaitLimit::Once => None,
        }
    }

    pub(super) fn is_overdue(&self, now: Moment) -> bool {
        self.gives_up_at().is_some_and(|at| at <= now)
    }

    /// Returns the time of the next action while a request is in flight.
    pub(super) fn overdue_at(&self) -> Option<Moment> {
        self.gives_up_at().into_iter().chain(self.checks_at).min()
    }

    fn queue_for(&self) -> Option<Duration> {
        (self.has_queues && !self.wait.is_zero()).then_some(self.wait)
    }
}

impl Hold {
    pub(super) fn awaits_session(&self) -> bool {
        matches!(&self.stage, HoldStage::Acquiring(attempt) if attempt.step == AttemptStep::AwaitingSession)
    }

    pub(super) fn attempt(&mut self) -> &mut Attempt {
        match &mut self.stage {
            HoldStage::Acquiring(attempt) => attempt,
            other => unreachable!("only an acquisition takes turns: {other:?}"),
        }
    }

    /// Begins a turn, which may last as long as the wait limit, and is followed by a pause.
    pub(super) fn begin_turn(&mut self, is_being_given_back: bool, cx: &mut Context) {
        let now = cx.now;
        let attempt = self.attempt();
        if attempt.is_overdue(now) {
            return self.drop_attempt(cx);
        }
        attempt.wait = attempt.wait_limit.left(now).min(WATCH_TIMEOUT);
        if is_being_given_back {
            // A release names only the session: a late one would end the hold that is acquired now.
            return self.pause(RELEASE_POLL_INTERVAL, true, cx);
        }
        match cx.usable_session() {
            Usable::Alive(session) => self.go_on_with(session, cx),
            Usable::Coming => self.await_session(),
            Usable::Suspended if self.attempt().wait_limit == WaitLimit::Once => {
                self.turn_failed(Error::SessionLost(Loss::NodeDeadline), cx);
            }
            Usable::Suspended => self.await_session(),
            Usable::Lost(loss) => self.turn_failed(Error::SessionLost(loss), cx),
        }
    }

    /// Continues when the session is created, confirmed or resumed, unless the wait limit expires
    /// first.
    fn await_session(&mut self) {
        let attempt = self.attempt();
        attempt.step = AttemptStep::AwaitingSession;
        self.wakes_at = attempt.gives_up_at();
    }

    /// Handles a session that could not be created, or that was lost before it was used.
    pub(super) fn session_failed(&mut self, error: Error, cx: &mut Context) {
        self.wakes_at = None;
        self.turn_failed(error, cx);
    }

    fn go_on_with(&mut self, session: String, cx: &mut Context) {
        if self.session != session {
            let attempt = self.attempt();
            // Grants to an earlier session ended with it.
            (attempt.has_own_key, attempt.perhaps_granted) = (false, false);
            self.session = session;
        }
        match self.goal.own_key(&self.session) {
            Some(request) if !self.attempt().has_own_key => {
                self.attempt().step = AttemptStep::TakingOwnKey;
                self.send(request, cx);
            }
            _ => self.look(cx),
        }
    }

    fn look(&mut self, cx: &mut Context) {
        let attempt = self.attempt();
        attempt.is_prepared = true;
        attempt.step = AttemptStep::Looking;
        // An index is waited for once: later reads request the current state.
        let read = std::mem::take(&mut attempt.read);
        self.send(self.look_request(read), cx);
    }

    pub(super) fn attempt_answered(&mut self, result: Result<Response, Error>, cx: &mut Context) {
        self.attempt().checks_at = None;
        let turn = match self.attempt().step {
            AttemptStep::TakingOwnKey => return self.own_key_answered(result, cx),
            AttemptStep::Looking => match self.looked(result, cx) {
                Ok(Some(turn)) => Ok(turn),
                Ok(None) => return,
                Err(error) => Err(error),
            },
            AttemptStep::Asking(since, queue_for) => match self.asked(result, since, queue_for, cx) {
                Ok(Some(turn)) => Ok(turn),
                Ok(None) => return,
                Err(error) => Err(error),
            },
            AttemptStep::LookingAgain => result.map(Response::entries).map(|(entries, index)| {
                let is_taken = entries.first().is_some_and(|entry| entry.session.is_some());
                if is_taken { AttemptTurn::Taken(index) } else { AttemptTurn::Closed(UNTOLD_DELAY) }
            }),
            AttemptStep::Pausing | AttemptStep::AwaitingSession => unreachable!("nothing was asked"),
        };
        match turn {
            Ok(turn) => self.turn_gave(turn, cx),
            Err(error) => self.turn_failed(error, cx),
        }
    }

    fn own_key_answered(&mut self, result: Result<Response, Error>, cx: &mut Context) {
        match result.map(Response::acquired) {
            Ok(Acquired::Granted { fence }) => {
                self.attempt().has_own_key = true;
                self.fences = fence.into_iter().collect();
                self.look(cx);
            }
            Ok(Acquired::Refused { .. }) => {
                let reason = "has a contender's key that another session holds".into();
                self.turn_failed(Error::Conflict { key: self.goal.name(), reason }, cx);
            }
            Err(error) => self.turn_failed(error, cx),
        }
    }

    /// Sends the acquire if the read shows that the hold is free.
    fn looked(
        &mut self,
        result: Result<Response, Error>,
        cx: &mut Context,
    ) -> Result<Option<AttemptTurn>, Error> {
        let (entries, index) = result?.entries();
        let queue_for = self.attempt().queue_for();
        match self.goal.judge_look(&self.session, &entries, queue_for)? {
            Look::Mine => Ok(Some(AttemptTurn::Granted(self.fences.clone()))),
            Look::Taken => Ok(Some(AttemptTurn::Taken(index))),
            Look::Free(request) => {
                let checks_at = self.first_grant_check(cx.now);
                let attempt = self.attempt();
                (attempt.step, attempt.checks_at) = (AttemptStep::Asking(cx.now, queue_for), checks_at);
                attempt.free_reads = 0;
                self.send(request, cx);
                Ok(None)
            }
        }
    }

    fn asked(
        &mut self,
        result: Result<Response, Error>,
        since: Moment,
        queue_for: Option<Duration>,
        cx: &mut Context,
    ) -> Result<Option<AttemptTurn>, Error> {
        let (now, own_fences) = (cx.now, self.fences.clone());
        let is_several = matches!(self.goal, Goal::Locks(_));
        let attempt = self.attempt();
        // A failed attempt proves nothing about earlier ones.
        attempt.perhaps_granted = match &result {
            Ok(_) => false,
            Err(error) => attempt.perhaps_granted || !error.certainly_not_done(),
        };
        let turn = match (result?, queue_for) {
            (Response::Verdict(true), _) => AttemptTurn::Granted(own_fences),
            (Response::Verdict(false), _) => AttemptTurn::Overtaken,
            (Response::AcquiredAll(fences), _) => AttemptTurn::Granted(fences),
            (response, queue_for) => match (response.acquired(), queue_for) {
                (Acquired::Granted { fence }, _) => AttemptTurn::Granted(fence.into_iter().collect()),
                // Nearly the whole wait: the agent's clock and this one may differ.
                (Acquired::Refused { .. }, Some(wait)) if now.since(since) >= wait.mul_f64(0.9) => {
                    AttemptTurn::Waited
                }
                (Acquired::Refused { delay }, Some(_)) => {
                    // Refused long before the wait expired, as by an agent without queues. An
                    // agent that acquires several locks has them.
                    attempt.has_queues = is_several;
                    AttemptTurn::Closed(delay.unwrap_or_default())
                }
                (Acquired::Refused { delay: Some(delay) }, None) => AttemptTurn::Closed(delay),
                (Acquired::Refused { delay: None }, None) => {
                    // Another client was faster, or there is a delay that this agent does not
                    // report: a read distinguishes the two.
                    attempt.step = AttemptStep::LookingAgain;
                    self.send(self.look_request(Read::default()), cx);
                    return Ok(None);
                }
            },
        };
        Ok(Some(turn))
    }

    pub(super) fn turn_gave(&mut self, turn: AttemptTurn, cx: &mut Context) {
        let now = cx.now;
        let left = self.attempt().wait_limit.left(now);
        let is_overtaken = matches!(turn, AttemptTurn::Overtaken);
        let pause = match turn {
            AttemptTurn::Granted(fences) if cx.is_alive(&self.session) => return self.granted(fences, cx),
            AttemptTurn::Granted(_) => {
                // A grant to a session that is no longer valid does not count.
                self.attempt().perhaps_granted = true;
                Duration::ZERO
            }
            AttemptTurn::Taken(index) => {
                let attempt = self.attempt();
                attempt.backoff.succeeded();
                attempt.read = Read::default().newer_than(index, left.min(WATCH_TIMEOUT));
                // Without an index the next read does not block, and would repeat immediately.
                if index == 0 { UNTOLD_DELAY } else { Duration::ZERO }
            }
            AttemptTurn::Waited => {
                self.attempt().backoff.succeeded();
                Duration::ZERO
            }
            AttemptTurn::Closed(delay) => delay + cx.jitter.share(DELAY_SPREAD),
            AttemptTurn::Overtaken => cx.jitter.share(OVERTAKEN_SPREAD_TIME),
        };
        self.pause(pause, is_overtaken, cx);
    }

    /// Continues after a pause, unless the wait limit has expired.
    fn pause(&mut self, pause: Duration, is_overtaken: bool, cx: &mut Context) {
        let now = cx.now;
        let attempt = self.attempt();
        let limit = attempt.wait_limit;
        if limit.is_over(now, is_overtaken) {
            return self.give_up(Ok(()), cx);
        }
        attempt.step = AttemptStep::Pausing;
        // A single try has no time left from the start; its pause only adds jitter.
        self.wakes_at = Some(now + if limit == WaitLimit::Once { pause } else { pause.min(limit.left(now)) });
    }

    pub(super) fn turn_failed(&mut self, error: Error, cx: &mut Context) {
        let attempt = self.attempt();
        // Without a session nothing has ever worked: the error is returned instead of retried
        // silently.
        let is_hopeless = !attempt.is_prepared || attempt.wait_limit == WaitLimit::Once;
        // A shared session belongs to its keeper, and other holds may depend on it.
        let is_replaced = (error.is_invalid_session() || matches!(error, Error::SessionLost(_)))
            && cx.session_use == SessionUse::OneHold;
        if is_hopeless || !(is_replaced || error.is_transient()) {
            return self.give_up(Err(error), cx);
        }
        self.log_retry(&error, cx);
        if is_replaced {
            cx.replace_session();
            let attempt = self.attempt();
            (attempt.has_own_key, attempt.perhaps_granted) = (false, false);
        }
        let pause = self.attempt().backoff.failed(&mut cx.jitter);
        self.pause(pause, false, cx);
    }

    fn granted(&mut self, fences: Vec<u64>, cx: &mut Context) {
        self.fences = fences;
        self.stage = HoldStage::Held(Watch::default());
        // The watch begins at once: the lock may already be lost.
        self.wakes_at = Some(cx.now);
        let (session, fences) = (self.session.clone(), self.fences.clone());
        cx.report(Event::Acquired(self.id, Ok(Some(Grant { session, fences }))));
    }

    /// Handles an attempt whose caller no longer waits, or whose time limit has passed.
    pub(super) fn drop_attempt(&mut self, cx: &mut Context) {
        self.cancel_request(cx);
        let attempt = self.attempt();
        // A request in flight may still be carried out.
        attempt.perhaps_granted |= matches!(attempt.step, AttemptStep::Asking(..));
        attempt.has_own_key |= attempt.step == AttemptStep::TakingOwnKey;
        self.give_up(Ok(()), cx);
    }
}
