//! Gossip: the failure detector. The members of the mesh detect unresponsive processes and
//! disseminate updates. SWIM's terms: member, incarnation, probe, suspect, refute, dissemination.
//!
//! Gossip finds suspects but fails no member. A failed probe is a suspicion, which makes the
//! servers check; only their verdict ends sessions. Lost, late or hostile gossip therefore only
//! costs time.
//!
//! | module | contents |
//! |---|---|
//! | [`member`] | members, and their reports about each other |
//! | [`packet`] | the encoding of a datagram's content |
//! | [`seal`] | the encryption of packets, and the keys of the cluster |
//! | [`roster`] | the members and their addresses, as sent by the servers |
//! | [`mesh`] | a host in the mesh: seals, roster, verdicts, and its process |
//! | [`driver`] | a process in the mesh: filtering, forwarding, suspicions |
//! | [`verdict`] | the servers' signed verdict on a host |
//! | [`event`] | a user event, which any member may fire |
//! | [`event_flow`] | times and rate limits of events |
//! | `schedule` | the schedule of requests to the servers |
//! | `health` | the local health of a process |
//! | `engine` | SWIM itself, implemented by foca |

pub mod driver;
mod engine;
pub mod event;
pub mod event_flow;
mod health;
pub mod member;
pub mod mesh;
pub mod packet;
pub mod roster;
mod schedule;
pub mod seal;
pub mod verdict;

pub use driver::{Counts, Gossip, Outbox};
pub use engine::PROBE_INTERVAL;

/// The maximum size of a gossip datagram in bytes.
pub const MAX_DATAGRAM_BYTES: usize = packet::MAX_PACKET_BYTES + seal::SEAL_BYTES;
