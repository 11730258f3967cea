//! Unobserved acts: unanswered writes, and expired sessions.

use super::model::Model;
use super::operation::{
    KvWrite, Moment, Operation, Outcome, Query, Reply, Request, Seen, SessionWish, TxnStep, Write,
};
use super::queue::Asked;
use super::replay::Facts;
use std::collections::{BTreeMap, BTreeSet};

/// The maximum number of them considered to explain one index.
const CONSIDERED: usize = 32;

/// A possible act.
#[derive(Clone, Debug)]
pub(super) enum Act<'h> {
    /// A write took effect.
    Write(&'h Operation),
    /// A session expired.
    End(String),
    /// The session that held this key expired.
    EndHolder(String),
    /// The sessions that held these keys expired, each at some time.
    EndHolders(Vec<String>),
    /// The lock-delay of this key ended.
    Open(String),
    /// A client without a reported grant left a key's queue, or released its grant.
    Leave(Leaver),
    /// An act that changed none of the observed keys.
    Elsewhere,
}

/// A wait that ended without a grant reported to its client.
#[derive(Clone, Debug)]
pub(super) struct Leaver {
    pub(super) key: String,
    pub(super) session: String,
    pub(super) asked: Asked,
}

/// Departures from the queue of a closed lock.
#[derive(Clone, Debug)]
pub(super) struct Parting {
    pub(super) key: String,
    /// The number of waiters that leave.
    pub(super) leave: usize,
}

impl Parting {
    /// Returns a value if some of these leave the queue of a closed lock: it is not known then
    /// which of them were granted it.
    pub(super) fn of(leavers: &[Leaver], model: &Model) -> Option<Self> {
        let key = leavers.iter().map(|leaver| &leaver.key).find(|key| model.is_closed(key))?;
        let leave = leavers.iter().filter(|leaver| leaver.key == *key).count();
        Some(Self { key: key.clone(), leave })
    }
}

impl<'h> Act<'h> {
    pub(super) fn operation(&self) -> Option<&'h Operation> {
        match self {
            Self::Write(operation) => Some(operation),
            _ => None,
        }
    }
}

/// All possible acts, by the keys and sessions that they touch.
pub(super) struct Candidates<'h> {
    facts: &'h Facts<'h>,
    /// Writes that may have taken effect at an index unknown to their clients, by their keys.
    by_key: BTreeMap<&'h str, Vec<&'h Operation>>,
    /// The same by their sessions.
    by_session: BTreeMap<&'h str, Vec<&'h Operation>>,
    /// Those of them that delete by prefix.
    trees: Vec<&'h Operation>,
    /// All operations that would write a value to a key, with any outcome.
    writers: BTreeMap<(String, String), Vec<&'h Operation>>,
    /// The last proof that each session was alive: the start of the request with that answer.
    signs_of_life: BTreeMap<&'h str, Moment>,
    /// The answer time of each wait that ended without a grant; `None` if it was not answered.
    in_vain: BTreeMap<u64, Option<Moment>>,
}

impl<'h> Candidates<'h> {
    /// Collects the acts; `thorough` includes very rare ones.
    pub(super) fn new(facts: &'h Facts<'h>, thorough: bool) -> Self {
        let (by_key, by_session, trees) = Default::default();
        let mut all = Self {
            facts,
            by_key,
            by_session,
            trees,
            writers: BTreeMap::new(),
            signs_of_life: BTreeMap::new(),
            in_vain: BTreeMap::new(),
        };
        for operation in facts.operations {
            for (key, value) in kv_writes(operation).filter_map(written) {
                let written = (key.to_owned(), value.to_owned());
                all.writers.entry(written).or_default().push(operation);
            }
            if may_have_happened(operation, thorough) {
                all.take_in(operation);
            }
            if operation.waits_in_vain() {
                let answered = operation.reply().map(|_| operation.ended);
                all.in_vain.insert(operation.number, answered);
            }
            let session = match (&operation.request, operation.reply()) {
                (Request::Renew(id), Some(Reply::Alive(true))) => id,
                (_, Some(Reply::Session(id))) => id,
                (Request::Write(Write::CreateSession(SessionWish { id: Some(id), .. })), None) => id,
                _ => continue,
            };
            let last = all.signs_of_life.entry(session).or_default();
            *last = (*last).max(operation.begun);
        }
        all
    }

    fn take_in(&mut self, operation: &'h Operation) {
        for key in keys_of(operation) {
            self.by_key.entry(key).or_default().push(operation);
        }
        for session in sessions_of(operation) {
            self.by_session.entry(session).or_default().push(operation);
        }
        if kv_writes(operation).any(|write| matches!(write, KvWrite::DeleteTree { .. })) {
            self.trees.push(operation);
        }
    }

    /// Returns the writes that may have happened unobserved at an index, and touch any of these
    /// keys and sessions. An unanswered write mostly took effect soon, if ever, so the latest come
    /// first.
    fn touching<'k>(
        &self,
        index: u64,
        keys: impl Iterator<Item = &'k str> + Clone,
        sessions: impl Iterator<Item = &'k str>,
        is_placed: impl Fn(u64) -> bool,
    ) -> Vec<&'h Operation> {
        let named = keys.clone().filter_map(|key| self.by_key.get(key)).flatten();
        let named = named.chain(sessions.filter_map(|session| self.by_session.get(session)).flatten());
        let is_above_any = |tree: &&&Operation| {
            let prefixes = kv_writes(tree).filter_map(|write| match write {
                KvWrite::DeleteTree { prefix } => Some(prefix.as_str()),
                _ => None,
            });
            prefixes.into_iter().any(|prefix| keys.clone().any(|key| key.starts_with(prefix)))
        };
        let trees = self.trees.iter().filter(is_above_any);
        let latest = self.facts.times.latest(index);
        let may_be_here = |write: &&&Operation| {
            let before_its_answer = write.write_index().is_none_or(|own| index < own);
            let floor = self.facts.floors[&write.number].index;
            write.begun <= latest && before_its_answer && floor < index && !is_placed(write.number)
        };
        let mut found: Vec<&Operation> = named.chain(trees).filter(may_be_here).copied().collect();
        found.sort_by_key(|write| (std::cmp::Reverse(write.begun), write.number));
        found.dedup_by_key(|write| write.number);
        found
    }

    /// Returns the acts that may have happened at an index known only from later observations.
    pub(super) fn explaining(
        &self,
        index: u64,
        model: &Model,
        is_placed: impl Fn(u64) -> bool,
    ) -> Vec<Act<'h>> {
        let (mut writers, mut ends) = (BTreeSet::new(), Vec::new());
        for sighting in self.facts.evidence.at(index) {
            writers.extend(self.writers_of(&sighting.seen).iter().map(|write| write.number));
            if sighting.seen.session.is_none() {
                ends.push(Act::EndHolder(sighting.seen.key.clone()));
                ends.extend(self.leavers(&sighting.seen.key, model).map(Act::Leave));
            }
        }
        // The value of a key is unknown if its creation is known only from later versions.
        let seen = |key: &String| self.facts.evidence.at(index).any(|sighting| sighting.seen.key == *key);
        let born: BTreeSet<&str> =
            self.facts.evidence.born_at(index).filter(|key| !seen(key)).map(String::as_str).collect();
        let handed = self.handed(index, model);
        for key in &handed {
            ends.push(Act::EndHolder(key.clone()));
            // The lock may have been closed by an unobserved act.
            ends.push(Act::Open(key.clone()));
            ends.extend(self.leavers(key, model).map(Act::Leave));
        }
        let gone = self.gone(index, model);
        let held = |key: &&&str| model.entry(key).is_some_and(|entry| entry.session.is_some());
        ends.extend(gone.iter().filter(held).map(|key| Act::EndHolder(key.to_string())));
        let sighted = self.facts.evidence.at(index).map(|sighting| sighting.seen.key.as_str());
        let keys: BTreeSet<&str> = sighted
            .chain(born.iter().copied())
            .chain(gone.iter().copied())
            .chain(handed.iter().map(String::as_str))
            .collect();
        let holders: BTreeSet<&str> =
            keys.iter().filter_map(|key| model.entry(key)?.session.as_deref()).collect();
        let explains = |write: &&Operation| {
            writers.contains(&write.number)
                || kv_writes(write).filter_map(written).any(|(key, _)| born.contains(key))
                || may_delete(write, &gone)
                || kv_writes(write).any(|write| frees(write, &handed))
                || (!ends.is_empty() && matches!(write.write(), Some(Write::DestroySession(_))))
        };
        let touching = self.touching(index, keys.iter().copied(), holders.iter().copied(), is_placed);
        let writes = touching.into_iter().filter(explains).map(Act::Write);
        let only_absent =
            born.is_empty() && handed.is_empty() && self.facts.evidence.at(index).next().is_none();
        let elsewhere = only_absent.then_some(Act::Elsewhere);
        elsewhere.into_iter().chain(writes).chain(ends.iter().cloned()).take(CONSIDERED).collect()
    }

    /// Returns the keys whose lock was granted at an index to a session that may have waited for
    /// it, including an unobserved wait.
    fn handed(&self, index: u64, model: &Model) -> BTreeSet<String> {
        let told = self.facts.evidence.grants_at(index).map(|told| &told.key);
        let seen = self.facts.evidence.at(index).map(|sighting| &sighting.seen);
        let waited_unheard = |seen: &Seen| self.writers_of(seen).iter().any(|write| write.waits_in_vain());
        let seen = seen.filter(|seen| {
            seen.session.is_some() && (!model.queue(&seen.key).is_empty() || waited_unheard(seen))
        });
        told.chain(seen.map(|seen| &seen.key)).cloned().collect()
    }

    /// Returns the waiters in a key's queue, and its holder after a wait, without a grant reported
    /// to their clients.
    fn leavers<'m>(&'m self, key: &'m str, model: &'m Model) -> impl Iterator<Item = Leaver> + 'm {
        let leaver =
            |session: &str, asked| Leaver { key: key.to_owned(), session: session.to_owned(), asked };
        let waits = model.queue(key).iter();
        let waits = waits.filter(|waiter| waiter.by.is_some_and(|by| self.in_vain.contains_key(&by)));
        let waits = waits.map(move |waiter| leaver(&waiter.session, waiter.asked));
        let held = model.entry(key).and_then(|entry| Some((entry.session.as_ref()?, entry.awaited?)));
        let by = model.grant_of(key).and_then(|grant| model.grants[grant].by);
        let held = held.filter(|_| by.is_some_and(|by| self.in_vain.contains_key(&by)));
        waits.chain(held.map(move |(session, asked)| leaver(session, asked)))
    }

    /// Returns those of them whose clients were answered before an index.
    pub(super) fn have_left(&self, index: u64, model: &Model) -> Vec<Leaver> {
        let earliest = self.facts.times.earliest(index);
        let has_left = |by: Option<u64>| {
            let answered = by.and_then(|by| self.in_vain.get(&by).copied().flatten());
            answered.is_some_and(|answered| answered < earliest)
        };
        let waits = model.queues().flat_map(|(key, queue)| queue.iter().map(move |waiter| (key, waiter)));
        let waits = waits.filter(|(_, waiter)| has_left(waiter.by)).map(|(key, waiter)| Leaver {
            key: key.clone(),
            session: waiter.session.clone(),
            asked: waiter.asked,
        });
        let held = model.awaited().filter(|(.., by)| has_left(*by)).map(|(key, session, asked, _)| Leaver {
            key: key.clone(),
            session: session.clone(),
            asked,
        });
        waits.chain(held).collect()
    }

    /// Returns the keys that exist in the model, but were absent in an observation right after an
    /// index.
    fn gone<'m>(&'m self, index: u64, model: &'m Model) -> BTreeSet<&'m str> {
        let mut gone = BTreeSet::new();
        for snapshot in self.facts.evidence.snapshots_at(index) {
            let prefix = match &snapshot.query {
                Query::Key(key) => key,
                Query::Prefix(prefix) => prefix,
                Query::Together(_) | Query::Session(_) => continue,
            };
            let is_meant = |key: &&String| matches!(snapshot.query, Query::Prefix(_)) || *key == prefix;
            let there = model.under(prefix).map(|(key, _)| key).filter(is_meant);
            gone.extend(
                there.map(String::as_str).filter(|key| !snapshot.shown.iter().any(|seen| seen.key == *key)),
            );
        }
        gone
    }

    /// Returns the keys and sessions related to an index.
    pub(super) fn concern(&self, index: u64, acts: &[Act<'_>], model: &Model) -> Concern {
        let mut concern = Concern::default();
        let evidence = &self.facts.evidence;
        concern.keys.extend(evidence.at(index).map(|sighting| sighting.seen.key.clone()));
        concern.keys.extend(evidence.born_at(index).cloned());
        concern.keys.extend(evidence.grants_at(index).map(|told| told.key.clone()));
        concern.keys.extend(self.gone(index, model).into_iter().map(str::to_owned));
        acts.iter().filter_map(Act::operation).for_each(|operation| concern.add(operation));
        concern.add_holders(model);
        concern
    }

    /// Returns the acts that may have happened unobserved before an index, and affect it; adds
    /// their keys and sessions to the concern.
    pub(super) fn unseen(
        &self,
        index: u64,
        concern: &mut Concern,
        model: &Model,
        is_placed: impl Fn(u64) -> bool,
    ) -> Vec<Act<'h>> {
        // The keys and sessions of a write add further writes: the creation of its session,
        // acquires of its key.
        let mut writes: Vec<&Operation> = Vec::new();
        for _ in 0..2 {
            let (keys, sessions) = (concern.keys.iter(), concern.sessions.iter());
            let keys = keys.map(String::as_str);
            let mut more = self.touching(index, keys, sessions.map(String::as_str), &is_placed);
            more.retain(|write| writes.iter().all(|known| known.number != write.number));
            more.iter().for_each(|write| concern.add(write));
            concern.add_holders(model);
            writes.extend(more);
        }
        let latest = self.facts.times.latest(index);
        let ends = concern.sessions.iter().filter(|session| {
            model.session(session).is_some_and(|wish| self.may_end(session, wish, latest).is_ok())
        });
        let ends = ends.map(|session| Act::End(session.clone()));
        // Many keys may have been deleted with their holders before any observation.
        let gone: Vec<String> = self.gone(index, model).into_iter().map(str::to_owned).collect();
        let all_gone = (gone.len() > 1).then_some(Act::EndHolders(gone));
        let leaves = concern.keys.iter().flat_map(|key| self.leavers(key, model)).map(Act::Leave);
        let is_waited_for = |key: &&String| model.is_closed(key) && !model.queue(key).is_empty();
        let opens = concern.keys.iter().filter(is_waited_for).map(|key| Act::Open(key.clone()));
        let acts = all_gone.into_iter().chain(ends).chain(leaves).chain(opens);
        acts.chain(writes.into_iter().map(Act::Write)).take(CONSIDERED).collect()
    }

    /// Returns `true` if an index is related to these keys and sessions.
    pub(super) fn bears_on(&self, index: u64, answered: Option<&Operation>, concern: &Concern) -> bool {
        let mut seen = self.facts.evidence.at(index).map(|sighting| &sighting.seen.key);
        answered.is_some_and(|operation| concern.is_touched_by(operation))
            || seen.any(|key| concern.keys.contains(key))
            || self.facts.evidence.born_at(index).any(|key| concern.keys.contains(key))
    }

    /// Checks if a session may have expired by this time; an error contains the reason why not.
    pub(super) fn may_end(&self, session: &str, wish: &SessionWish, latest: Moment) -> Result<(), String> {
        if wish.fragile {
            return Ok(());
        }
        if wish.ttl_ms == 0 {
            return Err(format!("session {session} does not expire"));
        }
        let last_sign = self.signs_of_life.get(session).copied().unwrap_or_default();
        if latest.0 < last_sign.0 + wish.ttl_ms * 1_000_000 {
            let ttl_ms = wish.ttl_ms;
            return Err(format!(
                "session {session} has a ttl of {ttl_ms} ms, was renewed at {last_sign} at the earliest, and cannot \
                 have ended by {latest}"
            ));
        }
        Ok(())
    }

    /// Returns all operations in the history that would write this value, with any outcome.
    pub(super) fn writers_of(&self, seen: &Seen) -> &[&'h Operation] {
        let written = seen.value.clone().map(|value| (seen.key.clone(), value));
        let found = written.and_then(|written| self.writers.get(&written));
        found.map_or(&[], Vec::as_slice)
    }
}

/// Returns `true` if a write may have taken effect at an index unknown to its client: if it was not
/// answered, or, very rarely, if the answer was that the lock is not held, which also answers a
/// repeated acquire whose hold is over.
fn may_have_happened(operation: &Operation, thorough: bool) -> bool {
    let is_acquire = matches!(operation.write(), Some(Write::Kv(KvWrite::Acquire { .. })));
    match &operation.outcome {
        Outcome::Unknown(_) => operation.write().is_some(),
        Outcome::Answered { reply: Reply::Succeeded(false), .. } => thorough && is_acquire,
        _ => false,
    }
}

/// Returns `true` if a write may free the lock of one of these keys.
fn frees(write: &KvWrite, keys: &BTreeSet<String>) -> bool {
    match write {
        KvWrite::Release { key, .. } | KvWrite::Delete { key } | KvWrite::DeleteCas { key, .. } => {
            keys.contains(key)
        }
        KvWrite::DeleteTree { prefix } => keys.iter().any(|key| key.starts_with(prefix)),
        _ => false,
    }
}

fn may_delete(operation: &Operation, keys: &BTreeSet<&str>) -> bool {
    kv_writes(operation).any(|write| match write {
        KvWrite::Delete { key } | KvWrite::DeleteCas { key, .. } => keys.contains(key.as_str()),
        KvWrite::DeleteTree { prefix } => keys.iter().any(|key| key.starts_with(prefix)),
        _ => false,
    })
}

/// Keys and sessions.
#[derive(Debug, Default)]
pub(super) struct Concern {
    keys: BTreeSet<String>,
    sessions: BTreeSet<String>,
}

impl Concern {
    pub(super) fn has_key(&self, key: &str) -> bool {
        self.keys.contains(key)
    }

    fn add(&mut self, operation: &Operation) {
        self.keys.extend(keys_of(operation).map(str::to_owned));
        self.sessions.extend(sessions_of(operation).into_iter().map(str::to_owned));
    }

    fn add_holders(&mut self, model: &Model) {
        let holders = self.keys.iter().filter_map(|key| model.entry(key)?.session.clone());
        self.sessions.extend(holders);
    }

    fn is_touched_by(&self, operation: &Operation) -> bool {
        let is_prefix_of_any = |prefix: &str| self.keys.iter().any(|key| key.starts_with(prefix));
        let trees = kv_writes(operation).filter_map(|write| match write {
            KvWrite::DeleteTree { prefix } => Some(prefix.as_str()),
            _ => None,
        });
        keys_of(operation).any(|key| self.keys.contains(key))
            || sessions_of(operation).into_iter().any(|session| self.sessions.contains(session))
            || trees.into_iter().any(is_prefix_of_any)
    }
}

/// Returns the key and the value that a write stores in it.
pub(super) fn written(write: &KvWrite) -> Option<(&str, &str)> {
    match write {
        KvWrite::Set { key, value }
        | KvWrite::Cas { key, value, .. }
        | KvWrite::Acquire { key, value, .. }
        | KvWrite::Enqueue { key, value, .. }
        | KvWrite::Release { key, value, .. } => Some((key, value)),
        _ => None,
    }
}

/// Returns the key writes of an operation.
pub(super) fn kv_writes(operation: &Operation) -> impl Iterator<Item = &KvWrite> {
    let (one, many) = match operation.write() {
        Some(Write::Kv(write)) => (Some(write), None),
        Some(Write::Txn(steps)) => (None, Some(steps)),
        _ => (None, None),
    };
    let of_steps = many.into_iter().flatten().filter_map(|step| match step {
        TxnStep::Write(write) => Some(write),
        _ => None,
    });
    one.into_iter().chain(of_steps)
}

/// Returns the keys of an operation.
pub(super) fn keys_of(operation: &Operation) -> impl Iterator<Item = &str> {
    let written = kv_writes(operation).filter_map(key_of);
    let read = match &operation.request {
        Request::Write(Write::Txn(steps)) => steps.as_slice(),
        _ => &[],
    };
    let read = read.iter().filter_map(|step| match step {
        TxnStep::Get { key }
        | TxnStep::CheckIndex { key, .. }
        | TxnStep::CheckSession { key, .. }
        | TxnStep::CheckNotExists { key } => Some(key.as_str()),
        _ => None,
    });
    let looked_at: &[String] = match &operation.request {
        Request::Read(read) => match &read.query {
            Query::Key(key) => std::slice::from_ref(key),
            Query::Together(keys) => keys,
            _ => &[],
        },
        _ => &[],
    };
    written.chain(read).chain(looked_at.iter().map(String::as_str))
}

/// Returns the one key of a write.
pub(super) fn key_of(write: &KvWrite) -> Option<&str> {
    match write {
        KvWrite::Set { key, .. }
        | KvWrite::Cas { key, .. }
        | KvWrite::Acquire { key, .. }
        | KvWrite::Enqueue { key, .. }
        | KvWrite::Leave { key, .. }
        | KvWrite::StopWaiting { key, .. }
        | KvWrite::Release { key, .. }
        | KvWrite::Delete { key }
        | KvWrite::DeleteCas { key, .. } => Some(key),
        KvWrite::DeleteTree { .. } => None,
    }
}

fn sessions_of(operation: &Operation) -> Vec<&str> {
    let of_writes = kv_writes(operation).filter_map(|write| match write {
        KvWrite::Acquire { session, .. }
        | KvWrite::Enqueue { session, .. }
        | KvWrite::Leave { session, .. }
        | KvWrite::StopWaiting { session, .. }
        | KvWrite::Release { session, .. } => Some(session.as_str()),
        _ => None,
    });
    let own = match operation.write() {
        Some(Write::DestroySession(session)) => Some(session.as_str()),
        Some(Write::CreateSession(wish)) => wish.id.as_deref(),
        _ => None,
    };
    of_writes.chain(own).collect()
}
