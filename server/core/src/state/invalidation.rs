//! Session invalidation. The end of a session releases its locks or deletes its keys. It closes
//! each key for the session's lock-delay, gives up its queue positions, and records the loss, all
//! in the command that ended it. Free locks are granted to waiters only after all sessions of the
//! command have ended.

use super::rows::CheckKey;
use super::step::Step;
use crate::observed::number_of;
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::id::{Fence, Key, NodeName, SessionId};
use lockmesh_protocol::record::{Behavior, Entry, LockDelay, Loss, LossCause, Session};
use std::collections::BTreeMap;
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
    let cause = u8::try_from(number_of(&loss.cause)).expect("there are few causes");
    if loss.key_count == 0 { 0 } else { 1 + cause }
}

/// A session that ended, and the keys it held.
struct EndedSession {
    session: Arc<Session>,
    /// The first of its keys, with the fencing tokens of its grants.
    keys: Vec<(Key, Fence)>,
    key_count: u64,
}

impl Step<'_> {
    /// Ends a session, if it exists.
    pub(super) fn end_session(&mut self, id: SessionId, cause: LossCause) {
        let number = self.next_loss();
        if let Some(ended) = self.end_unrecorded(id) {
            self.record_loss(number, ended, cause);
        }
    }

    /// Ends every session that depends on a check.
    pub(super) fn end_sessions_of_check(&mut self, check: &CheckKey, cause: &LossCause) {
        let sessions = self.state.derived.by_check.get(check).into_iter().flatten();
        self.end_sessions(sessions.copied().collect(), cause);
    }

    /// Ends every session of a node, including those without checks.
    pub(super) fn end_sessions_of_node(&mut self, folded: &NodeName, cause: &LossCause) {
        let sessions = self.state.derived.by_node.get(folded).into_iter().flatten();
        self.end_sessions(sessions.copied().collect(), cause);
    }

    /// Ends several sessions. Losses that later ones of the same command would evict use only their
    /// numbers.
    pub(super) fn end_sessions(&mut self, sessions: Vec<SessionId>, cause: &LossCause) {
        let first = self.next_loss();
        if self.keeps_losses_by_cause() {
            let ends = sessions.into_iter().filter_map(|id| self.end_unrecorded(id));
            let mut ended: Vec<EndedSession> = ends.collect();
            // Sessions that held a key last: they are recorded even if there are very many others.
            ended.sort_by_key(|ended| ended.key_count > 0);
            let unrecorded = (ended.len() as u64).saturating_sub(LOSSES_KEPT) as usize;
            for (number, ended) in (first..).zip(ended).skip(unrecorded) {
                self.record_loss(number, ended, cause.clone());
            }
            return;
        }
        // For a node with very many sessions, most losses would be evicted by the same command.
        let recorded_from = first + (sessions.len() as u64).saturating_sub(LOSSES_KEPT);
        for (number, id) in (first..).zip(sessions.iter().copied()) {
            let ended = self.end_unrecorded(id).expect("a session that something hangs on lives");
            if number >= recorded_from {
                self.record_loss(number, ended, cause.clone());
            }
        }
    }

    fn end_unrecorded(&mut self, id: SessionId) -> Option<EndedSession> {
        let session = self.state.sessions.get(&id).cloned()?;
        let held: Vec<Key> = self.state.derived.held.get(&id).into_iter().flatten().cloned().collect();
        // First the session: the following steps must not find it alive.
        self.set(Change::Session(id, None));
        self.touch(Table::Sessions);
        // A queue must not grant its lock to a session that has ended.
        self.leave_all_queues(id);
        let mut named: Vec<(Key, Fence)> = Vec::with_capacity(held.len().min(LOSS_KEYS_KEPT));
        for key in &held {
            let fence = self.free_key(key, &session);
            // The count covers the rest; a loss with every key could be as large as the state.
            if named.len() < LOSS_KEYS_KEPT {
                named.push((key.clone(), fence));
            }
        }
        Some(EndedSession { session, keys: named, key_count: held.len() as u64 })
    }

    fn free_key(&mut self, key: &Key, session: &Session) -> Fence {
        let entry = self.entry(key).expect("a held key has an entry");
        let fence = entry.lock.fence;
        match session.spec.behavior {
            Behavior::Release => {
                let lock = entry.lock.freed();
                let freed = Entry { lock, modify_index: self.index, ..Entry::clone(&entry) };
                self.set(Change::Entry(key.clone(), Some(Arc::new(freed))));
                self.touch(Table::Entries);
            }
            Behavior::Delete => self.remove_entry(key),
        }
        // After the key is free, and for every cause, explicit destruction included: as in Consul,
        // because the holder may not know yet.
        if !session.spec.lock_delay.is_zero() {
            // The index distinguishes this delay's end from another's.
            let delay = LockDelay {
                started_at_index: self.index,
                duration: session.spec.lock_delay.min(MAX_LOCK_DELAY),
            };
            self.set(Change::LockDelay(key.clone(), Some(delay)));
        }
        fence
    }

    /// The number of the next loss.
    fn next_loss(&self) -> u64 {
        self.state.losses.last_key_value().map_or(0, |(last, _)| last + 1)
    }

    fn record_loss(&mut self, number: u64, ended: EndedSession, cause: LossCause) {
        let EndedSession { session, keys, key_count } = ended;
        let loss = Loss {
            index: self.index,
            at: self.at,
            session: session.spec.id,
            session_name: session.spec.name.clone(),
            node: session.spec.node.clone(),
            cause,
            keys,
            key_count,
        };
        self.add_loss(number, loss);
    }

    /// Records that keys were deleted while sessions held them. Contenders of semaphores delete
    /// their own keys `PREFIX/SESSION` when they release their slots: these are no losses.
    pub(super) fn record_deleted(&mut self, held: Vec<(Key, SessionId)>) {
        if !self.keeps_losses_by_cause() {
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
            let Some(session) = self.state.sessions.get(&id).cloned() else { continue };
            let key_count = keys.len() as u64;
            let fence = |key: Key| self.entry(&key).map(|entry| (key, entry.lock.fence));
            let keys = keys.into_iter().take(LOSS_KEYS_KEPT).filter_map(fence).collect();
            let number = self.next_loss();
            self.record_loss(number, EndedSession { session, keys, key_count }, LossCause::KeyDeleted);
            // The history of losses is read under the index of this table.
            self.touch(Table::Sessions);
        }
    }

    /// `true` if a flood of losses of one cause, or of sessions without keys, cannot push out the
    /// others.
    fn keeps_losses_by_cause(&self) -> bool {
        self.state.format() >= SINCE_FORMAT
    }

    fn add_loss(&mut self, number: u64, loss: Loss) {
        self.set(Change::Loss(number, Some(Arc::new(loss))));
        if self.keeps_losses_by_cause() {
            while self.state.losses.len() as u64 > LOSSES_KEPT {
                // The oldest loss of the largest category; of equal ones, of the first.
                let largest = self.state.derived.losses.values().rev().max_by_key(|numbers| numbers.len());
                let oldest = largest.and_then(|numbers| numbers.first().copied());
                self.set(Change::Loss(oldest.expect("a kept loss has a category"), None));
            }
            return;
        }
        while let Some((oldest, _)) = self.state.losses.first_key_value()
            && oldest + LOSSES_KEPT <= number
        {
            let oldest = *oldest;
            self.set(Change::Loss(oldest, None));
        }
    }
}
