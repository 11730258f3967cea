//! The whole quorum with its clients, and the event loop.

use super::agent::Agent;
use super::another_cluster;
use super::bounds::Bounds;
use super::chaos;
use super::check_sessions::CheckSessions;
use super::connections::CONNECT_TIMEOUT;
use super::disk::DiskEvent;
use super::held::HeldLocks;
use super::invariant::Fact;
use super::judge::Judge;
use super::machine::Machine;
use super::marks::Mark;
use super::network::Place;
use super::operator::Operator;
use super::process::{DriverEvent, Given, Process, Turn, newcomer};
use super::setback::Planned;
use super::stage::{Ask, Event, Requester, Stage};
use lockmesh_core::durability::setback::SetBack;
use lockmesh_core::raft::message::PeerMessage;
use lockmesh_core::{Core, Input, frontend};
use lockmesh_protocol::id::{LogIndex, ServerId, SessionId, Term};
use lockmesh_protocol::rpc::{MAX_FRAME_BYTES, Request, Response, Unavailable};
use lockmesh_protocol::time::Time;
use lockmesh_protocol::wire;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The simulated world.
#[derive(Debug)]
pub struct World {
    /// Shared state.
    pub stage: Stage,
    /// All machines that ever existed, by server.
    pub machines: BTreeMap<ServerId, Machine>,
    /// All agents.
    pub agents: Vec<Agent>,
    /// The judge.
    pub judge: Judge,
    /// The operator, which changes the membership.
    pub operator: Operator,
    /// The last server that served as leader, with its term.
    pub(super) led: Option<(ServerId, Term)>,
    /// The voters at the last check.
    pub(super) voters: Vec<ServerId>,
    /// The newest index at which servers were compared and matched.
    pub(super) compared: LogIndex,
    /// The server that last renewed each session.
    pub(super) renewers: BTreeMap<SessionId, ServerId>,
    /// A disk that was set back, until its folder is emptied.
    pub(super) planned: Option<Planned>,
    /// Unresolved questions of servers to nodes.
    pub(super) questions: BTreeSet<u64>,
    /// Time bounds of each agent.
    pub(super) bounds: BTreeMap<usize, Bounds>,
    /// The time since which a server should have taken over from a leader whose disk hangs.
    pub(super) handover_due: Option<Time>,
    /// Faults, and locks that no guard believes in.
    pub(super) held: HeldLocks,
    /// Sessions that depend on checks.
    pub(super) check_sessions: CheckSessions,
    /// `true` if the final check has succeeded.
    pub done: bool,
}

impl World {
    /// Returns a new quorum with its agents.
    pub fn new(stage: Stage) -> Self {
        let mut world = Self::before_start(stage);
        let count = world.stage.plan.clients.agents;
        let start = |place| Agent::start(&mut world.stage, &mut world.judge, place);
        world.agents = (0..count).map(start).collect();
        world.begin();
        world
    }

    /// Returns a new quorum without agents; they are added later.
    pub fn of_servers(stage: Stage) -> Self {
        let mut world = Self::before_start(stage);
        world.begin();
        world
    }

    fn before_start(stage: Stage) -> Self {
        let voters: Vec<_> = (1..=stage.plan.voters).map(ServerId).collect();
        let checkpoint = Core::bootstrap_snapshot(&voters);
        let machine =
            |id: &ServerId| (*id, Machine::new(&stage, *id, format!("s{id}"), 1, checkpoint.clone()));
        let machines = voters.iter().map(machine).collect();
        Self {
            stage,
            machines,
            agents: Vec::new(),
            judge: Judge::new(LogIndex(1)),
            operator: Operator::default(),
            led: None,
            voters,
            compared: LogIndex(0),
            renewers: BTreeMap::new(),
            planned: None,
            questions: BTreeSet::new(),
            bounds: BTreeMap::new(),
            handover_due: None,
            held: HeldLocks::default(),
            check_sessions: CheckSessions::default(),
            done: false,
        }
    }

    /// Schedules the faults, and starts the servers.
    fn begin(&mut self) {
        chaos::begin(&mut self.stage);
        let storm = self.stage.plan.storm;
        self.stage.after(storm, Event::Calm);
        self.stage.after(Duration::ZERO, Event::Operator);
        self.look_at_held();
        self.voters.clone().into_iter().for_each(|id| self.start(id));
    }

    /// Processes the next event.
    pub fn step(&mut self) {
        let event = self.stage.next_event().expect("there is always another tick");
        if let Some(until) = event.agent().and_then(|agent| self.agents[agent].is_busy(&mut self.stage)) {
            return self.stage.at(until, event);
        }
        self.stage.life.trace(self.stage.now, || format!("{event:?}"));
        match event {
            Event::Turn(id, life) => self.turn(id, life),
            Event::Resume(id, life) => self.resume(id, life),
            Event::Disk(id, life, event) => self.disk_event(id, life, event),
            Event::Peer(to, life, from, message) => self.peer(to, life, from, message),
            Event::Hello(hello) => self.hello(*hello),
            Event::Reconnect(id, life) => self.reconnect(id, life),
            Event::ToldRemoved(id) => self.post(id, frontend::Event::Removed),
            Event::Fetch(id, life) => self.fetch_again(id, life),
            Event::Read(id, life, part) => self.read(id, life, part),
            Event::Ask(to, ask) => self.asked(to, ask),
            Event::Cancel(to, by, call) => self.post(to, DriverEvent::Cancelled(by, call)),
            Event::Answer(to, call, from, response) => self.answer(to, call, from, *response),
            Event::Guard(agent, guard, event) => self.guard(agent, guard, event),
            Event::GuardAct(agent, guard, act) => {
                self.agents[agent].guard_acts(&mut self.stage, &mut self.judge, guard, *act);
            }
            event @ (Event::SessionWatch(..) | Event::Bound(..) | Event::ProcessDies(..)) => {
                self.session_event(event);
            }
            Event::Checks(agent, life, timer) => self.check_timer(agent, life, timer),
            Event::Think(agent, life, task) => {
                self.agents[agent].thought(&mut self.stage, &mut self.judge, life, task);
            }
            event @ (Event::Datagram(..) | Event::MeshTurn(..) | Event::MeshItems(..)) => self.mesh(event),
            event @ (Event::Challenge(..) | Event::HandOn(..)) => self.carry(event),
            event @ (Event::HandBack(..) | Event::Challenged(..)) => self.carry(event),
            Event::Tired(Requester::Operator, call) => self.operator_tired(call),
            Event::Tired(Requester::Server(id), call) => self.part_lost(id, call),
            Event::Tired(Requester::Agent(agent), call) => self.agents[agent].lost(&mut self.stage, call),
            Event::Dial(to, agent, connection) => self.dialled(to, agent, connection),
            Event::Connection(agent, connection, is_up) => {
                self.agents[agent].connection(&mut self.stage, &mut self.judge, connection, is_up);
            }
            Event::HungUp(from, agent) => self.post(from, DriverEvent::Disconnected(Requester::Agent(agent))),
            Event::GaveUp(from, agent, connection) => {
                // A newer connection may be up by now.
                if self.agents[agent].is_connected(connection) {
                    self.stage.after(Duration::ZERO, Event::HungUp(from, agent));
                }
            }
            Event::DialAgain(agent, connection, age) => {
                self.agents[agent].shake_hands(&mut self.stage, connection, age);
            }
            Event::Retransmit(agent, connection, channel) => {
                self.agents[agent].retransmit(&mut self.stage, connection, channel);
            }
            Event::EndAgent(agent, life) => self.end_agent(agent, life),
            Event::GoAway(agent, life, token) => {
                self.agents[agent].gone(&mut self.stage, &mut self.judge, life, token);
            }
            Event::Listen(agent, life) => self.listen(agent, life),
            Event::Wake(agent, life) => self.agents[agent].woke(&mut self.stage, &mut self.judge, life),
            Event::Fault(kind) => self.fault(kind),
            Event::Mend(mend) => self.mend(mend),
            Event::Restart(id) => self.start(id),
            Event::EmptyFolder(id) => self.empty_folder(id),
            Event::Operator => self.operate(),
            Event::Calm => self.calm(),
            Event::Look => self.look(),
            Event::LookAtHeld => self.look_at_held(),
        }
    }

    fn answer(&mut self, to: Requester, call: u64, from: ServerId, response: Response) {
        match to {
            Requester::Operator => self.operator_heard(call, from, response),
            Requester::Server(id) => self.part_heard(id, call, from, response),
            Requester::Agent(agent) => {
                self.agents[agent].answered(&mut self.stage, &mut self.judge, call, response);
            }
        }
    }

    /// Starts a process on a machine that has none.
    pub fn start(&mut self, id: ServerId) {
        let machine = self.machines.get_mut(&id).expect("the machine exists");
        if machine.process.is_some() || machine.is_out() {
            return;
        }
        machine.lives += 1;
        let me = newcomer(&machine.node, machine.folder);
        self.stage.addresses.insert(me.address.clone(), id);
        let recovered = match machine.disk.open(&mut self.stage) {
            Ok(recovered) => recovered,
            Err(why) => return self.judge.object("recovery", format!("{id} cannot start: {why}")),
        };
        let index = recovered.snapshot.index;
        self.stage.log(|| {
            format!("server {id} starts at {index}, log up to {}", machine.disk.durable.last_index())
        });
        self.judge.see(&self.stage, &Fact::Opened { server: id, index, state: &recovered.state });
        let life = (machine.lives, machine.found_corrupt);
        machine.process = Some(Process::start(&mut self.stage, id, me, life, recovered));
        machine.disk.go_on(&mut self.stage, machine.lives);
        self.stage.at(self.stage.now, Event::Reconnect(id, self.machines[&id].lives));
        self.judge_memories(id);
    }

    /// A server that starts on a disk that was not set back holds everything that the others
    /// remember of it.
    fn judge_memories(&mut self, id: ServerId) {
        let machine = &self.machines[&id];
        let Some(started) = machine.process.as_ref().filter(|_| !machine.set_back) else { return };
        let holds = started.core().replica().log_position();
        let running = self.machines.values().filter_map(|machine| machine.process.as_ref());
        let remembered = running.map(|other| (other.id, other.core().replica().peer_memory().of(id)));
        let found = remembered.filter_map(|(by, known)| SetBack::find(id, holds, by, known)).next();
        if let Some(set_back) = found {
            self.judge.object("recovery", set_back.to_string());
        }
    }

    /// Ends a process as a power cut does.
    pub fn crash(&mut self, id: ServerId) {
        let machine = self.machines.get_mut(&id).expect("the machine exists");
        let Some(process) = machine.process.take() else { return };
        self.stage.hit(Mark::Crash);
        let role = if process.core().replica().is_serving() { "the leader" } else { "a follower" };
        if process.core().replica().is_serving() {
            self.stage.hit(Mark::LeaderCrash);
        }
        self.stage.log(|| format!("server {id}, {role}, crashes"));
        if process.is_removed() && !machine.disk.removed {
            self.stage.hit(Mark::RemovalForgotten);
        }
        machine.fetch = None;
        machine.disk.crash(&mut self.stage);
        self.judge.see(&self.stage, &Fact::Crashed { server: id, durable: &machine.disk.durable });
        self.agents.iter().for_each(|agent| agent.disconnected(&mut self.stage, id));
        if self.machines.values().all(|machine| machine.process.is_none()) {
            self.stage.hit(Mark::AllDown);
        }
    }

    fn resume(&mut self, id: ServerId, life: u64) {
        let machine = self.machines.get_mut(&id).expect("the machine exists");
        if let Some(process) = machine.process.as_mut().filter(|process| process.life == life) {
            process.resume(&mut self.stage);
        }
    }

    /// Puts an event into the queue of a server, if it runs.
    pub(super) fn post(&mut self, id: ServerId, event: impl Into<DriverEvent>) {
        if let Some(process) = self.machines.get_mut(&id).and_then(|machine| machine.process.as_mut()) {
            process.post(&mut self.stage, event);
        }
    }

    fn disk_event(&mut self, id: ServerId, life: u64, event: DiskEvent) {
        let machine = self.machines.get_mut(&id).expect("the machine exists");
        if machine.lives != life || machine.process.is_none() {
            return;
        }
        for told in machine.disk.done(&mut self.stage, life, event) {
            self.post(id, told);
        }
    }

    /// Delivers a request. If no process runs, the caller learns of that soon.
    fn asked(&mut self, to: ServerId, ask: Box<Ask>) {
        if to == another_cluster::SERVER {
            return self.another_cluster_asked(*ask);
        }
        if self.machines.get(&to).is_none_or(|machine| machine.process.is_none()) {
            let wait = self.stage.around(Duration::from_millis(20));
            return self.stage.after(wait, Event::Tired(ask.by, ask.call));
        }
        let came = self.stage.now;
        let request = on_the_wire(&ask.request);
        self.post(to, DriverEvent::Ask(Box::new(Ask { request, ..*ask }), came));
    }

    /// Delivers a connection attempt. A running process accepts it; a paused process lets it time
    /// out.
    fn dialled(&mut self, to: ServerId, agent: usize, connection: u64) {
        let process = self.machines.get(&to).and_then(|machine| machine.process.as_ref());
        let is_there = process.is_some() || to == another_cluster::SERVER;
        let told = Event::Connection(agent, connection, is_there);
        let is_heard = process.is_none_or(|process| process.stands_until.is_none());
        if !is_heard {
            return self.stage.after(CONNECT_TIMEOUT, Event::Connection(agent, connection, false));
        }
        if !self.stage.send(Place::Server(to), Place::Agent(agent), told) {
            self.agents[agent].handshake_reply_lost(&mut self.stage, connection);
        }
    }

    /// Lets an agent detect which servers still send anything, including keep-alives.
    fn listen(&mut self, agent: usize, life: u64) {
        let is_heard = |id: ServerId| {
            let process = self.machines.get(&id).and_then(|machine| machine.process.as_ref());
            process.is_some_and(|process| process.stands_until.is_none())
                && self.stage.network.carries_calls((Place::Server(id), Place::Agent(agent)))
        };
        let servers = self.machines.keys().copied().filter(|id| is_heard(*id));
        let servers: Vec<ServerId> = servers.chain([another_cluster::SERVER]).collect();
        if self.agents[agent].life == life {
            self.agents[agent].listened(&mut self.stage, &mut self.judge, &servers);
            self.judge_bounds(agent);
        }
    }

    fn turn(&mut self, id: ServerId, life: u64) {
        let machine = self.machines.get_mut(&id).expect("the machine exists");
        let Some(process) = machine.process.as_mut().filter(|process| process.life == life) else { return };
        let served = process.core().replica().is_serving();
        let Some(turn) = process.turn(&mut self.stage) else { return };
        self.judge.see(&self.stage, &Fact::Leases { server: id, turn: &turn.leases });
        self.judge_log(id, &turn);
        self.write(id, &turn);
        self.judge_state(id, &turn);
        self.notice_leader(id);
        self.notice_members(id, served);
        self.judge_corruption(id, &turn);
        for (to, message) in turn.shell.messages {
            self.send(id, to, message);
        }
        for removed in turn.told_removed {
            self.report_removal(id, removed);
        }
        if turn.removed {
            self.stage.hit(Mark::KnewOwnRemoval);
            self.stage.log(|| format!("server {id} has learned of its removal"));
            let machine = self.machines.get_mut(&id).expect("the machine exists");
            machine.disk.note_removal(&mut self.stage, life);
            self.expect_no_refusal(id);
            self.crash_soon(id, self.stage.plan.disk.commit.1);
        }
        self.judge_set_back(id);
        if let Some(fetch) = turn.fetch {
            self.begin_fetch(id, fetch);
        }
        for reader in turn.open_readers {
            self.open_reader(id, reader);
        }
        for part in turn.parts {
            self.read_later(id, part);
        }
        for wanted in &turn.shell.challenges {
            self.challenge(id, life, wanted);
        }
        for wanted in &turn.shell.questions {
            self.hand_on(id, life, wanted);
        }
        for wanted in turn.shell.mesh_items {
            self.tell_mesh(id, wanted);
        }
        for given in turn.given {
            self.give(id, given);
        }
        self.judge_handover();
    }

    fn judge_log(&mut self, id: ServerId, turn: &Turn) {
        let Some(process) = &self.machines[&id].process else { return };
        for write in &turn.writes {
            self.judge.see(&self.stage, &Fact::Wrote { server: id, write, shadow: &process.shadow });
        }
        if let Some(mark) = &turn.installed {
            self.stage.marks.hit(Mark::Installed);
            self.stage
                .life
                .log(self.stage.now, || format!("server {id} installs the checkpoint at {}", mark.index));
            self.note_spread(id);
            let Some(process) = &self.machines[&id].process else { return };
            if process.applied() == mark.index {
                let state = process.core().replica().state();
                self.judge.see(&self.stage, &Fact::Opened { server: id, index: mark.index, state });
            }
            self.crash_soon(id, self.stage.plan.disk.checkpoint.1);
        }
    }

    /// Occasionally crashes a server while its disk is busy with a write that takes this long.
    fn crash_soon(&mut self, id: ServerId, within: Duration) {
        let crashes = self.stage.plan.faults.crash.is_some() && !self.stage.calm;
        if crashes && self.stage.draw.once_in(4) {
            let wait = self.stage.draw.duration(Duration::ZERO, within);
            self.stage.after(wait, Event::Fault(chaos::Kind::CrashOf(id)));
        }
    }

    /// Passes the turn's writes to the disk. Checkpoints come first, since a reset of the log waits
    /// for its checkpoint.
    fn write(&mut self, id: ServerId, turn: &Turn) {
        let machine = self.machines.get_mut(&id).expect("the machine exists");
        let Some(process) = &mut machine.process else { return };
        let life = process.life;
        if turn.installed.is_some() && machine.disk.durable.last_index() > machine.disk.durable.mark.index {
            self.stage.hit(Mark::InstalledOverLog);
        }
        turn.checkpoints.iter().for_each(|checkpoint| machine.disk.hand_over(checkpoint.clone()));
        if self.stage.fault_injection == super::fault_injection::FaultInjection::DurableAtOnce
            && let Some(last) = turn.writes.last()
        {
            process.post(&mut self.stage, Input::Persisted(last.number));
        }
        turn.writes.iter().for_each(|write| machine.disk.write(write.clone()));
        if let Some(index) = turn.compact {
            machine.disk.compact(index);
        }
        machine.disk.go_on(&mut self.stage, life);
    }

    fn judge_state(&mut self, id: ServerId, turn: &Turn) {
        let before = self.judge.history.last();
        let (old, new) = &turn.memberships;
        let new = self.judge.applied(&self.stage, id, &turn.applied, &turn.changes, (old, new));
        for index in before.0 + 1..=before.0 + new {
            self.note_past(LogIndex(index));
            self.note_for_guards(LogIndex(index));
            self.note_for_held(LogIndex(index));
            self.note_for_check_sessions(LogIndex(index));
        }
        if new > 0 {
            self.judge_guards();
            self.judge_commands();
        }
    }

    fn send(&mut self, from: ServerId, to: ServerId, message: PeerMessage) {
        let durable = &self.machines[&from].disk.durable;
        self.judge.see(&self.stage, &Fact::Sent { server: from, message: &message, durable });
        if !self.machines.contains_key(&to) {
            return;
        }
        let Some(life) = self.linked(from, to) else { return self.lose(from, to) };
        let event = Event::Peer(to, life, from, Box::new(on_the_wire(&message)));
        let sent = self.stage.send(Place::Server(from), Place::Server(to), event);
        if !sent {
            self.lose(from, to);
        }
    }

    /// Delivers a message to the process that it was sent to, if that process still runs.
    fn peer(&mut self, to: ServerId, life: u64, from: ServerId, message: Box<PeerMessage>) {
        if self.process(to).is_some_and(|process| process.life == life) {
            self.post(to, Input::Peer(from, *message));
        }
    }

    /// A message was lost in transit; its sender may notice.
    fn lose(&mut self, from: ServerId, to: ServerId) {
        if self.stage.draw.once_in(4) {
            self.post(from, Input::Unreachable(to));
        }
    }

    pub(super) fn give(&mut self, id: ServerId, given: Given) {
        let (copies, voters) = self.copies(id, &given.response);
        let Some(process) = &self.machines[&id].process else { return };
        let (applied, serves) = (process.applied(), process.core().replica().is_serving());
        let fact = Fact::Given { server: id, given: &given, applied, copies, voters };
        self.judge.see(&self.stage, &fact);
        self.note_given(id, &given, serves);
        let Given { asked, response } = given;
        let Ask { by, call, ref request, .. } = *asked.ask;
        let event = Event::Answer(by, call, id, Box::new(on_the_wire(&response)));
        if let (Requester::Agent(agent), Request::Propose(..)) = (by, request)
            && matches!(response, Response::Unavailable(Unavailable::Overloaded(_)))
        {
            self.held.fault_at(agent, self.stage.now);
        }
        if let Requester::Agent(agent) = by {
            self.judge.as_of.insert(call, applied);
            return self.agents[agent].answer(&mut self.stage, call, event);
        }
        let sent = self.stage.send(Place::Server(id), by.place(), event);
        if let (Requester::Server(requester), false) = (by, sent) {
            self.await_part(requester, call, false);
        }
    }

    /// Returns the number of voters' disks that hold the write that a reply depends on, and the
    /// number of voters. A lost disk counts as holding it.
    fn copies(&self, id: ServerId, response: &Response) -> (usize, usize) {
        let (Response::Applied(applied), Some(process)) = (response, &self.machines[&id].process) else {
            return (1, 1);
        };
        let Some(past) = self.judge.history.answered(applied.index) else { return (1, 1) };
        let index = past.entry.index;
        let members = process.core().replica().membership();
        if members.is_joint() || process.core().replica().log_status().membership_index >= index {
            return (1, 1);
        }
        let holds = |id: &&ServerId| {
            self.machines.get(id).is_some_and(|machine| {
                machine.gone || machine.set_back || machine.disk.durable.holds(index, past.entry.term)
            })
        };
        (members.voters.iter().filter(holds).count(), members.voters.len())
    }
}

/// Encodes and decodes a value, as sending it over the wire does.
fn on_the_wire<T: Serialize + DeserializeOwned>(sent: &T) -> T {
    wire::decode::<T, MAX_FRAME_BYTES>(&wire::encode(sent)).expect("what was encoded can be decoded")
}
