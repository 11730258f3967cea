//! Behavior common to all endpoints.

use super::Stand;
use lockmesh_protocol::rpc::{Status, Unavailable};
use std::time::Duration;

#[tokio::test]
async fn unsupported_method_lists_allowed() {
    let stand = Stand::new();
    for (method, path, allow) in [
        ("POST", "/v1/kv/a", "OPTIONS,GET,PUT,DELETE"),
        ("HEAD", "/v1/kv/a", "OPTIONS,GET,PUT,DELETE"),
        ("GET", "/v1/session/create", "OPTIONS,PUT"),
        ("PUT", "/v1/operator/raft/peer", "OPTIONS,DELETE"),
        ("GET", "/v1/operator/raft/transfer-leader", "OPTIONS,POST"),
        ("POST", "/v1/txn", "OPTIONS,PUT"),
        ("GET", "/v1/agent/leave", "OPTIONS,PUT"),
        ("GET", "/v1/agent/maintenance", "OPTIONS,PUT"),
        ("POST", "/v1/agent/force-leave/web-3", "OPTIONS,PUT"),
        ("POST", "/v1/agent/join/s1:8300", "OPTIONS,PUT"),
    ] {
        let refused = stand.call(method, path, "").await;
        refused.is(405, &format!("method {method} not allowed"));
        assert_eq!(refused.header("allow"), Some(allow));
        assert_eq!(refused.header("x-consul-default-acl-policy"), Some("allow"));
        let asked = stand.call("OPTIONS", path, "").await;
        asked.is(200, "");
        assert_eq!(asked.header("allow"), Some(allow));
    }
}

#[tokio::test]
async fn trace_is_allowed_nowhere() {
    let stand = Stand::new();
    for path in ["/", "/v1/kv/a", "/v1/nonsense", "/metrics"] {
        stand.call("TRACE", path, "").await.is(405, "method TRACE not allowed");
    }
}

#[tokio::test]
async fn unknown_paths_return_404() {
    let stand = Stand::new();
    let inside = stand.get("/v1/nonsense").await;
    inside.is(404, "Invalid URL path: not a recognized HTTP API endpoint\n");
    assert_eq!(inside.header("x-consul-default-acl-policy"), None);
    let text = "Invalid URL path: if attempting to use the HTTP API, ensure the path starts with '/v1/'\n";
    stand.get("/nonsense").await.is(404, text);
    assert_eq!(stand.get("/").await.status, 200);
}

#[tokio::test]
async fn unsupported_consul_feature_names_remedy() {
    let stand = Stand::new();
    for (method, path, feature, remedy) in [
        ("GET", "/v1/agent/connect/ca/leaf/web", "service mesh", "service mesh for it"),
        ("GET", "/v1/operator/keyring", "gossip keyring", "here it is `GET /v1/operator/gossip`"),
        ("GET", "/ui/dc1/services", "web page", "lockmesh locks"),
    ] {
        let absent = stand.call(method, path, "").await;
        absent.failed(501, "refused");
        let text = absent.text();
        assert!(text.starts_with(&format!("`{method} {path}` of Consul ({feature}")), "{text}");
        assert!(text.contains(remedy), "{text}");
        assert_eq!(absent.header("x-content-type-options"), Some("nosniff"));
    }
    let of_web_page = stand.get("/v1/internal/ui/nodes").await;
    of_web_page.is(404, "Invalid URL path: not a recognized HTTP API endpoint\n");
    for path in ["/v1/agent/connect/ca/roots", "/v1/connect/ca/roots"] {
        stand.get(path).await.is(500, "Connect must be enabled in order to use this endpoint");
    }
}

/// Contract: 129.
#[tokio::test]
async fn acl_requests_report_disabled() {
    let stand = Stand::new();
    for (method, path) in [
        ("GET", "/v1/acl/tokens"),
        ("PUT", "/v1/acl/bootstrap"),
        ("GET", "/v1/acl/list"),
        ("PUT", "/v1/acl/destroy/x"),
        ("POST", "/v1/acl/rules/translate"),
        ("POST", "/v1/internal/acl/authorize"),
        ("PUT", "/v1/agent/token/default"),
        ("PUT", "/v1/agent/token/nonsense"),
    ] {
        stand.call(method, path, "{").await.is(401, "ACL support disabled");
    }
}

#[tokio::test]
async fn tokens_rejected_only_if_configured() {
    async fn send_with(stand: &Stand, method: &str, uri: &str, header: Option<(&str, &str)>) -> super::Reply {
        let mut request = http::Request::builder().method(method).uri(uri);
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        stand.send(request.body(crate::http::Body::empty()).unwrap()).await
    }
    let mut stand = Stand::new();
    let tokens = [
        ("/v1/kv/a", Some(("x-consul-token", "junk"))),
        ("/v1/kv/a", Some(("authorization", "Bearer junk"))),
        ("/v1/kv/a?token=junk", None),
    ];
    for (uri, header) in tokens {
        send_with(&stand, "PUT", uri, header).await.is(200, "true");
        send_with(&stand, "DELETE", uri, header).await.is(200, "true");
    }
    let api = std::sync::Arc::get_mut(&mut stand.api).expect("nothing else has it");
    api.access.tokens = crate::http::token::Tokens::new(true);
    for (uri, header) in tokens {
        let refused = send_with(&stand, "PUT", uri, header).await;
        refused.failed(403, "refused");
        let text = refused.text();
        assert!(text.contains("ACL support disabled") && text.contains("http.refuse_tokens"), "{text}");
    }
    assert_eq!(stand.get("/v1/kv/a").await.status, 404, "nothing was written");
    send_with(&stand, "PUT", "/v1/kv/a", None).await.is(200, "true");
    send_with(&stand, "PUT", "/v1/kv/a", Some(("authorization", "Basic dDp0"))).await.is(200, "true");
}

#[tokio::test]
async fn unclean_paths_redirect() {
    let stand = Stand::new();
    for (path, clean) in [
        ("/v1/kv", "/v1/kv/"),
        ("/v1/session/renew?dc=x", "/v1/session/renew/?dc=x"),
        ("/v1/kv/a//b?raw", "/v1/kv/a/b?raw"),
        ("/v1/kv/a%2F%2Fb", "/v1/kv/a/b"),
        ("/v1/kv/a/./b", "/v1/kv/a/b"),
        ("/v1/kv/a/../b%20c", "/v1/kv/b%20c"),
    ] {
        for method in ["GET", "PUT"] {
            let sent = stand.call(method, path, "").await;
            assert_eq!((sent.status.as_u16(), sent.header("location")), (301, Some(clean)), "{path}");
        }
    }
}

#[tokio::test]
async fn undecodable_url_rejected() {
    let stand = Stand::new();
    let unprintable = |code: &str| {
        format!("Invalid URL path: it has the character U+{code}, which cannot be printed; use another name")
    };
    stand.put("/v1/kv/a%0Ab", "x").await.is(400, &unprintable("000A"));
    stand.get("/v1/kv/a%C2%A0b").await.is(400, &unprintable("00A0"));
    assert_eq!(stand.put("/v1/kv/a%zz", "x").await.status, 400);
    for (query, text) in [
        ("index=%zz", "Invalid query string: \"%zz\" has an invalid URL escape; write a percent sign as %25"),
        (
            "x;y",
            "Invalid query string: \"x;y\" has a semicolon; write it as %3B, and separate parameters with &",
        ),
        ("x=%ff", "Invalid query string: \"%ff\" is not UTF-8; encode text as UTF-8 before escaping it"),
    ] {
        stand.get(&format!("/v1/kv/a?{query}")).await.is(500, text);
    }
    assert_eq!(stand.get("/v1/kv/?keys").await.text(), "[]", "nothing was written");
}

#[tokio::test]
async fn non_utf8_key_absent_and_unwritable() {
    let stand = Stand::new();
    // The key that it would be mistaken for.
    stand.put("/v1/kv/a%EF%BF%BD", "x").await.is(200, "true");
    for query in ["", "?raw", "?recurse", "?keys"] {
        let read = stand.get(&format!("/v1/kv/a%ff{query}")).await;
        read.is(404, "");
        assert!(read.index() > 1, "a client waits with it");
    }
    for (method, query) in [("PUT", ""), ("PUT", "?cas=0"), ("DELETE", ""), ("DELETE", "?recurse")] {
        let written = stand.call(method, &format!("/v1/kv/a%ff{query}"), "x").await;
        written.is(400, "Invalid URL path: it is not UTF-8; encode names as UTF-8 before escaping them");
    }
    stand.get("/v1/kv/a%EF%BF%BD?raw").await.is(200, "x");
    stand.get("/v1/session/info/%ff").await.is(200, "[]");
}

#[tokio::test]
async fn parameters_of_reads_are_judged() {
    let stand = Stand::new();
    let both = "Cannot specify ?stale with ?consistent, conflicting semantics.";
    for (query, text) in [
        ("index=abc", "Invalid index"),
        ("index=-1", "Invalid index"),
        ("wait=10", "Invalid wait time"),
        ("wait=abc", "Invalid wait time"),
        ("stale&consistent", both),
        ("max_stale=1s&consistent", both),
        ("cached&consistent", "Cannot specify ?cached with ?consistent, conflicting semantics."),
        ("max_stale=x", "Invalid max_stale value \"x\""),
        ("ns=team", "Invalid query parameter: \"ns\" - Namespaces are a Consul Enterprise feature"),
        (
            "partition=p",
            "Invalid query parameter: \"partition\" - Partitions are a Consul Enterprise feature",
        ),
    ] {
        for path in ["/v1/kv/a", "/v1/session/list", "/v1/catalog/nodes", "/v1/health/state/any"] {
            stand.get(&format!("{path}?{query}")).await.is(400, text);
        }
    }
    for query in
        ["index=", "wait=0s", "wait=-1s", "stale=", "leader", "ns=", "namespace=x", "max_stale=0s", "cached"]
    {
        assert_eq!(stand.get(&format!("/v1/session/list?{query}")).await.status, 200, "{query}");
    }
}

#[tokio::test]
async fn oversized_response_returns_413_with_remedy() {
    let stand = Stand::new();
    stand.break_with(Unavailable::AnswerTooLong { limit: 8 << 20 });
    for path in ["/v1/kv/?recurse", "/v1/kv/?recurse&stale", "/v1/session/list", "/v1/catalog/nodes"] {
        let refused = stand.get(path).await;
        assert_eq!(refused.status, 413, "{path}: Go's clients ask again after a 500");
        let text = refused.text();
        assert!(text.contains("8388608 bytes") && text.contains("longer prefix"), "{text}");
    }
}

#[tokio::test]
async fn every_failure_reports_outcome() {
    let stand = Stand::new();
    for (method, path, body, status) in [
        ("GET", "/v1/nonsense", "", 404),
        ("GET", "/nonsense", "", 404),
        ("GET", "/v1/kv/a%zz", "", 400),
        ("GET", "/v1/kv/a?x=%zz", "", 500),
        ("PUT", "/v1/catalog/nodes", "", 405),
        ("PUT", "/v1/kv/a?cas=x", "", 500),
        ("PUT", "/v1/kv/", "", 400),
        ("GET", "/v1/kv/a?dc=elsewhere", "", 500),
        ("PUT", "/v1/kv/a?acquire=none", "", 500),
        ("PUT", "/v1/session/create", r#"{"Node": "elsewhere"}"#, 500),
        ("PUT", "/v1/session/create", r#"{"TTL": "1s"}"#, 500),
        ("PUT", "/v1/session/renew/none", "", 404),
        ("PUT", "/v1/agent/check/pass/none", "", 500),
        ("PUT", "/v1/txn", r#"[{"KV": {"Verb": "get", "Key": "none"}}]"#, 409),
        ("PUT", "/v1/txn", r#"[{"KV": {"Verb": "cas", "Key": "none", "Index": 7}}]"#, 409),
        ("PUT", "/v1/snapshot", "no archive", 500),
        ("DELETE", "/v1/operator/raft/peer?id=77", "", 500),
    ] {
        stand.call(method, path, body).await.failed(status, "refused");
    }
    let text = String::from("x");
    for (unavailable, status, outcome) in [
        (Unavailable::NotLeader { leader: None }, 500, "not-done"),
        (Unavailable::Overloaded(text.clone()), 500, "not-done"),
        (Unavailable::Disk(text.clone()), 500, "not-done"),
        (Unavailable::Denied(text.clone()), 500, "refused"),
        (Unavailable::Unknown(text), 500, "unknown"),
        (Unavailable::AnswerTooLong { limit: 1 }, 413, "refused"),
        (Unavailable::Removed, 500, "not-done"),
        (Unavailable::NotAdmitted("x".into()), 500, "not-done"),
        (Unavailable::Corrupt, 500, "not-done"),
    ] {
        stand.break_with(unavailable);
        stand.put("/v1/kv/a", "x").await.failed(status, outcome);
        stand.get("/v1/session/list").await.failed(status, outcome);
        stand.put("/v1/session/renew/none", "").await.failed(status, outcome);
    }
}

#[tokio::test]
async fn headers_of_requests_are_judged() {
    let stand = Stand::new();
    let get_with = |name: &'static str, value: &'static str| {
        let request = http::Request::builder().uri("/v1/session/list").header(name, value);
        stand.send(request.body(crate::http::Body::empty()).unwrap())
    };
    get_with("cache-control", "max-age=x").await.is(400, "Invalid Cache-Control header.");
    get_with("cache-control", "max-age=5, must-revalidate").await.is(200, "[]");
    let text = "Invalid header: \"X-Consul-Namespace\" - Namespaces are a Consul Enterprise feature";
    get_with("x-consul-namespace", "team").await.is(400, text);
    get_with("x-consul-token", "junk").await.is(200, "[]");
    get_with("authorization", "Bearer junk").await.is(200, "[]");
}

#[tokio::test]
async fn there_is_one_datacenter() {
    let stand = Stand::new();
    for path in ["/v1/kv/a", "/v1/session/list", "/v1/status/leader", "/v1/catalog/nodes", "/v1/agent/checks"]
    {
        stand.get(&format!("{path}?dc=other")).await.is(500, "No path to datacenter");
        stand.get(&format!("{path}?dc=dc1&datacenter=other")).await.is(500, "No path to datacenter");
        let known = stand.get(&format!("{path}?dc=other&datacenter=dc1")).await;
        assert_ne!(known.status, 500, "datacenter wins: {known:?}");
    }
    stand.put("/v1/kv/a?dc=other", "x").await.is(500, "No path to datacenter");
    stand
        .put("/v1/catalog/deregister", r#"{"Datacenter":"other","Node":"n"}"#)
        .await
        .is(500, "No path to datacenter");
}

#[tokio::test]
async fn pretty_indents_four_and_ends_line() {
    let stand = Stand::new();
    stand.put("/v1/kv/a", "x").await.is(200, "true");
    stand.put("/v1/kv/a?pretty", "x").await.is(200, "true\n");
    let plain = stand.get("/v1/kv/a").await;
    assert!(!plain.text().contains([' ', '\n']), "{plain:?}");
    let pretty = stand.get("/v1/kv/a?pretty=").await;
    assert!(
        pretty.text().starts_with("[\n    {\n        \"LockIndex\": 0,\n") && pretty.text().ends_with("]\n")
    );
}

#[tokio::test]
async fn strings_escaped_like_go() {
    let stand = Stand::new();
    stand.put("/v1/kv/%3Ca%26b%3E", "x").await;
    assert_eq!(stand.get("/v1/kv/?keys").await.text(), r#"["\u003ca\u0026b\u003e"]"#);
}

#[tokio::test]
async fn unavailability_returns_retryable_500() {
    let stand = Stand::new();
    stand.break_with(Unavailable::NotLeader { leader: None });
    for path in ["/v1/kv/a", "/v1/session/list", "/v1/catalog/nodes"] {
        stand.get(path).await.is(500, "No cluster leader");
    }
    stand.put("/v1/kv/a?acquire=x", "").await.is(500, "No cluster leader");
    assert_eq!(stand.get("/v1/kv/a").await.header("x-consul-index"), None);
    let failed = stand.get("/v1/session/list").await;
    assert_eq!((failed.index(), failed.header("x-consul-knownleader")), (1, Some("false")));
    let failed = stand.get("/v1/health/state/any?stale").await;
    assert_eq!(failed.header("x-consul-effective-consistency"), Some("stale"));
    stand.get("/v1/status/leader").await.is(200, "\"\"");
    stand.break_with(Unavailable::Disk("no space left".into()));
    stand.put("/v1/kv/a", "").await.is(500, "the server cannot write to its disk: no space left");
}

#[tokio::test]
async fn stale_read_reports_last_contact() {
    let stand = Stand::new();
    stand.put("/v1/kv/a", "x").await;
    let contact = Some(Duration::from_micros(1_234_567));
    *stand.quorum.status.lock().unwrap() = Status { last_contact: contact, ..Status::default() };
    for path in ["/v1/kv/a?stale", "/v1/session/list?stale", "/v1/catalog/nodes?stale"] {
        let stale = stand.get(path).await;
        assert_eq!(stale.status, 200);
        assert_eq!(stale.header("x-consul-knownleader"), Some("false"));
        assert_eq!(stale.header("x-consul-lastcontact"), Some("1234"), "in milliseconds");
    }
}
