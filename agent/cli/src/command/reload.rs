//! `lockmesh reload`: the agent reads its certificate and its log level again.

use super::context::Context;
use super::error::CliError;
use super::output::print_line;
use std::process::ExitCode;

/// Let the agent read its certificate and its log level again
///
/// Everything else in its configuration takes a restart. What is broken is refused, and everything
/// stays as it was.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
///
/// # Errors
/// The agent refuses what it read anew, and says why: everything stays as it was. Or it gave no
/// answer: its log tells.
pub async fn run(_: Args, context: &Context) -> Result<ExitCode, CliError> {
    for change in context.client()?.agent().reload().await? {
        print_line(&change)?;
    }
    Ok(ExitCode::SUCCESS)
}
