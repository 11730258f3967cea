//! `lockmesh semaphore`: holds one of several slots while a command runs. Interchangeable with
//! `consul lock -n`.

use super::context::Context;
use super::error::{CliError, ExitCodes};
use super::lock::{Kind, Options, ProgramArgs, hold_and_run, holders};
use std::process::ExitCode;

/// Hold one of several slots while a command runs
///
/// All contenders must give the same number of slots. `lockmesh lock -n` is the same, except that
/// it takes a lock for a single slot.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Number of slots
    #[arg(short = 'n', long = "slots", value_name = "COUNT", value_parser = holders)]
    slots: u32,
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    program: ProgramArgs,
}

impl Args {
    /// The exit codes of our own errors.
    pub(super) fn exit_codes(&self) -> ExitCodes {
        self.options.exit_codes()
    }
}

/// Runs the command.
///
/// # Errors
/// As [`hold_and_run`].
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    hold_and_run(context, Kind::Slot(args.slots), &args.options, &args.program).await
}
