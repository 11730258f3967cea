//! The agent as a library: local HTTP API, health checks, upstream to the quorum.

pub mod agent;
mod boot_clock;
pub mod checks;
pub mod config;
pub mod error;
pub mod events;
pub mod http;
mod incarnation;
mod juror;
pub mod listener;
mod mesh;
pub mod mesh_questions;
pub mod metrics;
pub mod node;
pub mod pin;
pub mod reload;
pub mod session_watches;
pub mod upstream;
