//! `/v1/operator/raft/…`: the quorum's members and its leader; and `/v1/lockmesh/servers`, with
//! more details.

use super::super::answer::{self, Failure};
use super::super::body::Body;
use super::super::call::Call;
use crate::go::duration::silence;
use crate::upstream::calls::{RemoveServer, StatusOf, TransferLeader};
use http::{Method, Response, StatusCode};
use lockmesh_client::shape::lockmesh::{Quorum, Server};
use lockmesh_client::shape::operator::{RaftConfiguration, RaftServer, Transferred};
use lockmesh_protocol::host_port::HostPort;
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::query::Consistency;
use lockmesh_protocol::rpc::{ServerStatus, Status, Unavailable};

pub(super) async fn configuration(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let status = seen(call).await?;
    let shape = RaftConfiguration {
        servers: status.servers.iter().map(|server| shaped(server, &status)).collect(),
        index: 0,
    };
    Ok(answer::json(&shape, call.layout()))
}

/// Returns the requested view of the quorum: its leader's, or with `?stale` the nearest server's.
async fn seen(call: &Call<'_>) -> Result<Status, Failure> {
    call.check_place()?;
    match call.consistency()? {
        Consistency::Stale => Ok(call.upstream.call(StatusOf::Nearest).await?),
        Consistency::Default | Consistency::Consistent => leaders_view(call).await,
    }
}

/// Returns the leader's view of the quorum; other servers do not know the health of their peers.
pub(super) async fn leaders_view(call: &Call<'_>) -> Result<Status, Failure> {
    Ok(call.upstream.leader_status().await?)
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

/// Returns all details of the servers; with `?stale` from the nearest one, even without a leader.
pub(super) async fn servers(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    if call.method() == Method::PUT {
        return add_server(call).await;
    }
    let status = seen(call).await?;
    let shape = Quorum {
        cluster_id: status.cluster_id.clone(),
        seen_by: status.server.0,
        leader: status.leader.map_or(0, |leader| leader.0),
        term: status.term.0,
        commit_index: status.commit_index.0,
        servers: status.servers.iter().map(|server| shaped_server(server, &status)).collect(),
    };
    Ok(answer::json(&shape, call.layout()))
}

fn shaped_server(server: &ServerStatus, status: &Status) -> Server {
    let by_leader = status.leader == Some(status.server);
    Server {
        raft_id: server.id.0,
        id: server.node_id.clone(),
        node: server.node.clone(),
        address: server.address.clone(),
        leader: status.leader == Some(server.id),
        voter: server.voter,
        last_index: server.last_index.0,
        last_contact: server.last_contact.map(silence).unwrap_or_default(),
        healthy: by_leader.then_some(server.healthy),
        version: server.version.clone(),
    }
}

/// Asks a server that belongs to no quorum to join this one.
async fn add_server(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let address = call.params.non_empty("address").ok_or_else(|| {
        Failure::bad_request("Must specify ?address with the host:port of the server to add")
    })?;
    if address.parse::<HostPort>().is_err() {
        return Err(Failure::bad_request(format!(
            "{address:?} is no address: a server is named as host:port"
        )));
    }
    let status = leaders_view(call).await?;
    let addresses = status.servers.iter().map(|server| server.address.clone()).collect();
    // The server's own rejection would suggest emptying its data directory, as for a server of
    // another cluster.
    if let Some(server) = status.servers.iter().find(|server| server.address == address) {
        let text = format!("the server at {address} belongs to this quorum already, as {}", named(server));
        return Err(conflict(&text, "see `lockmesh operator raft list-peers`"));
    }
    call.upstream.invite(address, addresses).await.map_err(denied)?;
    Ok(answer::nothing())
}

pub(super) async fn remove_peer(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let (id, address) = (call.params.non_empty("id"), call.params.non_empty("address"));
    let (what, name) = match (id, address) {
        (None, None) => {
            return Err(Failure::bad_request(
                "Must specify either ?id with the server's ID or ?address with IP:port of peer to remove",
            ));
        }
        (Some(_), Some(_)) => return Err(Failure::bad_request("Must specify only one of ?id or ?address")),
        (Some(id), None) => ("id", id),
        (None, Some(address)) => ("address", address),
    };
    let status = leaders_view(call).await?;
    let server = the_one(&status, what, name)?;
    call.upstream.call(RemoveServer(server.id)).await.map_err(denied)?;
    Ok(answer::nothing())
}

pub(super) async fn transfer_leader(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let to: Option<ServerId> = match call.params.non_empty("id") {
        None => None,
        Some(id) => Some(the_one(&leaders_view(call).await?, "id", id)?.id),
    };
    call.upstream.call(TransferLeader(to)).await.map_err(denied)?;
    Ok(answer::json(&Transferred { success: true }, call.layout()))
}

/// Finds the one matching server: by its address, by its node's UUID or by its Raft id.
fn the_one<'s>(status: &'s Status, what: &str, name: &str) -> Result<&'s ServerStatus, Failure> {
    let is_meant = |server: &&ServerStatus| match what {
        "id" => server.node_id.eq_ignore_ascii_case(name) || server.id.to_string() == name,
        _ => server.address == name,
    };
    let meant: Vec<&ServerStatus> = status.servers.iter().filter(is_meant).collect();
    match meant.as_slice() {
        [server] => Ok(server),
        [] => Err(Failure::refused(format!("{what} {name:?} was not found in the Raft configuration"))),
        several => {
            let ids: Vec<String> = several.iter().map(|server| server.id.to_string()).collect();
            let text = format!("{what} {name:?} matches the servers {}", ids.join(" and "));
            Err(conflict(&text, "select one by its RaftID, as ?id"))
        }
    }
}

fn named(server: &ServerStatus) -> String {
    format!("server {} on node {:?}", server.id, server.node)
}

/// Converts a denial of the leader, which a retry does not change: 409, with the next step.
pub(super) fn denied(unavailable: Unavailable) -> Failure {
    match unavailable {
        Unavailable::Denied(reason) => conflict(&reason, way_out(&reason)),
        other => other.into(),
    }
}

/// Returns the operator's next step for a denial, selected by its text.
fn way_out(reason: &str) -> &'static str {
    const WAYS: [(&str, &str); 11] = [
        ("is not in use", "`lockmesh operator gossip key` shows which one is"),
        ("gossip key was changed", "wait that long, or they would be cut off from the mesh"),
        (
            "no server is reached",
            "start a server there that waits to be added, with a certificate of the same authority",
        ),
        ("belongs to a cluster already", "a server moves to another quorum with an emptied data folder only"),
        ("founds a cluster", "start it with `quorum.bootstrap_expect = 0` and an emptied data folder"),
        ("leads", "`lockmesh operator raft transfer-leader` hands the leadership over"),
        ("too few", "start servers that are down, or add new ones, before one more goes"),
        (
            "MinQuorum",
            "add a server first, or lower it with `lockmesh operator autopilot set-config --min-quorum`",
        ),
        ("only server", "`lockmesh operator raft add` brings another one"),
        ("under way", "it takes seconds; `lockmesh operator raft list-peers` shows when it is done"),
        (
            "no vote",
            "a server gets its vote when it has caught up; `lockmesh operator raft list-peers` shows it",
        ),
    ];
    let found = WAYS.iter().find(|(words, _)| reason.contains(words));
    found.map_or("`lockmesh operator raft list-peers` shows the servers and their health", |(_, way)| way)
}

fn conflict(reason: &str, way_out: &str) -> Failure {
    Failure::new(StatusCode::CONFLICT, format!("{reason}: {way_out}"))
}
