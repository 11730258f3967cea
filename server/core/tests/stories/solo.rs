//! A single server in virtual time, with a disk that loses unflushed data.

use crate::names::session as session_id;
use lockmesh_core::raft::log::{HardState, LogEntry, LogWrite, OwnMemory, Recovered, SnapshotMeta};
use lockmesh_core::raft::{ElectionTimeout, TICK};
use lockmesh_core::{CallToken, ClusterStart, Core, CoreConfig, Input, Outbox, Proposal, State, TimerConfig};
use lockmesh_protocol::command::{AgentRegistration, Command, NewEntry};
use lockmesh_protocol::format;
use lockmesh_protocol::id::{Key, LogIndex, NodeName, ServerId, SessionId, Term, WallTime};
use lockmesh_protocol::query::{Consistency, Query, Rows};
use lockmesh_protocol::record::{Behavior, Entry, NewServer, Node, Server, SessionSpec};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::Response;
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const ID: ServerId = ServerId(1);

/// The interval between corruption checks.
pub(crate) const CORRUPTION_CHECK_INTERVAL: Duration = Duration::from_secs(120);

/// The time for which a failed member is kept.
pub(crate) const REAP_FAILED_AFTER: Duration = Duration::from_secs(1800);

/// The data that survives a crash.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    hard_state: HardState,
    snapshot: SnapshotMeta,
    state: State,
    base: (LogIndex, Term),
    entries: Vec<LogEntry>,
    own: OwnMemory,
    /// The stall timeout of servers on this disk.
    pub(crate) stall_timeout: Duration,
}

impl Disk {
    /// Creates a disk with only this snapshot.
    pub(crate) fn new(snapshot: SnapshotMeta) -> Self {
        let hard_state = HardState { term: snapshot.term, vote: ServerId(0), commit: snapshot.index };
        let base = (snapshot.index, snapshot.term);
        let (state, entries, own) = (State::default(), Vec::new(), OwnMemory::default());
        let stall_timeout = Duration::from_secs(1);
        Self { hard_state, snapshot, state, base, entries, own, stall_timeout }
    }

    /// The durable snapshot of the state.
    pub(crate) fn snapshot(&self) -> (SnapshotMeta, State) {
        (self.snapshot.clone(), self.state.clone())
    }

    /// The last index that the disk knows to be committed.
    pub(crate) fn commit(&self) -> LogIndex {
        self.hard_state.commit
    }

    /// The server that its vote went to.
    pub(crate) fn vote(&self) -> ServerId {
        self.hard_state.vote
    }

    /// Makes a snapshot durable.
    pub(crate) fn keep_checkpoint(&mut self, mark: SnapshotMeta, state: State) {
        self.hard_state.commit = self.hard_state.commit.max(mark.index);
        (self.snapshot, self.state) = (mark, state);
    }

    /// Makes the server's own records durable, as each of its checkpoints does.
    pub(crate) fn keep_own(&mut self, own: &OwnMemory) {
        self.own.clone_from(own);
    }

    /// Compacts the log up to an index.
    pub(crate) fn compact(&mut self, up_to: LogIndex) {
        let last = self.entries.iter().rfind(|entry| entry.index <= up_to);
        self.base = last.map_or(self.base, |entry| (entry.index, entry.term));
        self.entries.retain(|entry| entry.index > up_to);
    }

    /// Makes a write durable.
    pub(crate) fn write(&mut self, write: LogWrite) {
        if let Some(mark) = &write.reset {
            self.entries.clear();
            self.base = (mark.index, mark.term);
            self.hard_state.commit = mark.index;
        }
        if let Some(first) = write.entries.first() {
            self.entries.retain(|entry| entry.index < first.index);
        }
        self.entries.extend(write.entries);
        self.hard_state = write.hard_state.unwrap_or(self.hard_state);
    }

    /// The servers in the snapshot.
    fn founders(&self) -> Vec<Server> {
        let name = |id: &ServerId| format!("s{id}");
        let new = |id| NewServer {
            node: name(id).into(),
            node_id: String::new(),
            address: format!("{}:8300", name(id)),
            instance_id: name(id),
            format: format::NEWEST,
        };
        self.snapshot.membership.voters.iter().map(|id| new(id).with_id(*id)).collect()
    }

    /// Starts a server from this disk.
    pub(crate) fn open(&self, id: ServerId, seed: u64) -> Core {
        self.open_reading(id, seed, format::NEWEST)
    }

    /// The same, with a build that reads formats up to this.
    pub(crate) fn open_reading(&self, id: ServerId, seed: u64, format: u8) -> Core {
        let config = CoreConfig {
            format,
            id,
            seed,
            cluster_start: ClusterStart {
                cluster_id: "c1".into(),
                servers: self.founders(),
                ..ClusterStart::default()
            },
            election: ElectionTimeout::default(),
            timers: TimerConfig { reap_failed_after: REAP_FAILED_AFTER, ..TimerConfig::default() },
            max_pending_proposals: 1000,
            log_keep_bytes: 1000,
            log_keep_fetching_bytes: 20_000,
            corruption_check_interval: CORRUPTION_CHECK_INTERVAL,
            stall_timeout: self.stall_timeout,
        };
        let recovered = Recovered {
            hard_state: self.hard_state,
            snapshot: self.snapshot.clone(),
            entries: self.entries.clone(),
            base: self.base,
            state: self.state.clone(),
            own: self.own.clone(),
        };
        Core::new(config, recovered)
    }
}

/// A server, its clock and its disk.
#[derive(Debug)]
pub(crate) struct Solo {
    pub(crate) core: Core,
    pub(crate) now: Time,
    disk: Disk,
    unflushed: Vec<LogWrite>,
    /// Set if the disk flushes at once, not only on request.
    pub(crate) flushes: bool,
    outbox: Outbox,
    pub(crate) replies: BTreeMap<CallToken, Response>,
    pub(crate) readable: Vec<CallToken>,
    next_tick: Time,
    last_ticket: u64,
}

impl Solo {
    /// A new cluster of one server, which leads and has registered the node `n1`.
    pub(crate) fn start() -> Self {
        let mut solo = Self::open(Disk::new(Core::bootstrap_snapshot(&[ID])));
        solo.run(Duration::from_millis(300));
        assert!(solo.core.replica().is_serving(), "a server that is alone leads at once");
        let node = Node::of("n1".into(), "5a0f2b6e-3c60-4d3f-9d5c-000000000001".into(), "127.0.0.1");
        let registration = AgentRegistration::of(node);
        assert!(matches!(solo.command(Command::RegisterAgent(registration)), Reply::Agent { .. }));
        solo
    }

    fn open(disk: Disk) -> Self {
        Self {
            core: disk.open(ID, 7),
            now: Time(0),
            disk,
            unflushed: Vec::new(),
            flushes: true,
            outbox: Outbox::default(),
            replies: BTreeMap::new(),
            readable: Vec::new(),
            next_tick: Time(0),
            last_ticket: 0,
        }
    }

    /// Restarts the process: unflushed data is lost.
    pub(crate) fn crash(&mut self) {
        *self = Self::open(self.disk.clone());
        self.run(Duration::from_millis(300));
    }

    /// Advances time, tick by tick.
    pub(crate) fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.next_tick <= end {
            self.now = self.next_tick;
            self.next_tick = self.now + TICK;
            self.input(Input::Tick(WallTime(1_000_000 + self.now.0 / 1000)));
        }
        self.now = end;
    }

    /// Advances time without ticks: the server is paused.
    pub(crate) fn pause(&mut self, duration: Duration) {
        self.now = self.now + duration;
        self.next_tick = self.now;
    }

    /// Handles one input and carries out the effects.
    pub(crate) fn input(&mut self, input: Input) {
        self.core.handle(self.now, input, &mut self.outbox);
        self.settle();
    }

    fn settle(&mut self) {
        loop {
            self.core.settle(self.now, &mut self.outbox);
            self.unflushed.append(&mut self.outbox.writes);
            self.replies.extend(self.outbox.replies.drain(..));
            self.readable.append(&mut self.outbox.readable);
            if !self.outbox.changes.is_empty() {
                self.core.replica().state().check().expect("the state keeps its invariants");
            }
            self.outbox.changes.clear();
            let written = if self.flushes { self.flush() } else { None };
            let Some(number) = written else { return };
            self.core.handle(self.now, Input::Persisted(number), &mut self.outbox);
        }
    }

    /// Flushes the pending writes, and reports them to the server.
    pub(crate) fn sync(&mut self) {
        if let Some(number) = self.flush() {
            self.input(Input::Persisted(number));
        }
    }

    fn flush(&mut self) -> Option<u64> {
        let mut number = None;
        for write in self.unflushed.drain(..) {
            number = Some(write.number);
            self.disk.write(write);
        }
        number
    }

    pub(crate) fn token(&mut self) -> CallToken {
        self.last_ticket += 1;
        CallToken(self.last_ticket)
    }

    /// Proposes a command; returns its token.
    pub(crate) fn propose(&mut self, command: Command) -> CallToken {
        let token = self.token();
        let at = WallTime(1);
        self.input(Input::Propose(token, Proposal::new(None, at, command)));
        token
    }

    /// Proposes a command that must be applied at once.
    pub(crate) fn command(&mut self, command: Command) -> Reply {
        let token = self.propose(command);
        match self.replies.remove(&token) {
            Some(Response::Applied(Applied { reply, .. })) => reply,
            other => panic!("the command was not applied: {other:?}"),
        }
    }

    /// Creates a session with this TTL and lock-delay.
    pub(crate) fn session(&mut self, name: &str, ttl: Duration, lock_delay: Duration) -> SessionId {
        let id = session_id(name);
        let session = SessionSpec {
            id,
            name: name.into(),
            node: NodeName::from("n1"),
            lock_delay,
            behavior: Behavior::Release,
            ttl_text: format!("{}s", ttl.as_secs()),
            ttl: Some(ttl).filter(|ttl| !ttl.is_zero()),
            checks: Vec::new(),
            node_checks: Vec::new(),
            service_checks: None,
            health_window: Default::default(),
        };
        assert_eq!(self.command(Command::CreateSession(session)), Reply::Session(id));
        id
    }

    /// Requests a read; returns whether it is allowed at once.
    pub(crate) fn may_read(&mut self, consistency: Consistency) -> bool {
        let token = self.token();
        self.input(Input::Read(token, consistency));
        self.readable.contains(&token)
    }

    /// The entry of a key.
    pub(crate) fn entry(&self, key: &str) -> Option<Arc<Entry>> {
        match self.core.replica().state().query(&Query::Entry(key.into())) {
            (_, Rows::Entries(entries)) => entries.into_iter().next(),
            other => panic!("an entry was asked for: {other:?}"),
        }
    }

    /// Returns whether the key exists.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.entry(key).is_some()
    }

    /// Returns whether the session exists.
    pub(crate) fn lives(&self, session: &SessionId) -> bool {
        self.core.replica().state().session(*session).is_some()
    }
}

/// A write without a value.
pub(crate) fn entry(key: &str) -> NewEntry {
    NewEntry { key: Key::from(key), value: Default::default(), flags: 0 }
}
