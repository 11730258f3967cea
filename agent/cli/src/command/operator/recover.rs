//! `lockmesh operator raft recover`: restarts the cluster from one server when a majority is
//! permanently lost.

use super::super::error::CliError;
use super::super::output::print_line;
use super::folder::DataFolder;
use lockmesh_server::recover::{Recovery, recover};

/// Restart the cluster from this server when a majority is permanently lost
///
/// The last resort. It makes a stopped server the only voter of its cluster. Writes that only the
/// lost servers had are lost, even if they were acknowledged. If another server runs, or is started
/// again with its data, there are two clusters, and locks with two holders.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    folder: DataFolder,
    /// Confirm that all other servers are stopped, and will not be started again with their data
    #[arg(long)]
    yes_the_other_servers_are_gone: bool,
    /// Continue even if acknowledged commits are missing from the end of this server's log
    #[arg(long)]
    accept_loss: bool,
}

/// Runs the command. It needs no agent.
pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let folder = args.folder.path()?;
    if !args.yes_the_other_servers_are_gone {
        return Err(CliError::usage(format!(
            "nothing was changed. This makes the server in {} the only voter of its cluster; writes that only other \
             servers have are lost. Stop all others permanently, check that this one has the most data (`lockmesh \
             operator raft inspect` on each: the highest last log term, then the highest last log index), and confirm \
             with --yes-the-other-servers-are-gone",
            folder.display()
        )));
    }
    let recovery = recover(&folder, args.accept_loss).map_err(CliError::failed)?;
    print_line(&next_steps(&recovery))
}

fn next_steps(recovery: &Recovery) -> String {
    let Recovery { server, removed, .. } = recovery;
    let start = format!("Start server {} ({}).", server.id, server.node);
    let empty = removed.iter().map(|other| {
        let (node, address) = (&other.node, &other.address);
        format!("On {node} ({address}): empty the data folder before the server is started again. It joins as a new one.")
    });
    let look = "See with `lockmesh operator raft list-peers` that the quorum grows again.".to_owned();
    let steps = [start].into_iter().chain(empty).chain([look]);
    steps.fold(format!("{recovery}\n\nWhat to do now:"), |text, step| text + "\n - " + &step)
}
