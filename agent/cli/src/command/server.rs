//! `lockmesh server`: a server, as a process of its own.

use super::error::CliError;
use super::runtime::runtime;
use crate::config::{Sources, load};
use crate::telemetry;
use lockmesh_server::config::ServerConfig;
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
    /// Found a cluster together with others: how many servers it begins with, the same number on
    /// each
    #[arg(long, value_name = "N")]
    bootstrap_expect: Option<u32>,
    /// Where other servers are, for example --join 10.0.0.5:8300,10.0.0.6:8300
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    join: Vec<String>,
    /// Stop when standard input ends: for a process that starts servers and must not leave them
    /// behind
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
}

impl Args {
    /// All that the command line sets; what is said twice is what its own flag says.
    fn settings(&self) -> Vec<String> {
        let expect = self.bootstrap_expect.map(|count| format!("quorum.bootstrap_expect={count}"));
        let join = (!self.join.is_empty()).then(|| format!("quorum.join={}", self.join.join(",")));
        self.settings.iter().cloned().chain(expect).chain(join).collect()
    }
}

/// Runs until the process is told to stop.
///
/// # Errors
/// The server cannot start, or had to stop by itself: nothing of it runs, and the error or the log
/// before it says what to put right.
pub fn run(args: Args) -> Result<ExitCode, CliError> {
    let sources = Sources::of_process(args.config.clone(), args.settings());
    let config: ServerConfig = load(&sources).map_err(CliError::usage)?;
    telemetry::start(&config.log).map_err(CliError::usage)?;
    runtime(config.threads)?
        .block_on(crate::server::run(config, sources, args.until_stdin_ends))
        .map_err(CliError::failed)?;
    Ok(ExitCode::SUCCESS)
}
