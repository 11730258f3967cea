//! `lockmesh dev`: a server and an agent in one process, joined by real QUIC on loopback.

use crate::config::{DevOptions, ServerConfig};

/// Runs both until the process is told to stop.
pub async fn run(_options: DevOptions) -> Result<(), String> {
    Err("this build has no server to start yet".into())
}

/// Runs a server alone until the process is told to stop.
pub async fn serve(_config: ServerConfig) -> Result<(), String> {
    Err("this build has no server to start yet".into())
}
