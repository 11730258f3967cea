//! The users of the host as callers on the Unix socket: binding rules give them rights.

use super::acl::{DENY, ROOT, stand};
use super::{Peer, Reply, Stand};
use crate::http::Body;
use http::Request;
use serde_json::{Value, json};
use std::time::Duration;

/// A user and a group that no host lists.
const USER: u32 = 4_000_001;
const GROUP: u32 = 4_000_007;

/// A process of a user.
fn user(uid: u32) -> Peer {
    Peer::Unix { uid: Some(uid), gid: Some(GROUP), pid: Some(7), accepted_at: Duration::ZERO }
}

impl Stand {
    /// Sends a request without a token.
    async fn by(&self, peer: Peer, request: &str, body: &str) -> Reply {
        self.send_by(peer, "", request, body).await
    }

    async fn send_by(&self, peer: Peer, token: &str, request: &str, body: &str) -> Reply {
        let (method, path) = request.split_once(' ').expect("a method and a path");
        let head = Request::builder().method(method).uri(path).header("content-length", body.len());
        let head = if token.is_empty() { head } else { head.header("x-consul-token", token) };
        self.send_from(peer, head.body(Body::from(body.to_owned())).unwrap()).await
    }

    /// Binds users to a policy with these rules, and returns the binding rule.
    pub(super) async fn bind(&self, selector: &str, policy: &str, rules: &str) -> Value {
        let method = json!({"Name": "host", "Type": "unix-peer"});
        assert_eq!(self.as_root("PUT /v1/acl/auth-method", method).await.status, 200);
        let body = json!({"Name": policy, "Rules": rules});
        assert_eq!(self.as_root("PUT /v1/acl/policy", body).await.status, 200);
        let rule =
            json!({"AuthMethod": "host", "Selector": selector, "BindType": "policy", "BindName": policy});
        let created = self.as_root("PUT /v1/acl/binding-rule", rule).await;
        assert_eq!(created.status, 200, "{created:?}");
        created.json()
    }
}

const OWN: &str = r#"
    key_prefix "jobs/${uid}/" { policy = "write" }
    session "${node}" { policy = "write" }
"#;

/// Contract: 160.
#[tokio::test]
async fn only_unix_peer_methods_accepted() {
    let stand = stand(DENY).await;
    for kind in ["kubernetes", "jwt", "oidc"] {
        let refused = stand.as_root("PUT /v1/acl/auth-method", json!({"Name": "m", "Type": kind})).await;
        refused.is(500, "Invalid Auth Method: Type should be one of: [unix-peer]");
    }
    let rule = stand.bind("uid == 7", "p", "").await;
    let id = rule["ID"].as_str().unwrap();
    assert_eq!((&rule["BindType"], &rule["Selector"]), (&json!("policy"), &json!("uid == 7")));
    let listed = async |path: &str| stand.as_root(&format!("GET /v1/acl/{path}"), json!(null)).await.json();
    assert_eq!(listed("auth-methods").await[0]["Type"], "unix-peer");
    assert_eq!(listed("binding-rules").await[0]["ID"], json!(id));
    let login = json!({"AuthMethod": "host", "BearerToken": "x"});
    let refused = stand.as_root("POST /v1/acl/login", login).await;
    assert!(refused.status == 403 && refused.text().contains("unix-peer needs no login"), "{refused:?}");
    let mut changed = rule.clone();
    changed["Selector"] = json!("gid == 7");
    let updated = stand.as_root(&format!("PUT /v1/acl/binding-rule/{id}"), changed).await.json();
    assert_eq!(updated["Selector"], "gid == 7");
    stand.as_root("DELETE /v1/acl/auth-method/host", json!(null)).await.is(200, "true");
    for (path, what) in
        [("auth-method/host".to_owned(), "auth method"), (format!("binding-rule/{id}"), "binding rule")]
    {
        let text = format!("Requested {what} does not exist: ACL not found");
        stand.as_root(&format!("GET /v1/acl/{path}"), json!(null)).await.is(404, &text);
    }
}

/// Contract: 166.
#[tokio::test]
async fn bound_user_needs_no_token() {
    let stand = stand(DENY).await;
    stand.bind(&format!("uid == {USER}"), "jobs", OWN).await;
    let key = format!("/v1/kv/jobs/{USER}/x");
    let put = format!("PUT {key}");
    stand.by(user(USER), &put, "1").await.is(200, "true");
    assert_eq!(stand.by(user(USER), "PUT /v1/session/create", r#"{"Checks":[]}"#).await.status, 200);
    let refused = stand.by(user(USER), "PUT /v1/kv/z", "1").await;
    let who = format!("unix peer '' (uid {USER}) on node 'node-one'");
    assert!(refused.status == 403 && refused.text().contains("on \"z\""), "{refused:?}");
    assert!(refused.text().contains(&who), "{refused:?}");
    // Another user, and the same one over TCP.
    for other in [user(USER + 1), user(0), Peer::Tcp("127.0.0.1:1".parse().unwrap())] {
        let refused = stand.by(other, &put, "1").await;
        assert!(refused.status == 403 && refused.text().contains("anonymous token"), "{refused:?}");
    }
    let (_, secret) = stand.token("t", r#"key "z" { policy = "write" }"#).await;
    stand.send_by(user(USER), &secret, "PUT /v1/kv/z", "1").await.is(200, "true");
    assert_eq!(stand.send_by(user(USER), &secret, &put, "1").await.status, 403);
    stand.send_by(user(USER), "nope", &put, "1").await.is(403, "ACL not found");
    assert_eq!(stand.send_by(user(USER), "anonymous", &put, "1").await.status, 403);
}

/// Contract: 167.
#[tokio::test]
async fn changed_rule_counts_for_next_request() {
    let stand = stand(DENY).await;
    let rule = stand.bind(&format!("\"{GROUP}\" in groups"), "jobs", OWN).await;
    let put = format!("PUT /v1/kv/jobs/{USER}/x");
    stand.by(user(USER), &put, "1").await.is(200, "true");
    let create = "PUT /v1/session/create";
    let other = json!({"Node": "n2", "Address": "10.0.0.2"});
    stand.as_root("PUT /v1/catalog/register", other).await.is(200, "true");
    assert_eq!(stand.by(user(USER), create, r#"{"Node":"n2","Checks":[]}"#).await.status, 403);
    // A process in another user or PID namespace has no identity.
    for (uid, pid) in [(USER, 0), (65_534, 7)] {
        let peer =
            Peer::Unix { uid: Some(uid), gid: Some(GROUP), pid: Some(pid), accepted_at: Duration::ZERO };
        assert_eq!(stand.by(peer, &put, "1").await.status, 403, "{peer:?}");
    }
    let path = format!("/v1/acl/binding-rule/{}", rule["ID"].as_str().unwrap());
    let mut changed = rule.clone();
    changed["Selector"] = json!("node == \"n2\"");
    assert_eq!(stand.as_root(&format!("PUT {path}"), changed).await.status, 200);
    assert_eq!(stand.by(user(USER), &put, "1").await.status, 403);
}

#[tokio::test]
async fn own_token_describes_bound_user() {
    let stand = stand(DENY).await;
    stand.bind(&format!("uid == {USER}"), "jobs", OWN).await;
    let own = async |uid| stand.by(user(uid), "GET /v1/acl/token/self", "").await.json();
    let token = own(USER).await;
    assert_eq!(token["Description"], json!(format!("unix peer (uid {USER}) on node-one")));
    assert_eq!(token["SecretID"], "<hidden>");
    assert_eq!(token["AccessorID"].as_str().map(str::len), Some(36), "{token}");
    assert_eq!(own(USER).await, token);
    assert_eq!(own(USER + 1).await["AccessorID"], "00000000-0000-0000-0000-000000000002");
    let root = stand.send_by(user(USER), ROOT, "GET /v1/acl/token/self", "").await.json();
    assert_eq!(root["SecretID"], json!(ROOT));
}
