//! Why something that was held is held no longer.

/// Why a session, a lock, a slot or a leadership ended. Every one of these is final: to go on,
/// acquire anew.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Loss {
    /// No renewal was acknowledged in time, so nobody can promise any longer that the session
    /// lives.
    #[error("no renewal of the session was acknowledged before its deadline")]
    Deadline,
    /// The agent told of no acknowledged renewal of its node's lease in time, so nobody can promise
    /// any longer that the session lives. Told of a hold also while it is suspended, which may pass:
    /// whoever would rather wait follows the guard's state.
    #[error("no renewal of this node's lease was heard of before its deadline")]
    NodeDeadline,
    /// The session has ended, as the agent says, for this reason.
    #[error("the session has ended: {0}")]
    Ended(String),
    /// The cluster says that the session is no more: destroyed, or ended by a health check.
    #[error("the session was ended from outside or by a health check")]
    SessionGone,
    /// This program closed the session or released the hold itself.
    #[error("this program gave it up itself")]
    Closed,
    /// The key was deleted.
    #[error("the key was deleted")]
    Deleted,
    /// The key is held by nobody: somebody released it in this session's name, or the session
    /// ended.
    #[error("the lock was released by somebody else")]
    Released,
    /// The key is held by another session.
    #[error("the lock is held by session {0}")]
    Taken(String),
    /// The holders' list no longer names this session.
    #[error("the list of holders no longer names this session")]
    Unlisted,
    /// The hold could not be watched as often as the caller wants it watched.
    #[error("the lock could not be watched: {0}")]
    Unwatched(String),
}
