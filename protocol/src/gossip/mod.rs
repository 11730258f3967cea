//! Gossip data: the messages of the mesh and the data that servers send to its members. The
//! behavior (SWIM's failure detector) is in `agent/core/src/gossip`.
//!
//! | module | contents |
//! |---|---|
//! | `mod.rs` | a server's reply to a member, and size limits |
//! | [`member`] | members, and their reports about each other |
//! | [`packet`] | the encoding of a datagram's content |
//! | [`seal`] | the encryption of packets, and the keys of the cluster |
//! | [`roster`] | the members and their addresses, as sent by the servers |
//! | [`verdict`] | the servers' signed verdict on a host |
//! | [`event`] | a user event, which any member may fire |

pub mod event;
pub mod member;
pub mod packet;
pub mod roster;
pub mod seal;
pub mod verdict;

use crate::id::LogIndex;
use bytes::Bytes;
use event::LamportTime;
use roster::RosterNews;
use seal::KeyRing;
use serde::{Deserialize, Serialize};
use verdict::VerdictKey;

/// The maximum size of a gossip datagram in bytes.
pub const MAX_DATAGRAM_BYTES: usize = packet::MAX_PACKET_BYTES + seal::SEAL_BYTES;

/// The maximum size in bytes of an item that members forward.
pub const MAX_ITEM_BYTES: usize = 512;

const _: () = assert!(MAX_ITEM_BYTES + 64 < packet::MAX_PACKET_BYTES);

/// The maximum number of verdicts in one reply of a server.
pub const MAX_VERDICTS: usize = 256;

/// The maximum number of events in one reply of a server.
pub const MAX_EVENTS: usize = 256;

/// A server's reply to a member of the mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshNews {
    /// The last log index that the server has applied: of two different replies, the later one is
    /// valid.
    pub as_of: LogIndex,
    /// The cluster's time in seconds since 1970, used as the timestamp of datagrams.
    pub seconds: u32,
    /// The keys that seal datagrams.
    pub ring: KeyRing,
    /// The key that verifies verdicts.
    pub verdict_key: VerdictKey,
    /// The missing parts of the roster.
    pub roster: RosterNews,
    /// Recent items that gossip may have missed: signed verdicts, and events, including those of
    /// members of other cells.
    pub items: Vec<Bytes>,
    /// The highest time of an event that the server has seen.
    pub event_time: LamportTime,
}
