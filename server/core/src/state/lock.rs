//! Locks: acquire and release in both modes, and the fencing token of each grant.
//!
//! Contenders that do not wait have no order: the first acquire in the log that finds the lock free
//! wins. Queued requests come before them.
//!
//! A lock is held by one session, or by any number of sessions in shared mode. Its *period* begins
//! with a grant of the free lock, with an upgrade or with a downgrade, and has a fencing token and
//! a lock index of its own: shared holders of one period have them in common. The entry names the
//! oldest holder, and grants in shared mode write no value.

use super::deadlock::{may_close, note_circle_of_grant};
use super::entry::{lock_of, set_entry, write_entry};
use super::keys::Keys;
use super::queue::{is_passed, leave_queue, leave_queue_of_one};
use super::step::Step;
use bytes::Bytes;
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::command::NewEntry;
use lockmesh_protocol::id::{Fence, Key, LogIndex, SessionId};
use lockmesh_protocol::record::{Entry, Lock, LockMode, RequestedLock, SharedHold};
use lockmesh_protocol::reply::{Refusal, Reply};
use std::sync::Arc;
use std::time::Duration;

/// The outcome of an acquire.
pub(super) enum AcquireOutcome {
    /// The session holds the lock.
    Granted(Arc<Entry>),
    /// Another session holds the lock, or an earlier request waits for it.
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

/// Acquires the lock of a key in exclusive mode. The holder may repeat it to change the value, and
/// the only shared holder becomes the exclusive one.
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
    // A transaction may hand a lock over, past the requests that wait for it.
    let position = if step.vacated.contains(&new.key) { LogIndex(0) } else { step.index };
    if let Err(closed) = is_available(&step.state.keys, &new.key, LockMode::Exclusive, session, position) {
        return Ok(closed);
    }
    let wanted = std::iter::once((&new.key, LockMode::Exclusive));
    let new_locks = may_close(&step.state.keys, wanted, session);
    grant(step, new, LockMode::Exclusive, session, None);
    note_circle_of_grant(step, &new_locks, session);
    let entry = step.state.keys.entry(&new.key).expect("a granted lock has an entry");
    Ok(AcquireOutcome::Granted(entry))
}

/// Returns whether a session may be granted a lock now by a request at a queue position, or the
/// reason why not.
pub(super) fn is_available(
    keys: &Keys,
    key: &Key,
    mode: LockMode,
    session: SessionId,
    queue_position: LogIndex,
) -> Result<(), AcquireOutcome> {
    let held = keys.mode_held(key, session);
    // The exclusive holder may hold it in any mode, whoever waits.
    if held == Some(LockMode::Exclusive) || held == Some(mode) {
        return Ok(());
    }
    let is_open = match (keys.shared.get(key), keys.holders.get(key)) {
        (Some(holders), _) if mode == LockMode::Exclusive => held.is_some() && holders.len() == 1,
        (Some(_), _) | (None, None) => true,
        (None, Some(_)) => false,
    };
    if !is_open {
        return Err(AcquireOutcome::Held);
    }
    if let Some(delay) = keys.delay(key, mode) {
        return Err(AcquireOutcome::Delayed(delay.duration));
    }
    // A shared holder that asks for the exclusive lock is before all others.
    match held.is_none() && is_passed(keys, key, mode, session, queue_position) {
        true => Err(AcquireOutcome::Held),
        false => Ok(()),
    }
}

/// Releases a lock; `None` if the session does not hold it. Its queue position is given up unless
/// it held the exclusive lock. The session may have ended.
pub(super) fn release(step: &mut Step<'_>, new: &NewEntry, session: SessionId) -> Option<Arc<Entry>> {
    let held = step.state.keys.mode_held(&new.key, session);
    if held != Some(LockMode::Exclusive) {
        // Only an agent knows that a request waits, and after an agent's crash none does. A
        // client that releases a lock as a precaution must not be granted it later.
        leave_queue(step, &new.key, session);
    }
    match held? {
        LockMode::Exclusive => {
            let existing = step.state.keys.entry(&new.key);
            let lock = lock_of(existing.as_ref());
            Some(write_entry(step, existing, new, lock.freed()))
        }
        LockMode::Shared => {
            release_shared(step, &new.key, session);
            step.state.keys.entry(&new.key)
        }
    }
}

/// Ends a shared hold. The entry names the next oldest holder, or is free.
pub(super) fn release_shared(step: &mut Step<'_>, key: &Key, session: SessionId) {
    step.set(Change::SharedHold(key.clone(), session, None));
    let Some(entry) = step.state.keys.entry(key).filter(|entry| entry.lock.session == Some(session)) else {
        // The entry does not change, but readers of the hold wait for a newer index.
        return step.touch(Table::Entries);
    };
    let holders = step.state.keys.shared.get(key).into_iter().flatten();
    let oldest = holders.min_by_key(|(_, hold)| hold.age()).map(|(id, _)| *id);
    let lock = match oldest {
        Some(_) => Lock { session: oldest, ..entry.lock },
        None => entry.lock.freed(),
    };
    write_lock(step, entry, lock);
}

/// Writes a lock, and keeps the value.
fn write_lock(step: &mut Step<'_>, entry: Arc<Entry>, lock: Lock) {
    let Entry { key, value, flags, .. } = Entry::clone(&entry);
    write_entry(step, Some(entry), &NewEntry { key, value, flags }, lock);
}

/// Records that the holder knows of its hold, when it acquires again: independently of the waiting
/// request. Other clients see no difference, so no index moves.
fn make_known(step: &mut Step<'_>, key: &Key, session: SessionId) {
    if let Some(hold) = step.state.keys.shared.get(key).and_then(|holders| holders.get(&session)) {
        if hold.granted_for.is_some() {
            let known = SharedHold { granted_for: None, ..*hold };
            step.set(Change::SharedHold(key.clone(), session, Some(known)));
        }
        return;
    }
    let existing = step.state.keys.entry(key);
    if let Some(entry) = existing.filter(|entry| entry.lock.granted_for.is_some()) {
        let lock = Lock { granted_for: None, ..entry.lock };
        let known = Entry { lock, ..Entry::clone(&entry) };
        step.set(Change::Entry(key.clone(), Some(Arc::new(known))));
    }
}

/// Ends a lock-delay, if `started_at_index` still identifies it.
pub(super) fn end_lock_delay(step: &mut Step<'_>, key: &Key, started_at_index: LogIndex, base: u64) -> Reply {
    // The index distinguishes this delay from a later one of the same key, and the base
    // from one that a restore brought.
    let delay = step.state.keys.delay(key, LockMode::Exclusive);
    if base == step.state.index_base && delay.is_some_and(|delay| delay.started_at_index == started_at_index)
    {
        step.set(match step.state.keys.delays.contains_key(key) {
            true => Change::LockDelay(key.clone(), None),
            false => Change::SharedDelay(key.clone(), None),
        });
    }
    Reply::Done
}

/// Grants a lock that is available, and returns the fencing token. `request` is the position and
/// the index of the request that waits or may wait.
///
/// Every grant goes through here and removes the session from the queue. A transaction may
/// release a lock and acquire it for a session that also waits for it. A holder that still
/// waited would be granted the lock again on its own release.
pub(super) fn grant(
    step: &mut Step<'_>,
    new: &NewEntry,
    mode: LockMode,
    session: SessionId,
    request: Option<(LogIndex, LogIndex)>,
) -> Fence {
    let key = &new.key;
    let held = step.state.keys.mode_held(key, session);
    if held == Some(mode) {
        make_known(step, key, session);
        // Fence and lock index stay the same: the holder's sequencer remains valid.
        if mode == LockMode::Exclusive {
            set_entry(step, new);
        }
        return lock_of(step.state.keys.entry(key).as_ref()).fence;
    }
    leave_queue_of_one(step, key, session);
    if held == Some(LockMode::Shared) {
        step.set(Change::SharedHold(key.clone(), session, None));
    }
    let existing = step.state.keys.entry(key);
    let joins = mode == LockMode::Shared && step.state.keys.shared.contains_key(key);
    let lock = if joins { lock_of(existing.as_ref()) } else { next_period(step, existing.as_ref(), session) };
    match mode {
        LockMode::Exclusive => {
            let granted_for = request.map(|(_, index)| index);
            write_entry(step, existing, new, Lock { granted_for, ..lock });
        }
        LockMode::Shared => {
            let (queue_position, granted_for) = request.unzip();
            let hold = SharedHold {
                granted_index: step.index,
                // The first holder of a period is the oldest, whoever is granted the lock with it.
                queue_position: queue_position.filter(|_| joins).unwrap_or_default(),
                granted_at: step.at,
                granted_for,
            };
            step.set(Change::SharedHold(key.clone(), session, Some(hold)));
            match existing {
                _ if joins => {}
                Some(entry) => write_lock(step, entry, lock),
                None => {
                    let empty = NewEntry { key: key.clone(), value: Bytes::new(), flags: new.flags };
                    write_entry(step, None, &empty, lock);
                }
            }
        }
    }
    lock.fence
}

/// Grants one lock of a request.
pub(super) fn grant_requested(
    step: &mut Step<'_>,
    lock: &RequestedLock,
    session: SessionId,
    request: Option<(LogIndex, LogIndex)>,
) -> Fence {
    let RequestedLock { key, mode, value, flags } = lock.clone();
    grant(step, &NewEntry { key, value, flags }, mode, session, request)
}

/// Returns a key's lock at the beginning of a period.
fn next_period(step: &mut Step<'_>, existing: Option<&Arc<Entry>>, session: SessionId) -> Lock {
    // One counter for all keys, so that a token is never reused, even if a key is deleted and
    // created again.
    let fence = Fence(step.state.fence.0 + 1);
    step.set(Change::Fence(fence));
    // Counts the grants of this entry, as in Consul; only the fence continues across a delete.
    let index = lock_of(existing).index + 1;
    Lock { session: Some(session), index, fence, granted_at: step.at, granted_for: None }
}
