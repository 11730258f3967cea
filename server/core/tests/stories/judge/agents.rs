//! Agents as jurors: three of them challenge a silent node for the leader. Its answers keep the
//! node alive; its silence toward them confirms nothing.

use super::{Fleet, SECOND};
use lockmesh_core::frontend::Event;
use lockmesh_core::{Input, NodeInput};
use lockmesh_protocol::lease::{HealthWindow, LeaseId, MISSING_RENEWALS};
use lockmesh_protocol::record::MemberStatus;
use std::collections::BTreeSet;

impl Fleet {
    /// Sends the questions for agents, and reports the answers.
    pub(super) fn ask_through_agents(&mut self) {
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

    /// This many hosts; the first one and all servers cannot reach each other.
    pub(super) fn cut_off(hosts: usize) -> Self {
        let mut fleet = Self::start();
        (1..=hosts).for_each(|number| fleet.host(&format!("h{number}")));
        fleet.session("fast", "h1", HealthWindow::Fast);
        fleet.run(2 * SECOND);
        fleet.asked.clear();
        fleet.kill("h1");
        fleet
    }

    /// The agents through which this lease was challenged.
    fn asked_through(&self, lease: LeaseId) -> BTreeSet<&str> {
        let asked = self.asked.iter().filter(|(_, challenge, _)| challenge.lease == lease);
        asked.map(|(_, _, agent)| agent.as_str()).collect()
    }

    /// A node that nine agents reach and no server.
    fn reached_by_agents() -> Self {
        let mut fleet = Self::cut_off(10);
        fleet.at("h1").answers_agents = (2..=10).map(|number| format!("h{number}")).collect();
        fleet
    }

    /// Returns whether the leader reports the node as not renewing, in its gauge and with its
    /// lease.
    #[track_caller]
    fn is_reported(&mut self, name: &str) -> bool {
        let leader = self.cluster.leader();
        let figures = self.cluster.servers[&leader].frontend.figures(self.cluster.now());
        let leases = self.leases_of(name);
        let is_told = leases.iter().any(|lease| lease.lacks_renewals());
        assert_eq!(figures.nodes_without_renewals > 0, is_told, "{leases:?}");
        is_told
    }

    /// The number of nodes that the leader reports as not renewing.
    fn without_renewals(&self) -> usize {
        self.cluster.servers[&self.cluster.leader()]
            .frontend
            .figures(self.cluster.now())
            .nodes_without_renewals
    }

    fn saved_by_agents(&mut self) -> u64 {
        let leader = self.cluster.leader();
        let server = self.cluster.servers.get_mut(&leader).expect("it runs");
        server.frontend.take_observed().judge.saved_by_agents
    }
}

#[test]
fn a_node_that_agents_reach_is_kept_though_no_server_does() {
    let mut fleet = Fleet::cut_off(8);
    fleet.at("h1").answers_agents = (2..=8).map(|number| format!("h{number}")).collect();
    fleet.run(20 * SECOND);
    assert!(fleet.lives("fast") && fleet.status("h1") == MemberStatus::Alive);
    assert!(fleet.saved_by_agents() >= 10);
    // Each check chooses other agents: h1 is overdue repeatedly.
    let lease = fleet.hosts["h1"].lease;
    assert_eq!(fleet.asked_through(lease).len(), 7, "{:?}", fleet.asked_through(lease));
}

#[test]
fn one_agent_of_three_is_enough() {
    let mut fleet = Fleet::cut_off(4);
    fleet.at("h1").answers_agents = ["h3".to_owned()].into();
    fleet.run(20 * SECOND);
    assert!(fleet.lives("fast"));
}

#[test]
fn agents_that_hear_nothing_neither_confirm_a_verdict_nor_hold_it_up() {
    let mut fleet = Fleet::cut_off(8);
    fleet.run_until(10 * SECOND, |fleet| !fleet.lives("fast"));
    let took = fleet.cluster.now().since(fleet.hosts["h1"].renewed);
    super::assert_within(took, HealthWindow::Fast.validity());
    assert_eq!(fleet.saved_by_agents(), 0);
    // Three of them, the same ones while the check is open, at the voters' pace.
    let (lease, asked) = (fleet.hosts["h1"].lease, &fleet.asked);
    assert_eq!(fleet.asked_through(lease).len(), 3);
    assert!((12..=21).contains(&asked.len()), "{asked:?}");
    // Only voters confirm: two of three servers never learned that it is silent.
    let mut fleet = Fleet::cut_off(8);
    fleet.stuck = fleet.cluster.servers.keys().copied().skip(1).collect();
    fleet.run(20 * SECOND);
    assert!(fleet.lives("fast"));
}

#[test]
fn who_is_under_check_or_restarting_does_not_ask() {
    let mut fleet = Fleet::cut_off(5);
    fleet.at("h1").answers_agents = ["h3".to_owned()].into();
    fleet.kill("h2");
    // Its renewal must be overdue by the default window.
    fleet.run(3 * SECOND);
    fleet.asked.clear();
    fleet.run(10 * SECOND);
    let lease = fleet.hosts["h1"].lease;
    assert!(!fleet.asked_through(lease).contains("h1"));
    let late = fleet.asked.iter().filter(|(_, challenge, agent)| challenge.lease == lease && agent == "h2");
    assert_eq!(late.count(), 0, "{:?}", fleet.asked);
}

#[test]
fn an_answer_to_another_check_or_one_that_was_forged_keeps_nothing() {
    let mut fleet = Fleet::cut_off(4);
    fleet.run(SECOND);
    let host = fleet.hosts["h1"].clone();
    let nonce = fleet.asked.last().expect("it is asked").1.nonce;
    let forged = fleet.hosts["h2"].secret.renewal(host.lease, 99, nonce);
    let (leader, former) = (fleet.cluster.leader(), host.secret.renewal(host.lease, 99, nonce ^ 1));
    for answer in [forged, former] {
        fleet
            .cluster
            .turn(leader, Some(Event::Core(Input::Node(NodeInput::AgentAnswered(Box::new(answer.into()))))));
    }
    let observed = fleet.cluster.servers.get_mut(&leader).expect("it runs").frontend.take_observed();
    assert_eq!((observed.judge.saved_by_agents, observed.judge.forged_answers), (0, 1));
    fleet.run(2 * SECOND);
    assert!(!fleet.lives("fast"));
}

#[test]
fn a_node_that_only_answers_for_its_window_is_reported_until_it_renews() {
    let mut fleet = Fleet::reached_by_agents();
    let since = fleet.hosts["h1"].renewed;
    let window = HealthWindow::Fast.validity();
    while fleet.cluster.now().since(since) < window {
        assert!(!fleet.is_reported("h1"), "after {:?}", fleet.cluster.now().since(since));
        fleet.step();
    }
    fleet.run_until(2 * SECOND, |fleet| fleet.without_renewals() > 0);
    // It is listed before the accusers of the node.
    assert_eq!(fleet.leases_of("h1")[0].suspected_by[0], MISSING_RENEWALS.into());
    for _ in 0..100 {
        fleet.run(SECOND / 10);
        assert!(fleet.is_reported("h1") && fleet.lives("fast"), "it is reported all the time");
    }
    // A server whose challenges it answers sends no acknowledgement either.
    fleet.at("h1").answers = fleet.cluster.servers.keys().copied().collect();
    fleet.run(3 * SECOND);
    assert!(fleet.is_reported("h1") && fleet.lives("fast"));
    let follower = fleet.cluster.follower();
    fleet.renew("h1", follower);
    fleet.run(SECOND / 10);
    assert!(!fleet.is_reported("h1"));
}

#[test]
fn a_node_that_renews_now_and_then_is_not_reported() {
    let mut fleet = Fleet::reached_by_agents();
    let leader = fleet.cluster.leader();
    for _ in 0..10 {
        fleet.renew("h1", leader);
        fleet.run(HealthWindow::Fast.validity() - SECOND / 10);
        assert!(!fleet.is_reported("h1"));
    }
}

#[test]
fn a_node_that_answers_nobody_is_reported_no_more_and_a_new_leader_begins_anew() {
    let mut fleet = Fleet::reached_by_agents();
    fleet.run(5 * SECOND);
    assert!(fleet.is_reported("h1"));
    fleet.depose();
    assert!(!fleet.is_reported("h1"), "the new leader has waited for no window yet");
    fleet.run(5 * SECOND);
    assert!(fleet.is_reported("h1"));
    fleet.kill("h1");
    fleet.at("h1").answers_agents.clear();
    fleet.run_until(10 * SECOND, |fleet| fleet.status("h1") == MemberStatus::Failed);
    fleet.run(SECOND);
    assert!(!fleet.is_reported("h1"));
}
