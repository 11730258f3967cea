//! Hosts that die: three servers and five agents as real processes, each in a network namespace of
//! its own, while a lock is held on one host and waited for on two others.
//!
//! | module | is |
//! |---|---|
//! | `sandbox` | the namespaces around everything, which leave nothing behind |
//! | `network` | a namespace for each host, a bridge, and cables that can be pulled |
//! | `member`, `members` | a server or an agent in all of its lives; all of them on the hosts |
//! | `guard`, `belief` | `lockmesh lock` on a host, and what its holder believes when |
//! | `fault` | what is done to the hosts |
//! | `expectation` | what must become of the lock then |
//! | `round` | a holder, two contenders, one fault |
//! | `report` | what came of it |
//! | `outage`, `outage_report` | servers that are stopped for 1 to 20 s under locks of all windows |
//! | `jobs` | a run that several sandboxes share |
//! | `idle` | what agents cost while nothing happens |
//! | `crowd`, `traffic` | very many agents on one host instead, and what loopback carries |
//! | `mesh`, `mesh_report` | what their mesh costs, and how soon it knows who came and who died |
//! | `consul` | the same end of a host beside Consul |
//!
//! **Invariant:** two holders never believe at the same moment of the clock that all hosts share.
//! What is measured is measured there too: from the fault to the first moment that the next holder
//! wrote down.

pub mod belief;
pub mod consul;
pub mod crowd;
pub mod expectation;
pub mod fault;
pub mod guard;
pub mod idle;
pub mod jobs;
pub mod member;
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

/// What to run.
pub struct Contest<'c> {
    /// What happens, in this order.
    pub faults: &'c [Fault],
    /// Which sessions hold.
    pub windows: &'c [Window],
    /// The lock-delay of all sessions; `None` for the one that suits each fault.
    pub lock_delay: Option<LockDelay>,
    /// How often each.
    pub rounds: usize,
    /// Where the logs are kept.
    pub keep: &'c Path,
}

impl Contest<'_> {
    /// Runs it, inside of the sandbox, whose folder is named.
    pub fn run(&self, folder: &Path) -> Report {
        let mut hosts = Hosts::start(connect(), folder, Window::shortest_ttl(self.windows));
        let mut report = Report { rows: Vec::new(), skipped: Vec::new() };
        for fault in self.faults {
            if let Some(command) = fault.command().filter(|command| !knows(&[command])) {
                let line = format!("{}: this lockmesh has no `lockmesh {command}`", fault.name);
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
            None => "believed in by nobody".into(),
        };
        eprintln!("{}, {}, round {}: {outcome}", round.fault, round.window, round.number);
        let name = format!("{}-{}-{}.log", round.fault, round.window, round.number);
        fs::write(self.keep.join(name), &round.said).expect("the folder can be written to");
        round
    }
}

/// The windows that were asked for; without any, those whose time is what people wait for.
///
/// # Errors
/// The program cannot be asked for one of them. Nothing was run.
pub fn windows(asked: &[Window]) -> Result<Vec<Window>, String> {
    let has_classes = knows(&["lock", "--window", "fast"]);
    let asked = match (asked.is_empty(), has_classes) {
        (true, true) => &[Window::Fast, Window::Default],
        (true, false) => &[Window::Ttl][..],
        (false, _) => asked,
    };
    match asked.iter().find(|window| !has_classes && window.class().is_some()) {
        Some(window) => {
            Err(format!("no session can be {window}: this lockmesh has no `lockmesh lock --window`"))
        }
        None => Ok(asked.to_vec()),
    }
}

/// The hosts' network, in the sandbox.
fn connect() -> Network {
    Network::new(&[&SERVERS[..], &AGENTS].concat())
}

/// Whether the program knows a command with these options.
fn knows(words: &[&str]) -> bool {
    run(&[words, &["--help"]].concat()).0 == 0
}
