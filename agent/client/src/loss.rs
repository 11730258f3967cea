//! The reasons for a loss.

/// The reason why a session, a lock, a slot or a leadership ended. Every reason is final: to
/// continue, acquire again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// No renewal was acknowledged in time, so the session is no longer guaranteed to be alive.
    #[error("no renewal of the session was acknowledged before its deadline")]
    Deadline,
    /// The agent reported no acknowledged renewal of its node's lease in time, so the session is no
    /// longer guaranteed to be alive. Also reported for a hold that is only suspended and may
    /// resume. To wait for that, follow the guard's state.
    #[error("the node's lease was not renewed before its deadline")]
    NodeDeadline,
    /// The session has ended, for this reason, as reported by the agent.
    #[error("the session has ended: {0}")]
    Ended(String),
    /// The cluster reports that the session no longer exists: destroyed, or ended by a health
    /// check.
    #[error("the session was destroyed, or ended by a health check")]
    SessionGone,
    /// This program closed the session or released the hold itself.
    #[error("this program closed or released it")]
    Closed,
    /// The key was deleted.
    #[error("the key was deleted")]
    Deleted,
    /// No session holds the key: another client released it in this session's name, or the session
    /// ended.
    #[error("the lock was released by another client")]
    Released,
    /// The key is held by another session.
    #[error("the lock is held by session {0}")]
    Taken(String),
    /// The holders' list no longer names this session.
    #[error("the list of holders no longer names this session")]
    Unlisted,
    /// The watch of the hold failed more often than the caller allows.
    #[error("the lock could not be watched: {0}")]
    Unwatched(String),
}

/// What a loss says about the lock or slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockAfterLoss {
    /// Another session may hold it already.
    Free,
    /// Its session was ended by others, which leaves the lock-delay.
    Delayed,
    /// It was still held when the loss was reported.
    Held,
}

impl Loss {
    /// Returns what the loss says about the lock or slot.
    pub fn lock_after(&self) -> LockAfterLoss {
        match self {
            Self::Deadline | Self::NodeDeadline => LockAfterLoss::Free,
            Self::Deleted | Self::Released | Self::Taken(_) | Self::Unlisted => LockAfterLoss::Free,
            Self::Ended(_) | Self::SessionGone => LockAfterLoss::Delayed,
            Self::Closed | Self::Unwatched(_) => LockAfterLoss::Held,
        }
    }
}
