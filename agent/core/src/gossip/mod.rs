//! Gossip: the failure detector. The members of the mesh detect unresponsive processes and
//! disseminate updates. SWIM's terms: member, incarnation, probe, suspicion, refutation,
//! dissemination. The messages are in `protocol/src/gossip`.
//!
//! Gossip finds suspects but fails no member. A failed probe is a suspicion, which makes the
//! servers check; only their verdict ends sessions. Lost, late or hostile gossip therefore only
//! costs time.
//!
//! | module | contents |
//! |---|---|
//! | [`mesh`] | a host in the mesh: seals, roster, verdicts, and its process |
//! | [`driver`] | a process in the mesh: filters, forwarding, suspicions and refutations |
//! | [`event_flow`] | times and rate limits of events |
//! | `schedule` | the schedule of requests to the servers (anti-entropy) |
//! | `health` | the local health of a process |
//! | `engine` | SWIM itself, implemented by foca |

pub mod driver;
mod engine;
pub mod event_flow;
mod health;
pub mod mesh;
mod schedule;

pub use driver::{Counts, Gossip, Outbox};
