//! The state of a session of this node, as reported to its guards: `safe`, in `jeopardy`,
//! `suspended` or `lost`.
//!
//! ```text
//! safe ──▶ jeopardy ──▶ suspended ──▶ lost, and the agent ends the session
//!  ▲ ▲        │             │
//!  │ └────────┘             │ acknowledged again, and a read that began after
//!  └────────────────────────┘ that found the session
//! ```
//!
//! The inputs are the node's lease and reads of the session. The outputs are the event for guards,
//! the next wake-up, whether the session must be read, and whether the agent must end it. Pure: the
//! time, on the clock that also counts suspends, is an argument.
//!
//! **Invariants.** Deadlines are checked before any other input. A reported deadline is extended
//! only by an acknowledged renewal, or by a restart that the servers acknowledged; after that
//! restart, only another process of the agent makes the session safe again. Once the deadline has
//! passed, or the lease has ended, an acknowledgement alone does not make the session safe: a read
//! at the leader must also find it.

use crate::lease::{LeaseState, margin};
use crate::quorum_client::EndReason;
use lockmesh_protocol::lease::{HealthWindow, LeaseEnd};
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// The reason for a session that does not depend on its node's health.
const UNBOUND: &str = "the session does not depend on this node's health: nothing but its TTL bounds it";
/// The reason while a renewal is overdue.
const OVERDUE: &str = "a renewal of this node's lease is overdue";
/// The reason when no renewal was acknowledged in time.
const SILENT: &str = "no renewal of this node's lease was acknowledged before the deadline";
/// The reason once a restart was announced.
const RESTARTING: &str = "this node's agent is restarting: the servers keep the session until the deadline";
/// The reason before the first acknowledgement.
const UNHEARD: &str = "no renewal of this node's lease was acknowledged since its agent started";
/// The reason while the session is read after an interruption.
const UNCONFIRMED: &str = "this node's lease was interrupted: checking that the session still exists";
/// The reason once the node has left the cluster, in the servers' words.
const LEFT: &str = "node-left";
/// The reason when the session was not confirmed in time.
const ENDED: &str = "given-up: no renewal of this node's lease was acknowledged for two windows, so the \
                     agent ends the session";

/// The time after its recovery for which the last silence is a reason to give the session up: a
/// guard that stopped at the deadline may have to release its lock first.
const RECOVERED_TIMEOUT: Duration = Duration::from_secs(60);

/// An input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The state of the node's lease.
    Lease(LeaseState),
    /// The result of a read that the leader answered.
    Read {
        /// The start of the read.
        began: Time,
        /// The session as the read found it.
        view: SessionView,
    },
    /// Time has passed without another input.
    Tick,
}

/// A session, as a read found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionView {
    /// The session exists, and ends when its node is silent for this long.
    Bound(HealthWindow),
    /// The session exists, and does not depend on its node's health.
    Unbound,
    /// The session does not exist, for this reason.
    Gone(String),
}

/// The state of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// Certainly valid until its deadline, and renewals are on time.
    Safe,
    /// Certainly valid until its deadline, but a renewal is overdue.
    Jeopardy,
    /// The deadline has passed, and the outcome is unknown.
    Suspended,
    /// The session has ended, or is about to be ended.
    Lost,
}

impl SessionState {
    /// Returns the state's name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::Jeopardy => "jeopardy",
            Self::Suspended => "suspended",
            Self::Lost => "lost",
        }
    }
}

/// An event for guards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionEvent {
    /// The state of the session.
    pub state: SessionState,
    /// The time until which it is certainly valid, as far as its node is concerned; `None` if the
    /// node sets no deadline, or none is known.
    pub deadline: Option<Time>,
    /// The time from which a renewal is overdue.
    pub jeopardy_at: Option<Time>,
    /// The reason why it is not safe, or has no deadline; empty without one.
    pub reason: String,
    /// Grows with every event, even from one process of this host to the next: at least the clock's
    /// microseconds.
    pub index: u64,
    /// The last recovery from an overdue renewal: its time, and the length of the silence. Guards
    /// stop somewhat before the deadline, so the session need not have been suspended.
    pub recovered: Option<(Time, Duration)>,
}

impl SessionEvent {
    /// Returns the reason for the end of a session that its guard gives up, after a silence of this
    /// length if the guard knows it. It is confirmed if the session is not safe, although no input
    /// may have shown that yet, if it has recovered lately, or if a renewal of its TTL is overdue.
    pub fn end_reason(&self, claimed: Option<Duration>, renewal: Renewal, now: Time) -> EndReason {
        if self.state != SessionState::Safe || self.jeopardy_at.is_some_and(|at| at <= now) {
            return EndReason::GivenUp(claimed);
        }
        let unrenewed = now.since(renewal.at);
        let is_overdue = |claimed: &Duration| unrenewed >= renewal.ttl.unwrap_or(*claimed) / 2;
        let recovered = self.recovered.filter(|(at, _)| now.since(*at) < RECOVERED_TIMEOUT);
        let known = claimed.filter(is_overdue).map(|_| unrenewed).max(recovered.map(|(_, length)| length));
        let silent_for = known.map(|known| claimed.map_or(known, |claimed| claimed.min(known)));
        silent_for.map_or(EndReason::Unconfirmed, EndReason::Confirmed)
    }
}

/// The last renewal of a session's TTL that the agent passed on and that was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// Its time; without one, the time since which the session is followed.
    pub at: Time,
    /// The session's TTL, if a renewal has shown it.
    pub ttl: Option<Duration>,
}

/// One session as its guards see it: the lease, the last read, and the current event.
#[derive(Clone, Debug)]
pub struct SessionEvents {
    now: Time,
    lease: LeaseState,
    view: SessionView,
    /// The latest reported deadline.
    deadline: Option<Time>,
    confirmation: Confirmation,
    /// `true` if the session was not confirmed in time.
    is_given_up: bool,
    event: SessionEvent,
}

/// The confirmation of the session by the leader since the lease was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Confirmation {
    /// The session was found, or the lease was never interrupted.
    Confirmed,
    /// The lease was interrupted at `broken`; a renewal was acknowledged again at `acknowledged`,
    /// if it was.
    Awaited { broken: Time, acknowledged: Option<Time> },
}

impl SessionEvents {
    /// Creates the state of a session found by a read that began at `began`, with this lease.
    pub fn new(began: Time, lease: LeaseState, now: Time, view: SessionView) -> Self {
        let event = SessionEvent {
            state: SessionState::Suspended,
            deadline: None,
            jeopardy_at: None,
            reason: String::new(),
            index: began.0,
            recovered: None,
        };
        let mut events = Self {
            now: began,
            lease: LeaseState::default(),
            view: view.clone(),
            deadline: None,
            confirmation: Confirmation::Awaited { broken: began, acknowledged: None },
            is_given_up: false,
            event,
        };
        events.handle(began, Input::Lease(lease));
        events.handle(now, Input::Read { began, view });
        events
    }

    /// Handles one input.
    pub fn handle(&mut self, now: Time, input: Input) {
        // Time never goes back: a passed deadline stays passed.
        self.now = self.now.max(now);
        self.check_deadline();
        match input {
            Input::Lease(lease) => self.lease_stands(lease),
            Input::Read { began, view } => self.read(began, view),
            Input::Tick => {}
        }
        self.update_event();
    }

    /// Returns the current event for guards.
    pub fn event(&self) -> &SessionEvent {
        &self.event
    }

    /// Returns `true` if there will be no further event.
    pub fn is_over(&self) -> bool {
        matches!(self.view, SessionView::Gone(_))
    }

    /// Returns `true` if the session must be read, by a read that begins now.
    pub fn wants_read(&self) -> bool {
        let awaits = matches!(self.confirmation, Confirmation::Awaited { acknowledged: Some(_), .. });
        awaits && !self.is_given_up && matches!(self.view, SessionView::Bound(_))
    }

    /// Returns `true` if the agent must end the session. It was not confirmed in time, so its
    /// guards were notified that it is lost, and waiters for its locks should not wait longer.
    pub fn wants_end(&self) -> bool {
        self.is_given_up && !self.is_over()
    }

    /// Returns when to pass [`Input::Tick`] if there is no other input before.
    pub fn wakes_at(&self) -> Option<Time> {
        let SessionView::Bound(window) = self.view else { return None };
        let deadline = self.deadline.filter(|_| !self.is_given_up)?;
        let moments = [self.event.jeopardy_at, Some(deadline), Some(deadline + grace(window))];
        moments.into_iter().flatten().find(|at| *at > self.now)
    }

    fn check_deadline(&mut self) {
        let SessionView::Bound(window) = self.view else { return };
        let is_acknowledged = self.is_acknowledged();
        if let Confirmation::Awaited { acknowledged, .. } = &mut self.confirmation {
            // An acknowledgement that has expired meanwhile does not justify further reads.
            *acknowledged = acknowledged.filter(|_| is_acknowledged);
        }
        let Some(deadline) = self.deadline else { return };
        if self.now >= deadline && self.confirmation == Confirmation::Confirmed {
            self.interrupted(deadline);
        }
        let is_interrupted = self.confirmation != Confirmation::Confirmed;
        self.is_given_up |= is_interrupted && self.now >= deadline + grace(window);
    }

    fn interrupted(&mut self, broken: Time) {
        self.confirmation = Confirmation::Awaited { broken, acknowledged: None };
    }

    fn lease_stands(&mut self, lease: LeaseState) {
        self.lease = lease;
        let is_acknowledged = self.is_acknowledged();
        let is_unheard = self.lease.renewed.max(self.lease.announced).is_none();
        if self.lease.has_left && !self.is_over() {
            self.view = SessionView::Gone(LEFT.into());
        }
        match &mut self.confirmation {
            Confirmation::Confirmed if self.lease.ended.is_some() || is_unheard => {
                self.interrupted(self.now);
            }
            // Only forward: the same acknowledgement may be reported twice.
            Confirmation::Confirmed => self.extend_deadline(),
            Confirmation::Awaited { acknowledged, .. } if !is_acknowledged => *acknowledged = None,
            Confirmation::Awaited { acknowledged, .. } => *acknowledged = acknowledged.or(Some(self.now)),
        }
    }

    /// Returns `true` if the current lease keeps the session valid.
    fn is_acknowledged(&self) -> bool {
        self.lease.ended.is_none() && self.lease_deadline() > Some(self.now)
    }

    /// Returns the time until which the current lease keeps the session valid; `None` if it does
    /// not bound it.
    fn lease_deadline(&self) -> Option<Time> {
        match self.view {
            SessionView::Bound(window) => self.lease.deadline(window),
            SessionView::Unbound | SessionView::Gone(_) => None,
        }
    }

    fn read(&mut self, began: Time, view: SessionView) {
        if self.is_over() {
            return;
        }
        self.view = view;
        let Confirmation::Awaited { acknowledged: Some(acknowledged), .. } = self.confirmation else {
            return;
        };
        // A read that began before the acknowledgement arrived may have been answered before the
        // session ended.
        if began < acknowledged || self.is_given_up {
            return;
        }
        self.confirmation = Confirmation::Confirmed;
        self.extend_deadline();
    }

    /// Extends the deadline of a confirmed session to that of its lease.
    fn extend_deadline(&mut self) {
        let extended = self.deadline.max(self.lease_deadline());
        if let (Some(deadline), SessionView::Bound(window)) = (self.deadline, &self.view)
            && extended > Some(deadline)
            && self.now >= self.jeopardy_at(deadline)
        {
            let silent_for = (self.now + (window.validity() - margin(*window))).since(deadline);
            self.event.recovered = Some((self.now, silent_for));
        }
        self.deadline = extended;
    }

    /// Creates an event if the state has changed.
    fn update_event(&mut self) {
        let (state, reason) = self.stands();
        let is_bound = matches!(self.view, SessionView::Bound(_));
        let deadline = self.deadline.filter(|_| is_bound && state != SessionState::Lost);
        let jeopardy_at = deadline.map(|deadline| self.jeopardy_at(deadline));
        let (index, recovered) = (self.event.index, self.event.recovered);
        let event = SessionEvent { state, deadline, jeopardy_at, reason, index, recovered };
        if event != self.event {
            let index = self.now.0.max(self.event.index + 1);
            self.event = SessionEvent { index, ..event };
        }
    }

    fn stands(&self) -> (SessionState, String) {
        let deadline = match &self.view {
            // The first reason stays, even if the session ends for another one.
            _ if self.is_given_up => return (SessionState::Lost, ENDED.into()),
            SessionView::Gone(reason) => return (SessionState::Lost, reason.clone()),
            SessionView::Unbound => return (SessionState::Safe, UNBOUND.into()),
            SessionView::Bound(_) => self.deadline.filter(|deadline| *deadline > self.now),
        };
        match (deadline, self.confirmation) {
            (Some(deadline), Confirmation::Confirmed) if self.now < self.jeopardy_at(deadline) => {
                (SessionState::Safe, String::new())
            }
            (Some(_), _) => (SessionState::Jeopardy, self.why(OVERDUE)),
            (None, _) if self.deadline.is_none() => (SessionState::Suspended, self.why(UNHEARD)),
            (None, _) => (SessionState::Suspended, self.why(SILENT)),
        }
    }

    fn why(&self, otherwise: &str) -> String {
        match (self.confirmation, self.lease.ended) {
            (_, Some(end)) => lease_end(end),
            (Confirmation::Awaited { acknowledged: Some(_), .. }, None) => UNCONFIRMED.into(),
            _ if self.lease.announced.is_some() => RESTARTING.into(),
            _ => otherwise.into(),
        }
    }

    /// Returns the start of jeopardy: two thirds of the window before the deadline. By then a
    /// renewal that was due a quarter of a window ago should have been acknowledged.
    fn jeopardy_at(&self, deadline: Time) -> Time {
        let SessionView::Bound(window) = self.view else { return deadline };
        let notice = u64::try_from((window.duration() * 2 / 3).as_micros()).unwrap_or(u64::MAX);
        let overdue = Time(deadline.0.saturating_sub(notice));
        let overdue = self.lease.announced.map_or(overdue, |announced| overdue.min(announced));
        match self.confirmation {
            Confirmation::Confirmed => overdue,
            Confirmation::Awaited { broken, .. } => overdue.min(broken),
        }
    }
}

/// The time between the deadline of a session without renewals and its end by the agent. The end
/// comes less than two windows after the last acknowledged renewal was sent, so that a host that
/// only answers challenges still names the session in time.
fn grace(window: HealthWindow) -> Duration {
    window.duration().saturating_sub(window.renewal_interval())
}

fn lease_end(end: LeaseEnd) -> String {
    format!("this node's lease has ended: {end}")
}
