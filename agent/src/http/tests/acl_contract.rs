//! The rows of the contract about access control that clients see through the API: tokens, rules,
//! and the tables. Users of the host are in `acl_peers.rs`.

use super::acl::{DENY, ROOT, stand};
use super::{Body, LOCAL, Stand};
use http::Request;
use lockmesh_protocol::acl::AclCommand;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::WallTime;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The rules of the contract's token.
const RULES: &str = r#"
    key_prefix "a/" { policy = "write" }
    key "a/secret" { policy = "deny" }
    key_prefix "r/" { policy = "read" }
    session "node-one" { policy = "write" }
"#;

/// The keys that the contract's token may read, and two that it may not.
const KEYS: [&str; 4] = ["a/x", "a/secret", "r/1", "z"];

/// An agent with access control, the keys, and the contract's token: its accessor and its secret.
async fn with_keys() -> (Stand, String, String) {
    let stand = stand(DENY).await;
    for key in KEYS {
        stand.send_as(ROOT, &format!("PUT /v1/kv/{key}"), "1").await.is(200, "true");
    }
    let (accessor, secret) = stand.token("t", RULES).await;
    (stand, accessor, secret)
}

impl Stand {
    /// The status of a request with a token.
    async fn status(&self, token: &str, request: &str, body: impl ToString) -> u16 {
        self.send_as(token, request, body).await.status.as_u16()
    }

    /// The value of a request with the management token.
    async fn root_json(&self, request: &str, body: Value) -> Value {
        let reply = self.as_root(request, body).await;
        assert_eq!(reply.status, 200, "{request}: {reply:?}");
        reply.json()
    }
}

/// Contract: 135, 136.
#[tokio::test]
async fn unknown_token_rejected_by_every_source() {
    let (stand, _, secret) = with_keys().await;
    let sent = async |query: &str, headers: &[(&str, &str)]| {
        let path = format!("/v1/kv/a/x{query}");
        let mut request = Request::builder().method("GET").uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        stand.send_from(LOCAL, request.body(Body::from("")).unwrap()).await.status.as_u16()
    };
    let bearer = format!("bearer {secret}");
    assert_eq!(sent(&format!("?token={secret}"), &[("x-consul-token", "nope")]).await, 200);
    assert_eq!(sent("", &[("x-consul-token", &secret), ("authorization", "Bearer nope")]).await, 200);
    assert_eq!(sent("", &[("x-consul-token", ""), ("authorization", &bearer)]).await, 200);
    assert_eq!(sent("?token=nope", &[("x-consul-token", &secret)]).await, 403);
    stand.send_as("nope", "PUT /v1/txn", "[]").await.is(403, "ACL not found");
}

/// Contract: 137.
#[tokio::test]
async fn anonymous_refused_whether_key_exists() {
    let (stand, ..) = with_keys().await;
    for (request, right) in [
        ("GET /v1/kv/a/x", "'key:read' on \"a/x\""),
        ("GET /v1/kv/none", "'key:read' on \"none\""),
        ("PUT /v1/kv/a/x", "'key:write' on \"a/x\""),
        ("DELETE /v1/kv/none", "'key:write' on \"none\""),
    ] {
        let refused = stand.send_as("", request, "").await;
        let expected = format!("Permission denied: anonymous token lacks permission {right}.");
        assert!(refused.status == 403 && refused.text().starts_with(&expected), "{request}: {refused:?}");
        assert_eq!(refused.header("x-consul-default-acl-policy"), Some("deny"));
    }
}

/// Contract: 138.
#[tokio::test]
async fn anonymous_has_linked_policies() {
    let (stand, ..) = with_keys().await;
    let anonymous = "/v1/acl/token/00000000-0000-0000-0000-000000000002";
    stand.token("reader", r#"key_prefix "" { policy = "read" }"#).await;
    let linked = json!({"Policies": [{"Name": "reader"}]});
    stand.root_json(&format!("PUT {anonymous}"), linked).await;
    for token in ["", "anonymous"] {
        assert_eq!(stand.status(token, "GET /v1/kv/z", "").await, 200, "{token:?}");
        assert_eq!(stand.status(token, "PUT /v1/kv/z", "2").await, 403, "{token:?}");
    }
    let kept = "Delete operation not permitted on the anonymous token";
    stand.as_root(&format!("DELETE {anonymous}"), json!(null)).await.is(500, kept);
}

/// Contract: 139.
#[tokio::test]
async fn exact_label_precedes_longest_prefix() {
    let (stand, accessor, secret) = with_keys().await;
    assert_eq!(stand.status(&secret, "GET /v1/kv/a/x", "").await, 200);
    for request in ["GET /v1/kv/a/secret", "GET /v1/kv/z", "PUT /v1/kv/r/1"] {
        let refused = stand.send_as(&secret, request, "1").await;
        assert!(refused.status == 403 && refused.text().contains(&accessor), "{refused:?}");
        assert!(!refused.text().contains(&secret), "{refused:?}");
    }
    stand.send_as(&secret, "PUT /v1/kv/a/new", "1").await.is(200, "true");
    for (name, rules) in [
        ("read-m", r#"key "m" { policy = "read" } key "d" { policy = "write" }"#),
        ("write-m", r#"key "m" { policy = "write" } key "d" { policy = "deny" }"#),
        ("rest", r#"key_prefix "" { policy = "deny" } key "a/x" { policy = "read" }"#),
        ("a", r#"key_prefix "a/" { policy = "write" }"#),
    ] {
        stand.root_json("PUT /v1/acl/policy", json!({"Name": name, "Rules": rules})).await;
    }
    let names = ["read-m", "write-m", "rest", "a"].map(|name| json!({"Name": name}));
    let token = stand.root_json("PUT /v1/acl/token", json!({"Policies": names})).await;
    let merged = token["SecretID"].as_str().unwrap();
    for (request, expected) in [
        ("PUT /v1/kv/m", 200),
        ("PUT /v1/kv/d", 403),
        ("PUT /v1/kv/a/xx", 200),
        ("GET /v1/kv/a/x", 200),
        ("PUT /v1/kv/a/x", 403),
        ("GET /v1/kv/b", 403),
    ] {
        assert_eq!(stand.status(merged, request, "1").await, expected, "{request}");
    }
}

/// Contract: 140.
#[tokio::test]
async fn unreadable_keys_left_out_of_lists() {
    let (stand, _, secret) = with_keys().await;
    let mark = "x-consul-results-filtered-by-acls";
    let listed = stand.send_as(&secret, "GET /v1/kv/a/?recurse", "").await;
    assert_eq!((listed.json().as_array().unwrap().len(), &listed.json()[0]["Key"]), (1, &json!("a/x")));
    assert_eq!(listed.header(mark), Some("true"));
    assert_eq!(stand.status(&secret, "GET /v1/kv/z?recurse", "").await, 404);
    let names = stand.send_as(&secret, "GET /v1/kv/?keys&separator=/", "").await;
    assert_eq!((names.json(), names.header(mark)), (json!(["a/", "r/"]), Some("true")));
    let nothing = stand.send_as("", "GET /v1/kv/?keys", "").await;
    assert_eq!((nothing.status.as_u16(), nothing.json(), nothing.header(mark)), (200, json!([]), None));
}

/// Contract: 141.
#[tokio::test]
async fn recursive_delete_needs_whole_prefix() {
    let (stand, _, secret) = with_keys().await;
    for refused in ["a/", ""] {
        assert_eq!(stand.status(&secret, &format!("DELETE /v1/kv/{refused}?recurse"), "").await, 403);
    }
    let keys = stand.root_json("GET /v1/kv/?keys", json!(null)).await;
    assert_eq!(keys, json!(["a/secret", "a/x", "r/1", "z"]));
    stand.send_as(&secret, "DELETE /v1/kv/a/y?recurse", "").await.is(200, "true");
}

/// Contract: 142.
#[tokio::test]
async fn list_level_guards_recursive_reads() {
    let (stand, _, secret) = with_keys().await;
    stand.as_root("PUT /v1/lockmesh/acl", json!({"KeyListPolicy": true})).await.is(200, "true");
    let (_, lister) = stand.token("lister", r#"key_prefix "r/" { policy = "list" }"#).await;
    for request in ["GET /v1/kv/r/?recurse", "GET /v1/kv/r/?keys"] {
        let refused = stand.send_as(&secret, request, "").await;
        assert!(refused.status == 403 && refused.text().contains("'key:list' on \"r/\""), "{refused:?}");
        assert_eq!(stand.status(&lister, request, "").await, 200, "{request}");
    }
    assert_eq!(stand.status(&secret, "GET /v1/kv/r/1", "").await, 200);
    let tree = json!([{"KV": {"Verb": "get-tree", "Key": "r/"}}]);
    let read = stand.send_as(&secret, "PUT /v1/txn", tree).await;
    assert_eq!((read.status.as_u16(), read.json()["Results"].as_array().unwrap().len()), (200, 1));
}

/// Contract: 145, 146.
#[tokio::test]
async fn sessions_need_right_to_their_node() {
    let (stand, _, secret) = with_keys().await;
    let other = json!({"Node": "n2", "Address": "10.0.0.2"});
    stand.as_root("PUT /v1/catalog/register", other).await.is(200, "true");
    let create = "PUT /v1/session/create";
    let own = stand.send_as(&secret, create, r#"{"Checks":[]}"#).await.json();
    for body in [r#"{"Node":"n2","Checks":[]}"#, r#"{"Node":"none","Checks":[]}"#] {
        let refused = stand.send_as(&secret, create, body).await;
        assert!(refused.status == 403 && refused.text().contains("session:write"), "{refused:?}");
    }
    assert_eq!(stand.status("", create, "{}").await, 403);
    let foreign = stand.root_json(create, json!({"Node": "n2", "Checks": []})).await;
    let foreign = foreign["ID"].as_str().unwrap();
    for path in [format!("info/{foreign}"), "node/n2".into()] {
        stand.send_as(&secret, &format!("GET /v1/session/{path}"), "").await.is(200, "[]");
    }
    for verb in ["renew", "destroy"] {
        let refused = stand.send_as(&secret, &format!("PUT /v1/session/{verb}/{foreign}"), "").await;
        assert!(refused.status == 403 && refused.text().contains("on \"n2\""), "{verb}: {refused:?}");
    }
    let unknown = "6a1253d2-1785-24fd-91c2-f8e78c745511";
    assert_eq!(stand.status(&secret, &format!("PUT /v1/session/renew/{unknown}"), "").await, 404);
    stand.send_as(&secret, &format!("PUT /v1/session/destroy/{unknown}"), "").await.is(200, "true");
    let (_, reader) = stand.token("reader", r#"session_prefix "" { policy = "read" }"#).await;
    let listed = stand.send_as(&reader, "GET /v1/session/list", "").await.json();
    assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");
    let renew = format!("PUT /v1/session/renew/{}", own["ID"].as_str().unwrap());
    assert_eq!(
        (stand.status(&reader, &renew, "").await, stand.status(&secret, &renew, "").await),
        (403, 200)
    );
}

/// Contract: 147.
#[tokio::test]
async fn foreign_session_locks_unless_ownership_enforced() {
    let (stand, _, secret) = with_keys().await;
    let other = json!({"Node": "n2", "Address": "10.0.0.2"});
    stand.as_root("PUT /v1/catalog/register", other).await.is(200, "true");
    let session = stand.root_json("PUT /v1/session/create", json!({"Node": "n2", "Checks": []})).await;
    let session = session["ID"].as_str().unwrap();
    for id in [session, "bad"] {
        assert_eq!(stand.status(&secret, &format!("PUT /v1/kv/z?acquire={id}"), "").await, 403, "{id}");
    }
    stand.send_as(&secret, &format!("PUT /v1/kv/a/lock?acquire={session}"), "").await.is(200, "true");
    stand.send_as(&secret, &format!("PUT /v1/kv/a/lock?release={session}"), "").await.is(200, "true");
    stand.as_root("PUT /v1/lockmesh/acl", json!({"SessionOwnership": true})).await.is(200, "true");
    let refused = stand.send_as(&secret, &format!("PUT /v1/kv/a/lock?acquire={session}"), "").await;
    assert!(refused.status == 403 && refused.text().contains("'session:write' on \"n2\""), "{refused:?}");
}

/// Contract: 148.
#[tokio::test]
async fn transaction_lists_refused_operations() {
    let (stand, _, secret) = with_keys().await;
    let operations = json!([
        {"KV": {"Verb": "set", "Key": "a/x", "Value": "Mg=="}},
        {"KV": {"Verb": "set", "Key": "b", "Value": "Mg=="}},
        {"KV": {"Verb": "get", "Key": "a/x"}},
        {"KV": {"Verb": "delete", "Key": "r/1"}},
        {"KV": {"Verb": "cas", "Key": "a/x", "Value": "Mg==", "Index": 1}},
    ]);
    let refused = stand.send_as(&secret, "PUT /v1/txn", operations).await;
    assert_eq!(refused.status, 409, "{refused:?}");
    let errors = refused.json()["Errors"].clone();
    let numbers: Vec<_> = errors.as_array().unwrap().iter().map(|error| error["OpIndex"].clone()).collect();
    assert_eq!(numbers, [json!(1), json!(3)], "{errors}");
    assert!(errors[0]["What"].as_str().unwrap().starts_with("Permission denied"), "{errors}");
    stand.send_as(&secret, "GET /v1/kv/a/x?raw", "").await.is(200, "1");
}

/// Contract: 149.
#[tokio::test]
async fn transaction_reads_leave_out_hidden_keys() {
    let (stand, _, secret) = with_keys().await;
    let get = |key: &str| json!({"KV": {"Verb": "get", "Key": key}});
    let reads = json!([get("a/x"), get("a/secret"), get("r/1")]);
    let shown = stand.send_as(&secret, "PUT /v1/txn", reads).await;
    let keys: Vec<_> =
        shown.json()["Results"].as_array().unwrap().iter().map(|it| it["KV"]["Key"].clone()).collect();
    assert_eq!((shown.status.as_u16(), keys), (200, vec![json!("a/x"), json!("r/1")]));
    for check in [
        json!({"KV": {"Verb": "check-not-exists", "Key": "r/none"}}),
        json!({"KV": {"Verb": "check-session", "Key": "z", "Session": "6a1253d2-1785-24fd-91c2-f8e78c745511"}}),
    ] {
        let refused = stand.send_as(&secret, "PUT /v1/txn", json!([check])).await;
        assert!(refused.status == 409 && refused.text().contains("Permission denied"), "{refused:?}");
    }
}

/// Contract: 150.
#[tokio::test]
async fn deleted_token_ends_parked_reads() {
    let (stand, accessor, secret) = with_keys().await;
    let index = stand.send_as(&secret, "GET /v1/kv/a/x", "").await.index();
    let parked = format!("GET /v1/kv/a/x?index={index}&wait=5m");
    let change = async {
        stand.quorum.parked(1).await;
        stand.as_root(&format!("DELETE /v1/acl/token/{accessor}"), json!(null)).await.is(200, "true");
        stand.send_as(&secret, "GET /v1/kv/a/x", "").await.is(403, "ACL not found");
        stand.send_as(ROOT, "PUT /v1/kv/a/x", "2").await.is(200, "true");
    };
    let (woken, ()) = tokio::join!(stand.send_as(&secret, &parked, ""), change);
    woken.is(403, "ACL not found");
}

/// Contract: 151.
#[tokio::test]
async fn changed_policy_keeps_session_and_lock() {
    let (stand, _, secret) = with_keys().await;
    let body = r#"{"TTL":"10s","Checks":[]}"#;
    let session = stand.send_as(&secret, "PUT /v1/session/create", body).await.json();
    let session = session["ID"].as_str().unwrap();
    stand.send_as(&secret, &format!("PUT /v1/kv/a/lock?acquire={session}"), "").await.is(200, "true");
    let policy = stand.root_json("GET /v1/acl/policy/name/t", json!(null)).await;
    let path = format!("PUT /v1/acl/policy/{}", policy["ID"].as_str().unwrap());
    stand.root_json(&path, json!({"Name": "t", "Rules": r#"key_prefix "" { policy = "deny" }"#})).await;
    assert_eq!(stand.status(&secret, "GET /v1/kv/a/x", "").await, 403);
    assert_eq!(stand.status(&secret, &format!("PUT /v1/session/renew/{session}"), "").await, 403);
    let entry = stand.root_json("GET /v1/kv/a/lock", json!(null)).await;
    assert_eq!(entry[0]["Session"], json!(session), "held until the session expires");
}

/// Contract: 152.
#[tokio::test]
async fn deleted_policy_and_role_unlinked() {
    let (stand, accessor, secret) = with_keys().await;
    let role = stand.root_json("PUT /v1/acl/role", json!({"Name": "r", "Policies": [{"Name": "t"}]})).await;
    let token = format!("/v1/acl/token/{accessor}");
    let links = json!({"Policies": [{"Name": "t"}], "Roles": [{"Name": "r"}]});
    stand.root_json(&format!("PUT {token}"), links).await;
    let policy = role["Policies"][0]["ID"].as_str().unwrap();
    let before = stand.as_root("GET /v1/acl/tokens", json!(null)).await.index();
    let parked = format!("GET /v1/acl/tokens?index={before}&wait=5m");
    let change = async {
        stand.quorum.parked(1).await;
        stand.as_root(&format!("DELETE /v1/acl/policy/{policy}"), json!(null)).await.is(200, "true");
    };
    let (woken, ()) = tokio::join!(stand.as_root(&parked, json!(null)), change);
    assert!(woken.index() > before, "{woken:?}");
    let roles = stand.root_json("GET /v1/acl/roles", json!(null)).await;
    assert!(roles[0].get("Policies").is_none(), "{roles}");
    let role = role["ID"].as_str().unwrap();
    stand.as_root(&format!("DELETE /v1/acl/role/{role}"), json!(null)).await.is(200, "true");
    let left = stand.root_json(&format!("GET {token}"), json!(null)).await;
    assert!(left.get("Policies").is_none() && left.get("Roles").is_none(), "{left}");
    let refused = stand.send_as(&secret, "GET /v1/kv/a/x", "").await;
    assert!(refused.status == 403 && refused.text().contains(&accessor), "{refused:?}");
}

/// Contract: 153.
#[tokio::test]
async fn immutable_fields_of_token_rejected() {
    let (stand, accessor, _) = with_keys().await;
    let path = format!("PUT /v1/acl/token/{accessor}");
    let other = "f3a9b1c4-0000-4000-8000-000000000001";
    for (body, text) in [
        (json!({"SecretID": other}), "Changing a token's SecretID is not permitted".to_owned()),
        (json!({"Local": true}), format!("cannot toggle local mode of {accessor}")),
        (json!({"ExpirationTTL": "1h"}), format!("Cannot change expiration time of {accessor}")),
    ] {
        stand.as_root(&path, body).await.is(500, &text);
    }
}

/// Contract: 154.
#[tokio::test]
async fn chosen_ids_kept_unless_taken() {
    let stand = stand(DENY).await;
    let [one, two] = ["F3A9B1C4-0000-4000-8000-000000000001", "F3A9B1C4-0000-4000-8000-000000000002"];
    let created = stand.root_json("PUT /v1/acl/token", json!({"AccessorID": one, "SecretID": two})).await;
    assert_eq!((&created["AccessorID"], &created["SecretID"]), (&json!(one), &json!(two)));
    assert_eq!(stand.status(two, "GET /v1/acl/token/self", "").await, 200);
    for (body, text) in [
        (json!({"AccessorID": one}), "Invalid Token: AccessorID is already in use"),
        (json!({"SecretID": two}), "Invalid Token: SecretID is already in use"),
        (
            json!({"AccessorID": "00000000-0000-0000-0000-000000000009"}),
            "Invalid Token: UUIDs with the prefix \"00000000-0000-0000-0000-0000000000\" are reserved",
        ),
    ] {
        stand.as_root("PUT /v1/acl/token", body).await.is(500, text);
    }
    let own = stand.root_json("GET /v1/acl/token/self", json!(null)).await;
    let path = format!("DELETE /v1/acl/token/{}", own["AccessorID"].as_str().unwrap());
    let kept = "Deletion of the request's authorization token is not permitted";
    stand.as_root(&path, json!(null)).await.is(500, kept);
}

/// Contract: 156.
#[tokio::test]
async fn snapshot_needs_management_rights() {
    let stand = stand(DENY).await;
    let (_, reader) = stand.token("reader", r#"acl = "read""#).await;
    let saved = stand.as_root("GET /v1/snapshot", json!(null)).await;
    assert_eq!(saved.status, 200, "{saved:?}");
    for request in ["GET", "PUT"] {
        let body = Body::from(saved.body.clone());
        let request =
            Request::builder().method(request).uri("/v1/snapshot").header("x-consul-token", &reader);
        let refused = stand.send_from(LOCAL, request.body(body).unwrap()).await;
        assert!(refused.status == 403 && refused.text().contains("'acl:write'"), "{refused:?}");
    }
}

/// Contract: 157.
#[tokio::test]
async fn builtin_policies_kept_names_unique() {
    let stand = stand(DENY).await;
    let listed = stand.root_json("GET /v1/acl/policies", json!(null)).await;
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|row| row["Name"].clone()).collect();
    assert_eq!(names, [json!("global-management"), json!("builtin/global-read-only")]);
    let path = "/v1/acl/policy/00000000-0000-0000-0000-000000000001";
    let kept = "Delete operation not permitted on the builtin global-management policy";
    stand.as_root(&format!("DELETE {path}"), json!(null)).await.is(500, kept);
    let rules = json!({"Name": "global-management", "Rules": "acl = \"read\""});
    let kept = "Changing the Rules for the builtin global-management policy is not permitted";
    stand.as_root(&format!("PUT {path}"), rules).await.is(500, kept);
    for (body, status, text) in [
        (json!({"Name": "a b"}), 500, "Invalid Policy: invalid Name."),
        (json!({"Name": "global-management"}), 500, "Invalid Policy: A Policy with Name"),
        (json!({"Name": "p", "Foo": 1}), 400, "Policy decoding failed: json: unknown field \"Foo\""),
    ] {
        let refused = stand.as_root("PUT /v1/acl/policy", body).await;
        assert!(refused.status == status && refused.text().starts_with(text), "{refused:?}");
    }
}

/// Contract: 158.
#[tokio::test]
async fn expired_token_unknown_then_removed() {
    let stand = stand(DENY).await;
    let links = json!({"Policies": [{"Name": "global-management"}], "ExpirationTTL": "60s"});
    let token = stand.root_json("PUT /v1/acl/token", links).await;
    assert!(token["ExpirationTime"].is_string() && token.get("ExpirationTTL").is_none(), "{token}");
    let secret = token["SecretID"].as_str().unwrap();
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let at = |seconds: u64| (clock + Duration::from_secs(seconds)).as_millis() as u64;
    stand.quorum.wall.store(at(50), Ordering::Relaxed);
    assert_eq!(stand.status(secret, "GET /v1/kv/a?keys", "").await, 404);
    stand.quorum.wall.store(at(61), Ordering::Relaxed);
    stand.send_as(secret, "GET /v1/kv/a", "").await.is(403, "ACL not found");
    // As the leader does on its next tick.
    stand.quorum.apply(Command::Acl(AclCommand::ExpireTokens(WallTime(at(61)))));
    let listed = stand.root_json("GET /v1/acl/tokens", json!(null)).await;
    assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");
}

/// Contract: 159.
#[tokio::test]
async fn identities_cover_own_node_or_service() {
    let stand = stand(DENY).await;
    let with = async |identity: Value| {
        let token = stand.root_json("PUT /v1/acl/token", identity).await;
        token["SecretID"].as_str().unwrap().to_owned()
    };
    let node = with(json!({"NodeIdentities": [{"NodeName": "node-one", "Datacenter": "dc1"}]})).await;
    let check = r#"{"Name":"n","TTL":"1h"}"#;
    assert_eq!(stand.status(&node, "PUT /v1/agent/check/register", check).await, 200);
    assert_eq!(stand.status(&node, "PUT /v1/session/create", "{}").await, 403);
    assert_eq!(stand.status(&node, "GET /v1/agent/self", "").await, 403);
    let service = with(json!({"ServiceIdentities": [{"ServiceName": "web"}]})).await;
    let register = "PUT /v1/agent/service/register";
    assert_eq!(stand.status(&service, register, r#"{"Name":"web"}"#).await, 200);
    assert_eq!(stand.status(&service, register, r#"{"Name":"db"}"#).await, 403);
}

/// Contract: 161.
#[tokio::test]
async fn default_allow_guards_management_only() {
    let stand = stand(r#"{"Mode":"enforce","DefaultPolicy":"allow"}"#).await;
    let written = stand.send_as("", "PUT /v1/kv/a", "1").await;
    assert_eq!((written.text(), written.header("x-consul-default-acl-policy")), ("true", Some("allow")));
    for request in ["GET /v1/acl/tokens", "GET /v1/snapshot"] {
        assert_eq!(stand.status("", request, "").await, 403, "{request}");
    }
    assert_eq!(stand.status("nope", "GET /v1/kv/a", "").await, 403);
    let (_, secret) = stand.token("t", r#"key "a" { policy = "deny" }"#).await;
    assert_eq!(stand.status(&secret, "GET /v1/kv/a", "").await, 403);
    assert_eq!(stand.status(&secret, "PUT /v1/kv/b", "1").await, 200);
}

/// Contract: 162.
#[tokio::test]
async fn catalog_empty_without_token() {
    let stand = stand(DENY).await;
    stand.as_root("PUT /v1/agent/service/register", json!({"Name": "web"})).await.is(200, "");
    for (path, empty) in [
        ("catalog/nodes", "[]"),
        ("catalog/services", "{}"),
        ("catalog/service/web", "[]"),
        ("catalog/node/node-one", "null"),
        ("health/service/web", "[]"),
        ("health/node/node-one", "[]"),
        ("session/list", "[]"),
    ] {
        stand.send_as("", &format!("GET /v1/{path}"), "").await.is(200, empty);
    }
    let (_, operator) = stand.token("operator", r#"operator = "read""#).await;
    for (request, allowed) in [
        ("GET /v1/operator/autopilot/configuration", 200),
        ("POST /v1/operator/raft/transfer-leader", 403),
        ("GET /v1/acl/tokens", 403),
    ] {
        assert_eq!(stand.status("", request, "").await, 403, "{request}");
        assert_eq!(stand.status(&operator, request, "").await, allowed, "{request}");
    }
}
