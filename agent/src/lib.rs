//! The agent: local HTTP API, health checks, upstream to the quorum, CLI.

pub mod agent;
pub mod checks;
pub mod cli;
pub mod config;
mod data_folder;
pub mod dev;
pub mod http;
pub mod metrics;
pub mod node;
pub mod reload;
pub mod server;
pub mod signals;
pub mod telemetry;
pub mod upstream;
