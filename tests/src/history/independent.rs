//! A second check of the same histories with a third-party linearizability checker, key by key.
//!
//! `todc-utils` searches for *any* order of the operations on one key that agrees with real time
//! and with a small specification of a key with a value and a holder. It knows nothing of log
//! indexes, of our replay, or of our placement of unanswered operations: its only inputs are times,
//! values and holders. Its search takes time that grows fast with overlapping operations, so it
//! receives short histories only.
//!
//! A history of several keys is linearizable only if the history of each key is. Transactions and
//! deletes by prefix are therefore part of the history of every key that they touch. An unanswered
//! operation ends after all others: it may be placed anywhere behind its beginning, or last, where
//! it has no effect on other operations.

use super::candidates::{key_of, keys_of, kv_writes, written};
use super::evidence::seen_by;
use super::operation::{
    KvWrite, Moment, Operation, Outcome, Query, Reply, Request, Seen, SessionWish, Write,
};
use super::verdict::Violation;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use todc_utils::{Action, Specification, WGLChecker};

/// The longest history of one key that is checked.
const MOST_OPERATIONS: usize = 400;
/// The maximum number of unanswered operations on one key.
const MOST_OPEN: usize = 8;

/// One operation on one key, with its start and end.
#[derive(Clone, Debug)]
struct Span {
    begun: Moment,
    /// `None` for an unanswered one.
    ended: Option<Moment>,
    operation: KeyOperation,
}

/// The results for all keys of a history.
#[derive(Debug, Default)]
pub(super) struct Keys {
    /// The number of checked keys.
    pub(super) checked: u64,
    /// The number of keys whose history is too long.
    pub(super) too_long: u64,
    pub(super) violations: Vec<Violation>,
}

/// Checks the history of every key that is short enough.
pub(super) fn keys(operations: &[Operation]) -> Keys {
    let projection = Projection::new(operations);
    let mut keys = Keys::default();
    for key in projection.keys() {
        let (spans, numbers) = projection.of_key(key);
        let open = spans.iter().filter(|span| span.ended.is_none()).count();
        if spans.len() > MOST_OPERATIONS || open > MOST_OPEN {
            keys.too_long += 1;
            continue;
        }
        keys.checked += 1;
        if !is_linearizable(spans) {
            let text = format!(
                "the {} operations on {key} cannot be put into any order that explains them",
                numbers.len()
            );
            keys.violations.push(Violation::new("the history of a key is linearizable", &numbers, text));
        }
    }
    keys
}

fn is_linearizable(spans: Vec<Span>) -> bool {
    if spans.is_empty() {
        return true;
    }
    // Every operation is its own process. At the same moment calls come first: such operations
    // overlap.
    let mut events = Vec::with_capacity(spans.len() * 2);
    for (process, span) in spans.into_iter().enumerate() {
        let ended = span.ended.unwrap_or(Moment(u64::MAX));
        events.push((span.begun, false, process, Action::Call(span.operation.clone())));
        events.push((ended, true, process, Action::Response(span.operation)));
    }
    events.sort_by_key(|(at, is_response, process, _)| (*at, *is_response, *process));
    let actions = events.into_iter().map(|(_, _, process, action)| (process, action)).collect();
    WGLChecker::<Key>::is_linearizable(todc_utils::History::from_actions(actions))
}

/// A history, projected onto single keys.
struct Projection<'h> {
    operations: &'h [Operation],
    /// The operations on each key.
    by_key: BTreeMap<&'h str, BTreeSet<usize>>,
    /// The state of a key at an index, observed by a read or known from a client's own write.
    versions: BTreeMap<(&'h str, u64), State>,
    /// Keys to which one value was written twice, so that values do not identify versions.
    ambiguous: BTreeSet<&'h str>,
    /// The requested properties of each session.
    wishes: BTreeMap<&'h str, &'h SessionWish>,
}

impl<'h> Projection<'h> {
    fn new(operations: &'h [Operation]) -> Self {
        let mut projection = Self {
            operations,
            by_key: BTreeMap::new(),
            versions: BTreeMap::new(),
            ambiguous: BTreeSet::new(),
            wishes: BTreeMap::new(),
        };
        let mut values: BTreeSet<(&str, &str)> = BTreeSet::new();
        for (at, operation) in operations.iter().enumerate() {
            for key in keys_of(operation) {
                projection.by_key.entry(key).or_default().insert(at);
            }
            for (key, value) in kv_writes(operation).filter_map(written) {
                if !values.insert((key, value)) {
                    projection.ambiguous.insert(key);
                }
            }
            projection.learn(operation);
        }
        projection.spread();
        projection
    }

    fn keys(&self) -> impl Iterator<Item = &'h str> {
        self.by_key.keys().copied()
    }

    /// Records an operation's observations of versions and sessions.
    fn learn(&mut self, operation: &'h Operation) {
        for seen in seen_by(operation) {
            if let Some(value) = &seen.value {
                let state = Some((value.clone(), seen.session.clone()));
                self.versions.insert((&seen.key, seen.modify_index), state);
            }
        }
        match (&operation.request, operation.reply(), operation.write_index()) {
            (Request::Write(Write::CreateSession(wish)), ..) => {
                if let Some(id) = made(operation) {
                    self.wishes.insert(id, wish);
                }
            }
            (
                Request::Write(Write::Kv(KvWrite::Acquire { key, value, session })),
                Some(Reply::Granted { .. }),
                Some(index),
            ) => {
                self.versions.insert((key, index), Some((value.clone(), Some(session.clone()))));
            }
            (
                Request::Write(Write::Kv(KvWrite::Release { key, value, .. })),
                Some(Reply::Succeeded(true)),
                Some(index),
            ) => {
                self.versions.insert((key, index), Some((value.clone(), None)));
            }
            _ => {}
        }
    }

    /// Adds deletes and reads by prefix, and ends of sessions, to the history of every key that
    /// they touch.
    fn spread(&mut self) {
        let mut locked: BTreeMap<&str, BTreeSet<&'h str>> = BTreeMap::new();
        for operation in self.operations {
            for write in kv_writes(operation) {
                if let KvWrite::Acquire { key, session, .. } | KvWrite::Enqueue { key, session, .. } = write {
                    locked.entry(session).or_default().insert(key);
                }
            }
        }
        for (at, operation) in self.operations.iter().enumerate() {
            let by_prefix = prefixes_of(operation).flat_map(|prefix| {
                let from = self.by_key.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
                from.map(|(key, _)| *key).take_while(move |key| key.starts_with(prefix))
            });
            let session = match (operation.write(), operation.reply()) {
                (Some(Write::DestroySession(session)), _) => Some(session.as_str()),
                (Some(Write::CreateSession(wish)), _) if may_end_by_itself(wish) => made(operation),
                _ => None,
            };
            let by_session = session.and_then(|session| locked.get(session)).into_iter().flatten().copied();
            for key in by_prefix.chain(by_session).collect::<Vec<_>>() {
                self.by_key.entry(key).or_default().insert(at);
            }
        }
    }

    /// Returns all operations on a key, and their numbers.
    fn of_key(&self, key: &str) -> (Vec<Span>, Vec<u64>) {
        let (mut spans, mut numbers) = (Vec::new(), Vec::new());
        for operation in self.by_key[key].iter().map(|at| &self.operations[*at]) {
            let before = spans.len();
            self.project(key, operation, &mut spans);
            if spans.len() > before {
                numbers.push(operation.number);
            }
        }
        (spans, numbers)
    }

    fn project(&self, key: &str, operation: &Operation, spans: &mut Vec<Span>) {
        let ended = operation.reply().map(|_| operation.ended);
        let mut push =
            |ended, projected| spans.push(Span { begun: operation.begun, ended, operation: projected });
        match (&operation.request, operation.reply()) {
            // A waiter without a reported grant may have been granted the lock, and have released
            // it unobserved.
            (Request::Write(Write::Kv(KvWrite::Enqueue { key: of, value, session })), _)
                if of == key && operation.waits_in_vain() && is_possible(operation) =>
            {
                let (value, session) = (value.clone(), session.clone());
                push(ended, KeyOperation::MayAcquire { value: value.clone(), session: session.clone() });
                push(ended, KeyOperation::MayRelease { value, session });
            }
            (Request::Read(read), Some(Reply::Entries(seen))) if !read.stale => {
                push(ended, KeyOperation::Read(state_in(seen, key)));
            }
            (Request::Write(Write::DestroySession(session)), _) if is_possible(operation) => {
                // A requested end is the earlier of the two if the session may also expire: see
                // below.
                if let Some(wish) = self.wishes.get(session.as_str()) {
                    push(ended, KeyOperation::Ended { session: session.clone(), deletes: wish.deletes });
                }
            }
            (Request::Write(Write::CreateSession(wish)), _) => {
                if let Some(id) = made(operation) {
                    push(None, KeyOperation::Ended { session: id.to_owned(), deletes: wish.deletes });
                }
            }
            (Request::Write(Write::Txn(_)), Some(Reply::TxnFailed(_) | Reply::Refused(_))) => {}
            (Request::Write(_), reply) if is_possible(operation) => {
                let in_txn = matches!(operation.write(), Some(Write::Txn(_)));
                for write in kv_writes(operation) {
                    if let Some(projected) = self.write(key, write, reply, in_txn) {
                        push(ended, projected);
                    }
                }
            }
            _ => {}
        }
    }

    fn write(&self, key: &str, write: &KvWrite, reply: Option<&Reply>, in_txn: bool) -> Option<KeyOperation> {
        let told = match reply {
            None => None,
            Some(_) if in_txn => Some(true),
            Some(Reply::Granted { .. } | Reply::GrantedLater { .. } | Reply::Succeeded(true)) => Some(true),
            // The grant after the wait, if there was one, has an unknown index.
            Some(Reply::Queued) => None,
            Some(Reply::Succeeded(false)) => Some(false),
            Some(_) => return None,
        };
        let is_own = key_of(write) == Some(key);
        match write {
            KvWrite::DeleteTree { prefix } => key.starts_with(prefix).then_some(KeyOperation::Deleted),
            _ if !is_own => None,
            KvWrite::Set { value, .. } => Some(KeyOperation::Set(value.clone())),
            KvWrite::Cas { value, expected, .. } => match (self.version(key, *expected), told) {
                (Some(state), Some(true)) => Some(KeyOperation::Swapped(state, value.clone())),
                (Some(state), Some(false)) => Some(KeyOperation::NotSwapped(state)),
                (Some(state), None) => Some(KeyOperation::MaySwap(state, value.clone())),
                (None, Some(false)) => None,
                (None, _) => Some(KeyOperation::Set(value.clone())),
            },
            KvWrite::Acquire { value, session, .. } | KvWrite::Enqueue { value, session, .. } => {
                Some(acquired(value.clone(), session.clone(), told))
            }
            KvWrite::Leave { .. } | KvWrite::StopWaiting { .. } => None,
            KvWrite::Release { value, session, .. } => Some(released(value.clone(), session.clone(), told)),
            KvWrite::Delete { .. } => Some(KeyOperation::Deleted),
            KvWrite::DeleteCas { expected, .. } => match (self.version(key, *expected), told) {
                (state, Some(false)) => state.map(KeyOperation::NotSwapped),
                _ => Some(KeyOperation::Deleted),
            },
        }
    }

    /// Returns the state of a key at an index, if it is known and differs from all its other
    /// states.
    fn version(&self, key: &str, index: u64) -> Option<State> {
        match index {
            0 => Some(None),
            _ if self.ambiguous.contains(key) => None,
            _ => self.versions.get(&(key, index)).cloned(),
        }
    }
}

fn acquired(value: String, session: String, told: Option<bool>) -> KeyOperation {
    match told {
        Some(true) => KeyOperation::Acquired { value, session },
        Some(false) => KeyOperation::Held { session },
        None => KeyOperation::MayAcquire { value, session },
    }
}

fn released(value: String, session: String, told: Option<bool>) -> KeyOperation {
    match told {
        Some(true) => KeyOperation::Released { value, session },
        Some(false) => KeyOperation::NotHeld { session },
        None => KeyOperation::MayRelease { value, session },
    }
}

/// Returns the session that was created, or may have been.
fn made(operation: &Operation) -> Option<&str> {
    match (operation.write(), &operation.outcome) {
        (_, Outcome::Answered { reply: Reply::Session(id), .. }) => Some(id),
        (Some(Write::CreateSession(wish)), Outcome::Unknown(_)) => wish.id.as_deref(),
        _ => None,
    }
}

fn may_end_by_itself(wish: &SessionWish) -> bool {
    wish.fragile || wish.ttl_ms > 0
}

/// Returns `true` if it took effect, or may have.
fn is_possible(operation: &Operation) -> bool {
    operation.is_unknown() || operation.reply().is_some_and(|reply| !matches!(reply, Reply::Refused(_)))
}

fn state_in(seen: &[Seen], key: &str) -> State {
    let found = seen.iter().find(|seen| seen.key == key)?;
    Some((found.value.clone().unwrap_or_default(), found.session.clone()))
}

fn prefixes_of(operation: &Operation) -> impl Iterator<Item = &str> {
    let read = match &operation.request {
        Request::Read(read) => match &read.query {
            Query::Prefix(prefix) => Some(prefix.as_str()),
            _ => None,
        },
        _ => None,
    };
    let deleted = kv_writes(operation).filter_map(|write| match write {
        KvWrite::DeleteTree { prefix } => Some(prefix.as_str()),
        _ => None,
    });
    read.into_iter().chain(deleted)
}

/// The state of a key: its value and holder; `None` while it is absent.
type State = Option<(String, Option<String>)>;

/// The effect of one operation on one key, and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum KeyOperation {
    /// Read the key.
    Read(State),
    /// Wrote a value unconditionally.
    Set(String),
    /// Wrote a value because the key had this state.
    Swapped(State, String),
    /// Did not write, because the key did not have this state.
    NotSwapped(State),
    /// Wrote if the key had this state; the answer is unknown.
    MaySwap(State, String),
    /// Acquired the lock.
    Acquired { value: String, session: String },
    /// Acquired the lock or not; the answer is unknown.
    MayAcquire { value: String, session: String },
    /// Was rejected because another session holds it.
    Held { session: String },
    /// Released the lock.
    Released { value: String, session: String },
    /// Released it or not; the answer is unknown.
    MayRelease { value: String, session: String },
    /// Was rejected because the session does not hold it.
    NotHeld { session: String },
    /// Deleted the key.
    Deleted,
    /// The session ended: if it holds the key, the key is released, or deleted.
    Ended { session: String, deletes: bool },
}

struct Key;

impl Specification for Key {
    type State = State;
    type Operation = KeyOperation;

    fn init() -> State {
        None
    }

    fn apply(operation: &KeyOperation, state: &State) -> (bool, State) {
        let holder = state.as_ref().and_then(|(_, holder)| holder.clone());
        let holds = |session: &String| holder.as_ref() == Some(session);
        let is_free_for = |session: &String| holder.is_none() || holds(session);
        let write = |value: &String, holder: Option<String>| Some((value.clone(), holder));
        let taken = |value: &String, session: &String| write(value, Some(session.clone()));
        let stays = || state.clone();
        match operation {
            KeyOperation::Read(seen) => (state == seen, stays()),
            KeyOperation::Set(value) => (true, write(value, holder)),
            KeyOperation::Swapped(expected, value) if state == expected => (true, write(value, holder)),
            KeyOperation::Swapped(..) => (false, stays()),
            KeyOperation::NotSwapped(expected) => (state != expected, stays()),
            KeyOperation::MaySwap(expected, value) if state == expected => (true, write(value, holder)),
            KeyOperation::MaySwap(..) => (true, stays()),
            KeyOperation::Acquired { value, session } if is_free_for(session) => {
                (true, taken(value, session))
            }
            KeyOperation::Acquired { .. } => (false, stays()),
            KeyOperation::MayAcquire { value, session } if is_free_for(session) => {
                (true, taken(value, session))
            }
            KeyOperation::MayAcquire { .. } => (true, stays()),
            KeyOperation::Held { session } => (!is_free_for(session), stays()),
            KeyOperation::Released { value, session } if holds(session) => (true, write(value, None)),
            KeyOperation::Released { .. } => (false, stays()),
            KeyOperation::MayRelease { value, session } if holds(session) => (true, write(value, None)),
            KeyOperation::MayRelease { .. } => (true, stays()),
            KeyOperation::NotHeld { session } => (!holds(session), stays()),
            KeyOperation::Deleted => (true, None),
            KeyOperation::Ended { session, .. } if !holds(session) => (true, stays()),
            KeyOperation::Ended { deletes: true, .. } => (true, None),
            KeyOperation::Ended { .. } => (true, state.clone().map(|(value, _)| (value, None))),
        }
    }
}
