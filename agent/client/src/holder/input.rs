//! The inputs of a [`Holder`](super::Holder): a closed list.

use super::goal::Goal;
use super::id::{HoldId, HolderRequest};
use super::moment::Moment;
use super::node_lease::NodeLease;
use crate::entry::Acquired;
use crate::entry::Entry;
use crate::error::Error;
use crate::session_options::HealthWindow;
use bytes::Bytes;
use std::time::Duration;

/// An input.
#[derive(Debug)]
pub enum Input {
    /// Create a session and keep it alive. Sent once, as the first input, if the session outlives
    /// its holds.
    Keep,
    /// Acquire something. Sent once to a holder whose session serves one hold.
    Acquire(HoldId, Acquisition),
    /// Change the value that is written to the lock on release.
    Written(HoldId, Bytes),
    /// Release the hold; the caller waits for the result.
    Release(HoldId),
    /// Release what a dead process holds under this session, then end the session, as given up from
    /// this time on; the caller waits for the result. Sent once, to a holder of its own.
    GiveBack(HoldId, Goal, (String, Moment)),
    /// The caller is gone: release the acquisition or hold without a result.
    Drop(HoldId),
    /// The caller has stopped because a deadline passed: release the hold, and record its session
    /// as given up, even if a renewal was acknowledged since.
    GiveUp(HoldId),
    /// End the session; the caller waits for the result.
    Close,
    /// The last handle is gone: release everything that is left, then end the session.
    Abandon,
    /// A request completed or failed.
    Answered(HolderRequest, Result<Response, Error>),
    /// Time has passed without an event.
    Tick,
}

/// The parameters of an acquisition.
#[derive(Clone, Debug)]
pub struct Acquisition {
    /// The lock or slot to acquire.
    pub goal: Goal,
    /// The time limit.
    pub wait_limit: WaitLimit,
    /// The number of retries after which a failing watch ends the hold; `None` if only the
    /// session's deadline ends it.
    pub watch_retries: Option<u32>,
}

/// The time limit of an acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitLimit {
    /// No limit.
    Endless,
    /// Until this moment.
    Until(Moment),
    /// One turn.
    Once,
}

impl WaitLimit {
    pub(super) fn left(self, now: Moment) -> Duration {
        match self {
            Self::Endless => Duration::MAX,
            Self::Until(moment) => moment.since(now),
            Self::Once => Duration::ZERO,
        }
    }

    /// Returns `true` if there is no further turn.
    pub(super) fn is_over(self, now: Moment, is_overtaken: bool) -> bool {
        match self {
            // A concurrent change does not end a single try: the lock may still be free.
            Self::Once => !is_overtaken,
            Self::Endless | Self::Until(_) => self.left(now).is_zero(),
        }
    }
}

/// A session that the agent has created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedSession {
    /// The session's id.
    pub id: String,
    /// The session's health window; `None` from an agent that does not report it, such as Consul's.
    pub window: Option<HealthWindow>,
}

impl From<String> for CreatedSession {
    fn from(id: String) -> Self {
        Self { id, window: None }
    }
}

impl From<&str> for CreatedSession {
    fn from(id: &str) -> Self {
        Self::from(id.to_owned())
    }
}

/// The response to a request.
#[derive(Clone, Debug)]
pub enum Response {
    /// This session was created.
    Created(CreatedSession),
    /// `true` if the session that was renewed or queried exists.
    Found(bool),
    /// The state of the session with respect to its node's lease.
    NodeLease(NodeLease),
    /// The entries, and the index for the next blocking query; 0 if the agent returned none.
    Entries(Vec<Entry>, u64),
    /// A stale read was answered by a server that is behind for more than
    /// [`MAX_STALENESS`](super::MAX_STALENESS).
    Outdated,
    /// The outcome of an acquire.
    Acquired(Acquired),
    /// Several locks were acquired, with these fencing tokens.
    AcquiredAll(Vec<u64>),
    /// `true` if the conditional write was done.
    Verdict(bool),
    /// The request was done.
    Done,
}

impl Response {
    pub(super) fn created(self) -> CreatedSession {
        let Self::Created(created) = self else { unreachable!("no answer to a creation: {self:?}") };
        created
    }

    pub(super) fn found(self) -> bool {
        let Self::Found(found) = self else { unreachable!("no answer about a session: {self:?}") };
        found
    }

    pub(super) fn node_lease(self) -> NodeLease {
        let Self::NodeLease(lease) = self else { unreachable!("no answer about a node's lease: {self:?}") };
        lease
    }

    pub(super) fn entries(self) -> (Vec<Entry>, u64) {
        let Self::Entries(entries, index) = self else { unreachable!("no answer to a look: {self:?}") };
        (entries, index)
    }

    pub(super) fn acquired(self) -> Acquired {
        let Self::Acquired(acquired) = self else { unreachable!("no answer to an acquire: {self:?}") };
        acquired
    }

    pub(super) fn verdict(self) -> bool {
        let Self::Verdict(verdict) = self else { unreachable!("no answer to a conditional write: {self:?}") };
        verdict
    }
}
