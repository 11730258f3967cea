//! Assertions 27–38: creation and display of sessions, and everything that ends them.

use super::leave::Nodes;
use lockmesh_tests::dev::{Dev, Shared};
use lockmesh_tests::dialect::number;
use lockmesh_tests::fleet::wait_until;
use lockmesh_tests::http::{Address, Client};
use lockmesh_tests::member::text;
use lockmesh_tests::process::Process;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::OnceLock;

fn shared() -> Shared {
    static SERVER: OnceLock<Dev> = OnceLock::new();
    Dev::shared(&SERVER, &[])
}

/// Creates a session from this body, and returns it as the server shows it.
#[track_caller]
fn created(client: &Client, body: &str) -> Value {
    let answer = client.put("/v1/session/create", body).expect(200).json();
    let id = answer["ID"].as_str().expect("an id");
    assert_eq!(answer.as_object().map(|fields| fields.len()), Some(1), "{answer}");
    client.session_info(id).expect("a session that was just created")
}

/// Returns this agent's node.
fn own_node(client: &Client) -> String {
    let own = client.get("/v1/agent/self").expect(200).json();
    own["Config"]["NodeName"].as_str().expect("a node name").to_owned()
}

/// Registers a node with a passing check `alive` and a service `web` with a passing check `web-up`.
fn register(client: &Client, node: &str) {
    let node = json!({
        "Node": node, "Address": "10.0.0.1",
        "Service": {"ID": "web", "Service": "web", "Port": 80},
        "Checks": [
            {"Node": node, "CheckID": "alive", "Name": "alive", "Status": "passing"},
            {"Node": node, "CheckID": "web-up", "Name": "web-up", "Status": "passing", "ServiceID": "web"},
        ],
    });
    assert!(client.put("/v1/catalog/register", node.to_string()).is_true());
}

/// Writes the state of the check `alive`.
fn report(client: &Client, node: &str, status: &str) {
    let check = json!({
        "Node": node, "Address": "10.0.0.1", "SkipNodeUpdate": true,
        "Check": {"Node": node, "CheckID": "alive", "Name": "alive", "Status": status},
    });
    assert!(client.put("/v1/catalog/register", check.to_string()).is_true());
}

fn deregister(client: &Client, body: Value) {
    assert!(client.put("/v1/catalog/deregister", body.to_string()).is_true());
}

/// Contract: 27.
#[test]
fn empty_request_uses_defaults() {
    let server = shared();
    let client = server.client();
    let node = own_node(&client);
    for body in ["", "{}", "null"] {
        let session = created(&client, body);
        let id = session["ID"].as_str().expect("an id");
        assert_eq!(id.len(), 36);
        assert_eq!(session["LockDelay"], json!(15_000_000_000_u64));
        assert_eq!(session["Behavior"], "release");
        assert_eq!(session["TTL"], "");
        assert_eq!(session["Name"], "");
        assert_eq!(session["Node"], json!(node));
        assert_eq!(session["NodeChecks"], json!(["serfHealth"]));
        assert_eq!(session.get("ServiceChecks"), Some(&Value::Null));
        assert_eq!(session.get("Checks"), None);
        assert_eq!(session["ModifyIndex"], session["CreateIndex"]);
    }
}

/// Contract: 27.
#[test]
fn field_names_ignore_case() {
    let client = shared().client();
    let body = r#"{"name":"low","lockdelay":"3s","behavior":"delete","ttl":"30.0s","nodechecks":[]}"#;
    let session = created(&client, body);
    assert_eq!(session["Name"], "low");
    assert_eq!(session["LockDelay"], json!(3_000_000_000_u64));
    assert_eq!(session["Behavior"], "delete");
    assert_eq!(session["TTL"], "30.0s");
    assert_eq!(session["NodeChecks"], json!([]));
    client.destroy(session["ID"].as_str().expect("an id"));
}

/// Contract: 28.
#[test]
fn check_fields_select_bound_checks() {
    let client = shared().client();
    assert_eq!(created(&client, r#"{"NodeChecks":[]}"#)["NodeChecks"], json!([]));
    let none = created(&client, r#"{"Checks":[]}"#);
    assert_eq!(none["NodeChecks"], json!([]));
    assert_eq!(none.get("Checks"), None);
    assert_eq!(created(&client, r#"{"Checks":null,"NodeChecks":["serfHealth"]}"#)["NodeChecks"], json!([]));
    let old = created(&client, r#"{"Checks":["serfHealth"]}"#);
    assert_eq!((&old["NodeChecks"], old.get("Checks")), (&json!(["serfHealth"]), None));

    register(&client, "a28-node");
    let check = json!({"Node": "a28-node", "Check": {"Node": "a28-node", "CheckID": "serfHealth",
        "Name": "Serf Health Status", "Status": "passing"}, "SkipNodeUpdate": true, "Address": "10.0.0.1"});
    assert!(client.put("/v1/catalog/register", check.to_string()).is_true());
    let both = created(&client, r#"{"Node":"a28-node","Checks":["alive"]}"#);
    assert_eq!(both["NodeChecks"], json!(["serfHealth"]));
    assert_eq!(both["Checks"], json!(["alive"]));
    let dropped = created(&client, r#"{"Node":"a28-node","Checks":["alive"],"NodeChecks":[]}"#);
    assert_eq!((&dropped["NodeChecks"], dropped.get("Checks")), (&json!([]), None));
    let service = created(&client, r#"{"Node":"a28-node","ServiceChecks":[{"ID":"web-up"}]}"#);
    assert_eq!(service["NodeChecks"], json!(["serfHealth"]));
    assert_eq!(service["ServiceChecks"], json!([{"ID": "web-up", "Namespace": ""}]));

    report(&client, "a28-node", "critical");
    let both = both["ID"].as_str().expect("an id");
    assert_eq!(client.session_info(both), None, "bound to the deprecated list, too");
}

/// Contract: 29.
#[test]
fn lock_delay_accepts_all_spellings() {
    let client = shared().client();
    for (spelled, nanoseconds) in [
        (r#""15s""#, 15_000_000_000_u64),
        (r#""0s""#, 0),
        (r#""0.001s""#, 1_000_000),
        (r#""500ns""#, 500_000_000_000),
        (r#""1m30s""#, 90_000_000_000),
        ("5", 5_000_000_000),
        ("0", 0),
        ("1000", 1000),
        ("15000000000", 15_000_000_000),
        ("null", 15_000_000_000),
    ] {
        let session = created(&client, &format!(r#"{{"LockDelay":{spelled}}}"#));
        assert_eq!(session["LockDelay"], json!(nanoseconds), "LockDelay {spelled}");
    }
    for bad in [r#""abc""#, r#""15""#, r#""1x""#] {
        let answer = client.put("/v1/session/create", format!(r#"{{"LockDelay":{bad}}}"#));
        answer.expect_text(400, "time: ");
    }
}

/// Contract: 30.
#[test]
fn ttl_bounds_enforced_spelling_echoed() {
    let client = shared().client();
    for (bad, nanoseconds) in [("9s", "9000000000"), ("86401s", "86401000000000"), ("-1s", "-1000000000")] {
        let text = format!("Invalid Session TTL '{nanoseconds}', must be between [10s=24h0m0s]");
        client.put("/v1/session/create", json!({"TTL": bad}).to_string()).expect_text(500, &text);
    }
    for good in ["24h", "15.0s", "0s", "", "10s"] {
        let session = created(&client, &json!({"TTL": good}).to_string());
        assert_eq!(session["TTL"], good, "echoed as it was sent");
    }
    for bad in ["15", "abc"] {
        let text = format!("Session TTL '{bad}' invalid: ");
        client.put("/v1/session/create", json!({"TTL": bad}).to_string()).expect_text(500, &text);
    }
    client.put("/v1/session/create", r#"{"TTL":15}"#).expect(400);
}

/// Contract: 31.
#[test]
fn invalid_bindings_rejected() {
    let client = shared().client();
    register(&client, "a31-node");
    report(&client, "a31-node", "critical");
    for (body, text) in [
        (json!({"Behavior": "x"}), "Invalid Behavior setting 'x'"),
        (json!({"Node": "a31-nowhere"}), "Missing node registration"),
        (json!({"Node": ""}), "Must provide Node"),
        (json!({"NodeChecks": ["x"]}), "Missing check 'x' registration"),
        (json!({"Node": "a31-node", "NodeChecks": ["alive"]}), "Check 'alive' is in critical state"),
    ] {
        client.put("/v1/session/create", body.to_string()).expect_text(500, text);
    }
    assert!(client.get("/v1/session/node/a31-node").expect(200).json() == json!([]));
}

/// Contract: 32.
#[test]
fn unknown_fields_ignored_broken_json_rejected() {
    let client = shared().client();
    let session = created(&client, r#"{"Name":"a32","Colour":"red","ID":"mine","CreateIndex":7} trailing"#);
    assert_eq!(session["Name"], "a32");
    assert_ne!(session["ID"], "mine", "the server draws the id");
    for broken in ["{", "[]", "7", r#"{"Name":7}"#, r#"{"NodeChecks":"x"}"#, r#"{"Behavior":[]}"#] {
        client.put("/v1/session/create", broken).expect(400);
    }
}

/// Contract: 33.
#[test]
fn unknown_session_renewal_returns_404() {
    let client = shared().client();
    let unknown = "adf4238a-882b-9ddc-4a9d-5b6758e4159e";
    assert!(client.put(&format!("/v1/session/destroy/{unknown}"), "").is_true());
    let answer = client.put(&format!("/v1/session/renew/{unknown}"), "").expect(404);
    assert_eq!(answer.text(), format!("Session id '{unknown}' not found"));
    let info = client.get(&format!("/v1/session/info/{unknown}")).expect(200).expect_meta();
    assert_eq!(info.json(), json!([]));
    for (method, path, text) in [
        ("PUT", "/v1/session/destroy/", "Missing session"),
        ("PUT", "/v1/session/renew/", "Missing session"),
        ("GET", "/v1/session/info/", "Missing session"),
        ("GET", "/v1/session/node/", "Missing node name"),
    ] {
        client.ask(method, path, b"").expect_text(400, text);
    }
}

/// Contract: 33.
#[test]
fn malformed_id_counts_as_unknown() {
    let server = shared();
    if server.is_foreign() {
        return;
    }
    let client = server.client();
    assert!(client.put("/v1/session/destroy/no-uuid", "").is_true());
    client.put("/v1/session/renew/no-uuid", "").expect_text(404, "Session id 'no-uuid' not found");
    assert_eq!(client.get("/v1/session/info/no-uuid").expect(200).json(), json!([]));
}

/// Contract: 34.
#[test]
fn renewal_shows_session_without_change() {
    let server = Dev::start(&[]);
    let client = server.client();
    for body in [r#"{"TTL":"30s"}"#, "{}"] {
        let session = created(&client, body);
        let id = session["ID"].as_str().expect("an id");
        let before = client.get("/v1/session/list").index();
        for path in [format!("/v1/session/renew/{id}"), format!("/v1/session/renew/{}", id.to_uppercase())] {
            let renewed = client.put(&path, "").expect(200);
            assert_eq!(renewed.header("X-Consul-Index"), None, "{renewed:?}");
            assert_eq!(renewed.json(), json!([session]));
        }
        assert_eq!(client.get("/v1/session/list").index(), before);
        assert_eq!(client.session_info(id), Some(session.clone()));
    }
}

/// Contract: 35.
#[test]
fn listed_per_node_and_globally() {
    let client = shared().client();
    register(&client, "A35-Node");
    let session = created(&client, r#"{"Node":"a35-node","NodeChecks":["alive"],"Name":"a35"}"#);
    for node in ["A35-Node", "a35-node", "A35-NODE"] {
        let listed = client.get(&format!("/v1/session/node/{node}")).expect(200).expect_meta();
        assert_eq!(listed.json(), json!([session]), "node names are looked up in any case");
    }
    let unknown = client.get("/v1/session/node/a35-nowhere").expect(200).expect_meta();
    assert_eq!(unknown.json(), json!([]));

    let list = client.get("/v1/session/list").expect(200).expect_meta().json();
    let list = list.as_array().expect("an array");
    assert!(list.contains(&session));
    let ids: Vec<&str> = list.iter().map(|session| session["ID"].as_str().expect("an id")).collect();
    assert!(ids.is_sorted(), "{ids:?}");
    let id = session["ID"].as_str().expect("an id");
    let info = client.get(&format!("/v1/session/info/{}", id.to_uppercase())).expect(200).expect_meta();
    assert_eq!(info.json(), json!([session]));
    client.destroy(id);
}

/// Creates two sessions of one node, one with each behavior, lets `end` end them, and checks their
/// locks.
fn invalidated_by(name: &str, end: impl Fn(&Client, &str, &[String])) {
    let server = shared();
    let client = server.client();
    let node = format!("a36-{name}");
    register(&client, &node);
    let session = |behavior: &str, checks: Value| {
        let mut body =
            json!({"Node": node, "LockDelay": "0s", "Behavior": behavior, "NodeChecks": ["alive"]});
        body.as_object_mut().expect("an object").extend(checks.as_object().expect("an object").clone());
        client.session_of(body)
    };
    let checks = json!({"ServiceChecks": [{"ID": "web-up"}]});
    let sessions = [session("release", checks.clone()), session("delete", checks)];
    let (kept, deleted) = (format!("a36/{name}/kept"), format!("a36/{name}/deleted"));
    assert!(client.acquire(&kept, &sessions[0]));
    assert!(client.acquire(&deleted, &sessions[1]));
    let deleted_index = number(&client.entry(&deleted), "ModifyIndex");
    let prefix_index = client.get(&format!("/v1/kv/a36/{name}/?recurse")).index();

    end(&client, &node, &sessions);

    for session in &sessions {
        assert_eq!(client.session_info(session), None, "{name}");
        assert!(!client.get("/v1/session/list").text().contains(session.as_str()), "{name}");
    }
    let entry = client.entry(&kept);
    assert_eq!(entry.get("Session"), None, "{name}: {entry}");
    assert_eq!(number(&entry, "LockIndex"), 1);
    assert_eq!(entry["Value"], "aGVsZA==");
    let gone = client.get(&format!("/v1/kv/{deleted}")).expect(404).expect_meta();
    assert!(gone.index() > deleted_index, "{name}: a waiter on {deleted_index} must wake: {gone:?}");
    assert!(client.get(&format!("/v1/kv/a36/{name}/?recurse")).index() > prefix_index);
    let next = client.session();
    assert!(client.acquire(&kept, &next), "{name}: the lock is free");
    assert!(client.acquire(&deleted, &next), "{name}: the lock is free");
}

/// Contract: 36.
#[test]
fn destroy_ends_session() {
    invalidated_by("destroy", |client, _, sessions| {
        sessions.iter().for_each(|session| client.destroy(session));
    });
}

/// Contract: 36.
#[test]
fn critical_check_ends_session() {
    invalidated_by("critical", |client, node, _| report(client, node, "critical"));
}

/// Contract: 36.
#[test]
fn deregistered_check_ends_session() {
    invalidated_by("check", |client, node, _| {
        deregister(client, json!({"Node": node, "CheckID": "alive"}));
    });
}

/// Contract: 36.
#[test]
fn deregistered_service_ends_session() {
    invalidated_by("service", |client, node, _| {
        deregister(client, json!({"Node": node, "ServiceID": "web"}));
    });
}

/// Contract: 36.
#[test]
fn deregistered_node_ends_session() {
    invalidated_by("node", |client, node, _| deregister(client, json!({"Node": node})));
}

/// Contract: 36.
#[test]
fn critical_check_in_txn_ends_session() {
    invalidated_by("txn", |client, node, _| {
        let check = json!({"Node": node, "CheckID": "alive", "Name": "alive", "Status": "critical"});
        client.txn(json!([{"Check": {"Verb": "set", "Check": check}}])).expect(200);
    });
}

/// Contract: 37.
#[test]
fn warning_keeps_session() {
    let client = shared().client();
    register(&client, "a37-node");
    let session = client.session_of(json!({"Node": "a37-node", "NodeChecks": ["alive"]}));
    assert!(client.acquire("a37/key", &session));
    report(&client, "a37-node", "warning");
    assert_eq!(client.holder("a37/key"), Some(session.clone()));
    client.session_of(json!({"Node": "a37-node", "NodeChecks": ["alive"]}));

    report(&client, "a37-node", "critical");
    assert_eq!(client.session_info(&session), None);
    let body = json!({"Node": "a37-node", "NodeChecks": ["alive"]}).to_string();
    client.put("/v1/session/create", &body).expect_text(500, "is in critical state");
    report(&client, "a37-node", "passing");
    client.put("/v1/session/create", &body).expect(200);
}

/// Contract: 38.
#[test]
fn deregistered_node_ends_checkless_session() {
    let client = shared().client();
    register(&client, "a38-node");
    let session = client.session_of(json!({"Node": "A38-NODE", "NodeChecks": [], "LockDelay": "0s"}));
    assert!(client.acquire("a38/key", &session));
    deregister(&client, json!({"Node": "a38-Node"}));
    assert_eq!(client.session_info(&session), None);
    assert_eq!(client.holder("a38/key"), None);
}

#[test]
fn lock_ttl_fits_default_window() {
    let nodes = Nodes::new();
    let _agent = nodes.agent("web-1", &["--set", "session.default_health_window=safe"]);
    let (code, _, said) = nodes.command("web-1", &["lock", "--ttl", "15s", "job", "--", "true"]);
    assert!(code == 125 && said.contains("this agent's `session.default_health_window`"), "{code} {said}");
    let (code, _, said) = nodes.command("web-1", &["elect", "--window", "safe", "--ttl", "25s", "job"]);
    assert!(code == 125 && said.contains("choose a TTL of 26s or more"), "{code} {said}");

    let client = nodes.client("web-1");
    let Address::Unix(socket) = &client.address else { unreachable!("it listens there alone") };
    let address = format!("unix://{}", socket.display());
    let lock = Process::lockmesh(&["lock", "job", "--http-addr", &address, "--", "sleep", "600"]);
    wait_until(|| client.get("/v1/kv/job/.lock").status == 200);
    // A session whose TTL was too short has ended.
    let sessions = client.get("/v1/session/list").expect(200).json();
    let ttls: Vec<_> = sessions.as_array().expect("sessions").iter().map(|session| &session["TTL"]).collect();
    assert_eq!((ttls.as_slice(), &sessions[0]["HealthWindow"]), (&[&json!("30s")][..], &json!("safe")));
    lock.signal("TERM");
    lock.ends();
}

#[test]
fn bound_rust_client_dies_lock_passes_on() {
    let server = shared();
    let Some(socket) = server.socket.as_deref().map(text) else { return };
    let program = Path::new(env!("CARGO_BIN_EXE_locks"));
    let holder = Process::start(program, &["hold", &socket, "bound/job"]);
    let line = holder.says("holds bound/job session=");
    let bound = line.rsplit('=').next().expect("a session");
    let client = server.client();
    let next = client.session();
    assert!(!client.acquire("bound/job", &next), "the process lives");
    assert_eq!(client.holder("bound/job").as_deref(), Some(bound));

    holder.signal("KILL");
    wait_until(|| client.session_info(bound).is_none());
    // The lock-delay would be 15 s.
    assert!(client.acquire("bound/job", &next));
    let losses = client.get("/v1/lockmesh/losses").expect(200).json();
    let mut losses = losses.as_array().expect("losses").iter();
    let loss = losses.find(|loss| loss["Session"] == bound).expect("the loss is recorded");
    assert_eq!((&loss["Cause"], &loss["PID"]), (&json!("process-exited"), &json!(holder.number())));
}
