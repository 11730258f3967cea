//! The driver of the agent's [`QuorumClient`]: passes it the time and the inputs, and executes its
//! effects.
//!
//! There is no task between a caller and its connection: each input takes the lock for a few
//! microseconds, and leaves calls in the connections' queues and replies with their callers. One
//! task serves timers. Its clock also counts suspends, because the servers' windows do: a lease
//! that paused meanwhile would be trusted too long. **Invariant:** a caller that is dropped, or
//! cannot receive its reply, cancels its call.

use super::counters::UpstreamCounters;
use super::quic::QuicConnection;
use super::quorum::{BoxFuture, Quorum};
use crate::boot_clock::BootClock;
use crate::own_address::OwnAddress;
use crate::pin::PinStore;
use lockmesh_agent_core::cluster::ClusterChoice;
use lockmesh_agent_core::lease::LeaseState;
use lockmesh_agent_core::quorum_client::{
    Answered, CallToken, ConnectionEnd, ConnectionId, Counts, Input, Load, LocalCall, NotReady, Notice,
    Outbox, QuorumClient, QuorumClientConfig,
};
use lockmesh_agent_core::request_ids::Registration;
use lockmesh_net::CallClient;
use lockmesh_net::random::seed;
use lockmesh_net::{Endpoint, Identity, LinkError};
use lockmesh_protocol::acl::Caller;
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::lease::{Challenge, LeaseId};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Call, Request, Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};

type Answer = Result<Answered, Unavailable>;

/// The timeout for a server that is invited or joined.
const INVITE_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct Driver {
    state: Mutex<ChannelState>,
    endpoint: Arc<Endpoint>,
    /// The store of the cluster that registers the agent.
    pins: Arc<PinStore>,
    own_address: OwnAddress,
    counters: UpstreamCounters,
    /// Signals that the next wake-up moved to an earlier time.
    earlier: Notify,
    /// The node as which the agent registers.
    node: String,
    /// Callers may be dropped outside of a runtime.
    runtime: Handle,
    /// The node's lease, which guards rely on.
    lease: watch::Sender<LeaseState>,
    /// The number of times that a leader was found.
    leaders: watch::Sender<u64>,
    /// The number of times that the catalog may have lost what this node had registered.
    catalog_losses: watch::Sender<u64>,
}

#[derive(Debug)]
struct ChannelState {
    client: QuorumClient,
    outbox: Outbox,
    connections: BTreeMap<ConnectionId, Arc<QuicConnection>>,
    callers: HashMap<CallToken, oneshot::Sender<Answer>>,
    last_token: u64,
    /// The time of the next wake-up without further input.
    wakes_at: Option<Time>,
    /// The counts that the counters show.
    counted: Counts,
}

impl Driver {
    /// Begins to connect and to register; must be called within a runtime.
    pub(super) fn start(
        endpoint: Arc<Endpoint>,
        pins: Arc<PinStore>,
        own_address: OwnAddress,
        config: QuorumClientConfig,
    ) -> Arc<Self> {
        warn_of_any(&config.cluster);
        let node = config.registration.node.name.to_string();
        let state = ChannelState {
            client: QuorumClient::new(config, seed(), BootClock::default().now()),
            outbox: Outbox::default(),
            connections: BTreeMap::new(),
            callers: HashMap::new(),
            last_token: 0,
            wakes_at: None,
            counted: Counts::default(),
        };
        let this = Arc::new(Self {
            state: Mutex::new(state),
            endpoint,
            pins,
            own_address,
            counters: UpstreamCounters::default(),
            earlier: Notify::new(),
            node,
            runtime: Handle::current(),
            lease: watch::Sender::default(),
            leaders: watch::Sender::default(),
            catalog_losses: watch::Sender::default(),
        });
        this.handle(Input::Tick);
        tokio::spawn(this.clone().pass_time());
        this
    }

    fn begin(
        self: &Arc<Self>,
        input: impl FnOnce(CallToken) -> Input,
        caller: oneshot::Sender<Answer>,
    ) -> CallToken {
        let mut state = self.lock();
        state.last_token += 1;
        let token = CallToken(state.last_token);
        // Before the client handles the call: its reply may come out of this very turn.
        state.callers.insert(token, caller);
        self.drive(state, input(token));
        token
    }

    /// Passes an input to the client, and executes the effects.
    fn handle(self: &Arc<Self>, input: Input) {
        self.drive(self.lock(), input);
    }

    /// Handles a connection that ended or could not be made.
    fn ended(self: &Arc<Self>, connection: ConnectionId, end: ConnectionEnd) {
        let mut state = self.lock();
        // First, so that the turn that follows adds no call to a queue without a reader.
        state.connections.remove(&connection);
        self.drive(state, Input::Ended(connection, end));
    }

    /// Uses a connection until it ends or is closed.
    async fn use_connection(self: Arc<Self>, connection: Arc<QuicConnection>) {
        let ended = connection
            .run(&self.endpoint, &self.own_address, &self.counters, |input| self.handle(input))
            .await;
        if let Some(end) = ended {
            self.ended(connection.id(), end);
        }
    }

    async fn pass_time(self: Arc<Self>) {
        loop {
            let wakes_at = {
                let state = self.lock();
                if state.client.is_closed() {
                    return;
                }
                state.wakes_at
            };
            let Some(wakes_at) = wakes_at else {
                self.earlier.notified().await;
                continue;
            };
            tokio::select! {
                // After a suspend, the rest of this sleep remains; renewals of the lease keep that
                // short.
                () = tokio::time::sleep(wakes_at.since(BootClock::default().now())) => {
                    let mut state = self.lock();
                    // The time has passed: any wake-up that comes out of this turn counts as
                    // earlier.
                    state.wakes_at = None;
                    self.drive(state, Input::Tick);
                }
                () = self.earlier.notified() => {}
            }
        }
    }

    fn drive(self: &Arc<Self>, mut state: MutexGuard<'_, ChannelState>, input: Input) {
        let mut answers = Vec::new();
        let mut inputs = VecDeque::new();
        let mut next = Some(input);
        while let Some(input) = next {
            let ChannelState { client, outbox, .. } = &mut *state;
            client.handle(BootClock::default().now(), input, outbox);
            self.carry_out(&mut state, &mut inputs, &mut answers);
            // Executing effects may create inputs, and the client may have work left.
            next = inputs.pop_front().or_else(|| state.client.has_more().then_some(Input::Tick));
        }
        self.count(&mut state);
        self.show_lease(state.client.lease());
        let wakes_at = state.client.wakes_at();
        // A later time is not signalled: the timer finds it when it fires.
        if wakes_at.is_some_and(|at| state.wakes_at.is_none_or(|known| at < known))
            || state.client.is_closed()
        {
            state.wakes_at = wakes_at;
            self.earlier.notify_one();
        }
        // A caller that wakes up may call again at once, and must not find the lock taken.
        drop(state);
        for (caller, answer) in answers {
            // A caller that was just dropped needs no reply; it releases a grant itself.
            let _ = caller.send(answer);
        }
    }

    /// Executes the client's effects. The resulting inputs are passed to it next.
    fn carry_out(
        self: &Arc<Self>,
        state: &mut ChannelState,
        inputs: &mut VecDeque<Input>,
        answers: &mut Vec<(oneshot::Sender<Answer>, Answer)>,
    ) {
        let ChannelState { outbox, connections, callers, .. } = state;
        for dial in outbox.connect.drain(..) {
            let connection = QuicConnection::new(dial.connection, dial.address);
            self.runtime.spawn(self.clone().use_connection(connection.clone()));
            connections.insert(dial.connection, connection);
        }
        for (id, call) in outbox.calls.drain(..) {
            let Some(connection) = connections.get(&id) else { continue };
            match (connection.send(&call), call) {
                (Ok(false), _) => {}
                (Ok(true), _) => inputs.push_back(Input::Backlog(id, true)),
                // It fits into no frame of any connection: the client has to report that to the
                // caller.
                (Err(error), Call::Begin(call, _) | Call::BeginAs(call, ..)) => {
                    inputs.push_back(Input::Unsendable(id, call, error.to_string()));
                }
                (Err(_), Call::Cancel(_)) => unreachable!("a cancel is short"),
            }
        }
        for id in outbox.disconnect.drain(..) {
            if let Some(connection) = connections.remove(&id) {
                connection.end();
            }
        }
        let heard = outbox.answers.drain(..);
        answers.extend(heard.filter_map(|(token, answer)| Some((callers.remove(&token)?, answer))));
        outbox.notices.drain(..).for_each(|notice| self.log(notice));
    }

    /// Makes a connection for calls to the server at an address, known or not.
    async fn connect(&self, address: &str) -> Result<CallClient, Unavailable> {
        let connected = CallClient::connect_to(&self.endpoint, address).await;
        connected.map_err(|error| {
            Unavailable::Denied(match &error {
                // A common mistake of users of clusters in which any member can be joined.
                LinkError::Stranger(reason) => format!(
                    "{address} is no server of this cluster: {reason}; by default a server's port is 8300"
                ),
                _ => format!("no server is reached at {address}: {error}"),
            })
        })
    }

    fn count(&self, state: &mut ChannelState) {
        let counts = *state.client.counts();
        // A turn that only delivers replies changes no count: then nothing shared is written.
        if state.counted == counts {
            return;
        }
        state.counted = counts;
        self.counters.attempts.store(counts.attempts, Ordering::Relaxed);
        self.counters.retries.store(counts.retries, Ordering::Relaxed);
        self.counters.reconnects.store(counts.reconnects, Ordering::Relaxed);
        self.counters.registrations.store(counts.registrations, Ordering::Relaxed);
        self.counters.questions.store(counts.questions, Ordering::Relaxed);
        self.counters.leaders.store(counts.leaders, Ordering::Relaxed);
        self.counters.renewals.store(counts.renewals, Ordering::Relaxed);
        self.counters.renewals_acknowledged.store(counts.renewals_acknowledged, Ordering::Relaxed);
        self.counters.challenges.store(counts.challenges, Ordering::Relaxed);
    }

    /// Publishes the lease; its watchers are woken only if it changed.
    fn show_lease(&self, lease: &LeaseState) {
        self.lease.send_if_modified(|shown| {
            let is_new = shown != lease;
            if is_new {
                shown.clone_from(lease);
            }
            is_new
        });
    }

    fn log(&self, notice: Notice) {
        match notice {
            Notice::LeaderFound(server) => {
                tracing::info!(%server, "found the leader");
                self.leaders.send_modify(|count| *count += 1);
            }
            Notice::LeaderLost => tracing::warn!("lost the leader; no other leader is known"),
            Notice::Registered { registration: Registration { number, generation, .. }, cluster } => {
                let (agent, generation) = (number.0, generation.0);
                tracing::info!(agent, generation, node = %self.node, cluster, "registered");
                // The node may have been removed with its services.
                if self.counters.registrations.load(Ordering::Relaxed) > 0 {
                    self.catalog_losses.send_modify(|count| *count += 1);
                }
            }
            Notice::NotRegistered(reason) => {
                tracing::warn!(%reason, "this agent is not registered yet; retrying");
            }
            Notice::Pinned(pin) => {
                tracing::info!(cluster = pin.cluster_id, index_base = pin.index_base, "pinned the cluster");
                self.pins.note(pin);
                // Outside of the driver: the disk may be slow.
                let pins = Arc::clone(&self.pins);
                self.runtime.spawn_blocking(move || pins.write());
            }
            Notice::ClusterMismatch(reason) => tracing::error!("{reason}"),
            Notice::ClusterMismatchOver => {
                tracing::info!("all reachable servers belong to this agent's cluster again");
            }
            Notice::ConnectionFailed(reason) => {
                tracing::warn!(%reason, "cannot reach a server; retrying");
            }
            Notice::MayStayGranted(key, session, reason) => {
                tracing::warn!(%key, %session, %reason, "a lock may be granted without a waiting caller");
            }
            Notice::Restored => {
                tracing::info!("a backup was restored since this agent started: comparing with the catalog");
                self.catalog_losses.send_modify(|count| *count += 1);
            }
            Notice::LeaseLost(reason) => {
                tracing::warn!(%reason, node = %self.node, "the servers ended the lease of this node");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, ChannelState> {
        // The client handles an input completely or panics. A panic is a bug, and other callers
        // need not fail with it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Quorum for Driver {
    fn call(self: Arc<Self>, caller: Caller, call: LocalCall) -> BoxFuture<Answer> {
        Box::pin(async move {
            let (sender, receiver) = oneshot::channel();
            let token = self.begin(|token| Input::Call(token, caller, call), sender);
            let mut waiting = CancelOnDrop { driver: &self, token, is_over: false };
            let answer = receiver.await;
            waiting.is_over = true;
            // A caller is dropped without a reply only during shutdown.
            let answer = answer.unwrap_or_else(|_| Err(shutting_down()));
            // Only from here on the caller owns the lock; an undelivered grant is released.
            if let Ok(Answered::Acquired(_, Applied { reply, .. })) = &answer
                && matches!(reply, Reply::Granted { .. } | Reply::GrantedAll(_))
            {
                self.handle(Input::Heard(token));
            }
            answer
        })
    }

    fn invite(
        self: Arc<Self>,
        address: String,
        servers: Vec<String>,
    ) -> BoxFuture<Result<Response, Unavailable>> {
        Box::pin(async move {
            let mut client = self.connect(&address).await?;
            // The server may have received the request from here on; without its reply, the outcome
            // is unknown.
            client.call(Request::Invite(servers), INVITE_TIMEOUT).await.map_err(|error| {
                let what = format!("the server at {address} was asked to join and did not reply ({error})");
                Unavailable::Unknown(what)
            })
        })
    }

    fn challenge(self: Arc<Self>, challenge: Challenge) -> BoxFuture<Answer> {
        Box::pin(async move {
            let (sender, receiver) = oneshot::channel();
            self.begin(|token| Input::Challenge(token, challenge), sender);
            // The reply came out of that very turn.
            receiver.await.unwrap_or_else(|_| Err(shutting_down()))
        })
    }

    fn lease(&self) -> watch::Receiver<LeaseState> {
        self.lease.subscribe()
    }

    fn leaders(&self) -> watch::Receiver<u64> {
        self.leaders.subscribe()
    }

    fn catalog_losses(&self) -> watch::Receiver<u64> {
        self.catalog_losses.subscribe()
    }

    fn join(self: Arc<Self>, address: String) -> BoxFuture<Result<(), Unavailable>> {
        Box::pin(async move {
            let mut client = self.connect(&address).await?;
            let answer = client.call(Request::Status, INVITE_TIMEOUT).await;
            let Ok(Response::Status(status)) = answer else {
                return Err(Unavailable::Denied(format!("the server at {address} does not identify itself")));
            };
            if status.server == ServerId::default() {
                return Err(Unavailable::Denied(format!("the server at {address} belongs to no quorum yet")));
            }
            let state = self.lock();
            let ours = state.client.cluster_id();
            if !ours.is_empty() && ours != status.cluster_id {
                let (theirs, ours) = (status.cluster_id, ours.to_owned());
                return Err(Unavailable::Denied(format!(
                    "the server at {address} belongs to the cluster {theirs}, but this agent to {ours}"
                )));
            }
            self.drive(state, Input::AddServer(address));
            Ok(())
        })
    }

    fn registered_lease(&self) -> Option<LeaseId> {
        self.lock().client.registered_lease()
    }

    fn is_new_agent(&self) -> bool {
        self.lock().client.is_new_agent()
    }

    fn begin_leaving(self: Arc<Self>) -> Option<LeaseId> {
        let state = self.lock();
        // In one turn with the check, so that no registration comes between the two.
        let lease = state.client.registered_lease()?;
        self.drive(state, Input::Leave);
        Some(lease)
    }

    fn stay(self: Arc<Self>, may_have_left: bool) {
        self.handle(Input::Stay { may_have_left });
    }

    fn has_left(self: Arc<Self>) -> BoxFuture<()> {
        Box::pin(async move {
            let pins = Arc::clone(&self.pins);
            // It never panics. If the runtime ends, the file stays, with a pin that was correct.
            let _ = tokio::task::spawn_blocking(move || pins.forget()).await;
        })
    }

    fn choose_cluster(self: Arc<Self>, choice: ClusterChoice) {
        warn_of_any(&choice);
        self.handle(Input::ChooseCluster(choice));
    }

    fn set_node_meta(self: Arc<Self>, meta: BTreeMap<String, String>) {
        self.handle(Input::NodeMeta(meta));
    }

    fn is_registered(&self) -> bool {
        self.lock().client.registration().is_some()
    }

    fn not_ready(&self) -> Vec<NotReady> {
        self.lock().client.not_ready()
    }

    fn counters(&self) -> Option<&UpstreamCounters> {
        Some(&self.counters)
    }

    fn load(&self) -> Load {
        self.lock().client.load()
    }

    fn replace_identity(&self, identity: &Identity) {
        self.endpoint.replace_identity(identity);
    }

    fn hurry(self: Arc<Self>) {
        self.handle(Input::Hurry);
    }

    fn close(self: Arc<Self>) -> BoxFuture<()> {
        Box::pin(async move {
            self.handle(Input::Close);
            self.endpoint.close("the agent is shutting down").await;
        })
    }
}

/// Warns about an agent that follows any cluster: a holder in another cluster may have the same
/// lock.
fn warn_of_any(choice: &ClusterChoice) {
    if *choice == ClusterChoice::Any {
        tracing::warn!(
            "`upstream.cluster_id` is \"any\": this agent follows any cluster that answers, and two clusters may \
             grant one lock"
        );
    }
}

fn shutting_down() -> Unavailable {
    Unavailable::Unknown("the agent is shutting down".into())
}

/// Cancels a call when its caller is dropped before it received the reply.
struct CancelOnDrop<'a> {
    driver: &'a Arc<Driver>,
    token: CallToken,
    is_over: bool,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let mut state = self.driver.lock();
            state.callers.remove(&self.token);
            self.driver.drive(state, Input::Cancel(self.token));
        }
    }
}
