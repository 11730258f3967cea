//! The encryption of packets: it identifies the sender, and protects against reading and changes
//! from outside the cluster. Replay protection is by the time of sealing alone: an old datagram
//! is rejected. The only file that names the cipher (XChaCha20-Poly1305).
//!
//! ```text
//! ┌─────────────┬─────────────┬─────────────┬───────────┬────────────┬──────────────┬──────────┐
//! │ version (1) │ key no. (4) │ sender (12) │ time (4)  │ nonce (24) │ packet, …    │ tag (16) │
//! └─────────────┴─────────────┴─────────────┴───────────┴────────────┴──────────────┴──────────┘
//!  └──────────────── authenticated, not secret ────────┘             └─ secret, authenticated ─┘
//! ```
//!
//! There is no handshake, because members probe each other at random and would constantly perform
//! handshakes. There is no counter, because a machine that is restored from a snapshot would reuse
//! it. The nonce is random, and long enough for that. Every member has the key, so a seal
//! identifies its sender only under the assumption that all members are honest. No decision depends
//! on that: failures need the servers' verdict, and renewals the secret of their lease.

use super::member::{MEMBER_BYTES, MemberId};
use super::packet::MAX_PACKET_BYTES;
use crate::lease::LeaseKey;
use bytes::{Buf, BufMut};
use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The version that this build writes and reads.
const VERSION: u8 = 1;

/// The size of a nonce in bytes.
pub const NONCE_BYTES: usize = 24;

const TAG_BYTES: usize = 16;
const HEAD_BYTES: usize = 1 + 4 + MEMBER_BYTES + 4;

/// The size of a seal in bytes.
pub const SEAL_BYTES: usize = HEAD_BYTES + NONCE_BYTES + TAG_BYTES;

/// The maximum clock difference within the cluster, in seconds; older datagrams are replays.
pub const MAX_AGE_SECONDS: u32 = 30;

/// A key of the cluster.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GossipKey {
    /// The number of the key in the cluster.
    pub number: u32,
    /// The key.
    pub bytes: [u8; 32],
}

impl fmt::Debug for GossipKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Secret.
        write!(f, "GossipKey({})", self.number)
    }
}

/// The keys of a member: it seals with one, and opens datagrams sealed with any of them. A key can
/// therefore be rotated while members learn of it one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRing {
    /// The previous key, which others may still use.
    pub previous: Option<GossipKey>,
    /// The key in use.
    pub current: GossipKey,
    /// The next key, which others may already use.
    pub next: Option<GossipKey>,
}

/// The reason why a datagram is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// Its length is invalid.
    #[error("a datagram of {0} bytes, which is not a valid length")]
    Length(usize),
    /// Its version is unknown.
    #[error("a datagram of version {0}, but this build speaks version {VERSION}")]
    Version(u8),
    /// It was sealed with a key that is not on the ring.
    #[error("a datagram that was sealed with the key {0}, which is not on the ring")]
    UnknownKey(u32),
    /// It was not sealed with the key that it names, or was changed.
    #[error("a datagram whose seal is broken")]
    Broken,
    /// It was sealed too long ago, or in the future.
    #[error("a datagram that was sealed {0} seconds ago")]
    Stale(i64),
}

impl KeyRing {
    /// Derives the ring of a cluster in which the key with this number is in use.
    pub fn derived(secret: &LeaseKey, number: u32) -> Self {
        let key = |number| GossipKey { number, bytes: secret.derived("gossip key", number) };
        Self {
            previous: number.checked_sub(1).map(key),
            current: key(number),
            next: number.checked_add(1).map(key),
        }
    }

    /// Creates a ring with one key.
    pub fn of(current: GossipKey) -> Self {
        Self { previous: None, current, next: None }
    }

    /// Seals a packet. `seconds` is the cluster's time; the nonce is random and never reused.
    pub fn seal(&self, sender: MemberId, seconds: u32, nonce: [u8; NONCE_BYTES], packet: &[u8]) -> Vec<u8> {
        let mut datagram = Vec::with_capacity(packet.len() + SEAL_BYTES);
        datagram.put_u8(VERSION);
        datagram.put_u32(self.current.number);
        sender.write(&mut datagram);
        datagram.put_u32(seconds);
        let payload = Payload { msg: packet, aad: &datagram };
        let sealed = cipher(&self.current).encrypt(&nonce.into(), payload);
        datagram.put_slice(&nonce);
        datagram.extend(sealed.expect("a packet is far from the cipher's longest message"));
        datagram
    }

    /// Opens a datagram; returns the sender and the packet.
    ///
    /// # Errors
    /// It does not belong to this cluster, or is too old.
    pub fn open(&self, datagram: &[u8], seconds: u32) -> Result<(MemberId, Vec<u8>), SealError> {
        if !(SEAL_BYTES..=SEAL_BYTES + MAX_PACKET_BYTES).contains(&datagram.len()) {
            return Err(SealError::Length(datagram.len()));
        }
        let (head, rest) = datagram.split_at(HEAD_BYTES);
        let (nonce, sealed) = rest.split_at(NONCE_BYTES);
        let mut fields = head;
        let version = fields.get_u8();
        if version != VERSION {
            return Err(SealError::Version(version));
        }
        let number = fields.get_u32();
        let sender = MemberId::read(&mut fields).map_err(|_| SealError::Length(datagram.len()))?;
        let sealed_at = fields.get_u32();
        let keys = [self.previous.as_ref(), Some(&self.current), self.next.as_ref()];
        let key = keys.into_iter().flatten().find(|key| key.number == number);
        let key = key.ok_or(SealError::UnknownKey(number))?;
        let nonce: [u8; NONCE_BYTES] = nonce.try_into().expect("it was split there");
        let payload = Payload { msg: sealed, aad: head };
        let packet = cipher(key).decrypt(&nonce.into(), payload).map_err(|_| SealError::Broken)?;
        // Only now: until the seal is opened, the time may be forged.
        if seconds.abs_diff(sealed_at) > MAX_AGE_SECONDS {
            return Err(SealError::Stale(i64::from(seconds) - i64::from(sealed_at)));
        }
        Ok((sender, packet))
    }
}

fn cipher(key: &GossipKey) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(&key.bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{AgentNumber, LogIndex, ServerId};
    use crate::lease::LeaseId;

    fn key(number: u32) -> GossipKey {
        GossipKey { number, bytes: [number as u8; 32] }
    }

    fn sender() -> MemberId {
        MemberId::of_agent(LeaseId { agent: AgentNumber(7), began: LogIndex(1_234) })
    }

    fn sealed() -> Vec<u8> {
        KeyRing::of(key(1)).seal(sender(), 1_000, [9; NONCE_BYTES], b"hello")
    }

    #[test]
    fn sealed_datagram_opens_with_key() {
        let ring = KeyRing::of(key(1));
        assert_eq!(sealed().len(), SEAL_BYTES + 5);
        assert_eq!(ring.open(&sealed(), 1_000), Ok((sender(), b"hello".to_vec())));
        let server = MemberId::of_server(ServerId(3), 2);
        let datagram = ring.seal(server, 1_000, [1; NONCE_BYTES], b"");
        assert_eq!(ring.open(&datagram, 1_000), Ok((server, Vec::new())));
    }

    #[test]
    fn only_ring_keys_open_datagrams() {
        let rotated = KeyRing { previous: Some(key(1)), current: key(2), next: Some(key(3)) };
        assert!(rotated.open(&sealed(), 1_000).is_ok());
        let later = KeyRing { previous: Some(key(3)), current: key(4), next: None };
        let by_next = KeyRing::of(key(3)).seal(sender(), 1_000, [1; NONCE_BYTES], b"x");
        assert!(rotated.open(&by_next, 1_000).is_ok() && later.open(&by_next, 1_000).is_ok());
        assert_eq!(later.open(&sealed(), 1_000), Err(SealError::UnknownKey(1)));
        // Another cluster's key may have the same number.
        let other = KeyRing::of(GossipKey { number: 1, bytes: [77; 32] });
        assert_eq!(other.open(&sealed(), 1_000), Err(SealError::Broken));
    }

    #[test]
    fn tampered_or_truncated_datagram_rejected() {
        let ring = KeyRing::of(key(1));
        for place in 0..sealed().len() {
            let mut datagram = sealed();
            datagram[place] ^= 1;
            assert!(ring.open(&datagram, 1_000).is_err(), "byte {place}");
        }
        for length in 0..sealed().len() {
            assert!(ring.open(&sealed()[..length], 1_000).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn datagram_beyond_max_age_rejected() {
        let ring = KeyRing::of(key(1));
        assert!(ring.open(&sealed(), 1_000 + MAX_AGE_SECONDS).is_ok());
        assert!(ring.open(&sealed(), 1_000 - MAX_AGE_SECONDS).is_ok());
        assert_eq!(ring.open(&sealed(), 1_031), Err(SealError::Stale(31)));
        assert_eq!(ring.open(&sealed(), 969), Err(SealError::Stale(-31)));
    }

    #[test]
    fn debug_output_hides_key() {
        let ring = KeyRing { previous: None, current: key(200), next: None };
        assert!(!format!("{ring:?}").contains("[200, 200"));
    }
}
