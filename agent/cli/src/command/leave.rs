//! `lockmesh leave`: the agent's node leaves the cluster, and its process ends.

use super::context::Context;
use super::error::CliError;
use super::output::print_line;
use std::process::ExitCode;

/// Take this agent's node out of the cluster, and end its process
///
/// The node is deregistered, and all its sessions end: their locks pass on. To stop the agent for a
/// moment, end its process instead: then its sessions live on for a while.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
///
/// # Errors
/// The agent cannot reach the servers: it goes on, and nothing was changed. Or it gave no answer:
/// `lockmesh members`, asked of another agent, tells whether the node left.
pub async fn run(_: Args, context: &Context) -> Result<ExitCode, CliError> {
    context.client()?.agent().leave().await?;
    print_line("the node left the cluster; its agent ends")?;
    Ok(ExitCode::SUCCESS)
}
