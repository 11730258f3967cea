//! Deadlocks: circles of sessions that wait for each other's locks.
//!
//! A session waits for another one if a request of it is blocked by a lock that the other one holds
//! or asked for earlier. A request can close a circle only if another session waits for its own.

use crate::id::{Key, LogIndex, NodeName, SessionId, WallTime};
use crate::record::{LockMode, Session};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of deadlocks kept; a new one replaces the oldest.
pub const DEADLOCKS_KEPT: usize = 16;

/// The maximum number of sessions kept of one deadlock.
pub const DEADLOCK_SESSIONS_KEPT: usize = 64;

/// The maximum number of sessions listed that block one request.
pub const BLOCKERS_LISTED: usize = 8;

/// The reaction to a request that would close a circle. Stored: only appended to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeadlockPolicy {
    /// It is recorded, and the request waits.
    #[default]
    Report,
    /// It is recorded, and the request is refused.
    Refuse,
}

/// The policy, and the deadlocks found. Stored as one row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadlocks {
    /// The policy.
    pub policy: DeadlockPolicy,
    /// The number of deadlocks found in the cluster's life.
    pub found: u64,
    /// The number of searches that ended at their limit without a result.
    pub unknown: u64,
    /// The newest deadlocks, oldest first.
    pub newest: Vec<Arc<Deadlock>>,
}

/// A circle of waits at the moment when it was closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadlock {
    /// The index of the log entry that closed it.
    pub index: LogIndex,
    /// The time of that entry.
    pub found_at: WallTime,
    /// Set if the request that would have closed it was refused.
    pub is_refused: bool,
    /// The number of its sessions.
    pub length: u64,
    /// Its sessions, the one that closed it first; each waits for the next one, and the last one
    /// for the first. At most [`DEADLOCK_SESSIONS_KEPT`] of them.
    pub waits: Vec<DeadlockedSession>,
}

/// A session of a deadlock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlockedSession {
    /// The session.
    pub session: SessionId,
    /// Its name.
    pub name: String,
    /// Its node.
    pub node: NodeName,
    /// The lock that it waits for.
    pub key: Key,
}

/// A request that waits for locks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockWait {
    /// Its session.
    pub session: Arc<Session>,
    /// Its position in the queues of all its locks.
    pub queue_position: LogIndex,
    /// The time of the request; 0 if a build before format 8 wrote it.
    pub enqueued_at: WallTime,
    /// The maximum time to wait.
    pub wait: Duration,
    /// Set if its session is in a deadlock that still exists.
    pub is_deadlocked: bool,
    /// Its locks.
    pub locks: Vec<AwaitedLock>,
}

/// A lock of a waiting request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwaitedLock {
    /// The key.
    pub key: Key,
    /// The mode.
    pub mode: LockMode,
    /// The number of requests before it in the queue.
    pub ahead: u64,
    /// The sessions that block it: holders first, then earlier requests; at most
    /// [`BLOCKERS_LISTED`] of them. Empty if the lock is free for it, or closed by a lock-delay.
    pub blocked_by: Vec<SessionId>,
}
