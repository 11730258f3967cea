//! The replies of servers and the loss of calls: each is passed to the value that sent the call.

use super::QuorumClient;
use super::calls::{CallKind, PendingCall, RetryScope};
use super::input::{ConnectionEnd, ConnectionId};
use super::outbox::Notice;
use super::owner::RequestNumber;
use super::registrar::Registrar;
use super::requests::{AttemptFailure, is_forgotten};
use super::routes::Lost;
use crate::request_ids::Registration;
use crate::servers::Slot;
use lockmesh_protocol::lease::{LeaseEnd, RESTORED};
use lockmesh_protocol::rpc::{CallId, Response, Status, Unavailable};

impl QuorumClient {
    /// Handles a server's replies; a reply without a pending call is dropped.
    pub(super) fn answers(&mut self, connection: ConnectionId, answers: Vec<(CallId, Response)>) {
        let Some(slot) = self.routes.slot(connection) else { return };
        for (id, response) in answers {
            let Some(call) = self.routes.take_call(slot, id, &mut self.cx) else { continue };
            let response = response.received();
            match call.kind {
                CallKind::Attempt(number) => self.attempt_answered(number, (slot, call.scope), response),
                CallKind::Registration => {
                    match Registrar::answered(response, slot, &mut self.routes, self.cx.now) {
                        Ok(registration) => self.registered(registration),
                        Err(failure) => self.registration_failed(failure.to_string()),
                    }
                }
                CallKind::Status(registration) => self.status_answered(slot, registration, response),
                CallKind::Index => self.routes.index_answered(slot, &response, self.cx.now),
                CallKind::Renewal(..) => self.renewal_answered(slot, call, response),
            }
        }
    }

    fn attempt_answered(
        &mut self,
        number: RequestNumber,
        (slot, scope): (Slot, RetryScope),
        response: Response,
    ) {
        if let Response::Unavailable(Unavailable::Unknown(why)) = &response {
            self.requests.outcome_is_unknown(number, why);
        }
        self.readiness.answered(&response);
        let response = self.routes.classify(slot, scope, response, self.cx.now);
        if response.as_ref().is_ok_and(is_forgotten)
            && let Some(sequence) = self.requests.get(number).and_then(|pending| pending.sequence)
        {
            self.forgotten(sequence.registration);
        }
        let outcome = self.requests.answered(number, response, &mut self.cx);
        self.deliver(outcome);
    }

    /// Handles servers that no longer know this registration: the agent must register again before
    /// commands continue.
    fn forgotten(&mut self, registration: Registration) {
        // A late reply to a command of an earlier registration does not concern the current one.
        self.registrar.is_registered &= self.registration() != Some(registration);
    }

    fn registered(&mut self, registration: Registration) {
        self.registrar.registered(&mut self.cx);
        self.routes.tracker.registered();
        self.renewals.begin(&registration, self.cx.now);
        let cluster = self.cluster_id().to_owned();
        self.cx.notify(Notice::Registered { registration, cluster });
        self.requests.register(registration, &mut self.cx);
        self.routes.admission.registered();
        self.readiness.check_refusal(&mut self.routes);
        self.routes.are_changed = true;
    }

    fn registration_failed(&mut self, failure: String) {
        self.registrar.failed(failure, &mut self.cx);
        self.readiness.check_refusal(&mut self.routes);
    }

    fn renewal_answered(&mut self, slot: Slot, call: PendingCall, response: Response) {
        if response == Response::Unavailable(Unavailable::Denied(RESTORED.into())) {
            self.cx.notify(Notice::Restored);
            // The lease lives, and the leader refuses few renewals.
            return self.renewals.renew_now(self.cx.now);
        }
        match self.routes.classify(slot, RetryScope::Own, response, self.cx.now) {
            Ok(Response::LeaseRenewed(ack)) => {
                self.routes.tracker_mut().acknowledged(ack.leader, ack.term, self.cx.now);
                self.renewals.acknowledged(&ack, &mut self.cx);
            }
            Ok(Response::LeaseEnded(lease, why)) if self.renewals.ended(lease, why, call.begun) => {
                // A leaving agent also learns of its leave through a renewal.
                if !(self.registrar.is_leaving && why == LeaseEnd::Left) {
                    self.cx.notify(Notice::LeaseLost(why));
                }
                self.registrar.is_registered = false;
            }
            Ok(Response::LeaseEnded(..)) => {}
            Ok(_) | Err(_) => self.call_lost(call),
        }
    }

    fn status_answered(&mut self, slot: Slot, registration: Option<Registration>, response: Response) {
        match response {
            Response::Status(status) => self.status_received(slot, registration, &status),
            Response::Unavailable(Unavailable::Removed | Unavailable::Corrupt) => {
                self.routes.tracker_mut().removed(slot, self.cx.now);
            }
            _ => self.routes.tracker_mut().unheard(slot),
        }
    }

    /// Handles a server's status, requested in the given registration.
    fn status_received(&mut self, slot: Slot, registration: Option<Registration>, status: &Status) {
        // Only the leader's status counts, since another server may not have applied the
        // registration yet; and only a leader of this agent's cluster.
        if status.leader == Some(status.server) && self.routes.tracker.accepts(slot, status) {
            // A status requested before the current registration does not reflect it, and the
            // leader receives that registration's commands. So it is requested again.
            if registration != self.registration() {
                return self.routes.tracker_mut().ask_again(slot);
            }
            if let Some(registration) = registration
                && status.caller != Some(registration.number)
            {
                self.forgotten(registration);
            }
        }
        // Only now: a server that rejects this agent reports that after the handshake, when the
        // connection seems to stand.
        self.routes.admission.not_refused(slot);
        self.routes.tracker_mut().record_status(slot, status, self.cx.now);
        // Another cluster does not know the agent's registration.
        self.registrar.is_registered &= !self.routes.tracker.has_moved();
    }

    /// Handles a call that does not fit into a frame.
    pub(super) fn unsendable(&mut self, connection: ConnectionId, id: CallId, reason: String) {
        let Some(slot) = self.routes.slot(connection) else { return };
        let Some(call) = self.routes.take_call(slot, id, &mut self.cx) else { return };
        match call.kind {
            // It was never sent, and would be as long the next time.
            CallKind::Attempt(number) => {
                self.failed(number, AttemptFailure::Final(Unavailable::Denied(reason)));
            }
            CallKind::Registration => self.registration_failed(reason),
            CallKind::Status(_) | CallKind::Index | CallKind::Renewal(..) => self.call_lost(call),
        }
    }

    /// Handles a call without a reply within the timeout.
    pub(super) fn expire_call(&mut self, slot: Slot, id: CallId) {
        let Some(call) = self.routes.cancel_call(slot, id, &mut self.cx) else { return };
        if let CallKind::Attempt(number) = call.kind {
            self.requests.attempt_is_late(number, self.routes.address(slot), self.cx.now);
        }
        self.call_lost(call);
        if matches!(call.kind, CallKind::Status(_)) {
            // A server that does not even report its status counts as dead, although the connection
            // stands.
            self.disconnect_dead(slot, "it did not report its status");
        }
    }

    /// Closes a connection that may still look healthy.
    pub(super) fn disconnect_dead(&mut self, slot: Slot, why: &str) {
        let Some(connection) = self.routes.connection(slot) else { return };
        let reason = format!("lost the server {}: {why}", self.routes.address(slot));
        self.cx.outbox.disconnect.push(connection);
        self.ended(connection, ConnectionEnd::Lost(reason));
    }

    /// Handles the end of a connection, or of the attempt to make it.
    pub(super) fn ended(&mut self, connection: ConnectionId, end: ConnectionEnd) {
        let Some(ended) = self.routes.ended(connection, &mut self.cx) else { return };
        self.settle_lost();
        self.routes.connection_failed(ended, end, &mut self.cx);
    }

    /// Handles the calls that were lost with a connection or role, and lets the requests that wait
    /// for a send queue choose their route again.
    pub(super) fn settle_lost(&mut self) {
        for lost in self.routes.take_lost() {
            match lost {
                Lost::Call(call) => self.call_lost(call),
                Lost::SendQueue(slot) => self.requests.continue_backlog(slot, &mut self.cx),
            }
        }
    }

    /// Fails a call whose server is gone or changed its role: it may have been done.
    fn call_lost(&mut self, call: PendingCall) {
        match call.kind {
            CallKind::Attempt(number) => self.failed(number, AttemptFailure::Sent),
            CallKind::Registration => {
                self.registration_failed("the server was lost before it answered".into());
            }
            CallKind::Status(_) | CallKind::Index => {}
            CallKind::Renewal(lease, sequence) => self.renewals.failed((lease, sequence), self.cx.now),
        }
    }

    fn failed(&mut self, number: RequestNumber, failure: AttemptFailure) {
        let outcome = self.requests.failed(number, failure, &mut self.cx);
        self.deliver(outcome);
    }

    /// Cancels the calls of cancelled requests.
    pub(super) fn cancel_calls(&mut self) {
        for (slot, call) in self.requests.take_cancelled() {
            self.routes.cancel_call(slot, call, &mut self.cx);
        }
    }
}
