//! Locks in both modes, several at once, in the simplest form: a list of holds, a list of requests,
//! and a search from the start after every command.

use crate::names::{self, session};
use crate::storm::actions::{new_session, node};
use bytes::Bytes;
use lockmesh_protocol::command::{Command, KvCommand, NewEntry, Registration};
use lockmesh_protocol::deadlock::DeadlockPolicy;
use lockmesh_protocol::id::{Key, LogIndex, SessionId};
use lockmesh_protocol::record::{Behavior, LockMode, RequestedLock};
use lockmesh_protocol::reply::{LockRefusal, Refusal, Reply};
use proptest::prelude::{Just, Strategy, any, prop};
use proptest::prop_oneof;
use std::collections::BTreeSet;
use std::time::Duration;

pub(crate) const LOCKS: [&str; 3] = ["a", "b", "c"];
pub(crate) const OWNERS: [&str; 5] = ["s1", "s2", "s3", "s4", "s5"];
const WAIT: Duration = Duration::from_secs(30);

/// A session's hold.
type Held = (Key, SessionId, LockMode);

/// A request that waits.
#[derive(Clone, Debug)]
struct Waiting {
    position: LogIndex,
    newest: LogIndex,
    session: SessionId,
    locks: Vec<(Key, LockMode)>,
}

/// The modelled locks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locks {
    held: Vec<Held>,
    waiting: Vec<Waiting>,
    now: LogIndex,
    /// The number of circles of waits found.
    pub(crate) found: u64,
    /// Set if requests that close one are refused.
    refuses: bool,
}

/// A command, whose index depends on what waits when it is sent.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    Ready(Command),
    Leave(SessionId, bool),
}

/// The commands with which every run begins.
pub(crate) fn beginning() -> Vec<Command> {
    let registration =
        Registration { node: node("n1", "a"), skip_node_update: false, service: None, checks: Vec::new() };
    let sessions =
        OWNERS.map(|name| Command::CreateSession(new_session(name, "n1", Vec::new(), 0, Behavior::Release)));
    std::iter::once(Command::Register(registration)).chain(sessions).collect()
}

/// Some requests, releases and ends.
pub(crate) fn actions() -> impl Strategy<Value = Vec<Action>> {
    let id = || prop::sample::select(&OWNERS[..]).prop_map(session);
    let new = || {
        let key = prop::sample::select(&LOCKS[..]).prop_map(Key::from);
        key.prop_map(|key| NewEntry { key, value: Bytes::from("v"), flags: 0 })
    };
    let locks = || {
        prop::collection::btree_map(prop::sample::select(&LOCKS[..]), any::<bool>(), 1..=3).prop_map(
            |locks| {
                let lock = |(key, is_shared): (&str, bool)| RequestedLock {
                    key: key.into(),
                    mode: if is_shared { LockMode::Shared } else { LockMode::Exclusive },
                    value: Bytes::new(),
                    flags: 0,
                };
                locks.into_iter().map(lock).collect::<Vec<_>>()
            },
        )
    };
    let wait = || prop_oneof![1 => Just(Duration::ZERO), 3 => Just(WAIT)];
    let action = prop_oneof![
        8 => (locks(), id(), wait())
            .prop_map(|(locks, session, wait)| Action::Ready(Command::AcquireLocks { locks, session, wait })),
        1 => (new(), id()).prop_map(|(new, id)| Action::Ready(Command::Kv(KvCommand::Acquire(new, id)))),
        1 => (new(), id()).prop_map(|(new, session)| {
            Action::Ready(Command::Kv(KvCommand::Enqueue { new, session, wait: WAIT }))
        }),
        6 => (new(), id()).prop_map(|(new, id)| Action::Ready(Command::Kv(KvCommand::Release(new, id)))),
        2 => (id(), any::<bool>()).prop_map(|(id, is_newest)| Action::Leave(id, is_newest)),
        1 => new().prop_map(|new| Action::Ready(Command::Kv(KvCommand::Delete(new.key)))),
        1 => Just(Action::Ready(Command::Kv(KvCommand::DeleteTree(Key::from(""))))),
        1 => id().prop_map(|id| Action::Ready(Command::DestroySession(id))),
        1 => prop_oneof![Just(DeadlockPolicy::Report), Just(DeadlockPolicy::Refuse)]
            .prop_map(|policy| Action::Ready(Command::ConfigureDeadlocks(policy))),
    ];
    prop::collection::vec(action, 1..60)
}

impl Locks {
    pub(crate) fn command(&self, action: &Action) -> Command {
        match action {
            Action::Ready(command) => command.clone(),
            Action::Leave(session, is_newest) => {
                let waiting = self.waiting.iter().find(|waiting| waiting.session == *session);
                let (key, newest) = waiting.map_or((Key::from("a"), LogIndex(1)), |waiting| {
                    (waiting.locks[0].0.clone(), waiting.newest)
                });
                let enqueued_at_index = LogIndex(newest.0 - u64::from(!is_newest && newest.0 > 1));
                Command::Kv(KvCommand::StopWaiting { key, session: *session, enqueued_at_index })
            }
        }
    }

    /// Follows a command. A refused one must have changed nothing, which the comparison shows.
    pub(crate) fn apply(&mut self, index: LogIndex, command: &Command, reply: &Reply) {
        self.now = index;
        match command {
            _ if matches!(reply, Reply::Refused(Refusal::Lock(LockRefusal::Deadlock { .. }))) => {
                assert!(self.refuses, "{command:?} is refused, but the policy is to report");
                let mut waits = self.clone();
                waits.refuses = false;
                waits.apply(index, command, &Reply::Done);
                self.found = waits.found;
            }
            _ if matches!(reply, Reply::Refused(_)) => {}
            Command::ConfigureDeadlocks(policy) => self.refuses = *policy == DeadlockPolicy::Refuse,
            Command::AcquireLocks { locks, session, wait } => {
                let wanted = locks.iter().map(|lock| (lock.key.clone(), lock.mode)).collect();
                self.request(*session, wanted, !wait.is_zero());
            }
            Command::Kv(KvCommand::Acquire(new, session)) => {
                self.request(*session, vec![(new.key.clone(), LockMode::Exclusive)], false);
            }
            Command::Kv(KvCommand::Enqueue { new, session, .. }) => {
                self.request(*session, vec![(new.key.clone(), LockMode::Exclusive)], true);
            }
            Command::Kv(KvCommand::Release(new, session)) => {
                let held = self.mode(&new.key, *session);
                self.held.retain(|(key, id, _)| (key, id) != (&new.key, session));
                if held != Some(LockMode::Exclusive) {
                    self.waiting.retain(|of| of.session != *session || !of.wants(&new.key));
                }
            }
            Command::Kv(KvCommand::StopWaiting { key, session, enqueued_at_index }) => {
                self.waiting
                    .retain(|of| of.session != *session || of.newest != *enqueued_at_index || !of.wants(key));
            }
            Command::Kv(KvCommand::Delete(key)) => self.held.retain(|(of, ..)| of != key),
            Command::Kv(KvCommand::DeleteTree(_)) => self.held.clear(),
            Command::DestroySession(session) => {
                self.held.retain(|(_, id, _)| id != session);
                self.waiting.retain(|of| of.session != *session);
            }
            _ => {}
        }
        self.grant_all();
    }

    fn request(&mut self, session: SessionId, locks: Vec<(Key, LockMode)>, waits: bool) {
        let keys = |locks: &[(Key, LockMode)]| locks.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>();
        let is_same = |of: &Waiting| of.session == session && keys(&of.locks) == keys(&locks);
        let known = self.waiting.iter().position(is_same);
        let position = known.map_or(self.now, |known| self.waiting[known].position);
        let request = Waiting { position, newest: self.now, session, locks };
        if self.may_be_granted(&request) {
            if let Some(known) = known {
                self.waiting.remove(known);
            }
            let is_new = |(key, mode): &&(Key, LockMode)| self.mode(key, session) != Some(*mode);
            let new: Vec<Key> = request.locks.iter().filter(is_new).map(|(key, _)| key.clone()).collect();
            self.grant(&request);
            let passed = |key: &Key| self.waiting.iter().any(|of| of.wants(key));
            self.found += u64::from(new.iter().any(passed) && self.is_in_circle(session));
        } else if waits {
            let waits_for_more = known.is_none_or(|known| self.waiting[known].locks != request.locks);
            match known {
                Some(known) => self.waiting[known] = request,
                None => self.waiting.push(request),
            }
            let closes = waits_for_more && self.is_in_circle(session);
            assert!(!(closes && self.refuses), "{session} waits in a circle");
            self.found += u64::from(closes);
        }
    }

    fn mode(&self, key: &Key, session: SessionId) -> Option<LockMode> {
        self.held.iter().find(|(of, id, _)| (of, *id) == (key, session)).map(|(.., mode)| *mode)
    }

    fn is_upgrade(&self, request: &Waiting, key: &Key) -> bool {
        self.mode(key, request.session) == Some(LockMode::Shared)
            && request.locks.contains(&(key.clone(), LockMode::Exclusive))
    }

    /// Returns whether a session waits for itself, directly or through others.
    fn is_in_circle(&self, session: SessionId) -> bool {
        let mut reached = self.blockers(session);
        loop {
            let more: BTreeSet<SessionId> = reached.iter().flat_map(|id| self.blockers(*id)).collect();
            let before = reached.len();
            reached.extend(more);
            if reached.contains(&session) || reached.len() == before {
                return reached.contains(&session);
            }
        }
    }

    /// The sessions without whose holds and requests one of a session's requests would be granted a
    /// lock that it waits for.
    fn blockers(&self, session: SessionId) -> BTreeSet<SessionId> {
        let mut found = BTreeSet::new();
        for request in self.waiting.iter().filter(|of| of.session == session) {
            for lock in &request.locks {
                let alone = Waiting { locks: vec![lock.clone()], ..request.clone() };
                let blocks = |other: &SessionId| {
                    let only = |id: SessionId| id == session || id == *other;
                    let held = self.held.iter().filter(|(_, id, _)| only(*id)).cloned().collect();
                    let waiting = self.waiting.iter().filter(|of| only(of.session)).cloned().collect();
                    !Self { held, waiting, ..Self::default() }.may_be_granted(&alone)
                };
                let others = OWNERS.map(names::session).into_iter().filter(|other| *other != session);
                found.extend(others.filter(blocks));
            }
        }
        found
    }

    fn may_be_granted(&self, request: &Waiting) -> bool {
        request.locks.iter().all(|(key, mode)| {
            match self.mode(key, request.session) {
                Some(LockMode::Exclusive) => return true,
                Some(held) if held == *mode => return true,
                _ => {}
            }
            let both = |other: &LockMode| *mode == LockMode::Shared && *other == LockMode::Shared;
            let others = self.held.iter().filter(|(of, id, _)| of == key && *id != request.session);
            let is_before = |other: &&Waiting| {
                let (mine, theirs) = (self.is_upgrade(request, key), self.is_upgrade(other, key));
                other.session != request.session && !mine && (theirs || other.position < request.position)
            };
            let mut before = self.waiting.iter().filter(is_before).flat_map(|other| &other.locks);
            others.into_iter().all(|(.., held)| both(held))
                && before.all(|(of, wanted)| of != key || both(wanted))
        })
    }

    fn grant(&mut self, request: &Waiting) {
        for (key, mode) in &request.locks {
            self.held.retain(|(of, id, _)| (of, *id) != (key, request.session));
            self.held.push((key.clone(), request.session, *mode));
            // A plain acquire of a lock that the session also waits for.
            self.waiting.retain(|of| of.session != request.session || of.locks.len() > 1 || !of.wants(key));
        }
    }

    fn grant_all(&mut self) {
        while let Some(next) = self.waiting.iter().position(|request| self.may_be_granted(request)) {
            let request = self.waiting.remove(next);
            self.grant(&request);
        }
    }

    /// All holds.
    pub(crate) fn holds(&self) -> BTreeSet<Held> {
        self.held.iter().cloned().collect()
    }

    /// The positions of all requests.
    pub(crate) fn positions(&self) -> BTreeSet<(LogIndex, SessionId)> {
        self.waiting.iter().map(|of| (of.position, of.session)).collect()
    }
}

impl Waiting {
    fn wants(&self, key: &Key) -> bool {
        self.locks.iter().any(|(of, _)| of == key)
    }
}
