//! `lockmesh operator raft recover`: begins anew from one server, where the majority is lost for
//! good.

use super::super::error::CliError;
use super::super::output::print_line;
use super::folder::DataFolder;
use lockmesh_server::recover::{Recovery, recover};

/// Begin anew from this machine's server, where the majority of the servers is lost for good
///
/// The last resort. It works on the data folder of a server that is stopped, and makes that server
/// the only voter of its cluster. What only the lost servers had is lost, even where it was
/// acknowledged. If one of the others still runs, or is ever started again with its data, there are
/// two clusters, and two holders of one lock.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    folder: DataFolder,
    /// All other servers are stopped, and will never be started again with the data they have
    #[arg(long)]
    yes_the_other_servers_are_gone: bool,
    /// Go on also where the newest commits of this server's own log are gone, which it had
    /// acknowledged
    #[arg(long)]
    accept_loss: bool,
}

/// Runs the command. It needs no agent.
pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let folder = args.folder.path()?;
    if !args.yes_the_other_servers_are_gone {
        return Err(CliError::usage(format!(
            "nothing was done yet. This would make the server in {} the only voter of its cluster, whatever the others \
             have. Stop all others for good, make sure that this one has the most (`lockmesh operator raft inspect` on \
             each: the highest last log term, and of those the highest last log index), and say so with \
             --yes-the-other-servers-are-gone",
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
