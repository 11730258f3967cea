//! The session of a holder: created, renewed, lost, destroyed.

use super::lease::{Lease, Step};
use super::moment::Moment;
use super::outbox::{Event, Notice, Request};
use super::{Hold, HoldId, HoldStage, Holder, HolderRequest, RequestPurpose, SessionUse};
use crate::backoff::Backoff;
use crate::error::Error;
use crate::loss::Loss;
use std::time::Duration;

/// How often a session's end is tried to be told to the agent before it is left to its TTL, where
/// nobody waits for that.
const DESTROY_TRIES: u32 = 5;

/// The session, if there is one.
#[derive(Debug, Default)]
pub(super) struct Session {
    creation: Option<HolderRequest>,
    kept: Option<Kept>,
}

/// A session that was created.
#[derive(Debug)]
struct Kept {
    id: String,
    lease: Lease,
    renewal: Option<HolderRequest>,
    loss: Option<Loss>,
}

/// The end of a session, until the agent was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EndingId(u64);

#[derive(Debug)]
pub(super) struct Ending {
    session: String,
    tries_left: u32,
    backoff: Backoff,
    pub(super) wakes_at: Option<Moment>,
    then: Then,
}

/// Who waits for the end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// Nobody.
    Nothing,
    /// Whoever closed it.
    Closed,
    /// A hold that was given back.
    Hold(HoldId),
}

/// The session that something can be asked for with.
pub(super) enum Usable {
    /// This one.
    Alive(String),
    /// One that is being created.
    Coming,
    /// None any more.
    Lost(Loss),
}

impl Session {
    pub(super) fn id(&self) -> Option<&str> {
        self.kept.as_ref().map(|kept| kept.id.as_str())
    }

    pub(super) fn loss(&self) -> Option<&Loss> {
        self.kept.as_ref()?.loss.as_ref()
    }

    pub(super) fn remaining(&self, now: Moment) -> Duration {
        match &self.kept {
            Some(Kept { loss: None, lease, .. }) => lease.deadline().since(now),
            _ => Duration::ZERO,
        }
    }

    pub(super) fn wakes_at(&self, now: Moment) -> Option<Moment> {
        let kept = self.kept.as_ref().filter(|kept| kept.loss.is_none())?;
        match (kept.renewal, kept.lease.step(now)) {
            (None, Step::Sleep(until)) => Some(until),
            (None, Step::Renew(_)) => Some(now),
            // With a renewal under way there is only its answer to wait for, or the deadline.
            (Some(_), _) | (None, Step::Lost) => Some(kept.lease.deadline()),
        }
    }
}

impl Holder {
    pub(super) fn create_session(&mut self) {
        let request = Request::CreateSession(self.options.clone());
        // Counted from now: the server begins to count when this has arrived, which is later.
        self.session.creation = Some(self.send(RequestPurpose::Creation { sent: self.now }, request));
    }

    pub(super) fn session_created(&mut self, sent: Moment, result: Result<String, Error>) {
        self.session.creation = None;
        let result = result.inspect(|id| {
            let lease = Lease::new(self.options.ttl, sent, self.jitter.fraction());
            self.session.kept = Some(Kept { id: id.clone(), lease, renewal: None, loss: None });
        });
        // It may have taken longer than the whole TTL.
        self.look_at_deadline();
        match self.session_use {
            SessionUse::Shared => self.outbox.events.push(Event::Kept(result)),
            SessionUse::OneHold => {
                let waiting = self.holds.values().find(|hold| hold.awaits_session()).map(|hold| hold.id);
                if let Some(id) = waiting {
                    self.with_hold(id, |holder, hold| holder.session_came(hold, result));
                }
            }
        }
    }

    /// The session to ask with; a new one where the old one is gone and was for this hold alone.
    pub(super) fn usable_session(&mut self) -> Usable {
        match &self.session.kept {
            Some(kept) if !self.session.remaining(self.now).is_zero() => Usable::Alive(kept.id.clone()),
            Some(Kept { loss, .. }) if self.session_use == SessionUse::Shared => {
                Usable::Lost(loss.clone().unwrap_or(Loss::Deadline))
            }
            _ => {
                self.create_session();
                Usable::Coming
            }
        }
    }

    /// Whether this is the present session and can be believed in.
    pub(super) fn is_alive(&self, session: &str) -> bool {
        self.session.id() == Some(session) && !self.session.remaining(self.now).is_zero()
    }

    /// Whether the deadline has passed since somebody looked.
    pub(super) fn look_at_deadline(&mut self) -> bool {
        let Some(kept) = self.session.kept.as_ref().filter(|kept| kept.loss.is_none()) else { return false };
        if kept.lease.step(self.now) != Step::Lost {
            return false;
        }
        let id = kept.id.clone();
        self.outbox.notices.push(Notice::DeadlinePassed(id.clone()));
        self.lose_session(Loss::Deadline);
        // Whoever waits for what it held need not wait for the server to notice, too.
        self.destroy(id, DESTROY_TRIES, Then::Nothing);
        true
    }

    pub(super) fn renew_if_due(&mut self) -> bool {
        let Some(kept) = self.session.kept.as_ref() else { return false };
        let (None, None, Step::Renew(limit)) = (&kept.loss, kept.renewal, kept.lease.step(self.now)) else {
            return false;
        };
        let request = Request::Renew(kept.id.clone(), limit);
        let number = self.send(RequestPurpose::Renewal { sent: self.now }, request);
        if let Some(kept) = &mut self.session.kept {
            kept.renewal = Some(number);
        }
        true
    }

    /// A renewal was answered, and not after the deadline: with that it would have been cancelled.
    pub(super) fn renewed(&mut self, sent: Moment, result: Result<bool, Error>) {
        let Some(kept) = &mut self.session.kept else { return };
        kept.renewal = None;
        match result {
            Ok(true) => kept.lease.renewed(sent, self.jitter.fraction()),
            Ok(false) => {
                self.lose_session(Loss::SessionGone);
            }
            Err(error) => {
                kept.lease.failed(self.now, &mut self.jitter);
                self.outbox.notices.push(Notice::RenewalFailed(error.to_string()));
            }
        }
    }

    /// Believes in the session no more, nor in anything that it holds; `false` when that was so
    /// already, for whatever reason came first.
    fn lose_session(&mut self, loss: Loss) -> bool {
        let Some(kept) = self.session.kept.as_mut().filter(|kept| kept.loss.is_none()) else { return false };
        kept.loss = Some(loss.clone());
        let renewal = kept.renewal.take();
        self.cancel(renewal);
        self.outbox.events.push(Event::SessionLost(loss.clone()));
        // What is being acquired goes on with another session, or fails with its next turn; what is
        // being given back ends with this one.
        let is_held = |hold: &&Hold| matches!(hold.stage, HoldStage::Held(_));
        let held: Vec<HoldId> = self.holds.values().filter(is_held).map(|hold| hold.id).collect();
        for id in held {
            self.with_hold(id, |holder, hold| holder.lose_hold(hold, loss.clone()));
        }
        true
    }

    /// Ends the session; `false` when there is nothing to end, because it was lost before. Where
    /// somebody waits, the agent is told once, and what it answers is told.
    pub(super) fn end_session(&mut self, is_awaited: bool, then: Then) -> bool {
        let creation = self.session.creation.take();
        // A session that comes to be all the same ends with its TTL.
        self.cancel(creation);
        let Some(id) = self.session.id().map(str::to_owned) else { return false };
        let ends = self.lose_session(Loss::Closed);
        if ends {
            self.destroy(id, if is_awaited { 1 } else { DESTROY_TRIES }, then);
        }
        ends
    }

    pub(super) fn close(&mut self) {
        if !self.end_session(true, Then::Closed) {
            self.outbox.events.push(Event::Closed(Ok(())));
        }
    }

    /// The last one to want it is gone: the session ends as soon as everything is given back.
    pub(super) fn end_if_abandoned(&mut self) -> bool {
        self.is_abandoned && self.holds.is_empty() && self.end_session(false, Then::Nothing)
    }

    fn destroy(&mut self, session: String, tries: u32, then: Then) {
        self.last_ending += 1;
        let id = EndingId(self.last_ending);
        let backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(3));
        self.endings.insert(id, Ending { session, tries_left: tries, backoff, wakes_at: None, then });
        self.destroy_again(id);
    }

    pub(super) fn destroy_again(&mut self, id: EndingId) {
        let Some(ending) = self.endings.get_mut(&id) else { return };
        ending.tries_left -= 1;
        ending.wakes_at = None;
        let request = Request::DestroySession(ending.session.clone());
        self.send(RequestPurpose::Ending(id), request);
    }

    pub(super) fn ending_answered(&mut self, id: EndingId, result: Result<(), Error>) {
        let Some(ending) = self.endings.get_mut(&id) else { return };
        if result.as_ref().is_err_and(Error::is_transient) && ending.tries_left > 0 {
            ending.wakes_at = Some(self.now + ending.backoff.failed(&mut self.jitter));
            return;
        }
        let Some(Ending { session, then, .. }) = self.endings.remove(&id) else { return };
        if let Err(error) = &result {
            self.outbox.notices.push(Notice::NotDestroyed(session, error.to_string()));
        }
        match then {
            Then::Nothing => {}
            Then::Closed => self.outbox.events.push(Event::Closed(result)),
            Then::Hold(id) => self.with_hold(id, |holder, hold| holder.given_back(hold, Some(result))),
        }
    }

    /// The session turned out not to be there, before it held anything: that costs nothing, the
    /// next turn makes another.
    pub(super) fn replace_session(&mut self) {
        let Some(id) = self.session.kept.as_ref().map(|kept| kept.id.clone()) else { return };
        if self.lose_session(Loss::SessionGone) {
            self.destroy(id, DESTROY_TRIES, Then::Nothing);
        }
        self.session.kept = None;
    }
}
