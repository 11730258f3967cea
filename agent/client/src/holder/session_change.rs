//! The consequences of a change of the session for its holds.

use super::endings::{DESTROY_TRIES, Then};
use super::hold::Hold;
use super::input::CreatedSession;
use super::moment::Moment;
use super::outbox::{EndReason, Event, Notice};
use super::session::SessionChange;
use super::{HoldId, Holder, SessionUse};
use crate::error::Error;
use crate::loss::Loss;
use std::time::Duration;

impl Holder {
    pub(super) fn session_created(
        &mut self,
        sent: (Moment, Duration),
        result: Result<CreatedSession, Error>,
    ) {
        let Some(result) = self.cx.session_created(sent, result) else { return };
        // The creation may have taken longer than the whole TTL.
        if self.check_deadline() {
            return;
        }
        match (self.cx.session_use, result) {
            // Reported once the agent has confirmed the session's deadline.
            (SessionUse::Shared, Ok(())) => {}
            (SessionUse::Shared, Err(error)) => self.cx.report(Event::Kept(Err(error))),
            (SessionUse::OneHold, Ok(())) => self.go_on_with_session(),
            (SessionUse::OneHold, Err(error)) => {
                if let Some(id) = self.find_holds(Hold::awaits_session).first().copied() {
                    self.with_hold(id, |hold, cx| hold.session_failed(error, cx));
                }
            }
        }
    }

    /// Processes deadlines that have passed since the last check; returns `true` if there were any.
    pub(super) fn check_deadline(&mut self) -> bool {
        let Some(change) = self.cx.passed_deadline() else { return false };
        self.session_changed(change);
        true
    }

    /// Applies a change of the session to its holds.
    pub(super) fn session_changed(&mut self, change: SessionChange) {
        let Some(id) = self.cx.session.id().map(str::to_owned) else { return };
        match change {
            SessionChange::Confirmed => self.resume(),
            SessionChange::Resumed => {
                self.cx.log(Notice::Resumed(id, self.held_names()));
                self.resume();
            }
            SessionChange::Suspended => {
                self.cx.log(Notice::Suspended(id, self.held_names()));
                self.holds.values_mut().for_each(Hold::suspend);
            }
            SessionChange::Expired(silent_for) => {
                self.cx.log(Notice::DeadlinePassed(id.clone(), self.held_names()));
                self.lose_and_end(id, Loss::Deadline, EndReason::GivenUp(Some(silent_for)));
                if self.cx.session_use == SessionUse::OneHold {
                    self.go_on_with_session();
                }
            }
            // At the agent too, so that waiters do not wait until the server notices.
            SessionChange::Unusable(loss, reason) => self.lose_and_end(id, loss, reason),
            // It has ended already, so there is nothing to end.
            SessionChange::Gone(loss) => {
                self.lose_session(&loss);
            }
        }
    }

    fn lose_and_end(&mut self, id: String, loss: Loss, reason: EndReason) {
        if self.lose_session(&loss) {
            self.cx.begin_ending((id, reason), DESTROY_TRIES, Then::Nothing);
        }
    }

    /// Marks the session and all of its holds as lost; returns `false` if it was lost before, for
    /// an earlier reason.
    fn lose_session(&mut self, loss: &Loss) -> bool {
        if !self.cx.lose_session(loss) {
            return false;
        }
        // Acquisitions continue with another session, or fail with their next turn; releases end
        // with this session.
        for id in self.find_holds(Hold::is_held) {
            self.with_hold(id, |hold, cx| hold.lose(loss.clone(), cx));
        }
        // A session that had expired on arrival is replaced.
        if *loss != Loss::Deadline || self.cx.session_use != SessionUse::OneHold {
            for id in self.find_holds(Hold::awaits_session) {
                let error = Error::SessionLost(loss.clone());
                self.with_hold(id, |hold, cx| hold.session_failed(error, cx));
            }
        }
        true
    }

    /// Lets each hold be read before it counts as held, and acquisitions continue.
    fn resume(&mut self) {
        for id in self.find_holds(Hold::is_suspended) {
            self.with_hold(id, Hold::confirm);
        }
        self.go_on_with_session();
    }

    /// Lets the holds that wait for a session, or for its confirmation by the agent, check again.
    fn go_on_with_session(&mut self) {
        self.find_holds(Hold::awaits_session).into_iter().for_each(|id| self.begin_turn(id));
    }

    fn find_holds(&self, is_wanted: impl Fn(&Hold) -> bool) -> Vec<HoldId> {
        self.holds.values().filter(|hold| is_wanted(hold)).map(|hold| hold.id).collect()
    }

    /// Returns the keys and prefixes of all holds, for the log.
    fn held_names(&self) -> Vec<String> {
        let held = self.holds.values().filter(|hold| hold.is_held());
        held.map(|hold| hold.goal.name()).collect()
    }

    /// Ends the session; returns `false` if it was lost before. If its caller waits, the agent is
    /// called once, and its reply is reported.
    fn end_session(&mut self, tries: u32, then: Then) -> bool {
        let is_given_up = self.is_abandoned && self.cx.is_late();
        let Some(session) = self.cx.session_to_end(is_given_up) else { return false };
        let ends = self.lose_session(&Loss::Closed);
        if ends {
            self.cx.begin_ending(session, tries, then);
        }
        ends
    }

    pub(super) fn close(&mut self) {
        if !self.end_session(1, Then::Closed) {
            self.cx.report(Event::Closed(Ok(())));
        }
    }

    /// Ends an abandoned session as soon as everything is released.
    pub(super) fn end_if_abandoned(&mut self) -> bool {
        self.is_abandoned && self.holds.is_empty() && self.end_session(DESTROY_TRIES, Then::Nothing)
    }
}
