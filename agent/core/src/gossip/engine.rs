//! SWIM itself, implemented by foca, which only this file names: probe targets, indirect probes
//! (ping-req), suspicions and refutations by incarnation, and their dissemination.
//!
//! The engine receives only verified data, and sends only what is valid here:
//!
//! - It never learns of members from gossip. [`set_members`](Engine::set_members) sets all members
//!   at once: one datagram per member would take minutes.
//! - Its timer that turns a suspect into a dead member is never fired: a failed probe is a
//!   suspicion, and the servers decide. (It would also notify a member that has refuted the
//!   suspicion of its own death.)
//! - Another process of the same host has another identity, so identities are never renewed.

use bytes::{Buf, BufMut};
use foca::{
    Config, Foca, Identity, Invalidates, Member, Notification, PeriodicParams, Runtime, State, Timer,
};
use lockmesh_protocol::gossip::member::{Host, Incarnation, MemberId, Standing, Update};
use lockmesh_protocol::gossip::packet::{Header, MAX_PACKET_BYTES, Message, UPDATE_BYTES, write_update};
use lockmesh_protocol::random::Random;
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::num::{NonZeroU8, NonZeroUsize};
use std::time::Duration;

/// The interval between probes of one member.
pub(super) const PROBE_INTERVAL: Duration = Duration::from_millis(500);

/// The timeout after which other members are asked to probe indirectly.
const PROBE_TIMEOUT: Duration = Duration::from_millis(200);

/// The number of indirect probes.
const INDIRECT_PROBES: NonZeroUsize = NonZeroUsize::MIN.saturating_add(2);

/// The interval and the fan-out of gossip; nothing is sent without news.
const GOSSIP_INTERVAL: Duration = Duration::from_millis(100);
const GOSSIP_MEMBERS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(2);

/// The time for which packets in flight may still mention a departed member.
const REMOVE_AFTER: Duration = Duration::from_secs(30);

/// The outputs of the engine.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// Packets and their receivers.
    pub(super) packets: Vec<(MemberId, Vec<u8>)>,
    /// Members whose probe failed.
    pub(super) suspected: Vec<MemberId>,
    /// Set if the engine rejected its input.
    pub(super) refused: bool,
}

/// The current probe.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    pub(super) target: MemberId,
    pub(super) number: u8,
    pub(super) began: Time,
}

/// SWIM's engine for one member, around foca.
pub(super) struct Engine {
    foca: Foca<FocaMember, FocaCodec, FocaRng, FocaItems>,
    me: MemberId,
    members: BTreeSet<MemberId>,
    timers: Timers,
}

#[derive(Debug, Default)]
struct Timers {
    due: BTreeMap<(Time, u64), Timer<FocaMember>>,
    count: u64,
    probe: Option<Probe>,
    /// The highest incarnation of this process so far.
    incarnation: Incarnation,
}

impl Engine {
    pub(super) fn new(me: MemberId, seed: u64) -> Self {
        let foca = Foca::with_custom_broadcast(
            FocaMember(me),
            config(1),
            FocaRng(Random::new(seed)),
            FocaCodec,
            FocaItems,
        );
        Self { foca, me, members: BTreeSet::new(), timers: Timers::default() }
    }

    /// Returns the members, except this process.
    pub(super) fn members(&self) -> &BTreeSet<MemberId> {
        &self.members
    }

    /// Returns the incarnation of this process.
    pub(super) fn incarnation(&self) -> Incarnation {
        self.timers.incarnation
    }

    /// Returns the current probe.
    pub(super) fn probe(&self) -> Option<Probe> {
        self.timers.probe
    }

    /// Sets the members. New members are announced to all others, so that these request their
    /// rosters; departures are not announced.
    pub(super) fn set_members(&mut self, now: Time, members: BTreeSet<MemberId>) -> Effects {
        let gone: Vec<_> =
            self.members.difference(&members).copied().map(FocaMember).map(Member::down).collect();
        let come: Vec<_> =
            members.difference(&self.members).copied().map(FocaMember).map(Member::alive).collect();
        // A process without members has no member to inform.
        let is_news = !self.members.is_empty();
        let config = config(members.len());
        self.members = members;
        self.run(now, 1, |foca, runtime| {
            // Fails only if a setting changes that is constant here.
            foca.set_config(config)?;
            // Departed members first: of two processes of a host the later one remains.
            foca.apply_many(gone.into_iter(), false, &mut *runtime)?;
            foca.apply_many(come.into_iter(), is_news, runtime)
        })
    }

    /// Processes another member's updates.
    pub(super) fn apply_updates(&mut self, now: Time, stretch: u32, updates: &[Update]) -> Effects {
        let updates = updates.iter().map(|update| {
            let state = match update.standing {
                Standing::Alive => State::Alive,
                Standing::Suspect => State::Suspect,
            };
            Member::new(FocaMember(update.member), update.incarnation, state)
        });
        let updates: Vec<_> = updates.collect();
        self.run(now, stretch, |foca, runtime| foca.apply_many(updates.into_iter(), true, runtime))
    }

    /// Processes a packet of a member.
    pub(super) fn receive(&mut self, now: Time, stretch: u32, from: MemberId, header: &Header) -> Effects {
        let mut bytes = Vec::with_capacity(MAX_PACKET_BYTES);
        from.write(&mut bytes);
        header.write(&mut bytes);
        self.run(now, stretch, |foca, runtime| foca.handle_data(&bytes, runtime))
    }

    /// Ends the current probe as if it had been answered, without consequences.
    pub(super) fn excuse_probe(&mut self, now: Time) {
        let Some(probe) = self.timers.probe else { return };
        let header = Header { incarnation: 0, to: self.me, message: Message::Ack(probe.number) };
        self.receive(now, 1, probe.target, &header);
    }

    /// Forwards an item to all other members.
    pub(super) fn pass_on(&mut self, item: &[u8]) {
        // Fails for an item that is empty or too long for a packet, which is never created.
        let _ = self.foca.add_broadcast(item);
    }

    /// Returns the time of the next timer, and `true` if it ends the current probe.
    pub(super) fn next_timer(&self) -> Option<(Time, bool)> {
        let ((due, _), timer) = self.timers.due.first_key_value()?;
        Some((*due, matches!(timer, Timer::ProbeRandomMember(_))))
    }

    /// Fires the next timer. What it starts takes `stretch` times its usual time.
    pub(super) fn fire(&mut self, now: Time, stretch: u32) -> Effects {
        let Some((_, timer)) = self.timers.due.pop_first() else { return Effects::default() };
        if matches!(timer, Timer::ProbeRandomMember(_)) {
            self.timers.probe = None;
        }
        self.run(now, stretch, |foca, runtime| foca.handle_timer(timer, runtime))
    }

    fn run(
        &mut self,
        now: Time,
        stretch: u32,
        act: impl FnOnce(
            &mut Foca<FocaMember, FocaCodec, FocaRng, FocaItems>,
            &mut FocaRuntime<'_>,
        ) -> Result<(), foca::Error>,
    ) -> Effects {
        let mut runtime = FocaRuntime { now, stretch, timers: &mut self.timers, effects: Effects::default() };
        // For example, a reply that makes this process probe itself: it had no effect.
        runtime.effects.refused = act(&mut self.foca, &mut runtime).is_err();
        runtime.effects
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
        // Never fired.
        suspect_to_down_after: PROBE_INTERVAL,
        remove_down_after: Some(REMOVE_AFTER),
        max_packet_size: NonZeroUsize::new(MAX_PACKET_BYTES).expect("a constant"),
        notify_down_members: false,
        periodic_announce: None,
        periodic_announce_to_down_members: None,
        periodic_gossip: Some(PeriodicParams { frequency: GOSSIP_INTERVAL, num_members: GOSSIP_MEMBERS }),
    }
}

/// Returns the number of times that each member forwards an update: logarithmic in the number of
/// members, so that it reaches all of them with high probability.
fn transmissions(members: usize) -> NonZeroU8 {
    let digits = (members as f64 + 1.0).log10().ceil() as u8;
    NonZeroU8::new((4 * digits).max(8)).expect("8 at least")
}

/// The runtime that foca calls: records packets, timers and suspicions.
struct FocaRuntime<'a> {
    now: Time,
    stretch: u32,
    timers: &'a mut Timers,
    effects: Effects,
}

impl Runtime<FocaMember> for FocaRuntime<'_> {
    fn notify(&mut self, _: Notification<'_, FocaMember>) {}

    fn send_to(&mut self, FocaMember(to): FocaMember, data: &[u8]) {
        let header = Header::read(&mut &data[..]).expect("it was written here");
        self.timers.incarnation = self.timers.incarnation.max(header.incarnation);
        if let Message::Ping(number) = header.message {
            self.timers.probe = Some(Probe { target: to, number, began: self.now });
        }
        self.effects.packets.push((to, data.to_vec()));
    }

    fn submit_after(&mut self, timer: Timer<FocaMember>, after: Duration) {
        if let Timer::ChangeSuspectToDown { member_id, .. } = timer {
            return self.effects.suspected.push(member_id.0);
        }
        let after = match timer {
            Timer::ProbeRandomMember(_) | Timer::SendIndirectProbe { .. } => after * self.stretch,
            _ => after,
        };
        self.timers.count += 1;
        self.timers.due.insert((self.now + after, self.timers.count), timer);
    }
}

/// A member as foca's identity: of two processes of a host, the later one remains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FocaMember(MemberId);

impl Identity for FocaMember {
    type Addr = Host;

    fn renew(&self) -> Option<Self> {
        None
    }

    fn addr(&self) -> Host {
        self.0.host
    }

    fn win_addr_conflict(&self, other: &Self) -> bool {
        self.0.began > other.0.began
    }
}

/// A foca message that the packet format excludes, or that exceeds its length: the roster and the
/// servers' verdicts replace joins, feeds and reports of deaths.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("not a valid message of a member")]
struct CodecError;

/// The encoding of foca's messages as packets.
struct FocaCodec;

impl foca::Codec<FocaMember> for FocaCodec {
    type Error = CodecError;

    fn encode_header(
        &mut self,
        header: &foca::Header<FocaMember>,
        mut buffer: impl BufMut,
    ) -> Result<(), Self::Error> {
        use foca::Message as FocaMessage;
        let message = match header.message {
            FocaMessage::Ping(probe) => Message::Ping(probe),
            FocaMessage::Ack(probe) => Message::Ack(probe),
            FocaMessage::PingReq { target, probe_number } => Message::PingReq(target.0, probe_number),
            FocaMessage::IndirectPing { origin, probe_number } => {
                Message::IndirectPing(origin.0, probe_number)
            }
            FocaMessage::IndirectAck { target, probe_number } => Message::IndirectAck(target.0, probe_number),
            FocaMessage::ForwardedAck { origin, probe_number } => {
                Message::ForwardedAck(origin.0, probe_number)
            }
            FocaMessage::Gossip => Message::Gossip,
            FocaMessage::Announce | FocaMessage::Feed | FocaMessage::Broadcast | FocaMessage::TurnUndead => {
                return Err(CodecError);
            }
        };
        Header { incarnation: header.src_incarnation, to: header.dst.0, message }.write(&mut buffer);
        Ok(())
    }

    /// Decodes the output of [`Engine::hear`]: the sender, followed by its packet.
    fn decode_header(&mut self, mut buffer: impl Buf) -> Result<foca::Header<FocaMember>, Self::Error> {
        use foca::Message as FocaMessage;
        let src = FocaMember(MemberId::read(&mut buffer).map_err(|_| CodecError)?);
        let header = Header::read(&mut buffer).map_err(|_| CodecError)?;
        let message = match header.message {
            Message::Ping(probe) => FocaMessage::Ping(probe),
            Message::Ack(probe) => FocaMessage::Ack(probe),
            Message::PingReq(target, probe_number) => {
                FocaMessage::PingReq { target: FocaMember(target), probe_number }
            }
            Message::IndirectPing(origin, probe_number) => {
                FocaMessage::IndirectPing { origin: FocaMember(origin), probe_number }
            }
            Message::IndirectAck(target, probe_number) => {
                FocaMessage::IndirectAck { target: FocaMember(target), probe_number }
            }
            Message::ForwardedAck(origin, probe_number) => {
                FocaMessage::ForwardedAck { origin: FocaMember(origin), probe_number }
            }
            Message::Gossip => FocaMessage::Gossip,
            // Messages of challenges, which the driver has processed.
            Message::Challenge(_) | Message::Renewal(_) | Message::GivingUp(..) => return Err(CodecError),
        };
        Ok(foca::Header { src, src_incarnation: header.incarnation, dst: FocaMember(header.to), message })
    }

    fn encode_member(
        &mut self,
        member: &Member<FocaMember>,
        mut buffer: impl BufMut,
    ) -> Result<(), Self::Error> {
        if buffer.remaining_mut() < UPDATE_BYTES {
            return Err(CodecError);
        }
        let standing = match member.state() {
            State::Alive => Some(Standing::Alive),
            State::Suspect => Some(Standing::Suspect),
            State::Down => None,
        };
        write_update(member.id().0, member.incarnation(), standing, &mut buffer);
        Ok(())
    }

    fn decode_member(&mut self, _: impl Buf) -> Result<Member<FocaMember>, Self::Error> {
        // Updates are decoded, checked and applied one by one.
        Err(CodecError)
    }
}

/// Forwards its input: an item's origin and novelty were checked before.
struct FocaItems;

#[derive(PartialEq, Eq)]
struct Item(Vec<u8>);

impl Invalidates for Item {
    fn invalidates(&self, other: &Self) -> bool {
        self == other
    }
}

impl foca::BroadcastHandler<FocaMember> for FocaItems {
    type Key = Item;
    type Error = Infallible;

    fn receive_item(&mut self, item: &[u8], _: Option<&FocaMember>) -> Result<Option<Item>, Infallible> {
        Ok(Some(Item(item.to_vec())))
    }
}

/// The engine's random number generator, determined by the seed.
struct FocaRng(Random);

impl rand_core::TryRng for FocaRng {
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
