//! The server as one pure value: consensus, the lock state machine and the leader's timers.
//!
//! **Invariant:** nothing here knows a clock, a disk, a socket, a thread, a random source or hash
//! order. Time and randomness are arguments; what shall happen is listed in the [`Outbox`]. Same
//! inputs, same run.
//!
//! | module | is |
//! |---|---|
//! | `proposal` | a command on its way into the log |
//! | [`input`] | everything that can happen, a closed list |
//! | [`outbox`] | everything that shall happen next |
//! | [`core`](mod@core) | the value itself: `handle` one input after the other, `settle` the turn |
//! | [`raft`] | consensus: one log, agreed on by a majority |
//! | [`frontend`] | requests in, replies out: what a server decides around its core |
//! | [`state`] | what the log means: keys, locks, sessions, catalog |
//! | [`timers`] | the leader's deadlines, each a command when it is due |
//! | `deadlines` | when deadlines become commands: with a tick, between two, in front of a request |
//! | `quorum` | the leader looks after the other servers: who is well, who gets a vote, who goes |
//! | [`setback`] | servers whose disks were set back: what others remember of them, and the refusal |
//! | [`checksum`] | one number for all rows of a state |
//! | [`corruption`] | the check that finds replicas whose states came apart |
//! | `judge` | which nodes live: renewals, checks, verdicts by a majority of the servers |
//! | `disks` | whose disks refuse writes, and whether a majority can write |
//! | `overdue` | requests that have waited for too long at a leader |
//! | `mesh` | what agents in the mesh are told: roster, keys, verdicts of late |
//! | [`unwritten`] | which rows go with which checkpoint |
//! | `upgrade` | how a cluster goes on to a newer format, and what a build does that cannot read it |
//! | [`write_queue`] | what is to be written, in the order in which it may be |
//! | [`observed`] | what a server measures of its own work |
//! | [`fault_injection`] | rules that tests can break |
//! | `readers` | one round of the quorum for all who wait to read |

mod autopilot;
pub mod checksum;
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
mod overdue;
mod proposal;
pub mod raft;
mod read_index;
pub mod setback;
pub mod state;
pub mod timers;
pub mod unwritten;
mod upgrade;
pub mod write_queue;

pub use crate::core::{ClusterStart, Core, CoreConfig};
pub use crate::raft::log::LogStatus;
pub use input::{CallToken, Input};
pub use judge::{LeaseContents, without_minority};
pub use outbox::Outbox;
pub use proposal::Proposal;
pub use state::State;
pub use timers::TimerConfig;
