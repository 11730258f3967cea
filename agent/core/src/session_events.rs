//! How a session of this node stands, as its guards are told: `safe`, in `jeopardy`, `suspended` or
//! `lost`.
//!
//! ```text
//! safe ──▶ jeopardy ──▶ suspended ──▶ lost, and the agent ends the session
//!  ▲ ▲        │             │
//!  │ └────────┘             │ acknowledged again, and a read that began after
//!  └────────────────────────┘ that found the session
//! ```
//!
//! It is told of the node's lease and of the session, and says what the guards are told, when it
//! has to be looked at again, whether the session has to be read, and whether the agent has to end
//! it. Pure: the time, on the clock that runs on while the host is suspended, is an argument.
//!
//! **Invariants.** Deadlines are looked at before anything else that happened. A deadline that was
//! told is never told later but for an acknowledged renewal, or for a restart that the servers
//! acknowledged: then nothing but another process of the agent makes the session safe again. Once
//! it has passed, or the lease has ended, no acknowledgement alone makes the session safe again:
//! the leader has to have shown it.

use crate::lease::LeaseState;
use lockmesh_protocol::lease::{HealthWindow, LeaseEnd};
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// What is told of a session whose node's health does not matter to it.
const UNBOUND: &str = "the session does not depend on this node's health: nothing but its TTL bounds it";
/// What is told while a renewal is overdue.
const OVERDUE: &str = "a renewal of this node's lease is overdue";
/// What is told when no renewal was acknowledged in time.
const SILENT: &str = "no renewal of this node's lease was acknowledged before the deadline";
/// What is told once a restart was announced.
const RESTARTING: &str = "this node's agent is restarting: the servers keep the session until the deadline";
/// What is told before the first acknowledgement.
const UNHEARD: &str = "no renewal of this node's lease was acknowledged since its agent started";
/// What is told while the session is read after an interruption.
const UNCONFIRMED: &str = "this node's lease was interrupted: whether the session lives is being looked at";
/// What is told when nobody said in time that the session lives.
const ENDED: &str = "given-up: no renewal of this node's lease was acknowledged for two windows, so the \
                     agent ends the session";

/// Something that this is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// How the node's lease stands.
    Lease(LeaseState),
    /// A read that the leader answered found this.
    Read {
        /// When the read began.
        began: Time,
        /// What it found.
        view: SessionView,
    },
    /// Nothing happened, but time has passed.
    Tick,
}

/// A session, as a read found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionView {
    /// It is there, and ends when its node is silent for this long.
    Bound(HealthWindow),
    /// It is there, and does not depend on its node's health.
    Unbound,
    /// It is not there, for this reason.
    Gone(String),
}

/// How a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// It is surely alive until its deadline, and renewals come in time.
    Safe,
    /// It is surely alive until its deadline, but a renewal is overdue.
    Jeopardy,
    /// Its deadline has passed, and nobody has said yet whether it lives.
    Suspended,
    /// It is gone, or about to be ended.
    Lost,
}

impl SessionState {
    /// The word that clients are told.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::Jeopardy => "jeopardy",
            Self::Suspended => "suspended",
            Self::Lost => "lost",
        }
    }
}

/// What guards are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionEvent {
    /// How the session stands.
    pub state: SessionState,
    /// Until when it is surely alive, as far as its node is concerned; none where the node sets no
    /// deadline, or none is known.
    pub deadline: Option<Time>,
    /// From when on a renewal is overdue.
    pub jeopardy_at: Option<Time>,
    /// Why it is not safe, or has no deadline; empty where there is nothing to say.
    pub reason: String,
    /// Grows with every event, also from one process of this host to the next: at least the
    /// microseconds of the clock.
    pub index: u64,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct SessionEvents {
    now: Time,
    lease: LeaseState,
    view: SessionView,
    /// The latest deadline that was told.
    deadline: Option<Time>,
    confirmation: Confirmation,
    /// Whether nobody said in time that the session lives.
    is_given_up: bool,
    event: SessionEvent,
}

/// Whether the leader has shown the session since the lease was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Confirmation {
    /// It has, or the lease was never interrupted.
    Confirmed,
    /// The lease was interrupted at `broken`; a renewal was acknowledged again at `acknowledged`,
    /// if it was.
    Awaited { broken: Time, acknowledged: Option<Time> },
}

impl SessionEvents {
    /// A session that a read found which began at `began`, when the lease stood so.
    pub fn new(began: Time, lease: LeaseState, now: Time, view: SessionView) -> Self {
        let event = SessionEvent {
            state: SessionState::Suspended,
            deadline: None,
            jeopardy_at: None,
            reason: String::new(),
            index: began.0,
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

    /// Takes one input.
    pub fn handle(&mut self, now: Time, input: Input) {
        // What was due stays due.
        self.now = self.now.max(now);
        self.look_at_deadline();
        match input {
            Input::Lease(lease) => self.lease_stands(lease),
            Input::Read { began, view } => self.read(began, view),
            Input::Tick => {}
        }
        self.tell();
    }

    /// What guards are told now.
    pub fn event(&self) -> &SessionEvent {
        &self.event
    }

    /// Whether nothing will ever be told any more.
    pub fn is_over(&self) -> bool {
        matches!(self.view, SessionView::Gone(_))
    }

    /// Whether the session has to be read, by a read that begins now.
    pub fn wants_read(&self) -> bool {
        let awaits = matches!(self.confirmation, Confirmation::Awaited { acknowledged: Some(_), .. });
        awaits && !self.is_given_up && matches!(self.view, SessionView::Bound(_))
    }

    /// Whether the agent has to end the session: nobody said in time that it lives, so its guards
    /// were told that it is lost, and whoever waits for what it holds shall not wait for more.
    pub fn wants_end(&self) -> bool {
        self.is_given_up && !self.is_over()
    }

    /// When [`Input::Tick`] must be told, if nothing else happens before.
    pub fn wakes_at(&self) -> Option<Time> {
        let SessionView::Bound(window) = self.view else { return None };
        let deadline = self.deadline.filter(|_| !self.is_given_up)?;
        let moments = [self.event.jeopardy_at, Some(deadline), Some(deadline + grace(window))];
        moments.into_iter().flatten().find(|at| *at > self.now)
    }

    fn look_at_deadline(&mut self) {
        let SessionView::Bound(window) = self.view else { return };
        let is_acknowledged = self.is_acknowledged();
        if let Confirmation::Awaited { acknowledged, .. } = &mut self.confirmation {
            // One that is over by now is worth no more reads.
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
        match &mut self.confirmation {
            Confirmation::Confirmed if self.lease.ended.is_some() || is_unheard => {
                self.interrupted(self.now);
            }
            // Only forward: the same acknowledgement may be told twice.
            Confirmation::Confirmed => self.deadline = self.deadline.max(self.lease_deadline()),
            Confirmation::Awaited { acknowledged, .. } if !is_acknowledged => *acknowledged = None,
            Confirmation::Awaited { acknowledged, .. } => *acknowledged = acknowledged.or(Some(self.now)),
        }
    }

    /// Whether the lease as it stands lets the session live.
    fn is_acknowledged(&self) -> bool {
        self.lease.ended.is_none() && self.lease_deadline() > Some(self.now)
    }

    /// Until when the lease as it stands lets the session live; none where it does not bound it.
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
        // A read that began before the acknowledgement was heard may have been answered before the
        // session ended.
        if began < acknowledged || self.is_given_up {
            return;
        }
        self.confirmation = Confirmation::Confirmed;
        self.deadline = self.deadline.max(self.lease_deadline());
    }

    /// Makes an event of what stands now, if it is another than the last one.
    fn tell(&mut self) {
        let (state, reason) = self.stands();
        let is_bound = matches!(self.view, SessionView::Bound(_));
        let deadline = self.deadline.filter(|_| is_bound && state != SessionState::Lost);
        let jeopardy_at = deadline.map(|deadline| self.jeopardy_at(deadline));
        let event = SessionEvent { state, deadline, jeopardy_at, reason, index: self.event.index };
        if event != self.event {
            let index = self.now.0.max(self.event.index + 1);
            self.event = SessionEvent { index, ..event };
        }
    }

    fn stands(&self) -> (SessionState, String) {
        let deadline = match &self.view {
            // The first reason stays, though others may end the session for another one.
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

    /// Two thirds of the window before it would be over: by then a renewal should have been
    /// acknowledged that was due a quarter of a window ago.
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

/// The time between the deadline of a session that no renewal keeps and its end by the agent: the
/// end comes less than two windows after the last acknowledged renewal was sent, so that a host
/// which only answers challenges still names the session in time.
fn grace(window: HealthWindow) -> Duration {
    window.duration().saturating_sub(window.renewal_interval())
}

fn lease_end(end: LeaseEnd) -> String {
    format!("this node's lease has ended: {end}")
}
