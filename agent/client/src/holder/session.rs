//! The session of a holder: created, renewed, confirmed by the agent, lost. Its changes are
//! returned to the holder, which applies them to the holds.

use super::context::{Context, RequestPurpose};
use super::endings::{DESTROY_TRIES, Then};
use super::id::{HoldId, HolderRequest};
use super::input::CreatedSession;
use super::lease::{Lease, Step};
use super::moment::Moment;
use super::node_lease::{Belief, NodeLease, NodeLeaseState, NodeWatch};
use super::outbox::{EndReason, Event, Notice, Request};
use super::state::GuardState;
use super::watch::CAUSE_TIMEOUT;
use super::{SessionUse, WATCH_TIMEOUT};
use crate::error::Error;
use crate::loss::Loss;
use crate::read::Read;
use crate::session_options::SessionOptions;
use std::time::Duration;

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

/// A change of the session that concerns its holds.
#[derive(Debug)]
pub(super) enum SessionChange {
    /// The agent confirmed it for the first time.
    Confirmed,
    /// It is suspended. It may be resumed: the servers may have received the node's renewals.
    Suspended,
    /// The agent confirmed it again after a suspension.
    Resumed,
    /// Its deadline passed, this long after the last acknowledged renewal was sent.
    Expired(Duration),
    /// It is lost, and has to be ended for this reason.
    Unusable(Loss, EndReason),
    /// It is lost.
    Gone(Loss),
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

    /// Returns the session, unless it is lost.
    fn current_mut(&mut self) -> Option<&mut Kept> {
        self.kept.as_mut().filter(|kept| kept.loss.is_none())
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

impl Context {
    pub(super) fn create_session(&mut self) {
        let ttl = self.options.ttl_with(self.default_window);
        let request = Request::CreateSession(SessionOptions { ttl: Some(ttl), ..self.options.clone() });
        // Counted from now: the server counts from the arrival, which is later.
        self.session.creation = Some(self.send(RequestPurpose::Creation { sent: self.now, ttl }, request));
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

    /// Processes the reply to a creation; returns `None` if another session is being created
    /// instead.
    pub(super) fn session_created(
        &mut self,
        (sent, ttl): (Moment, Duration),
        result: Result<CreatedSession, Error>,
    ) -> Option<Result<(), Error>> {
        self.session.creation = None;
        let id = match result {
            Ok(created) => self.fitting(created, ttl)?,
            Err(error) => Err(error),
        };
        Some(id.map(|id| {
            let lease = Lease::new(ttl, sent, self.jitter.fraction());
            // Only the caller of a keeper waits for the session itself.
            let is_awaited = self.session_use == SessionUse::Shared;
            self.session.kept = Some(Kept::new(id, lease, self.now, is_awaited));
        }))
    }

    /// Returns the change at a deadline that has passed since the last check.
    pub(super) fn passed_deadline(&mut self) -> Option<SessionChange> {
        let now = self.now;
        let kept = self.session.current_mut()?;
        if let Some(until) = kept.cause_awaited_until {
            return (until <= now).then_some(SessionChange::Gone(Loss::SessionGone));
        }
        if kept.lease.step(now) == Step::Lost {
            return Some(SessionChange::Expired(kept.lease.unrenewed_for(now)));
        }
        if kept.node.is_unheard(now) {
            return Some(SessionChange::Unusable(Loss::NodeDeadline, EndReason::GivenUp(None)));
        }
        kept.node.is_overdue(now).then(|| {
            kept.node.belief = Belief::Suspended;
            SessionChange::Suspended
        })
    }

    /// Queries the session's state with respect to its node's lease, if that is due.
    pub(super) fn query_node_lease_if_due(&mut self) -> bool {
        let now = self.now;
        let Some(kept) = self.session.current_mut() else { return false };
        if kept.node.overdue_at().is_some_and(|at| at <= now) {
            let poll = kept.node.request.take();
            kept.node.asks_at = Some(now);
            self.cancel(poll);
        }
        let Some(kept) = self.session.current_mut() else { return false };
        if kept.node.request.is_some() || kept.node.asks_at.is_none_or(|at| at > now) {
            return false;
        }
        (kept.node.asked_at, kept.node.asks_at) = (now, None);
        let read = Read::default().newer_than(kept.node.index, WATCH_TIMEOUT);
        let request = Request::NodeLease(kept.id.clone(), read);
        let number = self.send(RequestPurpose::NodeLease, request);
        if let Some(kept) = &mut self.session.kept {
            kept.node.request = Some(number);
        }
        true
    }

    /// Processes the agent's report about the session. Deadlines were checked before.
    pub(super) fn node_lease_reported(&mut self, result: Result<NodeLease, Error>) -> Option<SessionChange> {
        let now = self.now;
        let kept = self.session.kept.as_mut()?;
        kept.node.request = None;
        let NodeLease { state, index } = match result {
            Ok(report) => report,
            Err(error) => return self.node_lease_unknown(&error),
        };
        let before = kept.node.index;
        kept.node.answered(now, index);
        match state {
            NodeLeaseState::Lost(reason) => Some(SessionChange::Gone(Loss::Ended(reason))),
            // The session is gone: only the cause matters.
            _ if kept.cause_awaited_until.is_some() => None,
            NodeLeaseState::Unbound => self.without_node_lease(),
            NodeLeaseState::Until { deadline, jeopardy_at } if deadline > now => {
                let was_suspended = kept.node.belief == Belief::Suspended;
                let is_confirmed = kept.node.extend(deadline, jeopardy_at);
                is_confirmed.then(|| self.confirmed(was_suspended))
            }
            NodeLeaseState::Until { .. } => {
                // It came too late. A query behind its index would confirm that it counts.
                kept.node.index = before;
                kept.node.suspend(now);
                None
            }
            NodeLeaseState::Suspended => {
                kept.node.suspend(now);
                None
            }
        }
    }

    fn node_lease_unknown(&mut self, error: &Error) -> Option<SessionChange> {
        let kept = self.session.kept.as_mut()?;
        let is_first = matches!(kept.node.belief, Belief::Unheard(_));
        let is_unknown = matches!(error, Error::Refused { status: 404 | 405, .. });
        if is_first && is_unknown {
            // An agent without node leases, such as Consul's.
            return self.without_node_lease();
        }
        if is_first && !error.is_transient() {
            return Some(SessionChange::Unusable(Loss::Unwatched(error.to_string()), EndReason::Closed));
        }
        // Earlier promises stay valid until their end, and only the agent can extend them.
        kept.node.failed(self.now, &mut self.jitter);
        let id = kept.id.clone();
        self.log(Notice::TryingAgain(id, error.to_string()));
        None
    }

    /// Records that only the TTL limits the session, so that no reports are needed.
    fn without_node_lease(&mut self) -> Option<SessionChange> {
        let kept = self.session.kept.as_mut()?;
        // An agent that does not know a deadline does not revoke one that was reported before.
        if !matches!(kept.node.belief, Belief::Unheard(_)) {
            return None;
        }
        (kept.node.belief, kept.node.asks_at) = (Belief::Unbound, None);
        Some(self.confirmed(false))
    }

    /// Reports the session to its caller, at the agent's first confirmation.
    fn confirmed(&mut self, was_suspended: bool) -> SessionChange {
        if let Some(kept) = &mut self.session.kept
            && std::mem::take(&mut kept.is_awaited)
        {
            let id = kept.id.clone();
            self.report(Event::Kept(Ok(id)));
        }
        if was_suspended { SessionChange::Resumed } else { SessionChange::Confirmed }
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
    pub(super) fn renewed(&mut self, sent: Moment, result: Result<bool, Error>) -> Option<SessionChange> {
        let kept = self.session.kept.as_mut()?;
        kept.renewal = None;
        match result {
            Ok(true) => kept.lease.renewed(sent, self.jitter.fraction()),
            Ok(false) if kept.node.belief == Belief::Suspended => {
                // No hold counts as held meanwhile, and the agent is about to report the cause.
                kept.cause_awaited_until = Some((self.now + CAUSE_TIMEOUT).min(kept.lease.deadline()));
                kept.node.ask_now(self.now);
            }
            Ok(false) => return Some(SessionChange::Gone(Loss::SessionGone)),
            Err(error) => {
                kept.lease.failed(self.now, &mut self.jitter);
                self.log(Notice::RenewalFailed(error.to_string()));
            }
        }
        None
    }

    /// Marks the session as lost; returns `false` if it was lost before, for an earlier reason.
    pub(super) fn lose_session(&mut self, loss: &Loss) -> bool {
        let Some(kept) = self.session.current_mut() else { return false };
        kept.loss = Some(loss.clone());
        kept.node.asks_at = None;
        let under_way = [kept.renewal.take(), kept.node.request.take()];
        let is_awaited = std::mem::take(&mut kept.is_awaited);
        under_way.into_iter().for_each(|request| self.cancel(request));
        if is_awaited {
            self.report(Event::Kept(Err(Error::SessionLost(loss.clone()))));
        }
        self.report(Event::SessionLost(loss.clone()));
        true
    }

    /// Cancels the creation of a session, and returns the current one with the reason of its end. A
    /// session that is created nevertheless ends with its TTL.
    pub(super) fn session_to_end(&mut self, is_given_up: bool) -> Option<(String, EndReason)> {
        let creation = self.session.creation.take();
        self.cancel(creation);
        let is_given_up = is_given_up || self.is_suspended();
        let reason = if is_given_up { EndReason::GivenUp(None) } else { EndReason::Closed };
        Some((self.session.id()?.to_owned(), reason))
    }

    /// Ends a session that serves one hold, with that hold; returns `false` if it was lost before.
    /// If a caller waits, the agent is called once, and its reply is reported.
    pub(super) fn end_with_hold(&mut self, hold: HoldId, is_awaited: bool, is_given_up: bool) -> bool {
        let Some(session) = self.session_to_end(is_given_up) else { return false };
        let ends = self.lose_session(&Loss::Closed);
        if ends {
            self.begin_ending(session, if is_awaited { 1 } else { DESTROY_TRIES }, Then::Hold(hold));
        }
        ends
    }

    /// Returns `true` if a renewal of the node's lease is overdue, or was until its deadline.
    pub(super) fn is_late(&self) -> bool {
        self.is_suspended() || self.session.kept.as_ref().is_some_and(|kept| kept.node.is_late(self.now))
    }

    /// Returns `true` if the node's deadline has passed and the agent has not confirmed the session
    /// since.
    pub(super) fn is_suspended(&self) -> bool {
        self.session.kept.as_ref().is_some_and(|kept| kept.node.belief == Belief::Suspended)
    }

    /// Replaces a session that no longer exists and never held anything: the next turn creates
    /// another.
    pub(super) fn replace_session(&mut self) {
        let Some(id) = self.session.kept.as_ref().map(|kept| kept.id.clone()) else { return };
        if self.lose_session(&Loss::SessionGone) {
            self.begin_ending((id, EndReason::Closed), DESTROY_TRIES, Then::Nothing);
        }
        self.session.kept = None;
    }
}
