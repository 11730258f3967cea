//! What a datagram says once its seal is open, as bytes.
//!
//! ```text
//! ┌─ header ───────────────────────────┬───────┬─────────────┬──────────────────────┐
//! │ incarnation of the sender (2)      │ count │ updates     │ items, each with its │
//! │ receiver (12)   what it says (1…)  │  (2)  │ 15 B each   │ length in front (2)  │
//! └────────────────────────────────────┴───────┴─────────────┴──────────────────────┘
//! ```
//!
//! Who sent it, the seal says. Numbers are big-endian. A packet is read whole or not at all;
//! nothing in it is believed here.

use super::member::{Incarnation, MEMBER_BYTES, MemberId, Standing, Update};
use crate::given_up::{GivenUpSession, GivenUpSessions};
use crate::id::SessionId;
use crate::lease::AuthenticationCode;
use bytes::{Buf, BufMut, TryGetError};
use std::time::Duration;

/// A packet is no longer than this, so that a sealed one fits into what every network carries in
/// one piece.
pub const MAX_PACKET_BYTES: usize = 1_100;

pub(super) const UPDATE_BYTES: usize = MEMBER_BYTES + 3;

/// What a member says to another: SWIM's messages, and a juror's question with its answer. Nobody
/// asks to join and nobody is told that it is dead: who belongs to the mesh, the servers' roster
/// says.
#[expect(clippy::large_enum_variant, reason = "one at a time is read or written, and none is kept")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Do you live?
    Ping(u8),
    /// Yes.
    Ack(u8),
    /// Ask the target for me.
    PingReq(MemberId, u8),
    /// Do you live? The first member wants to know.
    IndirectPing(MemberId, u8),
    /// Yes: tell that member.
    IndirectAck(MemberId, u8),
    /// That member lives.
    ForwardedAck(MemberId, u8),
    /// Only what comes behind.
    Gossip,
    /// A server wants to know whether you live: renew your lease, with this nonce.
    Challenge(u64),
    /// I live: hand this renewal to the servers.
    Renewal(ChallengeAnswer),
    /// The same, with the sessions that guards on this host gave up. A member of an earlier build
    /// drops it, so a plain [`Message::Renewal`] goes with it.
    GivingUp(ChallengeAnswer, GivenUpSessions, AuthenticationCode),
}

/// A renewal of the sender's lease that answers a challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChallengeAnswer {
    /// Counts the renewals of the lease.
    pub sequence: u64,
    /// The challenge's.
    pub nonce: u64,
    /// Over all of this, for the servers.
    pub code: AuthenticationCode,
}

impl Message {
    /// The third member that it is about.
    pub fn about(&self) -> Option<MemberId> {
        match *self {
            Self::PingReq(about, _)
            | Self::IndirectPing(about, _)
            | Self::IndirectAck(about, _)
            | Self::ForwardedAck(about, _) => Some(about),
            Self::Ping(_) | Self::Ack(_) | Self::Gossip | Self::Challenge(_) | Self::Renewal(_) => None,
            Self::GivingUp(..) => None,
        }
    }
}

/// Who shall hear what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The sender's.
    pub incarnation: Incarnation,
    /// The receiver, of which another process takes nothing.
    pub to: MemberId,
    /// What is said.
    pub message: Message,
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Who shall hear what.
    pub header: Header,
    /// What the sender says of others.
    pub updates: Vec<Update>,
    /// So many members were said to be dead, by which nobody dies.
    pub deaths: usize,
    /// What is passed on from member to member, unread.
    pub items: Vec<&'a [u8]>,
}

/// Why bytes are no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// It ends too early, or says that it is longer than it is.
    #[error("a packet that was cut off")]
    Short,
    /// Something that nobody says.
    #[error("a packet with the unknown word {0}")]
    Unknown(u8),
    /// Longer than any.
    #[error("a packet of {0} bytes; the longest has {MAX_PACKET_BYTES}")]
    Long(usize),
}

impl From<TryGetError> for PacketError {
    fn from(_: TryGetError) -> Self {
        Self::Short
    }
}

impl Header {
    /// Writes it.
    pub fn write(&self, buffer: &mut impl BufMut) {
        buffer.put_u16(self.incarnation);
        self.to.write(buffer);
        let (word, about, probe) = match self.message {
            Message::Ping(probe) => (0, None, Some(probe)),
            Message::Ack(probe) => (1, None, Some(probe)),
            Message::PingReq(target, probe) => (2, Some(target), Some(probe)),
            Message::IndirectPing(origin, probe) => (3, Some(origin), Some(probe)),
            Message::IndirectAck(target, probe) => (4, Some(target), Some(probe)),
            Message::ForwardedAck(origin, probe) => (5, Some(origin), Some(probe)),
            Message::Gossip => (6, None, None),
            Message::Challenge(_) => (7, None, None),
            Message::Renewal(_) => (8, None, None),
            Message::GivingUp(..) => (9, None, None),
        };
        buffer.put_u8(word);
        if let Some(about) = about {
            about.write(buffer);
        }
        if let Some(probe) = probe {
            buffer.put_u8(probe);
        }
        match self.message {
            Message::Challenge(nonce) => buffer.put_u64(nonce),
            Message::Renewal(answer) => answer.write(buffer),
            Message::GivingUp(answer, sessions, code) => {
                answer.write(buffer);
                write_given_up(&sessions, buffer);
                buffer.put_slice(&code.0);
            }
            _ => {}
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// It ends too early, or says what nobody says.
    pub fn read(buffer: &mut impl Buf) -> Result<Self, PacketError> {
        let incarnation = buffer.try_get_u16()?;
        let to = MemberId::read(buffer)?;
        let message = match buffer.try_get_u8()? {
            0 => Message::Ping(buffer.try_get_u8()?),
            1 => Message::Ack(buffer.try_get_u8()?),
            2 => Message::PingReq(MemberId::read(buffer)?, buffer.try_get_u8()?),
            3 => Message::IndirectPing(MemberId::read(buffer)?, buffer.try_get_u8()?),
            4 => Message::IndirectAck(MemberId::read(buffer)?, buffer.try_get_u8()?),
            5 => Message::ForwardedAck(MemberId::read(buffer)?, buffer.try_get_u8()?),
            6 => Message::Gossip,
            7 => Message::Challenge(buffer.try_get_u64()?),
            8 => Message::Renewal(ChallengeAnswer::read(buffer)?),
            9 => {
                let (answer, sessions) = (ChallengeAnswer::read(buffer)?, read_given_up(buffer)?);
                Message::GivingUp(answer, sessions, read_code(buffer)?)
            }
            unknown => return Err(PacketError::Unknown(unknown)),
        };
        Ok(Self { incarnation, to, message })
    }
}

impl ChallengeAnswer {
    fn write(&self, buffer: &mut impl BufMut) {
        buffer.put_u64(self.sequence);
        buffer.put_u64(self.nonce);
        buffer.put_slice(&self.code.0);
    }

    fn read(buffer: &mut impl Buf) -> Result<Self, TryGetError> {
        let (sequence, nonce) = (buffer.try_get_u64()?, buffer.try_get_u64()?);
        Ok(Self { sequence, nonce, code: read_code(buffer)? })
    }
}

fn read_code(buffer: &mut impl Buf) -> Result<AuthenticationCode, TryGetError> {
    let mut code = [0; 16];
    buffer.try_copy_to_slice(&mut code)?;
    Ok(AuthenticationCode(code))
}

fn write_given_up(sessions: &GivenUpSessions, buffer: &mut impl BufMut) {
    buffer.put_u8(sessions.as_slice().len() as u8);
    for listed in sessions.as_slice() {
        buffer.put_slice(listed.session.as_bytes());
        // Behind 0, which stands for none.
        buffer.put_u64(listed.silent_for.map_or(0, |silent| silent.as_micros() as u64 + 1));
    }
}

fn read_given_up(buffer: &mut impl Buf) -> Result<GivenUpSessions, PacketError> {
    let length = buffer.try_get_u8()?;
    let mut sessions = Vec::new();
    for _ in 0..length {
        let mut session = [0; 16];
        buffer.try_copy_to_slice(&mut session)?;
        let silent_for = buffer.try_get_u64()?.checked_sub(1).map(Duration::from_micros);
        sessions.push(GivenUpSession { session: SessionId::from_random(session), silent_for });
    }
    // No sender lists more.
    GivenUpSessions::try_from(sessions).map_err(|_| PacketError::Short)
}

/// Writes what is said of a member; none where it is said to be dead.
pub(super) fn write_update(
    member: MemberId,
    incarnation: Incarnation,
    standing: Option<Standing>,
    buffer: &mut impl BufMut,
) {
    member.write(buffer);
    buffer.put_u16(incarnation);
    buffer.put_u8(match standing {
        Some(Standing::Alive) => 0,
        Some(Standing::Suspect) => 1,
        None => 2,
    });
}

/// Reads what is said of a member; none where it is said to be dead.
fn read_update(buffer: &mut impl Buf) -> Result<Option<Update>, PacketError> {
    let member = MemberId::read(buffer)?;
    let incarnation = buffer.try_get_u16()?;
    let standing = match buffer.try_get_u8()? {
        0 => Standing::Alive,
        1 => Standing::Suspect,
        2 => return Ok(None),
        unknown => return Err(PacketError::Unknown(unknown)),
    };
    Ok(Some(Update { member, incarnation, standing }))
}

impl<'a> Packet<'a> {
    /// Reads a packet, whole.
    ///
    /// # Errors
    /// The bytes are no packet.
    pub fn read(mut bytes: &'a [u8]) -> Result<Self, PacketError> {
        if bytes.len() > MAX_PACKET_BYTES {
            return Err(PacketError::Long(bytes.len()));
        }
        let header = Header::read(&mut bytes)?;
        let mut packet = Self { header, updates: Vec::new(), deaths: 0, items: Vec::new() };
        if bytes.is_empty() {
            return Ok(packet);
        }
        let count = usize::from(bytes.try_get_u16()?);
        // Before anything is set aside for them.
        if count * UPDATE_BYTES > bytes.len() {
            return Err(PacketError::Short);
        }
        for _ in 0..count {
            match read_update(&mut bytes)? {
                Some(update) => packet.updates.push(update),
                None => packet.deaths += 1,
            }
        }
        while !bytes.is_empty() {
            let length = usize::from(bytes.try_get_u16()?);
            if length == 0 || length > bytes.len() {
                return Err(PacketError::Short);
            }
            let (item, rest) = bytes.split_at(length);
            packet.items.push(item);
            bytes = rest;
        }
        Ok(packet)
    }
}
