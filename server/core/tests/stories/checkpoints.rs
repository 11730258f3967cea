//! Checkpoints of a frontend, written one at a time, their limited number of readers, and another
//! server's snapshot.

use crate::frontend::{Cluster, agent, read, server};
use lockmesh_core::Input;
use lockmesh_core::frontend::{CallRef, CheckpointReader, Event, OpenReader};
use lockmesh_core::raft::log::SnapshotMeta;
use lockmesh_core::raft::message::{MessageKind, PeerMessage};
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::peer::Peer;
use lockmesh_protocol::query::Consistency;
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use std::sync::Arc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn backup_waits_for_current_checkpoint() {
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
    let opened = OpenReader { number: 1, kind: CheckpointReader::Backup, first: call };
    assert_eq!(cluster.servers[&leader].readers, [opened]);
}

#[test]
fn single_checkpoint_write_in_flight() {
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

/// A server whose checkpoints are read.
struct Readers {
    cluster: Cluster,
    leader: ServerId,
}

impl Readers {
    fn new() -> Self {
        let mut cluster = Cluster::start(1);
        cluster.run(3 * SECOND);
        Self { leader: cluster.leader(), cluster }
    }

    /// Requests readers; returns the number of those that were opened.
    fn begin(&mut self, count: usize, peer: &Arc<Peer>, request: &Request) -> usize {
        let before = self.open().len();
        let calls: Vec<_> =
            (0..count).map(|_| self.cluster.call(self.leader, peer, request.clone())).collect();
        self.cluster.run(3 * SECOND);
        let opened = self.open().len() - before;
        let refused = |call: &&CallRef| match self.cluster.answer(self.leader, **call) {
            Some(Response::Unavailable(Unavailable::Overloaded(why))) => why.starts_with("too many "),
            _ => false,
        };
        assert_eq!(calls.iter().filter(refused).count(), count - opened);
        opened
    }

    fn back_up(&mut self, count: usize, node: &str) -> usize {
        self.begin(count, &agent(node), &BACKUP)
    }

    fn fetch(&mut self, count: usize, node: &str) -> usize {
        self.begin(count, &server(node), &SNAPSHOT)
    }

    fn open(&self) -> &[OpenReader] {
        &self.cluster.servers[&self.leader].readers
    }

    fn end(&mut self, event: fn(u64) -> Event, number: u64) {
        self.cluster.turn(self.leader, Some(event(number)));
    }
}

const BACKUP: Request = Request::BackupPart { backup: None, number: 0, stale: false };
const SNAPSHOT: Request = Request::SnapshotPart { snapshot: None, number: 0, least: LogIndex(0) };

#[test]
fn concurrent_backups_limited_per_node() {
    let mut readers = Readers::new();
    assert_eq!(readers.back_up(24, "a1"), 2);
    assert_eq!(readers.back_up(1, "A1"), 0, "names differ in case only");
    let others = ["a2", "a3", "a4", "a5"].map(|node| readers.back_up(2, node));
    assert_eq!(others, [2, 2, 2, 0], "eight are being read");
    readers.end(Event::ReaderClosed, 3);
    assert_eq!(readers.back_up(2, "a5"), 1);
}

#[test]
fn backups_leave_follower_slots_free() {
    let mut readers = Readers::new();
    assert_eq!(["a1", "a2", "a3", "a4"].map(|node| readers.back_up(2, node)), [2; 4]);
    let followers: Vec<_> = (1..=8).map(|number| format!("s{number}")).collect();
    assert!(followers.iter().all(|node| readers.fetch(1, node) == 1));
    assert_eq!(readers.fetch(1, "s9"), 0, "eight are being read");
    assert_eq!(readers.fetch(1, "s8"), 1, "it replaces its own");
}

#[test]
fn follower_that_restarts_ends_its_readers() {
    let mut readers = Readers::new();
    assert_eq!([readers.fetch(1, "s2"), readers.fetch(1, "s3"), readers.back_up(1, "s2")], [1; 3]);
    assert_eq!(readers.fetch(1, "S2"), 1);
    let one = &readers.cluster.servers[&readers.leader];
    assert_eq!(one.actions.close_readers, [1], "not that of another server, and no backup");
    // Also one that still waits for its checkpoint.
    let one = readers.cluster.servers.get_mut(&readers.leader).expect("it runs");
    one.checkpoints = Some(Vec::new());
    let least = readers.cluster.put("k");
    let request = Request::SnapshotPart { snapshot: None, number: 0, least };
    let calls = [0, 1].map(|_| readers.cluster.call(readers.leader, &server("s3"), request.clone()));
    let answers = calls.map(|call| readers.cluster.answer(readers.leader, call).is_some());
    assert_eq!(answers, [true, false]);
}

#[test]
fn finished_backup_frees_slot() {
    let mut readers = Readers::new();
    for _ in 0..8 {
        assert_eq!(readers.back_up(1, "a1"), 1);
        let last = readers.open().last().expect("it is open").number;
        readers.end(Event::ReaderFinished, last);
    }
    // The last part may be requested again, until the reader is closed.
    let again = Request::BackupPart { backup: Some(8), number: 3, stale: false };
    let is_there = |readers: &mut Readers| {
        let call = readers.cluster.call(readers.leader, &agent("a1"), again.clone());
        readers.cluster.answer(readers.leader, call).is_none()
    };
    assert!(is_there(&mut readers));
    readers.end(Event::ReaderClosed, 8);
    assert!(!is_there(&mut readers));
}

#[test]
fn reader_bound_to_opening_node() {
    let mut readers = Readers::new();
    assert_eq!([readers.back_up(1, "a1"), readers.fetch(1, "s2")], [1, 1]);
    let backup = |number| Request::BackupPart { backup: Some(number), number: 0, stale: false };
    let snapshot = |number| Request::SnapshotPart { snapshot: Some(number), number: 0, least: LogIndex(0) };
    // A snapshot has the secrets of the cluster, which no agent may have.
    let foreign = [
        (agent("a2"), backup(1)),
        (agent("s2"), backup(2)),
        (server("s2"), snapshot(1)),
        (server("s3"), snapshot(2)),
    ];
    for (peer, request) in foreign {
        let answer = readers.cluster.ask(readers.leader, &peer, request);
        assert!(matches!(answer, Response::Unavailable(Unavailable::Denied(_))), "{answer:?}");
    }
    assert!(readers.cluster.servers[&readers.leader].actions.parts.is_empty());
}

#[test]
fn cancelled_backup_opens_no_reader() {
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
fn stale_read_reports_age_without_snapshot_offer() {
    let mut cluster = Cluster::start(3);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    let applied =
        |cluster: &Cluster, id| cluster.servers[&id].frontend.core().replica().snapshot_meta().index;
    let term = cluster.servers[&leader].frontend.core().replica().log_status().term;
    let heartbeat = |cluster: &mut Cluster, index: LogIndex| {
        let message =
            PeerMessage { term, index, ..PeerMessage::new(MessageKind::Heartbeat, leader, follower) };
        cluster.turn(follower, Some(Event::Core(Input::Peer(leader, message))));
    };
    let age = |cluster: &mut Cluster| {
        let answer = cluster.ask(follower, &agent("a1"), read("k", Consistency::Stale, None));
        let Response::Answer(answer) = answer else { panic!("{answer:?}") };
        answer.last_contact
    };
    // It has not received what the leader committed, and knows of no snapshot.
    let ahead = LogIndex(applied(&cluster, follower).0 + 10);
    heartbeat(&mut cluster, ahead);
    cluster.run(3 * SECOND);
    heartbeat(&mut cluster, LogIndex(ahead.0 + 10));
    assert!(age(&mut cluster) >= 3 * SECOND);
    while applied(&cluster, follower) < ahead {
        cluster.put("k");
    }
    assert!(age(&mut cluster) < SECOND);
}

#[test]
fn stale_read_reports_age_awaiting_snapshot() {
    let mut cluster = Cluster::start(3);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    let mark = cluster.servers[&follower].frontend.core().replica().snapshot_meta();
    let term = cluster.servers[&leader].frontend.core().replica().log_status().term;
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
    let state = cluster.servers[&leader].frontend.core().replica().state().clone();
    cluster.turn(follower, Some(Event::SnapshotFetched(Some((at(1_100), Box::new(state))))));
    assert_eq!(cluster.servers[&follower].frontend.core().replica().snapshot_meta().index, LogIndex(1_100));
    announce(&mut cluster, 2_000);
    is_old(&mut cluster);
}
