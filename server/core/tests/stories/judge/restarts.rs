//! Announced restarts: guards on the host rely on the announcement, so silence ends no session
//! before its window ends, whatever happens meanwhile.

use super::{Fleet, SECOND, SLACK, agent, assert_within, node, process, registration_of};
use lockmesh_core::frontend::CallRef;
use lockmesh_core::raft::TICK;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{Generation, RequestId, ServerId};
use lockmesh_protocol::lease::{HealthWindow, RESTART_WINDOW};
use lockmesh_protocol::record::{Incarnation, MemberStatus, Node};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::time::Duration;

impl Fleet {
    /// A host with a session of each window.
    fn with_sessions() -> Self {
        let mut fleet = Self::start();
        fleet.host("h1");
        for window in HealthWindow::ALL {
            fleet.session(window.as_str(), "h1", window);
        }
        fleet
    }

    /// Announces a restart; returns whether it was accepted. Only the agent itself may do so, with
    /// its own request id.
    pub(super) fn announce(&mut self, generation: u32, sequence: u64) -> bool {
        self.announces("h1", generation, sequence)
    }

    fn announces(&mut self, name: &str, generation: u32, sequence: u64) -> bool {
        let (leader, lease) = (self.cluster.leader(), self.hosts[name].lease);
        let id = RequestId { agent: lease.agent, generation: Generation(generation), sequence, lowest: 1 };
        let request = Request::Propose(Some(id), Command::AnnounceRestart(lease));
        match self.cluster.ask(leader, &agent(name), request) {
            Response::Applied(Applied { reply: Reply::Succeeded(is_taken), .. }) => is_taken,
            other => panic!("it has an answer of its own: {other:?}"),
        }
    }

    /// Announces a restart and stops; returns the time of the announcement.
    fn stop(&mut self) -> Time {
        assert!(self.announce(1, 1));
        self.kill("h1");
        self.cluster.now()
    }

    /// Starts another process at once.
    fn begin(&mut self, incarnation: Incarnation) {
        let response = self.register("h1", incarnation);
        self.registered("h1", incarnation, &response);
    }

    fn all_live(&self) -> bool {
        HealthWindow::ALL.iter().all(|window| self.lives(window.as_str()))
    }

    fn none_lives(&self) -> bool {
        HealthWindow::ALL.iter().all(|window| !self.lives(window.as_str()))
    }

    /// Asserts that all sessions live for a restart window from here, and not much longer.
    #[track_caller]
    fn assert_kept_from(&mut self, since: Time) {
        self.run_until(60 * SECOND, |fleet| !fleet.all_live());
        let kept = self.cluster.now().since(since);
        assert!(kept + 2 * TICK >= RESTART_WINDOW, "only for {kept:?}");
        assert!(kept <= RESTART_WINDOW + SLACK, "for {kept:?}");
        self.run(SECOND);
        assert!(self.none_lives());
    }
}

#[test]
fn a_restart_that_is_announced_costs_no_session() {
    let mut fleet = Fleet::with_sessions();
    fleet.stop();
    fleet.run(6 * SECOND);
    assert!(fleet.all_live() && fleet.status("h1") == MemberStatus::Restarting);
    fleet.begin(process(2, 1));
    fleet.run(40 * SECOND);
    assert!(fleet.all_live() && fleet.status("h1") == MemberStatus::Alive);
    assert_eq!(fleet.member("h1").restart_announced, None, "it has had its time");
    // Its own windows apply again.
    fleet.kill("h1");
    let took = fleet.time_of_death("h1", "fast");
    assert_within(took, HealthWindow::Fast.validity());
}

#[test]
fn a_restart_that_does_not_end_is_a_failure_after_half_a_minute() {
    let mut fleet = Fleet::with_sessions();
    let announced = fleet.stop();
    fleet.assert_kept_from(announced);
    assert_eq!(fleet.status("h1"), MemberStatus::Failed);
}

#[test]
fn a_process_that_came_back_and_died_at_once_is_not_failed_before_the_announced_time() {
    let mut fleet = Fleet::with_sessions();
    let announced = fleet.stop();
    fleet.run(6 * SECOND);
    fleet.begin(process(2, 1));
    fleet.run(SECOND);
    fleet.kill("h1");
    // Guards from before still rely on it, and its own window ended long ago.
    fleet.assert_kept_from(announced);
}

#[test]
fn a_new_leader_gives_an_announced_restart_its_whole_time_anew() {
    for comes_back in [false, true] {
        let mut fleet = Fleet::with_sessions();
        fleet.stop();
        fleet.run(10 * SECOND);
        if comes_back {
            fleet.begin(process(2, 1));
            fleet.kill("h1");
        }
        fleet.run(10 * SECOND);
        fleet.depose();
        let serves_since = fleet.cluster.now();
        fleet.assert_kept_from(serves_since);
    }
}

#[test]
fn servers_that_did_not_run_give_a_restart_their_own_pause_besides() {
    let mut fleet = Fleet::with_sessions();
    let announced = fleet.stop();
    fleet.run(10 * SECOND);
    fleet.cluster.pause(15 * SECOND);
    fleet.run(18 * SECOND);
    assert!(fleet.all_live());
    fleet.run_until(60 * SECOND, |fleet| !fleet.all_live());
    assert!(fleet.cluster.now().since(announced) >= RESTART_WINDOW + 14 * SECOND);
}

#[test]
fn another_host_that_comes_instead_ends_nothing_before_the_announced_time() {
    let mut fleet = Fleet::with_sessions();
    let announced = fleet.stop();
    fleet.run(6 * SECOND);
    fleet.begin(process(2, 2));
    fleet.session("new", "h1", HealthWindow::Fast);
    fleet.assert_kept_from(announced);
    assert!(fleet.lives("new") && fleet.member("h1").former_sessions_until.is_none());
    // The windows of the former host count as well.
    let mut fleet = Fleet::with_sessions();
    let announced = fleet.stop();
    fleet.run(25 * SECOND);
    fleet.begin(process(2, 2));
    fleet.run_until(60 * SECOND, |fleet| fleet.none_lives());
    let kept = fleet.cluster.now().since(announced);
    assert_within(kept, 25 * SECOND + HealthWindow::Safe.validity());
}

#[test]
fn an_agent_that_announces_again_and_again_is_kept_no_longer() {
    let mut fleet = Fleet::with_sessions();
    let announced = fleet.stop();
    for sequence in 2..5 {
        fleet.run(8 * SECOND);
        assert!(!fleet.announce(1, sequence), "once for each registration");
    }
    fleet.assert_kept_from(announced);
    assert!(!fleet.announce(1, 5), "nor of one that was failed");
}

#[test]
fn each_registration_may_announce_its_own_end() {
    let mut fleet = Fleet::with_sessions();
    fleet.stop();
    fleet.run(6 * SECOND);
    fleet.begin(process(2, 1));
    fleet.run(10 * SECOND);
    assert!(fleet.announce(2, 1));
    let again = fleet.cluster.now();
    fleet.kill("h1");
    fleet.assert_kept_from(again);
}

#[test]
fn an_agent_that_does_not_end_after_all_is_judged_by_its_own_windows_again() {
    let mut fleet = Fleet::with_sessions();
    assert!(fleet.announce(1, 1));
    fleet.run(RESTART_WINDOW + SECOND);
    assert!(fleet.all_live(), "it renews");
    fleet.kill("h1");
    let took = fleet.time_of_death("h1", "fast");
    assert_within(took, HealthWindow::Fast.validity());
}

#[test]
fn hosts_that_restart_at_once_do_not_brake() {
    let mut fleet = Fleet::start();
    let names: Vec<String> = (1..=8).map(|number| format!("h{number}")).collect();
    for name in &names {
        fleet.host(name);
        fleet.session(name, name, HealthWindow::Fast);
    }
    fleet.run(2 * SECOND);
    for name in &names[..6] {
        assert!(fleet.announces(name, 1, 1));
        fleet.kill(name);
    }
    // Without a brake, another host fails after its own window.
    fleet.run(15 * SECOND);
    fleet.kill("h8");
    let took = fleet.time_of_death("h8", "h8");
    assert_within(took, HealthWindow::Fast.validity());
}

// A container without a volume starts with another node id each time.

const OTHER_ID: &str = "0f0f0f0f-3c60-4d3f-9d5c-000000000002";

impl Fleet {
    /// Sends the registration of another node id for the name `h1`.
    fn claim(&mut self, incarnation: Incarnation) -> (ServerId, CallRef) {
        let leader = self.cluster.leader();
        let node = Node { id: OTHER_ID.into(), ..node("h1") };
        (leader, self.cluster.call(leader, &agent("h1"), registration_of(node, incarnation)))
    }

    /// Runs until a claim is answered; returns the answer and the time it took.
    fn claimed(&mut self, (leader, call): (ServerId, CallRef)) -> (Response, Duration) {
        let took = self.run_until(12 * SECOND, |fleet| fleet.cluster.answer(leader, call).is_some());
        (self.cluster.answer(leader, call).expect("it waits for 12 s at most").clone(), took)
    }
}

#[test]
fn the_name_of_a_restarting_node_is_free_after_four_seconds() {
    for boot in [1, 2] {
        let mut fleet = Fleet::with_sessions();
        let (announced, number) = (fleet.stop(), fleet.member("h1").number);
        fleet.run(SECOND);
        let claim = fleet.claim(process(2, boot));
        let (response, took) = fleet.claimed(claim);
        assert!((2 * SECOND..4 * SECOND).contains(&took), "after {took:?}");
        fleet.registered("h1", process(2, boot), &response);
        let member = fleet.member("h1");
        assert_eq!((&*member.node_id, member.number), (OTHER_ID, number), "the member goes on");
        assert!(fleet.all_live(), "the claim ends no session");
        if boot == 1 {
            fleet.run(60 * SECOND);
            assert!(fleet.all_live(), "the same boot continues its sessions");
        } else {
            fleet.assert_kept_from(announced);
        }
    }
}

#[test]
fn a_restarting_node_that_comes_back_in_time_keeps_its_name() {
    let mut fleet = Fleet::with_sessions();
    fleet.stop();
    fleet.run(SECOND);
    let claim = fleet.claim(process(3, 2));
    fleet.run(SECOND);
    fleet.begin(process(2, 1));
    let (response, _) = fleet.claimed(claim);
    let is_refused = matches!(&response, Response::Applied(Applied { reply: Reply::Refused(_), .. }));
    assert!(is_refused, "{response:?}");
    assert!(fleet.all_live() && fleet.member("h1").node_id == node("h1").id);
}

#[test]
fn a_restarting_process_that_still_renews_keeps_its_name() {
    let mut fleet = Fleet::with_sessions();
    assert!(fleet.announce(1, 1));
    let claim = fleet.claim(process(3, 2));
    let (response, _) = fleet.claimed(claim);
    let Response::Unavailable(Unavailable::Denied(why)) = response else { panic!("{response:?}") };
    assert!(why.starts_with("node h1 is here already"), "{why}");
    assert!(fleet.all_live());
}

#[test]
fn a_new_leader_keeps_the_name_of_a_restarting_node_for_four_seconds_again() {
    let mut fleet = Fleet::with_sessions();
    fleet.stop();
    fleet.run(10 * SECOND);
    fleet.depose();
    let claim = fleet.claim(process(2, 2));
    let (response, took) = fleet.claimed(claim);
    assert!(matches!(response, Response::Applied(_)) && took <= 5 * SECOND, "after {took:?}: {response:?}");
    assert!(fleet.all_live());
}
