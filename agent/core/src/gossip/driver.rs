//! One process in the mesh: the packets that it accepts, forwards and sends, its suspicions of
//! others, and its refutations when it is suspected itself.
//!
//! ```text
//! datagrams ─▶ seal ─▶ packet ─▶ filters ─▶ engine ─▶ packets for others
//!                                              │
//! timers ──────────────────────────────────────┴──▶ failed probe ─▶ may it suspect? ─▶ suspicion
//! ```
//!
//! There is no socket and no clock in here. The caller passes in all datagrams that have arrived,
//! and then the time: a reply that has already arrived must count before a timer declares it
//! missing.
//!
//! **Invariants:** no member fails because of other members' reports. Packets are only accepted
//! from processes in the roster. A process suspects only members from which it has received packets
//! itself, and none while it runs late or receives nothing.

use super::engine::{Effects, Engine};
use super::health::Health;
use lockmesh_protocol::given_up::GivenUpSessions;
use lockmesh_protocol::gossip::MAX_ITEM_BYTES;
use lockmesh_protocol::gossip::member::{Incarnation, MemberId, Standing, Update};
use lockmesh_protocol::gossip::packet::{ChallengeAnswer, Header, Message, Packet, PacketError};
use lockmesh_protocol::lease::AuthenticationCode;
use lockmesh_protocol::time::Time;
use lockmesh_protocol::token_bucket::TokenBucket;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The maximum number of departed members that are remembered.
const MAX_GONE: usize = 1_024;

/// The maximum number of known items that are remembered.
const MAX_KNOWN_ITEMS: usize = 4_096;

/// The maximum incarnation: no process refutes more suspicions, so a higher number is forged.
const MAX_INCARNATION: Incarnation = 60_000;

/// The maximum lead of other members' view of this process's incarnation.
const MAX_LEAD: Incarnation = 16;

/// The rate limit of refutations, as burst and per second: far above the rate in a mesh without
/// hostile members. Each refutation goes to several members and slows this process's probes down.
const REFUTATIONS: (u64, u64) = (8, 2);

/// The sessions that a member's guards gave up, with their authentication code.
pub type GivenUpList = (GivenUpSessions, AuthenticationCode);

/// The outputs of a process in the mesh.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Packets to be sealed and sent.
    pub packets: Vec<(MemberId, Vec<u8>)>,
    /// Suspicions: members whose probes failed, which the servers should check.
    pub suspicions: Vec<MemberId>,
    /// New items. They count as known, and are forwarded, only after [`Gossip::pass_on`]: a member
    /// that sends many worthless items must not displace the others.
    pub items: Vec<Vec<u8>>,
    /// Set if members report a live process that is not in the roster.
    pub hears_of_stranger: bool,
    /// Members that relay a server's challenge, with its nonce.
    pub challenges: Vec<(MemberId, u64)>,
    /// The replies of challenged members.
    pub answers: Vec<(MemberId, ChallengeAnswer, Option<GivenUpList>)>,
}

/// The counters of a process, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accepted packets.
    pub received: u64,
    /// Sent packets.
    pub sent: u64,
    /// Started probes.
    pub probes: u64,
    /// Failed probes that were reported as suspicions.
    pub suspicions: u64,
    /// Failed probes while this process was not entitled to suspect.
    pub excused: u64,
    /// Suspicions of this process that it refuted.
    pub refutations: u64,
    /// Suspicions of this process beyond the rate limit, which it did not refute.
    pub excess_suspicions: u64,
    /// Malformed packets, and packets that the engine rejected.
    pub malformed: u64,
    /// Packets from senders outside the roster, for another process of this host, or about one.
    pub strangers: u64,
    /// Reports about members outside the roster.
    pub unknown_members: u64,
    /// Reports of a member's death, which have no effect.
    pub claimed_deaths: u64,
    /// Reports of impossible incarnations.
    pub impossible_incarnations: u64,
}

/// A process in the mesh: SWIM's engine and the rules around it.
#[derive(Debug)]
pub struct Gossip {
    me: MemberId,
    engine: Engine,
    health: Health,
    /// The members that sent packets since this process joined, and the time of the first one.
    heard: BTreeMap<MemberId, Time>,
    /// Departed members; later reports about them are outdated.
    gone: BTreeSet<MemberId>,
    /// The same members in the order of their departure.
    gone_in_order: VecDeque<MemberId>,
    refutations: TokenBucket,
    /// Set if the current probe was answered.
    is_answered: bool,
    /// Known items, and their order of arrival.
    known: BTreeMap<Vec<u8>, u64>,
    known_count: u64,
    counts: Counts,
}

impl Gossip {
    /// Creates a process without members. The seed makes its choices differ from those of others.
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

    /// Returns the id of this process.
    pub fn me(&self) -> MemberId {
        self.me
    }

    /// Returns the counters.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the number of other members.
    pub fn members(&self) -> usize {
        self.engine.members().len()
    }

    /// Returns the factor by which probes are slowed down after recent mistakes.
    pub fn stretch(&self) -> u32 {
        self.health.stretch()
    }

    /// Returns `true` if it was a member and has departed.
    pub(super) fn has_gone(&self, member: MemberId) -> bool {
        self.gone.contains(&member)
    }

    /// Sets the members according to the servers' roster. This process itself is ignored.
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

    /// Processes a packet from the sender that its seal names.
    pub fn receive(&mut self, now: Time, from: MemberId, bytes: &[u8], outbox: &mut Outbox) {
        let Some(packet) = self.admit(from, bytes) else { return };
        self.counts.received += 1;
        self.counts.claimed_deaths += packet.deaths as u64;
        self.health.record_packet(now);
        self.heard.entry(from).or_insert(now);
        outbox.hears_of_stranger |= packet.updates.iter().any(|update| self.is_stranger(update));
        self.notice_answer(from, &packet.header);
        let of_others = packet.updates.iter().filter(|update| update.member != self.me).copied();
        let mut updates: Vec<_> = of_others.collect();
        updates.retain(|update| self.is_possible(update));
        updates.extend(self.suspicion(now, &packet.updates));
        let stretch = self.health.stretch();
        if !updates.is_empty() {
            let effects = self.engine.apply_updates(now, stretch, &updates);
            self.carry_out(effects, outbox);
        }
        match packet.header.message {
            Message::Challenge(nonce) => outbox.challenges.push((from, nonce)),
            Message::Renewal(answer) => outbox.answers.push((from, answer, None)),
            Message::GivingUp(answer, sessions, code) => {
                outbox.answers.push((from, answer, Some((sessions, code))));
            }
            _ => {
                let effects = self.engine.receive(now, stretch, from, &packet.header);
                self.carry_out(effects, outbox);
            }
        }
        for item in packet.items {
            self.receive_item(item, outbox);
        }
    }

    /// Reads a packet; returns `None` for one that is not meant for this process, and counts it.
    fn admit<'p>(&mut self, from: MemberId, bytes: &'p [u8]) -> Option<Packet<'p>> {
        let packet = match Packet::read(bytes) {
            Ok(packet) => packet,
            Err(PacketError::Short | PacketError::Unknown(_) | PacketError::Long(_)) => {
                self.counts.malformed += 1;
                return None;
            }
        };
        // A report about an earlier process of this host would be forwarded to this process itself.
        let is_of_this_host = packet.header.message.about().is_some_and(|about| about.host == self.me.host);
        let is_stranger =
            packet.header.to != self.me || is_of_this_host || !self.engine.members().contains(&from);
        if is_stranger {
            self.counts.strangers += 1;
            return None;
        }
        if packet.header.incarnation > MAX_INCARNATION {
            self.counts.impossible_incarnations += 1;
            return None;
        }
        Some(packet)
    }

    /// Sends a member a message that does not come from the engine, such as a relayed challenge.
    pub fn send(&mut self, to: MemberId, message: Message, outbox: &mut Outbox) {
        let mut packet = Vec::new();
        Header { incarnation: self.engine.incarnation(), to, message }.write(&mut packet);
        self.counts.sent += 1;
        outbox.packets.push((to, packet));
    }

    /// Forwards a verified item to all other members, including this process's own.
    pub fn pass_on(&mut self, item: &[u8]) {
        if !item.is_empty() && item.len() <= MAX_ITEM_BYTES {
            self.remember(item);
            self.engine.pass_on(item);
        }
    }

    /// Marks an item as known; this process does not forward it.
    pub fn note_known(&mut self, item: &[u8]) {
        if !self.knows(item) && item.len() <= MAX_ITEM_BYTES {
            self.remember(item);
        }
    }

    /// Takes over the known items of an earlier process of this host.
    pub(super) fn remember_known_of(&mut self, former: Self) {
        (self.known, self.known_count) = (former.known, former.known_count);
    }

    /// Returns `true` if an item is known.
    pub fn knows(&self, item: &[u8]) -> bool {
        self.known.contains_key(item)
    }

    /// Returns the time of the next timer.
    pub fn wakes_at(&self) -> Option<Time> {
        self.engine.next_timer().map(|(due, _)| due)
    }

    /// Fires all timers that are due. Process the datagrams that have arrived first.
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

    /// Concludes the current probe when its time is over.
    fn conclude_probe(&mut self, now: Time) {
        let Some(probe) = self.engine.probe() else { return };
        if self.is_answered {
            return self.health.succeeds();
        }
        // A target that did not know this process when it was probed could not reply.
        let knows_me = self.heard.get(&probe.target).is_some_and(|heard| *heard < probe.began);
        if self.health.may_suspect(probe.began, now) && knows_me {
            return self.health.doubts();
        }
        self.counts.excused += 1;
        self.engine.excuse_probe(now);
    }

    /// Records that a packet answers the current probe.
    fn notice_answer(&mut self, from: MemberId, header: &Header) {
        let Some(probe) = self.engine.probe() else { return };
        let answers = match header.message {
            Message::Ack(number) => (from, number) == (probe.target, probe.number),
            Message::ForwardedAck(origin, number) => (origin, number) == (probe.target, probe.number),
            _ => false,
        };
        self.is_answered |= answers;
    }

    /// Returns `true` if the update reports a live process that is not in the roster yet.
    fn is_stranger(&self, update: &Update) -> bool {
        let Update { member, standing, .. } = *update;
        let of_host = MemberId { began: 0, ..member }..=MemberId { began: u64::MAX, ..member };
        let is_known = self.engine.members().range(of_host).any(|known| known.began >= member.began);
        standing == Standing::Alive && member.host != self.me.host && !is_known && !self.has_gone(member)
    }

    /// Returns `true` if a report about another member can be valid.
    fn is_possible(&mut self, update: &Update) -> bool {
        let is_known = self.engine.members().contains(&update.member);
        let is_impossible = update.incarnation > MAX_INCARNATION;
        self.counts.unknown_members += u64::from(!is_known);
        self.counts.impossible_incarnations += u64::from(is_known && is_impossible);
        is_known && !is_impossible
    }

    /// Returns the suspicion of this process that a packet reports, if it has to be refuted. Each
    /// is refuted once, regardless of repetitions.
    fn suspicion(&mut self, now: Time, updates: &[Update]) -> Option<Update> {
        let present = self.engine.incarnation();
        let most = present.saturating_add(MAX_LEAD).min(MAX_INCARNATION - 1);
        let of_me = || updates.iter().filter(|update| update.member == self.me);
        let impossible = of_me().filter(|update| update.incarnation > most).count();
        // Suspicions that were already refuted are old: another refutation would only add traffic.
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

    fn receive_item(&mut self, item: &[u8], outbox: &mut Outbox) {
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
        self.counts.suspicions += effects.suspected.len() as u64;
        self.counts.malformed += u64::from(effects.refused);
        outbox.packets.extend(effects.packets);
        outbox.suspicions.extend(effects.suspected);
    }
}

#[cfg(test)]
mod tests {
    use super::{Gossip, Outbox};
    use lockmesh_protocol::gossip::member::{MemberId, Standing, Update};
    use lockmesh_protocol::gossip::packet::{Header, Message};
    use lockmesh_protocol::id::{AgentNumber, LogIndex};
    use lockmesh_protocol::lease::LeaseId;
    use lockmesh_protocol::time::Time;

    fn agent(number: u32) -> MemberId {
        MemberId::of_agent(LeaseId { agent: AgentNumber(number), began: LogIndex(7) })
    }

    /// A process that knows two others, at the beginning of a probe.
    fn probing() -> Gossip {
        let (mut gossip, mut outbox) = (Gossip::new(agent(0), 1, Time(0)), Outbox::default());
        gossip.set_members(Time(0), (0..3).map(agent), &mut outbox);
        while gossip.engine.probe().is_none() {
            let at = gossip.wakes_at().expect("it probes its members");
            gossip.tick(at, &mut outbox);
        }
        gossip
    }

    #[test]
    fn only_matching_ack_answers_probe() {
        let mut gossip = probing();
        let probe = gossip.engine.probe().expect("it has begun");
        let other = (1..3).map(agent).find(|member| *member != probe.target).expect("there are two");
        let earlier = probe.number.wrapping_sub(1);
        for (from, message, is_answer) in [
            (other, Message::Ack(probe.number), false),
            (probe.target, Message::Ack(earlier), false),
            (other, Message::ForwardedAck(other, probe.number), false),
            (other, Message::ForwardedAck(probe.target, earlier), false),
            (probe.target, Message::Gossip, false),
            (other, Message::ForwardedAck(probe.target, probe.number), true),
            (probe.target, Message::Ack(probe.number), true),
        ] {
            gossip.is_answered = false;
            gossip.notice_answer(from, &Header { incarnation: 0, to: agent(0), message });
            assert_eq!(gossip.is_answered, is_answer, "{message:?} from {from:?}");
        }
    }

    #[test]
    fn departed_member_is_not_stranger() {
        let (mut gossip, mut outbox) = (probing(), Outbox::default());
        let alive = |member| Update { member, incarnation: 0, standing: Standing::Alive };
        assert!(gossip.is_stranger(&alive(agent(9))));
        assert!(!gossip.is_stranger(&alive(agent(2))), "it is a member");
        gossip.set_members(Time(1), (0..2).map(agent), &mut outbox);
        assert!(!gossip.is_stranger(&alive(agent(2))), "the report is outdated");
    }
}
