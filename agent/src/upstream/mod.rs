//! The way to the quorum: connections, callers and the clock around the agent's
//! [`QuorumClient`](lockmesh_agent_core::quorum_client), which decides.
//!
//! ```text
//! caller ──▶ driver ──▶ QuorumClient ──▶ connection's queue ──▶ frames
//!    ▲         │ ▲                                                │
//!    └─ answer ┘ └─────────────────── answers ◀───────────────────┘
//! ```
//!
//! | file | is |
//! |---|---|
//! | `mod.rs` | the handle that the rest of the agent uses |
//! | `quorum.rs` | what the rest of the agent needs of the quorum, whoever plays it |
//! | `driver.rs` | gives the client the time, tells it what happens, carries out what comes back |
//! | `counters.rs` | what is counted on the way |
//! | `quic.rs` | one connection to a server |

mod counters;
mod driver;
mod quic;
mod quorum;

pub use counters::UpstreamCounters;
pub use quorum::{BoxFuture, Quorum};

use crate::pin::PinStore;
use bytes::Bytes;
use driver::Driver;
use lockmesh_agent_core::cluster::{ClusterChoice, Pin};
use lockmesh_agent_core::lease::LeaseState;
use lockmesh_agent_core::quorum_client::{
    Answered, EndReason, Load, LocalCall, NotReady, QuorumClientConfig, unexpected,
};
use lockmesh_net::{Endpoint, Identity, QuicOptions};
use lockmesh_protocol::command::{AgentRegistration, Command, NewEntry, NodeLeave};
use lockmesh_protocol::gossip::mesh::MeshNews;
use lockmesh_protocol::gossip::roster::RosterDigest;
use lockmesh_protocol::id::{LogIndex, NodeName, ServerId, SessionId};
use lockmesh_protocol::lease::{Challenge, LeaseId, NodeLeaseQuery, NodeLeases};
use lockmesh_protocol::query::{Answer, Blocking, Consistency, Query};
use lockmesh_protocol::record::{Autopilot, Session};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{BackupPart, Request, Response, Status, Unavailable};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How long the servers may take to hear that this agent's node leaves.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long they may take to hear that it stops for a moment: the end does not wait for more.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_millis(500);

/// What the way to the quorum needs to know.
#[derive(Clone, Debug)]
pub struct UpstreamOptions {
    /// Servers as `host:port`; names are looked up anew at every attempt. One that answers tells of
    /// the others.
    pub servers: Vec<String>,
    /// Who this agent is.
    pub identity: Identity,
    /// How it registers before anything else.
    pub registration: AgentRegistration,
    /// The cluster that it belongs to.
    pub cluster: ClusterChoice,
    /// The cluster that registered it in an earlier process.
    pub pin: Option<Pin>,
    /// Where the cluster is kept that registers it.
    pub pins: Arc<PinStore>,
    /// How long a request is tried while there is no connection or no leader.
    pub hold_time: Duration,
    /// How long an answer is waited for from a server that is there.
    pub answer_time: Duration,
    /// After how long without an answer other servers are asked whether the leader is another one
    /// by now.
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
            cluster: ClusterChoice::First,
            pin: None,
            pins: Arc::default(),
            hold_time: Duration::from_secs(7),
            answer_time: Duration::from_secs(60),
            probe_after: Duration::from_millis(100),
            quic: QuicOptions::default(),
        }
    }
}

/// A handle to the quorum, cheap to clone.
#[derive(Clone, Debug)]
pub struct Upstream(Arc<dyn Quorum>);

impl Upstream {
    /// A handle to this quorum.
    pub fn new(quorum: Arc<dyn Quorum>) -> Self {
        Self(quorum)
    }

    /// Begins to connect and to register, in the background and for ever; must be called within a
    /// runtime.
    ///
    /// # Errors
    /// There can be no UDP socket.
    pub fn start(options: UpstreamOptions) -> io::Result<Self> {
        let endpoint = Endpoint::dial_only(&options.identity, &options.quic)?;
        Ok(Self::start_on(Arc::new(endpoint), options))
    }

    /// The same from a socket that there is. It is closed with the upstream.
    pub fn start_on(endpoint: Arc<Endpoint>, options: UpstreamOptions) -> Self {
        let config = QuorumClientConfig {
            servers: options.servers,
            registration: options.registration,
            cluster: options.cluster,
            pin: options.pin,
            hold_time: options.hold_time,
            answer_time: options.answer_time,
            probe_after: options.probe_after,
        };
        Self::new(Driver::start(endpoint, options.pins, config))
    }

    /// Changes the state, exactly once.
    ///
    /// # Errors
    /// Unless [`Unavailable::certainly_not_done`], the command may have been applied, or may be
    /// yet. It was tried under one request id for as long as it may be held: whether to ask again
    /// is for whoever asked.
    pub async fn propose(&self, command: Command) -> Result<Applied, Unavailable> {
        match self.0.clone().call(LocalCall::Propose(command)).await? {
            Answered::Response(Response::Applied(applied)) => Ok(applied),
            other => Err(misfit(other)),
        }
    }

    /// Takes a lock, or waits in its queue for up to `wait`; answered as an acquire is, and with
    /// the index at which the lock was asked for. To drop the future is to give up the position.
    ///
    /// # Errors
    /// Unless [`Unavailable::certainly_not_done`], the lock may have been granted to the session:
    /// whoever owns the session releases the lock, or ends the session.
    pub async fn acquire(
        &self,
        new: NewEntry,
        session: SessionId,
        wait: Duration,
    ) -> Result<(LogIndex, Applied), Unavailable> {
        match self.0.clone().call(LocalCall::Acquire { new, session, wait }).await? {
            Answered::Acquired(mark, applied) => Ok((mark, applied)),
            other => Err(misfit(other)),
        }
    }

    /// Ends a session. The agent retries that until it is done, also when the future is dropped; of
    /// one that was given up only the order is awaited.
    ///
    /// # Errors
    /// The servers have not reported the outcome within the hold timeout. The agent goes on, unless
    /// the session is [certain](Unavailable::certainly_not_done) to live because too many are being
    /// ended.
    pub async fn end_session(&self, session: SessionId, reason: EndReason) -> Result<(), Unavailable> {
        match self.0.clone().call(LocalCall::EndSession { session, reason }).await? {
            Answered::Response(Response::Applied(_) | Response::Done) => Ok(()),
            other => Err(misfit(other)),
        }
    }

    /// Asks the state. A blocking read shares one upstream request with all others like it.
    ///
    /// # Errors
    /// No server answered in time, or none may. Nothing was changed: ask again, unless the answer
    /// is too long.
    pub async fn read(
        &self,
        query: Query,
        consistency: Consistency,
        blocking: Option<Blocking>,
    ) -> Result<Arc<Answer>, Unavailable> {
        match self.0.clone().call(LocalCall::Read { query, consistency, blocking }).await? {
            Answered::Response(Response::Answer(answer)) => Ok(Arc::new(answer)),
            Answered::Shared(answer) => Ok(answer),
            other => Err(misfit(other)),
        }
    }

    /// Keeps a session alive; `None` when there is none of that id.
    ///
    /// # Errors
    /// Unless [`Unavailable::certainly_not_done`], the TTL may have begun anew. To renew again is
    /// safe.
    pub async fn renew(&self, session: SessionId) -> Result<Option<Arc<Session>>, Unavailable> {
        match self.ask(Request::Renew(session)).await? {
            Response::Renewed(session) => Ok(session),
            other => Err(unexpected(&other)),
        }
    }

    /// The quorum as the nearest server sees it. Fails at once while this agent is not connected.
    ///
    /// # Errors
    /// No server is connected, or it does not answer. Nothing was changed.
    pub async fn status(&self) -> Result<Status, Unavailable> {
        match self.0.clone().call(LocalCall::AskHome(Request::Status)).await? {
            Answered::Response(Response::Status(status)) => Ok(status),
            other => Err(misfit(other)),
        }
    }

    /// What this agent lacks of the mesh, from the nearest server, or from the leader where that
    /// one does not know this agent.
    ///
    /// # Errors
    /// No server is connected, or it does not answer. Nothing was changed.
    pub async fn sync_mesh(&self, digest: RosterDigest) -> Result<MeshNews, Unavailable> {
        let request = Request::SyncMesh(digest);
        let answered = match self.0.clone().call(LocalCall::AskHome(request.clone())).await {
            // A follower that lags has not heard of the registration; the leader has.
            Err(Unavailable::Denied(_)) => self.0.clone().call(LocalCall::Ask(request)).await?,
            answered => answered?,
        };
        match answered {
            Answered::Response(Response::Mesh(news)) => Ok(*news),
            other => Err(misfit(other)),
        }
    }

    /// Tells the nearest server that these were probed in vain.
    ///
    /// # Errors
    /// No server is connected, or it does not take it. The accusation may have come to the leader.
    pub async fn accuse(&self, leases: Vec<LeaseId>) -> Result<(), Unavailable> {
        match self.0.clone().call(LocalCall::AskHome(Request::Accuse(leases))).await? {
            Answered::Response(Response::Done) => Ok(()),
            other => Err(misfit(other)),
        }
    }

    /// Tells the nearest server an event of this host, for those whom gossip does not reach.
    ///
    /// # Errors
    /// No server is connected, or it does not take it. It may be on its way all the same.
    pub async fn spread_event(&self, item: Bytes) -> Result<(), Unavailable> {
        match self.0.clone().call(LocalCall::AskHome(Request::Spread(item))).await? {
            Answered::Response(Response::Done) => Ok(()),
            other => Err(misfit(other)),
        }
    }

    /// The lease under which this agent is registered now.
    pub fn registered_lease(&self) -> Option<LeaseId> {
        self.0.registered_lease()
    }

    /// The quorum as its leader sees it, which alone knows how the others are.
    ///
    /// # Errors
    /// No leader answered. Nothing was changed.
    pub async fn leader_status(&self) -> Result<Status, Unavailable> {
        match self.ask(Request::Status).await? {
            Response::Status(status) if status.leader == Some(status.server) => Ok(status),
            // It led when it was asked, and does not know now how the others are.
            Response::Status(_) => Err(Unavailable::NotLeader { leader: None }),
            other => Err(unexpected(&other)),
        }
    }

    /// How the leader looks after the servers, and the index at which somebody said so; 0 for the
    /// default.
    ///
    /// # Errors
    /// No leader answered. Nothing was changed.
    pub async fn autopilot(&self) -> Result<(Autopilot, LogIndex), Unavailable> {
        match self.ask(Request::Autopilot).await? {
            Response::Autopilot(autopilot, index) => Ok((autopilot, index)),
            other => Err(unexpected(&other)),
        }
    }

    /// How the lease of a node stands, or a part of those of all nodes.
    ///
    /// # Errors
    /// No leader answered, which alone knows. Nothing was changed.
    pub async fn node_leases(&self, query: NodeLeaseQuery) -> Result<NodeLeases, Unavailable> {
        match self.ask(Request::NodeLeases(query)).await? {
            Response::NodeLeases(leases) => Ok(leases),
            other => Err(unexpected(&other)),
        }
    }

    /// Hands leadership to another server.
    ///
    /// # Errors
    /// [`Unavailable::Denied`] says why the leader stays. Unless
    /// [`Unavailable::certainly_not_done`], the leadership may pass on all the same:
    /// [`Self::leader_status`] tells.
    pub async fn transfer_leader(&self, to: Option<ServerId>) -> Result<(), Unavailable> {
        self.ask(Request::TransferLeader(to)).await.map(|_| ())
    }

    /// Tells the server at `address`, which belongs to no quorum yet, to join the one that
    /// `servers` are of.
    ///
    /// # Errors
    /// [`Unavailable::Denied`] says why the server does not join. Unless
    /// [`Unavailable::certainly_not_done`], it may be joining all the same: [`Self::leader_status`]
    /// tells.
    pub async fn invite(&self, address: &str, servers: Vec<String>) -> Result<(), Unavailable> {
        match self.0.clone().invite(address.into(), servers).await? {
            Response::Done => Ok(()),
            Response::Unavailable(unavailable) => Err(unavailable),
            other => Err(unexpected(&other)),
        }
    }

    /// Looks whether a server of this agent's cluster answers at `address`, which is `host:port`;
    /// the agent knows it from then on.
    ///
    /// # Errors
    /// [`Unavailable::Denied`] says why not. The agent knows the servers that it knew before.
    pub async fn join(&self, address: &str) -> Result<(), Unavailable> {
        self.0.clone().join(address.into()).await
    }

    /// Takes this agent's node out of the cluster: its sessions end. The agent does not register
    /// again. To drop the future is to leave that so: only a process that ends may.
    ///
    /// # Errors
    /// The node stays. Unless [`Unavailable::certainly_not_done`], it may have left, and its
    /// sessions may have ended: then the agent registers it again.
    pub async fn leave(&self, node: &NodeName) -> Result<(), Unavailable> {
        let Some(lease) = self.0.clone().begin_leaving() else {
            return Err(Unavailable::NotLeader { leader: None });
        };
        let leave = NodeLeave { node: node.clone(), lease: Some(lease), prune: false };
        let proposal = self.propose(Command::LeaveNode(leave));
        let applied = tokio::time::timeout(LEAVE_TIMEOUT, proposal).await.unwrap_or_else(|_| {
            Err(Unavailable::Unknown(format!("the servers did not answer for {} s", LEAVE_TIMEOUT.as_secs())))
        });
        let outcome = match applied.map(|applied| applied.reply) {
            // Of its own lease: only an attempt whose answer was forgotten is refused.
            Ok(Reply::Refused(refusal)) => Err(Unavailable::Unknown(refusal.to_string())),
            Ok(_) => Ok(()),
            Err(unavailable) => Err(unavailable),
        };
        if outcome.is_ok() {
            self.0.clone().has_left().await;
        }
        if let Err(unavailable) = &outcome {
            self.0.clone().stay(!unavailable.certainly_not_done());
        }
        outcome
    }

    /// Takes another choice of this agent's cluster into use.
    pub fn choose_cluster(&self, choice: ClusterChoice) {
        self.0.clone().choose_cluster(choice);
    }

    /// Makes another node leave the cluster, unless the leader knows that it lives.
    ///
    /// # Errors
    /// Unless [`Unavailable::certainly_not_done`], the node may have left. To try again is safe:
    /// if its agent is back, the node lives.
    pub async fn force_leave(&self, node: NodeName, prune: bool) -> Result<Applied, Unavailable> {
        self.propose(Command::LeaveNode(NodeLeave { node, lease: None, prune })).await
    }

    /// Says that this agent stops for a moment: the servers wait longer for it, once, and the lease
    /// says until when that is believed. Where they do not answer at once, they wait as for any
    /// other as far as anybody knows.
    pub async fn announce_restart(&self) {
        let Some(lease) = self.0.registered_lease() else { return };
        let announced = self.propose(Command::AnnounceRestart(lease));
        match tokio::time::timeout(ANNOUNCE_TIMEOUT, announced).await {
            Ok(Ok(Applied { reply: Reply::Succeeded(true), .. })) => {
                tracing::info!("the servers keep this node's sessions for a restart");
            }
            Ok(Ok(_)) => tracing::warn!("the servers do not wait for this node: its lease has ended"),
            Ok(Err(reason)) => tracing::warn!(%reason, "cannot announce the restart to the servers"),
            Err(_) => tracing::warn!("cannot announce the restart: the servers do not answer"),
        }
    }

    /// Takes a server out of the quorum.
    ///
    /// # Errors
    /// [`Unavailable::Denied`] says why the quorum keeps the server. Unless
    /// [`Unavailable::certainly_not_done`], the server may be gone: [`Self::leader_status`] tells.
    pub async fn remove_server(&self, server: ServerId) -> Result<(), Unavailable> {
        self.ask(Request::RemoveServer(server)).await.map(|_| ())
    }

    /// A part of a backup; the first one begins it.
    ///
    /// # Errors
    /// No server gave the part. Nothing of the state was changed, but what was read so far is no
    /// backup: begin a new one.
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

    /// Answers a server that asks whether this agent lives.
    pub async fn answer_challenge(&self, challenge: Challenge) -> Response {
        match self.0.clone().challenge(challenge).await {
            Ok(Answered::Response(response)) => response,
            Ok(other) => Response::Unavailable(misfit(other)),
            Err(reason) => Response::Unavailable(reason),
        }
    }

    /// What may be believed of the node's lease, now and from now on. Its times are those of
    /// `CLOCK_BOOTTIME`.
    pub fn lease(&self) -> watch::Receiver<LeaseState> {
        self.0.lease()
    }

    /// Whether the agent has registered since it started.
    pub fn is_registered(&self) -> bool {
        self.0.is_registered()
    }

    /// Uses other certificates for the next connection.
    pub fn replace_identity(&self, identity: &Identity) {
        self.0.replace_identity(identity);
    }

    /// Why this agent cannot have requests answered now, as far as it knows itself; nothing where
    /// it can.
    pub fn not_ready(&self) -> Vec<NotReady> {
        self.0.not_ready()
    }

    /// What was counted, where anything is.
    pub fn counters(&self) -> Option<&UpstreamCounters> {
        self.0.counters()
    }

    /// How much is under way now.
    pub fn load(&self) -> Load {
        self.0.load()
    }

    /// Lets blocking reads be answered with what there is, now and from now on: the agent is about
    /// to stop.
    pub fn hurry(&self) {
        self.0.clone().hurry();
    }

    /// Ends all connections and every request under way.
    pub async fn close(&self) {
        self.0.clone().close().await;
    }

    async fn ask(&self, request: Request) -> Result<Response, Unavailable> {
        match self.0.clone().call(LocalCall::Ask(request)).await? {
            Answered::Response(response) => Ok(response),
            other => Err(misfit(other)),
        }
    }
}

fn misfit(answered: Answered) -> Unavailable {
    match answered {
        Answered::Response(response) => unexpected(&response),
        Answered::Shared(_) | Answered::Acquired(..) => unreachable!("each call has its own kind of answer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_protocol::gossip::event::LamportTime;
    use lockmesh_protocol::gossip::roster::RosterNews;
    use lockmesh_protocol::gossip::seal::KeyRing;
    use lockmesh_protocol::gossip::verdict::VerdictSigner;
    use lockmesh_protocol::lease::LeaseKey;

    /// A home server that does not know the agent, and a leader that may.
    #[derive(Debug)]
    struct Lagging {
        leader_knows: bool,
    }

    impl Quorum for Lagging {
        fn call(self: Arc<Self>, call: LocalCall) -> BoxFuture<Result<Answered, Unavailable>> {
            let denied = Err(Unavailable::Denied("ask again soon, or register first".into()));
            let answer = match call {
                LocalCall::Ask(Request::SyncMesh(_)) if self.leader_knows => {
                    Ok(Answered::Response(Response::Mesh(Box::new(news()))))
                }
                _ => denied,
            };
            Box::pin(std::future::ready(answer))
        }

        fn invite(
            self: Arc<Self>,
            _address: String,
            _servers: Vec<String>,
        ) -> BoxFuture<Result<Response, Unavailable>> {
            unreachable!("nobody is invited")
        }
    }

    fn news() -> MeshNews {
        MeshNews {
            as_of: LogIndex(0),
            seconds: 7,
            ring: KeyRing::derived(&LeaseKey::default(), 0),
            verdict_key: VerdictSigner::new([1; 32]).key(),
            roster: RosterNews::default(),
            items: Vec::new(),
            event_time: LamportTime(0),
        }
    }

    #[tokio::test]
    async fn an_agent_that_its_home_server_does_not_know_yet_asks_the_leader() {
        let sync = async |leader_knows| {
            let upstream = Upstream::new(Arc::new(Lagging { leader_knows }));
            upstream.sync_mesh(RosterDigest(Vec::new())).await
        };
        assert_eq!(sync(true).await, Ok(news()));
        assert!(matches!(sync(false).await, Err(Unavailable::Denied(_))), "it is to register first");
    }
}
