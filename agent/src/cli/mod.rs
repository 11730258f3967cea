//! The command line: one module a command, each with its `Args` and one `run`.
//!
//! Commands are applications: they reach the agent over its socket through `lockmesh-client`, never by reaching
//! into this crate. They never panic on a closed pipe, print data on stdout and everything else on stderr, and
//! exit with 0 (done), 1 (failed or refused) or 2 (not understood).

pub mod bench;
pub mod context;
pub mod elect;
pub mod error;
pub mod lock;
pub mod semaphore;

pub use context::{Address, Context};
pub use error::CliError;

use clap::Parser;
use std::ffi::OsString;
use std::process::ExitCode;

/// Everything that was said on the command line.
#[derive(Parser, Debug)]
#[command(name = "lockmesh", version, about = "Locks that follow health", disable_help_subcommand = true)]
pub struct Invocation {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Lock(lock::Args),
    Elect(elect::Args),
    Semaphore(semaphore::Args),
    Bench(bench::Args),
}

/// Understands the arguments; otherwise help, version or the complaint is printed and the exit code given.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Invocation, ExitCode> {
    Invocation::try_parse_from(arguments).map_err(|error| {
        // Nobody is left to tell when even this cannot be printed.
        let _ = error.print();
        ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
    })
}

/// Carries a command out on a runtime of its own.
pub fn execute(invocation: Invocation) -> Result<ExitCode, CliError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::failed(format!("cannot start threads: {error}")))?;
    let context = Context { address: Address::Tcp("127.0.0.1:8500".into()), token: None };
    runtime.block_on(dispatch(invocation.command, &context))
}

/// Tells the person at the keyboard what went wrong.
pub fn report(error: &CliError) -> ExitCode {
    if !matches!(error, CliError::ClosedPipe) {
        eprintln!("lockmesh: {error}");
    }
    error.exit_code()
}

async fn dispatch(command: Command, context: &Context) -> Result<ExitCode, CliError> {
    match command {
        Command::Lock(args) => lock::run(args, context).await,
        Command::Elect(args) => elect::run(args, context).await,
        Command::Semaphore(args) => semaphore::run(args, context).await,
        Command::Bench(args) => bench::run(args, context).await,
    }
}
