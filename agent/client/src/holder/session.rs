//! The session of a holder: created, renewed, suspended and resumed, lost, destroyed.

use super::input::CreatedSession;
use super::lease::{Lease, Step};
use super::moment::Moment;
use super::node_lease::{Belief, NodeLease, NodeLeaseState, NodeWatch};
use super::outbox::{EndReason, Event, Notice, Request};
use super::state::GuardState;
use super::watch::CAUSE_TIMEOUT;
use super::{Hold, HoldId, HoldStage, Holder, HolderRequest, RequestPurpose, SessionUse, WATCH_TIMEOUT};
use crate::backoff::Backoff;
use crate::error::Error;
use crate::loss::Loss;
use crate::read::Read;
use crate::session_options::SessionOptions;
use std::time::Duration;

/// The number of tries to end a session at the agent before it is left to its TTL, if no caller
/// waits for it.
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
    node: NodeWatch,
    loss: Option<Loss>,
    /// The time limit for the agent to report the cause, if the session was suspended and is gone.
    cause_awaited_until: Option<Moment>,
    /// Set while a caller waits for the session to become valid.
    is_awaited: bool,
}

impl Kept {
    fn new(id: String, lease: Lease, now: Moment, is_awaited: bool) -> Self {
        let node = NodeWatch::new(now);
        Self { id, lease, renewal: None, node, loss: None, cause_awaited_until: None, is_awaited }
    }

    /// Returns the moment until which it is valid; `None` if it is not valid now.
    fn deadline(&self) -> Option<Moment> {
        let believed = self.node.limit(self.lease.deadline());
        believed.filter(|_| self.loss.is_none())
    }
}

/// The end of a session, until the agent has acknowledged it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EndingId(u64);

#[derive(Debug)]
pub(super) struct Ending {
    session: String,
    reason: EndReason,
    tries_left: u32,
    backoff: Backoff,
    pub(super) wakes_at: Option<Moment>,
    then: Then,
}

/// The recipient of the result of a session's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// No recipient.
    Nothing,
    /// The caller that closed it.
    Closed,
    /// A hold that was released.
    Hold(HoldId),
}

/// The session for a request.
pub(super) enum Usable {
    /// A valid session.
    Alive(String),
    /// A session that is being created, or that the agent has not confirmed yet.
    Coming,
    /// A session that is suspended and may become valid again.
    Suspended,
    /// The session was lost.
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
        let deadline = self.kept.as_ref().and_then(Kept::deadline);
        deadline.map_or(Duration::ZERO, |deadline| deadline.since(now))
    }

    pub(super) fn state(&self, now: Moment) -> GuardState {
        let Some(kept) = &self.kept else { return GuardState::Lost(Loss::Closed) };
        match (&kept.loss, kept.deadline()) {
            (Some(loss), _) => GuardState::Lost(loss.clone()),
            // Before a tick has noticed it.
            (None, _) if now >= kept.lease.deadline() => GuardState::Lost(Loss::Deadline),
            (None, None) => GuardState::Suspended,
            (None, Some(deadline)) => {
                GuardState::until(deadline, kept.node.jeopardy_at(kept.lease.jeopardy_at()), now)
            }
        }
    }

    /// Returns `true` if the agent reports the state of the session with respect to its node.
    pub(super) fn is_followed(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.loss.is_none() && kept.node.is_followed())
    }

    pub(super) fn wakes_at(&self, now: Moment) -> Option<Moment> {
        let kept = self.kept.as_ref().filter(|kept| kept.loss.is_none())?;
        let renews_at = match (kept.cause_awaited_until, kept.renewal, kept.lease.step(now)) {
            (Some(until), ..) => until,
            (None, None, Step::Sleep(until)) => until,
            (None, None, Step::Renew(_)) => now,
            // With a renewal in flight, only its reply or the deadline matter.
            (None, Some(_), _) | (None, None, Step::Lost) => kept.lease.deadline(),
        };
        // No action is due then, but callers that wait for another state must check again.
        let jeopardy_at = kept.node.jeopardy_at(kept.lease.jeopardy_at());
        let changes_at = Some(jeopardy_at).filter(|at| *at > now);
        [Some(renews_at), kept.node.wakes_at(), changes_at].into_iter().flatten().min()
    }
}

impl Holder {
    pub(super) fn create_session(&mut self) {
        let ttl = self.options.ttl_with(self.default_window);
        let request = Request::CreateSession(SessionOptions { ttl: Some(ttl), ..self.options.clone() });
        // Counted from now: the server counts from the arrival, which is later.
        self.session.creation = Some(self.send(RequestPurpose::Creation { sent: self.now, ttl }, request));
    }

    pub(super) fn session_created(
        &mut self,
        (sent, ttl): (Moment, Duration),
        result: Result<CreatedSession, Error>,
    ) {
        self.session.creation = None;
        let Some(result) = result.map(|created| self.fitting(created, ttl)).transpose() else { return };
        let result = result.flatten().map(|id| {
            let lease = Lease::new(ttl, sent, self.jitter.fraction());
            let is_awaited = self.session_use == SessionUse::Shared;
            self.session.kept = Some(Kept::new(id, lease, self.now, is_awaited));
        });
        // The creation may have taken longer than the whole TTL.
        if self.check_deadline() {
            return;
        }
        match (self.session_use, result) {
            // Reported once the agent has confirmed the session's deadline.
            (SessionUse::Shared, Ok(())) => {}
            (SessionUse::Shared, Err(error)) => self.outbox.events.push(Event::Kept(Err(error))),
            (SessionUse::OneHold, Ok(())) => self.go_on_with_session(),
            (SessionUse::OneHold, Err(error)) => {
                if let Some(id) = self.awaiting_session().first().copied() {
                    self.with_hold(id, |holder, hold| holder.session_failed(hold, error));
                }
            }
        }
    }

    /// Returns the id of a session whose TTL fits the window that the agent assigned. Any other
    /// session is ended; `None` if a session with the default TTL of that window is created
    /// instead.
    fn fitting(&mut self, created: CreatedSession, ttl: Duration) -> Option<Result<String, Error>> {
        let CreatedSession { id, window } = created;
        let window = window.filter(|_| self.options.health_window.is_none());
        self.default_window = window.or(self.default_window);
        let sent = SessionOptions { ttl: Some(ttl), ..self.options.clone() };
        let Some(Err(error)) = window.map(|window| sent.check_default_window(window)) else {
            return Some(Ok(id));
        };
        self.begin_ending((id, EndReason::Closed), DESTROY_TRIES, Then::Nothing);
        if self.options.ttl.is_some() {
            return Some(Err(error));
        }
        self.create_session();
        None
    }

    /// Returns the holds that wait for a session, or for its confirmation by the agent.
    fn awaiting_session(&self) -> Vec<HoldId> {
        self.holds.values().filter(|hold| hold.awaits_session()).map(|hold| hold.id).collect()
    }

    /// Lets the holds that wait for a session check again.
    fn go_on_with_session(&mut self) {
        for id in self.awaiting_session() {
            self.with_hold(id, Self::begin_turn);
        }
    }

    /// Returns the session for requests. Creates a new one if the old one is gone and served only
    /// this hold.
    pub(super) fn usable_session(&mut self) -> Usable {
        match &self.session.kept {
            Some(kept) if !self.session.remaining(self.now).is_zero() => Usable::Alive(kept.id.clone()),
            Some(Kept { loss: None, node, .. }) => match node.belief {
                Belief::Unheard(_) => Usable::Coming,
                _ => Usable::Suspended,
            },
            Some(Kept { loss: Some(loss), .. }) if self.session_use == SessionUse::Shared => {
                Usable::Lost(loss.clone())
            }
            _ => {
                self.create_session();
                Usable::Coming
            }
        }
    }

    /// Returns `true` if this is the current session and it is valid.
    pub(super) fn is_alive(&self, session: &str) -> bool {
        self.session.id() == Some(session) && !self.session.remaining(self.now).is_zero()
    }

    /// Returns `true` if this is the current session and it is not lost; it may be suspended.
    pub(super) fn is_kept(&self, session: &str) -> bool {
        self.session.id() == Some(session) && self.session.loss().is_none()
    }

    /// Processes deadlines that have passed since the last check; returns `true` if there were any.
    pub(super) fn check_deadline(&mut self) -> bool {
        let Some(kept) = self.session.kept.as_ref().filter(|kept| kept.loss.is_none()) else { return false };
        if let Some(until) = kept.cause_awaited_until {
            return until <= self.now && self.lose_session(Loss::SessionGone);
        }
        if kept.lease.step(self.now) == Step::Lost {
            self.outbox.notices.push(Notice::DeadlinePassed(kept.id.clone(), self.held_names()));
            let silent_for = kept.lease.unrenewed_for(self.now);
            self.lose_and_end(Loss::Deadline, EndReason::GivenUp(Some(silent_for)));
            if self.session_use == SessionUse::OneHold {
                self.go_on_with_session();
            }
        } else if kept.node.is_unheard(self.now) {
            self.lose_and_end(Loss::NodeDeadline, EndReason::GivenUp(None));
        } else if kept.node.is_overdue(self.now) {
            self.suspend();
        } else {
            return false;
        }
        true
    }

    /// Ends the lost session at the agent, so that waiters do not wait until the server notices.
    fn lose_and_end(&mut self, loss: Loss, reason: EndReason) {
        let Some(id) = self.session.id().map(str::to_owned) else { return };
        if self.lose_session(loss) {
            self.begin_ending((id, reason), DESTROY_TRIES, Then::Nothing);
        }
    }

    /// Returns the keys and prefixes of all holds, for the log.
    fn held_names(&self) -> Vec<String> {
        let is_held = |hold: &&Hold| matches!(hold.stage, HoldStage::Held(_));
        self.holds.values().filter(is_held).map(|hold| hold.goal.name().to_owned()).collect()
    }

    /// Suspends the session. It may be resumed: the servers may have received the node's renewals.
    fn suspend(&mut self) {
        let Some(kept) = &mut self.session.kept else { return };
        kept.node.belief = Belief::Suspended;
        let id = kept.id.clone();
        self.outbox.notices.push(Notice::Suspended(id, self.held_names()));
        self.holds.values_mut().for_each(Hold::suspend);
    }

    /// Resumes the session after the agent's confirmation. Each hold is read before it counts as
    /// held.
    fn resume(&mut self) {
        let Some(kept) = &mut self.session.kept else { return };
        if std::mem::take(&mut kept.is_awaited) {
            self.outbox.events.push(Event::Kept(Ok(kept.id.clone())));
        }
        let suspended = self.holds.values().filter(|hold| hold.is_suspended());
        let suspended: Vec<HoldId> = suspended.map(|hold| hold.id).collect();
        for id in suspended {
            self.with_hold(id, Self::confirm_hold);
        }
        self.go_on_with_session();
    }

    /// Queries the session's state with respect to its node's lease, if that is due.
    pub(super) fn ask_for_node_lease(&mut self) -> bool {
        let now = self.now;
        let Some(kept) = self.session.kept.as_mut().filter(|kept| kept.loss.is_none()) else { return false };
        if kept.node.request.is_some() || kept.node.asks_at.is_none_or(|at| at > now) {
            return false;
        }
        kept.node.asks_at = None;
        let read = Read::default().newer_than(kept.node.index, WATCH_TIMEOUT);
        let request = Request::NodeLease(kept.id.clone(), read);
        let number = self.send(RequestPurpose::NodeLease, request);
        if let Some(kept) = &mut self.session.kept {
            kept.node.request = Some(number);
        }
        true
    }

    /// Processes the agent's report about the session. Deadlines were checked before.
    pub(super) fn node_lease_told(&mut self, result: Result<NodeLease, Error>) {
        let (now, held) = (self.now, self.held_names());
        let Some(kept) = &mut self.session.kept else { return };
        kept.node.request = None;
        let NodeLease { state, index } = match result {
            Ok(told) => told,
            Err(error) => return self.node_lease_unknown(&error),
        };
        kept.node.answered(now, index);
        match state {
            NodeLeaseState::Lost(reason) => {
                self.lose_session(Loss::Ended(reason));
            }
            // The session is gone: only the cause matters.
            _ if kept.cause_awaited_until.is_some() => {}
            NodeLeaseState::Unbound => self.without_node_lease(),
            NodeLeaseState::Until { deadline, jeopardy_at } if deadline > now => {
                if kept.node.belief == Belief::Suspended {
                    self.outbox.notices.push(Notice::Resumed(kept.id.clone(), held));
                }
                if kept.node.told(deadline, jeopardy_at) {
                    self.resume();
                }
            }
            NodeLeaseState::Until { .. } | NodeLeaseState::Suspended => kept.node.suspend(now),
        }
    }

    fn node_lease_unknown(&mut self, error: &Error) {
        let Some(kept) = &mut self.session.kept else { return };
        let is_first = matches!(kept.node.belief, Belief::Unheard(_));
        let is_unknown = matches!(error, Error::Refused { status: 404 | 405, .. });
        if is_first && is_unknown {
            // An agent without node leases, such as Consul's.
            return self.without_node_lease();
        }
        if is_first && !error.is_transient() {
            return self.lose_and_end(Loss::Unwatched(error.to_string()), EndReason::Closed);
        }
        // Earlier promises stay valid until their end, and only the agent can extend them.
        kept.node.failed(self.now, &mut self.jitter);
        self.outbox.notices.push(Notice::TryingAgain(kept.id.clone(), error.to_string()));
    }

    /// Records that only the TTL limits the session, so that no reports are needed.
    fn without_node_lease(&mut self) {
        let Some(kept) = &mut self.session.kept else { return };
        // An agent that does not know a deadline does not revoke one that was reported before.
        if matches!(kept.node.belief, Belief::Unheard(_)) {
            (kept.node.belief, kept.node.asks_at) = (Belief::Unbound, None);
            self.resume();
        }
    }

    pub(super) fn renew_if_due(&mut self) -> bool {
        let Some(kept) = self.session.kept.as_ref() else { return false };
        let (None, None, Step::Renew(limit)) = (&kept.loss, kept.renewal, kept.lease.step(self.now)) else {
            return false;
        };
        if kept.cause_awaited_until.is_some() {
            return false;
        }
        let request = Request::Renew(kept.id.clone(), limit);
        let number = self.send(RequestPurpose::Renewal { sent: self.now }, request);
        if let Some(kept) = &mut self.session.kept {
            kept.renewal = Some(number);
        }
        true
    }

    /// Processes the reply to a renewal. It is not after the deadline, which would have cancelled
    /// it.
    pub(super) fn renewed(&mut self, sent: Moment, result: Result<bool, Error>) {
        let Some(kept) = &mut self.session.kept else { return };
        kept.renewal = None;
        match result {
            Ok(true) => kept.lease.renewed(sent, self.jitter.fraction()),
            Ok(false) if kept.node.belief == Belief::Suspended => {
                // No hold counts as held meanwhile, and the agent is about to report the cause.
                kept.cause_awaited_until = Some((self.now + CAUSE_TIMEOUT).min(kept.lease.deadline()));
                kept.node.ask_now(self.now);
            }
            Ok(false) => {
                self.lose_session(Loss::SessionGone);
            }
            Err(error) => {
                kept.lease.failed(self.now, &mut self.jitter);
                self.outbox.notices.push(Notice::RenewalFailed(error.to_string()));
            }
        }
    }

    /// Marks the session and all of its holds as lost; returns `false` if it was lost before, for
    /// an earlier reason.
    fn lose_session(&mut self, loss: Loss) -> bool {
        let Some(kept) = self.session.kept.as_mut().filter(|kept| kept.loss.is_none()) else { return false };
        kept.loss = Some(loss.clone());
        kept.node.asks_at = None;
        let under_way = [kept.renewal.take(), kept.node.request.take()];
        let is_awaited = std::mem::take(&mut kept.is_awaited);
        under_way.into_iter().for_each(|request| self.cancel(request));
        if is_awaited {
            self.outbox.events.push(Event::Kept(Err(Error::SessionLost(loss.clone()))));
        }
        self.outbox.events.push(Event::SessionLost(loss.clone()));
        // Acquisitions continue with another session, or fail with their next turn; releases end
        // with this session.
        let is_held = |hold: &&Hold| matches!(hold.stage, HoldStage::Held(_));
        let held: Vec<HoldId> = self.holds.values().filter(is_held).map(|hold| hold.id).collect();
        for id in held {
            self.with_hold(id, |holder, hold| holder.lose_hold(hold, loss.clone()));
        }
        // A session that had expired on arrival is replaced.
        let is_replaced = loss == Loss::Deadline && self.session_use == SessionUse::OneHold;
        let failed = if is_replaced { Vec::new() } else { self.awaiting_session() };
        for id in failed {
            self.with_hold(id, |holder, hold| holder.session_failed(hold, Error::SessionLost(loss.clone())));
        }
        true
    }

    /// Ends the session; returns `false` if it was lost before. If a caller waits, the agent is
    /// called once, and its reply is reported.
    pub(super) fn end_session(&mut self, is_awaited: bool, then: Then) -> bool {
        let creation = self.session.creation.take();
        // A session that is created nevertheless ends with its TTL.
        self.cancel(creation);
        let Some(id) = self.session.id().map(str::to_owned) else { return false };
        let reason = if self.is_suspended() { EndReason::GivenUp(None) } else { EndReason::Closed };
        let ends = self.lose_session(Loss::Closed);
        if ends {
            self.begin_ending((id, reason), if is_awaited { 1 } else { DESTROY_TRIES }, then);
        }
        ends
    }

    pub(super) fn close(&mut self) {
        if !self.end_session(true, Then::Closed) {
            self.outbox.events.push(Event::Closed(Ok(())));
        }
    }

    /// Ends an abandoned session as soon as everything is released.
    pub(super) fn end_if_abandoned(&mut self) -> bool {
        self.is_abandoned && self.holds.is_empty() && self.end_session(false, Then::Nothing)
    }

    /// Returns `true` if the node's deadline has passed and the agent has not confirmed the session
    /// since.
    pub(super) fn is_suspended(&self) -> bool {
        self.session.kept.as_ref().is_some_and(|kept| kept.node.belief == Belief::Suspended)
    }

    fn begin_ending(&mut self, (session, reason): (String, EndReason), tries: u32, then: Then) {
        self.last_ending += 1;
        let id = EndingId(self.last_ending);
        let backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(3));
        self.endings.insert(id, Ending { session, reason, tries_left: tries, backoff, wakes_at: None, then });
        self.destroy_again(id);
    }

    pub(super) fn destroy_again(&mut self, id: EndingId) {
        let Some(ending) = self.endings.get_mut(&id) else { return };
        ending.tries_left -= 1;
        ending.wakes_at = None;
        let request = Request::EndSession(ending.session.clone(), ending.reason);
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

    /// Replaces a session that no longer exists and never held anything: the next turn creates
    /// another.
    pub(super) fn replace_session(&mut self) {
        let Some(id) = self.session.kept.as_ref().map(|kept| kept.id.clone()) else { return };
        if self.lose_session(Loss::SessionGone) {
            self.begin_ending((id, EndReason::Closed), DESTROY_TRIES, Then::Nothing);
        }
        self.session.kept = None;
    }
}
