//! The node lease: when it is renewed and through which servers, and what follows from the answers.
//!
//! ```text
//! due ──▶ renewal ──▶ home server ──▶ acknowledged: the next one is due a third of the window after this one
//!   ▲                   └ silent for 100 ms, refused, lost: another one through the next server
//!   └──────────────────────── a pause ◀──────────────────────────┘ every server was tried
//! ```
//!
//! Each renewal has a sequence of its own, also one that goes a second way. So an acknowledgement
//! tells which renewal the leader has heard, and with that when it was sent, however late it comes.
//!
//! **Invariants:** what guards may believe moves forward only, by an acknowledgement, and to when
//! the acknowledged renewal, or announcement of a restart, was sent; a renewal waits for no other
//! call; of a lease that ended nothing is believed that was not told before.

use super::calls::{CallKind, PendingCall, RetryScope};
use super::input::CallToken;
use super::links::Link;
use super::outbox::{Answered, Notice};
use super::requests::shutting_down;
use super::session_ends::SessionEnds;
use super::{Counts, QuorumClient};
use crate::lease::LeaseState;
use crate::request_ids::Registration;
use crate::servers::Slot;
use lockmesh_protocol::backoff::Backoff;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::given_up::NodeAnswer;
use lockmesh_protocol::lease::{Challenge, HealthWindow, LeaseAck, LeaseEnd, LeaseId, LeaseSecret, Renewal};
use lockmesh_protocol::record::{SERF_HEALTH, SessionSpec};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// After so long without an answer a renewal goes through another server as well; and challenges
/// bring the next renewal forward no more often than that. No setting: the shortest window leaves
/// room for a few such steps only.
const STEP: Duration = Duration::from_millis(100);

/// An answer that comes later than this changes no deadline any more.
const LONGEST_VALIDITY: Duration = HealthWindow::Safe.validity();

/// Of so many renewals it is known when they were sent.
const MAX_SENT: usize = 1024;

/// The pauses while no server gets a renewal acknowledged, where a third of the window is not
/// shorter.
const RENEWAL_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Renewals {
    state: LeaseState,
    /// The newest lease, which may have ended.
    lease: Option<KeptLease>,
    /// When the last acknowledged renewal was sent, under whatever lease.
    unrenewed_since: Time,
    backoff: Backoff,
}

/// A lease that this agent was given.
#[derive(Debug)]
struct KeptLease {
    id: LeaseId,
    secret: LeaseSecret,
    /// The sequence that was used last.
    sequence: u64,
    /// When renewals were sent, in order of their sequences.
    sent: VecDeque<(u64, Time)>,
    /// The highest sequence that was acknowledged, and the shortest window as the leader knew it
    /// then.
    acknowledged: (u64, Option<HealthWindow>),
    /// The shortest window of sessions that were created through this agent, of which
    /// acknowledgements of earlier sequences may not know.
    created: Option<(HealthWindow, u64)>,
    round: Round,
}

/// One renewal, until it is acknowledged whichever way it went.
#[derive(Debug)]
struct Round {
    began: Time,
    /// The sequence that it began with.
    first: u64,
    /// The servers through which it was sent; none before it begins.
    tried: BTreeSet<Slot>,
    /// When it goes through the next server, or the next round begins.
    due: Time,
    /// Set during the pause after a round in which no server acknowledged it.
    is_pausing: bool,
}

impl KeptLease {
    fn new(registration: &Registration, now: Time) -> Self {
        let Registration { lease: id, secret, .. } = *registration;
        let round = Round { began: now, first: 1, tried: BTreeSet::new(), due: now, is_pausing: false };
        Self { id, secret, sequence: 0, sent: VecDeque::new(), acknowledged: (0, None), created: None, round }
    }

    /// How often it is renewed.
    fn interval(&self) -> Duration {
        let windows = [self.acknowledged.1, self.created.map(|(window, _)| window)];
        let shortest = windows.into_iter().flatten().min().unwrap_or_default();
        shortest.renewal_interval()
    }

    /// Makes the next renewal, whose acknowledgement does not come back.
    fn unacknowledged_renewal(&mut self, nonce: u64) -> Renewal {
        self.sequence += 1;
        self.secret.renewal(self.id, self.sequence, nonce)
    }

    /// Makes the next renewal, which is sent now.
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

    /// Takes an acknowledgement of a renewal: when it was sent.
    fn acknowledge(&mut self, ack: &LeaseAck) -> Option<Time> {
        let sent = self.sent_at(ack.sequence)?;
        // An answer that was overtaken knows less of the sessions.
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

    /// Begins another round at once, whatever became of the present one.
    fn hasten(&mut self, now: Time) {
        self.round.tried.clear();
        (self.round.due, self.round.is_pausing) = (now, false);
    }
}

impl Renewals {
    pub(super) fn new(seed: u64, now: Time) -> Self {
        let backoff = Backoff::new(RENEWAL_BACKOFF, seed);
        Self { state: LeaseState::default(), lease: None, unrenewed_since: now, backoff }
    }

    /// When the last acknowledged renewal was sent, under whatever lease; when the agent started if
    /// there was none.
    pub(super) fn unrenewed_since(&self) -> Time {
        self.unrenewed_since
    }

    /// What guards may believe.
    pub(super) fn state(&self) -> &LeaseState {
        &self.state
    }

    /// The servers registered this agent. A registration of the same incarnation keeps its lease.
    pub(super) fn begin(&mut self, registration: &Registration, now: Time) {
        match &mut self.lease {
            Some(lease) if lease.id == registration.lease => lease.hasten(now),
            _ => {
                self.lease = Some(KeptLease::new(registration, now));
                self.state = LeaseState::default();
            }
        }
        // The servers said that it had ended: nothing that was acknowledged before counts any more.
        if self.state.ended.is_some() {
            self.state = LeaseState::default();
        }
        self.backoff.reset();
    }

    /// A server leads that did not before: a renewal that none acknowledged waits no longer.
    pub(super) fn leader_found(&mut self, now: Time) {
        self.backoff.reset();
        if let Some(lease) = self.lease.as_mut().filter(|lease| lease.round.is_pausing) {
            lease.hasten(now);
        }
    }

    /// The lease that is to be renewed.
    fn living(&self) -> Option<&KeptLease> {
        self.lease.as_ref().filter(|_| self.state.ended.is_none())
    }

    fn living_mut(&mut self, id: LeaseId) -> Option<&mut KeptLease> {
        let lives = self.living().is_some_and(|lease| lease.id == id);
        self.lease.as_mut().filter(|_| lives)
    }

    /// A server asks whether this agent lives. The answer is a renewal, but its acknowledgement
    /// does not come back this way: so the next renewal of the agent's own is due.
    fn answer(
        &mut self,
        challenge: Challenge,
        now: Time,
        ends: &mut SessionEnds,
        counts: &mut Counts,
    ) -> Response {
        let Some(lease) = self.living_mut(challenge.lease) else {
            return Response::LeaseEnded(challenge.lease, LeaseEnd::Unknown);
        };
        counts.challenges += 1;
        if lease.round.tried.is_empty() {
            // Several servers ask at once, each a few times: one renewal is enough for all of them.
            lease.round.due = lease.round.due.min(now.max(lease.round.began + STEP));
        }
        let renewal = lease.unacknowledged_renewal(challenge.nonce);
        let given_up = ends.next_named().map(|sessions| lease.secret.give_up(lease.id, sessions));
        Response::alive(NodeAnswer { renewal, given_up })
    }
}

impl QuorumClient {
    /// What guards on this host may believe of the node's lease.
    pub fn lease(&self) -> &LeaseState {
        self.renewals.state()
    }

    /// When a renewal is due, where there is a server that could take it: until then whatever
    /// brings a connection wakes the client.
    pub(super) fn renewal_wakes_at(&self) -> Option<Time> {
        let lease = self.renewals.living()?;
        // Until a server has shown its cluster there is none to try, and no pause after it.
        self.links.iter().any(|(slot, link)| self.takes_renewals(*slot, link)).then_some(lease.round.due)
    }

    /// `true` if renewals may go through a server. A server of another cluster would reply that
    /// there is no such lease.
    fn takes_renewals(&self, slot: Slot, link: &Link) -> bool {
        link.connection().is_some() && self.tracker.is_ours(slot)
    }

    /// Sends a renewal, where one is due; whether it was. Whatever waits for room on a connection
    /// does not hold it up: it is small, and guards stop without it.
    pub(super) fn renew_if_due(&mut self) -> bool {
        if self.renewal_wakes_at().is_none_or(|due| due > self.now) {
            return false;
        }
        let Some(lease) = self.renewals.living() else { return false };
        let is_untried = |slot: &Slot| {
            let link = self.links.get(slot).filter(|_| !lease.round.tried.contains(slot));
            link.is_some_and(|link| self.takes_renewals(*slot, link))
        };
        let roles = [self.home, self.leader].into_iter().flatten();
        let way = roles.chain(self.links.keys().copied()).find(is_untried);
        match way {
            Some(slot) => self.renew_through(slot),
            None => self.pause_renewals(),
        }
        true
    }

    fn renew_through(&mut self, slot: Slot) {
        let (now, connection) = (self.now, self.links.get(&slot).and_then(|link| link.connection()));
        let (Some(lease), Some(connection)) = (&mut self.renewals.lease, connection) else { return };
        let renewal = lease.renewal(now);
        if lease.round.tried.is_empty() {
            (lease.round.began, lease.round.first) = (now, renewal.sequence);
        }
        lease.round.tried.insert(slot);
        (lease.round.due, lease.round.is_pausing) = (now + STEP, false);
        self.counts.renewals += 1;
        let kind = CallKind::Renewal(lease.id, renewal.sequence);
        let call = PendingCall { kind, scope: RetryScope::Own, begun: now, deadline: now + LONGEST_VALIDITY };
        self.send(slot, connection, call, Request::RenewLease(renewal));
    }

    /// Every server that is connected was tried.
    fn pause_renewals(&mut self) {
        let pause = self.renewals.backoff.next_pause();
        if let Some(lease) = &mut self.renewals.lease {
            lease.round.tried.clear();
            (lease.round.due, lease.round.is_pausing) = (self.now + pause.min(lease.interval()), true);
        }
    }

    pub(super) fn renewal_answered(&mut self, slot: Slot, renewal: (LeaseId, u64), response: Response) {
        match self.judge(slot, RetryScope::Own, response) {
            Ok(Response::LeaseRenewed(ack)) => self.lease_renewed(&ack),
            Ok(Response::LeaseEnded(lease, why)) => self.lease_ended(lease, why),
            Ok(_) | Err(_) => self.renewal_failed(renewal),
        }
    }

    /// A renewal got no acknowledgement: the next one goes through another server.
    pub(super) fn renewal_failed(&mut self, (id, sequence): (LeaseId, u64)) {
        let now = self.now;
        if let Some(lease) = self.renewals.living_mut(id)
            && sequence >= lease.round.first
            && !lease.round.tried.is_empty()
        {
            lease.round.due = lease.round.due.min(now);
        }
    }

    fn lease_renewed(&mut self, ack: &LeaseAck) {
        self.tell(|tracker, now| tracker.acknowledged(ack.leader, ack.term, now));
        let Some(lease) = self.renewals.living_mut(ack.lease) else { return };
        let Some(sent) = lease.acknowledge(ack) else { return };
        self.counts.renewals_acknowledged += 1;
        self.renewals.backoff.reset();
        self.renewals.unrenewed_since = self.renewals.unrenewed_since.max(sent);
        let state = &mut self.renewals.state;
        state.renewed = state.renewed.max(Some(sent));
        state.keeps_from = state.keeps_from.max(ack.keeps_from);
    }

    /// The servers say that the lease is none any more: another registration begins another one.
    fn lease_ended(&mut self, id: LeaseId, why: LeaseEnd) {
        if self.renewals.living_mut(id).is_none() {
            return;
        }
        self.renewals.state.ended = Some(why);
        // Whoever leaves hears of it by a renewal, too.
        if !(self.registrar.is_leaving && why == LeaseEnd::Left) {
            self.outbox.notices.push(Notice::LeaseLost(why));
        }
        if let Some(registration) = self.ids.registration() {
            self.forgotten(registration);
        }
    }

    /// A request that was begun then is over: the lease may depend on it.
    pub(super) fn notice_outcome(
        &mut self,
        request: &Request,
        begun: Time,
        result: &Result<Response, Unavailable>,
    ) {
        let Request::Propose(_, command) = request else { return };
        let reply = result.as_ref().map(|response| match response {
            Response::Applied(Applied { reply, .. }) => Some(reply),
            _ => None,
        });
        match (command, reply) {
            // It may want the lease to be renewed more often.
            (Command::CreateSession(new), Ok(Some(Reply::Session(_)))) => self.session_created(new),
            (Command::CreateSession(new), Err(reason)) if !reason.certainly_not_done() => {
                self.session_created(new);
            }
            (Command::AnnounceRestart(lease), Ok(Some(Reply::Succeeded(true)))) => {
                self.restart_announced(*lease, begun);
            }
            _ => {}
        }
    }

    /// The servers keep the node for a restart, and count from later than when that was sent.
    fn restart_announced(&mut self, lease: LeaseId, sent: Time) {
        if self.renewals.living_mut(lease).is_some() {
            self.renewals.state.announced = Some(sent);
        }
    }

    fn session_created(&mut self, new: &SessionSpec) {
        let is_of_this_node = new.node.folded() == self.config.registration.node.name.folded();
        if !is_of_this_node || new.all_checks().all(|check| check.as_str() != SERF_HEALTH) {
            return;
        }
        let now = self.now;
        let Some(lease) = &mut self.renewals.lease else { return };
        let before = lease.interval();
        let window = lease.created.map_or(new.health_window, |(window, _)| window.min(new.health_window));
        lease.created = Some((window, lease.sequence + 1));
        if lease.interval() < before {
            lease.hasten(now);
        }
    }

    /// A server asks whether this agent lives.
    pub(super) fn challenged(&mut self, token: CallToken, challenge: Challenge) {
        let answer = match self.is_closed {
            true => Err(shutting_down()),
            false => {
                let ends = &mut self.session_ends;
                let answer = self.renewals.answer(challenge, self.now, ends, &mut self.counts);
                Ok(Answered::Response(answer))
            }
        };
        self.outbox.answers.push((token, answer));
    }
}
