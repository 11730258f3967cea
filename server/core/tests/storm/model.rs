//! The rules once more, as simply as they can be said: lists that are searched from end to end, whole copies
//! where something may fail. It must not share a line with the state machine.

use bytes::Bytes;
use lockmesh_protocol::command::{
    Command, Deregistration, KvCommand, KvVerb, NewEntry, NewSession, Registration, TxnKv, TxnOp,
};
use lockmesh_protocol::id::{CheckId, Fence, Key, LogIndex, NodeName, SessionId, Term, WallTime};
use lockmesh_protocol::record::{Behavior, CheckStatus, Entry, LockDelay, Session, Waiter};
use lockmesh_protocol::reply::{Refusal, Reply, TxnError, TxnResult};
use std::sync::Arc;
use std::time::Duration;

/// A check, as far as sessions care.
#[derive(Clone, Debug)]
struct ModelCheck {
    node: NodeName,
    id: CheckId,
    critical: bool,
    of_service: bool,
}

/// Somebody in a queue.
#[derive(Clone, Debug)]
struct ModelWaiter {
    new: NewEntry,
    session: SessionId,
    wait: Duration,
    ticket: LogIndex,
    mark: LogIndex,
}

/// Everything that is modelled.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    entries: Vec<Entry>,
    sessions: Vec<Session>,
    delays: Vec<(Key, LockDelay)>,
    /// In the order of their coming.
    waiters: Vec<ModelWaiter>,
    nodes: Vec<NodeName>,
    /// The nodes that have the service `web`.
    services: Vec<NodeName>,
    checks: Vec<ModelCheck>,
    fence: u64,
    now: u64,
}

impl Model {
    pub(crate) fn apply(&mut self, index: LogIndex, term: Term, command: &Command) -> Reply {
        self.now = index.0;
        let reply = self.carry_out(term, command);
        self.grant_what_is_free();
        reply
    }

    fn carry_out(&mut self, term: Term, command: &Command) -> Reply {
        match command {
            Command::Kv(command) => self.kv(command),
            Command::CreateSession(new) => self.create(new),
            Command::DestroySession(id) => {
                self.end(|session| session.id == *id);
                Reply::Done
            }
            Command::ExpireSession { session: id, term: decided, .. } => {
                self.end(|session| session.id == *id && *decided == term);
                Reply::Done
            }
            Command::EndLockDelay { key, mark, .. } => {
                self.delays.retain(|(closed, delay)| closed != key || delay.mark != *mark);
                Reply::Done
            }
            Command::EndWait { key, ticket, mark } => {
                self.waiters.retain(|w| (&w.new.key, w.ticket, w.mark) != (key, *ticket, *mark));
                Reply::Done
            }
            Command::ReapTombstones { .. } => Reply::Done,
            Command::Register(registration) => self.register(registration),
            Command::Deregister(deregistration) => self.deregister(deregistration),
            Command::Txn(ops) => self.txn(ops),
            other => panic!("the model knows nothing of {other:?}"),
        }
    }

    pub(crate) fn newest(&self) -> u64 {
        self.now
    }

    pub(crate) fn modify_index(&self, key: &Key) -> LogIndex {
        self.find(key).map_or(LogIndex(0), |entry| entry.modify_index)
    }

    pub(crate) fn delay(&self, key: &Key) -> Option<LockDelay> {
        self.delays.iter().find(|(closed, _)| closed == key).map(|(_, delay)| *delay)
    }

    /// The ticket and the mark of the first in a key's queue.
    pub(crate) fn first_waiter(&self, key: &Key) -> Option<(LogIndex, LogIndex)> {
        let waiter = self.waiters.iter().find(|waiter| waiter.new.key == *key)?;
        Some((waiter.ticket, waiter.mark))
    }

    /// What a session asked for last that goes with a request of its own: its place in the queue, or the lock.
    pub(crate) fn mark_of(&self, key: &Key, session: &SessionId) -> LogIndex {
        let waits = self.waiters.iter().find(|w| w.new.key == *key && w.session == *session);
        let holds = self.find(key).filter(|entry| entry.session.as_ref() == Some(session));
        waits.map(|waiter| waiter.mark).or(holds.map(|entry| entry.awaited)).unwrap_or_default()
    }

    pub(crate) fn forget_waiters(&mut self) {
        self.waiters.clear();
    }

    pub(crate) fn sorted_waiters(&self) -> Vec<(Key, LogIndex, Waiter)> {
        let row = |waiter: &ModelWaiter| {
            let ModelWaiter { new, session, wait, ticket, mark } = waiter.clone();
            let NewEntry { key, value, flags } = new;
            (key, ticket, Waiter { session, value, flags, wait, mark })
        };
        let mut waiters: Vec<_> = self.waiters.iter().map(row).collect();
        waiters.sort_by(|left, right| (&left.0, left.1).cmp(&(&right.0, right.1)));
        waiters
    }

    pub(crate) fn sorted_entries(&self) -> Vec<Arc<Entry>> {
        let mut entries: Vec<Arc<Entry>> = self.entries.iter().cloned().map(Arc::new).collect();
        entries.sort_by(|left, right| left.key.cmp(&right.key));
        entries
    }

    pub(crate) fn sorted_sessions(&self) -> Vec<Arc<Session>> {
        let mut sessions: Vec<Arc<Session>> = self.sessions.iter().cloned().map(Arc::new).collect();
        sessions.sort_by(|left, right| left.id.cmp(&right.id));
        sessions
    }

    pub(crate) fn sorted_delays(&self) -> Vec<(Key, LockDelay)> {
        let mut delays = self.delays.clone();
        delays.sort_by(|left, right| left.0.cmp(&right.0));
        delays
    }

    fn find(&self, key: &Key) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == *key)
    }

    fn kv(&mut self, command: &KvCommand) -> Reply {
        match command {
            KvCommand::Set(new) => {
                self.write(new);
                Reply::Flag(true)
            }
            KvCommand::Cas(new, expected) => {
                let holds = self.modify_index(&new.key) == *expected;
                if holds {
                    self.write(new);
                }
                Reply::Flag(holds)
            }
            KvCommand::Acquire(new, session) => self.acquire(new, session),
            KvCommand::Enqueue { new, session, wait } => self.enqueue(new, session, *wait),
            KvCommand::Leave { key, session, mark } => {
                let is_left = |w: &ModelWaiter| (&w.new.key, &w.session, w.mark) == (key, session, *mark);
                let waited = self.waiters.iter().any(is_left);
                self.waiters.retain(|waiter| !is_left(waiter));
                let holds = self.find(key).is_some_and(|entry| {
                    !waited && entry.session.as_ref() == Some(session) && entry.awaited == *mark
                });
                if holds {
                    self.free(key);
                    return Reply::Done;
                }
                Reply::Flag(waited)
            }
            KvCommand::StopWaiting { key, session, mark } => {
                let before = self.waiters.len();
                self.waiters.retain(|w| (&w.new.key, &w.session, w.mark) != (key, session, *mark));
                Reply::Flag(self.waiters.len() < before)
            }
            KvCommand::Release(new, session) => {
                let holds = self.find(&new.key).is_some_and(|entry| entry.session.as_ref() == Some(session));
                if holds {
                    self.write(new);
                    self.free(&new.key);
                } else {
                    self.waiters.retain(|w| (&w.new.key, &w.session) != (&new.key, session));
                }
                Reply::Flag(holds)
            }
            KvCommand::Delete(key) => {
                self.entries.retain(|entry| entry.key != *key);
                Reply::Flag(true)
            }
            KvCommand::DeleteCas(key, expected) => {
                let holds = self.find(key).is_none_or(|entry| entry.modify_index == *expected);
                self.entries.retain(|entry| entry.key != *key || !holds);
                Reply::Flag(holds)
            }
            KvCommand::DeleteTree(prefix) => {
                self.entries.retain(|entry| !entry.key.as_str().starts_with(prefix.as_str()));
                Reply::Flag(true)
            }
        }
    }

    fn acquire(&mut self, new: &NewEntry, session: &SessionId) -> Reply {
        if let Some(delay) = self.delay(&new.key) {
            return Reply::Delayed { remaining: delay.duration };
        }
        if session.as_str().is_empty() {
            return Reply::Refused(Refusal::MissingSession);
        }
        if !self.sessions.iter().any(|alive| alive.id == *session) {
            return Reply::Refused(Refusal::InvalidSession(session.clone()));
        }
        match self.find(&new.key).and_then(|entry| entry.session.clone()) {
            Some(holder) if holder == *session => {
                let entry = self.entries.iter_mut().find(|entry| entry.key == new.key);
                entry.expect("it is held").awaited = LogIndex(0);
                self.write(new);
            }
            Some(_) => return Reply::Flag(false),
            None => self.grant(new, session, LogIndex(0)),
        }
        Reply::Granted { fence: self.find(&new.key).expect("it was just written").fence }
    }

    fn enqueue(&mut self, new: &NewEntry, session: &SessionId, wait: Duration) -> Reply {
        let is_free =
            self.delay(&new.key).is_none() && self.find(&new.key).is_none_or(|entry| entry.session.is_none());
        let is_alive = self.sessions.iter().any(|alive| alive.id == *session);
        let holds = self.find(&new.key).is_some_and(|entry| entry.session.as_ref() == Some(session));
        if !is_alive || holds {
            // A dead session is refused for being dead, whether the key is closed or not.
            let delays = std::mem::take(&mut self.delays);
            let reply = self.acquire(new, session);
            self.delays = delays;
            return reply;
        }
        let mark = LogIndex(self.now);
        if is_free {
            self.grant(new, session, mark);
            return Reply::Granted { fence: Fence(self.fence) };
        }
        let known = self.waiters.iter_mut().find(|w| w.new.key == new.key && w.session == *session);
        if let Some(waiter) = known {
            (waiter.new, waiter.wait, waiter.mark) = (new.clone(), wait, mark);
            return Reply::Queued { ticket: waiter.ticket };
        }
        let (new, session) = (new.clone(), session.clone());
        self.waiters.push(ModelWaiter { new, session, wait, ticket: mark, mark });
        Reply::Queued { ticket: mark }
    }

    /// Key after key, the first who waits gets what nobody has.
    fn grant_what_is_free(&mut self) {
        let sessions = self.sessions.clone();
        self.waiters.retain(|waiter| sessions.iter().any(|session| session.id == waiter.session));
        let mut keys: Vec<Key> = self.waiters.iter().map(|waiter| waiter.new.key.clone()).collect();
        keys.sort();
        for key in keys {
            let is_free =
                self.delay(&key).is_none() && self.find(&key).is_none_or(|entry| entry.session.is_none());
            let first = self.waiters.iter().position(|waiter| waiter.new.key == key);
            if let Some(first) = first.filter(|_| is_free) {
                let waiter = self.waiters.remove(first);
                self.grant(&waiter.new, &waiter.session, waiter.mark);
            }
        }
    }

    fn grant(&mut self, new: &NewEntry, session: &SessionId, awaited: LogIndex) {
        self.waiters.retain(|waiter| waiter.new.key != new.key || waiter.session != *session);
        self.write(new);
        self.fence += 1;
        let (fence, now) = (self.fence, self.now);
        self.change(&new.key, |entry| {
            entry.session = Some(session.clone());
            entry.lock_index += 1;
            entry.fence = Fence(fence);
            entry.granted_at = WallTime(now);
            entry.awaited = awaited;
        });
    }

    fn free(&mut self, key: &Key) {
        self.change(key, |entry| (entry.session, entry.awaited) = (None, LogIndex(0)));
    }

    /// A plain write.
    fn write(&mut self, new: &NewEntry) {
        if self.find(&new.key).is_none() {
            self.entries.push(Entry {
                key: new.key.clone(),
                value: Bytes::new(),
                flags: 0,
                lock_index: 0,
                session: None,
                fence: Fence(0),
                granted_at: WallTime(0),
                awaited: LogIndex(0),
                create_index: LogIndex(self.now),
                modify_index: LogIndex(self.now),
            });
        }
        self.change(&new.key, |entry| {
            entry.value = new.value.clone();
            entry.flags = new.flags;
        });
    }

    /// Changes an entry; it gets the present index if anything became different.
    fn change(&mut self, key: &Key, change: impl FnOnce(&mut Entry)) {
        let now = LogIndex(self.now);
        let entry =
            self.entries.iter_mut().find(|entry| entry.key == *key).expect("only what is there changes");
        let before = entry.clone();
        change(entry);
        if *entry != before {
            entry.modify_index = now;
        }
    }

    fn create(&mut self, new: &NewSession) -> Reply {
        if self.sessions.iter().any(|session| session.id == new.id) {
            return Reply::Refused(Refusal::SessionIdInUse(new.id.clone()));
        }
        if !self.nodes.contains(&new.node) {
            return Reply::Refused(Refusal::MissingNode);
        }
        for id in &new.node_checks {
            match self.checks.iter().find(|check| check.node == new.node && check.id == *id) {
                None => return Reply::Refused(Refusal::MissingCheck(id.clone())),
                Some(check) if check.critical => return Reply::Refused(Refusal::CriticalCheck(id.clone())),
                Some(_) => {}
            }
        }
        self.sessions.push(Session {
            id: new.id.clone(),
            name: new.name.clone(),
            node: new.node.clone(),
            lock_delay: new.lock_delay,
            behavior: new.behavior,
            ttl_text: new.ttl_text.clone(),
            ttl: new.ttl,
            checks: new.checks.clone(),
            node_checks: new.node_checks.clone(),
            service_checks: new.service_checks.clone(),
            created_at: WallTime(self.now),
            create_index: LogIndex(self.now),
            modify_index: LogIndex(self.now),
        });
        Reply::Session(new.id.clone())
    }

    /// Ends all sessions of which something is true.
    fn end(&mut self, doomed: impl Fn(&Session) -> bool) {
        for session in self.sessions.clone().into_iter().filter(doomed) {
            self.sessions.retain(|other| other.id != session.id);
            for entry in self.entries.clone() {
                if entry.session.as_ref() != Some(&session.id) {
                    continue;
                }
                match session.behavior {
                    Behavior::Release => self.free(&entry.key),
                    Behavior::Delete => self.entries.retain(|other| other.key != entry.key),
                }
                if session.lock_delay > Duration::ZERO {
                    let duration = session.lock_delay.min(Duration::from_secs(60));
                    self.delays.push((entry.key, LockDelay { mark: LogIndex(self.now), duration }));
                }
            }
        }
    }

    fn register(&mut self, registration: &Registration) -> Reply {
        let node = &registration.node.name;
        if !self.nodes.contains(node) {
            self.nodes.push(node.clone());
        }
        if registration.service.is_some() && !self.services.contains(node) {
            self.services.push(node.clone());
        }
        for check in &registration.checks {
            let critical = check.status == CheckStatus::Critical;
            if critical {
                self.end(|session| session.node == *node && session.node_checks.contains(&check.id));
            }
            self.checks.retain(|other| other.node != *node || other.id != check.id);
            let (node, id, of_service) = (node.clone(), check.id.clone(), !check.service_id.is_empty());
            self.checks.push(ModelCheck { node, id, critical, of_service });
        }
        Reply::Done
    }

    fn deregister(&mut self, gone: &Deregistration) -> Reply {
        let node = &gone.node;
        let goes = |check: &ModelCheck| match (&gone.service, &gone.check) {
            (Some(_), _) => check.of_service,
            (None, Some(id)) => check.id == *id,
            (None, None) => true,
        };
        let checks: Vec<ModelCheck> =
            self.checks.iter().filter(|check| check.node == *node && goes(check)).cloned().collect();
        for check in checks {
            self.end(|session| session.node == *node && session.node_checks.contains(&check.id));
            self.checks.retain(|other| other.node != *node || other.id != check.id);
        }
        if gone.service.is_some() || gone.check.is_none() {
            self.services.retain(|other| other != node);
        }
        if gone.service.is_none() && gone.check.is_none() {
            self.end(|session| session.node == *node);
            self.nodes.retain(|other| other != node);
        }
        Reply::Done
    }

    fn txn(&mut self, ops: &[TxnOp]) -> Reply {
        let ops: Vec<&TxnKv> = ops
            .iter()
            .map(|op| match op {
                TxnOp::Kv(op) => op,
                other => panic!("the model knows nothing of {other:?}"),
            })
            .collect();
        let early: Vec<TxnError> = (0..).zip(&ops).filter_map(|(i, op)| error(i, self.forbids(op))).collect();
        if !early.is_empty() {
            return Reply::TxnFailed(early);
        }
        let mut copy = self.clone();
        let (mut results, mut errors) = (Vec::new(), Vec::new());
        for (i, op) in (0..).zip(&ops) {
            match copy.op(op) {
                Ok(more) => results.extend(more),
                Err(what) => errors.extend(error(i, Some(what))),
            }
        }
        if !errors.is_empty() {
            return Reply::TxnFailed(errors);
        }
        *self = copy;
        Reply::Txn(results)
    }

    fn forbids(&self, op: &TxnKv) -> Option<String> {
        match &op.verb {
            KvVerb::Unknown(word) => Some(format!("unknown KV operation: {word}")),
            KvVerb::Lock if self.delay(&op.key).is_some() => {
                Some(format!("failed to lock key \"{}\" due to lock delay", op.key))
            }
            _ => None,
        }
    }

    fn op(&mut self, op: &TxnKv) -> Result<Vec<TxnResult>, String> {
        let key = op.key.clone();
        let found = self.find(&key).cloned();
        match op.verb {
            KvVerb::Get => return found.map(full).ok_or(format!("key \"{key}\" doesn't exist")),
            KvVerb::GetOrEmpty => {
                return Ok(full(found.unwrap_or_else(|| empty(op))));
            }
            KvVerb::GetTree => {
                let under =
                    self.sorted_entries().into_iter().filter(|e| e.key.as_str().starts_with(key.as_str()));
                return Ok(under.map(TxnResult::Kv).collect());
            }
            KvVerb::CheckSession => {
                let entry = found.ok_or(format!("failed to check session, key \"{key}\" doesn't exist"))?;
                let holder = entry.session.clone().unwrap_or(SessionId::from(""));
                return if holder == op.session {
                    Ok(bare(entry))
                } else {
                    let wanted = &op.session;
                    Err(format!(
                        "failed session check for key \"{key}\", current session \"{holder}\" != \"{wanted}\""
                    ))
                };
            }
            KvVerb::CheckIndex => {
                let entry = found.ok_or(format!("failed to check index, key \"{key}\" doesn't exist"))?;
                let (is, wanted) = (entry.modify_index, op.index);
                return if is == wanted {
                    Ok(bare(entry))
                } else {
                    Err(format!(
                        "failed index check for key \"{key}\", current modify index {is} != {wanted}"
                    ))
                };
            }
            KvVerb::CheckNotExists => {
                return if found.is_none() { Ok(Vec::new()) } else { Err(format!("key \"{key}\" exists")) };
            }
            _ => {}
        }
        let reply = self.kv(&as_command(op));
        match (&op.verb, reply) {
            (_, Reply::Refused(refusal)) => Err(refusal.to_string()),
            (KvVerb::Cas, Reply::Flag(false)) => Err(format!("failed to set key \"{key}\", index is stale")),
            (KvVerb::DeleteCas, Reply::Flag(false)) => {
                Err(format!("failed to delete key \"{key}\", index is stale"))
            }
            (KvVerb::Lock, Reply::Flag(false)) => {
                Err(format!("failed to lock key \"{key}\", lock is already held"))
            }
            (KvVerb::Unlock, _) if op.session == SessionId::from("") => Err("missing session".into()),
            (KvVerb::Unlock, Reply::Flag(false)) => {
                Err(format!("failed to unlock key \"{key}\", lock isn't held, or is held by another session"))
            }
            (KvVerb::Delete | KvVerb::DeleteTree | KvVerb::DeleteCas, _) => Ok(Vec::new()),
            _ => Ok(bare(self.find(&key).cloned().expect("it was just written"))),
        }
    }
}

fn empty(op: &TxnKv) -> Entry {
    Entry {
        key: op.key.clone(),
        value: Bytes::new(),
        flags: op.flags,
        lock_index: 0,
        session: Some(op.session.clone()).filter(|session| *session != SessionId::from("")),
        fence: Fence(0),
        granted_at: WallTime(0),
        awaited: LogIndex(0),
        create_index: LogIndex(0),
        modify_index: op.index,
    }
}

fn as_command(op: &TxnKv) -> KvCommand {
    let new = NewEntry { key: op.key.clone(), value: op.value.clone(), flags: op.flags };
    match op.verb {
        KvVerb::Set => KvCommand::Set(new),
        KvVerb::Cas => KvCommand::Cas(new, op.index),
        KvVerb::Lock => KvCommand::Acquire(new, op.session.clone()),
        KvVerb::Unlock => KvCommand::Release(new, op.session.clone()),
        KvVerb::Delete => KvCommand::Delete(new.key),
        KvVerb::DeleteTree => KvCommand::DeleteTree(new.key),
        KvVerb::DeleteCas => KvCommand::DeleteCas(new.key, op.index),
        _ => panic!("{:?} is not a write", op.verb),
    }
}

fn error(op_index: u32, what: Option<String>) -> Option<TxnError> {
    what.map(|what| TxnError { op_index, what })
}

fn full(entry: Entry) -> Vec<TxnResult> {
    vec![TxnResult::Kv(Arc::new(entry))]
}

fn bare(entry: Entry) -> Vec<TxnResult> {
    full(Entry { value: Bytes::new(), ..entry })
}
