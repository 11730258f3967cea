//! An agent's writes through the elections of real servers, of which one leader after the other is
//! killed. The writes are counted.

use lockmesh_agent::upstream::calls::Read;
use lockmesh_agent::upstream::{Upstream, UpstreamOptions};
use lockmesh_protocol::command::{Command, KvCommand, NewEntry};
use lockmesh_protocol::id::LogIndex;
use lockmesh_protocol::query::{Consistency, Query, Rows};
use lockmesh_protocol::reply::Reply;
use lockmesh_tests::quorum::Quorum;
use lockmesh_tests::service::registration;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;

const NODE: &str = "web-1";

/// Number of concurrent writers, each with a counter of its own.
const WRITERS: u64 = 16;

fn upstream(quorum: &Quorum, seeds: usize) -> Upstream {
    let servers = quorum.addresses().into_iter().take(seeds).collect();
    let options = UpstreamOptions::new(servers, quorum.agent().clone(), registration(NODE));
    let upstream = UpstreamOptions { hold_time: Duration::from_secs(60), ..options };
    Upstream::start(upstream).expect("a socket")
}

/// Returns the leader's address, once there is one.
async fn leader(upstream: &Upstream) -> String {
    loop {
        if let Ok(status) = upstream.leader_status().await
            && let Some(row) = status.servers.iter().find(|row| Some(row.id) == status.leader)
        {
            return row.address.clone();
        }
    }
}

/// Counts up by compare-and-set until `stop` is set; returns the number of successful writes. A
/// write that took effect twice, or was lost after its `true`, breaks the chain of indexes.
async fn count_up(upstream: Upstream, key: String, stop: Arc<AtomicBool>, done: Arc<AtomicU64>) -> u64 {
    let (mut count, mut last) = (0, LogIndex(0));
    while !stop.load(Ordering::Relaxed) {
        let value = (count + 1).to_string().into();
        let entry = NewEntry { key: key.as_str().into(), value, flags: 0 };
        let applied =
            upstream.call(Command::Kv(KvCommand::Cas(entry, Some(last).filter(|index| index.0 > 0)))).await;
        let applied = applied.unwrap_or_else(|error| panic!("{key} failed at {count}: {error}"));
        assert_eq!(applied.reply, Reply::Succeeded(true), "{key} at {count}");
        (count, last) = (count + 1, applied.index);
        done.fetch_add(1, Ordering::Relaxed);
    }
    count
}

async fn value(upstream: &Upstream, key: &str) -> u64 {
    let answer = upstream
        .call(Read { query: Query::Entry(key.into()), consistency: Consistency::Consistent, blocking: None })
        .await
        .unwrap();
    match &answer.rows {
        Rows::Entries(entries) => String::from_utf8_lossy(&entries[0].value).parse().unwrap(),
        other => panic!("not an entry: {other:?}"),
    }
}

/// Waits until this many more writes are done.
async fn more(done: &AtomicU64, count: u64) {
    let wanted = done.load(Ordering::Relaxed) + count;
    while done.load(Ordering::Relaxed) < wanted {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_kills_preserve_exactly_once() {
    let mut quorum = Quorum::found(5, NODE);
    // Two of the servers are known from the beginning; they are killed first if they lead.
    let upstream = upstream(&quorum, 2);
    let (stop, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let writers: Vec<JoinHandle<u64>> = (0..WRITERS)
        .map(|number| {
            tokio::spawn(count_up(upstream.clone(), format!("counter-{number}"), stop.clone(), done.clone()))
        })
        .collect();
    more(&done, 200).await;
    for _ in 0..2 {
        quorum.kill(&leader(&upstream).await);
        more(&done, 200).await;
    }
    stop.store(true, Ordering::Relaxed);
    for (number, writer) in writers.into_iter().enumerate() {
        let told = writer.await.unwrap();
        assert_eq!(value(&upstream, &format!("counter-{number}")).await, told);
    }
    let counters = upstream.counters().unwrap();
    assert_eq!(counters.registrations.load(Ordering::Relaxed), 1);
    upstream.close().await;
    quorum.end().await;
}
