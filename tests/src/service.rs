//! QUIC services with a scripted driver: the servers that tests of agents use.
//!
//! All services share one book, as if they were a quorum: a request that one of them applies is
//! known to all. The test writes into the book which server leads, and each server's own view of
//! that.

use lockmesh_core::frontend::{CallRef, Event};
use lockmesh_net::{Development, Endpoint, Identity, QuicOptions, Role};
use lockmesh_protocol::command::{AgentRegistration, Command};
use lockmesh_protocol::id::{AgentNumber, Generation, LogIndex, RequestId, ServerId, SessionId, Term};
use lockmesh_protocol::lease::{LeaseAck, LeaseId, LeaseKey, Renewal};
use lockmesh_protocol::query::{Answer, Blocking, Consistency, Rows};
use lockmesh_protocol::record::Node;
use lockmesh_protocol::reply::{Applied, Refusal, Reply};
use lockmesh_protocol::rpc::{CallId, Request, Response, ServerStatus, Status, Unavailable};
use lockmesh_server::event_queue::{
    Caller, DriverEvent, EventReceiver, EventSender, ReplySink, WakeList, event_queue,
};
use lockmesh_server::rpc::counters::RpcCounters;
use lockmesh_server::rpc::{RpcOptions, RpcService};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

/// The maximum time for a condition that a test waits for.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The driver's way of replying.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    /// Replies as a leader or as a follower, whatever its own view.
    #[default]
    Serving,
    /// Accepts proposals and sends no replies to them.
    Silent,
    /// Takes nothing out of its event queue.
    Stuck,
    /// Knows that it was removed from the quorum.
    Removed,
}

/// The leader in a server's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The leader's id.
    pub leader: Option<u64>,
    /// The leader's term.
    pub term: u64,
}

/// The requests that the drivers received, and the instructions for them.
#[derive(Debug, Default)]
pub struct Book {
    /// The mood of all servers without an entry in `moods`.
    pub mood: Mood,
    /// The moods of servers that differ from the others.
    pub moods: BTreeMap<u64, Mood>,
    /// The view of all servers.
    pub view: View,
    /// The options of their connections, from the servers' start.
    pub quic: QuicOptions,
    /// The servers' addresses; a stopped server keeps its entry.
    pub servers: BTreeMap<u64, SocketAddr>,
    /// The id of every proposal, in order of arrival.
    pub proposals: Vec<RequestId>,
    /// The request ids of the commands that destroy each session, as generation and sequence.
    pub ids: BTreeMap<SessionId, BTreeSet<(u32, u64)>>,
    /// The number of times each sequence of the current generation took effect.
    pub applied: BTreeMap<u64, u32>,
    /// The current generation; `None` before a registration.
    pub generation: Option<Generation>,
    /// The number of registrations.
    pub registrations: u32,
    /// Parked blocking reads by server, with the awaited index and the reply sink.
    pub parked: BTreeMap<(u64, Caller, CallId), (Blocking, ReplySink)>,
    /// The number of stale reads that each server answered.
    pub stale_reads: BTreeMap<u64, u32>,
    /// The state's index.
    pub index: LogIndex,
    stopped: BTreeSet<u64>,
}

impl Default for View {
    fn default() -> Self {
        Self { leader: Some(1), term: 1 }
    }
}

/// A book that outlives services, as a disk does.
#[derive(Clone, Debug, Default)]
pub struct SharedBook(Arc<(Mutex<Book>, Condvar)>);

impl SharedBook {
    /// Locks the book for reading and writing.
    pub fn open(&self) -> MutexGuard<'_, Book> {
        self.0.0.lock().expect("no test panics with an open book")
    }

    /// Waits until a condition is true; panics after a timeout.
    pub fn wait(&self, what: &str, mut is_true: impl FnMut(&mut Book) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        let mut book = self.open();
        while !is_true(&mut book) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(left > Duration::ZERO, "timed out waiting for {what}: {book:?}");
            book = self.0.1.wait_timeout(book, left).expect("no test panics with an open book").0;
        }
    }

    /// Like [`Self::wait`], for asynchronous tests.
    pub async fn reaches(&self, what: &'static str, is_true: impl FnMut(&mut Book) -> bool + Send + 'static) {
        let this = self.clone();
        tokio::task::spawn_blocking(move || this.wait(what, is_true)).await.expect(what);
    }

    /// Wakes the driver after a change of its mood.
    pub fn changed(&self) {
        self.0.1.notify_all();
    }
}

/// The certificates of one authority.
#[derive(Debug)]
pub struct Cluster {
    folder: TempDir,
    development: Development,
}

impl Cluster {
    /// Creates an authority, and a node of this name.
    pub fn new(node: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let development = Development::prepare(folder.path(), &node.into()).expect("certificates");
        Self { folder, development }
    }

    /// Returns the server's or the agent's certificate.
    pub fn identity(&self, role: Role) -> Identity {
        self.development.identity(role).expect("good certificates")
    }

    /// Returns the folder with the certificates.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }
}

/// A running service.
#[derive(Debug)]
pub struct Service {
    /// The server's id.
    pub id: u64,
    /// The listening address.
    pub address: SocketAddr,
    /// The service's counters.
    pub counters: Arc<RpcCounters>,
    book: SharedBook,
    endpoint: Arc<Endpoint>,
    sender: EventSender,
    driver: Option<JoinHandle<()>>,
    runtime: OwnRuntime,
}

impl Service {
    /// Starts server 1 on a free port of the loopback interface.
    pub fn start(cluster: &Cluster, book: &SharedBook) -> Self {
        Self::start_at(loopback(), cluster, book, RpcOptions::default(), 16_384)
    }

    /// Starts servers 1 to `count`.
    pub fn start_many(count: u64, cluster: &Cluster, book: &SharedBook) -> Vec<Self> {
        let start = |id| Self::start_as(id, loopback(), cluster, book, RpcOptions::default(), 16_384);
        (1..=count).map(start).collect()
    }

    /// Starts server 1 at an address with these limits.
    pub fn start_at(
        address: SocketAddr,
        cluster: &Cluster,
        book: &SharedBook,
        options: RpcOptions,
        queue_limit: usize,
    ) -> Self {
        Self::start_as(1, address, cluster, book, options, queue_limit)
    }

    /// Starts any server of the quorum, for the first time or again.
    pub fn start_as(
        id: u64,
        address: SocketAddr,
        cluster: &Cluster,
        book: &SharedBook,
        options: RpcOptions,
        queue_limit: usize,
    ) -> Self {
        let runtime = OwnRuntime::new();
        let identity = cluster.identity(Role::Server);
        let quic = book.open().quic.clone();
        let endpoint = runtime.run(|| Endpoint::listen(address, &identity, &quic));
        let endpoint = Arc::new(endpoint.expect("a free port"));
        let address = endpoint.local_address().expect("a bound socket");
        let (sender, receiver) = event_queue(queue_limit);
        let counters = Arc::new(RpcCounters::default());
        let service = RpcService::new(sender.clone(), options, counters.clone());
        runtime.run(|| tokio::spawn(service.run(endpoint.clone())));
        let mut open = book.open();
        open.servers.insert(id, address);
        open.stopped.remove(&id);
        drop(open);
        let driver_book = book.clone();
        let driver = Some(std::thread::spawn(move || drive(id, &receiver, &driver_book)));
        Self { id, address, counters, book: book.clone(), endpoint, sender, driver, runtime }
    }

    /// Raises the index and answers every parked reader that waits for an index up to it.
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
        let mut wakes = WakeList::default();
        for key in reached {
            let (_, replies) = book.parked.remove(&key).expect("it was just there");
            wakes.answer(&replies, key.2, answer(LogIndex(index), true));
        }
        wakes.deliver();
        self.book.changed();
    }

    /// Reports to the server its removal from the quorum. It rejects all parked and future requests
    /// for that reason.
    pub fn hears_of_its_removal(&self) {
        let mut book = self.book.open();
        book.moods.insert(self.id, Mood::Removed);
        let mut wakes = WakeList::default();
        let waiting: Vec<_> = book.parked.keys().filter(|key| key.0 == self.id).copied().collect();
        for key in waiting {
            let (_, replies) = book.parked.remove(&key).expect("it was just there");
            wakes.answer(&replies, key.2, Response::Unavailable(Unavailable::Removed));
        }
        wakes.deliver();
        self.book.changed();
    }

    /// Stops the service: closes the agents' connections and releases the port.
    pub async fn stop(self) {
        self.endpoint.close("the test stops the service").await;
        self.end().await;
    }

    /// Ends without closing connections, like a killed process; the port is released.
    pub async fn kill(self) {
        self.end().await;
    }

    async fn end(mut self) {
        drop(self.runtime);
        self.book.open().forget_readers_of(self.id);
        self.book.changed();
        assert!(self.sender.post(DriverEvent::Stop).is_ok(), "a stop always gets in");
        let driver = self.driver.take().expect("it runs");
        tokio::task::spawn_blocking(|| driver.join().expect("the driver does not panic"))
            .await
            .expect("a thread");
        drop(self.endpoint);
        let deadline = Instant::now() + TIMEOUT;
        while let Err(error) = std::net::UdpSocket::bind(self.address) {
            assert!(Instant::now() < deadline, "the port is not given back: {error}");
            tokio::task::yield_now().await;
        }
    }
}

/// A runtime of one service, so that the service can end between two messages.
#[derive(Debug)]
pub(crate) struct OwnRuntime(Option<Runtime>);

impl OwnRuntime {
    pub(crate) fn new() -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        Self(Some(runtime.expect("a runtime")))
    }

    /// Runs a function in the runtime's context.
    pub(crate) fn run<T>(&self, what: impl FnOnce() -> T) -> T {
        let _inside = self.0.as_ref().expect("it was not dropped").enter();
        what()
    }

    /// Shuts the runtime down; returns when none of its tasks runs any more.
    pub(crate) fn kill(mut self) {
        let runtime = self.0.take().expect("it was not dropped");
        // A runtime waits for its own threads only outside of other runtimes.
        let ended = std::thread::spawn(move || runtime.shutdown_timeout(TIMEOUT)).join();
        ended.expect("a runtime ends");
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        // Dropping a runtime inside another runtime would wait for its threads, and panics instead.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// Returns the registration of an agent with this name.
pub fn registration(node: &str) -> AgentRegistration {
    let node = Node::of(node.into(), "6f2d5f5e-0c3a-4b5e-9d0f-3c1a5c1f7a10".into(), "127.0.0.1");
    AgentRegistration::of(node)
}

fn drive(id: u64, receiver: &EventReceiver, book: &SharedBook) {
    let (mut events, mut wakes) = (Vec::new(), WakeList::default());
    loop {
        receiver.take(&mut events, 1024, Instant::now() + Duration::from_millis(100));
        book.wait("the driver to resume", |book| {
            book.mood_of(id) != Mood::Stuck || book.stopped.contains(&id)
        });
        let mut open = book.open();
        for event in events.drain(..) {
            match event {
                DriverEvent::Stop => return,
                DriverEvent::Call { call, request, replies, .. } => {
                    open.call(id, call, request, &replies, &mut wakes);
                }
                DriverEvent::Frontend(Event::Cancel(CallRef { caller, call })) => {
                    drop(open.parked.remove(&(id, caller, call)));
                }
                DriverEvent::Frontend(Event::Disconnected(from)) => {
                    open.parked.retain(|(at, who, _), _| (*at, *who) != (id, from));
                }
                other => panic!("unexpected event {other:?}"),
            }
        }
        drop(open);
        wakes.deliver();
        book.changed();
    }
}

impl Book {
    /// Makes a server the leader, in a new term that all servers know.
    pub fn elect(&mut self, leader: u64) {
        self.view = View { leader: Some(leader), term: self.view.term + 1 };
    }

    fn forget_readers_of(&mut self, id: u64) {
        self.stopped.insert(id);
        self.parked.retain(|(server, ..), _| *server != id);
    }

    fn mood_of(&self, id: u64) -> Mood {
        self.moods.get(&id).copied().unwrap_or(self.mood)
    }

    fn call(&mut self, id: u64, call: CallId, request: Request, replies: &ReplySink, wakes: &mut WakeList) {
        let response = self.response(id, call, request, replies);
        if let Some(response) = response {
            wakes.answer(replies, call, response);
        }
    }

    fn response(&mut self, id: u64, call: CallId, request: Request, replies: &ReplySink) -> Option<Response> {
        if self.mood_of(id) == Mood::Removed {
            return Some(Response::Unavailable(Unavailable::Removed));
        }
        let view = self.view;
        let for_leader =
            !matches!(request, Request::Status | Request::Read { consistency: Consistency::Stale, .. });
        let may_serve = match request {
            Request::Read { blocking: Some(blocking), .. } if blocking.waits() => view.leader.is_some(),
            // Any server can have a renewal acknowledged by the leader.
            Request::RenewLease(_) | Request::RenewGivingUp(_) => view.leader.is_some(),
            _ => view.leader == Some(id),
        };
        if for_leader && !may_serve {
            let leader = view.leader.and_then(|leader| self.servers.get(&leader)).map(|at| at.to_string());
            return Some(Response::Unavailable(Unavailable::NotLeader { leader }));
        }
        match request {
            Request::Propose(None, Command::RegisterAgent(_)) => Some(self.register()),
            Request::Propose(Some(request), command) => self.propose(id, request, command),
            Request::Renew(_) => Some(Response::Renewed(None)),
            Request::RenewLease(_) | Request::RenewGivingUp(_) => {
                let Renewal { lease, sequence, .. } = *request.renewal()?;
                let (leader, term) = (ServerId(view.leader?), Term(view.term));
                let (shortest, keeps_from) = (None, LogIndex(0));
                Some(Response::LeaseRenewed(LeaseAck { lease, sequence, shortest, keeps_from, leader, term }))
            }
            Request::Read { blocking: Some(blocking), .. } if blocking.waits() => {
                if blocking.index < self.index {
                    return Some(answer(self.index, view.leader.is_some()));
                }
                self.parked.insert((id, replies.caller(), call), (blocking, replies.clone()));
                None
            }
            Request::Read { consistency, .. } => {
                if consistency == Consistency::Stale {
                    *self.stale_reads.entry(id).or_default() += 1;
                }
                Some(answer(self.index, view.leader.is_some()))
            }
            Request::Status => Some(self.status(id, view)),
            _ => Some(Response::Done),
        }
    }

    fn status(&self, id: u64, view: View) -> Response {
        let row = |(id, address): (&u64, &SocketAddr)| ServerStatus {
            id: ServerId(*id),
            node_id: String::new(),
            node: format!("server-{id}"),
            address: address.to_string(),
            voter: true,
            last_index: self.index,
            last_contact: None,
            healthy: true,
            stable_since: None,
            version: String::new(),
        };
        Response::Status(Status {
            // A server that leads has a cluster id.
            cluster_id: "simulated".into(),
            server: ServerId(id),
            leader: view.leader.map(ServerId),
            term: Term(view.term),
            servers: self.servers.iter().map(row).collect(),
            caller: self.generation.map(|_| AgentNumber(7)).filter(|_| view.leader == Some(id)),
            ..Status::default()
        })
    }

    fn register(&mut self) -> Response {
        self.registrations += 1;
        let generation = Generation(self.registrations);
        self.generation = Some(generation);
        self.applied.clear();
        let lease = LeaseId { agent: AgentNumber(7), began: LogIndex(1) };
        let secret = LeaseKey::default().secret(lease);
        let reply = Reply::Agent { number: lease.agent, generation, lease, secret };
        Response::Applied(Applied { index: self.index, reply })
    }

    fn propose(&mut self, server: u64, id: RequestId, command: Command) -> Option<Response> {
        self.proposals.push(id);
        let reply = match command {
            _ if Some(id.generation) != self.generation => Reply::Refused(Refusal::Forgotten),
            Command::DestroySession(session) => {
                self.applied.entry(id.sequence).or_insert(1);
                self.ids.entry(session).or_default().insert((id.generation.0, id.sequence));
                Reply::Session(session)
            }
            _ => Reply::Done,
        };
        (self.mood_of(server) != Mood::Silent)
            .then_some(Response::Applied(Applied { index: self.index, reply }))
    }
}

fn answer(index: LogIndex, known_leader: bool) -> Response {
    let (rows, last_contact) =
        (Rows::Keys(Vec::new()), Duration::from_millis(if known_leader { 0 } else { 12 }));
    Response::Answer(Answer { index, rows, known_leader, last_contact, is_filtered: false })
}

/// Returns the id of the session that tests refer to by this word.
pub fn session_id(word: &str) -> SessionId {
    let mut bytes = [0; 16];
    bytes[..word.len()].copy_from_slice(word.as_bytes());
    SessionId::from_random(bytes)
}

/// Returns a command to which the service replies with the session's own id.
pub fn destroy(session: &str) -> Command {
    Command::DestroySession(session_id(session))
}
