//! Releasing a hold, and releasing undelivered grants.
//!
//! A release is retried until it is acknowledged, or until the session is no longer valid, which
//! also ends the hold. After an acquisition that was given up, the release is sent once if the
//! session ends with it; otherwise it is retried like any other.

use super::attempt::OVERTAKEN_SPREAD_TIME;
use super::goal::Goal;
use super::input::Response;
use super::outbox::{Event, Notice, Request};
use super::session::Then;
use super::{Hold, HoldStage, Holder, SessionUse};
use crate::backoff::Backoff;
use crate::error::Error;
use crate::read::Read;
use std::time::Duration;

/// A pending release.
#[derive(Debug)]
pub(super) struct GiveBack {
    reason: Reason,
    step: GiveBackStep,
    /// The error of earlier tries: the last one with an unknown outcome, otherwise the last one.
    failure: Option<Error>,
    backoff: Backoff,
}

/// The reason for the release.
#[derive(Debug)]
enum Reason {
    /// Released by the caller; `was_held` is set if it was certainly held then.
    Released { was_held: bool },
    /// The acquisition was given up; the result for its caller.
    GaveUp(Option<Result<(), Error>>),
}

/// The event that a release waits for.
#[derive(Debug)]
enum GiveBackStep {
    Pausing,
    /// The release of the lock.
    Releasing,
    /// The list of holders, from which the session's name is removed.
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
        Self { reason, step: GiveBackStep::Pausing, failure: None, backoff }
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

    /// Returns the result if there is no further try.
    fn given_up(&mut self) -> Result<bool, Error> {
        self.failure.take().map_or(Ok(false), Err)
    }
}

impl Hold {
    fn giving_back(&mut self) -> &mut GiveBack {
        match &mut self.stage {
            HoldStage::GivingBack(giving_back) => giving_back,
            other => unreachable!("nothing is given back: {other:?}"),
        }
    }
}

impl Holder {
    /// Releases a current or former hold. From here on it counts as not held.
    pub(super) fn give_back(&mut self, hold: &mut Hold) {
        self.cancel(hold.request.take());
        let HoldStage::Held(watch) = &hold.stage else { return };
        // A suspended hold may still be held, and is released as if it were.
        let may_be_held = hold.loss.is_none() && !watch.has_verdict() && self.is_kept(&hold.session);
        let was_held = may_be_held && watch.is_confirmed() && self.is_alive(&hold.session);
        hold.stage = HoldStage::GivingBack(GiveBack::new(Reason::Released { was_held }));
        match &hold.goal {
            // A release names only the session: under a shared session it would end a hold that was
            // acquired since. A slot's name on the list may block others and is removed in any
            // case.
            Goal::Lock(_) if !may_be_held => self.end_with(hold, Ok(false)),
            // No server was reachable for a while, and the process may exit soon. It suffices to
            // send the end of the session, which the agent retries.
            _ if self.is_suspended() && self.session_use == SessionUse::OneHold && !hold.is_awaited => {
                self.end_with(hold, Ok(false));
            }
            Goal::Lock(_) | Goal::Slot(_) => self.give_back_now(hold),
        }
    }

    /// Releases everything, then reports the outcome of the acquisition.
    pub(super) fn give_up(&mut self, hold: &mut Hold, outcome: Result<(), Error>) {
        hold.wakes_at = None;
        let HoldStage::Acquiring(attempt) = &hold.stage else { return };
        let (leaves_something, was_prepared) = (attempt.leaves_something(), attempt.is_prepared());
        hold.stage = HoldStage::GivingBack(GiveBack::new(Reason::GaveUp(Some(outcome))));
        // No acquire was sent yet, so the caller need not wait for the session's end.
        if !was_prepared {
            self.announce_giving_up(hold);
        }
        if leaves_something {
            self.give_back_now(hold);
        } else {
            self.end_with(hold, Ok(false));
        }
    }

    fn give_back_now(&mut self, hold: &mut Hold) {
        let (request, step) = match &hold.goal {
            Goal::Lock(lock) => {
                (Request::Release(lock.write(), hold.session.clone()), GiveBackStep::Releasing)
            }
            Goal::Slot(slot) => (Request::Get(slot.list_key(), Read::default()), GiveBackStep::Reading),
        };
        hold.giving_back().step = step;
        self.ask(hold, request);
    }

    /// Continues after a pause.
    pub(super) fn give_back_again(&mut self, hold: &mut Hold) {
        if self.is_kept(&hold.session) {
            return self.give_back_now(hold);
        }
        // Too late for another try.
        let given = hold.giving_back().given_up();
        self.end_with(hold, given);
    }

    pub(super) fn give_back_answered(&mut self, hold: &mut Hold, result: Result<Response, Error>) {
        let response = match result {
            Ok(response) => response,
            Err(error) => return self.give_back_failed(hold, error),
        };
        let giving_back = hold.giving_back();
        match giving_back.step {
            GiveBackStep::Releasing => {
                // Nothing is left to release after an unacknowledged release: that one succeeded.
                let was_released = response.verdict() || giving_back.is_unheard();
                self.end_with(hold, Ok(was_released));
            }
            GiveBackStep::Reading => match self.removal_of(hold, response) {
                Some(request) => {
                    hold.giving_back().step = GiveBackStep::Writing;
                    self.ask(hold, request);
                }
                None => self.delete_own_key(hold, false),
            },
            GiveBackStep::Writing if response.verdict() => self.delete_own_key(hold, true),
            GiveBackStep::Writing => {
                // Another client changed the list since it was read: read it again.
                giving_back.step = GiveBackStep::Pausing;
                hold.wakes_at = Some(self.now + self.jitter.share(OVERTAKEN_SPREAD_TIME));
            }
            GiveBackStep::Deleting(was_listed) => self.end_with(hold, Ok(was_listed)),
            GiveBackStep::Pausing | GiveBackStep::EndingSession(_) => unreachable!("nothing was asked"),
        }
    }

    /// Returns the write that removes the session from the list; `None` if it is not on it.
    fn removal_of(&self, hold: &Hold, response: Response) -> Option<Request> {
        let Goal::Slot(slot) = &hold.goal else { unreachable!("only slots have a list") };
        let (entries, _) = response.entries();
        // A key that is no list of holders does not name the session.
        let Ok(Some(mut slots)) = slot.list(&entries) else { return None };
        slots.leave(&hold.session).then(|| slot.replace(&slots))
    }

    fn delete_own_key(&mut self, hold: &mut Hold, was_listed: bool) {
        let Goal::Slot(slot) = &hold.goal else { unreachable!("only slots come with a key") };
        let request = Request::Delete(slot.own_key(&hold.session));
        hold.giving_back().step = GiveBackStep::Deleting(was_listed);
        self.ask(hold, request);
    }

    fn give_back_failed(&mut self, hold: &mut Hold, error: Error) {
        // A suspended session may turn out to be alive and still hold it.
        let is_worth_another = error.is_transient() && self.is_kept(&hold.session);
        let is_shared = self.session_use == SessionUse::Shared;
        let giving_back = hold.giving_back();
        let goes_on = matches!(giving_back.reason, Reason::Released { .. }) || is_shared;
        if !is_worth_another || !goes_on {
            giving_back.failed(error);
            let given = giving_back.given_up();
            return self.end_with(hold, given);
        }
        giving_back.step = GiveBackStep::Pausing;
        let pause = giving_back.backoff.failed(&mut self.jitter);
        hold.wakes_at = Some(self.now + pause);
        self.trying_again(hold, &error);
        hold.giving_back().failed(error);
        // The caller need not wait for the retries; but without them the session would keep an
        // unknown hold.
        self.announce_giving_up(hold);
    }

    /// Ends the session if it served only this hold, after everything else was released.
    fn end_with(&mut self, hold: &mut Hold, given: Result<bool, Error>) {
        hold.wakes_at = None;
        hold.giving_back().step = GiveBackStep::EndingSession(given);
        let ends =
            self.session_use == SessionUse::OneHold && self.end_session(hold.is_awaited, Then::Hold(hold.id));
        if !ends {
            // A lock whose release failed ends with the session, but the time is unknown.
            let is_over = self.session_use == SessionUse::OneHold && matches!(hold.goal, Goal::Slot(_));
            self.given_back(hold, is_over.then_some(Ok(())));
        }
    }

    /// Completes the release; `closed` is the outcome of ending a session that served only this
    /// hold.
    pub(super) fn given_back(&mut self, hold: &mut Hold, closed: Option<Result<(), Error>>) {
        self.announce_giving_up(hold);
        let HoldStage::GivingBack(giving_back) = std::mem::replace(&mut hold.stage, HoldStage::Over) else {
            return;
        };
        let GiveBackStep::EndingSession(given) = giving_back.step else { return };
        if let Err(error) = &given {
            let what = hold.goal.name().to_owned();
            self.outbox.notices.push(Notice::NotGivenBack(what, error.to_string()));
        }
        if let (Reason::Released { was_held }, true) = (giving_back.reason, hold.is_awaited) {
            let result = match (closed, &hold.goal) {
                // Ending a session ends all of its holds, even if the release was not acknowledged.
                (Some(Ok(())), Goal::Lock(_)) => Ok(given.unwrap_or(was_held)),
                (Some(Ok(())), Goal::Slot(_)) => Ok(was_held),
                (Some(Err(_)) | None, _) => given,
            };
            self.outbox.events.push(Event::Released(hold.id, result));
        }
    }

    /// Reports the outcome of an acquisition that was given up, once.
    fn announce_giving_up(&mut self, hold: &mut Hold) {
        let Reason::GaveUp(outcome) = &mut hold.giving_back().reason else { return };
        if let Some(outcome) = outcome.take()
            && std::mem::take(&mut hold.is_awaited)
        {
            self.outbox.events.push(Event::Acquired(hold.id, outcome.map(|()| None)));
        }
    }
}
