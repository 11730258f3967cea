//! Who waits for a request, by which number it is known, and how hard it is tried.

use super::input::CallToken;
use lockmesh_protocol::id::SessionId;
use std::time::Duration;

/// How long a shared read waits at the server before it is begun anew.
pub(super) const SHARED_READ_WAIT: Duration = Duration::from_secs(600);

/// A request, by a number that is never used twice; it stands in the line for sequences under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RequestNumber(pub(super) u64);

/// A shared read, by a number that is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SharedReadNumber(pub(super) u64);

/// Who waits for a request's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Caller(CallToken),
    SharedRead(SharedReadNumber),
    LockWait(CallToken),
    SessionEnd(SessionId),
}

/// How often a request is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effort {
    /// Until there is an answer.
    Endless,
    /// The same, but only for as long as requests are held.
    Held,
    /// Once, and only if there is a connection now.
    Once,
}
