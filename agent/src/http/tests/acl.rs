//! Access control as clients see it: tokens of requests, the tables, and the endpoints that the
//! agent judges itself. The state behind the stand judges as a server does.

use super::operator::Lines;
use super::{LOCAL, Reply, Stand};
use crate::acl::{Acl, AgentTokens};
use crate::http::Body;
use crate::http::endpoint::table::ROUTES;
use crate::http::rights::Judge;
use http::Request;
use lockmesh_protocol::acl::{AclMode, AclSettings};
use lockmesh_protocol::rpc::Unavailable;
use serde_json::{Value, json};

/// The secret of the management token.
pub(super) const ROOT: &str = "b1f3a3ac-5a55-4b8a-9d47-0d1c2b3a4f5e";
pub(super) const DENY: &str = r#"{"Mode":"enforce","DefaultPolicy":"deny"}"#;

/// An agent with access control, and a management token.
pub(super) async fn stand(settings: &str) -> Stand {
    let stand = Stand::new();
    stand.put("/v1/lockmesh/acl", settings).await.is(200, "true");
    let body = json!({"BootstrapSecret": ROOT}).to_string();
    let created = stand.put("/v1/acl/bootstrap", &body).await;
    assert_eq!(created.status, 200, "{created:?}");
    stand
}

impl Stand {
    /// Sends a request with a token; none if it is empty.
    pub(super) async fn send_as(&self, token: &str, request: &str, body: impl ToString) -> Reply {
        let (method, path) = request.split_once(' ').expect("a method and a path");
        let body = body.to_string();
        let head = Request::builder().method(method).uri(path).header("content-length", body.len());
        let head = if token.is_empty() { head } else { head.header("x-consul-token", token) };
        self.send_from(LOCAL, head.body(Body::from(body)).unwrap()).await
    }

    pub(super) async fn as_root(&self, request: &str, body: Value) -> Reply {
        self.send_as(ROOT, request, body).await
    }

    /// Creates a token with a policy of these rules, and returns its accessor and its secret.
    pub(super) async fn token(&self, name: &str, rules: &str) -> (String, String) {
        let policy = self.as_root("PUT /v1/acl/policy", json!({"Name": name, "Rules": rules})).await;
        assert_eq!(policy.status, 200, "{policy:?}");
        let body = json!({"Description": name, "Policies": [{"Name": name}]});
        let token = self.as_root("PUT /v1/acl/token", body).await.json();
        assert_eq!(token["Policies"][0]["Name"], name, "{token}");
        let text = |field: &str| token[field].as_str().unwrap().to_owned();
        (text("AccessorID"), text("SecretID"))
    }
}

/// Contract: 131.
#[tokio::test]
async fn disabled_answers_401_ignores_tokens() {
    let stand = Stand::new();
    for request in [
        "GET /v1/acl/tokens",
        "PUT /v1/acl/bootstrap",
        "GET /v1/acl/replication",
        "PUT /v1/agent/token/default",
        "POST /v1/internal/acl/authorize",
        "GET /v1/acl/auth-methods",
    ] {
        stand.send_as("any", request, "").await.is(401, "ACL support disabled");
    }
    let written = stand.send_as("any", "PUT /v1/kv/a", "x").await;
    written.is(200, "true");
    assert_eq!(written.header("x-consul-default-acl-policy"), Some("allow"));
}

/// Contract: 132.
#[tokio::test]
async fn bootstrap_succeeds_once() {
    let stand = Stand::new();
    stand.put("/v1/lockmesh/acl", DENY).await.is(200, "true");
    assert_eq!(stand.get("/v1/acl/bootstrap").await.status, 405);
    let bad = stand.put("/v1/acl/bootstrap", "{").await;
    assert!(bad.status == 400 && bad.text().starts_with("Request decoding failed: "), "{bad:?}");
    let first = stand.put("/v1/acl/bootstrap", "").await.json();
    assert_eq!(
        (&first["ID"], &first["Description"]),
        (&first["SecretID"], &json!("Bootstrap Token (Global Management)"))
    );
    let policy = json!([{"ID": "00000000-0000-0000-0000-000000000001", "Name": "global-management"}]);
    assert_eq!(first["Policies"], policy);
    let again = stand.put("/v1/acl/bootstrap", "").await;
    assert!(
        again.status == 403 && again.text().starts_with("Permission denied: ACL bootstrap no longer allowed"),
        "{again:?}"
    );
    let secret = first["SecretID"].as_str().unwrap();
    let settings = stand.send_as(secret, "GET /v1/lockmesh/acl", "").await.json();
    let index = settings["BootstrapIndex"].as_u64().unwrap();
    assert!(again.text().contains(&format!("(reset index: {index})")), "{again:?}");
    // A client cannot name the index itself, which is no secret.
    let reset = stand.put("/v1/acl/bootstrap", &json!({"ResetIndex": index}).to_string()).await;
    assert!(reset.status == 400, "{reset:?}");
    assert_eq!(stand.send_as(secret, "GET /v1/acl/tokens", "").await.status, 200);
}

/// Contract: 135, 136, 137.
#[tokio::test]
async fn request_judged_by_its_token() {
    let stand = stand(DENY).await;
    let (accessor, secret) = stand.token("t", r#"key_prefix "a/" { policy = "write" }"#).await;
    stand.send_as(&secret, "PUT /v1/kv/a/x", "1").await.is(200, "true");
    let refused = stand.send_as(&secret, "PUT /v1/kv/z", "1").await;
    refused.is(
        403,
        &format!(
            "Permission denied: token with AccessorID '{accessor}' lacks permission 'key:write' on \"z\""
        ),
    );
    for anonymous in ["", "anonymous"] {
        let refused = stand.send_as(anonymous, "GET /v1/kv/a/x", "").await;
        assert!(
            refused.status == 403 && refused.text().starts_with("Permission denied: anonymous token lacks"),
            "{refused:?}"
        );
        assert_eq!(refused.header("x-consul-default-acl-policy"), Some("deny"));
    }
    for request in ["GET /v1/kv/a/x", "GET /v1/session/list", "GET /v1/acl/tokens", "GET /v1/agent/self"] {
        stand.send_as("nope", request, "").await.is(403, "ACL not found");
    }
    for request in ["GET /v1/status/leader", "GET /v1/catalog/datacenters", "GET /v1/acl/replication"] {
        assert_eq!(stand.send_as("nope", request, "").await.status, 200, "{request}");
    }
    let by_query = stand.send_as("nope", &format!("GET /v1/kv/a/x?token={secret}"), "").await;
    assert_eq!(by_query.status, 200, "the query precedes the header");
}

/// Contract: 140.
#[tokio::test]
async fn filtered_list_marked_for_tokens_only() {
    let stand = stand(DENY).await;
    let (_, secret) = stand.token("t", r#"key_prefix "a/" { policy = "read" }"#).await;
    for key in ["a/x", "b"] {
        stand.as_root(&format!("PUT /v1/kv/{key}"), json!(1)).await.is(200, "true");
    }
    let mark = "x-consul-results-filtered-by-acls";
    let listed = stand.send_as(&secret, "GET /v1/kv/?recurse", "").await;
    assert_eq!((listed.json().as_array().unwrap().len(), listed.header(mark)), (1, Some("true")));
    assert_eq!(stand.as_root("GET /v1/kv/?recurse", json!(null)).await.header(mark), None);
    let nothing = stand.send_as(&secret, "GET /v1/kv/b?recurse", "").await;
    assert_eq!((nothing.status.as_u16(), nothing.header(mark)), (404, Some("true")));
    let anonymous = stand.send_as("", "GET /v1/catalog/nodes", "").await;
    assert_eq!((anonymous.json(), anonymous.header(mark)), (json!([]), None));
}

/// Contract: 153, 154, 155.
#[tokio::test]
async fn token_created_replaced_cloned_deleted() {
    let stand = stand(DENY).await;
    let (accessor, secret) = stand.token("p", "").await;
    let path = format!("/v1/acl/token/{accessor}");
    let read = stand.as_root(&format!("GET {path}"), json!(null)).await;
    let shape = read.json();
    assert!(
        read.header("x-consul-index").is_some() && shape["Hash"].as_str().unwrap().len() == 44,
        "{read:?}"
    );
    assert_eq!((&shape["SecretID"], &shape["Local"]), (&json!(secret), &json!(false)));
    assert!(shape.get("Roles").is_none() && shape.get("ExpirationTime").is_none(), "{shape}");
    let expanded = stand.as_root(&format!("GET {path}?expanded"), json!(null)).await.json();
    assert_eq!(
        (&expanded["ExpandedPolicies"][0]["Name"], &expanded["AgentACLDefaultPolicy"]),
        (&json!("p"), &json!("deny"))
    );
    let clone = stand.as_root(&format!("PUT {path}/clone"), json!({"Description": "c"})).await.json();
    assert_eq!((&clone["Description"], &clone["Policies"]), (&json!("c"), &shape["Policies"]));
    assert!(clone["AccessorID"] != shape["AccessorID"] && clone["SecretID"] != shape["SecretID"], "{clone}");
    let replaced = stand.as_root(&format!("PUT {path}"), json!({"Description": "d"})).await.json();
    assert!(replaced.get("Policies").is_none() && replaced["SecretID"] == json!(secret), "{replaced}");
    stand.as_root(&format!("DELETE {path}"), json!(null)).await.is(200, "true");
    stand.as_root(&format!("DELETE {path}"), json!(null)).await.is(200, "true");
    stand
        .as_root(&format!("GET {path}"), json!(null))
        .await
        .is(404, "Requested token does not exist: ACL not found");
    stand.as_root(&format!("PUT {path}/clone"), json!({})).await.is(403, "ACL not found");
    stand.send_as("nope", &format!("DELETE {path}"), "").await.is(404, "Cannot find token to delete");
    stand.send_as(&secret, "GET /v1/acl/token/self", "").await.is(404, "Supplied token does not exist");
}

/// Contract: 143, 155, 158.
#[tokio::test]
async fn invalid_bodies_of_rows_rejected() {
    let stand = stand(DENY).await;
    let id = "f3a9b1c4-0000-4000-8000-000000000001";
    for (request, body, status, text) in [
        ("PUT /v1/acl/token", "", 400, "Token decoding failed: EOF"),
        ("PUT /v1/acl/policy", "", 400, "Policy decoding failed: EOF"),
        ("PUT /v1/acl/role", r#"{"Foo":1}"#, 400, "Role decoding failed: json: unknown field \"Foo\""),
        (
            "PUT /v1/acl/token/x",
            &json!({"AccessorID": id}).to_string(),
            400,
            "Token Accessor ID in URL and payload do not match",
        ),
        (
            "PUT /v1/acl/policy/x",
            &json!({"ID": id}).to_string(),
            400,
            "Policy ID in URL and payload do not match",
        ),
        (
            "PUT /v1/acl/policy",
            &json!({"ID": id}).to_string(),
            400,
            "Cannot specify the ID when creating a new policy",
        ),
        ("GET /v1/acl/token/", "", 400, "Missing token AccessorID"),
        ("GET /v1/acl/policy/", "", 400, "Missing policy ID"),
        ("GET /v1/acl/role/name/", "", 400, "Missing role Name"),
        ("GET /v1/acl/policy/none", "", 404, "Requested policy does not exist: ACL not found"),
        ("GET /v1/acl/role/name/none", "", 404, "Requested role does not exist: ACL not found"),
        (
            "PUT /v1/acl/token",
            r#"{"AuthMethod":"m"}"#,
            500,
            "AuthMethod field is disallowed outside of Login",
        ),
        ("PUT /v1/acl/token", r#"{"Rules":"x"}"#, 500, "Rules cannot be specified for this token"),
        (
            "PUT /v1/acl/token",
            r#"{"ExpirationTTL":"30s"}"#,
            500,
            "ExpirationTime cannot be less than 1m0s in the future (was 30s)",
        ),
        (
            "PUT /v1/acl/token",
            r#"{"ExpirationTTL":"48h"}"#,
            500,
            "ExpirationTime cannot be more than 24h0m0s in the future (was 48h0m0s)",
        ),
        ("PUT /v1/acl/token", r#"{"ExpirationTTL":"-1s"}"#, 500, "Token Expiration TTL '-1s' should be > 0"),
    ] {
        stand.send_as(ROOT, request, body).await.is(status, text);
    }
    let bad = stand.send_as(ROOT, "PUT /v1/acl/token", r#"{"ExpirationTTL":"abc"}"#).await;
    assert!(bad.status == 400 && bad.text().starts_with("Token decoding failed: "), "{bad:?}");
    for rules in [r#"key "a" { policy = "bogus" }"#, r#"node "a" { policy = "list" }"#, r#"key "a" {"#] {
        let bad = stand.as_root("PUT /v1/acl/policy", json!({"Name": "p", "Rules": rules})).await;
        assert_eq!(bad.status, 500, "{bad:?}");
    }
    stand
        .as_root("GET /v1/acl/policy/name/p", json!(null))
        .await
        .is(404, "Requested policy does not exist: ACL not found");
}

/// Contract: 152, 156.
#[tokio::test]
async fn lists_of_rows_selected_and_hidden() {
    let stand = stand(DENY).await;
    let (accessor, reader) = stand.token("r", r#"acl = "read""#).await;
    let role =
        json!({"Name": "r1", "Policies": [{"Name": "r"}], "ServiceIdentities": [{"ServiceName": "web"}]});
    let role = stand.as_root("PUT /v1/acl/role", role).await.json();
    assert_eq!(role["Policies"][0]["Name"], "r");
    let policy = role["Policies"][0]["ID"].as_str().unwrap();
    let list = async |path: &str| stand.send_as(&reader, &format!("GET {path}"), "").await.json();
    let tokens = list("/v1/acl/tokens").await;
    assert_eq!(tokens.as_array().unwrap().len(), 3, "root, anonymous and the reader");
    assert!(tokens.as_array().unwrap().iter().all(|token| token["SecretID"] == "<hidden>"), "{tokens}");
    assert_eq!(list(&format!("/v1/acl/tokens?policy={policy}")).await[0]["AccessorID"], json!(accessor));
    for none in [
        "tokens?policy=x",
        "tokens?role=x",
        "tokens?authmethod=m",
        "tokens?servicename=web",
        "roles?policy=x",
    ] {
        assert_eq!(list(&format!("/v1/acl/{none}")).await, json!([]), "{none}");
    }
    assert_eq!(list(&format!("/v1/acl/roles?policy={policy}")).await[0]["Name"], "r1");
    let policies = list("/v1/acl/policies").await;
    let first = &policies[0];
    assert!(first.get("Rules").is_none() && first["Datacenters"].is_null(), "{first}");
    let own = list("/v1/acl/token/self").await;
    assert_eq!(own["SecretID"], json!(reader));
    let refused = stand.send_as(&reader, "PUT /v1/acl/policy", r#"{"Name":"q"}"#).await;
    assert!(refused.status == 403 && refused.text().ends_with("lacks permission 'acl:write'"), "{refused:?}");
}

/// Contract: 159.
#[tokio::test]
async fn templates_listed_and_previewed() {
    let stand = stand(DENY).await;
    let all = stand.as_root("GET /v1/acl/templated-policies", json!(null)).await.json();
    assert_eq!(all["builtin/service"]["TemplateName"], "builtin/service");
    let one = stand.as_root("GET /v1/acl/templated-policy/name/builtin/node", json!(null)).await.json();
    assert!(one["Template"].as_str().unwrap().contains("node \"{{.Name}}\""), "{one}");
    let path = "POST /v1/acl/templated-policy/preview/builtin/service";
    let policy = stand.as_root(path, json!({"Name": "my-service"})).await.json();
    assert!(policy["Rules"].as_str().unwrap().contains("service \"my-service\""), "{policy}");
    assert!(policy["Name"].as_str().unwrap().starts_with("synthetic-policy-"), "{policy}");
    assert_eq!(stand.send_as("", "GET /v1/acl/templated-policies", "").await.status, 403);
    let body = json!({"TemplatedPolicies": [{"TemplateName": "builtin/service", "TemplateVariables": {"Name": "web"}}]});
    let token = stand.as_root("PUT /v1/acl/token", body).await.json();
    assert_eq!(token["TemplatedPolicies"][0]["TemplateVariables"], json!({"name": "web"}));
}

/// Contract: 165.
#[tokio::test]
async fn authorize_answers_at_most_64() {
    let stand = stand(DENY).await;
    let (_, secret) = stand.token("t", r#"key_prefix "a/" { policy = "read" }"#).await;
    let question = |access: &str| json!({"Resource": "key", "Access": access, "Segment": "a/x"});
    let path = "POST /v1/internal/acl/authorize";
    let answers = stand.send_as(&secret, path, json!([question("read"), question("write")])).await.json();
    assert_eq!((&answers[0]["Allow"], &answers[1]["Allow"]), (&json!(true), &json!(false)));
    let many = vec![question("read"); 65];
    assert_eq!(stand.send_as(&secret, path, json!(many)).await.status, 400);
    let bad = json!([{"Resource": "acl", "Access": "list"}]);
    assert_eq!(stand.send_as(&secret, path, bad).await.status, 500);
}

#[tokio::test]
async fn settings_change_only_present_fields() {
    let stand = stand(DENY).await;
    let refused = stand.put("/v1/lockmesh/acl", r#"{"Mode":"off"}"#).await;
    assert_eq!(refused.status, 403, "{refused:?}");
    stand.as_root("PUT /v1/lockmesh/acl", json!({"KeyListPolicy": true})).await.is(200, "true");
    let settings = stand.as_root("GET /v1/lockmesh/acl", json!(null)).await.json();
    assert_eq!((&settings["Mode"], &settings["DefaultPolicy"]), (&json!("enforce"), &json!("deny")));
    assert_eq!((&settings["KeyListPolicy"], &settings["SessionOwnership"]), (&json!(true), &json!(false)));
    assert_eq!(stand.as_root("PUT /v1/lockmesh/acl", json!({"Mode": "maybe"})).await.status, 400);
}

/// One permitted and one refused request of each endpoint that the agent judges.
///
/// Contract: 162.
#[tokio::test]
async fn local_endpoints_need_their_rights() {
    let stand = stand(DENY).await;
    let service = json!({"ID": "w", "Name": "web", "Check": {"CheckID": "c", "TTL": "1h"}}).to_string();
    stand.send_as(ROOT, "PUT /v1/agent/service/register", &service).await.is(200, "");
    for (number, (rules, request, body)) in [
        (r#"agent "node-one" { policy = "read" }"#, "GET /v1/agent/self", ""),
        (r#"agent "node-one" { policy = "read" }"#, "GET /v1/agent/metrics", ""),
        (r#"operator = "read""#, "GET /v1/agent/host", ""),
        (r#"operator = "read""#, "GET /v1/operator/raft/configuration", ""),
        (r#"agent "node-one" { policy = "write" }"#, "PUT /v1/agent/token/dns", r#"{"Token":"x"}"#),
        (r#"node "node-one" { policy = "write" }"#, "PUT /v1/agent/maintenance?enable=false", ""),
        (r#"service "web" { policy = "read" }"#, "GET /v1/agent/service/w", ""),
        (r#"service "web" { policy = "read" }"#, "GET /v1/agent/health/service/name/web?format=text", ""),
        (r#"service "web" { policy = "write" }"#, "PUT /v1/agent/service/maintenance/w?enable=false", ""),
        (r#"service "web" { policy = "write" }"#, "PUT /v1/agent/check/pass/c", ""),
        (r#"service "new" { policy = "write" }"#, "PUT /v1/agent/service/register", r#"{"Name":"new"}"#),
        (
            r#"node "node-one" { policy = "write" }"#,
            "PUT /v1/agent/check/register",
            r#"{"Name":"n","TTL":"1h"}"#,
        ),
        (r#"event "deploy" { policy = "write" }"#, "PUT /v1/event/fire/deploy", ""),
    ]
    .into_iter()
    .enumerate()
    {
        let (_, secret) = stand.token(&format!("p{number}"), rules).await;
        let refused = stand.send_as("", request, body).await;
        assert!(
            refused.status == 403 && refused.text().starts_with("Permission denied"),
            "{request}: {refused:?}"
        );
        let reply = stand.send_as(&secret, request, body).await;
        assert!(reply.status != 403 && reply.status != 400, "{request}: {reply:?}");
    }
    let renamed = json!({"ID": "w", "Name": "new"});
    let (_, secret) = stand.token("rename", r#"service "new" { policy = "write" }"#).await;
    let refused = stand.send_as(&secret, "PUT /v1/agent/service/register", renamed).await;
    assert!(refused.status == 403 && refused.text().contains("\"web\""), "{refused:?}");
    for unknown in ["GET /v1/agent/service/none", "PUT /v1/agent/check/pass/none"] {
        assert_ne!(stand.send_as("", unknown, "").await.status, 403, "{unknown}");
    }
}

/// Contract: 162.
#[tokio::test]
async fn local_lists_filtered() {
    let stand = stand(DENY).await;
    for name in ["web", "db"] {
        let body = json!({"Name": name, "Check": {"TTL": "1h"}}).to_string();
        stand.send_as(ROOT, "PUT /v1/agent/service/register", body).await.is(200, "");
    }
    for name in ["deploy", "other"] {
        assert_eq!(stand.as_root(&format!("PUT /v1/event/fire/{name}"), json!(1)).await.status, 200);
    }
    let (_, secret) = stand
        .token("t", "service \"web\" { policy = \"read\" }\nevent \"deploy\" { policy = \"read\" }")
        .await;
    let mark = "x-consul-results-filtered-by-acls";
    for (path, count) in [("services", 1), ("checks", 1)] {
        let listed = stand.send_as(&secret, &format!("GET /v1/agent/{path}"), "").await;
        assert_eq!(
            (listed.json().as_object().unwrap().len(), listed.header(mark)),
            (count, Some("true")),
            "{path}"
        );
        assert_eq!(stand.send_as("", &format!("GET /v1/agent/{path}"), "").await.json(), json!({}));
    }
    let events = stand.send_as(&secret, "GET /v1/event/list", "").await.json();
    assert_eq!((events.as_array().unwrap().len(), &events[0]["Name"]), (1, &json!("deploy")));
    assert_eq!(stand.send_as(&secret, "GET /v1/agent/members", "").await.json(), json!([]));
    let all = stand.as_root("GET /v1/agent/members", json!(null)).await;
    assert_eq!((all.json()[0]["Name"].as_str(), all.header(mark)), (Some("node-one"), None));
}

#[tokio::test]
async fn known_rights_used_without_servers() {
    let stand = stand(DENY).await;
    let rules = r#"agent "node-one" { policy = "read" }"#;
    let ((_, seen), (_, unseen)) = (stand.token("a", rules).await, stand.token("b", rules).await);
    assert_eq!(stand.send_as(&seen, "GET /v1/agent/metrics", "").await.status, 200);
    stand.break_with(Unavailable::NotLeader { leader: None });
    assert_eq!(stand.send_as(&seen, "GET /v1/agent/metrics", "").await.status, 200);
    stand.send_as(&unseen, "GET /v1/agent/metrics", "").await.failed(403, "not-done");
    stand.mend();
    assert_eq!(stand.send_as(&unseen, "GET /v1/agent/metrics", "").await.status, 200);
}

/// Contract: 163.
#[tokio::test]
async fn default_token_of_agent_used() {
    let stand = stand(DENY).await;
    let (_, secret) = stand.token("t", r#"key_prefix "" { policy = "write" }"#).await;
    let set =
        async |name: &str, body: Value| stand.as_root(&format!("PUT /v1/agent/token/{name}"), body).await;
    set("master", json!({"Token": secret})).await.is(404, "Token \"master\" is unknown");
    assert_eq!(set("default", json!([1])).await.status, 400);
    set("replication", json!({"Token": secret})).await.is(200, "");
    assert_eq!(stand.send_as("", "PUT /v1/kv/a", "1").await.status, 403);
    set("default", json!({"Token": secret})).await.is(200, "");
    stand.send_as("", "PUT /v1/kv/a", "1").await.is(200, "true");
    assert_eq!(stand.send_as("anonymous", "PUT /v1/kv/a", "1").await.status, 403);
}

/// Contract: 165.
#[tokio::test]
async fn query_token_hidden_and_used() {
    let stand = stand(DENY).await;
    let rules = "service_prefix \"\" { policy = \"read\" }\nnode_prefix \"\" { policy = \"read\" }";
    let (_, secret) = stand.token("of-query", rules).await;
    let register = json!({"Node": "n", "Address": "10.0.0.1", "Service": {"Service": "web"}}).to_string();
    stand.send_as(ROOT, "PUT /v1/catalog/register", register).await.is(200, "true");
    let body = json!({"Name": "q", "Token": secret, "Service": {"Service": "web"}});
    let id = stand.as_root("POST /v1/query", body).await.json()["ID"].as_str().unwrap().to_owned();
    let (_, reader) = stand.token("reader", r#"query "q" { policy = "read" }"#).await;
    let shown = stand.send_as(&reader, &format!("GET /v1/query/{id}"), "").await.json();
    assert_eq!(shown[0]["Token"], "<hidden>");
    assert_eq!(stand.as_root("GET /v1/query", json!(null)).await.json()[0]["Token"], json!(secret));
    let found = stand.send_as(&reader, "GET /v1/query/q/execute", "").await.json();
    assert_eq!(found["Nodes"].as_array().unwrap().len(), 1, "by the token of the query");
}

#[tokio::test(start_paused = true)]
async fn settings_of_cluster_followed() {
    let stand = Stand::new();
    let mut settings = stand.api.acl.watch();
    let other = Acl::start(&stand.api.upstream, AgentTokens::default(), None);
    let mut others = other.watch();
    stand.put("/v1/lockmesh/acl", DENY).await.is(200, "true");
    let is_enforced = |settings: &AclSettings| settings.mode == AclMode::Enforce;
    settings.wait_for(is_enforced).await.expect("the stand has it");
    others.wait_for(is_enforced).await.expect("the test has it");
    stand.break_with(Unavailable::NotLeader { leader: None });
    assert!(!other.is_off(), "the last known settings count");
}

/// The judge of each route, so that none is forgotten: a new route with an answer from the agent's
/// own memory is not in the first list.
#[tokio::test]
async fn every_route_has_a_judge() {
    let of = |wanted: fn(Judge) -> bool| -> Vec<_> {
        ROUTES.iter().filter(|route| wanted(route.judge)).map(|route| route.path).collect()
    };
    let by_servers = of(|judge| judge == Judge::Servers);
    let prefixes = [
        "/v1/kv/",
        "/v1/session/",
        "/v1/txn",
        "/v1/catalog/",
        "/v1/health/",
        "/v1/coordinate/",
        "/v1/query",
        "/v1/acl/",
        "/v1/operator/",
        "/v1/snapshot",
        "/v1/lockmesh/",
    ];
    let is_named = |path: &&&str| prefixes.iter().any(|prefix| path.starts_with(prefix));
    assert_eq!(by_servers.iter().filter(|path| !is_named(path)).count(), 0, "{by_servers:?}");
    assert_eq!(
        of(|judge| judge == Judge::Open),
        [
            "/v1/status/leader",
            "/v1/status/peers",
            "/v1/catalog/datacenters",
            "/v1/coordinate/datacenters",
            "/v1/acl/replication",
            "/v1/acl/login",
            "/v1/acl/logout",
            "/metrics",
            "/health/live",
            "/health/ready",
        ]
    );
    // Every other one refuses a client without rights, or shows it nothing.
    let stand = stand(DENY).await;
    let checked = of(|judge| matches!(judge, Judge::Router(_) | Judge::Endpoint));
    let lists = ["/v1/agent/checks", "/v1/agent/services", "/v1/agent/members", "/v1/event/list"];
    for path in checked.into_iter().filter(|path| !lists.contains(path)) {
        let route = ROUTES.iter().find(|route| route.path == path).expect("it is in the table");
        for verb in route.verbs {
            let reply = stand.send_as("nope", &format!("{} {path}web", verb.method), "{}").await;
            let needs_object = ["/v1/agent/service/", "/v1/agent/check/", "/v1/agent/health/"];
            let is_early = needs_object.iter().any(|prefix| path.starts_with(prefix));
            assert!(
                reply.status == 403 || reply.status == 404 || (is_early && reply.status != 200),
                "{path}: {reply:?}"
            );
        }
    }
}

#[tokio::test]
async fn log_mode_refuses_nothing() {
    let stand = stand(r#"{"Mode":"log","DefaultPolicy":"deny"}"#).await;
    let written = stand.send_as("nope", "PUT /v1/kv/a", "1").await;
    assert_eq!((written.text(), written.header("x-consul-default-acl-policy")), ("true", Some("allow")));
    assert_eq!(stand.send_as("", "GET /v1/agent/self", "").await.status, 200);
}

/// Contract: 165.
#[tokio::test]
async fn failures_contain_no_secret() {
    let stand = stand(DENY).await;
    let (accessor, secret) = stand.token("t", "").await;
    for request in [
        format!("GET /v1/kv/a?token={secret}"),
        "PUT /v1/agent/token/default".into(),
        format!("GET /v1/acl/token/{secret}"),
        format!("PUT /v1/acl/token/{secret}"),
        format!("DELETE /v1/acl/token/{secret}"),
        format!("GET /v1/acl/token/{accessor}"),
        "GET /v1/agent/self".into(),
    ] {
        let reply = stand.send_as(&secret, &request, json!({"Token": secret})).await;
        assert!(!reply.text().contains(&secret), "{request}: {reply:?}");
    }
    let debug = format!("{:?}", stand.api.acl);
    assert!(!debug.contains(&secret), "debug output");
}

/// Contract: 165.
#[tokio::test]
async fn changes_audited_without_secrets() {
    let stand = stand(DENY).await;
    let (accessor, secret) = stand.token("t", "acl = \"write\"").await;
    let lines = Lines::default();
    // See `operators_and_recursive_deletes_audited`.
    let _second = tracing::Dispatch::new(Lines::default());
    let _guard = tracing::subscriber::set_default(lines.clone());
    stand.send_as(&secret, &format!("PUT /v1/acl/token?token={secret}"), "{}").await;
    stand.send_as(&secret, &format!("DELETE /v1/acl/token/{secret}"), "").await;
    let lines = lines.0.lock().unwrap().clone();
    let [created, deleted] = &lines[..] else { panic!("{lines:?}") };
    assert!(created.contains(&format!("token=\"{accessor}\"")), "{created}");
    assert!(created.contains(r#"request="PUT /v1/acl/token" result="200""#), "{created}");
    assert!(lines.iter().all(|line| !line.contains(&secret)), "{deleted}");
}
