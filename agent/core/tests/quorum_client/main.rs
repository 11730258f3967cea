//! Stories of the quorum client: its inputs and the resulting effects. The story controls the time.

mod callers;
mod identity;
mod lease;
mod leaving;
mod lock_waits;
mod own_address;
mod reads;
mod requests;
mod routes;
mod session_ends;

use lockmesh_agent_core::cluster::{ClusterChoice, Pin};
use lockmesh_agent_core::quorum_client::{
    Answered, CallToken, ConnectionEnd, ConnectionId, Input, LocalCall, NotReady, Notice, Outbox,
    QuorumClient, QuorumClientConfig,
};
use lockmesh_protocol::acl::Caller;
use lockmesh_protocol::command::{AgentRegistration, Command, KvCommand, NodeLeave};
use lockmesh_protocol::id::{AgentNumber, Generation, LogIndex, RequestId, ServerId, SessionId, Term};
use lockmesh_protocol::lease::{HealthWindow, LeaseAck, LeaseId, LeaseKey, Renewal};
use lockmesh_protocol::query::{Answer, Blocking, Consistency, Query, Rows};
use lockmesh_protocol::record::{Node, SessionSpec};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Call, CallId, Request, Response, ServerStatus, Status, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const A: &str = "a:1";
const B: &str = "b:1";
const C: &str = "c:1";
const SERVERS: [&str; 3] = [A, B, C];
const HOLD: Duration = Duration::from_secs(7);
const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// A call that was sent to a server and is unanswered.
#[derive(Clone, Debug, PartialEq)]
struct Asked {
    server: &'static str,
    connection: ConnectionId,
    call: CallId,
    caller: Caller,
    request: Request,
}

impl Asked {
    fn id(&self) -> RequestId {
        match &self.request {
            Request::Propose(Some(id), _) => *id,
            other => panic!("no command: {other:?}"),
        }
    }
}

/// An agent and three servers `a:1`, `b:1` and `c:1` with the ids 1, 2 and 3. The servers accept
/// connections, register the agent, acknowledge the renewals of its lease and report their status
/// on their own. All other calls wait for the story.
struct Story {
    client: QuorumClient,
    now: Time,
    /// The leader that every server reports.
    leader: Option<&'static str>,
    term: u64,
    /// The generation that the servers know, if they know the agent.
    generation: Option<Generation>,
    registrations: u32,
    /// `true` if registrations are answered.
    registers: bool,
    /// `true` if all servers reject the agent's certificate.
    is_stranger: bool,
    /// Servers that accept no connection.
    down: BTreeSet<&'static str>,
    /// Servers that do not run: attempts to connect neither succeed nor fail.
    frozen: BTreeSet<&'static str>,
    /// The newest attempt at each of them.
    dialling: BTreeMap<&'static str, ConnectionId>,
    /// Servers that report no status, and acknowledge nothing.
    mute: BTreeSet<&'static str>,
    /// `true` if renewals are acknowledged.
    acknowledges: bool,
    /// The shortest window in acknowledgements.
    shortest: Option<HealthWindow>,
    /// The index from which the lease keeps sessions, in acknowledgements.
    keeps_from: LogIndex,
    /// The renewals that were sent, and their times.
    renewals: Vec<(Time, Asked)>,
    /// The servers of another cluster than `c`, or with another index base.
    clusters: BTreeMap<&'static str, (&'static str, u64)>,
    /// The servers at which the agent registered, in order.
    registered_at: Vec<&'static str>,
    connections: BTreeMap<ConnectionId, &'static str>,
    /// The number of dials of each server.
    dials: BTreeMap<&'static str, u32>,
    asked: Vec<Asked>,
    cancelled: Vec<(ConnectionId, CallId)>,
    answers: BTreeMap<CallToken, Result<Answered, Unavailable>>,
    notices: Vec<Notice>,
    last_token: u64,
}

fn server_id(address: &str) -> ServerId {
    let number = SERVERS.iter().position(|server| *server == address).expect("a known server");
    ServerId(number as u64 + 1)
}

impl Story {
    /// No server is connected yet.
    fn begin() -> Self {
        Self::begin_with(&SERVERS)
    }

    /// The same, with only some of the servers configured.
    fn begin_with(servers: &[&str]) -> Self {
        Self::begin_in(servers, ClusterChoice::First, None)
    }

    /// The same, for an agent with this configured cluster and this pin.
    fn begin_in(servers: &[&str], choice: ClusterChoice, pin: Option<Pin>) -> Self {
        let config = QuorumClientConfig {
            servers: servers.iter().map(|server| (*server).to_owned()).collect(),
            registration: AgentRegistration::of(node()),
            cluster: choice,
            pin,
            hold_time: HOLD,
            answer_time: Duration::from_secs(60),
            probe_after: Duration::from_millis(100),
        };
        Self {
            client: QuorumClient::new(config, 7, Time(0)),
            now: Time(0),
            leader: Some(A),
            term: 1,
            generation: None,
            registrations: 0,
            registers: true,
            is_stranger: false,
            down: BTreeSet::new(),
            frozen: BTreeSet::new(),
            dialling: BTreeMap::new(),
            mute: BTreeSet::new(),
            acknowledges: true,
            shortest: None,
            keeps_from: LogIndex(0),
            renewals: Vec::new(),
            clusters: BTreeMap::new(),
            registered_at: Vec::new(),
            connections: BTreeMap::new(),
            dials: BTreeMap::new(),
            asked: Vec::new(),
            cancelled: Vec::new(),
            answers: BTreeMap::new(),
            notices: Vec::new(),
            last_token: 0,
        }
    }

    /// A leads, and the agent is registered.
    fn at_rest() -> Self {
        let mut story = Self::begin();
        story.pass(5 * SECOND);
        assert_eq!(story.registrations, 1);
        story
    }

    /// Passes an input, and lets the servers react to the effects.
    fn handle_input(&mut self, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let mut outbox = Outbox::default();
            self.client.handle(self.now, input, &mut outbox);
            let mut follow = self.carry_out(outbox);
            if self.client.has_more() {
                follow.push(Input::Tick);
            }
            follow.reverse();
            inputs.append(&mut follow);
        }
    }

    fn carry_out(&mut self, outbox: Outbox) -> Vec<Input> {
        let mut follow = Vec::new();
        for dial in outbox.connect {
            let server = SERVERS.into_iter().find(|server| *server == dial.address).expect("a known server");
            *self.dials.entry(server).or_default() += 1;
            if self.is_stranger {
                follow.push(Input::Ended(dial.connection, ConnectionEnd::NotAdmitted("a stranger".into())));
            } else if self.down.contains(server) {
                follow.push(Input::Ended(dial.connection, ConnectionEnd::Lost(format!("{server} is down"))));
            } else if self.frozen.contains(server) {
                self.dialling.insert(server, dial.connection);
            } else {
                self.connections.insert(dial.connection, server);
                follow.push(Input::Connected(dial.connection));
            }
        }
        for (connection, call) in outbox.calls {
            let server = self.connections[&connection];
            match call {
                Call::Begin(..) | Call::BeginAs(..) => {
                    let (call, caller, request) = match call {
                        Call::BeginAs(call, caller, request) => (call, caller, request),
                        Call::Begin(call, request) => (call, Caller::Agent, request),
                        Call::Cancel(_) => unreachable!("handled below"),
                    };
                    let asked = Asked { server, connection, call, caller, request };
                    let is_renewal = asked.request.renewal().is_some();
                    if is_renewal {
                        self.renewals.push((self.now, asked.clone()));
                    }
                    match self.answer_of_itself(&asked) {
                        Some(response) => follow.push(Input::Answers(connection, vec![(call, response)])),
                        None if is_renewal => {}
                        None => self.asked.push(asked),
                    }
                }
                Call::Cancel(call) => {
                    self.asked.retain(|asked| (asked.connection, asked.call) != (connection, call));
                    self.cancelled.push((connection, call));
                }
            }
        }
        for connection in outbox.disconnect {
            self.hear_no_more_of(connection);
        }
        for (token, answer) in outbox.answers {
            assert!(self.answers.insert(token, answer).is_none(), "answered twice: {token:?}");
        }
        self.notices.extend(outbox.notices);
        follow
    }

    fn answer_of_itself(&mut self, asked: &Asked) -> Option<Response> {
        let Asked { server, request, .. } = asked;
        match request {
            Request::Read { query: Query::NodeChecks(_), consistency: Consistency::Stale, .. }
                if !self.mute.contains(server) =>
            {
                Some(answer(self.cluster_of(server).1, Rows::Checks(Vec::new())))
            }
            Request::Status if !self.mute.contains(server) => Some(Response::Status(self.status(server))),
            Request::Propose(None, Command::RegisterAgent(_)) if self.registers => {
                self.registrations += 1;
                self.registered_at.push(server);
                let generation = Generation(self.registrations);
                self.generation = Some(generation);
                let lease = LeaseId { agent: AgentNumber(self.registrations), began: LogIndex(1) };
                let secret = LeaseKey::default().secret(lease);
                let reply = Reply::Agent { number: lease.agent, generation, lease, secret };
                Some(Response::Applied(Applied { index: LogIndex(1), reply }))
            }
            _ if self.acknowledges && !self.mute.contains(server) => {
                request.renewal().map(|renewal| self.acknowledgement(renewal))
            }
            _ => None,
        }
    }

    fn acknowledgement(&self, renewal: &Renewal) -> Response {
        let Renewal { lease, sequence, .. } = *renewal;
        Response::LeaseRenewed(LeaseAck {
            lease,
            sequence,
            shortest: self.shortest,
            keeps_from: self.keeps_from,
            leader: server_id(self.leader.unwrap_or(A)),
            term: Term(self.term),
        })
    }

    /// A server's cluster id and index base.
    fn cluster_of(&self, server: &str) -> (&'static str, u64) {
        self.clusters.get(server).copied().unwrap_or(("c", 0))
    }

    fn status(&self, server: &str) -> Status {
        let (cluster_id, _) = self.cluster_of(server);
        // A server of another cluster is alone in it, and leads.
        let is_apart = self.clusters.contains_key(server);
        let row = |address: &&str| ServerStatus {
            id: server_id(address),
            node_id: String::new(),
            node: String::new(),
            address: (*address).into(),
            voter: true,
            last_index: LogIndex(0),
            last_contact: None,
            healthy: true,
            stable_since: None,
            version: String::new(),
        };
        Status {
            cluster_id: cluster_id.into(),
            server: server_id(server),
            leader: if is_apart { Some(server_id(server)) } else { self.leader.map(server_id) },
            term: Term(self.term),
            servers: SERVERS.iter().filter(|row| !is_apart || **row == server).map(row).collect(),
            caller: self.generation.map(|generation| AgentNumber(generation.0)),
            ..Status::default()
        }
    }

    /// Starts a local call of the agent itself.
    fn call(&mut self, call: LocalCall) -> CallToken {
        self.call_as(Caller::Agent, call)
    }

    /// Starts a local call of a client.
    fn call_as(&mut self, caller: Caller, call: LocalCall) -> CallToken {
        self.last_token += 1;
        let token = CallToken(self.last_token);
        self.handle_input(Input::Call(token, caller, call));
        token
    }

    fn propose(&mut self, key: &str) -> CallToken {
        self.call(LocalCall::Propose(command(key)))
    }

    fn read(&mut self, consistency: Consistency, blocking: Option<Blocking>) -> CallToken {
        self.call(LocalCall::Read { query: Query::Entry("k".into()), consistency, blocking })
    }

    /// Lets this much time pass.
    fn pass(&mut self, duration: Duration) {
        let end = self.now + duration;
        self.handle_input(Input::Tick);
        while let Some(at) = self.client.wakes_at().filter(|at| *at <= end) {
            assert!(at > self.now, "it wakes again and again: {:?}", self.client);
            self.now = at;
            self.handle_input(Input::Tick);
        }
        self.now = end;
    }

    /// Lets time pass until a server receives a call.
    fn until_asked(&mut self) -> Asked {
        for _ in 0..1000 {
            if let Some(asked) = self.asked.first() {
                return asked.clone();
            }
            self.pass(MS);
        }
        panic!("no call was sent: {:?}", self.client);
    }

    /// The only pending call.
    fn only(&self) -> Asked {
        assert_eq!(self.asked.len(), 1, "pending calls");
        self.asked[0].clone()
    }

    /// A server answers a call, even a cancelled one.
    fn answer(&mut self, asked: &Asked, response: Response) {
        self.asked.retain(|other| other != asked);
        self.handle_input(Input::Answers(asked.connection, vec![(asked.call, response)]));
    }

    fn apply(&mut self, asked: &Asked, index: u64) {
        self.answer(asked, applied(index, Reply::Succeeded(true)));
    }

    /// A server is down for good.
    fn kill(&mut self, server: &'static str) {
        self.down.insert(server);
        let gone: Vec<_> =
            self.connections.iter().filter(|(_, of)| **of == server).map(|(id, _)| *id).collect();
        for connection in gone {
            self.hear_no_more_of(connection);
            self.handle_input(Input::Ended(connection, ConnectionEnd::Lost(format!("{server} died"))));
        }
    }

    fn hear_no_more_of(&mut self, connection: ConnectionId) {
        self.connections.remove(&connection);
        self.asked.retain(|asked| asked.connection != connection);
    }

    /// Another server is elected.
    fn elect(&mut self, leader: &'static str) {
        self.leader = Some(leader);
        self.term += 1;
    }

    #[track_caller]
    fn take_answer(&mut self, token: CallToken) -> Result<Answered, Unavailable> {
        self.answers.remove(&token).unwrap_or_else(|| panic!("no answer: {:?}", self.client))
    }

    #[track_caller]
    fn heard_applied(&mut self, token: CallToken) -> u64 {
        match self.take_answer(token) {
            Ok(Answered::Response(Response::Applied(applied))) => applied.index.0,
            other => panic!("no command was applied: {other:?}"),
        }
    }

    #[track_caller]
    fn heard_answer(&mut self, token: CallToken) -> u64 {
        match self.take_answer(token) {
            Ok(Answered::Response(Response::Answer(answer))) => answer.index.0,
            Ok(Answered::Shared(answer)) => answer.index.0,
            other => panic!("no query was answered: {other:?}"),
        }
    }

    #[track_caller]
    fn heard_unknown(&mut self, token: CallToken) -> String {
        match self.take_answer(token) {
            Err(Unavailable::Unknown(why)) => why,
            other => panic!("it is not unknown: {other:?}"),
        }
    }
}

fn session() -> SessionId {
    SessionId::from_random([7; 16])
}

fn new_session() -> SessionSpec {
    SessionSpec::of(session(), "WEB-1".into())
}

fn command(key: &str) -> Command {
    Command::Kv(KvCommand::Delete(key.into()))
}

fn applied(index: u64, reply: Reply) -> Response {
    Response::Applied(Applied { index: LogIndex(index), reply })
}

fn answer(index: u64, rows: Rows) -> Response {
    Response::Answer(Answer {
        index: LogIndex(index),
        rows,
        known_leader: true,
        last_contact: Duration::ZERO,
        is_filtered: false,
    })
}

fn entries(index: u64) -> Response {
    answer(index, Rows::Entries(Vec::new()))
}

fn not_leader(hint: Option<&str>) -> Response {
    Response::Unavailable(Unavailable::NotLeader { leader: hint.map(String::from) })
}

fn blocking(index: u64, wait: Duration) -> Option<Blocking> {
    Some(Blocking { index: LogIndex(index), wait })
}

fn node() -> Node {
    Node::of("web-1".into(), "5a0f2b6e-3c60-4d3f-9d5c-000000000000".into(), "127.0.0.1")
}
