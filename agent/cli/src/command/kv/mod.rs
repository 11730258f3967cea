//! `lockmesh kv`: keys and values, with the options, the words and the exit codes of `consul kv`.

mod delete;
pub(super) mod entry;
mod export;
mod get;
mod import;
mod list;
mod put;
pub(super) mod value;

use super::context::Context;
use super::error::CliError;
use std::process::ExitCode;

/// Read and write keys
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Get(get::Args),
    Put(put::Args),
    Delete(delete::Args),
    List(list::Args),
    Export(export::Args),
    Import(import::Args),
}

/// Runs the command.
///
/// # Errors
/// The words say what was not done, as `consul kv` would. Of an import or a recursive deletion a
/// part may be done; where an answer was lost, the write may be too.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let client = context.client()?;
    match args.command {
        Command::Get(args) => get::run(args, &client).await,
        Command::Put(args) => put::run(args, &client).await,
        Command::Delete(args) => delete::run(args, &client, context).await,
        Command::List(args) => list::run(args, &client).await,
        Command::Export(args) => export::run(args, &client).await,
        Command::Import(args) => import::run(args, &client).await,
    }?;
    Ok(ExitCode::SUCCESS)
}
