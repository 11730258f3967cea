//! The same histories through a checker of linearizability that others wrote, key by key.
//!
//! `todc-utils` searches for *any* order of the operations on one key that agrees with real time
//! and with a small specification of a key that has a value and a holder. It knows nothing of log
//! indexes, of our replay, or of how we place what was not answered: only times, values and holders
//! go in. Because its search takes time that grows fast with the operations that overlap, it is fed
//! short histories only.
//!
//! A history of several keys is linearizable only if the history of each key is, so transactions
//! and deletes by prefix take part in the history of every key that they touch. What was not
//! answered ends after everything else: it may be placed anywhere behind its beginning, or last,
//! where it bothers nobody.

use super::candidates::{key_of, keys_of, kv_writes, written};
use super::evidence::seen_by;
use super::operation::{
    KvWrite, Moment, Operation, Outcome, Query, Reply, Request, Seen, SessionWish, Write,
};
use super::verdict::Violation;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use todc_utils::{Action, Specification, WGLChecker};

/// The longest history of one key that is tried.
const MOST_OPERATIONS: usize = 400;
/// The most operations of one key that were not answered.
const MOST_OPEN: usize = 8;

/// One operation on one key, with the time that it took.
#[derive(Clone, Debug)]
struct Span {
    begun: Moment,
    /// None for one that was not answered.
    ended: Option<Moment>,
    operation: KeyOperation,
}

/// What became of all keys of a history.
#[derive(Debug, Default)]
pub(super) struct Keys {
    /// How many were checked.
    pub(super) checked: u64,
    /// How many have too long a history.
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
    // Every operation is a process of its own. At the same moment calls come first: such operations
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

/// A history, seen from single keys.
struct Projection<'h> {
    operations: &'h [Operation],
    /// The operations that name each key.
    by_key: BTreeMap<&'h str, BTreeSet<usize>>,
    /// What a key was at an index, as somebody was shown or was told of an own write.
    versions: BTreeMap<(&'h str, u64), State>,
    /// Keys to which some value was written twice, so that values do not tell versions apart.
    ambiguous: BTreeSet<&'h str>,
    /// How each session was wished for.
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

    /// What an operation tells about versions and sessions.
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

    /// Deletes and reads by prefix, and ends of sessions, take part in the history of every key
    /// that they touch.
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

    /// All operations on a key, and their numbers.
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
            // Who waits in vain may have been granted the lock, and have given it back before
            // anybody was told.
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
                // Its own end is the earlier of the two where it may end by itself, too: see below.
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
            // It is not known when it was granted what it waited for, if it ever was.
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

    /// What a key was at an index, if that is known and tells it apart from all else that it was.
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

/// The session that was made, or may have been.
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

/// Whether it took effect, or may have.
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

/// A key: its value and who holds it; none while it is absent.
type State = Option<(String, Option<String>)>;

/// What one operation did to one key, and what it was told.
#[derive(Clone, Debug, PartialEq, Eq)]
enum KeyOperation {
    /// Was shown the key.
    Read(State),
    /// Wrote a value, whatever was there.
    Set(String),
    /// Wrote a value where the key was like this.
    Swapped(State, String),
    /// Did not, because the key was not like this.
    NotSwapped(State),
    /// Wrote where it was as expected, if it was; nobody was told.
    MaySwap(State, String),
    /// Took the lock.
    Acquired { value: String, session: String },
    /// Took the lock or not; nobody was told.
    MayAcquire { value: String, session: String },
    /// Was told that another holds it.
    Held { session: String },
    /// Gave the lock back.
    Released { value: String, session: String },
    /// Gave it back or not; nobody was told.
    MayRelease { value: String, session: String },
    /// Was told that it does not hold it.
    NotHeld { session: String },
    /// Was deleted.
    Deleted,
    /// Its holder's session ended, if this is its holder: it is released, or deleted.
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
