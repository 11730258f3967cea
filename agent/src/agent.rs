//! The agent as a process of its own: what is started, and in which order it stops.

use crate::config::AgentConfig;

/// Runs an agent until the process is told to stop.
pub async fn run(_config: AgentConfig) -> Result<(), String> {
    Err("this build has no agent to start yet".into())
}
