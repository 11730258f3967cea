//! The workloads: closed loops, and the hand-off of a contended lock.
//!
//! A client has one operation in flight. Operations count from their beginning to their end, and
//! only if they are within the window. Connecting and preparing happens before it, cleanup behind
//! it.

use crate::client::Client;
use crate::latency::Latencies;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// The warm-up before the window, as a part of its length, so that connections and caches are warm.
const WARM_UP: f64 = 0.15;

/// The time for which a holder keeps the contended lock: long enough for the others to queue again.
pub(crate) const HOLD: Duration = Duration::from_millis(10);

/// The number of clients that connect at once.
const NEWCOMERS: usize = 16;

/// The work of a client's loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Work {
    /// Writes of 256 bytes to the client's own key
    Puts,
    /// Linearizable reads of the client's own key
    Reads,
    /// Possibly stale reads of the client's own key
    StaleReads,
    /// Acquires and releases of the client's own lock
    Cycles,
    /// Creation and end of a session
    Churn,
    /// One contended lock: from its release to the next holder's grant
    Handoff,
}

impl Work {
    /// All kinds of work.
    pub(crate) const ALL: [Self; 6] =
        [Self::Puts, Self::Reads, Self::StaleReads, Self::Cycles, Self::Churn, Self::Handoff];

    /// Returns its name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Puts => "puts",
            Self::Reads => "reads",
            Self::StaleReads => "stale reads",
            Self::Cycles => "lock+unlock",
            Self::Churn => "sessions",
            Self::Handoff => "hand-off",
        }
    }

    /// Returns the numbers of concurrent clients, one measurement each.
    pub(crate) fn clients(self) -> &'static [usize] {
        if self == Self::Handoff { &[2, 64] } else { &[1, 16, 64, 256] }
    }
}

/// The result of one window.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// The latencies of the operations.
    pub(crate) latencies: Latencies,
    /// The length of the window.
    pub(crate) window: Duration,
}

/// Lets `clients` of a service work for a window of this length. `mark` is called at its beginning
/// and at its end.
pub(crate) async fn run<C: Client>(
    site: &Rc<C::Site>,
    work: Work,
    clients: usize,
    length: Duration,
    mut mark: impl FnMut(),
) -> io::Result<Outcome> {
    let clients = connect::<C>(site, work, clients).await?;
    let latencies = Rc::new(RefCell::new(Latencies::new()));
    let begin = Instant::now() + length.mul_f64(WARM_UP);
    let window = Window { begin, end: begin + length };
    let meter = Meter { window, latencies: Rc::clone(&latencies) };
    let contest = Rc::new(Contest::default());
    let mut loops = JoinSet::new();
    for client in clients {
        let (meter, contest) = (meter.clone(), Rc::clone(&contest));
        loops.spawn_local(async move {
            match work {
                Work::Handoff => contend(client, meter, contest).await,
                _ => repeat(client, meter, work).await,
            }
        });
    }
    tokio::time::sleep_until(begin.into()).await;
    mark();
    let clients = all(loops).await?;
    mark();
    close(clients).await?;
    let latencies = latencies.borrow().clone();
    Ok(Outcome { latencies, window: length })
}

/// Connects clients, a few at once.
async fn connect<C: Client>(site: &Rc<C::Site>, work: Work, count: usize) -> io::Result<Vec<C>> {
    let mut clients = Vec::with_capacity(count);
    for first in (0..count).step_by(NEWCOMERS) {
        let mut newcomers = JoinSet::new();
        for number in first..count.min(first + NEWCOMERS) {
            let site = Rc::clone(site);
            newcomers.spawn_local(async move { C::connect(&site, number, work).await });
        }
        clients.extend(all(newcomers).await?);
    }
    Ok(clients)
}

async fn close<C: Client>(clients: Vec<C>) -> io::Result<()> {
    let mut leaving = JoinSet::new();
    for client in clients {
        leaving.spawn_local(client.close());
    }
    all(leaving).await.map(drop)
}

/// Waits for all; the first error ends it.
async fn all<T: 'static>(mut tasks: JoinSet<io::Result<T>>) -> io::Result<Vec<T>> {
    let mut done = Vec::with_capacity(tasks.len());
    while let Some(finished) = tasks.join_next().await {
        done.push(finished.map_err(io::Error::other)??);
    }
    Ok(done)
}

/// The time in which operations count.
#[derive(Clone, Copy, Debug)]
struct Window {
    begin: Instant,
    end: Instant,
}

/// Records the latencies of the operations within a window.
#[derive(Clone, Debug)]
struct Meter {
    window: Window,
    latencies: Rc<RefCell<Latencies>>,
}

impl Meter {
    /// Records an operation; returns `false` when the time is over.
    fn note(&self, begun: Instant) -> bool {
        let now = Instant::now();
        if begun >= self.window.begin && now <= self.window.end {
            self.latencies.borrow_mut().record(now - begun);
        }
        now < self.window.end
    }
}

async fn repeat<C: Client>(mut client: C, meter: Meter, work: Work) -> io::Result<C> {
    loop {
        let begun = Instant::now();
        match work {
            Work::Puts => client.put().await?,
            Work::Reads => client.read().await?,
            Work::StaleReads => client.read_stale().await?,
            Work::Cycles => client.cycle().await?,
            Work::Churn => client.churn().await?,
            Work::Handoff => unreachable!("a hand-off is no loop of one client"),
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
    /// The number of grants.
    grants: Cell<u64>,
    granted: Notify,
}

impl Contest {
    fn grant(&self) -> io::Result<Option<Instant>> {
        if self.held.replace(true) {
            return Err(io::Error::other("two clients hold one lock at once"));
        }
        self.grants.set(self.grants.get() + 1);
        self.granted.notify_waiters();
        Ok(self.released.take())
    }

    /// Waits until another client was granted the lock, so that the releasing client does not
    /// acquire it again.
    async fn passed_on(&self, grants: u64, end: Instant) {
        while self.grants.get() == grants {
            let granted = self.granted.notified();
            if tokio::time::timeout_at(end.into(), granted).await.is_err() {
                return;
            }
        }
    }
}

/// Runs one contender for the lock. After the window each acquires it once more and leaves.
async fn contend<C: Client>(mut client: C, meter: Meter, contest: Rc<Contest>) -> io::Result<C> {
    loop {
        client.acquire().await?;
        let released = contest.grant()?;
        let in_time = released.is_none_or(|released| meter.note(released));
        let goes_on = in_time && Instant::now() < meter.window.end;
        // Also behind the window: a client that finds the lock free but does not get it waits
        // longer than one that finds it held.
        tokio::time::sleep(HOLD).await;
        let grants = contest.grants.get();
        contest.held.set(false);
        contest.released.set(Some(Instant::now()));
        client.release().await?;
        if !goes_on {
            return Ok(client);
        }
        contest.passed_on(grants, meter.window.end).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Mutex;
    use tokio::task::LocalSet;

    #[test]
    fn only_operations_within_the_window_count() {
        let (now, hour) = (Instant::now(), Duration::from_secs(3600));
        let meter = |begin, end| Meter {
            window: Window { begin, end },
            latencies: Rc::new(RefCell::new(Latencies::new())),
        };
        let open = meter(now, now + hour);
        assert!(open.note(now - Duration::from_millis(1)), "began too early, but the time is not over");
        assert_eq!(open.latencies.borrow().count(), 0);
        assert!(open.note(now));
        assert_eq!(open.latencies.borrow().count(), 1);
        let over = meter(now - hour, now);
        assert!(!over.note(now - hour), "ended too late");
        assert_eq!(over.latencies.borrow().count(), 0);
    }

    /// A service in memory: locks are a mutex, all other operations return at once.
    struct Fake {
        lock: Rc<Mutex<()>>,
        held: Option<tokio::sync::OwnedMutexGuard<()>>,
        shared: std::sync::Arc<Mutex<()>>,
        open: Rc<Cell<usize>>,
    }

    #[derive(Default)]
    struct FakeSite {
        shared: std::sync::Arc<Mutex<()>>,
        open: Rc<Cell<usize>>,
    }

    impl Client for Fake {
        type Site = FakeSite;

        async fn connect(site: &Rc<FakeSite>, _: usize, _: Work) -> io::Result<Self> {
            site.open.set(site.open.get() + 1);
            let (shared, open) = (std::sync::Arc::clone(&site.shared), Rc::clone(&site.open));
            Ok(Self { lock: Rc::default(), held: None, shared, open })
        }

        async fn put(&mut self) -> io::Result<()> {
            tokio::task::yield_now().await;
            Ok(())
        }

        async fn read(&mut self) -> io::Result<()> {
            self.put().await
        }

        async fn read_stale(&mut self) -> io::Result<()> {
            self.put().await
        }

        async fn cycle(&mut self) -> io::Result<()> {
            drop(self.lock.lock().await);
            self.put().await
        }

        async fn churn(&mut self) -> io::Result<()> {
            Err(io::Error::other("no sessions here"))
        }

        async fn acquire(&mut self) -> io::Result<()> {
            self.held = Some(std::sync::Arc::clone(&self.shared).lock_owned().await);
            Ok(())
        }

        async fn release(&mut self) -> io::Result<()> {
            self.held = None;
            self.put().await
        }

        async fn close(self) -> io::Result<()> {
            self.open.set(self.open.get() - 1);
            Ok(())
        }
    }

    #[tokio::test]
    async fn every_client_works_and_leaves() {
        LocalSet::new()
            .run_until(async {
                let site = Rc::new(FakeSite::default());
                let length = Duration::from_millis(60);
                for (work, clients) in [(Work::Puts, 33), (Work::Cycles, 2), (Work::Handoff, 5)] {
                    let mut marks = 0;
                    let outcome =
                        run::<Fake>(&site, work, clients, length, || marks += 1).await.expect("it works");
                    assert!(outcome.latencies.count() > 0, "{work:?}");
                    assert_eq!((site.open.get(), marks), (0, 2));
                }
                let failed = run::<Fake>(&site, Work::Churn, 3, length, || ()).await;
                assert_eq!(failed.expect_err("sessions fail").to_string(), "no sessions here");
            })
            .await;
    }
}
