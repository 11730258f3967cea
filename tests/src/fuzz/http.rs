//! Input from HTTP clients: words alone, and whole requests to the agent's own router, in front of
//! a quorum with arbitrary replies.

use super::{as_text, bytes_of, samples};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use http::Request;
use http_body_util::BodyExt;
use lockmesh_agent::definitions;
use lockmesh_agent::go::{json, path, query};
use lockmesh_agent::http::{Api, Body, HttpLimits, Peer, archive, endpoint, router};
use lockmesh_agent::node::{Identity, NodeMeta};
use lockmesh_agent::own_address::OwnAddress;
use lockmesh_agent::registry::Registry;
use lockmesh_agent::upstream::{BoxFuture, Quorum, Upstream};
use lockmesh_agent_core::quorum_client::{Answered, LocalCall};
use lockmesh_agent_core::registry::Limits;
use lockmesh_protocol::acl::Caller;
use lockmesh_protocol::rpc::{Response, Unavailable};
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// A query string.
pub fn http_query(data: &[u8]) {
    let Some(text) = as_text(data) else { return };
    let Ok(params) = query::parse(text) else { return };
    let written = params.encode();
    let again = query::parse(&written).expect("what we write can be read").encode();
    assert_eq!(again, written, "{text:?} is written in two ways");
}

/// Returns seeds of [`http_query`].
pub fn query_seeds() -> Vec<Vec<u8>> {
    bytes_of(&[
        "acquire=6f7e1c3e-2f0a-4d35-8a60-0f4b2ac7a001&flags=42",
        "index=12&wait=5m&stale&pretty",
        "recurse=false&keys&separator=%2F",
        "a=%zz",
        "a;b",
        "token=a+b%20c&=&&x==y",
        "cas=18446744073709551616&%C3%A9=~",
    ])
}

/// A path.
pub fn http_path(data: &[u8]) {
    let Some(text) = as_text(data) else { return };
    let Some(path::Decoded { text: decoded, .. }) = path::decode(text) else { return };
    let _ = path::unprintable(&decoded);
    if let Some(clean) = path::cleaned(&decoded) {
        assert_eq!(path::cleaned(&clean), None, "{decoded:?} is not clean after cleaning");
    }
    let written = path::encode(&decoded);
    let again = path::Decoded { text: decoded.clone(), is_lossy: false };
    assert_eq!(path::decode(&written), Some(again), "{text:?} was written as {written:?}");
}

/// Returns seeds of [`http_path`].
pub fn path_seeds() -> Vec<Vec<u8>> {
    bytes_of(&[
        "/v1/kv/service/leader",
        "/v1/kv/a//b/./../c/",
        "/v1/kv/%2e%2e%2f%00",
        "/v1/session/info/%C3%A9%e2%80%a8",
        "//",
        "/..",
        "%",
        "/v1/kv/%F0%9F%94%92",
    ])
}

/// A JSON body, and the session that it may describe.
pub fn http_session_body(data: &[u8]) {
    let _ = json::first_value(data);
    let _ = endpoint::session::parse_body(data);
}

/// Returns seeds of [`http_session_body`].
pub fn session_body_seeds() -> Vec<Vec<u8>> {
    bytes_of(&[
        "",
        "{}",
        r#"{"Name": "worker", "TTL": "15s", "LockDelay": "5s", "Behavior": "delete", "Node": "node-one"}"#,
        r#"{"lockdelay": 15, "ttl": null, "checks": ["serfHealth"], "NodeChecks": []}"#,
        r#"{"ServiceChecks": [{"ID": "web", "Namespace": ""}], "LockDelay": -1e300}"#,
        r#"{"Name": "\ud800\u2028", "Checks": [[[[]]]]} trailing"#,
    ])
}

/// The body of a transaction.
pub fn http_txn_body(data: &[u8]) {
    let _ = endpoint::txn::parse_body(data);
}

/// Returns seeds of [`http_txn_body`].
pub fn txn_body_seeds() -> Vec<Vec<u8>> {
    bodies("/v1/txn")
}

/// The body of a registration or a deregistration in the catalog, or of a
/// check or a service of the agent.
pub fn http_registration_body(data: &[u8]) {
    let _ = definitions::parse_registration(data);
    let _ = definitions::parse_deregistration(data);
    let _ = definitions::parse_check_registration(data);
    let _ = definitions::parse_service_registration(data);
}

/// Returns seeds of [`http_registration_body`].
pub fn registration_body_seeds() -> Vec<Vec<u8>> {
    [bodies("/v1/catalog/"), bodies("/v1/agent/check/register"), bodies("/v1/agent/service/register")]
        .concat()
}

/// Returns the bodies of the requests whose first line contains this path.
fn bodies(path: &str) -> Vec<Vec<u8>> {
    let parts = REQUESTS.iter().filter_map(|request| request.split_once("\n\n"));
    let bodies = parts.filter(|(head, body)| head.contains(path) && !body.is_empty()).map(|(_, body)| body);
    bytes_of(&bodies.collect::<Vec<_>>())
}

/// A backup's file: as it is, and as the tar inside the gzip, so that mutants pass its checksum.
pub fn http_archive(data: &[u8]) {
    let mut packed = GzEncoder::new(Vec::new(), Compression::none());
    packed.write_all(data).expect("memory can be written");
    let packed = packed.finish().expect("memory can be written");
    for file in [data, &packed[..]] {
        if let Ok(meta) = archive::verify(file) {
            let read = archive::read_parts(file, |_, _| Ok(())).expect("what was verified can be read");
            assert_eq!(read, meta);
        }
    }
}

/// Returns seeds of [`http_archive`].
pub fn archive_seeds() -> Vec<Vec<u8>> {
    let mut writer = archive::ArchiveWriter::new().expect("a temporary file");
    writer.push(&samples::of()).expect("it can be written");
    writer.push(&Vec::new()).expect("it can be written");
    let (file, _) = writer.finish(archive::Meta::default()).expect("it can be written");
    let mut tar = Vec::new();
    GzDecoder::new(file).read_to_end(&mut tar).expect("what was packed can be unpacked");
    vec![tar, Vec::new()]
}

static RESPONSES: LazyLock<Vec<Response>> = LazyLock::new(samples::of);

/// A whole request: `METHOD path` on the first line, headers until an empty line, then the body.
pub fn http_request(data: &[u8]) {
    let Some(request) = request_of(data) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let turn = AtomicUsize::new(data.iter().map(|byte| usize::from(*byte)).sum());
        let quorum = Nonsense { turn };
        let peer = Peer::Unix { uid: Some(0), gid: None, pid: None, accepted_at: Duration::ZERO };
        let response = router::respond(&api(Upstream::new(Arc::new(quorum))), peer, request).await;
        // A truncated body is a valid response too; it only has to end.
        let _ = response.into_body().collect().await;
    });
}

/// Returns seeds of [`http_request`].
pub fn request_seeds() -> Vec<Vec<u8>> {
    let session = "6f7e1c3e-2f0a-4d35-8a60-0f4b2ac7a001";
    let owned = [
        format!("PUT /v1/kv/job/leader?acquire={session}&flags=7\n\nme"),
        format!("PUT /v1/kv/job/leader?release={session}\n\n"),
        format!("PUT /v1/session/renew/{session}\n\n"),
        format!("PUT /v1/session/destroy/{session}\n\n"),
        format!("GET /v1/session/info/{session}?pretty\n\n"),
    ];
    let mut seeds = bytes_of(&owned.each_ref().map(String::as_str));
    seeds.extend(bytes_of(&REQUESTS));
    seeds
}

const REQUESTS: [&str; 42] = [
    "GET /v1/kv/job/leader?index=5&wait=10s&consistent\nX-Consul-Token: t\n\n",
    "GET /v1/kv/job?recurse&stale&pretty\n\n",
    "GET /v1/kv/?keys&separator=/\nCache-Control: max-age=30, must-revalidate\n\n",
    "GET /v1/kv/a?raw\n\n",
    "PUT /v1/kv/a?cas=0\n\nvalue",
    "DELETE /v1/kv/a?recurse&cas=3\n\n",
    "PUT /v1/session/create?dc=dc1\n\n{\"TTL\": \"10s\", \"LockDelay\": \"0s\"}",
    "GET /v1/session/list\nX-Consul-Namespace: x\n\n",
    "GET /v1/session/node/node-one?ns=x\n\n",
    "PUT /v1/txn\n\n[{\"KV\": {\"Verb\": \"lock\", \"Key\": \"a\", \"Value\": \"dmFsdWU=\", \"Session\": \"x\"}}]",
    "PUT /v1/txn?stale\n\n[{\"KV\": {\"Verb\": \"get-tree\", \"Key\": \"\"}}, {\"Node\": {\"Verb\": \"get\", \"Node\": {\"Node\": \"n\"}}}]",
    "PUT /v1/txn\n\n[{\"Service\": {\"Verb\": \"set\", \"Node\": \"n\", \"Service\": {\"ID\": \"web\", \"Service\": \"web\", \"Port\": 80}}}]",
    "PUT /v1/txn\n\n[{\"Check\": {\"Verb\": \"cas\", \"Check\": {\"Node\": \"n\", \"CheckID\": \"c\", \"Status\": \"critical\", \"ModifyIndex\": 4}}}]",
    "GET /v1/status/leader\n\n",
    "GET /v1/status/peers\n\n",
    "PUT /v1/catalog/register\n\n{\"Node\": \"n\", \"Address\": \"10.0.0.1\", \"Check\": {\"Name\": \"c\", \"Status\": \"passing\"}}",
    "PUT /v1/catalog/register\n\n{\"Node\": \"n\", \"Address\": \"::1\", \"Service\": {\"Service\": \"web\", \"Weights\": {\"Passing\": -1}}, \"NodeMeta\": {\"a\": \"b\"}}",
    "PUT /v1/catalog/deregister\n\n{\"Node\": \"n\", \"CheckID\": \"c\"}",
    "GET /v1/catalog/nodes?near=_agent&node-meta=a:b&filter=Node==x\n\n",
    "GET /v1/catalog/services?filter=not(ServiceMeta[%22a%5cn%22]+!=+`x`)+or+ServiceTags+is+empty\n\n",
    "GET /v1/health/service/web?filter=web+in+Node.Meta.a+and+Checks.Output+matches+%22(a+)+$%22\n\n",
    "GET /v1/catalog/node/n\n\n",
    "GET /v1/catalog/datacenters\n\n",
    "GET /v1/health/node/n\n\n",
    "GET /v1/health/checks/web\n\n",
    "GET /v1/health/state/any\n\n",
    "GET /v1/agent/self\n\n",
    "GET /v1/agent/members?wan=1\n\n",
    "GET /v1/agent/checks\n\n",
    "PUT /v1/agent/check/register\n\n{\"Name\": \"mine\", \"TTL\": \"10s\", \"Status\": \"passing\"}",
    "PUT /v1/agent/check/register\n\n{\"Name\": \"mine\", \"HTTP\": \"http://localhost\", \"Interval\": \"10s\"}",
    "PUT /v1/agent/check/pass/mine?note=fine\n\n",
    "PUT /v1/agent/check/update/mine\n\n{\"Status\": \"warning\", \"Output\": \"x\"}",
    "PUT /v1/agent/check/deregister/mine\n\n",
    "GET /v1/agent/metrics?format=prometheus\n\n",
    "GET /v1/agent/connect/ca/roots\n\n",
    "GET /v1/operator/raft/configuration\n\n",
    "DELETE /v1/operator/raft/peer?address=127.0.0.1:8300\n\n",
    "POST /v1/operator/raft/transfer-leader\n\n",
    "GET /v1/snapshot?stale\n\n",
    "PUT /v1/snapshot\n\nnot an archive",
    "OPTIONS /v1/kv//a/../b?index=-1\nAuthorization: Bearer t\n\n",
];

fn request_of(data: &[u8]) -> Option<Request<Body>> {
    let end = data.windows(2).position(|pair| pair == b"\n\n")?;
    let mut lines = as_text(&data[..end])?.lines();
    let (method, target) = lines.next()?.split_once(' ')?;
    let headers = lines.filter_map(|line| line.split_once(": "));
    let request = Request::builder().method(method).uri(target);
    let request = headers.fold(request, |request, (name, value)| request.header(name, value));
    request.body(Body::from(data[end + 2..].to_vec())).ok()
}

fn api(upstream: Upstream) -> Api {
    let identity = Identity {
        node: "node-one".into(),
        node_id: "6f7e1c3e-2f0a-4d35-8a60-0f4b2ac7a002".into(),
        datacenter: "dc1".into(),
        version: "0.0.0".into(),
        advertise: OwnAddress::fixed(Ipv4Addr::LOCALHOST.into()),
        meta: NodeMeta::default(),
        server_rpc: None,
    };
    let registry = Registry::in_memory(upstream.clone(), identity.clone(), Limits::default());
    Api::new(upstream, identity, HttpLimits::default(), registry)
}

/// A quorum whose replies are unrelated to the requests.
#[derive(Debug)]
struct Nonsense {
    turn: AtomicUsize,
}

impl Nonsense {
    fn next(&self) -> Response {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        RESPONSES[turn % RESPONSES.len()].clone()
    }
}

impl Quorum for Nonsense {
    fn call(self: Arc<Self>, _: Caller, call: LocalCall) -> BoxFuture<Result<Answered, Unavailable>> {
        let answer = match (call, self.next()) {
            (_, Response::Unavailable(reason)) => Err(reason),
            (LocalCall::Acquire { .. }, Response::Applied(applied)) => {
                Ok(Answered::Acquired(applied.index, applied))
            }
            (_, response) => Ok(Answered::Response(response)),
        };
        Box::pin(std::future::ready(answer))
    }

    fn invite(self: Arc<Self>, _: String, _: Vec<String>) -> BoxFuture<Result<Response, Unavailable>> {
        Box::pin(std::future::ready(Ok(self.next())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_and_archives_are_found() {
        assert!(txn_body_seeds().len() >= 4 && registration_body_seeds().len() >= 5);
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(&archive_seeds()[0]).expect("memory can be written");
        let file = packed.finish().expect("memory can be written");
        assert_eq!(archive::verify(&file[..]).expect("a backup").parts, 2);
    }

    #[test]
    fn every_seed_is_a_request() {
        for seed in request_seeds() {
            assert!(request_of(&seed).is_some(), "{}", seed.escape_ascii());
        }
    }
}
