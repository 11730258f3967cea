//! `lockmesh kv`: keys and values, with the options, the words and the exit codes of `consul kv`.

mod delete;
mod get;
mod list;
mod put;
mod transfer;
mod value;

use super::context::Context;
use super::error::CliError;
use lockmesh_client::{Entry, shape};
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
    Export(transfer::ExportArgs),
    Import(transfer::ImportArgs),
}

/// Runs the command.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let client = context.client()?;
    match args.command {
        Command::Get(args) => get::run(args, &client).await,
        Command::Put(args) => put::run(args, &client).await,
        Command::Delete(args) => delete::run(args, &client).await,
        Command::List(args) => list::run(args, &client).await,
        Command::Export(args) => transfer::export(args, &client).await,
        Command::Import(args) => transfer::import(args, &client).await,
    }?;
    Ok(ExitCode::SUCCESS)
}

/// The key that was named. A leading slash, which no key can have, is forgiven.
fn key_of(key: Option<String>) -> Result<String, CliError> {
    match key.as_deref() {
        None | Some("") => Err(CliError::in_consuls_words("Error! Missing KEY argument")),
        Some(key) => Ok(key.strip_prefix('/').unwrap_or(key).to_string()),
    }
}

/// An entry as the agent's API shows it, for `--json`.
pub(super) fn shape_of(entry: &Entry) -> shape::kv::Entry {
    shape::kv::Entry {
        lock_index: entry.lock_index,
        key: entry.key.clone(),
        flags: entry.flags,
        value: shape::Blob::unless_empty(entry.value.clone()),
        session: entry.session.clone().unwrap_or_default(),
        create_index: entry.create_index,
        modify_index: entry.modify_index,
    }
}
