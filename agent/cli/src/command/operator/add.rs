//! `lockmesh operator raft add`: adds a server to the cluster.

use super::super::error::CliError;
use super::super::output::{JsonArgs, print_json, print_line};
use super::servers::named;
use lockmesh_client::shape::lockmesh::{Quorum, Server};
use lockmesh_client::{Client, Read};
use lockmesh_protocol::duration;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The interval between checks of the new server's progress.
const INTERVAL: Duration = Duration::from_millis(200);

/// Add a server to the cluster, and wait until it votes
///
/// The server must run at ADDRESS without a cluster: with `quorum.bootstrap_expect = 0`, an empty
/// data folder and a certificate of the same authority. It joins as a learner, and is promoted to
/// voter when it has caught up.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Address of the server: host:port
    #[arg(value_name = "ADDRESS")]
    address: String,
    /// Do not wait until it votes
    #[arg(long)]
    no_wait: bool,
    /// Maximum time to wait until it votes
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration::parse)]
    timeout: Duration,
    #[command(flatten)]
    output: JsonArgs,
}

/// Runs the command.
pub(super) async fn run(args: &Args, client: &Client) -> Result<(), CliError> {
    let operator = client.operator();
    // Identifies the new server, whose own name for its address may differ.
    let before = operator.servers(&Read::default()).await?;
    operator.add_server(&args.address).await?;
    if args.no_wait || !args.output.json {
        let requested = serde_json::json!({ "Address": args.address, "Voter": false });
        args.output.print(&requested, &format!("{}: join requested", args.address))?;
    }
    if args.no_wait {
        return Ok(());
    }
    let known: BTreeSet<u64> = before.servers.iter().map(|server| server.raft_id).collect();
    let deadline = Instant::now() + args.timeout;
    let mut shown = String::new();
    loop {
        // A leader that goes in between is no reason to give up.
        if let Ok(quorum) = operator.servers(&Read::default()).await {
            let newcomer = newcomer(&quorum, &known, &args.address);
            let progress = progress(newcomer, &quorum);
            if shown != progress && !args.output.json {
                print_line(&progress)?;
                shown = progress;
            }
            if let Some(server) = newcomer.filter(|server| server.voter) {
                return if args.output.json { print_json(server) } else { Ok(()) };
            }
        }
        if Instant::now() >= deadline {
            return Err(CliError::failed(format!(
                "it has no vote after {}; it is still replicating: `lockmesh operator raft list-peers` shows its progress",
                duration::format(args.timeout)
            )));
        }
        sleep(INTERVAL).await;
    }
}

/// The server that came: at that address, or else, where it is called otherwise there, the one that
/// was not known.
fn newcomer<'q>(quorum: &'q Quorum, known: &BTreeSet<u64>, address: &str) -> Option<&'q Server> {
    let mut fresh = quorum.servers.iter().filter(|server| !known.contains(&server.raft_id));
    let first = fresh.clone().next();
    fresh.find(|server| server.address == address).or(first)
}

fn progress(newcomer: Option<&Server>, quorum: &Quorum) -> String {
    let Some(server) = newcomer else { return "waiting for the server to join".into() };
    let named = named(server);
    let lag = quorum.commit_index.saturating_sub(server.last_index);
    match (server.voter, server.last_index) {
        (true, _) => format!("{named} votes"),
        (false, 0) => format!("{named} added as a learner; replicating"),
        (false, _) if lag > 0 => format!("{named} is replicating: {lag} entries left"),
        (false, _) => format!("{named} has caught up; it is promoted to voter after the stabilization time"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(raft_id: u64, voter: bool, last_index: u64) -> Server {
        let (node, address) = (format!("s{raft_id}"), format!("10.0.0.{raft_id}:8300"));
        Server { raft_id, node, address, voter, last_index, ..Server::default() }
    }

    #[test]
    fn progress_reports_each_step() {
        let known = BTreeSet::from([1]);
        let told = |newcomer: Option<Server>| {
            let servers = [server(1, true, 500)].into_iter().chain(newcomer).collect();
            let quorum = Quorum { commit_index: 500, servers, ..Quorum::default() };
            progress(super::newcomer(&quorum, &known, "10.0.0.4:8300"), &quorum)
        };
        assert_eq!(told(None), "waiting for the server to join");
        assert_eq!(
            told(Some(server(4, false, 0))),
            "server 4 (s4, 10.0.0.4:8300) added as a learner; replicating"
        );
        assert!(told(Some(server(4, false, 320))).ends_with("replicating: 180 entries left"));
        assert!(told(Some(server(4, false, 500))).contains("has caught up"));
        assert!(told(Some(server(4, true, 500))).ends_with(" votes"));
        assert!(told(Some(server(5, true, 500))).starts_with("server 5"), "by its address or as the new one");
    }
}
