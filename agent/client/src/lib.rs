//! Typed client of the local Lockmesh agent.

pub mod shape;
