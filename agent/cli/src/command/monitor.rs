//! `lockmesh monitor`: prints the log of the agent while it is written, from now on.
//!
//! The agent filters by level, so that a level above its own can be followed without a change of
//! its configuration.

use super::context::Context;
use super::error::CliError;
use crate::stdio;
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
    let printing = async {
        let mut log = client.agent().monitor(&args.log_level, args.log_json).await?;
        while let Some(lines) = log.next().await? {
            stdio::print(lines.to_vec()).await?;
        }
        Err(CliError::failed("the agent ended the log: it stopped or restarts"))
    };
    tokio::select! {
        ended = printing => ended,
        interrupted = ctrl_c() => {
            interrupted.map_err(|error| CliError::failed(format!("cannot listen for signals: {error}")))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
