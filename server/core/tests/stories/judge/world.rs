//! The words of the failure detector's stories.
//!
//! A host has the sessions that its step names, each named after its window. `1.2` stands for an
//! agent's process 1 in boot 2 of its host, or for request 2 of generation 1. A call is named by
//! `as`, otherwise `it`; its condition is the beginning of its reply, and `...` omits some text.

use super::{Fleet, Host, SECOND, agent, health, node, process, registration_of};
use crate::frontend::server;
use crate::script::{World, begins_with, duration, holds};
use lockmesh_core::frontend::{CallRef, Event};
use lockmesh_core::observed::{SUSPICION_OUTCOMES, Suspicion};
use lockmesh_core::raft::TICK;
use lockmesh_core::{Input, NodeInput};
use lockmesh_protocol::command::{Command, Deregistration, NodeLeave};
use lockmesh_protocol::gossip::roster::RosterDigest;
use lockmesh_protocol::id::{AgentNumber, LogIndex, ServerId, Term};
use lockmesh_protocol::lease::{HealthWindow, LeaseEnd, LeaseId, NodeLeaseQuery, RESTART_WINDOW};
use lockmesh_protocol::query::{Query, Rows};
use lockmesh_protocol::record::{CheckStatus, LossCause, MemberStatus, Node};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::BTreeSet;
use std::time::Duration;

/// The node id of a container that starts without its volume.
const OTHER_ID: &str = "0f0f0f0f-3c60-4d3f-9d5c-000000000002";

impl World for Fleet {
    fn begin() -> Self {
        Self::start()
    }

    fn now(&self) -> Time {
        self.cluster.now()
    }

    fn run(&mut self, duration: Duration) {
        self.counts = None;
        Self::run(self, duration);
    }

    fn act(&mut self, verb: &str, words: &[&str]) -> Option<()> {
        self.counts = None;
        self.act_on_hosts(verb, words).or_else(|| self.act_on_servers(verb, words)).or_else(|| {
            let (words, call) = match *words {
                [ref words @ .., "as", call] => (words, Some(call)),
                _ => (words, None),
            };
            let made = self.call(verb, words)?;
            if verb == "suspect" && call.is_none() {
                assert_eq!(self.cluster.answer(made.0, made.1), Some(&Response::Done));
            }
            self.calls.insert(call.unwrap_or("it").into(), made);
            Some(())
        })
    }

    fn check(&mut self, words: &[&str]) -> Option<Result<(), String>> {
        if self.calls.contains_key(words[0]) && words.len() > 1 {
            let shown = self.reply(words[0]);
            let named = |word: &&str| match word.strip_prefix('@') {
                Some(server) => format!("s{}", self.server(server)),
                None => (*word).to_owned(),
            };
            let expected: Vec<String> = words[1..].iter().map(named).collect();
            return Some(holds(begins_with(&shown, &expected.join(" ")), shown));
        }
        if let [names @ .., status] = words
            && !names.is_empty()
            && names.iter().all(|name| self.hosts.contains_key(*name) || *name == "a1")
        {
            return names
                .iter()
                .map(|name| self.is(name, status))
                .find(|is| *is != Some(Ok(())))
                .unwrap_or(Some(Ok(())));
        }
        let (verb, names) = words.split_first()?;
        self.check_servers(verb, names)
            .or_else(|| self.check_of_cluster(verb, names))
            .or_else(|| self.check_of_host(verb, names))
    }

    fn number(&mut self, name: &str) -> Option<u64> {
        let (name, of) = name.split_once(':').unwrap_or((name, ""));
        let number = match name {
            "failed" => self.state().member_counts().failed,
            "alive" => self.state().member_counts().alive,
            "losses" => self.losses().len(),
            "silent_ms" => match self.losses().pop()? {
                LossCause::NodeFailed { silent_for, .. } | LossCause::GivenUp { silent_for } => {
                    silent_for.as_millis() as usize
                }
                _ => return None,
            },
            "confirmed_by" => match self.losses().pop()? {
                LossCause::NodeFailed { confirmed_by, .. } => confirmed_by.len(),
                _ => return None,
            },
            "renewed" => {
                let answers = self.renewals.iter().map(|(to, call)| self.cluster.answer(*to, *call));
                answers.filter(|answer| matches!(answer, Some(Response::LeaseRenewed(_)))).count()
            }
            "pending" => {
                let calls = self.calls.values();
                calls.filter(|(to, call)| self.cluster.answer(*to, *call).is_none()).count()
            }
            "questions" => self.asked.len(),
            "agents_asked" => self.asked_through("h1").len(),
            "leases" => self.leases_of(of).len(),
            "heard_ms" => self.lease_of(of).heard_ago?.as_millis() as usize,
            "challenges_per_second" => self.challenges_per_second(),
            _ => return self.number_of_server(name, of).or_else(|| self.counted(name, of)),
        };
        Some(number as u64)
    }

    fn time_of(&self, name: &str) -> Option<Time> {
        Some(self.hosts.get(name)?.renewed)
    }
}

impl Fleet {
    fn act_on_hosts(&mut self, verb: &str, words: &[&str]) -> Option<()> {
        match (verb, words) {
            ("host", [name, incarnation]) if incarnation.contains('.') => {
                let incarnation = process_of(incarnation);
                let response = self.register(name, incarnation);
                self.registered(name, incarnation, &response);
            }
            ("host" | "holder", [name, windows @ ..]) => {
                self.host(name);
                let windows = if verb == "holder" { &["fast", "default", "safe"] } else { windows };
                for word in windows {
                    self.session(word, name, window(word));
                }
                self.run(if verb == "holder" { 2 * SECOND } else { Duration::ZERO });
            }
            ("hosts", [count, windows @ ..]) => {
                self.hosts(count.parse().ok()?, windows.first().map(|word| window(word)));
            }
            ("unreachable", [count]) => self.cut_off(count.parse().ok()?),
            ("session", [name, "on", host, word]) => drop(self.session(name, host, window(word))),
            ("kill", names) => names.iter().for_each(|name| self.kill(name)),
            ("stop", [name, request @ ..]) => {
                let call = self.announce(name, request.first().unwrap_or(&"1.1"));
                self.calls.insert("it".into(), call);
                assert_eq!(self.reply("it"), "true");
                self.kill(name);
                self.marks.insert("stop", self.cluster.now());
            }
            ("outage", [name, text]) => {
                let host = self.at(name).clone();
                self.kill(name);
                self.run(duration(text));
                *self.at(name) = Host { sequence: self.at(name).sequence, ..host };
            }
            ("answers", [name, "to", servers @ ..]) => {
                self.at(name).answers = self.servers(servers).into_iter().collect();
            }
            ("answers", [name, "through", agents @ ..]) => {
                self.at(name).answers_agents = agents.iter().map(|agent| (*agent).to_owned()).collect();
            }
            _ => return self.act_on_leases(verb, words),
        }
        Some(())
    }

    fn act_on_leases(&mut self, verb: &str, words: &[&str]) -> Option<()> {
        match (verb, words) {
            ("renews", [name, "never"]) => self.at(name).renews_every = None,
            ("renews", [name, "every", interval, rest @ ..]) => {
                let home = rest.get(1).map(|word| self.server(word));
                let host = self.at(name);
                (host.renews_every, host.home) = (Some(duration(interval)), home);
            }
            ("sequence", [name, number]) => self.at(name).sequence = number.parse().ok()?,
            ("adopt", [call]) => {
                let (server, call) = self.calls[*call];
                let answer = self.cluster.answer(server, call).expect("it is answered").clone();
                let Response::Applied(Applied { reply: Reply::Agent { lease, .. }, .. }) = &answer else {
                    panic!("not registered: {answer:?}")
                };
                let agent = self.state().agent_of(*lease).expect("it registered");
                let (name, incarnation) = (agent.node.to_string(), agent.incarnation);
                self.registered(&name, incarnation, &answer);
            }
            ("give-up", [host, session]) => self.give_up(host, session),
            ("forge", [name, how, of]) => {
                let (host, nonce) =
                    (self.hosts[*name].clone(), self.asked.last().expect("it is asked").1.nonce);
                let answer = match *how {
                    "secret" => self.hosts[*of].secret.renewal(host.lease, 99, nonce),
                    _ => host.secret.renewal(host.lease, 99, nonce ^ 1),
                };
                let input = NodeInput::AgentAnswered(Box::new(answer.into()));
                self.cluster.turn(self.cluster.leader(), Some(Event::Core(Input::Node(input))));
            }
            ("kept-from", [mark]) => self.assert_kept_from(self.marks[mark]),
            ("health", [name, status]) => {
                let status = CheckStatus::parse(status)?;
                let answer = self.cluster.command(health(name, status));
                assert!(matches!(answer, Response::Applied(_)), "{answer:?}");
            }
            ("deregister", [name]) => {
                let removal = Deregistration { node: (*name).into(), service: None, check: None };
                let answer = self.cluster.command(Command::Deregister(removal));
                assert!(matches!(answer, Response::Applied(_)), "{answer:?}");
            }
            _ => return None,
        }
        Some(())
    }

    /// Sends a request. Messages are delivered, unless the last word says otherwise.
    fn call(&mut self, verb: &str, words: &[&str]) -> Option<(ServerId, CallRef)> {
        let (words, to) = match *words {
            [ref words @ .., "at", server] => (words, self.server(server)),
            _ => (words, self.cluster.leader()),
        };
        let node_of_server;
        let (peer, request) = match (verb, words) {
            ("renew", [name]) => (*name, self.renewal(name, self.hosts[*name].secret)),
            ("renew", [name, "secret", of]) => (*name, self.renewal(name, self.hosts[*of].secret)),
            ("renew", [name, "from", other]) => (*other, self.renewal(name, self.hosts[*name].secret)),
            ("register", [name, incarnation] | [name, incarnation, "undelivered"]) => {
                (*name, registration_of(node(name), process_of(incarnation)))
            }
            ("claim", [name, incarnation]) => {
                let node = Node { id: OTHER_ID.into(), ..node(name) };
                (*name, registration_of(node, process_of(incarnation)))
            }
            ("announce", [name, request]) => return Some(self.announce(name, request)),
            ("end-restart", [name, request, rest @ ..]) => {
                let lease = self.hosts[*name].lease;
                let (announced_at, term) = (lease.began, Term(0));
                let command = Command::EndRestart { agent: lease.agent, announced_at, term, base: 0 };
                return Some(self.propose(rest.get(1).unwrap_or(name), request, command));
            }
            ("leave", [name]) => {
                let leave =
                    NodeLeave { node: (*name).into(), lease: Some(self.hosts[*name].lease), prune: false };
                return Some(self.propose(name, "1.2", Command::LeaveNode(leave)));
            }
            ("force-leave", [name, prune @ ..]) if matches!(prune, [] | ["prune" | "keep"]) => {
                let leave = NodeLeave { node: (*name).into(), lease: None, prune: *prune == ["prune"] };
                ("a1", self.cluster.proposal(Command::LeaveNode(leave)))
            }
            ("leases", []) => ("h1", Request::NodeLeases(NodeLeaseQuery::From(AgentNumber(0)))),
            ("snapshot", ["by", by]) => {
                node_of_server = format!("s{}", self.server(by));
                (
                    node_of_server.as_str(),
                    Request::SnapshotPart { snapshot: None, number: 0, least: LogIndex(1) },
                )
            }
            ("suspect", [suspected @ .., "by", reporter]) => {
                (*reporter, Request::Suspect(suspected.iter().map(|name| self.suspected(name)).collect()))
            }
            ("sync", [name]) => (*name, Request::SyncMesh(RosterDigest(Vec::new()))),
            ("rotate", [from]) => {
                let command = Command::RotateGossipKey { from: from.parse().ok()? };
                ("a1", self.cluster.proposal(command))
            }
            _ => ("a1", self.client_request(verb, words)?),
        };
        let is_server = peer.strip_prefix('s').is_some_and(|id| id.parse::<u64>().is_ok());
        let peer = if is_server { server(peer) } else { agent(peer) };
        let call = self.cluster.begin(to, &peer, request);
        if words.last() != Some(&"undelivered") {
            self.cluster.deliver();
        }
        Some((to, call))
    }

    /// The leader's count of this name since an earlier reading.
    fn counted(&mut self, name: &str, of: &str) -> Option<u64> {
        let counts = self.counts.take().unwrap_or_else(|| self.observed().judge);
        let number = match name {
            "verdicts" => counts.verdicts[window(of) as usize],
            "acknowledged" => counts.renewals_acknowledged,
            "opened" => counts.suspicions[Suspicion::Opened as usize],
            "checks_opened" => counts.checks_opened,
            "saved_by_agents" => counts.saved_by_agents,
            "forged_answers" => counts.forged_answers,
            _ => return None,
        };
        self.counts = Some(counts);
        Some(number)
    }

    /// The lease of a host. `former-h1` stands for an earlier one, and `h1x2` for a repetition.
    fn suspected(&self, name: &str) -> LeaseId {
        match name.strip_prefix("former-") {
            Some(name) => LeaseId { began: LogIndex(1), ..self.hosts[name].lease },
            None => self.hosts[name.split('x').next().unwrap_or(name)].lease,
        }
    }

    fn check_of_cluster(&mut self, verb: &str, names: &[&str]) -> Option<Result<(), String>> {
        Some(match (verb, names) {
            ("lives" | "ended", sessions) => {
                let lives: Vec<&str> = sessions.iter().copied().filter(|name| self.lives(name)).collect();
                let count = if verb == "lives" { sessions.len() } else { 0 };
                holds(lives.len() == count, format!("only {lives:?} live"))
            }
            ("caused", [name]) => {
                let losses = self.losses();
                let is_it = |cause: &LossCause| match cause {
                    LossCause::NodeFailed { window, .. } => window.as_str() == *name,
                    cause => format!("{cause:?}").starts_with(name),
                };
                holds(losses.iter().any(is_it), format!("{losses:?}"))
            }
            ("outcomes", ["at", server, expected @ ..]) => {
                let outcomes = self.observed_by(self.server(server)).judge.suspicions;
                let named = SUSPICION_OUTCOMES.iter().zip(outcomes).filter(|(_, count)| *count > 0);
                let shown: Vec<_> = named.map(|(outcome, count)| format!("{outcome}={count}")).collect();
                holds(shown == expected, shown.join(" "))
            }
            ("outcomes", expected) => {
                return self.check_of_cluster(verb, &[&["at", "leader"], expected].concat());
            }
            ("roster", expected) => {
                let rosters: Vec<_> =
                    self.servers(&["all"]).into_iter().map(|id| self.roster(id, "h1")).collect();
                holds(rosters.iter().all(|roster| roster.iter().eq(expected)), format!("{rosters:?}"))
            }
            _ => return None,
        })
    }

    fn check_of_host(&mut self, verb: &str, names: &[&str]) -> Option<Result<(), String>> {
        let (name, rest) = names.split_first()?;
        let (is_it, facts) = match verb {
            "unrenewed" => (self.is_reported(name), String::new()),
            "asked" => (self.asked_through("h1").contains(*name), format!("{:?}", self.asked_through("h1"))),
            "heard" => (self.lease_of(name).heard_ago.is_some(), String::new()),
            "counts" => (self.lease_of(name).ends_in.is_some(), String::new()),
            "suspected" => {
                let by = self.lease_of(name).suspected_by;
                (by.iter().map(|node| node.as_str()).eq(rest[1..].iter().copied()), format!("{by:?}"))
            }
            "unprobed" => {
                let lease = self.lease_of(name);
                let is_it = lease.has_failed_probes() && !lease.lacks_renewals();
                let by = lease.suspecting_nodes().all(|node| rest.contains(&node.as_str()));
                (is_it && by, format!("{lease:?}"))
            }
            "announced" => (self.member(name).restart_announced.is_some(), String::new()),
            "former" => (self.member(name).former_sessions_until.is_some(), String::new()),
            "claimed" => {
                let member = self.member(name);
                assert_eq!(member.number, self.hosts[*name].lease.agent);
                (&*member.node_id == OTHER_ID, member.node_id.to_string())
            }
            "health" => {
                let (_, Rows::Checks(checks)) = self.state().query(&Query::NodeChecks((*name).into())) else {
                    panic!("checks were asked for")
                };
                let statuses: Vec<_> = checks.iter().map(|check| check.status.as_str()).collect();
                (statuses == rest, format!("{statuses:?}"))
            }
            "untouched" => {
                let (_, Rows::Nodes(nodes)) = self.state().query(&Query::Nodes) else { panic!("no nodes") };
                let is_listed = nodes.iter().any(|node| node.name == (*name).into());
                let lives = HealthWindow::ALL.iter().all(|window| self.lives(window.as_str()));
                (lives && is_listed && self.status(name) != MemberStatus::Left, format!("{lives} {nodes:?}"))
            }
            _ => return None,
        };
        Some(holds(is_it, facts))
    }

    /// Returns whether a host is as a word says.
    fn is(&self, name: &str, word: &str) -> Option<Result<(), String>> {
        let member = self.state().member(&name.into());
        let expected = match word {
            "gone" => return Some(holds(member.is_none(), format!("{member:?}"))),
            "renews" => return Some(holds(self.hosts[name].renewed == self.cluster.now(), String::new())),
            "new-lease" => {
                let host = &self.hosts[name];
                return Some(holds(
                    host.former.is_some_and(|lease| lease != host.lease),
                    format!("{host:?}"),
                ));
            }
            "current" => {
                let (host, member) = (&self.hosts[name], self.member(name));
                let is_it = (member.lease(), member.incarnation) == (host.lease, host.incarnation);
                return Some(holds(is_it, format!("{member:?}")));
            }
            "alive" => MemberStatus::Alive,
            "failed" => MemberStatus::Failed,
            "restarting" => MemberStatus::Restarting,
            "left" => MemberStatus::Left,
            _ => return None,
        };
        let status = member.map(|member| member.status);
        Some(holds(status == Some(expected), format!("{name} is {status:?}")))
    }

    /// The reply to a call, in words.
    pub(super) fn reply(&self, call: &str) -> String {
        let (server, call) = self.calls[call];
        let name_of = |lease: LeaseId| {
            let host = self.hosts.iter().find(|(_, host)| host.lease == lease);
            host.map_or("another", |(name, _)| name.as_str())
        };
        match self.cluster.answer(server, call) {
            None => "pending".into(),
            Some(Response::Done) => "accepted".into(),
            Some(Response::LeaseRenewed(ack)) => {
                format!("renewed {} {}", name_of(ack.lease), ack.shortest.map_or("-", HealthWindow::as_str))
            }
            Some(Response::LeaseEnded(lease, LeaseEnd::Failed)) => {
                format!("ended {} failed", name_of(*lease))
            }
            Some(Response::LeaseEnded(lease, LeaseEnd::Unknown)) => {
                format!("ended {} unknown", name_of(*lease))
            }
            Some(Response::Unavailable(Unavailable::NotLeader { leader })) => match leader {
                Some(leader) => format!("not leader: {leader}"),
                None => "not leader".into(),
            },
            Some(Response::Unavailable(Unavailable::Denied(why))) => format!("denied: {why}"),
            Some(Response::Unavailable(Unavailable::Disk(why))) => format!("disk: {why}"),
            Some(Response::Unavailable(why @ Unavailable::Corrupt)) => format!("corrupt: {why}"),
            Some(Response::Renewed(session)) => session.is_some().to_string(),
            Some(Response::Answer(answer)) => format!("answer {:?}", answer.rows),
            Some(Response::Unavailable(Unavailable::Unknown(why))) => format!("unknown: {why}"),
            Some(Response::Applied(Applied { reply, .. })) => match reply {
                Reply::Done => "done".into(),
                Reply::Succeeded(is_so) => is_so.to_string(),
                Reply::Agent { .. } => "registered".into(),
                Reply::Refused(why) => format!("refused: {why:?}"),
                Reply::GossipKey(number) => format!("key {number}"),
                other => format!("{other:?}"),
            },
            Some(other) => format!("{other:?}"),
        }
    }

    /// The agents through which a host was challenged.
    fn asked_through(&self, name: &str) -> BTreeSet<&str> {
        let lease = self.hosts[name].lease;
        let asked = self.asked.iter().filter(|(_, challenge, _)| challenge.lease == lease);
        asked.map(|(_, _, agent)| agent.as_str()).collect()
    }

    /// Returns whether the leader reports the node as not renewing, in its gauge and with its
    /// lease.
    #[track_caller]
    fn is_reported(&mut self, name: &str) -> bool {
        let figures = self.cluster.figures(self.cluster.leader());
        let leases = self.leases_of(name);
        let is_reported = leases.iter().any(|lease| lease.lacks_renewals());
        assert_eq!(figures.nodes_without_renewals > 0, is_reported, "{leases:?}");
        is_reported
    }

    /// The maximum number of challenges that a server sent within a second.
    fn challenges_per_second(&self) -> usize {
        let counts = self.challenged.iter().step_by(16).map(|(id, from)| {
            let is_in = |(other, at): &&(ServerId, Time)| other == id && at >= from && *at < *from + SECOND;
            self.challenged.iter().filter(is_in).count()
        });
        counts.max().unwrap_or_default()
    }

    /// Asserts that all sessions live for a restart window from here, and not much longer.
    fn assert_kept_from(&mut self, since: Time) {
        let alive =
            |fleet: &Self| HealthWindow::ALL.iter().filter(|window| fleet.lives(window.as_str())).count();
        self.run_until(60 * SECOND, |fleet| alive(fleet) < 3);
        let kept = self.cluster.now().since(since);
        assert!(kept + 2 * TICK >= RESTART_WINDOW, "only for {kept:?}");
        assert!(kept <= RESTART_WINDOW + super::SLACK, "for {kept:?}");
        self.run(SECOND);
        assert_eq!(alive(self), 0);
    }

    fn announce(&mut self, name: &str, request: &str) -> (ServerId, CallRef) {
        let command = Command::AnnounceRestart(self.hosts[name].lease);
        self.propose(name, request, command)
    }
}

fn window(word: &str) -> HealthWindow {
    HealthWindow::parse(word).unwrap_or_else(|| panic!("no window {word}"))
}

fn process_of(word: &str) -> lockmesh_protocol::record::Incarnation {
    let (number, boot) = word.split_once('.').expect("as process.boot");
    process(number.parse().expect("a number"), boot.parse().expect("a number"))
}
