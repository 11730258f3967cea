//! One process in the mesh: what it takes from others, what it passes on, and whom it accuses.
//!
//! ```text
//! datagrams ─▶ seal ─▶ packet ─▶ filters ─▶ engine ─▶ packets for others
//!                                              │
//! timers ──────────────────────────────────────┴──▶ a probe in vain ─▶ may it accuse? ─▶ accusation
//! ```
//!
//! No socket and no clock in here: the shell hands over what arrived, whole datagrams first and
//! then the time, because what is already there must count before a timer says that it is not.
//!
//! **Invariants:** nobody dies by what members say; nobody is heard who is not in the roster as
//! this very process; a process accuses only whom it has heard itself, and nobody while it runs
//! late or hears nobody.

use super::engine::{Effects, Engine};
use super::health::Health;
use super::member::{Incarnation, MemberId, Standing, Update};
use super::packet::{ChallengeAnswer, Header, MAX_PACKET_BYTES, Message, Packet, PacketError};
use crate::given_up::GivenUpSessions;
use crate::lease::AuthenticationCode;
use crate::time::Time;
use crate::token_bucket::TokenBucket;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// An item is no longer than this.
pub const MAX_ITEM_BYTES: usize = 512;

/// So many members that have gone are remembered.
const MAX_GONE: usize = 1_024;

/// So many items are remembered as known.
const MAX_KNOWN_ITEMS: usize = 4_096;

/// No process refutes more accusations in its life, so whoever speaks of more invents them.
const MAX_INCARNATION: Incarnation = 60_000;

/// How far ahead of this process others may be about its incarnation.
const MAX_LEAD: Incarnation = 16;

/// So many accusations are refuted at once and in a second: far more than a mesh makes in which
/// nobody lies. Each goes to several members, and makes this process probe more slowly.
const REFUTATIONS: (u64, u64) = (8, 2);

const _: () = assert!(MAX_ITEM_BYTES + 64 < MAX_PACKET_BYTES);

/// The sessions that a member's guards gave up, with the code over them.
pub type GivenUpList = (GivenUpSessions, AuthenticationCode);

/// What a process in the mesh wants done.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Packets to be sealed and sent.
    pub packets: Vec<(MemberId, Vec<u8>)>,
    /// Members that were probed in vain: the servers shall look whether they live.
    pub accusations: Vec<MemberId>,
    /// Items that were not known. They are known, and passed on, only once [`Gossip::pass_on`] says
    /// so: whoever sends many that are worth nothing must not make the others forgotten.
    pub items: Vec<Vec<u8>>,
    /// Somebody lives, as members say, who is not in the roster.
    pub hears_of_stranger: bool,
    /// A member asks for a server whether this process lives, with a nonce.
    pub challenges: Vec<(MemberId, u64)>,
    /// What a member answers that was asked so.
    pub answers: Vec<(MemberId, ChallengeAnswer, Option<GivenUpList>)>,
}

/// What has happened so far, for the figures of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that were taken.
    pub received: u64,
    /// Packets that were handed out.
    pub sent: u64,
    /// Probes that were begun.
    pub probes: u64,
    /// Probes that failed, and were held against their target.
    pub accusations: u64,
    /// Probes that failed while this process had no right to accuse.
    pub excused: u64,
    /// Accusations against this process that it refuted.
    pub refutations: u64,
    /// Accusations that it did not refute, because there were too many.
    pub excess_suspicions: u64,
    /// Packets that are none, or such as the engine did not take.
    pub malformed: u64,
    /// Packets of somebody who is not in the roster, or for another process of this host, or about
    /// one.
    pub strangers: u64,
    /// What was said of somebody who is not in the roster.
    pub unknown_members: u64,
    /// How often a member was said to be dead, by which nobody dies.
    pub claimed_deaths: u64,
    /// What was said of incarnations that nobody can have.
    pub impossible_incarnations: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Gossip {
    me: MemberId,
    engine: Engine,
    health: Health,
    /// Who was heard in this life of the mesh, and when first.
    heard: BTreeMap<MemberId, Time>,
    /// Who has gone: what is said of them still is old.
    gone: BTreeSet<MemberId>,
    /// The same in the order in which they went.
    gone_in_order: VecDeque<MemberId>,
    refutations: TokenBucket,
    /// Whether the probe that is under way was answered.
    is_answered: bool,
    /// Items that are no news, and since when.
    known: BTreeMap<Vec<u8>, u64>,
    known_count: u64,
    counts: Counts,
}

impl Gossip {
    /// A process that knows nobody yet. The seed makes its choices differ from others'.
    pub fn new(me: MemberId, seed: u64, now: Time) -> Self {
        Self {
            me,
            engine: Engine::new(me, seed),
            health: Health::new(now),
            heard: BTreeMap::new(),
            gone: BTreeSet::new(),
            gone_in_order: VecDeque::new(),
            refutations: TokenBucket::full(now, REFUTATIONS.0, REFUTATIONS.1),
            is_answered: false,
            known: BTreeMap::new(),
            known_count: 0,
            counts: Counts::default(),
        }
    }

    /// Which process it is.
    pub fn me(&self) -> MemberId {
        self.me
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// How many others are members.
    pub fn members(&self) -> usize {
        self.engine.members().len()
    }

    /// How many times as long as usual its probes take, because it was wrong of late.
    pub fn stretch(&self) -> u32 {
        self.health.stretch()
    }

    /// Whether it belonged to the mesh, and does not any more.
    pub(super) fn has_gone(&self, member: MemberId) -> bool {
        self.gone.contains(&member)
    }

    /// Who belongs to the mesh, as the servers' roster says. This process itself is left out.
    pub fn set_members(
        &mut self,
        now: Time,
        members: impl IntoIterator<Item = MemberId>,
        outbox: &mut Outbox,
    ) {
        let members: BTreeSet<_> =
            members.into_iter().filter(|member| member.host != self.me.host && member.fits()).collect();
        if &members != self.engine.members() {
            self.heard.retain(|member, _| members.contains(member));
            let gone: Vec<_> = self.engine.members().difference(&members).copied().collect();
            gone.into_iter().for_each(|member| self.remember_gone(member));
            let effects = self.engine.set_members(now, members);
            self.carry_out(effects, outbox);
        }
    }

    /// A packet has arrived, whose sender its seal has named.
    pub fn receive(&mut self, now: Time, from: MemberId, bytes: &[u8], outbox: &mut Outbox) {
        let packet = match Packet::read(bytes) {
            Ok(packet) => packet,
            Err(PacketError::Short | PacketError::Unknown(_) | PacketError::Long(_)) => {
                self.counts.malformed += 1;
                return;
            }
        };
        // About an earlier process of this host, to which this one would pass on what is said: to
        // itself.
        let is_of_this_host = packet.header.message.about().is_some_and(|about| about.host == self.me.host);
        let is_stranger =
            packet.header.to != self.me || is_of_this_host || !self.engine.members().contains(&from);
        if is_stranger {
            self.counts.strangers += 1;
            return;
        }
        if packet.header.incarnation > MAX_INCARNATION {
            self.counts.impossible_incarnations += 1;
            return;
        }
        self.counts.received += 1;
        self.counts.claimed_deaths += packet.deaths as u64;
        self.health.hears(now);
        self.heard.entry(from).or_insert(now);
        outbox.hears_of_stranger |= packet.updates.iter().any(|update| self.is_stranger(update));
        self.notice_answer(from, &packet.header);
        let of_others = packet.updates.iter().filter(|update| update.member != self.me).copied();
        let mut updates: Vec<_> = of_others.collect();
        updates.retain(|update| self.is_possible(update));
        updates.extend(self.suspicion(now, &packet.updates));
        let stretch = self.health.stretch();
        if !updates.is_empty() {
            let effects = self.engine.hear_of(now, stretch, &updates);
            self.carry_out(effects, outbox);
        }
        match packet.header.message {
            Message::Challenge(nonce) => outbox.challenges.push((from, nonce)),
            Message::Renewal(answer) => outbox.answers.push((from, answer, None)),
            Message::GivingUp(answer, sessions, code) => {
                outbox.answers.push((from, answer, Some((sessions, code))));
            }
            _ => {
                let effects = self.engine.hear(now, stretch, from, &packet.header);
                self.carry_out(effects, outbox);
            }
        }
        for item in packet.items {
            self.take_item(item, outbox);
        }
    }

    /// Says something to a member that is not the engine's to say: a juror's words.
    pub fn say(&mut self, to: MemberId, message: Message, outbox: &mut Outbox) {
        let mut packet = Vec::new();
        Header { incarnation: self.engine.incarnation(), to, message }.write(&mut packet);
        self.counts.sent += 1;
        outbox.packets.push((to, packet));
    }

    /// An item was looked at and is true: it goes to all others. One of this process' own as well.
    pub fn pass_on(&mut self, item: &[u8]) {
        if !item.is_empty() && item.len() <= MAX_ITEM_BYTES {
            self.remember(item);
            self.engine.pass_on(item);
        }
    }

    /// An item is no news, and is not passed on by this process.
    pub fn note_known(&mut self, item: &[u8]) {
        if !self.knows(item) && item.len() <= MAX_ITEM_BYTES {
            self.remember(item);
        }
    }

    /// Knows what a former process of this host has known.
    pub(super) fn remember_known_of(&mut self, former: Self) {
        (self.known, self.known_count) = (former.known, former.known_count);
    }

    /// Whether an item is no news.
    pub fn knows(&self, item: &[u8]) -> bool {
        self.known.contains_key(item)
    }

    /// When the next timer is due.
    pub fn wakes_at(&self) -> Option<Time> {
        self.engine.next_timer().map(|(due, _)| due)
    }

    /// Delivers all timers that are due; datagrams that have arrived before go first.
    pub fn tick(&mut self, now: Time, outbox: &mut Outbox) {
        while let Some((due, ends_probe)) = self.engine.next_timer().filter(|(due, _)| *due <= now) {
            self.health.fires(due, now);
            if ends_probe {
                self.conclude_probe(now);
            }
            let effects = self.engine.fire(now, self.health.stretch());
            if self.engine.probe().is_some_and(|probe| probe.began == now) && ends_probe {
                self.counts.probes += 1;
                self.is_answered = false;
            }
            self.carry_out(effects, outbox);
        }
    }

    /// The time of the probe that is under way is over.
    fn conclude_probe(&mut self, now: Time) {
        let Some(probe) = self.engine.probe() else { return };
        if self.is_answered {
            return self.health.succeeds();
        }
        // Who did not know this process when it was asked had nothing to say.
        let knows_me = self.heard.get(&probe.target).is_some_and(|heard| *heard < probe.began);
        if self.health.may_accuse(probe.began, now) && knows_me {
            return self.health.doubts();
        }
        self.counts.excused += 1;
        self.engine.excuse_probe(now);
    }

    /// Whether a packet answers the probe that is under way.
    fn notice_answer(&mut self, from: MemberId, header: &Header) {
        let Some(probe) = self.engine.probe() else { return };
        let answers = match header.message {
            Message::Ack(number) => (from, number) == (probe.target, probe.number),
            Message::ForwardedAck(origin, number) => (origin, number) == (probe.target, probe.number),
            _ => false,
        };
        self.is_answered |= answers;
    }

    /// Whether somebody lives, by this word, whom the roster does not have yet.
    fn is_stranger(&self, update: &Update) -> bool {
        let Update { member, standing, .. } = *update;
        let of_host = MemberId { began: 0, ..member }..=MemberId { began: u64::MAX, ..member };
        let is_known = self.engine.members().range(of_host).any(|known| known.began >= member.began);
        standing == Standing::Alive && member.host != self.me.host && !is_known && !self.has_gone(member)
    }

    /// Whether what is said of another member can be true.
    fn is_possible(&mut self, update: &Update) -> bool {
        let is_known = self.engine.members().contains(&update.member);
        let is_impossible = update.incarnation > MAX_INCARNATION;
        self.counts.unknown_members += u64::from(!is_known);
        self.counts.impossible_incarnations += u64::from(is_known && is_impossible);
        is_known && !is_impossible
    }

    /// What a packet says against this process, where that is to be refuted: once, however often
    /// it is said.
    fn suspicion(&mut self, now: Time, updates: &[Update]) -> Option<Update> {
        let present = self.engine.incarnation();
        let most = present.saturating_add(MAX_LEAD).min(MAX_INCARNATION - 1);
        let of_me = || updates.iter().filter(|update| update.member == self.me);
        let impossible = of_me().filter(|update| update.incarnation > most).count();
        // What was refuted already is old news: another answer would only make more of it.
        let is_new = |update: &&Update| {
            update.standing == Standing::Suspect && (present..=most).contains(&update.incarnation)
        };
        let newest = of_me().filter(is_new).max_by_key(|update| update.incarnation).copied();
        self.counts.impossible_incarnations += impossible as u64;
        let newest = newest?;
        if !self.refutations.takes(now, 1) {
            self.counts.excess_suspicions += 1;
            return None;
        }
        self.counts.refutations += 1;
        self.health.doubts();
        Some(newest)
    }

    fn remember_gone(&mut self, member: MemberId) {
        if self.gone.insert(member) {
            self.gone_in_order.push_back(member);
        }
        if self.gone.len() > MAX_GONE
            && let Some(oldest) = self.gone_in_order.pop_front()
        {
            self.gone.remove(&oldest);
        }
    }

    fn take_item(&mut self, item: &[u8], outbox: &mut Outbox) {
        if item.len() <= MAX_ITEM_BYTES && !self.knows(item) {
            outbox.items.push(item.to_vec());
        }
    }

    fn remember(&mut self, item: &[u8]) {
        self.known_count += 1;
        self.known.insert(item.to_vec(), self.known_count);
        if self.known.len() > MAX_KNOWN_ITEMS {
            let oldest = self.known.iter().min_by_key(|(_, since)| **since);
            if let Some(oldest) = oldest.map(|(item, _)| item.clone()) {
                self.known.remove(&oldest);
            }
        }
    }

    fn carry_out(&mut self, effects: Effects, outbox: &mut Outbox) {
        self.counts.sent += effects.packets.len() as u64;
        self.counts.accusations += effects.accused.len() as u64;
        self.counts.malformed += u64::from(effects.refused);
        outbox.packets.extend(effects.packets);
        outbox.accusations.extend(effects.accused);
    }
}
