//! `?near=`: sorts rows by the estimated round trip time from a node, as `/v1/coordinate` has it.
//!
//! The rows of nodes without a coordinate come last, and rows of the same distance keep their
//! order. If the node to start from has no coordinate, all rows keep their order.
//!
//! A sorted list is read to its end first, so its length has a limit.

use super::answer::Failure;
use super::call::{Call, ReadOptions};
use super::listing::joined;
use crate::upstream::parts::Part;
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::query::{Instance, Query, Rows};
use lockmesh_protocol::record::{Check, Coordinate, Node};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// A row that belongs to a node.
pub(super) trait OfNode {
    /// Returns the name of the node.
    fn node_name(&self) -> &NodeName;
}

impl OfNode for Arc<Node> {
    fn node_name(&self) -> &NodeName {
        &self.name
    }
}

impl OfNode for Arc<Check> {
    fn node_name(&self) -> &NodeName {
        &self.node
    }
}

impl OfNode for Instance {
    fn node_name(&self) -> &NodeName {
        &self.node.name
    }
}

impl OfNode for &Instance {
    fn node_name(&self) -> &NodeName {
        &self.node.name
    }
}

/// Sorts a list by its distance from the node that the request names with `?near=`: all answers
/// become one, read to its end. Without it, nothing is read and the answers stay as they are.
pub(super) async fn sorted_as_requested(
    call: &Call<'_>,
    options: ReadOptions,
    answers: Vec<Part>,
) -> Result<Vec<Part>, Failure> {
    let Some(near) = call.params.non_empty("near") else { return Ok(answers) };
    if !answers.iter().all(|part| is_of_nodes(&part.answer.rows)) {
        return Ok(answers);
    }
    let mut sorted = joined(answers).await?;
    let origin = origin(call, options, near).await?;
    match &mut sorted.rows {
        Rows::Nodes(rows) => sort(call, options, &origin, rows).await?,
        Rows::Checks(rows) => sort(call, options, &origin, rows).await?,
        Rows::Instances(rows) => sort(call, options, &origin, rows).await?,
        _ => {}
    }
    Ok(vec![Part::whole(Arc::new(sorted))])
}

fn is_of_nodes(rows: &Rows) -> bool {
    matches!(rows, Rows::Nodes(_) | Rows::Checks(_) | Rows::Instances(_))
}

/// Returns the node to start from: `_agent` is the agent's own, `_ip` that of the client's address,
/// anything else a name.
pub(super) async fn origin(call: &Call<'_>, options: ReadOptions, near: &str) -> Result<NodeName, Failure> {
    match near {
        "_agent" => Ok(call.api.identity.node.clone()),
        "_ip" => node_of_client(call, options).await,
        name => Ok(NodeName::from(name)),
    }
}

/// Sorts rows by their distance from a node.
pub(super) async fn sort<T: OfNode>(
    call: &Call<'_>,
    options: ReadOptions,
    origin: &NodeName,
    rows: &mut [T],
) -> Result<(), Failure> {
    if rows.len() < 2 {
        return Ok(());
    }
    let answer = call.read(Query::Coordinates, at_once(options), None).await?;
    // A server of an earlier build knows no coordinates.
    let Rows::Coordinates(coordinates) = &answer.rows else { return Ok(()) };
    sort_from(origin, coordinates, rows);
    Ok(())
}

/// Returns the options of a read that does not wait, as the list did.
fn at_once(options: ReadOptions) -> ReadOptions {
    ReadOptions { blocking: None, ..options }
}

fn sort_from<T: OfNode>(origin: &NodeName, coordinates: &[(NodeName, Arc<Coordinate>)], rows: &mut [T]) {
    let of_node: BTreeMap<NodeName, &Coordinate> =
        coordinates.iter().map(|(node, coordinate)| (node.folded(), &**coordinate)).collect();
    let Some(from) = of_node.get(&origin.folded()) else { return };
    rows.sort_by_cached_key(|row| {
        let to = of_node.get(&row.node_name().folded());
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
    let answer = call.read(Query::Nodes, at_once(options), None).await?;
    let Rows::Nodes(nodes) = &answer.rows else { return Ok(own) };
    let found = nodes.iter().find(|node| node.address.parse::<IpAddr>().is_ok_and(|address| address == ip));
    Ok(found.map_or(own, |node| node.name.clone()))
}
