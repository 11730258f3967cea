//! Releasing a hold, and releasing undelivered grants.
//!
//! A release is retried until it is acknowledged, or until the session is no longer valid, which
//! also ends the hold. After an acquisition that was given up, the release is sent once if the
//! session ends with it; otherwise it is retried like any other.
//!
//! A hold that a dead process left behind is released in the name of its session, which is neither
//! renewed nor followed. The release, then the end of the session, are retried until they are
//! acknowledged.
//!
//! At the time limit of an acquisition its caller is answered, whatever is in flight. The release
//! then has little time, because the process may exit: after that the session is ended, which the
//! agent retries.

use super::SessionUse;
use super::attempt::OVERTAKEN_SPREAD_TIME;
use super::context::Context;
use super::goal::{Goal, LockGoal, held_part};
use super::hold::{Hold, HoldStage};
use super::id::HoldId;
use super::input::Response;
use super::moment::Moment;
use super::outbox::{EndReason, Event, Notice, Request, Write};
use crate::backoff::Backoff;
use crate::error::Error;
use crate::read::Read;
use std::time::Duration;

/// The time for which the release of a hold that was left behind is retried, at least: an operator
/// needs minutes to bring back an agent or a quorum. A session with a longer TTL is tried longer.
const LEFT_BEHIND_TIMEOUT: Duration = Duration::from_secs(600);

/// The time for the release after an acquisition reached its time limit.
const OVERDUE_RELEASE_TIMEOUT: Duration = Duration::from_millis(100);

/// A pending release.
#[derive(Debug)]
pub(super) struct GiveBack {
    reason: Reason,
    step: GiveBackStep,
    /// The error of earlier tries: the last one with an unknown outcome, otherwise the last one.
    failure: Option<Error>,
    backoff: Backoff,
    /// The time at which the caller is answered, and the session is ended, although the release is
    /// in flight.
    overdue_at: Option<Moment>,
    /// Set if the keys are read before the release, because some of several locks are lost.
    reads_first: bool,
    /// Set if some of several locks were lost before the release.
    is_partial: bool,
}

/// The reason for the release.
#[derive(Debug)]
enum Reason {
    /// Released by the caller; `was_held` is set if it was certainly held then.
    Released { was_held: bool },
    /// The acquisition was given up; the result for its caller.
    GaveUp(Option<Result<(), Error>>),
    /// The process that held it is dead; retried until this moment, when the session has ended. If
    /// no renewal was acknowledged until `overdue_at`, the session is ended as given up.
    LeftBehind { until: Moment, overdue_at: Moment },
}

/// The event that a release waits for.
#[derive(Debug)]
enum GiveBackStep {
    Pausing,
    /// The release of the lock or locks.
    Releasing,
    /// The list of holders, from which the session's name is removed; or the locks that are left.
    Reading,
    Writing,
    /// The deletion of the session's own key; `true` if its name was on the list.
    Deleting(bool),
    /// The end of the session, with the outcome of the earlier steps.
    EndingSession(Result<bool, Error>),
}

impl GiveBack {
    fn new(reason: Reason) -> Self {
        let backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
        let step = GiveBackStep::Pausing;
        Self { reason, step, failure: None, backoff, overdue_at: None, reads_first: false, is_partial: false }
    }

    fn released(was_held: bool, may_be_held: bool) -> Self {
        let reason = Reason::Released { was_held };
        Self { reads_first: !may_be_held, is_partial: !may_be_held, ..Self::new(reason) }
    }

    /// Returns the time of the next action while a request is in flight.
    pub(super) fn overdue_at(&self) -> Option<Moment> {
        self.overdue_at
    }

    /// Returns `true` if an earlier try may have been carried out.
    fn is_unheard(&self) -> bool {
        self.failure.as_ref().is_some_and(|failure| !failure.certainly_not_done())
    }

    /// Records a failed try, which proves nothing about earlier ones.
    fn failed(&mut self, error: Error) {
        if !self.is_unheard() || !error.certainly_not_done() {
            self.failure = Some(error);
        }
    }

    /// Processes the reply to a release of several locks, and returns the result if there is one.
    /// It releases nothing if one of them is not held: then they are read, and the others released.
    fn released_all(&mut self, was_released: bool) -> Option<bool> {
        if was_released {
            return Some(!self.is_partial);
        }
        self.is_partial |= !self.is_unheard();
        (self.step, self.reads_first) = (GiveBackStep::Pausing, true);
        None
    }

    /// Processes a read of the locks that are left; returns the result if there are none.
    fn rest_read(&mut self, held: &[Write], is_whole: bool) -> Option<bool> {
        if held.is_empty() {
            // An unacknowledged release of all succeeded.
            return Some(self.is_unheard() && !self.is_partial);
        }
        self.is_partial |= !is_whole;
        self.step = GiveBackStep::Releasing;
        None
    }

    /// Returns the result if there is no further try.
    fn given_up(&mut self) -> Result<bool, Error> {
        self.failure.take().map_or(Ok(false), Err)
    }
}

/// Returns the first request of a release, and the step that waits for it.
fn first_request(goal: &Goal, session: &str, fences: &[u64], reads_first: bool) -> (Request, GiveBackStep) {
    match goal {
        Goal::Lock(lock) => (Request::Release(lock.write(), session.into()), GiveBackStep::Releasing),
        Goal::Locks(_) if reads_first => {
            (goal.look(session, fences, Read::consistent()), GiveBackStep::Reading)
        }
        Goal::Locks(locks) => {
            let writes = locks.iter().map(LockGoal::write).collect();
            (Request::ReleaseAll(writes, session.into()), GiveBackStep::Releasing)
        }
        Goal::Slot(slot) => (Request::Get(slot.list_key(), Read::default()), GiveBackStep::Reading),
    }
}

/// Returns the result of a release for its caller; `closed` is the outcome of ending a session that
/// served only this hold.
fn result(
    reason: &Reason,
    given: Result<bool, Error>,
    closed: Option<Result<(), Error>>,
    goal: &Goal,
) -> Option<Result<bool, Error>> {
    Some(match (reason, closed, goal) {
        (Reason::GaveUp(_), ..) => return None,
        // Ending a session ends all of its holds, even if the release was not acknowledged.
        (Reason::Released { was_held }, Some(Ok(())), Goal::Lock(_) | Goal::Locks(_)) => {
            Ok(given.unwrap_or(*was_held))
        }
        (Reason::Released { was_held }, Some(Ok(())), Goal::Slot(_)) => Ok(*was_held),
        // Only the release tells if a hold that was left behind was still held.
        (Reason::Released { .. } | Reason::LeftBehind { .. }, ..) => given,
    })
}

impl Hold {
    /// Releases a hold of another process's session, which is no longer renewed; then ends it.
    pub(super) fn left_behind(
        id: HoldId,
        goal: Goal,
        (session, overdue_at): (String, Moment),
        cx: &mut Context,
    ) -> Self {
        // An unrenewed session ends within two of its TTLs.
        let timeout = LEFT_BEHIND_TIMEOUT.max(2 * cx.options.ttl_with(cx.default_window));
        let reason = Reason::LeftBehind { until: cx.now + timeout, overdue_at };
        let stage = HoldStage::GivingBack(GiveBack::new(reason));
        let mut hold = Self { session, ..Self::with_stage(id, goal, stage) };
        hold.give_back_now(cx);
        hold
    }

    fn giving_back(&mut self) -> &mut GiveBack {
        match &mut self.stage {
            HoldStage::GivingBack(giving_back) => giving_back,
            other => unreachable!("nothing is given back: {other:?}"),
        }
    }

    /// Releases a current or former self. From here on it counts as not held.
    pub(super) fn give_back(&mut self, cx: &mut Context) {
        self.cancel_request(cx);
        let HoldStage::Held(watch) = &self.stage else { return };
        // A suspended hold may still be held, and is released as if it were.
        let may_be_held = self.loss.is_none() && !watch.has_verdict() && cx.is_kept(&self.session);
        let was_held = may_be_held && watch.is_confirmed() && cx.is_alive(&self.session);
        self.stage = HoldStage::GivingBack(GiveBack::released(was_held, may_be_held));
        match &self.goal {
            // A release names only the session: under a shared session it would end a hold that was
            // acquired since. A slot's name on the list may block others and is removed in any
            // case.
            Goal::Lock(_) if !may_be_held => self.end_with(Ok(false), cx),
            Goal::Locks(_) if !may_be_held && !cx.may_outlive(&self.session) => self.end_with(Ok(false), cx),
            // No server was reachable for a while, and the process may exit soon. It suffices to
            // send the end of the session, which the agent retries.
            _ if cx.is_suspended() && cx.session_use == SessionUse::OneHold && !self.is_awaited => {
                self.end_with(Ok(false), cx);
            }
            Goal::Lock(_) | Goal::Locks(_) | Goal::Slot(_) => self.give_back_now(cx),
        }
    }

    /// Releases everything, then reports the outcome of the acquisition.
    pub(super) fn give_up(&mut self, outcome: Result<(), Error>, cx: &mut Context) {
        self.wakes_at = None;
        let HoldStage::Acquiring(attempt) = &self.stage else { return };
        let (leaves_something, was_prepared) = (attempt.leaves_something(), attempt.is_prepared());
        let limit = attempt.gives_up_at();
        let is_overdue = attempt.is_overdue(cx.now);
        let overdue_at = limit.map(|limit| limit.max(cx.now + OVERDUE_RELEASE_TIMEOUT));
        let reason = Reason::GaveUp(Some(outcome));
        self.stage = HoldStage::GivingBack(GiveBack { overdue_at, ..GiveBack::new(reason) });
        // Without an acquire, or at the limit, the caller need not wait for the session's end.
        if !was_prepared || is_overdue {
            self.announce_giving_up(cx);
        }
        if leaves_something {
            self.give_back_now(cx);
        } else {
            self.end_with(Ok(false), cx);
        }
    }

    /// Answers the caller at the limit of its acquisition, and ends the session if its release is
    /// in flight: that may take until there is a leader.
    pub(super) fn end_overdue(&mut self, cx: &mut Context) {
        self.announce_giving_up(cx);
        let giving_back = self.giving_back();
        giving_back.overdue_at = None;
        let is_ending = matches!(giving_back.step, GiveBackStep::EndingSession(_));
        if !is_ending && cx.session_use == SessionUse::OneHold {
            self.cancel_request(cx);
            self.end_with(Ok(false), cx);
        }
    }

    fn give_back_now(&mut self, cx: &mut Context) {
        let reads_first = self.giving_back().reads_first;
        let (request, step) = first_request(&self.goal, &self.session, &self.fences, reads_first);
        self.giving_back().step = step;
        self.send(request, cx);
    }

    /// Continues after a pause.
    pub(super) fn give_back_again(&mut self, cx: &mut Context) {
        let giving_back = self.giving_back();
        if matches!(giving_back.step, GiveBackStep::EndingSession(_)) {
            return match giving_back.reason {
                Reason::LeftBehind { overdue_at, .. } => self.end_left_behind(overdue_at, cx),
                Reason::Released { .. } | Reason::GaveUp(_) => self.end_overdue(cx),
            };
        }
        if self.may_still_hold(cx) {
            return self.give_back_now(cx);
        }
        // Too late for another try.
        let given = self.giving_back().given_up();
        self.end_with(given, cx);
    }

    /// Returns `true` if the session may still be alive, so that another try is worthwhile.
    fn may_still_hold(&mut self, cx: &Context) -> bool {
        match self.giving_back().reason {
            Reason::LeftBehind { until, .. } => cx.now < until,
            // A suspended session may turn out to be alive and still hold it.
            Reason::Released { .. } | Reason::GaveUp(_) => cx.is_kept(&self.session),
        }
    }

    pub(super) fn give_back_answered(&mut self, result: Result<Response, Error>, cx: &mut Context) {
        if matches!(self.giving_back().step, GiveBackStep::EndingSession(_)) {
            return self.left_behind_ended(result.map(|_| ()), cx);
        }
        let response = match result {
            Ok(response) => response,
            Err(error) => return self.give_back_failed(error, cx),
        };
        let is_several = matches!(self.goal, Goal::Locks(_));
        let giving_back = self.giving_back();
        match giving_back.step {
            GiveBackStep::Releasing if is_several => match giving_back.released_all(response.verdict()) {
                Some(was_released) => self.end_with(Ok(was_released), cx),
                None => self.wakes_at = Some(cx.now + cx.jitter.share(OVERTAKEN_SPREAD_TIME)),
            },
            GiveBackStep::Reading if is_several => self.release_rest(response, cx),
            GiveBackStep::Releasing => {
                // Nothing is left to release after an unacknowledged release: that one succeeded.
                let was_released = response.verdict() || giving_back.is_unheard();
                self.end_with(Ok(was_released), cx);
            }
            GiveBackStep::Reading => match self.goal.removal(&self.session, &response.entries().0) {
                Some(request) => {
                    self.giving_back().step = GiveBackStep::Writing;
                    self.send(request, cx);
                }
                None => self.delete_own_key(false, cx),
            },
            GiveBackStep::Writing if response.verdict() => self.delete_own_key(true, cx),
            GiveBackStep::Writing => {
                // Another client changed the list since it was read: read it again.
                giving_back.step = GiveBackStep::Pausing;
                self.wakes_at = Some(cx.now + cx.jitter.share(OVERTAKEN_SPREAD_TIME));
            }
            GiveBackStep::Deleting(was_listed) => self.end_with(Ok(was_listed), cx),
            GiveBackStep::Pausing | GiveBackStep::EndingSession(_) => unreachable!("nothing was asked"),
        }
    }

    /// Releases the locks that are left of several.
    fn release_rest(&mut self, response: Response, cx: &mut Context) {
        let Goal::Locks(locks) = &self.goal else { unreachable!("only several locks have a rest") };
        let held = held_part(locks, &self.session, &self.fences, &response.entries().0);
        let is_whole = held.len() == locks.len();
        match self.giving_back().rest_read(&held, is_whole) {
            Some(was_released) => self.end_with(Ok(was_released), cx),
            None => self.send(Request::ReleaseAll(held, self.session.clone()), cx),
        }
    }

    fn delete_own_key(&mut self, was_listed: bool, cx: &mut Context) {
        let Goal::Slot(slot) = &self.goal else { unreachable!("only slots come with a key") };
        let request = Request::Delete(slot.own_key(&self.session));
        self.giving_back().step = GiveBackStep::Deleting(was_listed);
        self.send(request, cx);
    }

    fn give_back_failed(&mut self, error: Error, cx: &mut Context) {
        let is_worth_another = error.is_transient() && self.may_still_hold(cx);
        let is_shared = cx.session_use == SessionUse::Shared;
        let giving_back = self.giving_back();
        let goes_on = !matches!(giving_back.reason, Reason::GaveUp(_)) || is_shared;
        if !is_worth_another || !goes_on {
            giving_back.failed(error);
            let given = giving_back.given_up();
            return self.end_with(given, cx);
        }
        giving_back.step = GiveBackStep::Pausing;
        self.pause_give_back(&error, cx);
        self.giving_back().failed(error);
        // The caller need not wait for the retries; but without them the session would keep an
        // unknown self.
        self.announce_giving_up(cx);
    }

    fn pause_give_back(&mut self, error: &Error, cx: &mut Context) {
        let pause = self.giving_back().backoff.failed(&mut cx.jitter);
        self.wakes_at = Some(cx.now + pause);
        self.log_retry(error, cx);
    }

    fn end_left_behind(&mut self, overdue_at: Moment, cx: &mut Context) {
        let is_overdue = overdue_at <= cx.now;
        let reason = if is_overdue { EndReason::GivenUp(None) } else { EndReason::Closed };
        self.send(Request::EndSession(self.session.clone(), reason), cx);
    }

    fn left_behind_ended(&mut self, result: Result<(), Error>, cx: &mut Context) {
        match result {
            Err(error) if error.is_transient() && self.may_still_hold(cx) => {
                self.pause_give_back(&error, cx);
            }
            result => {
                if let Err(error) = &result {
                    cx.log(Notice::NotDestroyed(self.session.clone(), error.to_string()));
                }
                self.given_back(Some(result), cx);
            }
        }
    }

    /// Ends the session if it served only this hold, after everything else was released.
    fn end_with(&mut self, given: Result<bool, Error>, cx: &mut Context) {
        self.wakes_at = None;
        self.giving_back().step = GiveBackStep::EndingSession(given);
        if let Reason::LeftBehind { overdue_at, .. } = self.giving_back().reason {
            return self.end_left_behind(overdue_at, cx);
        }
        self.wakes_at = self.overdue_at();
        let is_own = cx.session_use == SessionUse::OneHold;
        let ends = is_own && cx.end_with_hold(self.id, self.is_awaited, self.is_given_up);
        if !ends {
            // A lock whose release failed ends with the session, but the time is unknown.
            let is_over = is_own && matches!(self.goal, Goal::Slot(_));
            self.given_back(is_over.then_some(Ok(())), cx);
        }
    }

    /// Completes the release; `closed` is the outcome of ending a session that served only this
    /// self.
    pub(super) fn given_back(&mut self, closed: Option<Result<(), Error>>, cx: &mut Context) {
        self.announce_giving_up(cx);
        let HoldStage::GivingBack(giving_back) = std::mem::replace(&mut self.stage, HoldStage::Over) else {
            return;
        };
        let GiveBackStep::EndingSession(given) = giving_back.step else { return };
        if let Err(error) = &given {
            cx.log(Notice::NotGivenBack(self.goal.name(), error.to_string()));
        }
        let Some(result) = result(&giving_back.reason, given, closed, &self.goal) else { return };
        if self.is_awaited {
            cx.report(Event::Released(self.id, result));
        }
    }

    /// Reports the outcome of an acquisition that was given up, once.
    fn announce_giving_up(&mut self, cx: &mut Context) {
        let Reason::GaveUp(outcome) = &mut self.giving_back().reason else { return };
        if let Some(outcome) = outcome.take()
            && std::mem::take(&mut self.is_awaited)
        {
            cx.report(Event::Acquired(self.id, outcome.map(|()| None)));
        }
    }
}
