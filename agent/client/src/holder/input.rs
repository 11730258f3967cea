//! Everything that a [`Holder`](super::Holder) is told: a closed list.

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

/// What happened.
#[derive(Debug)]
pub enum Input {
    /// A session shall be created and kept. Told once, as the first input, where the session
    /// outlives its holds.
    Keep,
    /// Something shall be acquired. A holder whose session is for one hold is told this once.
    Acquire(HoldId, Wanted),
    /// What is written with the lock when it is given back is something else by now.
    Written(HoldId, Bytes),
    /// It is given back, and somebody waits until that is done.
    Release(HoldId),
    /// Nobody waits for it or holds it any more: it is given back without telling anybody.
    Drop(HoldId),
    /// The session shall end, and somebody waits until that is done.
    Close,
    /// Nobody holds this holder any more: whatever is left is given back, then the session ends.
    Abandon,
    /// A request was answered, or failed.
    Answered(HolderRequest, Result<Response, Error>),
    /// Nothing happened, but time has passed.
    Tick,
}

/// What shall be acquired, and how.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// What.
    pub goal: Goal,
    /// How long to try.
    pub wait_limit: WaitLimit,
    /// After how many tries more a watch that fails ends the hold; `None` for the session's
    /// deadline alone.
    pub watch_retries: Option<u32>,
}

/// How long to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitLimit {
    /// As long as it takes.
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
}

/// A session that the agent has created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedSession {
    /// Its id.
    pub id: String,
    /// The health window that it has; none from an agent that does not report it, such as Consul's.
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

/// What a request was answered.
#[derive(Clone, Debug)]
pub enum Response {
    /// This session was created.
    Created(CreatedSession),
    /// Whether the session that was renewed or asked for is there.
    Found(bool),
    /// What the agent says of the session and of its node's lease.
    NodeLease(NodeLease),
    /// The entries there are, and the index to wait behind; 0 where the agent gives none.
    Entries(Vec<Entry>, u64),
    /// What became of the attempt to take a lock.
    Acquired(Acquired),
    /// Whether it was done.
    Verdict(bool),
    /// It was done.
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
        let Self::NodeLease(told) = self else { unreachable!("no answer about a node's lease: {self:?}") };
        told
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
