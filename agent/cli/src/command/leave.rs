//! `lockmesh leave`: the agent's node leaves the cluster, and its process ends.

use super::context::Context;
use super::error::CliError;
use super::output::print_line;
use std::process::ExitCode;

/// Remove this agent's node from the cluster, and stop the agent
///
/// The node is deregistered and all its sessions end, so that their locks can be granted again. To
/// restart the agent, stop its process instead: its sessions live on for a while.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
///
/// # Errors
/// The agent cannot reach the servers: it keeps running, and nothing was changed. Without an answer
/// the outcome is unknown: check with `lockmesh members` at another agent.
pub async fn run(_: Args, context: &Context) -> Result<ExitCode, CliError> {
    context.client()?.agent().leave().await?;
    print_line("the node left the cluster; its agent ends")?;
    Ok(ExitCode::SUCCESS)
}
