//! `lockmesh operator deadlocks`: circles of sessions that wait for each other's locks.

use super::super::context::{ConsistencyArgs, Context};
use super::super::error::CliError;
use super::super::instant;
use super::super::output::{OutputArgs, Table, print_line};
use lockmesh_client::shape::lockmesh::{Deadlock, DeadlockPolicy, Deadlocks};
use std::process::ExitCode;

/// List deadlocks, and choose what happens to requests that would close one
///
/// A deadlock is a circle of sessions that wait for each other's locks. The last 16 are kept. It
/// ends when one of the sessions gives up its wait, or ends: `lockmesh session destroy SESSION`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Change the policy: report them and let the requests wait, or refuse the requests
    #[arg(long, value_name = "POLICY", value_parser = ["report", "refuse"])]
    policy: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    consistency: ConsistencyArgs,
}

/// Runs the command.
///
/// # Errors
/// The agent did not reply. The policy may have been changed: the same command can be repeated.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let client = context.client()?;
    let operator = client.operator();
    if let Some(policy) = &args.policy {
        let policy = if policy == "refuse" { DeadlockPolicy::Refuse } else { DeadlockPolicy::Report };
        operator.configure_deadlocks(policy).await?;
        print_line("Configuration updated!")?;
        return Ok(ExitCode::SUCCESS);
    }
    let deadlocks = operator.deadlocks(&args.consistency.read()).await?;
    if !args.output.json {
        print_line(match deadlocks.policy {
            DeadlockPolicy::Report => "policy is report: requests that close a deadlock wait",
            DeadlockPolicy::Refuse => "policy is refuse: requests that would close a deadlock are refused",
        })?;
    }
    args.output.print(&deadlocks, table)?;
    Ok(ExitCode::SUCCESS)
}

/// One row for each session of each deadlock, newest first.
fn table(deadlocks: &Deadlocks) -> Table {
    let mut table = Table::new(["Index", "When", "State", "Waiter", "Node", "Session", "WaitsFor"]);
    for deadlock in &deadlocks.deadlocks {
        for wait in &deadlock.waits {
            table.row([
                deadlock.index.to_string(),
                instant::utc(deadlock.at_ms),
                state(deadlock).into(),
                wait.session_name.clone(),
                wait.node.clone(),
                wait.session.clone(),
                wait.waits_for.clone(),
            ]);
        }
    }
    table
}

fn state(deadlock: &Deadlock) -> &'static str {
    match (deadlock.exists, deadlock.refused) {
        (true, _) => "exists",
        (false, true) => "refused",
        (false, false) => "ended",
    }
}
