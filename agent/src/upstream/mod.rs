//! The way to the quorum: finds the leader, retries under one request id, tells "no" from "unknown".
//!
//! ```text
//! request ──▶ quorum ──▶ fleet's routes ──▶ leader's link ──▶ table ──▶ frames
//!               ▲ │                    └──▶ home's link         │
//!               │ └ NotLeader, Lost: again, under the same id   │ a call unanswered for 100 ms, NotLeader,
//!               └────────── new routes ── tracker ◀─────────────┘ a lost connection, every Status
//! ```
//!
//! What it decides lies in `agent/core`, as pure values; start with its `leader_tracker.rs`.
//!
//! | file | is |
//! |---|---|
//! | `mod.rs` | the handle that the rest of the agent uses |
//! | `quorum.rs` | requests, and when each may be tried again |
//! | `queue.rs` | waits for locks, and what becomes of them when nobody waits any more |
//! | `flights.rs` | blocking reads that share one upstream call |
//! | `sequences.rs` | request ids for tasks that wait for one |
//! | `fleet.rs` | the links, and what each is for: does what the tracker says |
//! | `registrar.rs` | the agent's registration with the leader |
//! | `link.rs` | the connection to one server, kept as long as it is wanted |
//! | `stranger.rs` | one question to a server that need not belong to the quorum |
//! | `table.rs` | calls that wait for an answer, frames that wait to be sent |

mod fleet;
mod flights;
mod link;
mod queue;
mod quorum;
mod registrar;
mod sequences;
mod stranger;
mod table;

use lockmesh_net::{Identity, QuicOptions};
use lockmesh_protocol::command::{AgentRegistration, Command};
use lockmesh_protocol::id::{LogIndex, ServerId, SessionId};
use lockmesh_protocol::query::{Answer, Blocking, Consistency, Query};
use lockmesh_protocol::record::{Autopilot, Session};
use lockmesh_protocol::reply::Applied;
use lockmesh_protocol::rpc::{BackupPart, Request, Response, Status, Unavailable};
use quorum::Quorum;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// A request on its way, and where its response goes. A dropped receiver cancels it.
pub type Exchange = (Request, oneshot::Sender<Response>);

/// What the way to the quorum needs to know.
#[derive(Clone, Debug)]
pub struct UpstreamOptions {
    /// Servers as `host:port`; names are looked up anew at every attempt. One that answers tells of the others.
    pub servers: Vec<String>,
    /// Who this agent is.
    pub identity: Identity,
    /// How it registers before anything else.
    pub registration: AgentRegistration,
    /// How long a request is tried while there is no connection or no leader.
    pub hold_time: Duration,
    /// How long an answer is waited for from a server that is there.
    pub answer_time: Duration,
    /// After how long without an answer other servers are asked whether the leader is another one by now.
    pub probe_after: Duration,
    /// The connection's own limits.
    pub quic: QuicOptions,
}

impl UpstreamOptions {
    /// The usual times and limits.
    pub fn new(servers: Vec<String>, identity: Identity, registration: AgentRegistration) -> Self {
        Self {
            servers,
            identity,
            registration,
            hold_time: Duration::from_secs(7),
            answer_time: Duration::from_secs(60),
            probe_after: Duration::from_millis(100),
            quic: QuicOptions::default(),
        }
    }
}

/// What is counted on the way, for metrics; everything only grows.
#[derive(Debug, Default)]
pub struct UpstreamCounters {
    /// Calls that were sent or would have been.
    pub attempts: AtomicU64,
    /// Attempts after the first one of a request.
    pub retries: AtomicU64,
    /// Frames of calls that were sent.
    pub call_frames: AtomicU64,
    /// Frames of answers that arrived.
    pub reply_frames: AtomicU64,
    /// Attempts to connect after the first one.
    pub reconnects: AtomicU64,
    /// Registrations of this agent.
    pub registrations: AtomicU64,
    /// Questions for a server's status that this agent had itself.
    pub questions: AtomicU64,
    /// How often a leader was found.
    pub leaders: AtomicU64,
}

/// How much is under way now, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpstreamLoad {
    /// Calls that wait for an answer.
    pub calls: usize,
    /// From the oldest command under way to the next one; at most 4,096.
    pub command_span: usize,
    /// Upstream calls of blocking reads.
    pub shared_reads: usize,
    /// Local waiters that share them.
    pub waiters: usize,
}

/// A handle to the quorum, cheap to clone.
#[derive(Clone, Debug)]
pub struct Upstream(Way);

#[derive(Clone, Debug)]
enum Way {
    Channel(mpsc::Sender<Exchange>),
    Quorum(Arc<Quorum>),
}

impl Upstream {
    /// A handle whose requests are answered by whoever receives from the other end of this channel.
    pub fn from_channel(exchanges: mpsc::Sender<Exchange>) -> Self {
        Self(Way::Channel(exchanges))
    }

    /// Begins to connect and to register, in the background and for ever; must be called within a runtime.
    /// Fails only if there can be no UDP socket.
    pub fn start(options: UpstreamOptions) -> io::Result<Self> {
        Ok(Self(Way::Quorum(Quorum::start(options)?)))
    }

    /// Changes the state, exactly once.
    pub async fn propose(&self, command: Command) -> Result<Applied, Unavailable> {
        match &self.0 {
            Way::Quorum(quorum) => quorum.propose(command).await,
            Way::Channel(channel) => match exchange(channel, Request::Propose(None, command)).await? {
                Response::Applied(applied) => Ok(applied),
                other => Err(unexpected(&other)),
            },
        }
    }

    /// Asks the state. A blocking read shares one upstream request with all others like it.
    pub async fn read(
        &self,
        query: Query,
        consistency: Consistency,
        blocking: Option<Blocking>,
    ) -> Result<Arc<Answer>, Unavailable> {
        match &self.0 {
            Way::Quorum(quorum) => quorum.read(query, consistency, blocking).await,
            Way::Channel(channel) => {
                match exchange(channel, Request::Read { query, consistency, blocking }).await? {
                    Response::Answer(answer) => Ok(Arc::new(answer)),
                    other => Err(unexpected(&other)),
                }
            }
        }
    }

    /// Keeps a session alive; `None` when there is none of that id.
    pub async fn renew(&self, session: SessionId) -> Result<Option<Arc<Session>>, Unavailable> {
        match self.ask(Request::Renew(session)).await? {
            Response::Renewed(session) => Ok(session),
            other => Err(unexpected(&other)),
        }
    }

    /// The quorum as the nearest server sees it. Fails at once while this agent is not connected.
    pub async fn status(&self) -> Result<Status, Unavailable> {
        let response = match &self.0 {
            Way::Quorum(quorum) => quorum.ask_now(&Request::Status).await?,
            Way::Channel(channel) => exchange(channel, Request::Status).await?,
        };
        match response {
            Response::Status(status) => Ok(status),
            other => Err(unexpected(&other)),
        }
    }

    /// The quorum as its leader sees it, which alone knows how the others are.
    pub async fn leader_status(&self) -> Result<Status, Unavailable> {
        match self.ask(Request::Status).await? {
            Response::Status(status) if status.leader == Some(status.server) => Ok(status),
            Response::Status(_) => Err(Unavailable::NotLeader { leader: None }),
            other => Err(unexpected(&other)),
        }
    }

    /// How the leader looks after the servers, and the index at which somebody said so; 0 for the default.
    pub async fn autopilot(&self) -> Result<(Autopilot, LogIndex), Unavailable> {
        match self.ask(Request::Autopilot).await? {
            Response::Autopilot(autopilot, index) => Ok((autopilot, index)),
            other => Err(unexpected(&other)),
        }
    }

    /// Hands leadership to another server.
    pub async fn transfer_leader(&self, to: Option<ServerId>) -> Result<(), Unavailable> {
        self.ask(Request::TransferLeader(to)).await.map(|_| ())
    }

    /// Tells the server at `address`, which belongs to no quorum yet, to join the one that `servers` are of.
    pub async fn invite(&self, address: &str, servers: Vec<String>) -> Result<(), Unavailable> {
        let request = Request::Invite(servers);
        let response = match &self.0 {
            Way::Quorum(quorum) => {
                stranger::ask(&quorum.fleet.endpoint, address, &request).await.map_err(|reason| {
                    Unavailable::Denied(format!("no server is reached at {address}: {reason}"))
                })?
            }
            Way::Channel(channel) => exchange(channel, request).await?,
        };
        match response {
            Response::Done => Ok(()),
            Response::Unavailable(unavailable) => Err(unavailable),
            other => Err(unexpected(&other)),
        }
    }

    /// Takes a server out of the quorum.
    pub async fn remove_server(&self, server: ServerId) -> Result<(), Unavailable> {
        self.ask(Request::RemoveServer(server)).await.map(|_| ())
    }

    /// A part of a backup; the first one begins it.
    pub async fn backup_part(
        &self,
        backup: Option<u64>,
        number: u32,
        stale: bool,
    ) -> Result<BackupPart, Unavailable> {
        match self.ask(Request::BackupPart { backup, number, stale }).await? {
            Response::BackupPart(part) => Ok(part),
            other => Err(unexpected(&other)),
        }
    }

    /// Whether the agent has registered since it started.
    pub fn is_registered(&self) -> bool {
        match &self.0 {
            Way::Quorum(quorum) => quorum.fleet.sequences.registration().is_some(),
            Way::Channel(_) => true,
        }
    }

    /// Uses other certificates for the next connection.
    pub fn replace_identity(&self, identity: &Identity) {
        if let Way::Quorum(quorum) = &self.0 {
            quorum.fleet.endpoint.replace_identity(identity);
        }
    }

    /// What was counted; none for a channel.
    pub fn counters(&self) -> Option<&UpstreamCounters> {
        match &self.0 {
            Way::Quorum(quorum) => Some(&quorum.fleet.counters),
            Way::Channel(_) => None,
        }
    }

    /// How much is under way now.
    pub fn load(&self) -> UpstreamLoad {
        let Way::Quorum(quorum) = &self.0 else { return UpstreamLoad::default() };
        let (shared_reads, waiters) = quorum.flights.counts();
        let (calls, command_span) = (quorum.fleet.calls(), quorum.fleet.sequences.span());
        UpstreamLoad { calls, command_span, shared_reads, waiters }
    }

    /// Lets blocking reads be answered with what there is, now and from now on: the agent is about to stop.
    pub fn hurry(&self) {
        if let Way::Quorum(quorum) = &self.0 {
            quorum.hurry();
        }
    }

    /// Ends all connections and every request under way.
    pub async fn close(&self) {
        if let Way::Quorum(quorum) = &self.0 {
            quorum.fleet.close().await;
        }
    }

    async fn ask(&self, request: Request) -> Result<Response, Unavailable> {
        match &self.0 {
            Way::Quorum(quorum) => quorum.ask(&request, Some(quorum.deadline())).await,
            Way::Channel(channel) => exchange(channel, request).await,
        }
    }
}

async fn exchange(channel: &mpsc::Sender<Exchange>, request: Request) -> Result<Response, Unavailable> {
    let (sender, receiver) = oneshot::channel();
    let gone = || Unavailable::Unknown("the agent is shutting down".into());
    channel.send((request, sender)).await.map_err(|_| gone())?;
    match receiver.await.map_err(|_| gone())? {
        Response::Unavailable(unavailable) => Err(unavailable),
        response => Ok(response),
    }
}

fn unexpected(response: &Response) -> Unavailable {
    Unavailable::Unknown(format!("the server answered something else: {response:?}"))
}

/// A seed for what shall differ from agent to agent: a fresh hasher's keys differ each time, and that is all it needs.
fn seed() -> u64 {
    RandomState::new().hash_one(0u8)
}
