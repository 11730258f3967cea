//! How long nobody can write when the leader is killed.
//!
//! From the moment before `SIGKILL` until the first write has succeeded that began after the leader
//! was gone. Writes begin one after another at a steady pace, whatever became of those before, so
//! that none that hangs hides another.

use super::{Cluster, Targets};
use crate::client::Client;
use crate::work::Work;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The time between the beginnings of two writes: the figure is no finer than that.
const PACE: Duration = Duration::from_millis(5);

/// How long one write is waited for.
const ATTEMPT: Duration = Duration::from_secs(3);

/// How long a service may be without a leader until this is given up.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Keys that are written, one through each of the two nodes that stay.
const KEYS: usize = 2;

/// Kills the leader, says how long nobody could write, and brings it back.
pub(crate) async fn kill_leader<C: Cluster>(cluster: &mut C) -> io::Result<Duration> {
    cluster.settle().await?;
    let site = cluster.site(Targets::All);
    for number in 0..KEYS {
        let mut client = C::Client::connect(&site, number, Work::Puts).await?;
        client.put().await?;
        client.close().await?;
    }
    let leader = cluster.leader().await?;
    let site = cluster.site(Targets::Without(leader));
    let killed = Instant::now();
    cluster.programs()[leader].kill()?;
    let took = first_write::<C::Client>(&site, killed).await;
    cluster.programs()[leader].start()?;
    cluster.settle().await?;
    took
}

/// The time from a moment until the first write that succeeds.
pub(crate) async fn first_write<C: Client>(site: &Rc<C::Site>, since: Instant) -> io::Result<Duration> {
    let mut attempts = JoinSet::new();
    let mut pace = tokio::time::interval(PACE);
    let mut number = 0;
    let mut last = None;
    while since.elapsed() < TIMEOUT {
        tokio::select! {
            _ = pace.tick() => {
                let site = Rc::clone(site);
                attempts.spawn_local(async move {
                    let write = write_once::<C>(&site, number % KEYS);
                    tokio::time::timeout(ATTEMPT, write).await?.map(|()| Instant::now())
                });
                number += 1;
            }
            Some(done) = attempts.join_next() => match done.map_err(io::Error::other)? {
                Ok(done) => return Ok(done - since),
                Err(error) => last = Some(error),
            },
        }
    }
    let last = last.map_or_else(|| "none failed, none succeeded".into(), |error| error.to_string());
    Err(io::Error::other(format!("no write within {TIMEOUT:?} of the leader's death; the last one: {last}")))
}

async fn write_once<C: Client>(site: &Rc<C::Site>, number: usize) -> io::Result<()> {
    // Of all work, this prepares the least.
    C::connect(site, number, Work::Churn).await?.put().await
}
