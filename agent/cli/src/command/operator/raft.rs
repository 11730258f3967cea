//! `lockmesh operator raft`: the servers of the quorum.

use super::super::context::{ConsistencyArgs, Context};
use super::super::error::CliError;
use super::super::output::{Table, print_json, print_line, warn};
use super::servers::{find, named};
use super::{add, inspect, moved, recover};
use lockmesh_client::shape::lockmesh::{Quorum, Server};
use lockmesh_client::{Client, Error, Read};
use std::process::ExitCode;

/// Look after the servers of the quorum
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// List the servers of the quorum, and how they are
    ListPeers {
        /// Print JSON as the agent's API has it
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        consistency: ConsistencyArgs,
    },
    Add(add::Args),
    Inspect(inspect::Args),
    Moved(moved::Args),
    /// Take a server out of the quorum for good
    ///
    /// The others must be a quorum without it. The sessions of its node are not touched. Its
    /// process may be gone; one that still runs serves no more, and comes back only with an emptied
    /// data folder, as a new server.
    Remove {
        /// The server: its node's name, its address, its Raft id or its node's UUID
        #[arg(value_name = "SERVER")]
        server: String,
    },
    /// The same, as Consul spells it
    #[command(group = clap::ArgGroup::new("peer").required(true))]
    RemovePeer {
        /// Its node's UUID
        #[arg(long, value_name = "UUID", group = "peer")]
        id: Option<String>,
        /// Its address
        #[arg(long, value_name = "IP:PORT", group = "peer")]
        address: Option<String>,
    },
    Recover(recover::Args),
    /// Make another server the leader, and wait until it is
    TransferLeader {
        /// The server: its node's name, its address, its Raft id or its node's UUID [default:
        /// whichever is ready]
        #[arg(value_name = "SERVER", conflicts_with = "id")]
        server: Option<String>,
        /// Its node's UUID, as Consul spells it
        #[arg(long, value_name = "UUID")]
        id: Option<String>,
    },
}

/// Runs the command.
///
/// # Errors
/// The quorum or the folder is as it was, and the words say what to do first; unless an answer was
/// lost: then look at `list-peers` before trying again.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    // These work on the folder of a server that is stopped, without an agent.
    match &args.command {
        Command::Inspect(args) => return inspect::run(args).map(|()| ExitCode::SUCCESS),
        Command::Moved(args) => return moved::run(args).map(|()| ExitCode::SUCCESS),
        Command::Recover(args) => return recover::run(args).map(|()| ExitCode::SUCCESS),
        _ => {}
    }
    let client = context.client()?;
    let operator = client.operator();
    match args.command {
        Command::Inspect(_) | Command::Moved(_) | Command::Recover(_) => {}
        Command::ListPeers { json, consistency } => {
            let quorum = seen(&client, &consistency.read()).await?;
            match json {
                true => print_json(&quorum)?,
                false => table(&quorum).print()?,
            }
        }
        Command::Add(args) => add::run(&args, &client).await?,
        Command::Remove { server } => {
            let quorum = operator.servers(&Read::default()).await?;
            let server = find(&quorum, &server)?;
            // By the id that no two servers share, whatever the operator named it by.
            operator.remove_server(&server.raft_id.to_string()).await?;
            print_line(&format!("{} is out of the quorum", named(server)))?;
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
        Command::TransferLeader { server, id } => transfer_leader(&client, server.or(id)).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The quorum as its leader sees it, or else, where nothing else was asked for, as the nearest
/// server does.
async fn seen(client: &Client, read: &Read) -> Result<Quorum, Error> {
    match client.operator().servers(read).await {
        // Whoever chose how fresh the answer must be wants no other one.
        Err(error @ (Error::Unavailable { .. } | Error::UnknownOutcome { .. }))
            if *read == Read::default() =>
        {
            let quorum = client.operator().servers(&Read::stale()).await?;
            warn(&format!("{error}; this is what the nearest server knows"));
            Ok(quorum)
        }
        answer => answer,
    }
}

async fn transfer_leader(client: &Client, to: Option<String>) -> Result<(), CliError> {
    let operator = client.operator();
    let id = match to {
        Some(to) => Some(find(&operator.servers(&Read::default()).await?, &to)?.raft_id.to_string()),
        None => None,
    };
    if !operator.transfer_leader(id.as_deref()).await? {
        return Err(CliError::failed("the leader did not hand over; try again, or name another server"));
    }
    let quorum = operator.servers(&Read::default()).await?;
    let leader = quorum.servers.iter().find(|server| server.leader);
    print_line(&leader.map_or_else(|| "Success".into(), |leader| format!("{} leads now", named(leader))))
}

fn table(quorum: &Quorum) -> Table {
    let mut table = Table::new(["Node", "RaftID", "ID", "Address", "State", "Voter", "LastIndex", "Health"]);
    let mut servers: Vec<&Server> = quorum.servers.iter().collect();
    servers.sort_by_key(|server| (&server.node, server.raft_id));
    for server in servers {
        table.row([
            server.node.clone(),
            server.raft_id.to_string(),
            server.id.clone(),
            server.address.clone(),
            if server.leader { "leader".into() } else { "follower".into() },
            server.voter.to_string(),
            server.last_index.to_string(),
            health(server, quorum),
        ]);
    }
    table
}

fn health(server: &Server, quorum: &Quorum) -> String {
    let lag = quorum.commit_index.saturating_sub(server.last_index);
    match (server.healthy, server.last_contact.as_str()) {
        (None, _) => "unknown".into(),
        (Some(true), _) => "well".into(),
        (Some(false), "") => "not heard yet".into(),
        // Of a server that this leader has never heard, it does not know how far it is.
        (Some(false), silence) if server.last_index == 0 => format!("silent for {silence}"),
        (Some(false), silence) => format!("heard {silence} ago, {lag} entries behind"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quorum() -> Quorum {
        let server = |raft_id: u64, node: &str, healthy| Server {
            raft_id,
            id: format!("u{raft_id}"),
            node: node.into(),
            address: format!("10.0.0.{raft_id}:8300"),
            leader: raft_id == 1,
            voter: true,
            last_index: 42 - raft_id,
            last_contact: "3s".into(),
            healthy,
        };
        let servers = vec![server(1, "n1", Some(true)), server(2, "n2", Some(false)), server(4, "n2", None)];
        Quorum { leader: 1, commit_index: 42, servers, ..Quorum::default() }
    }

    #[test]
    fn a_server_fits_a_row() {
        let expected = "\
Node  RaftID  ID  Address        State     Voter  LastIndex  Health
n1    1       u1  10.0.0.1:8300  leader    true   41         well
n2    2       u2  10.0.0.2:8300  follower  true   40         heard 3s ago, 2 entries behind
n2    4       u4  10.0.0.4:8300  follower  true   38         unknown";
        assert_eq!(table(&quorum()).render(), expected);
    }
}
