//! Creates many keys, locks some of them, and parks readers on others.

use super::session;
use crate::client::lockmesh::Wire;
use crate::progress::Progress;
use crate::wire::http1::request;
use std::cell::Cell;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The prefix of all these keys.
pub(super) const PREFIX: &str = "/v1/kv/mass/";

/// The number of keys that one transaction writes.
const KEYS_A_TXN: u32 = 64;

/// The number of clients that write, lock or start watches at once.
const CLIENTS: u32 = 8;

/// The number of locks that a session holds.
const LOCKS_A_SESSION: usize = 100;

/// The number of keys between two progress messages.
const TELL: u32 = 100_000;

/// The retries of a rejected transaction, and the pause between them: a load may cause an election.
const RETRIES: (u32, Duration) = (30, Duration::from_millis(500));

/// The longest time until an agent serves.
const START: Duration = Duration::from_secs(30);

/// Waits until an agent serves.
pub(super) async fn wait_for(socket: &Path) -> io::Result<()> {
    let deadline = Instant::now() + START;
    loop {
        let served = async {
            let mut wire = Wire::connect(socket).await?;
            wire.exchange(&request("GET", "/v1/kv/compare/something?stale", b"")).await
        };
        match served.await {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Writes keys with values of about this many bytes.
pub(super) async fn fill(socket: &Path, count: u32, value: u32, progress: &Progress) -> io::Result<()> {
    let value: Rc<str> = "YWFh".repeat(value.div_ceil(3) as usize).into();
    let next = Rc::new(Cell::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (socket, value, next) = (PathBuf::from(socket), Rc::clone(&value), Rc::clone(&next));
        clients.spawn_local(async move {
            let mut wire = Wire::connect(&socket).await?;
            while next.get() < count {
                let first = next.replace(next.get() + KEYS_A_TXN);
                let body = transaction(first..count.min(first + KEYS_A_TXN), &value);
                insist(&mut wire, &socket, &request("PUT", "/v1/txn", body.as_bytes())).await?;
            }
            io::Result::Ok(())
        });
    }
    let mut told = 0;
    while let Some(done) = {
        let tick = tokio::time::timeout(Duration::from_millis(200), clients.join_next());
        tick.await.unwrap_or(Some(Ok(Ok(()))))
    } {
        done.map_err(io::Error::other)??;
        if next.get() / TELL > told && !clients.is_empty() {
            told = next.get() / TELL;
            progress.print(&format!("  {} keys", told * TELL));
        }
    }
    Ok(())
}

fn transaction(keys: std::ops::Range<u32>, value: &str) -> String {
    let mut body = String::from("[");
    for number in keys {
        let comma = if body.len() > 1 { "," } else { "" };
        let key = name(number);
        let _ = write!(body, r#"{comma}{{"KV":{{"Verb":"set","Key":"{key}","Value":"{value}"}}}}"#);
    }
    body + "]"
}

/// Returns the name of a key: names sort in the order of their numbers.
fn name(number: u32) -> String {
    format!("mass/{number:08}")
}

/// Retries a request until it succeeds.
async fn insist(wire: &mut Wire, socket: &Path, request: &[u8]) -> io::Result<()> {
    let mut tries = 0;
    loop {
        match wire.exchange(request).await {
            Ok(_) => return Ok(()),
            Err(error) if tries >= RETRIES.0 => return Err(error),
            Err(_) => tokio::time::sleep(RETRIES.1).await,
        }
        tries += 1;
        *wire = Wire::connect(socket).await?;
    }
}

/// Returns keys spread evenly over all of them.
fn spread(keys: u32, count: u32) -> Vec<u32> {
    let count = count.min(keys);
    (0..count).map(|at| (u64::from(at) * u64::from(keys) / u64::from(count)) as u32).collect()
}

/// Locks `count` of the keys.
pub(super) async fn lock(socket: &Path, keys: u32, count: u32) -> io::Result<()> {
    let numbers = spread(keys, count);
    let mut clients = JoinSet::new();
    for some in numbers.chunks(numbers.len().div_ceil(CLIENTS as usize).max(1)) {
        let (socket, some) = (PathBuf::from(socket), some.to_vec());
        clients.spawn_local(async move {
            let mut wire = Wire::connect(&socket).await?;
            for locks in some.chunks(LOCKS_A_SESSION) {
                let holder = wire.new_session(&session()).await?;
                for number in locks {
                    let target = format!("/v1/kv/{}?acquire={holder}", name(*number));
                    wire.succeed(&request("PUT", &target, b"held")).await?;
                }
            }
            io::Result::Ok(())
        });
    }
    while let Some(done) = clients.join_next().await {
        done.map_err(io::Error::other)??;
    }
    Ok(())
}

/// Readers that wait for a key to change.
pub(super) struct Watchers(JoinSet<io::Result<()>>);

/// Parks a reader on each of `count` keys.
pub(super) async fn watch(socket: &Path, keys: u32, count: u32) -> io::Result<Watchers> {
    let mut watchers = JoinSet::new();
    for number in spread(keys, count) {
        let mut wire = Wire::connect(socket).await?;
        let target = format!("/v1/kv/{}", name(number));
        let head = wire.exchange(&request("GET", &target, b"")).await?;
        let index = wire.header(head, "x-consul-index").unwrap_or_else(|| "1".into());
        let wait = request("GET", &format!("{target}?index={index}&wait=10m"), b"");
        watchers.spawn_local(async move { wire.exchange(&wait).await.map(drop) });
    }
    Ok(Watchers(watchers))
}

impl Watchers {
    /// Returns the number of readers woken so far.
    pub(super) async fn woken(mut self) -> io::Result<u32> {
        let mut woken = 0;
        while let Some(done) = self.0.try_join_next() {
            done.map_err(io::Error::other)??;
            woken += 1;
        }
        self.0.shutdown().await;
        Ok(woken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_is_json() {
        let body = transaction(7..9, "YWFh");
        let operations: Vec<serde_json::Value> = serde_json::from_str(&body).expect("good JSON");
        assert_eq!(operations.len(), 2);
        assert_eq!(operations[1]["KV"]["Key"], "mass/00000008");
    }

    #[test]
    fn keys_are_spread_evenly() {
        assert_eq!(spread(10, 4), [0, 2, 5, 7]);
        assert_eq!(spread(3, 10), [0, 1, 2]);
        assert_eq!(spread(10, 0), Vec::<u32>::new());
    }
}
