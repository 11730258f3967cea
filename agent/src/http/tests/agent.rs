//! The agent's description of itself, and its own checks.

use super::{LOCAL, NODE_ID, Stand, own_node};
use crate::http::HttpLimits;
use crate::http::router::respond;
use crate::monitor::LOG;
use http_body_util::BodyExt;
use lockmesh_protocol::command::{AgentRegistration, Command};
use lockmesh_protocol::rpc::Unavailable;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

#[tokio::test]
async fn self_reports_identity() {
    let stand = Stand::new();
    let own = stand.get("/v1/agent/self").await.json();
    assert_eq!((&own["Config"]["NodeName"], &own["Config"]["NodeID"]), (&json!("node-one"), &json!(NODE_ID)));
    assert_eq!((&own["Config"]["Version"], &own["Config"]["Server"]), (&json!("1.2.3"), &json!(true)));
    for part in ["Coord", "Member", "Stats", "Meta", "xDS"] {
        assert!(own[part].is_object(), "{part}: {own}");
    }
    let meta = json!({"rack": "a", "consul-network-segment": "", "consul-version": "1.2.3"});
    assert_eq!(own["Meta"], meta);
    stand.api.identity.meta.replace(&[("zone".into(), "z".into())].into());
    let meta = json!({"zone": "z", "consul-network-segment": "", "consul-version": "1.2.3"});
    assert_eq!(stand.get("/v1/agent/self").await.json()["Meta"], meta);
    let members = stand.get("/v1/agent/members").await.json();
    assert_eq!(members.as_array().map(Vec::len), Some(1));
    assert_eq!((&members[0]["Name"], &members[0]["Status"]), (&json!("node-one"), &json!(1)));
    assert_eq!(
        (&members[0]["Tags"]["role"], &members[0]["Tags"]["port"]),
        (&json!("consul"), &json!("8300"))
    );
    assert_eq!(members[0]["Port"], 8300);
}

#[tokio::test]
async fn self_member_matches_members_list() {
    let mut stand = Stand::new();
    let rows = async |stand: &Stand| {
        let own = stand.get("/v1/agent/self").await.json();
        let members = stand.get("/v1/agent/members").await.json();
        let mut members = members.as_array().unwrap().iter();
        let row = members.find(|member| member["Name"] == "node-one").cloned().unwrap();
        (own["Member"].clone(), row, own["DebugConfig"]["SerfAdvertiseAddrLAN"].clone())
    };
    let (own, row, address) = rows(&stand).await;
    assert_eq!((&own, &own["State"]), (&row, &json!("alive")));
    assert_eq!((&own["SinceMs"], &address), (&json!(1_000), &json!("tcp://127.0.0.1:8300")));
    // Registered anew, at another port and in the mesh; the row that was read before is not kept.
    stand.fails("node-one");
    let registration = AgentRegistration { port: 8301, ..AgentRegistration::of(own_node()) };
    stand.quorum.apply(Command::RegisterAgent(registration));
    let (own, row, address) = rows(&stand).await;
    assert_eq!((&own, &own["Port"], &address), (&row, &json!(8301), &json!("tcp://127.0.0.1:8301")));
    // Without servers it is as it was read, or as the agent knows itself.
    stand.break_with(Unavailable::NotLeader { leader: None });
    assert_eq!(rows(&stand).await.0, own);
    *Arc::get_mut(&mut stand.api).expect("no other has it").own.agent.get_mut().unwrap() = None;
    let (own, row, _) = rows(&stand).await;
    assert_eq!((&own, own.get("State")), (&row, None));
}

#[tokio::test]
async fn cached_read_reports_miss() {
    let stand = Stand::new();
    for path in
        ["/v1/catalog/services", "/v1/catalog/service/a", "/v1/health/service/a", "/v1/catalog/datacenters"]
    {
        assert_eq!(stand.get(&format!("{path}?cached")).await.header("x-cache"), Some("MISS"), "{path}");
        assert_eq!(stand.get(path).await.header("x-cache"), None, "{path}");
    }
    assert_eq!(stand.get("/v1/catalog/nodes?cached").await.header("x-cache"), None);
}

#[tokio::test]
async fn unknown_segment_fails_client_wan_null() {
    let mut stand = Stand::new();
    stand.get("/v1/agent/members?segment=zz").await.is(500, "segment \"zz\" not found");
    for query in ["segment=", "segment=_all", "segment=zz&wan=1"] {
        assert_eq!(stand.get(&format!("/v1/agent/members?{query}")).await.status, 200, "{query}");
    }
    Arc::get_mut(&mut stand.api).expect("no other has it").identity.server_rpc = None;
    stand.get("/v1/agent/members?wan=1").await.is(200, "null");
}

#[tokio::test]
async fn wan_lists_servers_with_datacenter() {
    let stand = Stand::new();
    stand.registers("far", "f0000000-0000-0000-0000-000000000003");
    let names = |reply: &crate::http::tests::Reply| {
        let members = reply.json();
        members.as_array().unwrap().iter().map(|member| member["Name"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&stand.get("/v1/agent/members").await), [json!("far"), json!("node-one")]);
    assert_eq!(names(&stand.get("/v1/agent/members?wan=1").await), [json!("node-one.dc1")]);
    assert_eq!(names(&stand.get("/v1/agent/members?wan=").await).len(), 2);
}

/// Contract: 129.
#[tokio::test]
async fn metrics_host_version_match_consul() {
    let stand = Stand::new();
    stand.get("/v1/kv/a").await;
    let metrics = stand.get("/v1/agent/metrics").await.json();
    assert!(metrics["Timestamp"].as_str().unwrap().ends_with("+0000 UTC"));
    for kind in ["Gauges", "Points", "Counters", "Samples"] {
        let values = metrics[kind].as_array().unwrap_or_else(|| panic!("{kind}: {metrics}"));
        assert!(values.iter().all(|value| value["Labels"].is_object()), "{kind}: {metrics}");
    }
    let gauges = metrics["Gauges"].as_array().unwrap();
    assert!(gauges.iter().any(|gauge| gauge["Name"] == "consul.runtime.alloc_bytes"));
    let text = stand.get("/v1/agent/metrics?format=prometheus").await;
    assert!(text.header("content-type").unwrap().starts_with("text/plain"));
    assert!(text.text().contains("lockmesh_http_requests_total{endpoint=\"/v1/kv/\",status=\"404\"}"));
    assert_eq!(stand.get("/v1/agent/metrics?format=xml").await.status, 415);
    let host = stand.get("/v1/agent/host").await.json();
    assert!(host["CollectionTime"].as_u64().unwrap() > 0 && host["CPU"].is_array(), "{host}");
    assert!(["Memory", "Host", "Disk"].iter().all(|part| host[part].is_object()), "{host}");
    let version = stand.get("/v1/agent/version").await.json();
    assert_eq!(
        (&version["HumanVersion"], &version["BuildDate"]),
        (&json!("1.2.3"), &json!("0001-01-01T00:00:00Z"))
    );
    assert!(version["SHA"].is_string() && version["FIPS"].is_string());
}

/// Copies all events to the monitors.
struct Copies;

impl tracing::Subscriber for Copies {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        LOG.publish(event);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// Contract: 129.
#[tokio::test]
async fn monitor_streams_until_disconnect_or_shutdown() {
    let stand = Stand::with_limits(HttpLimits { max_monitors: 1, ..HttpLimits::default() });
    // As for the audit log: threads of other tests have no subscriber.
    let _second = tracing::Dispatch::new(Copies);
    let _guard = tracing::subscriber::set_default(Copies);
    stand
        .get("/v1/agent/monitor?loglevel=loud")
        .await
        .is(400, "Unknown log level: loud; use trace, debug, info, warn or error");
    let open = async |uri: &str| {
        let request = http::Request::get(uri).header("accept-encoding", "gzip");
        respond(&stand.api, LOCAL, request.body("".into()).unwrap()).await
    };
    let registers = async |body: &mut crate::http::Body, expected: &str| {
        stand.put("/v1/agent/service/register", r#"{"Name": "monitored"}"#).await.is(200, "");
        let mut text = String::new();
        while !text.contains(expected) {
            let frame = body.frame().await.expect("more lines").unwrap();
            text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
        }
        stand.put("/v1/agent/service/deregister/monitored", "").await.is(200, "");
    };
    let response = open("/v1/agent/monitor").await;
    assert_eq!((response.status().as_u16(), response.headers().get("content-encoding")), (200, None));
    let mut body = response.into_body();
    registers(&mut body, "Z [INFO]  agent: service registered: service=monitored\n").await;
    let refused = stand.get("/v1/agent/monitor").await;
    refused.failed(429, "not-done");
    assert!(refused.text().contains("`http.max_monitors`"), "{refused:?}");
    drop(body);
    let mut body = loop {
        let response = open("/v1/agent/monitor?loglevel=DEBUG&logjson").await;
        if response.status() == 200 {
            break response.into_body();
        }
        tokio::task::yield_now().await;
    };
    registers(&mut body, "\"@message\":\"service registered\",\"@module\":\"agent\"").await;
    stand.api.feeds.monitors.stop();
    body.collect().await.expect("an end in order");
}

#[tokio::test(start_paused = true)]
async fn unread_monitor_times_out() {
    let stand = Stand::with_limits(HttpLimits { max_monitors: 1, ..HttpLimits::default() });
    let _second = tracing::Dispatch::new(Copies);
    let _guard = tracing::subscriber::set_default(Copies);
    let open = async || {
        let request = http::Request::get("/v1/agent/monitor").body("".into()).unwrap();
        respond(&stand.api, LOCAL, request).await
    };
    // The first lines wait in the body, the next ones for a place in it.
    let fill = async || {
        for _ in 0..2 {
            stand.put("/v1/agent/service/register", r#"{"Name": "unread"}"#).await.is(200, "");
            stand.put("/v1/agent/service/deregister/unread", "").await.is(200, "");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let unread = open().await;
    fill().await;
    tokio::time::sleep(Duration::from_secs(57)).await;
    assert_eq!(open().await.status(), 429, "58 s after the last lines");
    tokio::time::sleep(Duration::from_secs(3)).await;
    let second = open().await;
    assert_eq!(second.status(), 200, "after 61 s");
    unread.into_body().collect().await.expect("an end in order");
    fill().await;
    assert_eq!(open().await.status(), 429);
    stand.api.feeds.monitors.stop();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(open().await.status(), 200, "its place is free at once");
    drop(second);
}

#[tokio::test]
async fn metrics_liveness_readiness_endpoints() {
    let stand = Stand::new();
    let figures = stand.get("/metrics").await;
    assert!(figures.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    for series in [
        // Counts of the whole process: other tests add to them.
        "lockmesh_http_refusals_total{reason=\"queue_full\"} ",
        "lockmesh_http_request_seconds_count{group=\"txn\"} ",
        "lockmesh_upstream_retries_total 0",
        "lockmesh_upstream_registered 1",
    ] {
        assert!(figures.text().contains(series), "{series}\n{}", figures.text());
    }
    stand.get("/health/live").await.is(200, "live\n");
    stand.get("/health/ready").await.is(200, "ready\n");
    assert_eq!(stand.call("HEAD", "/health/ready", "").await.status, 200);
    assert_eq!(stand.call("POST", "/health/ready", "").await.status, 405);
    stand.quorum.status.lock().unwrap().leader = None;
    stand.get("/health/ready").await.is(503, "the nearest server knows no leader\n");
    stand.break_with(Unavailable::NotLeader { leader: None });
    let refused = stand.get("/health/ready").await;
    assert!(refused.status == 503 && refused.text().starts_with("no server answers: "), "{refused:?}");
    stand.get("/health/live").await.is(200, "live\n");
}

#[tokio::test]
async fn ttl_check_reports_reach_catalog() {
    let stand = Stand::new();
    stand.put("/v1/agent/check/register", r#"{"Name":"app","TTL":"1h","Notes":"n"}"#).await.is(200, "");
    let local = stand.get("/v1/agent/checks").await.json();
    assert_eq!((&local["app"]["Status"], &local["app"]["Type"]), (&json!("critical"), &json!("ttl")));
    assert_eq!((&local["app"]["Interval"], &local["app"]["Definition"]), (&json!("0s"), &json!({})));
    assert_eq!(local.get("serfHealth"), None);
    for (verb, status) in [("pass", "passing"), ("warn", "warning"), ("fail", "critical")] {
        stand.put(&format!("/v1/agent/check/{verb}/app?note=said%20{verb}"), "").await.is(200, "");
        let known = stand.get("/v1/health/node/node-one").await.json();
        let known =
            known.as_array().unwrap().iter().find(|check| check["CheckID"] == "app").cloned().unwrap();
        assert_eq!((&known["Status"], &known["Output"]), (&json!(status), &json!(format!("said {verb}"))));
        assert_eq!((&known["Notes"], &known["Definition"]), (&json!("n"), &json!({})));
    }
    stand.put("/v1/agent/check/update/app", r#"{"Status":"passing","Output":"o"}"#).await.is(200, "");
    stand
        .put("/v1/agent/check/update/app", r#"{"Status":"unwell"}"#)
        .await
        .is(400, "Invalid check status: 'unwell'");
    stand.put("/v1/agent/check/deregister/app", "").await.is(200, "");
    stand.get("/v1/agent/checks").await.is(200, "{}");
    let left = stand.get("/v1/health/node/node-one").await.json();
    assert_eq!(left.as_array().map(Vec::len), Some(1), "only the node's own: {left}");
}

#[tokio::test]
async fn unknown_check_takes_no_report() {
    let stand = Stand::new();
    let text = "CheckID \"none\" does not have associated TTL";
    for verb in ["pass", "warn", "fail"] {
        stand.put(&format!("/v1/agent/check/{verb}/none"), "").await.is(500, text);
    }
    stand.put("/v1/agent/check/update/none", r#"{"Status":"passing"}"#).await.is(500, text);
    stand.put("/v1/agent/check/deregister/none", "").await.is(200, "");
    stand.put("/v1/agent/check/register", r#"{"TTL":"1s"}"#).await.is(400, "Missing check name");
    let service = r#"{"Name":"a","TTL":"1s","ServiceID":"web"}"#;
    let refused = stand.put("/v1/agent/check/register", service).await;
    assert_eq!(refused.status, 500);
    assert!(
        refused.text().starts_with("ServiceID \"web\" does not exist: register the service"),
        "{refused:?}"
    );
    stand.get("/v1/agent/checks").await.is(200, "{}");
}

#[tokio::test]
async fn critical_check_ends_its_session() {
    let stand = Stand::new();
    stand
        .put("/v1/agent/check/register", r#"{"Name":"app","TTL":"1h","Status":"passing"}"#)
        .await
        .is(200, "");
    let id = stand.session(r#"{"Checks":["app"]}"#).await;
    stand.put("/v1/agent/check/warn/app", "").await.is(200, "");
    assert_eq!(stand.get(&format!("/v1/session/info/{id}")).await.json().as_array().map(Vec::len), Some(1));
    stand.put("/v1/agent/check/fail/app", "").await.is(200, "");
    stand.get(&format!("/v1/session/info/{id}")).await.is(200, "[]");
    stand
        .put("/v1/session/create", r#"{"Checks":["app"]}"#)
        .await
        .is(500, "Check 'app' is in critical state");
}
