//! `lockmesh server`: a server, as a process of its own.

use super::error::CliError;
use super::runtime::{forbid_core_dumps, runtime};
use crate::config::{Sources, load};
use crate::telemetry;
use lockmesh_server::config::ServerConfig;
use std::path::PathBuf;
use std::process::ExitCode;

/// Start a server
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Configuration file [default: built-in defaults]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set a configuration key, such as rpc.listen=10.0.0.5:8300; repeatable
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Number of servers that bootstrap the cluster, the same on each
    #[arg(long, value_name = "N")]
    bootstrap_expect: Option<u32>,
    /// Addresses of other servers
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    join: Vec<String>,
    /// Stop when standard input ends, for a process that starts servers
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
}

impl Args {
    /// All settings of the command line. A flag has priority over `--set` of its key.
    fn settings(&self) -> Vec<String> {
        let expect = self.bootstrap_expect.map(|count| format!("quorum.bootstrap_expect={count}"));
        let join = (!self.join.is_empty()).then(|| format!("quorum.join={}", self.join.join(",")));
        self.settings.iter().cloned().chain(expect).chain(join).collect()
    }
}

/// Runs until a signal stops the process.
///
/// # Errors
/// The server cannot start, or stopped after a fatal error. The error or the log names the cause.
pub fn run(args: Args) -> Result<ExitCode, CliError> {
    let sources = Sources::of_process(args.config.clone(), args.settings());
    let config: ServerConfig = load(&sources).map_err(CliError::usage)?;
    telemetry::start(&config.log).map_err(CliError::usage)?;
    forbid_core_dumps();
    runtime(config.threads)?
        .block_on(crate::server::run(config, sources, args.until_stdin_ends))
        .map_err(CliError::failed)?;
    Ok(ExitCode::SUCCESS)
}
