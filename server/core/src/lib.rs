//! The server as one pure value: consensus, the lock state machine and the leader's timers.
//!
//! **Invariant:** nothing here knows a clock, a disk, a socket, a thread, a random source or hash order. Time and
//! randomness are arguments; what shall happen is listed in the [`Outbox`]. Same inputs, same run.

pub mod input;
pub mod outbox;
pub mod raft;
pub mod state;

pub use input::{Input, Proposal, Ticket};
pub use outbox::Outbox;
pub use state::State;
