//! The formation of a quorum, and its survival of a server's loss.

use crate::cluster::{Cluster, members, until};
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::query::Consistency;
use lockmesh_protocol::rpc::{Request, Response, Status, Unavailable};
use lockmesh_server::inspect::inspect;
use std::path::Path;

fn ids<const N: usize>(ids: [u64; N]) -> Vec<ServerId> {
    ids.map(ServerId).to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn three_servers_discover_and_replicate() {
    let cluster = Cluster::founded(3, |_| {}).await;
    cluster.put("job", "mine").await;
    let leader = cluster.leader().await;
    let status = cluster.status(leader).await.expect("it answers");
    assert_eq!(members(&status), (ids([1, 2, 3]), ids([])));
    let nodes: Vec<_> = status.servers.iter().map(|server| server.node.clone()).collect();
    assert_eq!(nodes, ["s1", "s2", "s3"], "the one with the lowest node id comes first");
    for number in 1..=3 {
        let status = cluster.until_caught_up(number).await;
        assert_eq!((status.servers.len(), status.leader), (3, Some(ServerId(leader as u64))));
        assert_eq!(cluster.value(number, "job", Consistency::Stale).await.as_deref(), Some("mine"));
    }
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_server_reports_no_leader() {
    let mut cluster = Cluster::new(3, |_| {});
    cluster.configure(1, 3, &[2, 3]);
    cluster.start(1);
    let status = until("it answers", || cluster.status(1)).await;
    assert_eq!(status, Status::default());
    let read = cluster.ask(1, Request::TransferLeader(None)).await;
    assert_eq!(read, Ok(Response::Unavailable(Unavailable::NotLeader { leader: None })));
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn quorum_survives_leader_restart() {
    let mut cluster = Cluster::founded(3, |_| {}).await;
    let first = cluster.leader().await;
    cluster.stop(first).await;
    cluster.put("job", "while it was away").await;
    let second = cluster.leader().await;
    assert_ne!(second, first);
    cluster.start(first);
    cluster.until_caught_up(first).await;
    let value = cluster.value(first, "job", Consistency::Stale).await;
    assert_eq!(value.as_deref(), Some("while it was away"));
    let status =
        cluster.until_status("all are well", |status| status.servers.iter().all(|s| s.healthy)).await;
    assert_eq!(members(&status), (ids([1, 2, 3]), ids([])));
    cluster.end().await;
}

/// Removes log and checkpoint of a stopped server.
fn forget_store(folder: &Path) {
    std::fs::remove_dir_all(folder.join("log")).expect("it was there");
    std::fs::remove_file(folder.join("state.redb")).expect("it was there");
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_votes_prevent_start() {
    let mut cluster = Cluster::founded(3, |_| {}).await;
    cluster.stop(2).await;
    forget_store(&cluster.data_dir(2));
    let refusal = cluster.try_start(2).expect_err("it must not vote again").to_string();
    assert!(refusal.contains("its votes are lost: empty the whole folder"), "{refusal}");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn full_restart_keeps_cluster() {
    let mut cluster = Cluster::founded(3, |_| {}).await;
    cluster.put("job", "kept").await;
    let before = cluster.until_status("there is a leader", |_| true).await;
    for number in 1..=3 {
        cluster.stop(number).await;
    }
    for number in 1..=3 {
        cluster.start(number);
    }
    let after = cluster.until_status("there is a leader", |_| true).await;
    assert_eq!((after.cluster_id, after.servers.len()), (before.cluster_id, 3));
    let leader = cluster.leader().await;
    assert_eq!(cluster.value(leader, "job", Consistency::Default).await.as_deref(), Some("kept"));
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn five_servers_survive_two_failures() {
    let mut cluster = Cluster::founded(5, |_| {}).await;
    for _ in 0..2 {
        let leader = cluster.leader().await;
        cluster.stop(leader).await;
        cluster.put("job", "still").await;
    }
    let leader = cluster.leader().await;
    assert_eq!(cluster.value(leader, "job", Consistency::Consistent).await.as_deref(), Some("still"));
    cluster.end().await;
}

/// Resets a server's record to its state right after the promise.
fn back_to_the_promise(folder: &Path) {
    let path = folder.join("quorum.json");
    let text = std::fs::read_to_string(&path).expect("it is a member");
    let mut record: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    let mut member = record["state"]["member"].take();
    member.as_object_mut().expect("it is a member").remove("server");
    record["state"] = serde_json::json!({ "promised": member });
    std::fs::write(&path, record.to_string()).expect("it can be written");
}

#[tokio::test(flavor = "multi_thread")]
async fn founder_crash_before_record_recovers() {
    let mut cluster = Cluster::founded(3, |_| {}).await;
    cluster.put("job", "without it").await;
    cluster.stop(2).await;
    back_to_the_promise(&cluster.data_dir(2));
    cluster.start(2);
    assert_eq!(cluster.until_caught_up(2).await.server, ServerId(2));
    assert_eq!(cluster.value(2, "job", Consistency::Stale).await.as_deref(), Some("without it"));
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crashed_founders_keep_promised_cluster() {
    let mut cluster = Cluster::founded(3, |_| {}).await;
    let promised =
        cluster.until_status("it has an id", |status| !status.cluster_id.is_empty()).await.cluster_id;
    for number in 1..=3 {
        cluster.stop(number).await;
        back_to_the_promise(&cluster.data_dir(number));
        forget_store(&cluster.data_dir(number));
    }
    for number in [2, 3] {
        cluster.start(number);
        let status = until("it answers", || cluster.status(number)).await;
        assert_eq!(status, Status::default(), "two know of two promises, and wait for the third");
    }
    cluster.start(1);
    let status = cluster.until_status("it has an id", |status| !status.cluster_id.is_empty()).await;
    assert_eq!((status.cluster_id, status.servers.len()), (promised, 3));
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_founders_found_cluster_later() {
    let mut cluster = Cluster::new(3, |_| {});
    for number in 1..=3 {
        cluster.configure(number, 3, &[1, 2, 3]);
    }
    for number in [1, 2] {
        cluster.start(number);
        until("it answers", || cluster.status(number)).await;
    }
    for number in [1, 2] {
        cluster.stop(number).await;
    }
    for number in [3, 2, 1] {
        cluster.start(number);
    }
    cluster.put("job", "founded").await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mismatched_certificate_prevents_founding() {
    // Alone, no other server would reject it.
    let mut cluster = Cluster::new(1, |_| {});
    cluster.rename(1, "s9");
    let refusal = cluster.try_start(1).expect_err("it is not s9").to_string();
    assert!(refusal.contains("this is node s9, but its certificate names s1"), "{refusal}");
    assert!(!cluster.data_dir(1).join("quorum.json").exists());
    cluster.rename(1, "S1");
    cluster.start(1);
    cluster.put("job", "of s1").await;
    cluster.end().await;
}

/// Changes the cluster id in a server's record.
fn rename_cluster(folder: &Path, cluster_id: &str) {
    let path = folder.join("quorum.json");
    let text = std::fs::read_to_string(&path).expect("it is a member");
    let mut record: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    record["state"]["member"]["cluster_id"] = cluster_id.into();
    std::fs::write(&path, record.to_string()).expect("it can be written");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_cluster_folder_is_rejected() {
    const OTHER: &str = "6f2d0b6e-3c60-4d3f-9d5c-2b1f7c0e9a55";
    let mut cluster = Cluster::new(1, |config| config.storage.checkpoint_changes = 1);
    cluster.start(1);
    let own = cluster.until_status("it has an id", |status| !status.cluster_id.is_empty()).await.cluster_id;
    let folder = cluster.data_dir(1);
    // The id is compared with the checkpoint's, which is written in the background.
    loop {
        cluster.put("job", "kept").await;
        cluster.stop(1).await;
        if inspect(&folder).expect("it is a member").checkpoint.0 > LogIndex(2) {
            break;
        }
        cluster.start(1);
    }
    // The record is another cluster's, and the state is not.
    rename_cluster(&folder, OTHER);
    let refusal = cluster.try_start(1).expect_err("the state is not of that cluster").to_string();
    assert!(
        refusal.contains(&format!("the state of the cluster {own}, but should hold that of {OTHER}")),
        "{refusal}"
    );
    rename_cluster(&folder, &own);
    cluster.until_port_is_free(1).await;
    // The configuration names another cluster than both.
    cluster.configure_cluster(1, OTHER);
    let refusal = cluster.try_start(1).expect_err("it is not configured").to_string();
    assert!(
        refusal.contains(&own) && refusal.contains(&format!("`quorum.cluster_id` is {OTHER}")),
        "{refusal}"
    );
    cluster.configure_cluster(1, "");
    cluster.until_port_is_free(1).await;
    cluster.start(1);
    assert_eq!(cluster.value(1, "job", Consistency::Default).await.as_deref(), Some("kept"));
    cluster.end().await;
}
