//! The keys with their locks: entries, shared holders, tombstones, lock-delays and queues.
//!
//! An entry names the holder of its lock, or the oldest of its shared holders. The indexes of
//! holders and waiters are derived from the rows, so that the end of a session needs no search. No
//! set or map in them is empty, or a state rebuilt from its rows would differ.

use super::pages::Pages;
use super::rows::{remove_inner, take_out};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{Key, LogIndex, SessionId, WallTime};
use lockmesh_protocol::record::{Entry, LockDelay, LockMode, LockRequest, RequestedLock, SharedHold, Waiter};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The keys of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Keys {
    pub(super) entries: Pages<Arc<Entry>>,
    pub(super) tombstones: Pages<LogIndex>,
    /// The newest index of a reaped tombstone.
    pub(super) forgotten_tombstones: LogIndex,
    pub(super) delays: BTreeMap<Key, LockDelay>,
    /// Delays that close a key for exclusive requests only.
    pub(super) shared_delays: BTreeMap<Key, LockDelay>,
    /// The holders of each lock in shared mode.
    pub(super) shared: BTreeMap<Key, BTreeMap<SessionId, SharedHold>>,
    /// The waiting requests by queue position, which is unique among all queues.
    pub(super) requests: BTreeMap<LogIndex, Arc<LockRequest>>,
    /// The requests for each lock by queue position. No queue is empty.
    pub(super) queues: BTreeMap<Key, BTreeMap<LogIndex, Arc<LockRequest>>>,
    /// The shared holder of each lock that waits for the exclusive one.
    pub(super) upgrades: BTreeMap<Key, SessionId>,
    /// The keys that each session holds.
    pub(super) held: BTreeMap<SessionId, BTreeSet<Key>>,
    /// The holder of each held key.
    pub(super) holders: BTreeMap<Key, SessionId>,
    /// The queues that each session is in, with its queue position in each.
    pub(super) waiting: BTreeMap<SessionId, BTreeMap<Key, LogIndex>>,
}

impl Keys {
    /// The entry of a key.
    pub(super) fn entry(&self, key: &Key) -> Option<Arc<Entry>> {
        self.entries.get(key.as_str()).cloned()
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = Change> + '_ {
        let entries = self.entries.iter().map(|(key, row)| Change::Entry(key.clone(), Some(row.clone())));
        let tombstones = self.tombstones.iter();
        let delays = self.delays.iter().map(|(key, delay)| Change::LockDelay(key.clone(), Some(*delay)));
        let shared_delays =
            self.shared_delays.iter().map(|(key, delay)| Change::SharedDelay(key.clone(), Some(*delay)));
        let shared = self.shared.iter().flat_map(|(key, holders)| {
            holders.iter().map(|(session, hold)| Change::SharedHold(key.clone(), *session, Some(*hold)))
        });
        entries
            .chain(tombstones.map(|(key, index)| Change::Tombstone(key.clone(), Some(*index))))
            .chain(delays)
            .chain(shared_delays)
            .chain(shared)
            .chain(self.requests.iter().map(|(position, row)| request_row(*position, row)))
    }

    pub(super) fn load_entry(&mut self, key: Key, entry: Option<Arc<Entry>>) {
        let holder = entry.as_ref().and_then(|entry| entry.lock.session);
        let before = match entry {
            Some(entry) => self.entries.insert(key.clone(), entry),
            None => self.entries.remove(key.as_str()),
        };
        let holder_before = before.as_ref().and_then(|entry| entry.lock.session);
        if holder_before == holder {
            return;
        }
        // The oldest of several holders, if it is still one of them.
        let left = holder_before.filter(|session| !self.is_shared_holder(&key, *session));
        if let Some(session) = left {
            take_out(&mut self.held, &session, &key);
        }
        match holder {
            Some(session) => self.note_holder(key, session),
            None => drop(self.holders.remove(&key)),
        }
    }

    /// Adds a holder to the derived indexes.
    pub(super) fn note_holder(&mut self, key: Key, session: SessionId) {
        self.held.entry(session).or_default().insert(key.clone());
        self.holders.insert(key, session);
    }

    pub(super) fn load_tombstone(&mut self, key: Key, index: Option<LogIndex>) {
        match index {
            Some(index) => self.tombstones.insert(key, index),
            None => self.tombstones.remove(key.as_str()),
        };
    }

    pub(super) fn load_shared_hold(&mut self, key: Key, session: SessionId, hold: Option<SharedHold>) {
        let is_oldest = self.holders.get(&key) == Some(&session);
        match hold {
            Some(hold) => {
                self.held.entry(session).or_default().insert(key.clone());
                self.shared.entry(key.clone()).or_default().insert(session, hold);
            }
            None => {
                remove_inner(&mut self.shared, &key, &session);
                if !is_oldest {
                    take_out(&mut self.held, &session, &key);
                }
            }
        }
        self.note_upgrade(&key, session);
    }

    /// Loads a waiter as builds before format 8 stored it.
    pub(super) fn load_waiter(&mut self, key: Key, queue_position: LogIndex, waiter: Option<Arc<Waiter>>) {
        let request = waiter.map(|waiter| {
            let Waiter { session, ref value, flags, wait, enqueued_at_index } = *waiter;
            let lock = RequestedLock { key, mode: LockMode::Exclusive, value: value.clone(), flags };
            let (locks, enqueued_at) = (vec![lock], WallTime(0));
            Arc::new(LockRequest { session, locks, wait, enqueued_at_index, enqueued_at })
        });
        self.load_request(queue_position, request);
    }

    pub(super) fn load_request(&mut self, queue_position: LogIndex, request: Option<Arc<LockRequest>>) {
        if let Some(before) = self.requests.remove(&queue_position) {
            for RequestedLock { key, .. } in &before.locks {
                remove_inner(&mut self.queues, key, &queue_position);
                remove_inner(&mut self.waiting, &before.session, key);
                self.note_upgrade(key, before.session);
            }
        }
        let Some(request) = request else { return };
        for RequestedLock { key, .. } in &request.locks {
            self.waiting.entry(request.session).or_default().insert(key.clone(), queue_position);
            self.queues.entry(key.clone()).or_default().insert(queue_position, request.clone());
        }
        self.requests.insert(queue_position, request.clone());
        request.locks.iter().for_each(|lock| self.note_upgrade(&lock.key, request.session));
    }

    fn note_upgrade(&mut self, key: &Key, session: SessionId) {
        let position = self.queue_position(key, session).filter(|_| self.is_shared_holder(key, session));
        let mode = position.and_then(|position| self.requests.get(&position)?.mode_of(key));
        if mode == Some(LockMode::Exclusive) {
            self.upgrades.insert(key.clone(), session);
        } else if self.upgrades.get(key) == Some(&session) {
            self.upgrades.remove(key);
        }
    }

    pub(super) fn is_shared_holder(&self, key: &Key, session: SessionId) -> bool {
        self.shared.get(key).is_some_and(|holders| holders.contains_key(&session))
    }

    /// The mode in which a session holds a lock.
    pub(super) fn mode_held(&self, key: &Key, session: SessionId) -> Option<LockMode> {
        if self.shared.contains_key(key) {
            return self.is_shared_holder(key, session).then_some(LockMode::Shared);
        }
        (self.holders.get(key) == Some(&session)).then_some(LockMode::Exclusive)
    }

    /// The holders of a lock, in any mode.
    pub(super) fn holders_of(&self, key: &Key) -> Vec<SessionId> {
        match self.shared.get(key) {
            Some(holders) => holders.keys().copied().collect(),
            None => self.holders.get(key).copied().into_iter().collect(),
        }
    }

    /// The delay that closes a key, possibly for exclusive requests only.
    pub(super) fn delay(&self, key: &Key, mode: LockMode) -> Option<&LockDelay> {
        let of_exclusive = || self.shared_delays.get(key).filter(|_| mode == LockMode::Exclusive);
        self.delays.get(key).or_else(of_exclusive)
    }

    /// The entries whose key starts with a prefix, ascending.
    pub(super) fn entries_under(&self, prefix: &str) -> impl Iterator<Item = &Arc<Entry>> {
        self.entries.under(prefix).map(|(_, entry)| entry)
    }

    /// All waiters, ordered by key, then by queue position.
    pub(super) fn waiters(&self) -> impl Iterator<Item = (&Key, LogIndex, &Arc<LockRequest>)> {
        let queues = self.queues.iter();
        queues.flat_map(|(key, queue)| {
            queue.iter().map(move |(queue_position, request)| (key, *queue_position, request))
        })
    }

    /// The request at a position in a key's queue.
    pub(super) fn request(&self, key: &Key, queue_position: LogIndex) -> Option<&Arc<LockRequest>> {
        self.queues.get(key)?.get(&queue_position)
    }

    /// Returns whether a position in a key's queue belongs to the request at an index.
    pub(super) fn waits(&self, key: &Key, queue_position: LogIndex, enqueued_at_index: LogIndex) -> bool {
        let request = self.request(key, queue_position);
        request.is_some_and(|request| request.enqueued_at_index == enqueued_at_index)
    }

    /// The session's position in a key's queue.
    pub(super) fn queue_position(&self, key: &Key, session: SessionId) -> Option<LogIndex> {
        self.waiting.get(&session)?.get(key).copied()
    }
}

/// The row of a waiting request, in the version of the format that it was written in.
pub(super) fn request_row(queue_position: LogIndex, request: &Arc<LockRequest>) -> Change {
    if request.enqueued_at != WallTime(0) {
        return Change::LockRequest(queue_position, Some(request.clone()));
    }
    let RequestedLock { key, value, flags, .. } = request.locks[0].clone();
    let LockRequest { session, wait, enqueued_at_index, .. } = **request;
    let waiter = Waiter { session, value, flags, wait, enqueued_at_index };
    Change::Waiter(key, queue_position, Some(Arc::new(waiter)))
}

/// The change that removes a waiting request.
pub(super) fn request_gone(queue_position: LogIndex, request: &LockRequest) -> Change {
    match request.enqueued_at {
        WallTime(0) => Change::Waiter(request.first_key().clone(), queue_position, None),
        _ => Change::LockRequest(queue_position, None),
    }
}
