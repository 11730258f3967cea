//! The failure detector: hosts that renew, die, are cloned or are unreachable, and three servers
//! that judge them. The time bounds here are the guarantee to users. An outage shorter than a
//! window ends no session, and a dead host's locks are granted to others soon after it.

mod given_up;
mod mesh;
mod node_leases;
mod servers;
mod world;

use crate::frontend::{Cluster, agent};
use crate::names::session as session_id;
use lockmesh_core::frontend::{CallRef, Event};
use lockmesh_core::observed::{JudgeCounts, Observed};
use lockmesh_core::raft::TICK;
use lockmesh_core::{Input, NodeInput, State};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{AgentRegistration, Command, Registration};
use lockmesh_protocol::given_up::{GivenUpSession, NodeAnswer};
use lockmesh_protocol::id::{CheckId, Generation, LogIndex, RequestId, ServerId, SessionId};
use lockmesh_protocol::lease::{Challenge, HealthWindow, LeaseId, LeaseSecret};
use lockmesh_protocol::query::{Query, Rows};
use lockmesh_protocol::record::{
    Agent, Behavior, Check, CheckStatus, Incarnation, LossCause, MemberStatus, Node, SessionSpec,
};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Request, Response};
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
    /// The lease of its name's registration before.
    former: Option<LeaseId>,
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
pub(crate) struct Fleet {
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
    /// A story's names for servers and calls, and the times of its restarts and elections.
    names: BTreeMap<String, ServerId>,
    calls: BTreeMap<String, (ServerId, CallRef)>,
    marks: BTreeMap<&'static str, Time>,
    backup: Vec<Change>,
    /// The leader's counts since an earlier reading, as read at this moment.
    counts: Option<JudgeCounts>,
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
        Self::start_with(3, SECOND)
    }

    /// The same, with this many servers and this stall timeout.
    fn start_with(servers: u64, stall_timeout: Duration) -> Self {
        let cluster = Cluster::start_with(servers, stall_timeout);
        let mut fleet = Self {
            cluster,
            hosts: BTreeMap::new(),
            unanswered: Vec::new(),
            stuck: BTreeSet::new(),
            renewals: Vec::new(),
            asked: Vec::new(),
            challenged: Vec::new(),
            replays: None,
            names: BTreeMap::new(),
            calls: BTreeMap::new(),
            marks: BTreeMap::new(),
            backup: Vec::new(),
            counts: None,
        };
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

    /// Adds hosts, each with a session of this window.
    fn hosts(&mut self, count: usize, window: Option<HealthWindow>) {
        for name in (1..=count).map(|number| format!("h{number}")) {
            self.host(&name);
            if let Some(window) = window {
                self.session(&name, &name, window);
            }
        }
        if window.is_some() {
            self.run(SECOND);
            self.observed();
        }
    }

    /// Adds hosts; the first one and all servers cannot reach each other.
    fn cut_off(&mut self, hosts: usize) {
        self.hosts(hosts, None);
        self.session("fast", "h1", HealthWindow::Fast);
        self.run(2 * SECOND);
        self.asked.clear();
        self.kill("h1");
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
            former: self.hosts.get(name).map(|host| host.lease),
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
        !is_away && self.cluster.servers[&id].frontend.core().replica().is_serving()
    }

    /// Renews once at a server.
    fn renew(&mut self, name: &str, to: ServerId) -> CallRef {
        let renewal = self.renewal(name, self.hosts[name].secret);
        self.cluster.call(to, &agent(name), renewal)
    }

    /// The next renewal of a host, made with this secret.
    fn renewal(&mut self, name: &str, secret: LeaseSecret) -> Request {
        let now = self.cluster.now();
        let host = self.at(name);
        host.sequence += 1;
        host.renewed = now;
        let answer = Host { secret, ..host.clone() }.answer(0);
        match answer.given_up {
            Some(_) => Request::RenewGivingUp(Box::new(answer)),
            None => Request::RenewLease(answer.renewal),
        }
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

    /// Sends the questions for agents, and reports the answers.
    fn ask_through_agents(&mut self) {
        for id in self.cluster.servers.keys().copied().collect::<Vec<_>>() {
            for wanted in self.cluster.take_questions(id) {
                assert_eq!(
                    (wanted.agent_address.as_str(), wanted.question.address.as_str()),
                    ("10.0.0.1:8301", "10.0.0.1:8301")
                );
                let (challenge, agent) = (wanted.question.challenge, wanted.agent.to_string());
                self.asked.push((self.cluster.now(), challenge, agent.clone()));
                let Some(host) = self.hosts.get_mut(wanted.question.node.as_str()) else { continue };
                if host.lease == challenge.lease && host.answers_agents.contains(&agent) {
                    host.sequence += 1;
                    let answer = host.answer(challenge.nonce);
                    self.cluster
                        .turn(id, Some(Event::Core(Input::Node(NodeInput::AgentAnswered(Box::new(answer))))));
                    self.cluster.deliver();
                }
            }
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

    /// The state that the leader has applied.
    fn state(&self) -> &State {
        self.cluster.servers[&self.cluster.leader()].frontend.core().replica().state()
    }

    fn lives(&self, session: &str) -> bool {
        self.state().session(session_id(session)).is_some()
    }

    fn member(&self, name: &str) -> Arc<Agent> {
        Arc::clone(self.state().member(&name.into()).expect("it registered"))
    }

    fn status(&self, name: &str) -> MemberStatus {
        self.member(name).status
    }

    /// The causes of ended sessions, oldest first.
    fn losses(&self) -> Vec<LossCause> {
        let (_, Rows::Losses(losses)) = self.state().query(&Query::Losses) else { panic!("no losses") };
        losses.iter().map(|loss| loss.cause.clone()).collect()
    }

    /// The leader's measurements since the last call.
    fn observed(&mut self) -> Observed {
        let leader = self.cluster.leader();
        self.observed_by(leader)
    }

    fn observed_by(&mut self, id: ServerId) -> Observed {
        self.cluster.servers.get_mut(&id).expect("it runs").frontend.take_observed()
    }

    /// Sends a command of a host's agent, as request `generation.sequence`.
    fn propose(&mut self, name: &str, request: &str, command: Command) -> (ServerId, CallRef) {
        let (leader, agent_number) = (self.cluster.leader(), self.hosts[name].lease.agent);
        let (generation, sequence) = request.split_once('.').expect("as generation.sequence");
        let generation = Generation(generation.parse().expect("a number"));
        let sequence = sequence.parse().expect("a number");
        let id = RequestId { agent: agent_number, generation, sequence, lowest: 1 };
        (leader, self.cluster.call(leader, &agent(name), Request::Propose(Some(id), command)))
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

crate::script::stories! { Fleet, "judge/verdicts.txt",
    dead_host_sessions_end_per_window outage_within_window_ends_nothing
    silent_host_without_sessions_fails loss_names_confirming_servers host_answering_one_server_survives
    no_verdict_without_juror_quorum leader_change_mid_check_restarts_windows server_pause_fails_no_node
    late_server_abstains_for_window new_fast_session_gets_full_window many_silent_hosts_engage_brake
    mass_failure_challenges_are_paced follower_relays_renewal_to_leader
    a_deposed_leader_acknowledges_nothing renewal_with_foreign_credentials_denied
    renewal_unacknowledged_while_verdict_pending answer_during_pending_verdict_extends_window
    failed_host_renewal_requires_reregistration second_process_denied_while_first_answers
    waiting_registrations_limited_per_node second_process_replaces_silent_one
    concurrent_takeovers_admit_one replaced_host_sessions_end_per_window
    corrupt_leader_issues_no_verdicts catalog_health_converges_to_roster
    session_on_falsely_healthy_node_ends verdict_skips_health_of_deregistered_node
}

mod agents {
    crate::script::stories! { super::Fleet, "judge/agents.txt",
        node_reached_by_agents_survives one_reaching_agent_suffices
        silent_agents_neither_confirm_nor_delay agents_under_check_are_not_asked
        stale_or_forged_answer_ignored missing_renewals_reported_until_renewal
        occasional_renewals_prevent_report failure_or_new_leader_clears_report
    }
}

mod force_leave {
    crate::script::stories! { super::Fleet, "judge/force_leave.txt",
        live_node_is_untouched node_leaves_only_after_failure new_leader_challenges_live_node_first
        new_leader_keeps_silent_node_locks waits_for_verdict_unless_deposed
        restarting_node_alive_until_window_ends self_prune_leaves_no_reply
        registration_before_request_keeps_node
    }
}

mod jurors {
    crate::script::stories! { super::Fleet, "judge/jurors.txt",
        follower_relaying_renewals_confirms_no_silence answer_to_earlier_check_ignored
        in_flight_renewal_allows_takeover deposed_leader_rejects_waiting_registrations
        restore_grants_full_windows restore_denies_two_renewals_per_leader
        an_election_without_restore_denies_no_renewal deregistered_node_must_reregister
        relayed_renewal_times_out_after_1s
    }
}

mod restarts {
    crate::script::stories! { super::Fleet, "judge/restarts.txt",
        announced_restart_keeps_sessions unfinished_restart_fails_after_window
        crash_after_return_keeps_window hand_over_ends_announced_restart
        stale_hand_over_keeps_later_announcement foreign_hand_over_is_denied
        election_renews_restart_window server_pause_extends_restart_window
        replacement_host_keeps_announced_window repeated_announcement_extends_nothing
        new_registration_can_announce_again skipped_restart_restores_health_windows
        simultaneous_restarts_do_not_brake name_claim_succeeds_within_4_s
        timely_return_rejects_name_claim name_claim_denied_while_process_renews
        name_claim_succeeds_after_election restore_delays_no_name_claim
    }
}

mod stalled_renewals {
    crate::script::stories! { super::Fleet, "judge/stalled_renewals.txt",
        waiting_renewal_delays_verdict timed_out_renewal_allows_verdict
    }
}

#[test]
fn reclaimed_lease_excludes_older_sessions() {
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
    let state = fleet.state();
    let made = |name: &str| state.session(session_id(name)).expect("it lives").create_index;
    let (before, after) = (made("before"), made("after"));
    let from = keeps_from(&mut fleet);
    assert!(before < from && from <= after, "{before:?} {from:?} {after:?}");
    fleet.at("h1").renews_every = Some(SECOND / 2);
    fleet.run(10 * SECOND);
    assert!(!fleet.lives("before") && fleet.lives("after"));
}

/// A client's write of a node's health to the catalog.
fn health(name: &str, status: CheckStatus) -> Command {
    let check = Check {
        name: "Serf Health Status".into(),
        ..Check::of(name.into(), CheckId::from("serfHealth"), status)
    };
    let (service, checks) = (None, vec![check]);
    Command::Register(Registration { node: node(name), skip_node_update: true, service, checks })
}
