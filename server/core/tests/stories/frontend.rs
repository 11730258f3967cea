//! The frontend of a server toward its callers, under any behavior of its disk, the other servers
//! and the callers. Three servers run in virtual time on a network without faults.

use crate::solo::{Disk, entry};
use lockmesh_core::durability::checksum::Checksum;
use lockmesh_core::frontend::{
    Actions, CallAnswer, CallRef, Caller, ChallengeWanted, Event, Frontend, FrontendConfig, MeshItemsWanted,
    OpenReader, QuestionWanted, Storage,
};
use lockmesh_core::raft::TICK;
use lockmesh_core::raft::log::{LogWrite, SnapshotMeta};
use lockmesh_core::raft::message::{MessageKind, PeerMessage};
use lockmesh_core::{Core, Input, State};
use lockmesh_protocol::acl;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{
    AgentRegistration, Command, KvCommand, KvVerb, NewEntry, RestoreStep, TxnKv, TxnOp,
};
use lockmesh_protocol::format;
use lockmesh_protocol::id::{AgentNumber, Generation, LogIndex, RequestId, ServerId, SessionId, WallTime};
use lockmesh_protocol::lease::LeaseKey;
use lockmesh_protocol::peer::{Peer, Role};
use lockmesh_protocol::query::{Blocking, Consistency, Query, Rows};
use lockmesh_protocol::record::{Behavior, NewServer, Node, Server, SessionSpec};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{CallId, MAX_FRAME_BYTES, Request, Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// The maximum number of blocking queries that a server parks, an eighth of them of one node.
pub(crate) const MAX_WATCHES: usize = 24;

/// A server with its disk and its callers.
pub(crate) struct One {
    pub(crate) frontend: Frontend,
    pub(crate) disk: Disk,
    pub(crate) actions: Actions,
    /// The rows as reported to the disk: the contents of the next checkpoint.
    pub(crate) recorded: State,
    /// The checkpoints that were made for corruption checks.
    pub(crate) exact: Vec<(SnapshotMeta, State)>,
    /// Set if the disk recorded that the state is corrupt.
    pub(crate) is_corrupt: bool,
    /// Set if the disk recorded that this server was removed.
    pub(crate) is_removed: bool,
    dirty_rows: usize,
    /// The milliseconds by which its wall clock is ahead.
    pub(crate) wall_ahead: u64,
    /// The pending writes of a disk that is stalled.
    pub(crate) held: Option<Vec<LogWrite>>,
    /// The pending checkpoints of a slow disk.
    pub(crate) checkpoints: Option<Vec<SnapshotMeta>>,
    answers: BTreeMap<CallRef, Response>,
    pub(crate) readers: Vec<OpenReader>,
    may_leave: bool,
}

pub(crate) struct Cluster {
    pub(crate) servers: BTreeMap<ServerId, One>,
    pub(crate) down: BTreeSet<ServerId>,
    /// Running servers whose messages in both directions are lost; and the kind of message lost by
    /// all.
    pub(crate) cut_off: BTreeSet<ServerId>,
    pub(crate) lost: Option<MessageKind>,
    in_flight: VecDeque<(ServerId, PeerMessage)>,
    now: Time,
    last_call: u64,
    sequence: u64,
    agent: Option<(AgentNumber, Generation)>,
}

pub(crate) fn record(id: ServerId) -> Server {
    let name = format!("s{id}");
    let address = format!("{name}:8300");
    NewServer {
        node: name.as_str().into(),
        node_id: String::new(),
        address,
        instance_id: name,
        format: format::NEWEST,
    }
    .with_id(id)
}

pub(crate) fn agent(node: &str) -> Arc<Peer> {
    Arc::new(Peer { role: Role::Agent, node: node.into() })
}

pub(crate) fn server(node: &str) -> Arc<Peer> {
    Arc::new(Peer { role: Role::Server, node: node.into() })
}

pub(crate) fn put(key: &str) -> Command {
    Command::Kv(KvCommand::Set(entry(key)))
}

pub(crate) fn read(key: &str, consistency: Consistency, known: Option<LogIndex>) -> Request {
    let blocking = known.map(|index| Blocking { index, wait: 10 * SECOND });
    Request::Read { query: Query::Entry(key.into()), consistency, blocking }
}

impl One {
    fn open(id: ServerId, disk: Disk, now: Time, corrupt: bool) -> Self {
        let config = FrontendConfig {
            own_record: record(id),
            cluster_id: "c1".into(),
            max_watches: MAX_WATCHES,
            checkpoint_interval: SECOND,
            checkpoint_changes: 1_000,
            corrupt,
        };
        let (_, recorded) = disk.snapshot();
        let mut actions = Actions::default();
        let mut frontend = Frontend::new(config, disk.open(id, 11 + id.0), now, WallTime(now.0));
        frontend.start(&mut actions);
        Self {
            frontend,
            disk,
            actions,
            recorded,
            exact: Vec::new(),
            is_corrupt: corrupt,
            is_removed: false,
            dirty_rows: 0,
            wall_ahead: 0,
            held: None,
            checkpoints: None,
            answers: BTreeMap::new(),
            readers: Vec::new(),
            may_leave: false,
        }
    }

    /// Runs one turn, and everything that follows from it on this server.
    fn turn(
        &mut self,
        now: Time,
        event: Option<Event>,
        snapshots: &BTreeMap<ServerId, (SnapshotMeta, State)>,
    ) {
        let mut events: Vec<Event> = event.into_iter().collect();
        loop {
            for event in events.drain(..) {
                self.frontend.handle(now, event, &mut self.actions);
            }
            let wall = WallTime(now.0 / 1_000 + self.wall_ahead);
            self.frontend.advance(now, wall, self.dirty_rows, &mut self.actions);
            self.frontend.decide(now, &mut self.actions);
            self.carry_out(&mut events, snapshots);
            self.frontend.settle(now, &mut self.actions);
            self.carry_out(&mut events, snapshots);
            if events.is_empty() {
                return;
            }
        }
    }

    fn carry_out(&mut self, events: &mut Vec<Event>, snapshots: &BTreeMap<ServerId, (SnapshotMeta, State)>) {
        for action in std::mem::take(&mut self.actions.storage) {
            if let Storage::Checkpoint(_) | Storage::ExactCheckpoint(_) | Storage::Install(_) = action {
                self.disk.keep_own(self.frontend.core().replica().own_memory());
            }
            match action {
                Storage::Write(write) => self.write(write, events),
                Storage::Record(changes) => {
                    self.dirty_rows += changes.len();
                    changes.into_iter().for_each(|change| self.recorded.load(change));
                }
                Storage::Checkpoint(mark) => {
                    self.disk.keep_checkpoint(mark.clone(), self.recorded.clone());
                    self.dirty_rows = 0;
                    match &mut self.checkpoints {
                        Some(slow) => slow.push(mark),
                        None => events.push(Event::Core(Input::CheckpointDurable(mark))),
                    }
                }
                Storage::ExactCheckpoint(mark) => {
                    events.push(Event::Core(Input::CheckpointDurable(mark.clone())));
                    events.push(Event::Core(Input::Summed(mark.index, Checksum::of(self.recorded.rows()))));
                    self.disk.keep_checkpoint(mark.clone(), self.recorded.clone());
                    self.exact.push((mark, self.recorded.clone()));
                    self.dirty_rows = 0;
                }
                Storage::Install(mark) => {
                    self.recorded = self.frontend.core().replica().state().clone();
                    self.disk.keep_checkpoint(mark.clone(), self.recorded.clone());
                    self.dirty_rows = 0;
                    events.push(Event::Core(Input::CheckpointDurable(mark)));
                }
                Storage::Compact(index) => self.disk.compact(index),
            }
        }
        for CallAnswer { to, response, .. } in self.actions.answers.drain(..) {
            let before = self.answers.insert(to, response);
            assert_eq!(before, None, "a call is answered once");
        }
        for (to, read) in self.actions.long_reads.drain(..) {
            let before = self.answers.insert(to, read.into_response(MAX_FRAME_BYTES, 1 << 20));
            assert_eq!(before, None, "a call is answered once");
        }
        self.readers.append(&mut self.actions.open_readers);
        self.may_leave |= std::mem::take(&mut self.actions.may_leave);
        self.is_corrupt |= std::mem::take(&mut self.actions.corrupt);
        self.is_removed |= std::mem::take(&mut self.actions.removed);
        if let Some(fetch) = self.actions.fetch.take() {
            let snapshot = snapshots.get(&fetch.from).filter(|(mark, _)| mark.index >= fetch.least);
            let fetched = snapshot.map(|(mark, state)| (mark.clone(), Box::new(state.clone())));
            events.push(Event::SnapshotFetched(fetched));
        }
    }

    fn write(&mut self, write: LogWrite, events: &mut Vec<Event>) {
        match &mut self.held {
            Some(held) => held.push(write),
            None => {
                let number = write.number;
                self.disk.write(write);
                events.push(Event::Core(Input::Persisted(number)));
            }
        }
    }
}

impl Cluster {
    /// Starts servers with an elected leader, and registers an agent of the node `a1`.
    pub(crate) fn start(count: u64) -> Self {
        Self::start_with(count, SECOND)
    }

    /// The same, with this stall timeout.
    pub(crate) fn start_with(count: u64, stall_timeout: Duration) -> Self {
        let voters: Vec<_> = (1..=count).map(ServerId).collect();
        let mut disk = Disk::new(Core::bootstrap_snapshot(&voters));
        disk.stall_timeout = stall_timeout;
        let servers = voters.iter().map(|id| (*id, One::open(*id, disk.clone(), Time(0), false))).collect();
        let mut cluster = Self {
            servers,
            down: BTreeSet::new(),
            cut_off: BTreeSet::new(),
            lost: None,
            in_flight: VecDeque::new(),
            now: Time(0),
            last_call: 0,
            sequence: 0,
            agent: None,
        };
        cluster.run(3 * SECOND);
        cluster.agent = Some(cluster.register("a1"));
        cluster
    }

    pub(crate) fn now(&self) -> Time {
        self.now
    }

    pub(crate) fn leader(&self) -> ServerId {
        let serves = |id: &&ServerId| {
            !self.down.contains(id)
                && !self.cut_off.contains(id)
                && self.servers[id].frontend.core().replica().is_serving()
        };
        *self.servers.keys().find(serves).expect("somebody leads")
    }

    pub(crate) fn follower(&self) -> ServerId {
        let leader = self.leader();
        *self.servers.keys().find(|id| **id != leader && !self.down.contains(id)).expect("somebody follows")
    }

    pub(crate) fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now < end {
            self.now = self.now + TICK;
            for id in self.servers.keys().copied().collect::<Vec<_>>() {
                self.turn(id, None);
            }
            self.deliver();
            self.tell_the_removed();
        }
    }

    pub(crate) fn deliver(&mut self) {
        while self.deliver_one() {}
    }

    /// Advances time while no server runs.
    pub(crate) fn pause(&mut self, duration: Duration) {
        self.now = self.now + duration;
    }

    /// Completes the pending writes of a stalled disk.
    pub(crate) fn let_write(&mut self, id: ServerId) {
        let one = self.servers.get_mut(&id).expect("it is there");
        let held = one.held.take().unwrap_or_default();
        let newest = held.last().map(|write| write.number);
        held.into_iter().for_each(|write| one.disk.write(write));
        newest.into_iter().for_each(|number| self.turn(id, Some(Event::Core(Input::Persisted(number)))));
    }

    /// Takes the questions that a server has for agents.
    pub(crate) fn take_questions(&mut self, id: ServerId) -> Vec<QuestionWanted> {
        let one = self.servers.get_mut(&id).expect("it is there");
        std::mem::take(&mut one.actions.shell.questions)
    }

    /// Takes the mesh items that a server has for agents.
    pub(crate) fn take_mesh_items(&mut self, id: ServerId) -> Vec<MeshItemsWanted> {
        let one = self.servers.get_mut(&id).expect("it is there");
        std::mem::take(&mut one.actions.shell.mesh_items)
    }

    /// Takes the challenges that a server has for nodes.
    pub(crate) fn take_challenges(&mut self, id: ServerId) -> Vec<ChallengeWanted> {
        let one = self.servers.get_mut(&id).expect("it is there");
        std::mem::take(&mut one.actions.shell.challenges)
    }

    /// Delivers the oldest message; returns `false` if there is none.
    pub(crate) fn deliver_one(&mut self) -> bool {
        let Some((to, message)) = self.in_flight.pop_front() else { return false };
        let is_lost = |id| self.cut_off.contains(id) || self.lost == Some(message.kind);
        if !is_lost(&message.from) && !is_lost(&to) && !self.down.contains(&message.from) {
            self.turn(to, Some(Event::Core(Input::Peer(message.from, message))));
        }
        true
    }

    /// Closes the streams of servers that are known to be removed.
    fn tell_the_removed(&mut self) {
        let ids: Vec<_> = self.servers.keys().copied().filter(|id| !self.down.contains(id)).collect();
        for id in &ids {
            if ids.iter().any(|by| self.servers[by].frontend.was_removed(*id)) {
                self.turn(*id, Some(Event::Removed));
            }
        }
    }

    /// Cuts the power of all servers, and restarts those that are not down. One that knows of its
    /// removal does not start.
    pub(crate) fn power_failure(&mut self) {
        self.in_flight.clear();
        for id in self.servers.keys().copied().collect::<Vec<_>>() {
            if self.servers[&id].is_removed {
                self.down.insert(id);
            }
            self.restart(id);
        }
    }

    pub(crate) fn turn(&mut self, id: ServerId, event: Option<Event>) {
        if self.down.contains(&id) || !self.servers.contains_key(&id) {
            return;
        }
        let snapshots = self.servers.iter().map(|(id, one)| (*id, one.disk.snapshot())).collect();
        let one = self.servers.get_mut(&id).expect("it was just seen");
        one.turn(self.now, event, &snapshots);
        self.in_flight.extend(one.actions.shell.messages.drain(..));
    }

    /// Sends a request without delivering any messages.
    pub(crate) fn begin(&mut self, id: ServerId, peer: &Arc<Peer>, request: Request) -> CallRef {
        self.last_call += 1;
        let from = CallRef { caller: Caller(1), call: CallId(self.last_call) };
        self.turn(
            id,
            Some(Event::Call { from, peer: Arc::clone(peer), client: acl::Caller::Agent, request }),
        );
        from
    }

    /// Sends a request, and delivers messages until none is left.
    pub(crate) fn call(&mut self, id: ServerId, peer: &Arc<Peer>, request: Request) -> CallRef {
        let from = self.begin(id, peer, request);
        self.deliver();
        from
    }

    pub(crate) fn answer(&self, id: ServerId, call: CallRef) -> Option<&Response> {
        self.servers[&id].answers.get(&call)
    }

    pub(crate) fn ask(&mut self, id: ServerId, peer: &Arc<Peer>, request: Request) -> Response {
        let call = self.call(id, peer, request);
        self.answer(id, call).unwrap_or_else(|| panic!("{call:?} has no answer")).clone()
    }

    fn register(&mut self, node: &str) -> (AgentNumber, Generation) {
        let node = Node::of(
            node.into(),
            format!("5a0f2b6e-3c60-4d3f-9d5c-{:0>12}", node.trim_start_matches('a')),
            "127.0.0.1",
        );
        let peer = Arc::new(Peer { role: Role::Agent, node: node.name.clone() });
        let registration = AgentRegistration::of(node);
        let leader = self.leader();
        match self.ask(leader, &peer, Request::Propose(None, Command::RegisterAgent(registration))) {
            Response::Applied(Applied { reply: Reply::Agent { number, generation, .. }, .. }) => {
                (number, generation)
            }
            other => panic!("not registered: {other:?}"),
        }
    }

    /// A proposal of the agent `a1`, with a new request id.
    pub(crate) fn proposal(&mut self, command: Command) -> Request {
        self.sequence += 1;
        let (agent, generation) = self.agent.expect("it is registered");
        let id = RequestId { agent, generation, sequence: self.sequence, lowest: self.sequence };
        Request::Propose(Some(id), command)
    }

    /// The leader's reply to a command of the agent `a1`.
    pub(crate) fn command(&mut self, command: Command) -> Response {
        let (leader, proposal) = (self.leader(), self.proposal(command));
        self.ask(leader, &agent("a1"), proposal)
    }

    /// A write of another value each time.
    pub(crate) fn new_value(&self, key: &str) -> Command {
        let value = format!("value {}", self.sequence).into();
        Command::Kv(KvCommand::Set(NewEntry { value, ..entry(key) }))
    }

    /// Writes a new value to a key; returns the index of the write.
    pub(crate) fn put(&mut self, key: &str) -> LogIndex {
        let command = self.new_value(key);
        match self.command(command) {
            Response::Applied(Applied { index, .. }) => index,
            other => panic!("not written: {other:?}"),
        }
    }

    /// Returns the rows of the leader's state.
    pub(crate) fn backup(&self) -> Vec<Change> {
        self.servers[&self.leader()].frontend.core().replica().state().rows().collect()
    }

    /// Restores a backup, as an operator does.
    pub(crate) fn restore(&mut self, rows: Vec<Change>) {
        let steps = [
            RestoreStep::Begin { id: 1 },
            RestoreStep::Part { id: 1, number: 0, rows },
            RestoreStep::Commit { id: 1, parts: 1 },
        ];
        for step in steps {
            let answer = self.command(Command::Restore(step));
            assert!(matches!(&answer, Response::Applied(Applied { reply: Reply::Done, .. })), "{answer:?}");
        }
    }

    pub(crate) fn session(&mut self) -> SessionId {
        self.session_with_ttl(60 * SECOND)
    }

    /// Creates a session that only its TTL can end.
    pub(crate) fn session_with_ttl(&mut self, ttl: Duration) -> SessionId {
        let id = SessionId::from_random([0x5e; 16]);
        let new = SessionSpec {
            id,
            name: String::new(),
            node: "a1".into(),
            lock_delay: Duration::ZERO,
            behavior: Behavior::Release,
            ttl_text: format!("{}s", ttl.as_secs()),
            ttl: Some(ttl),
            checks: Vec::new(),
            node_checks: Vec::new(),
            service_checks: None,
            health_window: Default::default(),
        };
        let answer = self.command(Command::CreateSession(new));
        assert!(matches!(&answer, Response::Applied(Applied { reply: Reply::Session(_), .. })), "{answer:?}");
        id
    }

    /// Restarts a server from its disk.
    pub(crate) fn restart(&mut self, id: ServerId) {
        let former = self.servers.remove(&id).expect("it runs");
        let one = One::open(id, former.disk, self.now, former.is_corrupt);
        self.servers.insert(id, One { wall_ahead: former.wall_ahead, ..one });
    }

    /// Cuts a server off from all others.
    pub(crate) fn leave_alone(&mut self, id: ServerId) {
        self.down = self.servers.keys().copied().filter(|other| *other != id).collect();
    }
}

#[track_caller]
pub(crate) fn assert_denied(response: &Response, why: &str) {
    let is_it =
        matches!(response, Response::Unavailable(Unavailable::Denied(reason)) if reason.contains(why));
    assert!(is_it, "{response:?} does not say {why:?}");
}

// Admission.

#[test]
fn clients_cannot_propose_leader_commands() {
    let mut cluster = Cluster::start(3);
    let session = cluster.session();
    let term = cluster.servers[&cluster.leader()].frontend.core().replica().log_status().term;
    let own = [
        Command::ExpireSession { session, term, base: 0 },
        Command::EndLockDelay { key: "k".into(), started_at_index: LogIndex(1), base: 0 },
        Command::EndWait { key: "k".into(), queue_position: LogIndex(1), enqueued_at_index: LogIndex(1) },
        Command::ReapTombstones { up_to: LogIndex(u64::MAX) },
        Command::Bootstrap {
            cluster_id: "another".into(),
            servers: Vec::new(),
            lease_key: LeaseKey([7; 32]),
        },
        Command::AdmitServer(newcomer("s9", "instance")),
        Command::UpdateServer(record(ServerId(2))),
        Command::ForgetServer(ServerId(2)),
        Command::CorruptionCheck,
    ];
    for command in own {
        assert_denied(&cluster.command(command), "only the leader itself");
    }
}

#[test]
fn other_hosts_cannot_operate() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    let requests = || {
        [
            Request::BackupPart { backup: None, number: 0, stale: true },
            Request::TransferLeader(None),
            Request::RemoveServer(ServerId(2)),
        ]
    };
    cluster.command(Command::ConfigureOperatorHosts(["A1".into()].into()));
    for request in requests() {
        assert_denied(&cluster.ask(leader, &agent("a2"), request), "not an operator host");
    }
    for request in requests() {
        let call = cluster.call(leader, &agent("a1"), request);
        let denied =
            cluster.answer(leader, call).is_some_and(|answer| format!("{answer:?}").contains("operator"));
        assert!(!denied, "a1 is an operator host");
    }
}

#[test]
fn foreign_agent_number_denied() {
    let mut cluster = Cluster::start(3);
    cluster.register("a2");
    let (leader, proposal) = (cluster.leader(), cluster.proposal(put("forged")));
    assert_denied(&cluster.ask(leader, &agent("a2"), proposal), "speaks for node a1");
    let (leader, proposal) = (cluster.leader(), cluster.proposal(put("own")));
    assert!(matches!(cluster.ask(leader, &agent("A1"), proposal), Response::Applied(_)), "names are folded");
}

#[test]
fn write_without_request_id_denied() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    assert_denied(&cluster.ask(leader, &agent("a1"), Request::Propose(None, put("k"))), "needs a request id");
}

#[test]
fn transaction_operations_are_limited() {
    let mut cluster = Cluster::start(3);
    let operation = TxnOp::Kv(TxnKv {
        verb: KvVerb::Set,
        key: "k".into(),
        value: Default::default(),
        flags: 0,
        index: LogIndex(0),
        session: None,
    });
    let operations = |count| Command::Txn(vec![operation.clone(); count]);
    assert!(matches!(cluster.command(operations(128)), Response::Applied(_)));
    assert_denied(&cluster.command(operations(129)), "at most 128");
}

// Pending calls and replies.

#[test]
fn cancelled_read_is_not_parked() {
    let mut cluster = Cluster::start(3);
    let known = cluster.put("k");
    let leader = cluster.leader();
    let call = cluster.begin(leader, &agent("a1"), read("k", Consistency::Default, Some(known)));
    cluster.turn(leader, Some(Event::Cancel(call)));
    cluster.deliver();
    assert_eq!(cluster.servers[&leader].frontend.watch_count(), 0);
    cluster.begin(leader, &agent("a1"), read("k", Consistency::Default, Some(known)));
    cluster.turn(leader, Some(Event::Disconnected(Caller(1))));
    cluster.deliver();
    assert_eq!(cluster.servers[&leader].frontend.watch_count(), 0);
}

// Watches.

#[test]
fn reaped_tombstone_wakes_reader_once() {
    let mut cluster = Cluster::start(1);
    let leader = cluster.leader();
    cluster.put("db/gone");
    let known = cluster.put("db/kept");
    let Response::Applied(deleted) = cluster.command(Command::Kv(KvCommand::Delete("db/gone".into()))) else {
        panic!("it was not deleted")
    };
    cluster.run(16 * 60 * SECOND);
    assert_eq!(cluster.servers[&leader].frontend.core().replica().state().tombstones().count(), 0);
    let list = |known, wait| Request::Read {
        query: Query::Entries("db/".into()),
        consistency: Consistency::Default,
        blocking: Some(Blocking { index: known, wait }),
    };
    let news = cluster.ask(leader, &agent("a1"), list(known, 10 * SECOND));
    let Response::Answer(answer) = news else { panic!("no answer") };
    assert_eq!(answer.index, deleted.index, "the missed deletes are no longer known");

    let parts = Request::ReadParts { query: Query::Entries("db/".into()), consistency: Consistency::Default };
    let Response::AnswerPart(part) = cluster.ask(leader, &agent("a1"), parts) else { panic!("no part") };
    assert_eq!(part.answer.index, answer.index, "in parts too, or the client would read again in a loop");
    let call = cluster.call(leader, &agent("a1"), list(answer.index, 10 * SECOND));
    assert_eq!(cluster.answer(leader, call), None, "now it is up to date");
    let at_once = cluster.ask(leader, &agent("a1"), list(answer.index, Duration::ZERO));
    assert_eq!(at_once, Response::Answer(answer.clone()), "a query without a wait keeps its index too");
    cluster.run(11 * SECOND);
    let Some(Response::Answer(later)) = cluster.answer(leader, call) else { panic!("it waits forever") };
    assert_eq!(later.index, answer.index, "no index goes back, or the client would restart");
    assert_eq!(later.rows, answer.rows);
}

/// Blocking queries on rows that may be absent after a restore.
fn watched() -> [Query; 9] {
    [
        Query::Entry("kept".into()),
        Query::Entry("gone".into()),
        Query::Entries("ke".into()),
        Query::Entries("go".into()),
        Query::Locks("ke".into()),
        Query::Sessions,
        Query::Losses,
        Query::Nodes,
        Query::Node("a1".into()),
    ]
}

/// Asserts that every server replies at once to queries that know no more than `known`.
#[track_caller]
fn assert_everybody_is_told(cluster: &mut Cluster, known: LogIndex) {
    for id in cluster.servers.keys().copied().collect::<Vec<_>>() {
        for query in watched() {
            let blocking = Some(Blocking { index: known, wait: 10 * SECOND });
            let request = Request::Read { query: query.clone(), consistency: Consistency::Stale, blocking };
            let call = cluster.call(id, &agent("a1"), request);
            let Some(Response::Answer(answer)) = cluster.answer(id, call) else {
                panic!("server {id}: {query:?} does not wake after the restore")
            };
            assert!(answer.index > known, "{query:?} went back to {}", answer.index);
        }
    }
}

#[test]
fn restore_wakes_readers_and_raises_indexes() {
    let mut cluster = Cluster::start(3);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    let early = cluster.put("kept");
    let backup = cluster.backup();
    cluster.session();
    cluster.put("gone");
    let known = cluster.put("kept");
    // One query has the current index, one has an index that no server has returned.
    let parked = [(leader, "kept", known), (follower, "gone", LogIndex(1 << 40))].map(|(id, key, known)| {
        let call = cluster.call(id, &agent("a1"), read(key, Consistency::Stale, Some(known)));
        assert_eq!(cluster.answer(id, call), None);
        (id, call)
    });
    cluster.restore(backup);
    for (id, call) in parked {
        let Some(Response::Answer(answer)) = cluster.answer(id, call) else { panic!("it was not woken") };
        assert!(answer.index > known);
    }
    // The reply to a query with `known` was lost, or the query comes only now.
    assert_everybody_is_told(&mut cluster, known);
    let request = read("kept", Consistency::Default, Some(early));
    let Response::Answer(answer) = cluster.ask(leader, &agent("a1"), request) else { panic!("no answer") };
    let Rows::Entries(entries) = &answer.rows else { panic!("no key") };
    assert_eq!(entries[0].modify_index, answer.index, "so clients may wait with either");
    let request = read("kept", Consistency::Stale, Some(answer.index));
    let call = cluster.call(follower, &agent("a1"), request);
    assert_eq!(cluster.answer(follower, call), None, "nothing else changed");

    (1..=3).for_each(|id| cluster.restart(ServerId(id)));
    cluster.run(3 * SECOND);
    assert_everybody_is_told(&mut cluster, known);
}

#[test]
fn restore_by_snapshot_wakes_readers() {
    let mut cluster = Cluster::start(3);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    cluster.put("kept");
    let backup = cluster.backup();
    cluster.put("gone");
    let known = cluster.put("kept");
    cluster.down.insert(follower);
    cluster.restore(backup);
    for number in 0..50 {
        cluster.put(&format!("other-{number}"));
    }
    cluster.run(3 * SECOND);
    assert!(
        cluster.servers[&leader].frontend.core().replica().log_status().first_index > known,
        "the log was compacted"
    );
    cluster.down.clear();
    cluster.run(2 * SECOND);
    assert_everybody_is_told(&mut cluster, known);
}

// Joins and announcements.

pub(crate) fn newcomer(node: &str, instance_id: &str) -> NewServer {
    NewServer {
        node: node.into(),
        node_id: String::new(),
        address: format!("{node}:8300"),
        instance_id: instance_id.into(),
        format: format::NEWEST,
    }
}

#[test]
fn join_reply_waits_for_membership() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    let follower = cluster.follower();
    let third =
        *cluster.servers.keys().find(|id| **id != leader && **id != follower).expect("there are three");
    let answer = cluster.ask(leader, &server("s9"), Request::AddServer(newcomer("s9", "instance")));
    let Response::Joined(joined) = answer else { panic!("it did not join: {answer:?}") };
    assert_eq!(joined.server, ServerId(4));
    let members = cluster.servers[&third].frontend.core().replica().membership().all();
    assert!(members.contains(&ServerId(4)), "the reply came only after it was a member: {members:?}");
}

#[test]
fn join_with_live_name_denied() {
    let mut cluster = Cluster::start(3);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    let name = record(follower).node.to_string();
    let answer = cluster.ask(leader, &server(&name), Request::AddServer(newcomer(&name, "another instance")));
    assert_denied(&answer, "alive: a node name belongs to one server");
}

#[test]
fn server_may_announce_only_itself() {
    let mut cluster = Cluster::start(3);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    let moved = Server { address: "elsewhere:8300".into(), ..record(follower) };
    let stranger = Server { instance_id: "another instance".into(), ..moved.clone() };
    let peer = server(&record(follower).node.to_string());
    assert_denied(&cluster.ask(leader, &peer, Request::Announce(stranger)), "is another one");
    assert_eq!(cluster.ask(leader, &peer, Request::Announce(moved)), Response::Done);
}

#[test]
fn leader_tracks_versions_and_stability() {
    let mut cluster = Cluster::start(3);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    let row = |cluster: &mut Cluster, by: ServerId| match cluster.ask(by, &agent("a1"), Request::Status) {
        Response::Status(status) => {
            status.servers.into_iter().find(|row| row.id == follower).expect("it is a member")
        }
        other => panic!("no status: {other:?}"),
    };
    assert_eq!(row(&mut cluster, leader).version, "");
    cluster.turn(leader, Some(Event::Version(follower, "0.2.0".into())));
    let well = row(&mut cluster, leader);
    assert_eq!((well.healthy, well.version.as_str()), (true, "0.2.0"));
    cluster.run(SECOND);
    assert_eq!(row(&mut cluster, leader).stable_since, well.stable_since);
    assert_eq!(row(&mut cluster, follower).stable_since, None, "only the leader tracks the others");

    cluster.down.insert(follower);
    let cut_off = WallTime(cluster.now.0 / 1_000);
    cluster.run(SECOND);
    let ill = row(&mut cluster, leader);
    assert!(!ill.healthy && ill.stable_since > Some(cut_off), "{ill:?}");
    cluster.down.remove(&follower);
    cluster.run(SECOND);
    let back = row(&mut cluster, leader);
    assert!(back.healthy && back.stable_since > ill.stable_since, "{back:?}");
    assert_eq!(back.version, "0.2.0");
}

// Disks that reject writes.

#[test]
fn stopping_leader_hands_over_first() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    cluster.turn(leader, Some(Event::Leave));
    assert!(!cluster.servers[&leader].may_leave, "it still leads");
    cluster.deliver();
    cluster.run(SECOND);
    assert!(cluster.servers[&leader].may_leave);
    assert_ne!(cluster.leader(), leader);
}

// Snapshots.

#[test]
fn outdated_snapshot_is_not_fetched() {
    let mut cluster = Cluster::start(3);
    cluster.put("k");
    let (leader, follower) = (cluster.leader(), cluster.follower());
    let old = SnapshotMeta {
        index: LogIndex(1),
        ..cluster.servers[&follower].frontend.core().replica().snapshot_meta()
    };
    let term = cluster.servers[&leader].frontend.core().replica().log_status().term;
    let message = PeerMessage {
        term,
        snapshot: Some(old),
        ..PeerMessage::new(MessageKind::Snapshot, leader, follower)
    };
    let (now, one) = (cluster.now, cluster.servers.get_mut(&follower).expect("it runs"));
    one.frontend.handle(now, Event::Core(Input::Peer(leader, message)), &mut one.actions);
    assert_eq!(one.actions.fetch, None);
}

crate::script::stories! { crate::judge::Fleet, "frontend.txt",
    isolated_leader_withholds_reads_and_renewals follower_redirects_write_to_leader
    write_acknowledged_only_when_durable write_or_delete_wakes_parked_read
    old_index_query_returns_immediately blocking_query_timeout_returns_current_state
    deposed_leader_redirects_parked_default_reads snapshot_install_wakes_parked_reads
    disk_failure_fails_writes_keeps_reads leader_hands_over_on_disk_failure
    majority_disk_failure_keeps_leader
}
