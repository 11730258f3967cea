//! A single server's stories in virtual time, and their words.
//!
//! `closed D` gives a lock `job` with a delay that begins now, and a session `2`; `held` gives one
//! that session `1` holds, and two more sessions.

use crate::names::session as session_id;
use crate::script::{World, duration, holds};
use crate::solo::{Solo, entry};
use lockmesh_core::{CallToken, Input};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{
    Command, Deregistration, KvCommand, KvVerb, NewEntry, NodeFailure, RestoreStep, TxnKv, TxnOp,
};
use lockmesh_protocol::id::{LogIndex, ServerId, WallTime};
use lockmesh_protocol::lease::HealthWindow;
use lockmesh_protocol::query::{Consistency, Query, Rows};
use lockmesh_protocol::record::MemberStatus;
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::Response;
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// A server with a story's calls.
pub(crate) struct Single {
    solo: Solo,
    calls: BTreeMap<String, CallToken>,
    backup: Vec<Change>,
    /// The lock waits that were measured last.
    waits: Vec<Duration>,
}

impl World for Single {
    fn begin() -> Self {
        Self { solo: Solo::start(), calls: BTreeMap::new(), backup: Vec::new(), waits: Vec::new() }
    }

    fn now(&self) -> Time {
        self.solo.now
    }

    fn run(&mut self, duration: Duration) {
        self.solo.run(duration);
    }

    fn act(&mut self, verb: &str, words: &[&str]) -> Option<()> {
        let (words, call) = match *words {
            [ref words @ .., "as", call] => (words, call),
            _ => (words, "it"),
        };
        if let Some(command) = self.command(verb, words) {
            let token = self.solo.propose(command);
            self.calls.insert(call.into(), token);
            return Some(());
        }
        match (verb, words) {
            ("start", []) => self.solo = Solo::start(),
            ("session", [name, rest @ ..]) => {
                let option =
                    |option| rest.iter().position(|word| *word == option).map(|at| duration(rest[at + 1]));
                let (ttl, delay) = (option("ttl").unwrap_or_default(), option("delay").unwrap_or_default());
                self.solo.session(name, ttl, delay);
            }
            ("closed", [delay]) => {
                self.act("session", &["1", "delay", delay])?;
                self.act("session", &["2", "delay", "1s"])?;
                self.act("acquire", &["job", "1"])?;
                self.act("destroy", &["1"])?;
            }
            ("held", []) => {
                ["1", "2", "3"].iter().try_for_each(|name| self.act("session", &[name]))?;
                self.act("acquire", &["job", "1"])?;
            }
            ("renew", [session]) => {
                let token = self.solo.token();
                self.solo.input(Input::Renew(token, session_id(session)));
                self.calls.insert(call.into(), token);
            }
            ("crash", []) => self.solo.crash(),
            ("pause", [text]) => self.solo.pause(duration(text)),
            ("sleep", [text]) => self.solo.now = self.solo.now + duration(text),
            ("deadline", []) => self.solo.input(Input::Deadline(WallTime(1))),
            ("hold", []) => self.solo.flushes = false,
            ("sync", []) => self.solo.sync(),
            ("backup", []) => self.backup = self.solo.core.replica().state().rows().collect(),
            ("restore", []) => {
                let part = RestoreStep::Part { id: 1, number: 0, rows: self.backup.clone() };
                for step in [RestoreStep::Begin { id: 1 }, part, RestoreStep::Commit { id: 1, parts: 1 }] {
                    assert_eq!(self.solo.command(Command::Restore(step)), Reply::Done);
                }
            }
            _ => return None,
        }
        Some(())
    }

    fn check(&mut self, words: &[&str]) -> Option<Result<(), String>> {
        let (is_it, facts) = match *words {
            [call, "delayed", rest] => {
                let shown = self.shown(call)?;
                (shown == format!("delayed {:?}", duration(rest)), shown)
            }
            [call, kind] if self.calls.contains_key(call) => {
                let shown = self.shown(call)?;
                (shown.starts_with(kind), shown)
            }
            ["same", one, other] => (self.shown(one) == self.shown(other), format!("{:?}", self.shown(one))),
            ["lives", session] => (self.solo.lives(&session_id(session)), String::new()),
            ["ended", session] => (!self.solo.lives(&session_id(session)), String::new()),
            ["has", key] => (self.solo.has(key), String::new()),
            ["holder", key, session] => {
                let holder = self.solo.entry(key).and_then(|entry| entry.lock.session);
                let expected = (session != "nobody").then(|| session_id(session));
                assert_eq!(self.solo.core.replica().state().holder(&key.into()), holder.as_ref());
                (holder == expected, format!("{holder:?}"))
            }
            ["position", key, session, call, rest] => {
                let Some(Response::Applied(Applied { reply: Reply::Queued { queue_position }, .. })) =
                    self.solo.replies.get(&self.calls[call])
                else {
                    panic!("{call} was not queued")
                };
                let (queue_position, session) = (*queue_position, session_id(session));
                let enqueued_at_index = queue_position;
                let place =
                    Query::QueuePosition { key: key.into(), session, queue_position, enqueued_at_index };
                let (_, rows) = self.solo.core.query(self.solo.now, &place);
                let expected = Rows::QueuePosition(Reply::Delayed { remaining: duration(rest) });
                (rows == expected, format!("{rows:?}"))
            }
            ["due", text] => {
                let due = self.solo.core.next_deadline();
                (due == Some(self.solo.now + duration(text)), format!("{due:?}"))
            }
            ["idle"] => (self.solo.core.next_deadline().is_none(), String::new()),
            ["reads", consistency] => {
                let consistency = match consistency {
                    "consistent" => Consistency::Consistent,
                    "stale" => Consistency::Stale,
                    _ => Consistency::Default,
                };
                (self.solo.may_read(consistency), String::new())
            }
            ["n1", status] => {
                let is = self.solo.core.replica().state().agents().next().map(|agent| agent.status);
                let expected = (status == "failed").then_some(MemberStatus::Failed);
                (is == expected, format!("{is:?}"))
            }
            _ => return None,
        };
        Some(holds(is_it, facts))
    }

    fn number(&mut self, name: &str) -> Option<u64> {
        if name == "lock_waits" {
            self.waits = self.solo.core.take_observed().lock_waits;
            return Some(self.waits.len() as u64);
        }
        let state = self.solo.core.replica().state();
        let number = match name {
            "sessions" => state.sessions().count(),
            "delays" => state.delays().count(),
            "tombstones" => state.tombstones().count(),
            "waiting" => state.waiters().count(),
            "waiters" => state.waiter_count(),
            "held" => state.held_count(),
            "lock_wait_ms" => self.waits[0].as_millis() as usize,
            _ => return None,
        };
        Some(number as u64)
    }
}

impl Single {
    fn command(&self, verb: &str, words: &[&str]) -> Option<Command> {
        let kv = match (verb, words) {
            ("set", [key]) => KvCommand::Set(entry(key)),
            ("set", [key, bytes]) => {
                let value = vec![0; bytes.parse().expect("a number")].into();
                KvCommand::Set(NewEntry { value, ..entry(key) })
            }
            ("delete", [key]) => KvCommand::Delete(entry(key).key),
            ("acquire", [key, session]) => KvCommand::Acquire(entry(key), session_id(session)),
            ("release", [key, session]) => KvCommand::Release(entry(key), session_id(session)),
            ("enqueue", [key, session, wait]) => {
                KvCommand::Enqueue { new: entry(key), session: session_id(session), wait: duration(wait) }
            }
            ("destroy", [session]) => return Some(Command::DestroySession(session_id(session))),
            ("deregister", [node]) => {
                let node = Deregistration { node: (*node).into(), service: None, check: None };
                return Some(Command::Deregister(node));
            }
            ("lock-in-txn", [key, session]) => {
                let (value, session) = (Default::default(), Some(session_id(session).to_string()));
                let (verb, index) = (KvVerb::Lock, LogIndex(0));
                let lock = TxnKv { verb, key: (*key).into(), value, flags: 0, index, session };
                return Some(Command::Txn(vec![TxnOp::Kv(lock)]));
            }
            ("verdict", servers) => {
                let lease = self.solo.core.replica().state().agents().next()?.lease();
                let (window, silent_for, base) = (HealthWindow::Default, Duration::from_secs(5), 0);
                let confirmed_by = servers.iter().map(|id| ServerId(id.parse().expect("a number"))).collect();
                let term = self.solo.core.replica().log_status().term;
                let failure = NodeFailure { lease, window, confirmed_by, silent_for, term, base };
                return Some(Command::FailNode(failure));
            }
            _ => return None,
        };
        Some(Command::Kv(kv))
    }

    /// The reply to a call, in words.
    fn shown(&self, call: &str) -> Option<String> {
        Some(match self.solo.replies.get(self.calls.get(call)?) {
            None => "pending".into(),
            Some(Response::Renewed(session)) => session.is_some().to_string(),
            Some(Response::Applied(Applied { reply, .. })) => match reply {
                Reply::Done => "done".into(),
                Reply::Succeeded(is_so) => is_so.to_string(),
                Reply::Granted { .. } => "granted".into(),
                Reply::Delayed { remaining } => format!("delayed {remaining:?}"),
                Reply::Queued { queue_position } => format!("queued {queue_position}"),
                other => format!("{other:?}"),
            },
            Some(other) => format!("{other:?}"),
        })
    }
}
