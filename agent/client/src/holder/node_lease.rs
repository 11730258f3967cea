//! Until when a session is surely alive as far as its node is concerned: what the agent said of the
//! node's lease, and what may be believed of it. Pure, the time is an argument.
//!
//! **Invariant:** only the agent's word moves the deadline. An agent that is silent, stopped or
//! gone never does, and once the deadline has passed nothing is believed before the agent vouches
//! for the session anew.

use super::id::HolderRequest;
use super::moment::Moment;
use crate::backoff::{Backoff, Jitter};
use crate::shape::session::SessionEvent;
use std::time::Duration;

/// How long a new session may stay without a word of its node's lease that can be believed.
const FIRST_WORD_LIMIT: Duration = Duration::from_secs(10);

/// What the agent says of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLease {
    /// How the session stands.
    pub state: NodeLeaseState,
    /// What to wait behind for the next word; 0 where the agent gives none.
    pub index: u64,
}

impl NodeLease {
    /// What an event that came at `now` means on this host's clock.
    ///
    /// # Errors
    /// It names a state that there is none of: nothing follows from it.
    pub fn of(event: SessionEvent, now: Moment) -> Result<Self, String> {
        let moment = |nanoseconds| Moment::default() + Duration::from_nanos(nanoseconds);
        // Both see one clock, unless the agent is on another host or in another time namespace:
        // then its deadline says nothing here, and must not promise more than what was left of it.
        let latest = now + Duration::from_millis(event.remaining_ms + 1);
        let state = match (event.state.as_str(), event.deadline) {
            ("safe", 0) => NodeLeaseState::Unbound,
            ("safe" | "jeopardy", deadline) => NodeLeaseState::Until {
                deadline: moment(deadline).min(latest),
                jeopardy_at: moment(event.jeopardy_at).min(latest),
            },
            ("suspended", _) => NodeLeaseState::Suspended,
            ("lost", _) => NodeLeaseState::Lost(event.reason),
            (other, _) => return Err(format!("{other:?} is no state of a session")),
        };
        Ok(Self { state, index: event.index })
    }
}

/// How a session stands, as far as its node is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeLeaseState {
    /// It does not depend on its node's health: its TTL alone bounds it.
    Unbound,
    /// It is surely alive until the deadline.
    Until {
        /// When that ends, on the clock of this host.
        deadline: Moment,
        /// From when on the next acknowledgement of the node's lease is overdue.
        jeopardy_at: Moment,
    },
    /// Its deadline has passed, and nobody has said yet whether it lives.
    Suspended,
    /// It is gone, for this reason.
    Lost(String),
}

/// What is believed of the node's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Belief {
    /// Nothing that can be believed was ever heard; given up at this moment.
    Unheard(Moment),
    /// The node sets no deadline.
    Unbound,
    /// The session is alive until then.
    Until { deadline: Moment, jeopardy_at: Moment },
    /// The deadline has passed.
    Suspended,
}

/// How the holder follows what the agent says of its session.
#[derive(Debug)]
pub(super) struct NodeWatch {
    pub(super) belief: Belief,
    pub(super) request: Option<HolderRequest>,
    /// When the agent is asked again, where no request is under way.
    pub(super) asks_at: Option<Moment>,
    /// The index to wait behind.
    pub(super) index: u64,
    backoff: Backoff,
}

impl NodeWatch {
    /// The watch over a session that was created just now.
    pub(super) fn new(now: Moment) -> Self {
        let backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
        Self {
            belief: Belief::Unheard(now + FIRST_WORD_LIMIT),
            request: None,
            asks_at: Some(now),
            index: 0,
            backoff,
        }
    }

    /// Whether the agent tells anything of the node's lease.
    pub(super) fn is_followed(&self) -> bool {
        self.belief != Belief::Unbound
    }

    /// Until when the session can be believed in; `None` for not at all.
    pub(super) fn limit(&self, ttl_deadline: Moment) -> Option<Moment> {
        match self.belief {
            Belief::Unheard(_) | Belief::Suspended => None,
            Belief::Unbound => Some(ttl_deadline),
            Belief::Until { deadline, .. } => Some(deadline.min(ttl_deadline)),
        }
    }

    /// When a renewal is overdue, of the session or of its node's lease.
    pub(super) fn jeopardy_at(&self, ttl_jeopardy_at: Moment) -> Moment {
        match self.belief {
            Belief::Until { jeopardy_at, .. } => jeopardy_at.min(ttl_jeopardy_at),
            _ => ttl_jeopardy_at,
        }
    }

    /// Whether the deadline that the agent told has passed.
    pub(super) fn is_overdue(&self, now: Moment) -> bool {
        matches!(self.belief, Belief::Until { deadline, .. } if now >= deadline)
    }

    /// Whether nothing that can be believed came in time.
    pub(super) fn is_unheard(&self, now: Moment) -> bool {
        matches!(self.belief, Belief::Unheard(limit) if now >= limit)
    }

    /// When it has to be looked at, if nothing is heard before.
    pub(super) fn wakes_at(&self) -> Option<Moment> {
        let changes_at = match self.belief {
            Belief::Unheard(limit) => Some(limit),
            Belief::Until { deadline, .. } => Some(deadline),
            Belief::Unbound | Belief::Suspended => None,
        };
        changes_at.into_iter().chain(self.asks_at).min()
    }

    /// The agent said that the session is alive until a deadline which has not passed yet; whether
    /// it was suspended or unheard of before.
    pub(super) fn told(&mut self, deadline: Moment, jeopardy_at: Moment) -> bool {
        let (was_believed, promised) = match self.belief {
            Belief::Until { deadline: promised, .. } => (true, promised),
            Belief::Unbound => (true, deadline),
            Belief::Unheard(_) | Belief::Suspended => (false, deadline),
        };
        // What was promised still stands, as by a process of the agent that announced its restart;
        // whether a renewal is overdue is for the process to say that speaks now.
        self.belief = Belief::Until { deadline: deadline.max(promised), jeopardy_at };
        !was_believed
    }

    /// The agent cannot vouch for the session now. What it promised before stands until its end,
    /// but a renewal is overdue.
    pub(super) fn told_suspended(&mut self, now: Moment) {
        if let Belief::Until { jeopardy_at, .. } = &mut self.belief {
            *jeopardy_at = (*jeopardy_at).min(now);
        }
    }

    /// Asks again, at once behind an index.
    pub(super) fn answered(&mut self, now: Moment, index: u64) {
        self.backoff.succeeded();
        self.index = index;
        let pause = if index == 0 { Duration::from_secs(1) } else { Duration::ZERO };
        self.asks_at = Some(now + pause);
    }

    /// Asks without a pause, where nothing was asked already.
    pub(super) fn ask_now(&mut self, now: Moment) {
        if self.request.is_none() {
            self.asks_at = Some(now);
        }
    }

    /// Asks again a little later. Whoever answers then may be another process: it is asked for what
    /// stands now.
    pub(super) fn failed(&mut self, now: Moment, jitter: &mut Jitter) {
        self.index = 0;
        self.asks_at = Some(now + self.backoff.failed(jitter));
    }
}
