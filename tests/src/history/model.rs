//! A model of keys, sessions, locks and delays, reimplemented from the rules, that executes writes
//! one by one.
//!
//! It shares nothing with the product's state. A write is executed together with its client's
//! answer, if there is one. An answer that contradicts the rules is an error that contains the
//! right one. All changes are recorded in one list, which can restore any earlier moment: a wrong
//! guess is undone with it.
//!
//! Unknown facts stay open: the end of a lock-delay (an answer reveals it), and the index of an
//! unobserved write (a range). The waiters of a lock are in `queue`.

use super::operation::{KvWrite, Moment, Reply, Seen, SessionWish, Write};
use super::queue::{Asked, Waiter};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Longer lock-delays count as this.
const LONGEST_LOCK_DELAY_MS: u64 = 60_000;

/// A position in the log at which an act took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// At this index.
    At(u64),
    /// Unobserved, somewhere behind `after` and before `before`.
    Between { after: u64, before: u64 },
}

impl Place {
    pub(super) fn earliest(self) -> u64 {
        match self {
            Self::At(index) => index,
            Self::Between { after, .. } => after + 1,
        }
    }

    /// Returns the first index at which it has certainly taken effect.
    pub(super) fn latest(self) -> u64 {
        match self {
            Self::At(index) => index,
            Self::Between { before, .. } => before,
        }
    }

    /// Returns the same position, given that it is behind another.
    fn behind(self, other: Place) -> Self {
        match self {
            Self::At(_) => self,
            Self::Between { after, before } => Self::Between { after: after.max(other.earliest()), before },
        }
    }

    pub(super) fn may_be(self, index: u64) -> bool {
        match self {
            Self::At(at) => at == index,
            Self::Between { after, before } => after < index && index < before,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(index) => write!(f, "{index}"),
            Self::Between { after, before } => write!(f, "between {after} and {before}"),
        }
    }
}

/// One step of the log: its position, its earliest and latest time, and its operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) place: Place,
    pub(super) earliest: Moment,
    pub(super) latest: Moment,
    /// The operation; `None` for an act without a request.
    pub(super) by: Option<u64>,
}

/// An entry.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) value: String,
    pub(super) session: Option<String>,
    pub(super) lock_index: u64,
    pub(super) created: Place,
    pub(super) modified: Place,
    /// The current grant, or the last one.
    grant: Option<usize>,
    /// The request that waited for this grant; `None` once its session has acquired the lock again.
    pub(super) awaited: Option<Asked>,
}

impl Entry {
    /// Returns `true` if a client may have observed this state.
    pub(super) fn is(&self, seen: &Seen) -> bool {
        seen.value.as_ref().is_none_or(|value| *value == self.value)
            && self.session == seen.session
            && self.lock_index == seen.lock_index
            && self.created.may_be(seen.create_index)
            && self.modified.may_be(seen.modify_index)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { value, session, lock_index, created, modified, .. } = self;
        write!(f, "{value} of {created}/{modified}, lock {lock_index}")?;
        match session {
            Some(session) => write!(f, " held by {session}"),
            None => Ok(()),
        }
    }
}

/// A grant of a lock.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    pub(super) key: String,
    pub(super) session: String,
    pub(super) place: Place,
    pub(super) by: Option<u64>,
    /// Its fencing token, once a client has received it.
    pub(super) fence: Option<u64>,
}

/// A key that is closed by a lock-delay, unless the delay has ended.
#[derive(Clone, Debug)]
pub(super) struct Closed {
    /// The earliest start of the delay. `None` if it is not certain that there was one: the key was
    /// deleted while it was held, and the holder's session may have ended unobserved before that.
    since: Option<Moment>,
    delay_ms: u64,
}

/// The inverse of a change.
#[derive(Clone, Debug)]
pub(super) enum Undo {
    Entry(String, Option<Entry>),
    Session(String, Option<SessionWish>),
    Closed(String, Option<Closed>),
    Queue(String, Option<Vec<Waiter>>),
    Granted,
    Learned(usize),
}

/// The model.
#[derive(Debug, Default)]
pub(super) struct Model {
    entries: BTreeMap<String, Entry>,
    /// The keys that are held after a wait. They are queried at every index, and there may be a
    /// very large number of keys.
    held_after_wait: BTreeSet<String>,
    sessions: BTreeMap<String, SessionWish>,
    closed: BTreeMap<String, Closed>,
    /// The waiters of each lock, in the order of arrival.
    queues: BTreeMap<String, Vec<Waiter>>,
    pub(super) grants: Vec<Grant>,
    undo: Vec<Undo>,
}

impl Model {
    pub(super) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.get(key)
    }

    pub(super) fn session(&self, id: &str) -> Option<&SessionWish> {
        self.sessions.get(id)
    }

    /// Returns a mark of the present state.
    pub(super) fn mark(&self) -> usize {
        self.undo.len()
    }

    /// Returns to the state of a mark.
    pub(super) fn rewind(&mut self, mark: usize) {
        while self.undo.len() > mark {
            match self.undo.pop().expect("it is longer than the mark") {
                Undo::Entry(key, old) => drop(self.replace_entry(&key, old)),
                Undo::Session(id, old) => restore(&mut self.sessions, id, old),
                Undo::Closed(key, old) => restore(&mut self.closed, key, old),
                Undo::Queue(key, old) => restore(&mut self.queues, key, old),
                Undo::Granted => drop(self.grants.pop()),
                Undo::Learned(grant) => self.grants[grant].fence = None,
            }
        }
    }

    /// Returns the changes of keys and sessions since a mark, in order.
    pub(super) fn changes_since(&self, mark: usize) -> &[Undo] {
        &self.undo[mark..]
    }

    /// Executes a write; an error contains the right answer to its client.
    pub(super) fn carry_out(
        &mut self,
        step: Step,
        write: &Write,
        told: Option<&Reply>,
    ) -> Result<(), String> {
        let before = self.mark();
        self.carry_out_alone(step, write, told)?;
        self.grant_freed(step, before);
        Ok(())
    }

    fn carry_out_alone(&mut self, step: Step, write: &Write, told: Option<&Reply>) -> Result<(), String> {
        let right = match write {
            Write::Kv(write) => return self.kv(step, write, told),
            Write::Txn(steps) => return self.txn(step, steps, told),
            Write::CreateSession(wish) => match told {
                Some(Reply::Session(id)) if self.sessions.contains_key(id) => {
                    return Err(format!("session {id} lives already"));
                }
                Some(Reply::Session(id)) => {
                    self.put_session(id, Some(wish.clone()));
                    return Ok(());
                }
                None => {
                    if let Some(id) = wish.id.as_ref().filter(|id| !self.sessions.contains_key(*id)) {
                        self.put_session(id, Some(wish.clone()));
                    }
                    return Ok(());
                }
                Some(Reply::Refused(_)) => return Ok(()),
                Some(_) => "a session",
            },
            Write::DestroySession(id) => {
                self.end_alone(step, id);
                match told {
                    None | Some(Reply::Done | Reply::Succeeded(true)) => return Ok(()),
                    Some(_) => "that it is done",
                }
            }
        };
        Err(format!("{right} was expected"))
    }

    /// Ends a session, if it is alive, and grants its locks to their waiters.
    pub(super) fn end_session(&mut self, step: Step, id: &str) {
        let before = self.mark();
        self.end_alone(step, id);
        self.grant_freed(step, before);
    }

    fn end_alone(&mut self, step: Step, id: &str) {
        let Some(wish) = self.sessions.get(id).cloned() else { return };
        self.put_session(id, None);
        self.leave_all_queues(id);
        let held = self.entries.iter().filter(|(_, entry)| entry.session.as_deref() == Some(id));
        for key in held.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            let freed = match wish.deletes {
                true => None,
                false => self.entries.get(&key).map(|entry| Entry {
                    session: None,
                    modified: step.place.behind(entry.modified),
                    awaited: None,
                    ..entry.clone()
                }),
            };
            self.put_entry(&key, freed);
            if wish.lock_delay_ms > 0 {
                let delay_ms = wish.lock_delay_ms.min(LONGEST_LOCK_DELAY_MS);
                self.put_closed(&key, Some(Closed { since: Some(step.earliest), delay_ms }));
            }
        }
    }

    /// Returns `true` if a key may be closed by a lock-delay.
    pub(super) fn may_be_closed(&self, key: &str) -> bool {
        self.closed.contains_key(key)
    }

    /// A grant proves that the delay was over.
    pub(super) fn open(&mut self, step: Step, key: &str) -> Result<(), String> {
        let Some(closed) = self.closed.get(key) else { return Ok(()) };
        let delay_ms = closed.delay_ms;
        if let Some(since) = closed.since
            && step.latest.0 < since.0 + delay_ms * 1_000_000
        {
            return Err(format!(
                "{key} is closed by a lock-delay of {delay_ms} ms that began at {since} at the earliest"
            ));
        }
        self.put_closed(key, None);
        Ok(())
    }

    fn kv(&mut self, step: Step, write: &KvWrite, told: Option<&Reply>) -> Result<(), String> {
        let right = match write {
            KvWrite::Acquire { key, value, session } => {
                return self.acquire_told(step, key, value, session, told);
            }
            KvWrite::Enqueue { key, value, session } => {
                return self.enqueue_told(step, key, value, session, told);
            }
            KvWrite::Leave { key, session, asked } => {
                let right = self.leave(step, key, session, Asked::At(*asked));
                return match told {
                    Some(told) if *told != right => Err(format!("{right:?} was expected")),
                    _ => Ok(()),
                };
            }
            KvWrite::StopWaiting { key, session, asked } => {
                self.stop_waiting(key, session, Asked::At(*asked))
            }
            KvWrite::Set { key, value } => self.set(step, key, value),
            KvWrite::Cas { key, value, expected } => self.cas(step, key, value, *expected),
            KvWrite::Release { key, value, session } => self.release(step, key, value, session),
            KvWrite::Delete { key } => self.delete(key),
            KvWrite::DeleteCas { key, expected } => self.delete_cas(key, *expected),
            KvWrite::DeleteTree { prefix } => self.delete_tree(prefix),
        };
        match told {
            None => Ok(()),
            Some(Reply::Succeeded(flag)) if *flag == right => Ok(()),
            Some(_) => Err(format!("{right} was expected")),
        }
    }

    /// Executes an acquire outside of a transaction, and checks the answer.
    fn acquire_told(
        &mut self,
        step: Step,
        key: &str,
        value: &str,
        session: &str,
        told: Option<&Reply>,
    ) -> Result<(), String> {
        if self.may_be_closed(key) {
            match told {
                Some(Reply::Delayed) => return Ok(()),
                _ => self.open(step, key)?,
            }
        }
        let right = match (self.acquire(step, key, value, session), told) {
            (_, None) => return Ok(()),
            (Acquired::NoSession, Some(Reply::Refused(_))) => return Ok(()),
            (Acquired::HeldBy(_), Some(Reply::Succeeded(false))) => return Ok(()),
            (Acquired::Granted(grant), Some(Reply::Granted { fence })) => {
                return self.learn(grant, *fence);
            }
            (Acquired::NoSession, _) => "a refusal, for there is no such session,".into(),
            (Acquired::HeldBy(holder), _) => format!("false, for it is held by {holder},"),
            (Acquired::Granted(_), _) => "a grant".to_owned(),
        };
        Err(format!("{right} was expected"))
    }

    pub(super) fn acquire(&mut self, step: Step, key: &str, value: &str, session: &str) -> Acquired {
        if !self.sessions.contains_key(session) {
            return Acquired::NoSession;
        }
        let existing = self.entries.get(key).cloned();
        let holder = existing.as_ref().and_then(|entry| entry.session.clone());
        let grant = match holder {
            Some(holder) if holder != session => return Acquired::HeldBy(holder),
            Some(_) => existing.as_ref().and_then(|entry| entry.grant).expect("a held lock was granted"),
            None => {
                let (key, session) = (key.to_owned(), session.to_owned());
                self.grants.push(Grant { key, session, place: step.place, by: step.by, fence: None });
                self.undo.push(Undo::Granted);
                self.grants.len() - 1
            }
        };
        let is_new = existing.as_ref().is_none_or(|entry| entry.session.is_none());
        let lock_index = existing.map_or(0, |entry| entry.lock_index) + u64::from(is_new);
        self.write(step, key, value, |entry| {
            entry.session = Some(session.to_owned());
            entry.lock_index = lock_index;
            entry.grant = Some(grant);
            entry.awaited = None;
        });
        Acquired::Granted(grant)
    }

    /// Records a grant's fence that a client received.
    pub(super) fn learn(&mut self, grant: usize, fence: u64) -> Result<(), String> {
        match self.grants[grant].fence {
            Some(known) if known != fence => Err(format!("fence {known} was expected, of the same hold")),
            Some(_) => Ok(()),
            None => {
                self.grants[grant].fence = Some(fence);
                self.undo.push(Undo::Learned(grant));
                Ok(())
            }
        }
    }

    pub(super) fn set(&mut self, step: Step, key: &str, value: &str) -> bool {
        self.write(step, key, value, |_| {});
        true
    }

    pub(super) fn cas(&mut self, step: Step, key: &str, value: &str, expected: u64) -> bool {
        let holds = match self.entries.get(key) {
            None => expected == 0,
            Some(entry) => entry.modified.may_be(expected),
        };
        holds && self.set(step, key, value)
    }

    pub(super) fn release(&mut self, step: Step, key: &str, value: &str, session: &str) -> bool {
        let holds = self.entries.get(key).is_some_and(|entry| entry.session.as_deref() == Some(session));
        if holds {
            self.write(step, key, value, |entry| {
                entry.session = None;
                entry.awaited = None;
            });
        } else {
            self.leave_queue(key, session);
        }
        holds
    }

    pub(super) fn delete(&mut self, key: &str) -> bool {
        let Some(entry) = self.entries.get(key) else { return true };
        let holder = entry.session.as_ref().and_then(|session| self.sessions.get(session));
        let delay_ms = holder.map_or(0, |wish| wish.lock_delay_ms);
        self.put_entry(key, None);
        if delay_ms > 0 && !self.may_be_closed(key) {
            self.put_closed(key, Some(Closed { since: None, delay_ms }));
        }
        true
    }

    pub(super) fn delete_cas(&mut self, key: &str, expected: u64) -> bool {
        let holds = self.entries.get(key).is_none_or(|entry| entry.modified.may_be(expected));
        holds && self.delete(key)
    }

    pub(super) fn delete_tree(&mut self, prefix: &str) -> bool {
        let under: Vec<String> = self.under(prefix).map(|(key, _)| key.clone()).collect();
        under.iter().all(|key| self.delete(key))
    }

    pub(super) fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a String, &'a Entry)> {
        let range = self.entries.range(prefix.to_owned()..);
        range.take_while(move |(key, _)| key.starts_with(prefix))
    }

    /// The one rule of writing: an unchanged entry is not written again.
    pub(super) fn write(&mut self, step: Step, key: &str, value: &str, change: impl FnOnce(&mut Entry)) {
        let existing = self.entries.get(key);
        let mut entry = existing.cloned().unwrap_or_else(|| Entry {
            value: value.to_owned(),
            session: None,
            lock_index: 0,
            created: step.place,
            modified: step.place,
            grant: None,
            awaited: None,
        });
        entry.value = value.to_owned();
        change(&mut entry);
        if existing != Some(&entry) {
            entry.modified = step.place.behind(entry.modified);
            self.put_entry(key, Some(entry));
        }
    }

    fn put_entry(&mut self, key: &str, entry: Option<Entry>) {
        let old = self.replace_entry(key, entry);
        self.undo.push(Undo::Entry(key.to_owned(), old));
    }

    fn replace_entry(&mut self, key: &str, entry: Option<Entry>) -> Option<Entry> {
        match entry.as_ref().is_some_and(|entry| entry.session.is_some() && entry.awaited.is_some()) {
            true => drop(self.held_after_wait.insert(key.to_owned())),
            false => drop(self.held_after_wait.remove(key)),
        }
        put(&mut self.entries, key, entry)
    }

    /// Returns the queue of a key.
    pub(super) fn queue(&self, key: &str) -> &[Waiter] {
        self.queues.get(key).map_or(&[], Vec::as_slice)
    }

    /// Returns all queues.
    pub(super) fn queues(&self) -> impl Iterator<Item = (&String, &Vec<Waiter>)> {
        self.queues.iter()
    }

    /// Returns all locks that are held after a wait: key, session, request and operation.
    pub(super) fn awaited(&self) -> impl Iterator<Item = (&String, &String, Asked, Option<u64>)> {
        self.held_after_wait.iter().filter_map(|key| {
            let entry = self.entries.get(key)?;
            Some((key, entry.session.as_ref()?, entry.awaited?, self.grants[entry.grant?].by))
        })
    }

    pub(super) fn put_queue(&mut self, key: &str, queue: Vec<Waiter>) {
        let old = put(&mut self.queues, key, Some(queue).filter(|queue| !queue.is_empty()));
        self.undo.push(Undo::Queue(key.to_owned(), old));
    }

    /// Returns the grant of a key's lock, if it is held.
    pub(super) fn grant_of(&self, key: &str) -> Option<usize> {
        self.entries.get(key).filter(|entry| entry.session.is_some())?.grant
    }

    /// Records that a session waited for the current grant.
    pub(super) fn note_awaited(&mut self, key: &str, asked: Asked) {
        if let Some(entry) = self.entries.get(key).cloned() {
            self.put_entry(key, Some(Entry { awaited: Some(asked), ..entry }));
        }
    }

    /// Returns `true` if a key is certainly closed by a lock-delay, unless the delay has ended.
    pub(super) fn is_closed(&self, key: &str) -> bool {
        self.closed.get(key).is_some_and(|closed| closed.since.is_some())
    }

    fn put_session(&mut self, id: &str, wish: Option<SessionWish>) {
        let old = put(&mut self.sessions, id, wish);
        self.undo.push(Undo::Session(id.to_owned(), old));
    }

    fn put_closed(&mut self, key: &str, closed: Option<Closed>) {
        let old = put(&mut self.closed, key, closed);
        self.undo.push(Undo::Closed(key.to_owned(), old));
    }
}

/// The result of an attempt to acquire a lock.
pub(super) enum Acquired {
    /// The session holds it, by this grant.
    Granted(usize),
    /// Another session holds it.
    HeldBy(String),
    /// The session does not exist.
    NoSession,
}

fn put<T>(map: &mut BTreeMap<String, T>, key: &str, value: Option<T>) -> Option<T> {
    match value {
        Some(value) => map.insert(key.to_owned(), value),
        None => map.remove(key),
    }
}

fn restore<T>(map: &mut BTreeMap<String, T>, key: String, old: Option<T>) {
    match old {
        Some(old) => drop(map.insert(key, old)),
        None => drop(map.remove(&key)),
    }
}
