//! `?near=`: sorts rows by the estimated round trip time from a node, as `/v1/coordinate` has it.
//!
//! The rows of nodes without a coordinate come last, and rows of the same distance keep their
//! order. If the node to start from has no coordinate, all rows keep their order.
//!
//! A sorted list is read to its end first, so its length has a limit.

use super::answer::Failure;
use super::call::{Call, ReadOptions};
use super::listing::{apart, joined};
use crate::upstream::calls::Read;
use crate::upstream::parts::Part;
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::query::{Answer, Instance, Query, Rows};
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
    let sorted = joined(answers).await?;
    let origin = origin(call, options, near).await?;
    let rows = match sorted.rows {
        Rows::Nodes(rows) => Rows::Nodes(sort(call, options, &origin, rows).await?),
        Rows::Checks(rows) => Rows::Checks(sort(call, options, &origin, rows).await?),
        Rows::Instances(rows) => Rows::Instances(sort(call, options, &origin, rows).await?),
        others => others,
    };
    Ok(vec![Part::whole(Arc::new(Answer { rows, ..sorted }))])
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
pub(super) async fn sort<T: OfNode + Send + 'static>(
    call: &Call<'_>,
    options: ReadOptions,
    origin: &NodeName,
    rows: Vec<T>,
) -> Result<Vec<T>, Failure> {
    if rows.len() < 2 {
        return Ok(rows);
    }
    let answers = read_now(call, options, Query::Coordinates).await?;
    let origin = origin.folded();
    apart(rows.len(), move || sort_from(&origin, &answers, rows)).await
}

/// Reads all rows at once, without the wait of the list.
async fn read_now(
    call: &Call<'_>,
    ReadOptions { consistency, .. }: ReadOptions,
    query: Query,
) -> Result<Vec<Arc<Answer>>, Failure> {
    Ok(call.api.upstream.read_all(Read { query, consistency, blocking: None }).await?)
}

fn sort_from<T: OfNode>(origin: &NodeName, answers: &[Arc<Answer>], mut rows: Vec<T>) -> Vec<T> {
    let mut of_node: BTreeMap<NodeName, &Coordinate> = BTreeMap::new();
    for answer in answers {
        // A server of an earlier build knows no coordinates.
        let Rows::Coordinates(coordinates) = &answer.rows else { return rows };
        of_node.extend(coordinates.iter().map(|(node, coordinate)| (node.folded(), &**coordinate)));
    }
    let Some(from) = of_node.get(origin) else { return rows };
    rows.sort_by_cached_key(|row| {
        let to = of_node.get(&row.node_name().folded());
        to.map_or(Duration::MAX, |to| from.distance_to(to))
    });
    rows
}

/// Returns the node with the client's address: the agent's own for a client on its host, and if no
/// node has this address.
async fn node_of_client(call: &Call<'_>, options: ReadOptions) -> Result<NodeName, Failure> {
    let own = call.api.identity.node.clone();
    let Some(ip) = call.peer.ip().map(|ip| ip.to_canonical()).filter(|ip| !ip.is_loopback()) else {
        return Ok(own);
    };
    let answers = read_now(call, options, Query::Nodes).await?;
    let nodes = answers.iter().flat_map(|answer| match &answer.rows {
        Rows::Nodes(nodes) => nodes.as_slice(),
        _ => &[],
    });
    let mut nodes = nodes.filter(|node| node.address.parse::<IpAddr>().is_ok_and(|address| address == ip));
    let found = nodes.next();
    Ok(found.map_or(own, |node| node.name.clone()))
}
