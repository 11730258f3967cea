//! Lists that are too long for one answer, and are sent in parts.

use super::{LOCAL, Stand};
use crate::http::body::Body;
use crate::http::router::respond;
use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt;
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

fn answer_rows_at_once(stand: &Stand, most: usize) {
    *stand.quorum.rows_at_once.lock().unwrap() = Some(most);
}

/// Waits until the agent has ended its views.
async fn views_have_ended(stand: &Stand) {
    let mut views = stand.quorum.views.subscribe();
    views.wait_for(|views| views.is_empty()).await.unwrap();
}

#[tokio::test]
async fn a_long_list_is_byte_for_byte_the_same_as_a_short_one() {
    let stand = stand().await;
    let paths = [
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
        assert_eq!(short.index(), long.index(), "{path}");
        for header in ["content-type", "x-consul-knownleader", "x-consul-lastcontact"] {
            assert_eq!(short.header(header), long.header(header), "{path}");
        }
    }
}

#[tokio::test]
async fn a_list_without_rows_has_its_usual_answer() {
    let stand = stand().await;
    answer_rows_at_once(&stand, 0);
    assert_eq!(stand.get("/v1/kv/none/?recurse").await.status, 404);
    assert_eq!(stand.get("/v1/lockmesh/locks").await.text(), "[]");
}

#[tokio::test]
async fn a_list_whose_view_ended_is_broken_off() {
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
async fn a_list_without_its_end_is_broken_off() {
    let (sender, parts) = mpsc::channel(2);
    let mut body = Body::parts(parts);
    sender.send(Ok(Bytes::from_static(b"[1"))).await.unwrap();
    drop(sender);
    body.frame().await.unwrap().unwrap();
    assert!(body.frame().await.expect("it does not end").is_err());
}

#[tokio::test]
async fn a_client_that_is_gone_frees_its_view() {
    let stand = stand().await;
    answer_rows_at_once(&stand, 1);
    let request = Request::builder().uri("/v1/kv/?recurse").body(Body::empty()).unwrap();
    let mut body = respond(&stand.api, LOCAL, request).await.into_body();
    body.frame().await.unwrap().unwrap();
    assert_eq!(stand.quorum.views.borrow().len(), 1);
    drop(body);
    views_have_ended(&stand).await;
}
