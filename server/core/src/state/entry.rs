//! Keys: the one rule by which an entry is written, plain and conditional writes, deletes.
//!
//! Locks are advisory: nothing here asks who holds a key.

use super::step::{Step, reply_or_refusal};
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::command::{KvCommand, NewEntry};
use lockmesh_protocol::id::{Fence, Key, LogIndex, SessionId, WallTime};
use lockmesh_protocol::record::Entry;
use lockmesh_protocol::reply::Reply;
use std::sync::Arc;

/// The part of an entry that belongs to its lock.
pub(super) struct Hold {
    pub(super) session: Option<SessionId>,
    pub(super) lock_index: u64,
    pub(super) fence: Fence,
    pub(super) granted_at: WallTime,
    pub(super) awaited: LogIndex,
}

impl Hold {
    /// The lock as it stands. A plain write keeps it, its lock index included: that is what a holder's
    /// sequencer is made of, and nobody but a new holder may change it.
    pub(super) fn of(entry: Option<&Arc<Entry>>) -> Self {
        let Some(entry) = entry else {
            return Self {
                session: None,
                lock_index: 0,
                fence: Fence(0),
                granted_at: WallTime(0),
                awaited: LogIndex(0),
            };
        };
        Self {
            session: entry.session.clone(),
            lock_index: entry.lock_index,
            fence: entry.fence,
            granted_at: entry.granted_at,
            awaited: entry.awaited,
        }
    }
}

impl Step<'_> {
    pub(super) fn kv(&mut self, command: &KvCommand) -> Reply {
        match command {
            KvCommand::Set(new) => {
                self.set_entry(new);
                Reply::Flag(true)
            }
            KvCommand::Cas(new, expected) => Reply::Flag(self.cas_entry(new, *expected).is_some()),
            KvCommand::Acquire(new, session) => {
                reply_or_refusal(self.acquire(new, session).map(|outcome| outcome.reply()))
            }
            KvCommand::Enqueue { new, session, wait } => reply_or_refusal(self.enqueue(new, session, *wait)),
            KvCommand::Leave { key, session, mark } => self.leave(key, session, *mark),
            KvCommand::StopWaiting { key, session, mark } => {
                Reply::Flag(self.stop_waiting(key, session, *mark))
            }
            KvCommand::Release(new, session) => {
                reply_or_refusal(self.release(new, session).map(|entry| Reply::Flag(entry.is_some())))
            }
            KvCommand::Delete(key) => {
                self.delete_entry(key);
                Reply::Flag(true)
            }
            KvCommand::DeleteCas(key, expected) => Reply::Flag(self.delete_entry_cas(key, *expected)),
            KvCommand::DeleteTree(prefix) => {
                self.delete_tree(prefix);
                Reply::Flag(true)
            }
        }
    }

    /// The entry of a key.
    pub(super) fn entry(&self, key: &Key) -> Option<Arc<Entry>> {
        self.state.entries.get(key.as_str()).cloned()
    }

    /// Writes whatever is there.
    pub(super) fn set_entry(&mut self, new: &NewEntry) -> Arc<Entry> {
        let existing = self.entry(&new.key);
        let hold = Hold::of(existing.as_ref());
        self.write_entry(existing, new, hold)
    }

    /// Writes if the modify index is the expected one; 0 expects an absent key.
    pub(super) fn cas_entry(&mut self, new: &NewEntry, expected: LogIndex) -> Option<Arc<Entry>> {
        let existing = self.entry(&new.key);
        if existing.as_ref().map_or(LogIndex(0), |entry| entry.modify_index) != expected {
            return None;
        }
        let hold = Hold::of(existing.as_ref());
        Some(self.write_entry(existing, new, hold))
    }

    /// The one rule: what is there already is not written again, and whatever is written gets this index.
    pub(super) fn write_entry(
        &mut self,
        existing: Option<Arc<Entry>>,
        new: &NewEntry,
        hold: Hold,
    ) -> Arc<Entry> {
        if let Some(entry) = &existing
            && entry.lock_index == hold.lock_index
            && entry.flags == new.flags
            && entry.session == hold.session
            && entry.value == new.value
        {
            return entry.clone();
        }
        let entry = Arc::new(Entry {
            key: new.key.clone(),
            value: new.value.clone(),
            flags: new.flags,
            lock_index: hold.lock_index,
            session: hold.session,
            fence: hold.fence,
            granted_at: hold.granted_at,
            awaited: hold.awaited,
            create_index: existing.map_or(self.index, |entry| entry.create_index),
            modify_index: self.index,
        });
        self.set(Change::Entry(new.key.clone(), Some(entry.clone())));
        self.touch(Table::Entries);
        entry
    }

    /// Deletes a key and leaves a tombstone; an absent key leaves everything as it is.
    pub(super) fn delete_entry(&mut self, key: &Key) {
        if self.state.entries.contains_key(key.as_str()) {
            self.set(Change::Entry(key.clone(), None));
            self.bury(key);
            self.touch(Table::Entries);
        }
    }

    /// Deletes a key if its modify index is the expected one. An absent key is a success.
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
