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
//! | `proposals.rs` | a leader's proposals, until they are applied |
//! | `core/` | handles inputs one at a time, has the values decide, and carries out what they decided |
//! | `cluster.rs` | the view of the cluster that the values decide by, and their decisions |
//! | `frontend/` | the second pure value: requests, replies, pending calls, blocking reads, joins, checkpoints |
//! | `raft/` | consensus behind our own types; `engine.rs` is the only file that names the library |
//! | `state/` | the lock state machine, one file per rule; `invariants.rs` holds after every command |
//! | `state/acl/` | access control lists: their tables, and the judgement of commands and queries |
//! | `state/scripts/` | the rules as stories that are played and compared; start here |
//! | `durability/` | disk writes in the order in which they may happen, the rows and the checksum of a checkpoint, disks that stall, reject writes or were set back |
//! | `corruption/` | corruption checks: comparison of checksums, and quarantine |
//! | `time/` | the leader's deadlines, and when they become commands: at a tick, between ticks, before a lock request |
//! | `judge/` | failure detector, a value of its own: renewals, checks by all voters, verdicts by a majority, brake, reconciliation |
//! | `mesh/` | data for agents in the mesh: roster, keys, recent verdicts |
//! | `read_index.rs` | one quorum round for all waiting reads |
//! | `observed.rs` | a server's measurements of its own work: commits, lock waits, losses |
//! | `upgrade.rs` | format upgrades, and the stop of a build that cannot read the format |
//! | `fault_injection.rs` | rules that the simulator can break; not part of the program |
//! | `acl_upkeep.rs` | changes of the access control lists by the leader: their start, the ends of tokens |
//! | `autopilot/` | health of the servers, promotion of learners, removal of dead servers |

mod acl_upkeep;
mod autopilot;
mod cluster;
pub mod core;
pub mod corruption;
pub mod durability;
pub mod fault_injection;
pub mod frontend;
pub mod input;
mod judge;
mod mesh;
pub mod observed;
pub mod outbox;
mod proposal;
mod proposals;
pub mod raft;
mod read_index;
pub mod state;
pub mod time;
mod upgrade;

pub use crate::acl_upkeep::AclStart;
pub use crate::autopilot::AutopilotView;
pub use crate::core::{ClusterStart, Core, CoreConfig};
pub use crate::raft::log::LogStatus;
pub use crate::time::timers::TimerConfig;
pub use input::{CallToken, Input, NodeInput, ServerRequest};
pub use judge::{LeaseContents, without_minority};
pub use outbox::Outbox;
pub use proposal::Proposal;
pub use state::State;
