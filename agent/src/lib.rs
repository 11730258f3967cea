//! The agent: local HTTP API, health checks, upstream to the quorum, CLI.

pub mod cli;
pub mod upstream;
