//! `/v1/agent/…`, what an agent says of itself, its members and its machine. Its checks are in
//! their own file.

use super::super::answer::{self, Failure};
use super::super::body::Body;
use super::super::call::{Call, ReadOptions};
use crate::node::Identity;
use http::{Response, StatusCode};
use lockmesh_client::shape::agent::{AgentConfig, AgentSelf, Member};
use lockmesh_protocol::query::{Consistency, Query, Rows};
use lockmesh_protocol::record::{Check, CheckStatus, Node};
use lockmesh_protocol::rpc::{ServerStatus, Status};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const ALIVE: u8 = 1;
const FAILED: u8 = 4;
/// How long an agent may ask the quorum for what it shows beside itself.
const DETAILS_TIMEOUT: Duration = Duration::from_secs(2);
/// Clients of the service mesh wait for a certificate here before they go on; there is no mesh, so
/// it signs nothing.
const ROOT_CERTIFICATE: &str = include_str!("static_root.pem");

pub(super) async fn describe_self(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let identity = &call.api.identity;
    // An agent can say who it is without a quorum too, and is asked for just that.
    let status = tokio::time::timeout(DETAILS_TIMEOUT, call.api.upstream.status()).await;
    let status = status.ok().and_then(Result::ok);
    let servers = status.as_ref().map_or(&[][..], |status| &status.servers[..]);
    let debug_config = json!({
        "Datacenter": identity.datacenter,
        "NodeID": identity.node_id,
        "NodeName": identity.node.as_str(),
        "SerfAdvertiseAddrLAN": format!("tcp://{}", with_port(identity, 0)),
        "ServerMode": identity.server_rpc.is_some(),
        "SessionTTLMin": call.api.limits.session_ttl_min.as_nanos() as u64,
        "KVMaxValueSize": call.api.limits.kv_max_value_size,
        "TxnMaxReqLen": call.api.limits.txn_max_req_len,
        "Version": identity.version,
    });
    let shape = AgentSelf {
        config: AgentConfig {
            datacenter: identity.datacenter.clone(),
            primary_datacenter: identity.datacenter.clone(),
            node_name: identity.node.to_string(),
            node_id: identity.node_id.clone(),
            revision: String::new(),
            server: identity.server_rpc.is_some(),
            version: identity.version.clone(),
            build_date: String::new(),
        },
        debug_config: debug_config.as_object().cloned().unwrap_or_default(),
        member: own_member(identity, servers),
        stats: stats(call, status.as_ref()),
        meta: BTreeMap::from([("consul-network-segment".into(), String::new())]),
        ..AgentSelf::default()
    };
    Ok(answer::json(&shape, call.layout()))
}

fn with_port(identity: &Identity, port: u16) -> std::net::SocketAddr {
    std::net::SocketAddr::new(identity.advertise, port)
}

fn stats(call: &Call<'_>, status: Option<&Status>) -> BTreeMap<String, BTreeMap<String, String>> {
    let group = |pairs: &[(&str, String)]| {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect::<BTreeMap<_, _>>()
    };
    let checks = call.api.checks.list().len();
    let mut stats = BTreeMap::from([
        ("agent".to_owned(), group(&[("check_ttls", checks.to_string())])),
        ("build".to_owned(), group(&[("version", call.api.identity.version.clone())])),
    ]);
    if let Some(status) = status {
        let leader = status.servers.iter().find(|server| Some(server.id) == status.leader);
        let address = leader.map(|server| server.address.clone()).unwrap_or_default();
        stats.insert(
            "consul".into(),
            group(&[("known_servers", status.servers.len().to_string()), ("leader_addr", address)]),
        );
        stats.insert(
            "raft".into(),
            group(&[
                ("term", status.term.to_string()),
                ("last_log_index", status.last_index.to_string()),
                ("commit_index", status.commit_index.to_string()),
                ("applied_index", status.applied_index.to_string()),
            ]),
        );
    }
    stats
}

/// Every node that an agent registered, as the catalog knows it, and every server; at least this
/// node. With `?wan` the servers alone, each with its datacenter's name.
pub(super) async fn members(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    call.refuse_filter()?;
    let status = seen_by_leader_or_nearest(call).await;
    let servers = &status.servers;
    let mut members = registered_members(call, servers).await.unwrap_or_default();
    let own = call.api.identity.node.folded();
    // Also before it is registered, and where the catalog cannot be read.
    if !members.iter().any(|member| member.name.to_lowercase() == own.as_str()) {
        members.push(own_member(&call.api.identity, servers));
    }
    let known: BTreeSet<String> = members.iter().map(|member| member.name.to_lowercase()).collect();
    let datacenter = &call.api.identity.datacenter;
    // A server whose machine runs no agent is in no catalog.
    let strangers = servers.iter().filter(|server| !known.contains(&server.node.to_lowercase()));
    members.extend(strangers.map(|server| server_member(server, &status, datacenter)));
    if call.params.non_empty("wan").is_some() {
        // A port among the tags is what tells servers from the rest.
        members.retain(|member| member.tags.contains_key("port"));
        members.iter_mut().for_each(|member| member.name = format!("{}.{datacenter}", member.name));
    }
    Ok(answer::json(&members, call.layout()))
}

/// The leader alone knows how the servers are; without one, the nearest server knows at least who
/// they are.
async fn seen_by_leader_or_nearest(call: &Call<'_>) -> Status {
    let by_leader = tokio::time::timeout(DETAILS_TIMEOUT, call.api.upstream.leader_status()).await;
    match by_leader {
        Ok(Ok(status)) => status,
        _ => call.api.upstream.status().await.unwrap_or_default(),
    }
}

/// A server on whose machine no agent runs.
fn server_member(server: &ServerStatus, status: &Status, datacenter: &str) -> Member {
    // The leader alone knows how others are: seen by anybody else, nobody is called dead.
    let is_lost = status.leader == Some(status.server) && !server.healthy;
    let (host, port) = server.address.rsplit_once(':').unwrap_or((&server.address, ""));
    let (node, state) = (&server.node, if is_lost { FAILED } else { ALIVE });
    shaped_member(node, host, &server.node_id, datacenter, state, Some(port.to_owned()))
}

async fn registered_members(call: &Call<'_>, servers: &[ServerStatus]) -> Result<Vec<Member>, Failure> {
    // Any server will do: who is there is asked most when there is no leader.
    let options = ReadOptions { consistency: Consistency::Stale, blocking: None };
    let nodes = call.read(Query::Nodes, options, None).await?;
    let checks = call.read(Query::ChecksInState(None), options, None).await?;
    let (Rows::Nodes(nodes), Rows::Checks(checks)) = (&nodes.rows, &checks.rows) else {
        return Err(super::misfit::wrong_rows());
    };
    let member = |node: &Arc<Node>| {
        // A node without it was written by others: no agent runs there.
        let health = alive_check(checks, node)?;
        let status = if health.status == CheckStatus::Critical { FAILED } else { ALIVE };
        let port = server_port(&call.api.identity, servers, &node.id);
        Some(shaped_member(node.name.as_str(), &node.address, &node.id, &node.datacenter, status, port))
    };
    Ok(nodes.iter().filter_map(member).collect())
}

fn alive_check<'a>(checks: &'a [Arc<Check>], node: &Node) -> Option<&'a Arc<Check>> {
    checks.iter().find(|check| check.id.as_str() == "serfHealth" && check.node.folded() == node.name.folded())
}

fn own_member(identity: &Identity, servers: &[ServerStatus]) -> Member {
    let port = server_port(identity, servers, &identity.node_id);
    let address = identity.advertise.to_string();
    let (name, id, datacenter) = (identity.node.as_str(), &identity.node_id, &identity.datacenter);
    shaped_member(name, &address, id, datacenter, ALIVE, port)
}

/// The RPC port of the server on a node, if there is one.
fn server_port(identity: &Identity, servers: &[ServerStatus], node_id: &str) -> Option<String> {
    // The server in this process is known before any quorum knows it.
    if node_id.eq_ignore_ascii_case(&identity.node_id)
        && let Some(own) = identity.server_rpc
    {
        return Some(own.port().to_string());
    }
    let server = servers.iter().find(|server| server.node_id.eq_ignore_ascii_case(node_id))?;
    server.address.rsplit_once(':').map(|(_, port)| port.to_owned())
}

fn shaped_member(
    name: &str,
    address: &str,
    id: &str,
    datacenter: &str,
    status: u8,
    server_port: Option<String>,
) -> Member {
    let mut tags = BTreeMap::from([
        ("id".to_owned(), id.to_owned()),
        ("dc".to_owned(), datacenter.to_owned()),
        ("role".to_owned(), if server_port.is_some() { "consul" } else { "node" }.to_owned()),
        ("build".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ("vsn".to_owned(), "2".to_owned()),
    ]);
    // No port but a server's is open to others: agents call, and are not called.
    let port = server_port.as_deref().and_then(|port| port.parse().ok()).unwrap_or_default();
    if let Some(port) = server_port {
        tags.insert("port".into(), port);
        tags.insert("raft_vsn".into(), "3".into());
    }
    Member {
        name: name.into(),
        addr: address.into(),
        port,
        tags,
        status,
        protocol_min: 1,
        protocol_max: 5,
        protocol_cur: 2,
        delegate_min: 2,
        delegate_max: 5,
        delegate_cur: 4,
    }
}

pub(super) fn metrics(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let upstream = &call.api.upstream;
    match call.params.non_empty("format") {
        None => Ok(answer::json(&crate::metrics::consul_json(timestamp(), upstream), call.layout())),
        Some("prometheus") => Ok(super::monitoring::metrics(call)),
        Some(other) => Err(Failure::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            format!("there is no metrics format {other:?}: leave ?format out or say prometheus"),
        )),
    }
}

fn timestamp() -> String {
    let format = time::macros::format_description!("[year]-[month]-[day] [hour]:[minute]:[second] +0000 UTC");
    time::OffsetDateTime::now_utc().format(&format).unwrap_or_default()
}

/// What this machine is. Memory in bytes, times in nanoseconds or seconds as their names say.
pub(super) fn host(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let system = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    let info = rustix::system::sysinfo();
    let unit = u64::from(info.mem_unit).max(1);
    let nanoseconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let shape = json!({
        "Memory": { "total": info.totalram * unit, "free": info.freeram * unit },
        "CPU": std::thread::available_parallelism().map_or(1, usize::from),
        "Host": {
            "hostname": text(system.nodename()),
            "uptime": info.uptime,
            "os": "linux",
            "kernelVersion": text(system.release()),
            "kernelArch": text(system.machine()),
        },
        "CollectionTime": u64::try_from(nanoseconds).unwrap_or(u64::MAX),
        "Errors": null,
    });
    Ok(answer::json(&shape, call.layout()))
}

pub(super) fn version(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let shape = json!({ "SHA": "", "HumanVersion": call.api.identity.version, "FIPS": "" });
    Ok(answer::json(&shape, call.layout()))
}

/// Reads certificates and the log level anew; what changed is said in a header, since the body is
/// empty in Consul's.
pub(super) async fn reload(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let changes = call.api.reload.reload().await.map_err(Failure::refused)?;
    Ok(answer::with_changes(answer::nothing(), &changes))
}

/// One root that signs nothing, in the shape that clients wait for.
pub(super) fn roots(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    const ROOT_ID: &str = "lockmesh-static-root";
    let shape = json!({
        "ActiveRootID": ROOT_ID,
        "TrustDomain": "11111111-2222-3333-4444-555555555555.consul",
        "Roots": [{
            "ID": ROOT_ID,
            "Name": "Lockmesh has no service mesh",
            "SerialNumber": 1,
            "SigningKeyID": "",
            "ExternalTrustDomain": "11111111-2222-3333-4444-555555555555",
            "NotBefore": "2026-11-21T09:07:34Z",
            "NotAfter": "2126-10-28T09:07:34Z",
            "RootCert": ROOT_CERTIFICATE,
            "IntermediateCerts": null,
            "Active": true,
            "PrivateKeyType": "ec",
            "PrivateKeyBits": 256,
            "CreateIndex": 1,
            "ModifyIndex": 1,
        }],
    });
    let mut response = answer::json(&shape, call.layout());
    let index = lockmesh_protocol::id::LogIndex(1);
    answer::write_meta(response.headers_mut(), index, true, Duration::ZERO);
    Ok(response)
}
