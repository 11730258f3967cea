//! `?near=`: the reads for a sort by distance, which `agent/core/src/near.rs` does.
//!
//! A sorted list is read to its end first, so its length has a limit.

use super::answer::Failure;
use super::call::{Call, ReadOptions};
use super::listing::{apart, joined};
use crate::upstream::calls::Read;
use crate::upstream::parts::Part;
use lockmesh_agent_core::near::{Origin, is_of_nodes, node_at};
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::query::{Answer, Query};
use std::sync::Arc;

/// Sorts a list by its distance from the node that the request names with `?near=`: all answers
/// become one, read to its end. Without it, nothing is read and the answers stay as they are.
pub(super) async fn sorted_as_requested(
    call: &Call<'_>,
    options: ReadOptions,
    answers: Vec<Part>,
) -> Result<Vec<Part>, Failure> {
    let Some(near) = call.params.non_empty("near") else { return Ok(answers) };
    // Rows without a node have no distance.
    if !answers.iter().all(|part| is_of_nodes(&part.answer.rows)) {
        return Ok(answers);
    }
    let mut sorted = joined(answers).await?;
    let count = sorted.rows.len();
    let origin = origin(call, options, near, count).await?;
    let sort = move || {
        origin.sort(&mut sorted.rows);
        sorted
    };
    Ok(vec![Part::whole(Arc::new(apart(count, sort).await?))])
}

/// Reads the node to start from: `_agent` is the agent's own, `_ip` that of the client's address,
/// anything else a name. Fewer than two rows need no coordinates.
pub(super) async fn origin(
    call: &Call<'_>,
    options: ReadOptions,
    near: &str,
    rows: usize,
) -> Result<Origin, Failure> {
    let node = match near {
        "_agent" => call.api.identity.node.clone(),
        "_ip" => node_of_client(call, options).await?,
        name => NodeName::from(name),
    };
    let coordinates = match rows {
        0 | 1 => Vec::new(),
        _ => read_now(call, options, Query::Coordinates).await?,
    };
    Ok(Origin { node, coordinates })
}

/// Reads all rows at once, without the wait of the list.
async fn read_now(
    call: &Call<'_>,
    ReadOptions { consistency, .. }: ReadOptions,
    query: Query,
) -> Result<Vec<Arc<Answer>>, Failure> {
    Ok(call.upstream.read_all(Read { query, consistency, blocking: None }).await?)
}

/// Returns the node with the client's address: the agent's own for a client on its host, and if no
/// node has this address.
async fn node_of_client(call: &Call<'_>, options: ReadOptions) -> Result<NodeName, Failure> {
    let own = call.api.identity.node.clone();
    let Some(ip) = call.peer.ip().map(|ip| ip.to_canonical()).filter(|ip| !ip.is_loopback()) else {
        return Ok(own);
    };
    Ok(node_at(ip, &read_now(call, options, Query::Nodes).await?).unwrap_or(own))
}
