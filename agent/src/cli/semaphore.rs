//! `lockmesh semaphore`: holds one of N slots while a command runs.

use super::context::Context;
use super::error::CliError;
use std::process::ExitCode;

/// Holds one of N slots while a command runs.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
pub async fn run(_args: Args, _context: &Context) -> Result<ExitCode, CliError> {
    Err(CliError::failed("this build does not have this command yet"))
}
