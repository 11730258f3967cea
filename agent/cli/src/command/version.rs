//! `lockmesh version`: version, commit, wire version and format.

use super::error::CliError;
use super::output::{print_json, print_line};
use lockmesh_agent::{COMMIT, VERSION};
use lockmesh_protocol::{format, wire};
use std::process::ExitCode;

/// Show version, commit, wire version and the newest format
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
        print_json(&serde_json::json!({
            "Version": VERSION,
            "Commit": COMMIT,
            "WireVersion": wire::VERSION,
            "Format": format::NEWEST,
        }))?;
    } else {
        let (wire, format) = (wire::VERSION, format::NEWEST);
        print_line(&format!("lockmesh {VERSION}, commit {COMMIT}, wire version {wire}, format {format}"))?;
    }
    Ok(ExitCode::SUCCESS)
}
