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
//! | `calls.rs` | the calls, each with its answer |
//! | `parts.rs` | answers of any size |
//! | `quorum.rs` | the interface of the quorum to the rest of the agent |
//! | `driver.rs` | passes the time and inputs to the client, and executes its effects |
//! | `counters.rs` | counters |
//! | `quic.rs` | one connection to a server |

pub mod calls;
mod counters;
mod driver;
pub mod parts;
mod quic;
mod quorum;

pub use counters::UpstreamCounters;
pub use quorum::{BoxFuture, Quorum};

use crate::own_address::OwnAddress;
use crate::pin::PinStore;
use calls::{Call, StatusOf, SyncMesh};
use driver::Driver;
use lockmesh_agent_core::cluster::{ClusterChoice, Pin};
use lockmesh_agent_core::lease::LeaseState;
use lockmesh_agent_core::quorum_client::{Answered, Load, NotReady, QuorumClientConfig, unexpected};
use lockmesh_net::{Endpoint, Identity, QuicOptions};
use lockmesh_protocol::acl::Caller;
use lockmesh_protocol::command::{AgentRegistration, Command, NodeLeave};
use lockmesh_protocol::gossip::MeshNews;
use lockmesh_protocol::gossip::roster::RosterDigest;
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::lease::{Challenge, LeaseId};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Response, Status, Unavailable};
use std::collections::BTreeMap;
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
pub struct Upstream {
    quorum: Arc<dyn Quorum>,
    /// The identity with which calls are sent.
    caller: Caller,
}

impl Upstream {
    /// Creates a handle to this quorum, for calls of the agent itself.
    pub fn new(quorum: Arc<dyn Quorum>) -> Self {
        Self { quorum, caller: Caller::Agent }
    }

    /// Returns a handle whose calls are judged by the rights of this caller.
    #[must_use]
    pub fn for_caller(&self, caller: Caller) -> Self {
        Self { quorum: Arc::clone(&self.quorum), caller }
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

    /// Makes a call; commands are applied exactly once.
    ///
    /// # Errors
    /// Unless [`Unavailable::certainly_not_done`], the call may have been done, or may be later. It
    /// was retried within the hold timeout, a command under one request id; a further retry is the
    /// caller's decision.
    pub async fn call<C: Call>(&self, call: C) -> Result<C::Answer, Unavailable> {
        C::answer(self.quorum.clone().call(self.caller.clone(), call.local_call()).await?).map_err(misfit)
    }

    /// Returns what this agent lacks of the mesh, from the nearest server, or from the leader if
    /// that server does not know this agent.
    ///
    /// # Errors
    /// No server is connected, or it does not answer. Nothing was changed.
    pub async fn sync_mesh(&self, digest: RosterDigest) -> Result<MeshNews, Unavailable> {
        match self.call(SyncMesh { digest: digest.clone(), from_leader: false }).await {
            // A follower that lags has not applied the registration; the leader has.
            Err(Unavailable::Denied(_)) => self.call(SyncMesh { digest, from_leader: true }).await,
            answer => answer,
        }
    }

    /// Returns the quorum as its leader sees it. Only the leader knows the state of the other
    /// servers.
    ///
    /// # Errors
    /// No leader answered. Nothing was changed.
    pub async fn leader_status(&self) -> Result<Status, Unavailable> {
        let status = self.call(StatusOf::Leader).await?;
        if status.leader == Some(status.server) {
            return Ok(status);
        }
        // It was the leader when the request was sent, and no longer knows the state of the others.
        Err(Unavailable::NotLeader { leader: None })
    }

    /// Returns the lease under which this agent is registered now.
    pub fn registered_lease(&self) -> Option<LeaseId> {
        self.quorum.registered_lease()
    }

    /// Returns `true` once this agent has registered, if no process of it came before this one.
    pub fn is_new_agent(&self) -> bool {
        self.quorum.is_new_agent()
    }

    /// Asks the server at `address`, which belongs to no quorum yet, to join the quorum of
    /// `servers`.
    ///
    /// # Errors
    /// [`Unavailable::Denied`] carries the reason why the server does not join. Unless
    /// [`Unavailable::certainly_not_done`], it may still join: check [`Self::leader_status`].
    pub async fn invite(&self, address: &str, servers: Vec<String>) -> Result<(), Unavailable> {
        match self.quorum.clone().invite(address.into(), servers).await? {
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
        self.quorum.clone().join(address.into()).await
    }

    /// Removes this agent's node from the cluster: its sessions end. The agent does not register
    /// again. Dropping the future leaves it in that state, so only a process that exits may do so.
    ///
    /// # Errors
    /// The node stays. Unless [`Unavailable::certainly_not_done`], it may have left, and its
    /// sessions may have ended: then the agent registers it again.
    pub async fn leave(&self, node: &NodeName) -> Result<(), Unavailable> {
        let Some(lease) = self.quorum.clone().begin_leaving() else {
            return Err(Unavailable::NotLeader { leader: None });
        };
        let leave = NodeLeave { node: node.clone(), lease: Some(lease), prune: false };
        let proposal = self.call(Command::LeaveNode(leave));
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
            self.quorum.clone().has_left().await;
        }
        if let Err(unavailable) = &outcome {
            self.quorum.clone().stay(!unavailable.certainly_not_done());
        }
        outcome
    }

    /// Applies another choice of this agent's cluster.
    pub fn choose_cluster(&self, choice: ClusterChoice) {
        self.quorum.clone().choose_cluster(choice);
    }

    /// Registers this agent's node again with this metadata, once no command is under way.
    pub fn set_node_meta(&self, meta: BTreeMap<String, String>) {
        self.quorum.clone().set_node_meta(meta);
    }

    /// Announces a restart of this agent: the servers extend its window once, and the lease carries
    /// the time until which that is certain. Without a reply in time, the normal window must be
    /// assumed.
    pub async fn announce_restart(&self) {
        let Some(lease) = self.quorum.registered_lease() else { return };
        let announced = self.call(Command::AnnounceRestart(lease));
        match tokio::time::timeout(ANNOUNCE_TIMEOUT, announced).await {
            Ok(Ok(Applied { reply: Reply::Succeeded(true), .. })) => {
                tracing::info!("the servers keep this node's sessions for a restart");
            }
            Ok(Ok(_)) => tracing::warn!("cannot announce the restart: this node's lease has ended"),
            Ok(Err(reason)) => tracing::warn!(%reason, "cannot announce the restart to the servers"),
            Err(_) => tracing::warn!("cannot announce the restart: the servers do not answer"),
        }
    }

    /// Answers a challenge of a server.
    pub async fn answer_challenge(&self, challenge: Challenge) -> Response {
        match self.quorum.clone().challenge(challenge).await {
            Ok(Answered::Response(response)) => response,
            Ok(other) => Response::Unavailable(misfit(other)),
            Err(reason) => Response::Unavailable(reason),
        }
    }

    /// Returns the node's lease, now and from now on. Its times are those of `CLOCK_BOOTTIME`.
    pub fn lease(&self) -> watch::Receiver<LeaseState> {
        self.quorum.lease()
    }

    /// Returns the number of times that a leader was found, now and from now on.
    pub fn leaders(&self) -> watch::Receiver<u64> {
        self.quorum.leaders()
    }

    /// Returns the number of times that the catalog may have lost what this node had registered.
    pub fn catalog_losses(&self) -> watch::Receiver<u64> {
        self.quorum.catalog_losses()
    }

    /// Returns `true` if the agent has registered since it started.
    pub fn is_registered(&self) -> bool {
        self.quorum.is_registered()
    }

    /// Uses other certificates for the next connection.
    pub fn replace_identity(&self, identity: &Identity) {
        self.quorum.replace_identity(identity);
    }

    /// Returns the reasons why this agent cannot serve requests now, as far as it knows; empty if
    /// it can.
    pub fn not_ready(&self) -> Vec<NotReady> {
        self.quorum.not_ready()
    }

    /// Returns the counters, if there are any.
    pub fn counters(&self) -> Option<&UpstreamCounters> {
        self.quorum.counters()
    }

    /// Returns the work under way.
    pub fn load(&self) -> Load {
        self.quorum.load()
    }

    /// Answers blocking reads with the current state, now and from now on: the agent is shutting
    /// down.
    pub fn hurry(&self) {
        self.quorum.clone().hurry();
    }

    /// Ends all connections and every request under way.
    pub async fn close(&self) {
        self.quorum.clone().close().await;
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
    use lockmesh_agent_core::quorum_client::LocalCall;
    use lockmesh_protocol::gossip::event::LamportTime;
    use lockmesh_protocol::gossip::roster::RosterNews;
    use lockmesh_protocol::gossip::seal::KeyRing;
    use lockmesh_protocol::gossip::verdict::VerdictSigner;
    use lockmesh_protocol::id::LogIndex;
    use lockmesh_protocol::lease::LeaseKey;
    use lockmesh_protocol::rpc::Request;

    /// A home server that does not know the agent, and a leader that may.
    #[derive(Debug)]
    struct Lagging {
        leader_knows: bool,
    }

    impl Quorum for Lagging {
        fn call(self: Arc<Self>, _: Caller, call: LocalCall) -> BoxFuture<Result<Answered, Unavailable>> {
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
    async fn mesh_sync_falls_back_to_leader() {
        let sync = async |leader_knows| {
            let upstream = Upstream::new(Arc::new(Lagging { leader_knows }));
            upstream.sync_mesh(RosterDigest(Vec::new())).await
        };
        assert_eq!(sync(true).await, Ok(news()));
        assert!(matches!(sync(false).await, Err(Unavailable::Denied(_))), "it is to register first");
    }
}
