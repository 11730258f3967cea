//! Corruption checks: servers whose states differ after the same log, and their quarantine.

use crate::frontend::{Cluster, agent, read, record, server};
use crate::solo::CORRUPTION_CHECK_INTERVAL;
use lockmesh_core::Input;
use lockmesh_core::corruption::Finding;
use lockmesh_core::frontend::Event;
use lockmesh_core::raft::TICK;
use lockmesh_core::raft::message::{MessageKind, PeerMessage};
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::query::Consistency;
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Corrupts a server's disk with a row that no log entry made, as a bug in the state machine would.
pub(crate) fn corrupt(cluster: &mut Cluster, id: ServerId) {
    let row = Change::Tombstone("never deleted".into(), Some(LogIndex(1)));
    cluster.servers.get_mut(&id).expect("it runs").recorded.load(row);
}

/// Writes a key, and runs until the next check is complete.
fn check(cluster: &mut Cluster) {
    cluster.put("something new");
    cluster.run(CORRUPTION_CHECK_INTERVAL + 3 * SECOND);
}

fn finding(cluster: &Cluster) -> Finding {
    cluster.servers[&cluster.leader()].frontend.core().corruption_checks().finding().clone()
}

fn reported(cluster: &Cluster) -> usize {
    cluster.servers[&cluster.leader()].frontend.core().corruption_checks().reported()
}

/// The reply of a server to a stale read.
fn says(cluster: &mut Cluster, id: ServerId) -> Response {
    cluster.ask(id, &agent("a1"), read("k", Consistency::Stale, None))
}

#[track_caller]
fn assert_refused(response: &Response) {
    let Response::Unavailable(why @ Unavailable::Corrupt) = response else { panic!("{response:?}") };
    assert!(
        why.to_string().contains("empty its data folder and start it: it joins as a new server"),
        "{why}"
    );
}

#[test]
fn servers_that_hold_the_same_are_left_alone() {
    let mut cluster = Cluster::start(3);
    check(&mut cluster);
    assert_eq!((reported(&cluster), finding(&cluster)), (3, Finding::Alike));
    let marks: Vec<_> =
        cluster.servers.values().map(|one| one.exact.last().map(|(mark, _)| mark.index)).collect();
    assert!(marks[0].is_some() && marks.iter().all(|mark| *mark == marks[0]), "{marks:?}");
    for id in 1..=3 {
        assert!(matches!(says(&mut cluster, ServerId(id)), Response::Answer(_)));
    }
}

#[test]
fn where_nothing_is_written_nothing_is_checked() {
    let mut cluster = Cluster::start(3);
    check(&mut cluster);
    let applied = cluster.servers[&cluster.leader()].frontend.core().snapshot_meta().index;
    cluster.run(2 * CORRUPTION_CHECK_INTERVAL);
    assert_eq!(cluster.servers[&cluster.leader()].frontend.core().snapshot_meta().index, applied);
    let mut alone = Cluster::start(1);
    check(&mut alone);
    assert!(alone.servers[&ServerId(1)].exact.is_empty(), "there is no other server to compare with");
}

#[test]
fn a_check_sees_what_lies_before_it_in_the_log_and_nothing_behind() {
    let mut cluster = Cluster::start(3);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    cluster.put("before");
    cluster.run(CORRUPTION_CHECK_INTERVAL - cluster.now().since(Time(0)) - 3 * TICK);
    // The leader's decisions meanwhile reach this follower in one batch.
    cluster.down.insert(follower);
    while cluster.servers[&leader].exact.is_empty() {
        cluster.put("meanwhile");
        cluster.run(TICK);
    }
    let check = cluster.servers[&leader].exact[0].0.index;
    let last = cluster.put("after");
    assert!(last > check);
    cluster.down.clear();
    cluster.run(3 * SECOND);
    for one in cluster.servers.values() {
        let (mark, state) = &one.exact[0];
        assert_eq!((mark.index, state.table_index(Table::Entries)), (check, LogIndex(check.0 - 1)));
    }
    assert_eq!((reported(&cluster), finding(&cluster)), (3, Finding::Alike));
}

#[test]
fn a_follower_that_differs_answers_no_agent_and_votes_on() {
    let mut cluster = Cluster::start(3);
    let (leader, wrong) = (cluster.leader(), cluster.follower());
    let known = cluster.put("k");
    corrupt(&mut cluster, wrong);
    cluster.run(CORRUPTION_CHECK_INTERVAL - 8 * SECOND);
    let parked = cluster.call(wrong, &agent("a1"), read("k", Consistency::Stale, Some(known)));
    cluster.run(9 * SECOND);
    assert_eq!(finding(&cluster), Finding::Corrupt([wrong].into()));
    assert_refused(cluster.answer(wrong, parked).expect("the parked query is answered"));
    assert_refused(&says(&mut cluster, wrong));
    assert!(matches!(says(&mut cluster, leader), Response::Answer(_)));
    assert!(!cluster.servers[&leader].frontend.core().autopilot(cluster.now()).is_healthy(wrong));
    let node = record(wrong).node.to_string();
    let snapshot = Request::SnapshotPart { snapshot: None, number: 0, least: LogIndex(1) };
    assert_refused(&cluster.ask(wrong, &server(&node), snapshot));
    assert!(cluster.servers[&wrong].is_corrupt, "the disk keeps it");
    cluster.restart(wrong);
    cluster.run(SECOND);
    assert_refused(&says(&mut cluster, wrong));
    cluster.down.insert(leader);
    cluster.run(3 * SECOND);
    assert_ne!(cluster.leader(), wrong, "its vote makes the third the leader");
    cluster.put("its disk counts");
}

#[test]
fn a_leader_that_differs_hands_over() {
    let mut cluster = Cluster::start(3);
    let wrong = cluster.leader();
    corrupt(&mut cluster, wrong);
    check(&mut cluster);
    cluster.run(SECOND);
    assert_ne!(cluster.leader(), wrong);
    assert_refused(&says(&mut cluster, wrong));
    cluster.put("the others continue");
    cluster.run(5 * SECOND);
    assert_eq!(finding(&cluster), Finding::Corrupt([wrong].into()), "the next leader finds the same");
}

#[test]
fn of_two_that_differ_nobody_is_condemned() {
    let mut cluster = Cluster::start(2);
    let wrong = cluster.follower();
    corrupt(&mut cluster, wrong);
    check(&mut cluster);
    assert_eq!(finding(&cluster), Finding::Undecided);
    for id in 1..=2 {
        assert!(matches!(says(&mut cluster, ServerId(id)), Response::Answer(_)), "it is only an alarm");
    }
}

#[test]
fn a_server_without_a_checksum_is_not_judged_and_keeps_nobody_from_being() {
    let mut cluster = Cluster::start(5);
    let wrong = cluster.follower();
    let down = *cluster
        .servers
        .keys()
        .rfind(|id| **id != cluster.leader() && **id != wrong)
        .expect("there are five");
    cluster.down.insert(down);
    corrupt(&mut cluster, wrong);
    check(&mut cluster);
    assert_eq!((reported(&cluster), finding(&cluster)), (4, Finding::Corrupt([wrong].into())));
    cluster.down.clear();
    cluster.run(5 * SECOND);
    assert!(matches!(says(&mut cluster, down), Response::Answer(_)));
    check(&mut cluster);
    assert_eq!((reported(&cluster), finding(&cluster)), (5, Finding::Corrupt([wrong].into())));
}

#[test]
fn while_servers_run_different_versions_nothing_is_checked() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    let tell = |cluster: &mut Cluster, of, version: &str| {
        cluster.turn(leader, Some(Event::Version(of, version.into())));
    };
    let [first, second, third] = [1, 2, 3].map(ServerId);
    tell(&mut cluster, first, "2.0.0");
    tell(&mut cluster, second, "2.0.0");
    check(&mut cluster);
    assert_eq!(reported(&cluster), 0, "the third server's build is unknown");
    tell(&mut cluster, third, "1.9.0");
    check(&mut cluster);
    assert_eq!(reported(&cluster), 0, "it may not know what a check is");
    tell(&mut cluster, third, "2.0.0");
    check(&mut cluster);
    assert_eq!(reported(&cluster), 3);
}

#[test]
fn only_the_leader_is_believed() {
    let mut cluster = Cluster::start(3);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    let other = ServerId(6 - leader.0 - follower.0);
    let told = |by| PeerMessage::new(MessageKind::Corrupt, by, follower);
    cluster.turn(follower, Some(Event::Core(Input::Peer(other, told(other)))));
    assert!(matches!(says(&mut cluster, follower), Response::Answer(_)));
    cluster.turn(follower, Some(Event::Core(Input::Peer(leader, told(leader)))));
    assert_refused(&says(&mut cluster, follower));
}

/// Keeps a follower down until it needs a snapshot of the leader.
fn let_copy(cluster: &mut Cluster, id: ServerId) {
    cluster.down.insert(id);
    for number in 0..50 {
        cluster.put(&format!("key-{number}"));
    }
    cluster.run(3 * SECOND);
    cluster.down.remove(&id);
    cluster.run(2 * SECOND);
    assert!(copy_of(cluster, id).is_some(), "it has fetched a snapshot");
}

fn copy_of(cluster: &Cluster, id: ServerId) -> Option<LogIndex> {
    cluster.servers[&id].frontend.core().own_memory().copy_of
}

#[test]
fn a_snapshot_of_a_corrupt_server_makes_no_majority_of_it() {
    let mut cluster = Cluster::start(3);
    check(&mut cluster);
    check(&mut cluster);
    let (leader, copy) = (cluster.leader(), cluster.follower());
    let right = ServerId(6 - leader.0 - copy.0);
    corrupt(&mut cluster, leader);
    let_copy(&mut cluster, copy);
    assert_eq!(cluster.servers[&copy].recorded, cluster.servers[&leader].recorded, "it spreads");
    cluster.restart(copy);
    check(&mut cluster);
    assert_eq!((reported(&cluster), finding(&cluster)), (3, Finding::Undecided));
    assert!(matches!(says(&mut cluster, right), Response::Answer(_)), "a correct server is not quarantined");
    check(&mut cluster);
    assert_eq!(finding(&cluster), Finding::Undecided, "repetition does not confirm it");
}

#[test]
fn a_copy_that_was_confirmed_bears_witness() {
    let mut cluster = Cluster::start(3);
    let (leader, copy) = (cluster.leader(), cluster.follower());
    let wrong = ServerId(6 - leader.0 - copy.0);
    let_copy(&mut cluster, copy);
    check(&mut cluster);
    assert_eq!((reported(&cluster), finding(&cluster)), (3, Finding::Alike));
    corrupt(&mut cluster, wrong);
    check(&mut cluster);
    assert_eq!(finding(&cluster), Finding::Corrupt([wrong].into()));
    assert_eq!(copy_of(&cluster, copy), None);
}

#[test]
fn a_copy_of_what_a_majority_holds_takes_the_place_of_what_was_corrupt() {
    let mut cluster = Cluster::start(3);
    let wrong = cluster.follower();
    corrupt(&mut cluster, wrong);
    let_copy(&mut cluster, wrong);
    let leader = cluster.leader();
    let former = PeerMessage {
        index: LogIndex(copy_of(&cluster, wrong).expect("it fetched one").0 - 1),
        ..PeerMessage::new(MessageKind::Corrupt, leader, wrong)
    };
    cluster.turn(wrong, Some(Event::Core(Input::Peer(leader, former))));
    assert!(
        matches!(says(&mut cluster, wrong), Response::Answer(_)),
        "the finding was about the replaced state"
    );
    check(&mut cluster);
    assert_eq!((reported(&cluster), finding(&cluster)), (3, Finding::Alike));
}
