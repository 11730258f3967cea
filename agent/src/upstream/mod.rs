//! The upstream to the quorum: connections, callers and the clock around the agent's
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
//! | `quorum.rs` | the interface of the quorum to the rest of the agent |
//! | `driver.rs` | passes the time and inputs to the client, and executes its effects |
//! | `counters.rs` | counters |
//! | `quic.rs` | one connection to a server |

mod counters;
mod driver;
mod quic;
mod quorum;

pub use counters::UpstreamCounters;
pub use quorum::{BoxFuture, Quorum};

use crate::own_address::OwnAddress;
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
use lockmesh_protocol::gossip::MeshNews;
use lockmesh_protocol::gossip::roster::RosterDigest;
use lockmesh_protocol::id::{LogIndex, NodeName, ServerId, SessionId};
use lockmesh_protocol::lease::{Challenge, LeaseId, NodeLeaseQuery, NodeLeases};
use lockmesh_protocol::query::{Answer, Blocking, Consistency, Query};
use lockmesh_protocol::record::{Autopilot, Session};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{BackupPart, Request, Response, Status, Unavailable};
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The timeout for the servers to confirm that this agent's node leaves.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);

/// The timeout for the servers to confirm an announced restart; shutdown does not wait longer.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_millis(500);

/// The options of the upstream.
#[derive(Clone, Debug)]
pub struct UpstreamOptions {
    /// Servers as `host:port`; names are resolved again at every attempt. A server that answers
    /// reports the others.
    pub servers: Vec<String>,
    /// The identity of this agent.
    pub identity: Identity,
    /// Its registration, sent before all other requests.
    pub registration: AgentRegistration,
    /// The cluster that it belongs to.
    pub cluster: ClusterChoice,
    /// The cluster that registered it in an earlier process.
    pub pin: Option<Pin>,
    /// Its address, which is found again with every connection. The registration holds it.
    pub own_address: OwnAddress,
    /// The store of the cluster that registers it.
    pub pins: Arc<PinStore>,
    /// The hold timeout: the time that a request is retried without a connection or a leader.
    pub hold_time: Duration,
    /// The timeout of a reply from a connected server.
    pub answer_time: Duration,
    /// The time without a reply after which other servers are asked for a new leader.
    pub probe_after: Duration,
    /// The connection's own limits.
    pub quic: QuicOptions,
}

impl UpstreamOptions {
    /// Creates options with the default times and limits.
    pub fn new(servers: Vec<String>, identity: Identity, registration: AgentRegistration) -> Self {
        Self {
            servers,
            identity,
            registration,
            cluster: ClusterChoice::First,
            pin: None,
            own_address: OwnAddress::fixed(Ipv4Addr::LOCALHOST.into()),
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
    /// Creates a handle to this quorum.
    pub fn new(quorum: Arc<dyn Quorum>) -> Self {
        Self(quorum)
    }

    /// Begins to connect and to register, in the background and permanently; must be called within
    /// a runtime.
    ///
    /// # Errors
    /// The UDP socket cannot be opened.
    pub fn start(options: UpstreamOptions) -> io::Result<Self> {
        let endpoint = Endpoint::dial_only(&options.identity, &options.quic)?;
        Ok(Self::start_on(Arc::new(endpoint), options))
    }

    /// The same, on an existing socket. It is closed with the upstream.
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
        Self::new(Driver::start(endpoint, options.pins, options.own_address, config))
    }

    /// Changes the state, exactly once.
    ///
    /// # Errors
    /// Unless [`Unavailable::certainly_not_done`], the command may have been applied, or may be
    /// later. It was retried under one request id within the hold timeout; a further retry is the
    /// caller's decision.
    pub async fn propose(&self, command: Command) -> Result<Applied, Unavailable> {
        match self.0.clone().call(LocalCall::Propose(command)).await? {
            Answered::Response(Response::Applied(applied)) => Ok(applied),
            other => Err(misfit(other)),
        }
    }

    /// Acquires a lock, or waits in its queue for up to `wait`. Returns the reply of an acquire,
    /// and the index of the enqueue. Dropping the future gives up the position.
    ///
    /// # Errors
    /// Unless [`Unavailable::certainly_not_done`], the lock may have been granted to the session:
    /// the owner of the session must release the lock, or end the session.
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

    /// Ends a session. The agent retries that until it is done, even if the future is dropped. For
    /// a session that was given up, the future only waits for the order to be accepted.
    ///
    /// # Errors
    /// The servers have not reported the outcome within the hold timeout. The agent keeps retrying,
    /// unless the session is [certain](Unavailable::certainly_not_done) to remain because too many
    /// are being ended.
    pub async fn end_session(&self, session: SessionId, reason: EndReason) -> Result<(), Unavailable> {
        match self.0.clone().call(LocalCall::EndSession { session, reason }).await? {
            Answered::Response(Response::Applied(_) | Response::Done) => Ok(()),
            other => Err(misfit(other)),
        }
    }

    /// Reads from the state. A blocking read shares one upstream request with all identical ones.
    ///
    /// # Errors
    /// No server answered in time, or none may. Nothing was changed: retry, unless the answer is
    /// too long.
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

    /// Keeps a session alive; returns `None` if there is no session with that id.
    ///
    /// # Errors
    /// Unless [`Unavailable::certainly_not_done`], the TTL may have been restarted. Renewing again
    /// is safe.
    pub async fn renew(&self, session: SessionId) -> Result<Option<Arc<Session>>, Unavailable> {
        match self.ask(Request::Renew(session)).await? {
            Response::Renewed(session) => Ok(session),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns the quorum as the nearest server sees it. Fails at once while this agent is not
    /// connected.
    ///
    /// # Errors
    /// No server is connected, or it does not answer. Nothing was changed.
    pub async fn status(&self) -> Result<Status, Unavailable> {
        match self.0.clone().call(LocalCall::AskHome(Request::Status)).await? {
            Answered::Response(Response::Status(status)) => Ok(status),
            other => Err(misfit(other)),
        }
    }

    /// Returns what this agent lacks of the mesh, from the nearest server, or from the leader if
    /// that server does not know this agent.
    ///
    /// # Errors
    /// No server is connected, or it does not answer. Nothing was changed.
    pub async fn sync_mesh(&self, digest: RosterDigest) -> Result<MeshNews, Unavailable> {
        let request = Request::SyncMesh(digest);
        let answered = match self.0.clone().call(LocalCall::AskHome(request.clone())).await {
            // A follower that lags has not applied the registration; the leader has.
            Err(Unavailable::Denied(_)) => self.0.clone().call(LocalCall::Ask(request)).await?,
            answered => answered?,
        };
        match answered {
            Answered::Response(Response::Mesh(news)) => Ok(*news),
            other => Err(misfit(other)),
        }
    }

    /// Reports failed probes of these leases to the nearest server.
    ///
    /// # Errors
    /// No server is connected, or it does not accept the report. The suspicion may have reached the
    /// leader.
    pub async fn accuse(&self, leases: Vec<LeaseId>) -> Result<(), Unavailable> {
        match self.0.clone().call(LocalCall::AskHome(Request::Accuse(leases))).await? {
            Answered::Response(Response::Done) => Ok(()),
            other => Err(misfit(other)),
        }
    }

    /// Sends an event of this host to the nearest server, for hosts that gossip does not reach.
    ///
    /// # Errors
    /// No server is connected, or it does not accept the event. It may spread in any case.
    pub async fn spread_event(&self, item: Bytes) -> Result<(), Unavailable> {
        match self.0.clone().call(LocalCall::AskHome(Request::Spread(item))).await? {
            Answered::Response(Response::Done) => Ok(()),
            other => Err(misfit(other)),
        }
    }

    /// Returns the lease under which this agent is registered now.
    pub fn registered_lease(&self) -> Option<LeaseId> {
        self.0.registered_lease()
    }

    /// Returns the quorum as its leader sees it. Only the leader knows the state of the other
    /// servers.
    ///
    /// # Errors
    /// No leader answered. Nothing was changed.
    pub async fn leader_status(&self) -> Result<Status, Unavailable> {
        match self.ask(Request::Status).await? {
            Response::Status(status) if status.leader == Some(status.server) => Ok(status),
            // It was the leader when the request was sent, and no longer knows the state of the
            // others.
            Response::Status(_) => Err(Unavailable::NotLeader { leader: None }),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns the autopilot configuration, and the index at which it was set; 0 for the default.
    ///
    /// # Errors
    /// No leader answered. Nothing was changed.
    pub async fn autopilot(&self) -> Result<(Autopilot, LogIndex), Unavailable> {
        match self.ask(Request::Autopilot).await? {
            Response::Autopilot(autopilot, index) => Ok((autopilot, index)),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns the lease of a node, or a part of the leases of all nodes.
    ///
    /// # Errors
    /// No leader answered, and no other server knows. Nothing was changed.
    pub async fn node_leases(&self, query: NodeLeaseQuery) -> Result<NodeLeases, Unavailable> {
        match self.ask(Request::NodeLeases(query)).await? {
            Response::NodeLeases(leases) => Ok(leases),
            other => Err(unexpected(&other)),
        }
    }

    /// Transfers leadership to another server.
    ///
    /// # Errors
    /// [`Unavailable::Denied`] carries the reason why the leader stays. Unless
    /// [`Unavailable::certainly_not_done`], the leadership may still be transferred: check
    /// [`Self::leader_status`].
    pub async fn transfer_leader(&self, to: Option<ServerId>) -> Result<(), Unavailable> {
        self.ask(Request::TransferLeader(to)).await.map(|_| ())
    }

    /// Asks the server at `address`, which belongs to no quorum yet, to join the quorum of
    /// `servers`.
    ///
    /// # Errors
    /// [`Unavailable::Denied`] carries the reason why the server does not join. Unless
    /// [`Unavailable::certainly_not_done`], it may still join: check [`Self::leader_status`].
    pub async fn invite(&self, address: &str, servers: Vec<String>) -> Result<(), Unavailable> {
        match self.0.clone().invite(address.into(), servers).await? {
            Response::Done => Ok(()),
            Response::Unavailable(unavailable) => Err(unavailable),
            other => Err(unexpected(&other)),
        }
    }

    /// Checks that a server of this agent's cluster answers at `address`, which is `host:port`; the
    /// agent knows it from then on.
    ///
    /// # Errors
    /// [`Unavailable::Denied`] carries the reason. The agent knows the same servers as before.
    pub async fn join(&self, address: &str) -> Result<(), Unavailable> {
        self.0.clone().join(address.into()).await
    }

    /// Removes this agent's node from the cluster: its sessions end. The agent does not register
    /// again. Dropping the future leaves it in that state, so only a process that exits may do so.
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
            // For its own lease, only an attempt whose reply was dropped is refused.
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

    /// Applies another choice of this agent's cluster.
    pub fn choose_cluster(&self, choice: ClusterChoice) {
        self.0.clone().choose_cluster(choice);
    }

    /// Makes another node leave the cluster, unless the leader knows that it is alive.
    ///
    /// # Errors
    /// Unless [`Unavailable::certainly_not_done`], the node may have left. A retry is safe: if its
    /// agent is back, the node stays.
    pub async fn force_leave(&self, node: NodeName, prune: bool) -> Result<Applied, Unavailable> {
        self.propose(Command::LeaveNode(NodeLeave { node, lease: None, prune })).await
    }

    /// Announces a restart of this agent: the servers extend its window once, and the lease carries
    /// the time until which that is certain. Without a reply in time, the normal window must be
    /// assumed.
    pub async fn announce_restart(&self) {
        let Some(lease) = self.0.registered_lease() else { return };
        let announced = self.propose(Command::AnnounceRestart(lease));
        match tokio::time::timeout(ANNOUNCE_TIMEOUT, announced).await {
            Ok(Ok(Applied { reply: Reply::Succeeded(true), .. })) => {
                tracing::info!("the servers keep this node's sessions for a restart");
            }
            Ok(Ok(_)) => tracing::warn!("cannot announce the restart: this node's lease has ended"),
            Ok(Err(reason)) => tracing::warn!(%reason, "cannot announce the restart to the servers"),
            Err(_) => tracing::warn!("cannot announce the restart: the servers do not answer"),
        }
    }

    /// Removes a server from the quorum.
    ///
    /// # Errors
    /// [`Unavailable::Denied`] carries the reason why the quorum keeps the server. Unless
    /// [`Unavailable::certainly_not_done`], the server may be removed: check
    /// [`Self::leader_status`].
    pub async fn remove_server(&self, server: ServerId) -> Result<(), Unavailable> {
        self.ask(Request::RemoveServer(server)).await.map(|_| ())
    }

    /// Returns a part of a backup; the first part begins it.
    ///
    /// # Errors
    /// No server returned the part. The state is unchanged, but the parts read so far are not a
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

    /// Answers a challenge of a server.
    pub async fn answer_challenge(&self, challenge: Challenge) -> Response {
        match self.0.clone().challenge(challenge).await {
            Ok(Answered::Response(response)) => response,
            Ok(other) => Response::Unavailable(misfit(other)),
            Err(reason) => Response::Unavailable(reason),
        }
    }

    /// Returns the node's lease, now and from now on. Its times are those of `CLOCK_BOOTTIME`.
    pub fn lease(&self) -> watch::Receiver<LeaseState> {
        self.0.lease()
    }

    /// Returns `true` if the agent has registered since it started.
    pub fn is_registered(&self) -> bool {
        self.0.is_registered()
    }

    /// Uses other certificates for the next connection.
    pub fn replace_identity(&self, identity: &Identity) {
        self.0.replace_identity(identity);
    }

    /// Returns the reasons why this agent cannot serve requests now, as far as it knows; empty if
    /// it can.
    pub fn not_ready(&self) -> Vec<NotReady> {
        self.0.not_ready()
    }

    /// Returns the counters, if there are any.
    pub fn counters(&self) -> Option<&UpstreamCounters> {
        self.0.counters()
    }

    /// Returns the work under way.
    pub fn load(&self) -> Load {
        self.0.load()
    }

    /// Answers blocking reads with the current state, now and from now on: the agent is shutting
    /// down.
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
            unreachable!("no server is invited")
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
