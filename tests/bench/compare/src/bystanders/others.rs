//! Clients that write and read while one lists or deletes: the duration of each of their requests.

use crate::client::Client;
use crate::client::lockmesh::{Lockmesh as Worker, Site};
use crate::latency::Latencies;
use crate::work::Work;
use std::cell::{Cell, RefCell};
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The pause of a reader between two reads: it measures, and causes no load.
const READER_INTERVAL: Duration = Duration::from_millis(2);

/// The pause after a failed request.
const FAILURE_BACKOFF: Duration = Duration::from_millis(20);

/// The kinds of work, in the order of the findings.
pub(super) const WORKS: [Work; 3] = [Work::Puts, Work::Reads, Work::StaleReads];

/// The other clients.
#[derive(Debug)]
pub(super) struct Others {
    /// The agent of the clients that write in closed loops, and of one that reads.
    pub(super) writers: PathBuf,
    pub(super) writer_count: u32,
    /// The agents of the clients that make stale reads.
    pub(super) readers: Vec<PathBuf>,
}

/// The latencies of one kind of work.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) latencies: Latencies,
    pub(super) failures: u64,
    pub(super) time: Duration,
}

struct Meter {
    latencies: RefCell<Latencies>,
    failures: Cell<u64>,
}

impl Others {
    /// Runs the clients until a future ends; returns its result, and their latencies by [`WORKS`].
    pub(super) async fn work<T>(&self, something: impl Future<Output = T>) -> io::Result<(T, [Seen; 3])> {
        let meters = WORKS
            .map(|_| Rc::new(Meter { latencies: RefCell::new(Latencies::new()), failures: Cell::new(0) }));
        let over = Rc::new(Cell::new(false));
        let mut loops = JoinSet::new();
        for (number, (work, socket)) in self.everybody().into_iter().enumerate() {
            let at = WORKS.iter().position(|known| *known == work).expect("it is one of these");
            let (over, meter, site) = (Rc::clone(&over), Rc::clone(&meters[at]), Rc::new(Site { socket }));
            let mut client = connect(&site, number, work).await?;
            loops.spawn_local(async move {
                while !over.get() {
                    let begun = Instant::now();
                    let done = one(&mut client, work).await;
                    meter.latencies.borrow_mut().record(begun.elapsed());
                    if done.is_err() {
                        meter.failures.set(meter.failures.get() + 1);
                        tokio::time::sleep(FAILURE_BACKOFF).await;
                        client = connect(&site, number, work).await?;
                    } else if work != Work::Puts {
                        tokio::time::sleep(READER_INTERVAL).await;
                    }
                }
                io::Result::Ok(())
            });
        }
        let begun = Instant::now();
        let outcome = something.await;
        over.set(true);
        while let Some(done) = loops.join_next().await {
            done.map_err(io::Error::other)??;
        }
        let time = begun.elapsed();
        let seen = meters.map(|meter| Seen {
            latencies: meter.latencies.borrow().clone(),
            failures: meter.failures.get(),
            time,
        });
        Ok((outcome, seen))
    }

    fn everybody(&self) -> Vec<(Work, PathBuf)> {
        let writers = (0..self.writer_count).map(|_| (Work::Puts, self.writers.clone()));
        let reader = [(Work::Reads, self.writers.clone())];
        let stale = self.readers.iter().map(|socket| (Work::StaleReads, socket.clone()));
        writers.chain(reader).chain(stale).collect()
    }
}

/// Connects, with retries while there is no leader: a client for reads writes its key first.
async fn connect(site: &Rc<Site>, number: usize, work: Work) -> io::Result<Worker> {
    let deadline = Instant::now() + crate::cluster::TIMEOUT;
    loop {
        match Worker::connect(site, number, work).await {
            Ok(client) => return Ok(client),
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => tokio::time::sleep(FAILURE_BACKOFF).await,
        }
    }
}

async fn one(client: &mut Worker, work: Work) -> io::Result<()> {
    match work {
        Work::Puts => client.put().await,
        Work::Reads => client.read().await,
        _ => match client.read_stale().await {
            // A server that lags does not have the key yet.
            Err(error) if error.to_string().contains("not there") => Ok(()),
            other => other,
        },
    }
}
