//! A server's replies to raw QUIC clients that do not behave like an agent. An agent leaves a
//! deposed leader at once and requests only its own data, so tests through an agent would not show
//! what the server allows.

use lockmesh_net::frame::FrameQueue;
use lockmesh_net::quic::{FrameReceiver, FrameSender};
use lockmesh_net::{Connection, Endpoint, Identity, Purpose, QuicOptions, Role};
use lockmesh_protocol::command::{AgentRegistration, Command, KvCommand, NewEntry};
use lockmesh_protocol::format;
use lockmesh_protocol::id::{AgentNumber, Generation, LogIndex, RequestId, ServerId, SessionId, Term};
use lockmesh_protocol::lease::LeaseKey;
use lockmesh_protocol::query::{Answer, Blocking, Consistency, Query};
use lockmesh_protocol::record::{Behavior, NewServer, Node, SessionSpec};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Call, CallId, ReplyFrame, Request, Response, Status, Unavailable};
use lockmesh_tests::quorum::Quorum;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Timeout of every wait in these tests.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A client with a connection to one server.
struct Caller {
    _dialler: Endpoint,
    _connection: Connection,
    sender: FrameSender,
    receiver: FrameReceiver,
    node: String,
    last_call: u64,
    answers: BTreeMap<CallId, Response>,
    agent: Option<(AgentNumber, Generation)>,
    sequence: u64,
}

impl Caller {
    async fn connect(identity: &Identity, address: &str) -> Self {
        let dialler = Endpoint::dial_only(identity, &QuicOptions::default()).expect("a socket");
        let address = address.parse().expect("an address");
        let connection = dialler.connect(address, Role::Server).await.expect("it listens");
        let (sender, receiver) = connection.open(Purpose::Calls).await.expect("a stream");
        let node = identity.peer().node.to_string();
        let (answers, agent) = (BTreeMap::new(), None);
        Self {
            _dialler: dialler,
            _connection: connection,
            sender,
            receiver,
            node,
            last_call: 0,
            answers,
            agent,
            sequence: 0,
        }
    }

    /// Sends a request and does not wait.
    async fn begin(&mut self, request: Request) -> CallId {
        self.last_call += 1;
        let call = CallId(self.last_call);
        self.send(&Call::Begin(call, request)).await;
        call
    }

    async fn send(&mut self, call: &Call) {
        let mut queue = FrameQueue::default();
        queue.push(call).expect("it is short");
        self.sender.send(queue.take()).await.expect("it listens");
    }

    /// Waits for the reply to a request.
    async fn answer(&mut self, call: CallId) -> Response {
        let deadline = Instant::now() + TIMEOUT;
        while !self.answers.contains_key(&call) {
            let left = deadline.saturating_duration_since(Instant::now());
            let frame = tokio::time::timeout(left, self.receiver.receive::<ReplyFrame>()).await;
            let ReplyFrame(answers) = frame.expect("a reply in time").expect("no error").expect("a frame");
            self.answers.extend(answers);
        }
        self.answers.remove(&call).expect("just checked")
    }

    async fn ask(&mut self, request: Request) -> Response {
        let call = self.begin(request).await;
        self.answer(call).await
    }

    async fn status(&mut self) -> Status {
        match self.ask(Request::Status).await {
            Response::Status(status) => status,
            other => panic!("not a status: {other:?}"),
        }
    }

    async fn register(&mut self) {
        let node = Node {
            name: self.node.as_str().into(),
            id: format!("00000000-0000-4000-8000-{:0>12}", self.node.len()),
            address: "127.0.0.1".into(),
            datacenter: "dc1".into(),
            tagged_addresses: Default::default(),
            meta: Default::default(),
            create_index: LogIndex(0),
            modify_index: LogIndex(0),
        };
        let registration = AgentRegistration::of(node);
        match self.ask(Request::Propose(None, Command::RegisterAgent(registration))).await {
            Response::Applied(Applied { reply: Reply::Agent { number, generation, .. }, .. }) => {
                self.agent = Some((number, generation));
            }
            other => panic!("not registered: {other:?}"),
        }
    }

    /// Returns a fresh request ID of an agent.
    fn id(&mut self, (agent, generation): (AgentNumber, Generation)) -> Option<RequestId> {
        self.sequence += 1;
        Some(RequestId { agent, generation, sequence: self.sequence, lowest: self.sequence })
    }

    async fn propose(&mut self, command: Command) -> Response {
        let own = self.agent.expect("it is registered");
        let id = self.id(own);
        self.ask(Request::Propose(id, command)).await
    }

    async fn session(&mut self, id: &str) -> SessionId {
        let id = SessionId::parse(id).expect("it is an id");
        let new = SessionSpec {
            id,
            name: String::new(),
            node: self.node.as_str().into(),
            lock_delay: Duration::ZERO,
            behavior: Behavior::Release,
            ttl_text: "60s".into(),
            ttl: Some(Duration::from_secs(60)),
            checks: Vec::new(),
            node_checks: Vec::new(),
            service_checks: None,
            health_window: Default::default(),
        };
        let answer = self.propose(Command::CreateSession(new)).await;
        assert!(matches!(&answer, Response::Applied(Applied { reply: Reply::Session(_), .. })), "{answer:?}");
        id
    }
}

fn read(key: &str, consistency: Consistency, blocking: Option<Blocking>) -> Request {
    Request::Read { query: Query::Entry(key.into()), consistency, blocking }
}

fn put(key: &str) -> Command {
    Command::Kv(KvCommand::Set(NewEntry { key: key.into(), value: "v".into(), flags: 0 }))
}

/// Returns three servers, and a client of the leader.
async fn led() -> (Quorum, Caller, String) {
    let quorum = Quorum::found(3, "web-1");
    let mut callers = Vec::new();
    for address in quorum.addresses() {
        callers.push((Caller::connect(quorum.agent(), &address).await, address));
    }
    let deadline = Instant::now() + TIMEOUT;
    loop {
        for number in 0..callers.len() {
            let status = callers[number].0.status().await;
            if status.leader == Some(status.server) {
                let (mut caller, address) = callers.swap_remove(number);
                caller.register().await;
                return (quorum, caller, address);
            }
        }
        assert!(Instant::now() < deadline, "no leader in time");
        tokio::task::yield_now().await;
    }
}

/// Kills all servers but one, all at once.
fn leave_alone(quorum: &mut Quorum, leader: &str) {
    for other in quorum.addresses().iter().filter(|address| *address != leader) {
        quorum.kill(other);
    }
}

fn is_refused(response: &Response) -> bool {
    matches!(response, Response::Unavailable(Unavailable::NotLeader { .. } | Unavailable::Unknown(_)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_left_alone_answers_no_read_and_acknowledges_no_renewal() {
    let (mut quorum, mut caller, leader) = led().await;
    let session = caller.session("00000000-0000-4000-8000-00000000005e").await;
    assert!(matches!(caller.propose(put("k")).await, Response::Applied(_)));
    leave_alone(&mut quorum, &leader);
    // It does not know yet, and believes that it leads.
    let status = caller.status().await;
    assert_eq!(status.leader, Some(status.server), "it has not been deposed yet");
    let renewal = caller.begin(Request::Renew(session)).await;
    let default = caller.begin(read("k", Consistency::Default, None)).await;
    let consistent = caller.begin(read("k", Consistency::Consistent, None)).await;
    let write = caller.propose(put("k")).await;
    assert!(is_refused(&write), "no other server has it: {write:?}");
    for (call, what) in
        [(renewal, "a renewal"), (default, "a default read"), (consistent, "a consistent read")]
    {
        let answer = caller.answer(call).await;
        assert!(is_refused(&answer), "{what} needs the other servers: {answer:?}");
    }
    let stale = caller.ask(read("k", Consistency::Stale, None)).await;
    assert!(matches!(stale, Response::Answer(_)), "stale reads are still served: {stale:?}");
    quorum.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_wait_at_a_leader_are_sent_away_when_it_leads_no_more() {
    let (mut quorum, mut caller, leader) = led().await;
    let Response::Applied(Applied { index, .. }) = caller.propose(put("k")).await else {
        panic!("it is written")
    };
    let blocking = Some(Blocking { index, wait: Duration::from_secs(600) });
    let default = caller.begin(read("k", Consistency::Default, blocking)).await;
    let stale = caller.begin(read("k", Consistency::Stale, blocking)).await;
    leave_alone(&mut quorum, &leader);
    while caller.status().await.leader.is_some() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Replies arrive in the order in which the server sent them, so earlier ones are here already.
    let told = caller.answers.remove(&default).expect("a default read ends when the leader is deposed");
    assert!(is_refused(&told), "{told:?}");
    assert_eq!(caller.answers.remove(&stale), None, "a stale read continues to wait");
    quorum.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_arrives_after_the_answer_ends_the_view_that_began() {
    let (quorum, mut caller, _) = led().await;
    assert!(matches!(caller.propose(put("k")).await, Response::Applied(_)));
    let consistency = Consistency::Default;
    let call = caller.begin(Request::ReadParts { query: Query::Entries("".into()), consistency }).await;
    let Response::AnswerPart(first) = caller.answer(call).await else { panic!("the first part") };
    let part = Request::ReadPart { view: first.view, after: 0, consistency };
    assert!(matches!(caller.ask(part.clone()).await, Response::AnswerPart(_)));
    caller.send(&Call::Cancel(call)).await;
    let ended = caller.ask(part).await;
    assert!(matches!(ended, Response::Unavailable(Unavailable::Overloaded(_))), "{ended:?}");
    quorum.end().await;
}

/// Returns commands that only a leader may propose.
fn own_commands(session: &SessionId, term: Term) -> Vec<Command> {
    let server = NewServer {
        node: "s9".into(),
        node_id: String::new(),
        address: "127.0.0.1:9".into(),
        instance_id: "instance".into(),
        format: format::NEWEST,
    };
    let row = server.with_id(ServerId(2));
    let key = || "k".into();
    vec![
        Command::ExpireSession { session: *session, term, base: 0 },
        Command::EndLockDelay { key: key(), started_at_index: LogIndex(1), base: 0 },
        Command::EndWait { key: key(), queue_position: LogIndex(1), enqueued_at_index: LogIndex(1) },
        Command::ReapTombstones { up_to: LogIndex(u64::MAX) },
        Command::Bootstrap {
            cluster_id: "another".into(),
            servers: vec![row.clone()],
            lease_key: LeaseKey([7; 32]),
        },
        Command::AdmitServer(server),
        Command::UpdateServer(row),
        Command::ForgetServer(ServerId(2)),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_decides_nothing_that_is_the_leaders() {
    let (quorum, mut caller, _) = led().await;
    let session = caller.session("00000000-0000-4000-8000-00000000005e").await;
    let before = caller.status().await;
    for command in own_commands(&session, before.term) {
        let answer = caller.propose(command.clone()).await;
        let denied = matches!(&answer, Response::Unavailable(Unavailable::Denied(why)) if why.contains("leader itself"));
        assert!(denied, "{command:?} was answered {answer:?}");
    }
    assert!(matches!(caller.ask(Request::Renew(session)).await, Response::Renewed(Some(_))), "it lives");
    let after = caller.status().await;
    assert_eq!((after.cluster_id, after.servers.len()), (before.cluster_id, before.servers.len()));
    quorum.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_speaks_under_the_number_of_another_agent() {
    let (quorum, mut caller, leader) = led().await;
    let mut other = Caller::connect(&quorum.identity("web-22", Role::Agent), &leader).await;
    other.register().await;
    let foreign = caller.agent.expect("it is registered");
    let id = other.id(foreign);
    let answer = other.ask(Request::Propose(id, put("forged"))).await;
    let denied =
        matches!(&answer, Response::Unavailable(Unavailable::Denied(why)) if why.contains("speaks for node"));
    assert!(denied, "{answer:?}");
    assert!(matches!(other.propose(put("own")).await, Response::Applied(_)), "allowed under its own node");
    // The number's owner uses the same sequence, and its request is not treated as a retry.
    assert!(matches!(caller.propose(put("mine")).await, Response::Applied(_)));
    let Response::Answer(Answer { rows, .. }) = caller.ask(read("forged", Consistency::Default, None)).await
    else {
        panic!("expected a reply to the read")
    };
    assert_eq!(rows, lockmesh_protocol::query::Rows::Entries(Vec::new()));
    quorum.end().await;
}
