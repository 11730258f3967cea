//! The content of a datagram after its seal is opened, as bytes.
//!
//! ```text
//! ┌─ header ───────────────────────────┬───────┬─────────────┬──────────────────────┐
//! │ incarnation of the sender (2)      │ count │ updates     │ items, each with its │
//! │ receiver (12)   message (1…)       │  (2)  │ 15 B each   │ length in front (2)  │
//! └────────────────────────────────────┴───────┴─────────────┴──────────────────────┘
//! ```
//!
//! The seal names the sender. Numbers are big-endian. A packet is decoded completely or not at all;
//! its claims are not verified here.

use super::member::{Incarnation, MEMBER_BYTES, MemberId, Standing, Update};
use crate::given_up::{GivenUpSession, GivenUpSessions};
use crate::id::SessionId;
use crate::lease::AuthenticationCode;
use bytes::{Buf, BufMut, TryGetError};
use std::time::Duration;

/// The maximum size of a packet in bytes, so that a sealed packet fits into one unfragmented
/// datagram on every network.
pub const MAX_PACKET_BYTES: usize = 1_100;

/// The size of an encoded update in bytes.
pub const UPDATE_BYTES: usize = MEMBER_BYTES + 3;

/// A message between members: SWIM's messages, and a challenge with its reply. There are no
/// messages to join or to report a death: the servers' roster determines the members.
#[expect(clippy::large_enum_variant, reason = "one at a time is read or written, and none is kept")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A probe.
    Ping(u8),
    /// The reply to a probe.
    Ack(u8),
    /// A request to probe the target indirectly.
    PingReq(MemberId, u8),
    /// An indirect probe on behalf of the member.
    IndirectPing(MemberId, u8),
    /// The reply to an indirect probe, for the member.
    IndirectAck(MemberId, u8),
    /// The forwarded reply of the member.
    ForwardedAck(MemberId, u8),
    /// A packet with only updates and items.
    Gossip,
    /// A server's challenge: the receiver renews its lease with this nonce.
    Challenge(u64),
    /// The renewal that answers a challenge, to be forwarded to the servers.
    Renewal(ChallengeAnswer),
    /// A renewal with the sessions that guards on this host gave up. A member of an earlier build
    /// drops it, so a plain [`Message::Renewal`] is sent as well.
    GivingUp(ChallengeAnswer, GivenUpSessions, AuthenticationCode),
}

/// A renewal of the sender's lease that answers a challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChallengeAnswer {
    /// The sequence number of the renewal.
    pub sequence: u64,
    /// The nonce of the challenge.
    pub nonce: u64,
    /// The authentication code over all of this, for the servers.
    pub code: AuthenticationCode,
}

impl Message {
    /// Returns the third member that the message refers to.
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

/// The header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The sender's incarnation.
    pub incarnation: Incarnation,
    /// The receiver; other processes drop the packet.
    pub to: MemberId,
    /// The message.
    pub message: Message,
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The header.
    pub header: Header,
    /// The sender's reports about others.
    pub updates: Vec<Update>,
    /// The number of reported deaths, which have no effect.
    pub deaths: usize,
    /// The items that members forward, not decoded.
    pub items: Vec<&'a [u8]>,
}

/// The reason why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// It ends too early, or a length exceeds its end.
    #[error("a truncated packet")]
    Short,
    /// An unknown message.
    #[error("a packet with the unknown message {0}")]
    Unknown(u8),
    /// It exceeds the maximum size.
    #[error("a packet of {0} bytes; the longest has {MAX_PACKET_BYTES}")]
    Long(usize),
}

impl From<TryGetError> for PacketError {
    fn from(_: TryGetError) -> Self {
        Self::Short
    }
}

impl Header {
    /// Encodes the header.
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

    /// Decodes a header.
    ///
    /// # Errors
    /// It ends too early, or its message is unknown.
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
        // Plus 1, because 0 means `None`.
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
    // No valid sender lists more.
    GivenUpSessions::try_from(sessions).map_err(|_| PacketError::Short)
}

/// Encodes an update; `None` for a reported death.
pub fn write_update(
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

/// Decodes an update; `None` for a reported death.
fn read_update(buffer: &mut impl Buf) -> Result<Option<Update>, PacketError> {
    let member = MemberId::read(buffer)?;
    let incarnation = buffer.try_get_u16()?;
    let standing = match buffer.try_get_u8()? {
        0 => Standing::Alive,
        1 => Standing::Suspect,
        // No member may report a death: only the verdict of the servers counts.
        2 => return Ok(None),
        unknown => return Err(PacketError::Unknown(unknown)),
    };
    Ok(Some(Update { member, incarnation, standing }))
}

impl<'a> Packet<'a> {
    /// Decodes a complete packet.
    ///
    /// # Errors
    /// The bytes are not a packet.
    pub fn read(mut bytes: &'a [u8]) -> Result<Self, PacketError> {
        if bytes.len() > MAX_PACKET_BYTES {
            return Err(PacketError::Long(bytes.len()));
        }
        let header = Header::read(&mut bytes)?;
        let mut packet = Self { header, updates: Vec::new(), deaths: 0, items: Vec::new() };
        // A challenge and its answer are sent as a header alone.
        if bytes.is_empty() {
            return Ok(packet);
        }
        let count = usize::from(bytes.try_get_u16()?);
        // Checked before memory is reserved for them.
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
