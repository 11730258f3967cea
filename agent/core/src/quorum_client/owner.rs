//! The owner of a request, its number, and its retry policy.

use super::input::CallToken;
use lockmesh_protocol::acl::Caller;
use lockmesh_protocol::id::SessionId;
use lockmesh_protocol::rpc::{Response, Unavailable};
use std::time::Duration;

/// The time that a shared read waits at the server before it is renewed.
pub(super) const SHARED_READ_WAIT: Duration = Duration::from_secs(600);

/// The number of a request; never reused. The request waits for a sequence under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RequestNumber(pub(super) u64);

/// The number of a shared read; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SharedReadNumber(pub(super) u64);

/// The owner of a request, which receives its reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Caller(CallToken),
    SharedRead(SharedReadNumber),
    LockWait(CallToken),
    /// Also named by its caller: each has its own rights.
    SessionEnd(SessionId, Caller),
}

/// The result of a request, for its owner.
pub(super) type RequestResult = Result<Response, Unavailable>;

/// The retry policy of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effort {
    /// Retried until there is a reply.
    Endless,
    /// Retried within the hold timeout.
    Held,
    /// Sent once, and only if there is a connection now.
    Once,
}
