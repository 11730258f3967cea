//! The server as one pure value: consensus, the lock state machine and the leader's timers.
//!
//! One entry point, [`Core::handle`], and one list of effects, the [`Outbox`].
//!
//! **Invariants:**
//!
//! - The core uses no clock, disk, socket, thread, random source or hash order. Time and randomness
//!   are arguments. The same inputs give the same run.
//! - A promise in the outbox is durable: votes, acknowledgements and replies wait for the disk
//!   write that they depend on.
//! - The state holds no time and is the sum of its changes: a state rebuilt from its rows equals
//!   the original.
//!
//! | module | contents |
//! |---|---|
//! | `input.rs`, `proposal.rs` | every input, a closed list; a command before it is in the log |
//! | `outbox.rs` | every effect |
//! | `core/` | handles inputs one at a time, has the values decide, and carries out what they decided |
//! | `cluster.rs` | the view of the cluster that the values decide by, and their decisions |
//! | `frontend/` | the second pure value: requests, replies, pending calls, blocking reads, joins, checkpoints |
//! | `raft/` | consensus behind our own types; `engine.rs` is the only file that names the library |
//! | `state/` | the lock state machine, one file per rule; `invariants.rs` holds after every command |
//! | `state/scripts/` | the rules as stories that are played and compared; start here |
//! | `disk_watch.rs` | disk stalls |
//! | `disks.rs` | disks that reject writes, loss of a writable majority |
//! | `setback.rs` | detection of servers whose disks were set back |
//! | `checksum.rs` | one checksum of all rows, updated row by row |
//! | `corruption/` | corruption checks: comparison of checksums, and quarantine |
//! | `timers.rs` | the leader's deadlines; each expiry is a command |
//! | `judge/` | failure detector, a value of its own: renewals, checks by all voters, verdicts by a majority, brake, reconciliation |
//! | `mesh/` | data for agents in the mesh: roster, keys, recent verdicts |
//! | `deadlines.rs` | when deadlines become commands: at a tick, between ticks, before a lock request |
//! | `read_index.rs` | one quorum round for all waiting reads |
//! | `unwritten.rs` | rows that belong to the next checkpoint |
//! | `observed.rs` | a server's measurements of its own work: commits, lock waits, losses |
//! | `upgrade.rs` | format upgrades, and the stop of a build that cannot read the format |
//! | `write_queue.rs` | disk writes in the order in which they may happen |
//! | `fault_injection.rs` | rules that the simulator can break; not part of the program |
//! | `autopilot/` | health of the servers, promotion of learners, removal of dead servers |

mod autopilot;
pub mod checksum;
mod cluster;
pub mod core;
pub mod corruption;
mod deadlines;
mod disk_watch;
mod disks;
pub mod fault_injection;
pub mod frontend;
pub mod input;
mod judge;
mod mesh;
pub mod observed;
pub mod outbox;
mod proposal;
pub mod raft;
mod read_index;
pub mod setback;
pub mod state;
pub mod timers;
pub mod unwritten;
mod upgrade;
pub mod write_queue;

pub use crate::autopilot::{AutopilotView, ServerRequest};
pub use crate::core::{ClusterStart, Core, CoreConfig};
pub use crate::raft::log::LogStatus;
pub use input::{CallToken, Input};
pub use judge::{LeaseContents, NodeInput, without_minority};
pub use outbox::Outbox;
pub use proposal::Proposal;
pub use state::State;
pub use timers::TimerConfig;
