//! What is answered when a server and this agent do not speak of the same thing.

use crate::http::answer::Failure;
use lockmesh_protocol::reply::Reply;

/// A server that answers a query with other rows is of another build.
pub(super) fn wrong_rows() -> Failure {
    Failure::refused(
        "the server answered with other rows than were asked for: agent and server differ in version",
    )
}

/// A server that answers a command with a reply of another kind is of another build.
pub(super) fn wrong_reply(reply: &Reply) -> Failure {
    Failure::unknown(format!("the server answered with another reply than expected: {reply:?}"))
}
