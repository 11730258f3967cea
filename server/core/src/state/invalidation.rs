//! Session invalidation. The end of a session releases its locks or deletes its keys. It closes
//! each key for the session's lock-delay, gives up its queue positions, and records the loss, all
//! in the command that ended it. Free locks are granted to waiters only after all sessions of the
//! command have ended.

use super::catalog::CheckKey;
use super::entry::remove_entry;
use super::lock::release_shared;
use super::prepared_query::delete_queries_of;
use super::queue::leave_all_queues;
use super::rows::{put, take_out};
use super::step::Step;
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::id::{Fence, Key, NodeName, SessionId};
use lockmesh_protocol::record::{Behavior, Entry, LockDelay, Loss, LossCause, Session};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The longest lock-delay; longer ones are capped.
pub const MAX_LOCK_DELAY: Duration = Duration::from_secs(60);

/// The maximum number of losses kept.
pub const LOSSES_KEPT: u64 = 1_024;

/// The format version from which losses are kept by cause, and a deleted key that was held is a
/// loss.
const SINCE_FORMAT: u8 = 3;

/// The maximum number of keys named in a loss.
pub const LOSS_KEYS_KEPT: usize = 64;

/// Returns the category of a loss: 0 without keys, else by cause.
pub(super) fn category(loss: &Loss) -> u8 {
    if loss.key_count == 0 { 0 } else { 1 + loss.cause.category() }
}

/// A session that ended, and the keys it held.
struct EndedSession {
    session: Arc<Session>,
    /// The first of its keys, with the fencing tokens of its grants.
    keys: Vec<(Key, Fence)>,
    key_count: u64,
}

/// The loss history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses {
    pub(super) rows: BTreeMap<u64, Arc<Loss>>,
    /// The numbers of the losses of each category: without keys, and by cause. No set is empty.
    pub(super) by_category: BTreeMap<u8, BTreeSet<u64>>,
}

impl Losses {
    pub(super) fn rows(&self) -> impl Iterator<Item = Change> + '_ {
        self.rows.iter().map(|(number, row)| Change::Loss(*number, Some(row.clone())))
    }

    /// The number of the next loss.
    fn next(&self) -> u64 {
        self.rows.last_key_value().map_or(0, |(last, _)| last + 1)
    }

    /// The oldest loss of the largest category; of equal ones, of the first.
    fn oldest_of_the_largest(&self) -> Option<u64> {
        let largest = self.by_category.values().rev().max_by_key(|numbers| numbers.len());
        largest.and_then(|numbers| numbers.first().copied())
    }

    pub(super) fn load(&mut self, number: u64, loss: Option<Arc<Loss>>) {
        if let Some(before) = self.rows.get(&number) {
            take_out(&mut self.by_category, &category(before), &number);
        }
        if let Some(loss) = &loss {
            self.by_category.entry(category(loss)).or_default().insert(number);
        }
        put(&mut self.rows, number, loss);
    }
}

/// Ends a session, if it exists.
pub(super) fn end_session(step: &mut Step<'_>, id: SessionId, cause: LossCause) {
    let number = step.state.losses.next();
    if let Some(ended) = end_unrecorded(step, id, &cause) {
        record_loss(step, number, ended, cause);
    }
}

/// Ends every session that depends on a check.
pub(super) fn end_sessions_of_check(step: &mut Step<'_>, check: &CheckKey, cause: &LossCause) {
    let sessions = step.state.sessions.by_check.get(check).into_iter().flatten();
    end_sessions(step, sessions.copied().collect(), cause);
}

/// Ends every session of a node, including those without checks.
pub(super) fn end_sessions_of_node(step: &mut Step<'_>, folded: &NodeName, cause: &LossCause) {
    let sessions = step.state.sessions.by_node.get(folded).into_iter().flatten();
    end_sessions(step, sessions.copied().collect(), cause);
}

/// Ends several sessions. Losses that later ones of the same command would evict use only their
/// numbers.
pub(super) fn end_sessions(step: &mut Step<'_>, sessions: Vec<SessionId>, cause: &LossCause) {
    let first = step.state.losses.next();
    if keeps_losses_by_cause(step) {
        let ends = sessions.into_iter().filter_map(|id| end_unrecorded(step, id, cause));
        let mut ended: Vec<EndedSession> = ends.collect();
        // Sessions that held a key last: they are recorded even if there are very many others.
        ended.sort_by_key(|ended| ended.key_count > 0);
        let unrecorded = (ended.len() as u64).saturating_sub(LOSSES_KEPT) as usize;
        for (number, ended) in (first..).zip(ended).skip(unrecorded) {
            record_loss(step, number, ended, cause.clone());
        }
        return;
    }
    // For a node with very many sessions, most losses would be evicted by the same command.
    let recorded_from = first + (sessions.len() as u64).saturating_sub(LOSSES_KEPT);
    for (number, id) in (first..).zip(sessions.iter().copied()) {
        let ended = end_unrecorded(step, id, cause).expect("a session that something hangs on lives");
        if number >= recorded_from {
            record_loss(step, number, ended, cause.clone());
        }
    }
}

fn end_unrecorded(step: &mut Step<'_>, id: SessionId, cause: &LossCause) -> Option<EndedSession> {
    let session = step.state.sessions.rows.get(&id).cloned()?;
    let held: Vec<Key> = step.state.keys.held.get(&id).into_iter().flatten().cloned().collect();
    let delay = lock_delay_after(step, &session, cause);
    // First the session: the following steps must not find it alive.
    step.set(Change::Session(id, None));
    if step.state.sessions.binding(&session).is_some() {
        step.set(Change::Binding(session.spec.node.folded(), id, None));
    }
    step.touch(Table::Sessions);
    // A queue must not grant its lock to a session that has ended.
    leave_all_queues(step, id);
    delete_queries_of(step, id);
    let mut named: Vec<(Key, Fence)> = Vec::with_capacity(held.len().min(LOSS_KEYS_KEPT));
    for key in &held {
        let fence = free_key(step, key, &session, delay);
        // The count covers the rest; a loss with every key could be as large as the state.
        if named.len() < LOSS_KEYS_KEPT {
            named.push((key.clone(), fence));
        }
    }
    Some(EndedSession { session, keys: named, key_count: held.len() as u64 })
}

/// The lock-delay after a session's end. A process that has exited uses its locks no more, so
/// nothing needs to be awaited, unless the creator of the session named a delay.
fn lock_delay_after(step: &Step<'_>, session: &Session, cause: &LossCause) -> Duration {
    let binding = step.state.sessions.binding(session);
    match cause {
        LossCause::ProcessExited { .. } if binding.is_some_and(|binding| !binding.keeps_lock_delay) => {
            Duration::ZERO
        }
        _ => session.spec.lock_delay.min(MAX_LOCK_DELAY),
    }
}

fn free_key(step: &mut Step<'_>, key: &Key, session: &Session, delay: Duration) -> Fence {
    let entry = step.state.keys.entry(key).expect("a held key has an entry");
    let fence = entry.lock.fence;
    let is_shared = step.state.keys.is_shared_holder(key, session.spec.id);
    // Without a list of the others: a node may hold very many locks.
    let is_last = step.state.keys.shared.get(key).is_none_or(|holders| holders.len() == 1);
    match session.spec.behavior {
        Behavior::Delete if is_last => remove_entry(step, key),
        _ if is_shared => release_shared(step, key, session.spec.id),
        _ => {
            let lock = entry.lock.freed();
            let freed = Entry { lock, modify_index: step.index, ..Entry::clone(&entry) };
            step.set(Change::Entry(key.clone(), Some(Arc::new(freed))));
            step.touch(Table::Entries);
        }
    }
    // After the key is free, and for every cause, explicit destruction included: as in Consul,
    // because the holder may not know yet.
    if !delay.is_zero() {
        // The index distinguishes this delay's end from another's. A delay of an earlier shared
        // holder may be longer; the state knows no time, so its length counts again.
        let shared = step.state.keys.shared_delays.get(key).map_or(Duration::ZERO, |delay| delay.duration);
        let delay = LockDelay { started_at_index: step.index, duration: delay.max(shared) };
        step.set(match is_shared {
            true => Change::SharedDelay(key.clone(), Some(delay)),
            false => Change::LockDelay(key.clone(), Some(delay)),
        });
    }
    fence
}

fn record_loss(step: &mut Step<'_>, number: u64, ended: EndedSession, cause: LossCause) {
    let EndedSession { session, keys, key_count } = ended;
    let loss = Loss {
        index: step.index,
        at: step.at,
        session: session.spec.id,
        session_name: session.spec.name.clone(),
        node: session.spec.node.clone(),
        cause,
        keys,
        key_count,
    };
    add_loss(step, number, loss);
}

/// Records that keys were deleted while sessions held them. Contenders of semaphores delete
/// their own keys `PREFIX/SESSION` when they release their slots: these are no losses.
pub(super) fn record_deleted(step: &mut Step<'_>, held: Vec<(Key, SessionId)>) {
    if !keeps_losses_by_cause(step) {
        return;
    }
    let mut lost: BTreeMap<SessionId, Vec<Key>> = BTreeMap::new();
    for (key, session) in held {
        let is_contender = key.as_str().rsplit('/').next() == Some(session.to_string().as_str());
        if !is_contender {
            lost.entry(session).or_default().push(key);
        }
    }
    let unrecorded = (lost.len() as u64).saturating_sub(LOSSES_KEPT) as usize;
    for (id, keys) in lost.into_iter().skip(unrecorded) {
        let Some(session) = step.state.sessions.rows.get(&id).cloned() else { continue };
        let key_count = keys.len() as u64;
        let fence = |key: Key| step.state.keys.entry(&key).map(|entry| (key, entry.lock.fence));
        let keys = keys.into_iter().take(LOSS_KEYS_KEPT).filter_map(fence).collect();
        let number = step.state.losses.next();
        record_loss(step, number, EndedSession { session, keys, key_count }, LossCause::KeyDeleted);
        // The history of losses is read under the index of this table.
        step.touch(Table::Sessions);
    }
}

/// `true` if a flood of losses of one cause, or of sessions without keys, cannot push out the
/// others.
fn keeps_losses_by_cause(step: &Step<'_>) -> bool {
    step.state.format() >= SINCE_FORMAT
}

fn add_loss(step: &mut Step<'_>, number: u64, loss: Loss) {
    step.set(Change::Loss(number, Some(Arc::new(loss))));
    if keeps_losses_by_cause(step) {
        while step.state.losses.rows.len() as u64 > LOSSES_KEPT {
            let oldest = step.state.losses.oldest_of_the_largest();
            step.set(Change::Loss(oldest.expect("a kept loss has a category"), None));
        }
        return;
    }
    while let Some((oldest, _)) = step.state.losses.rows.first_key_value()
        && oldest + LOSSES_KEPT <= number
    {
        let oldest = *oldest;
        step.set(Change::Loss(oldest, None));
    }
}
