//! An agent: the real [`QuorumClient`], driven as the agent's own driver drives it, and the clients that call it.
//!
//! A connection carries what is sent until something is lost on it: then it breaks, a while later, and both ends hear of that.
//! What its clients want is in [`super::client`].

use super::client::{Client, Wish};
use super::invariant::Fact;
use super::judge::Judge;
use super::marks::Mark;
use super::network::Place;
use super::stage::{Ask, Asker, Event, Stage};
use lockmesh_agent_core::quorum_client::{
    Answered, CallToken, ConnectionEnd, ConnectionId, Input, LocalCall, Notice, Outbox, QuorumClient,
    QuorumClientConfig,
};
use lockmesh_protocol::command::{AgentRegistration, Command, KvCommand};
use lockmesh_protocol::id::{LogIndex, RequestId, ServerId};
use lockmesh_protocol::record::Node;
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Call, CallId, Request, Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A broken connection is noticed after so long, at most.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(1);

/// After so long without an answer other servers are asked about the leader.
const PROBE_AFTER: Duration = Duration::from_millis(100);

/// How often an agent looks whether anything has arrived.
const LISTEN_INTERVAL: Duration = Duration::from_millis(500);

/// A connection, or an attempt at one.
#[derive(Clone, Copy, Debug)]
struct Connection {
    id: ConnectionId,
    server: ServerId,
    /// How often something arrived on it.
    received: u64,
}

/// A client with what it waits for.
#[derive(Debug)]
struct Task {
    client: Client,
    pending: Option<(CallToken, Wish)>,
}

/// An agent with its clients.
#[derive(Debug)]
pub struct Agent {
    /// Its number in the simulation.
    place: usize,
    /// Which of its lives in the simulation.
    life: u64,
    upstream: QuorumClient,
    /// By numbers that no connection of any agent had before.
    connections: BTreeMap<u64, Connection>,
    /// The calls that are under way, by their numbers in the simulation.
    calls: BTreeMap<u64, (u64, CallId)>,
    /// To whom each command went last.
    sent_to: BTreeMap<(u32, u64), ServerId>,
    /// When it looks at the clock, if nothing happens.
    wakes_at: Option<Time>,
    last_token: u64,
    tasks: Vec<Task>,
}

impl Agent {
    /// A new agent, all of whose clients begin to think.
    pub fn start(stage: &mut Stage, place: usize) -> Self {
        let clients = Client::all(stage, place);
        let tasks = clients.into_iter().map(|client| Task { client, pending: None }).collect();
        let mut agent = Self {
            place,
            life: 0,
            upstream: upstream(stage, place),
            connections: BTreeMap::new(),
            calls: BTreeMap::new(),
            sent_to: BTreeMap::new(),
            wakes_at: None,
            last_token: 0,
            tasks,
        };
        agent.begin_life(stage);
        agent
    }

    fn begin_life(&mut self, stage: &mut Stage) {
        self.life += 1;
        self.wakes_at = Some(stage.now);
        stage.after(Duration::ZERO, Event::Wake(self.place, self.life));
        stage.after(LISTEN_INTERVAL, Event::Listen(self.place, self.life));
        for task in 0..self.tasks.len() {
            self.think(stage, task);
        }
    }

    /// The process dies and comes back: what was under way is forgotten.
    pub fn restart(&mut self, stage: &mut Stage, judge: &mut Judge) {
        stage.hit(Mark::AgentRestart);
        self.upstream = upstream(stage, self.place);
        self.connections.clear();
        self.calls.clear();
        self.sent_to.clear();
        for task in &mut self.tasks {
            task.pending = None;
            task.client.restart(stage, judge);
        }
        self.begin_life(stage);
    }

    /// Clients that wait still, in words.
    pub fn discontent(&self) -> Vec<String> {
        let waits =
            |task: &&Task| !task.client.is_content() || (task.pending.is_some() && !task.client.watches());
        let words = |task: &Task| {
            let request = task.pending.as_ref().map(|(_, wish)| &wish.request);
            format!("agent {}: {} waits for {request:?}", self.place, task.client.name())
        };
        self.tasks.iter().filter(waits).map(words).collect()
    }

    /// What its watchers saw last.
    pub fn clients(&self) -> impl Iterator<Item = &Client> {
        self.tasks.iter().map(|task| &task.client)
    }

    /// A writer that is under way, for those who want to disturb it.
    pub fn is_writing(&self) -> bool {
        self.tasks.iter().any(|task| {
            task.pending.as_ref().is_some_and(|(_, wish)| matches!(wish.request, Request::Propose(..)))
        })
    }

    fn think(&self, stage: &mut Stage, task: usize) {
        let wait = stage.plan.clients.think;
        let wait = stage.around(wait);
        stage.after(wait, Event::Think(self.place, self.life, task));
    }

    /// A client thinks of something to do.
    pub fn thought(&mut self, stage: &mut Stage, judge: &mut Judge, life: u64, task: usize) {
        if life != self.life {
            return;
        }
        // Clients of one agent share their sessions: a renewer looks at its locker's.
        let (before, rest) = self.tasks.split_at_mut(task);
        let wish = rest[0].client.wish(stage, judge, before.last_mut().map(|task| &mut task.client));
        let Some(wish) = wish else { return self.think(stage, task) };
        let call = local_call(&wish.request);
        self.last_token += 1;
        let token = CallToken(self.last_token);
        if let LocalCall::Acquire { wait, .. } = &call
            && stage.draw.once_in(4)
        {
            let patience = stage.draw.duration(Duration::ZERO, *wait);
            stage.after(patience, Event::GoAway(self.place, life, token));
        }
        self.tasks[task].pending = Some((token, wish));
        self.tell(stage, judge, Input::Call(token, call));
    }

    /// A client that waits for a lock waits no longer.
    pub fn gone(&mut self, stage: &mut Stage, judge: &mut Judge, life: u64, token: CallToken) {
        let Some(task) = self.task_of(token).filter(|_| life == self.life) else { return };
        stage.hit(Mark::WentAway);
        self.go_away(stage, judge, task, token);
        self.think(stage, task);
    }

    /// A client hears nothing of what it wanted; the agent gives back what it was granted.
    fn go_away(&mut self, stage: &mut Stage, judge: &mut Judge, task: usize, token: CallToken) {
        if let Some((_, wish)) = self.tasks[task].pending.take() {
            self.tasks[task].client.gave_up(stage, judge, &wish);
        }
        self.tell(stage, judge, Input::Cancel(token));
    }

    fn task_of(&self, token: CallToken) -> Option<usize> {
        let is_it = |task: &Task| task.pending.as_ref().is_some_and(|(pending, _)| *pending == token);
        self.tasks.iter().position(is_it)
    }

    /// Time has passed.
    pub fn woke(&mut self, stage: &mut Stage, judge: &mut Judge, life: u64) {
        if life == self.life && self.wakes_at == Some(stage.now) {
            self.wakes_at = None;
            self.tell(stage, judge, Input::Tick);
        }
    }

    /// It looked on which connections something arrives: those to these servers.
    pub fn listened(&mut self, stage: &mut Stage, judge: &mut Judge, life: u64, servers: &[ServerId]) {
        if life != self.life {
            return;
        }
        for connection in self.connections.values_mut() {
            connection.received += u64::from(servers.contains(&connection.server));
        }
        let all: Vec<_> =
            self.connections.values().map(|connection| (connection.id, connection.received)).collect();
        for (id, received) in all {
            self.tell(stage, judge, Input::Received(id, received));
        }
        stage.after(LISTEN_INTERVAL, Event::Listen(self.place, life));
    }

    /// An attempt to connect has come to an end, or a connection has.
    pub fn connection(&mut self, stage: &mut Stage, judge: &mut Judge, number: u64, is_up: bool) {
        let Some(&Connection { id, server, .. }) = self.connections.get(&number) else { return };
        if is_up {
            return self.tell(stage, judge, Input::Connected(id));
        }
        self.hang_up(stage, number);
        let reason = format!("{server} was lost");
        self.tell(stage, judge, Input::Ended(id, ConnectionEnd::Lost(reason)));
    }

    /// A server died: its connections break.
    pub fn disconnected(&self, stage: &mut Stage, server: ServerId) {
        for (number, _) in self.connections.iter().filter(|(_, connection)| connection.server == server) {
            self.break_later(stage, *number);
        }
    }

    /// Something was lost on the way to a server or back: the connection breaks.
    pub fn lost(&self, stage: &mut Stage, call: u64) {
        if let Some((connection, _)) = self.calls.get(&call) {
            self.break_later(stage, *connection);
        }
    }

    fn break_later(&self, stage: &mut Stage, connection: u64) {
        let wait = stage.draw.duration(Duration::from_millis(5), NOTICE_TIMEOUT);
        stage.after(wait, Event::Connection(self.place, connection, false));
    }

    /// A server answered a call.
    pub fn answered(&mut self, stage: &mut Stage, judge: &mut Judge, call: u64, response: Response) {
        let Some((connection, id)) = self.calls.remove(&call) else { return };
        let Some(connection) = self.connections.get(&connection) else { return };
        match &response {
            Response::Unavailable(Unavailable::Unknown(_)) => stage.hit(Mark::UnknownOutcome),
            Response::Applied(Applied { reply: Reply::Queued { .. }, .. }) => stage.hit(Mark::Queued),
            _ => {}
        }
        self.tell(stage, judge, Input::Answers(connection.id, vec![(id, response)]));
    }

    /// Tells the quorum client something, and does what it says then.
    fn tell(&mut self, stage: &mut Stage, judge: &mut Judge, input: Input) {
        let mut outbox = Outbox::default();
        let mut next = Some(input);
        let mut answers = Vec::new();
        while let Some(input) = next {
            self.upstream.handle(stage.now, input, &mut outbox);
            answers.append(&mut outbox.answers);
            self.carry_out(stage, judge, &mut outbox);
            next = self.upstream.has_more().then_some(Input::Tick);
        }
        if let Some(at) = self.upstream.wakes_at()
            && self.wakes_at.is_none_or(|known| at < known)
        {
            self.wakes_at = Some(at);
            stage.at(at, Event::Wake(self.place, self.life));
        }
        for (token, answer) in answers {
            self.heard(stage, judge, token, answer);
        }
    }

    fn carry_out(&mut self, stage: &mut Stage, judge: &Judge, outbox: &mut Outbox) {
        for dial in outbox.connect.drain(..) {
            self.dial(stage, dial.connection, &dial.address);
        }
        for (id, call) in outbox.calls.drain(..) {
            let found = self.connections.iter().find(|(_, connection)| connection.id == id);
            if let (Some((number, connection)), Call::Begin(call, request)) = (found, call) {
                let (number, server) = (*number, connection.server);
                self.send(stage, judge, (number, server), call, request);
            }
        }
        for id in outbox.disconnect.drain(..) {
            let found = self.connections.iter().find(|(_, connection)| connection.id == id);
            if let Some(number) = found.map(|(number, _)| *number) {
                self.hang_up(stage, number);
            }
        }
        for notice in outbox.notices.drain(..) {
            if let Notice::MayStayGranted(..) = notice {
                stage.hit(Mark::MayStayGranted);
            }
        }
    }

    fn dial(&mut self, stage: &mut Stage, id: ConnectionId, address: &str) {
        let number = stage.call();
        let server = stage.addresses.get(address).copied().unwrap_or(ServerId(0));
        self.connections.insert(number, Connection { id, server, received: 0 });
        let dial = Event::Dial(server, self.place, number);
        if !stage.send(Place::Agent(self.place), Place::Server(server), dial) {
            self.break_later(stage, number);
        }
    }

    fn send(
        &mut self,
        stage: &mut Stage,
        judge: &Judge,
        (connection, server): (u64, ServerId),
        id: CallId,
        request: Request,
    ) {
        if let Request::Propose(Some(RequestId { generation, sequence, .. }), _) = &request {
            let before = self.sent_to.insert((generation.0, *sequence), server);
            if before.is_some_and(|before| before != server) {
                stage.hit(Mark::RetryElsewhere);
            }
        }
        let call = stage.call();
        self.calls.insert(call, (connection, id));
        let ask = Ask { by: Asker::Agent(self.place), call, request, bound: judge.bound };
        if !stage.send(Place::Agent(self.place), Place::Server(server), Event::Ask(server, Box::new(ask))) {
            self.break_later(stage, connection);
        }
    }

    /// A connection is used no more; the server hears of that at once.
    fn hang_up(&mut self, stage: &mut Stage, number: u64) {
        if let Some(Connection { server, .. }) = self.connections.remove(&number) {
            self.calls.retain(|_, (connection, _)| *connection != number);
            stage.after(Duration::ZERO, Event::HungUp(server, self.place));
        }
    }

    /// A local call was answered.
    fn heard(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        token: CallToken,
        answer: Result<Answered, Unavailable>,
    ) {
        let Some(task) = self.task_of(token) else { return };
        if let Ok(Answered::Acquired(_, Applied { reply: Reply::Granted { .. }, .. })) = &answer
            && stage.draw.once_in(8)
        {
            // The client goes while the answer is on its way to it.
            self.go_away(stage, judge, task, token);
            return self.think(stage, task);
        }
        let (_, wish) = self.tasks[task].pending.take().expect("it was just found");
        match answer {
            Ok(answered) => self.served(stage, judge, (task, token), &wish, answered),
            Err(reason) => {
                match &wish.request {
                    Request::Propose(_, command) if reason.certainly_not_done() => {
                        stage.hit(Mark::ToldNotDone);
                        judge.see(stage, &Fact::ToldNotDone { command });
                    }
                    _ => stage.hit(Mark::GaveUp),
                }
                self.tasks[task].client.gave_up(stage, judge, &wish);
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
                if let Reply::Granted { .. } = applied.reply {
                    self.tell(stage, judge, Input::Heard(token));
                    if applied.index > mark {
                        stage.hit(Mark::HandedOn);
                    }
                }
                Response::Applied(applied)
            }
        };
        let (before, rest) = self.tasks.split_at_mut(task);
        let partner = before.last_mut().map(|task| &mut task.client);
        rest[0].client.heard(stage, judge, partner, wish, response);
    }
}

/// What a client's wish is to the agent.
fn local_call(request: &Request) -> LocalCall {
    match request.clone() {
        Request::Propose(_, Command::Kv(KvCommand::Enqueue { new, session, wait })) => {
            LocalCall::Acquire { new, session, wait }
        }
        Request::Propose(_, command) => LocalCall::Propose(command),
        Request::Read { query, consistency, blocking } => LocalCall::Read { query, consistency, blocking },
        request => LocalCall::Ask(request),
    }
}

fn upstream(stage: &mut Stage, place: usize) -> QuorumClient {
    let clients = &stage.plan.clients;
    let config = QuorumClientConfig {
        servers: configured(stage),
        registration: registration(place),
        hold_time: clients.patience,
        answer_time: clients.patience * 4,
        probe_after: PROBE_AFTER,
    };
    let seed = stage.draw.bits();
    QuorumClient::new(config, seed, stage.now)
}

/// The servers that whoever starts an agent names: the first ones, all that there are by now, and where there is only one,
/// the next ones too. An agent whose every server is taken out before it has heard of another one is lost.
fn configured(stage: &Stage) -> Vec<String> {
    let next = 1..=if stage.plan.voters == 1 { 2 } else { 0 };
    let first = (1..=stage.plan.voters).map(|id| format!("s{id}:8300"));
    let all = first.chain(next.map(|id| format!("t{id}:8300"))).chain(stage.addresses.keys().cloned());
    all.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The registration of the agent with this number in the simulation.
fn registration(place: usize) -> AgentRegistration {
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
    AgentRegistration { node, services: Vec::new() }
}
