//! `lockmesh session`: creates, shows, renews and ends sessions.

use super::context::{ConsistencyArgs, Context};
use super::error::CliError;
use super::lock::window_parser;
use super::node_lease::{deadline, last_heard, suspected_by};
use super::output::{OutputArgs, Table, print_json, print_line};
use lockmesh_client::shape::agent::NodeLease;
use lockmesh_client::shape::session::{NewSession, ServiceCheck, Session};
use lockmesh_client::{Client, HealthWindow, Read};
use lockmesh_protocol::duration;
use std::process::ExitCode;
use std::time::Duration;

/// Create, show, renew and end sessions
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Create(CreateArgs),
    /// List sessions
    List {
        /// Only sessions of this node
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        consistency: ConsistencyArgs,
    },
    /// Show one session
    Info {
        /// Session ID
        #[arg(value_name = "ID")]
        id: String,
        /// Print the JSON of the agent's API
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        consistency: ConsistencyArgs,
    },
    /// Renew a session once; its TTL starts again
    Renew {
        /// Session ID
        #[arg(value_name = "ID")]
        id: String,
        /// Print the JSON of the agent's API
        #[arg(long)]
        json: bool,
    },
    /// End a session; its keys are released or deleted, and not granted again for its lock-delay
    Destroy {
        /// Session ID
        #[arg(value_name = "ID")]
        id: String,
    },
}

/// Create a session and print its id
///
/// The session ends if it is destroyed, one of its checks turns critical, its node fails or leaves,
/// or its TTL expires without a renewal.
#[derive(clap::Args, Debug, Default)]
struct CreateArgs {
    /// Session name, shown to operators; need not be unique
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Node of the session [default: the agent's]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Time after its end during which its keys are not granted again; 0s for none [default: 15s]
    #[arg(long, value_name = "DURATION")]
    lock_delay: Option<String>,
    /// Action on its keys at its end: release or delete [default: release]
    #[arg(long, value_name = "ACTION", value_parser = ["release", "delete"], hide_possible_values = true)]
    behavior: Option<String>,
    /// Lifetime without a renewal [default: unlimited]
    #[arg(long, value_name = "DURATION")]
    ttl: Option<String>,
    /// Node check that ends the session if critical; repeatable [default: serfHealth]
    #[arg(long = "node-check", value_name = "ID")]
    node_checks: Vec<String>,
    /// Host-failure timeout with serfHealth: fast 1.5s, default 5s, safe 15s [default: the agent's]
    #[arg(long, value_name = "WINDOW", value_parser = window_parser(), hide_possible_values = true)]
    window: Option<HealthWindow>,
    /// Service check that ends the session if critical; repeatable
    #[arg(long = "service-check", value_name = "ID")]
    service_checks: Vec<String>,
    /// Depend on no node check
    #[arg(long, conflicts_with = "node_checks")]
    no_node_checks: bool,
    /// Process of this user that ends the session when it exits, without lock-delay by default
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Print the JSON of the agent's API
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// The request was rejected or not answered. Without an answer its outcome is unknown: check with
/// `session list`.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let client = context.client()?;
    let sessions = client.sessions();
    match args.command {
        Command::Create(args) => create(args, &client).await?,
        Command::List { node, output, consistency } => {
            let read = consistency.read();
            let found = match node {
                Some(node) => sessions.of_node(&node, &read).await?.value,
                None => sessions.list(&read).await?.value,
            };
            output.print(&found[..], table)?;
        }
        Command::Info { id, json, consistency } => {
            let found = sessions.info_with_lease(&id, &consistency.read()).await?.value;
            print_session(found, &id, json)?;
        }
        Command::Renew { id, json } => print_session(sessions.renew(&id).await?, &id, json)?,
        Command::Destroy { id } => {
            // Consul's API accepts any id; a person has mistyped it.
            if sessions.info(&id, &Read::default()).await?.value.is_none() {
                return Err(not_found(&id));
            }
            sessions.destroy(&id).await?;
            print_line(&format!("Destroyed: {id}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn create(args: CreateArgs, client: &Client) -> Result<(), CliError> {
    let json = args.json;
    let id = client.sessions().create(&new_session(args)).await?;
    match json {
        true => print_json(&serde_json::json!({ "ID": id })),
        false => print_line(&id),
    }
}

fn new_session(args: CreateArgs) -> NewSession {
    let service_check = |id| ServiceCheck { id, ..ServiceCheck::default() };
    let service_checks: Vec<_> = args.service_checks.into_iter().map(service_check).collect();
    NewSession {
        name: args.name,
        node: args.node,
        lock_delay: args.lock_delay,
        behavior: args.behavior,
        ttl: args.ttl,
        // An empty list means no check, a missing list the default.
        node_checks: (args.no_node_checks || !args.node_checks.is_empty()).then_some(args.node_checks),
        service_checks: (!service_checks.is_empty()).then_some(service_checks),
        health_window: args.window.map(|window| window.as_str().into()),
        pid: args.pid,
        ..NewSession::default()
    }
}

fn print_session(session: Option<Session>, id: &str, json: bool) -> Result<(), CliError> {
    let Some(session) = session else {
        return Err(not_found(id));
    };
    match json {
        true => print_json(&session),
        false => details(&session).print(),
    }
}

fn not_found(id: &str) -> CliError {
    CliError::failed(format!("session {id} not found; list sessions with `lockmesh session list`"))
}

fn table(sessions: &[Session]) -> Table {
    let mut table = Table::new(["ID", "Name", "Node", "TTL", "Behavior", "LockDelay", "Checks", "Window"]);
    for session in sessions {
        table.row([
            session.id.clone(),
            session.name.clone(),
            session.node.clone(),
            session.ttl.clone(),
            session.behavior.clone(),
            lock_delay(session),
            checks(session),
            window(session),
        ]);
    }
    table
}

fn details(session: &Session) -> Table {
    let mut table = Table::new(["ID", &session.id]);
    let rows = [
        ("Name", session.name.clone()),
        ("Node", session.node.clone()),
        ("TTL", session.ttl.clone()),
        ("Behavior", session.behavior.clone()),
        ("LockDelay", lock_delay(session)),
        ("Checks", checks(session)),
        ("Window", window(session)),
        ("CreateIndex", session.create_index.to_string()),
    ];
    let lease = session.node_lease.as_ref().map(lease_rows).unwrap_or_default();
    for (name, value) in rows.into_iter().chain(lease) {
        table.row([name.into(), value]);
    }
    table
}

/// Rows about the lease of its node; suspicions only if there are any.
fn lease_rows(lease: &NodeLease) -> Vec<(&'static str, String)> {
    let suspected_by = Some(("Suspected by", suspected_by(lease))).filter(|(_, nodes)| !nodes.is_empty());
    let rows =
        [("Lease", lease.id.clone()), ("Deadline", deadline(lease)), ("Last heard", last_heard(lease))];
    rows.into_iter().chain(suspected_by).collect()
}

fn lock_delay(session: &Session) -> String {
    duration::format(Duration::from_nanos(u64::try_from(session.lock_delay).unwrap_or(0)))
}

fn checks(session: &Session) -> String {
    let services = session.service_checks.iter().flatten().map(|check| &check.id);
    let all = session.node_checks.iter().chain(&session.checks).chain(services);
    all.map(String::as_str).collect::<Vec<_>>().join(",")
}

/// The health window of its node; empty if node failures do not end the session.
fn window(session: &Session) -> String {
    let is_bound = checks(session).split(',').any(|check| check == "serfHealth");
    match session.health_window.as_str() {
        _ if !is_bound => String::new(),
        "" => HealthWindow::Default.as_str().into(),
        word => word.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unspecified_fields_left_to_agent() {
        assert_eq!(new_session(CreateArgs::default()), NewSession::default());
        let none = new_session(CreateArgs { no_node_checks: true, ..CreateArgs::default() });
        assert_eq!(none.node_checks, Some(vec![]));
        let some = new_session(CreateArgs { service_checks: vec!["web".into()], ..CreateArgs::default() });
        let fast = new_session(CreateArgs { window: Some(HealthWindow::Fast), ..CreateArgs::default() });
        assert_eq!(fast.health_window.as_deref(), Some("fast"));
        assert_eq!(some.service_checks.map(|checks| checks[0].id.clone()), Some("web".into()));
    }

    #[test]
    fn a_session_fits_a_row() {
        let session = Session {
            id: "s1".into(),
            node: "n1".into(),
            behavior: "release".into(),
            lock_delay: 15_000_000_000,
            node_checks: vec!["serfHealth".into()],
            service_checks: Some(vec![ServiceCheck { id: "web".into(), ..ServiceCheck::default() }]),
            ..Session::default()
        };
        let expected = "ID  Name  Node  TTL  Behavior  LockDelay  Checks          Window\n\
                        s1  -     n1    -    release   15s        serfHealth,web  default";
        assert_eq!(table(&[session]).render(), expected);
    }

    #[test]
    fn details_include_known_node_lease() {
        let unknown = Session { id: "s1".into(), node: "n1".into(), ..Session::default() };
        let shown = details(&unknown).render();
        assert!(shown.ends_with("CreateIndex  0"), "{shown}");
        let none = Session { node_lease: Some(NodeLease::default()), ..unknown.clone() };
        let shown = details(&none).render();
        assert!(shown.ends_with("Lease        -\nDeadline     -\nLast heard   -"), "{shown}");
        let lease = NodeLease {
            id: "3-17".into(),
            health_window: "safe".into(),
            deadline_in_ms: Some(0),
            last_heard_ago_ms: Some(17_000),
            servers_unreachable: false,
            probes_fail: false,
            suspected_by: vec!["n2".into()],
        };
        let shown = details(&Session { node_lease: Some(lease), ..unknown }).render();
        let expected = "Lease         3-17\nDeadline      over\nLast heard    17.0s ago\nSuspected by  n2";
        assert!(shown.ends_with(expected), "{shown}");
    }
}
