//! Gossip: the mesh in which members find out by themselves who has fallen silent, and pass on what
//! all must hear. SWIM's words: member, incarnation, probe, suspect, refute, dissemination.
//!
//! Gossip finds suspects; it kills nobody. A failed probe is an accusation, which makes the servers
//! look; their verdict alone ends sessions. So gossip that is lost, late or hostile costs time and
//! nothing else.
//!
//! | module | is |
//! |---|---|
//! | [`member`] | who is in the mesh, and what members say of each other |
//! | [`packet`] | what a datagram says, as bytes |
//! | [`seal`] | the seal around each packet, and the keys of the cluster |
//! | [`roster`] | who belongs to it and where each is, as the servers say |
//! | [`mesh`] | a host in the mesh: seals, roster, verdicts, and the process within |
//! | [`driver`] | a process in the mesh: what it takes, passes on, and whom it accuses |
//! | [`verdict`] | the servers' verdict on a host, signed |
//! | [`event`] | a user event, which any member may fire |
//! | [`event_flow`] | the times of events, and how many of them are passed on |
//! | `schedule` | when a host asks the servers what it lacks |
//! | `health` | how far a process may trust its own eyes |
//! | `engine` | SWIM itself, by foca |

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

/// No datagram of the mesh is longer.
pub const MAX_DATAGRAM_BYTES: usize = packet::MAX_PACKET_BYTES + seal::SEAL_BYTES;
