//! `lockmesh catalog`: the nodes, services and datacenters of the cluster.

use super::context::{ConsistencyArgs, Context};
use super::error::CliError;
use super::output::{OutputArgs, Table, TableArgs, pairs, print_json, print_line, warn};
use lockmesh_client::shape::catalog::{Node, ServiceNode};
use lockmesh_client::{Catalog, Read};
use std::collections::BTreeMap;
use std::process::ExitCode;

/// List the nodes, services and datacenters of the cluster
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// List the names of all services
    Services {
        /// Print the tags too
        #[arg(long)]
        tags: bool,
        /// Only services of this node
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
        /// Only services with an instance that this filter selects, such as
        /// '"v1" in ServiceTags'; with --node, only services that it selects, such as
        /// '"v1" in Tags'
        #[arg(long, value_name = "FILTER", default_value = "", hide_default_value = true)]
        filter: String,
        /// Print the JSON of the agent's API, with tags
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        table: TableArgs,
        #[command(flatten)]
        consistency: ConsistencyArgs,
    },
    /// List the nodes
    Nodes {
        /// Only nodes with this service
        #[arg(long, value_name = "NAME")]
        service: Option<String>,
        /// Only nodes that this filter selects, such as 'Meta.rack == r1'; with --service, only
        /// nodes with an instance that it selects, such as 'NodeMeta.rack == r1'
        #[arg(long, value_name = "FILTER", default_value = "", hide_default_value = true)]
        filter: String,
        /// Nearest nodes first, by the estimated round trip time from this node; _agent is the
        /// agent's own
        #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
        near: String,
        /// Print addresses by tag and metadata too
        #[arg(long)]
        detailed: bool,
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        consistency: ConsistencyArgs,
    },
    /// List the datacenters
    Datacenters {
        /// Print the JSON of the agent's API
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command.
///
/// # Errors
/// The agent did not reply, or the output has no reader. Nothing was changed; retry.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let client = context.client()?;
    match args.command {
        Command::Services { tags, node, filter, json, table: layout, consistency } => {
            let (catalog, read) = (client.catalog().filter(&filter), consistency.read());
            let services = match node {
                Some(node) => services_of_node(catalog, &node, &read).await?,
                None => catalog.services(&read).await?.value,
            };
            match (json, tags) {
                (true, _) => print_json(&services)?,
                (false, true) => layout.print(&tag_table(&services))?,
                (false, false) => services.keys().try_for_each(|name| print_line(name))?,
            }
        }
        Command::Nodes { service, filter, near, detailed, output, consistency } => {
            let (catalog, read) = (client.catalog().filter(&filter).near(&near), consistency.read());
            let nodes = match &service {
                Some(service) => nodes_of(catalog.service(service, &read).await?.value),
                None => catalog.nodes(&read).await?.value,
            };
            output.print(&nodes, |nodes| node_table(nodes, detailed))?;
            // As in Consul, an unknown service has an empty list: a typo would go unnoticed.
            if let Some(service) = service.filter(|_| nodes.is_empty()) {
                warn(&format!(
                    "no node has service {service}; list services with `lockmesh catalog services`"
                ));
            }
        }
        Command::Datacenters { json } => {
            let datacenters = client.catalog().datacenters().await?;
            match json {
                true => print_json(&datacenters)?,
                false => datacenters.iter().try_for_each(|name| print_line(name))?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The names of a node's services, with the tags of all its instances.
async fn services_of_node(
    catalog: Catalog<'_>,
    node: &str,
    read: &Read,
) -> Result<BTreeMap<String, Vec<String>>, CliError> {
    let found = catalog.node(node, read).await?.value.ok_or_else(|| {
        CliError::failed(format!("node {node} not found; list nodes with `lockmesh catalog nodes`"))
    })?;
    let mut services: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for service in found.services.into_values() {
        let tags = services.entry(service.service).or_default();
        tags.extend(service.tags.unwrap_or_default());
        tags.sort();
        tags.dedup();
    }
    Ok(services)
}

/// The nodes of a service's instances, each once. The instances of a node are adjacent.
fn nodes_of(instances: Vec<ServiceNode>) -> Vec<Node> {
    let mut nodes: Vec<Node> = instances
        .into_iter()
        .map(|instance| Node {
            id: instance.id,
            node: instance.node,
            address: instance.address,
            datacenter: instance.datacenter,
            tagged_addresses: instance.tagged_addresses,
            meta: instance.node_meta,
            create_index: instance.create_index,
            modify_index: instance.modify_index,
        })
        .collect();
    nodes.dedup_by(|one, other| one.node == other.node);
    nodes
}

fn tag_table(services: &BTreeMap<String, Vec<String>>) -> Table {
    let mut table = Table::new(["Service", "Tags"]);
    for (name, tags) in services {
        table.row([name.clone(), tags.join(",")]);
    }
    table
}

fn node_table(nodes: &[Node], detailed: bool) -> Table {
    let mut table = match detailed {
        true => Table::new(["Node", "ID", "Address", "DC", "TaggedAddresses", "Meta"]),
        false => Table::new(["Node", "ID", "Address", "DC"]),
    };
    for node in nodes {
        let (name, address, datacenter) = (node.node.clone(), node.address.clone(), node.datacenter.clone());
        match detailed {
            true => table.row([
                name,
                node.id.clone(),
                address,
                datacenter,
                pairs(&node.tagged_addresses),
                pairs(&node.meta),
            ]),
            // The first group of the UUID, as `consul catalog nodes` shows it.
            false => {
                let id = node.id.split('-').next().unwrap_or_default().to_owned();
                table.row([name, id, address, datacenter]);
            }
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_fits_a_row() {
        let node = Node {
            id: "23cc4a7e-8aef-a56b-7cd5-8c82fa16a93a".into(),
            node: "n1".into(),
            address: "10.0.0.7".into(),
            datacenter: "dc1".into(),
            tagged_addresses: Some([("lan".into(), "10.0.0.7".into())].into()),
            ..Node::default()
        };
        let expected = "Node  ID        Address   DC\nn1    23cc4a7e  10.0.0.7  dc1";
        assert_eq!(node_table(std::slice::from_ref(&node), false).render(), expected);
        let detailed = node_table(&[node], true).render();
        assert!(detailed.ends_with("-8c82fa16a93a  10.0.0.7  dc1  lan=10.0.0.7     -"), "{detailed}");
    }

    #[test]
    fn nodes_deduplicated_across_instances() {
        let instance = |node: &str, id: &str| ServiceNode {
            node: node.into(),
            service_id: id.into(),
            ..ServiceNode::default()
        };
        let nodes = nodes_of(vec![instance("n1", "a"), instance("n1", "b"), instance("n2", "a")]);
        assert_eq!(nodes.iter().map(|node| node.node.as_str()).collect::<Vec<_>>(), ["n1", "n2"]);
    }

    #[test]
    fn services_listed_with_tags() {
        let services = [("consul".to_owned(), vec![]), ("web".to_owned(), vec!["eu".into(), "v1".into()])];
        assert_eq!(tag_table(&services.into()).render(), "Service  Tags\nconsul   -\nweb      eu,v1");
    }
}
