//! A host in the mesh: what arrives is opened and what leaves is sealed, members are found by the
//! roster, verdicts are read, and the servers are asked for what is lacking.
//!
//! ```text
//! servers ── news ──▶ keys, roster, verdicts, events
//!                              │
//! datagrams ──▶ open ──▶ [Gossip] ──▶ packets ──▶ seal ──▶ datagrams
//!                              │
//!                              └──▶ accusations, verdicts and events, for whoever runs it
//! ```
//!
//! No socket, no clock and no chance of its own: the nonce of each datagram comes from outside.
//!
//! **Invariants:** nothing is answered before its seal is opened; a member goes by the roster or by
//! a verdict that the servers signed. Events, which anybody may fire, are passed on up to a limit,
//! and of all else only what the servers signed.

use super::driver::{Counts, Gossip, Outbox};
use super::event::{LamportTime, UserEvent};
use super::event_flow::{EventFlow, TooManyEvents};
use super::member::MemberId;
use super::packet::{ChallengeAnswer, Message};
use super::roster::{Roster, RosterDigest, RosterMember, RosterNews};
use super::schedule::Schedule;
use super::seal::{KeyRing, NONCE_BYTES, SealError};
use super::verdict::{Verdict, VerdictKey};
use crate::given_up::{GivenUp, NodeAnswer};
use crate::id::LogIndex;
use crate::lease::{Challenge, HealthWindow, LeaseId, Renewal};
use crate::random::Random;
use crate::time::Time;
use crate::token_bucket::TokenBucket;
use bytes::Bytes;
use core::net::SocketAddr;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

/// How long answers to a challenge name given-up sessions alone: servers repeat it every 250 ms.
const LIST_ALONE: Duration = Duration::from_millis(400);

/// For how long it is asked again and again what became of a member that was accused.
const OUTCOME_WAIT: Duration = Duration::from_secs(20);

/// How long a server's answer is waited for, by whoever carries the question.
pub const SYNC_TIMEOUT: Duration = Duration::from_secs(5);

/// A datagram without anything in it counts as so many bytes: to be opened, it costs as much.
const LEAST_DATAGRAM_BYTES: usize = 64;

/// So many bytes of datagrams are opened at once and in a second: far more than all other members
/// send to one. What is beyond that is a flood, which must not take the processor from renewals.
const DATAGRAM_BYTES: (u64, u64) = (1 << 20, 1 << 19);

/// The same for verdicts that members pass on, whose signatures cost most: some 60 at once, and 16
/// a second.
const VERDICT_BYTES: (u64, u64) = (8 << 10, 2 << 10);

/// So many challenges are answered at once and in a second, each with a code that is reckoned out.
const CHALLENGES: (u64, u64) = (64, 32);

/// The most verdicts that a server tells at once.
pub const MAX_VERDICTS: usize = 256;

/// And the most events.
pub const MAX_EVENTS: usize = 256;

/// What a server tells a member of the mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshNews {
    /// How far the server has applied the log: of two that differ the later one is right.
    pub as_of: LogIndex,
    /// The cluster's time, in seconds since 1970: what datagrams are stamped with.
    pub seconds: u32,
    /// What datagrams are sealed with.
    pub ring: KeyRing,
    /// What verdicts are known by.
    pub verdict_key: VerdictKey,
    /// What the member lacks of the roster.
    pub roster: RosterNews,
    /// What members pass on, of late: signed verdicts, and events, which gossip may have missed and
    /// members of other cells have fired.
    pub items: Vec<Bytes>,
    /// The highest time of an event that the server has heard of.
    pub event_time: LamportTime,
}

/// What a host in the mesh wants done.
#[derive(Debug, Default)]
pub struct Output {
    /// Packets to be [sealed](Mesh::seal) and sent.
    pub packets: Vec<(SocketAddr, Vec<u8>)>,
    /// Leases of agents that were probed in vain: the servers are to be told.
    pub accusations: Vec<LeaseId>,
    /// Verdicts that were not known.
    pub verdicts: Vec<Verdict>,
    /// Events that were not known, and those that were fired here.
    pub events: Vec<UserEvent>,
    /// Items of those that were fired here: a server is to be told.
    pub spread: Vec<Bytes>,
    /// Members ask for a server whether this host lives: they are to be [answered](Mesh::answer).
    pub challenges: Vec<(MemberId, Challenge)>,
    /// What members answer that were [asked](Mesh::ask). Whether it is true, the servers know.
    pub answers: Vec<NodeAnswer>,
}

/// What has happened so far, besides the gossip within.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SealCounts {
    /// Datagrams that came before there was a key.
    pub keyless: u64,
    /// Datagrams that are none of the mesh, by their length or their version.
    pub malformed: u64,
    /// Datagrams that were sealed with a key that is not on the ring.
    pub unknown_keys: u64,
    /// Datagrams of another cluster, or changed on their way.
    pub broken: u64,
    /// Datagrams that were sealed long ago, or by a clock that is wrong.
    pub stale: u64,
    /// What was passed on, and the servers had not signed.
    pub unsigned: u64,
    /// Events of others that were taken.
    pub events: u64,
    /// How often an event of another one was not taken, because there were too many.
    pub excess_events: u64,
    /// What was passed on as an event, and is none.
    pub malformed_events: u64,
    /// Datagrams that were not opened, because there were too many.
    pub excess_datagrams: u64,
    /// Verdicts that were not looked at, because there were too many.
    pub excess_verdicts: u64,
    /// Verdicts on processes that are not in the roster, or not any more.
    pub strange_verdicts: u64,
    /// Challenges that were not answered, because there were too many.
    pub excess_challenges: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Mesh {
    gossip: Gossip,
    roster: Roster,
    keys: Option<Keys>,
    /// Whom this host accused, and until when it is asked what became of them.
    accused: BTreeMap<MemberId, Time>,
    events: EventFlow,
    room: Room,
    /// When servers are asked, and how far they had come by their answers.
    schedule: Schedule,
    as_of: LogIndex,
    random: Random,
    counts: SealCounts,
    /// The nonce of the newest challenge, and when it was first answered.
    answered: Option<(u64, Time)>,
}

/// How much of what members send may be taken.
#[derive(Debug)]
struct Room {
    datagram_bytes: TokenBucket,
    /// Of verdicts that members pass on.
    verdict_bytes: TokenBucket,
    challenges: TokenBucket,
}

#[derive(Debug)]
struct Keys {
    ring: KeyRing,
    verdicts: VerdictKey,
    /// The cluster's time at some moment of this host's.
    clock: (Time, u32),
}

impl Mesh {
    /// A host that knows nothing yet, and asks at once.
    pub fn new(me: MemberId, seed: u64, now: Time) -> Self {
        let mut random = Random::new(seed);
        let gossip = Gossip::new(me, random.number(), now);
        let schedule = Schedule::new(now, random.number());
        let room = |(at_once, a_second): (u64, u64)| TokenBucket::full(now, at_once, a_second);
        let room = Room {
            datagram_bytes: room(DATAGRAM_BYTES),
            verdict_bytes: room(VERDICT_BYTES),
            challenges: room(CHALLENGES),
        };
        let (roster, counts) = (Roster::default(), SealCounts::default());
        let (accused, events) = (BTreeMap::new(), EventFlow::new(now));
        let (keys, as_of) = (None, LogIndex(0));
        let answered = None;
        Self { gossip, roster, keys, accused, events, room, schedule, as_of, random, counts, answered }
    }

    /// Which process this is.
    pub fn me(&self) -> MemberId {
        self.gossip.me()
    }

    /// This process has another lease: to others it is somebody else from now on.
    pub fn become_member(&mut self, now: Time, me: MemberId, output: &mut Output) {
        if me != self.gossip.me() {
            let gossip = Gossip::new(me, self.random.number(), now);
            let former = std::mem::replace(&mut self.gossip, gossip);
            self.gossip.remember_known_of(former);
            self.accused.clear();
            // Servers that began anew have a shorter log, and of those before them nothing counts.
            if LogIndex(me.began) <= std::mem::take(&mut self.as_of) {
                self.roster = Roster::default();
            }
            self.roster_changed(now, output);
            self.schedule.begin_anew(now);
        }
    }

    /// Who belongs to the mesh.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// What has happened so far.
    pub fn counts(&self) -> (Counts, SealCounts) {
        (self.gossip.counts(), self.counts)
    }

    /// How many others this host takes for members.
    pub fn others(&self) -> usize {
        self.gossip.members()
    }

    /// How many times as long as usual probes take, because this host was wrong of late.
    pub fn stretch(&self) -> u32 {
        self.gossip.stretch()
    }

    /// When [`tick`](Self::tick) or [`wants_sync`](Self::wants_sync) has something to do.
    pub fn wakes_at(&self) -> Option<Time> {
        [self.schedule.due(), self.gossip.wakes_at()].into_iter().flatten().min()
    }

    /// What a server is to be asked for now, if it is time: the answer goes to
    /// [`synced`](Self::synced).
    pub fn wants_sync(&mut self, now: Time) -> Option<RosterDigest> {
        self.schedule.begins(now).then(|| self.roster.digest())
    }

    /// A server answered; none where nobody did.
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
            // What was fired before this host came is not for it.
            match is_first && UserEvent::is_one(&item) {
                true => self.gossip.note_known(&item),
                false => self.take_item(now, &item, true, output),
            }
        }
        // Behind the verdicts, which are about those who were in it. That of a server that lags
        // would make members of those who have gone, and the other way round.
        let has_changed = is_news && self.roster.take(roster);
        if has_changed {
            self.roster_changed(now, output);
        }
        self.accused.retain(|member, until| *until > now && self.roster.get(*member).is_some());
        self.schedule.answered(now, has_changed, self.roster.len(), !self.accused.is_empty());
    }

    /// A server tells what is new, unasked.
    pub fn told(&mut self, now: Time, items: Vec<Bytes>, output: &mut Output) {
        // Before it has answered for the first time there is no key for verdicts, and events are
        // not for this host.
        if !self.schedule.is_first() {
            let items = items.into_iter().take(MAX_VERDICTS + MAX_EVENTS);
            items.for_each(|item| self.take_item(now, &item, true, output));
        }
    }

    /// A datagram has arrived.
    pub fn receive(&mut self, now: Time, datagram: &[u8], output: &mut Output) {
        let Some(keys) = &self.keys else {
            self.counts.keyless += 1;
            return;
        };
        if !self.room.datagram_bytes.takes(now, datagram.len().max(LEAST_DATAGRAM_BYTES) as u64) {
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

    /// Delivers all timers that are due; datagrams that have arrived before go first.
    pub fn tick(&mut self, now: Time, output: &mut Output) {
        self.act(now, output, |gossip, outbox| gossip.tick(now, outbox));
    }

    /// Fires an event of this host's own: it is given its time, and goes to all members, to a
    /// server and to `output`.
    ///
    /// # Errors
    /// This host has fired too many of late; nobody hears of this one.
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

    /// Asks a member for a server whether it lives; nobody where it is not in the roster. Nothing
    /// is sent again where that is lost: the server asks often enough.
    pub fn ask(&mut self, now: Time, challenge: Challenge, output: &mut Output) {
        let asked = MemberId::of_agent(challenge.lease);
        if self.roster.get(asked).is_some() {
            let message = Message::Challenge(challenge.nonce);
            self.act(now, output, |gossip, outbox| gossip.say(asked, message, outbox));
        }
    }

    /// Answers a member that asks for a server whether this host lives.
    ///
    /// Sessions that were given up are named in a datagram that a member of an earlier build drops,
    /// and a member reports to the server what arrives first. So a challenge is answered with the
    /// list alone until [`LIST_ALONE`] is over, and with a plain renewal behind it from then on.
    pub fn answer(&mut self, now: Time, to: MemberId, answer: &NodeAnswer, output: &mut Output) {
        let Renewal { lease, sequence, nonce, code } = answer.renewal;
        if MemberId::of_agent(lease) != self.me() {
            return;
        }
        let renewal = ChallengeAnswer { sequence, nonce, code };
        let giving_up = answer.given_up.map(|list| Message::GivingUp(renewal, list.sessions, list.code));
        let known = self.answered.filter(|(known, _)| *known == nonce);
        let (_, first) = *self.answered.insert(known.unwrap_or((nonce, now)));
        let is_plain = giving_up.is_none() || now.since(first) >= LIST_ALONE;
        for message in giving_up.into_iter().chain(is_plain.then_some(Message::Renewal(renewal))) {
            self.act(now, output, |gossip, outbox| gossip.say(to, message, outbox));
        }
    }

    /// Seals a packet, with a nonce that is random and used once; none while there is no key.
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
        for member in outbox.accusations {
            // However often it is accused meanwhile: it may be one that nobody fails.
            if let Entry::Vacant(unknown) = self.accused.entry(member) {
                unknown.insert(now + OUTCOME_WAIT);
                self.schedule.await_outcome(now);
            }
            output.accusations.extend(member.lease());
        }
        if outbox.hears_of_stranger {
            self.schedule.hear_of_stranger(now);
        }
        for (from, nonce) in outbox.challenges {
            self.take_challenge(now, from, nonce, output);
        }
        for (from, ChallengeAnswer { sequence, nonce, code }, list) in outbox.answers {
            let Some(lease) = from.lease() else { continue };
            let renewal = Renewal { lease, sequence, nonce, code };
            let given_up = list.map(|(sessions, code)| GivenUp { lease, sessions, code });
            output.answers.push(NodeAnswer { renewal, given_up });
        }
        for item in outbox.items {
            self.take_item(now, &item, false, output);
        }
    }

    fn take_challenge(&mut self, now: Time, from: MemberId, nonce: u64, output: &mut Output) {
        let Some(lease) = self.me().lease() else { return };
        match self.room.challenges.takes(now, 1) {
            true => output.challenges.push((from, Challenge { lease, nonce })),
            false => self.counts.excess_challenges += 1,
        }
    }

    /// Something that members pass on, or a server told.
    fn take_item(&mut self, now: Time, item: &[u8], is_told_by_server: bool, output: &mut Output) {
        if self.gossip.knows(item) {
            return;
        }
        match UserEvent::is_one(item) {
            true => self.take_event(now, item, is_told_by_server, output),
            false => self.take_verdict(now, item, is_told_by_server, output),
        }
    }

    fn take_event(&mut self, now: Time, item: &[u8], is_told_by_server: bool, output: &mut Output) {
        let Ok(event) = UserEvent::read(item) else {
            self.counts.malformed_events += 1;
            return;
        };
        // It is no news to be remembered: another copy may come when there is room again.
        if !self.events.take(now, &event, item.len(), is_told_by_server) {
            self.counts.excess_events += 1;
            return;
        }
        self.counts.events += 1;
        self.gossip.pass_on(item);
        output.events.push(event);
    }

    fn take_verdict(&mut self, now: Time, item: &[u8], is_told_by_server: bool, output: &mut Output) {
        let Some(keys) = &self.keys else { return };
        // What is cheap to see first: a signature takes a processor longer than the whole packet.
        let Ok(claimed) = Verdict::claimed(item) else {
            self.counts.unsigned += 1;
            return;
        };
        let about = MemberId::of_agent(claimed.lease);
        if self.roster.get(about).is_none() && about != self.gossip.me() {
            self.counts.strange_verdicts += 1;
            return;
        }
        if !is_told_by_server && !self.room.verdict_bytes.takes(now, item.len() as u64) {
            self.counts.excess_verdicts += 1;
            return;
        }
        let Ok(verdict) = keys.verdicts.read(item) else {
            self.counts.unsigned += 1;
            return;
        };
        self.gossip.pass_on(item);
        // The longer windows of a node that has failed end later; its process is no member by then.
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
