//! `lockmesh reload`: the agent reads again what may change while it runs.

use super::context::Context;
use super::error::CliError;
use super::output::{JsonArgs, print_json, print_line};
use std::process::ExitCode;

/// Reload the agent's certificates and the reloadable keys of its configuration
///
/// These keys are log.level, upstream.cluster_id, node_meta, services and checks. Other changes
/// need a restart, and are listed. An invalid configuration is rejected as a whole.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    output: JsonArgs,
}

/// Runs the command.
///
/// # Errors
/// The agent rejected the new configuration, with the reason; the current one is kept. Without an
/// answer the outcome is in its log.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let changes = context.client()?.agent().reload().await?;
    match args.output.json {
        true => print_json(&serde_json::json!({ "Changes": changes }))?,
        false => changes.iter().try_for_each(|change| print_line(change))?,
    }
    Ok(ExitCode::SUCCESS)
}
