//! `lockmesh operator raft moved`: takes a data folder that was moved while its server was stopped
//! for the original.

use super::super::error::CliError;
use super::super::output::print_line;
use super::folder::DataFolder;
use lockmesh_server::moved::moved;

/// Take a data folder for the original after it was moved while its server was stopped
///
/// A server of several refuses a data folder whose files are copies: the original may have voted
/// and acknowledged more since. After a move to another disk or machine, with the server stopped
/// from before the move until now, this command makes the server start there. Where anything ran on
/// the original meanwhile, empty the folder instead: the server joins as a new one.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    folder: DataFolder,
    /// The server was stopped before the folder was moved, and nothing has run on the original
    /// since
    #[arg(long)]
    yes_nothing_ran_since: bool,
}

/// Runs the command. It needs no agent.
pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let folder = args.folder.path()?;
    if !args.yes_nothing_ran_since {
        return Err(CliError::usage(format!(
            "nothing was done yet. This would take {} for the original of its server's data. If its server ran anywhere \
             after these files were copied, it has voted and acknowledged what they do not hold, and two servers may lead \
             at once: then empty the folder instead, and the server joins as a new one. If it was stopped before the move \
             and never since started on the original, say so with --yes-nothing-ran-since",
            folder.display()
        )));
    }
    let found = moved(&folder).map_err(CliError::failed)?;
    let (server, cluster) = (found.server, found.cluster_id);
    print_line(&match found.was_moved {
        true => format!(
            "Server {server} of the cluster {cluster} is at home in {} now. Start it.",
            folder.display()
        ),
        false => format!(
            "{} is where server {server} of the cluster {cluster} left it: nothing to do.",
            folder.display()
        ),
    })
}
