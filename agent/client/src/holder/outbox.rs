//! The outputs of a [`Holder`](super::Holder).

use super::id::{HoldId, HolderRequest};
use crate::error::Error;
use crate::loss::Loss;
use crate::read::Read;
use crate::session_options::SessionOptions;
use crate::shape::lockmesh::LocksRequest;
use bytes::Bytes;
use std::time::Duration;

/// Actions to carry out, in this order. The driver empties it after each input.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Requests whose replies are no longer needed; they are not reported.
    pub cancelled: Vec<HolderRequest>,
    /// Requests to the agent. Each is answered once, with
    /// [`Input::Answered`](super::Input::Answered).
    pub requests: Vec<(HolderRequest, Request)>,
    /// Events for waiting callers.
    pub events: Vec<Event>,
    /// Notices for the log.
    pub notices: Vec<Notice>,
}

/// A request to the agent. It is sent once; retries are decided by the holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Creates a session.
    CreateSession(SessionOptions),
    /// Renews a session, with this timeout.
    Renew(String, Duration),
    /// Queries if a session exists, with this timeout.
    FindSession(String, Duration),
    /// Queries the state of a session with respect to its node's lease, and waits for a change
    /// after the index; with index 0 the reply is immediate. An agent without node leases rejects
    /// it with 404 or 405.
    NodeLease(String, Read),
    /// Ends a session, for this reason.
    EndSession(String, EndReason),
    /// Reads one key.
    Get(String, Read),
    /// Reads one key as this session sees it: it is named as the holder if it is any of the shared
    /// ones.
    GetHeld(String, String, Read),
    /// Reads several keys.
    GetAll(KeysRead),
    /// Reads all keys with this prefix.
    List(String, Read),
    /// Acquires a lock, at once or by waiting in its queue for up to this time.
    Acquire(Write, String, Option<Duration>),
    /// The same in shared mode.
    AcquireShared(Write, String, Option<Duration>),
    /// Acquires several locks, all or none, at once or by waiting in their queues.
    AcquireAll(LocksRequest, Option<Duration>),
    /// Releases a lock.
    Release(Write, String),
    /// Releases several locks, all or none.
    ReleaseAll(Vec<Write>, String),
    /// Writes if the entry's modify index matches.
    Cas(Write, u64),
    /// Deletes a key.
    Delete(String),
}

/// A read of several keys, one after the other, as a session sees them. Absent keys are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeysRead {
    /// The keys.
    pub keys: Vec<String>,
    /// The session.
    pub session: String,
    /// The fencing tokens of the keys. A read with an index begins when one of them is not current,
    /// or at the end of its wait.
    pub fences: Vec<u64>,
    /// Consistency, index and wait.
    pub read: Read,
}

/// The reason why a session ends. In both cases the agent retries until it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The session is no longer needed.
    Closed,
    /// No renewal was acknowledged for this time; `None` if the node's lease was not renewed, about
    /// which the agent knows more.
    GivenUp(Option<Duration>),
}

/// The data of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Bytes,
    /// An opaque number for clients.
    pub flags: u64,
}

/// Events for waiting callers, each sent once.
#[derive(Debug)]
pub enum Event {
    /// A session is kept alive, or could not be created.
    Kept(Result<String, Error>),
    /// Acquired, or `None` if it could not be acquired in time.
    Acquired(HoldId, Result<Option<Grant>, Error>),
    /// The hold was lost.
    Lost(HoldId, Loss),
    /// The hold was released; `false` if it was lost before.
    Released(HoldId, Result<bool, Error>),
    /// The session was lost.
    SessionLost(Loss),
    /// The session was closed by the caller.
    Closed(Result<(), Error>),
}

/// A granted hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The session that holds it.
    pub session: String,
    /// The fencing token of each lock, in the order of the goal; empty from an agent without
    /// fences.
    pub fences: Vec<u64>,
}

/// A notice for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A renewal failed, for this reason, and is retried.
    RenewalFailed(String),
    /// No renewal of this session was acknowledged before its deadline. Its holds of these keys and
    /// prefixes are lost.
    DeadlinePassed(String, Vec<String>),
    /// The lease of this session's node was not confirmed before its deadline: the session is
    /// suspended, with its holds of these keys and prefixes.
    Suspended(String, Vec<String>),
    /// This suspended session is valid again. These keys and prefixes are read before they count as
    /// held.
    Resumed(String, Vec<String>),
    /// A request for this key or prefix failed, for this reason, and is retried.
    TryingAgain(String, String),
    /// A hold or possible grant of this key or prefix could not be released, for this reason; it
    /// ends with its session.
    NotGivenBack(String, String),
    /// This session could not be destroyed, for this reason; it ends with its TTL.
    NotDestroyed(String, String),
}
