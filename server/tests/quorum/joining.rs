//! Servers that join later, come back emptied, move, or were away for too long.

use crate::cluster::{Cluster, members, until};
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::query::{Blocking, Consistency, Query};
use lockmesh_protocol::rpc::{Request, Response, Status};
use lockmesh_server::config::ServerConfig;
use lockmesh_server::recover::recover;
use std::time::Duration;

fn ids<const N: usize>(ids: [u64; N]) -> Vec<ServerId> {
    ids.map(ServerId).to_vec()
}

/// Keeps hardly any log behind the snapshot.
fn forgetful(config: &mut ServerConfig) {
    config.storage.log_keep_bytes = 0;
    config.storage.checkpoint_interval = Duration::from_millis(100);
}

#[tokio::test(flavor = "multi_thread")]
async fn late_server_learns_then_votes() {
    let mut cluster = Cluster::new(2, |_| {});
    cluster.start(1);
    cluster.put("job", "before it came").await;
    cluster.configure(2, 1, &[1]);
    cluster.start(2);
    let status = cluster.until_status("both vote", |status| members(status).0.len() == 2).await;
    assert_eq!(members(&status), (ids([1, 2]), ids([])));
    cluster.until_caught_up(2).await;
    assert_eq!(cluster.value(2, "job", Consistency::Stale).await.as_deref(), Some("before it came"));
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn uninvited_server_waits_for_invitation() {
    let mut cluster = Cluster::new(2, |_| {});
    cluster.configure(2, 0, &[]);
    cluster.start(2);
    cluster.start(1);
    let invitation = Request::Invite(vec![cluster.address(1).to_string()]);
    assert_eq!(cluster.ask(2, invitation.clone()).await, Ok(Response::Done));
    cluster.until_status("both vote", |status| members(status).0.len() == 2).await;
    let again = until("it is a member", || async {
        match cluster.ask(2, invitation.clone()).await {
            Ok(Response::Unavailable(reason)) => Some(reason.to_string()),
            _ => None,
        }
    });
    assert_eq!(again.await, "this server belongs to a cluster already");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn emptied_server_rejoins_as_new() {
    let mut cluster = Cluster::founded(3, |_| {}).await;
    cluster.put("job", "kept by the others").await;
    let leader = cluster.leader().await;
    let emptied = if leader == 2 { 3 } else { 2 };
    cluster.stop(emptied).await;
    cluster.empty(emptied);
    cluster.start(emptied);
    let is_back = |status: &Status| members(status).0.contains(&ServerId(4)) && members(status).0.len() == 3;
    let status = cluster.until_status("it votes under a new id and the old one is gone", is_back).await;
    assert!(!members(&status).0.contains(&ServerId(emptied as u64)));
    let own = cluster.until_caught_up(emptied).await;
    assert_eq!(own.server, ServerId(4));
    let value = cluster.value(emptied, "job", Consistency::Stale).await;
    assert_eq!(value.as_deref(), Some("kept by the others"));
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lagging_server_fetches_snapshot() {
    let mut cluster = Cluster::founded(3, forgetful).await;
    cluster.put("kept", "from the beginning").await;
    let leader = cluster.leader().await;
    let away = if leader == 3 { 2 } else { 3 };
    let before = cluster.until_caught_up(away).await;
    cluster.stop(away).await;
    let long = "x".repeat(100_000);
    for number in 0..40 {
        cluster.put(&format!("job/{number}"), &long).await;
    }
    cluster
        .until_status("the log it needs is compacted", |status| status.first_index > before.last_index)
        .await;
    cluster.start(away);
    let after = cluster.until_caught_up(away).await;
    assert!(after.first_index > before.last_index, "it followed no log that was compacted: {after:?}");
    assert_eq!(cluster.value(away, "kept", Consistency::Stale).await.as_deref(), Some("from the beginning"));
    assert_eq!(cluster.value(away, "job/39", Consistency::Stale).await, Some(long.clone()));
    // The fetched snapshot is on its disk too, and it is a full voter again.
    cluster.stop(away).await;
    cluster.start(away);
    cluster.until_caught_up(away).await;
    assert_eq!(cluster.value(away, "job/0", Consistency::Stale).await, Some(long));
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn moved_server_updates_its_address() {
    let mut cluster = Cluster::founded(3, |_| {}).await;
    let leader = cluster.leader().await;
    let moved = if leader == 3 { 2 } else { 3 };
    cluster.stop(moved).await;
    cluster.move_away(moved);
    cluster.start(moved);
    let address = cluster.address(moved).to_string();
    let knows =
        |status: &Status| status.servers.iter().any(|server| server.address == address && server.healthy);
    let status = cluster.until_status("the roster has its new address", knows).await;
    assert_eq!(members(&status), (ids([1, 2, 3]), ids([])));
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn moved_servers_find_each_other() {
    let mut cluster = Cluster::founded(3, |_| {}).await;
    cluster.put("job", "before the move").await;
    for number in 1..=3 {
        cluster.stop(number).await;
        cluster.move_away(number);
    }
    for number in 1..=3 {
        cluster.configure(number, 3, &[1, 2, 3]);
        cluster.start(number);
    }
    let addresses = [1, 2, 3].map(|number| cluster.address(number).to_string());
    let knows = |status: &Status| status.servers.iter().all(|server| addresses.contains(&server.address));
    cluster.until_status("the roster has the new addresses", knows).await;
    cluster.put("job", "after the move").await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sole_survivor_recovers_cluster() {
    let mut cluster = Cluster::founded(3, |_| {}).await;
    let before = cluster.put("job", "survived").await;
    cluster.until_caught_up(1).await;
    for number in 1..=3 {
        cluster.stop(number).await;
    }
    let recovery = recover(&cluster.data_dir(1), false).expect("it survived");
    assert_eq!(recovery.server.id, ServerId(1));
    assert!(recovery.to_string().contains("Server 2 (s2 at"), "{recovery}");
    cluster.start(1);
    let status = cluster.until_status("it leads alone", |status| members(status).0.len() == 1).await;
    assert_eq!((status.servers.len(), status.servers[0].node.as_str()), (1, "s1"));
    assert_eq!(cluster.value(1, "job", Consistency::Default).await.as_deref(), Some("survived"));
    // A client may know of a write that only the others had.
    let lost = Blocking { index: before.index.next(), wait: Duration::from_secs(1) };
    let (query, consistency) = (Query::Entry("job".into()), Consistency::Default);
    let request = Request::Read { query, consistency, blocking: Some(lost) };
    let Response::Answer(answer) = cluster.ask_leader(request).await else { panic!("not answered") };
    assert!(answer.index > lost.index, "it went back to {}", answer.index);
    assert!(cluster.put("job", "goes on").await.index.0 > before.index.0 + (1 << 31));
    cluster.empty(2);
    cluster.start(2);
    let is_back = |status: &Status| members(status).0 == ids([1, 4]);
    cluster.until_status("an emptied one joins under a new id", is_back).await;
    assert!(recover(&cluster.data_dir(2), false).is_err(), "a server that runs is not touched");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_leader_transfers_leadership() {
    let mut cluster = Cluster::founded(3, |_| {}).await;
    let before =
        cluster.until_status("all are well", |status| status.servers.iter().all(|s| s.healthy)).await;
    let first = cluster.leader().await;
    cluster.stop(first).await;
    let other = if first == 1 { 2 } else { 1 };
    let after = cluster.status(other).await.expect("it answers");
    assert!(
        after.leader.is_some_and(|leader| leader != ServerId(first as u64)),
        "no failure was detected: {after:?}"
    );
    assert_eq!(after.term, before.term.next(), "one election, with the requested candidate only");
    cluster.end().await;
}
