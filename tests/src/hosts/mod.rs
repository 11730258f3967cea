//! Host failures: three servers and five agents as real processes, each in its own network
//! namespace. A lock is held on one host and awaited on two others.
//!
//! | module | contents |
//! |---|---|
//! | `sandbox` | the namespaces around a run, which leave nothing behind |
//! | `network` | a namespace for each host, a bridge, and links that can be taken down |
//! | `members` | the servers and agents on the hosts |
//! | `guard`, `belief` | `lockmesh lock` on a host, and the times at which its holder believes |
//! | `fault` | the faults |
//! | `flood` | clients that take all connections of a process |
//! | `expectation` | the expected outcome for the lock |
//! | `round` | a holder, two contenders, one fault |
//! | `report` | the outcome of a run |
//! | `outage`, `outage_report` | outages of the servers of 1 to 20 s under locks of all windows |
//! | `jobs` | a run that several sandboxes share |
//! | `idle` | the cost of idle agents |
//! | `crowd`, `traffic` | hundreds of agents on one host, and the traffic on loopback |
//! | `mesh`, `mesh_report` | the cost of their mesh, and how fast it detects joins and failures |
//! | `consul` | the same host failure under Consul |
//!
//! **Invariant:** two holders never believe at the same moment of the clock that all hosts share.
//! Failover is measured by that clock too: from the fault to the first moment that the next holder
//! recorded.

pub mod belief;
pub mod consul;
pub mod crowd;
pub mod expectation;
pub mod fault;
pub mod flood;
pub mod guard;
pub mod idle;
pub mod jobs;
pub mod members;
pub mod mesh;
pub mod mesh_report;
pub mod network;
pub mod outage;
pub mod outage_report;
pub mod report;
pub mod round;
pub mod sandbox;
pub mod traffic;

use crate::process::run;
use expectation::{LockDelay, Window};
use fault::Fault;
use members::{AGENTS, Hosts, SERVERS};
use network::Network;
use report::{Report, Row};
use round::{Plan, Round};
use std::fs;
use std::path::Path;

/// A run.
pub struct Contest<'c> {
    /// The faults, in this order.
    pub faults: &'c [Fault],
    /// The windows of the sessions.
    pub windows: &'c [Window],
    /// The lock-delay of all sessions; `None` for the one that suits each fault.
    pub lock_delay: Option<LockDelay>,
    /// The number of rounds per combination.
    pub rounds: usize,
    /// The folder for the logs.
    pub keep: &'c Path,
}

impl Contest<'_> {
    /// Runs everything, inside the sandbox with this folder.
    pub fn run(&self, folder: &Path) -> Report {
        let shortest_ttl = Window::shortest_ttl(self.windows);
        let is_limited = self.faults.iter().any(Fault::needs_limits);
        let mut hosts = Hosts::start_with(connect(), folder, shortest_ttl, is_limited);
        let mut report = Report { rows: Vec::new(), skipped: Vec::new() };
        for fault in self.faults {
            if let Some(command) = fault.command().filter(|command| !knows(&[command])) {
                let line = format!("{}: this build has no `lockmesh {command}`", fault.name);
                report.skipped.push(line);
                continue;
            }
            let lock_delay = self.lock_delay.unwrap_or(fault.lock_delay());
            for window in self.windows {
                let rounds = (1..=self.rounds).map(|number| {
                    self.round(&mut hosts, Plan { fault, window: *window, lock_delay, number })
                });
                report.rows.push(Row::new(fault, *window, lock_delay, rounds.collect()));
            }
        }
        hosts.save_said(self.keep);
        report
    }

    fn round(&self, hosts: &mut Hosts, plan: Plan<'_>) -> Round {
        let round = plan.run(hosts);
        let outcome = match round.seconds {
            Some(seconds) => format!("passed on after {seconds:.2} s"),
            None if round.kept => "kept".into(),
            None => "no holder at the end".into(),
        };
        eprintln!("{}, {}, round {}: {outcome}", round.fault, round.window, round.number);
        let name = format!("{}-{}-{}.log", round.fault, round.window, round.number);
        fs::write(self.keep.join(name), &round.said).expect("the folder can be written to");
        round
    }
}

/// Returns the requested windows; without any, those of the failover measurements.
///
/// # Errors
/// The program does not support one of the windows. Nothing was run.
pub fn windows(asked: &[Window]) -> Result<Vec<Window>, String> {
    let has_classes = knows(&["lock", "--window", "fast"]);
    let asked = match (asked.is_empty(), has_classes) {
        (true, true) => &[Window::Fast, Window::Default],
        (true, false) => &[Window::Ttl][..],
        (false, _) => asked,
    };
    match asked.iter().find(|window| !has_classes && window.class().is_some()) {
        Some(window) => {
            Err(format!("unsupported window {window}: this build has no `lockmesh lock --window`"))
        }
        None => Ok(asked.to_vec()),
    }
}

/// Connects the hosts' network, in the sandbox.
pub(crate) fn connect() -> Network {
    Network::new(&[&SERVERS[..], &AGENTS].concat())
}

/// Returns `true` if the program knows a command with these options.
fn knows(words: &[&str]) -> bool {
    run(&[words, &["--help"]].concat()).0 == 0
}
