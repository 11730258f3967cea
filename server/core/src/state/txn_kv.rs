//! Transaction operations on keys. The rules are those of single commands; the error texts differ.

use super::entry::{cas_entry, delete_entry, delete_entry_cas, set_entry};
use super::error::{OpError, Row};
use super::keys::Keys;
use super::lock::{AcquireOutcome, acquire, release};
use super::step::Step;
use super::tree::delete_tree;
use bytes::Bytes;
use lockmesh_protocol::command::{KvVerb, NewEntry, TxnKv};
use lockmesh_protocol::id::{Key, LogIndex, SessionId};
use lockmesh_protocol::record::{Entry, Lock};
use lockmesh_protocol::reply::{Refusal, TxnResult};
use std::sync::Arc;

pub(super) fn write_kv(step: &mut Step<'_>, op: &TxnKv) -> Result<Vec<TxnResult>, OpError> {
    let new = NewEntry { key: op.key.clone(), value: op.value.clone(), flags: op.flags };
    let key = &op.key;
    let written = match &op.verb {
        KvVerb::Set => set_entry(step, &new),
        KvVerb::Cas => cas_entry(step, &new, Some(op.index).filter(|index| index.0 != 0))
            .ok_or_else(|| stale("set", key))?,
        KvVerb::Lock => lock_in_txn(step, &new, op)?,
        KvVerb::Unlock => unlock_in_txn(step, &new, op)?,
        KvVerb::Delete => return Ok(done(step, |step| delete_entry(step, key))),
        KvVerb::DeleteTree => return Ok(done(step, |step| delete_tree(step, key))),
        KvVerb::DeleteCas if delete_entry_cas(step, key, op.index) => return Ok(Vec::new()),
        KvVerb::DeleteCas => return Err(stale("delete", key)),
        other => return Err(OpError::MisplacedKvVerb(other.clone())),
    };
    Ok(vec![TxnResult::Kv(without_value(&written))])
}

fn done(step: &mut Step<'_>, work: impl FnOnce(&mut Step<'_>)) -> Vec<TxnResult> {
    work(step);
    Vec::new()
}

fn lock_in_txn(step: &mut Step<'_>, new: &NewEntry, op: &TxnKv) -> Result<Arc<Entry>, OpError> {
    let outcome = acquire(step, new, op.session.as_deref().map_or(SessionId::NIL, named));
    match outcome.map_err(|refusal| as_written(refusal, op.session.as_deref()))? {
        AcquireOutcome::Granted(entry) => Ok(entry),
        AcquireOutcome::Held => Err(OpError::Held(new.key.clone())),
        AcquireOutcome::Delayed(_) => Err(OpError::Delayed(new.key.clone())),
    }
}

fn unlock_in_txn(step: &mut Step<'_>, new: &NewEntry, op: &TxnKv) -> Result<Arc<Entry>, OpError> {
    let session = named(op.session.as_deref().ok_or(OpError::NoSession)?);
    release(step, new, session).ok_or_else(|| OpError::NotHeld(new.key.clone()))
}

impl Keys {
    pub(super) fn read_kv(&self, op: &TxnKv) -> Result<Vec<TxnResult>, OpError> {
        let key = &op.key;
        let entry = self.entries.get(key.as_str());
        let found = match op.verb {
            KvVerb::Get => entry.cloned().ok_or_else(|| OpError::Absent(Row::Key(key.clone())))?,
            KvVerb::GetOrEmpty => entry.cloned().unwrap_or_else(|| Arc::new(empty_entry(op))),
            KvVerb::GetTree => {
                return Ok(self.entries_under(key.as_str()).cloned().map(TxnResult::Kv).collect());
            }
            KvVerb::CheckSession => without_value(self.session_is(key, op.session.as_deref())?),
            KvVerb::CheckIndex => without_value(index_is(entry, key, op.index)?),
            KvVerb::CheckNotExists if entry.is_none() => return Ok(Vec::new()),
            KvVerb::CheckNotExists => return Err(OpError::Exists(key.clone())),
            ref other => return Err(OpError::MisplacedKvVerb(other.clone())),
        };
        Ok(vec![TxnResult::Kv(found)])
    }

    fn session_is(&self, key: &Key, expected: Option<&str>) -> Result<&Arc<Entry>, OpError> {
        let entry = self.entries.get(key.as_str());
        let entry = entry.ok_or_else(|| OpError::NothingToCheck { property: "session", key: key.clone() })?;
        // A free key has no holder: an operation without a session checks for that.
        let holds = |session: SessionId| self.mode_held(key, session).is_some();
        if expected.map_or(entry.lock.session.is_none(), |session| holds(named(session))) {
            return Ok(entry);
        }
        let current = entry.lock.session.map(|session| session.to_string()).unwrap_or_default();
        let expected = expected.unwrap_or_default().to_owned();
        Err(OpError::OtherSession { key: key.clone(), current, expected })
    }
}

fn index_is<'a>(
    entry: Option<&'a Arc<Entry>>,
    key: &Key,
    expected: LogIndex,
) -> Result<&'a Arc<Entry>, OpError> {
    let entry = entry.ok_or_else(|| OpError::NothingToCheck { property: "index", key: key.clone() })?;
    let current = entry.modify_index;
    if current == expected {
        return Ok(entry);
    }
    Err(OpError::OtherIndex { key: key.clone(), current, expected })
}

/// An entry as a write returns it, without the value that the client sent.
fn without_value(entry: &Arc<Entry>) -> Arc<Entry> {
    if entry.value.is_empty() {
        return entry.clone();
    }
    Arc::new(Entry { value: Bytes::new(), ..Entry::clone(entry) })
}

/// The result for an absent key, built from the operation itself.
fn empty_entry(op: &TxnKv) -> Entry {
    let session = op.session.as_deref().and_then(SessionId::parse);
    Entry {
        key: op.key.clone(),
        value: Bytes::new(),
        flags: op.flags,
        lock: Lock { session, ..Lock::default() },
        create_index: LogIndex(0),
        modify_index: op.index,
    }
}

/// The session that an operation names.
fn named(text: &str) -> SessionId {
    SessionId::parse(text).unwrap_or(SessionId::NIL)
}

/// A refusal, with the session as the client wrote it.
fn as_written(refusal: Refusal, written: Option<&str>) -> OpError {
    match (refusal, written) {
        (Refusal::InvalidSession(_), Some(written)) => OpError::InvalidSession(written.to_owned()),
        (Refusal::InvalidSession(_), None) => OpError::NoSession,
        (other, _) => OpError::Refused(other),
    }
}

fn stale(verb: &'static str, key: &Key) -> OpError {
    OpError::Stale { verb, row: Row::Key(key.clone()) }
}
