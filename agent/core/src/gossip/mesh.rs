//! A host in the mesh: opens and seals datagrams, resolves members in the roster, verifies
//! verdicts, and requests missing data from the servers.
//!
//! ```text
//! servers ── news ──▶ keys, roster, verdicts, events
//!                              │
//! datagrams ──▶ open ──▶ [Gossip] ──▶ packets ──▶ seal ──▶ datagrams
//!                              │
//!                              └──▶ suspicions, verdicts and events, for the caller
//! ```
//!
//! It has no socket, clock or random source: the caller provides the nonce of each datagram.
//!
//! **Invariants:** no packet is processed before its seal is opened. Membership ends only by the
//! roster or by a verdict that the servers signed. Events, which any member may fire, are forwarded
//! up to a limit; other items only if the servers signed them.

use super::driver::{Counts, Gossip, Outbox};
use super::event_flow::{EventFlow, TooManyEvents};
use super::schedule::Schedule;
use bytes::Bytes;
use core::net::SocketAddr;
use lockmesh_protocol::given_up::{GivenUp, NodeAnswer};
use lockmesh_protocol::gossip::event::UserEvent;
use lockmesh_protocol::gossip::member::MemberId;
use lockmesh_protocol::gossip::packet::{ChallengeAnswer, Message};
use lockmesh_protocol::gossip::roster::{Roster, RosterDigest, RosterMember};
use lockmesh_protocol::gossip::seal::{KeyRing, NONCE_BYTES, SealError};
use lockmesh_protocol::gossip::verdict::{Verdict, VerdictKey};
use lockmesh_protocol::gossip::{MAX_EVENTS, MAX_VERDICTS, MeshNews};
use lockmesh_protocol::id::LogIndex;
use lockmesh_protocol::lease::{Challenge, HealthWindow, LeaseId, Renewal};
use lockmesh_protocol::random::Random;
use lockmesh_protocol::time::Time;
use lockmesh_protocol::token_bucket::TokenBucket;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

/// The time for which replies to a challenge contain only given-up sessions: servers repeat a
/// challenge every 250 ms.
const GIVEN_UP_ALONE: Duration = Duration::from_millis(400);

/// The time for which the outcome of a suspicion is requested repeatedly.
const OUTCOME_WAIT: Duration = Duration::from_secs(20);

/// The timeout for a server's reply, applied by the caller that sends the request.
pub const SYNC_TIMEOUT: Duration = Duration::from_secs(5);

/// The minimum size in bytes that a datagram counts as: opening an empty one costs the same.
const LEAST_DATAGRAM_BYTES: usize = 64;

/// The rate limit of opened datagrams in bytes, as burst and per second: far above the traffic of
/// all other members to one. The excess is a flood, which must not take processor time from
/// renewals.
const DATAGRAM_BYTES: (u64, u64) = (1 << 20, 1 << 19);

/// The rate limit of verdicts forwarded by members, in bytes: their signatures are the most
/// expensive part. About 60 at once, and 16 per second.
const VERDICT_BYTES: (u64, u64) = (8 << 10, 2 << 10);

/// The rate limit of answered challenges, as burst and per second; each needs an authentication
/// code.
const CHALLENGES: (u64, u64) = (64, 32);

/// The outputs of a host in the mesh.
#[derive(Debug, Default)]
pub struct Output {
    /// Packets to be [sealed](Mesh::seal) and sent.
    pub packets: Vec<(SocketAddr, Vec<u8>)>,
    /// Leases of agents whose probe failed, to be reported to the servers.
    pub suspicions: Vec<LeaseId>,
    /// New verdicts.
    pub verdicts: Vec<Verdict>,
    /// New events, including those fired here.
    pub events: Vec<UserEvent>,
    /// Items of the events fired here, to be sent to a server.
    pub spread: Vec<Bytes>,
    /// Relayed challenges of a server, to be [answered](Mesh::answer).
    pub challenges: Vec<(MemberId, Challenge)>,
    /// The replies of [challenged](Mesh::ask) members. Only the servers can verify them.
    pub answers: Vec<NodeAnswer>,
}

/// The counters of datagrams and items, in addition to those of the gossip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SealCounts {
    /// Datagrams that arrived before there was a key.
    pub keyless: u64,
    /// Datagrams of a wrong length or version.
    pub malformed: u64,
    /// Datagrams sealed with a key that is not on the ring.
    pub unknown_keys: u64,
    /// Datagrams of another cluster, or corrupted on the way.
    pub broken: u64,
    /// Datagrams sealed too long ago, or by a wrong clock.
    pub stale: u64,
    /// Forwarded items that the servers had not signed.
    pub unsigned: u64,
    /// Accepted events of other hosts.
    pub events: u64,
    /// Events of other hosts that were dropped because of the rate limit.
    pub excess_events: u64,
    /// Items that claim to be events but are not.
    pub malformed_events: u64,
    /// Datagrams that were dropped because of the rate limit.
    pub excess_datagrams: u64,
    /// Verdicts that were dropped because of the rate limit.
    pub excess_verdicts: u64,
    /// Verdicts on processes that are not, or no longer, in the roster.
    pub strange_verdicts: u64,
    /// Challenges that were dropped because of the rate limit.
    pub excess_challenges: u64,
}

/// A host in the mesh: gossip, roster, keys and verdicts.
#[derive(Debug)]
pub struct Mesh {
    gossip: Gossip,
    roster: Roster,
    keys: Option<Keys>,
    /// The members that this host suspected, and the time until which their outcome is requested.
    suspected: BTreeMap<MemberId, Time>,
    events: EventFlow,
    rate_limits: RateLimits,
    /// The schedule of requests to the servers; `as_of` is the last log index in their replies.
    schedule: Schedule,
    as_of: LogIndex,
    random: Random,
    counts: SealCounts,
    /// The nonce of the newest challenge, and the time of its first reply.
    answered: Option<(u64, Time)>,
}

/// The rate limits of packets from members.
#[derive(Debug)]
struct RateLimits {
    datagram_bytes: TokenBucket,
    /// For verdicts that members forward.
    verdict_bytes: TokenBucket,
    challenges: TokenBucket,
}

#[derive(Debug)]
struct Keys {
    ring: KeyRing,
    verdicts: VerdictKey,
    /// The cluster's time at an instant of this host's clock.
    clock: (Time, u32),
}

impl Mesh {
    /// Creates a host without data, which sends its first request at once.
    pub fn new(me: MemberId, seed: u64, now: Time) -> Self {
        let mut random = Random::new(seed);
        let gossip = Gossip::new(me, random.number(), now);
        let schedule = Schedule::new(now, random.number());
        let limit = |(at_once, a_second): (u64, u64)| TokenBucket::full(now, at_once, a_second);
        let rate_limits = RateLimits {
            datagram_bytes: limit(DATAGRAM_BYTES),
            verdict_bytes: limit(VERDICT_BYTES),
            challenges: limit(CHALLENGES),
        };
        let (roster, counts) = (Roster::default(), SealCounts::default());
        let (suspected, events) = (BTreeMap::new(), EventFlow::new(now));
        let (keys, as_of) = (None, LogIndex(0));
        let answered = None;
        Self {
            gossip,
            roster,
            keys,
            suspected,
            events,
            rate_limits,
            schedule,
            as_of,
            random,
            counts,
            answered,
        }
    }

    /// Returns the id of this process.
    pub fn me(&self) -> MemberId {
        self.gossip.me()
    }

    /// Changes the identity after a new lease: to others this is another process from now on.
    pub fn become_member(&mut self, now: Time, me: MemberId, output: &mut Output) {
        if me != self.gossip.me() {
            let gossip = Gossip::new(me, self.random.number(), now);
            let former = std::mem::replace(&mut self.gossip, gossip);
            self.gossip.remember_known_of(former);
            self.suspected.clear();
            // Servers that were set up again have a shorter log, and data from the earlier ones is
            // invalid.
            if LogIndex(me.began) <= std::mem::take(&mut self.as_of) {
                self.roster = Roster::default();
            }
            self.roster_changed(now, output);
            self.schedule.restart(now);
        }
    }

    /// Returns the roster.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Returns the counters.
    pub fn counts(&self) -> (Counts, SealCounts) {
        (self.gossip.counts(), self.counts)
    }

    /// Returns the number of the gossip key with which it seals; `None` before a server sent one.
    pub fn key_number(&self) -> Option<u32> {
        self.keys.as_ref().map(|keys| keys.ring.current.number)
    }

    /// Returns the number of other members.
    pub fn others(&self) -> usize {
        self.gossip.members()
    }

    /// Returns the factor by which probes are slowed down after recent mistakes.
    pub fn stretch(&self) -> u32 {
        self.gossip.stretch()
    }

    /// Returns the time of the next [`tick`](Self::tick) or [`wants_sync`](Self::wants_sync).
    pub fn wakes_at(&self) -> Option<Time> {
        [self.schedule.due(), self.gossip.wakes_at()].into_iter().flatten().min()
    }

    /// Returns the request to send to a server, if one is due; pass the reply to
    /// [`synced`](Self::synced).
    pub fn wants_sync(&mut self, now: Time) -> Option<RosterDigest> {
        self.schedule.begins(now).then(|| self.roster.digest())
    }

    /// Processes a server's reply; `None` if no server replied.
    pub fn synced(&mut self, now: Time, news: Option<MeshNews>, output: &mut Output) {
        let Some(news) = news else { return self.schedule.failed(now) };
        let is_first = self.schedule.is_first();
        let MeshNews { as_of, seconds, ring, verdict_key, roster, items, event_time } = news;
        let is_news = as_of >= self.as_of;
        if is_news {
            self.as_of = as_of;
            self.keys = Some(Keys { ring, verdicts: verdict_key, clock: (now, seconds) });
        }
        self.events.witness(event_time);
        for item in items.into_iter().take(MAX_VERDICTS + MAX_EVENTS) {
            // Events fired before this host joined are not delivered to it.
            match is_first && UserEvent::is_one(&item) {
                true => self.gossip.note_known(&item),
                false => self.receive_item(now, &item, true, output),
            }
        }
        // After the verdicts, which refer to earlier members. The roster of a lagging server would
        // restore departed members, or remove new ones.
        let has_changed = is_news && self.roster.apply(roster);
        if has_changed {
            self.roster_changed(now, output);
        }
        self.suspected.retain(|member, until| *until > now && self.roster.get(*member).is_some());
        self.schedule.answered(now, has_changed, self.roster.len(), !self.suspected.is_empty());
    }

    /// Processes items that a server sent without a request.
    pub fn receive_items(&mut self, now: Time, items: Vec<Bytes>, output: &mut Output) {
        // Before the first reply of a server there is no key to verify verdicts, and events are not
        // delivered to this host.
        if !self.schedule.is_first() {
            let items = items.into_iter().take(MAX_VERDICTS + MAX_EVENTS);
            items.for_each(|item| self.receive_item(now, &item, true, output));
        }
    }

    /// Processes a datagram.
    pub fn receive(&mut self, now: Time, datagram: &[u8], output: &mut Output) {
        let Some(keys) = &self.keys else {
            self.counts.keyless += 1;
            return;
        };
        if !self.rate_limits.datagram_bytes.takes(now, datagram.len().max(LEAST_DATAGRAM_BYTES) as u64) {
            self.counts.excess_datagrams += 1;
            return;
        }
        let (from, packet) = match keys.ring.open(datagram, keys.seconds(now)) {
            Ok(opened) => opened,
            Err(error) => return self.counts.add(error),
        };
        let is_known = self.roster.get(from).is_some() || self.gossip.has_gone(from);
        if !is_known && from.host != self.me().host {
            self.schedule.hear_of_stranger(now);
        }
        self.act(now, output, |gossip, outbox| gossip.receive(now, from, &packet, outbox));
    }

    /// Fires all timers that are due. Process the datagrams that have arrived first.
    pub fn tick(&mut self, now: Time, output: &mut Output) {
        self.act(now, output, |gossip, outbox| gossip.tick(now, outbox));
    }

    /// Fires an event of this host: assigns its time, and passes it to all members, to a server and
    /// to `output`.
    ///
    /// # Errors
    /// This host has fired too many recently; the event is not sent.
    pub fn fire(
        &mut self,
        now: Time,
        mut event: UserEvent,
        output: &mut Output,
    ) -> Result<(), TooManyEvents> {
        self.events.fire(now, &mut event)?;
        let item = event.to_item();
        self.gossip.pass_on(&item);
        output.spread.push(item.into());
        output.events.push(event);
        Ok(())
    }

    /// Sends a server's challenge to a member; does nothing if it is not in the roster. A lost
    /// challenge is not resent: the server repeats it often enough.
    pub fn challenge(&mut self, now: Time, challenge: Challenge, output: &mut Output) {
        let asked = MemberId::of_agent(challenge.lease);
        if self.roster.get(asked).is_some() {
            let message = Message::Challenge(challenge.nonce);
            self.act(now, output, |gossip, outbox| gossip.send(asked, message, outbox));
        }
    }

    /// Replies to a member that relays a server's challenge.
    ///
    /// Given-up sessions need a datagram that a member of an earlier build drops, and a member
    /// forwards the first reply to the server. A challenge is therefore answered with the list
    /// alone during [`GIVEN_UP_ALONE`], and with an additional plain renewal after that.
    pub fn answer(&mut self, now: Time, to: MemberId, answer: &NodeAnswer, output: &mut Output) {
        let Renewal { lease, sequence, nonce, code } = answer.renewal;
        if MemberId::of_agent(lease) != self.me() {
            return;
        }
        let renewal = ChallengeAnswer { sequence, nonce, code };
        let giving_up = answer.given_up.map(|list| Message::GivingUp(renewal, list.sessions, list.code));
        let known = self.answered.filter(|(known, _)| *known == nonce);
        let (_, first) = *self.answered.insert(known.unwrap_or((nonce, now)));
        let is_plain = giving_up.is_none() || now.since(first) >= GIVEN_UP_ALONE;
        for message in giving_up.into_iter().chain(is_plain.then_some(Message::Renewal(renewal))) {
            self.act(now, output, |gossip, outbox| gossip.send(to, message, outbox));
        }
    }

    /// Seals a packet, with a random nonce that is used once; `None` while there is no key.
    pub fn seal(&self, now: Time, packet: &[u8], nonce: [u8; NONCE_BYTES]) -> Option<Vec<u8>> {
        let keys = self.keys.as_ref()?;
        Some(keys.ring.seal(self.me(), keys.seconds(now), nonce, packet))
    }

    fn roster_changed(&mut self, now: Time, output: &mut Output) {
        let members: Vec<_> = self.roster.members().map(|member| member.id).collect();
        self.act(now, output, |gossip, outbox| gossip.set_members(now, members, outbox));
    }

    fn act(&mut self, now: Time, output: &mut Output, act: impl FnOnce(&mut Gossip, &mut Outbox)) {
        let mut outbox = Outbox::default();
        act(&mut self.gossip, &mut outbox);
        let address = |to: &MemberId| self.roster.get(*to).map(|member: &RosterMember| member.address);
        let packets = outbox.packets.into_iter();
        output.packets.extend(packets.filter_map(|(to, packet)| Some((address(&to)?, packet))));
        for member in outbox.suspicions {
            // Regardless of repetitions: the suspected member may never be failed.
            if let Entry::Vacant(unknown) = self.suspected.entry(member) {
                unknown.insert(now + OUTCOME_WAIT);
                self.schedule.await_outcome(now);
            }
            output.suspicions.extend(member.lease());
        }
        if outbox.hears_of_stranger {
            self.schedule.hear_of_stranger(now);
        }
        for (from, nonce) in outbox.challenges {
            self.receive_challenge(now, from, nonce, output);
        }
        for (from, ChallengeAnswer { sequence, nonce, code }, list) in outbox.answers {
            let Some(lease) = from.lease() else { continue };
            let renewal = Renewal { lease, sequence, nonce, code };
            let given_up = list.map(|(sessions, code)| GivenUp { lease, sessions, code });
            output.answers.push(NodeAnswer { renewal, given_up });
        }
        for item in outbox.items {
            self.receive_item(now, &item, false, output);
        }
    }

    fn receive_challenge(&mut self, now: Time, from: MemberId, nonce: u64, output: &mut Output) {
        let Some(lease) = self.me().lease() else { return };
        match self.rate_limits.challenges.takes(now, 1) {
            true => output.challenges.push((from, Challenge { lease, nonce })),
            false => self.counts.excess_challenges += 1,
        }
    }

    /// Processes an item that members forward, or that a server sent.
    fn receive_item(&mut self, now: Time, item: &[u8], is_from_server: bool, output: &mut Output) {
        if self.gossip.knows(item) {
            return;
        }
        match UserEvent::is_one(item) {
            true => self.receive_event(now, item, is_from_server, output),
            false => self.receive_verdict(now, item, is_from_server, output),
        }
    }

    fn receive_event(&mut self, now: Time, item: &[u8], is_from_server: bool, output: &mut Output) {
        let Ok(event) = UserEvent::read(item) else {
            self.counts.malformed_events += 1;
            return;
        };
        // It is not marked as known: another copy may arrive when there is room again.
        if !self.events.admit(now, &event, item.len(), is_from_server) {
            self.counts.excess_events += 1;
            return;
        }
        self.counts.events += 1;
        self.gossip.pass_on(item);
        output.events.push(event);
    }

    fn receive_verdict(&mut self, now: Time, item: &[u8], is_from_server: bool, output: &mut Output) {
        let Some(keys) = &self.keys else { return };
        // The cheap checks first: verifying a signature takes longer than processing the whole
        // packet.
        let Ok(claimed) = Verdict::claimed(item) else {
            self.counts.unsigned += 1;
            return;
        };
        let about = MemberId::of_agent(claimed.lease);
        if self.roster.get(about).is_none() && about != self.gossip.me() {
            self.counts.strange_verdicts += 1;
            return;
        }
        if !is_from_server && !self.rate_limits.verdict_bytes.takes(now, item.len() as u64) {
            self.counts.excess_verdicts += 1;
            return;
        }
        let Ok(verdict) = keys.verdicts.read(item) else {
            self.counts.unsigned += 1;
            return;
        };
        self.gossip.pass_on(item);
        // The longer windows of a failed node end later; its process is no longer a member by then.
        let is_failed = verdict.window >= HealthWindow::Default;
        if is_failed && self.roster.remove(MemberId::of_agent(verdict.lease)) {
            self.roster_changed(now, output);
        }
        output.verdicts.push(verdict);
    }
}

impl Keys {
    fn seconds(&self, now: Time) -> u32 {
        let (at, seconds) = self.clock;
        seconds.saturating_add(now.since(at).as_secs().try_into().unwrap_or(u32::MAX))
    }
}

impl SealCounts {
    fn add(&mut self, error: SealError) {
        *match error {
            SealError::Length(_) | SealError::Version(_) => &mut self.malformed,
            SealError::UnknownKey(_) => &mut self.unknown_keys,
            SealError::Broken => &mut self.broken,
            SealError::Stale(_) => &mut self.stale,
        } += 1;
    }
}
