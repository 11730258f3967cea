//! `lockmesh operator`: what whoever runs the fleet does to the quorum, its backups and its
//! certificates.

mod add;
pub mod autopilot;
mod folder;
pub mod gossip;
mod inspect;
mod moved;
pub mod raft;
mod recover;
mod servers;
pub mod snapshot;
pub mod tls;

use super::context::Context;
use super::error::CliError;
use std::process::ExitCode;

/// Look after the quorum, its backups and its certificates
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Autopilot(autopilot::Args),
    Gossip(gossip::Args),
    Raft(raft::Args),
    Snapshot(snapshot::Args),
    Tls(tls::Args),
}

/// Runs the command.
///
/// # Errors
/// The words say what was not done, and what to do first; the subcommands say what is left of it.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    match args.command {
        Command::Autopilot(args) => autopilot::run(args, context).await,
        Command::Gossip(args) => gossip::run(args, context).await,
        Command::Raft(args) => raft::run(args, context).await,
        Command::Snapshot(args) => snapshot::run(args, context).await,
        Command::Tls(args) => tls::run(args).await,
    }
}
