//! The driver of the agent's [`QuorumClient`]: gives it the time, tells it what happens, carries
//! out what comes back.
//!
//! There is no task between a caller and its connection: whoever has something to tell takes the
//! lock for some microseconds, and leaves calls in the connections' queues and answers with their
//! callers. One task looks at the clock, which goes on while the host is suspended: the servers'
//! windows do so too, and a lease that stood still meanwhile would be believed in too long.
//! **Invariant:** a caller that goes away, or never hears its answer, cancels its call.

use super::counters::UpstreamCounters;
use super::quic::QuicConnection;
use super::quorum::{BoxFuture, Quorum};
use crate::boot_clock::BootClock;
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

/// How long a server that is invited, or joined, may take to answer.
const INVITE_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct Driver {
    state: Mutex<ChannelState>,
    endpoint: Arc<Endpoint>,
    /// Where the cluster is kept that registers the agent.
    pins: Arc<PinStore>,
    counters: UpstreamCounters,
    /// The clock has to be looked at earlier than was thought.
    earlier: Notify,
    /// As which node the agent registers.
    node: String,
    /// Callers may go away where there is no runtime.
    runtime: Handle,
    /// What guards may believe, as the client says.
    lease: watch::Sender<LeaseState>,
}

#[derive(Debug)]
struct ChannelState {
    client: QuorumClient,
    outbox: Outbox,
    connections: BTreeMap<ConnectionId, Arc<QuicConnection>>,
    callers: HashMap<CallToken, oneshot::Sender<Answer>>,
    last_token: u64,
    /// When the clock is looked at, if nothing happens.
    wakes_at: Option<Time>,
    /// The counts that the counters show.
    counted: Counts,
}

impl Driver {
    /// Begins to connect and to register; must be called within a runtime.
    pub(super) fn start(
        endpoint: Arc<Endpoint>,
        pins: Arc<PinStore>,
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
            counters: UpstreamCounters::default(),
            earlier: Notify::new(),
            node,
            runtime: Handle::current(),
            lease: watch::Sender::default(),
        });
        this.handle(Input::Tick);
        tokio::spawn(this.clone().look_at_the_clock());
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
        // Before the client hears of it: the answer may come out of this very turn.
        state.callers.insert(token, caller);
        self.drive(state, input(token));
        token
    }

    /// Tells the client something, and does what it says then.
    fn handle(self: &Arc<Self>, input: Input) {
        self.drive(self.lock(), input);
    }

    /// A connection ended by itself, or could not be made.
    fn ended(self: &Arc<Self>, connection: ConnectionId, end: ConnectionEnd) {
        let mut state = self.lock();
        // First, so that the turn which follows puts no call into a queue that nobody empties.
        state.connections.remove(&connection);
        self.drive(state, Input::Ended(connection, end));
    }

    /// Uses a connection until it ends or is given up.
    async fn use_connection(self: Arc<Self>, connection: Arc<QuicConnection>) {
        let ended = connection.run(&self.endpoint, &self.counters, |input| self.handle(input)).await;
        if let Some(end) = ended {
            self.ended(connection.id(), end);
        }
    }

    async fn look_at_the_clock(self: Arc<Self>) {
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
                // A host that is suspended has the rest of its sleep before it when it wakes up;
                // renewals of the lease keep that short.
                () = tokio::time::sleep(wakes_at.since(BootClock::default().now())) => {
                    let mut state = self.lock();
                    // It has passed: whatever time comes out of this turn counts as earlier.
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
            // Carrying out may give the client something to hear, and the client may have a rest to
            // do.
            next = inputs.pop_front().or_else(|| state.client.has_more().then_some(Input::Tick));
        }
        self.count(&mut state);
        self.show_lease(state.client.lease());
        let wakes_at = state.client.wakes_at();
        // Later is never told: the clock finds out by itself.
        if wakes_at.is_some_and(|at| state.wakes_at.is_none_or(|known| at < known))
            || state.client.is_closed()
        {
            state.wakes_at = wakes_at;
            self.earlier.notify_one();
        }
        // A caller that wakes up may call again at once, and must not find the lock taken by us.
        drop(state);
        for (caller, answer) in answers {
            // A caller that has just left wants no answer; where it has to give something back, it
            // does so itself.
            let _ = caller.send(answer);
        }
    }

    /// Does what the client says. What follows from that is to be told it next.
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
                // No frame of any connection can carry it: the client has to tell the caller.
                (Err(error), Call::Begin(call, _)) => {
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

    /// A connection for calls to the server at an address, whether it is known or not.
    async fn connect(&self, address: &str) -> Result<CallClient, Unavailable> {
        let connected = CallClient::connect_to(&self.endpoint, address).await;
        connected.map_err(|error| {
            // The habit of clusters where any member will do.
            let hint = match &error {
                LinkError::Stranger(_) => {
                    ": name a server of this cluster, not an agent; by default its port is 8300"
                }
                _ => "",
            };
            Unavailable::Denied(format!("no server is reached at {address}: {error}{hint}"))
        })
    }

    fn count(&self, state: &mut ChannelState) {
        let counts = *state.client.counts();
        // Turns that only bring answers count nothing here: then nothing shared is written.
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

    /// Whoever watches the lease is woken only where it changed.
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
            Notice::LeaderFound(server) => tracing::info!(%server, "found the leader"),
            Notice::LeaderLost => tracing::warn!("lost the leader: no server is known to lead"),
            Notice::Registered { registration: Registration { number, generation, .. }, cluster } => {
                let (agent, generation) = (number.0, generation.0);
                tracing::info!(agent, generation, node = %self.node, cluster, "registered");
            }
            Notice::NotRegistered(reason) => {
                tracing::warn!(%reason, "this agent is not registered yet; retrying");
            }
            Notice::Pinned(pin) => {
                tracing::info!(cluster = pin.cluster_id, index_base = pin.index_base, "pinned the cluster");
                self.pins.note(pin);
                // Beside the driver: the disk may take its time.
                let pins = Arc::clone(&self.pins);
                self.runtime.spawn_blocking(move || pins.write());
            }
            Notice::ClusterMismatch(reason) => tracing::error!("{reason}"),
            Notice::ClusterMismatchOver => {
                tracing::info!("all servers that answer are of this agent's cluster again");
            }
            Notice::ConnectionFailed(reason) => {
                tracing::warn!(%reason, "cannot reach a server; retrying as long as it is needed");
            }
            Notice::MayStayGranted(key, session, reason) => {
                tracing::warn!(%key, %session, %reason, "a lock that nobody waits for any more may be granted");
            }
            Notice::LeaseLost(reason) => {
                tracing::warn!(%reason, node = %self.node, "the servers ended the lease of this node");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, ChannelState> {
        // The client takes an input whole or panics, which is a fault of it: callers of other calls
        // need not fail with it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Quorum for Driver {
    fn call(self: Arc<Self>, call: LocalCall) -> BoxFuture<Answer> {
        Box::pin(async move {
            let (sender, receiver) = oneshot::channel();
            let token = self.begin(|token| Input::Call(token, call), sender);
            let mut waiting = CancelOnDrop { driver: &self, token, is_over: false };
            let answer = receiver.await;
            waiting.is_over = true;
            // A caller is dropped without an answer only where everything ends.
            let answer = answer.unwrap_or_else(|_| Err(shutting_down()));
            // Only from here on is the lock in somebody's hands: a grant that nobody heard is given
            // back.
            if let Ok(Answered::Acquired(_, Applied { reply: Reply::Granted { .. }, .. })) = &answer {
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
            // From here on it may have heard: what it makes of it cannot be told without its
            // answer.
            client.call(Request::Invite(servers), INVITE_TIMEOUT).await.map_err(|error| {
                let what = format!("the server at {address} was told to join and did not answer ({error})");
                Unavailable::Unknown(what)
            })
        })
    }

    fn challenge(self: Arc<Self>, challenge: Challenge) -> BoxFuture<Answer> {
        Box::pin(async move {
            let (sender, receiver) = oneshot::channel();
            self.begin(|token| Input::Challenge(token, challenge), sender);
            // The answer came out of that very turn.
            receiver.await.unwrap_or_else(|_| Err(shutting_down()))
        })
    }

    fn lease(&self) -> watch::Receiver<LeaseState> {
        self.lease.subscribe()
    }

    fn join(self: Arc<Self>, address: String) -> BoxFuture<Result<(), Unavailable>> {
        Box::pin(async move {
            let mut client = self.connect(&address).await?;
            let answer = client.call(Request::Status, INVITE_TIMEOUT).await;
            let Ok(Response::Status(status)) = answer else {
                return Err(Unavailable::Denied(format!("the server at {address} does not say who it is")));
            };
            if status.server == ServerId::default() {
                return Err(Unavailable::Denied(format!("the server at {address} belongs to no quorum yet")));
            }
            let state = self.lock();
            let ours = state.client.cluster_id();
            if !ours.is_empty() && ours != status.cluster_id {
                let (theirs, ours) = (status.cluster_id, ours.to_owned());
                return Err(Unavailable::Denied(format!(
                    "the server at {address} is of the cluster {theirs}, this agent of {ours}"
                )));
            }
            self.drive(state, Input::AddServer(address));
            Ok(())
        })
    }

    fn registered_lease(&self) -> Option<LeaseId> {
        self.lock().client.registered_lease()
    }

    fn begin_leaving(self: Arc<Self>) -> Option<LeaseId> {
        let state = self.lock();
        // In one turn with the look: no registration comes between the two.
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
            // It panics nowhere; where the runtime ends, the file stays and says what was true.
            let _ = tokio::task::spawn_blocking(move || pins.forget()).await;
        })
    }

    fn choose_cluster(self: Arc<Self>, choice: ClusterChoice) {
        warn_of_any(&choice);
        self.handle(Input::ChooseCluster(choice));
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

/// An agent that follows any cluster may hold a lock that a holder in another cluster has too.
fn warn_of_any(choice: &ClusterChoice) {
    if *choice == ClusterChoice::Any {
        tracing::warn!(
            "`upstream.cluster_id` is \"any\": this agent follows whichever cluster answers, and two clusters may grant \
             one lock"
        );
    }
}

fn shutting_down() -> Unavailable {
    Unavailable::Unknown("the agent is shutting down".into())
}

/// Cancels a call when its caller goes away before it heard the answer.
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
