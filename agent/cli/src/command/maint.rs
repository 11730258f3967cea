//! `lockmesh maint`: maintenance of this node and of its services, with the words of `consul
//! maint`.

use super::context::Context;
use super::error::CliError;
use super::output::{Table, TableArgs, print_json, print_line};
use super::services::not_found;
use lockmesh_client::shape::health::Check;
use lockmesh_protocol::record::is_maintenance;
use std::process::ExitCode;

/// Put this node or a service into maintenance, or list what is in maintenance
///
/// In maintenance, the node or the service has a critical check, also after a restart of the agent.
#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("change").args(["enable", "disable"]))]
pub struct Args {
    /// Begin maintenance
    #[arg(long)]
    enable: bool,
    /// End maintenance
    #[arg(long)]
    disable: bool,
    /// Reason, shown to operators
    #[arg(long, value_name = "TEXT", requires = "enable", conflicts_with = "disable")]
    reason: Option<String>,
    /// Service ID [default: the whole node]
    #[arg(long, value_name = "ID", requires = "change")]
    service: Option<String>,
    /// Print the JSON of the agent's API
    #[arg(long, conflicts_with = "change")]
    json: bool,
    #[command(flatten)]
    table: TableArgs,
}

/// Runs the command.
///
/// # Errors
/// The request was rejected or not answered. Without an answer its outcome is unknown; repeat it.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let client = context.client()?;
    let agent = client.agent();
    let reason = args.enable.then(|| args.reason.unwrap_or_default());
    let word = if args.enable { "enabled" } else { "disabled" };
    match (args.enable || args.disable, args.service) {
        (true, Some(service)) => {
            let changed = agent.maintain_service(&service, reason.as_deref()).await;
            changed.map_err(|error| not_found(&service, error))?;
            print_line(&format!("Service maintenance is now {word} for {service:?}"))?;
        }
        (true, None) => {
            agent.maintain(reason.as_deref()).await?;
            print_line(&format!("Node maintenance is now {word}"))?;
        }
        (false, _) => {
            let mut checks: Vec<Check> = agent.checks().await?.into_values().collect();
            checks.retain(|check| is_maintenance(&check.check_id));
            match args.json {
                true => print_json(&checks)?,
                false => args.table.print(&table(&checks))?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn table(checks: &[Check]) -> Table {
    let mut table = Table::new(["Kind", "ID", "Reason"]);
    for check in checks {
        let (kind, id) = match check.service_id.is_empty() {
            true => ("node", &check.node),
            false => ("service", &check.service_id),
        };
        table.row([kind.into(), id.clone(), check.notes.clone()]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_maintenance_with_reason() {
        let check = |id: &str, service: &str, reason: &str| Check {
            node: "n1".into(),
            check_id: id.into(),
            service_id: service.into(),
            notes: reason.into(),
            ..Check::default()
        };
        let mut checks = vec![
            check("_node_maintenance", "", "new disk"),
            check("_service_maintenance:web-1", "web-1", ""),
            check("service:web-1", "web-1", "a description"),
        ];
        checks.retain(|check| is_maintenance(&check.check_id));
        let expected = "Kind     ID     Reason\nnode     n1     new disk\nservice  web-1  -";
        assert_eq!(table(&checks).render(), expected);
    }
}
