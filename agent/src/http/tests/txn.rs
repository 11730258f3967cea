//! Transactions.

use super::Stand;
use crate::http::HttpLimits;
use serde_json::json;

#[tokio::test]
async fn writes_are_all_or_none() {
    let stand = Stand::new();
    let body = r#"[{"KV":{"Verb":"set","Key":"a","Value":"dGVzdA=="}},{"KV":{"Verb":"get","Key":"a"}}]"#;
    let done = stand.put("/v1/txn?stale&consistent", body).await;
    assert_eq!(done.status, 200, "a write has no consistency: {done:?}");
    assert_eq!(done.header("x-consul-knownleader"), None);
    let results = done.json();
    assert_eq!(results["Errors"], json!(null));
    assert_eq!(
        (&results["Results"][0]["KV"]["Value"], &results["Results"][1]["KV"]["Value"]),
        (&json!(null), &json!("dGVzdA=="))
    );

    let body = r#"[{"KV":{"Verb":"delete","Key":"a"}},{"KV":{"Verb":"get","Key":"none"}},{"KV":{"Verb":"cas","Key":"b","Index":5}}]"#;
    stand.put("/v1/txn", body).await.is(
        409,
        r#"{"Results":null,"Errors":[{"OpIndex":1,"What":"key \"none\" doesn't exist"},{"OpIndex":2,"What":"failed to set key \"b\", index is stale"}]}"#,
    );
    assert_eq!(stand.get("/v1/kv/a").await.status, 200, "nothing was done");
}

#[tokio::test]
async fn without_writes_acts_as_read() {
    let stand = Stand::new();
    stand.put("/v1/kv/a", "x").await;
    let read = stand.put("/v1/txn?stale", r#"[{"KV":{"Verb":"get","Key":"a"}},{},null]"#).await;
    assert_eq!(read.header("x-consul-knownleader"), Some("true"));
    assert_eq!(read.header("x-consul-index"), None);
    let answer = read.json();
    assert_eq!(answer["Results"].as_array().map(Vec::len), Some(1));
    for field in ["Index", "LastContact", "KnownLeader", "ConsistencyLevel", "NotModified", "Backend"] {
        assert!(answer.get(field).is_some(), "{field}: {answer}");
    }
    assert_eq!(answer["ResultsFilteredByACLs"], json!(false));
    stand
        .put("/v1/txn?stale&consistent", "[]")
        .await
        .is(400, "Cannot specify ?stale with ?consistent, conflicting semantics.");
    let failed = stand.put("/v1/txn", r#"[{"KV":{"Verb":"check-not-exists","Key":"a"}}]"#).await;
    failed.failed(409, "refused");
    let answer = failed.json();
    assert_eq!(
        (&answer["Results"], &answer["Errors"]),
        (&json!(null), &json!([{"OpIndex": 0, "What": "key \"a\" exists"}]))
    );
    assert_eq!((&answer["KnownLeader"], &answer["LastContact"]), (&json!(true), &json!(0)));
    let unknown = stand.put("/v1/txn", r#"[{"KV":{"Verb":"paint","Key":"a"}}]"#).await;
    assert_eq!((unknown.status.as_u16(), unknown.header("x-consul-knownleader")), (409, Some("true")));
    assert_eq!(unknown.json()["Errors"][0]["What"], "unknown KV operation: paint");
}

#[tokio::test]
async fn oversized_requests_report_limits() {
    let limits = HttpLimits { kv_max_value_size: 8, txn_max_req_len: 200, ..HttpLimits::default() };
    let stand = Stand::with_limits(limits);
    let many = |count: usize| format!("[{}]", vec!["{}"; count].join(","));
    let stand_large = Stand::new();
    assert_eq!(stand_large.put("/v1/txn", &many(128)).await.status, 200);
    stand_large
        .put("/v1/txn", &many(129))
        .await
        .is(413, "Transaction contains too many operations (129 > 128)");
    let body = r#"[{"KV":{"Verb":"set","Key":"k","Value":"MTIzNDU2Nzg5"}}]"#;
    stand.put("/v1/txn", body).await.is(413, "Value for key \"k\" is too large (9 > 8 bytes)");
    let long = format!("[{}]", " ".repeat(250));
    let text = "Request body(252 bytes) too large, max size: 200 bytes. \
                See https://developer.hashicorp.com/docs/agent/config/config-files#txn_max_req_len.";
    stand.put("/v1/txn", &long).await.is(413, text);
}

#[tokio::test]
async fn bad_bodies_are_refused() {
    let stand = Stand::new();
    stand.put("/v1/txn", "").await.is(400, "Failed to parse body: EOF");
    for body in [r#"[{"KV":{"Value":"!"}}]"#, r#"[{"KV":{"Nonsense":1}}]"#, "{}", "["] {
        let refused = stand.put("/v1/txn", body).await;
        assert!(refused.status == 400 && refused.text().starts_with("Failed to parse body: "), "{refused:?}");
    }
}

#[tokio::test]
async fn invalid_service_fields_rejected_everywhere() {
    let stand = Stand::new();
    let service = |more: &str| format!(r#"{{"ID":"s","Service":"web",{more}}}"#);
    let meta = "Invalid Service Meta for node n and serviceID s: Couldn't load metadata pair ('";
    for (more, prefix, text) in [
        (r#""Meta":{"":"v"}"#, "failed inserting service: ", format!("{meta}', 'v'): Key cannot be blank")),
        (
            r#""Meta":{"consul-a":"v"}"#,
            "failed inserting service: ",
            format!("{meta}consul-a', 'v'): Key prefix 'consul-' is reserved for internal use"),
        ),
        (r#""Address":"0.0.0.0""#, "", "Invalid service address".into()),
        (r#""Address":"[::]""#, "", "Invalid service address".into()),
    ] {
        let whole = format!(r#"{{"Node":"n","Address":"10.0.0.1","Service":{}}}"#, service(more));
        let refused = stand.put("/v1/catalog/register", &whole).await;
        refused.failed(500, "refused");
        assert_eq!(refused.text(), format!("{prefix}{text}"));
        let set =
            |verb| format!(r#"{{"Service":{{"Verb":"{verb}","Node":"n","Service":{}}}}}"#, service(more));
        let body = format!(r#"[{{"KV":{{"Verb":"set","Key":"a"}}}},{},{}]"#, set("set"), set("get"));
        let refused = stand.put("/v1/txn", &body).await;
        refused.failed(409, "refused");
        assert_eq!(refused.json()["Errors"], json!([{"OpIndex": 1, "What": text}]));
    }
    stand.get("/v1/catalog/node/n").await.is(200, "null");
    assert_eq!(stand.get("/v1/kv/a").await.status, 404);
}

#[tokio::test]
async fn invalid_catalog_weights_become_one() {
    let stand = Stand::new();
    for (weights, expected) in [("0,\"Warning\":0", 1), ("-1", 1), ("70000", 1), ("7,\"Warning\":7", 7)] {
        let body = format!(
            r#"{{"Node":"n","Address":"10.0.0.1","Service":{{"Service":"web","Weights":{{"Passing":{weights}}}}}}}"#
        );
        stand.put("/v1/catalog/register", &body).await.is(200, "true");
        let found = stand.get("/v1/catalog/service/web").await.json();
        assert_eq!(
            found[0]["ServiceWeights"],
            json!({"Passing": expected, "Warning": expected}),
            "{weights}"
        );
    }
}

#[tokio::test]
async fn written_node_gets_local_datacenter() {
    let stand = Stand::new();
    for verb in ["set", "cas"] {
        let node =
            format!(r#"[{{"Node":{{"Verb":"{verb}","Node":{{"Node":"{verb}","Address":"10.0.0.1"}}}}}}]"#);
        let written = stand.put("/v1/txn", &node).await.json();
        assert_eq!(written["Results"][0]["Node"]["Datacenter"], "dc1", "{verb}");
    }
    let found = stand.get("/v1/catalog/nodes?filter=Datacenter==dc1").await.json();
    assert_eq!(found.as_array().map(Vec::len), Some(3));
}
