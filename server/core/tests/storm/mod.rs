//! Random actions, and the naive model of their effects.

pub(crate) mod actions;
pub(crate) mod locks;
pub(crate) mod model;
