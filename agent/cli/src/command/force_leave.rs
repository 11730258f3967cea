//! `lockmesh force-leave`: a node that will not come back leaves the cluster.

use super::context::Context;
use super::error::CliError;
use super::output::print_line;
use std::process::ExitCode;

/// Make a node leave the cluster, such as one that failed and will not come back
///
/// The node is deregistered, and all its sessions end, those without checks too. Where its agent
/// lives it registers the node again, without its sessions.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The node's name
    node: String,
    /// Forget the member at once, instead of showing it as one that left
    #[arg(long)]
    prune: bool,
}

/// Runs the command.
///
/// # Errors
/// There is no such member, or the agent cannot reach the servers: nothing was changed. Or it gave
/// no answer: `lockmesh members` tells whether the node left.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let Args { node, prune } = args;
    context.client()?.agent().force_leave(&node, prune).await?;
    print_line(&match prune {
        true => format!("{node} left the cluster and is forgotten"),
        false => format!("{node} left the cluster"),
    })?;
    Ok(ExitCode::SUCCESS)
}
