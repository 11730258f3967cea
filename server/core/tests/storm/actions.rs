//! Random actions on few names, so that they often conflict.

use super::model::Model;
use crate::names::session;
use bytes::Bytes;
use lockmesh_protocol::command::{
    Command, Deregistration, KvCommand, KvVerb, NewEntry, Registration, TxnKv, TxnOp,
};
use lockmesh_protocol::id::{CheckId, Key, LogIndex, NodeName, ServiceId, SessionId, Term};
use lockmesh_protocol::record::{Behavior, Check, CheckStatus, Node, Service, SessionSpec};
use proptest::prelude::{BoxedStrategy, Just, Strategy, any, prop};
use proptest::prop_oneof;
use std::ops::Range;
use std::time::Duration;

pub(crate) const KEYS: [&str; 6] = ["a", "a/b", "a/b/c", "a/d", "b", "c"];
pub(crate) const SESSIONS: [&str; 4] = ["s1", "s2", "s3", "s4"];
pub(crate) const NODES: [&str; 2] = ["n1", "n2"];
const CHECKS: [&str; 3] = ["alive", "disk", "web-ok"];

/// A command, of which some numbers depend on the state when it is sent.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    Ready(Command),
    /// A conditional command, and whether its condition holds.
    Cas(NewEntry, bool),
    DeleteCas(Key, bool),
    EndDelay(Key, bool),
    /// The end of a wait, or one with a wrong index.
    EndWait(Key, bool),
    /// Gives up a session's last request, or an earlier one.
    Leave(Key, SessionId, bool),
    /// The same, but only its queue position.
    StopWaiting(Key, SessionId, bool),
    Reap(u64),
    Txn(Vec<(TxnKv, bool)>),
}

impl Action {
    /// The command for the current state.
    pub(crate) fn command(&self, model: &Model) -> Command {
        let expected = |key: &Key, holds: bool| {
            let current = model.modify_index(key);
            if holds { current } else { LogIndex(current.0 + 1) }
        };
        // The index of a session's last request, or one before it.
        let mark = |key: &Key, session: SessionId, holds: bool| {
            let mark = model.mark_of(key, session).0.saturating_sub(u64::from(!holds));
            LogIndex(mark.max(1))
        };
        match self {
            Self::Ready(command) => command.clone(),
            Self::Cas(new, holds) => Command::Kv(KvCommand::Cas(
                new.clone(),
                Some(expected(&new.key, *holds)).filter(|index| index.0 > 0),
            )),
            Self::DeleteCas(key, holds) => {
                Command::Kv(KvCommand::DeleteCas(key.clone(), expected(key, *holds)))
            }
            Self::EndDelay(key, holds) => {
                let mark = model.delay(key).map_or(LogIndex(0), |delay| delay.started_at_index);
                let started_at_index = LogIndex(mark.0 + u64::from(!holds));
                Command::EndLockDelay { key: key.clone(), started_at_index, base: 0 }
            }
            Self::EndWait(key, holds) => {
                let (queue_position, mark) = model.first_waiter(key).unwrap_or_default();
                Command::EndWait {
                    key: key.clone(),
                    queue_position,
                    enqueued_at_index: LogIndex(mark.0 + u64::from(!holds)),
                }
            }
            Self::Leave(key, session, holds) => {
                let enqueued_at_index = mark(key, *session, *holds);
                Command::Kv(KvCommand::Leave { key: key.clone(), session: *session, enqueued_at_index })
            }
            Self::StopWaiting(key, session, holds) => {
                let enqueued_at_index = mark(key, *session, *holds);
                Command::Kv(KvCommand::StopWaiting { key: key.clone(), session: *session, enqueued_at_index })
            }
            Self::Reap(back) => {
                Command::ReapTombstones { up_to: LogIndex(model.newest().saturating_sub(*back)) }
            }
            Self::Txn(ops) => Command::Txn(
                ops.iter()
                    .map(|(op, holds)| TxnOp::Kv(TxnKv { index: expected(&op.key, *holds), ..op.clone() }))
                    .collect(),
            ),
        }
    }
}

/// Some actions, after those that make locks possible.
pub(crate) fn actions(count: Range<usize>) -> impl Strategy<Value = Vec<Action>> {
    let begin = Action::Ready(register("n1", vec![("alive", CheckStatus::Passing)], false));
    let session =
        Action::Ready(Command::CreateSession(new_session("s1", "n1", vec!["alive"], 2, Behavior::Release)));
    prop::collection::vec(action(), count).prop_map(move |mut actions| {
        actions.splice(0..0, [begin.clone(), session.clone()]);
        actions
    })
}

/// Some actions of sessions that compete for one lock, and of transactions that pass it on.
pub(crate) fn contention(count: Range<usize>) -> impl Strategy<Value = Vec<Action>> {
    let node = Action::Ready(register("n1", vec![("alive", CheckStatus::Passing)], false));
    let session = |(id, delay)| {
        let session = new_session(id, "n1", vec!["alive"], delay, Behavior::Release);
        Action::Ready(Command::CreateSession(session))
    };
    let begin: Vec<_> =
        std::iter::once(node).chain(SESSIONS.into_iter().zip([0, 0, 0, 9]).map(session)).collect();
    prop::collection::vec(contender(), count).prop_map(move |mut actions| {
        actions.splice(0..0, begin.iter().cloned());
        actions
    })
}

fn contender() -> BoxedStrategy<Action> {
    let kv = |command: KvCommand| Action::Ready(Command::Kv(command));
    let new = || {
        (Just(Key::from("c")), 0u8..3).prop_map(|(key, value)| NewEntry {
            key,
            value: Bytes::from(value.to_string()),
            flags: 0,
        })
    };
    let wait = Duration::from_secs(30);
    prop_oneof![
        8 => (new(), session_id()).prop_map(move |(new, session)| kv(KvCommand::Enqueue { new, session, wait })),
        2 => (new(), session_id()).prop_map(move |(new, id)| kv(KvCommand::Acquire(new, id))),
        4 => (new(), session_id()).prop_map(move |(new, id)| kv(KvCommand::Release(new, id))),
        6 => hand_over(new()),
        1 => any::<bool>().prop_map(|holds| Action::EndWait(Key::from("c"), holds)),
        1 => any::<bool>().prop_map(|holds| Action::EndDelay(Key::from("c"), holds)),
        1 => (session_id(), any::<bool>()).prop_map(|(id, holds)| Action::Leave(Key::from("c"), id, holds)),
        1 => (session_id(), any::<bool>()).prop_map(|(id, holds)| Action::StopWaiting(Key::from("c"), id, holds)),
        1 => session_command().prop_map(Action::Ready),
    ]
    .boxed()
}

/// A transaction that frees a lock in some way, and acquires it for a session.
fn hand_over(new: impl Strategy<Value = NewEntry>) -> impl Strategy<Value = Action> {
    let verbs = vec![KvVerb::Unlock, KvVerb::Delete, KvVerb::DeleteCas, KvVerb::DeleteTree];
    (new, prop::sample::select(verbs), session_id(), session_id()).prop_map(|(new, verb, from, to)| {
        let op = |verb, session: SessionId| TxnKv {
            verb,
            key: new.key.clone(),
            value: new.value.clone(),
            flags: new.flags,
            index: LogIndex(0),
            session: Some(session.to_string()),
        };
        Action::Txn(vec![(op(verb, from), true), (op(KvVerb::Lock, to), true)])
    })
}

fn action() -> BoxedStrategy<Action> {
    let ready = |command: BoxedStrategy<Command>| command.prop_map(Action::Ready);
    prop_oneof![
        4 => (new_entry()).prop_map(|new| Action::Ready(Command::Kv(KvCommand::Set(new)))),
        3 => (new_entry(), any::<bool>()).prop_map(|(new, holds)| Action::Cas(new, holds)),
        10 => (new_entry(), session_id()).prop_map(|(new, id)| Action::Ready(Command::Kv(KvCommand::Acquire(new, id)))),
        12 => (new_entry(), session_id()).prop_map(|(new, session)| {
            let wait = Duration::from_secs(30);
            Action::Ready(Command::Kv(KvCommand::Enqueue { new, session, wait }))
        }),
        2 => (key(), any::<bool>()).prop_map(|(key, holds)| Action::EndWait(key, holds)),
        3 => (key(), session_id(), any::<bool>()).prop_map(|(key, id, holds)| Action::Leave(key, id, holds)),
        2 => (key(), session_id(), any::<bool>()).prop_map(|(key, id, holds)| Action::StopWaiting(key, id, holds)),
        4 => (new_entry(), session_id()).prop_map(|(new, id)| Action::Ready(Command::Kv(KvCommand::Release(new, id)))),
        2 => key().prop_map(|key| Action::Ready(Command::Kv(KvCommand::Delete(key)))),
        2 => (key(), any::<bool>()).prop_map(|(key, holds)| Action::DeleteCas(key, holds)),
        1 => prefix().prop_map(|prefix| Action::Ready(Command::Kv(KvCommand::DeleteTree(prefix)))),
        6 => ready(session_command()),
        3 => (key(), any::<bool>()).prop_map(|(key, holds)| Action::EndDelay(key, holds)),
        1 => (0u64..10).prop_map(Action::Reap),
        4 => ready(catalog_command()),
        6 => prop::collection::vec((txn_op(), prop::bool::weighted(0.85)), 0..5).prop_map(Action::Txn),
    ]
    .boxed()
}

fn session_command() -> BoxedStrategy<Command> {
    let checks = prop::sample::subsequence(CHECKS.to_vec(), 0..=2);
    let behavior = prop_oneof![Just(Behavior::Release), Just(Behavior::Delete)];
    let create = (prop::sample::select(&SESSIONS), prop::sample::select(&NODES), checks, 0u64..90, behavior);
    let create = create.prop_map(|(id, node, checks, delay, behavior)| {
        // Half of all sessions have no lock-delay, or no lock would ever be granted.
        Command::CreateSession(new_session(id, node, checks, delay.saturating_sub(45) * 2, behavior))
    });
    let expire = (session_id(), 2u64..4).prop_map(|(session, term)| Command::ExpireSession {
        session,
        term: Term(term),
        base: 0,
    });
    prop_oneof![6 => create, 2 => session_id().prop_map(Command::DestroySession), 1 => expire].boxed()
}

fn catalog_command() -> BoxedStrategy<Command> {
    let status = prop_oneof![
        4 => Just(CheckStatus::Passing),
        1 => Just(CheckStatus::Warning),
        1 => Just(CheckStatus::Critical),
    ];
    let checks = prop::collection::vec((prop::sample::select(&CHECKS), status), 0..3);
    let named = prop::sample::select(&NODES);
    let register =
        (named, checks, any::<bool>()).prop_map(|(node, checks, service)| register(node, checks, service));
    let gone = |node: &str, service: Option<&str>, check: Option<&str>| {
        Command::Deregister(Deregistration {
            node: NodeName::from(node),
            service: service.map(ServiceId::from),
            check: check.map(CheckId::from),
        })
    };
    let named = prop::sample::select(&NODES);
    let check = (named.clone(), prop::sample::select(&CHECKS));
    prop_oneof![
        8 => register,
        1 => named.clone().prop_map(move |node| gone(node, None, None)),
        1 => named.prop_map(move |node| gone(node, Some("web"), None)),
        2 => check.prop_map(move |(node, check)| gone(node, None, Some(check))),
    ]
    .boxed()
}

fn txn_op() -> impl Strategy<Value = TxnKv> {
    let verbs: Vec<KvVerb> = KvVerb::WORDS.into_iter().map(|(_, verb)| verb).collect();
    let verb = prop_oneof![
        12 => prop::sample::select(verbs),
        12 => prop::sample::select(vec![KvVerb::Set, KvVerb::Lock, KvVerb::Cas, KvVerb::CheckIndex]),
        1 => Just(KvVerb::Unknown("launch".into())),
    ];
    let named = prop_oneof![10 => session_id(), 1 => Just(SessionId::NIL)];
    (verb, new_entry(), named).prop_map(|(verb, new, session)| TxnKv {
        verb,
        key: new.key,
        value: new.value,
        flags: new.flags,
        index: LogIndex(0),
        session: Some(session).filter(|id| *id != SessionId::NIL).map(|id| id.to_string()),
    })
}

fn new_entry() -> impl Strategy<Value = NewEntry> {
    (key(), 0u8..3, 0u64..2).prop_map(|(key, value, flags)| {
        let value = if value == 0 { Bytes::new() } else { Bytes::from(value.to_string()) };
        NewEntry { key, value, flags }
    })
}

fn key() -> impl Strategy<Value = Key> + Clone {
    prop::sample::select(&KEYS).prop_map(Key::from)
}

fn prefix() -> impl Strategy<Value = Key> {
    prop::sample::select(&["a", "a/", "a/b", "b", "none", ""]).prop_map(Key::from)
}

fn session_id() -> impl Strategy<Value = SessionId> + Clone {
    prop::sample::select(&SESSIONS).prop_map(session)
}

pub(crate) fn new_session(
    id: &str,
    node: &str,
    checks: Vec<&str>,
    delay: u64,
    behavior: Behavior,
) -> SessionSpec {
    SessionSpec {
        id: session(id),
        name: String::new(),
        node: NodeName::from(node),
        lock_delay: Duration::from_secs(delay),
        behavior,
        ttl_text: String::new(),
        ttl: None,
        checks: Vec::new(),
        node_checks: checks.into_iter().map(CheckId::from).collect(),
        service_checks: None,
        health_window: Default::default(),
    }
}

/// A node with an id; `id` is one hexadecimal digit.
pub(crate) fn node(name: &str, id: &str) -> Node {
    Node::of(NodeName::from(name), [8, 4, 4, 4, 12].map(|length| id.repeat(length)).join("-"), "10.0.0.1")
}

fn register(name: &str, checks: Vec<(&str, CheckStatus)>, service: bool) -> Command {
    let service = service
        .then(|| Service { port: 80, ..Service::of(NodeName::from(""), ServiceId::from("web"), "web") });
    let checks = checks.into_iter().map(|(id, status)| check(id, status, service.is_some())).collect();
    Command::Register(Registration { node: node(name, &name[1..]), skip_node_update: false, service, checks })
}

fn check(id: &str, status: CheckStatus, with_service: bool) -> Check {
    Check {
        service_id: (with_service && id == "web-ok").then(|| "web".into()),
        ..Check::of(NodeName::from(""), CheckId::from(id), status)
    }
}
