//! `/v1/operator/raft/…`: the quorum's members and its leader.

use super::super::answer::{self, Failure};
use super::super::call::Call;
use axum::body::Body;
use http::Response;
use lockmesh_client::shape::operator::{RaftConfiguration, RaftServer, Transferred};
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::rpc::{ServerStatus, Status};

pub(super) async fn configuration(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let status = call.api.upstream.status().await?;
    let shape = RaftConfiguration {
        servers: status.servers.iter().map(|server| shaped(server, &status)).collect(),
        index: status.membership_index.0,
    };
    Ok(answer::json(&shape, call.layout()))
}

fn shaped(server: &ServerStatus, status: &Status) -> RaftServer {
    let unknown = server.node.is_empty();
    RaftServer {
        id: server.node_id.clone(),
        node: if unknown { "(unknown)".into() } else { server.node.clone() },
        address: server.address.clone(),
        leader: status.leader == Some(server.id),
        protocol_version: if unknown { "unknown".into() } else { "3".into() },
        voter: server.voter,
        last_index: server.last_index.0,
    }
}

pub(super) async fn remove_peer(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let (id, address) = (call.params.non_empty("id"), call.params.non_empty("address"));
    let (what, named) = match (id, address) {
        (None, None) => {
            return Err(Failure::bad_request(
                "Must specify either ?id with the server's ID or ?address with IP:port of peer to remove",
            ));
        }
        (Some(_), Some(_)) => return Err(Failure::bad_request("Must specify only one of ?id or ?address")),
        (Some(id), None) => ("id", id),
        (None, Some(address)) => ("address", address),
    };
    let status = call.api.upstream.status().await?;
    let matches = |server: &&ServerStatus| match what {
        "id" => server.node_id.eq_ignore_ascii_case(named),
        _ => server.address == named,
    };
    let server = status.servers.iter().find(matches).ok_or_else(|| unknown(what, named))?;
    call.api.upstream.remove_server(server.id).await?;
    Ok(answer::nothing())
}

pub(super) async fn transfer_leader(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let to: Option<ServerId> = match call.params.non_empty("id") {
        None => None,
        Some(id) => {
            let status = call.api.upstream.status().await?;
            let known = status.servers.iter().find(|server| server.node_id.eq_ignore_ascii_case(id));
            Some(known.ok_or_else(|| unknown("id", id))?.id)
        }
    };
    call.api.upstream.transfer_leader(to).await?;
    Ok(answer::json(&Transferred { success: true }, call.layout()))
}

fn unknown(what: &str, named: &str) -> Failure {
    Failure::internal(format!("{what} {named:?} was not found in the Raft configuration"))
}
