//! An agent's way to the quorum: what local callers want in, answers out. The one pure value of an
//! agent's upstream.
//!
//! ```text
//! local call ──▶ request ──▶ route: leader or home ──▶ call on that server's link ──▶ Outbox
//!                   ▲  └ NotLeader, lost: again, under the same id       │ a call unanswered for 100 ms, NotLeader,
//!                   └───────────── new routes ◀── LeaderTracker ◀────────┘ a lost connection, every Status
//! ```
//!
//! It decides which server leads and which is home, who is dialled and when again, under which id a
//! command goes and whether it may go once more, which reads share one upstream request, how long a
//! lock is waited for, when the agent registers and renews its node's lease. The shell has the
//! clock and the sockets: it tells what happened, carries out what comes back, and calls
//! [`QuorumClient::handle`] again when [`QuorumClient::wakes_at`] says. The simulator drives the
//! same value.
//!
//! | file | is |
//! |---|---|
//! | `input.rs` | what it is told |
//! | `outbox.rs` | what it wants done |
//! | `mod.rs` | the turn: one input, and all that follows from it |
//! | `owner.rs` | who waits for a request, by which number it is known, how hard it is tried |
//! | `requests.rs` | requests, and when each may be tried again |
//! | `shared_reads.rs` | blocking reads that share one upstream request |
//! | `lock_waits.rs` | waits for locks, and what becomes of them when nobody waits any more |
//! | `session_ends.rs` | ends of sessions, retried until they are done |
//! | `registrar.rs` | the agent's registration with the leader |
//! | `identity.rs` | the agent's cluster: refused servers, and what operators are told of them |
//! | `renewals.rs` | the node lease: when it is renewed and how, and what follows from the answers |
//! | `routes.rs` | the links, and what each is for: does what the tracker says |
//! | `links.rs` | the connection to one server, made as long as it is wanted |
//! | `calls.rs` | calls that wait for an answer on one connection |
//! | `readiness.rs` | whether the agent can have requests answered, and why it cannot |
//!
//! **Invariants:** every local call is answered once, unless it was cancelled; no command is sent
//! under two request ids once it may have been sent; *unknown* is never told as *not done*; nothing
//! here waits.

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

use crate::admission::Admission;
use crate::cluster::{ClusterChoice, ClusterRefusal, Pin};
use crate::leader_tracker::LeaderTracker;
use crate::request_ids::{Registration, RequestIds};
use crate::servers::Slot;
use links::Link;
use lock_waits::LockWait;
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

/// After so many calls the shell gets to send them, so that what waits to be sent is bounded.
const CALLS_PER_TURN: usize = 64;

/// What a quorum client must be told about its agent.
#[derive(Clone, Debug)]
pub struct QuorumClientConfig {
    /// Servers as `host:port`. One that answers tells of the others.
    pub servers: Vec<String>,
    /// How the agent registers before anything else; its node's name decides which servers it
    /// prefers.
    pub registration: AgentRegistration,
    /// The cluster that the configuration names.
    pub cluster: ClusterChoice,
    /// The cluster that registered this agent in an earlier process.
    pub pin: Option<Pin>,
    /// How long a request is tried while there is no connection or no leader.
    pub hold_time: Duration,
    /// How long an answer is waited for from a server that is there.
    pub answer_time: Duration,
    /// After how long without an answer other servers are asked whether the leader is another one
    /// by now.
    pub probe_after: Duration,
}

/// What is counted; everything only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls that were sent for requests.
    pub attempts: u64,
    /// Attempts after the first one of a request.
    pub retries: u64,
    /// Attempts to connect after the first one of a server.
    pub reconnects: u64,
    /// Registrations of this agent.
    pub registrations: u64,
    /// Questions for a server's status that this agent had itself.
    pub questions: u64,
    /// How often a leader was found.
    pub leaders: u64,
    /// Renewals of the node's lease that were sent.
    pub renewals: u64,
    /// Renewals that were acknowledged.
    pub renewals_acknowledged: u64,
    /// Challenges of servers that were answered with a renewal.
    pub challenges: u64,
}

/// How much is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Calls that wait for an answer.
    pub calls: usize,
    /// From the oldest command under way to the next one.
    pub command_span: usize,
    /// Upstream requests of blocking reads.
    pub shared_reads: usize,
    /// Local waiters that share them.
    pub waiters: usize,
    /// Servers that are refused because they are not of this agent's cluster.
    pub refused_servers: usize,
}

/// What a local caller waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    /// A request of its own.
    Request(RequestNumber),
    /// News, until then.
    SharedRead { number: SharedReadNumber, until: Time },
    /// A lock.
    LockWait,
    /// The end of a session.
    SessionEnd(SessionId),
}

/// What there is to do when a time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// A request's pause, or its time to wait for a server, is over.
    Request(RequestNumber),
    /// A call was not answered in time.
    Call(Slot, CallId),
    /// A local caller has waited for as long as it wanted to.
    Caller(CallToken),
    /// What became of a position in a lock's queue is asked again.
    Question(CallToken),
    /// The agent may try again to register.
    Registration,
}

/// See the [module](self).
#[derive(Debug)]
pub struct QuorumClient {
    config: QuorumClientConfig,
    now: Time,
    outbox: Outbox,
    tracker: LeaderTracker,
    /// Whether the tracker was told something since it said what to do.
    tracker_is_due: bool,
    /// When the tracker is to be looked at although nothing happened.
    tracker_wakes_at: Option<Time>,
    admission: Admission,
    /// Why no server takes this agent, where that is so.
    refusal: Option<String>,
    /// The servers that are refused because they are not of this agent's cluster, and the text that
    /// says so.
    refused: Vec<(String, ClusterRefusal)>,
    complaint: Option<String>,
    /// The pin as it was told last.
    told_pin: Option<Pin>,
    registrar: Registrar,
    renewals: Renewals,
    /// Takes commands, renewals and linearizable reads; at first the registration alone.
    leader: Option<Slot>,
    /// Takes stale and blocking reads.
    home: Option<Slot>,
    /// Whether requests that have no route may find one.
    routes_changed: bool,
    links: BTreeMap<Slot, Link>,
    connections: BTreeMap<ConnectionId, Slot>,
    last_connection: u64,
    ids: RequestIds,
    requests: BTreeMap<RequestNumber, PendingRequest>,
    last_request: u64,
    /// Requests whose next step is due, in order.
    runnable: VecDeque<RequestNumber>,
    /// Requests that wait for a server that could take them.
    unrouted: BTreeSet<RequestNumber>,
    callers: BTreeMap<CallToken, Caller>,
    shared_reads: SharedReads,
    lock_waits: BTreeMap<CallToken, LockWait>,
    session_ends: SessionEnds,
    timers: BTreeSet<(Time, Timer)>,
    /// Whether there was more to do than fits a turn.
    is_more: bool,
    random: Random,
    counts: Counts,
    /// Whether nobody shall wait for news or locks any more.
    in_hurry: bool,
    is_closed: bool,
}

impl QuorumClient {
    /// Knows configured servers only, and has no connection; the first input begins to make some.
    /// `seed` makes this agent's pauses differ from others'.
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
            lock_waits: BTreeMap::new(),
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

    /// The agent's present registration, once it has one.
    pub fn registration(&self) -> Option<Registration> {
        self.ids.registration()
    }

    /// The lease of the present registration; none while the agent has yet to register, for the
    /// first time or again.
    pub fn registered_lease(&self) -> Option<LeaseId> {
        let registration = self.ids.registration().filter(|_| self.registrar.is_registered)?;
        Some(registration.lease)
    }

    /// The cluster that this agent belongs to; empty before that is known.
    pub fn cluster_id(&self) -> &str {
        self.tracker.cluster_id()
    }

    /// What was counted.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// How much is under way.
    pub fn load(&self) -> Load {
        let (shared_reads, waiters) = self.shared_reads.counts();
        let calls = self.links.values().map(|link| link.calls.len()).sum();
        let refused_servers = self.refused.len();
        Load { calls, command_span: self.ids.span(), shared_reads, waiters, refused_servers }
    }

    /// When [`Input::Tick`] must be told, if nothing else happens before; at once where there was
    /// more to do than fits a turn.
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

    /// Whether there was more to do than fits a turn: then [`Input::Tick`] is to be told as soon as
    /// the outbox is carried out.
    pub fn has_more(&self) -> bool {
        self.is_more
    }

    /// Whether everything has ended.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Takes one input, and puts all that follows from it into the outbox.
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
            Input::ChooseCluster(choice) => self.choose_cluster(choice),
            Input::Hurry => self.hurry(),
            Input::Close => self.close(),
            Input::Tick => {}
        }
    }

    /// Does one thing that is due; whether there was any.
    fn step(&mut self) -> bool {
        // First of all: where requests go rests on what the tracker says.
        if !self.is_closed && self.tracker_is_due() {
            self.follow_tracker();
            return true;
        }
        if std::mem::take(&mut self.routes_changed) {
            // All of them: whoever finds no way still waits again.
            std::mem::take(&mut self.unrouted).into_iter().for_each(|number| self.run_again(number));
        }
        // Before requests, of which there may be very many.
        if !self.is_closed && self.renew_if_due() {
            return true;
        }
        if let Some(number) = self.runnable.pop_front() {
            self.advance(number);
            return true;
        }
        // Requests are answered also after the end; nothing else begins any more.
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
            // None: the answer was given, and its caller is gone before it heard of the grant.
            Some(Caller::LockWait) | None => self.abandon_wait(token),
        }
    }

    fn hurry(&mut self) {
        self.in_hurry = true;
        self.stop_all_sharing();
        self.end_all_waits();
    }

    /// Every request under way is answered before this input is done with.
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

    /// Tells the tracker something; what it says then is done before the present input is done
    /// with.
    fn tell(&mut self, tell: impl FnOnce(&mut LeaderTracker, Time)) {
        tell(&mut self.tracker, self.now);
        self.tracker_is_due = true;
    }

    fn tracker_is_due(&self) -> bool {
        self.tracker_is_due || self.tracker_wakes_at.is_some_and(|at| at <= self.now)
    }
}
