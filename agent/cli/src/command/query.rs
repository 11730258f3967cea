//! `lockmesh query`: prepared queries, managed and executed.

use super::context::{ConsistencyArgs, Context};
use super::error::CliError;
use super::kv::value::bytes_of;
use super::output::{OutputArgs, Table, host_port, pairs, print_json, print_line};
use lockmesh_client::shape::health::ServiceInstance;
use lockmesh_client::shape::prepared_query::PreparedQuery;
use lockmesh_client::shape::session::Created;
use lockmesh_client::{Error, PreparedQueries, Read};
use lockmesh_protocol::record::{Aggregate, CheckStatus};
use std::process::ExitCode;

/// Manage and execute prepared queries
///
/// A prepared query describes a service to look up, and which of its instances to return. Programs
/// execute it by its name. A template answers for all names that begin with its name.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// List all queries
    List {
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        consistency: ConsistencyArgs,
    },
    /// Create a query
    Create {
        /// JSON of the query: @FILE, - for stdin, or the JSON itself
        #[arg(value_name = "DATA")]
        data: String,
        /// Print the JSON of the agent's API
        #[arg(long)]
        json: bool,
    },
    /// Replace a query; fields that are not given are reset
    Update {
        #[command(flatten)]
        query: QueryArgs,
        /// JSON of the query: @FILE, - for stdin, or the JSON itself
        #[arg(value_name = "DATA")]
        data: String,
    },
    /// Delete a query
    Delete {
        #[command(flatten)]
        query: QueryArgs,
    },
    /// Show a query as it is stored
    Show {
        #[command(flatten)]
        query: QueryArgs,
        /// Print the JSON of the agent's API
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        consistency: ConsistencyArgs,
    },
    /// Print the instances that a query selects, in random order
    Execute {
        /// Name or ID of the query; of a template, any name that it answers for
        #[arg(value_name = "NAME")]
        name: String,
        /// Maximum number of instances
        #[arg(long, value_name = "COUNT", default_value_t = 0, hide_default_value = true)]
        limit: u64,
        /// Node to be near, or _agent for the agent's, instead of the query's own
        #[arg(long, value_name = "NODE", default_value = "", hide_default_value = true)]
        near: String,
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        consistency: ConsistencyArgs,
    },
    /// Show the query that answers for a name, with its template filled
    Explain {
        /// Name or ID of the query; of a template, any name that it answers for
        #[arg(value_name = "NAME")]
        name: String,
        /// Print the JSON of the agent's API
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        consistency: ConsistencyArgs,
    },
}

// The query that a command is about. No doc comment, which would become the help of the command.
#[derive(clap::Args, Debug)]
struct QueryArgs {
    /// ID or name of the query
    #[arg(value_name = "QUERY")]
    query: String,
}

/// Runs the command.
///
/// # Errors
/// The data cannot be read, or a request was rejected or not answered. Without an answer a write
/// may have been done: check with `query list`.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let client = context.client()?;
    let queries = client.prepared_queries();
    match args.command {
        Command::List { output, consistency } => {
            let all = queries.list(&consistency.read()).await?.value;
            output.print(&all[..], table)?;
        }
        Command::Create { data, json } => {
            let id = queries.create(bytes_of(&data, &mut std::io::stdin())?).await?;
            match json {
                true => print_json(&Created { id })?,
                false => print_line(&format!("Query ID: {id}"))?,
            }
        }
        Command::Update { query, data } => {
            let known = named(queries, &query.query, &Read::default()).await?;
            queries.update(&known.id, bytes_of(&data, &mut std::io::stdin())?).await?;
            print_line(&format!("Updated query: {}", known.id))?;
        }
        Command::Delete { query } => {
            let known = named(queries, &query.query, &Read::default()).await?;
            queries.delete(&known.id).await?;
            print_line(&format!("Deleted query: {}", known.id))?;
        }
        Command::Show { query, json, consistency } => {
            show(&named(queries, &query.query, &consistency.read()).await?, json)?;
        }
        Command::Execute { name, limit, near, output, consistency } => {
            let executed = queries.execute(&name, limit, &near, &consistency.read()).await;
            let executed = executed.map_err(|error| nothing_for(&name, error))?;
            output.print(&executed, |executed| instances(&executed.nodes))?;
        }
        Command::Explain { name, json, consistency } => {
            let explained = queries.explain(&name, &consistency.read()).await;
            show(&explained.map_err(|error| nothing_for(&name, error))?.query, json)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The query with this id or this name. Several may have no name, and none is found by it.
async fn named(queries: PreparedQueries<'_>, text: &str, read: &Read) -> Result<PreparedQuery, CliError> {
    let all = queries.list(read).await?.value;
    let is_it = |query: &&PreparedQuery| {
        query.id.eq_ignore_ascii_case(text)
            || (!text.is_empty() && query.name.to_lowercase() == text.to_lowercase())
    };
    all.iter().find(is_it).cloned().ok_or_else(|| not_found(text))
}

fn not_found(name: &str) -> CliError {
    CliError::failed(format!("query {name} not found; list queries with `lockmesh query list`"))
}

/// The error of a request about the query for a name.
fn nothing_for(name: &str, error: Error) -> CliError {
    match error {
        Error::Refused { status: 404, .. } => not_found(name),
        other => other.into(),
    }
}

fn table(queries: &[PreparedQuery]) -> Table {
    let mut table = Table::new(["ID", "Name", "Template", "Service", "Tags", "Session"]);
    for query in queries {
        table.row([
            query.id.clone(),
            query.name.clone(),
            query.template.kind.clone(),
            query.service.service.clone(),
            list(&query.service.tags),
            query.session.clone(),
        ]);
    }
    table.without_empty(&["Template", "Tags", "Session"])
}

fn show(query: &PreparedQuery, json: bool) -> Result<(), CliError> {
    if json { print_json(query) } else { details(query).print() }
}

fn details(query: &PreparedQuery) -> Table {
    let mut table = Table::new(["ID", &query.id]);
    let service = &query.service;
    let flag = |set: bool| if set { "yes".to_owned() } else { String::new() };
    let always = [("Name", query.name.clone()), ("Service", service.service.clone())];
    let others = [
        ("Session", query.session.clone()),
        ("Template", query.template.kind.clone()),
        ("Regexp", query.template.regexp.clone()),
        ("RemoveEmptyTags", flag(query.template.remove_empty_tags)),
        ("Tags", list(&service.tags)),
        ("OnlyPassing", flag(service.only_passing)),
        ("IgnoreCheckIDs", list(&service.ignore_check_ids)),
        ("NodeMeta", pairs(&service.node_meta)),
        ("ServiceMeta", pairs(&service.service_meta)),
        ("Near", service.near.clone()),
        ("Connect", flag(service.connect)),
        ("TTL", query.dns.ttl.clone()),
    ];
    let given = others.into_iter().filter(|(_, value)| !value.is_empty());
    let index = ("ModifyIndex", query.modify_index.to_string());
    for (name, value) in always.into_iter().chain(given).chain([index]) {
        table.row([name.into(), value]);
    }
    table
}

fn list(texts: &Option<Vec<String>>) -> String {
    texts.iter().flatten().map(String::as_str).collect::<Vec<_>>().join(",")
}

fn instances(instances: &[ServiceInstance]) -> Table {
    let mut table = Table::new(["Node", "Service", "Address", "Tags", "Health"]);
    for ServiceInstance { node, service, checks } in instances {
        let address = if service.address.is_empty() { &node.address } else { &service.address };
        let status = |text: &str| CheckStatus::parse(text).unwrap_or_default();
        let statuses = checks.iter().map(|check| (check.check_id.as_str(), status(&check.status)));
        table.row([
            node.node.clone(),
            service.id.clone(),
            host_port(address, service.port),
            list(&service.tags),
            Aggregate::of(statuses).as_str().into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_client::shape::catalog::{Node, Service};
    use lockmesh_client::shape::health::Check;

    fn query() -> PreparedQuery {
        let mut query = PreparedQuery { id: "q1".into(), name: "web".into(), ..PreparedQuery::default() };
        query.service.service = "web".into();
        query
    }

    #[test]
    fn a_query_fits_a_row() {
        let mut bound = query();
        bound.service.tags = Some(vec!["v1".into(), "!blue".into()]);
        let expected = "ID  Name  Service  Tags\nq1  web   web      -\nq1  web   web      v1,!blue";
        assert_eq!(table(&[query(), bound]).render(), expected);
        assert_eq!(table(&[]).render(), "ID  Name  Service");
    }

    #[test]
    fn details_omit_unset_fields() {
        let shown = details(&query()).render();
        assert_eq!(shown, "ID           q1\nName         web\nService      web\nModifyIndex  0");
        let mut more = query();
        more.service.only_passing = true;
        more.service.node_meta = Some([("rack".into(), "r1".into())].into());
        more.dns.ttl = "10s".into();
        let shown = details(&more).render();
        assert!(shown.contains("OnlyPassing  yes\nNodeMeta     rack=r1\nTTL          10s"), "{shown}");
    }

    #[test]
    fn instance_inherits_node_address() {
        let node = Node { node: "n1".into(), address: "10.0.0.7".into(), ..Node::default() };
        let service = Service { id: "web-1".into(), port: 80, ..Service::default() };
        let check = Check { check_id: "c".into(), status: "warning".into(), ..Check::default() };
        let instance = ServiceInstance { node, service, checks: vec![check] };
        let expected = "Node  Service  Address      Tags  Health\nn1    web-1    10.0.0.7:80  -     warning";
        assert_eq!(instances(&[instance]).render(), expected);
    }

    #[test]
    fn unknown_query_error_suggests_list() {
        let refused = |status| Error::Refused { status, text: "Query not found".into() };
        let text = nothing_for("web", refused(404)).to_string();
        assert_eq!(text, "query web not found; list queries with `lockmesh query list`");
        assert!(nothing_for("web", refused(500)).to_string().contains("Query not found"));
    }
}
