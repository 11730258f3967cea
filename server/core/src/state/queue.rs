//! Lock queues: requests for locks in their order, and the grant to the next one when a lock is
//! freed.
//!
//! The order: a shared holder that waits for the exclusive lock comes first, then requests by their
//! position (first come, first served). No request is granted a lock past an earlier one that
//! conflicts with it. A request for several locks has one position in all their queues, and is
//! granted all of them or none.
//!
//! A grant is part of the command that frees the lock: a release, a delete, the end of a session or
//! of a delay. So no request that could be granted waits between two commands, and a hand-off costs
//! one log entry. Grants come last in a command: a transaction sees only its own operations, and a
//! session that the same command ends is granted nothing.
//!
//! The leader measures the wait; its end is a command, as for lock-delays.

use super::deadlock::{may_close, note_circle, note_circle_of_grant};
use super::keys::{Keys, request_gone, request_row};
use super::lock::{grant_requested, is_available, release, release_shared};
use super::step::Step;
use super::tree::under;
use crate::fault_injection::Rule;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::NewEntry;
use lockmesh_protocol::id::{Fence, Key, LogIndex, SessionId, WallTime};
use lockmesh_protocol::query::Rows;
use lockmesh_protocol::record::{Entry, Lock, LockMode, LockRequest, RequestedLock};
use lockmesh_protocol::reply::{LockRefusal, Refusal, Reply};
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of waiters per lock.
pub const WAITERS_MAX: usize = 10_000;

/// The longest wait; longer ones are capped.
pub const MAX_WAIT: Duration = Duration::from_secs(3600);

/// The format version from which a waiting request has a row of its own.
const SINCE_FORMAT: u8 = 8;

/// Acquires the lock, or else a position in the key's queue. A session that is already queued
/// keeps its position, and its earlier request is replaced.
pub(super) fn enqueue(
    step: &mut Step<'_>,
    new: &NewEntry,
    session: SessionId,
    wait: Duration,
) -> Result<Reply, Refusal> {
    acquire_locks(step, &[new.clone().into()], session, Some(wait))
}

/// Acquires all of these locks, or else a position in all their queues, or nothing if the request
/// does not wait. A session that waits for the same locks keeps its position.
pub(super) fn acquire_locks(
    step: &mut Step<'_>,
    locks: &[RequestedLock],
    session: SessionId,
    wait: Option<Duration>,
) -> Result<Reply, Refusal> {
    if !step.state.sessions.rows.contains_key(&session) {
        return Err(Refusal::InvalidSession(session));
    }
    may_be_granted_ever(&step.state.keys, locks, session)?;
    // A new position is behind all others.
    let known = step.state.keys.queue_position(&locks[0].key, session);
    let position = known.unwrap_or(step.index);
    let keys = &step.state.keys;
    let available =
        locks.iter().try_for_each(|lock| is_available(keys, &lock.key, lock.mode, session, position));
    let is_full = |lock: &RequestedLock| keys.queues.get(&lock.key).is_some_and(|of| of.len() >= WAITERS_MAX);
    match (available, wait) {
        (Ok(()), _) => {
            if let Some(queue_position) = known {
                remove_request(step, queue_position);
            }
            let request = wait.map(|_| (LogIndex(0), step.index));
            let wanted = locks.iter().map(|lock| (&lock.key, lock.mode));
            let new = may_close(&step.state.keys, wanted, session);
            let fences = grant_all(step, locks, session, request);
            note_circle_of_grant(step, &new, session);
            return Ok(granted(fences));
        }
        (Err(why), None) => return Ok(why.reply()),
        (Err(_), Some(_)) if known.is_none() && locks.iter().any(is_full) => {
            return Err(Refusal::QueueFull(WAITERS_MAX));
        }
        (Err(_), Some(_)) => {}
    }
    let wait = wait.unwrap_or_default();
    // Rows of later formats have a time. A wall clock may show anything.
    let time = if step.state.format() < SINCE_FORMAT { 0 } else { step.at.0.max(1) };
    let (locks, wait, enqueued_at_index) = (locks.to_vec(), wait.min(MAX_WAIT), step.index);
    let request = LockRequest { session, locks, wait, enqueued_at_index, enqueued_at: WallTime(time) };
    let before = known.and_then(|position| step.state.keys.requests.get(&position).cloned());
    if let Some(before) = &before {
        replace(step, position, before, &request);
    }
    let request = Arc::new(request);
    step.set(request_row(position, &request));
    let waits_for_more = before.as_ref().is_none_or(|before| {
        !before.locks.iter().map(|lock| lock.mode).eq(request.locks.iter().map(|lock| lock.mode))
    });
    if waits_for_more && let Err(refusal) = note_circle(step, session, true) {
        step.set(request_gone(position, &request));
        before.into_iter().for_each(|before| step.set(request_row(position, &before)));
        return Err(refusal);
    }
    Ok(Reply::Queued { queue_position: position })
}

/// Prepares the queues for another request at a position: one in another mode may be grantable, or
/// let others pass.
fn replace(step: &mut Step<'_>, position: LogIndex, before: &LockRequest, request: &LockRequest) {
    let is_of_other_format = (before.enqueued_at == WallTime(0)) != (request.enqueued_at == WallTime(0));
    if is_of_other_format {
        step.set(request_gone(position, before));
    }
    step.freed.extend(request.locks.iter().map(|lock| lock.key.clone()));
}

/// Checks that a request can be granted at some time, and that it is the only one of its session
/// for its locks.
fn may_be_granted_ever(keys: &Keys, locks: &[RequestedLock], session: SessionId) -> Result<(), Refusal> {
    let refused = |refusal: LockRefusal| Err(Refusal::Lock(refusal));
    for RequestedLock { key, mode, .. } in locks {
        let upgrades = *mode == LockMode::Exclusive && keys.is_shared_holder(key, session);
        if upgrades && locks.len() > 1 {
            return refused(LockRefusal::UpgradeOfSeveral(key.clone()));
        }
        if upgrades && keys.upgrades.get(key).is_some_and(|other| *other != session) {
            return refused(LockRefusal::UpgradeWaits(key.clone()));
        }
        let position = keys.queue_position(key, session);
        let other = position.and_then(|position| keys.requests.get(&position)).filter(|request| {
            !request.locks.iter().map(|lock| &lock.key).eq(locks.iter().map(|lock| &lock.key))
        });
        if other.is_some() {
            return refused(LockRefusal::WaitsAlready(key.clone()));
        }
    }
    Ok(())
}

/// Grants all locks of a request in the order of their keys, so that all servers assign the same
/// fences.
fn grant_all(
    step: &mut Step<'_>,
    locks: &[RequestedLock],
    session: SessionId,
    request: Option<(LogIndex, LogIndex)>,
) -> Vec<Fence> {
    locks.iter().map(|lock| grant_requested(step, lock, session, request)).collect()
}

fn granted(fences: Vec<Fence>) -> Reply {
    match fences[..] {
        [fence] => Reply::Granted { fence },
        _ => Reply::GrantedAll(fences),
    }
}

/// Returns whether a request for a lock would pass an earlier one of another session that it
/// conflicts with: of a shared holder that waits for the exclusive lock, or at a lower position.
pub(super) fn is_passed(
    keys: &Keys,
    key: &Key,
    mode: LockMode,
    session: SessionId,
    queue_position: LogIndex,
) -> bool {
    let Some(queue) = keys.queues.get(key) else { return false };
    let conflicts = |request: &LockRequest| {
        let theirs = request.mode_of(key).is_none_or(|theirs| theirs.conflicts_with(mode));
        theirs && request.session != session
    };
    keys.upgrades.get(key).is_some_and(|upgrade| *upgrade != session)
        || queue.range(..queue_position).any(|(_, request)| conflicts(request))
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
    let keys = &step.state.keys;
    let is_granted = |key: &Key| keys.granted_for(key, session) == Some(enqueued_at_index);
    if !is_granted(key) {
        return Reply::Succeeded(false);
    }
    // All locks of the request.
    let held = keys.held.get(&session).into_iter().flatten();
    for key in held.filter(|key| is_granted(key)).cloned().collect::<Vec<_>>() {
        take_back(step, &key, session);
    }
    Reply::Done
}

/// Releases a grant. Value and flags stay as the grant wrote them: other clients may have read
/// them.
fn take_back(step: &mut Step<'_>, key: &Key, session: SessionId) {
    if step.state.keys.is_shared_holder(key, session) {
        return release_shared(step, key, session);
    }
    if let Some(entry) = step.state.keys.entry(key) {
        let Entry { value, flags, .. } = Entry::clone(&entry);
        release(step, &NewEntry { key: key.clone(), value, flags }, session);
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
    remove_request(step, queue_position);
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
        remove_request(step, queue_position);
    }
    Reply::Done
}

/// Removes a session from a key's queue when it was granted the lock. A request for several locks
/// still waits for the others.
pub(super) fn leave_queue_of_one(step: &mut Step<'_>, key: &Key, session: SessionId) {
    let keys = &step.state.keys;
    let position = keys.queue_position(key, session);
    let request = position.and_then(|position| keys.requests.get(&position));
    if request.is_some_and(|request| request.locks.len() == 1) {
        leave_queue(step, key, session);
    }
}

/// Removes a session from a key's queue when it released the lock.
pub(super) fn leave_queue(step: &mut Step<'_>, key: &Key, session: SessionId) {
    if let Some(queue_position) = step.state.keys.queue_position(key, session) {
        remove_request(step, queue_position);
    }
}

/// Removes an ended session from all queues.
pub(super) fn leave_all_queues(step: &mut Step<'_>, session: SessionId) {
    if step.state.fault_point.breaks(Rule::EndedSessionsLeaveQueues) {
        return;
    }
    // Before any lock is granted: an ended session must not be the next in a queue.
    for queue_position in step.state.keys.waiting.get(&session).cloned().unwrap_or_default().into_values() {
        remove_request(step, queue_position);
    }
}

/// Removes a request from the queues of all its locks.
fn remove_request(step: &mut Step<'_>, queue_position: LogIndex) {
    if let Some(request) = step.state.keys.requests.get(&queue_position) {
        let gone = request_gone(queue_position, request);
        step.set(gone);
    }
}

/// Notes the keys whose locks a change may free for requests that wait.
pub(super) fn note_freed(step: &mut Step<'_>, change: &Change) {
    let keys = &step.state.keys;
    if let Change::Entry(key, _) = change
        && keys.queues.contains_key(key)
        && keys.holders.contains_key(key)
    {
        step.vacated.insert(key.clone());
    }
    match change {
        Change::Entry(key, _)
        | Change::LockDelay(key, None)
        | Change::SharedDelay(key, None)
        | Change::SharedHold(key, ..)
        | Change::Waiter(key, _, None)
            if keys.queues.contains_key(key) =>
        {
            step.freed.insert(key.clone());
        }
        // Requests behind it may be granted now, beside shared holders.
        Change::LockRequest(queue_position, None) => {
            let request = keys.requests.get(queue_position);
            let left = request.iter().flat_map(|request| &request.locks).map(|lock| lock.key.clone());
            step.freed.extend(left);
        }
        Change::TreeDeleted(prefix) => {
            // Absent keys have queues too, while a delay closes them.
            let queued: Vec<Key> = under(&keys.queues, prefix.as_str()).map(|(key, _)| key.clone()).collect();
            step.vacated.extend(queued.iter().filter(|key| keys.holders.contains_key(*key)).cloned());
            step.freed.extend(queued);
        }
        _ => {}
    }
}

/// Grants every lock that this command freed to the requests that are next.
pub(super) fn grant_freed(step: &mut Step<'_>) {
    // In key order, so that all servers assign the same fences. A grant frees no lock, but it may
    // let others pass.
    while let Some(key) = step.freed.pop_first() {
        while let Some((position, request)) = next_request(step, &key) {
            // The index of the request lets the client distinguish this grant from another one of
            // its session.
            remove_request(step, position);
            let marks = Some((position, request.enqueued_at_index));
            grant_all(step, &request.locks, request.session, marks);
        }
    }
}

/// Returns the first request for a lock that can be granted now, and that passes no other.
fn next_request(step: &Step<'_>, key: &Key) -> Option<(LogIndex, Arc<LockRequest>)> {
    let keys = &step.state.keys;
    let queue = keys.queues.get(key)?;
    let is_next = |(position, request): &(&LogIndex, &Arc<LockRequest>)| {
        let mut locks = request.locks.iter();
        locks.all(|lock| is_available(keys, &lock.key, lock.mode, request.session, **position).is_ok())
    };
    if step.state.fault_point.breaks(Rule::FirstComeFirstServed) {
        let last = queue.last_key_value()?;
        let is_free = !keys.holders.contains_key(key) && !keys.delays.contains_key(key);
        return is_free.then(|| (*last.0, last.1.clone()));
    }
    if let Some(session) = keys.upgrades.get(key) {
        let position = keys.queue_position(key, *session)?;
        let upgrade = queue.get_key_value(&position).filter(is_next);
        return upgrade.map(|(position, request)| (*position, request.clone()));
    }
    for (position, request) in queue {
        if is_next(&(position, request)) {
            return Some((*position, request.clone()));
        }
        // All others are behind it, or blocked as it is.
        let is_alone = request.locks.len() == 1;
        if is_alone || request.mode_of(key) == Some(LockMode::Exclusive) {
            return None;
        }
    }
    None
}

impl Keys {
    /// The waiting request that a session's grant answers, unless the session has acquired the lock
    /// again since.
    fn granted_for(&self, key: &Key, session: SessionId) -> Option<LogIndex> {
        match self.mode_held(key, session)? {
            LockMode::Shared => self.shared.get(key)?.get(&session)?.granted_for,
            LockMode::Exclusive => self.entries.get(key.as_str())?.lock.granted_for,
        }
    }
}

impl Keys {
    /// The outcome of a queue position: the reply to its acquire, once the request no longer waits.
    /// `lives` is `false` if its session has ended.
    ///
    /// A hold that belongs to another request of the same session is not reported: that request may
    /// still release it.
    pub(super) fn queue_outcome(
        &self,
        wanted: &[Key],
        (session, lives): (SessionId, bool),
        queue_position: LogIndex,
        enqueued_at_index: LogIndex,
    ) -> (LogIndex, Rows) {
        // The index equals the queue position until the outcome is known, so that a blocking query
        // keeps waiting.
        if wanted.iter().any(|key| self.request(key, queue_position).is_some()) {
            return (queue_position, Rows::QueuePosition(Reply::Queued { queue_position }));
        }
        let is_known = |key: &Key| {
            let granted_for = self.granted_for(key, session);
            self.mode_held(key, session).is_some()
                && granted_for.is_none_or(|index| index == enqueued_at_index)
        };
        if wanted.iter().all(is_known) {
            let entries = wanted.iter().filter_map(|key| self.entries.get(key.as_str()));
            let newest = entries.clone().map(|entry| entry.modify_index).max().unwrap_or_default();
            let fences = entries.map(|entry| entry.lock.fence).collect();
            // Above the queue position in any case, or a blocking query would not return the
            // outcome.
            return (newest.max(queue_position.next()), Rows::QueuePosition(granted(fences)));
        }
        let reply = match wanted.iter().find_map(|key| self.delays.get(key)) {
            _ if !lives => Reply::Refused(Refusal::InvalidSession(session)),
            Some(delay) => Reply::Delayed { remaining: delay.duration },
            None => Reply::Succeeded(false),
        };
        (queue_position.next(), Rows::QueuePosition(reply))
    }

    /// One key, with this session as the holder if it is one of several, and the index of the
    /// answer; `None` if it is that of the table.
    pub(super) fn held_entry(&self, key: &Key, session: SessionId) -> (Option<LogIndex>, Rows) {
        let Some(entry) = self.entries.get(key.as_str()) else { return (None, Rows::Entries(Vec::new())) };
        let shared = self.shared.get(key).and_then(|holders| holders.get(&session));
        let (index, entry) = match shared {
            Some(hold) => {
                let lock = Lock { session: Some(session), ..entry.lock };
                let index = entry.modify_index.max(hold.granted_index);
                (Some(index), Arc::new(Entry { lock, ..Entry::clone(entry) }))
            }
            // A hold that ended changed the table of entries, if not the entry.
            None => {
                let is_holder = self.mode_held(key, session).is_some();
                (is_holder.then_some(entry.modify_index), entry.clone())
            }
        };
        (index, Rows::Entries(vec![entry]))
    }
}
