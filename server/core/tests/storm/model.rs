//! The rules once more, in the simplest form: lists that are searched from end to end, full copies
//! where an operation may fail. It must not share a line with the state machine.

use bytes::Bytes;
use lockmesh_protocol::command::{
    Command, Deregistration, KvCommand, KvVerb, NewEntry, Registration, TxnKv, TxnOp,
};
use lockmesh_protocol::id::{CheckId, Fence, Key, LogIndex, NodeName, SessionId, Term, WallTime};
use lockmesh_protocol::record::{
    Behavior, CheckStatus, Entry, Lock, LockDelay, Session, SessionSpec, Waiter,
};
use lockmesh_protocol::reply::{Refusal, Reply, TxnError, TxnResult};
use std::sync::Arc;
use std::time::Duration;

/// A check, as far as sessions depend on it.
#[derive(Clone, Debug)]
struct ModelCheck {
    node: NodeName,
    id: CheckId,
    critical: bool,
    of_service: bool,
}

/// A waiter in a queue.
#[derive(Clone, Debug)]
struct ModelWaiter {
    new: NewEntry,
    session: SessionId,
    wait: Duration,
    queue_position: LogIndex,
    enqueued_at_index: LogIndex,
}

/// The modelled state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    entries: Vec<Entry>,
    sessions: Vec<Session>,
    delays: Vec<(Key, LockDelay)>,
    /// In order of arrival.
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
                self.end(|session| session.spec.id == *id);
                Reply::Done
            }
            Command::ExpireSession { session: id, term: decided, .. } => {
                self.end(|session| session.spec.id == *id && *decided == term);
                Reply::Done
            }
            Command::EndLockDelay { key, started_at_index, .. } => {
                self.delays
                    .retain(|(closed, delay)| closed != key || delay.started_at_index != *started_at_index);
                Reply::Done
            }
            Command::EndWait { key, queue_position, enqueued_at_index } => {
                self.waiters.retain(|w| {
                    (&w.new.key, w.queue_position, w.enqueued_at_index)
                        != (key, *queue_position, *enqueued_at_index)
                });
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

    /// The queue position and the last request's index of the first waiter in a key's queue.
    pub(crate) fn first_waiter(&self, key: &Key) -> Option<(LogIndex, LogIndex)> {
        let waiter = self.waiters.iter().find(|waiter| waiter.new.key == *key)?;
        Some((waiter.queue_position, waiter.enqueued_at_index))
    }

    /// The index of a session's last request: of its queue position, or of the lock.
    pub(crate) fn mark_of(&self, key: &Key, session: SessionId) -> LogIndex {
        let waits = self.waiters.iter().find(|w| w.new.key == *key && w.session == session);
        let holds = self.find(key).filter(|entry| entry.lock.session == Some(session));
        waits
            .map(|waiter| waiter.enqueued_at_index)
            .or(holds.and_then(|entry| entry.lock.granted_for))
            .unwrap_or_default()
    }

    pub(crate) fn forget_waiters(&mut self) {
        self.waiters.clear();
    }

    pub(crate) fn sorted_waiters(&self) -> Vec<(Key, LogIndex, Waiter)> {
        let row = |waiter: &ModelWaiter| {
            let ModelWaiter { new, session, wait, queue_position, enqueued_at_index } = waiter.clone();
            let NewEntry { key, value, flags } = new;
            (key, queue_position, Waiter { session, value, flags, wait, enqueued_at_index })
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
        sessions.sort_by_key(|left| left.spec.id);
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
                Reply::Succeeded(true)
            }
            KvCommand::Cas(new, expected) => {
                let holds = self.find(&new.key).map(|entry| entry.modify_index) == *expected;
                if holds {
                    self.write(new);
                }
                Reply::Succeeded(holds)
            }
            KvCommand::Acquire(new, session) => self.acquire(new, *session),
            KvCommand::Enqueue { new, session, wait } => self.enqueue(new, *session, *wait),
            KvCommand::Leave { key, session, enqueued_at_index } => {
                let is_left = |w: &ModelWaiter| {
                    (&w.new.key, w.session, w.enqueued_at_index) == (key, *session, *enqueued_at_index)
                };
                let waited = self.waiters.iter().any(is_left);
                self.waiters.retain(|waiter| !is_left(waiter));
                let holds = self.find(key).is_some_and(|entry| {
                    !waited
                        && entry.lock.session == Some(*session)
                        && entry.lock.granted_for == Some(*enqueued_at_index)
                });
                if holds {
                    self.free(key);
                    return Reply::Done;
                }
                Reply::Succeeded(waited)
            }
            KvCommand::StopWaiting { key, session, enqueued_at_index } => {
                let before = self.waiters.len();
                self.waiters.retain(|w| {
                    (&w.new.key, w.session, w.enqueued_at_index) != (key, *session, *enqueued_at_index)
                });
                Reply::Succeeded(self.waiters.len() < before)
            }
            KvCommand::Release(new, session) => {
                let holds = self.find(&new.key).is_some_and(|entry| entry.lock.session == Some(*session));
                if holds {
                    self.write(new);
                    self.free(&new.key);
                } else {
                    self.waiters.retain(|w| (&w.new.key, w.session) != (&new.key, *session));
                }
                Reply::Succeeded(holds)
            }
            KvCommand::Delete(key) => {
                self.entries.retain(|entry| entry.key != *key);
                Reply::Succeeded(true)
            }
            KvCommand::DeleteCas(key, expected) => {
                let holds = self.find(key).is_none_or(|entry| entry.modify_index == *expected);
                self.entries.retain(|entry| entry.key != *key || !holds);
                Reply::Succeeded(holds)
            }
            KvCommand::DeleteTree(prefix) => {
                self.entries.retain(|entry| !entry.key.as_str().starts_with(prefix.as_str()));
                Reply::Succeeded(true)
            }
        }
    }

    fn acquire(&mut self, new: &NewEntry, session: SessionId) -> Reply {
        if let Some(delay) = self.delay(&new.key) {
            return Reply::Delayed { remaining: delay.duration };
        }
        if !self.sessions.iter().any(|alive| alive.spec.id == session) {
            return Reply::Refused(Refusal::InvalidSession(session));
        }
        match self.find(&new.key).and_then(|entry| entry.lock.session) {
            Some(holder) if holder == session => {
                let entry = self.entries.iter_mut().find(|entry| entry.key == new.key);
                entry.expect("it is held").lock.granted_for = None;
                self.write(new);
            }
            Some(_) => return Reply::Succeeded(false),
            None => self.grant(new, session, None),
        }
        Reply::Granted { fence: self.find(&new.key).expect("it was just written").lock.fence }
    }

    fn enqueue(&mut self, new: &NewEntry, session: SessionId, wait: Duration) -> Reply {
        let is_free = self.delay(&new.key).is_none()
            && self.find(&new.key).is_none_or(|entry| entry.lock.session.is_none());
        let is_alive = self.sessions.iter().any(|alive| alive.spec.id == session);
        let holds = self.find(&new.key).is_some_and(|entry| entry.lock.session == Some(session));
        if !is_alive || holds {
            // An ended session is rejected as invalid, whether the key is closed or not.
            let delays = std::mem::take(&mut self.delays);
            let reply = self.acquire(new, session);
            self.delays = delays;
            return reply;
        }
        let enqueued_at_index = LogIndex(self.now);
        if is_free {
            self.grant(new, session, Some(enqueued_at_index));
            return Reply::Granted { fence: Fence(self.fence) };
        }
        let known = self.waiters.iter_mut().find(|w| w.new.key == new.key && w.session == session);
        if let Some(waiter) = known {
            (waiter.new, waiter.wait, waiter.enqueued_at_index) = (new.clone(), wait, enqueued_at_index);
            return Reply::Queued { queue_position: waiter.queue_position };
        }
        let new = new.clone();
        self.waiters.push(ModelWaiter {
            new,
            session,
            wait,
            queue_position: enqueued_at_index,
            enqueued_at_index,
        });
        Reply::Queued { queue_position: enqueued_at_index }
    }

    /// Grants each free lock to its first waiter, in key order.
    fn grant_what_is_free(&mut self) {
        let sessions = self.sessions.clone();
        self.waiters.retain(|waiter| sessions.iter().any(|session| session.spec.id == waiter.session));
        let mut keys: Vec<Key> = self.waiters.iter().map(|waiter| waiter.new.key.clone()).collect();
        keys.sort();
        for key in keys {
            let is_free = self.delay(&key).is_none()
                && self.find(&key).is_none_or(|entry| entry.lock.session.is_none());
            let first = self.waiters.iter().position(|waiter| waiter.new.key == key);
            if let Some(first) = first.filter(|_| is_free) {
                let waiter = self.waiters.remove(first);
                self.grant(&waiter.new, waiter.session, Some(waiter.enqueued_at_index));
            }
        }
    }

    fn grant(&mut self, new: &NewEntry, session: SessionId, granted_for: Option<LogIndex>) {
        self.waiters.retain(|waiter| waiter.new.key != new.key || waiter.session != session);
        self.write(new);
        self.fence += 1;
        let (fence, now) = (self.fence, self.now);
        self.change(&new.key, |entry| {
            let index = entry.lock.index + 1;
            let granted_at = WallTime(now);
            entry.lock = Lock { session: Some(session), index, fence: Fence(fence), granted_at, granted_for };
        });
    }

    fn free(&mut self, key: &Key) {
        self.change(key, |entry| (entry.lock.session, entry.lock.granted_for) = (None, None));
    }

    /// A plain write.
    fn write(&mut self, new: &NewEntry) {
        if self.find(&new.key).is_none() {
            self.entries.push(Entry {
                key: new.key.clone(),
                value: Bytes::new(),
                flags: 0,
                lock: Lock::default(),
                create_index: LogIndex(self.now),
                modify_index: LogIndex(self.now),
            });
        }
        self.change(&new.key, |entry| {
            entry.value = new.value.clone();
            entry.flags = new.flags;
        });
    }

    /// Changes an entry; it gets the current index if anything changed.
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

    fn create(&mut self, new: &SessionSpec) -> Reply {
        if self.sessions.iter().any(|session| session.spec.id == new.id) {
            return Reply::Refused(Refusal::SessionIdInUse(new.id));
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
            spec: new.clone(),
            created_at: WallTime(self.now),
            create_index: LogIndex(self.now),
        });
        Reply::Session(new.id)
    }

    /// Ends all sessions that match.
    fn end(&mut self, doomed: impl Fn(&Session) -> bool) {
        for session in self.sessions.clone().into_iter().filter(doomed) {
            self.sessions.retain(|other| other.spec.id != session.spec.id);
            for entry in self.entries.clone() {
                if entry.lock.session != Some(session.spec.id) {
                    continue;
                }
                match session.spec.behavior {
                    Behavior::Release => self.free(&entry.key),
                    Behavior::Delete => self.entries.retain(|other| other.key != entry.key),
                }
                if session.spec.lock_delay > Duration::ZERO {
                    let duration = session.spec.lock_delay.min(Duration::from_secs(60));
                    self.delays
                        .push((entry.key, LockDelay { started_at_index: LogIndex(self.now), duration }));
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
                self.end(|session| {
                    session.spec.node == *node && session.spec.node_checks.contains(&check.id)
                });
            }
            self.checks.retain(|other| other.node != *node || other.id != check.id);
            let (node, id, of_service) = (node.clone(), check.id.clone(), check.service_id.is_some());
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
            self.end(|session| session.spec.node == *node && session.spec.node_checks.contains(&check.id));
            self.checks.retain(|other| other.node != *node || other.id != check.id);
        }
        if gone.service.is_some() || gone.check.is_none() {
            self.services.retain(|other| other != node);
        }
        if gone.service.is_none() && gone.check.is_none() {
            self.end(|session| session.spec.node == *node);
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
                let text = |session: Option<SessionId>| session.map(|id| id.to_string()).unwrap_or_default();
                return if entry.lock.session == named(op) {
                    Ok(bare(entry))
                } else {
                    let (holder, wanted) = (text(entry.lock.session), text(named(op)));
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
            (KvVerb::Lock, Reply::Refused(_)) if op.session.is_none() => Err("missing session".into()),
            (_, Reply::Refused(refusal)) => Err(refusal.to_string()),
            (KvVerb::Cas, Reply::Succeeded(false)) => {
                Err(format!("failed to set key \"{key}\", index is stale"))
            }
            (KvVerb::DeleteCas, Reply::Succeeded(false)) => {
                Err(format!("failed to delete key \"{key}\", index is stale"))
            }
            (KvVerb::Lock, Reply::Succeeded(false)) => {
                Err(format!("failed to lock key \"{key}\", lock is already held"))
            }
            (KvVerb::Unlock, _) if op.session.is_none() => Err("missing session".into()),
            (KvVerb::Unlock, Reply::Succeeded(false)) => {
                Err(format!("failed to unlock key \"{key}\", lock isn't held, or is held by another session"))
            }
            (KvVerb::Delete | KvVerb::DeleteTree | KvVerb::DeleteCas, _) => Ok(Vec::new()),
            _ => Ok(bare(self.find(&key).cloned().expect("it was just written"))),
        }
    }
}

/// The session that an operation names: in storms always an id.
fn named(op: &TxnKv) -> Option<SessionId> {
    op.session.as_deref().map(|text| SessionId::parse(text).expect("it is an id"))
}

fn empty(op: &TxnKv) -> Entry {
    Entry {
        key: op.key.clone(),
        value: Bytes::new(),
        flags: op.flags,
        lock: Lock { session: named(op), ..Lock::default() },
        create_index: LogIndex(0),
        modify_index: op.index,
    }
}

fn as_command(op: &TxnKv) -> KvCommand {
    let new = NewEntry { key: op.key.clone(), value: op.value.clone(), flags: op.flags };
    match op.verb {
        KvVerb::Set => KvCommand::Set(new),
        KvVerb::Cas => KvCommand::Cas(new, Some(op.index).filter(|index| index.0 > 0)),
        KvVerb::Lock => KvCommand::Acquire(new, named(op).unwrap_or(SessionId::NIL)),
        KvVerb::Unlock => KvCommand::Release(new, named(op).unwrap_or(SessionId::NIL)),
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
