//! Lists that are too long for one answer, and are sent in parts.

use super::{LOCAL, Stand};
use crate::http::body::Body;
use crate::http::router::respond;
use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt;
use serde_json::json;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc;

/// The keys of the tests, and a session.
async fn stand() -> Stand {
    let stand = Stand::new();
    for key in ["a/1", "a/2", "a/3", "a/4", "b/1"] {
        stand.put(&format!("/v1/kv/{key}"), "value").await;
    }
    for name in ["one", "two", "three"] {
        stand.session(&format!(r#"{{"Name":"{name}"}}"#)).await;
    }
    stand
}

impl Stand {
    /// Registers nodes with services and checks.
    async fn with_catalog(self) -> Self {
        for (node, rack) in [("n1", "a"), ("n2", "b"), ("n3", "a")] {
            for (service, id) in [("web", "w1"), ("web", "w2"), ("db", "d1"), ("Web", "w3")] {
                let check = json!({"CheckID": format!("up-{id}"), "ServiceID": id, "Status": "passing"});
                let service = json!({"ID": id, "Service": service, "Tags": ["all", rack, id]});
                self.enter_row(json!({"Node": node, "NodeMeta": {"rack": rack}, "Address": "10.0.0.1",
                    "Service": service, "Check": check}))
                    .await;
            }
            let proxy = json!({"Kind": "connect-proxy", "ID": "p", "Service": "web-sidecar-proxy",
                "Proxy": {"DestinationServiceName": "web"}});
            self.enter_row(json!({"Node": node, "Address": "10.0.0.1", "Service": proxy})).await;
            let coordinate = json!({"Node": node, "Coord": {"Vec": [0, 0, 0, 0, 0, 0, 0, 1]}});
            self.put("/v1/coordinate/update", &coordinate.to_string()).await.is(200, "");
        }
        let bad = json!({"CheckID": "up-w1", "ServiceID": "w1", "Status": "critical", "Output": "refused"});
        self.enter_row(json!({"Node": "n2", "Address": "10.0.0.1", "Check": bad})).await;
        self
    }

    async fn enter_row(&self, registration: serde_json::Value) {
        self.put("/v1/catalog/register", &registration.to_string()).await.is(200, "true");
    }
}

fn answer_rows_at_once(stand: &Stand, most: usize) {
    *stand.quorum.rows_at_once.lock().unwrap() = Some(most);
}

/// Waits until the agent has ended its views.
async fn views_have_ended(stand: &Stand) {
    let mut views = stand.quorum.views.subscribe();
    views.wait_for(|views| views.is_empty()).await.unwrap();
}

#[tokio::test]
async fn multipart_list_matches_single_part() {
    let stand = stand().await.with_catalog().await;
    let paths = [
        "/v1/catalog/nodes",
        "/v1/catalog/nodes?node-meta=rack:a&pretty",
        "/v1/catalog/nodes?filter=Meta.rack==b",
        "/v1/catalog/nodes?filter=Meta.rack==none&pretty",
        "/v1/catalog/nodes?peer=other",
        "/v1/catalog/services",
        "/v1/catalog/services?pretty",
        "/v1/catalog/services?peer=other&pretty",
        "/v1/catalog/services?cached&filter=ServiceID==w3",
        "/v1/catalog/service/web",
        "/v1/catalog/service/web?tag=b&pretty",
        "/v1/catalog/connect/web",
        "/v1/catalog/node/n2",
        "/v1/catalog/node/n2?pretty",
        "/v1/catalog/node/n2?filter=Service==db&pretty",
        "/v1/catalog/node/n2?filter=Service==none&pretty",
        "/v1/catalog/node-services/n2",
        "/v1/catalog/node-services/n2?pretty",
        "/v1/catalog/node-services/n2?filter=Service==none",
        "/v1/health/service/web?cached",
        "/v1/health/service/web?passing&pretty",
        "/v1/health/service/web?filter=Service.ID!=w1&index=1&wait=1s",
        "/v1/health/connect/web?pretty",
        "/v1/health/ingress/web",
        "/v1/health/state/any",
        "/v1/health/state/passing?pretty",
        "/v1/health/state/nonsense",
        "/v1/health/checks/web?filter=Status==critical",
        "/v1/health/node/n2?pretty",
        "/v1/coordinate/nodes",
        "/v1/coordinate/nodes?pretty&index=1&wait=1s",
        "/v1/coordinate/nodes?segment=x&pretty",
        "/v1/coordinate/node/N2",
        "/v1/coordinate/node/n3?segment=x",
        "/v1/coordinate/node/nosuch",
        "/v1/agent/members",
        "/v1/kv/a/?recurse",
        "/v1/kv/?recurse&pretty",
        "/v1/kv/?keys",
        "/v1/kv/a/?keys&pretty",
        "/v1/kv/?keys&separator=/",
        "/v1/session/list",
        "/v1/session/list?pretty",
        "/v1/session/node/node-one",
        "/v1/kv/a/?recurse&index=1&wait=1s",
    ];
    for path in paths {
        let short = stand.get(path).await;
        answer_rows_at_once(&stand, 1);
        let long = stand.get(path).await;
        views_have_ended(&stand).await;
        *stand.quorum.rows_at_once.lock().unwrap() = None;
        assert_eq!((short.status, short.text()), (long.status, long.text()), "{path}");
        let index = "x-consul-index";
        assert_eq!(short.header(index), long.header(index), "{path}");
        for header in [
            "content-type",
            "x-consul-knownleader",
            "x-consul-lastcontact",
            "x-consul-effective-consistency",
            "x-cache",
        ] {
            assert_eq!(short.header(header), long.header(header), "{path}");
        }
    }
}

#[tokio::test]
async fn empty_list_keeps_usual_reply() {
    let stand = stand().await;
    answer_rows_at_once(&stand, 0);
    assert_eq!(stand.get("/v1/kv/none/?recurse").await.status, 404);
    assert_eq!(stand.get("/v1/lockmesh/locks").await.text(), "[]");
}

#[tokio::test]
async fn large_answer_rendered_incrementally() {
    let stand = Stand::new();
    let value = "x".repeat(1000);
    for number in 0..600 {
        stand.put(&format!("/v1/kv/{number:03}"), &value).await;
    }
    let request = Request::builder().uri("/v1/kv/?recurse").body(Body::empty()).unwrap();
    let mut body = respond(&stand.api, LOCAL, request).await.into_body();
    let (mut json, mut frames) = (Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        json.extend(frame.unwrap().into_data().unwrap());
        frames += 1;
    }
    assert_eq!(frames, 4, "three parts of 256 KiB, and the bracket");
    let entries: Vec<serde_json::Value> = serde_json::from_slice(&json).unwrap();
    let keys: Vec<&str> = entries.iter().map(|entry| entry["Key"].as_str().unwrap()).collect();
    assert_eq!(keys, (0..600).map(|number| format!("{number:03}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn lost_view_aborts_list() {
    let stand = stand().await;
    answer_rows_at_once(&stand, 1);
    let request = Request::builder().uri("/v1/kv/?recurse").body(Body::empty()).unwrap();
    let response = respond(&stand.api, LOCAL, request).await;
    assert_eq!(response.status(), 200);
    let mut body = response.into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(first.starts_with(b"[{"), "{first:?}");
    stand.quorum.views.send_modify(|views| views.clear());
    // At most one more part was read already.
    let mut rest = Vec::new();
    let error = loop {
        match body.frame().await.expect("the array is not closed") {
            Ok(frame) => rest.extend(frame.into_data().unwrap()),
            Err(error) => break error,
        }
    };
    assert!(!rest.ends_with(b"]"), "no client may take it for the whole");
    assert!(error.to_string().contains("the answer is incomplete"), "{error}");
}

#[tokio::test]
async fn missing_end_aborts_list_body() {
    let (sender, parts) = mpsc::channel(2);
    let mut body = Body::parts(parts);
    sender.send(Ok(Bytes::from_static(b"[1"))).await.unwrap();
    drop(sender);
    body.frame().await.unwrap().unwrap();
    assert!(body.frame().await.expect("it does not end").is_err());
}

#[tokio::test]
async fn disconnect_frees_view() {
    let stand = stand().await;
    answer_rows_at_once(&stand, 1);
    let request = Request::builder().uri("/v1/kv/?recurse").body(Body::empty()).unwrap();
    let mut body = respond(&stand.api, LOCAL, request).await.into_body();
    body.frame().await.unwrap().unwrap();
    assert_eq!(stand.quorum.views.borrow().len(), 1);
    drop(body);
    views_have_ended(&stand).await;
}

#[tokio::test]
async fn parts_read_on_client_demand() {
    let stand = stand().await;
    answer_rows_at_once(&stand, 1);
    let request = Request::builder().uri("/v1/kv/?recurse").body(Body::empty()).unwrap();
    let mut body = respond(&stand.api, LOCAL, request).await.into_body();
    let read = || stand.quorum.parts_read.load(Ordering::Relaxed);
    for taken in 0..4 {
        // It reads what is there now.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(read(), taken + 1, "one part waits");
        body.frame().await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn costly_filter_fails_before_first_row() {
    let stand = stand().await;
    let long = "x".repeat(400_000);
    for (id, output) in [("c1", &long), ("c2", &long), ("c0", &"a".to_owned())] {
        let check = json!({"CheckID": id, "Status": "passing", "Output": output});
        stand.enter_row(json!({"Node": "n1", "Address": "10.0.0.1", "Check": check})).await;
    }
    answer_rows_at_once(&stand, 1);
    let read = async |filter: &str| {
        let path = format!("/v1/health/node/n1?filter={filter}");
        respond(&stand.api, LOCAL, Request::builder().uri(path).body(Body::empty()).unwrap()).await
    };
    let costly = "Output+matches+`(x%2By){90}`";
    let failed = read(costly).await;
    assert_eq!(failed.status(), 500);
    let reason = failed.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&reason).contains("too many steps"), "{reason:?}");

    let begun = read(&format!("Output+==+a+or+{costly}")).await;
    assert_eq!(begun.status(), 200);
    let body = begun.into_body().collect().await;
    assert!(body.expect_err("it is broken off").to_string().contains("too many steps"));
}
