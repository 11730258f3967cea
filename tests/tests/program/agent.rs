//! Assertions 60–69: the agent, the catalog, health, status and backups, as far as lock clients use
//! them.

use lockmesh_tests::dev::{Dev, Shared};
use lockmesh_tests::dialect::let_pass;
use lockmesh_tests::http::Client;
use serde_json::{Value, json};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

fn shared() -> Shared {
    static SERVER: OnceLock<Dev> = OnceLock::new();
    Dev::shared(&SERVER, &[])
}

fn own_node(client: &Client) -> String {
    let own = client.get("/v1/agent/self").expect(200).json();
    own["Config"]["NodeName"].as_str().expect("a node name").to_owned()
}

#[test]
fn core_dumps_are_disabled() {
    let dev = Dev::start(&[]);
    if dev.is_foreign() {
        return;
    }
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", dev.process_number())).expect("it runs");
    let line = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).expect("Linux has it");
    assert_eq!(line.split_whitespace().next(), Some("0"), "{line}");
}

/// Waits, by blocking queries, until the catalog shows this agent's check in this state.
fn wait_for_status(client: &Client, check: &str, status: &str) -> Value {
    let path = format!("/v1/health/node/{}", own_node(client));
    let mut index = 0;
    loop {
        let answer = client.get(&format!("{path}?index={index}&wait=60s")).expect(200).expect_meta();
        let checks = answer.json();
        let found =
            checks.as_array().expect("checks").iter().find(|found| found["CheckID"] == check).cloned();
        if let Some(found) = found.filter(|found| found["Status"] == status) {
            return found;
        }
        index = answer.index();
    }
}

/// Contract: 60.
#[test]
fn self_reports_node_identity() {
    let server = shared();
    let own = server.client().get("/v1/agent/self").expect(200).json();
    assert_eq!(own["Config"]["Datacenter"], "dc1");
    assert!(!own["Config"]["NodeName"].as_str().expect("a name").is_empty());
    let address = own["DebugConfig"]["SerfAdvertiseAddrLAN"].as_str().expect("an address");
    let address = address.strip_prefix("tcp://").expect("as tcp://ip:port");
    address.parse::<std::net::SocketAddr>().expect("an address");
    for part in ["Config", "DebugConfig", "Member", "Stats", "Meta"] {
        assert!(own[part].is_object(), "{part}: {own}");
    }
    for field in ["NodeID", "Server", "Version", "Revision"] {
        assert!(own["Config"].get(field).is_some(), "{field}: {own}");
    }
    if !server.is_foreign() {
        assert_eq!(own["Config"]["NodeName"], "node-one");
    }
}

/// Contract: 61.
#[test]
fn members_lists_agent_as_alive() {
    let client = shared().client();
    let members = client.get("/v1/agent/members").expect(200).json();
    let member = members[0].clone();
    assert_eq!(members.as_array().map(Vec::len), Some(1));
    assert_eq!(member["Name"], json!(own_node(&client)));
    assert_eq!(member["Status"], json!(1));
    assert!(member["Port"].as_u64().is_some() && member["Tags"].is_object());
    assert_eq!(member["Tags"]["role"], "consul");
    for field in
        ["Addr", "ProtocolMin", "ProtocolMax", "ProtocolCur", "DelegateMin", "DelegateMax", "DelegateCur"]
    {
        assert!(member.get(field).is_some(), "{field}: {member}");
    }
}

/// Contract: 62.
#[test]
fn ttl_check_follows_reports() {
    let client = shared().client();
    let register = json!({"ID": "a62", "Name": "A check", "Notes": "of 62", "TTL": "1h"});
    let registered = client.put("/v1/agent/check/register", register.to_string()).expect(200);
    assert!(registered.body.is_empty());
    let local = client.get("/v1/agent/checks").expect(200).json();
    assert_eq!(local["a62"]["Status"], "critical", "the initial state");
    assert_eq!(local.get("serfHealth"), None, "the node's own check is not the agent's");
    wait_for_status(&client, "a62", "critical");

    for (verb, status) in [("pass", "passing"), ("warn", "warning"), ("fail", "critical")] {
        client.put(&format!("/v1/agent/check/{verb}/a62?note=said%20{verb}"), "").expect(200);
        let local = client.get("/v1/agent/checks").expect(200).json();
        assert_eq!(local["a62"]["Status"], status);
        assert_eq!(local["a62"]["Output"], format!("said {verb}"));
        let known = wait_for_status(&client, "a62", status);
        assert_eq!((&known["Name"], &known["Notes"]), (&json!("A check"), &json!("of 62")));
        assert_eq!(known["ServiceTags"], json!([]));
    }
    let update = json!({"Status": "passing", "Output": "by update"}).to_string();
    client.put("/v1/agent/check/update/a62", update).expect(200);
    assert_eq!(wait_for_status(&client, "a62", "passing")["Output"], "by update");
    let bad = json!({"Status": "unwell"}).to_string();
    client.put("/v1/agent/check/update/a62", bad).expect_text(400, "Invalid check status: 'unwell'");

    client.put("/v1/agent/check/deregister/a62", "").expect(200);
    assert_eq!(client.get("/v1/agent/checks").expect(200).json().get("a62"), None);
}

/// Contract: 62.
#[test]
fn invalid_check_requests_rejected() {
    let server = shared();
    let client = server.client();
    let text = "CheckID \"a62-none\" does not have associated TTL";
    for verb in ["pass", "warn", "fail"] {
        client.put(&format!("/v1/agent/check/{verb}/a62-none"), "").expect_text(500, text);
    }
    let update = json!({"Status": "passing"}).to_string();
    client.put("/v1/agent/check/update/a62-none", update).expect_text(500, text);
    client.put("/v1/agent/check/deregister/a62-none", "").expect(200);
    for (body, text) in [
        (json!({"TTL": "10s"}), "Missing check name"),
        (json!({"Name": "a62-bad", "TTL": "10s", "Status": "unwell"}), "Bad check status"),
        (json!({"Name": "a62-bad", "TTL": "ten"}), "invalid duration"),
        (json!({"Name": "a62-bad"}), "Invalid check"),
    ] {
        client.put("/v1/agent/check/register", body.to_string()).expect_text(400, text);
    }
    client.put("/v1/agent/check/register", r#"{"Name":"a62-bad","TTL":"10s","Colour":"red"}"#).expect(400);
    let unbound = json!({"Name": "a62-bad", "TTL": "10s", "ServiceID": "none"}).to_string();
    let unbound = client.put("/v1/agent/check/register", unbound);
    assert!(
        unbound.status >= 400 && unbound.text().contains("ServiceID \"none\" does not exist"),
        "{unbound:?}"
    );
    assert_eq!(client.get("/v1/agent/checks").expect(200).json().get("a62-bad"), None);
}

/// Contract: 62.
#[test]
fn unsupported_check_type_rejected() {
    let server = shared();
    if server.is_foreign() {
        return;
    }
    let client = server.client();
    for (field, name) in [("DockerContainerID", "Docker"), ("OSService", "OSService"), ("Args", "Scripts")] {
        let mut body = json!({"Name": "a62-kind", "Interval": "10s"});
        body[field] = if field == "Args" { json!(["true"]) } else { json!("x") };
        let answer = client.put("/v1/agent/check/register", body.to_string());
        assert!(answer.status == 500 && answer.text().contains(name), "{answer:?}");
    }
    assert_eq!(client.get("/v1/agent/checks").expect(200).json().get("a62-kind"), None);
}

/// Contract: 62.
#[test]
fn silent_ttl_check_turns_critical() {
    let client = shared().client();
    let register = json!({"Name": "a62-silent", "TTL": "1s", "Status": "passing"});
    let begun = Instant::now();
    client.put("/v1/agent/check/register", register.to_string()).expect(200);
    let expired = wait_for_status(&client, "a62-silent", "critical");
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert!(expired["Output"].as_str().expect("a text").contains("TTL expired"), "{expired}");
    client.put("/v1/agent/check/deregister/a62-silent", "").expect(200);
}

/// Contract: 63.
#[test]
fn critical_agent_check_ends_session() {
    let client = shared().client();
    let register = json!({"Name": "a63", "TTL": "1h", "Status": "passing"});
    client.put("/v1/agent/check/register", register.to_string()).expect(200);
    wait_for_status(&client, "a63", "passing");
    let session = client.session_of(json!({"NodeChecks": ["a63"], "LockDelay": "0s"}));
    let spared = client.session();
    assert!(client.acquire("a63/key", &session));
    assert!(client.acquire("a63/spared", &spared));
    let index = client.get("/v1/kv/a63/key").index();

    client.put("/v1/agent/check/fail/a63", "").expect(200);
    let freed = client.get(&format!("/v1/kv/a63/key?index={index}&wait=60s"));
    assert_eq!(freed.entry().get("Session"), None);
    assert_eq!(client.session_info(&session), None);
    assert_eq!(client.holder("a63/spared"), Some(spared), "it does not depend on the check");
    let body = json!({"NodeChecks": ["a63"]}).to_string();
    client.put("/v1/session/create", body).expect_text(500, "Check 'a63' is in critical state");
    client.put("/v1/agent/check/deregister/a63", "").expect(200);
}

/// Contract: 104.
#[test]
fn failed_check_target_ends_session() {
    let client = shared().client();
    let target = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = target.local_addr().expect("it has an address").to_string();
    let check = json!({"CheckID": "a104", "TCP": address, "Interval": "1s", "Timeout": "1s"});
    let service = json!({"Name": "a104", "Check": check});
    client.put("/v1/agent/service/register", service.to_string()).expect(200);
    wait_for_status(&client, "a104", "passing");
    let body = json!({"NodeChecks": [], "ServiceChecks": [{"ID": "a104"}], "LockDelay": "0s"});
    let session = client.session_of(body);
    assert!(client.acquire("a104/key", &session));
    let index = client.get("/v1/kv/a104/key").index();

    drop(target);
    let freed = client.get(&format!("/v1/kv/a104/key?index={index}&wait=60s"));
    assert_eq!(freed.entry().get("Session"), None);
    assert_eq!(client.session_info(&session), None);
    let found = wait_for_status(&client, "a104", "critical");
    assert!(found["Output"].as_str().expect("a text").contains("connection refused"), "{found}");
    client.put("/v1/agent/service/deregister/a104", "").expect(200);
}

/// Contract: 65.
#[test]
fn catalog_registers_and_deregisters_node() {
    let client = shared().client();
    let unknown = client.get("/v1/catalog/node/a65-nowhere").expect(200).expect_meta();
    assert_eq!(unknown.json(), Value::Null);
    let register = json!({
        "Datacenter": "dc1", "Node": "a65-node", "Address": "10.1.2.3", "NodeMeta": {"rack": "7"},
        "Service": {"ID": "web1", "Service": "a65-web", "Port": 80, "Tags": ["v1"]},
        "Check": {"Node": "a65-node", "CheckID": "service:web1", "Name": "web up", "Status": "passing", "ServiceID": "web1"},
    });
    assert!(client.put("/v1/catalog/register", register.to_string()).is_true());
    let node = client.get("/v1/catalog/node/a65-node").expect(200).expect_meta();
    let shown = node.json();
    assert_eq!(shown["Node"]["Address"], "10.1.2.3");
    assert_eq!(shown["Node"]["Meta"]["rack"], "7");
    assert_eq!(shown["Services"]["web1"]["Port"], json!(80));
    let nodes = client.get("/v1/catalog/nodes").expect(200).expect_meta().json();
    let nodes = nodes.as_array().expect("nodes").iter();
    let names: Vec<String> =
        nodes.map(|node| node["Node"].as_str().expect("a name").to_lowercase()).collect();
    assert!(names.iter().any(|name| name == "a65-node") && names.is_sorted(), "{names:?}");
    let checks = client.get("/v1/health/node/a65-node").expect(200).expect_meta().json();
    assert_eq!(checks[0]["CheckID"], "service:web1");
    assert_eq!(checks[0]["ServiceName"], "a65-web");
    let service = client.get("/v1/health/checks/a65-web").expect(200).expect_meta().json();
    assert_eq!(service[0]["Node"], "a65-node");
    let passing = client.get("/v1/health/state/passing").expect(200).expect_meta();
    assert!(passing.text().contains("a65-node"));

    assert!(client.put("/v1/catalog/register", register.to_string()).is_true());
    assert_eq!(client.get("/v1/catalog/node/a65-node").index(), node.index(), "the index is unchanged");

    let deregister = json!({"Datacenter": "dc1", "Node": "a65-node", "Address": "10.1.2.3"}).to_string();
    assert!(client.put("/v1/catalog/deregister", &deregister).is_true());
    assert!(client.put("/v1/catalog/deregister", &deregister).is_true(), "even if it is absent");
    assert_eq!(client.get("/v1/catalog/node/a65-node").expect(200).json(), Value::Null);
    assert_eq!(client.get("/v1/health/node/a65-node").expect(200).json(), json!([]));
}

/// Contract: 65.
#[test]
fn invalid_catalog_requests_rejected() {
    let client = shared().client();
    for (path, body, status, text) in [
        ("register", json!({"Address": "10.0.0.1"}), 500, "Must provide"),
        ("register", json!({"Node": "a65-bad"}), 500, "Must provide"),
        ("deregister", json!({}), 500, "Must provide"),
        (
            "register",
            json!({"Node": "a65-bad", "Address": "1.1.1.1", "Colour": 1}),
            400,
            "unknown field \"Colour\"",
        ),
        ("deregister", json!({"Node": "a65-bad", "Colour": 1}), 400, "unknown field \"Colour\""),
        (
            "register",
            json!({"Node": "a65-bad", "Address": "1.1.1.1",
            "Check": {"Node": "a65-bad", "Name": "x", "ServiceID": "none"}}),
            500,
            "Missing service registration",
        ),
    ] {
        client.put(&format!("/v1/catalog/{path}"), body.to_string()).expect_text(status, text);
    }
    assert_eq!(client.get("/v1/catalog/node/a65-bad").expect(200).json(), Value::Null);
}

#[test]
fn own_node_passes_serf_health() {
    let server = shared();
    let client = server.client();
    let node = own_node(&client);
    let checks = client.get(&format!("/v1/health/node/{node}")).expect(200).expect_meta();
    let checks = checks.json();
    let serf = checks.as_array().expect("checks").iter().find(|check| check["CheckID"] == "serfHealth");
    let serf = serf.expect("serfHealth is there");
    assert_eq!(serf["Name"], "Serf Health Status");
    assert_eq!(serf["Status"], "passing");
    assert_eq!(serf["Output"], "Agent alive and reachable");
    assert_eq!(serf["Node"], json!(node));
    let catalog = client.get(&format!("/v1/catalog/node/{node}")).expect(200).json();
    let addresses = catalog["Node"]["TaggedAddresses"].as_object().expect("addresses");
    let names: Vec<&String> = addresses.keys().collect();
    assert_eq!(names, ["lan", "lan_ipv4", "wan", "wan_ipv4"]);
    assert_eq!(catalog["Services"]["consul"]["Service"], "consul");
    assert_eq!(client.get("/v1/catalog/datacenters").expect(200).json(), json!(["dc1"]));
}

/// Contract: 68.
#[test]
fn status_lists_leader_and_peers() {
    let client = shared().client();
    let leader = client.get("/v1/status/leader").expect(200);
    assert_eq!(leader.header("X-Consul-Index"), None);
    let leader = leader.json();
    leader.as_str().expect("a string").parse::<std::net::SocketAddr>().expect("an address");
    assert_eq!(client.get("/v1/status/peers").expect(200).json(), json!([leader]));
    for path in [
        "/v1/status/leader?dc=none",
        "/v1/kv/a68?dc=none",
        "/v1/session/list?dc=none",
        "/v1/status/peers?dc=x",
    ] {
        client.get(path).expect_text(500, "No path to datacenter");
    }
    client.put("/v1/kv/a68?dc=none", "x").expect_text(500, "No path to datacenter");
    for path in ["/v1/status/leader?dc=dc1", "/v1/session/list?datacenter=dc1"] {
        client.get(path).expect(200);
    }
    client.get("/v1/kv/a68").expect(404);
}

/// Contract: 69.
#[test]
fn restore_recovers_keys_sessions_and_locks() {
    let server = Dev::start(&[]);
    let client = server.client();
    let holder = client.session_of(json!({"Name": "kept", "LockDelay": "0s", "NodeChecks": [], "TTL": "1h"}));
    client.put("/v1/kv/a69/value?flags=7", "kept").expect(200);
    client.set("a69/empty", "");
    assert!(client.acquire("a69/lock", &holder));
    let kept = client.get("/v1/kv/a69/?recurse").expect(200).json();
    let session = client.session_info(&holder).expect("the session lives");
    let backup = client.get("/v1/snapshot").expect(200).expect_meta();
    assert!(backup.body.starts_with(&[0x1f, 0x8b]), "a gzip'd file");

    client.set("a69/value", "changed");
    client.set("a69/later", "made after the backup");
    client.destroy(&holder);
    let later = client.session();
    assert!(client.acquire("a69/lock", &later));

    let index = client.get("/v1/kv/a69/value").index();
    let watches = [
        client.watch(&format!("/v1/kv/a69/value?index={index}&wait=10m")),
        client.watch(&format!("/v1/kv/a69/value?index={}&wait=10m", index + 1_000_000_000)),
    ];
    let_pass(Duration::from_millis(200));
    let restored = client.put("/v1/snapshot", &backup.body).expect(200);
    assert!(restored.body.is_empty(), "{restored:?}");
    for watch in watches {
        let released = watch.answer().entry();
        assert!(server.is_foreign() || released["Value"] == "a2VwdA==", "the new state is shown: {released}");
    }

    let strip = |entries: Value| -> Vec<Value> {
        let strip = |mut entry: Value| {
            for field in ["CreateIndex", "ModifyIndex"] {
                entry.as_object_mut().expect("an object").remove(field);
            }
            entry
        };
        entries.as_array().expect("entries").iter().cloned().map(strip).collect()
    };
    assert_eq!(strip(client.get("/v1/kv/a69/?recurse").expect(200).json()), strip(kept));
    assert_eq!(client.holder("a69/lock"), Some(holder.clone()));
    let back = client.session_info(&holder).expect("the session is back");
    assert_eq!(strip(json!([back])), strip(json!([session])));
    assert_eq!(client.session_info(&later), None);
    client.put(&format!("/v1/session/renew/{holder}"), "").expect(200);
    client.set("a69/value", "after the restore");
    assert!(client.release("a69/lock", &holder));
}

/// Contract: 69.
#[test]
fn invalid_backup_changes_nothing() {
    let server = Dev::start(&[]);
    let client = server.client();
    client.set("a69/key", "x");
    let before = client.get("/v1/kv/?recurse").expect(200);
    let backup = client.get("/v1/snapshot").expect(200).body;
    let half = &backup[..backup.len() / 2];
    let mut flipped = backup.clone();
    flipped[backup.len() / 2] ^= 0x55;
    for garbage in [b"no backup at all".as_slice(), b"", half, &flipped] {
        let answer = client.put("/v1/snapshot", garbage).expect(500);
        assert!(!answer.body.is_empty(), "the reason is missing: {answer:?}");
        let after = client.get("/v1/kv/?recurse").expect(200);
        assert_eq!((after.json(), after.index()), (before.json(), before.index()));
    }
    let stale = client.put("/v1/snapshot?stale", &backup);
    assert!(stale.status >= 400 && stale.text().contains("stale not allowed for restore"), "{stale:?}");
}
