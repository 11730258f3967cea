//! Chaos on real processes: three servers and two agents under a recorded mixed load, struck by one
//! fault after the other.
//!
//! | module | is |
//! |---|---|
//! | `caller` | asks over HTTP in the words of a history |
//! | `load` | the clients |
//! | `proxy` | the network between the processes |
//! | `faults` | what is done to them |
//! | `report` | what came of it |
//!
//! **Invariant:** only clients' histories are believed. Nothing is looked up inside a server.

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

/// How long an epoch of keys lasts.
const EPOCH: Duration = Duration::from_secs(3);
/// The clients of the second agent have numbers from here on.
const SECOND: u32 = 1_000;
/// The one who reads everything at the end.
const LAST: u32 = SECOND - 1;
/// How many clients there are unless told otherwise.
pub const CLIENTS: usize = MANY.len() + FEW.len();
/// How many there may be: those who wake and read at the end have numbers of their own.
pub const MOST_CLIENTS: usize = 900;
/// What histories are held to. A watch may sleep as long as its server may be stopped or cut off,
/// and then some.
pub const BOUNDS: Bounds = Bounds { wake_limit: Duration::from_secs(25), independently: true };

/// A round: a fresh cluster, and these faults.
pub struct Round<'r> {
    /// Three small disks.
    pub disks: &'r [PathBuf],
    /// What is done.
    pub faults: &'r [Fault],
    /// How long each fault is held.
    pub length: Duration,
    /// How many clients there are.
    pub clients: usize,
    /// What chance begins with.
    pub seed: u64,
    /// Where history and logs are kept.
    pub keep: &'r Path,
}

impl Round<'_> {
    /// Runs it.
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
        // Whoever looked whether it is over just before it was may begin to wait after it was
        // woken: so until all are done.
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
        // What it cannot explain at once it looks at for minutes: whoever waits shall know for
        // what.
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

/// When a fault was done and undone, and when the cluster was whole again.
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

/// An empty folder for what a round leaves behind.
pub fn fresh_folder(path: PathBuf) -> PathBuf {
    // An error means that there is none yet.
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("the folder can be made");
    path
}
