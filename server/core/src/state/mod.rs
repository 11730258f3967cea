//! The replicated lock state machine.

/// The replicated state.
#[derive(Debug, Default)]
pub struct State {}
