//! The agent's own checks by the API, and their synchronization with the catalog. Time only
//! advances during sleeps.

use super::{Stand, identity};
use crate::config::Scripts;
use crate::definitions::parse_check_registration;
use crate::registry::Registry;
use lockmesh_agent_core::definitions::NewCheck;
use lockmesh_agent_core::registry::Limits;
use lockmesh_protocol::id::CheckId;
use lockmesh_protocol::record::CheckStatus;
use lockmesh_protocol::rpc::Unavailable;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;

const APP: &str = r#"{"Name":"app","TTL":"10s","Status":"passing"}"#;

/// The check as the catalog has it.
async fn known(stand: &Stand) -> Value {
    let checks = stand.get("/v1/health/node/node-one").await.json();
    checks.as_array().unwrap().iter().find(|check| check["CheckID"] == "app").cloned().unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn unreported_check_expires_until_report() {
    let stand = Stand::new();
    stand.put("/v1/agent/check/register", APP).await.is(200, "");
    sleep(Duration::from_secs(9)).await;
    stand.put("/v1/agent/check/pass/app?note=fine", "").await.is(200, "");
    sleep(Duration::from_secs(9)).await;
    assert_eq!(known(&stand).await["Status"], "passing");
    sleep(Duration::from_secs(2)).await;
    let expired = known(&stand).await;
    assert_eq!(expired["Status"], "critical");
    assert_eq!(expired["Output"], "TTL expired (last output before timeout follows): fine");
    stand.put("/v1/agent/check/pass/app", "").await.is(200, "");
    assert_eq!(known(&stand).await["Status"], "passing", "a report brings it back");
}

#[tokio::test(start_paused = true)]
async fn missed_updates_resynced_to_catalog() {
    let stand = Stand::new();
    stand.put("/v1/agent/check/register", APP).await.is(200, "");
    stand.break_with(Unavailable::NotLeader { leader: None });
    stand.put("/v1/agent/check/warn/app", "").await.is(200, "");
    assert_eq!(stand.get("/v1/agent/checks").await.json()["app"]["Status"], "warning");
    stand.mend();
    sleep(Duration::from_secs(6)).await;
    assert_eq!(known(&stand).await["Status"], "warning");

    let lost = r#"{"Node":"node-one","CheckID":"app"}"#;
    stand.put("/v1/catalog/deregister", lost).await.is(200, "true");
    stand.put("/v1/agent/check/pass/app", "").await;
    stand.put("/v1/catalog/deregister", lost).await.is(200, "true");
    for _ in 0..16 {
        sleep(Duration::from_secs(8)).await;
        stand.put("/v1/agent/check/pass/app", "").await;
    }
    assert_eq!(known(&stand).await["Status"], "passing", "the whole is compared periodically");
}

#[tokio::test(start_paused = true)]
async fn restarted_agent_adopts_catalog_checks() {
    let stand = Stand::new();
    stand.put("/v1/agent/check/register", APP).await.is(200, "");
    let next = Registry::in_memory(stand.api.upstream.clone(), identity(), Limits::default());
    let (_stop, stopping) = watch::channel(false);
    tokio::spawn(next.clone().run(stopping));
    sleep(Duration::from_millis(10)).await;
    let adopted: Vec<_> = next.checks().iter().map(|check| (check.id.clone(), check.status)).collect();
    assert_eq!(adopted, [(CheckId::from("app"), CheckStatus::Passing)]);
    sleep(Duration::from_secs(11)).await;
    assert_eq!(next.checks()[0].status, CheckStatus::Critical, "it received no report");
}

/// Contract: 100.
#[tokio::test(start_paused = true)]
async fn long_output_truncated() {
    let stand = Stand::new();
    stand.put("/v1/agent/check/register", APP).await.is(200, "");
    let long = json!({"Status": "warning", "Output": "é".repeat(4_000)}).to_string();
    stand.put("/v1/agent/check/update/app", &long).await.is(200, "");
    let output = known(&stand).await["Output"].as_str().unwrap().to_owned();
    assert!(output.ends_with(" ... (captured 4096 of 8000 bytes)"), "{output}");
}

/// Contract: 103.
#[tokio::test(start_paused = true)]
async fn output_synced_with_next_status() {
    let stand = Stand::new();
    stand.put("/v1/agent/check/register", APP).await.is(200, "");
    let index = async || stand.get("/v1/health/node/node-one").await.index();
    let before = index().await;
    stand.put("/v1/agent/check/pass/app?note=fine", "").await.is(200, "");
    assert_eq!(stand.get("/v1/agent/checks").await.json()["app"]["Output"], "fine");
    sleep(Duration::from_secs(9)).await;
    assert_eq!((&known(&stand).await["Output"], index().await), (&json!(""), before));
    stand.put("/v1/agent/check/warn/app?note=slow", "").await.is(200, "");
    assert_eq!((&known(&stand).await["Output"], index().await > before), (&json!("slow"), true));
}

/// Contract: 89.
#[tokio::test]
async fn disabled_scripts_drop_stored_check() {
    let (stand, data) = (Stand::new(), tempfile::tempdir().expect("a folder"));
    let open = |scripts: Scripts| {
        let upstream = stand.api.upstream.clone();
        let is_permitted = |check: &NewCheck, source| scripts.permit(check, source);
        Registry::open(upstream, identity(), Limits::default(), data.path(), is_permitted)
            .expect("it is opened")
    };
    let ids =
        |registry: &Registry| registry.checks().iter().map(|check| check.id.to_string()).collect::<Vec<_>>();
    let before = open(Scripts::UnixSocket);
    for definition in [APP, r#"{"Name":"script","Args":["true"],"Interval":"1h"}"#] {
        let check = parse_check_registration(definition.as_bytes()).expect("it is valid");
        before.register_check(check).await.expect("it is stored");
    }
    let after = open(Scripts::Disabled);
    assert_eq!(ids(&after), ["app"]);
    after.maintain(None).await.expect("the check is removed");
    assert_eq!(ids(&open(Scripts::UnixSocket)), ["app"], "its file is gone");
}
