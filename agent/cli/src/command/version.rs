//! `lockmesh version`: which build this is.

use super::error::CliError;
use super::output::{print_json, print_line};
use lockmesh_protocol::wire;
use std::process::ExitCode;

/// Say which build this is
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub async fn run(args: Args) -> Result<ExitCode, CliError> {
    let version = env!("CARGO_PKG_VERSION");
    if args.json {
        print_json(&serde_json::json!({ "Version": version, "WireVersion": wire::VERSION }))?;
    } else {
        print_line(&format!("lockmesh {version}, wire version {}", wire::VERSION))?;
    }
    Ok(ExitCode::SUCCESS)
}
