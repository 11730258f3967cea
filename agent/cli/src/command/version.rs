//! `lockmesh version`: version, commit and wire version.

use super::error::CliError;
use super::output::{print_json, print_line};
use lockmesh_agent::agent::{COMMIT, VERSION};
use lockmesh_protocol::wire;
use std::process::ExitCode;

/// Show version, commit and wire version
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// The output has no reader.
pub async fn run(args: Args) -> Result<ExitCode, CliError> {
    if args.json {
        let build = serde_json::json!({ "Version": VERSION, "Commit": COMMIT, "WireVersion": wire::VERSION });
        print_json(&build)?;
    } else {
        print_line(&format!("lockmesh {VERSION}, commit {COMMIT}, wire version {}", wire::VERSION))?;
    }
    Ok(ExitCode::SUCCESS)
}
