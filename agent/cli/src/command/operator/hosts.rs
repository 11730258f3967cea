//! `lockmesh operator hosts`: the nodes whose agents may send operator requests.

use super::super::context::{ConsistencyArgs, Context};
use super::super::error::CliError;
use super::super::output::{OutputArgs, Table, print_line};
use lockmesh_client::shape::lockmesh::OperatorHosts;
use std::process::ExitCode;

/// List the nodes whose agents may send operator requests, or choose them
///
/// Operator requests change the servers, the mesh or another node, or read or replace the whole
/// state. By default the agent of each node may send them for the users of its Unix socket. Choose
/// at least two nodes: only the agents of these can change the list again.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Allow only these nodes, this one among them
    #[arg(long, value_name = "NODE", value_delimiter = ',', num_args = 1.., conflicts_with = "any")]
    set: Vec<String>,
    /// Allow all nodes
    #[arg(long)]
    any: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    consistency: ConsistencyArgs,
}

/// Runs the command.
///
/// # Errors
/// The agent did not reply, or its node is not one of the list. The list may have been changed: the
/// same command can be repeated.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let client = context.client()?;
    let operator = client.operator();
    if args.any || !args.set.is_empty() {
        operator.configure_hosts(args.set).await?;
        print_line("Configuration updated!")?;
        return Ok(ExitCode::SUCCESS);
    }
    let hosts = operator.hosts(&args.consistency.read()).await?;
    if hosts.hosts.is_empty() && !args.output.json {
        print_line("agents of all nodes may send operator requests")?;
        return Ok(ExitCode::SUCCESS);
    }
    args.output.print(&hosts, table)?;
    Ok(ExitCode::SUCCESS)
}

fn table(hosts: &OperatorHosts) -> Table {
    let mut table = Table::new(["Node"]);
    hosts.hosts.iter().for_each(|host| table.row([host.clone()]));
    table
}
