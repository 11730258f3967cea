//! `lockmesh bench`: measures an agent: puts, gets, lock cycles, hand-off, session churn.

use super::context::Context;
use super::error::CliError;
use std::process::ExitCode;

/// Measures an agent: puts, gets, lock cycles, hand-off, session churn.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
pub async fn run(_args: Args, _context: &Context) -> Result<ExitCode, CliError> {
    Err(CliError::failed("this build does not have this command yet"))
}
