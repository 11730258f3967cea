//! `lockmesh server`: a server, as a process of its own.

use super::error::CliError;
use crate::config::load::Sources;
use crate::config::{ServerConfig, load};
use crate::telemetry;
use std::path::PathBuf;
use std::process::ExitCode;

/// Start a server: a member of the quorum
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The configuration file; without one the defaults stand
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set a key of the configuration, for example --set rpc.listen=10.0.0.5:8300
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

/// Runs until the process is told to stop.
pub async fn run(args: Args) -> Result<ExitCode, CliError> {
    let sources = Sources::of_process(args.config, args.settings);
    let config: ServerConfig = load(&sources).map_err(CliError::usage)?;
    telemetry::start(&config.log).map_err(CliError::usage)?;
    crate::server::run(config, sources).await.map_err(CliError::failed)?;
    Ok(ExitCode::SUCCESS)
}
