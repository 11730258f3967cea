//! Kills the host of a lock's holder, in network namespaces, and measures the failover to the next
//! holder: `hosts [--rounds N] [--fault NAME]… [--window fast|default|safe|ttl]… [--lock-delay
//! none|shipped] [--json] [--binary PATH]`; `hosts --list` lists the faults. The last two, in which
//! clients flood processes with small limits, run only if named. Agents and sessions have the
//! default configuration, except for the lock-delay: most faults run without one, because it would
//! hide two holders at the same moment.
//!
//! `hosts --outages [--stopped 2|3]… [--length SECONDS]… [--rounds N] [--lock-delay none|shipped]
//! [--json]` stops two or all of the servers, by default for 1 to 20 s, under locks of all windows.
//! It measures the time from the servers' return until each lock is held.
//!
//! Both accept `--jobs N`, which distributes the work over N concurrent sandboxes.
//!
//! `hosts --beside-consul PATH [--rounds N] [--window NAME]… [--json]` compares the loss of a link
//! with Consul, whose program `tests/src/hosts/fetch_consul.sh` downloads.
//!
//! `hosts --idle [--seconds N] [--json]` measures idle agents without a session, with a default and
//! with a fast one, by default for a minute.
//!
//! `hosts --mesh [--agents N] [--seconds N] [--json]` starts agents on one host, by default a
//! hundred, leaves them idle, by default for a minute, kills three tenths of them at once and
//! restarts them. It measures the cost of their mesh and its detection times.
//!
//! Needs root. Everything runs in a sandbox that leaves nothing behind. If an expectation is
//! broken, the logs stay in `target/hosts/`. Exits with 1 in that case, and with 2 if nothing could
//! be run.

use clap::Parser;
use lockmesh_tests::binary;
use lockmesh_tests::hosts::belief::believe;
use lockmesh_tests::hosts::consul::Comparison;
use lockmesh_tests::hosts::expectation::{LockDelay, Window};
use lockmesh_tests::hosts::fault::{self, Fault};
use lockmesh_tests::hosts::jobs::{self, Part};
use lockmesh_tests::hosts::outage::{Outages, Stopped};
use lockmesh_tests::hosts::{Contest, idle, mesh, sandbox, windows};
use lockmesh_tests::options::{between, exit_code, named, print};
use std::ffi::OsString;
use std::fs;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The default number of failovers per system in the comparison with Consul.
const ROUNDS_BESIDE_CONSUL: usize = 5;
/// The default time for which idle agents are measured, in seconds.
const IDLE_SECONDS: u64 = 60;
/// The default number of agents in the mesh.
const MESH_AGENTS: usize = 100;
/// The default number of rounds per fault.
const ROUNDS: usize = 10;
/// The default lengths of outages in seconds.
const LENGTHS: RangeInclusive<u64> = 1..=20;
/// The approximate time to prepare and end a round.
const PREPARATION: Duration = Duration::from_secs(5);

#[derive(Parser)]
struct Options {
    #[arg(long, value_parser = between::<1, 1000, usize>)]
    rounds: Option<usize>,
    #[arg(long = "fault", value_parser = fault)]
    faults: Vec<Fault>,
    #[arg(long = "window", value_parser = window)]
    windows: Vec<Window>,
    #[arg(long, value_parser = lock_delay)]
    lock_delay: Option<LockDelay>,
    #[arg(long)]
    json: bool,
    #[arg(long, value_parser = sandbox::program)]
    binary: Option<PathBuf>,
    #[arg(long, value_parser = sandbox::program, conflicts_with = "faults")]
    beside_consul: Option<PathBuf>,
    #[arg(long)]
    idle: bool,
    #[arg(long)]
    mesh: bool,
    #[arg(long)]
    outages: bool,
    #[arg(long, value_parser = stopped)]
    stopped: Vec<Stopped>,
    #[arg(long = "length", value_parser = length)]
    lengths: Vec<u64>,
    /// Prints a table of faults or outages.
    #[arg(long, value_parser = between::<1, 32, usize>, conflicts_with_all = ["json", "beside_consul", "mesh"])]
    jobs: Option<usize>,
    #[arg(long, value_parser = between::<2, 1000, usize>, requires = "mesh")]
    agents: Option<usize>,
    #[arg(long, value_parser = between::<1, 3600, u64>)]
    seconds: Option<u64>,
    #[arg(long)]
    list: bool,
    #[arg(long, hide = true)]
    inside: bool,
    #[arg(long, hide = true)]
    believe: Option<PathBuf>,
}

fn main() -> ExitCode {
    Options::parse().run().unwrap_or_else(|error| exit_code(Err(error)))
}

impl Options {
    fn run(&self) -> Result<ExitCode, String> {
        if let Some(record) = &self.believe {
            believe(record);
        }
        if self.list {
            fault::every().for_each(|fault| println!("{}", fault.name));
            return Ok(ExitCode::SUCCESS);
        }
        if self.inside {
            return self.run_inside();
        }
        // Built before the sandbox, which has no network.
        let program = self.binary.clone().unwrap_or_else(|| binary::lockmesh().to_path_buf());
        let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
        let environment = [("LOCKMESH_BIN", program.into_os_string())];
        match self.jobs {
            Some(jobs) => jobs::run(self.parts(), jobs, &jobs::shared(&arguments), &environment),
            None => sandbox::enter(&arguments, &environment),
        }
    }

    /// Returns the parts that can run in different sandboxes.
    fn parts(&self) -> Vec<Part> {
        if self.outages {
            let part = |seconds: u64| {
                let length = Duration::from_secs(seconds) + PREPARATION;
                Part { option: "--length", value: format!("{seconds}s"), length }
            };
            return self.lengths().into_iter().map(part).collect();
        }
        let windows = if self.windows.is_empty() { &Window::ALL[..2] } else { &self.windows };
        let part = |fault: &Fault| {
            let each = windows.iter().map(|window| fault.usual_length(*window) + PREPARATION);
            Part { option: "--fault", value: fault.name.into(), length: each.sum() }
        };
        self.faults().iter().map(part).collect()
    }

    /// Returns the requested faults, in order of execution.
    fn faults(&self) -> Vec<Fault> {
        match self.faults.is_empty() {
            true => fault::ALL.to_vec(),
            false => fault::every().filter(|fault| self.faults.contains(fault)).collect(),
        }
    }

    fn lengths(&self) -> Vec<u64> {
        if self.lengths.is_empty() { LENGTHS.collect() } else { self.lengths.clone() }
    }

    fn run_inside(&self) -> Result<ExitCode, String> {
        let windows = windows(&self.windows)?;
        let folder = sandbox::prepare();
        let logs = folder.join("logs");
        fs::create_dir(&logs).expect("the folder can be written to");
        let length = Duration::from_secs(self.seconds.unwrap_or(IDLE_SECONDS));
        if self.idle {
            print(&idle::measure(&folder, length), self.json);
            return Ok(ExitCode::SUCCESS);
        }
        let is_clean = match &self.beside_consul {
            None if self.mesh => {
                let agents = self.agents.unwrap_or(MESH_AGENTS);
                let report = mesh::measure(&folder, &logs, agents, length);
                print(&report, self.json);
                report.is_clean()
            }
            Some(consul) => {
                let rounds = self.rounds.unwrap_or(ROUNDS_BESIDE_CONSUL);
                let comparison = Comparison::run(consul, &windows, rounds, &folder, &logs);
                print(&comparison, self.json);
                comparison.is_clean()
            }
            None if self.outages => {
                let stopped =
                    if self.stopped.is_empty() { &[Stopped::Two, Stopped::All] } else { &*self.stopped };
                let (lengths, rounds) = (&*self.lengths(), self.rounds.unwrap_or(1));
                let lock_delay = self.lock_delay.unwrap_or(LockDelay::None);
                let report = Outages { stopped, lengths, rounds, lock_delay, keep: &logs }.run(&folder);
                print(&report, self.json);
                report.is_clean()
            }
            None => {
                let faults = &*self.faults();
                let rounds = self.rounds.unwrap_or(ROUNDS);
                let lock_delay = self.lock_delay;
                let contest = Contest { faults, windows: &windows, lock_delay, rounds, keep: &logs };
                let report = contest.run(&folder);
                print(&report, self.json);
                report.is_clean()
            }
        };
        if is_clean {
            return Ok(ExitCode::SUCCESS);
        }
        eprintln!("the logs of this run are in {}", sandbox::keep(&logs).display());
        Ok(ExitCode::FAILURE)
    }
}

fn fault(word: &str) -> Result<Fault, String> {
    let found = fault::every().find(|fault| fault.name == word);
    found.ok_or_else(|| "unknown fault; --list prints all".into())
}

fn window(word: &str) -> Result<Window, String> {
    named(word, Window::ALL, |window| window.name())
}

fn length(word: &str) -> Result<u64, String> {
    between::<1, 3600, u64>(word.trim_end_matches('s'))
}

fn stopped(word: &str) -> Result<Stopped, String> {
    match word {
        "2" => Ok(Stopped::Two),
        "3" => Ok(Stopped::All),
        _ => Err("expected 2 or 3".into()),
    }
}

fn lock_delay(word: &str) -> Result<LockDelay, String> {
    match word {
        "none" => Ok(LockDelay::None),
        "shipped" => Ok(LockDelay::Shipped),
        _ => Err("expected none or shipped".into()),
    }
}
