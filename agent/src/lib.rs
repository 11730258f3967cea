//! The agent: local HTTP API, health checks, upstream to the quorum, CLI.

pub mod upstream;
