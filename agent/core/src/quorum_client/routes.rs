//! The links to the servers, and what each is for: carries out what the tracker decides.
//!
//! At rest there are two connections: to the leader and to the home server, or where these are one
//! server, to it and to another one in reserve. While the leader is looked for there are more.

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

/// How long a status is waited for; a server that owes one is given up much earlier.
const STATUS_TIMEOUT: Duration = Duration::from_secs(60);

impl QuorumClient {
    /// Where a request goes now.
    pub(super) fn route(&self, addressee: Addressee) -> Option<Slot> {
        match addressee {
            Addressee::Leader => self.leader.filter(|_| self.registrar.is_registered),
            Addressee::Home => self.home,
        }
    }

    /// Does what the tracker says.
    pub(super) fn follow_tracker(&mut self) {
        // Before anything is done: what is done may tell the tracker something new.
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
        actions.cut.iter().for_each(|slot| self.cut(*slot, "it keeps silent"));
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
                self.renewals.leader_found(self.now);
            }
        }
        self.routes_changed |= std::mem::replace(&mut self.home, home) != home;
    }

    /// Whoever loses a call here finds the new routes.
    fn assign_roles(&mut self, actions: &Actions) {
        let slots: Vec<Slot> = self.links.keys().copied().collect();
        for slot in slots {
            let roles = Roles { leads: actions.leader == Some(slot), is_home: actions.home == Some(slot) };
            let link = self.links.get_mut(&slot).expect("it was there");
            if std::mem::replace(&mut link.roles, roles) != roles {
                let unfit = link.calls.unfit(roles);
                unfit.into_iter().for_each(|call| self.lose_call(slot, call));
                // What waits for room here may have another way now.
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

    /// Notices whether no server takes this agent.
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

    /// A link is to be connected, again and again; or not for now.
    fn want(&mut self, slot: Slot, is_wanted: bool) {
        let link = self.links.get_mut(&slot).expect("it was there");
        link.is_wanted = is_wanted;
        match link.state {
            LinkState::Down if is_wanted => self.dial(slot),
            LinkState::Dialling(_) if !is_wanted => self.hang_up(slot),
            LinkState::Up(_) if !is_wanted => {
                self.hang_up(slot);
                // It was told of the connection, but never of an attempt at one.
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

    /// The next attempt to connect is made without delay.
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

    /// Gives the connection up, although it may seem to stand.
    fn cut(&mut self, slot: Slot, why: &str) {
        let Some(link) = self.links.get(&slot) else { return };
        if let LinkState::Up(connection) = link.state {
            let reason = format!("lost the server {}: {why}", link.address);
            self.outbox.disconnect.push(connection);
            self.ended(connection, ConnectionEnd::Lost(reason));
        }
    }

    /// Ends the connection, or the attempt at one.
    fn hang_up(&mut self, slot: Slot) {
        let Some(link) = self.links.get_mut(&slot) else { return };
        let Some(connection) = link.present() else { return };
        // It stood until nobody needed it, which is no failure to pause after.
        if link.connection().is_some() {
            link.succeeded();
        }
        self.outbox.disconnect.push(connection);
        self.connection_is_over(slot, connection);
    }

    /// There is a connection.
    pub(super) fn connected(&mut self, connection: ConnectionId) {
        let Some(&slot) = self.connections.get(&connection) else { return };
        self.links.get_mut(&slot).expect("a connection has a link").connected(connection, self.now);
        self.tell(|tracker, _| tracker.connected(slot));
    }

    /// There is none any more, or none could be made.
    pub(super) fn ended(&mut self, connection: ConnectionId, end: ConnectionEnd) {
        let Some(&slot) = self.connections.get(&connection) else { return };
        let was_up = self.links.get(&slot).is_some_and(|link| link.connection().is_some());
        self.connection_is_over(slot, connection);
        let link = self.links.get_mut(&slot).expect("a connection has a link");
        let mut longest = Duration::MAX;
        let reason = match end {
            ConnectionEnd::NotAdmitted(reason) => {
                // Where the server did not believe this agent's certificate, it was no connection.
                self.admission.refused(slot, reason.clone());
                reason
            }
            ConnectionEnd::Lost(reason) => {
                self.admission.not_refused(slot);
                // It stood, so this is the first failure of its kind.
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

    /// All calls that wait are lost.
    pub(super) fn connection_is_over(&mut self, slot: Slot, connection: ConnectionId) {
        // From here on nothing counts that is told of it: its calls may be under way elsewhere.
        self.connections.remove(&connection);
        let link = self.links.get_mut(&slot).expect("a connection has a link");
        link.is_down();
        for (id, call) in link.calls.take_all() {
            self.timers.remove(&(call.deadline, Timer::Call(slot, id)));
            self.call_lost(call);
        }
        self.end_backlog(slot);
    }

    /// Servers that go or change their role lose the calls that wait there: what was sent may have
    /// taken effect.
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

    /// A call is given up; the server need not answer it.
    fn lose_call(&mut self, slot: Slot, id: CallId) {
        if let Some(call) = self.cancel_call(slot, id) {
            self.call_lost(call);
        }
    }

    /// Takes a call out and tells the server that nobody waits for it.
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

    /// A call was not answered in time.
    pub(super) fn expire_call(&mut self, slot: Slot, id: CallId) {
        if let Some(call) = self.cancel_call(slot, id) {
            if let CallKind::Attempt(number) = call.kind {
                self.attempt_is_late(number, slot, call);
            }
            self.call_lost(call);
            if matches!(call.kind, CallKind::Status(_)) {
                // A server that does not even say this is as good as dead, though the connection
                // stands.
                self.cut(slot, "it did not tell its status");
            }
        }
    }

    /// A server answered; an answer that nobody waits for is dropped.
    pub(super) fn answers(&mut self, connection: ConnectionId, answers: Vec<(CallId, Response)>) {
        let Some(&slot) = self.connections.get(&connection) else { return };
        for (id, response) in answers {
            // Nobody waits for it: it was cancelled, came too late, or went to another server
            // since.
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

    /// A call fits no frame.
    pub(super) fn unsendable(&mut self, connection: ConnectionId, id: CallId, reason: String) {
        let Some(&slot) = self.connections.get(&connection) else { return };
        match self.take_call(slot, id).map(|call| call.kind) {
            Some(CallKind::Attempt(number)) => {
                // It never left, and would be as long the next time.
                self.failed(number, AttemptFailure::Final(Unavailable::Denied(reason)));
            }
            Some(CallKind::Registration) => self.registration_failed(reason),
            Some(CallKind::Renewal(lease, sequence)) => self.renewal_failed((lease, sequence)),
            Some(CallKind::Status(_) | CallKind::Index) | None => {}
        }
    }

    /// So much waits to be sent on a connection that no more requests should, or not any more.
    pub(super) fn notice_backlog(&mut self, connection: ConnectionId, is_full: bool) {
        let Some(&slot) = self.connections.get(&connection) else { return };
        self.links.get_mut(&slot).expect("a connection has a link").is_backlogged = is_full;
        if !is_full {
            self.end_backlog(slot);
        }
    }

    /// The requests that wait for room look again where they go.
    fn end_backlog(&mut self, slot: Slot) {
        let backlog = self.links.get_mut(&slot).map(|link| std::mem::take(&mut link.backlog));
        backlog.into_iter().flatten().for_each(|number| self.run_again(number));
    }

    /// How much has arrived on a connection.
    pub(super) fn received(&mut self, connection: ConnectionId, received: u64) {
        let Some(&slot) = self.connections.get(&connection) else { return };
        let link = self.links.get_mut(&slot).expect("a connection has a link");
        if let Some(is_quiet) = link.received(received, self.now) {
            self.tell(|tracker, _| tracker.quiet(slot, is_quiet));
        }
    }

    /// Dials again whose pause is over, and notices who is slow; whether there was anything to do.
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
        // In front of it, so that the answers most often come in this order.
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

    /// A server told its status, after it was asked in a certain registration.
    fn status_heard(&mut self, slot: Slot, registration: Option<Registration>, status: &Status) {
        // Only the leader's word counts: another server may not have applied the registration yet.
        // And only that of this agent's cluster.
        if status.leader == Some(status.server) && self.tracker.accepts(slot, status) {
            // An answer to a question from before the present registration says nothing of it, and
            // whoever leads is sent that registration's commands: so it is asked again.
            if registration != self.ids.registration() {
                return self.tell(|tracker, _| tracker.ask_again(slot));
            }
            if let Some(registration) = registration
                && status.caller != Some(registration.number)
            {
                self.forgotten(registration);
            }
        }
        // Only now: a server that does not believe this agent says so after the handshake, when the
        // connection seems to stand.
        self.admission.not_refused(slot);
        self.tell(|tracker, now| tracker.heard(slot, status, now));
        self.notice_move();
    }
}
