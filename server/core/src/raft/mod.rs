//! The consensus engine behind our own types.

pub mod log;
pub mod message;

use std::time::Duration;

/// The engine's unit of time.
pub const TICK: Duration = Duration::from_millis(100);
