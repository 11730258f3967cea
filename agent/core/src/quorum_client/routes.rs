//! The links to the servers and their roles: executes the tracker's actions, sends calls, and
//! passes the servers' replies to the tracker.
//!
//! At rest there are two connections: to the leader and to the home server. If they are one server,
//! the second connection goes to a reserve. During a search for the leader there are more.
//!
//! The tracker decides which servers belong to this agent's cluster. The query for a server's index
//! base and the disconnection of a rejected server are here.

use super::QuorumClientConfig;
use super::calls::{CallKind, PendingCall, RetryScope, Roles};
use super::context::{Context, Timer};
use super::input::{ConnectionEnd, ConnectionId};
use super::links::{Link, LinkState};
use super::outbox::{Dial, Notice};
use super::requests::{Addressee, AttemptFailure};
use crate::admission::Admission;
use crate::cluster::ClusterChoice;
use crate::leader_tracker::{Actions, LeaderTracker};
use crate::request_ids::Registration;
use crate::servers::Slot;
use lockmesh_protocol::acl::Caller;
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::query::{Consistency, Query};
use lockmesh_protocol::rpc::{Call, CallId, Request, Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The timeout of a status query and of the query for a server's index; a server that does not
/// answer one is abandoned much earlier.
const STATUS_TIMEOUT: Duration = Duration::from_secs(60);

/// The consequence of a lost connection or role, for the owner of the call or of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// A call whose server is gone or changed its role: it may have been done.
    Call(PendingCall),
    /// The send queue of a server: the requests that wait for it may have another route.
    SendQueue(Slot),
}

/// The links, and the roles of their servers.
#[derive(Debug)]
pub(super) struct Routes {
    /// Inputs that may change its actions go through [`Self::tracker_mut`].
    pub(super) tracker: LeaderTracker,
    /// `true` if the tracker has received input since its last actions.
    tracker_is_due: bool,
    /// The time at which the tracker is due without further input.
    tracker_wakes_at: Option<Time>,
    pub(super) admission: Admission,
    /// The server for commands, renewals and linearizable reads; only for the registration at
    /// first.
    pub(super) leader: Option<Slot>,
    /// The server for stale and blocking reads.
    home: Option<Slot>,
    /// Set when requests without a route may find one.
    pub(super) are_changed: bool,
    links: BTreeMap<Slot, Link>,
    connections: BTreeMap<ConnectionId, Slot>,
    last_connection: u64,
    /// Lost calls and send queues that were not returned yet, in order.
    lost: Vec<Lost>,
    node: NodeName,
    probe_after: Duration,
}

impl Routes {
    pub(super) fn new(config: &QuorumClientConfig, seed: u64, now: Time) -> Self {
        let node = config.registration.node.name.clone();
        let tracker = LeaderTracker::new(node.as_str(), &config.servers, seed, now);
        Self {
            tracker: tracker.with_cluster(config.cluster.clone(), config.pin.clone(), now),
            tracker_is_due: true,
            tracker_wakes_at: None,
            admission: Admission::default(),
            leader: None,
            home: None,
            are_changed: false,
            links: BTreeMap::new(),
            connections: BTreeMap::new(),
            last_connection: 0,
            lost: Vec::new(),
            node,
            probe_after: config.probe_after,
        }
    }

    /// Returns the server for a request now.
    pub(super) fn route(&self, addressee: Addressee, is_registered: bool) -> Option<Slot> {
        match addressee {
            Addressee::Leader => self.leader.filter(|_| is_registered),
            Addressee::Home => self.home,
        }
    }

    /// Returns the servers through which a renewal may be sent, the preferred ones first; a server
    /// may occur twice. A server of another cluster would reply that the lease does not exist.
    pub(super) fn renewal_routes(&self) -> impl Iterator<Item = Slot> {
        let roles = [self.home, self.leader].into_iter().flatten();
        let slots = roles.chain(self.links.keys().copied());
        slots.filter(|slot| self.connection(*slot).is_some() && self.tracker.is_ours(*slot))
    }

    /// Returns the connection on which calls to a server are sent.
    pub(super) fn connection(&self, slot: Slot) -> Option<ConnectionId> {
        self.links.get(&slot).and_then(Link::connection)
    }

    /// Returns the server of a connection; `None` if the connection is over.
    pub(super) fn slot(&self, connection: ConnectionId) -> Option<Slot> {
        self.connections.get(&connection).copied()
    }

    /// Returns a server's address, for an error.
    pub(super) fn address(&self, slot: Slot) -> &str {
        self.links.get(&slot).map_or("the server", |link| link.address.as_str())
    }

    /// Returns `true` if a server's send queue is full, so that requests should wait.
    pub(super) fn is_backlogged(&self, slot: Slot) -> bool {
        self.links.get(&slot).is_some_and(|link| link.is_backlogged)
    }

    /// Returns the number of calls that await a reply.
    pub(super) fn calls(&self) -> usize {
        self.links.values().map(|link| link.calls.len()).sum()
    }

    /// Returns when a link or the tracker is due without further input.
    pub(super) fn wakes_at(&self) -> Option<Time> {
        let links = self.links.values().filter_map(|link| link.wakes_at(self.probe_after));
        links.chain(self.tracker_wakes_at).min()
    }

    pub(super) fn tracker_is_due(&self, now: Time) -> bool {
        self.tracker_is_due || self.tracker_wakes_at.is_some_and(|at| at <= now)
    }

    /// Returns the tracker for an input; its new actions are executed before the current input
    /// returns.
    pub(super) fn tracker_mut(&mut self) -> &mut LeaderTracker {
        self.tracker_is_due = true;
        &mut self.tracker
    }

    /// Returns the tracker's actions, and creates links to the servers that they name.
    pub(super) fn next_actions(&mut self, cx: &mut Context) -> Actions {
        // Reset first: the actions may pass new input to the tracker.
        self.tracker_is_due = false;
        let actions = self.tracker.actions(cx.now);
        self.tracker_wakes_at = actions.wakes_at;
        for slot in &actions.keep {
            if let Some(address) = self.tracker.address(*slot) {
                let random = &mut cx.random;
                self.links.entry(*slot).or_insert_with(|| Link::new(address, random.number()));
            }
        }
        actions
    }

    /// Changes the leader and the home server; returns `true` if another leader was found.
    pub(super) fn publish(&mut self, leader: Option<Slot>, home: Option<Slot>, cx: &mut Context) -> bool {
        let was = std::mem::replace(&mut self.leader, leader);
        self.are_changed |= std::mem::replace(&mut self.home, home) != home || was != leader;
        if was == leader {
            return false;
        }
        cx.notify(match leader {
            Some(slot) => Notice::LeaderFound(self.tracker.address(slot).unwrap_or_default().into()),
            None => Notice::LeaderLost,
        });
        cx.counts.leaders += u64::from(leader.is_some());
        leader.is_some()
    }

    /// Assigns roles, and removes the links to forgotten servers; a request that loses its call
    /// here is sent on a new route.
    pub(super) fn assign_roles(&mut self, actions: &Actions, cx: &mut Context) {
        let slots: Vec<Slot> = self.links.keys().copied().collect();
        for slot in &slots {
            let roles = Roles { leads: actions.leader == Some(*slot), is_home: actions.home == Some(*slot) };
            let link = self.links.get_mut(slot).expect("it was there");
            if std::mem::replace(&mut link.roles, roles) != roles {
                let unfit = link.calls.unfit(roles);
                for id in unfit {
                    let call = self.cancel_call(*slot, id, cx);
                    self.lost.extend(call.map(Lost::Call));
                }
                // Requests that wait for room here may have another route now.
                self.lost.push(Lost::SendQueue(*slot));
            }
            self.want(*slot, actions.keep.contains(slot), cx);
        }
        let known: BTreeSet<Slot> = self.tracker.slots().collect();
        for slot in slots.into_iter().filter(|slot| !known.contains(slot)) {
            self.hang_up(slot, cx);
            self.links.remove(&slot);
        }
    }

    /// Connects a link and keeps it connected, or disconnects it for now.
    fn want(&mut self, slot: Slot, is_wanted: bool, cx: &mut Context) {
        let link = self.links.get_mut(&slot).expect("it was there");
        link.is_wanted = is_wanted;
        match link.state {
            LinkState::Down if is_wanted => self.dial(slot, cx),
            LinkState::Dialling(_) if !is_wanted => self.hang_up(slot, cx),
            LinkState::Up(_) if !is_wanted => {
                self.hang_up(slot, cx);
                // The tracker knows of the connection, but never of an attempt to connect.
                self.tracker_mut().lost(slot, cx.now);
            }
            _ => {}
        }
    }

    fn dial(&mut self, slot: Slot, cx: &mut Context) {
        let link = self.links.get_mut(&slot).expect("it is dialled");
        self.last_connection += 1;
        let connection = ConnectionId(self.last_connection);
        (link.state, link.dialled_at) = (LinkState::Dialling(connection), cx.now);
        cx.counts.reconnects += u64::from(std::mem::replace(&mut link.was_dialled, true));
        cx.outbox.connect.push(Dial { connection, address: link.address.clone() });
        self.connections.insert(connection, slot);
    }

    /// Starts the next attempt to connect without delay.
    pub(super) fn hasten(&mut self, slot: Slot, cx: &mut Context) {
        if self.tracker.is_refused(slot) {
            return;
        }
        let Some(link) = self.links.get_mut(&slot) else { return };
        match link.state {
            LinkState::Pausing(_) => self.end_pause(slot, cx),
            LinkState::Dialling(_) if link.is_stale(cx.now) => {
                self.hang_up(slot, cx);
                self.dial(slot, cx);
            }
            LinkState::Dialling(_) => link.is_hastened = true,
            LinkState::Down | LinkState::Up(_) => {}
        }
    }

    /// Ends the pause after a failed attempt to connect.
    fn end_pause(&mut self, slot: Slot, cx: &mut Context) {
        let link = self.links.get_mut(&slot).expect("it was there");
        link.state = LinkState::Down;
        let is_wanted = link.is_wanted;
        self.want(slot, is_wanted, cx);
    }

    /// Closes the connection, or the attempt to connect.
    fn hang_up(&mut self, slot: Slot, cx: &mut Context) {
        let Some(link) = self.links.get_mut(&slot) else { return };
        let Some(connection) = link.present() else { return };
        // It was healthy until it was no longer needed, which is no failure to back off from.
        if link.connection().is_some() {
            link.succeeded();
        }
        cx.outbox.disconnect.push(connection);
        self.connection_is_over(slot, connection, cx);
    }

    /// Closes all connections and drops their calls.
    pub(super) fn close(&mut self, cx: &mut Context) {
        cx.outbox.disconnect.extend(self.connections.keys());
        self.connections.clear();
        (self.leader, self.home) = (None, None);
        for link in self.links.values_mut() {
            link.calls.take_all();
            link.is_down();
        }
    }

    /// Disconnects a server that does not belong to this agent's cluster, for a while.
    pub(super) fn refuse(&mut self, slot: Slot, cx: &mut Context) {
        let Some(connection) = self.connection(slot) else { return };
        cx.outbox.disconnect.push(connection);
        self.connection_is_over(slot, connection, cx);
        self.links.get_mut(&slot).expect("it was there").pause_refused(cx.now);
        self.tracker_mut().lost(slot, cx.now);
    }

    /// Applies a configuration that selects another cluster, or none.
    pub(super) fn choose_cluster(&mut self, choice: ClusterChoice, now: Time) {
        self.tracker_mut().choose_cluster(choice, now);
        // Servers that were rejected may belong to the right cluster now.
        for link in self.links.values_mut().filter(|link| matches!(link.state, LinkState::Pausing(_))) {
            link.state = LinkState::Pausing(now);
        }
    }

    /// Records an established connection.
    pub(super) fn connected(&mut self, connection: ConnectionId, now: Time) {
        let Some(slot) = self.slot(connection) else { return };
        self.links.get_mut(&slot).expect("a connection has a link").connected(connection, now);
        self.tracker_mut().connected(slot);
    }

    /// Records that a connection was lost or could not be made. Returns its server, and `true` if
    /// it was established, for [`Self::connection_failed`].
    pub(super) fn ended(&mut self, connection: ConnectionId, cx: &mut Context) -> Option<(Slot, bool)> {
        let slot = self.slot(connection)?;
        let was_up = self.connection(slot).is_some();
        self.connection_is_over(slot, connection, cx);
        Some((slot, was_up))
    }

    /// Handles the reason why a connection ended, after its calls: the next attempt waits.
    pub(super) fn connection_failed(
        &mut self,
        (slot, was_up): (Slot, bool),
        end: ConnectionEnd,
        cx: &mut Context,
    ) {
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
        link.pause(cx.now, longest);
        if link.log.is_new(&reason) {
            cx.notify(Notice::ConnectionFailed(reason));
        }
        self.tracker_mut().lost(slot, cx.now);
    }

    /// Fails all pending calls of a connection that ended.
    fn connection_is_over(&mut self, slot: Slot, connection: ConnectionId, cx: &mut Context) {
        // Further events of this connection are ignored: its calls may be under way elsewhere.
        self.connections.remove(&connection);
        let link = self.links.get_mut(&slot).expect("a connection has a link");
        link.is_down();
        for (id, call) in link.calls.take_all() {
            cx.stop_timer(call.deadline, Timer::Call(slot, id));
            self.lost.push(Lost::Call(call));
        }
        self.lost.push(Lost::SendQueue(slot));
    }

    /// Removes and returns the lost calls and send queues, in order.
    pub(super) fn take_lost(&mut self) -> Vec<Lost> {
        std::mem::take(&mut self.lost)
    }

    /// Sends a call of the agent itself on an established connection.
    pub(super) fn send(
        &mut self,
        slot: Slot,
        connection: ConnectionId,
        call: PendingCall,
        request: Request,
        cx: &mut Context,
    ) -> CallId {
        self.send_as(Caller::Agent, (slot, connection), call, request, cx)
    }

    /// Sends a call on an established connection.
    pub(super) fn send_as(
        &mut self,
        caller: Caller,
        (slot, connection): (Slot, ConnectionId),
        call: PendingCall,
        request: Request,
        cx: &mut Context,
    ) -> CallId {
        let id = self.links.get_mut(&slot).expect("it is connected").calls.begin(call, &request);
        cx.start_timer(call.deadline, Timer::Call(slot, id));
        cx.outbox.calls.push((connection, Call::begin(id, caller, request)));
        id
    }

    /// Removes a call and cancels it at the server, which need not answer it.
    pub(super) fn cancel_call(&mut self, slot: Slot, id: CallId, cx: &mut Context) -> Option<PendingCall> {
        let call = self.take_call(slot, id, cx)?;
        if let Some(connection) = self.connection(slot) {
            cx.outbox.calls.push((connection, Call::Cancel(id)));
        }
        Some(call)
    }

    /// Removes a call; `None` if it was cancelled, was answered too late, or went to another server
    /// since.
    pub(super) fn take_call(&mut self, slot: Slot, id: CallId, cx: &mut Context) -> Option<PendingCall> {
        let call = self.links.get_mut(&slot)?.calls.remove(id)?;
        cx.stop_timer(call.deadline, Timer::Call(slot, id));
        Some(call)
    }

    /// Records whether a connection's send queue is full, so that requests should wait.
    pub(super) fn notice_backlog(&mut self, connection: ConnectionId, is_full: bool) {
        let Some(slot) = self.slot(connection) else { return };
        self.links.get_mut(&slot).expect("a connection has a link").is_backlogged = is_full;
        if !is_full {
            self.lost.push(Lost::SendQueue(slot));
        }
    }

    /// Records the amount of data received on a connection.
    pub(super) fn received(&mut self, connection: ConnectionId, received: u64, now: Time) {
        let Some(slot) = self.slot(connection) else { return };
        let link = self.links.get_mut(&slot).expect("a connection has a link");
        if let Some(is_quiet) = link.received(received, now) {
            self.tracker_mut().quiet(slot, is_quiet);
        }
    }

    /// Dials a link whose pause is over, and checks for slow servers; returns `false` if nothing
    /// was due.
    pub(super) fn check_links(&mut self, cx: &mut Context) -> bool {
        let (now, probe_after) = (cx.now, self.probe_after);
        let mut links = self.links.iter_mut();
        let due = links.find(|(_, link)| link.wakes_at(probe_after).is_some_and(|at| at <= now));
        let Some((&slot, link)) = due else { return false };
        if let LinkState::Pausing(_) = link.state {
            self.end_pause(slot, cx);
        } else if let Some(is_slow) = link.notice_slowness(now, probe_after) {
            self.tracker_mut().slow(slot, is_slow);
        }
        true
    }

    /// Queries a server's status, in the current registration. Also queries its index, if that is
    /// not known on this connection.
    pub(super) fn query_status(&mut self, slot: Slot, registration: Option<Registration>, cx: &mut Context) {
        let Some(connection) = self.connection(slot) else { return };
        let (scope, begun, deadline) = (RetryScope::Own, cx.now, cx.now + STATUS_TIMEOUT);
        // Sent first, so that the replies usually arrive in this order. The checks of this agent's
        // node are few rows, and a registration, a recovery and a rebuilt cluster change that
        // table.
        if self.tracker.wants_index(slot) {
            let call = PendingCall { kind: CallKind::Index, scope, begun, deadline };
            let query = Query::NodeChecks(self.node.clone());
            let request = Request::Read { query, consistency: Consistency::Stale, blocking: None };
            self.send(slot, connection, call, request, cx);
        }
        cx.counts.questions += 1;
        let call = PendingCall { kind: CallKind::Status(registration), scope, begun, deadline };
        self.send(slot, connection, call, Request::Status, cx);
    }

    /// Handles the reply to the query for a server's index.
    pub(super) fn index_answered(&mut self, slot: Slot, response: &Response, now: Time) {
        match response {
            Response::Answer(answer) => self.tracker_mut().index_heard(slot, answer.index),
            Response::Unavailable(Unavailable::Removed | Unavailable::Corrupt) => {
                self.tracker_mut().removed(slot, now);
            }
            // Queried again with the next status.
            _ => {}
        }
    }

    /// Records why a server rejected a request, if that shows the server's role.
    pub(super) fn rejected(&mut self, slot: Slot, reason: &Unavailable, now: Time) {
        match reason {
            Unavailable::NotLeader { leader } => self.tracker_mut().refused(slot, leader.as_deref(), now),
            Unavailable::Removed | Unavailable::Corrupt => self.tracker_mut().removed(slot, now),
            _ => {}
        }
    }

    /// Classifies a reply, and updates what is known of its server.
    pub(super) fn classify(
        &mut self,
        slot: Slot,
        scope: RetryScope,
        response: Response,
        now: Time,
    ) -> Result<Response, AttemptFailure> {
        let reason = match response {
            Response::Unavailable(reason) => reason,
            // A server that was asked as the leader, and no longer leads, has a less recent status
            // than needed.
            Response::Status(status)
                if scope == RetryScope::Leader && status.leader != Some(status.server) =>
            {
                let leader = status.servers.iter().find(|server| Some(server.id) == status.leader);
                Unavailable::NotLeader { leader: leader.map(|server| server.address.clone()) }
            }
            response => return Ok(response),
        };
        self.rejected(slot, &reason, now);
        Err(match reason {
            // Certainly not done, so the next leader may receive it.
            Unavailable::NotLeader { .. } => AttemptFailure::Again(reason),
            // Such a server accepts nothing; it has answered the requests accepted before as
            // unknown.
            Unavailable::Removed | Unavailable::Corrupt => AttemptFailure::Elsewhere,
            Unavailable::Unknown(_) => AttemptFailure::Sent,
            // Reported at once: retries would add to an overload, and the other errors require an
            // operator.
            Unavailable::Overloaded(_)
            | Unavailable::Disk(_)
            | Unavailable::Denied(_)
            | Unavailable::AnswerTooLong { .. }
            | Unavailable::NotAdmitted(_)
            | Unavailable::NoAccess(_) => AttemptFailure::Final(reason),
        })
    }
}
