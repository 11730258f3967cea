//! Checkpoints of a frontend, written one at a time, their limited number of readers, and another
//! server's snapshot.

use crate::frontend::{Cluster, agent, read};
use lockmesh_core::Input;
use lockmesh_core::frontend::{CallRef, CheckpointReader, Event};
use lockmesh_core::raft::log::SnapshotMeta;
use lockmesh_core::raft::message::{MessageKind, PeerMessage};
use lockmesh_protocol::id::LogIndex;
use lockmesh_protocol::query::Consistency;
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_backup_holds_all_that_was_applied_when_it_was_asked_for() {
    let mut cluster = Cluster::start(1);
    let leader = cluster.leader();
    cluster.run(3 * SECOND);
    cluster.servers.get_mut(&leader).expect("it runs").checkpoints = Some(Vec::new());
    let index = cluster.put("k");
    let request = Request::BackupPart { backup: None, number: 0, stale: false };
    let call = cluster.call(leader, &agent("a1"), request);
    let one = cluster.servers.get_mut(&leader).expect("it runs");
    assert_eq!(one.readers, [], "the checkpoint on disk is an older one");
    let marks = one.checkpoints.take().expect("they were held");
    assert!(matches!(&marks[..], [mark] if mark.index >= index), "a checkpoint was started: {marks:?}");
    for mark in marks {
        cluster.turn(leader, Some(Event::Core(Input::CheckpointDurable(mark))));
    }
    assert_eq!(cluster.servers[&leader].readers, [(CheckpointReader::Backup, call)]);
}

#[test]
fn one_checkpoint_is_written_at_a_time() {
    let mut cluster = Cluster::start(1);
    let leader = cluster.leader();
    cluster.run(3 * SECOND);
    cluster.servers.get_mut(&leader).expect("it runs").checkpoints = Some(Vec::new());
    for number in 0..5 {
        cluster.put(&format!("key-{number}"));
        cluster.run(2 * SECOND);
    }
    let slow = cluster.servers[&leader].checkpoints.as_ref().expect("they are held");
    assert_eq!(slow.len(), 1, "the disk is still at work: {slow:?}");
}

#[test]
fn readers_of_checkpoints_are_few() {
    let mut cluster = Cluster::start(1);
    let leader = cluster.leader();
    let request = || Request::BackupPart { backup: None, number: 0, stale: false };
    for _ in 0..8 {
        cluster.call(leader, &agent("a1"), request());
    }
    cluster.run(3 * SECOND);
    assert_eq!(cluster.servers[&leader].readers.len(), 8);
    let answer = cluster.ask(leader, &agent("a1"), request());
    assert!(matches!(answer, Response::Unavailable(Unavailable::Overloaded(_))), "{answer:?}");
    cluster.turn(leader, Some(Event::ReaderClosed));
    let call = cluster.call(leader, &agent("a1"), request());
    cluster.run(SECOND);
    assert!(cluster.servers[&leader].readers.iter().any(|(_, to)| *to == call), "one that closed makes room");
}

#[test]
fn nothing_is_read_for_whoever_gave_up_before_there_was_a_checkpoint() {
    let mut cluster = Cluster::start(1);
    let leader = cluster.leader();
    cluster.run(3 * SECOND);
    cluster.servers.get_mut(&leader).expect("it runs").checkpoints = Some(Vec::new());
    cluster.put("k");
    let request = || Request::BackupPart { backup: None, number: 0, stale: false };
    for gives_up in [Event::Cancel, |from: CallRef| Event::Disconnected(from.caller)] {
        let asked_for = cluster.call(leader, &agent("a1"), request());
        cluster.turn(leader, Some(gives_up(asked_for)));
    }
    let one = cluster.servers.get_mut(&leader).expect("it runs");
    for mark in one.checkpoints.take().expect("they were held") {
        cluster.turn(leader, Some(Event::Core(Input::CheckpointDurable(mark))));
    }
    cluster.run(3 * SECOND);
    assert_eq!(cluster.servers[&leader].readers, [], "no reader requested the next part");
}

#[test]
fn stale_reply_of_server_that_needs_a_snapshot_is_old() {
    let mut cluster = Cluster::start(3);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    let mark = cluster.servers[&follower].frontend.core().snapshot_meta();
    let term = cluster.servers[&leader].frontend.core().log_status().term;
    let at = |index| SnapshotMeta { index: LogIndex(index), ..mark.clone() };
    let announce = |cluster: &mut Cluster, index| {
        let snapshot = PeerMessage {
            term,
            snapshot: Some(at(index)),
            ..PeerMessage::new(MessageKind::Snapshot, leader, follower)
        };
        let (now, one) = (cluster.now(), cluster.servers.get_mut(&follower).expect("it runs"));
        one.frontend.handle(now, Event::Core(Input::Peer(leader, snapshot)), &mut one.actions);
        assert!(one.actions.fetch.take().is_some());
    };
    let is_old = |cluster: &mut Cluster| {
        let answer = cluster.ask(follower, &agent("a1"), read("k", Consistency::Stale, None));
        let Response::Answer(answer) = answer else { panic!("{answer:?}") };
        assert!(answer.last_contact >= 3 * SECOND, "{answer:?}");
    };
    announce(&mut cluster, 1_000);
    cluster.run(3 * SECOND);
    cluster.turn(follower, Some(Event::SnapshotFetched(None)));
    is_old(&mut cluster);
    // A newer snapshot than the announced one arrives, and the log behind it is gone already.
    announce(&mut cluster, 1_000);
    let state = cluster.servers[&leader].frontend.core().state().clone();
    cluster.turn(follower, Some(Event::SnapshotFetched(Some((at(1_100), Box::new(state))))));
    assert_eq!(cluster.servers[&follower].frontend.core().snapshot_meta().index, LogIndex(1_100));
    announce(&mut cluster, 2_000);
    is_old(&mut cluster);
}
