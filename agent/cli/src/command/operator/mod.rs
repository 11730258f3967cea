//! `lockmesh operator`: manages the servers, their settings and backups, and the certificates.

pub mod acl;
mod add;
pub mod autopilot;
pub mod deadlocks;
mod folder;
pub mod gossip;
pub mod hosts;
mod inspect;
mod moved;
pub mod raft;
mod recover;
mod servers;
pub mod snapshot;
pub mod tls;

use super::Online;
use super::error::CliError;
use std::process::ExitCode;

/// Manage servers, backups and certificates
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Acl(Online<acl::Args>),
    Autopilot(Online<autopilot::Args>),
    Deadlocks(Online<deadlocks::Args>),
    Gossip(Online<gossip::Args>),
    Hosts(Online<hosts::Args>),
    Raft(raft::Args),
    Snapshot(snapshot::Args),
    Tls(tls::Args),
}

/// Runs the command.
///
/// # Errors
/// The error names what was not done, and what to do first.
pub async fn run(args: Args) -> Result<ExitCode, CliError> {
    match args.command {
        Command::Acl(args) => acl::run(args.args, &args.connection.context()?).await,
        Command::Autopilot(args) => autopilot::run(args.args, &args.connection.context()?).await,
        Command::Deadlocks(args) => deadlocks::run(args.args, &args.connection.context()?).await,
        Command::Gossip(args) => gossip::run(args.args, &args.connection.context()?).await,
        Command::Hosts(args) => hosts::run(args.args, &args.connection.context()?).await,
        Command::Raft(args) => raft::run(args).await,
        Command::Snapshot(args) => snapshot::run(args).await,
        Command::Tls(args) => tls::run(args).await,
    }
}
