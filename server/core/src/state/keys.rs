//! The keys with their locks: entries, tombstones, lock-delays and queues.
//!
//! The indexes of holders and waiters are derived from the rows, so that the end of a session needs
//! no search. No set or map in them is empty, or a state rebuilt from its rows would differ.

use super::pages::Pages;
use super::rows::{remove_inner, take_out};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{Key, LogIndex, SessionId};
use lockmesh_protocol::record::{Entry, LockDelay, Waiter};
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
    /// The waiters of each lock by queue position, granted in that order. No queue is empty.
    pub(super) queues: BTreeMap<Key, BTreeMap<LogIndex, Arc<Waiter>>>,
    /// The keys that each session holds.
    pub(super) held: BTreeMap<SessionId, BTreeSet<Key>>,
    /// The holder of each held key.
    pub(super) holders: BTreeMap<Key, SessionId>,
    /// The queues that each session is in, with its queue position in each.
    pub(super) waiting: BTreeMap<SessionId, BTreeMap<Key, LogIndex>>,
    /// The number of waiters in all queues.
    pub(super) waiter_count: usize,
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
        let waiters = self.waiters();
        entries
            .chain(tombstones.map(|(key, index)| Change::Tombstone(key.clone(), Some(*index))))
            .chain(delays)
            .chain(waiters.map(|(key, place, row)| Change::Waiter(key.clone(), place, Some(row.clone()))))
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
        if let Some(session) = holder_before {
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

    pub(super) fn load_waiter(&mut self, key: Key, queue_position: LogIndex, waiter: Option<Arc<Waiter>>) {
        if let Some(before) = self.waiter(&key, queue_position).cloned() {
            remove_inner(&mut self.queues, &key, &queue_position);
            remove_inner(&mut self.waiting, &before.session, &key);
            self.waiter_count -= 1;
        }
        if let Some(waiter) = waiter {
            self.waiting.entry(waiter.session).or_default().insert(key.clone(), queue_position);
            self.queues.entry(key).or_default().insert(queue_position, waiter);
            self.waiter_count += 1;
        }
    }

    /// The entries whose key starts with a prefix, ascending.
    pub(super) fn entries_under(&self, prefix: &str) -> impl Iterator<Item = &Arc<Entry>> {
        self.entries.under(prefix).map(|(_, entry)| entry)
    }

    /// All waiters, ordered by key, then by queue position.
    pub(super) fn waiters(&self) -> impl Iterator<Item = (&Key, LogIndex, &Arc<Waiter>)> {
        let queues = self.queues.iter();
        queues.flat_map(|(key, queue)| {
            queue.iter().map(move |(queue_position, waiter)| (key, *queue_position, waiter))
        })
    }

    /// The waiter at a position in a key's queue.
    pub(super) fn waiter(&self, key: &Key, queue_position: LogIndex) -> Option<&Arc<Waiter>> {
        self.queues.get(key)?.get(&queue_position)
    }

    /// Returns whether a position in a key's queue belongs to the request at an index.
    pub(super) fn waits(&self, key: &Key, queue_position: LogIndex, enqueued_at_index: LogIndex) -> bool {
        let waiter = self.waiter(key, queue_position);
        waiter.is_some_and(|waiter| waiter.enqueued_at_index == enqueued_at_index)
    }

    /// The session's position in a key's queue.
    pub(super) fn queue_position(&self, key: &Key, session: SessionId) -> Option<LogIndex> {
        self.waiting.get(&session)?.get(key).copied()
    }
}
