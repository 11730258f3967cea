//! `lockmesh services`: the services of this agent, registered, deregistered and listed with their
//! health. `definition.rs` reads their definitions from options and files.

mod definition;

use super::context::Context;
use super::error::CliError;
use super::output::{Table, TableArgs, host_port, print_json, print_line};
use definition::{DefinitionArgs, of_files};
use lockmesh_client::shape::agent::{NewService, ServiceHealth};
use lockmesh_client::shape::health::Check;
use lockmesh_client::{Agent, Error};
use lockmesh_protocol::record::{Aggregate, CheckStatus};
use std::path::PathBuf;
use std::process::ExitCode;

/// Register, deregister and list the services of this agent
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Register services with this agent, which keeps them across restarts
    ///
    /// A FILE is JSON or TOML, with one `service` or a list of `services`, with the fields of
    /// `[[services]]` in `agent.toml`.
    Register(DefinitionArgs),
    /// Deregister services from this agent, with their checks
    Deregister {
        /// Service ID
        #[arg(long, value_name = "ID", required_unless_present = "files")]
        id: Option<String>,
        /// Files that defined the services
        #[arg(value_name = "FILE", conflicts_with = "id")]
        files: Vec<PathBuf>,
    },
    /// List the services of this agent with their health
    List {
        /// Only services that this filter selects, such as 'Service == web and "v1" in Tags'
        #[arg(long, value_name = "FILTER", default_value = "", hide_default_value = true)]
        filter: String,
        /// Print the JSON of the agent's API, with checks
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        table: TableArgs,
    },
}

/// Runs the command.
///
/// # Errors
/// A file cannot be read, or a request was rejected or not answered. The services that were printed
/// are done; run the command again for the others.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let client = context.client()?;
    let agent = client.agent();
    match args.command {
        Command::Register(args) => {
            for service in args.services()? {
                let registered = agent.register_service(&service).await;
                registered.map_err(|error| not_registered(&service.name, error))?;
                print_line(&format!("Registered service: {}", service.name))?;
            }
        }
        Command::Deregister { id, files } => {
            let ids: Vec<String> = match id {
                Some(id) => vec![id],
                None => of_files(&files)?.into_iter().map(id_of).collect(),
            };
            for id in ids {
                agent.deregister_service(&id).await?;
                print_line(&format!("Deregistered service: {id}"))?;
            }
        }
        Command::List { filter, json, table: layout } => {
            let services = services(agent, &filter).await?;
            match json {
                true => print_json(&services)?,
                false => layout.print(&table(&services))?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn id_of(service: NewService) -> String {
    if service.id.is_empty() { service.name } else { service.id }
}

fn not_registered(name: &str, error: Error) -> CliError {
    match error {
        Error::Refused { text, .. } => {
            let reason = text.trim_start_matches("Request decode failed: ");
            CliError::failed(format!("cannot register service {name}: {reason}"))
        }
        other => other.into(),
    }
}

/// The error of a request about one service.
pub(super) fn not_found(id: &str, error: Error) -> CliError {
    match error {
        Error::Refused { status: 404, .. } => CliError::failed(format!(
            "service {id} not found on this agent; list the ids of its services with `lockmesh services list`"
        )),
        other => other.into(),
    }
}

/// The selected services of the agent, with the checks that decide their health.
async fn services(agent: Agent<'_>, filter: &str) -> Result<Vec<ServiceHealth>, Error> {
    let (services, checks) = (agent.filter(filter).services().await?, agent.checks().await?);
    let health = |service: lockmesh_client::shape::agent::Service| {
        // As in Consul, a check of the node counts for each of its services.
        let is_its_own = |check: &&Check| check.service_id.is_empty() || check.service_id == service.id;
        let checks: Vec<Check> = checks.values().filter(is_its_own).cloned().collect();
        let status = |check: &Check| CheckStatus::parse(&check.status);
        let statuses = checks.iter().filter_map(|check| Some((check.check_id.as_str(), status(check)?)));
        ServiceHealth {
            aggregated_status: Aggregate::of(statuses).as_str().into(),
            service: Some(service),
            checks: Some(checks),
        }
    };
    Ok(services.into_values().map(health).collect())
}

fn table(services: &[ServiceHealth]) -> Table {
    let mut table = Table::new(["ID", "Name", "Address", "Tags", "Health"]);
    for health in services {
        let Some(service) = &health.service else { continue };
        table.row([
            service.id.clone(),
            service.service.clone(),
            host_port(&service.address, service.port),
            service.tags.join(","),
            health.aggregated_status.clone(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_client::shape::agent::Service;

    #[test]
    fn a_service_fits_a_row() {
        let health = |id: &str, address: &str, port, status: &str| ServiceHealth {
            aggregated_status: status.into(),
            service: Some(Service {
                id: id.into(),
                service: "web".into(),
                address: address.into(),
                port,
                tags: vec!["v1".into(), "eu".into()],
                ..Service::default()
            }),
            checks: None,
        };
        let expected = "ID     Name  Address        Tags   Health\n\
                        web-1  web   10.0.0.7:8080  v1,eu  passing\n\
                        web-2  web   [::1]:80       v1,eu  critical\n\
                        web-3  web   :9090          v1,eu  warning\n\
                        web-4  web   -              v1,eu  maintenance";
        let services = [
            health("web-1", "10.0.0.7", 8080, "passing"),
            health("web-2", "::1", 80, "critical"),
            health("web-3", "", 9090, "warning"),
            health("web-4", "", 0, "maintenance"),
        ];
        assert_eq!(table(&services).render(), expected);
    }

    #[test]
    fn unknown_service_error_suggests_list() {
        let refused = |status| Error::Refused { status, text: "No service registered with ID \"x\"".into() };
        let text = not_found("x", refused(404)).to_string();
        assert!(
            text.starts_with("service x not found") && text.ends_with("`lockmesh services list`"),
            "{text}"
        );
        assert!(not_found("x", refused(400)).to_string().contains("No service registered"));
        assert!(not_registered("web", refused(400)).to_string().starts_with("cannot register service web: "));
    }
}
