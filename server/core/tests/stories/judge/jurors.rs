//! The servers as jurors, while the network between them loses messages: renewals that pass through
//! a follower, and claims on a name whose process still had a renewal on its way.

use super::{Fleet, SECOND, agent, assert_within, is_renewed, process, registration};
use lockmesh_core::raft::message::MessageKind;
use lockmesh_protocol::lease::HealthWindow;
use lockmesh_protocol::record::MemberStatus;
use lockmesh_protocol::rpc::{Response, Unavailable};
use std::time::Duration;

#[test]
fn a_follower_through_which_renewals_pass_confirms_no_silence() {
    let mut fleet = Fleet::of(1, HealthWindow::Fast);
    // The leader and the follower are needed for a verdict.
    let follower = fleet.cluster.follower();
    let (leader, servers) = (fleet.cluster.leader(), fleet.cluster.servers.keys().copied());
    let third = servers.into_iter().find(|id| ![leader, follower].contains(id)).expect("there are three");
    fleet.stuck.insert(third);
    // The node renews at the follower, whose relayed renewals are lost.
    let host = fleet.at("h1");
    (host.home, host.renews_every) = (Some(follower), Some(SECOND / 5));
    host.answers.clear();
    fleet.cluster.lost = Some(MessageKind::LeaseRenewals);
    fleet.run(20 * SECOND);
    assert!(fleet.lives("h1") && fleet.status("h1") == MemberStatus::Alive);
    fleet.kill("h1");
    fleet.run(20 * SECOND);
    assert!(!fleet.lives("h1"), "its silence toward both is confirmed");
}

#[test]
fn an_answer_to_an_earlier_check_keeps_no_node_alive() {
    let mut fleet = Fleet::of(1, HealthWindow::Fast);
    fleet.kill("h1");
    fleet.at("h1").answers = fleet.cluster.servers.keys().copied().collect();
    fleet.replays = Some(7);
    fleet.time_of_death("h1", "h1");
}

#[test]
fn a_renewal_that_was_on_its_way_does_not_speak_for_a_process_that_died() {
    let mut fleet = Fleet::of(1, HealthWindow::Default);
    fleet.kill("h1");
    let leader = fleet.cluster.leader();
    let call = fleet.cluster.call(leader, &agent("h1"), registration("h1", process(2, 1)));
    fleet.run(SECOND / 5);
    fleet.renew("h1", leader);
    fleet.run_until(10 * SECOND, |fleet| fleet.cluster.answer(leader, call).is_some());
    let answer = fleet.cluster.answer(leader, call).expect("it waits for ten seconds at most").clone();
    fleet.registered("h1", process(2, 1), &answer);
    assert!(fleet.lives("h1"));
}

#[test]
fn a_leader_that_is_deposed_refuses_the_registrations_that_wait() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    fleet.run(2 * SECOND);
    let leader = fleet.cluster.leader();
    fleet.kill("h1");
    let call = fleet.cluster.call(leader, &agent("h1"), registration("h1", process(2, 1)));
    assert_eq!(fleet.cluster.answer(leader, call), None);
    assert_eq!(fleet.depose(), leader);
    fleet.run(SECOND);
    let answer = fleet.cluster.answer(leader, call);
    assert!(matches!(answer, Some(Response::Unavailable(Unavailable::NotLeader { .. }))), "{answer:?}");
}

#[test]
fn a_restore_gives_every_node_its_whole_windows() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    fleet.run(2 * SECOND);
    let rows = fleet.cluster.backup();
    fleet.kill("h1");
    fleet.run(4 * SECOND);
    fleet.cluster.restore(rows);
    let restored = fleet.cluster.now();
    fleet.session("default", "h1", HealthWindow::Default);
    fleet.run_until(20 * SECOND, |fleet| !fleet.lives("default"));
    assert_within(fleet.cluster.now().since(restored), HealthWindow::Default.validity());
}

#[test]
fn a_renewal_that_a_follower_relays_waits_a_second_at_most() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    let follower = fleet.cluster.follower();
    fleet.cluster.lost = Some(MessageKind::LeaseAnswers);
    let call = fleet.renew("h1", follower);
    let took = fleet.run_until(5 * SECOND, |fleet| fleet.cluster.answer(follower, call).is_some());
    assert!((SECOND..SECOND + Duration::from_millis(200)).contains(&took), "{took:?}");
    assert!(!is_renewed(fleet.cluster.answer(follower, call)));
}
