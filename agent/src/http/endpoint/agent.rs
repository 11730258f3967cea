//! `/v1/agent/…`: the agent and its log. Its checks and the members of the cluster are in their
//! own files.

use super::super::answer::{self, Failure};
use super::super::body::Body;
use super::super::call::Call;
use super::membership::{DETAILS_TIMEOUT, OwnRow};
use crate::COMMIT;
use crate::metrics::LIMITS;
use crate::monitor::{Format, Monitor, TooMany};
use crate::upstream::calls::StatusOf;
use bytes::Bytes;
use http::{Response, StatusCode, header};
use lockmesh_client::outcome::Outcome;
use lockmesh_client::shape::agent::{AgentConfig, AgentSelf, Member};
use lockmesh_protocol::rpc::Status;
use serde_json::json;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::mpsc;
use tracing::level_filters::LevelFilter;

/// The longest time for which a monitor waits for a client that does not read.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) async fn describe_self(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let identity = &call.api.identity;
    // An agent can identify itself without a quorum, and clients rely on that.
    let status = tokio::time::timeout(DETAILS_TIMEOUT, call.upstream.call(StatusOf::Nearest));
    let (status, row) = tokio::join!(status, OwnRow::read(call));
    let status = status.ok().and_then(Result::ok);
    let servers = status.as_ref().map_or(&[][..], |status| &status.servers[..]);
    let member = row.member(identity, servers);
    let debug_config = json!({
        "Datacenter": identity.datacenter,
        "NodeID": identity.node_id,
        "NodeName": identity.node.as_str(),
        "SerfAdvertiseAddrLAN": format!("tcp://{}", address_of(&member)),
        "ServerMode": identity.server_rpc.is_some(),
        "SessionTTLMin": call.api.limits.session_ttl_min.as_nanos() as u64,
        "KVMaxValueSize": call.api.limits.kv_max_value_size,
        "TxnMaxReqLen": call.api.limits.txn_max_req_len,
        "TxnMaxOperations": call.api.limits.txn_max_operations,
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
        member,
        stats: stats(call, status.as_ref()),
        meta: identity.node_meta(),
        ..AgentSelf::default()
    };
    Ok(answer::json(&shape, call.layout()))
}

/// Returns a member's address with its port; an IPv6 address in brackets.
fn address_of(member: &Member) -> String {
    match member.addr.parse() {
        Ok(ip) => SocketAddr::new(ip, member.port).to_string(),
        Err(_) => format!("{}:{}", member.addr, member.port),
    }
}

fn stats(call: &Call<'_>, status: Option<&Status>) -> BTreeMap<String, BTreeMap<String, String>> {
    let group = |pairs: &[(&str, String)]| {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect::<BTreeMap<_, _>>()
    };
    let checks = call.api.registry.checks().len();
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

pub(super) fn metrics(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    match call.params.non_empty("format") {
        None => Ok(answer::json(&call.api.feeds.intervals.consul_json(&call.api.upstream), call.layout())),
        Some("prometheus") => Ok(super::monitoring::metrics(call)),
        Some(other) => Err(Failure::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            format!("unknown metrics format {other:?}: omit ?format or use prometheus"),
        )),
    }
}

pub(super) fn version(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    // Go's zero time: builds are reproducible, so they have no date.
    let shape = json!({
        "SHA": if COMMIT == "unknown" { "" } else { COMMIT },
        "BuildDate": "0001-01-01T00:00:00Z",
        "HumanVersion": call.api.identity.version,
        "FIPS": "",
    });
    Ok(answer::json(&shape, call.layout()))
}

/// Streams the log of this process from now on. The lines that are there are sent at once, and new
/// ones as they are written.
pub(super) fn monitor(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let level = level(call.params.non_empty("loglevel").unwrap_or("info"))?;
    let format = if call.params.has("logjson") { Format::Json } else { Format::Text };
    let monitor = call.api.feeds.monitors.open(level)?;
    // One piece: further lines wait in the monitor's queue, which drops and counts them.
    let (sender, pieces) = mpsc::channel(1);
    tokio::spawn(send_lines(monitor, format, sender));
    let mut response = Response::new(Body::pieces(pieces));
    response.headers_mut().insert(header::CONTENT_TYPE, answer::TEXT);
    Ok(response)
}

/// Returns the level of a name, in Consul's spelling.
fn level(name: &str) -> Result<LevelFilter, Failure> {
    match name.to_ascii_lowercase().as_str() {
        "trace" => Ok(LevelFilter::TRACE),
        "debug" => Ok(LevelFilter::DEBUG),
        "info" => Ok(LevelFilter::INFO),
        "warn" => Ok(LevelFilter::WARN),
        "err" | "error" => Ok(LevelFilter::ERROR),
        _ => Err(Failure::bad_request(format!(
            "Unknown log level: {name}; use trace, debug, info, warn or error"
        ))),
    }
}

/// Sends lines until the client is gone or does not read, or the agent stops.
async fn send_lines(mut monitor: Monitor, format: Format, sender: mpsc::Sender<Bytes>) {
    loop {
        let lines = tokio::select! {
            lines = monitor.next(format) => lines,
            // The log may be silent for long, and a client that is gone frees its place.
            () = sender.closed() => return,
        };
        let Some(lines) = lines else { return };
        let is_sent = tokio::select! {
            biased;
            sent = tokio::time::timeout(READ_TIMEOUT, sender.send(lines.into())) => matches!(sent, Ok(Ok(()))),
            () = monitor.stopped() => false,
        };
        if !is_sent {
            return;
        }
    }
}

impl From<TooMany> for Failure {
    fn from(error: TooMany) -> Self {
        LIMITS.with_label_values(&["monitors"]).inc();
        Self::new(StatusCode::TOO_MANY_REQUESTS, error.to_string()).with_outcome(Outcome::NotDone)
    }
}

/// Reloads certificates and the log level. The changes are in a header, because Consul's body is
/// empty.
pub(super) async fn reload(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let changes = call.api.reload.reload().await;
    let changes = changes.map_err(|error| Failure::refused(error.to_string()))?;
    Ok(answer::with_changes(answer::nothing(), &changes))
}
