//! `lockmesh semaphore`: holds one of several slots while a command runs. Interchangeable with
//! `consul lock -n`.

use super::context::Context;
use super::error::CliError;
use super::lock::{Options, ProgramArgs, hold_and_run};
use std::process::ExitCode;

/// Hold one of several slots while a command runs
///
/// Like `lockmesh lock -n`, but a semaphore for a single slot too. All contenders must name the
/// same number of slots.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// How many slots there are
    #[arg(short = 'n', long = "slots", value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    slots: u32,
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    program: ProgramArgs,
}

/// Runs the command.
///
/// # Errors
/// As [`hold_and_run`].
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    hold_and_run(context, args.slots, true, &args.options, &args.program).await
}
