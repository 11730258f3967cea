//! Everything that a [`Holder`](super::Holder) wants done.

use super::id::{HoldId, HolderRequest};
use crate::error::Error;
use crate::loss::Loss;
use crate::read::Read;
use crate::session_options::SessionOptions;
use bytes::Bytes;
use std::time::Duration;

/// What shall happen, in this order. The shell carries it out and empties it after each input.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Requests whose answers nobody waits for any more; nothing more is heard of them.
    pub cancelled: Vec<HolderRequest>,
    /// Requests to the agent; each is answered once, with
    /// [`Input::Answered`](super::Input::Answered).
    pub requests: Vec<(HolderRequest, Request)>,
    /// What those who wait are told.
    pub events: Vec<Event>,
    /// What is worth a line in a log.
    pub notices: Vec<Notice>,
}

/// A request to the agent. Sent once: whether it is repeated is decided here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Creates a session.
    CreateSession(SessionOptions),
    /// Renews a session; given up after this long.
    Renew(String, Duration),
    /// Asks whether there is such a session; given up after this long.
    FindSession(String, Duration),
    /// Asks how a session stands as far as its node is concerned, and waits for news behind this
    /// index; 0 for an answer at once. An agent that does not know of nodes' leases refuses that
    /// with 404 or 405.
    NodeLease(String, Read),
    /// Ends a session, for this reason.
    EndSession(String, EndReason),
    /// Reads one key.
    Get(String, Read),
    /// Reads all keys that start with this.
    List(String, Read),
    /// Takes a lock, at once or in its queue for so long.
    Acquire(Write, String, Option<Duration>),
    /// Gives a lock back.
    Release(Write, String),
    /// Writes if the entry's modify index is this.
    Cas(Write, u64),
    /// Deletes a key.
    Delete(String),
}

/// Why a session ends. The agent retries either until it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// It is needed no more.
    Closed,
    /// No renewal was acknowledged for so long; none where the node's lease was not renewed, of
    /// which the agent knows more.
    GivenUp(Option<Duration>),
}

/// What is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: Bytes,
    /// A number that belongs to the client.
    pub flags: u64,
}

/// What those who wait are told, each once.
#[derive(Debug)]
pub enum Event {
    /// A session is kept, or could not be created.
    Kept(Result<String, Error>),
    /// Something is held; or `None`, as it was not to be had in time.
    Acquired(HoldId, Result<Option<Grant>, Error>),
    /// It is held no more.
    Lost(HoldId, Loss),
    /// It was given back; `false` when it was lost before.
    Released(HoldId, Result<bool, Error>),
    /// The session is believed in no more.
    SessionLost(Loss),
    /// The session was ended on demand.
    Closed(Result<(), Error>),
}

/// Something that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The session that holds it.
    pub session: String,
    /// The fencing token; `None` from an agent that does not know fences.
    pub fence: Option<u64>,
}

/// Something worth a line in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A renewal failed, for this reason; it is tried again.
    RenewalFailed(String),
    /// No renewal of this session was acknowledged before its deadline.
    DeadlinePassed(String),
    /// Nothing was heard of the lease of this session's node before its deadline: it is suspended.
    Suspended(String),
    /// This session, which was suspended, can be believed in again.
    Resumed(String),
    /// Something about this key or prefix failed, for this reason; it is tried again.
    TryingAgain(String, String),
    /// What was or may have been granted of this key or prefix could not be given back, for this
    /// reason: it ends with its session.
    NotGivenBack(String, String),
    /// This session could not be destroyed, for this reason: it ends with its TTL.
    NotDestroyed(String, String),
}
