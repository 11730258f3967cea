//! A client that takes locks: it creates a session, renews or neglects it, acquires, waits in
//! queues, and releases. It knows until when it may believe in its locks.

use super::client::{Wish, lock_key};
use super::invariant::Fact;
use super::judge::Judge;
use super::marks::Mark;
use super::stage::Stage;
use lockmesh_protocol::command::{Command, KvCommand, NewEntry};
use lockmesh_protocol::id::{Fence, Key, SessionId};
use lockmesh_protocol::query::{Query, Rows};
use lockmesh_protocol::record::{Behavior, LockMode, RequestedLock, SessionSpec};
use lockmesh_protocol::reply::{Applied, Refusal, Reply};
use lockmesh_protocol::rpc::{Request, Response};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A session as its owner knows it.
#[derive(Clone, Debug)]
struct Owned {
    id: SessionId,
    ttl: Duration,
    /// The send time of the last request that is known to have found the session alive.
    confirmed: Time,
    /// `true` if the owner no longer renews it.
    neglected: bool,
    held: BTreeSet<Key>,
    /// Locks with an undelivered grant, perhaps; the client requests none of them meanwhile.
    unheard: BTreeMap<Key, Unheard>,
}

/// A lock that the agent must release if it was granted.
#[derive(Clone, Copy, Debug)]
struct Unheard {
    /// The newest fence before the request.
    before: Fence,
    /// The number of restores so far: the next one may bring back a hold that was released.
    restores: usize,
}

/// The state of the client.
#[derive(Debug)]
pub struct Locker {
    place: usize,
    session: Option<Owned>,
    /// Sessions that may be alive and that no client needs.
    orphans: Vec<SessionId>,
    written: u64,
    /// The newest fence at the last wake-up.
    fence: Fence,
    /// `true` if it took a lock or was refused one since the storm ended.
    served: bool,
}

impl Owned {
    /// Returns the time until which the session certainly lives. A server's clock may run fast.
    fn lease(&self) -> Time {
        if self.ttl.is_zero() { Time(u64::MAX) } else { self.confirmed + self.ttl * 99 / 100 }
    }
}

impl Locker {
    /// Returns a locker on an agent's node.
    pub fn new(place: usize) -> Self {
        Self { place, session: None, orphans: Vec::new(), written: 0, fence: Fence(0), served: false }
    }

    /// Returns `true` if it was served since the storm ended, and has released everything.
    pub fn is_content(&self) -> bool {
        self.served && self.session.is_none() && self.orphans.is_empty()
    }

    /// Returns the next request, if any.
    pub fn wish(&mut self, stage: &mut Stage, judge: &mut Judge) -> Option<Wish> {
        if let Some(orphan) = self.orphans.pop() {
            return Some(command(stage, Command::DestroySession(orphan)));
        }
        self.fence = judge.history.state().fence();
        if self.waits_for_unheard(stage, judge) {
            return None;
        }
        if self.served {
            return self.session.is_some().then(|| self.destroy(stage, judge));
        }
        let Some(session) = &mut self.session else { return Some(self.create(stage)) };
        if session.neglected && session.lease() < stage.now {
            // The session is gone, or will be.
            self.drop_session(stage, judge);
            return Some(self.create(stage));
        }
        let held = session.held.first().cloned();
        match (stage.draw.below(12), held) {
            (0, _) => Some(self.destroy(stage, judge)),
            (1, _) if !session.ttl.is_zero() => {
                session.neglected = true;
                None
            }
            (2..=5, Some(key)) => Some(self.release(stage, judge, key)),
            (6..=8, Some(key)) => Some(self.acquire(stage, key)),
            (number, _) => {
                let key = lock_key(stage);
                let is_unheard =
                    self.session.as_ref().is_some_and(|session| session.unheard.contains_key(&key));
                match number {
                    _ if is_unheard => None,
                    9 => Some(self.enqueue(stage, key)),
                    10 => self.request(stage, judge, key),
                    _ => Some(self.acquire(stage, key)),
                }
            }
        }
    }

    /// After the storm, waits until no undelivered grant belongs to its session any more.
    fn waits_for_unheard(&mut self, stage: &Stage, judge: &Judge) -> bool {
        let Some(session) = self.session.as_mut().filter(|_| stage.calm) else { return false };
        let (id, history) = (&session.id, &judge.history);
        let holds = |key: &Key, before: Fence| {
            let query = Query::HeldEntry { key: key.clone(), session: *id };
            let Rows::Entries(entries) = history.state().query(&query).1 else { return false };
            entries.iter().any(|entry| entry.lock.session.as_ref() == Some(id) && entry.lock.fence > before)
        };
        let is_owed =
            |key: &Key, lock: Unheard| lock.restores == history.restores() && holds(key, lock.before);
        session.unheard.retain(|key, lock| is_owed(key, *lock));
        !session.unheard.is_empty()
    }

    /// The client disconnects while it waits. Its session may live on, and no longer wants the
    /// lock.
    pub fn went_away(&mut self, stage: &mut Stage, judge: &mut Judge, wish: &Wish) {
        let Request::Propose(_, asked) = &wish.request else { return self.gave_up(stage, judge, wish) };
        let (id, keys) = match asked {
            Command::Kv(KvCommand::Enqueue { new, session, .. }) => (session, vec![&new.key]),
            Command::AcquireLocks { locks, session, wait } if !wait.is_zero() => {
                (session, locks.iter().map(|lock| &lock.key).collect())
            }
            _ => return self.gave_up(stage, judge, wish),
        };
        let is_kept = stage.draw.once_in(2);
        let Some(session) = self.session.as_mut().filter(|session| is_kept && session.id == *id) else {
            return self.gave_up(stage, judge, wish);
        };
        let restores = judge.history.restores();
        for key in keys {
            session.held.remove(key);
            session.unheard.insert(key.clone(), Unheard { before: self.fence, restores });
            judge.see(stage, &Fact::LetsGo { session: id, key: Some(key) });
        }
    }

    /// The agent could not release a lock.
    pub fn may_stay_granted(&mut self, id: &SessionId) {
        if let Some(session) = self.session.as_mut().filter(|session| session.id == *id) {
            session.unheard.clear();
        }
    }

    fn create(&mut self, stage: &mut Stage) -> Wish {
        let plan = stage.plan.clients.clone();
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&stage.draw.bits().to_be_bytes());
        bytes[8..].copy_from_slice(&stage.draw.bits().to_be_bytes());
        let has_ttl = !stage.draw.once_in(5);
        let ttl = if has_ttl { stage.draw.duration(plan.ttl / 2, plan.ttl) } else { Duration::ZERO };
        let delays = !stage.draw.once_in(4);
        let lock_delay =
            if delays { stage.draw.duration(plan.lock_delay / 4, plan.lock_delay) } else { Duration::ZERO };
        let behavior = if stage.draw.once_in(3) { Behavior::Delete } else { Behavior::Release };
        command(
            stage,
            Command::CreateSession(SessionSpec {
                id: SessionId::from_random(bytes),
                name: String::new(),
                node: format!("n{}", self.place).into(),
                lock_delay,
                behavior,
                ttl_text: String::new(),
                ttl: Some(ttl).filter(|ttl| !ttl.is_zero()),
                checks: Vec::new(),
                node_checks: vec!["serfHealth".into()],
                service_checks: None,
                health_window: Default::default(),
            }),
        )
    }

    fn acquire(&mut self, stage: &Stage, key: Key) -> Wish {
        let (new, session) = self.entry(key);
        command(stage, Command::Kv(KvCommand::Acquire(new, session)))
    }

    fn enqueue(&mut self, stage: &mut Stage, key: Key) -> Wish {
        let (new, session) = self.entry(key);
        let longest = stage.plan.clients.timeout;
        let wait = stage.draw.duration(longest / 20, longest);
        command(stage, Command::Kv(KvCommand::Enqueue { new, session, wait }))
    }

    /// Requests one or two locks in any modes, at once or in their queues.
    fn request(&mut self, stage: &mut Stage, judge: &mut Judge, key: Key) -> Option<Wish> {
        let keys = BTreeSet::from([key, lock_key(stage)]);
        let unheard = self.session.as_ref().map(|session| &session.unheard);
        if keys.iter().any(|key| unheard.is_some_and(|unheard| unheard.contains_key(key))) {
            return None;
        }
        let longest = stage.plan.clients.timeout;
        let waits = stage.draw.once_in(2);
        let wait = if waits { stage.draw.duration(longest / 20, longest) } else { Duration::ZERO };
        let mut locks = Vec::new();
        for key in keys {
            let mode = *stage.draw.pick(&[LockMode::Shared, LockMode::Shared, LockMode::Exclusive]);
            locks.push(RequestedLock { mode, ..self.entry(key).0.into() });
        }
        let owned = self.session.as_mut()?;
        let session = owned.id;
        for RequestedLock { key, .. } in locks.iter().filter(|lock| lock.mode == LockMode::Shared) {
            // Others may share the lock before the reply arrives.
            if owned.held.remove(key) {
                judge.see(stage, &Fact::LetsGo { session: &session, key: Some(key) });
            }
        }
        Some(command(stage, Command::AcquireLocks { locks, session, wait }))
    }

    fn entry(&mut self, key: Key) -> (NewEntry, SessionId) {
        let session = self.session.as_ref().expect("there is a session").id;
        self.written += 1;
        let value = format!("{session}-{}", self.written).into_bytes().into();
        (NewEntry { key, value, flags: 0 }, session)
    }

    fn release(&mut self, stage: &mut Stage, judge: &mut Judge, key: Key) -> Wish {
        let session = self.session.as_mut().expect("there is a session");
        session.held.remove(&key);
        judge.see(stage, &Fact::LetsGo { session: &session.id, key: Some(&key) });
        let entry = NewEntry { key, value: Default::default(), flags: 0 };
        command(stage, Command::Kv(KvCommand::Release(entry, session.id)))
    }

    fn destroy(&mut self, stage: &mut Stage, judge: &mut Judge) -> Wish {
        let id = self.drop_session(stage, judge).expect("there is a session");
        command(stage, Command::DestroySession(id))
    }

    /// Stops believing in the session.
    fn drop_session(&mut self, stage: &mut Stage, judge: &mut Judge) -> Option<SessionId> {
        let session = self.session.take()?;
        judge.see(stage, &Fact::LetsGo { session: &session.id, key: None });
        Some(session.id)
    }

    /// Returns a renewal, if one is due.
    pub fn renewal(&mut self, stage: &mut Stage) -> Option<Wish> {
        let session = self.session.as_ref()?;
        let is_due = stage.now.since(session.confirmed) > session.ttl / 3;
        (!session.ttl.is_zero() && !session.neglected && is_due)
            .then(|| Wish::new(stage.now, Request::Renew(session.id)))
    }

    /// Receives the reply to a renewal.
    pub fn renewed(&mut self, stage: &mut Stage, judge: &mut Judge, wish: &Wish, response: &Response) {
        let (Request::Renew(id), Response::Renewed(found)) = (&wish.request, response) else { return };
        let Some(session) = self.session.as_mut().filter(|session| session.id == *id) else { return };
        if found.is_some() {
            session.confirmed = wish.begun.max(session.confirmed);
            let (session, until) = (&session.id, session.lease());
            judge.see(stage, &Fact::Leased { session, until });
        } else {
            self.drop_session(stage, judge);
        }
    }

    /// Receives the response to a request.
    pub fn receive_response(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        wish: &Wish,
        response: &Response,
    ) {
        let (Request::Propose(_, asked), Response::Applied(Applied { reply, .. })) =
            (&wish.request, response)
        else {
            return;
        };
        match (asked, reply) {
            (Command::CreateSession(new), Reply::Session(id)) => {
                let owned = Owned {
                    id: *id,
                    ttl: new.ttl.unwrap_or_default(),
                    confirmed: wish.begun,
                    neglected: false,
                    held: BTreeSet::new(),
                    unheard: BTreeMap::new(),
                };
                judge.see(stage, &Fact::Leased { session: id, until: owned.lease() });
                self.session = Some(owned);
            }
            (
                Command::Kv(
                    KvCommand::Acquire(entry, id) | KvCommand::Enqueue { new: entry, session: id, .. },
                ),
                reply,
            ) => {
                self.served |= stage.calm;
                self.acquired(stage, judge, &entry.key, id, reply);
            }
            (Command::AcquireLocks { locks, session, .. }, reply) => {
                self.acquired_all(stage, judge, locks, session, reply);
            }
            _ => {}
        }
    }

    /// Receives the reply to a request for locks. If it was refused, the session holds what it
    /// held.
    fn acquired_all(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        locks: &[RequestedLock],
        id: &SessionId,
        reply: &Reply,
    ) {
        let fences = match reply {
            Reply::Granted { fence } => std::slice::from_ref(fence),
            Reply::GrantedAll(fences) => fences,
            Reply::Refused(Refusal::Lock(_)) => return stage.hit(Mark::RequestRefused),
            Reply::Refused(_) => return self.acquired(stage, judge, &locks[0].key, id, reply),
            _ => return,
        };
        for (lock, fence) in locks.iter().zip(fences) {
            if lock.mode == LockMode::Shared {
                stage.hit(Mark::GrantedShared);
            }
            self.acquired(stage, judge, &lock.key, id, &Reply::Granted { fence: *fence });
        }
        if locks.len() > 1 {
            stage.hit(Mark::GrantedSeveral);
        }
    }

    fn acquired(&mut self, stage: &mut Stage, judge: &mut Judge, key: &Key, id: &SessionId, reply: &Reply) {
        let Some(session) = self.session.as_mut().filter(|session| session.id == *id) else { return };
        match reply {
            Reply::Granted { fence } => {
                stage.hit(Mark::Granted);
                if session.lease() > stage.now {
                    session.held.insert(key.clone());
                    judge.see(stage, &Fact::Believes { session: id, key, fence: *fence });
                }
                return;
            }
            Reply::Succeeded(false) => stage.hit(Mark::Contended),
            Reply::Delayed { .. } => stage.hit(Mark::Delayed),
            Reply::Refused(Refusal::InvalidSession(_)) => {
                self.drop_session(stage, judge);
                return;
            }
            _ => {}
        }
        session.held.remove(key);
        judge.see(stage, &Fact::LetsGo { session: id, key: Some(key) });
    }

    /// A requested lock was definitely not taken: nothing has changed.
    pub fn refused(&mut self, stage: &mut Stage, judge: &mut Judge, wish: &Wish) {
        match &wish.request {
            Request::Propose(
                _,
                Command::Kv(KvCommand::Acquire(..) | KvCommand::Enqueue { .. })
                | Command::AcquireLocks { .. },
            ) => {}
            _ => self.gave_up(stage, judge, wish),
        }
    }

    /// The outcome of a request is unknown: the session should end in any case.
    pub fn gave_up(&mut self, stage: &mut Stage, judge: &mut Judge, wish: &Wish) {
        match &wish.request {
            Request::Propose(_, Command::CreateSession(new)) => self.orphans.push(new.id),
            Request::Propose(_, Command::DestroySession(id)) => self.orphans.push(*id),
            _ => {
                let dropped = self.drop_session(stage, judge);
                self.orphans.extend(dropped);
            }
        }
    }

    /// The process died: the client drops all beliefs, and its sessions are orphans.
    pub fn restart(&mut self, stage: &mut Stage, judge: &mut Judge) {
        let dropped = self.drop_session(stage, judge);
        self.orphans.extend(dropped);
    }
}

fn command(stage: &Stage, command: Command) -> Wish {
    Wish::new(stage.now, Request::Propose(None, command))
}
