//! `lockmesh dev kill`: kills one process of `lockmesh dev --nodes` or `--servers`, and shows what
//! follows: where the locks of an agent's node go, or who leads after a server.

use super::follow::Follow;
use crate::command::error::CliError;
use crate::command::output::{Table, print_json, print_line, printable, warn};
use crate::dev::Running;
use lockmesh_client::shape::lockmesh::Quorum;
use lockmesh_client::{Address, Client, Error, Read};
use lockmesh_net::Role;
use lockmesh_protocol::duration;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// The interval between requests to the agents.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The time that one agent gets for an answer. It is longer than an agent's search for a leader,
/// whose error is more useful than a timeout.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A session that does not exist: a request for it costs one quorum round and has no other effect.
const NOBODY: &str = "00000000-0000-0000-0000-000000000000";

/// Kill one process of `lockmesh dev --nodes` or `--servers`, and show the failover
///
/// An agent (n1, n2, …) stands for its host. The output follows the locks of its node, with the
/// seconds since the kill, and ends with the causes of the losses. Applications on that node are
/// not killed. After a server (s1, s2, …) the output shows the new leader. The process gets
/// SIGKILL, after a check that it belongs to this folder.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Process to kill: agent n1, n2, … or server s1, s2, …
    #[arg(value_name = "NODE")]
    node: String,
    /// Data folder of `lockmesh dev`
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Maximum time to follow the failover
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    timeout: Duration,
    /// Print JSON at the end
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// The process was not killed, and the error has the cause; or it was killed, and the failover was
/// not complete in time.
pub(super) async fn run(args: Args) -> Result<ExitCode, CliError> {
    let running = Running::find(&args.data_dir, &args.node).map_err(CliError::failed)?;
    let witness = Witness { agents: running.other_sockets(), json: args.json };
    let late = match running.role() {
        Role::Agent => kill_agent(&running, &witness, args.timeout).await?,
        Role::Server => kill_server(&running, &witness, args.timeout).await?,
    };
    match late {
        None => Ok(ExitCode::SUCCESS),
        Some(why) => Err(CliError::failed(format!("after {}: {why}", duration::format(args.timeout)))),
    }
}

/// The source of news: the living agents.
struct Witness {
    agents: Vec<PathBuf>,
    json: bool,
}

/// The reason why no agent answered: that of the last one.
#[derive(Debug, thiserror::Error)]
enum NoAnswer {
    #[error("no other agent is there to tell")]
    NoAgent,
    #[error("{0}")]
    Failed(Error),
    #[error("the agent at {} does not answer", .0.display())]
    Silent(PathBuf),
}

impl Witness {
    /// Asks one agent after the other until one answers; the last error where none does.
    async fn first_answer<T>(
        &self,
        question: impl AsyncFn(&Client) -> Result<T, Error>,
    ) -> Result<T, NoAnswer> {
        let mut last = NoAnswer::NoAgent;
        for socket in &self.agents {
            let client = Client::new(Address::Unix(socket.clone()));
            match timeout(ANSWER_TIMEOUT, question(&client)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => last = NoAnswer::Failed(error),
                Err(_) => last = NoAnswer::Silent(socket.clone()),
            }
        }
        Err(last)
    }

    /// A line for people, as soon as it is known.
    fn print_progress(&self, after: Duration, line: &str) -> Result<(), CliError> {
        if self.json {
            return Ok(());
        }
        print_line(&format!("{:>8.2} s  {}", after.as_secs_f64(), printable(line)))
    }
}

/// Kills an agent and follows its locks; what has not come about in time.
async fn kill_agent(
    running: &Running,
    witness: &Witness,
    limit: Duration,
) -> Result<Option<String>, CliError> {
    let node = running.name();
    // Read before the kill: a later list may lack the holders on this node.
    let locks = witness
        .first_answer(async |client| Ok(client.operator().locks("", &Read::default()).await?.value))
        .await;
    let mut follow = match &locks {
        Ok(locks) => Follow::of_node(locks, node),
        Err(error) => {
            warn(&format!("what becomes of the locks of {node} cannot be shown: {error}"));
            Follow::default()
        }
    };
    let killed = kill(running).await?;
    witness.print_progress(
        killed.elapsed(),
        &format!("{}; {}", is_killed(running), count(&follow, locks.is_ok())),
    )?;
    let silence = watch_locks(&mut follow, witness, killed, limit).await?;
    if let Ok(losses) =
        witness.first_answer(async |client| Ok(client.operator().losses(&Read::default()).await?.value)).await
    {
        follow.explain(&losses);
    }
    show_locks(running, &follow, witness.json)?;
    if follow.is_settled() {
        return Ok(None);
    }
    Ok(Some(why_late(&follow, witness, silence).await))
}

/// Looks again and again until all is settled or the time is up; the last error, where the last
/// look had one.
async fn watch_locks(
    follow: &mut Follow,
    witness: &Witness,
    killed: Instant,
    limit: Duration,
) -> Result<Option<String>, CliError> {
    let mut silence = None;
    while !follow.is_settled() {
        let Some(left) = limit.checked_sub(killed.elapsed()) else { break };
        let looked = witness
            .first_answer(async |client| Ok(client.operator().locks("", &Read::default()).await?.value));
        silence = match timeout(left, looked).await {
            Ok(Ok(locks)) => {
                let after = killed.elapsed();
                for line in follow.look(after, &locks) {
                    witness.print_progress(after, &line)?;
                }
                None
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("no agent answers".into()),
        };
        if !follow.is_settled() {
            sleep(LOOK_INTERVAL).await;
        }
    }
    Ok(silence)
}

/// The locks that have not moved, with the reason.
async fn why_late(follow: &Follow, witness: &Witness, silence: Option<String>) -> String {
    let mut reasons: Vec<String> = silence.into_iter().collect();
    for lock in follow.locks().iter().filter(|lock| !lock.is_settled()) {
        let info = async |client: &Client| client.sessions().info(&lock.session, &Read::default()).await;
        match witness.first_answer(info).await {
            Ok(session) => reasons.push(lock.why_not(session.value.as_ref())),
            Err(error) => reasons.push(format!("the holder of {} is unknown: {error}", lock.key)),
        }
    }
    reasons.join("\n")
}

/// Kills a server and looks who leads; what has not come about in time.
async fn kill_server(
    running: &Running,
    witness: &Witness,
    limit: Duration,
) -> Result<Option<String>, CliError> {
    let name = running.name();
    let before = witness.first_answer(async |client| client.operator().servers(&Read::default()).await).await;
    let led = before.as_ref().is_ok_and(|quorum| leader(quorum) == Some(name));
    let killed = kill(running).await?;
    let role = match (&before, led) {
        (Err(error), _) => format!("who led before is not known: {error}"),
        (Ok(_), true) => "it led".into(),
        (Ok(_), false) => "it did not lead".into(),
    };
    witness.print_progress(killed.elapsed(), &format!("{}; {role}", is_killed(running)))?;
    let mut silence = "no server leads".to_string();
    while let Some(left) = limit.checked_sub(killed.elapsed()) {
        let asked = witness.first_answer(confirmed_servers);
        match timeout(left, asked).await {
            Ok(Ok(quorum)) => {
                if let Some(leader) = leader(&quorum).filter(|leader| *leader != name) {
                    let after = killed.elapsed();
                    let as_before = if led { "" } else { " as before" };
                    witness.print_progress(after, &format!("{leader} leads{as_before}"))?;
                    show_leader(running, witness.json, led, Some((leader, after)))?;
                    return Ok(None);
                }
            }
            Ok(Err(error)) => silence = error.to_string(),
            // The time is over: the last error is more useful than the timeout.
            Err(_) => {}
        }
        sleep(LOOK_INTERVAL).await;
    }
    show_leader(running, witness.json, led, None)?;
    Ok(Some(format!(
        "no leader: {silence}; a leader needs a majority of the servers; to start {name} again: {}",
        running.start_command()
    )))
}

/// The servers, by a leader that has a majority: one that has lost it believes for a while that it
/// leads.
async fn confirmed_servers(client: &Client) -> Result<Quorum, Error> {
    client.sessions().info(NOBODY, &Read::consistent()).await?;
    client.operator().servers(&Read::default()).await
}

/// Kills it; since when it is dying.
async fn kill(running: &Running) -> Result<Instant, CliError> {
    let begun = Instant::now();
    running.kill().await.map_err(CliError::failed)?;
    Ok(begun)
}

fn leader(quorum: &Quorum) -> Option<&str> {
    quorum.servers.iter().find(|server| server.leader).map(|server| server.node.as_str())
}

fn is_killed(running: &Running) -> String {
    format!("{} (pid {}) is killed", running.name(), running.number())
}

fn count(follow: &Follow, is_known: bool) -> String {
    match (follow.locks().len(), is_known) {
        (_, false) => "its locks are not known".into(),
        (0, true) => "no session of its node held a lock".into(),
        (1, true) => "sessions of its node held 1 lock".into(),
        (count, true) => format!("sessions of its node held {count} locks"),
    }
}

fn show_locks(running: &Running, follow: &Follow, json: bool) -> Result<(), CliError> {
    if json {
        let settled = follow.is_settled();
        return print_json(&json!({
            "Node": running.name(), "Pid": running.number(), "Settled": settled, "Locks": follow.locks(),
        }));
    }
    if follow.locks().is_empty() {
        return Ok(());
    }
    let mut table =
        Table::new(["Key", "Fence", "Why", "Free after", "Holder", "Node", "Fence", "Held after"]);
    for lock in follow.locks() {
        let next = lock.next.clone().unwrap_or_default();
        let holder = if next.session_name.is_empty() { next.session } else { next.session_name };
        table.row([
            lock.key.clone(),
            lock.fence.to_string(),
            lock.cause.clone(),
            lock.freed_after_ms.map(in_seconds).unwrap_or_default(),
            holder,
            next.node,
            lock.next.as_ref().map(|next| next.fence.to_string()).unwrap_or_default(),
            lock.next.as_ref().map(|next| in_seconds(next.after_ms)).unwrap_or_default(),
        ]);
    }
    table.print()
}

fn show_leader(
    running: &Running,
    json: bool,
    led: bool,
    leader: Option<(&str, Duration)>,
) -> Result<(), CliError> {
    if !json {
        return Ok(());
    }
    let after_ms = leader.map(|(_, after)| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
    print_json(&json!({
        "Node": running.name(),
        "Pid": running.number(),
        "Led": led,
        "Leader": leader.map(|(leader, _)| leader),
        "AfterMs": after_ms,
    }))
}

fn in_seconds(milliseconds: u64) -> String {
    format!("{:.2} s", Duration::from_millis(milliseconds).as_secs_f64())
}
