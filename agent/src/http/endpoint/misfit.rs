//! Failures for replies of servers that this agent does not expect.

use crate::http::answer::Failure;
use lockmesh_protocol::reply::Reply;

/// The failure for a query answered with unexpected rows: the server is of another build.
pub(super) fn wrong_rows() -> Failure {
    Failure::refused("the server returned unexpected rows: agent and server differ in version")
}

/// The failure for a command answered with an unexpected reply: the server is of another build.
pub(super) fn wrong_reply(reply: &Reply) -> Failure {
    Failure::unknown(format!("the server returned an unexpected reply: {reply:?}"))
}
