//! A QUIC service with a driver that does what a test tells it: what agents are tested against.
//!
//! It keeps a book of all that it was told. It has no state of its own, except that it remembers which request ids
//! it has answered, as a server does.

use lockmesh_net::{Development, Endpoint, Identity, QuicOptions, Role};
use lockmesh_protocol::command::{AgentRegistration, Command};
use lockmesh_protocol::id::{AgentNumber, Generation, LogIndex, RequestId, ServerId, SessionId};
use lockmesh_protocol::query::{Answer, Blocking, Rows};
use lockmesh_protocol::record::Node;
use lockmesh_protocol::reply::{Applied, Refusal, Reply};
use lockmesh_protocol::rpc::{CallId, Request, Response, Status, Unavailable};
use lockmesh_server::mailbox::{Caller, Inbox, Mail, Mailbox, Postman, ReplySink, mailbox};
use lockmesh_server::rpc::counters::RpcCounters;
use lockmesh_server::rpc::{RpcOptions, RpcService};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// After so long a test is told that what it waits for does not happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// How the driver answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    /// As a leader.
    #[default]
    Serving,
    /// It knows no leader.
    Leaderless,
    /// It takes proposals and says nothing.
    Silent,
    /// It cannot write.
    DiskFull,
    /// It takes nothing out of its mailbox.
    Stuck,
}

/// What the driver was told, and what it shall do.
#[derive(Debug, Default)]
pub struct Book {
    /// How it answers.
    pub mood: Mood,
    /// Every proposal's id, in order of arrival.
    pub proposals: Vec<RequestId>,
    /// How often each sequence of the present generation took effect.
    pub applied: BTreeMap<u64, u32>,
    /// The generation that it knows; none before a registration.
    pub generation: Option<Generation>,
    /// How many registrations there were.
    pub registrations: u32,
    /// Readers that wait, with what they wait for.
    pub parked: BTreeMap<(Caller, CallId), (Blocking, ReplySink)>,
    /// How many blocking reads ever arrived.
    pub blocking_reads: u32,
    /// How many plain reads arrived.
    pub plain_reads: u32,
    /// The state's index.
    pub index: LogIndex,
    is_over: bool,
}

/// A book that outlives services, as a disk does.
#[derive(Clone, Debug, Default)]
pub struct SharedBook(Arc<(Mutex<Book>, Condvar)>);

impl SharedBook {
    /// Looks into the book, or writes into it.
    pub fn open(&self) -> MutexGuard<'_, Book> {
        self.0.0.lock().expect("no test panics with an open book")
    }

    /// Waits until something is true; panics if it never is.
    pub fn wait(&self, what: &str, mut is_true: impl FnMut(&mut Book) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        let mut book = self.open();
        while !is_true(&mut book) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(left > Duration::ZERO, "waited in vain for {what}: {book:?}");
            book = self.0.1.wait_timeout(book, left).expect("no test panics with an open book").0;
        }
    }

    /// The same for asynchronous tests.
    pub async fn reaches(&self, what: &'static str, is_true: impl FnMut(&mut Book) -> bool + Send + 'static) {
        let this = self.clone();
        tokio::task::spawn_blocking(move || this.wait(what, is_true)).await.expect(what);
    }

    /// Tells the driver to go on, after its mood was changed.
    pub fn changed(&self) {
        self.0.1.notify_all();
    }
}

/// Certificates of one authority.
#[derive(Debug)]
pub struct Cluster {
    folder: TempDir,
    development: Development,
}

impl Cluster {
    /// A fresh authority, and a node of this name.
    pub fn new(node: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let development = Development::prepare(folder.path(), &node.into()).expect("certificates");
        Self { folder, development }
    }

    /// The server's or the agent's certificate.
    pub fn identity(&self, role: Role) -> Identity {
        self.development.identity(role).expect("good certificates")
    }

    /// Where the certificates lie.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }
}

/// A running service.
#[derive(Debug)]
pub struct Service {
    /// Where it listens.
    pub address: SocketAddr,
    /// What it counted.
    pub counters: Arc<RpcCounters>,
    book: SharedBook,
    endpoint: Arc<Endpoint>,
    mailbox: Mailbox,
    driver: Option<JoinHandle<()>>,
}

impl Service {
    /// Starts on a free port of the loopback interface.
    pub fn start(cluster: &Cluster, book: &SharedBook) -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), cluster, book, RpcOptions::default(), 16_384)
    }

    /// Starts at an address with these limits.
    pub fn start_at(
        address: SocketAddr,
        cluster: &Cluster,
        book: &SharedBook,
        options: RpcOptions,
        mailbox_limit: usize,
    ) -> Self {
        let identity = cluster.identity(Role::Server);
        let endpoint = Endpoint::listen(address, &identity, &QuicOptions::default()).expect("a free port");
        let endpoint = Arc::new(endpoint);
        let (mailbox, inbox) = mailbox(mailbox_limit);
        let counters = Arc::new(RpcCounters::default());
        let service = RpcService::new(mailbox.clone(), options, counters.clone());
        tokio::spawn(service.run(endpoint.clone()));
        let driver_book = book.clone();
        driver_book.open().is_over = false;
        let driver = std::thread::spawn(move || drive(&inbox, &driver_book));
        let address = endpoint.local_address().expect("a bound socket");
        Self { address, counters, book: book.clone(), endpoint, mailbox, driver: Some(driver) }
    }

    /// The service's socket.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Answers every parked reader whose index is reached by this one.
    pub fn raise_index(&self, index: u64) {
        let mut book = self.book.open();
        book.index = LogIndex(index);
        let is_reached = |blocking: &Blocking| blocking.index.0 < index;
        let reached: Vec<_> = book
            .parked
            .iter()
            .filter(|(_, (blocking, _))| is_reached(blocking))
            .map(|(key, _)| *key)
            .collect();
        let mut postman = Postman::default();
        for key in reached {
            let (_, replies) = book.parked.remove(&key).expect("it was just there");
            postman.answer(&replies, key.1, answer(LogIndex(index)));
        }
        postman.deliver();
        self.book.changed();
    }

    /// Stops, tells the connected agents, and gives the port back.
    pub async fn stop(mut self) {
        self.endpoint.close("the test stops the service").await;
        self.book.open().is_over = true;
        self.book.changed();
        assert!(self.mailbox.post(Mail::Stop).is_ok(), "a stop always gets in");
        let driver = self.driver.take().expect("it runs");
        tokio::task::spawn_blocking(|| driver.join().expect("the driver does not panic"))
            .await
            .expect("a thread");
        drop(self.endpoint);
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = std::net::UdpSocket::bind(self.address) {
            assert!(Instant::now() < deadline, "the port is not given back: {error}");
            tokio::task::yield_now().await;
        }
    }
}

/// How an agent of this name registers.
pub fn registration(node: &str) -> AgentRegistration {
    let node = Node {
        name: node.into(),
        id: "6f2d5f5e-0c3a-4b5e-9d0f-3c1a5c1f7a10".into(),
        address: "127.0.0.1".into(),
        datacenter: "dc1".into(),
        tagged_addresses: BTreeMap::new(),
        meta: BTreeMap::new(),
        create_index: LogIndex(0),
        modify_index: LogIndex(0),
    };
    AgentRegistration { node, services: Vec::new() }
}

fn drive(inbox: &Inbox, book: &SharedBook) {
    let (mut mails, mut postman) = (Vec::new(), Postman::default());
    loop {
        inbox.take(&mut mails, 1024, Instant::now() + Duration::from_millis(100));
        book.wait("the driver to go on", |book| book.mood != Mood::Stuck || book.is_over);
        let mut open = book.open();
        for mail in mails.drain(..) {
            match mail {
                Mail::Stop => return,
                Mail::Call { call, request, replies } => open.call(call, request, &replies, &mut postman),
                Mail::Cancel { from, call } => drop(open.parked.remove(&(from, call))),
                Mail::Gone { from } => open.parked.retain(|(caller, _), _| *caller != from),
                other => panic!("nobody posts {other:?} here"),
            }
        }
        drop(open);
        postman.deliver();
        book.changed();
    }
}

impl Book {
    fn call(&mut self, call: CallId, request: Request, replies: &ReplySink, postman: &mut Postman) {
        if let Some(response) = self.response(call, request, replies) {
            postman.answer(replies, call, response);
        }
    }

    fn response(&mut self, call: CallId, request: Request, replies: &ReplySink) -> Option<Response> {
        if self.mood == Mood::Leaderless {
            return Some(Response::Unavailable(Unavailable::NotLeader { leader: None }));
        }
        match request {
            Request::Propose(None, Command::RegisterAgent(_)) => Some(self.register()),
            Request::Propose(Some(id), command) => self.propose(id, command),
            Request::Renew(_) => Some(Response::Renewed(None)),
            Request::Read { blocking: Some(blocking), .. } => {
                self.blocking_reads += 1;
                if blocking.index < self.index {
                    return Some(answer(self.index));
                }
                self.parked.insert((replies.caller(), call), (blocking, replies.clone()));
                None
            }
            Request::Read { blocking: None, .. } => {
                self.plain_reads += 1;
                Some(answer(self.index))
            }
            Request::Status => Some(Response::Status(Status {
                server: ServerId(1),
                leader: Some(ServerId(1)),
                asker: self.generation.map(|_| AgentNumber(7)),
                ..Status::default()
            })),
            _ => Some(Response::Done),
        }
    }

    fn register(&mut self) -> Response {
        self.registrations += 1;
        let generation = Generation(self.registrations);
        self.generation = Some(generation);
        self.applied.clear();
        let reply = Reply::Agent { number: AgentNumber(7), generation };
        Response::Applied(Applied { index: self.index, reply })
    }

    fn propose(&mut self, id: RequestId, command: Command) -> Option<Response> {
        self.proposals.push(id);
        if self.mood == Mood::DiskFull {
            return Some(Response::Unavailable(Unavailable::Disk("no space left".into())));
        }
        let reply = match command {
            _ if Some(id.generation) != self.generation => Reply::Refused(Refusal::Forgotten),
            Command::DestroySession(session) => {
                self.applied.entry(id.sequence).or_insert(1);
                Reply::Session(session)
            }
            _ => Reply::Done,
        };
        (self.mood != Mood::Silent).then_some(Response::Applied(Applied { index: self.index, reply }))
    }
}

fn answer(index: LogIndex) -> Response {
    let (rows, known_leader, last_contact) = (Rows::Keys(Vec::new()), true, Duration::ZERO);
    Response::Answer(Answer { index, rows, known_leader, last_contact })
}

/// A command that the service answers with the session's own id.
pub fn destroy(session: &str) -> Command {
    Command::DestroySession(SessionId::from(session))
}
