//! The words of stories about the servers and their callers.

use super::{Fleet, SECOND, agent, session_id};
use crate::frontend::read;
use crate::script::{World, begins_with, duration, holds};
use crate::solo::{CORRUPTION_CHECK_INTERVAL, entry};
use lockmesh_core::corruption::Finding;
use lockmesh_core::frontend::{DiskHealth, Event, NotReady};
use lockmesh_core::raft::TICK;
use lockmesh_core::raft::message::{MessageKind, PeerMessage};
use lockmesh_core::{Core, Input};
use lockmesh_protocol::command::{Command, KvCommand};
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::lease::NodeLeaseQuery;
use lockmesh_protocol::query::Consistency;
use lockmesh_protocol::record::SessionSpec;
use lockmesh_protocol::reply::Applied;
use lockmesh_protocol::rpc::{Request, Response};
use std::time::Duration;

impl Fleet {
    pub(super) fn act_on_servers(&mut self, verb: &str, words: &[&str]) -> Option<()> {
        match (verb, words) {
            ("start", []) => *self = Self::start(),
            ("start", [stall_timeout]) => *self = Self::start_with(3, duration(stall_timeout)),
            ("servers", [count]) => *self = Self::start_with(count.parse().ok()?, SECOND),
            ("name", [server, name]) => {
                let server = self.server(server);
                self.names.insert((*name).into(), server);
            }
            ("stuck", servers) => self.stuck = self.servers(servers).into_iter().collect(),
            ("depose", []) => {
                let former = self.depose();
                self.names.insert("former".into(), former);
                self.marks.insert("depose", self.cluster.now());
            }
            ("cut", [server]) => {
                let server = self.server(server);
                self.names.insert("former".into(), server);
                self.cluster.cut_off.insert(server);
            }
            ("heal", []) => self.cluster.cut_off.clear(),
            ("down", [server]) => drop(self.cluster.down.insert(self.server(server))),
            ("up", []) => self.cluster.down.clear(),
            ("leave-alone", [server]) => self.cluster.leave_alone(self.server(server)),
            _ => return self.act_on_disks(verb, words),
        }
        Some(())
    }

    fn act_on_disks(&mut self, verb: &str, words: &[&str]) -> Option<()> {
        match (verb, words) {
            ("pause", [text]) => self.cluster.pause(duration(text)),
            ("restart", servers) => {
                self.servers(servers).into_iter().for_each(|id| self.cluster.restart(id));
            }
            ("hold", []) => self.cluster.servers.values_mut().for_each(|one| one.held = Some(Vec::new())),
            ("stall", servers) => {
                for id in self.servers(servers) {
                    self.cluster.servers.get_mut(&id).expect("it runs").held = Some(Vec::new());
                }
            }
            // The others commit a write that the leader cannot apply.
            ("stall-leader", []) => {
                self.act("stall", &["leader"])?;
                self.act("put", &["stalled", "as", "stalled"])?;
                self.run(2 * TICK);
            }
            ("flush", servers) => {
                let servers = self.servers(if servers.is_empty() { &["all"] } else { servers });
                servers.into_iter().for_each(|id| self.cluster.let_write(id));
                self.cluster.deliver();
            }
            ("disk", [server, reason @ ..]) => {
                let health = match reason.join(" ") {
                    good if good == "good" => DiskHealth::Good,
                    reason => DiskHealth::Failing(reason.as_str().into()),
                };
                self.cluster.turn(self.server(server), Some(Event::Disk(health)));
            }
            ("version", [server, version]) => {
                let event = Event::Version(self.server(server), (*version).into());
                self.cluster.turn(self.cluster.leader(), Some(event));
            }
            ("check", []) => {
                self.cluster.put("something new");
                self.run(CORRUPTION_CHECK_INTERVAL + 3 * SECOND);
            }
            // Down until it needs a snapshot of the leader.
            ("let-copy", [server]) => {
                let id = self.server(server);
                self.cluster.down.insert(id);
                for number in 0..50 {
                    self.cluster.put(&format!("key-{number}"));
                }
                self.run(3 * SECOND);
                self.cluster.down.remove(&id);
                self.run(2 * SECOND);
            }
            ("tell-corrupt", [server, "by", by, rest @ ..]) => {
                let (id, by) = (self.server(server), self.server(by));
                let copy = self.cluster.servers[&id].frontend.core().replica().own_memory().copy_of;
                let index = if *rest == ["before-copy"] { LogIndex(copy?.0 - 1) } else { LogIndex(0) };
                let message = PeerMessage { index, ..PeerMessage::new(MessageKind::Corrupt, by, id) };
                self.cluster.turn(id, Some(Event::Core(Input::Peer(by, message))));
            }
            _ => return self.act_on_messages(verb, words),
        }
        Some(())
    }

    fn act_on_messages(&mut self, verb: &str, words: &[&str]) -> Option<()> {
        match (verb, words) {
            ("lose", [kind]) => {
                self.cluster.lost = match *kind {
                    "nothing" => None,
                    "TimeoutNow" => Some(MessageKind::TimeoutNow),
                    "LeaseRenewals" => Some(MessageKind::LeaseRenewals),
                    "LeaseAnswers" => Some(MessageKind::LeaseAnswers),
                    _ => return None,
                };
            }
            ("replay", [nonce]) => self.replays = nonce.parse().ok(),
            ("corrupt", [server]) => {
                let server = self.server(server);
                crate::corruption::corrupt(&mut self.cluster, server);
            }
            ("backup", []) => self.backup = self.cluster.backup(),
            ("restore", []) => self.cluster.restore(self.backup.clone()),
            ("forget", ["questions"]) => self.asked.clear(),
            ("forget", ["counts"]) => drop(self.observed()),
            ("mark", []) => {}
            _ => return None,
        }
        Some(())
    }

    /// The request of a client.
    pub(super) fn client_request(&mut self, verb: &str, words: &[&str]) -> Option<Request> {
        let command = match (verb, words) {
            ("put", [key]) => self.cluster.new_value(key),
            ("delete", [key]) => Command::Kv(KvCommand::Delete((*key).into())),
            ("acquire", [key, session]) => Command::Kv(KvCommand::Acquire(entry(key), session_id(session))),
            ("enqueue", [key, session]) => {
                let (session, wait) = (session_id(session), Duration::from_secs(60));
                Command::Kv(KvCommand::Enqueue { new: entry(key), session, wait })
            }
            ("session", [name, "ttl", ttl]) => {
                let (ttl_text, ttl) = ((*ttl).into(), Some(duration(ttl)));
                let session = super::session_of(name, "a1", Default::default());
                Command::CreateSession(SessionSpec { ttl_text, ttl, checks: Vec::new(), ..session })
            }
            _ => {
                return Some(match (verb, words) {
                    ("read", [key, rest @ ..]) => {
                        let (rest, known) = match *rest {
                            [ref rest @ .., "known", call] => (rest, Some(self.index(call))),
                            _ => (rest, None),
                        };
                        let consistency = match *rest {
                            [] => Consistency::Default,
                            ["stale"] => Consistency::Stale,
                            ["consistent"] => Consistency::Consistent,
                            _ => return None,
                        };
                        read(key, consistency, known)
                    }
                    ("renew-session", [name]) => Request::Renew(session_id(name)),
                    ("leases", [node]) => Request::NodeLeases(NodeLeaseQuery::Of((*node).into())),
                    ("transfer", [server]) => Request::TransferLeader(Some(self.server(server))),
                    ("remove", [server]) => Request::RemoveServer(self.server(server)),
                    _ => return None,
                });
            }
        };
        Some(self.cluster.proposal(command))
    }

    /// Checks a condition of the servers.
    pub(super) fn check_servers(&mut self, verb: &str, names: &[&str]) -> Option<Result<(), String>> {
        Some(match (verb, names) {
            ("leads", [name]) => {
                holds(self.cluster.leader() == self.server(name), self.cluster.leader().to_string())
            }
            ("serves", [name]) => holds(self.core(name).replica().is_serving(), String::new()),
            ("corrupt", [name]) => {
                holds(self.cluster.servers[&self.server(name)].frontend.is_corrupt(), String::new())
            }
            ("in-order", calls) => {
                let indexes: Vec<LogIndex> = calls.iter().map(|call| self.index(call)).collect();
                holds(indexes.is_sorted() && indexes[1] < indexes[2], format!("{indexes:?}"))
            }
            ("same-index", [one, other]) => {
                holds(self.index(one) == self.index(other), self.index(one).to_string())
            }
            ("away", calls) => {
                let shown: Vec<String> = calls.iter().map(|call| self.reply(call)).collect();
                let is_away =
                    |shown: &String| shown.starts_with("not leader") || shown.starts_with("unknown");
                holds(shown.iter().all(is_away), format!("{shown:?}"))
            }
            ("has", [session, "at", server]) => holds(
                self.core(server).replica().state().session(session_id(session)).is_some(),
                String::new(),
            ),
            _ => return self.check_health(verb, names),
        })
    }

    fn check_health(&mut self, verb: &str, names: &[&str]) -> Option<Result<(), String>> {
        Some(match (verb, names) {
            ("ready", servers) => {
                let servers = self.servers(servers);
                let not_ready: Vec<_> = servers.iter().flat_map(|id| self.cluster.not_ready(*id)).collect();
                holds(not_ready.is_empty(), format!("{not_ready:?}"))
            }
            ("unready", [server, reason @ ..]) => {
                let reasons = self.cluster.not_ready(self.server(server));
                is_shown(&reasons, &reason.join(" "))
            }
            ("unready-if-silent", [server, reason]) => {
                let view = self.core("leader").autopilot(self.cluster.now());
                let later = self.cluster.now() + view.longest_silence() + SECOND;
                let frontend = &self.cluster.servers[&self.server(server)].frontend;
                is_shown(&frontend.not_ready(later), reason)
            }
            ("unhealthy", [by, expected @ ..]) => {
                let Response::Status(status) =
                    self.cluster.ask(self.server(by), &agent("a1"), Request::Status)
                else {
                    panic!("the status was requested")
                };
                let unhealthy = status.servers.iter().filter(|server| !server.healthy);
                let unhealthy: Vec<ServerId> = unhealthy.map(|server| server.id).collect();
                holds(unhealthy == self.servers(expected), format!("{unhealthy:?}"))
            }
            ("finding", expected) => {
                let finding = self.core("leader").corruption_checks().finding().clone();
                let expected = match *expected {
                    ["corrupt", server] => Finding::Corrupt([self.server(server)].into()),
                    ["Alike"] => Finding::Alike,
                    ["Undecided"] => Finding::Undecided,
                    _ => return None,
                };
                holds(finding == expected, format!("{finding:?}"))
            }
            ("checked-alike", []) => {
                let servers = self.cluster.servers.values();
                let marks: Vec<_> = servers.map(|one| one.exact.last().map(|(mark, _)| mark.index)).collect();
                holds(marks[0].is_some() && marks.iter().all(|mark| *mark == marks[0]), format!("{marks:?}"))
            }
            ("same-rows", [one, other]) => {
                let rows = |server: &str| &self.cluster.servers[&self.server(server)].recorded;
                holds(rows(one) == rows(other), String::new())
            }
            ("same-state", [one, other]) => {
                holds(self.core(one).replica().state() == self.core(other).replica().state(), String::new())
            }
            ("copied", [server]) => {
                holds(self.core(server).replica().own_memory().copy_of.is_some(), String::new())
            }
            ("compacted", [call]) => {
                let first = self.core("leader").replica().log_status().first_index;
                holds(first > self.index(call), first.to_string())
            }
            _ => return None,
        })
    }

    /// A number of a server, or of the leader.
    pub(super) fn number_of_server(&self, name: &str, of: &str) -> Option<u64> {
        let id = if of.is_empty() { self.cluster.leader() } else { self.known_server(of)? };
        let figures = self.cluster.figures(id);
        let follower = || {
            let followers = self.cluster.figures(self.cluster.leader()).followers;
            followers.into_iter().find(|other| other.node.as_str() == format!("s{id}"))
        };
        let number = match name {
            "voters" => figures.voters,
            "tolerance" => figures.failure_tolerance,
            "leader_known" => figures.is_leader_known.into(),
            "term" => figures.term.0 as usize,
            "leader_changes" => figures.leader_changes as usize,
            "sessions" => figures.sessions,
            "keys" => figures.keys,
            "locks_held" => figures.locks_held,
            "lock_waiters" => figures.lock_waiters,
            "lowered" => figures.has_lowered_priority.into(),
            "followers" => figures.followers.len(),
            "unpersisted_ms" => figures
                .unpersisted_since
                .map_or(0, |since| self.cluster.now().since(since).as_millis() as usize),
            "lag" => follower()?.lag as usize,
            "contact_ms" => follower()?.last_contact.as_millis() as usize,
            "checks" => figures.open_checks,
            "unprobed" => figures.nodes_with_failed_probes,
            "braking" => figures.is_braking.into(),
            "reported" => self.core("leader").corruption_checks().reported(),
            "applied" => self.core("leader").replica().snapshot_meta().index.0 as usize,
            "checked" => self.cluster.servers[&id].exact.len(),
            _ => return None,
        };
        Some(number as u64)
    }

    fn core(&self, server: &str) -> &Core {
        self.cluster.servers[&self.server(server)].frontend.core()
    }

    /// The index of a reply.
    fn index(&self, call: &str) -> LogIndex {
        let (server, at) = self.calls[call];
        match self.cluster.answer(server, at) {
            Some(Response::Applied(Applied { index, .. })) => *index,
            Some(Response::Answer(answer)) => answer.index,
            other => panic!("{call} has no index: {other:?}"),
        }
    }

    pub(super) fn server(&self, word: &str) -> ServerId {
        match word {
            "leader" => self.cluster.leader(),
            "follower" => self.cluster.follower(),
            "third" => {
                let known = [self.cluster.leader(), self.cluster.follower()];
                *self.cluster.servers.keys().find(|id| !known.contains(id)).expect("there are three")
            }
            _ => self.known_server(word).unwrap_or_else(|| panic!("no server {word}")),
        }
    }

    fn known_server(&self, word: &str) -> Option<ServerId> {
        match word {
            "leader" => Some(self.cluster.leader()),
            "follower" => Some(self.cluster.follower()),
            _ => word.parse().map_or_else(|_| self.names.get(word).copied(), |id| Some(ServerId(id))),
        }
    }

    pub(super) fn servers(&self, words: &[&str]) -> Vec<ServerId> {
        let all = self.cluster.servers.keys().copied();
        match words {
            ["all"] => all.collect(),
            ["followers"] => all.filter(|id| *id != self.cluster.leader()).collect(),
            ["nobody"] => Vec::new(),
            _ => words.iter().map(|word| self.server(word)).collect(),
        }
    }
}

fn is_shown(reasons: &[NotReady], expected: &str) -> Result<(), String> {
    let shown = reasons.iter().map(|reason| format!("{reason:?}")).collect::<Vec<_>>().join(" ");
    let is_it = if expected.contains("...") { begins_with(&shown, expected) } else { shown == expected };
    holds(is_it, shown)
}
