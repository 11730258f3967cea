//! `lockmesh join`: the agent hears of one more server.

use super::context::Context;
use super::error::CliError;
use super::output::print_line;
use std::process::ExitCode;

/// Let the agent know one more server of its cluster
///
/// The agent asks it when no server is left that it knows. It learns of the servers that come and
/// go by itself: this is for one that has lost them all. A restart forgets it: `upstream.servers`
/// of its configuration does not.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A server as `host` or `host:port`; without a port, 8300
    address: String,
}

/// Runs the command.
///
/// # Errors
/// No server of the agent's cluster answers there, or the agent gave no answer. To join again is
/// safe.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    context.client()?.agent().join(&args.address).await?;
    print_line(&format!("joined the server at {}", args.address))?;
    Ok(ExitCode::SUCCESS)
}
