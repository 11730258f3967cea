//! `lockmesh operator raft`: the servers of the quorum.

use super::super::context::{ConsistencyArgs, Context};
use super::super::error::CliError;
use super::super::output::{Table, print_json, print_line};
use lockmesh_client::shape::operator::RaftServer;
use std::process::ExitCode;

/// Look after the servers of the quorum
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// List the servers of the quorum
    ListPeers {
        /// Print JSON as the agent's API has it
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        consistency: ConsistencyArgs,
    },
    /// Take a server out of the quorum for good
    #[command(group = clap::ArgGroup::new("peer").required(true))]
    RemovePeer {
        /// Its node's UUID
        #[arg(long, value_name = "UUID", group = "peer")]
        id: Option<String>,
        /// Its address
        #[arg(long, value_name = "IP:PORT", group = "peer")]
        address: Option<String>,
    },
    /// Make another server the leader
    TransferLeader {
        /// Its node's UUID [default: whichever is ready]
        #[arg(long, value_name = "UUID")]
        id: Option<String>,
    },
}

/// Runs the command.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let client = context.client()?;
    let operator = client.operator();
    match args.command {
        Command::ListPeers { json, consistency } => {
            let configuration = operator.raft_configuration(&consistency.read()).await?;
            match json {
                true => print_json(&configuration)?,
                false => table(&configuration.servers).print()?,
            }
        }
        Command::RemovePeer { id: Some(id), .. } => {
            operator.remove_server(&id).await?;
            print_line(&format!("Removed peer with id {id:?}"))?;
        }
        Command::RemovePeer { id: None, address } => {
            let address = address.unwrap_or_default();
            operator.remove_server_at(&address).await?;
            print_line(&format!("Removed peer with address {address:?}"))?;
        }
        Command::TransferLeader { id } => {
            if !operator.transfer_leader(id.as_deref()).await? {
                return Err(CliError::failed(
                    "the leader did not hand over; try again, or name another server",
                ));
            }
            print_line("Success")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn table(servers: &[RaftServer]) -> Table {
    let mut table = Table::new(["Node", "ID", "Address", "State", "Voter", "LastIndex"]);
    for server in servers {
        table.row([
            server.node.clone(),
            server.id.clone(),
            server.address.clone(),
            if server.leader { "leader".into() } else { "follower".into() },
            server.voter.to_string(),
            server.last_index.to_string(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_fits_a_row() {
        let server = RaftServer {
            id: "u1".into(),
            node: "n1".into(),
            address: "10.0.0.5:8300".into(),
            leader: true,
            voter: true,
            last_index: 42,
            ..RaftServer::default()
        };
        let expected =
            "Node  ID  Address        State   Voter  LastIndex\nn1    u1  10.0.0.5:8300  leader  true   42";
        assert_eq!(table(&[server]).render(), expected);
    }
}
