//! Servers that join, leave, fall behind and are moved, in virtual time on a network without
//! faults.

pub(crate) mod words;

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
use lockmesh_protocol::rpc::Response;
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
        let mut leaders =
            self.running().into_iter().filter(|id| self.servers[id].core.replica().is_serving());
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
        let proposal = Proposal::new(None, WallTime(1), command);
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
        self.servers[&self.leader()].core.replica().membership().voters.iter().map(|id| id.0).collect()
    }

    fn roster(&self) -> Vec<u64> {
        self.servers[&self.leader()].core.replica().state().servers().map(|server| server.id.0).collect()
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
        let leader = self.servers[&self.leader()].core.replica().state();
        for id in self.running() {
            assert_eq!(
                self.servers[&id].core.replica().state(),
                leader,
                "server {id} holds the leader's state"
            );
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
        let (mark, state): (SnapshotMeta, State) =
            (self.core.replica().snapshot_meta(), self.core.replica().state().clone());
        self.disk.keep_checkpoint(mark.clone(), state);
        self.core.handle(now, Input::CheckpointDurable(mark), &mut self.outbox);
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// Seed 9000452: readers were repeatedly moved to another round before the replies to theirs
/// arrived.
#[test]
fn slow_replies_still_complete_reads() {
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
fn replication_survives_late_append_reject() {
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
    let (matched, term) =
        (core.replica().progress(follower).expect("it leads").matched, core.replica().log_status().term);
    assert_eq!(
        matched,
        core.replica().log_status().last_index,
        "it has the snapshot, and nothing came behind"
    );
    // Its response to the first append, from before it fetched the snapshot.
    let late = PeerMessage {
        term,
        index: matched,
        reject: true,
        reject_hint: LogIndex(2),
        ..PeerMessage::new(MessageKind::AppendResponse, follower, leader)
    };
    cluster.input(leader, Input::Peer(follower, late));
    let progress = cluster.servers[&leader].core.replica().progress(follower);
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
fn repeated_snapshot_is_acknowledged() {
    let mut cluster = Cluster::start(3);
    cluster.put("before");
    cluster.run(SECOND);
    let leader = cluster.leader();
    let follower = cluster.follower();
    let core = &mut cluster.servers.get_mut(&follower).expect("it runs").core;
    let mark = core.replica().snapshot_meta();
    let told_again = PeerMessage {
        term: core.replica().log_status().term,
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

crate::script::stories! { words::Quorum, "members.txt",
    learner_is_promoted_to_voter grown_cluster_survives_founder_loss emptied_server_replaces_former_id
    successor_replaces_dead_voter dead_surplus_voter_is_removed removal_denied_without_remaining_quorum
    removal_below_min_quorum_denied lagging_follower_fetches_snapshot
    learner_without_snapshot_not_promoted log_kept_for_fetching_follower
    fetching_follower_log_is_bounded leadership_transfers_to_requested_server
    follower_read_uses_read_index follower_read_waits_for_apply lagging_follower_redirects_readers
    lost_read_index_request_retried add_denied_while_removal_pending removed_learner_cannot_return
    removal_completes_after_failed_transfer removal_is_idempotent
    new_leader_counts_only_contacted_voters lost_snapshot_message_is_resent
}
