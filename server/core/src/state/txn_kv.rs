//! What a transaction can do with keys. The rules are those of single commands; the words of failure differ.

use super::State;
use super::lock::AcquireOutcome;
use super::step::Step;
use bytes::Bytes;
use lockmesh_protocol::command::{KvVerb, NewEntry, TxnKv};
use lockmesh_protocol::id::{Fence, Key, LogIndex, SessionId, WallTime};
use lockmesh_protocol::record::Entry;
use lockmesh_protocol::reply::{Refusal, TxnResult};
use std::sync::Arc;

impl Step<'_> {
    pub(super) fn write_kv(&mut self, op: &TxnKv) -> Result<Vec<TxnResult>, String> {
        let new = NewEntry { key: op.key.clone(), value: op.value.clone(), flags: op.flags };
        let key = &op.key;
        let written = match &op.verb {
            KvVerb::Set => self.set_entry(&new),
            KvVerb::Cas => self
                .cas_entry(&new, op.index)
                .ok_or_else(|| format!("failed to set key {key:?}, index is stale"))?,
            KvVerb::Lock => self.lock_in_txn(&new, &op.session)?,
            KvVerb::Unlock => self.unlock_in_txn(&new, &op.session)?,
            KvVerb::Delete => return Ok(self.done(|step| step.delete_entry(key))),
            KvVerb::DeleteTree => return Ok(self.done(|step| step.delete_tree(key))),
            KvVerb::DeleteCas if self.delete_entry_cas(key, op.index) => return Ok(Vec::new()),
            KvVerb::DeleteCas => return Err(format!("failed to delete key {key:?}, index is stale")),
            other => return Err(format!("unknown KV operation: {other:?}")),
        };
        Ok(vec![TxnResult::Kv(without_value(&written))])
    }

    fn done(&mut self, work: impl FnOnce(&mut Self)) -> Vec<TxnResult> {
        work(self);
        Vec::new()
    }

    fn lock_in_txn(&mut self, new: &NewEntry, written: &SessionId) -> Result<Arc<Entry>, String> {
        let outcome = self.acquire(new, &SessionId::parse(written.as_str()));
        match outcome.map_err(|refusal| as_written(refusal, written).to_string())? {
            AcquireOutcome::Granted(entry) => Ok(entry),
            AcquireOutcome::Held => Err(format!("failed to lock key {:?}, lock is already held", new.key)),
            AcquireOutcome::Delayed(_) => Err(format!("failed to lock key {:?} due to lock delay", new.key)),
        }
    }

    fn unlock_in_txn(&mut self, new: &NewEntry, written: &SessionId) -> Result<Arc<Entry>, String> {
        let outcome = self.release(new, &SessionId::parse(written.as_str()));
        let not_held =
            || format!("failed to unlock key {:?}, lock isn't held, or is held by another session", new.key);
        outcome.map_err(|refusal| refusal.to_string())?.ok_or_else(not_held)
    }
}

impl State {
    pub(super) fn read_kv(&self, op: &TxnKv) -> Result<Vec<TxnResult>, String> {
        let key = &op.key;
        let entry = self.entries.get(key.as_str());
        let found = match op.verb {
            KvVerb::Get => entry.cloned().ok_or_else(|| format!("key {key:?} doesn't exist"))?,
            KvVerb::GetOrEmpty => entry.cloned().unwrap_or_else(|| Arc::new(empty_entry(op))),
            KvVerb::GetTree => {
                return Ok(self.entries_under(key.as_str()).cloned().map(TxnResult::Kv).collect());
            }
            KvVerb::CheckSession => without_value(session_is(entry, key, &op.session)?),
            KvVerb::CheckIndex => without_value(index_is(entry, key, op.index)?),
            KvVerb::CheckNotExists if entry.is_none() => return Ok(Vec::new()),
            KvVerb::CheckNotExists => return Err(format!("key {key:?} exists")),
            ref other => return Err(format!("unknown KV operation: {other:?}")),
        };
        Ok(vec![TxnResult::Kv(found)])
    }
}

fn session_is<'a>(
    entry: Option<&'a Arc<Entry>>,
    key: &Key,
    expected: &SessionId,
) -> Result<&'a Arc<Entry>, String> {
    let entry = entry.ok_or_else(|| format!("failed to check session, key {key:?} doesn't exist"))?;
    let current = entry.session.as_ref().map_or("", SessionId::as_str);
    if current == SessionId::parse(expected.as_str()).as_str() {
        return Ok(entry);
    }
    Err(format!("failed session check for key {key:?}, current session {current:?} != {expected:?}"))
}

fn index_is<'a>(
    entry: Option<&'a Arc<Entry>>,
    key: &Key,
    expected: LogIndex,
) -> Result<&'a Arc<Entry>, String> {
    let entry = entry.ok_or_else(|| format!("failed to check index, key {key:?} doesn't exist"))?;
    let current = entry.modify_index;
    if current == expected {
        return Ok(entry);
    }
    Err(format!("failed index check for key {key:?}, current modify index {current} != {expected}"))
}

/// An entry as a write shows it: its value would only repeat what the client sent.
fn without_value(entry: &Arc<Entry>) -> Arc<Entry> {
    if entry.value.is_empty() {
        return entry.clone();
    }
    Arc::new(Entry { value: Bytes::new(), ..Entry::clone(entry) })
}

/// What stands for an absent key: the operation's own words.
fn empty_entry(op: &TxnKv) -> Entry {
    let session = &op.session;
    Entry {
        key: op.key.clone(),
        value: Bytes::new(),
        flags: op.flags,
        lock_index: 0,
        session: (!session.as_str().is_empty()).then(|| session.clone()),
        fence: Fence(0),
        granted_at: WallTime(0),
        awaited: LogIndex(0),
        create_index: LogIndex(0),
        modify_index: op.index,
    }
}

fn as_written(refusal: Refusal, written: &SessionId) -> Refusal {
    match refusal {
        Refusal::InvalidSession(_) => Refusal::InvalidSession(written.clone()),
        other => other,
    }
}
