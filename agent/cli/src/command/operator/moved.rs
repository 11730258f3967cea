//! `lockmesh operator raft moved`: takes a data folder that was moved while its server was stopped
//! for the original.

use super::super::error::CliError;
use super::super::output::print_line;
use super::folder::DataFolder;
use lockmesh_server::moved::moved;

/// Accept a data folder moved from another disk or host
///
/// A server of a cluster rejects a copied data folder, because the original may have voted or
/// acknowledged writes since. Use this command if the server was stopped before the move and has
/// not run since. Otherwise empty the folder: the server joins as a new one.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    folder: DataFolder,
    /// Confirm that the server was stopped before the move, and that the original was not used
    /// since
    #[arg(long)]
    yes_nothing_ran_since: bool,
}

/// Runs the command. It needs no agent.
pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let folder = args.folder.path()?;
    if !args.yes_nothing_ran_since {
        return Err(CliError::usage(format!(
            "nothing was changed. This accepts {} as the original of its server's data. If its server ran anywhere \
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
