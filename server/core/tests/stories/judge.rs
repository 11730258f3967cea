//! The failure detector: hosts that renew, die, are cloned or are unreachable, and three servers
//! that judge them. The time bounds here are the guarantee to users. An outage shorter than a
//! window ends no session, and a dead host's locks are granted to others soon after it.

mod agents;
mod force_leave;
mod given_up;
mod jurors;
mod mesh;
mod node_leases;
mod restarts;
mod stalled_renewals;

use crate::frontend::{Cluster, agent};
use crate::names::session as session_id;
use crate::solo::{CORRUPTION_CHECK_INTERVAL, REAP_FAILED_AFTER, Solo};
use lockmesh_core::frontend::{CallRef, Event};
use lockmesh_core::raft::TICK;
use lockmesh_core::raft::message::MessageKind;
use lockmesh_core::{Input, NodeInput};
use lockmesh_protocol::command::{AgentRegistration, Command, Deregistration, NodeFailure, Registration};
use lockmesh_protocol::given_up::{GivenUpSession, NodeAnswer};
use lockmesh_protocol::id::{CheckId, LogIndex, ServerId, SessionId};
use lockmesh_protocol::lease::{Challenge, HealthWindow, LeaseEnd, LeaseId, LeaseSecret};
use lockmesh_protocol::query::{Query, Rows};
use lockmesh_protocol::record::{
    Agent, Behavior, Check, CheckStatus, Incarnation, LossCause, MemberStatus, Node, SessionSpec,
};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// The timeout of a challenge.
const CHALLENGE_TIMEOUT: Duration = Duration::from_millis(250);
/// The maximum delay of a failure after its window.
const SLACK: Duration = Duration::from_millis(500);

/// A host with an agent.
#[derive(Clone, Debug)]
struct Host {
    lease: LeaseId,
    secret: LeaseSecret,
    incarnation: Incarnation,
    sequence: u64,
    /// The interval of its renewals; `None` if it does not renew.
    renews_every: Option<Duration>,
    next_renewal: Time,
    /// The time of its last renewal.
    renewed: Time,
    /// The server at which it renews; `None` for the leader.
    home: Option<ServerId>,
    /// The servers whose challenges it answers.
    answers: BTreeSet<ServerId>,
    /// The agents whose challenges it answers.
    answers_agents: BTreeSet<String>,
    /// The sessions that its guards gave up.
    given_up: Vec<GivenUpSession>,
}

impl Host {
    /// Its next answer to a challenge.
    fn answer(&self, nonce: u64) -> NodeAnswer {
        let renewal = self.secret.renewal(self.lease, self.sequence, nonce);
        let sessions = self.given_up.as_slice().try_into().expect("they fit");
        let given_up = (!self.given_up.is_empty()).then(|| self.secret.give_up(self.lease, sessions));
        NodeAnswer { renewal, given_up }
    }
}

/// Three servers, and hosts that renew.
struct Fleet {
    cluster: Cluster,
    hosts: BTreeMap<String, Host>,
    /// Unanswered challenges with the end of their timeout.
    unanswered: Vec<(Time, ServerId, Challenge)>,
    /// Servers that never receive the outcome of their challenges.
    stuck: BTreeSet<ServerId>,
    renewals: Vec<(ServerId, CallRef)>,
    /// The challenges sent through agents.
    asked: Vec<(Time, Challenge, String)>,
    /// The servers that sent challenges, with the time.
    challenged: Vec<(ServerId, Time)>,
    /// The nonce with which hosts answer all challenges, as in a replay of an earlier answer.
    replays: Option<u64>,
}

fn node(name: &str) -> Node {
    let number: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
    Node::of(name.into(), format!("5a0f2b6e-3c60-4d3f-9d5c-{number:0>12}"), "10.0.0.1")
}

/// The incarnation of a process in a boot of a host.
fn process(process: u8, boot: u8) -> Incarnation {
    Incarnation { process: [process; 16], boot: [boot; 16], certificate: [1; 32] }
}

fn registration(name: &str, incarnation: Incarnation) -> Request {
    registration_of(node(name), incarnation)
}

fn registration_of(node: Node, incarnation: Incarnation) -> Request {
    let gossip = "10.0.0.1:8301".parse().ok();
    let registration = AgentRegistration { incarnation, port: 8301, gossip, ..AgentRegistration::of(node) };
    Request::Propose(None, Command::RegisterAgent(registration))
}

fn session_of(name: &str, node: &str, health_window: HealthWindow) -> SessionSpec {
    SessionSpec {
        id: session_id(name),
        name: name.into(),
        node: node.into(),
        lock_delay: Duration::ZERO,
        behavior: Behavior::Release,
        ttl_text: String::new(),
        ttl: None,
        checks: vec![CheckId::from("serfHealth")],
        node_checks: Vec::new(),
        service_checks: None,
        health_window,
    }
}

impl Fleet {
    fn start() -> Self {
        Self::start_with(SECOND)
    }

    /// The same, with this stall timeout.
    fn start_with(stall_timeout: Duration) -> Self {
        let cluster = Cluster::start_with(3, stall_timeout);
        let (hosts, unanswered) = (BTreeMap::new(), Vec::new());
        let (stuck, renewals, asked) = (BTreeSet::new(), Vec::new(), Vec::new());
        let (challenged, replays) = (Vec::new(), None);
        let mut fleet = Self { cluster, hosts, unanswered, stuck, renewals, asked, challenged, replays };
        // The cluster's own agent never renews. It fails here, so that it does not affect the
        // stories.
        fleet.run(7 * SECOND);
        fleet
    }

    /// Adds a host that registers, renews in time and answers every challenge.
    fn host(&mut self, name: &str) {
        let response = self.register(name, process(1, 1));
        self.registered(name, process(1, 1), &response);
    }

    fn register(&mut self, name: &str, incarnation: Incarnation) -> Response {
        let leader = self.cluster.leader();
        self.cluster.ask(leader, &agent(name), registration(name, incarnation))
    }

    fn registered(&mut self, name: &str, incarnation: Incarnation, response: &Response) {
        let Response::Applied(Applied { reply: Reply::Agent { lease, secret, .. }, .. }) = response else {
            panic!("{name} is not registered: {response:?}")
        };
        let host = Host {
            lease: *lease,
            secret: *secret,
            incarnation,
            sequence: 0,
            renews_every: Some(SECOND / 2),
            next_renewal: self.cluster.now(),
            renewed: self.cluster.now(),
            home: None,
            answers: self.cluster.servers.keys().copied().collect(),
            answers_agents: BTreeSet::new(),
            given_up: Vec::new(),
        };
        self.hosts.insert(name.into(), host);
    }

    fn at(&mut self, name: &str) -> &mut Host {
        self.hosts.get_mut(name).expect("it was registered")
    }

    /// Stops the host: it neither renews nor answers.
    fn kill(&mut self, name: &str) {
        let host = self.at(name);
        host.renews_every = None;
        host.answers.clear();
    }

    fn run(&mut self, duration: Duration) {
        let end = self.cluster.now() + duration;
        while self.cluster.now() < end {
            self.step();
        }
    }

    /// Runs until a condition holds; returns the elapsed time, at most `limit`.
    fn run_until(&mut self, limit: Duration, is_so: impl Fn(&Self) -> bool) -> Duration {
        let began = self.cluster.now();
        while !is_so(self) && self.cluster.now().since(began) < limit {
            self.step();
        }
        self.cluster.now().since(began)
    }

    fn step(&mut self) {
        self.cluster.run(TICK);
        self.renew_all();
        self.ask_all();
    }

    fn renew_all(&mut self) {
        let now = self.cluster.now();
        for name in self.hosts.keys().cloned().collect::<Vec<_>>() {
            let host = self.hosts[&name].clone();
            if let Some(interval) = host.renews_every.filter(|_| host.next_renewal <= now) {
                let leader = self.cluster.servers.keys().find(|id| self.serves(**id)).copied();
                if let Some(to) = host.home.or(leader) {
                    let call = self.renew(&name, to);
                    self.renewals.push((to, call));
                }
                self.at(&name).next_renewal = now + interval;
            }
        }
    }

    fn serves(&self, id: ServerId) -> bool {
        let is_away = self.cluster.down.contains(&id) || self.cluster.cut_off.contains(&id);
        !is_away && self.cluster.servers[&id].frontend.core().is_serving()
    }

    /// Renews once at a server.
    fn renew(&mut self, name: &str, to: ServerId) -> CallRef {
        let now = self.cluster.now();
        let host = self.at(name);
        host.sequence += 1;
        host.renewed = now;
        let renewal = host.secret.renewal(host.lease, host.sequence, 0);
        self.cluster.call(to, &agent(name), Request::RenewLease(renewal))
    }

    /// Sends all challenges, and reports their outcomes.
    fn ask_all(&mut self) {
        let now = self.cluster.now();
        for id in self.cluster.servers.keys().copied().collect::<Vec<_>>() {
            for wanted in self.cluster.take_challenges(id) {
                assert_eq!(wanted.address, "10.0.0.1:8301");
                self.challenged.push((id, now));
                match self.answer_of(id, wanted.challenge) {
                    Some(renewal) => self.report_challenge(id, wanted.challenge, Some(renewal)),
                    None => self.unanswered.push((now + CHALLENGE_TIMEOUT, id, wanted.challenge)),
                }
            }
        }
        self.ask_through_agents();
        let over: Vec<_> = self.unanswered.extract_if(.., |(until, ..)| *until <= now).collect();
        for (_, id, challenge) in over {
            self.report_challenge(id, challenge, None);
        }
    }

    fn answer_of(&mut self, asked_by: ServerId, challenge: Challenge) -> Option<NodeAnswer> {
        let host = self.hosts.values_mut().find(|host| host.lease == challenge.lease)?;
        if !host.answers.contains(&asked_by) {
            return None;
        }
        host.sequence += 1;
        Some(host.answer(self.replays.unwrap_or(challenge.nonce)))
    }

    fn report_challenge(&mut self, id: ServerId, challenge: Challenge, answer: Option<NodeAnswer>) {
        if !self.stuck.contains(&id) {
            self.cluster.turn(
                id,
                Some(Event::Core(Input::Node(NodeInput::Challenged(challenge, answer.map(Box::new))))),
            );
            self.cluster.deliver();
        }
    }

    fn session(&mut self, name: &str, node: &str, window: HealthWindow) -> SessionId {
        let answer = self.cluster.command(Command::CreateSession(session_of(name, node, window)));
        assert!(matches!(&answer, Response::Applied(Applied { reply: Reply::Session(_), .. })), "{answer:?}");
        session_id(name)
    }

    fn lives(&self, session: &str) -> bool {
        let state = self.cluster.servers[&self.cluster.leader()].frontend.core().state();
        state.session(session_id(session)).is_some()
    }

    fn member(&self, name: &str) -> Arc<Agent> {
        let state = self.cluster.servers[&self.cluster.leader()].frontend.core().state();
        Arc::clone(state.member(&name.into()).expect("it registered"))
    }

    fn status(&self, name: &str) -> MemberStatus {
        self.member(name).status
    }

    /// The time from a dead host's last renewal to the end of a session.
    fn time_of_death(&mut self, host: &str, session: &str) -> Duration {
        let session = session.to_owned();
        let limit = 40 * SECOND;
        self.run_until(limit, |fleet| !fleet.lives(&session));
        assert!(!self.lives(&session), "{session} lives on");
        let renewed = self.at(host).renewed;
        self.cluster.now().since(renewed)
    }

    /// Cuts the leader off, and runs until another server leads.
    fn depose(&mut self) -> ServerId {
        let former = self.cluster.leader();
        self.cluster.cut_off.insert(former);
        let others: Vec<_> = self.cluster.servers.keys().copied().filter(|id| *id != former).collect();
        self.run_until(10 * SECOND, |fleet| others.iter().any(|id| fleet.serves(*id)));
        former
    }
}

fn is_renewed(response: Option<&Response>) -> bool {
    matches!(response, Some(Response::LeaseRenewed(_)))
}

#[track_caller]
fn assert_within(took: Duration, window: Duration) {
    assert!(took >= window, "{took:?} is less than {window:?}");
    assert!(took <= window + SLACK, "{took:?} is far more than {window:?}");
}

// Verdicts.

#[test]
fn the_sessions_of_a_dead_host_end_each_after_its_own_window() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    for window in HealthWindow::ALL {
        fleet.session(window.as_str(), "h1", window);
    }
    fleet.run(10 * SECOND);
    assert!(HealthWindow::ALL.iter().all(|window| fleet.lives(window.as_str())), "it lives");
    fleet.kill("h1");
    let took = fleet.time_of_death("h1", "fast");
    assert_within(took, HealthWindow::Fast.validity());
    assert!(fleet.lives("default") && fleet.status("h1") == MemberStatus::Alive);
    let took = fleet.time_of_death("h1", "default");
    assert_within(took, HealthWindow::Default.validity());
    assert!(fleet.lives("safe") && fleet.status("h1") == MemberStatus::Failed);
    let took = fleet.time_of_death("h1", "safe");
    assert_within(took, HealthWindow::Safe.validity());
    let leader = fleet.cluster.leader();
    let observed = fleet.cluster.servers.get_mut(&leader).expect("it runs").frontend.take_observed();
    assert_eq!(observed.judge.verdicts, [1, 2, 1], "the cluster's own agent is among them");
    assert!(observed.judge.renewals_acknowledged > 0 && observed.judge.checks_opened >= 2);
}

#[test]
fn an_outage_that_is_shorter_than_the_window_ends_nothing_however_soon_before_a_renewal_it_began() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    for window in [HealthWindow::Default, HealthWindow::Fast] {
        fleet.session(window.as_str(), "h1", window);
        fleet.at("h1").renews_every = Some(window.renewal_interval());
        fleet.run(10 * SECOND);
        let renewed = fleet.at("h1").renewed;
        fleet.run_until(5 * SECOND, |fleet| fleet.hosts["h1"].renewed != renewed);
        let host = fleet.at("h1").clone();
        fleet.run(window.renewal_interval() - 2 * TICK);
        fleet.kill("h1");
        fleet.run(window.duration());
        *fleet.at("h1") = Host { sequence: fleet.at("h1").sequence, ..host };
        fleet.run(10 * SECOND);
        assert!(fleet.lives(window.as_str()) && fleet.status("h1") == MemberStatus::Alive, "{window:?}");
    }
}

#[test]
fn a_host_without_sessions_fails_too() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    fleet.run(10 * SECOND);
    fleet.kill("h1");
    fleet.run_until(20 * SECOND, |fleet| fleet.status("h1") == MemberStatus::Failed);
    let took = fleet.cluster.now().since(fleet.at("h1").renewed);
    assert_within(took, HealthWindow::Default.validity());
}

#[test]
fn a_loss_says_who_confirmed_it() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    fleet.session("fast", "h1", HealthWindow::Fast);
    fleet.kill("h1");
    fleet.time_of_death("h1", "fast");
    let state = fleet.cluster.servers[&fleet.cluster.leader()].frontend.core().state();
    let losses = match state.query(&Query::Losses) {
        (_, Rows::Losses(losses)) => losses,
        other => panic!("losses were asked for: {other:?}"),
    };
    let cause = &losses.last().expect("one was lost").cause;
    let LossCause::NodeFailed { window: HealthWindow::Fast, confirmed_by, silent_for } = cause else {
        panic!("{cause:?}")
    };
    assert!(confirmed_by.len() >= 2 && *silent_for >= HealthWindow::Fast.validity(), "{cause:?}");
}

#[test]
fn a_host_that_answers_one_server_is_never_failed() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    fleet.session("fast", "h1", HealthWindow::Fast);
    for id in fleet.cluster.servers.keys().copied().collect::<Vec<_>>() {
        fleet.kill("h1");
        fleet.at("h1").answers.insert(id);
        fleet.run(30 * SECOND);
        assert!(
            fleet.lives("fast") && fleet.status("h1") == MemberStatus::Alive,
            "{id} receives its answers"
        );
    }
}

#[test]
fn too_few_servers_that_can_ask_fail_nobody() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    fleet.session("fast", "h1", HealthWindow::Fast);
    fleet.kill("h1");
    let leader = fleet.cluster.leader();
    fleet.stuck = fleet.cluster.servers.keys().copied().filter(|id| *id != leader).collect();
    fleet.run(30 * SECOND);
    assert!(fleet.lives("fast") && fleet.status("h1") == MemberStatus::Alive);
    fleet.stuck.clear();
    fleet.run(5 * SECOND);
    assert!(!fleet.lives("fast"));
}

#[test]
fn a_leader_that_is_cut_off_fails_nobody_and_the_next_one_gives_whole_windows() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    fleet.host("h2");
    fleet.session("dead", "h1", HealthWindow::Default);
    fleet.session("living", "h2", HealthWindow::Fast);
    fleet.run(2 * SECOND);
    fleet.kill("h1");
    // In the middle of the check.
    fleet.run(4 * SECOND);
    fleet.depose();
    let serves_since = fleet.cluster.now();
    fleet.run_until(20 * SECOND, |fleet| !fleet.lives("dead"));
    let took = fleet.cluster.now().since(serves_since);
    assert!(took + 2 * TICK >= HealthWindow::Default.validity(), "{took:?}");
    assert!(took <= HealthWindow::Default.validity() + SLACK, "{took:?}");
    fleet.run(10 * SECOND);
    assert!(fleet.lives("living") && fleet.status("h2") == MemberStatus::Alive);
}

#[test]
fn servers_that_did_not_run_fail_nobody_for_it() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    fleet.session("fast", "h1", HealthWindow::Fast);
    fleet.run(2 * SECOND);
    for _ in 0..10 {
        fleet.cluster.pause(10 * SECOND);
        fleet.run(3 * SECOND);
        assert!(fleet.lives("fast"));
    }
    assert_eq!(fleet.status("h1"), MemberStatus::Alive);
}

#[test]
fn a_server_that_was_late_abstains_for_a_window() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    fleet.session("default", "h1", HealthWindow::Default);
    fleet.run(2 * SECOND);
    let leader = fleet.cluster.leader();
    let (late, deaf) = {
        let mut others = fleet.cluster.servers.keys().copied().filter(|id| *id != leader);
        (others.next().expect("there are three"), others.next().expect("there are three"))
    };
    // Only the leader and the late server can confirm.
    fleet.stuck.insert(deaf);
    let renewed = fleet.at("h1").renewed;
    fleet.run_until(SECOND, |fleet| fleet.hosts["h1"].renewed != renewed);
    fleet.kill("h1");
    // The check is open by then, and no server has challenged twice.
    fleet.run(2 * SECOND);
    fleet.cluster.down.insert(late);
    fleet.run(SECOND / 2);
    fleet.cluster.down.remove(&late);
    let woke = fleet.cluster.now();
    fleet.time_of_death("h1", "default");
    let took = fleet.cluster.now().since(woke);
    // The leader's next list shows that it missed some, so it may restart its window once.
    assert!(took >= HealthWindow::Default.duration(), "{took:?}");
    assert!(took <= HealthWindow::Default.duration() + 2 * SLACK, "{took:?}");
}

#[test]
fn a_fast_session_that_is_new_has_its_whole_window() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    fleet.at("h1").renews_every = Some(Duration::from_millis(1_660));
    fleet.run(10 * SECOND);
    let renewed = fleet.at("h1").renewed;
    fleet.run_until(5 * SECOND, |fleet| fleet.hosts["h1"].renewed != renewed);
    fleet.run(Duration::from_millis(1_500));
    fleet.session("fast", "h1", HealthWindow::Fast);
    let made = fleet.cluster.now();
    fleet.kill("h1");
    fleet.time_of_death("h1", "fast");
    assert_within(fleet.cluster.now().since(made), HealthWindow::Fast.validity());
}

#[test]
fn many_silent_hosts_at_once_are_given_the_longest_window() {
    let mut fleet = Fleet::start();
    let names: Vec<String> = (1..=6).map(|number| format!("h{number}")).collect();
    for name in &names {
        fleet.host(name);
        fleet.session(name, name, HealthWindow::Fast);
    }
    fleet.run(2 * SECOND);
    names[..5].iter().for_each(|name| fleet.kill(name));
    let took = fleet.time_of_death("h1", "h1");
    assert_within(took, HealthWindow::Safe.validity());
    assert!(fleet.lives("h6"), "it renews");
    let leader = fleet.cluster.leader();
    let figures = |fleet: &Fleet| fleet.cluster.servers[&leader].frontend.figures(fleet.cluster.now());
    assert!(figures(&fleet).is_braking);
    fleet.run(40 * SECOND);
    assert!(!figures(&fleet).is_braking && figures(&fleet).open_checks == 0);
    fleet.kill("h6");
    let took = fleet.time_of_death("h6", "h6");
    assert_within(took, HealthWindow::Fast.validity());
}

#[test]
fn very_many_silent_hosts_are_asked_at_a_pace_and_all_of_them_fail() {
    let mut fleet = Fleet::start();
    let names: Vec<String> = (1..=104).map(|number| format!("h{number}")).collect();
    names.iter().for_each(|name| fleet.host(name));
    names[..100].iter().for_each(|name| fleet.kill(name));
    fleet.challenged.clear();
    fleet.run(30 * SECOND);
    let status = |name: &String| fleet.status(name);
    assert!(names[..100].iter().all(|name| status(name) == MemberStatus::Failed));
    assert!(names[100..].iter().all(|name| status(name) == MemberStatus::Alive));
    for (id, from) in fleet.challenged.iter().copied().step_by(16) {
        let of_that_second =
            fleet.challenged.iter().filter(|(other, at)| *other == id && *at >= from && *at < from + SECOND);
        let count = of_that_second.count();
        assert!(count <= 256 + 65, "{id} asked {count} times in a second");
    }
}

#[test]
fn a_verdict_by_a_minority_does_nothing() {
    let mut solo = Solo::start();
    let lease = solo.core.state().agents().next().expect("it registered").lease();
    let term = solo.core.log_status().term;
    let verdict = |confirmed_by: &[u64]| {
        let confirmed_by = confirmed_by.iter().copied().map(ServerId).collect();
        let (window, silent_for, base) = (HealthWindow::Default, 5 * SECOND, 0);
        Command::FailNode(NodeFailure { lease, window, confirmed_by, silent_for, term, base })
    };
    assert_eq!(solo.command(verdict(&[2, 3])), Reply::Succeeded(false), "they have no vote");
    assert_eq!(solo.command(verdict(&[])), Reply::Succeeded(false));
    assert_eq!(solo.command(verdict(&[1])), Reply::Succeeded(true));
}

// Renewals.

#[test]
fn any_server_takes_a_renewal_and_only_the_leader_acknowledges_it() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    fleet.session("fast", "h1", HealthWindow::Fast);
    let follower = fleet.cluster.follower();
    let call = fleet.renew("h1", follower);
    let Some(Response::LeaseRenewed(ack)) = fleet.cluster.answer(follower, call) else {
        panic!("{:?}", fleet.cluster.answer(follower, call))
    };
    assert_eq!((ack.lease, ack.shortest), (fleet.hosts["h1"].lease, Some(HealthWindow::Fast)));
    fleet.at("h1").home = Some(follower);
    fleet.run(20 * SECOND);
    assert!(fleet.lives("fast"));
    let answers = fleet.renewals.iter().map(|(to, call)| fleet.cluster.answer(*to, *call));
    assert!(answers.filter(|answer| is_renewed(*answer)).count() >= 38);
}

#[test]
fn a_deposed_leader_acknowledges_nothing() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    let leader = fleet.cluster.leader();
    fleet.cluster.cut_off.insert(leader);
    let at_leader = fleet.renew("h1", leader);
    let follower = *fleet.cluster.servers.keys().find(|id| **id != leader).expect("there are three");
    let at_follower = fleet.renew("h1", follower);
    assert_eq!(fleet.cluster.answer(leader, at_leader), None, "no round confirmed that it still leads");
    fleet.run(5 * SECOND);
    for (id, call) in [(leader, at_leader), (follower, at_follower)] {
        let answer = fleet.cluster.answer(id, call);
        assert!(matches!(answer, Some(Response::Unavailable(Unavailable::NotLeader { .. }))), "{answer:?}");
    }
}

#[test]
fn a_renewal_that_was_not_made_with_the_secret_is_denied() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    fleet.host("h2");
    let (leader, lease) = (fleet.cluster.leader(), fleet.hosts["h1"].lease);
    let forged = fleet.hosts["h2"].secret.renewal(lease, 1, 0);
    let answer = fleet.cluster.ask(leader, &agent("h1"), Request::RenewLease(forged));
    assert!(matches!(answer, Response::Unavailable(Unavailable::Denied(_))), "{answer:?}");
    let own = fleet.hosts["h1"].secret.renewal(lease, 1, 0);
    let answer = fleet.cluster.ask(leader, &agent("h2"), Request::RenewLease(own));
    assert!(matches!(answer, Response::Unavailable(Unavailable::Denied(_))), "another's certificate");
}

#[test]
fn a_renewal_between_a_verdict_and_its_outcome_is_refused() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    fleet.session("fast", "h1", HealthWindow::Fast);
    fleet.run(2 * SECOND);
    fleet.kill("h1");
    let leader = fleet.cluster.leader();
    // No entry commits from here on, and the read rounds continue.
    fleet.run(SECOND);
    fleet.cluster.servers.values_mut().for_each(|server| server.held = Some(Vec::new()));
    fleet.run(SECOND);
    assert!(fleet.lives("fast"), "the verdict is not durable yet");
    let call = fleet.renew("h1", leader);
    let answer = fleet.cluster.answer(leader, call);
    assert!(matches!(answer, Some(Response::Unavailable(Unavailable::Unknown(_)))), "{answer:?}");
}

#[test]
fn an_answer_between_a_verdict_and_its_outcome_counts_when_that_is_known_and_not_for_ever() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    fleet.session("fast", "h1", HealthWindow::Fast);
    fleet.session("default", "h1", HealthWindow::Default);
    fleet.run(2 * SECOND);
    fleet.kill("h1");
    fleet.run(SECOND);
    let (leader, servers) =
        (fleet.cluster.leader(), fleet.cluster.servers.keys().copied().collect::<Vec<_>>());
    fleet.cluster.servers.values_mut().for_each(|server| server.held = Some(Vec::new()));
    fleet.run(SECOND);
    assert!(fleet.lives("fast"), "the verdict is not durable yet");
    // Only the leader receives a last answer.
    fleet.at("h1").answers.insert(leader);
    fleet.run(SECOND / 2);
    fleet.kill("h1");
    servers.into_iter().for_each(|id| fleet.cluster.let_write(id));
    fleet.run(SECOND);
    assert!(!fleet.lives("fast") && fleet.lives("default"));
    let ended = fleet.run_until(20 * SECOND, |fleet| !fleet.lives("default"));
    assert!((3 * SECOND..8 * SECOND).contains(&ended), "{ended:?} after it answered");
}

#[test]
fn a_failed_host_is_told_and_registers_anew() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    fleet.session("safe", "h1", HealthWindow::Safe);
    fleet.kill("h1");
    fleet.run_until(20 * SECOND, |fleet| fleet.status("h1") == MemberStatus::Failed);
    let (follower, lease) = (fleet.cluster.follower(), fleet.hosts["h1"].lease);
    let call = fleet.renew("h1", follower);
    assert_eq!(fleet.cluster.answer(follower, call), Some(&Response::LeaseEnded(lease, LeaseEnd::Failed)));
    fleet.host("h1");
    assert_ne!(fleet.hosts["h1"].lease, lease);
    fleet.run(20 * SECOND);
    assert!(fleet.lives("safe") && fleet.status("h1") == MemberStatus::Alive);
}

// Other processes, other hosts.

#[test]
fn a_second_process_is_refused_as_long_as_the_first_one_answers() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    fleet.session("fast", "h1", HealthWindow::Fast);
    let lease = fleet.hosts["h1"].lease;
    let leader = fleet.cluster.leader();
    let call = fleet.cluster.call(leader, &agent("h1"), registration("h1", process(2, 1)));
    assert_eq!(fleet.cluster.answer(leader, call), None, "the first process is challenged");
    fleet.run(2 * SECOND);
    let answer = fleet.cluster.answer(leader, call).expect("it answers").clone();
    let Response::Unavailable(Unavailable::Denied(why)) = answer else { panic!("{answer:?}") };
    assert!(why.starts_with("node h1 is here already") && why.contains("10.0.0.1:8301"), "{why}");
    assert_eq!(fleet.member("h1").lease(), lease);
    assert!(fleet.lives("fast"));
    // The same process registers again at once.
    let response = fleet.register("h1", process(1, 1));
    assert!(matches!(response, Response::Applied(_)), "{response:?}");
}

#[test]
fn who_gets_its_place_back_from_another_host_is_told_which_sessions_its_lease_does_not_keep() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    fleet.session("before", "h1", HealthWindow::Default);
    let keeps_from = |fleet: &mut Fleet| {
        let leader = fleet.cluster.leader();
        let call = fleet.renew("h1", leader);
        fleet.run(TICK);
        match fleet.cluster.answer(leader, call) {
            Some(Response::LeaseRenewed(ack)) => ack.keeps_from,
            other => panic!("not renewed: {other:?}"),
        }
    };
    assert_eq!(keeps_from(&mut fleet), LogIndex(0));
    // A copy of its machine registers while the original is silent, and then the original returns.
    fleet.kill("h1");
    for incarnation in [process(2, 2), process(1, 1)] {
        let leader = fleet.cluster.leader();
        let call = fleet.cluster.call(leader, &agent("h1"), registration("h1", incarnation));
        fleet.run(3 * SECOND / 2);
        let answer = fleet.cluster.answer(leader, call).expect("the first process was silent").clone();
        fleet.registered("h1", incarnation, &answer);
        fleet.kill("h1");
    }
    fleet.session("after", "h1", HealthWindow::Default);
    let state = fleet.cluster.servers[&fleet.cluster.leader()].frontend.core().state();
    let made = |name: &str| state.session(session_id(name)).expect("it lives").create_index;
    let (before, after) = (made("before"), made("after"));
    let from = keeps_from(&mut fleet);
    assert!(before < from && from <= after, "{before:?} {from:?} {after:?}");
    fleet.at("h1").renews_every = Some(SECOND / 2);
    fleet.run(10 * SECOND);
    assert!(!fleet.lives("before") && fleet.lives("after"));
}

#[test]
fn a_second_process_takes_the_place_of_one_that_says_nothing() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    fleet.session("default", "h1", HealthWindow::Default);
    fleet.run(2 * SECOND);
    fleet.kill("h1");
    let leader = fleet.cluster.leader();
    let call = fleet.cluster.call(leader, &agent("h1"), registration("h1", process(2, 1)));
    let began = fleet.cluster.now();
    fleet.run_until(10 * SECOND, |fleet| fleet.cluster.answer(leader, call).is_some());
    assert_within(fleet.cluster.now().since(began), SECOND);
    let answer = fleet.cluster.answer(leader, call).expect("it was just seen").clone();
    fleet.registered("h1", process(2, 1), &answer);
    fleet.run(10 * SECOND);
    assert!(fleet.lives("default"), "the same boot of the same host");
}

#[test]
fn two_that_want_the_same_place_do_not_both_have_it() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    fleet.kill("h1");
    let leader = fleet.cluster.leader();
    let calls =
        [2, 3].map(|number| fleet.cluster.call(leader, &agent("h1"), registration("h1", process(number, 1))));
    fleet.run_until(10 * SECOND, |fleet| fleet.cluster.answer(leader, calls[0]).is_some());
    let answer = fleet.cluster.answer(leader, calls[0]).expect("it waited for a second").clone();
    fleet.registered("h1", process(2, 1), &answer);
    fleet.run(5 * SECOND);
    let answer = fleet.cluster.answer(leader, calls[1]);
    assert!(matches!(answer, Some(Response::Unavailable(Unavailable::Denied(_)))), "{answer:?}");
    assert_eq!(fleet.member("h1").incarnation, fleet.hosts["h1"].incarnation);
}

#[test]
fn what_a_former_host_left_ends_when_its_windows_are_over_since_it_was_last_heard() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    for window in HealthWindow::ALL {
        fleet.session(window.as_str(), "h1", window);
    }
    fleet.kill("h1");
    let killed = fleet.cluster.now();
    let leader = fleet.cluster.leader();
    let call = fleet.cluster.call(leader, &agent("h1"), registration("h1", process(2, 2)));
    fleet.run_until(10 * SECOND, |fleet| fleet.cluster.answer(leader, call).is_some());
    let answer = fleet.cluster.answer(leader, call).expect("it was just seen").clone();
    fleet.registered("h1", process(2, 2), &answer);
    fleet.session("new", "h1", HealthWindow::Fast);
    for window in HealthWindow::ALL {
        assert!(fleet.lives(window.as_str()));
        fleet.run_until(20 * SECOND, |fleet| !fleet.lives(window.as_str()));
        let took = fleet.cluster.now().since(killed);
        let interval = HealthWindow::Fast.renewal_interval();
        assert!(took + interval + TICK >= window.validity() && took <= window.validity() + SLACK, "{took:?}");
    }
    fleet.run(SECOND);
    assert!(fleet.lives("new") && fleet.member("h1").former_sessions_until.is_none());
}

#[test]
fn a_leader_whose_state_is_corrupt_ends_nothing_by_silence() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    fleet.session("fast", "h1", HealthWindow::Fast);
    let leader = fleet.cluster.leader();
    crate::corruption::corrupt(&mut fleet.cluster, leader);
    // No server takes over, and it replies to no request, so it receives no renewal.
    fleet.cluster.lost = Some(MessageKind::TimeoutNow);
    fleet.at("h1").answers.clear();
    fleet.cluster.put("something new");
    fleet.run_until(CORRUPTION_CHECK_INTERVAL * 2, |fleet| {
        fleet.cluster.servers[&leader].frontend.is_corrupt()
    });
    fleet.run(20 * SECOND);
    assert!(fleet.cluster.servers[&leader].frontend.is_corrupt() && fleet.cluster.leader() == leader);
    assert!(fleet.lives("fast") && fleet.status("h1") == MemberStatus::Alive);
    // The next leader grants full windows, and receives the node's renewals again.
    fleet.cluster.lost = None;
    fleet.run(20 * SECOND);
    assert_ne!(fleet.cluster.leader(), leader);
    assert!(fleet.lives("fast") && fleet.status("h1") == MemberStatus::Alive);
}

// Upkeep.

/// A client's write of a node's health to the catalog.
fn health(name: &str, status: CheckStatus) -> Command {
    let check = Check {
        name: "Serf Health Status".into(),
        ..Check::of(name.into(), CheckId::from("serfHealth"), status)
    };
    let (service, checks) = (None, vec![check]);
    Command::Register(Registration { node: node(name), skip_node_update: true, service, checks })
}

#[test]
fn the_catalog_comes_to_say_what_the_roster_says() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    for name in ["h1", "stranger"] {
        let answer = fleet.cluster.command(health(name, CheckStatus::Critical));
        assert!(matches!(answer, Response::Applied(_)), "{answer:?}");
    }
    fleet.run(65 * SECOND);
    let state = fleet.cluster.servers[&fleet.cluster.leader()].frontend.core().state();
    let checks = |name: &str| match state.query(&Query::NodeChecks(name.into())) {
        (_, Rows::Checks(checks)) => checks,
        other => panic!("checks were asked for: {other:?}"),
    };
    assert_eq!(checks("h1")[0].status, CheckStatus::Passing);
    assert!(checks("stranger").is_empty(), "it has no agent");
}

#[test]
fn sessions_on_a_failed_node_that_somebody_called_healthy_end_with_its_silence() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    fleet.kill("h1");
    fleet.run(10 * SECOND);
    assert_eq!(fleet.status("h1"), MemberStatus::Failed);
    let answer = fleet.cluster.command(health("h1", CheckStatus::Passing));
    assert!(matches!(answer, Response::Applied(_)), "{answer:?}");
    fleet.session("fast", "h1", HealthWindow::Fast);
    let made = fleet.cluster.now();
    fleet.time_of_death("h1", "fast");
    assert_within(fleet.cluster.now().since(made), HealthWindow::Fast.validity());
}

#[test]
fn a_node_that_left_the_catalog_is_given_no_health_by_a_verdict() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    fleet.kill("h1");
    let whole = Deregistration { node: "h1".into(), service: None, check: None };
    let answer = fleet.cluster.command(Command::Deregister(whole));
    assert!(matches!(answer, Response::Applied(_)), "{answer:?}");
    fleet.run(10 * SECOND);
    assert_eq!(fleet.status("h1"), MemberStatus::Failed);
    let state = fleet.cluster.servers[&fleet.cluster.leader()].frontend.core().state();
    assert_eq!(state.check(), Ok(()));
    let counts = state.member_counts();
    assert_eq!((counts.failed, counts.alive), (2, 0), "the cluster's own agent is one of them");
}

#[test]
fn a_member_that_has_been_failed_for_long_is_forgotten() {
    let mut solo = Solo::start();
    let status = |solo: &Solo| solo.core.state().agents().next().map(|agent| agent.status);
    // Its agent never renews, and does not listen.
    solo.run(7 * SECOND);
    assert_eq!(status(&solo), Some(MemberStatus::Failed));
    solo.run(REAP_FAILED_AFTER - 7 * SECOND);
    assert_eq!(status(&solo), Some(MemberStatus::Failed));
    solo.run(7 * SECOND);
    assert_eq!(status(&solo), None);
}

#[test]
fn a_failed_member_on_which_a_session_without_checks_lives_is_not_forgotten() {
    let mut solo = Solo::start();
    let session = solo.session("1", Duration::ZERO, Duration::ZERO);
    solo.run(REAP_FAILED_AFTER + 10 * SECOND);
    assert!(solo.lives(&session));
    assert_eq!(solo.core.state().agents().next().map(|agent| agent.status), Some(MemberStatus::Failed));
}
