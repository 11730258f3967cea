//! The node lease: when and through which servers it is renewed (an agent's heartbeat), and the
//! handling of the replies.
//!
//! ```text
//! due ──▶ renewal ──▶ home server ──▶ acknowledged: next due after a third of the window
//!   ▲                   └ silent for 100 ms, refused, lost: another one through the next server
//!   └──────────────────────── a pause ◀──────────────────────────┘ every server was tried
//! ```
//!
//! Each renewal has its own sequence, even one that is sent through a second server. An
//! acknowledgement therefore identifies the renewal that the leader received, and when that was
//! sent, however late the acknowledgement arrives.
//!
//! **Invariants:** the validity that guards rely on only moves forward. It is set by an
//! acknowledgement, and counts from when the acknowledged renewal, or announcement of a restart,
//! was sent. A renewal waits for no other call. After a lease has ended, no acknowledgement extends
//! its validity.

use super::calls::{CallKind, PendingCall, RetryScope};
use super::context::Context;
use super::owner::RequestResult;
use super::routes::Routes;
use super::session_ends::SessionEnds;
use crate::lease::LeaseState;
use crate::request_ids::Registration;
use crate::servers::Slot;
use lockmesh_protocol::backoff::Backoff;
use lockmesh_protocol::command::{Command, NodeLeave};
use lockmesh_protocol::given_up::NodeAnswer;
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::lease::{Challenge, HealthWindow, LeaseAck, LeaseEnd, LeaseId, LeaseSecret, Renewal};
use lockmesh_protocol::record::{SERF_HEALTH, SessionSpec};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Request, Response};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// The time without a reply after which a renewal is sent through another server as well; also the
/// minimum interval at which challenges bring the next renewal forward. It is not configurable,
/// because the shortest window has room for only a few such steps.
const RENEWAL_RETRY: Duration = Duration::from_millis(100);

/// The age of a renewal at which its acknowledgement no longer changes any deadline.
const LONGEST_VALIDITY: Duration = HealthWindow::Safe.validity();

/// The maximum number of renewals whose send time is kept.
const MAX_SENT: usize = 1024;

/// The pauses while no server gets a renewal acknowledged, unless a third of the window is shorter.
const RENEWAL_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// The node's lease, and its renewals under way.
#[derive(Debug)]
pub(super) struct Renewals {
    state: LeaseState,
    /// The newest lease, which may have ended.
    lease: Option<KeptLease>,
    /// The time of the last registration: renewals that were sent before it end nothing.
    registered: Time,
    /// The time at which the last acknowledged renewal was sent, under any lease.
    unrenewed_since: Time,
    backoff: Backoff,
}

/// A lease granted to this agent.
#[derive(Debug)]
struct KeptLease {
    id: LeaseId,
    secret: LeaseSecret,
    /// The last sequence used.
    sequence: u64,
    /// The send times of renewals, in order of their sequences.
    sent: VecDeque<(u64, Time)>,
    /// The highest acknowledged sequence, and the shortest window known to the leader then.
    acknowledged: (u64, Option<HealthWindow>),
    /// The shortest window of sessions created through this agent, and the first sequence whose
    /// acknowledgement includes it.
    created: Option<(HealthWindow, u64)>,
    round: Round,
}

/// One renewal, until it is acknowledged through any server.
#[derive(Debug)]
struct Round {
    began: Time,
    /// The first sequence of the round.
    first: u64,
    /// The servers through which it was sent; empty before it begins.
    tried: BTreeSet<Slot>,
    /// The time at which it is sent through the next server, or the next round begins.
    due: Time,
    /// Set during the pause after a round without an acknowledgement.
    is_pausing: bool,
}

impl KeptLease {
    fn new(registration: &Registration, now: Time) -> Self {
        let Registration { lease: id, secret, .. } = *registration;
        let round = Round { began: now, first: 1, tried: BTreeSet::new(), due: now, is_pausing: false };
        Self { id, secret, sequence: 0, sent: VecDeque::new(), acknowledged: (0, None), created: None, round }
    }

    /// Returns the renewal interval.
    fn interval(&self) -> Duration {
        let windows = [self.acknowledged.1, self.created.map(|(window, _)| window)];
        let shortest = windows.into_iter().flatten().min().unwrap_or_default();
        shortest.renewal_interval()
    }

    /// Returns the next renewal, whose acknowledgement is not returned to this agent.
    fn unacknowledged_renewal(&mut self, nonce: u64) -> Renewal {
        self.sequence += 1;
        self.secret.renewal(self.id, self.sequence, nonce)
    }

    /// Returns the next renewal, which is sent now.
    fn renewal(&mut self, now: Time) -> Renewal {
        let is_of_use = |(_, sent): &(u64, Time)| now.since(*sent) < LONGEST_VALIDITY;
        while self.sent.len() >= MAX_SENT || self.sent.front().is_some_and(|oldest| !is_of_use(oldest)) {
            self.sent.pop_front();
        }
        let renewal = self.unacknowledged_renewal(0);
        self.sent.push_back((renewal.sequence, now));
        renewal
    }

    fn sent_at(&self, sequence: u64) -> Option<Time> {
        let index = self.sent.binary_search_by_key(&sequence, |(sequence, _)| *sequence).ok()?;
        Some(self.sent[index].1)
    }

    /// Handles an acknowledgement; returns when the renewal was sent.
    fn acknowledge(&mut self, ack: &LeaseAck) -> Option<Time> {
        let sent = self.sent_at(ack.sequence)?;
        // An overtaken reply has older knowledge of the sessions.
        if ack.sequence > self.acknowledged.0 {
            self.acknowledged = (ack.sequence, ack.shortest);
            self.created = self.created.filter(|(_, known_from)| *known_from > ack.sequence);
        }
        if ack.sequence >= self.round.first && !self.round.tried.is_empty() {
            self.round.tried.clear();
            self.round.due = self.round.began + self.interval();
        }
        Some(sent)
    }

    /// Begins another round at once, regardless of the current one.
    fn hasten(&mut self, now: Time) {
        self.round.tried.clear();
        (self.round.due, self.round.is_pausing) = (now, false);
    }
}

impl Renewals {
    pub(super) fn new(seed: u64, now: Time) -> Self {
        let backoff = Backoff::new(RENEWAL_BACKOFF, seed);
        Self { state: LeaseState::default(), lease: None, registered: now, unrenewed_since: now, backoff }
    }

    /// Returns when the last acknowledged renewal was sent, under any lease; the agent's start if
    /// there was none.
    pub(super) fn unrenewed_since(&self) -> Time {
        self.unrenewed_since
    }

    /// Returns the lease that guards rely on.
    pub(super) fn state(&self) -> &LeaseState {
        &self.state
    }

    /// Starts the lease of a registration. A registration of the same incarnation keeps its lease.
    pub(super) fn begin(&mut self, registration: &Registration, now: Time) {
        self.registered = now;
        match &mut self.lease {
            Some(lease) if lease.id == registration.lease => lease.hasten(now),
            _ => {
                self.lease = Some(KeptLease::new(registration, now));
                self.state = LeaseState::default();
            }
        }
        // The servers reported that it had ended: earlier acknowledgements no longer count.
        if self.state.ended.is_some() {
            self.state = LeaseState::default();
        }
        self.backoff.reset();
    }

    /// Handles a new leader: a renewal without an acknowledgement does not wait any longer.
    pub(super) fn leader_found(&mut self, now: Time) {
        self.backoff.reset();
        if let Some(lease) = self.lease.as_mut().filter(|lease| lease.round.is_pausing) {
            lease.hasten(now);
        }
    }

    /// Sends the next renewal at once, through any server.
    pub(super) fn renew_now(&mut self, now: Time) {
        self.lease.iter_mut().for_each(|lease| lease.hasten(now));
    }

    /// Returns the lease to renew.
    fn living(&self) -> Option<&KeptLease> {
        self.lease.as_ref().filter(|_| self.state.ended.is_none())
    }

    fn is_living(&self, id: LeaseId) -> bool {
        self.living().is_some_and(|lease| lease.id == id)
    }

    fn living_mut(&mut self, id: LeaseId) -> Option<&mut KeptLease> {
        let is_living = self.is_living(id);
        self.lease.as_mut().filter(|_| is_living)
    }

    /// Answers a challenge with a renewal. Its acknowledgement does not return through this
    /// connection, so the agent's own next renewal becomes due.
    pub(super) fn answer(
        &mut self,
        challenge: Challenge,
        ends: &mut SessionEnds,
        cx: &mut Context,
    ) -> Response {
        let Some(lease) = self.living_mut(challenge.lease) else {
            return Response::LeaseEnded(challenge.lease, LeaseEnd::Unknown);
        };
        cx.counts.challenges += 1;
        if lease.round.tried.is_empty() {
            // Several servers ask at once, each a few times: one renewal is enough for all of them.
            lease.round.due = lease.round.due.min(cx.now.max(lease.round.began + RENEWAL_RETRY));
        }
        let renewal = lease.unacknowledged_renewal(challenge.nonce);
        let given_up = ends.next_named().map(|sessions| lease.secret.give_up(lease.id, sessions));
        Response::alive(NodeAnswer { renewal, given_up })
    }

    /// Returns when a renewal is due, if a server can accept it; otherwise the next new connection
    /// wakes the client.
    pub(super) fn wakes_at(&self, routes: &Routes) -> Option<Time> {
        let lease = self.living()?;
        // Until a server has shown its cluster there is no server to try, and no pause either.
        routes.renewal_routes().next().map(|_| lease.round.due)
    }

    /// Sends a renewal if one is due; returns `true` if it did. A full send queue does not delay
    /// it: a renewal is small, and guards stop without it.
    pub(super) fn renew_if_due(
        &mut self,
        routes: &mut Routes,
        ends: &mut SessionEnds,
        cx: &mut Context,
    ) -> bool {
        let now = cx.now;
        if self.wakes_at(routes).is_none_or(|due| due > now) {
            return false;
        }
        let Some(lease) = &mut self.lease else { return false };
        let route = routes.renewal_routes().find(|slot| !lease.round.tried.contains(slot));
        if let Some((slot, connection)) = route.and_then(|slot| Some((slot, routes.connection(slot)?))) {
            let renewal = lease.renewal(now);
            let is_overdue = lease.round.is_pausing || !lease.round.tried.is_empty();
            // An agent that receives nothing may be received: its lease stays, and its ends fail.
            let given_up = if is_overdue { ends.next_named() } else { None };
            let given_up = given_up.map(|sessions| lease.secret.give_up(lease.id, sessions));
            if lease.round.tried.is_empty() {
                (lease.round.began, lease.round.first) = (now, renewal.sequence);
            }
            lease.round.tried.insert(slot);
            (lease.round.due, lease.round.is_pausing) = (now + RENEWAL_RETRY, false);
            cx.counts.renewals += 1;
            let (kind, deadline) = (CallKind::Renewal(lease.id, renewal.sequence), now + LONGEST_VALIDITY);
            let call = PendingCall { kind, scope: RetryScope::Own, begun: now, deadline };
            let request = match given_up {
                Some(_) => Request::RenewGivingUp(Box::new(NodeAnswer { renewal, given_up })),
                None => Request::RenewLease(renewal),
            };
            routes.send(slot, connection, call, request, cx);
        } else {
            // Every connected server was tried.
            let pause = self.backoff.next_pause();
            lease.round.tried.clear();
            (lease.round.due, lease.round.is_pausing) = (now + pause.min(lease.interval()), true);
        }
        true
    }

    /// Handles a renewal without an acknowledgement: the next one is sent through another server.
    pub(super) fn failed(&mut self, (id, sequence): (LeaseId, u64), now: Time) {
        if let Some(lease) = self.living_mut(id)
            && sequence >= lease.round.first
            && !lease.round.tried.is_empty()
        {
            lease.round.due = lease.round.due.min(now);
        }
    }

    /// Handles an acknowledgement.
    pub(super) fn acknowledged(&mut self, ack: &LeaseAck, cx: &mut Context) {
        let Some(lease) = self.living_mut(ack.lease) else { return };
        let Some(sent) = lease.acknowledge(ack) else { return };
        cx.counts.renewals_acknowledged += 1;
        self.backoff.reset();
        self.unrenewed_since = self.unrenewed_since.max(sent);
        self.state.renewed = self.state.renewed.max(Some(sent));
        self.state.keeps_from = self.state.keeps_from.max(ack.keeps_from);
    }

    /// Handles the end of the lease, in the reply to a renewal of `sent`; returns `false` if it is
    /// not the current one. Another registration begins another lease, or the same one again.
    pub(super) fn ended(&mut self, id: LeaseId, why: LeaseEnd, sent: Time) -> bool {
        let is_current = self.is_living(id) && sent >= self.registered;
        if is_current {
            self.state.ended = Some(why);
        }
        is_current
    }

    /// Handles the outcome of a request of the node that may affect the lease. The send time of an
    /// announced restart is its start.
    pub(super) fn notice_outcome(
        &mut self,
        (request, begun): (&Request, Time),
        result: &RequestResult,
        node: &NodeName,
        now: Time,
    ) {
        let Request::Propose(_, command) = request else { return };
        let reply = result.as_ref().map(|response| match response {
            Response::Applied(Applied { reply, .. }) => Some(reply),
            _ => None,
        });
        match (command, reply) {
            // The session may require more frequent renewals.
            (Command::CreateSession(new), Ok(Some(Reply::Session(_)))) => {
                self.session_created(new, node, now);
            }
            (Command::CreateSession(new), Err(reason)) if !reason.certainly_not_done() => {
                self.session_created(new, node, now);
            }
            // The agent stops at once, before a read could find that its sessions have ended.
            (Command::LeaveNode(NodeLeave { lease: Some(_), .. }), Ok(Some(reply))) => {
                self.state.has_left |= !matches!(reply, Reply::Refused(_));
            }
            // The servers keep the node for a restart. They count from a later time than its start.
            (Command::AnnounceRestart(lease), Ok(Some(Reply::Succeeded(true)))) if self.is_living(*lease) => {
                self.state.announced = Some(begun);
            }
            _ => {}
        }
    }

    fn session_created(&mut self, new: &SessionSpec, node: &NodeName, now: Time) {
        let is_of_this_node = new.node.folded() == node.folded();
        if !is_of_this_node || new.all_checks().all(|check| check.as_str() != SERF_HEALTH) {
            return;
        }
        let Some(lease) = &mut self.lease else { return };
        let before = lease.interval();
        let window = lease.created.map_or(new.health_window, |(window, _)| window.min(new.health_window));
        lease.created = Some((window, lease.sequence + 1));
        if lease.interval() < before {
            lease.hasten(now);
        }
    }
}
