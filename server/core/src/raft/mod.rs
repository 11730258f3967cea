//! Consensus: the engine behind our own types.
//!
//! | file | is |
//! |---|---|
//! | `engine.rs` | the only file that names the engine: turns it until it has nothing more to say |
//! | `memory_log.rs` | the log as the engine reads it |
//! | [`log`] | what the disk sees |
//! | [`message`] | what the peers see |
//!
//! The order that everything rests on: entries visible in memory → the engine moves on → a leader's appends leave →
//! **durable** → the engine is told → votes and acknowledgements leave → apply → the engine is told.

pub(crate) mod engine;
pub mod log;
pub(crate) mod memory_log;
pub mod message;

pub use engine::{Progress, membership_after};
use std::time::Duration;

/// The engine's unit of time.
pub const TICK: Duration = Duration::from_millis(20);

/// When a follower stands for election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElectionTimeout {
    /// After how many ticks without a word of its leader; each time it waits for one to two times as many. At least
    /// 3, and more than `heartbeat_ticks`.
    pub ticks: usize,
    /// How many ticks lie between two words of a leader that has nothing to say.
    pub heartbeat_ticks: usize,
}

impl ElectionTimeout {
    /// The election that fits a time-out, which is rounded to ticks: a leader speaks five times meanwhile.
    pub fn with_timeout(timeout: Duration) -> Self {
        let ticks = (timeout.as_micros() / TICK.as_micros()).max(3) as usize;
        Self { ticks, heartbeat_ticks: (ticks / 5).max(1) }
    }
}

impl Default for ElectionTimeout {
    fn default() -> Self {
        Self { ticks: 10, heartbeat_ticks: 2 }
    }
}
