//! An agent's client of the quorum: takes requests from local callers and returns the replies. This
//! is the one pure value of an agent's upstream.
//!
//! ```text
//! local call ──▶ request ──▶ route: leader or home ──▶ call on that server's link ──▶ Outbox
//!                   ▲  └ NotLeader, lost: again, under the same id       │ no reply in 100 ms,
//!                   └───────────── new routes ◀── LeaderTracker ◀────────┘ NotLeader, lost, Status
//! ```
//!
//! It decides:
//!
//! - which server is the leader and which is home, which servers are dialled, and when again;
//! - the request id of a command, and whether the command may be retried;
//! - which reads share one upstream request;
//! - the duration of a lock wait;
//! - when the agent registers and renews its node's lease.
//!
//! The shell owns the clock and the sockets. It passes inputs in, executes the outbox, and calls
//! [`QuorumClient::handle`] again at [`QuorumClient::wakes_at`]. The simulator drives the same
//! value.
//!
//! | file | is |
//! |---|---|
//! | `input.rs` | its inputs |
//! | `outbox.rs` | its effects |
//! | `mod.rs` | the turn: one input, and all that follows from it |
//! | `owner.rs` | the owner of a request, its number, and its retry policy |
//! | `requests.rs` | requests, and when each may be retried |
//! | `shared_reads.rs` | blocking reads that share one upstream request |
//! | `lock_waits.rs` | lock waits, and the release of undelivered grants |
//! | `session_ends.rs` | ends of sessions, retried until they are done |
//! | `registrar.rs` | the agent's registration with the leader |
//! | `identity.rs` | the agent's cluster: rejected servers, and the notices about them |
//! | `renewals.rs` | the node lease: when and how it is renewed, and the handling of the replies |
//! | `routes.rs` | the links and their roles: executes the tracker's actions |
//! | `links.rs` | the connection to one server, made while it is needed |
//! | `calls.rs` | pending calls on one connection |
//! | `readiness.rs` | whether the agent can serve requests, and the reasons if not |
//!
//! **Invariants:** every local call is answered once, unless it was cancelled. No command is sent
//! under two request ids once it may have been sent. *Unknown* is never reported as *not done*.
//! Nothing here blocks.

mod calls;
mod identity;
mod input;
mod links;
mod lock_waits;
mod outbox;
mod owner;
mod readiness;
mod registrar;
mod renewals;
mod requests;
mod routes;
mod session_ends;
mod shared_reads;

pub use input::{CallToken, ConnectionEnd, ConnectionId, EndReason, Input, LocalCall};
pub use outbox::{Answered, Dial, Notice, Outbox, unexpected};
pub use readiness::NotReady;
pub use registrar::tagged_addresses;

use crate::admission::Admission;
use crate::cluster::{ClusterChoice, ClusterRefusal, Pin};
use crate::leader_tracker::LeaderTracker;
use crate::request_ids::{Registration, RequestIds};
use crate::servers::Slot;
use links::Link;
use lock_waits::LockWaits;
use lockmesh_protocol::command::AgentRegistration;
use lockmesh_protocol::id::SessionId;
use lockmesh_protocol::lease::LeaseId;
use lockmesh_protocol::query::{Blocking, Consistency, Query};
use lockmesh_protocol::random::Random;
use lockmesh_protocol::rpc::{CallId, Request};
use lockmesh_protocol::time::Time;
use owner::{Effort, Owner, RequestNumber, SharedReadNumber};
use registrar::Registrar;
use renewals::Renewals;
use requests::PendingRequest;
use session_ends::SessionEnds;
use shared_reads::{SharedQuery, SharedReads};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// The maximum number of calls per turn. The shell sends them before the next turn, which bounds
/// the queued data.
const CALLS_PER_TURN: usize = 64;

/// The configuration of a quorum client.
#[derive(Clone, Debug)]
pub struct QuorumClientConfig {
    /// Servers as `host:port`. A server that answers reports the others.
    pub servers: Vec<String>,
    /// The agent's registration, sent before all other requests; its node's name decides which
    /// servers it prefers.
    pub registration: AgentRegistration,
    /// The cluster that the configuration selects.
    pub cluster: ClusterChoice,
    /// The cluster that registered this agent in an earlier process.
    pub pin: Option<Pin>,
    /// The hold timeout: the time that a request is retried without a connection or a leader.
    pub hold_time: Duration,
    /// The timeout of a reply from a connected server.
    pub answer_time: Duration,
    /// The time without a reply after which other servers are asked for a new leader.
    pub probe_after: Duration,
}

/// Counters; each only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls sent for requests.
    pub attempts: u64,
    /// Attempts after the first one of a request.
    pub retries: u64,
    /// Attempts to connect after the first one of a server.
    pub reconnects: u64,
    /// Registrations of this agent.
    pub registrations: u64,
    /// Status queries for this agent's own use.
    pub questions: u64,
    /// The number of times that a leader was found.
    pub leaders: u64,
    /// Renewals of the node's lease that were sent.
    pub renewals: u64,
    /// Renewals that were acknowledged.
    pub renewals_acknowledged: u64,
    /// Challenges of servers that were answered with a renewal.
    pub challenges: u64,
}

/// The work under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Calls that await a reply.
    pub calls: usize,
    /// The distance between the oldest command under way and the next one.
    pub command_span: usize,
    /// Upstream requests of blocking reads.
    pub shared_reads: usize,
    /// Local callers that share them.
    pub waiters: usize,
    /// Servers that are rejected because they do not belong to this agent's cluster.
    pub refused_servers: usize,
}

/// The work that a local caller waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    /// A request of its own.
    Request(RequestNumber),
    /// A shared read, until its deadline.
    SharedRead { number: SharedReadNumber, until: Time },
    /// A lock.
    LockWait,
    /// The end of a session.
    SessionEnd(SessionId),
}

/// The action of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// The end of a request's backoff, or of its wait for a server.
    Request(RequestNumber),
    /// The timeout of a call.
    Call(Slot, CallId),
    /// The end of a local caller's wait.
    Caller(CallToken),
    /// The next query of a position in a lock's queue.
    Question(CallToken),
    /// The next attempt to register.
    Registration,
}

/// See the [module](self).
#[derive(Debug)]
pub struct QuorumClient {
    config: QuorumClientConfig,
    now: Time,
    outbox: Outbox,
    tracker: LeaderTracker,
    /// `true` if the tracker has received input since its last actions.
    tracker_is_due: bool,
    /// The time at which the tracker is due without further input.
    tracker_wakes_at: Option<Time>,
    admission: Admission,
    /// The reason why no server accepts this agent, if so.
    refusal: Option<String>,
    /// The servers that are rejected because they do not belong to this agent's cluster, and the
    /// message about them.
    refused: Vec<(String, ClusterRefusal)>,
    complaint: Option<String>,
    /// The last report of a server that cannot write to its disk, until a command is applied or
    /// another leader is found.
    disk_failure: Option<String>,
    /// The pin as last reported.
    told_pin: Option<Pin>,
    registrar: Registrar,
    renewals: Renewals,
    /// The server for commands, renewals and linearizable reads; only for the registration at
    /// first.
    leader: Option<Slot>,
    /// The server for stale and blocking reads.
    home: Option<Slot>,
    /// Set when requests without a route may find one.
    routes_changed: bool,
    links: BTreeMap<Slot, Link>,
    connections: BTreeMap<ConnectionId, Slot>,
    last_connection: u64,
    ids: RequestIds,
    requests: BTreeMap<RequestNumber, PendingRequest>,
    last_request: u64,
    /// Requests whose next step is due, in order.
    runnable: VecDeque<RequestNumber>,
    /// Requests that wait for a suitable server.
    unrouted: BTreeSet<RequestNumber>,
    callers: BTreeMap<CallToken, Caller>,
    shared_reads: SharedReads,
    lock_waits: LockWaits,
    session_ends: SessionEnds,
    timers: BTreeSet<(Time, Timer)>,
    /// `true` if the last turn left work to do.
    is_more: bool,
    random: Random,
    counts: Counts,
    /// `true` once blocking reads and lock waits end early.
    in_hurry: bool,
    is_closed: bool,
}

impl QuorumClient {
    /// Creates a client that knows only the configured servers and has no connection; the first
    /// input starts to connect. `seed` randomizes jitter.
    pub fn new(config: QuorumClientConfig, seed: u64, now: Time) -> Self {
        let mut random = Random::new(seed);
        let agent = config.registration.node.name.as_str();
        let tracker = LeaderTracker::new(agent, &config.servers, random.number(), now);
        Self {
            tracker: tracker.with_cluster(config.cluster.clone(), config.pin.clone(), now),
            registrar: Registrar::new(random.number()),
            renewals: Renewals::new(random.number(), now),
            now,
            outbox: Outbox::default(),
            tracker_is_due: true,
            tracker_wakes_at: None,
            admission: Admission::default(),
            refusal: None,
            refused: Vec::new(),
            complaint: None,
            disk_failure: None,
            told_pin: config.pin.clone(),
            leader: None,
            home: None,
            routes_changed: false,
            links: BTreeMap::new(),
            connections: BTreeMap::new(),
            last_connection: 0,
            ids: RequestIds::default(),
            requests: BTreeMap::new(),
            last_request: 0,
            runnable: VecDeque::new(),
            unrouted: BTreeSet::new(),
            callers: BTreeMap::new(),
            shared_reads: SharedReads::default(),
            lock_waits: LockWaits::default(),
            session_ends: SessionEnds::default(),
            timers: BTreeSet::new(),
            is_more: true,
            random,
            counts: Counts::default(),
            in_hurry: false,
            is_closed: false,
            config,
        }
    }

    /// Returns the agent's current registration, if any.
    pub fn registration(&self) -> Option<Registration> {
        self.ids.registration()
    }

    /// Returns the lease of the current registration; `None` until the agent has registered, for
    /// the first time or again.
    pub fn registered_lease(&self) -> Option<LeaseId> {
        let registration = self.ids.registration().filter(|_| self.registrar.is_registered)?;
        Some(registration.lease)
    }

    /// Returns the cluster that this agent belongs to; empty before that is known.
    pub fn cluster_id(&self) -> &str {
        self.tracker.cluster_id()
    }

    /// Returns the counters.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the work under way.
    pub fn load(&self) -> Load {
        let (shared_reads, waiters) = self.shared_reads.counts();
        let calls = self.links.values().map(|link| link.calls.len()).sum();
        let refused_servers = self.refused.len();
        Load { calls, command_span: self.ids.span(), shared_reads, waiters, refused_servers }
    }

    /// Returns when to pass [`Input::Tick`] if there is no other input before; at once if the last
    /// turn left work to do.
    pub fn wakes_at(&self) -> Option<Time> {
        if self.is_more {
            return Some(self.now);
        }
        if self.is_closed {
            return None;
        }
        let timer = self.timers.first().map(|(at, _)| *at);
        let links = self.links.values().filter_map(|link| link.wakes_at(self.config.probe_after));
        links.chain(timer).chain(self.tracker_wakes_at).chain(self.renewal_wakes_at()).min()
    }

    /// Returns `true` if the last turn left work to do: then pass [`Input::Tick`] as soon as the
    /// outbox is executed.
    pub fn has_more(&self) -> bool {
        self.is_more
    }

    /// Returns `true` after shutdown.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Handles one input, and puts all effects into the outbox.
    pub fn handle(&mut self, now: Time, input: Input, outbox: &mut Outbox) {
        std::mem::swap(&mut self.outbox, outbox);
        self.now = now;
        self.take(input);
        self.is_more = true;
        while self.is_more && self.outbox.calls.len() < CALLS_PER_TURN {
            self.is_more = self.step();
        }
        std::mem::swap(&mut self.outbox, outbox);
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Call(token, call) => self.call(token, call),
            Input::Cancel(token) => self.cancel_caller(token),
            Input::Heard(token) => self.grant_heard(token),
            Input::Challenge(token, challenge) => self.challenged(token, challenge),
            Input::Connected(connection) => self.connected(connection),
            Input::Ended(connection, end) => self.ended(connection, end),
            Input::Received(connection, received) => self.received(connection, received),
            Input::Answers(connection, answers) => self.answers(connection, answers),
            Input::Unsendable(connection, call, reason) => self.unsendable(connection, call, reason),
            Input::Backlog(connection, is_full) => self.notice_backlog(connection, is_full),
            Input::Leave => self.registrar.is_leaving = true,
            Input::Stay { may_have_left } => self.stay(may_have_left),
            Input::AddServer(address) => self.tell(|tracker, _| tracker.add_server(&address)),
            Input::OwnAddress(address) => self.own_address_changed(address),
            Input::ChooseCluster(choice) => self.choose_cluster(choice),
            Input::Hurry => self.hurry(),
            Input::Close => self.close(),
            Input::Tick => {}
        }
    }

    /// Performs one due step; returns `false` if there was none.
    fn step(&mut self) -> bool {
        // First, because routes depend on the tracker's actions.
        if !self.is_closed && self.tracker_is_due() {
            self.follow_tracker();
            return true;
        }
        if std::mem::take(&mut self.routes_changed) {
            // All of them: requests that find no route wait again.
            std::mem::take(&mut self.unrouted).into_iter().for_each(|number| self.run_again(number));
        }
        // Before requests, of which there may be many.
        if !self.is_closed && self.renew_if_due() {
            return true;
        }
        if let Some(number) = self.runnable.pop_front() {
            self.advance(number);
            return true;
        }
        // Requests are answered even after shutdown; nothing new begins.
        if self.is_closed {
            return false;
        }
        if let Some(&(at, timer)) = self.timers.first()
            && at <= self.now
        {
            self.timers.remove(&(at, timer));
            self.time_has_come(timer);
            return true;
        }
        self.look_at_links() || self.register_if_due()
    }

    fn time_has_come(&mut self, timer: Timer) {
        match timer {
            Timer::Request(number) => self.request_due(number),
            Timer::Call(slot, call) => self.expire_call(slot, call),
            Timer::Caller(token) => match self.callers.get(&token) {
                Some(Caller::SharedRead { .. }) => self.stop_sharing(token),
                _ => self.wait_is_over(token),
            },
            Timer::Question(token) => self.question_due(token),
            Timer::Registration => self.registrar.pause_is_over(),
        }
    }

    fn call(&mut self, token: CallToken, call: LocalCall) {
        let number = match call {
            LocalCall::Propose(command) => self.propose(Owner::Caller(token), command),
            LocalCall::Ask(request) => self.begin(Owner::Caller(token), request, Effort::Held),
            LocalCall::AskHome(request) => self.begin(Owner::Caller(token), request, Effort::Once),
            LocalCall::Read { query, consistency, blocking } => {
                return self.read(token, query, consistency, blocking);
            }
            LocalCall::EndSession { session, reason } => return self.end_session(token, session, reason),
            LocalCall::Acquire { new, session, wait } => return self.acquire(token, new, session, wait),
        };
        self.callers.insert(token, Caller::Request(number));
    }

    fn read(&mut self, token: CallToken, query: Query, consistency: Consistency, blocking: Option<Blocking>) {
        match blocking {
            // No state is older than index 0, so there is nothing to wait for.
            Some(Blocking { index, wait }) if index.0 > 0 => {
                let wanted = SharedQuery { query, consistency, index };
                match self.in_hurry {
                    true => self.read_once(token, wanted.request(Duration::ZERO)),
                    false => self.join_shared_read(token, wanted, wait),
                }
            }
            _ => self.read_once(token, Request::Read { query, consistency, blocking: None }),
        }
    }

    fn cancel_caller(&mut self, token: CallToken) {
        match self.callers.get(&token) {
            Some(&Caller::Request(number)) => {
                self.callers.remove(&token);
                self.cancel(number);
            }
            Some(Caller::SharedRead { .. }) => drop(self.leave_shared_read(token)),
            Some(&Caller::SessionEnd(session)) => {
                self.callers.remove(&token);
                self.session_ends.leave(&session, token);
            }
            // `None`: the reply was given, and its caller is gone before it confirmed the grant.
            Some(Caller::LockWait) | None => self.abandon_wait(token),
        }
    }

    fn hurry(&mut self) {
        self.in_hurry = true;
        self.stop_all_sharing();
        self.end_all_waits();
    }

    /// Answers every request under way before this input returns.
    fn close(&mut self) {
        self.is_closed = true;
        self.outbox.disconnect.extend(self.connections.keys());
        self.connections.clear();
        (self.leader, self.home) = (None, None);
        let requests: Vec<RequestNumber> = self.requests.keys().copied().collect();
        for link in self.links.values_mut() {
            link.calls.take_all();
            link.is_down();
        }
        requests.into_iter().for_each(|number| self.run_again(number));
    }

    /// Passes an input to the tracker; its new actions are executed before the current input
    /// returns.
    fn tell(&mut self, tell: impl FnOnce(&mut LeaderTracker, Time)) {
        tell(&mut self.tracker, self.now);
        self.tracker_is_due = true;
    }

    fn tracker_is_due(&self) -> bool {
        self.tracker_is_due || self.tracker_wakes_at.is_some_and(|at| at <= self.now)
    }
}
