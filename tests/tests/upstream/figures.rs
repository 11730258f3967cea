//! Performance of calls between an agent and a server's QUIC service, and the cost of a waiter.
//! These tests measure and assert nothing.
//!
//! `cargo test --release -p lockmesh-tests --test upstream figures -- --ignored --nocapture`

use lockmesh_agent::upstream::calls::{Read, Renew};
use lockmesh_agent::upstream::{Upstream, UpstreamOptions};
use lockmesh_net::Role;
use lockmesh_protocol::id::LogIndex;
use lockmesh_protocol::query::{Blocking, Consistency, Query};
use lockmesh_tests::service::{Cluster, Service, SharedBook, View, destroy, registration, session_id};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const NODE: &str = "web-1";

async fn pair() -> (Cluster, SharedBook, Service, Upstream) {
    let (cluster, book) = (Cluster::new(NODE), SharedBook::default());
    let service = Service::start(&cluster, &book);
    let servers = vec![service.address.to_string()];
    let options = UpstreamOptions::new(servers, cluster.identity(Role::Agent), registration(NODE));
    let upstream = Upstream::start(options).unwrap();
    upstream.call(Renew(session_id("s"))).await.unwrap();
    (cluster, book, service, upstream)
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
#[ignore = "a measurement: run it by name in a release build"]
fn round_trips() {
    for workers in [1, 2] {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build().unwrap();
        runtime.block_on(async {
            for callers in [1, 16, 256] {
                round_trips_of(workers, callers).await;
            }
        });
    }
}

async fn round_trips_of(workers: usize, callers: usize) {
    let (_cluster, _book, service, upstream) = pair().await;
    let end = Instant::now() + Duration::from_secs(3);
    let tasks: Vec<_> = (0..callers)
        .map(|_| {
            let upstream = upstream.clone();
            tokio::spawn(async move {
                let mut times = Vec::new();
                while Instant::now() < end {
                    let begun = Instant::now();
                    upstream.call(Renew(session_id("s"))).await.unwrap();
                    times.push(begun.elapsed());
                }
                times
            })
        })
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.unwrap());
    }
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    let counters = &service.counters;
    let per_frame = |messages: u64, frames: u64| messages as f64 / frames as f64;
    println!(
        "{workers} workers, {callers:>3} callers: {:>7} calls/s, p50 {:?}, p99 {:?}; {:.1} calls and {:.1} replies a frame",
        times.len() / 3,
        at(0.5),
        at(0.99),
        per_frame(counters.calls.load(Ordering::Relaxed), counters.call_frames.load(Ordering::Relaxed)),
        per_frame(counters.replies.load(Ordering::Relaxed), counters.reply_frames.load(Ordering::Relaxed)),
    );
}

#[test]
#[ignore = "a measurement: run it by name in a release build"]
fn blocked_readers() {
    const READERS: usize = 10_000;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let (_cluster, book, service, upstream) = pair().await;
        let before = resident_bytes();
        let readers: Vec<_> = (0..READERS)
            .map(|number| {
                let (upstream, key) = (upstream.clone(), format!("service/job-{number}/leader"));
                let blocking = Some(Blocking { index: LogIndex(5), wait: Duration::from_secs(600) });
                tokio::spawn(async move {
                    upstream
                        .call(Read {
                            query: Query::Entry(key.as_str().into()),
                            consistency: Consistency::Default,
                            blocking,
                        })
                        .await
                })
            })
            .collect();
        book.reaches("all parked reads", |book| book.parked.len() == READERS).await;
        let each = (resident_bytes() - before) / READERS as u64;
        println!("{READERS} readers of different keys: {each} bytes each, both ends and the test's own task");
        let begun = Instant::now();
        service.raise_index(9);
        for reader in readers {
            reader.await.unwrap().unwrap();
        }
        println!("all of them woken in {:?}", begun.elapsed());
    });
}

/// Measures the time that an agent needs to find the next leader after the last one was killed:
/// from the end of the election, which is 250 ms after the kill here, to the reply to a command
/// that was sent right after the kill.
#[test]
#[ignore = "a measurement: run it by name in a release build"]
fn failovers() {
    const ELECTION: Duration = Duration::from_millis(250);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut pauses: Vec<Duration> =
        (0..20).map(|round| runtime.block_on(failover(round, ELECTION))).collect();
    pauses.sort();
    println!("beyond the election: median {:?}, longest {:?}", pauses[10] - ELECTION, pauses[19] - ELECTION);
}

async fn failover(round: u64, election: Duration) -> Duration {
    let (cluster, book) = (Cluster::new(NODE), SharedBook::default());
    let mut services = Service::start_many(3, &cluster, &book);
    let servers = services.iter().map(|service| service.address.to_string()).collect();
    let options = UpstreamOptions::new(servers, cluster.identity(Role::Agent), registration(NODE));
    let upstream = Upstream::start(options).unwrap();
    upstream.call(destroy("first")).await.unwrap();
    book.open().view = View { leader: None, term: 1 };
    services.remove(0).kill().await;
    let begun = Instant::now();
    let elected = async {
        tokio::time::sleep(election).await;
        book.open().elect(2 + round % 2);
    };
    let (proposed, ()) = tokio::join!(upstream.call(destroy("second")), elected);
    proposed.unwrap();
    let pause = begun.elapsed();
    upstream.close().await;
    pause
}
