//! The operator's view of a quorum of three, and the outcome of operator requests.

use super::{NODE_ID, Stand};
use lockmesh_protocol::command::{AgentRegistration, Command};
use lockmesh_protocol::id::{LogIndex, ServerId, Term, WallTime};
use lockmesh_protocol::record::Node;
use lockmesh_protocol::rpc::{Request, ServerStatus, Status, Unavailable};
use serde_json::{Value, json};
use std::time::Duration;

/// Server 2 leads; server 3 is a learner without contact to the leader for a while.
fn three() -> Status {
    let server = |id: u64, voter, last_contact, healthy| ServerStatus {
        id: ServerId(id),
        node_id: format!("uuid-{id}"),
        node: format!("s{id}"),
        address: format!("10.0.0.{id}:8300"),
        voter,
        last_index: LogIndex(40 + id),
        last_contact,
        healthy,
        stable_since: healthy.then_some(WallTime(1_795_250_472_999)),
        version: if id == 3 { String::new() } else { format!("0.{id}.0") },
    };
    let milliseconds = |count| Some(Duration::from_millis(count));
    Status {
        leader: Some(ServerId(2)),
        server: ServerId(2),
        term: Term(7),
        membership_index: LogIndex(5),
        servers: vec![
            server(1, true, milliseconds(12), true),
            server(2, true, milliseconds(0), true),
            server(3, false, milliseconds(1500), false),
        ],
        ..Status::default()
    }
}

fn stand() -> Stand {
    let stand = Stand::new();
    *stand.quorum.status.lock().unwrap() = three();
    stand
}

#[tokio::test]
async fn every_server_is_listed() {
    let stand = stand();
    let listed = stand.get("/v1/operator/raft/configuration").await.json();
    assert_eq!(listed["Index"], 0, "as in Consul, which keeps it to itself");
    let second = json!({
        "ID": "uuid-2", "Node": "s2", "Address": "10.0.0.2:8300", "Leader": true, "ProtocolVersion": "3",
        "Voter": true, "LastIndex": 42,
    });
    assert_eq!((&listed["Servers"][1], &listed["Servers"][2]["Voter"]), (&second, &json!(false)));
    let ours = stand.get("/v1/lockmesh/servers").await.json();
    assert_eq!((&ours["Leader"], &ours["SeenBy"], &ours["Term"]), (&json!(2), &json!(2), &json!(7)));
    let third = json!({
        "RaftID": 3, "ID": "uuid-3", "Node": "s3", "Address": "10.0.0.3:8300", "Leader": false,
        "Voter": false, "LastIndex": 43, "LastContact": "1.5s", "Healthy": false, "Version": "",
    });
    assert_eq!(ours["Servers"][2], third);
    stand.get("/v1/status/peers").await.is(200, r#"["10.0.0.1:8300","10.0.0.2:8300","10.0.0.3:8300"]"#);
}

#[tokio::test]
async fn servers_listed_even_without_agent() {
    let stand = stand();
    let members = stand.get("/v1/agent/members").await.json();
    let shown = |member: &Value| {
        let field = |name: &str| member[name].as_str().unwrap().to_owned();
        (field("Name"), field("Addr"), member["Tags"]["port"].clone(), member["Status"].clone())
    };
    let members: Vec<_> = members.as_array().unwrap().iter().map(shown).collect();
    let server = |name: &str, address: &str, status| {
        (name.to_owned(), address.to_owned(), json!("8300"), json!(status))
    };
    assert_eq!(members[0].0, "node-one");
    let expected = [server("s1", "10.0.0.1", 1), server("s2", "10.0.0.2", 1), server("s3", "10.0.0.3", 4)];
    assert_eq!(members[1..], expected);
}

#[tokio::test]
async fn leaderless_reads_require_stale() {
    let stand = stand();
    *stand.quorum.status.lock().unwrap() = Status { leader: None, server: ServerId(1), ..three() };
    for path in ["/v1/operator/raft/configuration", "/v1/operator/autopilot/health"] {
        stand.get(path).await.is(500, "No cluster leader");
    }
    let listed = stand.get("/v1/operator/raft/configuration?stale").await.json();
    let leaders = listed["Servers"].as_array().unwrap().iter().filter(|server| server["Leader"] == true);
    assert_eq!(leaders.count(), 0);
    let ours = stand.get("/v1/lockmesh/servers?stale").await.json();
    assert_eq!((&ours["Leader"], &ours["Servers"][2]["Healthy"]), (&json!(0), &json!(null)));
    stand.get("/v1/status/leader").await.is(200, r#""""#);
}

#[tokio::test]
async fn autopilot_health_sets_status_code() {
    let stand = stand();
    let ill = stand.get("/v1/operator/autopilot/health").await;
    assert_eq!(ill.status, 429);
    let ill = ill.json();
    assert_eq!((&ill["Healthy"], &ill["FailureTolerance"]), (&json!(false), &json!(0)));
    let third = json!({
        "ID": "uuid-3", "Name": "s3", "Address": "10.0.0.3:8300", "SerfStatus": "failed", "Version": "",
        "Leader": false, "LastContact": "1.5s", "LastTerm": 7, "LastIndex": 43, "Healthy": false,
        "StableSince": "0001-01-01T00:00:00Z", "Voter": false,
    });
    assert_eq!(ill["Servers"][2], third);
    let first = &ill["Servers"][0];
    assert_eq!(
        (&first["StableSince"], &first["Version"]),
        (&json!("2026-11-21T08:41:12.999Z"), &json!("0.1.0"))
    );
    let mut status = three();
    (status.servers[2].healthy, status.servers[2].voter) = (true, true);
    *stand.quorum.status.lock().unwrap() = status;
    let well = stand.get("/v1/operator/autopilot/health").await;
    assert_eq!(well.status, 200);
    assert_eq!((&well.json()["Healthy"], &well.json()["FailureTolerance"]), (&json!(true), &json!(1)));
}

#[tokio::test]
async fn server_selected_by_any_identifier() {
    let stand = stand();
    let peer = "/v1/operator/raft/peer";
    for name in ["id=UUID-3", "id=3", "address=10.0.0.3:8300"] {
        stand.call("DELETE", &format!("{peer}?{name}"), "").await.is(200, "");
    }
    let to = "/v1/operator/raft/transfer-leader";
    stand.call("POST", &format!("{to}?id=1"), "").await.is(200, r#"{"Success":true}"#);
    let mut expected = vec![Request::RemoveServer(ServerId(3)); 3];
    expected.push(Request::TransferLeader(Some(ServerId(1))));
    assert_eq!(*stand.quorum.orders.lock().unwrap(), expected);
    let missing = r#"id "4" was not found in the Raft configuration"#;
    stand.call("DELETE", &format!("{peer}?id=4"), "").await.is(500, missing);
    stand.call("POST", &format!("{to}?id=4"), "").await.is(500, missing);

    let mut status = three();
    status.servers[0].node_id = "uuid-3".into();
    *stand.quorum.status.lock().unwrap() = status;
    let twice = stand.call("DELETE", &format!("{peer}?id=uuid-3"), "").await;
    assert_eq!(twice.status, 409);
    assert!(twice.text().contains("matches the servers 1 and 3: select one by its RaftID"), "{twice:?}");
}

#[tokio::test]
async fn waiting_server_invited_to_quorum() {
    let stand = stand();
    let path = "/v1/lockmesh/servers";
    stand.put(&format!("{path}?address=s4.internal:8300"), "").await.is(200, "");
    let servers = ["10.0.0.1:8300", "10.0.0.2:8300", "10.0.0.3:8300"].map(String::from).to_vec();
    assert_eq!(*stand.quorum.orders.lock().unwrap(), [Request::Invite(servers)]);
    for (query, status, words) in [
        ("", 400, "Must specify ?address"),
        ("?address=s4", 400, "\"s4\" is no address"),
        ("?address=:8300", 400, "is no address"),
        ("?address=s4:0", 400, "is no address"),
        ("?address=10.0.0.2:8300", 409, "belongs to this quorum already, as server 2 on node \"s2\""),
    ] {
        let refused = stand.put(&format!("{path}{query}"), "").await;
        assert!(refused.status == status && refused.text().contains(words), "{refused:?}");
    }
    *stand.quorum.denied.lock().unwrap() =
        Some(Unavailable::Denied("this server belongs to a cluster already".into()));
    let refused = stand.put(&format!("{path}?address=s4:8300"), "").await;
    assert!(refused.status == 409 && refused.text().contains("an emptied data folder"), "{refused:?}");
}

#[tokio::test]
async fn leader_denial_suggests_remedy() {
    let stand = stand();
    for (reason, way_out) in [
        ("this server leads: transfer the leadership first", "transfer-leader"),
        ("too few of the other servers are well to go on without it", "start servers that are down"),
        ("cannot remove server 4: 2 voters would remain, and MinQuorum is 3", "add a server first"),
        ("an unexpected reason", "list-peers"),
    ] {
        *stand.quorum.denied.lock().unwrap() = Some(Unavailable::Denied(reason.into()));
        let denied = stand.call("DELETE", "/v1/operator/raft/peer?id=1", "").await;
        assert_eq!(denied.status, 409);
        assert!(denied.text().starts_with(reason) && denied.text().contains(way_out), "{denied:?}");
    }
    *stand.quorum.denied.lock().unwrap() = Some(Unavailable::NotLeader { leader: None });
    stand.call("DELETE", "/v1/operator/raft/peer?id=1", "").await.is(500, "No cluster leader");
}

#[tokio::test]
async fn autopilot_partial_update_and_cas() {
    let stand = Stand::new();
    let path = "/v1/operator/autopilot/configuration";
    let first = stand.get(path).await;
    let text = r#"{"CleanupDeadServers":true,"LastContactThreshold":"200ms","MaxTrailingLogs":250,"MinQuorum":0,"ServerStabilizationTime":"1s","RedundancyZoneTag":"","DisableUpgradeMigration":false,"UpgradeVersionTag":"","CreateIndex":0,"ModifyIndex":0}"#;
    first.is(200, text);
    stand.put(path, r#"{"MinQuorum": 3, "lastcontactthreshold": 1000000000}"#).await.is(200, "true");
    let second = stand.get(path).await.json();
    let shown = |config: &Value| (config["MinQuorum"].clone(), config["LastContactThreshold"].clone());
    assert_eq!(shown(&second), (json!(3), json!("1s")));
    assert_eq!(second["MaxTrailingLogs"], 250, "what is not named stays as it is");
    let index = second["ModifyIndex"].as_u64().unwrap();
    stand.put(&format!("{path}?cas={}", index - 1), r#"{"MinQuorum": 5}"#).await.is(200, "false");
    stand.put(&format!("{path}?cas={index}"), &second.to_string()).await.is(200, "true");
    assert_eq!(shown(&stand.get(path).await.json()), (json!(3), json!("1s")));
}

#[tokio::test]
async fn autopilot_accepts_go_client_body() {
    let stand = Stand::new();
    let path = "/v1/operator/autopilot/configuration";
    let body = r#"{"CleanupDeadServers":true,"LastContactThreshold":null,"MaxTrailingLogs":0,"MinQuorum":0,
        "ServerStabilizationTime":null,"RedundancyZoneTag":"","DisableUpgradeMigration":false,
        "UpgradeVersionTag":"","CreateIndex":0,"ModifyIndex":0}"#;
    stand.put(path, body).await.is(200, "true");
    assert_eq!(stand.get(path).await.json()["MaxTrailingLogs"], 0);
}

#[tokio::test]
async fn invalid_autopilot_configuration_rejected() {
    let stand = Stand::new();
    let path = "/v1/operator/autopilot/configuration";
    for (body, words) in [
        ("", "Error parsing autopilot config: EOF"),
        (r#"{"MinQuorums": 3}"#, "unknown field \"MinQuorums\""),
        (r#"{"MinQuorum": -1}"#, "cannot unmarshal number"),
        (r#"{"MaxTrailingLogs": -1}"#, "cannot unmarshal number"),
        (r#"{"LastContactThreshold": "200"}"#, "missing unit"),
        (r#"{"LastContactThreshold": "0s"}"#, "LastContactThreshold must be 10ms to 1h0m0s"),
        (r#"{"ServerStabilizationTime": true}"#, "cannot unmarshal bool"),
        (r#"{"UpgradeVersionTag": "v1"}"#, "UpgradeVersionTag is a Consul Enterprise feature"),
        ("[]", "cannot unmarshal array"),
    ] {
        let refused = stand.put(path, body).await;
        assert_eq!(refused.status, 400, "{body}");
        assert!(refused.text().contains(words), "{body}: {refused:?}");
    }
    let refused = stand.put(&format!("{path}?cas=x"), "{}").await;
    refused.is(400, "Error parsing cas value: strconv.ParseUint: parsing \"x\": invalid syntax");
    assert_eq!(stand.get(path).await.json()["ModifyIndex"], 0);
}

#[tokio::test]
async fn unsupported_reload_rejected() {
    let stand = Stand::new();
    assert_eq!(stand.call("GET", "/v1/agent/reload", "").await.header("allow"), Some("OPTIONS,PUT"));
    let refused = stand.put("/v1/agent/reload", "").await;
    assert!(refused.status == 500 && refused.text().contains("cannot reload"), "{refused:?}");
    assert!(stand.get("/v1/operator/raft/configuration").await.text().contains(NODE_ID));
}

#[tokio::test]
async fn gossip_key_rotation_is_idempotent() {
    let stand = Stand::new();
    stand.get("/v1/operator/gossip").await.is(200, r#"{"Number":0}"#);
    stand.put("/v1/operator/gossip/rotate", "").await.is(200, r#"{"Number":1}"#);
    for _ in 0..2 {
        stand.put("/v1/operator/gossip/rotate?from=1", "").await.is(200, r#"{"Number":2}"#);
    }
    stand.get("/v1/operator/gossip?stale").await.is(200, r#"{"Number":2}"#);
    for wrong in ["x", "-1", "4294967296"] {
        let refused = stand.put(&format!("/v1/operator/gossip/rotate?from={wrong}"), "").await;
        assert!(refused.status == 400 && refused.text().contains("?from"), "{wrong}: {refused:?}");
    }
    let reason = "the gossip key was changed 3 s ago, and some agents may not hold it for 57 s more";
    stand.break_with(Unavailable::Denied(reason.into()));
    let refused = stand.put("/v1/operator/gossip/rotate?from=2", "").await;
    refused.is(409, &format!("{reason}: wait that long, or they would be cut off from the mesh"));
    refused.failed(409, "refused");
    stand.mend();
    stand
        .get("/v1/operator/gossip?ns=x")
        .await
        .is(400, r#"Invalid query parameter: "ns" - Namespaces are a Consul Enterprise feature"#);
}

/// Sends a request over TCP to an agent with or without a Unix socket.
async fn over_tcp(stand: &Stand, method: &str, path: &str) -> super::Reply {
    over_tcp_with(stand, method, path, "").await
}

async fn over_tcp_with(stand: &Stand, method: &str, path: &str, body: &str) -> super::Reply {
    let request = http::Request::builder().method(method).uri(path).header("host", "localhost");
    let peer = crate::http::Peer::Tcp(([127, 0, 0, 1], 4711).into());
    stand
        .send_from(peer, request.body(crate::http::Body::from(bytes::Bytes::from(body.to_owned()))).unwrap())
        .await
}

#[tokio::test]
async fn operator_requests_over_tcp_rejected() {
    let mut stand = stand();
    let orders =
        [("DELETE", "/v1/operator/raft/peer?id=uuid-3"), ("PUT", "/v1/agent/maintenance?enable=true")];
    for (method, path) in orders {
        let accepted = over_tcp(&stand, method, path).await;
        assert_eq!(accepted.status, 200, "there is no other way in: {accepted:?}");
    }
    let api = std::sync::Arc::get_mut(&mut stand.api).expect("nothing else has it");
    api.access.operator_socket = Some("/run/a.sock".into());
    stand.quorum.orders.lock().unwrap().clear();
    let more = [
        ("POST", "/v1/operator/raft/transfer-leader"),
        ("PUT", "/v1/operator/autopilot/configuration"),
        ("PUT", "/v1/operator/gossip/rotate"),
        ("PUT", "/v1/lockmesh/servers?address=h:1"),
        ("GET", "/v1/snapshot"),
        ("PUT", "/v1/snapshot"),
        ("GET", "/v1/agent/monitor?loglevel=x"),
        ("PUT", "/v1/agent/reload"),
        ("PUT", "/v1/agent/leave"),
        ("PUT", "/v1/agent/force-leave/web-1"),
        ("PUT", "/v1/agent/join/h:1"),
    ];
    for (method, path) in orders.into_iter().chain(more) {
        let refused = over_tcp(&stand, method, path).await;
        refused.failed(403, "refused");
        let told = refused.text();
        assert!(told.contains("CONSUL_HTTP_ADDR=unix:///run/a.sock,"), "{told}");
        assert!(told.contains("http.operator_over_tcp"), "{told}");
    }
    assert_eq!(stand.quorum.orders.lock().unwrap().len(), 0, "nothing was done");
    for (method, path) in [orders[0], ("GET", "/v1/snapshot"), ("GET", "/v1/agent/monitor?loglevel=x")] {
        assert_ne!(stand.call(method, path, "").await.status, 403, "the socket may");
    }
    for (method, path) in [
        ("GET", "/v1/operator/raft/configuration"),
        ("GET", "/v1/lockmesh/servers"),
        ("PUT", "/v1/kv/a"),
        ("DELETE", "/v1/kv/?recurse"),
        ("PUT", "/v1/session/destroy/6f7e1c3e-2f0a-4d35-8a60-0f4b2ac7a001"),
    ] {
        assert_eq!(over_tcp(&stand, method, path).await.status, 200, "{path} is open to every client");
    }
}

#[tokio::test]
async fn writes_about_other_nodes_need_operator() {
    let mut stand = stand();
    let node = Node::of("web-9".into(), "5a0f2b6e-3c60-4d3f-9d5c-000000000009".into(), "10.0.0.9");
    stand.quorum.apply(Command::RegisterAgent(AgentRegistration::of(node)));
    let created = stand.put("/v1/session/create", r#"{"Node": "web-9", "Checks": ["serfHealth"]}"#).await;
    let session = created.json()["ID"].as_str().expect("a session").to_owned();
    let api = std::sync::Arc::get_mut(&mut stand.api).expect("nothing else has it");
    api.access.operator_socket = Some("/run/a.sock".into());
    let health = r#"{"Node": "web-9", "Address": "10.0.0.9", "SkipNodeUpdate": true, "Check": {"CheckID": "serfHealth", "Name": "Serf Health Status", "Status": "critical"}}"#;
    let delete = r#"[{"Check": {"Verb": "delete", "Check": {"Node": "web-9", "CheckID": "serfHealth"}}}]"#;
    let destroy = format!("/v1/session/destroy/{session}");
    let requests = [
        ("/v1/catalog/register", health),
        ("/v1/catalog/deregister", r#"{"Node": "web-9"}"#),
        ("/v1/session/create", r#"{"Node": "web-9", "Checks": ["serfHealth"]}"#),
        ("/v1/coordinate/update", r#"{"Node": "web-9", "Coord": {"Vec": [0,0,0,0,0,0,0,0]}}"#),
        ("/v1/txn", delete),
        (&destroy, ""),
        (&format!("{destroy}?retry"), ""),
        (&format!("{destroy}?given-up=3s"), ""),
    ];
    for (path, body) in requests {
        let reply = over_tcp_with(&stand, "PUT", path, body).await;
        if path.contains("given-up") {
            assert_eq!(reply.status, 200, "it is answered before its outcome");
            continue;
        }
        reply.failed(403, "refused");
        assert!(reply.text().contains(r#""web-9" is another agent's node"#), "{}", reply.text());
    }
    let holds = stand.get(&format!("/v1/session/info/{session}")).await;
    assert!(holds.text().contains(&session), "it lives: {}", holds.text());
    assert_eq!(stand.put(&format!("{destroy}?retry"), "").await.status, 200, "the socket may");
    let gone = stand.get(&format!("/v1/session/info/{session}")).await;
    assert_eq!(gone.text(), "[]", "it has ended");
    let own = r#"{"Node": "node-one", "Address": "10.0.0.1", "Check": {"CheckID": "disk", "Name": "disk", "Status": "critical"}}"#;
    assert_eq!(over_tcp_with(&stand, "PUT", "/v1/catalog/register", own).await.status, 200);
}

#[tokio::test]
async fn operator_hosts_configured_and_listed() {
    let stand = stand();
    const PATH: &str = "/v1/lockmesh/operator-hosts";
    assert_eq!(stand.get(PATH).await.json(), serde_json::json!({"Hosts": []}));
    stand.put(PATH, r#"{"Hosts": ["web-9"]}"#).await.failed(400, "refused");
    assert_eq!(stand.put(PATH, r#"{"Hosts": ["web-9", "Node-One"]}"#).await.status, 200);
    assert_eq!(stand.get(PATH).await.json(), serde_json::json!({"Hosts": ["node-one", "web-9"]}));
    stand.put(PATH, r#"{"Host": []}"#).await.failed(400, "refused");
    assert_eq!(stand.put(PATH, r#"{"Hosts": []}"#).await.status, 200);
    let denied = Unavailable::Denied("Permission denied: \"n1\" is not an operator host".into());
    *stand.quorum.broken.lock().unwrap() = Some(denied);
    stand.get("/v1/snapshot").await.failed(403, "refused");
}

/// The lines of the audit log.
#[derive(Clone, Default)]
pub(super) struct Lines(pub(super) std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "audit"
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0.push_str(&format!("{}={value:?} ", field.name()));
            }
        }
        let mut text = Text(format!("{} ", event.metadata().level()));
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0.trim_end().to_owned());
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn operators_and_recursive_deletes_audited() {
    let mut stand = stand();
    let api = std::sync::Arc::get_mut(&mut stand.api).expect("nothing else has it");
    api.access.operator_socket = Some("/run/a.sock".into());
    let lines = Lines::default();
    // With a single subscriber, the first thread that meets an event decides for all threads
    // whether it is recorded, and threads of other tests have no subscriber.
    let _second = tracing::Dispatch::new(Lines::default());
    let _guard = tracing::subscriber::set_default(lines.clone());
    stand.call("DELETE", "/v1/operator/raft/peer?id=uuid-3&token=secret", "").await;
    over_tcp(&stand, "PUT", "/v1/agent/leave").await;
    stand.put("/v1/kv/app/a", "value").await;
    stand.call("DELETE", "/v1/kv/app/%0Aa?recurse", "").await;
    stand.call("DELETE", "/v1/kv/app/?recurse", "").await;
    let tree = r#"[{"KV": {"Verb": "delete-tree", "Key": "b"}}, {"KV": {"Verb": "set", "Key": "c", "Value": "eA=="}}]"#;
    stand.put("/v1/txn", tree).await;
    stand.call("DELETE", "/v1/kv/c", "").await;
    let api = std::sync::Arc::get_mut(&mut stand.api).expect("nothing else has it");
    api.access.tokens = crate::http::token::Tokens::new(true);
    stand.call("PUT", "/v1/agent/leave?token=secret", "").await.failed(403, "refused");
    let unix = "peer=unix uid=1000 pid=7 node=node-one";
    assert_eq!(
        *lines.0.lock().unwrap(),
        [
            format!(
                r#"INFO message=operator request {unix} request="DELETE /v1/operator/raft/peer?id=uuid-3" result="200""#
            ),
            r#"INFO message=operator request peer=127.0.0.1:4711 node=node-one request="PUT /v1/agent/leave" result="403""#
                .to_owned(),
            format!(
                r#"INFO message=recursive delete {unix} request="DELETE /v1/kv/app/?recurse" keys="[\"app/\"]" result="200""#
            ),
            format!(
                r#"INFO message=recursive delete {unix} request="PUT /v1/txn" keys="[\"b\"]" result="200""#
            ),
            format!(r#"INFO message=operator request {unix} request="PUT /v1/agent/leave" result="403""#),
        ]
    );
}
