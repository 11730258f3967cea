//! How something is given back, and what may have been granted unheard.
//!
//! A release is tried again until it is heard or the session is believed in no more, which ends the
//! hold as well. What is given back because an acquisition was given up is tried once where the
//! session ends with it, else like a release.

use super::attempt::OVERTAKEN_SPREAD;
use super::goal::Goal;
use super::input::Response;
use super::outbox::{Event, Notice, Request};
use super::session::Then;
use super::{Hold, HoldStage, Holder, SessionUse};
use crate::backoff::Backoff;
use crate::error::Error;
use crate::read::Read;
use std::time::Duration;

/// Something that is given back.
#[derive(Debug)]
pub(super) struct GiveBack {
    reason: Reason,
    step: GiveBackStep,
    /// Why earlier tries failed: the last one, or the last one that may have done it.
    failure: Option<Error>,
    backoff: Backoff,
}

/// Why it is given back.
#[derive(Debug)]
enum Reason {
    /// It was released; whether it was surely held then.
    Released { was_held: bool },
    /// The acquisition was given up, and this is what its caller is told.
    GaveUp(Option<Result<(), Error>>),
}

/// What giving back waits for.
#[derive(Debug)]
enum GiveBackStep {
    Pausing,
    /// The lock.
    Releasing,
    /// The list of holders to take the session's name off.
    Reading,
    Writing,
    /// The session's own key; whether its name was on the list.
    Deleting(bool),
    /// The session; what became of the rest.
    EndingSession(Result<bool, Error>),
}

impl GiveBack {
    fn new(reason: Reason) -> Self {
        let backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
        Self { reason, step: GiveBackStep::Pausing, failure: None, backoff }
    }

    /// Whether an earlier try may have done it.
    fn is_unheard(&self) -> bool {
        self.failure.as_ref().is_some_and(|failure| !failure.certainly_not_done())
    }

    /// That this try did nothing says nothing of one before it.
    fn failed(&mut self, error: Error) {
        if !self.is_unheard() || !error.certainly_not_done() {
            self.failure = Some(error);
        }
    }

    /// What is said where there is no other try.
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
    /// Gives back what is or was held. From here on it is believed in no more.
    pub(super) fn give_back(&mut self, hold: &mut Hold) {
        self.cancel(hold.request.take());
        let HoldStage::Held(watch) = &hold.stage else { return };
        // What is only suspended may be held still, and is given back like what is held.
        let may_be_held = hold.loss.is_none() && !watch.has_verdict() && self.is_kept(&hold.session);
        let was_held = may_be_held && watch.is_confirmed() && self.is_alive(&hold.session);
        hold.stage = HoldStage::GivingBack(GiveBack::new(Reason::Released { was_held }));
        match &hold.goal {
            // A release names the session only: under a shared one it would end a hold that was
            // acquired since. A slot's name on the list may keep others out and is taken off in any
            // case.
            Goal::Lock(_) if !may_be_held => self.end_with(hold, Ok(false)),
            // No server was reached for a while, and the process may end soon: the end of the
            // session, which the agent retries, is all that has to get out.
            _ if self.is_suspended() && self.session_use == SessionUse::OneHold && !hold.is_awaited => {
                self.end_with(hold, Ok(false));
            }
            Goal::Lock(_) | Goal::Slot(_) => self.give_back_now(hold),
        }
    }

    /// Leaves nothing behind, then says what became of the acquisition.
    pub(super) fn give_up(&mut self, hold: &mut Hold, outcome: Result<(), Error>) {
        hold.wakes_at = None;
        let HoldStage::Acquiring(attempt) = &hold.stage else { return };
        let (leaves_something, was_prepared) = (attempt.leaves_something(), attempt.is_prepared());
        hold.stage = HoldStage::GivingBack(GiveBack::new(Reason::GaveUp(Some(outcome))));
        // Nothing was asked for yet, so the caller need not wait for the session's end.
        if !was_prepared {
            self.tell_of_giving_up(hold);
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

    /// A pause is over.
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
                // Nothing to release any more, after a release whose answer was not heard: that one
                // did it.
                let was_released = response.verdict() || giving_back.is_unheard();
                self.end_with(hold, Ok(was_released));
            }
            GiveBackStep::Reading => match self.take_off_the_list(hold, response) {
                Ok(Some(request)) => {
                    hold.giving_back().step = GiveBackStep::Writing;
                    self.ask(hold, request);
                }
                Ok(None) => self.delete_own_key(hold, false),
                Err(error) => self.give_back_failed(hold, error),
            },
            GiveBackStep::Writing if response.verdict() => self.delete_own_key(hold, true),
            GiveBackStep::Writing => {
                // Somebody else changed the list since it was read: it is read again.
                giving_back.step = GiveBackStep::Pausing;
                hold.wakes_at = Some(self.now + self.jitter.share(OVERTAKEN_SPREAD));
            }
            GiveBackStep::Deleting(was_listed) => self.end_with(hold, Ok(was_listed)),
            GiveBackStep::Pausing | GiveBackStep::EndingSession(_) => unreachable!("nothing was asked"),
        }
    }

    /// The write that takes the session off the list; `None` where it is not on it.
    fn take_off_the_list(&self, hold: &Hold, response: Response) -> Result<Option<Request>, Error> {
        let Goal::Slot(slot) = &hold.goal else { unreachable!("only slots have a list") };
        let (entries, _) = response.entries();
        let Some(mut slots) = slot.slots(&entries)? else { return Ok(None) };
        Ok(slots.leave(&hold.session).then(|| slot.replace(&slots)))
    }

    fn delete_own_key(&mut self, hold: &mut Hold, was_listed: bool) {
        let Goal::Slot(slot) = &hold.goal else { unreachable!("only slots come with a key") };
        let request = Request::Delete(slot.own_key(&hold.session));
        hold.giving_back().step = GiveBackStep::Deleting(was_listed);
        self.ask(hold, request);
    }

    fn give_back_failed(&mut self, hold: &mut Hold, error: Error) {
        // What is only suspended may turn out to live, and to hold it still.
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
        // The caller need not wait for that; but the session would keep what nobody knows of.
        self.tell_of_giving_up(hold);
    }

    /// All that could be given back was: now the session, if it was for this alone.
    fn end_with(&mut self, hold: &mut Hold, given: Result<bool, Error>) {
        hold.wakes_at = None;
        hold.giving_back().step = GiveBackStep::EndingSession(given);
        let ends =
            self.session_use == SessionUse::OneHold && self.end_session(hold.is_awaited, Then::Hold(hold.id));
        if !ends {
            // A lock that did not get through ends with the session, but when is not known.
            let is_over = self.session_use == SessionUse::OneHold && matches!(hold.goal, Goal::Slot(_));
            self.given_back(hold, is_over.then_some(Ok(())));
        }
    }

    /// Everything has ended; `closed` says what became of a session that was for this alone.
    pub(super) fn given_back(&mut self, hold: &mut Hold, closed: Option<Result<(), Error>>) {
        self.tell_of_giving_up(hold);
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
                // A session that was ended takes all that it held with it, whether or not the
                // release was heard.
                (Some(Ok(())), Goal::Lock(_)) => Ok(given.unwrap_or(was_held)),
                (Some(Ok(())), Goal::Slot(_)) => Ok(was_held),
                (Some(Err(_)) | None, _) => given,
            };
            self.outbox.events.push(Event::Released(hold.id, result));
        }
    }

    /// Tells the caller of an acquisition that was given up what became of it, once.
    fn tell_of_giving_up(&mut self, hold: &mut Hold) {
        let Reason::GaveUp(outcome) = &mut hold.giving_back().reason else { return };
        if let Some(outcome) = outcome.take()
            && std::mem::take(&mut hold.is_awaited)
        {
            self.outbox.events.push(Event::Acquired(hold.id, outcome.map(|()| None)));
        }
    }
}
