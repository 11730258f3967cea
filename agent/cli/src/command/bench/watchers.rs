//! Many blocked watchers, each with a connection of its own: how long it takes to block them, to
//! wake one among them, and to wake them all. What they cost the agent in memory is measured
//! outside, while they are held.

use super::figures::{Figure, Latencies};
use super::scenario::Plan;
use super::wire::{Wire, request};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// The number of times that one watcher is woken among all others.
const LONE_WAKES: usize = 100;

/// The maximum time that watchers stay blocked.
const WAIT: &str = "600s";

/// The number of watchers and their keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crowd {
    /// The number of watchers.
    pub(super) count: usize,
    /// `true` if each watches its own key.
    pub(super) distinct: bool,
    /// The time that they stay blocked before they are woken.
    pub(super) hold: Duration,
}

/// Blocks them all, wakes one again and again, then wakes all.
pub(super) async fn measure(crowd: Crowd, plan: &Plan, tell: impl Fn(&str)) -> io::Result<Vec<Figure>> {
    make_room(crowd.count)?;
    let mut writer = Wire::connect(&plan.address).await?;
    let keys = if crowd.distinct { crowd.count } else { 1 };
    let mut indexes = Vec::with_capacity(keys);
    for key in 0..keys {
        indexes.push(write(&mut writer, plan, &format!("w/{key}"), b"0").await?);
    }
    let (mut watchers, blocked) = block(crowd, plan, &indexes).await?;
    tell(&format!("{} watchers are blocked; holding them for {} s", crowd.count, crowd.hold.as_secs_f64()));
    sleep(crowd.hold).await;
    let lone = wake_one(&mut writer, plan, crowd.count).await?;
    // A watcher that has returned before the change would count with a latency of 0.
    if let Some(early) = watchers.try_join_next() {
        let early = early.map_err(io::Error::other)?;
        return Err(early
            .err()
            .unwrap_or_else(|| io::Error::other("a watcher woke although nothing had changed")));
    }
    let begun = Instant::now();
    // Deleting the folder is one write that wakes all watchers.
    writer.exchange(&request("DELETE", &plan.key("w/", "?recurse"), b"")).await?;
    let mut latencies = Latencies::new();
    while let Some(woken) = watchers.join_next().await {
        let woken: Instant = woken.map_err(io::Error::other)??;
        latencies.record(woken.saturating_duration_since(begun));
    }
    let all = Figure::of("watchers: wake all", crowd.count, begun.elapsed(), &latencies);
    Ok(vec![blocked, lone, all])
}

/// Blocks every watcher. The tasks end when their watchers are woken, with the moment.
async fn block(
    crowd: Crowd,
    plan: &Plan,
    indexes: &[u64],
) -> io::Result<(JoinSet<io::Result<Instant>>, Figure)> {
    let mut watchers = JoinSet::new();
    let mut latencies = Latencies::new();
    let begun = Instant::now();
    for watcher in 0..crowd.count {
        let started = Instant::now();
        let key = if crowd.distinct { watcher } else { 0 };
        let mut wire = Wire::connect(&plan.address).await?;
        wire.send(&watch(plan, &format!("w/{key}"), indexes[key])).await?;
        latencies.record(started.elapsed());
        watchers.spawn(async move {
            wire.receive().await?;
            Ok(Instant::now())
        });
    }
    Ok((watchers, Figure::of("watchers: block", crowd.count, begun.elapsed(), &latencies)))
}

/// Wakes a watcher of a key of its own, while all others stay blocked.
async fn wake_one(writer: &mut Wire, plan: &Plan, count: usize) -> io::Result<Figure> {
    let mut watcher = Wire::connect(&plan.address).await?;
    let mut latencies = Latencies::new();
    let began = Instant::now();
    let mut index = write(writer, plan, "lone", b"0").await?;
    for round in 0..LONE_WAKES {
        watcher.send(&watch(plan, "lone", index)).await?;
        // The first value must differ from `0`: an equal write wakes no watcher.
        let put = request("PUT", &plan.key("lone", ""), format!("{round}!").as_bytes());
        let begun = Instant::now();
        writer.send(&put).await?;
        index = watcher.receive().await?.index;
        latencies.record(begun.elapsed());
        writer.receive().await?;
    }
    Ok(Figure::of("watchers: wake one", count, began.elapsed(), &latencies))
}

fn watch(plan: &Plan, key: &str, index: u64) -> Vec<u8> {
    request("GET", &plan.key(key, &format!("?index={index}&wait={WAIT}")), b"")
}

/// Writes a key and answers its index.
async fn write(wire: &mut Wire, plan: &Plan, key: &str, value: &[u8]) -> io::Result<u64> {
    wire.exchange(&request("PUT", &plan.key(key, ""), value)).await?;
    Ok(wire.exchange(&request("GET", &plan.key(key, ""), b"")).await?.index)
}

/// Makes sure that this process may open as many connections.
fn make_room(count: usize) -> io::Result<()> {
    // Besides the watchers: the other connections, the standard streams and the runtime.
    let needed = count as u64 + 64;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    if limit.maximum.is_some_and(|maximum| maximum < needed) {
        let text =
            format!("{count} watchers need {needed} open files: raise the limit (ulimit -Hn) or use fewer");
        return Err(io::Error::other(text));
    }
    Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum: limit.maximum })?)
}
