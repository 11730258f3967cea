//! The agent's own checks by the API, and their synchronization with the catalog. Time only
//! advances during sleeps.

use super::{Stand, identity};
use crate::registry::Registry;
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
async fn an_application_that_falls_silent_is_critical() {
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
async fn what_the_catalog_missed_it_is_told_again() {
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
async fn the_next_life_takes_up_what_the_last_one_left() {
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

#[tokio::test(start_paused = true)]
async fn a_long_output_is_truncated() {
    let stand = Stand::new();
    stand.put("/v1/agent/check/register", APP).await.is(200, "");
    let long = json!({"Status": "warning", "Output": "é".repeat(4_000)}).to_string();
    stand.put("/v1/agent/check/update/app", &long).await.is(200, "");
    let output = known(&stand).await["Output"].as_str().unwrap().to_owned();
    assert!(output.ends_with(" ... (captured 4096 of 8000 bytes)"), "{output}");
}
