//! The words of stories about the members of a quorum.

use super::{Cluster, Server};
use crate::script::{World, duration};
use crate::solo::Disk;
use lockmesh_core::raft::TICK;
use lockmesh_core::{CallToken, Input, ServerRequest};
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{ServerId, WallTime};
use lockmesh_protocol::query::Consistency;
use lockmesh_protocol::record::Autopilot;
use lockmesh_protocol::rpc::{Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// A quorum with a story's names for its servers and calls.
pub(crate) struct Quorum {
    cluster: Cluster,
    names: BTreeMap<String, ServerId>,
    calls: BTreeMap<String, (ServerId, CallToken)>,
    saved: Option<Disk>,
}

impl World for Quorum {
    fn begin() -> Self {
        Self { cluster: Cluster::start(3), names: BTreeMap::new(), calls: BTreeMap::new(), saved: None }
    }

    fn now(&self) -> Time {
        self.cluster.now
    }

    fn run(&mut self, duration: Duration) {
        self.cluster.run(duration);
    }

    fn act(&mut self, verb: &str, words: &[&str]) -> Option<()> {
        let (words, call) = match *words {
            [ref words @ .., "as", call] => (words, call),
            _ => (words, "it"),
        };
        if let Some(made) = self.call(verb, words) {
            self.calls.insert(call.into(), made);
            return Some(());
        }
        match (verb, words) {
            ("servers", [count]) => self.cluster = Cluster::start(count.parse().ok()?),
            ("name", [server, name]) => drop(self.names.insert((*name).into(), self.server(server))),
            ("put", [key]) => self.cluster.put(key),
            ("join", [node]) => {
                // A server that was emptied keeps the name of its node.
                let row =
                    self.names.get(*node).and_then(|id| self.at("leader").core.replica().state().server(*id));
                let name = row.map_or((*node).to_owned(), |row| row.node.to_string());
                let instance = format!("{node}-{:?}", self.cluster.now);
                let id = self.cluster.join(&name, &instance);
                self.names.insert((*node).into(), id);
            }
            ("discard", [server]) => drop(self.cluster.servers.remove(&self.server(server))),
            ("restart", [server]) => {
                let id = self.server(server);
                let disk = self.cluster.servers[&id].disk.clone();
                self.cluster.servers.insert(id, Server::open(id, disk));
            }
            ("save", [server]) => self.saved = Some(self.cluster.servers[&self.server(server)].disk.clone()),
            ("load", [server]) => {
                let id = self.server(server);
                self.cluster.servers.insert(id, Server::open(id, self.saved.take()?));
            }
            ("down", [server]) => drop(self.cluster.down.insert(self.server(server))),
            ("up", []) => self.cluster.down.clear(),
            ("leave-alone", [server]) => {
                let id = self.server(server);
                self.cluster.down =
                    self.cluster.servers.keys().copied().filter(|other| *other != id).collect();
            }
            ("checkpoint", [server]) => self.cluster.checkpoint(self.server(server)),
            ("min-quorum", [count]) => {
                let config = Autopilot { min_quorum: count.parse().ok()?, ..Autopilot::default() };
                self.cluster.command(Command::ConfigureAutopilot(config, None));
            }
            _ => return self.act_on_messages(verb, words),
        }
        Some(())
    }

    fn check(&mut self, words: &[&str]) -> Option<Result<(), String>> {
        let facts = format!("{words:?}");
        let (is_it, facts) = match *words {
            ["voters", ref ids @ ..] => {
                (shown(&self.cluster.voters()) == ids, format!("{:?}", self.cluster.voters()))
            }
            ["roster", ref ids @ ..] => {
                (shown(&self.cluster.roster()) == ids, format!("{:?}", self.cluster.roster()))
            }
            ["votes", server] => (self.cluster.voters().contains(&self.server(server).0), facts),
            ["left", server] => {
                let id = self.server(server);
                (!self.at("leader").core.replica().membership().voters.contains(&id), facts)
            }
            ["settled"] => (!self.at("leader").core.replica().membership().is_joint(), facts),
            ["leads", server] => (self.cluster.leader() == self.server(server), facts),
            ["serves", server] => (self.at(server).core.replica().is_serving(), facts),
            ["leaderless", server] => (self.at(server).core.replica().leader().is_none(), facts),
            ["unhealthy", server] => {
                let view = self.at("leader").core.autopilot(self.cluster.now);
                (!view.is_healthy(self.server(server)), facts)
            }
            ["equal"] => {
                self.cluster.assert_equal();
                (true, facts)
            }
            ["is-set-back", server, "by", by] => {
                let found = *self.at(server).core.replica().set_back()?;
                assert!(found.to_string().contains("empty its data folder"), "{found}");
                ((found.server, found.by) == (self.server(server), self.server(by)), found.to_string())
            }
            ["remembered", server] => {
                let id = self.server(server);
                let mut servers = self.cluster.servers.values();
                (servers.any(|server| server.core.replica().peer_memory().of(id).is_some()), facts)
            }
            [call, ref expected @ ..] if self.calls.contains_key(call) => {
                let shown = self.reply(call);
                let named = |word: &&str| match word.strip_prefix('@') {
                    Some(server) => self.server(server).to_string(),
                    None => (*word).to_owned(),
                };
                let expected: Vec<String> = expected.iter().map(named).collect();
                (crate::script::begins_with(&shown, &expected.join(" ")), shown)
            }
            _ => return None,
        };
        Some(crate::script::holds(is_it, facts))
    }

    fn number(&mut self, name: &str) -> Option<u64> {
        let (name, of) = name.split_once(':').unwrap_or((name, "leader"));
        Some(match name {
            "voters" => self.cluster.voters().len() as u64,
            "members" => self.cluster.roster().len() as u64,
            "learners" => self.at("leader").core.replica().membership().learners.len() as u64,
            "snapshots" => self.cluster.snapshots_fetched as u64,
            "to_lose" => self.cluster.snapshots_to_lose as u64,
            "fetching" => self.cluster.fetching.as_ref()?.2.index.0,
            "term" => self.at(of).core.replica().log_status().term.0,
            "applied" => self.at(of).core.replica().log_status().applied_index.0,
            "first_index" => self.at(of).core.replica().log_status().first_index.0,
            "log_bytes" => self.at(of).core.replica().log_status().log_bytes as u64,
            _ => return None,
        })
    }
}

impl Quorum {
    fn act_on_messages(&mut self, verb: &str, words: &[&str]) -> Option<()> {
        match (verb, words) {
            ("fetch-slowly", []) => self.cluster.fetches_slowly = true,
            ("arrive", []) => {
                self.cluster.fetches_slowly = false;
                self.cluster.arrive();
            }
            ("slow-follower", []) => {
                self.behind("slow", 50)?;
                self.act("checkpoint", &["leader"])?;
                self.cluster.down.clear();
                self.cluster.fetches_slowly = true;
                self.cluster.run(Duration::from_secs(8));
            }
            ("reader-behind", []) => {
                self.behind("late", 1)?;
                self.cluster.down.clear();
                self.act("read", &["at", "late", "undelivered"])?;
            }
            ("set-back", []) => {
                self.act("name", &["leader", "first"])?;
                self.act("name", &["follower", "back"])?;
                self.act("name", &["follower", "former-back"])?;
                self.cluster.put("before");
                self.cluster.run(Duration::from_secs(1));
                self.act("save", &["back"])?;
                (0..20).for_each(|number| self.cluster.put(&format!("after-{number}")));
                self.cluster.run(Duration::from_secs(1));
                self.act("load", &["back"])?;
            }
            ("deliver", []) => self.cluster.deliver(),
            ("deliver-without-entries", [server]) => self.cluster.deliver_no_entries_to(self.server(server)),
            ("deliver-until", condition) => {
                while self.check(condition)?.is_err() {
                    assert!(!self.cluster.in_flight.is_empty(), "it goes by messages alone");
                    self.cluster.deliver_once();
                }
            }
            ("run-without-entries", [server, text]) => {
                let (id, end) = (self.server(server), self.cluster.now + duration(text));
                while self.cluster.now < end {
                    self.cluster.now = self.cluster.now + TICK;
                    for id in self.cluster.running() {
                        self.cluster.input(id, Input::Tick(WallTime(self.cluster.now.0)));
                    }
                    self.cluster.deliver_no_entries_to(id);
                }
            }
            ("lose", []) => self.cluster.in_flight.clear(),
            ("lose-snapshots", [count]) => self.cluster.snapshots_to_lose = count.parse().ok()?,
            _ => return None,
        }
        Some(())
    }

    /// Sends a request to the leader, or to the server after `at`. Messages are delivered, unless
    /// the last word says otherwise.
    fn call(&mut self, verb: &str, words: &[&str]) -> Option<(ServerId, CallToken)> {
        let (words, is_delivered) = match *words {
            [ref words @ .., "undelivered"] => (words, false),
            _ => (words, true),
        };
        let (words, to) = match *words {
            [ref words @ .., "at", server] => (words, Some(server)),
            _ => (words, None),
        };
        let of = || words.first().map(|word| self.server(word));
        let token = CallToken(self.cluster.last_ticket + 1);
        let input = match (verb, words) {
            ("read", ["consistent"]) => Input::Read(token, Consistency::Consistent),
            ("read", ["stale"]) => Input::Read(token, Consistency::Stale),
            ("read", []) => Input::Read(token, Consistency::Default),
            ("transfer", _) => Input::Servers(ServerRequest::TransferLeader(token, of())),
            ("add", _) => Input::Servers(ServerRequest::AddServer(token, of()?)),
            ("remove", _) => Input::Servers(ServerRequest::RemoveServer(token, of()?)),
            _ => return None,
        };
        let to = self.server(to.unwrap_or("leader"));
        self.cluster.last_ticket += 1;
        self.cluster.input(to, input);
        if is_delivered {
            self.cluster.deliver();
        }
        Some((to, token))
    }

    /// Takes a follower down, and writes so many keys without it.
    fn behind(&mut self, name: &str, keys: usize) -> Option<()> {
        self.act("name", &["follower", name])?;
        self.act("down", &[name])?;
        (0..keys).for_each(|number| self.cluster.put(&format!("key-{number}")));
        Some(())
    }

    fn server(&self, word: &str) -> ServerId {
        match word {
            "leader" => self.cluster.leader(),
            "follower" => self.cluster.follower(),
            "third" => {
                let known = [self.cluster.leader(), self.cluster.follower()];
                *self.cluster.servers.keys().find(|id| !known.contains(id)).expect("there are three")
            }
            _ => word.parse().map_or_else(|_| self.names[word], ServerId),
        }
    }

    fn at(&self, server: &str) -> &Server {
        &self.cluster.servers[&self.server(server)]
    }

    /// The reply to a call, in words.
    fn reply(&self, call: &str) -> String {
        let (server, token) = &self.calls[call];
        let server = &self.cluster.servers[server];
        match server.replies.get(token) {
            Some(Response::Done) => "done".into(),
            Some(Response::Unavailable(Unavailable::Denied(why))) => format!("denied: {why}"),
            Some(other) => format!("{other:?}"),
            None if server.readable.contains(token) => "readable".into(),
            None if server.unreadable.contains(token) => "refused".into(),
            None => "pending".into(),
        }
    }
}

fn shown(ids: &[u64]) -> Vec<String> {
    ids.iter().map(u64::to_string).collect()
}
