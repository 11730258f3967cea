//! `lockmesh operator raft`: manages the Raft peers.

use super::super::Online;
use super::super::confirm::{confirm, insist};
use super::super::context::{ConnectionArgs, ConsistencyArgs, Context};
use super::super::error::CliError;
use super::super::output::{JsonArgs, OutputArgs, Table, print_line, warn};
use super::servers::{find, named};
use super::{add, inspect, moved, recover};
use lockmesh_client::shape::lockmesh::{Quorum, Server};
use lockmesh_client::{Client, Error, Read};
use lockmesh_protocol::duration;
use std::io::{IsTerminal, stdout};
use std::process::ExitCode;
use std::time::Duration;

/// The time without contact after which an unhealthy server is shown as lost.
const LOST_AFTER: Duration = Duration::from_secs(2);

/// Manage Raft peers
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// List the servers with their state; exit code 1 if there is no leader, except with --stale
    ///
    /// On a terminal the first line is the cluster's id; --json has it as ClusterID.
    ListPeers {
        #[command(flatten)]
        connection: ConnectionArgs,
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        consistency: ConsistencyArgs,
    },
    Add(Online<add::Args>),
    Inspect(inspect::Args),
    Moved(moved::Args),
    /// Remove a server from the cluster permanently
    ///
    /// The other servers must be a quorum without it. Sessions of its node are kept. The server may
    /// be stopped. If it runs, it stops serving, and returns only as a new server with an emptied
    /// data folder.
    Remove {
        #[command(flatten)]
        connection: ConnectionArgs,
        /// Node name, address, Raft id or node UUID
        #[arg(value_name = "SERVER")]
        server: String,
        /// Remove it even if the failure tolerance becomes 0; without a terminal this is required
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        output: JsonArgs,
    },
    /// Alias of `remove` with Consul's options
    #[command(group = clap::ArgGroup::new("peer").required(true))]
    RemovePeer {
        #[command(flatten)]
        connection: ConnectionArgs,
        /// Node UUID
        #[arg(long, value_name = "UUID", group = "peer")]
        id: Option<String>,
        /// Address of the server
        #[arg(long, value_name = "IP:PORT", group = "peer")]
        address: Option<String>,
        /// Do not ask for confirmation; nothing is asked without a terminal
        #[arg(long)]
        yes: bool,
    },
    Recover(recover::Args),
    /// Transfer leadership to another server, and wait until it leads
    TransferLeader {
        #[command(flatten)]
        connection: ConnectionArgs,
        /// Node name, address, Raft id or node UUID [default: any server that is ready]
        #[arg(value_name = "SERVER", conflicts_with = "id")]
        server: Option<String>,
        /// Node UUID, as Consul spells it
        #[arg(long, value_name = "UUID")]
        id: Option<String>,
        #[command(flatten)]
        output: JsonArgs,
    },
}

/// Runs the command.
///
/// # Errors
/// The cluster or the folder is unchanged; the error has the cause. Without an answer the outcome
/// is unknown: check `list-peers` before a retry.
pub async fn run(args: Args) -> Result<ExitCode, CliError> {
    let connection = match &args.command {
        // These work on the data folder of a stopped server, without an agent.
        Command::Inspect(args) => return inspect::run(args).map(|()| ExitCode::SUCCESS),
        Command::Moved(args) => return moved::run(args).map(|()| ExitCode::SUCCESS),
        Command::Recover(args) => return recover::run(args).map(|()| ExitCode::SUCCESS),
        Command::ListPeers { connection, .. }
        | Command::Add(Online { connection, .. })
        | Command::Remove { connection, .. }
        | Command::RemovePeer { connection, .. }
        | Command::TransferLeader { connection, .. } => connection,
    };
    let context = connection.context()?;
    let client = context.client()?;
    let operator = client.operator();
    match args.command {
        Command::Inspect(_) | Command::Moved(_) | Command::Recover(_) => {}
        Command::ListPeers { output, consistency, .. } => {
            return list_peers(&client, output, &consistency.read()).await;
        }
        Command::Add(online) => add::run(&online.args, &client).await?,
        Command::Remove { server, yes, output, .. } => {
            let quorum = operator.servers(&Read::default()).await?;
            let server = find(&quorum, &server)?;
            if let Some(danger) = danger(&quorum, server) {
                insist(&context, yes, &danger).await?;
            }
            // By the id that is unique among servers.
            operator.remove_server(&server.raft_id.to_string()).await?;
            output.print(server, &format!("{} removed from the cluster", named(server)))?;
        }
        Command::RemovePeer { id, address, yes, .. } => remove_peer(&context, id, address, yes).await?,
        Command::TransferLeader { server, id, output, .. } => {
            transfer_leader(&client, server.or(id), output).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes a server as `consul operator raft remove-peer` does, for its scripts.
async fn remove_peer(
    context: &Context,
    id: Option<String>,
    address: Option<String>,
    yes: bool,
) -> Result<(), CliError> {
    let client = context.client()?;
    let operator = client.operator();
    let name = id.as_ref().or(address.as_ref()).cloned().unwrap_or_default();
    // Other names are left to the agent, which answers in Consul's words.
    let quorum = operator.servers(&Read::default()).await?;
    if let Some(danger) = find(&quorum, &name).ok().and_then(|server| danger(&quorum, server)) {
        confirm(context, yes, &danger).await?;
    }
    match id {
        Some(id) => {
            operator.remove_server(&id).await?;
            print_line(&format!("Removed peer with id {id:?}"))
        }
        None => {
            operator.remove_server_at(&name).await?;
            print_line(&format!("Removed peer with address {name:?}"))
        }
    }
}

/// The reason to ask before a server is removed: it is healthy, and without it no further failure
/// is tolerated.
fn danger(quorum: &Quorum, server: &Server) -> Option<String> {
    let rest = quorum.servers.iter().filter(|other| other.voter && other.raft_id != server.raft_id);
    let healthy = rest.clone().filter(|other| other.healthy == Some(true)).count();
    let rest = rest.count();
    let is_lowered = server.voter && server.healthy == Some(true) && rest > 0;
    // If no more than a majority is healthy, the next failure stops the cluster.
    (is_lowered && healthy <= rest / 2 + 1).then(|| {
        let voters = if rest == 1 { "1 voter remains".into() } else { format!("{rest} voters remain") };
        format!("tolerates no failure without {}: {voters}", named(server))
    })
}

async fn list_peers(client: &Client, output: OutputArgs, read: &Read) -> Result<ExitCode, CliError> {
    let (quorum, has_leader) = seen(client, read).await?;
    if !output.json {
        title(&quorum, stdout().is_terminal()).map_or(Ok(()), |line| print_line(&line))?;
    }
    output.print(&quorum, table)?;
    if !has_leader {
        return Ok(ExitCode::FAILURE);
    }
    no_leader(&quorum).into_iter().for_each(warn);
    Ok(ExitCode::SUCCESS)
}

/// The quorum as its leader sees it; if there is no leader, and no other consistency was requested,
/// as the nearest server does. `false` in the second case.
async fn seen(client: &Client, read: &Read) -> Result<(Quorum, bool), Error> {
    match client.operator().servers(read).await {
        // A chosen consistency is not replaced by another one.
        Err(error @ (Error::Unavailable { .. } | Error::UnknownOutcome { .. }))
            if *read == Read::default() =>
        {
            let quorum = client.operator().servers(&Read::stale()).await?;
            warn(&format!("{error}; showing the state known to the nearest server"));
            Ok((quorum, false))
        }
        answer => answer.map(|quorum| (quorum, true)),
    }
}

/// The warning about a quorum whose server that replied knows no leader, as `--stale` may show it.
fn no_leader(quorum: &Quorum) -> Option<&'static str> {
    (quorum.leader == 0).then_some(
        "the server that replied knows no leader: start servers until a majority of them runs, or check this one's \
         network",
    )
}

async fn transfer_leader(client: &Client, to: Option<String>, output: JsonArgs) -> Result<(), CliError> {
    let operator = client.operator();
    let id = match to {
        Some(to) => Some(find(&operator.servers(&Read::default()).await?, &to)?.raft_id.to_string()),
        None => None,
    };
    if !operator.transfer_leader(id.as_deref()).await? {
        return Err(CliError::failed("leadership was not transferred; retry, or name another server"));
    }
    let quorum = operator.servers(&Read::default()).await?;
    let leader = quorum.servers.iter().find(|server| server.leader);
    output.print(
        &leader,
        &leader.map_or_else(|| "Success".into(), |leader| format!("{} leads now", named(leader))),
    )
}

/// The line above the table, for people. Scripts read the heading first.
fn title(quorum: &Quorum, is_terminal: bool) -> Option<String> {
    (is_terminal && !quorum.cluster_id.is_empty()).then(|| format!("Cluster {}", quorum.cluster_id))
}

fn table(quorum: &Quorum) -> Table {
    let mut table =
        Table::new(["Node", "RaftID", "ID", "Address", "State", "Voter", "LastIndex", "Version", "Health"]);
    let mut servers: Vec<&Server> = quorum.servers.iter().collect();
    servers.sort_by_key(|server| (&server.node, server.raft_id));
    for server in servers {
        table.row([
            server.node.clone(),
            server.raft_id.to_string(),
            server.id.clone(),
            server.address.clone(),
            state(server).into(),
            server.voter.to_string(),
            // 0: only the leader knows the logs of the others.
            Some(server.last_index)
                .filter(|index| *index > 0)
                .map(|index| index.to_string())
                .unwrap_or_default(),
            server.version.clone(),
            health(server, quorum),
        ]);
    }
    table.without_empty(&["Version"])
}

/// The state of a server; of one without contact it is not known.
fn state(server: &Server) -> &'static str {
    let is_silent = duration::parse(&server.last_contact).is_ok_and(|silence| silence >= LOST_AFTER);
    match server.leader {
        true => "leader",
        false if server.healthy == Some(false) && is_silent => "lost",
        false => "follower",
    }
}

fn health(server: &Server, quorum: &Quorum) -> String {
    let lag = quorum.commit_index.saturating_sub(server.last_index);
    match (server.healthy, server.last_contact.as_str()) {
        (None, _) => "unknown".into(),
        (Some(true), _) => "healthy".into(),
        (Some(false), "") => "no contact yet".into(),
        // Without any contact the leader does not know the log position.
        (Some(false), silence) if server.last_index == 0 => format!("no contact for {silence}"),
        (Some(false), silence) => format!("last contact {silence} ago, {lag} entries behind"),
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
            version: "0.1.0".into(),
        };
        let servers = vec![server(1, "n1", Some(true)), server(2, "n2", Some(false)), server(4, "n2", None)];
        Quorum { leader: 1, commit_index: 42, servers, ..Quorum::default() }
    }

    #[test]
    fn warns_without_leader() {
        assert_eq!(no_leader(&quorum()), None);
        let warning = no_leader(&Quorum { leader: 0, ..quorum() }).expect("there is no leader");
        assert!(warning.contains("knows no leader") && warning.contains("start servers"), "{warning}");
    }

    #[test]
    fn removal_ending_fault_tolerance_needs_confirmation() {
        let server =
            |raft_id, healthy| Server { raft_id, voter: true, healthy: Some(healthy), ..Server::default() };
        let asked = |health: &[bool], removed: usize| {
            let servers: Vec<_> = (1..).zip(health).map(|(id, healthy)| server(id, *healthy)).collect();
            let quorum = Quorum { servers: servers.clone(), ..Quorum::default() };
            danger(&quorum, &servers[removed])
        };
        assert!(asked(&[true; 3], 0).is_some_and(|danger| danger.ends_with(": 2 voters remain")));
        assert!(asked(&[true; 2], 0).is_some_and(|danger| danger.ends_with(": 1 voter remains")));
        assert_eq!(asked(&[true; 4], 0), None);
        assert_eq!(asked(&[true, true, false], 2), None, "it is dead already");
        assert_eq!(asked(&[true], 0), None, "the only server cannot be removed");
    }

    #[test]
    fn cluster_id_shown_only_on_terminal() {
        let quorum = Quorum { cluster_id: "c1".into(), ..quorum() };
        assert_eq!(title(&quorum, true), Some("Cluster c1".into()));
        assert_eq!(title(&quorum, false), None);
    }

    #[test]
    fn a_server_fits_a_row() {
        let expected = "\
Node  RaftID  ID  Address        State     Voter  LastIndex  Version  Health
n1    1       u1  10.0.0.1:8300  leader    true   41         0.1.0    healthy
n2    2       u2  10.0.0.2:8300  lost      true   40         0.1.0    last contact 3s ago, 2 entries behind
n2    4       u4  10.0.0.4:8300  follower  true   38         0.1.0    unknown";
        assert_eq!(table(&quorum()).render(), expected);
    }
}
