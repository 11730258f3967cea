//! `lockmesh dev`: a server and an agent in one process, joined by real QUIC on loopback.

use crate::config::DevOptions;

/// Runs both until the process is told to stop.
pub async fn run(_options: DevOptions) -> Result<(), String> {
    Err("this build has no server to start yet".into())
}
