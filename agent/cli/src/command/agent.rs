//! `lockmesh agent`: an agent, as a process of its own.

use super::error::CliError;
use super::runtime::{forbid_core_dumps, runtime};
use crate::config::{Sources, load};
use crate::telemetry;
use lockmesh_agent::config::AgentConfig;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The time for work that nothing waits for when an agent has stopped.
const LAST_WORK_TIMEOUT: Duration = Duration::from_secs(1);

/// Start an agent: the local API of a host
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Configuration file [default: built-in defaults]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set a configuration key, such as http.tcp=127.0.0.1:8501; repeatable
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Stop when standard input ends, for a process that starts agents
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
}

/// Runs until a signal stops the process.
///
/// # Errors
/// The agent cannot start; the error names the cause.
pub fn run(args: Args) -> Result<ExitCode, CliError> {
    let sources = Sources::of_process(args.config, args.settings);
    let config: AgentConfig = load(&sources).map_err(CliError::usage)?;
    telemetry::start(&config.log).map_err(CliError::usage)?;
    forbid_core_dumps();
    let runtime = runtime(config.threads)?;
    let ended = runtime.block_on(crate::agent::run(config, sources, args.until_stdin_ends));
    // Work that waits for a disk would delay the end without a limit.
    runtime.shutdown_timeout(LAST_WORK_TIMEOUT);
    ended.map_err(CliError::failed)?;
    Ok(ExitCode::SUCCESS)
}
