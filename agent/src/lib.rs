//! The agent: local HTTP API, health checks, upstream to the quorum, CLI.

pub mod agent;
pub mod cli;
pub mod config;
pub mod dev;
pub mod telemetry;
pub mod upstream;
