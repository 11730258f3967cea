//! Fault injection on real processes: three servers and two agents under a recorded mixed load,
//! struck by one fault after another.
//!
//! | module | contents |
//! |---|---|
//! | `caller` | sends a history's requests over HTTP and records the replies |
//! | `load` | the clients |
//! | `proxy` | the network between the processes |
//! | `faults` | the faults |
//! | `report` | the outcome of a round |
//!
//! **Invariant:** verdicts rest on the clients' histories alone. No test reads a server's
//! internals.

mod caller;
pub mod faults;
mod load;
pub mod proxy;
mod report;

pub use report::{Report, Struck, Told};

use crate::cluster::Cluster;
use crate::dialect::let_pass;
use crate::history::operation::{Moment, Outcome, Request};
use crate::history::{Bounds, History, check_within};
use faults::Fault;
use load::{FEW, MANY, Stage};
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The duration of an epoch of keys.
const EPOCH: Duration = Duration::from_secs(3);
/// The first client number of the second agent.
const SECOND: u32 = 1_000;
/// The number of the client that reads everything at the end.
const LAST: u32 = SECOND - 1;
/// The default number of clients.
pub const CLIENTS: usize = MANY.len() + FEW.len();
/// The maximum number of clients: the clients that wake watchers and read at the end have numbers
/// of their own.
pub const MOST_CLIENTS: usize = 900;
/// The bounds for histories. A watch may sleep for as long as its server may be stopped or cut off,
/// plus a margin.
pub const BOUNDS: Bounds = Bounds { wake_limit: Duration::from_secs(25), independently: true };

/// A round: a new cluster and a list of faults.
pub struct Round<'r> {
    /// Three small disks.
    pub disks: &'r [PathBuf],
    /// The faults, in this order.
    pub faults: &'r [Fault],
    /// The duration of each fault.
    pub length: Duration,
    /// The number of clients.
    pub clients: usize,
    /// The seed of all random choices.
    pub seed: u64,
    /// The folder for the history and the logs.
    pub keep: &'r Path,
}

impl Round<'_> {
    /// Runs the round.
    pub fn run(&self) -> Report {
        let mut cluster = Cluster::start(self.disks, &[&[0, 1, 2], &[0, 1, 2]], self.seed);
        cluster.wait_until_whole();
        let stage = Arc::new(Stage::new(self.clients));
        let ticking = Arc::clone(&stage);
        let clock = thread::spawn(move || {
            while !ticking.ended.load(Ordering::Relaxed) {
                let_pass(EPOCH);
                ticking.epoch.fetch_add(1, Ordering::Relaxed);
            }
        });
        let of_first = MANY.into_iter().cycle().take(self.clients.saturating_sub(FEW.len()));
        let mut clients = load::start(&stage, &cluster.client(0), 1, of_first, self.seed);
        clients.extend(load::start(&stage, &cluster.client(1), SECOND, FEW.into_iter(), self.seed));
        let spans: Vec<Span> =
            self.faults.iter().map(|fault| self.strike(&mut cluster, &stage, fault)).collect();
        stage.ended.store(true, Ordering::Relaxed);
        clock.join().expect("the clock does not panic");
        // A client that read `ended` just before it was set may start to wait after its wake-up.
        // The waker therefore repeats until all clients have finished.
        let mut waker = load::Waker::new(&stage, &cluster.client(0), LAST - 1);
        while !clients.iter().all(JoinHandle::is_finished) {
            waker.wake();
        }
        clients.into_iter().for_each(|client| client.join().expect("clients do not panic"));
        for agent in 0..2 {
            load::read_all(&stage, &cluster.client(agent), LAST);
        }
        cluster.save_said(self.keep);
        self.judge(&stage.recorder.history(), &spans)
    }

    fn strike(&self, cluster: &mut Cluster, stage: &Stage, fault: &Fault) -> Span {
        eprintln!("{}: {}", stage.recorder.now(), fault.name);
        let begun = stage.recorder.now();
        (fault.strike)(cluster, self.length);
        let undone = stage.recorder.now();
        cluster.wait_until_whole();
        Span { fault: *fault, begun, undone, ended: stage.recorder.now() }
    }

    fn judge(&self, history: &History, spans: &[Span]) -> Report {
        let file = File::create(self.keep.join("history.jsonl")).expect("the folder can be written to");
        history.write(BufWriter::new(file)).expect("the history can be written");
        // The checkers may need minutes for a difficult history; this line explains the wait.
        eprintln!("checking {} operations", history.operations.len());
        let begun = Instant::now();
        let verdict = check_within(history, &BOUNDS);
        let check_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let faults = spans.iter().map(|span| {
            let mut struck = Struck::new(span.fault.name, history, (span.begun, span.ended), SECOND);
            struck.whole_after_ms = (span.ended.0 - span.undone.0) / 1_000_000;
            struck.count(history, &verdict.violations);
            struck
        });
        let faults = faults.collect();
        let unnoticed = spans.iter().filter(|span| span.fault.unnoticed);
        let failed_unnoticed = unnoticed.flat_map(|span| span.failed_writes(history)).collect();
        let clients = Told::all(history);
        Report { seed: self.seed, faults, clients, verdict, failed_unnoticed, check_ms }
    }
}

/// The times at which a fault began, was undone and had no effect left.
struct Span {
    fault: Fault,
    begun: Moment,
    undone: Moment,
    ended: Moment,
}

impl Span {
    fn failed_writes(&self, history: &History) -> Vec<String> {
        let failed = history.operations.iter().filter(|operation| {
            let is_write = matches!(operation.request, Request::Write(_) | Request::Renew(_));
            let is_here = self.begun <= operation.begun && operation.ended < self.ended;
            is_write && is_here && !matches!(operation.outcome, Outcome::Answered { .. })
        });
        failed.map(|operation| format!("{}: {operation}", self.fault.name)).collect()
    }
}

/// Creates an empty folder for the output of a round.
pub fn fresh_folder(path: PathBuf) -> PathBuf {
    // An error means that the folder does not exist yet.
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("the folder can be made");
    path
}
