//! `?near=`: sorts rows by the estimated round trip time from a node, as `/v1/coordinate` has it.
//!
//! The rows of nodes without a coordinate come last, and rows of the same distance keep their
//! order. If the node to start from has no coordinate, all rows keep their order.

use super::answer::Failure;
use super::call::{Call, ReadOptions};
use lockmesh_client::shape::catalog::{Node, ServiceNode};
use lockmesh_client::shape::health::{Check, ServiceInstance};
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::query::{Query, Rows};
use lockmesh_protocol::record::Coordinate;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// A row that belongs to a node.
pub(super) trait OfNode {
    /// Returns the name of the node.
    fn node_name(&self) -> &str;
}

impl OfNode for Node {
    fn node_name(&self) -> &str {
        &self.node
    }
}

impl OfNode for ServiceNode {
    fn node_name(&self) -> &str {
        &self.node
    }
}

impl OfNode for ServiceInstance {
    fn node_name(&self) -> &str {
        &self.node.node
    }
}

impl OfNode for Check {
    fn node_name(&self) -> &str {
        &self.node
    }
}

/// Sorts rows by their distance from the node that the request names with `?near=`. Nothing is
/// read without it.
pub(super) async fn sort_as_requested<T: OfNode>(
    call: &Call<'_>,
    options: ReadOptions,
    rows: &mut [T],
) -> Result<(), Failure> {
    match call.params.non_empty("near") {
        Some(near) => sort(call, options, near, rows).await,
        None => Ok(()),
    }
}

/// Sorts rows by their distance from a node: `_agent` is the agent's own, `_ip` that of the
/// client's address, anything else a name.
pub(super) async fn sort<T: OfNode>(
    call: &Call<'_>,
    options: ReadOptions,
    near: &str,
    rows: &mut [T],
) -> Result<(), Failure> {
    if rows.len() < 2 {
        return Ok(());
    }
    // The rows are those of now, whatever they were waited for.
    let now = ReadOptions { blocking: None, ..options };
    let origin = match near {
        "_agent" => call.api.identity.node.clone(),
        "_ip" => node_of_client(call, now).await?,
        name => NodeName::from(name),
    };
    let answer = call.read(Query::Coordinates, now, None).await?;
    // A server of an earlier build knows no coordinates.
    let Rows::Coordinates(coordinates) = &answer.rows else { return Ok(()) };
    sort_from(&origin, coordinates, rows);
    Ok(())
}

fn sort_from<T: OfNode>(origin: &NodeName, coordinates: &[(NodeName, Arc<Coordinate>)], rows: &mut [T]) {
    let of_node: BTreeMap<NodeName, &Coordinate> =
        coordinates.iter().map(|(node, coordinate)| (node.folded(), &**coordinate)).collect();
    let Some(from) = of_node.get(&origin.folded()) else { return };
    rows.sort_by_cached_key(|row| {
        let to = of_node.get(&NodeName::from(row.node_name()).folded());
        to.map_or(Duration::MAX, |to| from.distance_to(to))
    });
}

/// Returns the node with the client's address: the agent's own for a client on its host, and if no
/// node has this address.
async fn node_of_client(call: &Call<'_>, options: ReadOptions) -> Result<NodeName, Failure> {
    let own = call.api.identity.node.clone();
    let Some(ip) = call.peer.ip().map(|ip| ip.to_canonical()).filter(|ip| !ip.is_loopback()) else {
        return Ok(own);
    };
    let answer = call.read(Query::Nodes, options, None).await?;
    let Rows::Nodes(nodes) = &answer.rows else { return Ok(own) };
    let found = nodes.iter().find(|node| node.address.parse::<IpAddr>().is_ok_and(|address| address == ip));
    Ok(found.map_or(own, |node| node.name.clone()))
}
