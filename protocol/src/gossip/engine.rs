//! SWIM itself, by foca, which this file alone names: whom to probe and whom to ask for help, what
//! is said of whom as of which incarnation, and how often it is passed on.
//!
//! The engine is given only what is certain and lets nothing out that is not ours to say:
//!
//! - It never learns of members by hearsay. Who belongs to the mesh is told by
//!   [`set_members`](Engine::set_members), and all of them at once: asked for members one datagram
//!   after the other it would take minutes.
//! - Its timer that turns a suspect into a dead member is never delivered: a failed probe is an
//!   accusation, and the servers judge. (Delivered, it would also tell a member that has refuted
//!   the suspicion that it is dead.)
//! - Another process of the same host is another identity, so it is never asked to renew one.

use super::member::{Host, Incarnation, MemberId, Standing, Update};
use super::packet::{Header, MAX_PACKET_BYTES, Message, write_update};
use crate::random::Random;
use crate::time::Time;
use bytes::{Buf, BufMut};
use foca::{
    Config, Foca, Identity, Invalidates, Member, Notification, PeriodicParams, Runtime, State, Timer,
};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::num::{NonZeroU8, NonZeroUsize};
use std::time::Duration;

/// How often a member probes another one.
pub const PROBE_INTERVAL: Duration = Duration::from_millis(500);

/// When others are asked to probe it as well.
const PROBE_TIMEOUT: Duration = Duration::from_millis(200);

/// So many others.
const INDIRECT_PROBES: NonZeroUsize = NonZeroUsize::MIN.saturating_add(2);

/// How often news is passed on, and to how many; nothing is sent where there is none.
const GOSSIP_INTERVAL: Duration = Duration::from_millis(100);
const GOSSIP_MEMBERS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(2);

/// For so long what is under way may still speak of a member that has gone.
const REMOVE_AFTER: Duration = Duration::from_secs(30);

/// What the engine wants done.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// Packets, and whom they are for.
    pub(super) packets: Vec<(MemberId, Vec<u8>)>,
    /// Members that were probed in vain.
    pub(super) accused: Vec<MemberId>,
    /// It could not take what it was given.
    pub(super) refused: bool,
}

/// The probe that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    pub(super) target: MemberId,
    pub(super) number: u8,
    pub(super) began: Time,
}

/// See the [module](self).
pub(super) struct Engine {
    foca: Foca<MemberId, Words, Dice, Items>,
    me: MemberId,
    members: BTreeSet<MemberId>,
    timers: Timers,
}

#[derive(Debug, Default)]
struct Timers {
    due: BTreeMap<(Time, u64), Timer<MemberId>>,
    count: u64,
    probe: Option<Probe>,
    /// The highest incarnation that this process has had.
    incarnation: Incarnation,
}

impl Engine {
    pub(super) fn new(me: MemberId, seed: u64) -> Self {
        let foca = Foca::with_custom_broadcast(me, config(1), Dice(Random::new(seed)), Words, Items);
        Self { foca, me, members: BTreeSet::new(), timers: Timers::default() }
    }

    /// Who is in the mesh, beside this process.
    pub(super) fn members(&self) -> &BTreeSet<MemberId> {
        &self.members
    }

    /// The incarnation of this process.
    pub(super) fn incarnation(&self) -> Incarnation {
        self.timers.incarnation
    }

    /// The probe that is under way.
    pub(super) fn probe(&self) -> Option<Probe> {
        self.timers.probe
    }

    /// Who is in the mesh now. Of those who have come all others hear, so that they ask for their
    /// rosters; of those who have gone nothing is said.
    pub(super) fn set_members(&mut self, now: Time, members: BTreeSet<MemberId>) -> Effects {
        let gone: Vec<_> = self.members.difference(&members).copied().map(Member::down).collect();
        let come: Vec<_> = members.difference(&self.members).copied().map(Member::alive).collect();
        // Whoever knows nobody yet is the last to hear.
        let is_news = !self.members.is_empty();
        let config = config(members.len());
        self.members = members;
        self.run(now, 1, |foca, hands| {
            // What may not change while it runs is a constant.
            foca.set_config(config)?;
            // First those who have gone: of two processes of a host the later one stays.
            foca.apply_many(gone.into_iter(), false, &mut *hands)?;
            foca.apply_many(come.into_iter(), is_news, hands)
        })
    }

    /// What another member says of members.
    pub(super) fn hear_of(&mut self, now: Time, stretch: u32, updates: &[Update]) -> Effects {
        let updates = updates.iter().map(|update| {
            let state = match update.standing {
                Standing::Alive => State::Alive,
                Standing::Suspect => State::Suspect,
            };
            Member::new(update.member, update.incarnation, state)
        });
        let updates: Vec<_> = updates.collect();
        self.run(now, stretch, |foca, hands| foca.apply_many(updates.into_iter(), true, hands))
    }

    /// A member speaks to this one.
    pub(super) fn hear(&mut self, now: Time, stretch: u32, from: MemberId, header: &Header) -> Effects {
        let mut bytes = Vec::with_capacity(MAX_PACKET_BYTES);
        from.write(&mut bytes);
        header.write(&mut bytes);
        self.run(now, stretch, |foca, hands| foca.handle_data(&bytes, hands))
    }

    /// Ends the probe that is under way as if it had been answered: nothing follows from it.
    pub(super) fn excuse_probe(&mut self, now: Time) {
        let Some(probe) = self.timers.probe else { return };
        let header = Header { incarnation: 0, to: self.me, message: Message::Ack(probe.number) };
        self.hear(now, 1, probe.target, &header);
    }

    /// Passes an item on to all others.
    pub(super) fn pass_on(&mut self, item: &[u8]) {
        // It is refused where it is empty or too long for a packet, of which nobody makes one.
        let _ = self.foca.add_broadcast(item);
    }

    /// When the next timer is due, and whether it ends the probe that is under way.
    pub(super) fn next_timer(&self) -> Option<(Time, bool)> {
        let ((due, _), timer) = self.timers.due.first_key_value()?;
        Some((*due, matches!(timer, Timer::ProbeRandomMember(_))))
    }

    /// Delivers the next timer. What it begins takes `stretch` times as long as usual.
    pub(super) fn fire(&mut self, now: Time, stretch: u32) -> Effects {
        let Some((_, timer)) = self.timers.due.pop_first() else { return Effects::default() };
        if matches!(timer, Timer::ProbeRandomMember(_)) {
            self.timers.probe = None;
        }
        self.run(now, stretch, |foca, hands| foca.handle_timer(timer, hands))
    }

    fn run(
        &mut self,
        now: Time,
        stretch: u32,
        act: impl FnOnce(&mut Foca<MemberId, Words, Dice, Items>, &mut Hands<'_>) -> Result<(), foca::Error>,
    ) -> Effects {
        let mut hands = Hands { now, stretch, timers: &mut self.timers, effects: Effects::default() };
        // Such as an answer that asks this process to ask itself: nothing was taken from it.
        hands.effects.refused = act(&mut self.foca, &mut hands).is_err();
        hands.effects
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({}, {} members, {:?})", self.me, self.members.len(), self.timers)
    }
}

fn config(members: usize) -> Config {
    Config {
        probe_period: PROBE_INTERVAL,
        probe_rtt: PROBE_TIMEOUT,
        num_indirect_probes: INDIRECT_PROBES,
        max_transmissions: transmissions(members),
        // Never delivered.
        suspect_to_down_after: PROBE_INTERVAL,
        remove_down_after: Some(REMOVE_AFTER),
        max_packet_size: NonZeroUsize::new(MAX_PACKET_BYTES).expect("a constant"),
        notify_down_members: false,
        periodic_announce: None,
        periodic_announce_to_down_members: None,
        periodic_gossip: Some(PeriodicParams { frequency: GOSSIP_INTERVAL, num_members: GOSSIP_MEMBERS }),
    }
}

/// How often each member passes a piece of news on: with the logarithm of their number it reaches
/// all of them but for one chance in many.
fn transmissions(members: usize) -> NonZeroU8 {
    let digits = (members as f64 + 1.0).log10().ceil() as u8;
    NonZeroU8::new((4 * digits).max(8)).expect("8 at least")
}

/// What the engine does to the world, put down.
struct Hands<'a> {
    now: Time,
    stretch: u32,
    timers: &'a mut Timers,
    effects: Effects,
}

impl Runtime<MemberId> for Hands<'_> {
    fn notify(&mut self, _: Notification<'_, MemberId>) {}

    fn send_to(&mut self, to: MemberId, data: &[u8]) {
        let header = Header::read(&mut &data[..]).expect("it was written here");
        self.timers.incarnation = self.timers.incarnation.max(header.incarnation);
        if let Message::Ping(number) = header.message {
            self.timers.probe = Some(Probe { target: to, number, began: self.now });
        }
        self.effects.packets.push((to, data.to_vec()));
    }

    fn submit_after(&mut self, timer: Timer<MemberId>, after: Duration) {
        if let Timer::ChangeSuspectToDown { member_id, .. } = timer {
            return self.effects.accused.push(member_id);
        }
        let after = match timer {
            Timer::ProbeRandomMember(_) | Timer::SendIndirectProbe { .. } => after * self.stretch,
            _ => after,
        };
        self.timers.count += 1;
        self.timers.due.insert((self.now + after, self.timers.count), timer);
    }
}

impl Identity for MemberId {
    type Addr = Host;

    fn renew(&self) -> Option<Self> {
        None
    }

    fn addr(&self) -> Host {
        self.host
    }

    fn win_addr_conflict(&self, other: &Self) -> bool {
        self.began > other.began
    }
}

/// Members do not say that, or not at that length: the roster and the servers' verdicts do.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no member says that")]
struct Unsayable;

/// Reads and writes the engine's words.
struct Words;

impl foca::Codec<MemberId> for Words {
    type Error = Unsayable;

    fn encode_header(
        &mut self,
        header: &foca::Header<MemberId>,
        mut buffer: impl BufMut,
    ) -> Result<(), Self::Error> {
        use foca::Message as Said;
        let message = match header.message {
            Said::Ping(probe) => Message::Ping(probe),
            Said::Ack(probe) => Message::Ack(probe),
            Said::PingReq { target, probe_number } => Message::PingReq(target, probe_number),
            Said::IndirectPing { origin, probe_number } => Message::IndirectPing(origin, probe_number),
            Said::IndirectAck { target, probe_number } => Message::IndirectAck(target, probe_number),
            Said::ForwardedAck { origin, probe_number } => Message::ForwardedAck(origin, probe_number),
            Said::Gossip => Message::Gossip,
            Said::Announce | Said::Feed | Said::Broadcast | Said::TurnUndead => {
                return Err(Unsayable);
            }
        };
        Header { incarnation: header.src_incarnation, to: header.dst, message }.write(&mut buffer);
        Ok(())
    }

    /// Reads what [`Engine::hear`] has put together: the sender, and then what came from it.
    fn decode_header(&mut self, mut buffer: impl Buf) -> Result<foca::Header<MemberId>, Self::Error> {
        use foca::Message as Said;
        let src = MemberId::read(&mut buffer).map_err(|_| Unsayable)?;
        let header = Header::read(&mut buffer).map_err(|_| Unsayable)?;
        let message = match header.message {
            Message::Ping(probe) => Said::Ping(probe),
            Message::Ack(probe) => Said::Ack(probe),
            Message::PingReq(target, probe_number) => Said::PingReq { target, probe_number },
            Message::IndirectPing(origin, probe_number) => Said::IndirectPing { origin, probe_number },
            Message::IndirectAck(target, probe_number) => Said::IndirectAck { target, probe_number },
            Message::ForwardedAck(origin, probe_number) => Said::ForwardedAck { origin, probe_number },
            Message::Gossip => Said::Gossip,
            // Jurors' words, which the driver has taken.
            Message::Challenge(_) | Message::Renewal(_) | Message::GivingUp(..) => return Err(Unsayable),
        };
        Ok(foca::Header { src, src_incarnation: header.incarnation, dst: header.to, message })
    }

    fn encode_member(
        &mut self,
        member: &Member<MemberId>,
        mut buffer: impl BufMut,
    ) -> Result<(), Self::Error> {
        if buffer.remaining_mut() < super::packet::UPDATE_BYTES {
            return Err(Unsayable);
        }
        let standing = match member.state() {
            State::Alive => Some(Standing::Alive),
            State::Suspect => Some(Standing::Suspect),
            State::Down => None,
        };
        write_update(*member.id(), member.incarnation(), standing, &mut buffer);
        Ok(())
    }

    fn decode_member(&mut self, _: impl Buf) -> Result<Member<MemberId>, Self::Error> {
        // They are read, looked through and handed over one by one.
        Err(Unsayable)
    }
}

/// Passes on what it is given: who made an item, and whether it is news, is known by then.
struct Items;

#[derive(PartialEq, Eq)]
struct Item(Vec<u8>);

impl Invalidates for Item {
    fn invalidates(&self, other: &Self) -> bool {
        self == other
    }
}

impl foca::BroadcastHandler<MemberId> for Items {
    type Key = Item;
    type Error = Infallible;

    fn receive_item(&mut self, item: &[u8], _: Option<&MemberId>) -> Result<Option<Item>, Infallible> {
        Ok(Some(Item(item.to_vec())))
    }
}

/// The engine's chance, which the seed decides.
struct Dice(Random);

impl rand_core::TryRng for Dice {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok((self.0.number() >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.0.number())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.0.number().to_le_bytes()[..chunk.len()]);
        }
        Ok(())
    }
}
