//! `lockmesh reload`: the agent reads again what may change while it runs.

use super::context::Context;
use super::error::CliError;
use super::output::print_line;
use std::process::ExitCode;

/// Reload the agent's certificate and log level
///
/// Other changes of the configuration need a restart. An invalid configuration is rejected as a
/// whole.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
///
/// # Errors
/// The agent rejected the new configuration, with the reason; the current one is kept. Without an
/// answer the outcome is in its log.
pub async fn run(_: Args, context: &Context) -> Result<ExitCode, CliError> {
    for change in context.client()?.agent().reload().await? {
        print_line(&change)?;
    }
    Ok(ExitCode::SUCCESS)
}
