//! `lockmesh join`: gives the agent the address of another server.

use super::context::Context;
use super::error::CliError;
use super::output::print_line;
use std::process::ExitCode;

/// Give the agent the address of another server of its cluster
///
/// For an agent that has lost all servers it knew; otherwise it discovers new servers by itself. A
/// restart forgets the address: add it to `upstream.servers` in the configuration.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Server as `host` or `host:port` [default port: 8300]
    address: String,
}

/// Runs the command.
///
/// # Errors
/// No server of the agent's cluster answers there, or the agent gave no answer. To join again is
/// safe.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    context.client()?.agent().join(&args.address).await?;
    print_line(&format!("joined the cluster at {}", args.address))?;
    Ok(ExitCode::SUCCESS)
}
