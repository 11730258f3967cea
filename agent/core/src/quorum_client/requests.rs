//! Requests, each retried while that is safe and useful.
//!
//! ```text
//! begin ──▶ route known? ──▶ sequence (commands) ──▶ room? ──▶ attempt ──▶ answer ──▶ its owner
//!             ▲    └ waits until the deadline                    │
//!             └────────────── pause ◀────────────────────────────┘ NotLeader, lost: same id again
//! ```
//!
//! Commands, renewals, plain reads and lock waits go to the current leader. Stale and blocking
//! reads go to the home server, which may be the same server.
//!
//! **Invariants:** retries are idempotent: a command that may have been sent is sent again only
//! under the same request id of the same registration. If that is impossible, or the command times
//! out, the caller receives *unknown*.

use super::calls::{CallKind, PendingCall, RetryScope, view_wait};
use super::context::{Context, Timer};
use super::input::CallToken;
use super::outbox::unexpected;
use super::owner::{Effort, Owner, RequestNumber, RequestResult, SHARED_READ_WAIT};
use super::readiness::Readiness;
use super::routes::Routes;
use crate::request_ids::{MAX_SPAN, MAX_WAITING, OpenRequest, Registration, RequestIds, Sequence};
use crate::servers::Slot;
use lockmesh_protocol::acl::Caller;
use lockmesh_protocol::backoff::Backoff;
use lockmesh_protocol::command::{Command, KvCommand};
use lockmesh_protocol::query::{Consistency, Query};
use lockmesh_protocol::reply::{Applied, Refusal, Reply};
use lockmesh_protocol::rpc::{CallId, Request, Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// The pauses between attempts. They only limit the rate of failures: an attempt waits for a known
/// leader, not for a fixed time.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(25));

/// The same for a command whose outcome is still unknown when its caller has been answered. No
/// client waits for it, so it must not add to an overload.
const RESOLVE_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// The minimum reply timeout, regardless of the hold timeout: a leader whose disk accepts no write
/// reports that after 6 s.
const LEAST_ANSWER_TIME: Duration = Duration::from_secs(7);

/// The server that a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Addressee {
    Leader,
    Home,
}

/// The consequence of a failed attempt for the next one.
#[derive(Debug)]
pub(super) enum AttemptFailure {
    /// Retry; the request was certainly not done.
    Again(Unavailable),
    /// The same, at another server of the same kind: this one no longer serves.
    Elsewhere,
    /// Retry; the request may have been done.
    Sent,
    /// The request was certainly not done, and a retry would be harmful or useless.
    Final(Unavailable),
}

/// The stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestStage {
    /// Its next step is due.
    Runnable,
    /// No suitable server is known.
    Unrouted,
    /// It waits for a sequence.
    Unnumbered,
    /// It is a release, and waits for the outcome of an enqueue of the same lock and session.
    BehindLockWait,
    /// Its server's send queue is full.
    Backlogged(Slot),
    /// It was sent to a server.
    Sent(Slot, CallId),
    /// The next attempt starts at this time.
    Pausing(Time),
}

/// A request under way.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub(super) request: Request,
    /// The identity with which it is sent.
    caller: Caller,
    pub(super) owner: Owner,
    pub(super) addressee: Addressee,
    effort: Effort,
    /// The start of the request; nothing of it was sent before.
    pub(super) begun: Time,
    /// The time at which it is given up, if no server accepts it.
    deadline: Option<Time>,
    backoff: Backoff,
    /// `true` if a command may have been done.
    was_sent: bool,
    /// The reason why the outcome of the last attempt is unknown, as reported by a server or
    /// derived from its silence.
    unknown_because: Option<String>,
    /// The sequence of a command.
    pub(super) sequence: Option<Sequence>,
    stage: RequestStage,
}

impl PendingRequest {
    /// Returns the request, if it was certainly not sent.
    pub(super) fn unsent(&self) -> Option<&Request> {
        (!self.was_sent).then_some(&self.request)
    }

    /// Returns `true` if the deadline has passed at this time.
    fn is_over(&self, at: Time) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= at)
    }

    fn is_command(&self) -> bool {
        matches!(self.request, Request::Propose(..))
    }

    /// Returns `true` if the same command under another request id has the same effect.
    fn may_be_a_second_command(&self) -> bool {
        matches!(self.owner, Owner::SessionEnd(..))
    }

    /// Returns `true` if the reply timeout is bounded by the hold timeout. A restore and an
    /// operator's command may take longer.
    fn is_answered_soon(&self) -> bool {
        self.deadline.is_some()
            && match &self.request {
                Request::Propose(_, Command::Restore(_)) => false,
                Request::Propose(..)
                | Request::Read { .. }
                | Request::ReadParts { .. }
                | Request::ReadPart { .. }
                | Request::Renew(_)
                | Request::NodeLeases(_) => true,
                _ => false,
            }
    }

    /// Returns the failure to report when no further attempt is made.
    fn failure(&self, reason: Unavailable) -> Unavailable {
        match (reason, &self.unknown_because) {
            (Unavailable::NotLeader { .. }, Some(why)) => Unavailable::Unknown(why.clone()),
            (reason @ Unavailable::Disk(_), _) if self.was_sent => unknown(&reason.to_string()),
            _ if self.was_sent => unknown(LOST),
            (reason, _) => reason,
        }
    }

    /// Returns `true` if the request is retried after its hold timeout until the servers report the
    /// outcome, because it would otherwise leave a lock or a session held. Its owner is answered at
    /// the hold timeout.
    ///
    /// - The enqueue of a lock wait that was sent: a grant that takes effect later would last as
    ///   long as the session, which a client that shares it between holds keeps renewing.
    /// - The end of a session, whose client may be gone.
    fn must_be_resolved(&self, cx: &Context) -> bool {
        let is_enqueue = matches!(
            self.request,
            Request::Propose(_, Command::Kv(KvCommand::Enqueue { .. }) | Command::AcquireLocks { .. })
        );
        let is_stopping = cx.is_closed || cx.in_hurry;
        match self.owner {
            Owner::LockWait(_) => is_enqueue && self.was_sent && !is_stopping,
            Owner::SessionEnd(..) => !cx.is_closed,
            Owner::Caller(_) | Owner::SharedRead(_) => false,
        }
    }

    fn scope(&self) -> RetryScope {
        match (&self.request, self.effort, self.addressee) {
            (request, Effort::Once, _) if is_of_mesh(request) => RetryScope::Aside,
            (_, Effort::Once, _) => RetryScope::Home,
            (Request::Propose(..), ..) => RetryScope::Leader,
            (Request::Read { blocking: Some(blocking), .. }, ..) if blocking.waits() => RetryScope::Parked,
            // A request that cannot be repeated stays with the server that it was sent to.
            _ if !may_repeat(&self.request) => RetryScope::Own,
            (.., Addressee::Leader) => RetryScope::Leader,
            (.., Addressee::Home) => RetryScope::Home,
        }
    }
}

/// The end of a request, or of the time that its owner waits for it.
#[derive(Debug)]
pub(super) enum RequestOutcome {
    /// The request has ended, with this result.
    Ended(Box<(PendingRequest, RequestResult)>),
    /// The request failed for its owner, but continues until its outcome is known.
    Unresolved(Owner, Unavailable),
}

/// The requests and the context, for the owners of requests.
pub(super) struct Upstream<'a> {
    pub(super) requests: &'a mut Requests,
    pub(super) cx: &'a mut Context,
}

/// All requests under way, with their request ids.
#[derive(Debug, Default)]
pub(super) struct Requests {
    pub(super) ids: RequestIds,
    requests: BTreeMap<RequestNumber, PendingRequest>,
    last: u64,
    /// The requests that local callers wait for.
    by_caller: BTreeMap<CallToken, RequestNumber>,
    /// Requests whose next step is due, in order.
    runnable: VecDeque<RequestNumber>,
    /// Requests that wait for a suitable server.
    unrouted: BTreeSet<RequestNumber>,
    /// Releases that wait for the outcome of an enqueue.
    behind_lock_wait: BTreeSet<RequestNumber>,
    /// The requests that wait for a server's send queue, in order.
    backlogs: BTreeMap<Slot, VecDeque<RequestNumber>>,
    /// The calls of cancelled requests, which their servers need not answer.
    cancelled: Vec<(Slot, CallId)>,
    hold_time: Duration,
    answer_time: Duration,
}

impl Requests {
    pub(super) fn new(hold_time: Duration, answer_time: Duration) -> Self {
        Self { hold_time, answer_time, ..Self::default() }
    }

    /// Proposes a command; retried within the hold timeout.
    pub(super) fn propose(
        &mut self,
        caller: Caller,
        owner: Owner,
        command: Command,
        cx: &mut Context,
    ) -> RequestNumber {
        self.begin_as(caller, owner, Request::Propose(None, command), Effort::Held, cx)
    }

    /// Begins a request of the agent itself.
    pub(super) fn begin(
        &mut self,
        owner: Owner,
        request: Request,
        effort: Effort,
        cx: &mut Context,
    ) -> RequestNumber {
        self.begin_as(Caller::Agent, owner, request, effort, cx)
    }

    /// Begins a request; its first step is made before the current input returns.
    pub(super) fn begin_as(
        &mut self,
        caller: Caller,
        owner: Owner,
        request: Request,
        effort: Effort,
        cx: &mut Context,
    ) -> RequestNumber {
        self.last += 1;
        let number = RequestNumber(self.last);
        let pending = PendingRequest {
            addressee: if effort == Effort::Once { Addressee::Home } else { addressee(&request) },
            deadline: (effort == Effort::Held).then(|| cx.now + self.hold_time + view_wait(&request)),
            request,
            caller,
            owner: owner.clone(),
            effort,
            begun: cx.now,
            backoff: Backoff::new(RETRY_BACKOFF, cx.random.number()),
            was_sent: false,
            unknown_because: None,
            sequence: None,
            stage: RequestStage::Runnable,
        };
        self.requests.insert(number, pending);
        self.runnable.push_back(number);
        if let Owner::Caller(token) = owner {
            self.by_caller.insert(token, number);
        }
        number
    }

    /// Removes and returns the next request whose next step is due.
    pub(super) fn pop_runnable(&mut self) -> Option<RequestNumber> {
        self.runnable.pop_front()
    }

    pub(super) fn get(&self, number: RequestNumber) -> Option<&PendingRequest> {
        self.requests.get(&number)
    }

    /// Makes a request's next step at a server: finds a sequence, then sends the request.
    pub(super) fn attempt(
        &mut self,
        number: RequestNumber,
        slot: Slot,
        routes: &mut Routes,
        readiness: &Readiness,
        cx: &mut Context,
    ) -> Option<RequestOutcome> {
        if let Err(outcome) = self.enter_sequence(number, cx) {
            return outcome;
        }
        let Some(connection) = routes.connection(slot) else {
            // The connection has just ended: the tracker is about to choose a replacement.
            return self.wait_for_route(number, readiness, cx);
        };
        // A request in this queue was certainly not sent, and may still go to another server. Data
        // in the connection's buffer cannot.
        if routes.is_backlogged(slot) {
            self.backlogs.entry(slot).or_default().push_back(number);
            return self.wait_in(RequestStage::Backlogged(slot), number, cx);
        }
        let pending = self.requests.get_mut(&number).expect("it is under way");
        let (scope, mut request) = (pending.scope(), pending.request.clone());
        // Set for each attempt: it carries the lowest sequence still needed, below which the
        // servers drop replies.
        if let Request::Propose(id, _) = &mut request {
            *id = pending.sequence.and_then(|sequence| self.ids.request_id(sequence));
        }
        cx.counts.attempts += 1;
        // A server itself ends the wait of a parked read.
        let wait = if scope == RetryScope::Parked { SHARED_READ_WAIT } else { Duration::ZERO };
        let mut deadline = cx.now + wait + self.answer_time;
        if scope != RetryScope::Parked && pending.is_answered_soon() {
            let longest = self.hold_time.max(LEAST_ANSWER_TIME) + view_wait(&pending.request);
            deadline = deadline.min((pending.begun + longest).max(cx.now));
        }
        let call = PendingCall { kind: CallKind::Attempt(number), scope, begun: cx.now, deadline };
        let id = routes.send_as(pending.caller.clone(), (slot, connection), call, request, cx);
        pending.stage = RequestStage::Sent(slot, id);
        None
    }

    /// Gives a command its sequence: its previous one, or a new one if it was certainly never sent.
    ///
    /// # Errors
    /// The command waits for a sequence, or has ended with the returned outcome.
    fn enter_sequence(
        &mut self,
        number: RequestNumber,
        cx: &mut Context,
    ) -> Result<(), Option<RequestOutcome>> {
        let pending = self.requests.get_mut(&number).expect("it is under way");
        if !pending.is_command() {
            return Ok(());
        }
        let registration = self.ids.registration();
        if pending.sequence.is_some_and(|sequence| registration == Some(sequence.registration)) {
            // One id for all attempts: the servers recognize a command that they have done.
            return Ok(());
        }
        // Under a new id it would be a second command, and the first one may have been done.
        if pending.was_sent && !pending.may_be_a_second_command() {
            let why = unknown("the agent had to register again before the servers answered");
            return Err(self.finish(number, Err(why), cx));
        }
        // Certainly not done, so a new sequence is safe; a sequence of an earlier registration is
        // void.
        match self.ids.enter(number.0) {
            OpenRequest::Entered(sequence) => {
                pending.sequence = Some(sequence);
                Ok(())
            }
            OpenRequest::Waits => Err(self.wait_in(RequestStage::Unnumbered, number, cx)),
            OpenRequest::Full => Err(self.finish(number, Err(too_many_commands()), cx)),
            OpenRequest::NotRegistered => unreachable!("commands have no route before the registration"),
        }
    }

    /// Lets a request wait for a suitable server.
    pub(super) fn wait_for_route(
        &mut self,
        number: RequestNumber,
        readiness: &Readiness,
        cx: &mut Context,
    ) -> Option<RequestOutcome> {
        let pending = self.requests.get_mut(&number).expect("it is under way");
        if let Some(reason) = readiness.refusal.clone().filter(|_| pending.effort != Effort::Once) {
            // Waiting does not change that.
            return self.give_up(number, Unavailable::NotAdmitted(reason), cx);
        }
        if pending.effort == Effort::Once || pending.is_over(cx.now) {
            return self.give_up(number, readiness.no_route(), cx);
        }
        // Earlier reports of a server no longer count: now there is no server.
        pending.unknown_because = None;
        self.unrouted.insert(number);
        self.wait_in(RequestStage::Unrouted, number, cx)
    }

    /// Lets a release wait for the outcome of an enqueue.
    pub(super) fn wait_for_enqueue(
        &mut self,
        number: RequestNumber,
        cx: &mut Context,
    ) -> Option<RequestOutcome> {
        if self.requests[&number].is_over(cx.now) {
            return self.give_up(number, enqueue_unresolved(), cx);
        }
        self.behind_lock_wait.insert(number);
        self.wait_in(RequestStage::BehindLockWait, number, cx)
    }

    /// Lets a request wait in a stage until its deadline.
    fn wait_in(
        &mut self,
        stage: RequestStage,
        number: RequestNumber,
        cx: &mut Context,
    ) -> Option<RequestOutcome> {
        let pending = self.requests.get_mut(&number).expect("it is under way");
        pending.stage = stage;
        if let Some(deadline) = pending.deadline {
            cx.start_timer(deadline, Timer::Request(number));
        }
        None
    }

    /// Handles a server's reply to an attempt, as classified.
    pub(super) fn answered(
        &mut self,
        number: RequestNumber,
        response: Result<Response, AttemptFailure>,
        cx: &mut Context,
    ) -> Option<RequestOutcome> {
        let response = match response {
            Ok(response) => response,
            Err(failure) => return self.failed(number, failure, cx),
        };
        let is_command = self.requests.get(&number)?.is_command();
        // The registration is void. The next attempt waits for another one, and `was_sent` decides
        // whether there is a next attempt.
        if is_command && is_forgotten(&response) {
            return self.failed(number, AttemptFailure::Again(no_leader()), cx);
        }
        // Only an applied entry shows the outcome of a command; any other reply leaves it unknown.
        let is_outcome = !is_command || matches!(response, Response::Applied(_));
        self.finish(number, if is_outcome { Ok(response) } else { Err(unexpected(&response)) }, cx)
    }

    /// Records why a server does not know the outcome of an attempt.
    pub(super) fn outcome_is_unknown(&mut self, number: RequestNumber, why: &str) {
        if let Some(pending) = self.requests.get_mut(&number) {
            pending.unknown_because = Some(why.into());
        }
    }

    /// Handles a failed attempt: retries, or gives the request up.
    pub(super) fn failed(
        &mut self,
        number: RequestNumber,
        failure: AttemptFailure,
        cx: &mut Context,
    ) -> Option<RequestOutcome> {
        let pending = self.requests.get_mut(&number)?;
        let is_command = pending.is_command();
        let reason = match failure {
            // Only a later attempt can show the outcome of an earlier one.
            AttemptFailure::Final(reason) if pending.was_sent => reason,
            AttemptFailure::Final(reason @ (Unavailable::Overloaded(_) | Unavailable::Disk(_)))
                if matches!(pending.owner, Owner::SessionEnd(..)) =>
            {
                return self.give_up(number, reason, cx);
            }
            AttemptFailure::Final(reason) => return self.finish(number, Err(reason), cx),
            AttemptFailure::Again(reason) => {
                // A home server without a leader cannot help; the leader can.
                pending.addressee = Addressee::Leader;
                reason
            }
            AttemptFailure::Elsewhere => no_leader(),
            // The same id makes the retry harmless: a server that has done it returns the first
            // reply.
            AttemptFailure::Sent if is_command => {
                pending.was_sent = true;
                no_leader()
            }
            AttemptFailure::Sent if may_repeat(&pending.request) && pending.effort != Effort::Once => {
                no_leader()
            }
            AttemptFailure::Sent => {
                // Possibly done, and must not be done twice: the caller has to check.
                pending.was_sent = true;
                return self.give_up(number, no_leader(), cx);
            }
        };
        self.pause(number, reason, cx)
    }

    /// Waits before the next attempt, if there is time for one.
    fn pause(
        &mut self,
        number: RequestNumber,
        reason: Unavailable,
        cx: &mut Context,
    ) -> Option<RequestOutcome> {
        let pending = self.requests.get_mut(&number).expect("it is under way");
        let at = cx.now + pending.backoff.next_pause();
        if pending.effort == Effort::Once || pending.is_over(at) {
            return self.give_up(number, reason, cx);
        }
        if pending.effort == Effort::Held {
            cx.counts.retries += 1;
        }
        pending.stage = RequestStage::Pausing(at);
        cx.start_timer(at, Timer::Request(number));
        None
    }

    /// Handles a request's timer: its pause, or its wait for a server, is over.
    pub(super) fn timer_is_due(
        &mut self,
        number: RequestNumber,
        routes: &Routes,
        readiness: &Readiness,
        cx: &mut Context,
    ) -> Option<RequestOutcome> {
        let why = match self.requests.get(&number)?.stage {
            RequestStage::Unrouted => readiness.no_route(),
            RequestStage::Unnumbered => too_many_commands(),
            RequestStage::BehindLockWait => enqueue_unresolved(),
            RequestStage::Backlogged(slot) => {
                Unavailable::Overloaded(format!("the send queue to {} is full", routes.address(slot)))
            }
            RequestStage::Runnable | RequestStage::Sent(..) | RequestStage::Pausing(_) => {
                self.run_again(number, cx);
                return None;
            }
        };
        self.leave_stage(number, cx);
        self.give_up(number, why, cx)
    }

    /// Records that a server did not answer an attempt within the timeout.
    pub(super) fn attempt_is_late(&mut self, number: RequestNumber, address: &str, now: Time) {
        let Some(pending) = self.requests.get_mut(&number) else { return };
        // The last one of several attempts may have begun just now.
        let seconds = now.since(pending.begun).as_secs_f64();
        // A server's report on an earlier attempt is more precise.
        pending.unknown_because.get_or_insert_with(|| {
            format!(
                "no server has answered for {seconds:.1} s (last: {address}); it is unknown whether the request \
                 was applied"
            )
        });
    }

    /// Continues a request whose wait is over.
    fn run_again(&mut self, number: RequestNumber, cx: &mut Context) {
        if self.requests.contains_key(&number) {
            self.leave_stage(number, cx);
            self.runnable.push_back(number);
        }
    }

    /// Continues the requests that waited for a route: those that find none wait again.
    pub(super) fn continue_unrouted(&mut self, cx: &mut Context) {
        std::mem::take(&mut self.unrouted).into_iter().for_each(|number| self.run_again(number, cx));
    }

    /// Continues the releases that waited: those whose enqueue is still unresolved wait again.
    pub(super) fn continue_releases(&mut self, cx: &mut Context) {
        std::mem::take(&mut self.behind_lock_wait).into_iter().for_each(|number| self.run_again(number, cx));
    }

    /// Lets the requests that wait for a server's send queue choose their route again.
    pub(super) fn continue_backlog(&mut self, slot: Slot, cx: &mut Context) {
        let backlog = self.backlogs.remove(&slot);
        backlog.into_iter().flatten().for_each(|number| self.run_again(number, cx));
    }

    /// Continues every request.
    pub(super) fn continue_all(&mut self, cx: &mut Context) {
        let numbers: Vec<RequestNumber> = self.requests.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.run_again(number, cx));
    }

    /// Starts another registration: commands that waited for a sequence continue.
    pub(super) fn register(&mut self, registration: Registration, cx: &mut Context) {
        let admitted = self.ids.register(registration);
        self.admit(admitted, cx);
    }

    fn admit(&mut self, admitted: Vec<(u64, Sequence)>, cx: &mut Context) {
        for (number, sequence) in admitted {
            let number = RequestNumber(number);
            let pending = self.requests.get_mut(&number).expect("a waiting request is under way");
            pending.sequence = Some(sequence);
            self.run_again(number, cx);
        }
    }

    /// Ends a request without a result from a server, unless it continues in the background.
    pub(super) fn give_up(
        &mut self,
        number: RequestNumber,
        reason: Unavailable,
        cx: &mut Context,
    ) -> Option<RequestOutcome> {
        let pending = self.requests.get_mut(&number)?;
        let failure = pending.failure(reason);
        if !pending.must_be_resolved(cx) {
            // The calls were dropped with their connections, so it is no longer known which
            // requests were sent.
            let reason = if cx.is_closed { shutting_down() } else { failure };
            return self.finish(number, Err(reason), cx);
        }
        let owner = pending.owner.clone();
        let is_first = pending.effort == Effort::Held;
        if is_first {
            pending.backoff = Backoff::new(RESOLVE_BACKOFF, cx.random.number());
            (pending.effort, pending.deadline) = (Effort::Endless, None);
        }
        let outcome = self.pause(number, no_leader(), cx);
        if is_first { Some(RequestOutcome::Unresolved(owner, failure)) } else { outcome }
    }

    /// Ends a request.
    fn finish(
        &mut self,
        number: RequestNumber,
        result: RequestResult,
        cx: &mut Context,
    ) -> Option<RequestOutcome> {
        Some(RequestOutcome::Ended(Box::new((self.remove(number, cx)?, result))))
    }

    /// Cancels the request of a local caller, if there is one.
    pub(super) fn cancel_caller(&mut self, token: CallToken, cx: &mut Context) {
        if let Some(number) = self.by_caller.get(&token) {
            self.cancel(*number, cx);
        }
    }

    /// Cancels a request that no caller waits for. A sent request may still be done.
    pub(super) fn cancel(&mut self, number: RequestNumber, cx: &mut Context) {
        let Some(pending) = self.remove(number, cx) else { return };
        if let RequestStage::Sent(slot, call) = pending.stage {
            self.cancelled.push((slot, call));
        }
    }

    /// Removes and returns the calls of cancelled requests.
    pub(super) fn take_cancelled(&mut self) -> Vec<(Slot, CallId)> {
        std::mem::take(&mut self.cancelled)
    }

    fn remove(&mut self, number: RequestNumber, cx: &mut Context) -> Option<PendingRequest> {
        self.leave_stage(number, cx);
        let pending = self.requests.remove(&number)?;
        if let Owner::Caller(token) = pending.owner {
            self.by_caller.remove(&token);
        }
        // The reply is no longer needed: the servers may drop it.
        if let Some(sequence) = pending.sequence {
            let admitted = self.ids.leave(sequence);
            self.admit(admitted, cx);
        }
        Some(pending)
    }

    /// Removes a request from the queue of its stage. A call stays unchanged.
    fn leave_stage(&mut self, number: RequestNumber, cx: &mut Context) {
        let Some(pending) = self.requests.get_mut(&number) else { return };
        match pending.stage {
            RequestStage::Unrouted => drop(self.unrouted.remove(&number)),
            RequestStage::Unnumbered => self.ids.stop_waiting(number.0),
            RequestStage::BehindLockWait => drop(self.behind_lock_wait.remove(&number)),
            RequestStage::Backlogged(slot) => {
                if let Some(backlog) = self.backlogs.get_mut(&slot) {
                    backlog.retain(|waiting| *waiting != number);
                }
            }
            RequestStage::Pausing(at) => cx.stop_timer(at, Timer::Request(number)),
            RequestStage::Runnable | RequestStage::Sent(..) => return,
        }
        if let Some(deadline) = pending.deadline {
            cx.stop_timer(deadline, Timer::Request(number));
        }
        pending.stage = RequestStage::Runnable;
    }
}

fn addressee(request: &Request) -> Addressee {
    match request {
        Request::Read { query: Query::QueuePosition { .. } | Query::RequestOutcome { .. }, .. } => {
            Addressee::Leader
        }
        Request::Read { blocking: Some(blocking), .. } if blocking.waits() => Addressee::Home,
        Request::Read { consistency: Consistency::Stale, .. }
        | Request::ReadParts { consistency: Consistency::Stale, .. }
        | Request::ReadPart { consistency: Consistency::Stale, .. }
        | Request::EndView(_, Consistency::Stale)
        | Request::BackupPart { stale: true, .. } => Addressee::Home,
        _ => Addressee::Leader,
    }
}

/// Returns `true` if a request that may have been done may be sent again.
fn may_repeat(request: &Request) -> bool {
    match request {
        Request::Propose(..)
        | Request::Read { .. }
        | Request::ReadParts { .. }
        | Request::Renew(_)
        | Request::Status
        | Request::Autopilot
        | Request::NodeLeases(_)
        | Request::SyncMesh(_)
        | Request::BackupPart { .. }
        | Request::AddServer(_)
        | Request::RemoveServer(_) => true,
        // A second leadership transfer would move the leadership away from the first one's target.
        // The view of a part ends with its connection.
        // Unlisted requests may not be idempotent.
        _ => false,
    }
}

/// Returns `true` if no application waits for the reply, and the mesh asks again.
fn is_of_mesh(request: &Request) -> bool {
    matches!(request, Request::SyncMesh(_) | Request::Suspect(_) | Request::Spread(_))
}

pub(super) fn is_forgotten(response: &Response) -> bool {
    matches!(response, Response::Applied(Applied { reply: Reply::Refused(Refusal::Forgotten), .. }))
}

pub(super) fn no_leader() -> Unavailable {
    Unavailable::NotLeader { leader: None }
}

pub(super) fn shutting_down() -> Unavailable {
    Unavailable::Unknown("the agent is shutting down".into())
}

/// The reason why the outcome of a command that was sent is unknown.
const LOST: &str = "the servers were lost before they answered";

fn unknown(why: &str) -> Unavailable {
    Unavailable::Unknown(format!(
        "No cluster leader: {why}, so it is unknown whether the request took effect"
    ))
}

fn enqueue_unresolved() -> Unavailable {
    Unavailable::Unknown(
        "the outcome of this session's earlier request for the lock is still unknown, so the lock may be granted \
         to it later: release it again"
            .into(),
    )
}

fn too_many_commands() -> Unavailable {
    Unavailable::Overloaded(format!(
        "{MAX_SPAN} commands of this agent are under way and {MAX_WAITING} wait for them"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_protocol::id::SessionId;
    use lockmesh_protocol::random::Random;

    const HOLD: Duration = Duration::from_secs(10);

    fn session() -> SessionId {
        SessionId::from_random([1; 16])
    }

    fn begin(owner: Owner) -> (Requests, RequestNumber, Context) {
        let mut cx = Context::new(Random::new(1), Time(0));
        let mut requests = Requests::new(HOLD, HOLD);
        let number = requests.propose(Caller::Agent, owner, Command::DestroySession(session()), &mut cx);
        assert_eq!(requests.pop_runnable(), Some(number));
        (requests, number, cx)
    }

    #[test]
    fn release_waits_for_enqueue_until_deadline() {
        let (mut requests, number, mut cx) = begin(Owner::Caller(CallToken(1)));
        assert!(requests.wait_for_enqueue(number, &mut cx).is_none());
        assert_eq!((requests.pop_runnable(), cx.next_timer()), (None, Some(Time(0) + HOLD)));
        requests.continue_releases(&mut cx);
        assert_eq!((requests.pop_runnable(), cx.next_timer()), (Some(number), None));
        cx.now = Time(0) + HOLD;
        let Some(RequestOutcome::Ended(ended)) = requests.wait_for_enqueue(number, &mut cx) else {
            panic!("it waits on");
        };
        assert_eq!(ended.1, Err(enqueue_unresolved()));
    }

    #[test]
    fn session_end_survives_hold_timeout() {
        let (mut requests, number, mut cx) = begin(Owner::SessionEnd(session(), Caller::Agent));
        let outcome = requests.give_up(number, no_leader(), &mut cx);
        assert!(matches!(outcome, Some(RequestOutcome::Unresolved(Owner::SessionEnd(..), _))));
        assert!(cx.next_timer().is_some(), "the next attempt is scheduled");
        assert!(requests.give_up(number, no_leader(), &mut cx).is_none(), "reported once");
        cx.is_closed = true;
        assert!(matches!(requests.give_up(number, no_leader(), &mut cx), Some(RequestOutcome::Ended(_))));
        assert!(requests.get(number).is_none());
    }
}
