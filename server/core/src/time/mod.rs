//! The leader's deadlines, and when they become commands.

pub(crate) mod deadlines;
pub mod timers;
