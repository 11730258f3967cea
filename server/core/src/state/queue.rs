//! Lock queues: the waiters of a lock in the order of their requests (first come, first served),
//! and the grant to the next one when the lock is freed.
//!
//! A grant is part of the command that frees the lock: a release, a delete, the end of a session or
//! of a delay. So a lock with waiters is never free between two commands, and a hand-off costs one
//! log entry. Grants come last in a command: a transaction sees only its own operations, and a
//! session that the same command ends is granted nothing.
//!
//! The leader measures the wait; its end is a command, as for lock-delays.

use super::State;
use super::entry::{lock_of, write_entry};
use super::lock::{AcquireOutcome, acquire, grant};
use super::step::Step;
use super::tree::under;
use crate::fault_injection::Rule;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::NewEntry;
use lockmesh_protocol::id::{Key, LogIndex, SessionId};
use lockmesh_protocol::query::Rows;
use lockmesh_protocol::record::{Entry, Waiter};
use lockmesh_protocol::reply::{Refusal, Reply};
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of waiters per lock.
pub const WAITERS_MAX: usize = 10_000;

/// The longest wait; longer ones are capped.
pub const MAX_WAIT: Duration = Duration::from_secs(3600);

/// Acquires the lock, or else a position in the key's queue. A session that is already queued
/// keeps its position, and its earlier request is replaced.
pub(super) fn enqueue(
    step: &mut Step<'_>,
    new: &NewEntry,
    session: SessionId,
    wait: Duration,
) -> Result<Reply, Refusal> {
    let is_delayed = step.state.keys.delays.contains_key(&new.key);
    if !step.state.sessions.rows.contains_key(&session) {
        return Err(Refusal::InvalidSession(session));
    }
    let existing = step.state.keys.entry(&new.key);
    match lock_of(existing.as_ref()).session {
        Some(holder) if holder == session => return Ok(acquire(step, new, session)?.reply()),
        // The lock is free and has no waiters, because a lock with waiters is never left free.
        None if !is_delayed => {
            let lock = grant(step, &new.key, existing.as_ref(), session, Some(step.index));
            return Ok(AcquireOutcome::Granted(write_entry(step, existing, new, lock)).reply());
        }
        _ => {}
    }
    let queue_position = place_in_queue(step, &new.key, session)?;
    let (value, flags, enqueued_at_index) = (new.value.clone(), new.flags, step.index);
    let waiter = Waiter { session, value, flags, wait: wait.min(MAX_WAIT), enqueued_at_index };
    step.set(Change::Waiter(new.key.clone(), queue_position, Some(Arc::new(waiter))));
    Ok(Reply::Queued { queue_position })
}

/// Cancels the request at `enqueued_at_index`: gives up its position, or releases the lock if
/// the grant may be unknown to the client.
pub(super) fn leave(
    step: &mut Step<'_>,
    key: &Key,
    session: SessionId,
    enqueued_at_index: LogIndex,
) -> Reply {
    if stop_waiting(step, key, session, enqueued_at_index) {
        return Reply::Succeeded(true);
    }
    // It may have been granted in the entry before this one, after the client had disconnected.
    match step.state.keys.entry(key) {
        Some(entry)
            if entry.lock.session == Some(session) && entry.lock.granted_for == Some(enqueued_at_index) =>
        {
            // Value and flags stay as the grant wrote them: other clients may have read them.
            let Entry { value, flags, .. } = Entry::clone(&entry);
            let new = NewEntry { key: key.clone(), value, flags };
            let lock = entry.lock.freed();
            write_entry(step, Some(entry), &new, lock);
            Reply::Done
        }
        _ => Reply::Succeeded(false),
    }
}

/// Gives up the position of the request at `enqueued_at_index`; returns `false` if it has none.
pub(super) fn stop_waiting(
    step: &mut Step<'_>,
    key: &Key,
    session: SessionId,
    enqueued_at_index: LogIndex,
) -> bool {
    let keys = &step.state.keys;
    let queue_position = keys.queue_position(key, session);
    let is_its_own = |queue_position: &LogIndex| keys.waits(key, *queue_position, enqueued_at_index);
    // The session may have sent another request since, which owns the position then.
    let Some(queue_position) = queue_position.filter(is_its_own) else { return false };
    step.set(Change::Waiter(key.clone(), queue_position, None));
    true
}

/// Ends a wait, if `enqueued_at_index` is still its own.
pub(super) fn end_wait(
    step: &mut Step<'_>,
    key: &Key,
    queue_position: LogIndex,
    enqueued_at_index: LogIndex,
) -> Reply {
    if step.state.keys.waits(key, queue_position, enqueued_at_index) {
        step.set(Change::Waiter(key.clone(), queue_position, None));
    }
    Reply::Done
}

/// Removes a session from a key's queue: it was granted the lock, or released it.
pub(super) fn leave_queue(step: &mut Step<'_>, key: &Key, session: SessionId) {
    if let Some(queue_position) = step.state.keys.queue_position(key, session) {
        step.set(Change::Waiter(key.clone(), queue_position, None));
    }
}

/// Removes an ended session from all queues.
pub(super) fn leave_all_queues(step: &mut Step<'_>, session: SessionId) {
    if step.state.fault_point.breaks(Rule::EndedSessionsLeaveQueues) {
        return;
    }
    // Before any lock is granted: an ended session must not be the next in a queue.
    for (key, queue_position) in step.state.keys.waiting.get(&session).cloned().unwrap_or_default() {
        step.set(Change::Waiter(key, queue_position, None));
    }
}

/// Notes the keys whose locks a change may free.
pub(super) fn note_freed(step: &mut Step<'_>, change: &Change) {
    match change {
        Change::Entry(key, _) | Change::LockDelay(key, None) if step.state.keys.queues.contains_key(key) => {
            step.freed.insert(key.clone());
        }
        Change::TreeDeleted(prefix) => {
            // Absent keys have queues too, while a delay closes them.
            let keys = under(&step.state.keys.queues, prefix.as_str()).map(|(key, _)| key.clone());
            step.freed.extend(keys);
        }
        _ => {}
    }
}

/// Grants every lock that this command freed to its first waiter.
pub(super) fn grant_freed(step: &mut Step<'_>) {
    // In key order, so that all servers assign the same fences.
    for key in std::mem::take(&mut step.freed) {
        let existing = step.state.keys.entry(&key);
        let is_held = lock_of(existing.as_ref()).session.is_some();
        // A delay, possibly set by this command, still closes the key. Its end grants the lock.
        let queue = step
            .state
            .keys
            .queues
            .get(&key)
            .filter(|_| !is_held && !step.state.keys.delays.contains_key(&key));
        let next = match step.state.fault_point.breaks(Rule::FirstComeFirstServed) {
            false => queue.and_then(|queue| queue.first_key_value()),
            true => queue.and_then(|queue| queue.last_key_value()),
        };
        let Some(waiter) = next.map(|(_, waiter)| waiter.clone()) else { continue };
        let new = NewEntry { key, value: waiter.value.clone(), flags: waiter.flags };
        let granted_for = Some(waiter.enqueued_at_index);
        // The index of the request lets the client distinguish this grant from another one of
        // its session.
        let lock = grant(step, &new.key, existing.as_ref(), waiter.session, granted_for);
        write_entry(step, existing, &new, lock);
    }
}

/// The session's position in a key's queue; a new one at the end if it has none.
fn place_in_queue(step: &Step<'_>, key: &Key, session: SessionId) -> Result<LogIndex, Refusal> {
    // A repeated request keeps the position, or a retry would move to the end of the queue.
    if let Some(queue_position) = step.state.keys.queue_position(key, session) {
        return Ok(queue_position);
    }
    match step.state.keys.queues.get(key) {
        Some(queue) if queue.len() >= WAITERS_MAX => Err(Refusal::QueueFull(WAITERS_MAX)),
        // An entry's index is larger than all before it, so later requests are queued behind.
        _ => Ok(step.index),
    }
}

impl State {
    /// The outcome of a queue position: the reply to its acquire, once the request no longer waits.
    ///
    /// A hold that belongs to another request of the same session is not reported: that request may
    /// still release it.
    pub(super) fn query_queue_position(
        &self,
        key: &Key,
        session: SessionId,
        queue_position: LogIndex,
        enqueued_at_index: LogIndex,
    ) -> (LogIndex, Rows) {
        // The index equals the queue position until the outcome is known, so that a blocking query
        // keeps waiting.
        if self.keys.waiter(key, queue_position).is_some() {
            return (queue_position, Rows::QueuePosition(Reply::Queued { queue_position }));
        }
        let entry = self.keys.entries.get(key.as_str()).filter(|entry| entry.lock.session == Some(session));
        let is_known =
            |entry: &&Arc<Entry>| entry.lock.granted_for.is_none_or(|index| index == enqueued_at_index);
        if let Some(entry) = entry.filter(is_known) {
            return (
                // Above the queue position in any case, or a blocking query would not return the
                // outcome.
                entry.modify_index.max(queue_position.next()),
                Rows::QueuePosition(Reply::Granted { fence: entry.lock.fence }),
            );
        }
        let reply = match self.keys.delays.get(key) {
            _ if !self.sessions.rows.contains_key(&session) => {
                Reply::Refused(Refusal::InvalidSession(session))
            }
            Some(delay) => Reply::Delayed { remaining: delay.duration },
            None => Reply::Succeeded(false),
        };
        (queue_position.next(), Rows::QueuePosition(reply))
    }
}
