//! Servers that join, leave, fall behind and are moved, in virtual time on a network without
//! faults.

use crate::solo::{Disk, entry};
use lockmesh_core::raft::TICK;
use lockmesh_core::raft::log::{LogWrite, SnapshotMeta};
use lockmesh_core::raft::message::{MessageKind, PeerMessage};
use lockmesh_core::{CallToken, Core, Input, Outbox, Proposal, ServerRequest, State};
use lockmesh_protocol::command::{Command, KvCommand};
use lockmesh_protocol::format;
use lockmesh_protocol::id::{LogIndex, ServerId, WallTime};
use lockmesh_protocol::query::Consistency;
use lockmesh_protocol::record::NewServer;
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// A server with its disk, which completes every write at once.
pub(crate) struct Server {
    pub(crate) core: Core,
    pub(crate) disk: Disk,
    outbox: Outbox,
    /// The replies sent.
    pub(crate) replies: BTreeMap<CallToken, Response>,
    readable: BTreeSet<CallToken>,
    pub(crate) unreadable: BTreeSet<CallToken>,
}

pub(crate) struct Cluster {
    pub(crate) servers: BTreeMap<ServerId, Server>,
    /// Servers that do not run.
    pub(crate) down: BTreeSet<ServerId>,
    in_flight: Vec<(ServerId, PeerMessage)>,
    now: Time,
    last_ticket: u64,
    snapshots_fetched: usize,
    /// The number of snapshot announcements still to be lost.
    snapshots_to_lose: usize,
    /// Set if a snapshot transfer lasts until [`Cluster::arrive`].
    fetches_slowly: bool,
    /// The fetching server, the newest announcement, and the snapshot.
    fetching: Option<(ServerId, PeerMessage, SnapshotMeta, State)>,
}

impl Cluster {
    pub(crate) fn start(voters: u64) -> Self {
        let voters: Vec<_> = (1..=voters).map(ServerId).collect();
        let disk = Disk::new(Core::bootstrap_snapshot(&voters));
        let servers = voters.iter().map(|id| (*id, Server::open(*id, disk.clone()))).collect();
        let (down, in_flight) = (BTreeSet::new(), Vec::new());
        let mut cluster = Self {
            servers,
            down,
            in_flight,
            now: Time(0),
            last_ticket: 0,
            snapshots_fetched: 0,
            snapshots_to_lose: 0,
            fetches_slowly: false,
            fetching: None,
        };
        cluster.run(Duration::from_secs(1));
        cluster
    }

    pub(crate) fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now < end {
            self.now = self.now + TICK;
            for id in self.running() {
                self.input(id, Input::Tick(WallTime(self.now.0)));
            }
            self.deliver();
        }
    }

    fn running(&self) -> Vec<ServerId> {
        self.servers.keys().copied().filter(|id| !self.down.contains(id)).collect()
    }

    fn deliver(&mut self) {
        while !self.in_flight.is_empty() {
            self.deliver_once();
        }
    }

    /// Delivers the messages sent so far, but not those sent in response.
    fn deliver_once(&mut self) {
        for (to, message) in std::mem::take(&mut self.in_flight) {
            if self.down.contains(&to) || self.down.contains(&message.from) || !self.servers.contains_key(&to)
            {
                continue;
            }
            if message.kind == MessageKind::Snapshot && self.snapshots_to_lose > 0 {
                self.snapshots_to_lose -= 1;
                continue;
            }
            let input = match message.kind {
                MessageKind::Snapshot if self.fetches_slowly => {
                    self.begin_to_fetch(to, message);
                    continue;
                }
                MessageKind::Snapshot => self.fetch(message),
                _ => Input::Peer(message.from, message),
            };
            self.input(to, input);
        }
    }

    /// The newest snapshot of the server that announced one.
    fn fetch(&mut self, message: PeerMessage) -> Input {
        self.snapshots_fetched += 1;
        let (mark, state) = self.servers[&message.from].disk.snapshot();
        Input::Install(message.from, message, mark, Box::new(state))
    }

    /// Begins to fetch a snapshot, or continues the current transfer.
    fn begin_to_fetch(&mut self, to: ServerId, message: PeerMessage) {
        let (mark, state) = match self.fetching.take() {
            Some((_, _, mark, state)) => (mark, state),
            None => self.servers[&message.from].disk.snapshot(),
        };
        self.fetching = Some((to, message, mark, state));
    }

    /// Completes the current snapshot transfer.
    fn arrive(&mut self) {
        let (to, message, mark, state) = self.fetching.take().expect("a snapshot is on its way");
        self.snapshots_fetched += 1;
        self.input(to, Input::Install(message.from, message, mark, Box::new(state)));
    }

    /// Makes a checkpoint of a server's current state.
    fn checkpoint(&mut self, id: ServerId) {
        let server = self.servers.get_mut(&id).expect("it runs");
        server.checkpoint(self.now);
        server.input(self.now, Input::Tick(WallTime(1)));
    }

    fn input(&mut self, id: ServerId, input: Input) {
        let server = self.servers.get_mut(&id).expect("the server exists");
        server.input(self.now, input);
        let messages = std::mem::take(&mut server.outbox.shell.messages);
        self.in_flight.extend(messages);
    }

    pub(crate) fn leader(&self) -> ServerId {
        let mut leaders = self.running().into_iter().filter(|id| self.servers[id].core.is_serving());
        leaders.next().expect("somebody leads")
    }

    pub(crate) fn ask(&mut self, id: ServerId, input: impl FnOnce(CallToken) -> Input) -> CallToken {
        self.last_ticket += 1;
        let token = CallToken(self.last_ticket);
        self.input(id, input(token));
        self.deliver();
        token
    }

    pub(crate) fn answer(&self, id: ServerId, token: CallToken) -> &Response {
        self.servers[&id].replies.get(&token).expect("it was answered")
    }

    pub(crate) fn command(&mut self, command: Command) -> Reply {
        let leader = self.leader();
        let proposal = Proposal { request: None, at: WallTime(1), command };
        let token = self.ask(leader, |token| Input::Propose(token, proposal));
        match self.answer(leader, token) {
            Response::Applied(Applied { reply, .. }) => reply.clone(),
            other => panic!("the command was not applied: {other:?}"),
        }
    }

    pub(crate) fn put(&mut self, key: &str) {
        assert_eq!(self.command(Command::Kv(KvCommand::Set(entry(key)))), Reply::Succeeded(true));
    }

    /// A server with an empty disk is admitted to the quorum, and follows.
    pub(crate) fn join(&mut self, node: &str, instance_id: &str) -> ServerId {
        let new = NewServer {
            node: node.into(),
            node_id: String::new(),
            address: format!("{node}:8300"),
            instance_id: instance_id.into(),
            format: format::NEWEST,
        };
        let Reply::Server(id) = self.command(Command::AdmitServer(new)) else { panic!("it is admitted") };
        self.servers.insert(id, Server::open(id, Disk::new(SnapshotMeta::default())));
        let leader = self.leader();
        let token = self.ask(leader, |token| Input::Servers(ServerRequest::AddServer(token, id)));
        assert_eq!(*self.answer(leader, token), Response::Done);
        id
    }

    pub(crate) fn voters(&self) -> Vec<u64> {
        self.servers[&self.leader()].core.membership().voters.iter().map(|id| id.0).collect()
    }

    fn roster(&self) -> Vec<u64> {
        self.servers[&self.leader()].core.state().servers().map(|server| server.id.0).collect()
    }

    fn follower(&self) -> ServerId {
        self.running().into_iter().find(|id| *id != self.leader()).expect("somebody follows")
    }

    /// Begins a read at a server, without delivering messages.
    fn begin_read(&mut self, id: ServerId) -> CallToken {
        self.last_ticket += 1;
        let token = CallToken(self.last_ticket);
        self.input(id, Input::Read(token, Consistency::Default));
        token
    }

    /// Delivers everything except appends to a follower.
    fn deliver_no_entries_to(&mut self, follower: ServerId) {
        while !self.in_flight.is_empty() {
            self.in_flight.retain(|(to, message)| *to != follower || message.kind != MessageKind::Append);
            self.deliver_once();
        }
    }

    fn assert_equal(&self) {
        let leader = self.servers[&self.leader()].core.state();
        for id in self.running() {
            assert_eq!(self.servers[&id].core.state(), leader, "server {id} holds the leader's state");
        }
    }
}

impl Server {
    pub(crate) fn open(id: ServerId, disk: Disk) -> Self {
        Self::open_reading(id, disk, format::NEWEST)
    }

    /// Starts it with a build that reads formats up to this.
    pub(crate) fn open_reading(id: ServerId, disk: Disk, format: u8) -> Self {
        Self {
            core: disk.open_reading(id, 11 + id.0, format),
            disk,
            outbox: Outbox::default(),
            replies: BTreeMap::new(),
            readable: BTreeSet::new(),
            unreadable: BTreeSet::new(),
        }
    }

    fn input(&mut self, now: Time, input: Input) {
        self.core.handle(now, input, &mut self.outbox);
        loop {
            self.core.settle(now, &mut self.outbox);
            self.replies.extend(self.outbox.replies.drain(..));
            self.readable.extend(self.outbox.readable.drain(..));
            self.unreadable.extend(self.outbox.refused_reads.drain(..).map(|(token, _)| token));
            self.outbox.changes.clear();
            self.outbox.checks.clear();
            let installed = self.outbox.install.take();
            let wanted = std::mem::take(&mut self.outbox.snapshot_wanted);
            if installed.is_some() || wanted {
                self.checkpoint(now);
            }
            if let Some(index) = self.outbox.compact.take() {
                self.disk.compact(index);
            }
            let Some(number) = self.outbox.writes.last().map(|write| write.number) else { return };
            self.outbox.writes.drain(..).for_each(|write: LogWrite| self.disk.write(write));
            self.core.handle(now, Input::Persisted(number), &mut self.outbox);
        }
    }

    fn checkpoint(&mut self, now: Time) {
        let (mark, state): (SnapshotMeta, State) = (self.core.snapshot_meta(), self.core.state().clone());
        self.disk.keep_checkpoint(mark.clone(), state);
        self.core.handle(now, Input::CheckpointDurable(mark), &mut self.outbox);
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_new_server_learns_and_gets_its_vote() {
    let mut cluster = Cluster::start(3);
    cluster.put("before");
    let id = cluster.join("d", "d-1");
    assert_eq!((id, cluster.voters()), (ServerId(4), vec![1, 2, 3]), "it follows first");
    cluster.run(3 * SECOND);
    assert_eq!(cluster.voters(), [1, 2, 3, 4]);
    assert_eq!(cluster.snapshots_fetched, 1, "no log leads from nothing to here");
    cluster.put("after");
    cluster.run(SECOND);
    cluster.assert_equal();
}

#[test]
fn a_server_alone_grows_to_three_and_survives_the_first() {
    let mut cluster = Cluster::start(1);
    cluster.put("alone");
    for node in ["b", "c"] {
        cluster.join(node, node);
        cluster.run(3 * SECOND);
    }
    assert_eq!(cluster.voters(), [1, 2, 3]);
    cluster.down.insert(ServerId(1));
    cluster.run(2 * SECOND);
    cluster.put("without the first");
    cluster.run(SECOND);
    cluster.assert_equal();
}

#[test]
fn an_emptied_server_comes_back_as_another_and_its_former_self_goes() {
    let mut cluster = Cluster::start(3);
    cluster.join("d", "d-1");
    cluster.run(3 * SECOND);
    cluster.servers.remove(&ServerId(4));
    cluster.put("meanwhile");
    assert_eq!(cluster.join("d", "d-2"), ServerId(5));
    for _ in 0..200 {
        cluster.run(TICK);
        assert_eq!(cluster.voters().len(), 4, "its own dead vote is never counted beside its new one");
    }
    assert_eq!(cluster.voters(), [1, 2, 3, 5]);
    assert!(!cluster.roster().contains(&4), "an id that is gone has no row");
    cluster.assert_equal();
}

#[test]
fn a_dead_server_goes_once_another_has_come() {
    let mut cluster = Cluster::start(3);
    let dead = cluster
        .voters()
        .into_iter()
        .map(ServerId)
        .find(|id| *id != cluster.leader())
        .expect("there are three");
    cluster.down.insert(dead);
    cluster.run(15 * SECOND);
    assert_eq!(cluster.voters().len(), 3, "no voter is removed before its successor joins");
    cluster.join("d", "d-1");
    cluster.run(4 * SECOND);
    assert_eq!(cluster.voters().len(), 3);
    assert!(!cluster.voters().contains(&dead.0) && cluster.voters().contains(&4));
}

#[test]
fn a_server_that_dies_after_another_has_come_goes_too() {
    let mut cluster = Cluster::start(3);
    cluster.join("d", "d-1");
    cluster.run(4 * SECOND);
    assert_eq!(cluster.voters(), [1, 2, 3, 4]);
    let dead = cluster.follower();
    cluster.down.insert(dead);
    cluster.run(250 * SECOND);
    assert_eq!(cluster.voters().len(), 4, "it may be a reboot");
    cluster.run(60 * SECOND);
    assert_eq!(cluster.voters().len(), 3);
    assert!(!cluster.voters().contains(&dead.0));
    // Of three, none is one too many.
    let next = cluster.follower();
    cluster.down.insert(next);
    cluster.run(400 * SECOND);
    assert_eq!(cluster.voters().len(), 3);
}

#[test]
fn a_server_is_taken_out_only_if_the_rest_goes_on() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    let others: Vec<_> = cluster.running().into_iter().filter(|id| *id != leader).collect();
    cluster.down.insert(others[0]);
    cluster.run(2 * SECOND);
    let token = cluster.ask(leader, |token| Input::Servers(ServerRequest::RemoveServer(token, others[1])));
    assert!(matches!(cluster.answer(leader, token), Response::Unavailable(Unavailable::Denied(_))));
    let token = cluster.ask(leader, |token| Input::Servers(ServerRequest::RemoveServer(token, others[0])));
    cluster.run(SECOND);
    assert_eq!(*cluster.answer(leader, token), Response::Done);
    assert_eq!((cluster.voters().len(), cluster.roster().len()), (2, 2));
}

#[test]
fn a_server_behind_the_compacted_log_gets_an_checkpoint() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    let slow = cluster.follower();
    cluster.down.insert(slow);
    for number in 0..50 {
        cluster.put(&format!("key-{number}"));
    }
    let server = cluster.servers.get_mut(&leader).expect("the leader runs");
    server.checkpoint(cluster.now);
    server.input(cluster.now, Input::Tick(WallTime(1)));
    assert!(server.core.log_status().first_index.0 > 40, "a log that is too long to keep was compacted");
    cluster.down.clear();
    cluster.run(8 * SECOND);
    assert_eq!(cluster.snapshots_fetched, 1);
    cluster.put("after");
    cluster.run(SECOND);
    cluster.assert_equal();
    let disk = cluster.servers[&slow].disk.clone();
    cluster.servers.insert(slow, Server::open(slow, disk));
    cluster.run(SECOND);
    cluster.assert_equal();
}

/// Three servers, one of which has a pending snapshot transfer; returns the leader.
fn with_a_follower_that_fetches_slowly() -> (Cluster, ServerId) {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    let slow = cluster.follower();
    cluster.down.insert(slow);
    (0..50).for_each(|number| cluster.put(&format!("key-{number}")));
    cluster.checkpoint(leader);
    cluster.down.clear();
    cluster.fetches_slowly = true;
    cluster.run(8 * SECOND);
    (cluster, leader)
}

#[test]
fn a_new_server_gets_no_vote_before_it_holds_a_state() {
    let mut cluster = Cluster::start(3);
    cluster.put("before");
    cluster.fetches_slowly = true;
    let id = cluster.join("d", "d-1");
    cluster.run(10 * SECOND);
    let leader = &cluster.servers[&cluster.leader()].core;
    assert!(!leader.autopilot(cluster.now).is_healthy(id), "it lags by few entries, but holds none of them");
    assert_eq!(cluster.voters(), [1, 2, 3]);
    cluster.fetches_slowly = false;
    cluster.arrive();
    cluster.run(3 * SECOND);
    assert_eq!(cluster.voters(), [1, 2, 3, 4]);
    cluster.assert_equal();
}

#[test]
fn what_follows_a_checkpoint_is_kept_until_a_slow_follower_has_it() {
    let (mut cluster, leader) = with_a_follower_that_fetches_slowly();
    let (_, _, snapshot, _) = cluster.fetching.as_ref().expect("it fetches");
    let snapshot = snapshot.index;
    for number in 0..50 {
        cluster.put(&format!("later-{number}"));
        cluster.checkpoint(leader);
    }
    cluster.run(8 * SECOND);
    cluster.fetches_slowly = false;
    let kept_from = cluster.servers[&leader].core.log_status().first_index;
    assert!(kept_from <= snapshot.next(), "from {kept_from}, but the snapshot is of {snapshot}");
    cluster.arrive();
    cluster.run(8 * SECOND);
    assert_eq!(cluster.snapshots_fetched, 1, "it went on from there");
    cluster.checkpoint(leader);
    let kept = cluster.servers[&leader].core.log_status();
    assert!(kept.first_index > snapshot.next(), "then it need not be kept");
    cluster.assert_equal();
}

#[test]
fn the_log_is_not_kept_for_ever_for_a_follower_that_fetches() {
    let (mut cluster, leader) = with_a_follower_that_fetches_slowly();
    (0..500).for_each(|number| cluster.put(&format!("later-{number}")));
    cluster.checkpoint(leader);
    let bytes = cluster.servers[&leader].core.log_status().log_bytes;
    assert!((1_001..=20_000).contains(&bytes), "{bytes} bytes are more than it may keep, or fewer");
    cluster.fetches_slowly = false;
    cluster.arrive();
    cluster.run(12 * SECOND);
    assert_eq!(cluster.snapshots_fetched, 2, "it has to fetch again");
    cluster.assert_equal();
}

#[test]
fn leadership_moves_to_whom_it_is_given() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    let to = cluster.follower();
    let token = cluster.ask(leader, |token| Input::Servers(ServerRequest::TransferLeader(token, Some(to))));
    cluster.run(SECOND / 2);
    assert_eq!((cluster.answer(leader, token), cluster.leader()), (&Response::Done, to));
    let back = cluster.ask(to, |token| Input::Servers(ServerRequest::TransferLeader(token, None)));
    cluster.run(SECOND / 2);
    assert_eq!(*cluster.answer(to, back), Response::Done);
    assert_ne!(cluster.leader(), to);
}

#[test]
fn a_follower_answers_readers_by_a_round_of_its_leader() {
    let mut cluster = Cluster::start(3);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    cluster.put("seen");
    let token = cluster.ask(follower, |token| Input::Read(token, Consistency::Default));
    let server = &cluster.servers[&follower];
    assert!(server.readable.contains(&token));
    assert_eq!(
        server.core.log_status().applied_index,
        cluster.servers[&leader].core.log_status().applied_index
    );
    let others: Vec<_> = cluster.running().into_iter().filter(|id| *id != follower).collect();
    cluster.down.extend(others);
    let token = cluster.ask(follower, |token| Input::Read(token, Consistency::Consistent));
    cluster.run(2 * SECOND);
    let server = &cluster.servers[&follower];
    assert!(
        !server.readable.contains(&token) && server.unreadable.contains(&token),
        "no majority confirms it"
    );
}

/// A follower that lacks the newest entry, with a waiting read.
fn with_a_reader_at_a_follower_that_is_behind() -> (Cluster, ServerId, CallToken) {
    let mut cluster = Cluster::start(3);
    let follower = cluster.follower();
    cluster.down.insert(follower);
    cluster.put("unseen");
    cluster.down.clear();
    let token = cluster.begin_read(follower);
    (cluster, follower, token)
}

#[test]
fn a_follower_answers_no_reader_before_it_has_applied_what_its_round_saw() {
    let (mut cluster, follower, token) = with_a_reader_at_a_follower_that_is_behind();
    // Its round is confirmed, but earlier committed entries do not arrive.
    cluster.deliver_no_entries_to(follower);
    assert!(!cluster.servers[&follower].readable.contains(&token), "it has not applied that much");
    cluster.run(SECOND);
    assert!(cluster.servers[&follower].readable.contains(&token));
    cluster.assert_equal();
}

/// Seed 152: a read waited while its follower was behind, although the leader could have answered
/// it.
#[test]
fn a_follower_that_does_not_catch_up_sends_its_readers_away() {
    let (mut cluster, follower, token) = with_a_reader_at_a_follower_that_is_behind();
    let asked_at = cluster.now;
    while !cluster.servers[&follower].unreadable.contains(&token) {
        assert!(cluster.now < asked_at + 2 * SECOND, "it still waits");
        cluster.now = cluster.now + TICK;
        for id in cluster.running() {
            cluster.input(id, Input::Tick(WallTime(cluster.now.0)));
        }
        // It receives heartbeats, but not the missing entries.
        cluster.deliver_no_entries_to(follower);
    }
    assert!(cluster.now >= asked_at + SECOND, "a short lag redirects no reader");
    assert!(cluster.servers[&follower].core.leader().is_some());
    assert!(!cluster.servers[&follower].readable.contains(&token));
}

#[test]
fn a_round_that_is_lost_on_its_way_to_the_leader_is_begun_again() {
    let mut cluster = Cluster::start(3);
    let follower = cluster.follower();
    let token = cluster.begin_read(follower);
    cluster.in_flight.clear();
    cluster.run(SECOND);
    assert!(cluster.servers[&follower].readable.contains(&token), "it was asked for once more");
}

/// Seed 9000452: readers were repeatedly moved to another round before the replies to theirs
/// arrived.
#[test]
fn where_every_answer_takes_long_readers_are_answered_all_the_same() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    let token = cluster.begin_read(leader);
    let asked_at = cluster.now;
    let mut on_their_way = VecDeque::new();
    while !cluster.servers[&leader].readable.contains(&token) {
        assert!(cluster.now < asked_at + 2 * SECOND, "nobody reads");
        cluster.now = cluster.now + TICK;
        cluster.input(leader, Input::Tick(WallTime(cluster.now.0)));
        let arrives_at = cluster.now + Duration::from_millis(110);
        on_their_way.push_back((arrives_at, std::mem::take(&mut cluster.in_flight)));
        while let Some((_, in_flight)) = on_their_way.pop_front_if(|(at, _)| *at <= cluster.now) {
            let others = std::mem::replace(&mut cluster.in_flight, in_flight);
            cluster.deliver_once();
            cluster.in_flight.extend(others);
        }
    }
}

#[test]
fn a_server_that_is_being_forgotten_is_not_taken_in() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    let goes = cluster.follower();
    cluster.input(leader, Input::Servers(ServerRequest::RemoveServer(CallToken(77), goes)));
    while cluster.voters().contains(&goes.0) || cluster.servers[&leader].core.membership().is_joint() {
        assert!(!cluster.in_flight.is_empty(), "it goes by messages alone");
        cluster.deliver_once();
    }
    assert!(cluster.roster().contains(&goes.0), "its row is still to be forgotten");
    cluster.input(leader, Input::Servers(ServerRequest::AddServer(CallToken(78), goes)));
    let refused = cluster.answer(leader, CallToken(78));
    assert!(matches!(refused, Response::Unavailable(Unavailable::Denied(_))), "{refused:?}");
    cluster.run(SECOND);
    assert_eq!(
        (cluster.voters().len(), cluster.roster().len()),
        (2, 2),
        "no server accepts messages of a member without a row"
    );
}

#[test]
fn a_learner_that_is_taken_out_is_forgotten_and_does_not_come_back() {
    let mut cluster = Cluster::start(3);
    let joiner = cluster.join("d", "d-1");
    let leader = cluster.leader();
    let token = cluster.ask(leader, |token| Input::Servers(ServerRequest::RemoveServer(token, joiner)));
    assert_eq!(*cluster.answer(leader, token), Response::Done);
    let token = cluster.ask(leader, |token| Input::Servers(ServerRequest::AddServer(token, joiner)));
    let refused = cluster.answer(leader, token);
    assert!(matches!(refused, Response::Unavailable(Unavailable::Denied(_))), "{refused:?}");
    assert_eq!(cluster.roster(), [1, 2, 3]);
}

#[test]
fn a_server_that_went_is_forgotten_though_the_leadership_was_to_move_meanwhile() {
    let mut cluster = Cluster::start(3);
    let joiner = cluster.join("d", "d-1");
    let leader = cluster.leader();
    let others: Vec<_> = cluster.voters().into_iter().map(ServerId).filter(|id| *id != leader).collect();
    cluster.input(leader, Input::Servers(ServerRequest::RemoveServer(CallToken(77), joiner)));
    cluster.down.insert(others[0]);
    cluster.input(leader, Input::Servers(ServerRequest::TransferLeader(CallToken(78), Some(others[0]))));
    cluster.deliver();
    assert!(cluster.roster().contains(&joiner.0), "nothing enters the log while the leadership is to move");
    assert!(!cluster.servers[&leader].replies.contains_key(&CallToken(77)), "it is not forgotten yet");
    cluster.run(SECOND / 2);
    cluster.input(leader, Input::Servers(ServerRequest::AddServer(CallToken(79), joiner)));
    cluster.run(SECOND);
    assert_eq!(*cluster.answer(leader, CallToken(77)), Response::Done);
    let refused = cluster.answer(leader, CallToken(79));
    assert!(matches!(refused, Response::Unavailable(Unavailable::Denied(_))), "{refused:?}");
    assert_eq!((cluster.leader(), cluster.roster()), (leader, vec![1, 2, 3]));
    assert!(cluster.servers[&leader].core.membership().learners.is_empty());
}

#[test]
fn who_asks_again_for_a_removal_hears_that_it_is_done() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    let goes = cluster.follower();
    cluster.input(leader, Input::Servers(ServerRequest::RemoveServer(CallToken(77), goes)));
    while cluster.servers[&leader].core.membership().voters.contains(&goes) {
        cluster.deliver_once();
    }
    cluster.input(leader, Input::Servers(ServerRequest::RemoveServer(CallToken(78), goes)));
    cluster.run(SECOND);
    cluster.input(leader, Input::Servers(ServerRequest::RemoveServer(CallToken(79), goes)));
    for asked in [77, 78, 79] {
        assert_eq!(*cluster.answer(leader, CallToken(asked)), Response::Done, "asked as {asked}");
    }
    for (asked, stranger) in [(80, ServerId(4)), (81, ServerId(0))] {
        cluster.input(leader, Input::Servers(ServerRequest::RemoveServer(CallToken(asked), stranger)));
        let refused = cluster.answer(leader, CallToken(asked));
        assert!(matches!(refused, Response::Unavailable(Unavailable::Denied(_))), "{refused:?}");
    }
}

#[test]
fn a_new_leader_counts_on_nobody_whom_it_has_not_heard() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    let others: Vec<_> = cluster.running().into_iter().filter(|id| *id != leader).collect();
    cluster.down.insert(others[0]);
    let disk = cluster.servers[&others[1]].disk.clone();
    cluster.servers.insert(others[1], Server::open(others[1], disk));
    cluster.run(5 * SECOND);
    cluster.ask(leader, |token| Input::Servers(ServerRequest::TransferLeader(token, Some(others[1]))));
    assert_eq!(cluster.leader(), others[1]);
    let token = cluster.ask(others[1], |token| Input::Servers(ServerRequest::RemoveServer(token, leader)));
    let refused = cluster.answer(others[1], token);
    assert!(
        matches!(refused, Response::Unavailable(Unavailable::Denied(_))),
        "two of three would be left: {refused:?}"
    );
    cluster.put("still there");
}

#[test]
fn a_refusal_that_comes_late_stops_no_follower() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    let follower = cluster.follower();
    cluster.down.insert(follower);
    (0..50).for_each(|number| cluster.put(&format!("key-{number}")));
    cluster.run(SECOND);
    let server = cluster.servers.get_mut(&leader).expect("it runs");
    server.checkpoint(cluster.now);
    server.input(cluster.now, Input::Tick(WallTime(1)));
    cluster.down.clear();
    cluster.run(SECOND);
    let core = &cluster.servers[&leader].core;
    let (matched, term) = (core.progress(follower).expect("it leads").matched, core.log_status().term);
    assert_eq!(matched, core.log_status().last_index, "it has the snapshot, and nothing came behind");
    // Its response to the first append, from before it fetched the snapshot.
    let late = PeerMessage {
        term,
        index: matched,
        reject: true,
        reject_hint: LogIndex(2),
        ..PeerMessage::new(MessageKind::AppendResponse, follower, leader)
    };
    cluster.input(leader, Input::Peer(follower, late));
    let progress = cluster.servers[&leader].core.progress(follower);
    assert_eq!(
        progress.expect("it leads").snapshot,
        Some(matched),
        "the leader knows of the snapshot that it has"
    );
    cluster.put("after");
    cluster.run(SECOND);
    cluster.assert_equal();
}

#[test]
fn a_leader_that_needs_a_follower_tells_it_again_of_a_checkpoint_that_was_lost() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    let others: Vec<_> = cluster.running().into_iter().filter(|id| *id != leader).collect();
    cluster.down.insert(others[0]);
    for number in 0..50 {
        cluster.put(&format!("key-{number}"));
    }
    cluster.run(SECOND);
    for id in [leader, others[1]] {
        let server = cluster.servers.get_mut(&id).expect("it runs");
        server.checkpoint(cluster.now);
        server.input(cluster.now, Input::Tick(WallTime(1)));
    }
    cluster.down = BTreeSet::from([leader]);
    cluster.snapshots_to_lose = 1;
    cluster.run(10 * SECOND);
    assert_eq!(
        (cluster.snapshots_to_lose, cluster.leader()),
        (0, others[1]),
        "it leads, and has a majority again"
    );
    cluster.put("after");
}

#[test]
fn a_snapshot_that_a_follower_is_past_is_answered_with_how_far_it_is() {
    let mut cluster = Cluster::start(3);
    cluster.put("before");
    cluster.run(SECOND);
    let leader = cluster.leader();
    let follower = cluster.follower();
    let core = &mut cluster.servers.get_mut(&follower).expect("it runs").core;
    let mark = core.snapshot_meta();
    let told_again = PeerMessage {
        term: core.log_status().term,
        snapshot: Some(mark.clone()),
        ..PeerMessage::new(MessageKind::Snapshot, leader, follower)
    };
    let mut outbox = Outbox::default();
    core.handle(cluster.now, Input::Peer(leader, told_again), &mut outbox);
    core.settle(cluster.now, &mut outbox);
    let answers = outbox.shell.messages.iter().filter(|(to, message)| {
        *to == leader && message.kind == MessageKind::AppendResponse && message.index == mark.index
    });
    assert_eq!(answers.count(), 1, "its first response was lost: the leader would wait forever");
}
