//! Backups and their restore.

use super::Stand;
use crate::http::archive;
use bytes::Bytes;

async fn filled() -> Stand {
    let stand = Stand::new();
    for key in 0..20 {
        stand.put(&format!("/v1/kv/key/{key}"), "value").await;
    }
    stand
}

#[tokio::test]
async fn backup_restore_round_trip() {
    let stand = filled().await;
    let id = stand.session("").await;
    stand.put(&format!("/v1/kv/lock?acquire={id}"), "x").await;
    let saved = stand.get("/v1/snapshot").await;
    assert_eq!((saved.status.as_u16(), saved.header("content-type")), (200, Some("application/x-gzip")));
    assert!(saved.index() > 1);
    let meta = archive::verify(&saved.body[..]).unwrap();
    assert_eq!((meta.cluster_id.as_str(), meta.index), ("cluster-one", saved.index()));
    assert!(meta.parts > 1, "{meta:?}");

    stand.call("DELETE", "/v1/kv/?recurse", "").await.is(200, "true");
    stand.put("/v1/kv/later", "x").await;
    stand.call("PUT", "/v1/snapshot", saved.body).await.is(200, "");
    let keys = stand.get("/v1/kv/?keys").await.json();
    assert_eq!(keys.as_array().map(Vec::len), Some(21));
    assert_eq!(stand.get("/v1/kv/later").await.status, 404);
    assert_eq!(stand.get("/v1/kv/lock").await.json()[0]["Session"], serde_json::json!(id));
}

#[tokio::test]
async fn invalid_backup_changes_nothing() {
    let stand = filled().await;
    let saved = stand.get("/v1/snapshot").await.body;
    let before = stand.quorum.state.lock().unwrap().1;
    let mut damaged = saved.to_vec();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    for (body, reason) in [
        (Bytes::from(damaged), "damaged"),
        (saved.slice(..saved.len() - 9), "damaged"),
        (Bytes::from_static(b"garbage"), "this is no backup of Lockmesh"),
        (Bytes::new(), "this is no backup of Lockmesh"),
    ] {
        let refused = stand.call("PUT", "/v1/snapshot", body).await;
        assert!(refused.status == 500 && refused.text().contains(reason), "{refused:?}");
    }
    stand.call("PUT", "/v1/snapshot?stale", saved).await.is(500, "stale not allowed for restore");
    assert_eq!(stand.quorum.state.lock().unwrap().1, before, "not even a step was proposed");
}

#[tokio::test]
async fn oversized_backup_rejected() {
    let limits = crate::http::HttpLimits { max_snapshot_size: 16, ..Default::default() };
    let stand = Stand::with_limits(limits);
    assert_eq!(stand.put("/v1/snapshot", "more than sixteen bytes").await.status, 413);
}
