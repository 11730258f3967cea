//! Server outages of various lengths: a majority of the servers or all of them are stopped.
//! Meanwhile a lock of each window is held on its own host and awaited on another.
//!
//! **Expected:** one second after the servers are back, each lock is held: its guard still
//! believes, or the next holder's does, unless its host was silent as long and it lost the lock
//! too. Two holders never believe at the same moment. The servers are back when a majority of their
//! processes runs again; the second includes an election.

use super::belief::{Belief, BootTime, overlaps};
use super::connect;
use super::expectation::{LockDelay, Window};
use super::guard::{Guard, Hold, records};
use super::members::{AGENTS, Hosts, SERVERS, TIMEOUT, wait_within};
use super::outage_report::{OutageReport, OutageRow};
use super::round::{losses_of, waiters};
use crate::cluster::idle_write;
use crate::dialect::let_pass;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The host of each window's holder; separate hosts, because an agent renews by the shortest window
/// in use on it.
const HOLDERS: [(Window, &str); 3] =
    [(Window::Fast, AGENTS[0]), (Window::Default, AGENTS[1]), (Window::Safe, AGENTS[2])];
/// The host of all waiters.
const CONTENDER: &str = AGENTS[3];
/// The host of an agent without sessions.
const OBSERVER: &str = AGENTS[4];
/// A holder that still believes this long after the servers are back has kept its lock.
const AFTERMATH: Duration = Duration::from_secs(3);
/// The maximum wait for the next holder, in addition to the lock-delay.
const LONGEST: Duration = Duration::from_secs(60);
/// A guard that has recorded nothing for this time, in seconds, no longer believes.
const SILENCE: f64 = 1.0;

/// The number of servers that are stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The leader and one other server.
    Two,
    /// All servers.
    All,
}

impl Stopped {
    /// Returns the number of servers.
    pub const fn count(self) -> usize {
        match self {
            Self::Two => 2,
            Self::All => SERVERS.len(),
        }
    }

    fn servers(self, leader: &'static str) -> Vec<&'static str> {
        let others = SERVERS.into_iter().filter(|server| *server != leader);
        [leader].into_iter().chain(others).take(self.count()).collect()
    }
}

/// Outages to cause, one after another.
pub struct Outages<'o> {
    /// The numbers of stopped servers.
    pub stopped: &'o [Stopped],
    /// The lengths in seconds.
    pub lengths: &'o [u64],
    /// The number of rounds per combination.
    pub rounds: usize,
    /// The lock-delay of all sessions.
    pub lock_delay: LockDelay,
    /// The folder for the logs.
    pub keep: &'o Path,
}

/// One outage.
#[derive(Clone, Copy)]
struct Outage {
    stopped: Stopped,
    seconds: u64,
    round: usize,
    lock_delay: LockDelay,
}

/// A lock with its holder and its waiter.
struct Contended {
    window: Window,
    name: String,
    host: &'static str,
    holder: Guard,
    contender: Guard,
}

impl Outages<'_> {
    /// Causes the outages, inside the sandbox with this folder.
    pub fn run(&self, folder: &Path) -> OutageReport {
        let hosts = Hosts::start(connect(), folder, None);
        let mut rows = Vec::new();
        for (&seconds, &stopped) in self.lengths.iter().flat_map(|l| self.stopped.iter().map(move |s| (l, s)))
        {
            for round in 1..=self.rounds {
                let outage = Outage { stopped, seconds, round, lock_delay: self.lock_delay };
                let (found, said) = outage.run(&hosts);
                found.iter().for_each(|row| eprintln!("{row}"));
                rows.extend(found);
                let log = format!("outage-{}-{seconds}s-{round}.log", stopped.count());
                fs::write(self.keep.join(log), said).expect("the folder can be written to");
            }
        }
        hosts.save_said(self.keep);
        OutageReport { rows }
    }
}

impl Outage {
    /// Causes the outage. Returns a row for each window and the guards' output.
    fn run(self, hosts: &Hosts) -> (Vec<OutageRow>, String) {
        let locks = self.prepare(hosts);
        let servers = self.stopped.servers(hosts.leader(OBSERVER));
        let struck = BootTime::now();
        servers.iter().for_each(|server| hosts.freeze(server));
        let taken = Duration::from_secs_f64(BootTime::now().since(struck));
        let_pass(Duration::from_secs(self.seconds).saturating_sub(taken));
        servers.iter().for_each(|server| hosts.thaw(server));
        // Resuming all of them took some milliseconds.
        let resumed = BootTime::now();
        let back = serving_again(hosts);
        let_pass(AFTERMATH);
        let mut rows = Vec::new();
        let mut said = String::new();
        for lock in locks {
            let (row, words) = self.settle(hosts, lock, (resumed, back));
            rows.push(row);
            said.push_str(&words);
        }
        hosts.wait_until_whole();
        (rows, said)
    }

    fn prepare(self, hosts: &Hosts) -> Vec<Contended> {
        let title = format!("outage-{}-{}-{}", self.stopped.count(), self.seconds, self.round);
        let folder = records(&hosts.folder, &title);
        let begin = |(window, host): (Window, &'static str)| {
            let name = format!("{title}-{window}");
            let hold = Hold { name: &name, window, lock_delay: self.lock_delay };
            let holder = hold.start(hosts, host, &folder.join(window.name()));
            hosts.wait_for("a holder", || holder.belief());
            let contender = hold.start(hosts, CONTENDER, &folder.join(format!("{window}-next")));
            Contended { window, name, host, holder, contender }
        };
        let locks: Vec<Contended> = HOLDERS.into_iter().map(begin).collect();
        for lock in &locks {
            let is_waited_for = || (waiters(hosts, CONTENDER, &lock.name)? == 1).then_some(());
            hosts.wait_for("one that waits for the lock", is_waited_for);
        }
        locks
    }

    /// Waits until the lock is held again, and summarizes the outage.
    fn settle(self, hosts: &Hosts, lock: Contended, times: (BootTime, BootTime)) -> (OutageRow, String) {
        let (resumed, back) = times;
        let believes =
            |guard: &Guard| guard.belief().is_some_and(|belief| BootTime::now().since(belief.last) < SILENCE);
        let is_settled =
            || believes(&lock.holder) || lock.contender.belief().is_some() || lock.contender.has_lost();
        wait_within(LONGEST + self.lock_delay.length(), || is_settled().then_some(()));
        let next = lock.contender.belief();
        let lost_again = next.is_none() && lock.contender.has_lost();
        let kept = next.is_none() && believes(&lock.holder);
        let losses = losses_of(hosts, OBSERVER, &lock.name, lock.host);
        let causes: BTreeSet<String> =
            losses.iter().map(|loss| loss["Cause"].as_str().unwrap_or("unnamed").to_owned()).collect();
        let ended = [lock.holder, lock.contender].map(Guard::end);
        let beliefs: Vec<Belief> = ended.iter().filter_map(|(belief, _)| *belief).collect();
        let last = ended[0].0.expect("it held the lock").last;
        let mut row = OutageRow {
            stopped: self.stopped.count(),
            seconds: self.seconds,
            round: self.round,
            window: lock.window,
            back_seconds: back.since(resumed),
            kept,
            // While the holder still believed, the lock was not stuck.
            stuck_seconds: next.map(|next| next.first.since(resumed.max(last)).max(0.0)),
            lost_again,
            overlaps: overlaps(&beliefs),
            causes,
            broken: Vec::new(),
        };
        row.judge(self.lock_delay);
        (row, ended.into_iter().map(|(_, said)| said).collect())
    }
}

/// Waits until a write succeeds at the idle agent or at the contender's. Returns that moment.
fn serving_again(hosts: &Hosts) -> BootTime {
    let (answered, first) = mpsc::sync_channel(1);
    for host in [OBSERVER, CONTENDER] {
        let (client, answered) = (hosts.client(host), answered.clone());
        thread::spawn(move || {
            if wait_within(TIMEOUT, || idle_write(&client)).is_some() {
                // The other agent may have been first; then the channel is full or the receiver is
                // gone.
                let _ = answered.try_send(BootTime::now());
            }
        });
    }
    drop(answered);
    first.recv().expect("the servers serve again within a minute")
}
