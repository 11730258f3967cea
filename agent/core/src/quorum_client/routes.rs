//! The links to the servers and their roles: executes the tracker's actions.
//!
//! At rest there are two connections: to the leader and to the home server. If they are one server,
//! the second connection goes to a reserve. During a search for the leader there are more.

use super::QuorumClient;
use super::Timer;
use super::calls::{CallKind, PendingCall, RetryScope, Roles};
use super::input::{ConnectionEnd, ConnectionId};
use super::links::{Link, LinkState};
use super::outbox::{Dial, Notice};
use super::requests::{Addressee, AttemptFailure};
use crate::leader_tracker::Actions;
use crate::request_ids::Registration;
use crate::servers::Slot;
use lockmesh_protocol::rpc::{Call, CallId, Request, Response, Status, Unavailable};
use std::collections::BTreeSet;
use std::time::Duration;

/// The timeout of a status query; a server that does not answer one is abandoned much earlier.
const STATUS_TIMEOUT: Duration = Duration::from_secs(60);

impl QuorumClient {
    /// Returns the server for a request now.
    pub(super) fn route(&self, addressee: Addressee) -> Option<Slot> {
        match addressee {
            Addressee::Leader => self.leader.filter(|_| self.registrar.is_registered),
            Addressee::Home => self.home,
        }
    }

    /// Executes the tracker's actions.
    pub(super) fn follow_tracker(&mut self) {
        // Reset first: the actions may pass new input to the tracker.
        self.tracker_is_due = false;
        let actions = self.tracker.actions(self.now);
        self.tracker_wakes_at = actions.wakes_at;
        self.notice_refusal();
        for slot in &actions.keep {
            if let Some(address) = self.tracker.address(*slot) {
                let random = &mut self.random;
                self.links.entry(*slot).or_insert_with(|| Link::new(address, random.number()));
            }
        }
        // First: nothing more is sent to them.
        actions.refuse.iter().for_each(|slot| self.refuse(*slot));
        self.notice_mismatch();
        self.publish(actions.leader, actions.home);
        self.assign_roles(&actions);
        self.forget_slots();
        actions.cut.iter().for_each(|slot| self.cut(*slot, "it does not answer"));
        actions.ask.iter().for_each(|slot| self.ask_status(*slot));
        actions.hasten.iter().for_each(|slot| self.hasten(*slot));
    }

    fn publish(&mut self, leader: Option<Slot>, home: Option<Slot>) {
        let was = std::mem::replace(&mut self.leader, leader);
        if was != leader {
            self.routes_changed = true;
            self.outbox.notices.push(match leader {
                Some(slot) => Notice::LeaderFound(self.tracker.address(slot).unwrap_or_default().into()),
                None => Notice::LeaderLost,
            });
            self.counts.leaders += u64::from(leader.is_some());
            if leader.is_some() {
                self.disk_failure = None;
                self.renewals.leader_found(self.now);
            }
        }
        self.routes_changed |= std::mem::replace(&mut self.home, home) != home;
    }

    /// Assigns roles; a request that loses its call here is sent on a new route.
    fn assign_roles(&mut self, actions: &Actions) {
        let slots: Vec<Slot> = self.links.keys().copied().collect();
        for slot in slots {
            let roles = Roles { leads: actions.leader == Some(slot), is_home: actions.home == Some(slot) };
            let link = self.links.get_mut(&slot).expect("it was there");
            if std::mem::replace(&mut link.roles, roles) != roles {
                let unfit = link.calls.unfit(roles);
                unfit.into_iter().for_each(|call| self.lose_call(slot, call));
                // Requests that wait for room here may have another route now.
                self.end_backlog(slot);
            }
            self.want(slot, actions.keep.contains(&slot));
        }
    }

    fn forget_slots(&mut self) {
        let known: BTreeSet<Slot> = self.tracker.slots().collect();
        let gone: Vec<Slot> = self.links.keys().copied().filter(|slot| !known.contains(slot)).collect();
        for slot in gone {
            self.hang_up(slot);
            self.links.remove(&slot);
        }
    }

    /// Checks whether no server accepts this agent.
    pub(super) fn notice_refusal(&mut self) {
        let slots: Vec<Slot> = self.tracker.slots().collect();
        let are_foreign = !slots.is_empty() && slots.iter().all(|slot| self.tracker.is_refused(*slot));
        let refusal = self.admission.refusal(&slots);
        let refusal = refusal.or_else(|| self.complaint.clone().filter(|_| are_foreign));
        if self.refusal != refusal {
            self.refusal = refusal;
            self.routes_changed = true;
        }
    }

    /// Connects a link and keeps it connected, or disconnects it for now.
    fn want(&mut self, slot: Slot, is_wanted: bool) {
        let link = self.links.get_mut(&slot).expect("it was there");
        link.is_wanted = is_wanted;
        match link.state {
            LinkState::Down if is_wanted => self.dial(slot),
            LinkState::Dialling(_) if !is_wanted => self.hang_up(slot),
            LinkState::Up(_) if !is_wanted => {
                self.hang_up(slot);
                // The tracker knows of the connection, but never of an attempt to connect.
                self.tell(|tracker, now| tracker.lost(slot, now));
            }
            _ => {}
        }
    }

    fn dial(&mut self, slot: Slot) {
        let link = self.links.get_mut(&slot).expect("it is dialled");
        self.last_connection += 1;
        let connection = ConnectionId(self.last_connection);
        (link.state, link.dialled_at) = (LinkState::Dialling(connection), self.now);
        self.counts.reconnects += u64::from(std::mem::replace(&mut link.was_dialled, true));
        self.outbox.connect.push(Dial { connection, address: link.address.clone() });
        self.connections.insert(connection, slot);
    }

    /// Starts the next attempt to connect without delay.
    fn hasten(&mut self, slot: Slot) {
        if self.tracker.is_refused(slot) {
            return;
        }
        let Some(link) = self.links.get_mut(&slot) else { return };
        match link.state {
            LinkState::Pausing(_) => {
                link.state = LinkState::Down;
                let is_wanted = link.is_wanted;
                self.want(slot, is_wanted);
            }
            LinkState::Dialling(_) if link.is_stale(self.now) => {
                self.hang_up(slot);
                self.dial(slot);
            }
            LinkState::Dialling(_) => link.is_hastened = true,
            LinkState::Down | LinkState::Up(_) => {}
        }
    }

    /// Closes a connection that may still look healthy.
    fn cut(&mut self, slot: Slot, why: &str) {
        let Some(link) = self.links.get(&slot) else { return };
        if let LinkState::Up(connection) = link.state {
            let reason = format!("lost the server {}: {why}", link.address);
            self.outbox.disconnect.push(connection);
            self.ended(connection, ConnectionEnd::Lost(reason));
        }
    }

    /// Closes the connection, or the attempt to connect.
    fn hang_up(&mut self, slot: Slot) {
        let Some(link) = self.links.get_mut(&slot) else { return };
        let Some(connection) = link.present() else { return };
        // It was healthy until it was no longer needed, which is no failure to back off from.
        if link.connection().is_some() {
            link.succeeded();
        }
        self.outbox.disconnect.push(connection);
        self.connection_is_over(slot, connection);
    }

    /// Records an established connection.
    pub(super) fn connected(&mut self, connection: ConnectionId) {
        let Some(&slot) = self.connections.get(&connection) else { return };
        self.links.get_mut(&slot).expect("a connection has a link").connected(connection, self.now);
        self.tell(|tracker, _| tracker.connected(slot));
    }

    /// Records that a connection was lost or could not be made.
    pub(super) fn ended(&mut self, connection: ConnectionId, end: ConnectionEnd) {
        let Some(&slot) = self.connections.get(&connection) else { return };
        let was_up = self.links.get(&slot).is_some_and(|link| link.connection().is_some());
        self.connection_is_over(slot, connection);
        let link = self.links.get_mut(&slot).expect("a connection has a link");
        let mut longest = Duration::MAX;
        let reason = match end {
            ConnectionEnd::NotAdmitted(reason) => {
                // If the server rejected this agent's certificate, it was no connection.
                self.admission.refused(slot, reason.clone());
                reason
            }
            ConnectionEnd::Lost(reason) => {
                self.admission.not_refused(slot);
                // It was established, so this is its first failure.
                if was_up {
                    link.succeeded();
                }
                longest = self.tracker.longest_pause();
                reason
            }
        };
        link.pause(self.now, longest);
        if link.log.is_new(&reason) {
            self.outbox.notices.push(Notice::ConnectionFailed(reason));
        }
        self.tell(|tracker, now| tracker.lost(slot, now));
    }

    /// Fails all pending calls of a connection that ended.
    pub(super) fn connection_is_over(&mut self, slot: Slot, connection: ConnectionId) {
        // Further events of this connection are ignored: its calls may be under way elsewhere.
        self.connections.remove(&connection);
        let link = self.links.get_mut(&slot).expect("a connection has a link");
        link.is_down();
        for (id, call) in link.calls.take_all() {
            self.timers.remove(&(call.deadline, Timer::Call(slot, id)));
            self.call_lost(call);
        }
        self.end_backlog(slot);
    }

    /// Fails a call whose server is gone or changed its role: it may have been done.
    fn call_lost(&mut self, call: PendingCall) {
        match call.kind {
            CallKind::Attempt(number) => self.failed(number, AttemptFailure::Sent),
            CallKind::Registration => {
                self.registration_failed("the server was lost before it answered".into());
            }
            CallKind::Status(_) | CallKind::Index => {}
            CallKind::Renewal(lease, sequence) => self.renewal_failed((lease, sequence)),
        }
    }

    /// Gives up a call; the server need not answer it.
    fn lose_call(&mut self, slot: Slot, id: CallId) {
        if let Some(call) = self.cancel_call(slot, id) {
            self.call_lost(call);
        }
    }

    /// Removes a call and cancels it at the server.
    pub(super) fn cancel_call(&mut self, slot: Slot, id: CallId) -> Option<PendingCall> {
        let call = self.take_call(slot, id)?;
        if let Some(connection) = self.links.get(&slot).and_then(Link::connection) {
            self.outbox.calls.push((connection, Call::Cancel(id)));
        }
        Some(call)
    }

    fn take_call(&mut self, slot: Slot, id: CallId) -> Option<PendingCall> {
        let call = self.links.get_mut(&slot)?.calls.remove(id)?;
        self.timers.remove(&(call.deadline, Timer::Call(slot, id)));
        Some(call)
    }

    /// Handles a call without a reply within the timeout.
    pub(super) fn expire_call(&mut self, slot: Slot, id: CallId) {
        if let Some(call) = self.cancel_call(slot, id) {
            if let CallKind::Attempt(number) = call.kind {
                self.attempt_is_late(number, slot);
            }
            self.call_lost(call);
            if matches!(call.kind, CallKind::Status(_)) {
                // A server that does not even report its status counts as dead, although the
                // connection stands.
                self.cut(slot, "it did not report its status");
            }
        }
    }

    /// Handles a server's replies; a reply without a pending call is dropped.
    pub(super) fn answers(&mut self, connection: ConnectionId, answers: Vec<(CallId, Response)>) {
        let Some(&slot) = self.connections.get(&connection) else { return };
        for (id, response) in answers {
            // The call was cancelled, was answered too late, or went to another server since.
            let Some(call) = self.take_call(slot, id) else { continue };
            match call.kind {
                CallKind::Attempt(number) => self.answered(number, (slot, call.scope), response),
                CallKind::Registration => self.registration_answered(slot, response),
                CallKind::Status(registration) => self.status_answered(slot, registration, response),
                CallKind::Index => self.index_answered(slot, &response),
                CallKind::Renewal(lease, sequence) => {
                    self.renewal_answered(slot, (lease, sequence), response);
                }
            }
        }
    }

    /// Handles a call that does not fit into a frame.
    pub(super) fn unsendable(&mut self, connection: ConnectionId, id: CallId, reason: String) {
        let Some(&slot) = self.connections.get(&connection) else { return };
        match self.take_call(slot, id).map(|call| call.kind) {
            Some(CallKind::Attempt(number)) => {
                // It was never sent, and would be as long the next time.
                self.failed(number, AttemptFailure::Final(Unavailable::Denied(reason)));
            }
            Some(CallKind::Registration) => self.registration_failed(reason),
            Some(CallKind::Renewal(lease, sequence)) => self.renewal_failed((lease, sequence)),
            Some(CallKind::Status(_) | CallKind::Index) | None => {}
        }
    }

    /// Records whether a connection's send queue is full, so that requests should wait.
    pub(super) fn notice_backlog(&mut self, connection: ConnectionId, is_full: bool) {
        let Some(&slot) = self.connections.get(&connection) else { return };
        self.links.get_mut(&slot).expect("a connection has a link").is_backlogged = is_full;
        if !is_full {
            self.end_backlog(slot);
        }
    }

    /// Lets the requests that wait for room choose their route again.
    fn end_backlog(&mut self, slot: Slot) {
        let backlog = self.links.get_mut(&slot).map(|link| std::mem::take(&mut link.backlog));
        backlog.into_iter().flatten().for_each(|number| self.run_again(number));
    }

    /// Records the amount of data received on a connection.
    pub(super) fn received(&mut self, connection: ConnectionId, received: u64) {
        let Some(&slot) = self.connections.get(&connection) else { return };
        let link = self.links.get_mut(&slot).expect("a connection has a link");
        if let Some(is_quiet) = link.received(received, self.now) {
            self.tell(|tracker, _| tracker.quiet(slot, is_quiet));
        }
    }

    /// Dials a link whose pause is over, and checks for slow servers; returns `false` if nothing
    /// was due.
    pub(super) fn look_at_links(&mut self) -> bool {
        let (now, probe_after) = (self.now, self.config.probe_after);
        let mut links = self.links.iter();
        let due = links.find(|(_, link)| link.wakes_at(probe_after).is_some_and(|at| at <= now));
        let Some(slot) = due.map(|(slot, _)| *slot) else { return false };
        let link = self.links.get_mut(&slot).expect("it is due");
        if let LinkState::Pausing(_) = link.state {
            link.state = LinkState::Down;
            let is_wanted = link.is_wanted;
            self.want(slot, is_wanted);
        } else if let Some(is_slow) = link.notice_slowness(now, probe_after) {
            self.tell(|tracker, _| tracker.slow(slot, is_slow));
        }
        true
    }

    /// Asks a server for its status.
    fn ask_status(&mut self, slot: Slot) {
        let Some(connection) = self.links.get(&slot).and_then(Link::connection) else { return };
        // Sent first, so that the replies usually arrive in this order.
        self.ask_index(slot, connection);
        self.counts.questions += 1;
        let kind = CallKind::Status(self.ids.registration());
        let deadline = self.now + STATUS_TIMEOUT;
        let call = PendingCall { kind, scope: RetryScope::Own, begun: self.now, deadline };
        self.send(slot, connection, call, Request::Status);
    }

    fn status_answered(&mut self, slot: Slot, registration: Option<Registration>, response: Response) {
        match response {
            Response::Status(status) => self.status_heard(slot, registration, &status),
            Response::Unavailable(Unavailable::Removed | Unavailable::Corrupt) => {
                self.tell(|tracker, now| tracker.removed(slot, now));
            }
            _ => self.tell(|tracker, _| tracker.unheard(slot)),
        }
    }

    /// Handles a server's status, requested in the given registration.
    fn status_heard(&mut self, slot: Slot, registration: Option<Registration>, status: &Status) {
        // Only the leader's status counts, since another server may not have applied the
        // registration yet; and only a leader of this agent's cluster.
        if status.leader == Some(status.server) && self.tracker.accepts(slot, status) {
            // A status requested before the current registration does not reflect it, and the
            // leader receives that registration's commands. So it is requested again.
            if registration != self.ids.registration() {
                return self.tell(|tracker, _| tracker.ask_again(slot));
            }
            if let Some(registration) = registration
                && status.caller != Some(registration.number)
            {
                self.forgotten(registration);
            }
        }
        // Only now: a server that rejects this agent reports that after the handshake, when the
        // connection seems to stand.
        self.admission.not_refused(slot);
        self.tell(|tracker, now| tracker.heard(slot, status, now));
        self.notice_move();
    }
}
