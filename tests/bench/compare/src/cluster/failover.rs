//! Failover: the time without writes after the leader is killed.
//!
//! Measured from just before `SIGKILL` to the first successful write that began after the leader
//! was gone. Writes start at a steady pace, regardless of earlier ones, so that a hanging write
//! hides no other.

use super::{Cluster, Targets};
use crate::client::Client;
use crate::work::Work;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The time between the starts of two writes: the resolution of the figure.
const PACE: Duration = Duration::from_millis(5);

/// The timeout of one write.
const ATTEMPT: Duration = Duration::from_secs(3);

/// The longest time without a leader before this is given up.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The number of keys written, one through each of the two remaining nodes.
const KEYS: usize = 2;

/// Kills the leader, returns the time without writes, and restarts it.
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

/// Returns the time from a moment to the first successful write.
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
