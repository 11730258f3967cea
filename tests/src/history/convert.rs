//! Conversion of commands, replies and entries into those of a history: for tests that drive the
//! core directly, without HTTP.
//!
//! Only types are converted; this file knows nothing of a command's effects.

use super::operation::{KvWrite, Reply, Seen, SessionWish, TxnStep, Write};
use lockmesh_protocol::command::{Command, KvCommand, KvVerb, NewEntry, TxnKv, TxnOp};
use lockmesh_protocol::record::{Behavior, Entry, SessionSpec};
use lockmesh_protocol::reply::{Reply as Answer, TxnResult};
use std::time::Duration;

/// Converts a client's command; `None` for commands that no client sends, or that histories do not
/// contain.
pub fn write(command: &Command) -> Option<Write> {
    match command {
        Command::Kv(command) => kv_write(command).map(Write::Kv),
        Command::CreateSession(new) => Some(Write::CreateSession(wish(new))),
        Command::DestroySession(session) => Some(Write::DestroySession(session.to_string())),
        Command::Txn(ops) => ops.iter().map(txn_step).collect::<Option<_>>().map(Write::Txn),
        _ => None,
    }
}

/// Converts a reply; `None` for those that histories do not contain.
pub fn reply(answer: &Answer) -> Option<Reply> {
    Some(match answer {
        Answer::Done => Reply::Done,
        Answer::Succeeded(flag) => Reply::Succeeded(*flag),
        Answer::Granted { fence } => Reply::Granted { fence: fence.0 },
        Answer::Delayed { .. } => Reply::Delayed,
        Answer::Session(session) => Reply::Session(session.to_string()),
        Answer::Txn(results) => Reply::Txn(results.iter().map(txn_result).collect::<Option<_>>()?),
        Answer::TxnFailed(errors) => Reply::TxnFailed(errors.iter().map(|error| error.op_index).collect()),
        Answer::Refused(refusal) => Reply::Refused(refusal.to_string()),
        Answer::Queued { .. } => Reply::Queued,
        Answer::Agent { .. }
        | Answer::Server(_)
        | Answer::GossipKey(_)
        | Answer::GrantedAll(_)
        | Answer::Token(_)
        | Answer::Policy(_)
        | Answer::Role(_)
        | Answer::AuthMethod(_)
        | Answer::BindingRule(_) => {
            return None;
        }
    })
}

/// Converts an entry with its value.
pub fn seen(entry: &Entry) -> Seen {
    Seen { value: Some(text(&entry.value)), ..seen_without_value(entry) }
}

fn seen_without_value(entry: &Entry) -> Seen {
    Seen {
        key: entry.key.as_str().to_owned(),
        value: None,
        session: entry.lock.session.map(|session| session.to_string()),
        lock_index: entry.lock.index,
        create_index: entry.create_index.0,
        modify_index: entry.modify_index.0,
    }
}

/// Converts a transaction's result: an empty value means that the step wrote, or read an empty
/// value.
fn txn_result(result: &TxnResult) -> Option<Seen> {
    match result {
        TxnResult::Kv(entry) if entry.value.is_empty() => Some(seen_without_value(entry)),
        TxnResult::Kv(entry) => Some(seen(entry)),
        _ => None,
    }
}

fn wish(new: &SessionSpec) -> SessionWish {
    SessionWish {
        id: Some(new.id.to_string()),
        deletes: new.behavior == Behavior::Delete,
        lock_delay_ms: milliseconds(new.lock_delay),
        ttl_ms: new.ttl.map_or(0, milliseconds),
        fragile: !new.checks.is_empty() || !new.node_checks.is_empty() || new.service_checks.is_some(),
    }
}

fn kv_write(command: &KvCommand) -> Option<KvWrite> {
    let key_of = |new: &NewEntry| new.key.as_str().to_owned();
    let value_of = |new: &NewEntry| text(&new.value);
    Some(match command {
        KvCommand::Set(new) => KvWrite::Set { key: key_of(new), value: value_of(new) },
        KvCommand::Cas(new, expected) => KvWrite::Cas {
            key: key_of(new),
            value: value_of(new),
            expected: expected.map_or(0, |index| index.0),
        },
        KvCommand::Acquire(new, session) => {
            KvWrite::Acquire { key: key_of(new), value: value_of(new), session: session.to_string() }
        }
        KvCommand::Release(new, session) => {
            KvWrite::Release { key: key_of(new), value: value_of(new), session: session.to_string() }
        }
        KvCommand::Delete(key) => KvWrite::Delete { key: key.as_str().to_owned() },
        KvCommand::DeleteCas(key, expected) => {
            KvWrite::DeleteCas { key: key.as_str().to_owned(), expected: expected.0 }
        }
        KvCommand::DeleteTree(prefix) => KvWrite::DeleteTree { prefix: prefix.as_str().to_owned() },
        KvCommand::Enqueue { new, session, .. } => {
            KvWrite::Enqueue { key: key_of(new), value: value_of(new), session: session.to_string() }
        }
        KvCommand::Leave { key, session, enqueued_at_index } => KvWrite::Leave {
            key: key.as_str().to_owned(),
            session: session.to_string(),
            asked: enqueued_at_index.0,
        },
        KvCommand::StopWaiting { key, session, enqueued_at_index } => KvWrite::StopWaiting {
            key: key.as_str().to_owned(),
            session: session.to_string(),
            asked: enqueued_at_index.0,
        },
    })
}

fn txn_step(op: &TxnOp) -> Option<TxnStep> {
    let TxnOp::Kv(TxnKv { verb, key, value, index, session, .. }) = op else { return None };
    let (key, value, session) = (key.as_str().to_owned(), text(value), session.clone().unwrap_or_default());
    Some(TxnStep::Write(match verb {
        KvVerb::Set => KvWrite::Set { key, value },
        KvVerb::Cas => KvWrite::Cas { key, value, expected: index.0 },
        KvVerb::Lock => KvWrite::Acquire { key, value, session },
        KvVerb::Unlock => KvWrite::Release { key, value, session },
        KvVerb::Delete => KvWrite::Delete { key },
        KvVerb::DeleteTree => KvWrite::DeleteTree { prefix: key },
        KvVerb::DeleteCas => KvWrite::DeleteCas { key, expected: index.0 },
        KvVerb::Get => return Some(TxnStep::Get { key }),
        KvVerb::GetTree => return Some(TxnStep::GetTree { prefix: key }),
        KvVerb::CheckSession => return Some(TxnStep::CheckSession { key, session }),
        KvVerb::CheckIndex => return Some(TxnStep::CheckIndex { key, index: index.0 }),
        KvVerb::CheckNotExists => return Some(TxnStep::CheckNotExists { key }),
        KvVerb::GetOrEmpty | KvVerb::Unknown(_) => return None,
    }))
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
