//! A scripted agent: registers, gives each command one request id as the real one does, and sends it until it is answered.
//!
//! Like the real upstream it tells *certainly not done* from *unknown*, follows hints of who leads, and retries under the
//! same id. What its clients want is in [`super::client`].

use super::client::{Client, Wish};
use super::judge::Judge;
use super::marks::Mark;
use super::network::Place;
use super::stage::{Ask, Asker, Event, Stage};
use lockmesh_agent_core::request_ids::{Entry, Registration, RequestIds, Sequence};
use lockmesh_protocol::command::{AgentRegistration, Command};
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::query::Consistency;
use lockmesh_protocol::record::Node;
use lockmesh_protocol::reply::{Applied, Refusal, Reply};
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long an agent waits before it asks again, after it was refused.
const PAUSE: Duration = Duration::from_millis(40);
/// How often the one server is asked that can answer.
const ATTEMPTS_AT_ONE_SERVER: u32 = 4;

/// A request under way.
#[derive(Clone, Debug)]
struct Flight {
    wish: Wish,
    /// That of its request id.
    sequence: Option<Sequence>,
    bound: LogIndex,
    attempts: u32,
    /// The present attempt.
    call: u64,
    server: ServerId,
    gives_up: Time,
}

/// A client with what it waits for.
#[derive(Debug)]
struct Task {
    client: Client,
    flight: Option<Flight>,
}

/// An agent with its clients.
#[derive(Debug)]
pub struct Agent {
    /// Its number in the simulation.
    place: usize,
    /// Which of its lives in the simulation.
    life: u64,
    ids: RequestIds,
    /// Whom it takes for the leader.
    leader: ServerId,
    servers: Vec<ServerId>,
    tasks: Vec<Task>,
    calls: BTreeMap<u64, usize>,
    /// Whether the servers do not know its registration any more.
    is_forgotten: bool,
}

impl Agent {
    /// A new agent, all of whose clients begin to think.
    pub fn start(stage: &mut Stage, place: usize, servers: Vec<ServerId>) -> Self {
        let leader = *stage.draw.pick(&servers);
        let clients = Client::all(stage, place);
        let tasks = clients.into_iter().map(|client| Task { client, flight: None }).collect();
        let mut agent = Self {
            place,
            life: 0,
            ids: RequestIds::default(),
            leader,
            servers,
            tasks,
            calls: BTreeMap::new(),
            is_forgotten: false,
        };
        agent.begin_life(stage);
        agent
    }

    fn begin_life(&mut self, stage: &mut Stage) {
        self.life += 1;
        for task in 0..self.tasks.len() {
            self.think(stage, task);
        }
    }

    /// The process dies and comes back: what was under way is forgotten.
    pub fn restart(&mut self, stage: &mut Stage, judge: &mut Judge) {
        stage.hit(Mark::AgentRestart);
        self.ids = RequestIds::default();
        self.is_forgotten = false;
        self.calls.clear();
        for task in &mut self.tasks {
            task.flight = None;
            task.client.restart(stage, judge);
        }
        self.begin_life(stage);
    }

    /// A server died: what it was asked is asked again.
    pub fn disconnected(&self, stage: &mut Stage, server: ServerId) {
        let flights = self.tasks.iter().filter_map(|task| task.flight.as_ref());
        for flight in flights.filter(|flight| flight.server == server) {
            let wait = stage.draw.duration(PAUSE, PAUSE * 10);
            stage.after(wait, Event::Tired(Asker::Agent(self.place), flight.call));
        }
    }

    /// The servers that there are now. What it asked of those that went they must answer.
    pub fn learn_servers(&mut self, servers: &[ServerId]) {
        self.servers = servers.to_vec();
    }

    /// Clients that wait still, in words.
    pub fn discontent(&self) -> Vec<String> {
        let waits =
            |task: &&Task| !task.client.is_content() || (task.flight.is_some() && !task.client.watches());
        let words = |task: &Task| {
            let flight = task.flight.as_ref().map(|flight| (&flight.wish.request, flight.attempts));
            format!("agent {}: {} waits for {flight:?}", self.place, task.client.name())
        };
        self.tasks.iter().filter(waits).map(words).collect()
    }

    /// What its watchers saw last.
    pub fn clients(&self) -> impl Iterator<Item = &Client> {
        self.tasks.iter().map(|task| &task.client)
    }

    /// A writer that is under way, for those who want to disturb it.
    pub fn is_writing(&self) -> bool {
        self.tasks.iter().any(|task| task.flight.as_ref().is_some_and(|flight| flight.sequence.is_some()))
    }

    fn think(&self, stage: &mut Stage, task: usize) {
        let wait = stage.plan.clients.think;
        let wait = stage.around(wait);
        stage.after(wait, Event::Think(self.place, self.life, task));
    }

    /// A client thinks of something to do.
    pub fn thought(&mut self, stage: &mut Stage, judge: &mut Judge, life: u64, task: usize) {
        if life != self.life || self.tasks[task].flight.is_some() {
            return;
        }
        let is_registrar = matches!(self.tasks[task].client, Client::Registrar);
        if is_registrar == self.is_registered() {
            return self.think(stage, task);
        }
        let Some(wish) = self.wish(stage, judge, task) else { return self.think(stage, task) };
        let is_command = !is_registrar && matches!(&wish.request, Request::Propose(..));
        let sequence = is_command.then(|| match self.ids.enter(task as u64) {
            Entry::Entered(sequence) => sequence,
            other => unreachable!("few clients, one command each: {other:?}"),
        });
        let patience = stage.plan.clients.patience;
        let gives_up = stage.now + stage.around(patience);
        let bound = judge.bound;
        let flight = Flight { wish, sequence, bound, attempts: 0, call: 0, server: self.leader, gives_up };
        self.tasks[task].flight = Some(flight);
        self.attempt(stage, task);
    }

    fn wish(&mut self, stage: &mut Stage, judge: &mut Judge, task: usize) -> Option<Wish> {
        if matches!(self.tasks[task].client, Client::Registrar) {
            return Some(Client::registration(stage.now, self.place));
        }
        // Clients of one agent share their sessions: a renewer looks at its locker's.
        let (before, rest) = self.tasks.split_at_mut(task);
        rest[0].client.wish(stage, judge, before.last_mut().map(|task| &mut task.client))
    }

    fn attempt(&mut self, stage: &mut Stage, task: usize) {
        let Some(flight) = &mut self.tasks[task].flight else { return };
        flight.attempts += 1;
        flight.call = stage.call();
        let before = flight.server;
        flight.server = match (&flight.wish.request, flight.wish.only, flight.attempts) {
            (_, Some(only), _) => only,
            (Request::Read { consistency: Consistency::Stale, .. }, ..) => *stage.draw.pick(&self.servers),
            (Request::Read { .. }, ..) if stage.draw.once_in(3) => *stage.draw.pick(&self.servers),
            (_, _, 1) => self.leader,
            _ if stage.draw.once_in(3) => *stage.draw.pick(&self.servers),
            _ => self.leader,
        };
        if flight.attempts > 1 && flight.sequence.is_some() && flight.server != before {
            stage.hit(Mark::RetryElsewhere);
        }
        let mut request = flight.wish.request.clone();
        if let Some(sequence) = flight.sequence {
            let Request::Propose(id, _) = &mut request else { unreachable!("only commands have sequences") };
            *id = self.ids.request_id(sequence);
        }
        let ask = Ask { by: Asker::Agent(self.place), call: flight.call, request, bound: flight.bound };
        let wait = stage.plan.clients.attempt + flight.wish.extra;
        stage.after(wait, Event::Tired(Asker::Agent(self.place), flight.call));
        self.calls.insert(flight.call, task);
        let server = flight.server;
        stage.send(Place::Agent(self.place), Place::Server(server), Event::Ask(server, Box::new(ask)));
    }

    /// The answer to an attempt did not come in time, or said that another attempt is needed.
    pub fn tired(&mut self, stage: &mut Stage, judge: &mut Judge, call: u64) {
        let Some(&task) = self.calls.get(&call) else { return };
        let Some(flight) = &self.tasks[task].flight else { return };
        if flight.call != call {
            return;
        }
        let is_gone = flight.wish.only.is_some() && flight.attempts >= ATTEMPTS_AT_ONE_SERVER;
        // What was asked in an earlier life cannot be asked again.
        let is_over =
            flight.sequence.is_some_and(|of| self.is_forgotten || self.ids.request_id(of).is_none());
        if is_over || is_gone || (stage.now >= flight.gives_up && !stage.calm) {
            stage.hit(Mark::GaveUp);
            let flight = self.land(task);
            self.tasks[task].client.gave_up(stage, judge, &flight.wish);
            return self.think(stage, task);
        }
        if flight.attempts % 3 == 0 {
            self.leader = *stage.draw.pick(&self.servers);
        }
        self.attempt(stage, task);
    }

    fn land(&mut self, task: usize) -> Flight {
        let flight = self.tasks[task].flight.take().expect("a flight is under way");
        self.calls.retain(|_, of| *of != task);
        if let Some(sequence) = flight.sequence {
            let admitted = self.ids.leave(sequence);
            debug_assert!(admitted.is_empty(), "nobody waits for a sequence");
        }
        flight
    }

    fn is_registered(&self) -> bool {
        self.ids.registration().is_some() && !self.is_forgotten
    }

    /// A server answered an attempt.
    pub fn answered(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        call: u64,
        server: ServerId,
        response: Response,
    ) {
        let Some(&task) = self.calls.get(&call) else { return };
        let Some(flight) = &self.tasks[task].flight else { return };
        if let Response::Unavailable(why) = &response
            && !is_end_of_backup(flight, why)
        {
            if flight.call == call {
                self.unavailable(stage, call, server, why);
            }
            return;
        }
        if is_forgotten(&response) {
            stage.hit(Mark::RetryForgotten);
            self.is_forgotten |= flight.sequence.is_some_and(|of| self.ids.request_id(of).is_some());
            let flight = self.land(task);
            self.tasks[task].client.gave_up(stage, judge, &flight.wish);
            return self.think(stage, task);
        }
        let flight = self.land(task);
        if let Response::Applied(Applied { reply: Reply::Agent { number, generation }, .. }) = response {
            let admitted = self.ids.register(Registration { number, generation });
            debug_assert!(admitted.is_empty(), "nobody waits for a sequence");
            self.is_forgotten = false;
        } else {
            self.heard(stage, judge, task, &flight, (server, response));
        }
        self.think(stage, task);
    }

    fn heard(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        task: usize,
        flight: &Flight,
        response: (ServerId, Response),
    ) {
        let (before, rest) = self.tasks.split_at_mut(task);
        let partner = before.last_mut().map(|task| &mut task.client);
        rest[0].client.heard(stage, judge, partner, &flight.wish, response);
    }

    fn unavailable(&mut self, stage: &mut Stage, call: u64, server: ServerId, why: &Unavailable) {
        match why {
            Unavailable::NotLeader { leader } => {
                let hint = leader.as_ref().and_then(|address| stage.addresses.get(address)).copied();
                let hint = hint.filter(|hint| *hint != server && self.servers.contains(hint));
                self.leader = hint.unwrap_or_else(|| *stage.draw.pick(&self.servers));
            }
            Unavailable::Unknown(_) => stage.hit(Mark::UnknownOutcome),
            _ => {}
        }
        let wait = stage.around(PAUSE);
        stage.after(wait, Event::Tired(Asker::Agent(self.place), call));
    }
}

/// Whether a backup that was begun cannot be gone on with.
fn is_end_of_backup(flight: &Flight, why: &Unavailable) -> bool {
    flight.wish.only.is_some() && matches!(why, Unavailable::Denied(_) | Unavailable::Removed)
}

fn is_forgotten(response: &Response) -> bool {
    let forgotten = Reply::Refused(Refusal::Forgotten);
    matches!(response, Response::Applied(Applied { reply, .. }) if *reply == forgotten)
}

/// The registration of the agent with this number in the simulation.
pub fn registration(place: usize) -> Command {
    let node = Node {
        name: format!("n{place}").into(),
        id: format!("5a0f2b6e-3c60-4d3f-9d5c-0000000000{place:02}"),
        address: "127.0.0.1".into(),
        datacenter: "dc1".into(),
        tagged_addresses: BTreeMap::new(),
        meta: BTreeMap::new(),
        create_index: LogIndex(0),
        modify_index: LogIndex(0),
    };
    Command::RegisterAgent(AgentRegistration { node, services: Vec::new() })
}
