//! `lockmesh operator autopilot`: the leader's management of servers, and their health.

use super::super::context::Context;
use super::super::error::CliError;
use super::super::output::{OutputArgs, Table, TableArgs, print_json, print_line};
use lockmesh_client::shape::operator::{AutopilotConfiguration, AutopilotHealth};
use lockmesh_protocol::duration;
use std::process::ExitCode;
use std::time::Duration;

/// Show and change the management of servers
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Show the autopilot configuration
    GetConfig {
        /// Print the JSON of the agent's API
        #[arg(long)]
        json: bool,
    },
    SetConfig(SetArgs),
    /// Show the health of the servers; exit code 1 if one is not healthy
    Health {
        #[command(flatten)]
        output: OutputArgs,
    },
}

/// Change the autopilot configuration; values that are not given are kept
#[derive(clap::Args, Debug)]
#[command(override_usage = "lockmesh operator autopilot set-config <OPTIONS>")]
#[command(group = clap::ArgGroup::new("change").required(true).multiple(true))]
struct SetArgs {
    /// Remove a dead server when a new one has replaced it
    #[arg(long, value_name = "BOOL", group = "change", hide_possible_values = true)]
    cleanup_dead_servers: Option<bool>,
    /// Time without contact after which a server is unhealthy: 10ms to 1h
    #[arg(long, value_name = "DURATION", group = "change", value_parser = duration::parse)]
    last_contact_threshold: Option<Duration>,
    /// Maximum lag of a healthy server's log, in entries
    #[arg(long, value_name = "COUNT", group = "change", value_parser = clap::value_parser!(u64).range(1..))]
    max_trailing_logs: Option<u64>,
    /// Minimum number of voters that a removal leaves; 0 for no limit
    #[arg(long, value_name = "COUNT", group = "change")]
    min_quorum: Option<u16>,
    /// Time that a new server must be healthy before it votes: at most 1h
    #[arg(long, value_name = "DURATION", group = "change", value_parser = duration::parse)]
    server_stabilization_time: Option<Duration>,
}

/// Runs the command.
///
/// # Errors
/// The agent did not reply, or another operator changed the configuration meanwhile: read it, and
/// retry.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let client = context.client()?;
    let operator = client.operator();
    match args.command {
        Command::GetConfig { json } => {
            let configuration = operator.autopilot().await?;
            match json {
                true => print_json(&configuration)?,
                false => print_line(&shown(&configuration))?,
            }
        }
        Command::SetConfig(args) => {
            // It carries its index: another operator's concurrent change is not overwritten.
            let configuration = args.changed(operator.autopilot().await?);
            if !operator.configure_autopilot(&configuration).await? {
                return Err(CliError::failed("the configuration was changed concurrently; retry"));
            }
            print_line("Configuration updated!")?;
        }
        Command::Health { output } => {
            let health = operator.autopilot_health().await?;
            match output.json {
                true => print_json(&health)?,
                false => print_health(&health, output.table)?,
            }
            return Ok(if health.healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl SetArgs {
    fn changed(&self, mut configuration: AutopilotConfiguration) -> AutopilotConfiguration {
        if let Some(cleanup) = self.cleanup_dead_servers {
            configuration.cleanup_dead_servers = cleanup;
        }
        if let Some(threshold) = self.last_contact_threshold {
            configuration.last_contact_threshold = duration::format(threshold);
        }
        if let Some(count) = self.max_trailing_logs {
            configuration.max_trailing_logs = count;
        }
        if let Some(count) = self.min_quorum {
            configuration.min_quorum = count.into();
        }
        if let Some(time) = self.server_stabilization_time {
            configuration.server_stabilization_time = duration::format(time);
        }
        configuration
    }
}

fn shown(configuration: &AutopilotConfiguration) -> String {
    format!(
        "CleanupDeadServers = {}\nLastContactThreshold = {}\nMaxTrailingLogs = {}\nMinQuorum = {}\n\
         ServerStabilizationTime = {}",
        configuration.cleanup_dead_servers,
        configuration.last_contact_threshold,
        configuration.max_trailing_logs,
        configuration.min_quorum,
        configuration.server_stabilization_time,
    )
}

fn print_health(health: &AutopilotHealth, layout: TableArgs) -> Result<(), CliError> {
    let mut table = Table::new([
        "Node",
        "Address",
        "State",
        "Voter",
        "Version",
        "LastContact",
        "LastIndex",
        "Healthy",
        "StableSince",
    ]);
    let mut servers: Vec<_> = health.servers.iter().collect();
    servers.sort_by_key(|server| &server.name);
    for server in servers {
        table.row([
            server.name.clone(),
            server.address.clone(),
            if server.leader { "leader".into() } else { "follower".into() },
            server.voter.to_string(),
            server.version.clone(),
            server.last_contact.clone(),
            server.last_index.to_string(),
            server.healthy.to_string(),
            server.stable_since.clone(),
        ]);
    }
    layout.print(&table)?;
    print_line(&match (health.healthy, health.failure_tolerance) {
        (true, 0) => "All servers are healthy; failure tolerance is 0.".into(),
        (true, count) => format!("All servers are healthy; failure tolerance is {count}."),
        (false, count) => format!("Cluster degraded: failure tolerance is {count}."),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unspecified_settings_kept() {
        let before = AutopilotConfiguration {
            cleanup_dead_servers: true,
            last_contact_threshold: "200ms".into(),
            max_trailing_logs: 250,
            server_stabilization_time: "1s".into(),
            modify_index: 7,
            ..AutopilotConfiguration::default()
        };
        let args = SetArgs {
            cleanup_dead_servers: Some(false),
            last_contact_threshold: None,
            max_trailing_logs: None,
            min_quorum: Some(3),
            server_stabilization_time: Some(Duration::from_secs(90)),
        };
        let expected = "CleanupDeadServers = false\nLastContactThreshold = 200ms\nMaxTrailingLogs = 250\n\
                        MinQuorum = 3\nServerStabilizationTime = 1m30s";
        let after = args.changed(before);
        assert_eq!((shown(&after).as_str(), after.modify_index), (expected, 7));
    }
}
