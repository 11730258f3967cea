//! Sessions: the fields that creators set, those that are shown, and how sessions end and are
//! renewed.

use super::{HttpLimits, Stand};
use lockmesh_protocol::lease::HealthWindow;
use serde_json::json;

#[tokio::test]
async fn info_shows_all_fields_ordered() {
    let stand = Stand::new();
    let id = stand.session("").await;
    let info = stand.get(&format!("/v1/session/info/{}", id.to_uppercase())).await;
    let index = info.index();
    info.is(
        200,
        &format!(
            "[{{\"ID\":\"{id}\",\"Name\":\"\",\"Node\":\"node-one\",\"LockDelay\":15000000000,\
             \"Behavior\":\"release\",\"TTL\":\"\",\"NodeChecks\":[\"serfHealth\"],\"ServiceChecks\":null,\
             \"CreateIndex\":{index},\"ModifyIndex\":{index}}}]"
        ),
    );
    assert_eq!(id, id.to_lowercase());
    assert_eq!(id.len(), 36);
}

#[tokio::test]
async fn creation_fields_round_trip() {
    let stand = Stand::new();
    let id = stand
        .session(r#"{"name":"n","ttl":"15.0s","behavior":"delete","lockdelay":"0.001s","NodeChecks":[]}"#)
        .await;
    let session = stand.get(&format!("/v1/session/info/{id}")).await.json()[0].clone();
    assert_eq!((&session["Name"], &session["TTL"]), (&json!("n"), &json!("15.0s")));
    assert_eq!((&session["Behavior"], &session["LockDelay"]), (&json!("delete"), &json!(1_000_000)));
    assert_eq!((&session["NodeChecks"], session.get("Checks")), (&json!([]), None));
}

#[tokio::test]
async fn non_default_health_window_shown() {
    let stand = Stand::new();
    for (body, shown) in [
        (r#"{"HealthWindow":"fast"}"#, Some("fast")),
        (r#"{"healthwindow":"safe"}"#, Some("safe")),
        (r#"{"HealthWindow":"default"}"#, None),
        ("{}", None),
    ] {
        let id = stand.session(body).await;
        let session = stand.get(&format!("/v1/session/info/{id}")).await.json()[0].clone();
        assert_eq!(session.get("HealthWindow").and_then(|window| window.as_str()), shown, "{body}");
        // The response contains a window that the client did not set, because its TTL must fit.
        let created = stand.put("/v1/session/create", body).await;
        assert_eq!(created.header("x-lockmesh-health-window"), Some(shown.unwrap_or("default")), "{body}");
    }
    let limits = HttpLimits { default_health_window: HealthWindow::Safe, ..HttpLimits::default() };
    let stand = Stand::with_limits(limits);
    let id = stand.session("").await;
    let session = stand.get(&format!("/v1/session/info/{id}")).await.json()[0].clone();
    assert_eq!(session["HealthWindow"], "safe");
    // A session without a guard is kept for twice its TTL: any window fits.
    let created = stand.put("/v1/session/create", r#"{"TTL":"15s"}"#).await;
    assert!(created.json()["ID"].is_string(), "{created:?}");
    assert_eq!(created.header("x-lockmesh-health-window"), Some("safe"));
}

#[tokio::test]
async fn invalid_creation_rejected() {
    let stand = Stand::new();
    for (body, status, text) in [
        (r#"{"Node":""}"#, 500, "Must provide Node"),
        (r#"{"Behavior":"x"}"#, 500, "Invalid Behavior setting 'x'"),
        (r#"{"HealthWindow":"x"}"#, 500, "Invalid HealthWindow 'x': use fast, default or safe"),
        (r#"{"TTL":"9s"}"#, 500, "Invalid Session TTL '9000000000', must be between [10s=24h0m0s]"),
        (r#"{"TTL":"15"}"#, 500, "Session TTL '15' invalid: time: missing unit in duration \"15\""),
        (r#"{"Node":"nowhere"}"#, 500, "Missing node registration"),
        (r#"{"Checks":["x"]}"#, 500, "Missing check 'x' registration"),
        (r#"{"LockDelay":"abc"}"#, 400, "Request decode failed: time: invalid duration \"abc\""),
        ("{", 400, "Request decode failed: unexpected EOF"),
        (r#"{"Datacenter":"other"}"#, 500, "No path to datacenter"),
    ] {
        stand.put("/v1/session/create", body).await.is(status, text);
    }
    let wrong = stand.put("/v1/session/create", r#"{"TTL":10}"#).await;
    assert!(wrong.status == 400 && wrong.text().starts_with("Request decode failed: json: "), "{wrong:?}");
    stand.get("/v1/session/list").await.is(200, "[]");
}

#[tokio::test]
async fn unknown_or_missing_session_replies() {
    let stand = Stand::new();
    stand.put("/v1/session/destroy/none", "").await.is(200, "true");
    stand.put("/v1/session/renew/none", "").await.is(404, "Session id 'none' not found");
    let info = stand.get("/v1/session/info/none").await;
    info.is(200, "[]");
    assert!(info.index() >= 1);
    stand.get("/v1/session/node/none").await.is(200, "[]");
    for (method, path, text) in [
        ("PUT", "/v1/session/destroy/", "Missing session"),
        ("PUT", "/v1/session/renew/", "Missing session"),
        ("GET", "/v1/session/info/", "Missing session"),
        ("GET", "/v1/session/node/", "Missing node name"),
    ] {
        stand.call(method, path, "").await.is(400, text);
    }
}

#[tokio::test]
async fn renewal_returns_session_without_index() {
    let stand = Stand::new();
    let id = stand.session(r#"{"TTL":"10s"}"#).await;
    let renewed = stand.put(&format!("/v1/session/renew/{id}"), "ignored").await;
    assert_eq!((renewed.status.as_u16(), &renewed.json()[0]["ID"]), (200, &json!(id)));
    assert_eq!(renewed.header("x-consul-index"), None);
    let listed = stand.get("/v1/session/node/NODE-ONE").await.json();
    assert_eq!(listed[0]["ID"], json!(id), "a node in any case");
}
