//! Locks: acquire, release, and the fencing token of each grant.
//!
//! Contenders that do not wait have no order: the first acquire in the log that finds the lock free
//! wins. Queued waiters come before them.

use super::entry::{lock_of, set_entry, write_entry};
use super::queue::leave_queue;
use super::step::Step;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::NewEntry;
use lockmesh_protocol::id::{Fence, Key, LogIndex, SessionId};
use lockmesh_protocol::record::{Entry, Lock};
use lockmesh_protocol::reply::{Refusal, Reply};
use std::sync::Arc;
use std::time::Duration;

/// The outcome of an acquire.
pub(super) enum AcquireOutcome {
    /// The session holds the lock.
    Granted(Arc<Entry>),
    /// Another session holds the lock.
    Held,
    /// The lock is free, but closed for this long.
    Delayed(Duration),
}

impl AcquireOutcome {
    pub(super) fn reply(&self) -> Reply {
        match self {
            Self::Granted(entry) => Reply::Granted { fence: entry.lock.fence },
            Self::Held => Reply::Succeeded(false),
            Self::Delayed(remaining) => Reply::Delayed { remaining: *remaining },
        }
    }
}

/// Acquires the lock of a key. The holder may repeat it to change the value.
pub(super) fn acquire(
    step: &mut Step<'_>,
    new: &NewEntry,
    session: SessionId,
) -> Result<AcquireOutcome, Refusal> {
    // As in Consul, which checks the delay before the session.
    if let Some(delay) = step.state.keys.delays.get(&new.key) {
        return Ok(AcquireOutcome::Delayed(delay.duration));
    }
    if !step.state.sessions.rows.contains_key(&session) {
        return Err(Refusal::InvalidSession(session));
    }
    let existing = step.state.keys.entry(&new.key);
    let lock = match lock_of(existing.as_ref()).session {
        Some(holder) if holder != session => return Ok(AcquireOutcome::Held),
        Some(_) => {
            make_known(step, existing.as_ref());
            // Fence and lock index stay the same: the holder's sequencer remains valid.
            return Ok(AcquireOutcome::Granted(set_entry(step, new)));
        }
        None => grant(step, &new.key, existing.as_ref(), session, None),
    };
    Ok(AcquireOutcome::Granted(write_entry(step, existing, new, lock)))
}

/// Releases a lock; `None` if the session does not hold it, and then its queue position is
/// given up. The session may have ended.
pub(super) fn release(step: &mut Step<'_>, new: &NewEntry, session: SessionId) -> Option<Arc<Entry>> {
    let existing = step.state.keys.entry(&new.key);
    let lock = lock_of(existing.as_ref());
    if lock.session != Some(session) {
        // Only an agent knows that a request waits, and after an agent's crash none does. A
        // client that releases a lock as a precaution must not be granted it later.
        leave_queue(step, &new.key, session);
        return None;
    }
    Some(write_entry(step, existing, new, lock.freed()))
}

/// Clears the pending grant when the holder acquires again: it knows that it holds the lock,
/// independently of the waiting request. Other clients see no difference, so no index
/// moves.
fn make_known(step: &mut Step<'_>, existing: Option<&Arc<Entry>>) {
    if let Some(entry) = existing.filter(|entry| entry.lock.granted_for.is_some()) {
        let lock = Lock { granted_for: None, ..entry.lock };
        let known = Entry { lock, ..Entry::clone(entry) };
        step.set(Change::Entry(entry.key.clone(), Some(Arc::new(known))));
    }
}

/// Ends a lock-delay, if `started_at_index` still identifies it.
pub(super) fn end_lock_delay(step: &mut Step<'_>, key: &Key, started_at_index: LogIndex, base: u64) -> Reply {
    if base == step.state.index_base
        // The index distinguishes this delay from a later one of the same key, and the base
        // from one that a restore brought.
        && step.state.keys.delays.get(key).is_some_and(|delay| delay.started_at_index == started_at_index)
    {
        step.set(Change::LockDelay(key.clone(), None));
    }
    Reply::Done
}

/// Returns a key's lock after a grant, with the waiting request that it was granted for.
///
/// Every grant goes through here and removes the session from the queue. A transaction may
/// release a lock and acquire it for a session that also waits for it. A holder that still
/// waited would be granted the lock again on its own release.
pub(super) fn grant(
    step: &mut Step<'_>,
    key: &Key,
    existing: Option<&Arc<Entry>>,
    session: SessionId,
    granted_for: Option<LogIndex>,
) -> Lock {
    leave_queue(step, key, session);
    // One counter for all keys, so that a token is never reused, even if a key is deleted and
    // created again.
    let fence = Fence(step.state.fence.0 + 1);
    step.set(Change::Fence(fence));
    // Counts the grants of this entry, as in Consul; only the fence continues across a delete.
    let index = lock_of(existing).index + 1;
    Lock { session: Some(session), index, fence, granted_at: step.at, granted_for }
}
