//! The workloads: closed loops, the hand-off of a contended lock, and the time without a leader.
//!
//! A client has one operation in flight. Operations count from their beginning to their end, and
//! only if they are within the window. Connecting and preparing happens before it, cleanup behind
//! it.

use crate::Result;
use crate::client::{Client, Site};
use crate::cluster::{Cluster, Service};
use crate::report::Step;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// The warm-up before the window, as a part of its length, so that connections and caches are warm.
const WARM_UP: f64 = 0.15;

/// The time for which a holder keeps the contended lock: long enough for the others to queue again.
const HOLD: Duration = Duration::from_millis(10);

/// The number of clients that connect at once.
const NEWCOMERS: usize = 16;

/// The time between the starts of two writes without a leader: the resolution of the figure.
const PACE: Duration = Duration::from_millis(5);

/// The timeout of one write without a leader, and of all.
const ATTEMPT: Duration = Duration::from_secs(3);
const ATTEMPTS: Duration = Duration::from_secs(60);

/// The work of a client's loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, clap::ValueEnum)]
pub(crate) enum Work {
    /// Writes of 256 bytes to the client's own key
    Puts,
    /// Acquires and releases of the client's own lock
    Cycles,
    /// One contended lock: from its release to the next holder's grant
    Handoff,
    /// The time from the leader's death to the next successful write
    LeaderKilled,
}

/// Lets clients of a service work for a window of this length, and returns the latencies. `mark` is
/// called at its beginning and at its end.
pub(crate) async fn run<C: Client>(
    site: &Rc<Site>,
    step: Step,
    length: Duration,
    mut mark: impl FnMut(),
) -> Result<Vec<Duration>> {
    let mut clients = Vec::new();
    for first in (0..step.clients).step_by(NEWCOMERS) {
        let newcomers = (first..step.clients.min(first + NEWCOMERS)).map(|number| {
            let site = Rc::clone(site);
            async move { C::connect(&site, number, step.work).await }
        });
        clients.extend(all(newcomers).await?);
    }
    let begin = Instant::now() + length.mul_f64(WARM_UP);
    let meter = Rc::new(Meter { begin, end: begin + length, latencies: RefCell::default() });
    let contest = Rc::new(Contest::default());
    let loops = clients.into_iter().map(|client| {
        let (meter, contest) = (Rc::clone(&meter), Rc::clone(&contest));
        async move {
            match step.work {
                Work::Handoff => contend(client, &meter, &contest).await,
                work => repeat(client, &meter, work).await,
            }
        }
    });
    let loops = tokio::task::spawn_local(all(loops.collect::<Vec<_>>()));
    tokio::time::sleep_until(begin.into()).await;
    mark();
    let clients = loops.await??;
    mark();
    all(clients.into_iter().map(Client::close)).await?;
    Ok(meter.latencies.take())
}

/// Runs all at once; the first error ends it.
async fn all<T: 'static>(
    futures: impl IntoIterator<Item = impl Future<Output = Result<T>> + 'static>,
) -> Result<Vec<T>> {
    let mut tasks = JoinSet::new();
    for future in futures {
        tasks.spawn_local(future);
    }
    let mut done = Vec::new();
    while let Some(finished) = tasks.join_next().await {
        done.push(finished??);
    }
    Ok(done)
}

/// Records the latencies of the operations within a window.
#[derive(Debug)]
struct Meter {
    begin: Instant,
    end: Instant,
    latencies: RefCell<Vec<Duration>>,
}

impl Meter {
    /// Records an operation; returns `false` when the time is over.
    fn note(&self, begun: Instant) -> bool {
        let now = Instant::now();
        if begun >= self.begin && now <= self.end {
            self.latencies.borrow_mut().push(now - begun);
        }
        now < self.end
    }
}

async fn repeat<C: Client>(mut client: C, meter: &Meter, work: Work) -> Result<C> {
    loop {
        let begun = Instant::now();
        match work {
            Work::Puts => client.put().await?,
            Work::Cycles | Work::Handoff | Work::LeaderKilled => {
                client.acquire().await?;
                client.release().await?;
            }
        }
        if !meter.note(begun) {
            return Ok(client);
        }
    }
}

/// The state that contenders for one lock share, besides the service.
#[derive(Debug, Default)]
struct Contest {
    /// The time at which the last holder began to release.
    released: Cell<Option<Instant>>,
    /// `true` while a client holds the lock.
    held: Cell<bool>,
    grants: Cell<u64>,
    granted: Notify,
}

/// Runs one contender for the lock. After the window each acquires it once more and leaves.
async fn contend<C: Client>(mut client: C, meter: &Meter, contest: &Contest) -> Result<C> {
    loop {
        client.acquire().await?;
        if contest.held.replace(true) {
            return Err("two clients hold one lock at once".into());
        }
        let grants = contest.grants.get() + 1;
        contest.grants.set(grants);
        contest.granted.notify_waiters();
        let released = contest.released.take();
        let in_time = released.is_none_or(|released| meter.note(released));
        let goes_on = in_time && Instant::now() < meter.end;
        // Also behind the window: a client that finds the lock free but does not get it waits
        // longer than one that finds it held.
        tokio::time::sleep(HOLD).await;
        contest.held.set(false);
        contest.released.set(Some(Instant::now()));
        client.release().await?;
        if !goes_on {
            return Ok(client);
        }
        // Another client's turn, so that the releasing client does not acquire it again.
        while contest.grants.get() == grants {
            if tokio::time::timeout_at(meter.end.into(), contest.granted.notified()).await.is_err() {
                break;
            }
        }
    }
}

/// Kills the leader, returns the time without writes, and restarts it.
///
/// Measured from just before `SIGKILL` to the first successful write that began after the leader
/// was gone. Writes start at a steady pace, regardless of earlier ones, so that a hanging write
/// hides no other.
pub(crate) async fn kill_leader(cluster: &mut Cluster) -> Result<Duration> {
    cluster.settle().await?;
    let leader = cluster.leader().await?;
    // One key through each of the two remaining nodes, which exists before.
    let others: Vec<usize> = (0..3).filter(|node| *node != leader).collect();
    let site = cluster.site(others);
    for number in 0..2 {
        write_once(cluster.service, &site, number).await?;
    }
    let killed = Instant::now();
    cluster.nodes[leader].kill()?;
    let took = first_write(cluster.service, &site, killed).await;
    cluster.nodes[leader].restart()?;
    cluster.settle().await?;
    took
}

async fn first_write(service: Service, site: &Rc<Site>, since: Instant) -> Result<Duration> {
    let mut attempts = JoinSet::new();
    let mut pace = tokio::time::interval(PACE);
    let (mut number, mut last) = (0, String::new());
    while since.elapsed() < ATTEMPTS {
        tokio::select! {
            _ = pace.tick() => {
                let (site, key) = (Rc::clone(site), number % 2);
                attempts.spawn_local(async move {
                    let written = tokio::time::timeout(ATTEMPT, write_once(service, &site, key)).await?;
                    written.map(|()| Instant::now())
                });
                number += 1;
            }
            Some(done) = attempts.join_next() => match done? {
                Ok(done) => return Ok(done - since),
                Err(error) => last = error.to_string(),
            },
        }
    }
    Err(format!("no write within {ATTEMPTS:?} of the leader's death; the last one: {last}").into())
}

async fn write_once(service: Service, site: &Site, number: usize) -> Result<()> {
    use crate::client::{etcd::Etcd, http::Http, zookeeper::ZooKeeper};
    match service {
        Service::Lockmesh | Service::Consul => Http::connect(site, number, Work::Puts).await?.put().await,
        Service::Etcd => Etcd::alone(site, number).await?.put().await,
        Service::ZooKeeper => ZooKeeper::connect(site, number, Work::Puts).await?.put().await,
    }
}
