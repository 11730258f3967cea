//! An agent: the real [`QuorumClient`], driven as the agent's own driver drives it, and its
//! clients.
//!
//! It uses the clock of its host, which continues from one of its lives to the next. Now and then
//! it is paused. Its connections are in [`super::connections`], its clients in [`super::client`],
//! the sessions that its guards follow in [`super::session_watches`], and its health checks in
//! [`super::checks`].

use super::another_cluster;
use super::bound_sessions::HostProcesses;
use super::challenges::{Challenger, port};
use super::checks::AgentChecks;
use super::client::{Client, Wish};
use super::clock::Clock;
use super::connections::{Connection, IDLE_TIMEOUT};
use super::guard::GuardEvent;
use super::guards::Guards;
use super::invariant::{AgentEvent, Fact};
use super::judge::Judge;
use super::marks::Mark;
use super::member::Member;
use super::process::CLUSTER_ID;
use super::session_watches::{HandoverFile, SessionWatches};
use super::stage::{Event, Stage};
use lockmesh_agent_core::cluster::{ClusterChoice, Pin};
use lockmesh_agent_core::lease::LeaseState;
use lockmesh_agent_core::quorum_client::{
    Answered, CallToken, ConnectionId, Counts, Input, LocalCall, Notice, Outbox, QuorumClient,
    QuorumClientConfig,
};
use lockmesh_agent_core::request_ids::Registration;
use lockmesh_protocol::acl::Caller;
use lockmesh_protocol::command::{AgentRegistration, Command, KvCommand};
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::lease::HealthWindow;
use lockmesh_protocol::query::{Answer, Query};
use lockmesh_protocol::record::{Incarnation, Node};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{CallId, Lane, Request, Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

/// Time without a reply after which other servers are asked about the leader.
const PROBE_AFTER: Duration = Duration::from_millis(100);

/// One in this many clean ends loses the data folder.
const FOLDERS_LOST_ONE_IN: u64 = 3;

/// Interval at which an agent checks whether anything has arrived.
pub(super) const LISTEN_INTERVAL: Duration = Duration::from_millis(500);

/// A client with its pending request.
#[derive(Debug)]
struct Task {
    client: Client,
    pending: Option<(CallToken, Wish)>,
}

/// An agent with its clients.
#[derive(Debug)]
pub struct Agent {
    /// Its number in the simulation.
    pub(super) place: usize,
    /// The number of its present life in the simulation.
    pub(super) life: u64,
    /// The clock of its host.
    clock: Clock,
    /// The time until which it processes no input.
    busy_until: Time,
    /// The maximum pause after each batch of input.
    pub(super) slowness: Duration,
    /// The number of boots of its host.
    pub(super) boots: u32,
    /// The number of data folders that it lost: each had another node id.
    pub(super) folders_lost: u32,
    /// The number of logged registration failures with a new reason.
    pub(super) attempts_failed: u64,
    /// The moment whose events it takes all at once, however slow it is.
    turn: Option<Time>,
    pub(super) upstream: QuorumClient,
    /// Connections by number, unique among all agents.
    pub(super) connections: BTreeMap<u64, Connection>,
    /// Connections that it gave up, with the time until which a last message may arrive.
    pub(super) given_up: BTreeMap<u64, (ConnectionId, Time)>,
    /// The pending calls, by their numbers in the simulation.
    pub(super) calls: BTreeMap<u64, (u64, CallId, Lane)>,
    /// The server to which each command was sent last.
    pub(super) sent_to: BTreeMap<(u32, u64), ServerId>,
    /// The known server addresses, from its configuration or from servers.
    told_of: BTreeSet<String>,
    /// The server that it follows as leader.
    pub leader: Option<ServerId>,
    /// The server that it last asked for something that every server can answer.
    pub home: Option<ServerId>,
    registration: Option<Registration>,
    /// The cluster that its host's disk is pinned to.
    pin: Option<Pin>,
    /// The time of the last loss in either direction between it and each server.
    pub(super) disturbed: BTreeMap<ServerId, Time>,
    /// The time of its next timer.
    wakes_at: Option<Time>,
    last_token: u64,
    /// Challengers that the quorum client has yet to answer.
    pub(super) questions: BTreeMap<CallToken, Challenger>,
    /// The last known state of the node's lease.
    lease: LeaseState,
    /// The call that announces a restart, if it was asked to end.
    pub(super) farewell: Option<CallToken>,
    tasks: Vec<Task>,
    /// Programs on its host that hold locks with the client library.
    pub(super) guards: Guards,
    /// The sessions that guards follow.
    pub(super) watches: SessionWatches,
    /// In its folder: the guards that the last process left.
    pub(super) handover_file: HandoverFile,
    /// The processes of its host that sessions are bound to.
    pub(super) processes: HostProcesses,
    /// Its health checks.
    pub(super) checks: AgentChecks,
    /// Its part in the mesh.
    pub(super) member: Member,
}

impl Agent {
    /// Returns a new agent, and starts all its clients.
    pub fn start(stage: &mut Stage, judge: &mut Judge, place: usize) -> Self {
        let clients = Client::all(stage, place);
        let tasks = clients.into_iter().map(|client| Task { client, pending: None }).collect();
        let clock = Clock::start(stage.now, clock_rate(stage));
        let mut agent = Self {
            place,
            life: 0,
            clock,
            busy_until: Time(0),
            slowness: stage.plan.clients.agent_turn,
            boots: 1,
            folders_lost: 0,
            attempts_failed: 0,
            turn: None,
            upstream: upstream(stage, (place, 1, 0), first_pin(stage), Time(0)),
            pin: first_pin(stage),
            connections: BTreeMap::new(),
            given_up: BTreeMap::new(),
            calls: BTreeMap::new(),
            sent_to: BTreeMap::new(),
            told_of: BTreeSet::new(),
            leader: None,
            home: None,
            registration: None,
            disturbed: BTreeMap::new(),
            wakes_at: None,
            last_token: 0,
            questions: BTreeMap::new(),
            lease: LeaseState::default(),
            farewell: None,
            tasks,
            guards: Guards::begin(stage, place, clock),
            watches: SessionWatches::default(),
            handover_file: HandoverFile::Absent,
            processes: HostProcesses::default(),
            checks: AgentChecks::default(),
            member: Member::default(),
        };
        agent.begin_life(stage, judge);
        agent
    }

    fn begin_life(&mut self, stage: &mut Stage, judge: &mut Judge) {
        self.told_of = configured(stage).into_iter().collect();
        self.life += 1;
        self.see(stage, judge, AgentEvent::Started);
        self.wakes_at = Some(stage.now);
        stage.after(Duration::ZERO, Event::Wake(self.place, self.life));
        stage.after(LISTEN_INTERVAL, Event::Listen(self.place, self.life));
        for task in 0..self.tasks.len() {
            self.think(stage, task);
        }
        self.begin_checks(stage);
        self.begin_bound_sessions(stage);
    }

    /// Returns its counters since the start.
    pub fn counts(&self) -> &Counts {
        self.upstream.counts()
    }

    /// Returns its present registration.
    pub fn registration(&self) -> Option<&Registration> {
        self.registration.as_ref()
    }

    /// Crashes the process, which comes back after a while without its pending state.
    pub fn restart(&mut self, stage: &mut Stage, judge: &mut Judge) {
        stage.hit(Mark::AgentRestart);
        let downtime = stage.plan.faults.agent_downtime;
        let downtime = stage.draw.duration(Duration::ZERO, downtime);
        // The rate of the host's clock changes, never its reading.
        let rate = clock_rate(stage);
        self.clock.turn(stage.now, rate);
        self.guards.set_clock(stage, self.clock);
        self.start_anew(stage, judge, downtime);
    }

    /// Crashes the host with all its processes, and restarts it after a while.
    pub fn lose_host(&mut self, stage: &mut Stage, judge: &mut Judge, downtime: Duration) {
        stage.hit(Mark::HostDied);
        self.boots += 1;
        self.clock = Clock::start(stage.now, clock_rate(stage));
        self.checks.host_dies();
        self.processes.host_dies();
        for guard in self.guards.numbers() {
            let event = GuardEvent::HostDies(self.clock, downtime);
            stage.after(Duration::ZERO, Event::Guard(self.place, guard, event));
        }
        self.start_anew(stage, judge, downtime);
    }

    /// Suspends the host with all its processes. Its clock continues.
    pub fn suspend_host(&mut self, stage: &mut Stage, length: Duration) {
        stage.hit(Mark::HostSuspended);
        for guard in self.guards.numbers() {
            let event = GuardEvent::HostStops(length);
            stage.after(Duration::ZERO, Event::Guard(self.place, guard, event));
        }
        self.stop(stage, length);
    }

    fn start_anew(&mut self, stage: &mut Stage, judge: &mut Judge, downtime: Duration) {
        let pin = self.pin.clone();
        let host = (self.place, self.boots, self.folders_lost);
        self.upstream = upstream(stage, host, pin, self.clock.at(stage.now));
        self.connections.clear();
        self.given_up.clear();
        self.calls.clear();
        self.sent_to.clear();
        (self.leader, self.home, self.registration) = (None, None, None);
        self.questions.clear();
        (self.lease, self.farewell) = (LeaseState::default(), None);
        self.watches = SessionWatches::begin(stage.now + downtime, &self.handover_file);
        self.member = Member::begin(stage.now + downtime);
        self.guards.disconnect(stage, self.place);
        for task in &mut self.tasks {
            task.pending = None;
            task.client.restart(stage, judge);
        }
        self.begin_life(stage, judge);
        self.busy_until = stage.now + downtime;
        self.turn = None;
    }

    /// Crashes its host; servers learn of that only when their connections time out.
    pub fn die_unheard(&mut self, stage: &mut Stage, judge: &mut Judge, downtime: Duration) {
        for connection in self.connections.values() {
            stage.after(IDLE_TIMEOUT, Event::HungUp(connection.server, self.place));
        }
        self.lose_host(stage, judge, downtime);
    }

    /// Shuts the process down cleanly and restarts it: every caller was answered before.
    pub fn end(&mut self, stage: &mut Stage, judge: &mut Judge) {
        stage.hit(Mark::AgentEnded);
        self.handle_input(stage, judge, Input::Close);
        let waits = self.tasks.iter().find_map(|task| task.pending.as_ref());
        if let Some((_, wish)) = waits {
            judge.object("agent", format!("agent {} ended and left {wish:?} unanswered", self.place));
        }
        self.handover_file = self.watches.for_successor();
        self.lose_folder(stage);
        self.restart(stage, judge);
    }

    /// Sometimes loses the data folder, as a container without a volume does: the next process has
    /// another node id, and does not know its cluster.
    fn lose_folder(&mut self, stage: &mut Stage) {
        // No random draw, so that a seed gives the same storm as without it.
        if stage.now.0.is_multiple_of(FOLDERS_LOST_ONE_IN) && first_pin(stage).is_none() {
            stage.hit(Mark::FolderLost);
            stage.log(|| format!("agent {} loses its data folder", self.place));
            self.folders_lost += 1;
            (self.pin, self.handover_file) = (None, HandoverFile::Absent);
        }
    }

    /// Pauses the process; then it takes all input at once. Its clock continues even if the whole
    /// host is suspended: the lease depends on a clock that does.
    pub fn stop(&mut self, stage: &mut Stage, length: Duration) {
        let until = stage.now + length;
        self.busy_until = self.busy_until.max(until);
        self.turn = None;
        if length > IDLE_TIMEOUT {
            // Nothing keeps its connections alive, and servers close them.
            for (number, connection) in &self.connections {
                stage.after(IDLE_TIMEOUT, Event::GaveUp(connection.server, self.place, *number));
                stage.at(until, Event::Connection(self.place, *number, false));
            }
        }
    }

    /// Returns the time until which it processes no input. A slow agent takes everything that has
    /// arrived, then nothing for a while.
    pub fn is_busy(&mut self, stage: &mut Stage) -> Option<Time> {
        if self.turn == Some(stage.now) {
            return None;
        }
        if stage.now < self.busy_until {
            return Some(self.busy_until);
        }
        self.turn = Some(stage.now);
        let slowness = self.slowness;
        if !slowness.is_zero() && !stage.calm {
            self.busy_until = stage.now + stage.draw.duration(Duration::ZERO, slowness);
        }
        None
    }

    /// Returns `true` if it knows the address of one of these servers.
    pub fn was_told_of(&self, stage: &Stage, is_one: impl Fn(ServerId) -> bool) -> bool {
        self.told_of.iter().filter_map(|address| stage.addresses.get(address)).any(|id| is_one(*id))
    }

    /// Learns server addresses from a response.
    pub(super) fn learn(&mut self, response: &Response) {
        match response {
            Response::Status(status) => {
                self.told_of.extend(status.servers.iter().map(|server| server.address.clone()));
            }
            Response::Unavailable(Unavailable::NotLeader { leader }) => self.told_of.extend(leader.clone()),
            _ => {}
        }
    }

    /// Returns a description of each client that still waits.
    pub fn discontent(&self) -> Vec<String> {
        let waits =
            |task: &&Task| !task.client.is_content() || (task.pending.is_some() && !task.client.watches());
        let words = |task: &Task| {
            let request = task.pending.as_ref().map(|(_, wish)| &wish.request);
            format!("agent {}: {} waits for {request:?}", self.place, task.client.name())
        };
        self.tasks.iter().filter(waits).map(words).collect()
    }

    /// Iterates over its clients.
    pub fn clients(&self) -> impl Iterator<Item = &Client> {
        self.tasks.iter().map(|task| &task.client)
    }

    /// Returns `true` if a write is pending; faults use this.
    pub fn is_writing(&self) -> bool {
        self.tasks.iter().any(|task| {
            task.pending.as_ref().is_some_and(|(_, wish)| matches!(wish.request, Request::Propose(..)))
        })
    }

    /// Iterates over pending watches: the call, the query, the known index, and the last answer.
    pub fn watches(&self) -> impl Iterator<Item = (CallToken, &Query, LogIndex, &Answer)> {
        self.tasks.iter().filter_map(|task| {
            let (token, Wish { request, .. }) = task.pending.as_ref()?;
            let Request::Read { blocking: Some(blocking), .. } = request else { return None };
            let (query, last) = task.client.last_seen()?;
            Some((*token, query, blocking.index, last?))
        })
    }

    pub(super) fn see(&self, stage: &Stage, judge: &mut Judge, event: AgentEvent<'_>) {
        judge.see(stage, &Fact::Agent { agent: self.place, event });
    }

    fn think(&self, stage: &mut Stage, task: usize) {
        let wait = stage.plan.clients.think;
        let wait = stage.around(wait);
        stage.after(wait, Event::Think(self.place, self.life, task));
    }

    /// Wakes a client.
    pub fn thought(&mut self, stage: &mut Stage, judge: &mut Judge, life: u64, task: usize) {
        if life != self.life {
            return;
        }
        // Clients of one agent share their sessions: a renewer uses its locker's.
        let (before, rest) = self.tasks.split_at_mut(task);
        let wish = rest[0].client.wish(stage, judge, before.last_mut().map(|task| &mut task.client));
        let Some(wish) = wish else { return self.think(stage, task) };
        let call = local_call(&wish.request);
        let token = self.next_token();
        let goes_away = match &call {
            _ if stage.plan.clients.residents.is_some() => None,
            LocalCall::Acquire { wait, .. } => stage.draw.once_in(4).then_some(*wait),
            LocalCall::Read { blocking: Some(blocking), .. } if !stage.calm => {
                stage.draw.once_in(8).then_some(blocking.wait)
            }
            _ => None,
        };
        if let Some(longest) = goes_away {
            let timeout = stage.draw.duration(Duration::ZERO, longest);
            stage.after(timeout, Event::GoAway(self.place, life, token));
        }
        let caller = wish.caller.clone();
        self.tasks[task].pending = Some((token, wish));
        let bound = judge.bound;
        self.see(stage, judge, AgentEvent::Called { token, call: &call, bound });
        let caller = match caller {
            Caller::Agent => stage.client(),
            other => other,
        };
        self.handle_input(stage, judge, Input::Call(token, caller, call));
    }

    /// A client stops waiting for a call.
    pub fn gone(&mut self, stage: &mut Stage, judge: &mut Judge, life: u64, token: CallToken) {
        if life == self.life && self.farewell == Some(token) {
            return self.not_announced(stage, judge, token);
        }
        if life == self.life && self.mesh_unheard(stage, judge, token) {
            return;
        }
        let Some(task) = self.task_of(token).filter(|_| life == self.life) else { return };
        stage.hit(Mark::WentAway);
        self.go_away(stage, judge, task, token);
        self.think(stage, task);
    }

    /// A client disconnects and gets no reply; the agent releases what it was granted.
    fn go_away(&mut self, stage: &mut Stage, judge: &mut Judge, task: usize, token: CallToken) {
        if let Some((_, wish)) = self.tasks[task].pending.take() {
            self.tasks[task].client.went_away(stage, judge, &wish);
        }
        self.see(stage, judge, AgentEvent::Left { token });
        self.handle_input(stage, judge, Input::Cancel(token));
    }

    fn task_of(&self, token: CallToken) -> Option<usize> {
        let is_it = |task: &Task| task.pending.as_ref().is_some_and(|(pending, _)| *pending == token);
        self.tasks.iter().position(is_it)
    }

    /// A timer fired.
    pub fn woke(&mut self, stage: &mut Stage, judge: &mut Judge, life: u64) {
        if life == self.life && self.wakes_at.is_some_and(|at| at <= stage.now) {
            self.wakes_at = None;
            self.handle_input(stage, judge, Input::Tick);
        }
    }

    pub(super) fn next_token(&mut self) -> CallToken {
        self.last_token += 1;
        CallToken(self.last_token)
    }

    /// Returns the reading of the clock that continues while the host is suspended.
    pub(super) fn boot_time(&self, stage: &Stage) -> Time {
        self.clock.at(stage.now)
    }

    /// Returns the time at which that clock will show `shown`.
    pub(super) fn when(&self, stage: &Stage, shown: Time) -> Time {
        self.clock.when(shown, stage.now)
    }

    /// Returns the state of the node's lease.
    pub(super) fn lease(&self) -> &LeaseState {
        &self.lease
    }

    /// Makes a local call to the quorum.
    pub(super) fn call_locally(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        token: CallToken,
        call: LocalCall,
    ) {
        self.call_as(stage, judge, token, Caller::Agent, call);
    }

    /// Makes a local call of a client to the quorum.
    pub(super) fn call_as(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        token: CallToken,
        caller: Caller,
        call: LocalCall,
    ) {
        let bound = judge.bound;
        self.see(stage, judge, AgentEvent::Called { token, call: &call, bound });
        self.handle_input(stage, judge, Input::Call(token, caller, call));
    }

    /// Passes an input to the quorum client, and carries out its output.
    pub(super) fn handle_input(&mut self, stage: &mut Stage, judge: &mut Judge, input: Input) {
        self.handle_input_as_of(stage, judge, input, None);
    }

    /// Like [`Self::tell`], for input from a server that had applied the log up to an index.
    pub(super) fn handle_input_as_of(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        input: Input,
        as_of: Option<LogIndex>,
    ) {
        let mut outbox = Outbox::default();
        let mut next = Some(input);
        let mut answers = Vec::new();
        while let Some(input) = next {
            self.upstream.handle(self.clock.at(stage.now), input, &mut outbox);
            answers.append(&mut outbox.answers);
            self.carry_out(stage, judge, &mut outbox);
            next = self.upstream.has_more().then_some(Input::Tick);
        }
        self.wake_later(stage);
        let load = self.upstream.load();
        if load.waiters > load.shared_reads {
            stage.hit(Mark::ReadShared);
        }
        answers.retain(|(token, answer)| !self.answers_challenge(stage, judge, *token, answer));
        let is_other_lease = self.notice_lease(stage, judge);
        for (token, answer) in &answers {
            self.see(stage, judge, AgentEvent::Told { token: *token, answer, as_of });
        }
        self.see(stage, judge, AgentEvent::Settled);
        if is_other_lease {
            self.tell_watches(stage, judge);
        }
        self.look_at_own_lease(stage);
        for (token, answer) in answers {
            self.deliver_reply(stage, judge, token, answer);
        }
    }

    /// Returns `true` if the guards' permitted beliefs have changed.
    fn notice_lease(&mut self, stage: &mut Stage, judge: &mut Judge) -> bool {
        let lease = self.upstream.lease();
        if *lease == self.lease {
            return false;
        }
        let window = stage.plan.clients.residents.map(|residents| residents.window).unwrap_or_default();
        let deadline = self.lease.deadline(window).filter(|_| lease.renewed.is_some());
        if deadline.is_some_and(|deadline| deadline < self.clock.at(stage.now)) {
            stage.hit(Mark::LeaseLate);
        }
        self.lease = lease.clone();
        let Some(registration) = self.registration else { return true };
        let until = HealthWindow::ALL.map(|window| {
            let deadline = self.lease.deadline(window);
            // A deadline that has passed is believed in by no guard.
            let ahead = deadline.filter(|deadline| *deadline > self.clock.at(stage.now));
            ahead.map_or(Time(0), |deadline| self.clock.when(deadline, stage.now))
        });
        judge.see(stage, &Fact::NodeBelieved { lease: registration.lease, until });
        true
    }

    fn wake_later(&mut self, stage: &mut Stage) {
        let Some(shown) = self.upstream.wakes_at() else { return };
        let at = self.clock.when(shown, stage.now);
        if self.wakes_at.is_none_or(|known| at < known) {
            self.wakes_at = Some(at);
            stage.at(at, Event::Wake(self.place, self.life));
        }
    }

    /// Processes a notice for operators.
    pub(super) fn notice(&mut self, stage: &mut Stage, judge: &mut Judge, notice: Notice) {
        match notice {
            Notice::LeaderFound(address) => {
                self.leader = stage.addresses.get(&address).copied();
                self.see(stage, judge, AgentEvent::Leader(Some(&address)));
                self.checks_find_leader(stage, judge);
            }
            Notice::LeaderLost => {
                self.leader = None;
                self.see(stage, judge, AgentEvent::Leader(None));
            }
            Notice::Registered { registration, .. } => {
                if self.registration.replace(registration).is_some() {
                    stage.hit(Mark::RegisteredAgain);
                    self.checks_lose_catalog(stage, judge);
                }
            }
            Notice::MayStayGranted(_, session, _) => {
                stage.hit(Mark::MayStayGranted);
                self.tasks.iter_mut().for_each(|task| task.client.may_stay_granted(&session));
            }
            Notice::LeaseLost(_) => stage.hit(Mark::LeaseLost),
            Notice::Restored => self.checks_lose_catalog(stage, judge),
            Notice::NotRegistered(_) => self.attempts_failed += 1,
            Notice::Pinned(pin) => self.pin = Some(pin),
            Notice::ClusterMismatch(_) => stage.hit(Mark::ClusterRefused),
            Notice::ConnectionFailed(_) | Notice::ClusterMismatchOver => {}
        }
    }

    /// Delivers the reply to a local call.
    fn deliver_reply(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        token: CallToken,
        answer: Result<Answered, Unavailable>,
    ) {
        if self.guards.called(token) {
            return self.guard_heard(stage, judge, token, answer);
        }
        if self.watch_heard(stage, judge, token, &answer) || self.mesh_heard(stage, judge, token, &answer) {
            return;
        }
        if self.checks_heard(stage, judge, token, &answer) || self.taken_over(stage, token, &answer) {
            return;
        }
        if self.bound_heard(stage, token, &answer) {
            return;
        }
        if self.farewell == Some(token) {
            return self.announced(stage, judge, &answer);
        }
        let Some(task) = self.task_of(token) else { return };
        if let Ok(Answered::Acquired(_, Applied { reply: Reply::Granted { .. }, .. })) = &answer
            && stage.plan.clients.residents.is_none()
            && stage.draw.once_in(8)
        {
            // The client disconnects while the reply is on its way.
            self.go_away(stage, judge, task, token);
            return self.think(stage, task);
        }
        let (_, wish) = self.tasks[task].pending.take().expect("it was just found");
        match answer {
            Ok(answered) => self.served(stage, judge, (task, token), &wish, answered),
            Err(reason) => {
                note_refusal(stage, judge, &wish, &reason);
                let client = &mut self.tasks[task].client;
                match reason.certainly_not_done() {
                    true => client.refused(stage, judge, &wish),
                    false => client.gave_up(stage, judge, &wish),
                }
            }
        }
        self.think(stage, task);
    }

    fn served(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        (task, token): (usize, CallToken),
        wish: &Wish,
        answered: Answered,
    ) {
        let response = match answered {
            Answered::Response(response) => response,
            Answered::Shared(answer) => Response::Answer((*answer).clone()),
            Answered::Acquired(mark, applied) => {
                if let Reply::Granted { .. } | Reply::GrantedAll(_) = applied.reply {
                    self.handle_input(stage, judge, Input::Heard(token));
                    if applied.index > mark {
                        stage.hit(Mark::HandedOn);
                    }
                }
                Response::Applied(applied)
            }
        };
        let (before, rest) = self.tasks.split_at_mut(task);
        let partner = before.last_mut().map(|task| &mut task.client);
        rest[0].client.receive_response(stage, judge, partner, wish, response);
    }
}

/// Records the outcome that an unserved client was told.
fn note_refusal(stage: &mut Stage, judge: &mut Judge, wish: &Wish, reason: &Unavailable) {
    match (&wish.request, reason) {
        (Request::Propose(_, command), _) if reason.certainly_not_done() => {
            stage.hit(Mark::ToldNotDone);
            judge.see(stage, &Fact::ToldNotDone { command });
        }
        (Request::Propose(..), Unavailable::Unknown(why)) if why.contains("register again") => {
            stage.hit(Mark::UnknownByRegistration);
        }
        (Request::Read { blocking: Some(_), .. }, Unavailable::Overloaded(_)) => {
            stage.hit(Mark::WatchRefused);
        }
        _ => stage.hit(Mark::GaveUp),
    }
}

/// Converts a client's request into a local call.
fn local_call(request: &Request) -> LocalCall {
    match request.clone() {
        Request::Propose(_, Command::Kv(KvCommand::Enqueue { new, session, wait })) => {
            LocalCall::Acquire { locks: vec![new.into()], session, wait }
        }
        Request::Propose(_, Command::AcquireLocks { locks, session, wait }) if !wait.is_zero() => {
            LocalCall::Acquire { locks, session, wait }
        }
        Request::Propose(_, command) => LocalCall::Propose(command),
        Request::Read { query, consistency, blocking } => LocalCall::Read { query, consistency, blocking },
        request => LocalCall::Ask(request),
    }
}

/// If a server of another cluster is listed, agents are already pinned to the simulated cluster: an
/// unpinned agent would register with neither.
fn first_pin(stage: &Stage) -> Option<Pin> {
    stage.plan.clients.lists_another_cluster.then(|| Pin { cluster_id: CLUSTER_ID.into(), index_base: 0 })
}

fn upstream(
    stage: &mut Stage,
    (place, boots, folders_lost): (usize, u32, u32),
    pin: Option<Pin>,
    now: Time,
) -> QuorumClient {
    // Each life is a process of its own, on one boot of one host.
    let process = u128::from(stage.draw.bits());
    let clients = &stage.plan.clients;
    let config = QuorumClientConfig {
        servers: configured(stage),
        registration: AgentRegistration {
            incarnation: Incarnation {
                process: process.to_be_bytes(),
                boot: (((place as u128) << 32) | u128::from(boots)).to_be_bytes(),
                ..Incarnation::default()
            },
            port: port(place),
            gossip: stage.plan.mesh.is_on.then(|| SocketAddr::from(([127, 0, 0, 1], port(place)))),
            ..registration(place, folders_lost)
        },
        cluster: ClusterChoice::First,
        pin,
        hold_time: clients.timeout,
        answer_time: clients.timeout * 4,
        probe_after: PROBE_AFTER,
    };
    let seed = stage.draw.bits();
    QuorumClient::new(config, seed, now)
}

/// Returns the drift of a host's clock; larger than that of servers' clocks if guards depend on it.
fn clock_rate(stage: &mut Stage) -> i64 {
    let guards = &stage.plan.guards;
    let drift = if guards.per_agent > 0 { guards.drift as i64 } else { stage.plan.faults.drift };
    stage.draw.within(0, 2 * drift as u64) as i64 - drift
}

/// Returns the server addresses in an agent's configuration: the first servers, which are all that
/// exist by now, and the next ones if there is only one. An agent is lost if all its servers are
/// removed before it learns of others.
fn configured(stage: &Stage) -> Vec<String> {
    let next = if stage.plan.voters == 1 { 2 } else { 0 };
    let first = (1..=stage.plan.voters).map(|id| format!("s{id}:8300"));
    let all = first.chain((1..=next).map(|id| format!("t{id}:8300"))).chain(stage.addresses.keys().cloned());
    let another = stage.plan.clients.lists_another_cluster.then(|| another_cluster::ADDRESS.to_owned());
    let all = all.chain(another);
    all.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns the registration of the agent with this number in the simulation, with the node id in
/// its present data folder.
pub(super) fn registration(place: usize, folders_lost: u32) -> AgentRegistration {
    let id = format!("5a0f2b6e-3c60-4d3f-{folders_lost:04}-{place:012}");
    AgentRegistration::of(Node::of(format!("n{place}").into(), id, "127.0.0.1"))
}
