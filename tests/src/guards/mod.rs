//! The command under a lock never outlives the lock: `lockmesh lock`, its supervisor, its agent and
//! its outputs are killed, stopped, cut off and filled, while another host waits for the lock.
//!
//! | module | contents |
//! |---|---|
//! | `command` | the command, which records the moments at which its processes ran |
//! | `fault` | the faults |
//! | `holder` | `lockmesh lock` with its supervisor, as a job of a shell |
//! | `round` | a holder, a fault, the next holder |
//! | `report` | the outcome of a run |
//!
//! **Invariant:** no process of the former command runs when the next one does, by the clock that
//! all hosts share and by the records of the commands themselves.
//!
//! Servers, agents and their network are those of [`hosts`](crate::hosts).

pub mod command;
pub mod fault;
pub mod holder;
pub mod report;
pub mod round;

use crate::hosts::connect;
use crate::hosts::members::Hosts;
use fault::Fault;
use report::{Report, Row};
use round::{Fixed, Round, Variant};
use std::path::Path;
use std::time::Duration;

/// A run.
pub struct Run<'r> {
    /// The faults, in this order.
    pub faults: &'r [Fault],
    /// The number of rounds per fault.
    pub rounds: usize,
    /// The choices that do not alternate.
    pub fixed: Fixed,
    /// The maximum time from the end of a command to the next one's start, if the supervisor lives.
    pub limit: Duration,
    /// The folder for the logs.
    pub keep: &'r Path,
}

impl Run<'_> {
    /// Runs everything, inside the sandbox with this folder.
    pub fn run(&self, folder: &Path) -> Report {
        let mut hosts = Hosts::start(connect(), folder, None);
        let mut rows = Vec::new();
        for fault in self.faults {
            // Faults begin with different variants, so a single round of each has many.
            let first = fault::ALL.iter().position(|known| known == fault).expect("it is one of them");
            let rounds = (first..first + self.rounds).map(|number| {
                let variant = Variant::of(fault, number, self.fixed);
                let round = Round::run(fault, number, variant, &mut hosts, self.keep);
                eprintln!("{}, round {number}, {variant}: {round}", fault.name);
                round
            });
            let rounds = rounds.collect();
            rows.push(Row { fault: *fault, rounds });
        }
        hosts.save_said(self.keep);
        Report { rows, limit: self.limit }
    }
}
