//! The deadline that a node's lease sets for a session, as reported by the agent. Pure: the time is
//! an argument.
//!
//! **Invariant:** only a report of the agent moves the deadline. An agent that is unresponsive,
//! stopped or gone never does. Once the deadline has passed, nothing counts as held until the agent
//! confirms the session again.

use super::id::HolderRequest;
use super::moment::Moment;
use crate::backoff::{Backoff, Jitter};
use crate::shape::session::SessionEvent;
use std::time::Duration;

/// The maximum time for which a new session may lack a valid report about its node's lease.
const FIRST_REPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// The time after which a poll whose report is overdue is given up.
const OVERDUE_POLL_TIMEOUT: Duration = Duration::from_secs(1);

/// The agent's report about a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLease {
    /// The state of the session.
    pub state: NodeLeaseState,
    /// The index for the next report; 0 if the agent returned none.
    pub index: u64,
}

/// The state of an event that this version does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown session state {0:?}")]
pub struct UnknownState(String);

impl NodeLease {
    /// Converts an event that was received at `now` to this host's clock.
    ///
    /// # Errors
    /// The event has an unknown state and is ignored.
    pub fn of(event: SessionEvent, now: Moment) -> Result<Self, UnknownState> {
        let moment = |nanoseconds| Moment::default() + Duration::from_nanos(nanoseconds);
        // Both ends share one clock, unless the agent runs on another host or in another time
        // namespace. In that case its deadline is meaningless here, and must not exceed the
        // remaining time that it reported.
        let latest = now + Duration::from_millis(event.remaining_ms + 1);
        let state = match (event.state.as_str(), event.deadline) {
            ("safe", 0) => NodeLeaseState::Unbound,
            ("safe" | "jeopardy", deadline) => NodeLeaseState::Until {
                deadline: moment(deadline).min(latest),
                jeopardy_at: moment(event.jeopardy_at).min(latest),
            },
            ("suspended", _) => NodeLeaseState::Suspended,
            ("lost", _) => NodeLeaseState::Lost(event.reason),
            (other, _) => return Err(UnknownState(other.into())),
        };
        Ok(Self { state, index: event.index })
    }
}

/// The state of a session with respect to its node's lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeLeaseState {
    /// Not bound to the node's health: only its TTL limits it.
    Unbound,
    /// Guaranteed to be alive until the deadline.
    Until {
        /// The deadline, on the clock of this host.
        deadline: Moment,
        /// The moment from which the next acknowledgement of the node's lease is overdue.
        jeopardy_at: Moment,
    },
    /// The deadline has passed, and the session's fate is not known yet.
    Suspended,
    /// Ended, for this reason.
    Lost(String),
}

/// The current knowledge of the node's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Belief {
    /// No valid report has arrived yet; given up at this moment.
    Unheard(Moment),
    /// The node sets no deadline.
    Unbound,
    /// The session is alive until the deadline.
    Until { deadline: Moment, jeopardy_at: Moment },
    /// The deadline has passed.
    Suspended,
}

/// The state of following the agent's reports about a session.
#[derive(Debug)]
pub(super) struct NodeWatch {
    pub(super) belief: Belief,
    pub(super) request: Option<HolderRequest>,
    /// The time at which the last query was sent.
    pub(super) asked_at: Moment,
    /// The time of the next query, if no request is in flight.
    pub(super) asks_at: Option<Moment>,
    /// The index for the next blocking query.
    pub(super) index: u64,
    backoff: Backoff,
}

impl NodeWatch {
    /// Creates the watch of a session that was created at `now`.
    pub(super) fn new(now: Moment) -> Self {
        let backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
        Self {
            belief: Belief::Unheard(now + FIRST_REPORT_TIMEOUT),
            request: None,
            asked_at: now,
            asks_at: Some(now),
            index: 0,
            backoff,
        }
    }

    /// Returns `true` if the agent reports on the node's lease.
    pub(super) fn is_followed(&self) -> bool {
        self.belief != Belief::Unbound
    }

    /// Returns the moment until which the session is valid; `None` if it is not valid now.
    pub(super) fn limit(&self, ttl_deadline: Moment) -> Option<Moment> {
        match self.belief {
            Belief::Unheard(_) | Belief::Suspended => None,
            Belief::Unbound => Some(ttl_deadline),
            Belief::Until { deadline, .. } => Some(deadline.min(ttl_deadline)),
        }
    }

    /// Returns the moment from which a renewal is overdue, of the session or of its node's lease.
    pub(super) fn jeopardy_at(&self, ttl_jeopardy_at: Moment) -> Moment {
        match self.belief {
            Belief::Until { jeopardy_at, .. } => jeopardy_at.min(ttl_jeopardy_at),
            _ => ttl_jeopardy_at,
        }
    }

    /// Returns `true` if a renewal of the node's lease is overdue before the deadline.
    pub(super) fn is_late(&self, now: Moment) -> bool {
        matches!(self.belief, Belief::Until { jeopardy_at, .. } if now >= jeopardy_at)
    }

    /// Returns `true` if the reported deadline has passed.
    pub(super) fn is_overdue(&self, now: Moment) -> bool {
        matches!(self.belief, Belief::Until { deadline, .. } if now >= deadline)
    }

    /// Returns `true` if no valid report arrived in time.
    pub(super) fn is_unheard(&self, now: Moment) -> bool {
        matches!(self.belief, Belief::Unheard(limit) if now >= limit)
    }

    /// Returns the time of the next check, unless a report arrives first.
    pub(super) fn wakes_at(&self) -> Option<Moment> {
        let changes_at = match self.belief {
            Belief::Unheard(limit) => Some(limit),
            Belief::Until { deadline, .. } => Some(deadline),
            Belief::Unbound | Belief::Suspended => None,
        };
        [changes_at, self.asks_at, self.overdue_at()].into_iter().flatten().min()
    }

    /// Returns the time when the poll in flight is given up: the agent would have reported by then,
    /// so the poll, or its answer, was lost in silence.
    pub(super) fn overdue_at(&self) -> Option<Moment> {
        let due_at = match self.belief {
            Belief::Until { jeopardy_at, .. } => jeopardy_at,
            Belief::Suspended => self.asked_at,
            Belief::Unheard(_) | Belief::Unbound => return None,
        };
        // A query without an index is answered at once, or fails.
        let is_poll = self.request.is_some() && self.index != 0;
        is_poll.then(|| due_at.max(self.asked_at + OVERDUE_POLL_TIMEOUT))
    }

    /// Records a report that the session is alive until a deadline that has not passed yet. Returns
    /// `true` if it was suspended or unconfirmed before.
    pub(super) fn extend(&mut self, deadline: Moment, jeopardy_at: Moment) -> bool {
        let was_believed = matches!(self.belief, Belief::Until { .. } | Belief::Unbound);
        // It replaces the promise of an agent that announced its restart: with the next poll, the
        // guard confirms to the next process that it relies on this deadline.
        self.belief = Belief::Until { deadline, jeopardy_at };
        !was_believed
    }

    /// Records that the agent cannot confirm the session now. Its earlier promise stays valid until
    /// its end, but a renewal is overdue.
    pub(super) fn suspend(&mut self, now: Moment) {
        if let Belief::Until { jeopardy_at, .. } = &mut self.belief {
            *jeopardy_at = (*jeopardy_at).min(now);
        }
    }

    /// Schedules the next query at once, with the index.
    pub(super) fn answered(&mut self, now: Moment, index: u64) {
        self.backoff.succeeded();
        self.index = index;
        let pause = if index == 0 { Duration::from_secs(1) } else { Duration::ZERO };
        self.asks_at = Some(now + pause);
    }

    /// Schedules a query at once, unless one is in flight.
    pub(super) fn ask_now(&mut self, now: Moment) {
        if self.request.is_none() {
            self.asks_at = Some(now);
        }
    }

    /// Schedules a retry with backoff. The index remains: another process of the agent recognizes
    /// by it which promise this guard has, and replies at once.
    pub(super) fn failed(&mut self, now: Moment, jitter: &mut Jitter) {
        self.asks_at = Some(now + self.backoff.failed(jitter));
    }
}
