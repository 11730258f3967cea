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
//! | `mod.rs` | the turn: passes each input, timer and outcome to the value that it concerns |
//! | `replies.rs` | the same for the replies of servers, and for lost calls |
//! | `context.rs` | `Context`: the time, the outbox, the timers and the counters |
//! | `owner.rs` | the owner of a request, its number, and its retry policy |
//! | `requests.rs` | `Requests`: requests and their ids, and when each may be retried |
//! | `shared_reads.rs` | `SharedReads`: blocking reads that share one upstream request |
//! | `lock_waits.rs` | `LockWaits`, and the release of undelivered grants |
//! | `session_ends.rs` | `SessionEnds`, retried until they are done |
//! | `registrar.rs` | `Registrar`: the agent's registration with the leader |
//! | `renewals.rs` | `Renewals` of the node lease: when and how it is renewed |
//! | `routes.rs` | `Routes`: the tracker, and the links to the servers with their roles |
//! | `links.rs` | the connection to one server, made while it is needed |
//! | `calls.rs` | pending calls on one connection |
//! | `readiness.rs` | `Readiness`: whether the servers accept this agent, and the reasons if not |
//!
//! **Invariants:** every local call is answered once, unless it was cancelled. No command is sent
//! under two request ids once it may have been sent. *Unknown* is never reported as *not done*.
//! Nothing here blocks.

mod calls;
mod context;
mod input;
mod links;
mod lock_waits;
mod outbox;
mod owner;
mod readiness;
mod registrar;
mod renewals;
mod replies;
mod requests;
mod routes;
mod session_ends;
mod shared_reads;

pub use context::Counts;
pub use input::{CallToken, ConnectionEnd, ConnectionId, EndReason, Input, LocalCall};
pub use outbox::{Answered, Dial, Notice, Outbox, unexpected};
pub use readiness::NotReady;
pub use registrar::tagged_addresses;

use crate::cluster::{ClusterChoice, Pin};
use crate::lease::LeaseState;
use crate::request_ids::Registration;
use context::{Context, Timer};
use lock_waits::LockWaits;
use lockmesh_protocol::acl::Caller;
use lockmesh_protocol::command::AgentRegistration;
use lockmesh_protocol::id::Generation;
use lockmesh_protocol::lease::LeaseId;
use lockmesh_protocol::query::Blocking;
use lockmesh_protocol::random::Random;
use lockmesh_protocol::rpc::Request;
use lockmesh_protocol::time::Time;
use owner::{Effort, Owner, RequestNumber};
use readiness::Readiness;
use registrar::Registrar;
use renewals::Renewals;
use requests::{PendingRequest, RequestOutcome, Requests, Upstream, no_leader, shutting_down};
use routes::Routes;
use session_ends::SessionEnds;
use shared_reads::{SharedQuery, SharedReads};
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

/// An agent's client of the quorum, without clock and connection.
#[derive(Debug)]
pub struct QuorumClient {
    cx: Context,
    routes: Routes,
    requests: Requests,
    readiness: Readiness,
    registrar: Registrar,
    renewals: Renewals,
    shared_reads: SharedReads,
    lock_waits: LockWaits,
    session_ends: SessionEnds,
    /// `true` if the last turn left work to do.
    is_more: bool,
}

impl QuorumClient {
    /// Creates a client that knows only the configured servers and has no connection; the first
    /// input starts to connect. `seed` randomizes jitter.
    pub fn new(config: QuorumClientConfig, seed: u64, now: Time) -> Self {
        let mut random = Random::new(seed);
        Self {
            routes: Routes::new(&config, random.number(), now),
            requests: Requests::new(config.hold_time, config.answer_time),
            readiness: Readiness::new(&config),
            registrar: Registrar::new(config.registration, random.number()),
            renewals: Renewals::new(random.number(), now),
            shared_reads: SharedReads::default(),
            lock_waits: LockWaits::default(),
            session_ends: SessionEnds::default(),
            is_more: true,
            cx: Context::new(random, now),
        }
    }

    /// Returns the agent's current registration, if any.
    pub fn registration(&self) -> Option<Registration> {
        self.requests.ids.registration()
    }

    /// Returns `true` if this is the agent's first registration in the cluster: no process came
    /// before this one.
    pub fn is_new_agent(&self) -> bool {
        self.registration().is_some_and(|registration| registration.generation == Generation(1))
    }

    /// Returns the lease of the current registration; `None` until the agent has registered, for
    /// the first time or again.
    pub fn registered_lease(&self) -> Option<LeaseId> {
        let registration = self.registration().filter(|_| self.registrar.is_registered)?;
        Some(registration.lease)
    }

    /// Returns the node's lease, which guards on this host rely on.
    pub fn lease(&self) -> &LeaseState {
        self.renewals.state()
    }

    /// Returns the cluster that this agent belongs to; empty before that is known.
    pub fn cluster_id(&self) -> &str {
        self.routes.tracker.cluster_id()
    }

    /// Returns the number of ends of sessions under way.
    pub fn session_ends(&self) -> usize {
        self.session_ends.len()
    }

    /// Returns the reasons why this agent cannot serve requests now; empty if it can.
    pub fn not_ready(&self) -> Vec<NotReady> {
        let stopping = (self.cx.is_closed || self.cx.in_hurry).then_some(NotReady::Stopping);
        let others = self.readiness.reasons(&self.routes, self.registration().is_some());
        stopping.into_iter().chain(others).collect()
    }

    /// Returns the counters.
    pub fn counts(&self) -> &Counts {
        &self.cx.counts
    }

    /// Returns the work under way.
    pub fn load(&self) -> Load {
        let (shared_reads, waiters) = self.shared_reads.counts();
        let (calls, command_span) = (self.routes.calls(), self.requests.ids.span());
        let refused_servers = self.readiness.refused.len();
        Load { calls, command_span, shared_reads, waiters, refused_servers }
    }

    /// Returns when to pass [`Input::Tick`] if there is no other input before; at once if the last
    /// turn left work to do.
    pub fn wakes_at(&self) -> Option<Time> {
        if self.is_more {
            return Some(self.cx.now);
        }
        if self.cx.is_closed {
            return None;
        }
        let times = [self.cx.next_timer(), self.routes.wakes_at(), self.renewals.wakes_at(&self.routes)];
        times.into_iter().flatten().min()
    }

    /// Returns `true` if the last turn left work to do: then pass [`Input::Tick`] as soon as the
    /// outbox is executed.
    pub fn has_more(&self) -> bool {
        self.is_more
    }

    /// Returns `true` after shutdown.
    pub fn is_closed(&self) -> bool {
        self.cx.is_closed
    }

    /// Handles one input, and puts all effects into the outbox.
    pub fn handle(&mut self, now: Time, input: Input, outbox: &mut Outbox) {
        std::mem::swap(&mut self.cx.outbox, outbox);
        self.cx.now = now;
        self.input(input);
        self.cancel_calls();
        self.is_more = true;
        while self.is_more && self.cx.outbox.calls.len() < CALLS_PER_TURN {
            self.is_more = self.step();
            self.cancel_calls();
        }
        std::mem::swap(&mut self.cx.outbox, outbox);
    }

    fn input(&mut self, input: Input) {
        let (routes, cx) = (&mut self.routes, &mut self.cx);
        match input {
            Input::Call(token, caller, call) => self.call(token, caller, call),
            Input::Cancel(token) => self.cancel_caller(token),
            Input::Heard(token) => {
                self.lock_waits.grant_received(token, &mut Upstream { requests: &mut self.requests, cx });
            }
            Input::Challenge(token, challenge) => {
                let answer = match cx.is_closed {
                    true => Err(shutting_down()),
                    false => Ok(self.renewals.answer(challenge, &mut self.session_ends, cx)),
                };
                cx.reply(token, answer.map(Answered::Response));
            }
            Input::Connected(connection) => routes.connected(connection, cx.now),
            Input::Ended(connection, end) => self.ended(connection, end),
            Input::Received(connection, received) => routes.received(connection, received, cx.now),
            Input::Answers(connection, answers) => self.answers(connection, answers),
            Input::Unsendable(connection, call, reason) => self.unsendable(connection, call, reason),
            Input::Backlog(connection, is_full) => {
                routes.notice_backlog(connection, is_full);
                self.settle_lost();
            }
            Input::Leave => self.registrar.is_leaving = true,
            Input::Stay { may_have_left } => self.registrar.stay(may_have_left),
            Input::AddServer(address) => routes.tracker_mut().add_server(&address),
            Input::OwnAddress(address) => self.registrar.own_address_changed(address),
            Input::NodeMeta(meta) => self.registrar.node_meta_changed(meta),
            Input::ChooseCluster(choice) => self.choose_cluster(choice),
            Input::Hurry => self.hurry(),
            Input::Close => {
                // Every request under way is answered before this input returns.
                cx.is_closed = true;
                routes.close(cx);
                self.requests.continue_all(cx);
            }
            Input::Tick => {}
        }
    }

    fn choose_cluster(&mut self, choice: ClusterChoice) {
        self.readiness.cluster = choice.clone();
        self.routes.choose_cluster(choice, self.cx.now);
        self.registrar.is_registered &= !self.routes.tracker.has_moved();
    }

    /// Ends everything that only waits.
    fn hurry(&mut self) {
        self.cx.in_hurry = true;
        let up = &mut Upstream { requests: &mut self.requests, cx: &mut self.cx };
        self.shared_reads.stop_all(up);
        self.lock_waits.end_all(up);
    }

    /// Performs one due step; returns `false` if there was none.
    fn step(&mut self) -> bool {
        let (routes, cx) = (&mut self.routes, &mut self.cx);
        // First, because routes depend on the tracker's actions.
        if !cx.is_closed && routes.tracker_is_due(cx.now) {
            self.follow_tracker();
            return true;
        }
        if std::mem::take(&mut routes.are_changed) {
            self.requests.continue_unrouted(cx);
        }
        // Before requests, of which there may be many.
        if !cx.is_closed && self.renewals.renew_if_due(routes, &mut self.session_ends, cx) {
            return true;
        }
        if let Some(number) = self.requests.pop_runnable() {
            self.advance(number);
            return true;
        }
        // Requests are answered even after shutdown; nothing new begins.
        if cx.is_closed {
            return false;
        }
        if let Some(timer) = cx.due_timer() {
            self.timer_is_due(timer);
            return true;
        }
        let is_idle = self.requests.ids.span() == 0;
        routes.check_links(cx) || self.registrar.register_if_due(is_idle, routes, cx)
    }

    fn timer_is_due(&mut self, timer: Timer) {
        let up = &mut Upstream { requests: &mut self.requests, cx: &mut self.cx };
        match timer {
            Timer::Request(number) => {
                let (routes, readiness) = (&self.routes, &self.readiness);
                let outcome = up.requests.timer_is_due(number, routes, readiness, up.cx);
                self.deliver(outcome);
            }
            Timer::Call(slot, call) => self.expire_call(slot, call),
            // Only one of these parts knows the caller.
            Timer::Caller(token) => {
                self.shared_reads.stop(token, up);
                self.lock_waits.stop(token, up);
            }
            Timer::Question(token) => self.lock_waits.question_is_due(token, up),
            Timer::Registration => self.registrar.is_pausing = false,
        }
    }

    fn call(&mut self, token: CallToken, caller: Caller, call: LocalCall) {
        let up = &mut Upstream { requests: &mut self.requests, cx: &mut self.cx };
        let (request, effort) = match call {
            LocalCall::Propose(command) => (Request::Propose(None, command), Effort::Held),
            LocalCall::Ask(request) => (request, Effort::Held),
            LocalCall::AskHome(request) => (request, Effort::Once),
            // No state is older than index 0, so there is nothing to wait for.
            LocalCall::Read { query, consistency, blocking: Some(Blocking { index, wait }) }
                if index.0 > 0 =>
            {
                let wanted = SharedQuery { caller: caller.clone(), query, consistency, index };
                if !up.cx.in_hurry {
                    return self.shared_reads.join(token, wanted, wait, up);
                }
                (wanted.request(Duration::ZERO), Effort::Held)
            }
            LocalCall::Read { query, consistency, .. } => {
                (Request::Read { query, consistency, blocking: None }, Effort::Held)
            }
            LocalCall::EndSession { session, reason } => {
                let unrenewed_since = self.renewals.unrenewed_since();
                return self.session_ends.end((token, caller), (session, reason), unrenewed_since, up);
            }
            LocalCall::Acquire { locks, session, wait } => {
                return self.lock_waits.acquire((token, caller), locks, session, wait, up);
            }
        };
        up.requests.begin_as(caller, Owner::Caller(token), request, effort, up.cx);
    }

    /// Cancels the call of a local caller, which only one of these parts knows.
    fn cancel_caller(&mut self, token: CallToken) {
        let up = &mut Upstream { requests: &mut self.requests, cx: &mut self.cx };
        up.requests.cancel_caller(token, up.cx);
        self.shared_reads.leave(token, up);
        self.session_ends.leave(token);
        // Also if the reply was given, and the caller is gone before it confirmed the grant.
        self.lock_waits.abandon(token, up);
    }

    /// Executes the tracker's actions.
    fn follow_tracker(&mut self) {
        let actions = self.routes.next_actions(&mut self.cx);
        self.readiness.check_refusal(&mut self.routes);
        // First: nothing more is sent to them.
        for slot in &actions.refuse {
            self.routes.refuse(*slot, &mut self.cx);
            self.settle_lost();
        }
        self.readiness.check_cluster(&mut self.routes, &mut self.cx);
        if self.routes.publish(actions.leader, actions.home, &mut self.cx) {
            self.readiness.disk_failure = None;
            self.renewals.leader_found(self.cx.now);
        }
        self.routes.assign_roles(&actions, &mut self.cx);
        self.settle_lost();
        actions.cut.iter().for_each(|slot| self.disconnect_dead(*slot, "it does not answer"));
        let registration = self.registration();
        actions.ask.iter().for_each(|slot| self.routes.query_status(*slot, registration, &mut self.cx));
        actions.hasten.iter().for_each(|slot| self.routes.hasten(*slot, &mut self.cx));
        self.settle_lost();
    }

    /// Makes a request's next step: finds a server, then a sequence, then sends it.
    fn advance(&mut self, number: RequestNumber) {
        let Some(pending) = self.requests.get(number) else { return };
        let is_registered = self.registrar.is_registered;
        let (routes, readiness, cx) = (&mut self.routes, &self.readiness, &mut self.cx);
        let outcome = if cx.is_closed {
            // Nothing wakes a request of a closed client, so each has to end here.
            self.requests.give_up(number, no_leader(), cx)
        } else if pending.unsent().is_some_and(|request| self.lock_waits.must_precede(request)) {
            self.requests.wait_for_enqueue(number, cx)
        } else {
            match routes.route(pending.addressee, is_registered) {
                Some(slot) => self.requests.attempt(number, slot, routes, readiness, cx),
                None => self.requests.wait_for_route(number, readiness, cx),
            }
        };
        self.deliver(outcome);
    }

    /// Passes the outcome of a request to its owner.
    fn deliver(&mut self, outcome: Option<RequestOutcome>) {
        let up = &mut Upstream { requests: &mut self.requests, cx: &mut self.cx };
        match outcome {
            Some(RequestOutcome::Ended(ended)) => {
                let (PendingRequest { owner, request, begun, .. }, result) = *ended;
                let node = self.registrar.node();
                self.renewals.notice_outcome((&request, begun), &result, node, up.cx.now);
                match owner {
                    Owner::Caller(token) => up.cx.reply(token, result.map(Answered::Response)),
                    Owner::SharedRead(read) => self.shared_reads.answered(read, result, up),
                    Owner::LockWait(token) => self.lock_waits.answered(token, result, up),
                    Owner::SessionEnd(session, caller) => {
                        self.session_ends.answered((session, caller), result, up.cx);
                    }
                }
            }
            Some(RequestOutcome::Unresolved(Owner::LockWait(token), failure)) => {
                self.lock_waits.unresolved(token, failure, up);
            }
            Some(RequestOutcome::Unresolved(Owner::SessionEnd(session, caller), failure)) => {
                self.session_ends.unresolved((session, caller), &failure, up.cx);
            }
            Some(RequestOutcome::Unresolved(Owner::Caller(_) | Owner::SharedRead(_), _)) | None => {}
        }
    }
}
