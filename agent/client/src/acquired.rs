//! What became of an attempt to take a lock.

use std::time::Duration;

/// What became of an attempt to take a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The session holds it now, or did already.
    Granted {
        /// The fencing token of the grant; `None` from an agent that does not know fences.
        fence: Option<u64>,
    },
    /// Somebody else holds it, or a lock-delay keeps it closed.
    Refused {
        /// How long the key stays closed, where that is the reason and the agent says so.
        delay: Option<Duration>,
    },
}
