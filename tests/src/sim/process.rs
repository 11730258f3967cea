//! A server's process in virtual time: the real frontend and core, driven as the real driver drives
//! them.
//!
//! One turn takes all queued events, advances time, and carries out the frontend's actions.

use super::clock::Clock;
use super::disk::Checkpoint;
use super::fault_injection::FaultInjection;
use super::intruder;
use super::lease_turn::LeaseTurn;
use super::marks::Mark;
use super::readers::Readers;
use super::stage::{self, Ask, Requester, Stage};
use lockmesh_core::durability::unwritten::{StoreOrder, Unwritten};
use lockmesh_core::frontend::{
    Actions, CallAnswer, CallRef, DiskHealth, Event, Frontend, FrontendConfig, OpenReader, PartWanted,
    ShellEffects, SnapshotFetch, Storage,
};
use lockmesh_core::raft::ElectionTimeout;
use lockmesh_core::raft::log::{LogEntry, LogWrite, Membership, Recovered, SnapshotMeta};
use lockmesh_core::{AclStart, ClusterStart, Core, CoreConfig, TimerConfig};
use lockmesh_protocol::acl::{AclChange, AclMode, DefaultPolicy};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::format;
use lockmesh_protocol::id::{LogIndex, ServerId, Term, WallTime};
use lockmesh_protocol::peer::{Peer, Role};
use lockmesh_protocol::query::Blocking;
use lockmesh_protocol::record::NewServer;
use lockmesh_protocol::rpc::{CallId, MAX_FRAME_BYTES, Request, Response, Unavailable};
use lockmesh_protocol::time::Time;
use lockmesh_server::config::ServerConfig;
use lockmesh_server::snapshot::Fetched;
use lockmesh_server::store::DirtyRows;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// An event in the queue of a process.
#[derive(Debug)]
pub enum DriverEvent {
    /// A client's request, with its arrival time.
    Ask(Box<Ask>, Time),
    /// The caller of a call no longer waits.
    Cancelled(Requester, u64),
    /// A connection ended.
    Disconnected(Requester),
    /// An event for the frontend as it is.
    Frontend(Event),
    /// A snapshot from another server was fetched, or given up.
    Snapshot(Option<Box<Fetched>>),
}

impl<E: Into<Event>> From<E> for DriverEvent {
    fn from(event: E) -> Self {
        Self::Frontend(event.into())
    }
}

/// A request that waits for its reply.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The request.
    pub ask: Box<Ask>,
    /// The arrival in true time.
    pub came: Time,
}

/// A reply with its request.
#[derive(Debug)]
pub struct Given {
    /// The request.
    pub asked: Asked,
    /// The reply.
    pub response: Response,
}

/// The output of a turn.
#[derive(Debug, Default)]
pub struct Turn {
    /// Writes of the log.
    pub writes: Vec<LogWrite>,
    /// Messages to other servers and to agents.
    pub shell: ShellEffects,
    /// Replies to clients.
    pub given: Vec<Given>,
    /// Changes of the state.
    pub changes: Vec<Change>,
    /// Applied entries.
    pub applied: Vec<LogEntry>,
    /// The memberships before and after them.
    pub memberships: (Membership, Membership),
    /// Checkpoints to be made, in this order: of applied entries, or of an installed snapshot.
    pub checkpoints: Vec<Checkpoint>,
    /// The index up to which the log may be compacted.
    pub compact: Option<LogIndex>,
    /// A snapshot that replaced the whole state.
    pub installed: Option<SnapshotMeta>,
    /// A snapshot that the shell must fetch.
    pub fetch: Option<SnapshotFetch>,
    /// Readers of the checkpoint on disk that must be opened.
    pub open_readers: Vec<OpenReader>,
    /// Parts to be read by open readers.
    pub parts: Vec<PartWanted>,
    /// Servers to be notified of their removal.
    pub told_removed: Vec<ServerId>,
    /// Lease events of the turn.
    pub leases: LeaseTurn,
    /// `true` if this server was removed.
    pub removed: bool,
    /// `true` if it learned that its state is corrupt.
    pub found_corrupt: bool,
}

/// The log as the process wrote it, durable or not.
#[derive(Clone, Debug)]
pub struct Shadow {
    base: LogIndex,
    entries: VecDeque<LogEntry>,
}

/// A running server.
#[derive(Debug)]
pub struct Process {
    /// Its ID.
    pub id: ServerId,
    /// Its number among the processes of this server.
    pub life: u64,
    /// Its clock.
    pub clock: Clock,
    /// The offset of its wall clock.
    pub wall_offset: u64,
    /// The end of the present pause.
    pub stands_until: Option<Time>,
    /// The log as the process wrote it.
    pub shadow: Shadow,
    /// Checkpoints that others read.
    pub readers: Readers,
    /// The servers that answered its hello, each with the life in which it did.
    pub links: BTreeMap<ServerId, u64>,
    /// The time of the last hello to each server.
    pub hellos: BTreeMap<ServerId, Time>,
    frontend: Frontend,
    events: Vec<DriverEvent>,
    /// Pending calls, as connections keep them.
    calls: BTreeMap<CallRef, Asked>,
    last_call: u64,
    unwritten: Unwritten<DirtyRows>,
    applied: LogIndex,
    removed: bool,
    /// `true` if the store has reported that the disk refuses writes.
    pub(super) failing: bool,
    /// The known servers.
    roster: BTreeSet<ServerId>,
    /// The time of its next turn.
    wakes: Option<Time>,
    actions: Actions,
}

impl Shadow {
    fn new(recovered: &Recovered) -> Self {
        Self { base: recovered.base.0, entries: recovered.entries.iter().cloned().collect() }
    }

    /// Returns the entry at an index.
    pub fn entry(&self, index: LogIndex) -> Option<&LogEntry> {
        let place = index.0.checked_sub(self.base.0 + 1)?;
        self.entries.get(place as usize)
    }

    /// Applies a write; returns the number of replaced entries.
    fn write(&mut self, write: &LogWrite) -> usize {
        if let Some(mark) = &write.reset {
            self.base = mark.index;
            self.entries.clear();
        }
        let Some(first) = write.entries.first() else { return 0 };
        let kept = first.index.0.saturating_sub(self.base.0 + 1) as usize;
        let gone = self.entries.len().saturating_sub(kept);
        self.entries.truncate(kept);
        self.entries.extend(write.entries.iter().cloned());
        gone
    }
}

fn core_config(stage: &mut Stage, id: ServerId) -> CoreConfig {
    let seed = stage.draw.bits();
    let halved = u32::from(stage.fault_injection == FaultInjection::HalfTheWindow);
    let plan = &stage.plan.core;
    CoreConfig {
        format: format::NEWEST,
        id,
        seed,
        cluster_start: cluster_start(&stage.plan),
        election: ElectionTimeout { ticks: plan.election_ticks, heartbeat_ticks: plan.heartbeat_ticks },
        timers: TimerConfig {
            ttl_multiplier: plan.ttl_multiplier >> halved,
            tombstone_ttl: plan.tombstone_ttl,
            tombstone_granularity: plan.tombstone_ttl / 8,
            ..TimerConfig::default()
        },
        max_pending_proposals: plan.max_pending_proposals,
        log_keep_bytes: plan.log_keep_bytes,
        log_keep_fetching_bytes: plan.log_keep_bytes.saturating_mul(4),
        corruption_check_interval: stage.plan.corruption.check_interval,
        stall_timeout: ServerConfig::default().storage.stall_timeout,
    }
}

/// The size of a part of a list, in bytes: a list of some rows has many.
const PART_BYTES: usize = 200;

/// The simulated cluster.
pub(super) const CLUSTER_ID: &str = "simulated";

fn cluster_start(plan: &super::plan::Plan) -> ClusterStart {
    let servers = (1..=plan.voters).map(|id| newcomer(&format!("s{id}"), 1).with_id(ServerId(id)));
    let settings = AclChange {
        mode: Some(AclMode::Enforce),
        default_policy: Some(DefaultPolicy::Deny),
        ..AclChange::default()
    };
    let acl = AclStart { settings, initial_management: Some(intruder::MANAGEMENT.into()) };
    ClusterStart {
        cluster_id: CLUSTER_ID.into(),
        servers: servers.collect(),
        acl: if plan.has_acl { acl } else { AclStart::default() },
        ..ClusterStart::default()
    }
}

/// Returns a server on a node that wants to join the quorum, with the number of its data folder.
pub fn newcomer(node: &str, folder: u64) -> NewServer {
    NewServer {
        node: node.into(),
        node_id: String::new(),
        address: format!("{node}:8300"),
        instance_id: format!("{node}-{folder}"),
        format: format::NEWEST,
    }
}

fn frontend(stage: &mut Stage, id: ServerId, me: NewServer, corrupt: bool, recovered: Recovered) -> Frontend {
    let config = core_config(stage, id);
    let cluster_id = config.cluster_start.cluster_id.clone();
    let plan = &stage.plan.core;
    let config = (
        FrontendConfig {
            own_record: me.with_id(id),
            cluster_id,
            max_watches: plan.max_watches,
            checkpoint_interval: plan.checkpoint_interval,
            checkpoint_changes: plan.checkpoint_changes as u64,
            corrupt,
        },
        config,
    );
    let mut frontend = Frontend::new(config.0, Core::new(config.1, recovered), Time(0), wall(Time(0), 0));
    if let Some(rule) = stage.fault_injection.rule() {
        frontend.break_rule(rule);
    }
    frontend
}

/// Returns a process's wall clock at `now` of its own clock.
fn wall(now: Time, offset: u64) -> WallTime {
    WallTime(1_000_000 + now.0 / 1_000 + offset)
}

impl Process {
    /// Starts a process on the contents of its disk; takes its life number, and whether its state
    /// was found to be corrupt.
    pub fn start(
        stage: &mut Stage,
        id: ServerId,
        me: NewServer,
        (life, corrupt): (u64, bool),
        recovered: Recovered,
    ) -> Self {
        let shadow = Shadow::new(&recovered);
        let applied = recovered.snapshot.index;
        let drift = stage.plan.faults.drift;
        let drift = stage.draw.within(0, 2 * drift as u64) as i64 - drift;
        let mut process = Self {
            id,
            life,
            frontend: frontend(stage, id, me, corrupt, recovered),
            clock: Clock::start(stage.now, drift),
            wall_offset: 0,
            stands_until: None,
            shadow,
            readers: Readers::default(),
            links: BTreeMap::new(),
            hellos: BTreeMap::new(),
            events: Vec::new(),
            calls: BTreeMap::new(),
            last_call: 0,
            unwritten: Unwritten::default(),
            applied,
            removed: false,
            failing: false,
            roster: BTreeSet::new(),
            wakes: None,
            actions: Actions::default(),
        };
        if let Some(rule) = stage.fault_injection.rule() {
            process.unwritten.break_rule(rule);
        }
        process.frontend.start(&mut process.actions);
        process.wake(stage, stage.now);
        process
    }

    /// Returns its core.
    pub fn core(&self) -> &Core {
        self.frontend.core()
    }

    /// Returns the term in which it serves as leader, if it does.
    fn serving_term(&self) -> Option<Term> {
        self.core().replica().is_serving().then(|| self.core().replica().log_status().term)
    }

    /// Puts a row on its disk, regardless of the log.
    pub fn record(&mut self, row: Change) {
        let nothing =
            self.unwritten.handle(Storage::Record(vec![row]), self.frontend.core().replica().own_memory());
        debug_assert!(nothing.is_none(), "it goes with the next checkpoint");
    }

    /// Returns the last applied index.
    pub fn applied(&self) -> LogIndex {
        self.applied
    }

    /// Puts an event into the queue.
    pub fn post(&mut self, stage: &mut Stage, event: impl Into<DriverEvent>) {
        self.events.push(event.into());
        let turn = stage.plan.core.turn;
        let wait = stage.draw.duration(Duration::from_micros(1), turn);
        self.wake(stage, stage.now + wait);
    }

    fn wake(&mut self, stage: &mut Stage, at: Time) {
        if self.stands_until.is_none() && self.wakes.is_none_or(|wakes| at < wakes) {
            self.wakes = Some(at);
            stage.at(at, stage::Event::Turn(self.id, self.life));
        }
    }

    /// Pauses the process until then: no turn, no tick.
    pub fn stand_still(&mut self, stage: &mut Stage, until: Time) {
        self.stands_until = Some(until);
        self.wakes = None;
        stage.at(until, stage::Event::Resume(self.id, self.life));
    }

    /// Resumes the process if the pause has ended.
    pub fn resume(&mut self, stage: &mut Stage) {
        if self.stands_until.is_some_and(|until| until <= stage.now) {
            self.stands_until = None;
            self.wake(stage, stage.now);
        }
    }

    /// Resumes the process immediately.
    pub fn go_on_now(&mut self, stage: &mut Stage) {
        if self.stands_until.take().is_some() {
            self.wake(stage, stage.now);
        }
    }

    /// Moves its clock ahead: it will tick as soon as it runs.
    pub fn jump(&mut self, stage: &mut Stage, by: Duration) {
        self.clock.jump(stage.now, by);
        self.wake(stage, stage.now);
    }

    /// Takes a turn, if one is due.
    pub fn turn(&mut self, stage: &mut Stage) -> Option<Turn> {
        if self.wakes != Some(stage.now) || self.stands_until.is_some() {
            return None;
        }
        self.wakes = None;
        let now = self.clock.at(stage.now);
        let mut turn = Turn::default();
        turn.memberships.0 = self.core().replica().membership().clone();
        let (served, parked) = (self.core().replica().is_serving(), self.frontend.watch_count());
        let lists_wait = self.lists_wait(now);
        turn.leases.served = self.serving_term();
        let events = std::mem::take(&mut self.events);
        let brings_snapshot = events.iter().any(|event| matches!(event, DriverEvent::Snapshot(Some(_))));
        for event in self.readers.take_events(stage.now) {
            self.frontend.handle(now, event, &mut self.actions);
        }
        for event in events {
            turn.leases.takes(&event);
            self.handle(now, event);
        }
        self.frontend.advance(
            now,
            wall(now, self.wall_offset),
            self.unwritten.row_count(),
            &mut self.actions,
        );
        self.frontend.decide(now, &mut self.actions);
        self.carry_out(stage, &mut turn);
        self.frontend.settle(now, &mut self.actions);
        self.carry_out(stage, &mut turn);
        self.unwritten.end_turn();
        turn.memberships.1 = self.core().replica().membership().clone();
        self.note_applied(&mut turn);
        let mut leases = std::mem::take(&mut turn.leases);
        leases.ended(&turn, self.serving_term(), self.applied);
        turn.leases = leases;
        if self.core().is_braking() {
            stage.hit(Mark::Braked);
        }
        if brings_snapshot && turn.installed.is_none() {
            stage.hit(Mark::InstallRefused);
        }
        if self.frontend.watch_count() < parked {
            let deposed = served && !self.core().replica().is_serving();
            note_watches(stage, deposed, &turn);
        }
        if lists_wait && turn.given.iter().any(begins_list) {
            stage.hit(Mark::ListWaited);
        }
        let due = self.clock.when(self.frontend.wakes_at(), stage.now);
        let lateness = stage.plan.faults.tick_lateness;
        let late = if stage.calm { Duration::ZERO } else { stage.draw.duration(Duration::ZERO, lateness) };
        self.wake(stage, (due + late).max(stage.now + Duration::from_micros(1)));
        Some(turn)
    }

    /// Returns `true` if lists wait for a view.
    fn lists_wait(&self, now: Time) -> bool {
        let mut requests = self.calls.values().map(|asked| &asked.ask.request);
        requests.any(|request| matches!(request, Request::ReadParts { .. }))
            && self.frontend.figures(now).view_waiters > 0
    }

    fn handle(&mut self, now: Time, event: DriverEvent) {
        let event = match event {
            DriverEvent::Ask(ask, came) => self.call(Asked { ask, came }),
            DriverEvent::Cancelled(by, call) => {
                let is_it = |(_, asked): &(&CallRef, &Asked)| asked.ask.by == by && asked.ask.call == call;
                let Some(of) = self.calls.iter().find(is_it).map(|(of, _)| *of) else { return };
                self.calls.remove(&of);
                Event::Cancel(of)
            }
            DriverEvent::Disconnected(requester) => {
                let caller = requester.caller();
                self.calls.retain(|call, _| call.caller != caller);
                Event::Disconnected(caller)
            }
            DriverEvent::Snapshot(fetched) => Event::SnapshotFetched(fetched.map(|fetched| {
                let Fetched { mark, state, rows, .. } = *fetched;
                self.unwritten.arrive(rows);
                (mark, state)
            })),
            DriverEvent::Frontend(event) => {
                if let Event::Disk(health) = &event {
                    self.failing = *health != DiskHealth::Good;
                }
                event
            }
        };
        self.frontend.handle(now, event, &mut self.actions);
    }

    /// A connection assigns a new ID to every call, so a repeated request is two calls.
    fn call(&mut self, asked: Asked) -> Event {
        self.last_call += 1;
        let from = CallRef { caller: asked.ask.by.caller(), call: CallId(self.last_call) };
        let (peer, client, request) =
            (Arc::new(certified(&asked.ask)), asked.ask.client.clone(), asked.ask.request.clone());
        self.calls.insert(from, asked);
        Event::Call { from, peer, client, request }
    }

    fn carry_out(&mut self, stage: &mut Stage, turn: &mut Turn) {
        let mut actions = std::mem::take(&mut self.actions);
        turn.shell.append(&mut actions.shell);
        for action in actions.storage.drain(..) {
            self.store(stage, action, turn);
        }
        let long = actions
            .long_reads
            .drain(..)
            .map(|(to, read)| (to, read.into_response(MAX_FRAME_BYTES, PART_BYTES)));
        let answers = actions.answers.drain(..).map(|CallAnswer { to, response, .. }| (to, response));
        for (to, response) in answers.chain(long) {
            if let Some(asked) = self.calls.remove(&to) {
                let is_proposal = matches!(asked.ask.request, Request::Propose(..));
                if self.failing && is_proposal && is_refused(&response) {
                    stage.hit(Mark::ProposalRefused);
                }
                turn.given.push(Given { asked, response });
            }
        }
        let observed = self.frontend.take_observed();
        if observed.judge.saved_by_agents > 0 {
            stage.hit(Mark::SavedByAgent);
        }
        if observed.judge.given_up_by_answer > 0 {
            stage.hit(Mark::EndedByAnswer);
        }
        if observed.judge.nodes_cut_off > 0 {
            stage.hit(Mark::WithoutRenewals);
        }
        if observed.judge.forged_answers > 0 {
            stage.hit(Mark::ForgedAnswer);
        }
        turn.open_readers.append(&mut actions.open_readers);
        actions.close_readers.drain(..).for_each(|number| self.readers.close(number));
        turn.parts.append(&mut actions.parts);
        turn.fetch = actions.fetch.take().or(turn.fetch);
        if !actions.removed_senders.is_empty() {
            stage.hit(Mark::Stranger);
            turn.told_removed.append(&mut actions.removed_senders);
        }
        if actions.roster.take().is_some() {
            self.notice_roster(turn);
        }
        turn.removed |= std::mem::take(&mut actions.removed);
        turn.found_corrupt |= std::mem::take(&mut actions.corrupt);
        self.removed |= turn.removed;
        self.actions = actions;
    }

    /// Connections of removed servers are closed with a reason. Addresses are looked up by server
    /// ID.
    fn notice_roster(&mut self, turn: &mut Turn) {
        let roster = self.core().replica().state().servers().map(|row| row.id).collect();
        let before = std::mem::replace(&mut self.roster, roster);
        turn.told_removed.extend(before.difference(&self.roster));
    }

    /// Replies to a call with data read from a checkpoint; returns `None` if its caller no longer
    /// waits.
    pub fn give(&mut self, to: CallRef, response: Response) -> Option<Given> {
        Some(Given { asked: self.calls.remove(&to)?, response })
    }

    /// Reports to the frontend that a reader could not be opened.
    pub fn reader_failed(&mut self, stage: &mut Stage, number: u64) {
        self.readers.failed(number);
        self.wake(stage, stage.now);
    }

    /// Returns `true` if it has learned of its own removal.
    pub fn is_removed(&self) -> bool {
        self.removed
    }

    /// Returns `true` if it has learned that a server was removed.
    pub fn knows_removed(&self, server: ServerId) -> bool {
        self.frontend.was_removed(server)
    }

    fn store(&mut self, stage: &mut Stage, mut action: Storage, turn: &mut Turn) {
        if let Storage::Record(changes) = &mut action {
            turn.changes.extend(changes.iter().cloned());
            stage.fault_injection.forget_rows(changes);
        }
        match self.unwritten.handle(action, self.frontend.core().replica().own_memory()) {
            None => {}
            Some(StoreOrder::Write(write)) => {
                if self.shadow.write(&write) > 0 {
                    stage.hit(Mark::Truncated);
                }
                turn.writes.push(write);
            }
            Some(StoreOrder::Checkpoint(checkpoint)) => {
                if checkpoint.installed {
                    self.applied = checkpoint.mark.index;
                    turn.installed = Some(checkpoint.mark.clone());
                }
                turn.checkpoints.push(checkpoint);
            }
            Some(StoreOrder::Compact(index)) => turn.compact = Some(index),
        }
    }

    fn note_applied(&mut self, turn: &mut Turn) {
        let applied = self.core().replica().log_status().applied_index;
        let indexes = self.applied.0 + 1..=applied.0;
        turn.applied.extend(indexes.filter_map(|index| self.shadow.entry(LogIndex(index))).cloned());
        self.applied = applied;
    }
}

/// Returns the peer of a request as its certificate states: an agent, or a server that wants to
/// join.
fn certified(ask: &Ask) -> Peer {
    let by = match &ask.request {
        Request::AddServer(new) => return Peer { role: Role::Server, node: new.node.clone() },
        Request::Propose(None, Command::RegisterAgent(registration)) => {
            return Peer { role: Role::Agent, node: registration.node.name.clone() };
        }
        _ => ask.by,
    };
    match by {
        Requester::Operator => Peer { role: Role::Agent, node: "operator".into() },
        Requester::Agent(agent) => Peer { role: Role::Agent, node: format!("n{agent}").as_str().into() },
        Requester::Server(id) => Peer { role: Role::Server, node: format!("server-{id}").as_str().into() },
    }
}

fn is_refused(response: &Response) -> bool {
    matches!(response, Response::Unavailable(Unavailable::Disk(_) | Unavailable::NotLeader { .. }))
}

/// Returns `true` if a reply has the first part of a list.
fn begins_list(given: &Given) -> bool {
    matches!(given.asked.ask.request, Request::ReadParts { .. })
        && matches!(given.response, Response::AnswerPart(_))
}

/// Counts blocking reads that are no longer parked, by cause.
fn note_watches(stage: &mut Stage, deposed: bool, turn: &Turn) {
    for Given { asked, response } in &turn.given {
        let Request::Read { blocking: Some(Blocking { index, .. }), .. } = &asked.ask.request else {
            continue;
        };
        match response {
            Response::Answer(answer) if answer.index <= *index => stage.hit(Mark::WatchTimedOut),
            Response::Answer(_) => stage.hit(Mark::WatchWoke),
            Response::Unavailable(Unavailable::NotLeader { .. }) if deposed => {
                stage.hit(Mark::WatchSentAway);
            }
            _ => {}
        }
    }
}
