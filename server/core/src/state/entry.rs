//! Keys: the single write rule for entries, plain and conditional writes, deletes.
//!
//! Locks are advisory: a write here does not require the lock.

use super::step::{Step, reply_or_refusal};
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::command::{KvCommand, NewEntry};
use lockmesh_protocol::id::{Key, LogIndex};
use lockmesh_protocol::record::{Entry, Lock};
use lockmesh_protocol::reply::Reply;
use std::sync::Arc;

impl Step<'_> {
    pub(super) fn kv(&mut self, command: &KvCommand) -> Reply {
        match command {
            KvCommand::Set(new) => {
                self.set_entry(new);
                Reply::Succeeded(true)
            }
            KvCommand::Cas(new, expected) => Reply::Succeeded(self.cas_entry(new, *expected).is_some()),
            KvCommand::Acquire(new, session) => {
                reply_or_refusal(self.acquire(new, *session).map(|outcome| outcome.reply()))
            }
            KvCommand::Enqueue { new, session, wait } => reply_or_refusal(self.enqueue(new, *session, *wait)),
            KvCommand::Leave { key, session, enqueued_at_index } => {
                self.leave(key, *session, *enqueued_at_index)
            }
            KvCommand::StopWaiting { key, session, enqueued_at_index } => {
                Reply::Succeeded(self.stop_waiting(key, *session, *enqueued_at_index))
            }
            KvCommand::Release(new, session) => Reply::Succeeded(self.release(new, *session).is_some()),
            KvCommand::Delete(key) => {
                self.delete_entry(key);
                Reply::Succeeded(true)
            }
            KvCommand::DeleteCas(key, expected) => Reply::Succeeded(self.delete_entry_cas(key, *expected)),
            KvCommand::DeleteTree(prefix) => {
                self.delete_tree(prefix);
                Reply::Succeeded(true)
            }
        }
    }

    /// The entry of a key.
    pub(super) fn entry(&self, key: &Key) -> Option<Arc<Entry>> {
        self.state.entries.get(key.as_str()).cloned()
    }

    /// Writes an entry unconditionally.
    pub(super) fn set_entry(&mut self, new: &NewEntry) -> Arc<Entry> {
        let existing = self.entry(&new.key);
        let lock = lock_of(existing.as_ref());
        self.write_entry(existing, new, lock)
    }

    /// Writes if the modify index is the expected one; `None` expects an absent key.
    pub(super) fn cas_entry(&mut self, new: &NewEntry, expected: Option<LogIndex>) -> Option<Arc<Entry>> {
        let existing = self.entry(&new.key);
        // Evaluated in the order of the log: two writes that expect the same index cannot both
        // succeed.
        if existing.as_ref().map(|entry| entry.modify_index) != expected {
            return None;
        }
        let lock = lock_of(existing.as_ref());
        Some(self.write_entry(existing, new, lock))
    }

    /// The single write rule: an unchanged entry is not written, and a changed one gets this index.
    pub(super) fn write_entry(
        &mut self,
        existing: Option<Arc<Entry>>,
        new: &NewEntry,
        lock: Lock,
    ) -> Arc<Entry> {
        // As in Consul: a repeated write moves no index and wakes no reader.
        if let Some(entry) = &existing
            && (entry.lock.index, entry.lock.session) == (lock.index, lock.session)
            && entry.flags == new.flags
            && entry.value == new.value
        {
            return entry.clone();
        }
        let entry = Arc::new(Entry {
            key: new.key.clone(),
            value: new.value.clone(),
            flags: new.flags,
            lock,
            create_index: existing.map_or(self.index, |entry| entry.create_index),
            modify_index: self.index,
        });
        self.set(Change::Entry(new.key.clone(), Some(entry.clone())));
        self.touch(Table::Entries);
        entry
    }

    /// Deletes a key, leaves a tombstone and records its lock as lost.
    /// An absent key changes nothing.
    pub(super) fn delete_entry(&mut self, key: &Key) {
        let holder = self.state.derived.holders.get(key).copied();
        self.record_deleted(holder.map(|session| (key.clone(), session)).into_iter().collect());
        self.remove_entry(key);
    }

    /// Removes a key and leaves a tombstone; an absent key leaves everything as it is.
    pub(super) fn remove_entry(&mut self, key: &Key) {
        if self.state.entries.contains_key(key.as_str()) {
            self.set(Change::Entry(key.clone(), None));
            self.bury(key);
            self.touch(Table::Entries);
        }
    }

    /// Deletes a key if its modify index is the expected one. Deleting an absent key succeeds.
    pub(super) fn delete_entry_cas(&mut self, key: &Key, expected: LogIndex) -> bool {
        match self.state.entries.get(key.as_str()) {
            Some(entry) if entry.modify_index != expected => false,
            _ => {
                self.delete_entry(key);
                true
            }
        }
    }
}

/// The lock of an entry, which may be absent.
pub(super) fn lock_of(entry: Option<&Arc<Entry>>) -> Lock {
    entry.map(|entry| entry.lock).unwrap_or_default()
}
