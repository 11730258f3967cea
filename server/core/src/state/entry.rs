//! Keys: the single write rule for entries, plain and conditional writes, deletes.
//!
//! Locks are advisory: a write here does not require the lock.

use super::invalidation::record_deleted;
use super::lock::{acquire, release};
use super::queue::{enqueue, leave, stop_waiting};
use super::step::{Step, reply_or_refusal};
use super::tombstone::bury;
use super::tree::delete_tree;
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::command::{KvCommand, NewEntry};
use lockmesh_protocol::id::{Key, LogIndex};
use lockmesh_protocol::record::{Entry, Lock};
use lockmesh_protocol::reply::Reply;
use std::sync::Arc;

pub(super) fn kv(step: &mut Step<'_>, command: &KvCommand) -> Reply {
    match command {
        KvCommand::Set(new) => {
            set_entry(step, new);
            Reply::Succeeded(true)
        }
        KvCommand::Cas(new, expected) => Reply::Succeeded(cas_entry(step, new, *expected).is_some()),
        KvCommand::Acquire(new, session) => {
            reply_or_refusal(acquire(step, new, *session).map(|outcome| outcome.reply()))
        }
        KvCommand::Enqueue { new, session, wait } => reply_or_refusal(enqueue(step, new, *session, *wait)),
        KvCommand::Leave { key, session, enqueued_at_index } => {
            leave(step, key, *session, *enqueued_at_index)
        }
        KvCommand::StopWaiting { key, session, enqueued_at_index } => {
            Reply::Succeeded(stop_waiting(step, key, *session, *enqueued_at_index))
        }
        KvCommand::Release(new, session) => Reply::Succeeded(release(step, new, *session).is_some()),
        KvCommand::Delete(key) => {
            delete_entry(step, key);
            Reply::Succeeded(true)
        }
        KvCommand::DeleteCas(key, expected) => Reply::Succeeded(delete_entry_cas(step, key, *expected)),
        KvCommand::DeleteTree(prefix) => {
            delete_tree(step, prefix);
            Reply::Succeeded(true)
        }
    }
}

/// Writes an entry unconditionally.
pub(super) fn set_entry(step: &mut Step<'_>, new: &NewEntry) -> Arc<Entry> {
    let existing = step.state.keys.entry(&new.key);
    let lock = lock_of(existing.as_ref());
    write_entry(step, existing, new, lock)
}

/// Writes if the modify index is the expected one; `None` expects an absent key.
pub(super) fn cas_entry(
    step: &mut Step<'_>,
    new: &NewEntry,
    expected: Option<LogIndex>,
) -> Option<Arc<Entry>> {
    let existing = step.state.keys.entry(&new.key);
    // Evaluated in the order of the log: two writes that expect the same index cannot both
    // succeed.
    if existing.as_ref().map(|entry| entry.modify_index) != expected {
        return None;
    }
    let lock = lock_of(existing.as_ref());
    Some(write_entry(step, existing, new, lock))
}

/// The single write rule: an unchanged entry is not written, and a changed one gets this index.
pub(super) fn write_entry(
    step: &mut Step<'_>,
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
        create_index: existing.map_or(step.index, |entry| entry.create_index),
        modify_index: step.index,
    });
    step.set(Change::Entry(new.key.clone(), Some(entry.clone())));
    step.touch(Table::Entries);
    entry
}

/// Deletes a key, leaves a tombstone and records its lock as lost.
/// An absent key changes nothing.
pub(super) fn delete_entry(step: &mut Step<'_>, key: &Key) {
    let holders = step.state.keys.holders_of(key);
    record_deleted(step, holders.into_iter().map(|session| (key.clone(), session)).collect());
    remove_entry(step, key);
}

/// Removes a key and leaves a tombstone; an absent key leaves everything as it is.
pub(super) fn remove_entry(step: &mut Step<'_>, key: &Key) {
    if step.state.keys.entries.contains_key(key.as_str()) {
        end_shared_holds(step, key);
        step.set(Change::Entry(key.clone(), None));
        bury(step, key);
        step.touch(Table::Entries);
    }
}

/// Ends all shared holds of a key that is deleted.
pub(super) fn end_shared_holds(step: &mut Step<'_>, key: &Key) {
    let holders = step.state.keys.shared.get(key).into_iter().flatten().map(|(session, _)| *session);
    for session in holders.collect::<Vec<_>>() {
        step.set(Change::SharedHold(key.clone(), session, None));
    }
}

/// Deletes a key if its modify index is the expected one. Deleting an absent key succeeds.
pub(super) fn delete_entry_cas(step: &mut Step<'_>, key: &Key, expected: LogIndex) -> bool {
    match step.state.keys.entries.get(key.as_str()) {
        Some(entry) if entry.modify_index != expected => false,
        _ => {
            delete_entry(step, key);
            true
        }
    }
}

/// The lock of an entry, which may be absent.
pub(super) fn lock_of(entry: Option<&Arc<Entry>>) -> Lock {
    entry.map(|entry| entry.lock).unwrap_or_default()
}
