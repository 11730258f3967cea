//! `lockmesh monitor`: prints the log of the agent while it is written, from now on.
//!
//! The agent filters by level, so that a level above its own can be followed without a change of
//! its configuration.

use super::context::Context;
use super::error::CliError;
use super::output::print_bytes;
use std::process::ExitCode;
use tokio::signal::ctrl_c;

/// Print the agent's log while it is written
///
/// The level is this command's: the agent's own log does not change. With Ctrl-C it ends with
/// exit code 0. If it reads too slowly, lines are dropped, and a line has their number.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Lowest level to print: trace, debug, info, warn or error
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: String,
    /// Print each line as a JSON object
    #[arg(long)]
    log_json: bool,
}

/// Runs until Ctrl-C.
///
/// # Errors
/// The agent rejected the request with the reason, or ended the log because it stopped.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let client = context.client()?;
    let agent = client.agent();
    let mut log = tokio::select! {
        log = agent.monitor(&args.log_level, args.log_json) => log?,
        interrupted = ctrl_c() => return ended(interrupted),
    };
    loop {
        let lines = tokio::select! {
            lines = log.next() => lines?,
            interrupted = ctrl_c() => return ended(interrupted),
        };
        match lines {
            Some(lines) => print_bytes(&lines)?,
            None => return Err(CliError::failed("the agent ended the log: it stopped or restarts")),
        }
    }
}

fn ended(interrupted: std::io::Result<()>) -> Result<ExitCode, CliError> {
    interrupted.map_err(|error| CliError::failed(format!("cannot listen for signals: {error}")))?;
    Ok(ExitCode::SUCCESS)
}
