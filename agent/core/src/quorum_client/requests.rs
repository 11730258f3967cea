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

use super::calls::{CallKind, PendingCall, RetryScope};
use super::input::ConnectionId;
use super::outbox::{Answered, unexpected};
use super::owner::{Effort, Owner, RequestNumber, SHARED_READ_WAIT};
use super::{QuorumClient, Timer};
use crate::request_ids::{MAX_SPAN, MAX_WAITING, OpenRequest, Sequence};
use crate::servers::Slot;
use lockmesh_protocol::backoff::Backoff;
use lockmesh_protocol::command::{Command, KvCommand};
use lockmesh_protocol::query::{Consistency, Query};
use lockmesh_protocol::reply::{Applied, Refusal, Reply};
use lockmesh_protocol::rpc::{Call, CallId, Request, Response, Unavailable};
use lockmesh_protocol::time::Time;
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
    request: Request,
    owner: Owner,
    addressee: Addressee,
    effort: Effort,
    /// The start of the request; nothing of it was sent before.
    begun: Time,
    /// The time at which it is given up, if no server accepts it.
    deadline: Option<Time>,
    backoff: Backoff,
    /// `true` if a command may have been done.
    was_sent: bool,
    /// The reason why the outcome of the last attempt is unknown, as reported by a server or
    /// derived from its silence.
    unknown_because: Option<String>,
    /// The sequence of a command.
    sequence: Option<Sequence>,
    stage: RequestStage,
}

impl PendingRequest {
    fn is_command(&self) -> bool {
        matches!(self.request, Request::Propose(..))
    }

    /// Returns `true` if the same command under another request id has the same effect.
    fn may_be_a_second_command(&self) -> bool {
        matches!(self.owner, Owner::SessionEnd(_))
    }

    /// Returns `true` if the reply timeout is bounded by the hold timeout. A restore and an
    /// operator's command may take longer.
    fn is_answered_soon(&self) -> bool {
        self.deadline.is_some()
            && match &self.request {
                Request::Propose(_, Command::Restore(_)) => false,
                Request::Propose(..) | Request::Read { .. } | Request::Renew(_) | Request::NodeLeases(_) => {
                    true
                }
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

impl QuorumClient {
    /// Proposes a command; retried within the hold timeout.
    pub(super) fn propose(&mut self, owner: Owner, command: Command) -> RequestNumber {
        self.begin(owner, Request::Propose(None, command), Effort::Held)
    }

    /// Begins a request; its first step is made before the current input returns.
    pub(super) fn begin(&mut self, owner: Owner, request: Request, effort: Effort) -> RequestNumber {
        self.last_request += 1;
        let number = RequestNumber(self.last_request);
        let pending = PendingRequest {
            addressee: if effort == Effort::Once { Addressee::Home } else { addressee(&request) },
            request,
            owner,
            effort,
            begun: self.now,
            deadline: (effort == Effort::Held).then(|| self.now + self.config.hold_time),
            backoff: Backoff::new(RETRY_BACKOFF, self.random.number()),
            was_sent: false,
            unknown_because: None,
            sequence: None,
            stage: RequestStage::Runnable,
        };
        self.requests.insert(number, pending);
        self.runnable.push_back(number);
        number
    }

    /// Makes a request's next step: finds a server, then a sequence, then sends it.
    pub(super) fn advance(&mut self, number: RequestNumber) {
        let Some(pending) = self.requests.get(&number) else { return };
        // Nothing wakes a request of a closed client, so each has to end here.
        if self.is_closed {
            return self.give_up(number, no_leader());
        }
        if !pending.was_sent && self.lock_waits.must_precede(&pending.request) {
            return self.wait_for_enqueue(number);
        }
        let Some(slot) = self.route(pending.addressee) else {
            return self.wait_for_route(number);
        };
        if pending.is_command() && !self.has_sequence(number) {
            return;
        }
        self.attempt(number, slot);
    }

    /// Returns the error for a request without a suitable server. A reachable server of another
    /// cluster is the likely reason, or disks on which no server can record its vote.
    fn no_route(&self) -> Unavailable {
        match (&self.complaint, &self.disk_failure) {
            (Some(complaint), _) => Unavailable::NotAdmitted(complaint.clone()),
            (None, Some(why)) => Unavailable::Disk(format!("{why}; since then there is no cluster leader")),
            (None, None) => no_leader(),
        }
    }

    fn wait_for_route(&mut self, number: RequestNumber) {
        let pending = self.requests.get_mut(&number).expect("it is under way");
        if let Some(reason) = self.refusal.clone().filter(|_| pending.effort != Effort::Once) {
            // Waiting does not change that.
            return self.give_up(number, Unavailable::NotAdmitted(reason));
        }
        if pending.effort == Effort::Once || pending.deadline.is_some_and(|deadline| deadline <= self.now) {
            let why = self.no_route();
            return self.give_up(number, why);
        }
        // Earlier reports of a server no longer count: now there is no server.
        pending.unknown_because = None;
        self.unrouted.insert(number);
        self.wait_in(RequestStage::Unrouted, number);
    }

    fn wait_for_enqueue(&mut self, number: RequestNumber) {
        let pending = &self.requests[&number];
        if pending.deadline.is_some_and(|deadline| deadline <= self.now) {
            return self.give_up(number, enqueue_unresolved());
        }
        self.lock_waits.hold_back(number);
        self.wait_in(RequestStage::BehindLockWait, number);
    }

    /// Lets a request wait in a stage until its deadline.
    fn wait_in(&mut self, stage: RequestStage, number: RequestNumber) {
        let pending = self.requests.get_mut(&number).expect("it is under way");
        pending.stage = stage;
        if let Some(deadline) = pending.deadline {
            self.timers.insert((deadline, Timer::Request(number)));
        }
    }

    /// Returns `true` if a command has its sequence: its previous one, or a new one if it was
    /// certainly never sent.
    fn has_sequence(&mut self, number: RequestNumber) -> bool {
        let pending = self.requests.get_mut(&number).expect("it is under way");
        let registration = self.ids.registration();
        if pending.sequence.is_some_and(|sequence| registration == Some(sequence.registration)) {
            // One id for all attempts: the servers recognize a command that they have done.
            return true;
        }
        // Under a new id it would be a second command, and the first one may have been done.
        if pending.was_sent && !pending.may_be_a_second_command() {
            let why = unknown("the agent had to register again before the servers answered");
            self.finish(number, Err(why));
            return false;
        }
        // Certainly not done, so a new sequence is safe; a sequence of an earlier registration is
        // void.
        match self.ids.enter(number.0) {
            OpenRequest::Entered(sequence) => {
                pending.sequence = Some(sequence);
                return true;
            }
            OpenRequest::Waits => self.wait_in(RequestStage::Unnumbered, number),
            OpenRequest::Full => self.finish(number, Err(too_many_commands())),
            OpenRequest::NotRegistered => unreachable!("commands have no route before the registration"),
        }
        false
    }

    fn attempt(&mut self, number: RequestNumber, slot: Slot) {
        let pending = self.requests.get_mut(&number).expect("it is under way");
        let link = self.links.get_mut(&slot).expect("a route is a link");
        let Some(connection) = link.connection() else {
            // The connection has just ended: the tracker is about to choose a replacement.
            return self.wait_for_route(number);
        };
        // A request in this queue was certainly not sent, and may still go to another server. Data
        // in the connection's buffer cannot.
        if link.is_backlogged {
            link.backlog.push_back(number);
            return self.wait_in(RequestStage::Backlogged(slot), number);
        }
        let sequence = pending.sequence;
        let scope = pending.scope();
        let mut request = pending.request.clone();
        // Set for each attempt: it carries the lowest sequence still needed, below which the
        // servers drop replies.
        if let Request::Propose(id, _) = &mut request {
            *id = sequence.and_then(|sequence| self.ids.request_id(sequence));
        }
        self.counts.attempts += 1;
        let timeout = match scope {
            // The server itself ends the wait after that time, so its reply is late only after
            // that.
            RetryScope::Parked => SHARED_READ_WAIT + self.config.answer_time,
            RetryScope::Leader | RetryScope::Home | RetryScope::Own | RetryScope::Aside => {
                self.config.answer_time
            }
        };
        let pending = &self.requests[&number];
        let latest = pending.begun + self.config.hold_time.max(LEAST_ANSWER_TIME);
        let is_bounded = scope != RetryScope::Parked && pending.is_answered_soon();
        let deadline = self.now + timeout;
        let deadline = if is_bounded { deadline.min(latest.max(self.now)) } else { deadline };
        let kind = CallKind::Attempt(number);
        let call = PendingCall { kind, scope, begun: self.now, deadline };
        let id = self.send(slot, connection, call, request);
        self.requests.get_mut(&number).expect("it is under way").stage = RequestStage::Sent(slot, id);
    }

    /// Sends a call on an established connection.
    pub(super) fn send(
        &mut self,
        slot: Slot,
        connection: ConnectionId,
        call: PendingCall,
        request: Request,
    ) -> CallId {
        let id = self.links.get_mut(&slot).expect("it is connected").calls.begin(call);
        self.timers.insert((call.deadline, Timer::Call(slot, id)));
        self.outbox.calls.push((connection, Call::Begin(id, request)));
        id
    }

    /// Handles a server's reply to an attempt.
    pub(super) fn answered(
        &mut self,
        number: RequestNumber,
        (slot, scope): (Slot, RetryScope),
        response: Response,
    ) {
        if let (Some(pending), Response::Unavailable(Unavailable::Unknown(why))) =
            (self.requests.get_mut(&number), &response)
        {
            pending.unknown_because = Some(why.clone());
        }
        match &response {
            Response::Unavailable(Unavailable::Disk(why)) => self.disk_failure = Some(why.clone()),
            Response::Applied(_) => self.disk_failure = None,
            _ => {}
        }
        let mut response = match self.judge(slot, scope, response) {
            Ok(response) => response,
            Err(failure) => return self.failed(number, failure),
        };
        let Some(pending) = self.requests.get(&number) else { return };
        if pending.is_command() {
            // The registration is void. The next attempt waits for another one, and `was_sent`
            // decides whether there is a next attempt.
            if is_forgotten(&response) {
                if let Some(sequence) = pending.sequence {
                    self.forgotten(sequence.registration);
                }
                return self.failed(number, AttemptFailure::Again(no_leader()));
            }
            // Only an applied entry shows the outcome of a command; any other reply leaves it
            // unknown.
            if !matches!(response, Response::Applied(_)) {
                response = Response::Unavailable(unexpected(&response));
            }
        }
        let result = match response {
            Response::Unavailable(reason) => Err(reason),
            response => Ok(response),
        };
        self.finish(number, result);
    }

    /// Classifies a reply, and updates what is known of its server.
    pub(super) fn judge(
        &mut self,
        slot: Slot,
        scope: RetryScope,
        response: Response,
    ) -> Result<Response, AttemptFailure> {
        match response {
            Response::Unavailable(reason) => Err(match reason {
                // Certainly not done, so the next leader may receive it.
                Unavailable::NotLeader { leader } => {
                    self.tell(|tracker, now| tracker.refused(slot, leader.as_deref(), now));
                    AttemptFailure::Again(Unavailable::NotLeader { leader })
                }
                // Such a server accepts nothing; it has answered the requests accepted before as
                // unknown.
                Unavailable::Removed | Unavailable::Corrupt => {
                    self.tell(|tracker, now| tracker.removed(slot, now));
                    AttemptFailure::Elsewhere
                }
                Unavailable::Unknown(_) => AttemptFailure::Sent,
                // Reported at once: retries would add to an overload, and the other errors require
                // an operator.
                Unavailable::Overloaded(_)
                | Unavailable::Disk(_)
                | Unavailable::Denied(_)
                | Unavailable::AnswerTooLong { .. }
                | Unavailable::NotAdmitted(_) => AttemptFailure::Final(reason),
            }),
            // A server that was asked as the leader, and no longer leads, has a less recent status
            // than needed.
            Response::Status(status)
                if scope == RetryScope::Leader && status.leader != Some(status.server) =>
            {
                let leader = status.servers.iter().find(|server| Some(server.id) == status.leader);
                let leader = leader.map(|server| server.address.clone());
                self.tell(|tracker, now| tracker.refused(slot, leader.as_deref(), now));
                Err(AttemptFailure::Again(Unavailable::NotLeader { leader }))
            }
            response => Ok(response),
        }
    }

    /// Handles a failed attempt: retries, or gives the request up.
    pub(super) fn failed(&mut self, number: RequestNumber, failure: AttemptFailure) {
        let Some(pending) = self.requests.get_mut(&number) else { return };
        let is_command = pending.is_command();
        let reason = match failure {
            // Only a later attempt can show the outcome of an earlier one.
            AttemptFailure::Final(reason) if pending.was_sent => reason,
            AttemptFailure::Final(reason @ (Unavailable::Overloaded(_) | Unavailable::Disk(_)))
                if matches!(pending.owner, Owner::SessionEnd(_)) =>
            {
                return self.give_up(number, reason);
            }
            AttemptFailure::Final(reason) => return self.finish(number, Err(reason)),
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
                return self.give_up(number, no_leader());
            }
        };
        self.pause(number, reason);
    }

    /// Waits before the next attempt, if there is time for one.
    fn pause(&mut self, number: RequestNumber, reason: Unavailable) {
        let pending = self.requests.get_mut(&number).expect("it is under way");
        let at = self.now + pending.backoff.next_pause();
        if pending.effort == Effort::Once || pending.deadline.is_some_and(|deadline| at >= deadline) {
            return self.give_up(number, reason);
        }
        if pending.effort == Effort::Held {
            self.counts.retries += 1;
        }
        pending.stage = RequestStage::Pausing(at);
        self.timers.insert((at, Timer::Request(number)));
    }

    /// Handles a request's timer: its pause, or its wait for a server, is over.
    pub(super) fn request_due(&mut self, number: RequestNumber) {
        let Some(pending) = self.requests.get_mut(&number) else { return };
        let why = match pending.stage {
            RequestStage::Unrouted => self.no_route(),
            RequestStage::Unnumbered => too_many_commands(),
            RequestStage::BehindLockWait => enqueue_unresolved(),
            RequestStage::Backlogged(slot) => self.too_much_to_send(slot),
            RequestStage::Runnable | RequestStage::Sent(..) | RequestStage::Pausing(_) => {
                return self.run_again(number);
            }
        };
        self.leave_stage(number);
        self.give_up(number, why);
    }

    fn too_much_to_send(&self, slot: Slot) -> Unavailable {
        let address = self.links.get(&slot).map_or("the server", |link| link.address.as_str());
        Unavailable::Overloaded(format!("the send queue to {address} is full"))
    }

    /// Handles an attempt without a reply within the timeout.
    pub(super) fn attempt_is_late(&mut self, number: RequestNumber, slot: Slot) {
        let address = self.links.get(&slot).map_or("the server", |link| link.address.as_str());
        let Some(pending) = self.requests.get_mut(&number) else { return };
        // The last one of several attempts may have begun just now.
        let seconds = self.now.since(pending.begun).as_secs_f64();
        // A server's report on an earlier attempt is more precise.
        pending.unknown_because.get_or_insert_with(|| {
            format!(
                "no server has answered for {seconds:.1} s (last: {address}); it is unknown whether the request \
                 was applied"
            )
        });
    }

    /// Continues a request whose wait is over.
    pub(super) fn run_again(&mut self, number: RequestNumber) {
        if self.requests.contains_key(&number) {
            self.leave_stage(number);
            self.runnable.push_back(number);
        }
    }

    /// Continues commands that waited for a sequence and have one now.
    pub(super) fn admit(&mut self, admitted: Vec<(u64, Sequence)>) {
        for (number, sequence) in admitted {
            let number = RequestNumber(number);
            let pending = self.requests.get_mut(&number).expect("a waiting request is under way");
            pending.sequence = Some(sequence);
            self.run_again(number);
        }
    }

    fn give_up(&mut self, number: RequestNumber, reason: Unavailable) {
        let Some(pending) = self.requests.get(&number) else { return };
        let failure = pending.failure(reason);
        if self.resolve_in_background(number, &failure) {
            return;
        }
        // The calls were dropped with their connections, so it is no longer known which requests
        // were sent.
        let reason = if self.is_closed { shutting_down() } else { failure };
        self.finish(number, Err(reason));
    }

    /// Keeps retrying a request after its hold timeout until the servers report the outcome, if it
    /// would otherwise leave a lock or a session held. Returns `false` for every other request. The
    /// caller is answered now.
    ///
    /// - The enqueue of a lock wait that was sent: a grant that takes effect later would last as
    ///   long as the session, which a client that shares it between holds keeps renewing.
    /// - The end of a session, whose client may be gone.
    fn resolve_in_background(&mut self, number: RequestNumber, failure: &Unavailable) -> bool {
        let is_stopping = self.is_closed || self.in_hurry;
        let Some(pending) = self.requests.get_mut(&number) else { return false };
        let is_enqueue =
            matches!(&pending.request, Request::Propose(_, Command::Kv(KvCommand::Enqueue { .. })));
        let owner = pending.owner;
        match owner {
            Owner::LockWait(_) if is_enqueue && pending.was_sent && !is_stopping => {}
            Owner::SessionEnd(_) if !self.is_closed => {}
            _ => return false,
        }
        if pending.effort == Effort::Held {
            pending.backoff = Backoff::new(RESOLVE_BACKOFF, self.random.number());
            (pending.effort, pending.deadline) = (Effort::Endless, None);
            match owner {
                Owner::LockWait(token) => self.lock_wait_unresolved(token, failure.clone()),
                Owner::SessionEnd(session) => self.session_end_unresolved(&session, failure),
                Owner::Caller(_) | Owner::SharedRead(_) => {}
            }
        }
        self.pause(number, no_leader());
        true
    }

    /// Ends a request and replies to its owner.
    fn finish(&mut self, number: RequestNumber, result: Result<Response, Unavailable>) {
        let Some(pending) = self.forget(number) else { return };
        self.notice_outcome(&pending.request, pending.begun, &result);
        match pending.owner {
            Owner::Caller(token) => {
                self.callers.remove(&token);
                self.outbox.answers.push((token, result.map(Answered::Response)));
            }
            Owner::SharedRead(read) => self.shared_read_answered(read, result),
            Owner::LockWait(token) => self.lock_wait_answered(token, result),
            Owner::SessionEnd(session) => self.session_end_answered(session, result),
        }
    }

    /// Cancels a request that no caller waits for. A sent request may still be done.
    pub(super) fn cancel(&mut self, number: RequestNumber) {
        let Some(pending) = self.forget(number) else { return };
        if let RequestStage::Sent(slot, call) = pending.stage {
            self.cancel_call(slot, call);
        }
    }

    fn forget(&mut self, number: RequestNumber) -> Option<PendingRequest> {
        self.leave_stage(number);
        let pending = self.requests.remove(&number)?;
        // The reply is no longer needed: the servers may drop it.
        if let Some(sequence) = pending.sequence {
            let admitted = self.ids.leave(sequence);
            self.admit(admitted);
        }
        Some(pending)
    }

    /// Removes a request from the queue of its stage. A call stays unchanged.
    fn leave_stage(&mut self, number: RequestNumber) {
        let Some(pending) = self.requests.get_mut(&number) else { return };
        match pending.stage {
            RequestStage::Unrouted => drop(self.unrouted.remove(&number)),
            RequestStage::Unnumbered => self.ids.stop_waiting(number.0),
            RequestStage::BehindLockWait => self.lock_waits.stop_holding_back(number),
            RequestStage::Backlogged(slot) => {
                if let Some(link) = self.links.get_mut(&slot) {
                    link.backlog.retain(|waiting| *waiting != number);
                }
            }
            RequestStage::Pausing(at) => drop(self.timers.remove(&(at, Timer::Request(number)))),
            RequestStage::Runnable | RequestStage::Sent(..) => return,
        }
        if let Some(deadline) = pending.deadline {
            self.timers.remove(&(deadline, Timer::Request(number)));
        }
        pending.stage = RequestStage::Runnable;
    }
}

fn addressee(request: &Request) -> Addressee {
    match request {
        Request::Read { query: Query::QueuePosition { .. }, .. } => Addressee::Leader,
        Request::Read { blocking: Some(blocking), .. } if blocking.waits() => Addressee::Home,
        Request::Read { consistency: Consistency::Stale, .. } | Request::BackupPart { stale: true, .. } => {
            Addressee::Home
        }
        _ => Addressee::Leader,
    }
}

/// Returns `true` if a request that may have been done may be sent again.
fn may_repeat(request: &Request) -> bool {
    match request {
        Request::Propose(..)
        | Request::Read { .. }
        | Request::Renew(_)
        | Request::Status
        | Request::Autopilot
        | Request::NodeLeases(_)
        | Request::SyncMesh(_)
        | Request::BackupPart { .. }
        | Request::AddServer(_)
        | Request::RemoveServer(_) => true,
        // A second leadership transfer would move the leadership away from the first one's target.
        // Unlisted requests may not be idempotent.
        _ => false,
    }
}

/// Returns `true` if no application waits for the reply, and the mesh asks again.
fn is_of_mesh(request: &Request) -> bool {
    matches!(request, Request::SyncMesh(_) | Request::Accuse(_) | Request::Spread(_))
}

fn is_forgotten(response: &Response) -> bool {
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
