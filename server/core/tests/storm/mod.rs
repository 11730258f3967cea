//! Random actions, and the naive model that says what they should do.

pub(crate) mod actions;
pub(crate) mod model;
