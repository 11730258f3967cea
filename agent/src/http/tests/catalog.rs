//! Catalog and health, the operator's endpoints, and extensions to Consul's API.

use super::{NODE_ID, SERVER_ADDRESS, Stand};
use lockmesh_protocol::command::Command;
use lockmesh_protocol::format;
use serde_json::json;

const WEB: &str = r#"{"Node":"n1","Address":"10.0.0.1","NodeMeta":{"rack":"b"},
    "Service":{"Service":"web","Tags":["v1"],"Port":80},
    "Checks":[{"Name":"alive","Status":"passing"},{"CheckID":"web-up","ServiceID":"web","Status":"warning"}]}"#;

#[tokio::test]
async fn registration_visible_in_reads() {
    let stand = Stand::new();
    stand.put("/v1/catalog/register", WEB).await.is(200, "true");
    let nodes = stand.get("/v1/catalog/nodes").await;
    assert_eq!(nodes.header("x-consul-effective-consistency"), Some("leader"));
    assert_eq!(nodes.json().as_array().map(Vec::len), Some(2));
    let narrowed = stand.get("/v1/catalog/nodes?node-meta=rack:b&consistent").await;
    assert_eq!(narrowed.json()[0]["Node"], "n1");
    assert_eq!(narrowed.header("x-consul-effective-consistency"), Some("consistent"));

    let node = stand.get("/v1/catalog/node/N1").await.json();
    assert_eq!(node["Services"]["web"]["Port"], 80);
    assert_eq!(node["Services"]["web"]["Weights"], json!({"Passing": 1, "Warning": 1}));
    stand.get("/v1/catalog/node/none").await.is(200, "null");
    assert_eq!(stand.get("/v1/catalog/services").await.json(), json!({"web": ["v1"]}));
    let instance = &stand.get("/v1/catalog/service/web?tag=V1").await.json()[0];
    assert_eq!((&instance["Node"], &instance["ServicePort"]), (&json!("n1"), &json!(80)));
    stand.get("/v1/catalog/service/web?tag=v2").await.is(200, "[]");
    stand.get("/v1/catalog/datacenters").await.is(200, r#"["dc1"]"#);
}

#[tokio::test]
async fn health_by_node_service_and_state() {
    let stand = Stand::new();
    stand.put("/v1/catalog/register", WEB).await.is(200, "true");
    let checks = stand.get("/v1/health/node/n1").await;
    let index = checks.index();
    let expected = format!(
        "[{{\"Node\":\"n1\",\"CheckID\":\"alive\",\"Name\":\"alive\",\"Status\":\"passing\",\"Notes\":\"\",\
         \"Output\":\"\",\"ServiceID\":\"\",\"ServiceName\":\"\",\"ServiceTags\":[],\"Type\":\"\",\"Interval\":\"\",\
         \"Timeout\":\"\",\"ExposedPort\":0,\"Definition\":{{}},\"CreateIndex\":{index},\"ModifyIndex\":{index}}},"
    );
    assert!(checks.text().starts_with(&expected), "{checks:?}");
    stand.get("/v1/health/node/none").await.is(200, "[]");
    assert_eq!(stand.get("/v1/health/checks/web").await.json()[0]["CheckID"], "web-up");
    assert_eq!(stand.get("/v1/health/state/warning").await.json()[0]["CheckID"], "web-up");
    assert_eq!(stand.get("/v1/health/state/any").await.json().as_array().map(Vec::len), Some(3));
    stand.get("/v1/health/state/unwell").await.is(200, "[]");
    let instances = stand.get("/v1/health/service/web").await.json();
    assert_eq!(instances[0]["Checks"].as_array().map(Vec::len), Some(2));
    stand.get("/v1/health/service/web?passing").await.is(200, "[]");
    assert_eq!(
        stand.get("/v1/health/service/web?passing=false").await.json().as_array().map(Vec::len),
        Some(1)
    );
    stand.get("/v1/health/service/web?passing=maybe").await.is(400, "Invalid value for ?passing");
    stand.get("/v1/health/state/").await.is(400, "Missing check state");
    stand.get("/v1/health/node/").await.is(400, "Missing node name");
}

#[tokio::test]
async fn invalid_registrations_rejected() {
    let stand = Stand::new();
    for (body, status, text) in [
        (r#"{"Address":"a"}"#, 500, "Must provide node"),
        (r#"{"Node":"n"}"#, 500, "Must provide address if SkipNodeUpdate is not set"),
        (r#"{"Node":"n","Nonsense":1}"#, 400, "Request decode failed: json: unknown field \"Nonsense\""),
        ("", 400, "Request decode failed: EOF"),
    ] {
        stand.put("/v1/catalog/register", body).await.is(status, text);
    }
    let bad = stand.put("/v1/catalog/register", r#"{"Node":"n","Address":"a","ID":"x"}"#).await;
    assert!(bad.text().starts_with("Bad node ID: "), "{bad:?}");
    stand.put("/v1/catalog/deregister", r#"{"Node":"none","Address":"old"}"#).await.is(200, "true");
    stand.put("/v1/catalog/deregister", "{}").await.is(500, "Must provide node");
    let namespace = stand.put("/v1/catalog/deregister", r#"{"Node":"n","Namespace":"team"}"#).await;
    namespace.is(
        400,
        "Request decode failed: json: unknown field \"Namespace\" - Namespaces are a Consul Enterprise feature",
    );
}

#[tokio::test]
async fn unknown_check_status_rejected() {
    let stand = Stand::new();
    let why = "Request decode failed: Invalid check status: 'Critical': use passing, warning or critical";
    let misspelt = r#"{"Node":"n1","Address":"10.0.0.1","Check":{"Name":"alive","Status":"Critical"}}"#;
    stand.put("/v1/catalog/register", misspelt).await.is(400, why);
    stand.get("/v1/catalog/node/n1").await.is(200, "null");
}

#[tokio::test]
async fn critical_check_ends_sessions() {
    let stand = Stand::new();
    stand.quorum.apply(Command::RaiseFormat(format::NEWEST));
    stand.put("/v1/catalog/register", WEB).await;
    let id = stand.session(r#"{"Node":"n1","NodeChecks":["alive"]}"#).await;
    let check = r#"{"CheckID":"alive","Output":"disk full\n97 % of /data"}"#;
    let body = format!(r#"{{"Node":"n1","SkipNodeUpdate":true,"Check":{check}}}"#);
    stand.put("/v1/catalog/register", &body).await.is(200, "true");
    stand.get(&format!("/v1/session/info/{id}")).await.is(200, "[]");
    let losses = stand.get("/v1/lockmesh/losses").await.json();
    assert_eq!((&losses[0]["Session"], &losses[0]["Cause"]), (&json!(id), &json!("check-critical")));
    assert_eq!((&losses[0]["CheckID"], &losses[0]["CheckOutput"]), (&json!("alive"), &json!("disk full")));
}

#[tokio::test]
async fn the_quorum_is_shown() {
    let stand = Stand::new();
    stand.get("/v1/status/leader").await.is(200, &format!("\"{SERVER_ADDRESS}\""));
    stand.get("/v1/status/peers").await.is(200, &format!("[\"{SERVER_ADDRESS}\"]"));
    let expected = format!(
        "{{\"Servers\":[{{\"ID\":\"{NODE_ID}\",\"Node\":\"node-one\",\"Address\":\"{SERVER_ADDRESS}\",\
         \"Leader\":true,\"ProtocolVersion\":\"3\",\"Voter\":true,\"LastIndex\":9}}],\"Index\":0}}"
    );
    stand.get("/v1/operator/raft/configuration").await.is(200, &expected);
    stand.call("POST", "/v1/operator/raft/transfer-leader", "").await.is(200, r#"{"Success":true}"#);
    let peer = "/v1/operator/raft/peer";
    for (query, status, text) in [
        ("", 400, "Must specify either ?id with the server's ID or ?address with IP:port of peer to remove"),
        ("?id=a&address=b", 400, "Must specify only one of ?id or ?address"),
        ("?id=a", 500, "id \"a\" was not found in the Raft configuration"),
        ("?address=b", 500, "address \"b\" was not found in the Raft configuration"),
    ] {
        stand.call("DELETE", &format!("{peer}{query}"), "").await.is(status, text);
    }
    stand.call("DELETE", &format!("{peer}?address={SERVER_ADDRESS}"), "").await.is(200, "");
}

#[tokio::test]
async fn locks_listed_with_holders() {
    let stand = Stand::new();
    let id = stand.session(r#"{"Name":"worker"}"#).await;
    let granted = stand.put(&format!("/v1/kv/jobs/1?acquire={id}"), "x").await;
    let fence: u64 = granted.header("x-lockmesh-fence").unwrap().parse().unwrap();
    let locks = stand.get("/v1/lockmesh/locks?prefix=jobs/").await;
    assert!(locks.index() > 1);
    let lock = &locks.json()[0];
    assert_eq!((&lock["Key"], &lock["Session"]), (&json!("jobs/1"), &json!(id)));
    assert_eq!((&lock["SessionName"], &lock["Node"]), (&json!("worker"), &json!("node-one")));
    assert_eq!((&lock["Fence"], &lock["GrantedAtMs"]), (&json!(fence), &json!(1_000)));
    stand.get("/v1/lockmesh/locks?prefix=other/").await.is(200, "[]");
    stand.put(&format!("/v1/session/destroy/{id}"), "").await;
    let closed = &stand.get("/v1/lockmesh/locks").await.json()[0];
    assert_eq!((&closed["Session"], &closed["LockDelay"]), (&json!(""), &json!("15s")));
    let loss = &stand.get("/v1/lockmesh/losses").await.json()[0];
    assert_eq!(
        (&loss["Cause"], &loss["Keys"]),
        (&json!("destroyed"), &json!([{"Key": "jobs/1", "Fence": fence}]))
    );
}

#[tokio::test]
async fn service_mesh_fields_round_trip() {
    let stand = Stand::new();
    let service = json!({
        "kind": "connect-proxy", "ID": "p1", "Service": "web-proxy", "Port": 9, "Meta": {"v": "1"},
        "Proxy": {"destinationServiceName": "web", "Upstreams": [{"DestinationName": "db"}], "Expose": {}},
        "Connect": {"Native": true},
    });
    let body = json!({"Node": "n1", "Address": "10.0.0.1", "Service": service}).to_string();
    stand.put("/v1/catalog/register", &body).await.is(200, "true");
    let proxy = json!({
        "DestinationServiceName": "web", "Upstreams": [{"DestinationName": "db"}],
        "Mode": "", "MeshGateway": {}, "Expose": {},
    });
    let (connect, meta) = (json!({"Native": true}), json!({"v": "1"}));
    let row = stand.get("/v1/catalog/service/web-proxy").await.json()[0].clone();
    assert_eq!((&row["ServiceKind"], &row["ServiceProxy"]), (&json!("connect-proxy"), &proxy));
    assert_eq!((&row["ServiceConnect"], &row["ServiceMeta"]), (&connect, &meta));
    let get = r#"[{"Service": {"Verb": "get", "Node": "n1", "Service": {"ID": "p1"}}}]"#;
    for shown in [
        stand.get("/v1/catalog/node/n1").await.json()["Services"]["p1"].clone(),
        stand.get("/v1/health/service/web-proxy").await.json()[0]["Service"].clone(),
        stand.put("/v1/txn", get).await.json()["Results"][0]["Service"].clone(),
    ] {
        assert_eq!((&shown["Kind"], &shown["Proxy"]), (&json!("connect-proxy"), &proxy), "{shown}");
        assert_eq!((&shown["Connect"], &shown["Meta"]), (&connect, &meta), "{shown}");
    }
    // A usual service looks as before.
    let body = r#"{"Node": "n1", "Address": "10.0.0.1", "Service": {"ID": "w", "Service": "web", "Connect": {"Native": false}}}"#;
    stand.put("/v1/catalog/register", body).await.is(200, "true");
    let web = stand.get("/v1/catalog/node/n1").await.json()["Services"]["w"].clone();
    assert_eq!((web.get("Kind"), &web["Connect"], &web["Meta"]), (None, &json!({}), &json!(null)));
    assert_eq!(web["Proxy"], json!({"Mode": "", "MeshGateway": {}, "Expose": {}}));
}
