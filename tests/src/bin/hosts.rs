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

use lockmesh_tests::binary;
use lockmesh_tests::hosts::belief::believe;
use lockmesh_tests::hosts::consul::Comparison;
use lockmesh_tests::hosts::expectation::{LockDelay, Window};
use lockmesh_tests::hosts::fault::{self, Fault};
use lockmesh_tests::hosts::jobs::{self, Part};
use lockmesh_tests::hosts::outage::{Outages, Stopped};
use lockmesh_tests::hosts::{Contest, idle, mesh, sandbox, windows};
use serde::Serialize;
use std::ffi::OsString;
use std::fmt::Display;
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

#[derive(Default)]
struct Options {
    rounds: Option<usize>,
    faults: Vec<Fault>,
    windows: Vec<Window>,
    lock_delay: Option<LockDelay>,
    json: bool,
    binary: Option<PathBuf>,
    consul: Option<PathBuf>,
    is_idle: bool,
    is_mesh: bool,
    is_outages: bool,
    stopped: Vec<Stopped>,
    lengths: Vec<u64>,
    jobs: Option<usize>,
    agents: Option<usize>,
    seconds: Option<u64>,
    is_list: bool,
    is_inside: bool,
    witness: Option<PathBuf>,
}

fn main() -> ExitCode {
    match Options::parse(std::env::args().skip(1)).and_then(|options| options.run()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("hosts: {error}");
            ExitCode::from(2)
        }
    }
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self::default();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--rounds" => options.rounds = Some(rounds(&value()?)?),
                "--fault" => options.faults.push(fault(&value()?)?),
                "--window" => options.windows.push(window(&value()?)?),
                "--lock-delay" => options.lock_delay = Some(lock_delay(&value()?)?),
                "--json" => options.json = true,
                "--idle" => options.is_idle = true,
                "--mesh" => options.is_mesh = true,
                "--outages" => options.is_outages = true,
                "--stopped" => options.stopped.push(stopped(&value()?)?),
                "--length" => options.lengths.push(seconds(value()?.trim_end_matches('s'))?),
                "--jobs" => options.jobs = Some(jobs(&value()?)?),
                "--agents" => options.agents = Some(agents(&value()?)?),
                "--seconds" => options.seconds = Some(seconds(&value()?)?),
                "--list" => options.is_list = true,
                "--binary" => options.binary = Some(sandbox::program(&value()?)?),
                "--beside-consul" => options.consul = Some(sandbox::program(&value()?)?),
                "--believe" => options.witness = Some(value()?.into()),
                sandbox::INSIDE => options.is_inside = true,
                other => {
                    return Err(format!(
                        "unknown option {other}; see the first lines of tests/src/bin/hosts.rs"
                    ));
                }
            }
        }
        if options.consul.is_some() && !options.faults.is_empty() {
            return Err("--beside-consul measures only the loss of a link: omit --fault".into());
        }
        if options.agents.is_some() && !options.is_mesh {
            return Err("--agents needs --mesh".into());
        }
        if options.jobs.is_some() && (options.json || options.consul.is_some() || options.is_mesh) {
            return Err("--jobs prints a table of faults or outages: omit --json".into());
        }
        Ok(options)
    }

    fn run(&self) -> Result<ExitCode, String> {
        if let Some(record) = &self.witness {
            believe(record);
        }
        if self.is_list {
            fault::every().for_each(|fault| println!("{}", fault.name));
            return Ok(ExitCode::SUCCESS);
        }
        if self.is_inside {
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
        if self.is_outages {
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
        if self.is_idle {
            self.print(&idle::measure(&folder, length));
            return Ok(ExitCode::SUCCESS);
        }
        let is_clean = match &self.consul {
            None if self.is_mesh => {
                let agents = self.agents.unwrap_or(MESH_AGENTS);
                let report = mesh::measure(&folder, &logs, agents, length);
                self.print(&report);
                report.is_clean()
            }
            Some(consul) => {
                let rounds = self.rounds.unwrap_or(ROUNDS_BESIDE_CONSUL);
                let comparison = Comparison::run(consul, &windows, rounds, &folder, &logs);
                self.print(&comparison);
                comparison.is_clean()
            }
            None if self.is_outages => {
                let stopped =
                    if self.stopped.is_empty() { &[Stopped::Two, Stopped::All] } else { &*self.stopped };
                let (lengths, rounds) = (&*self.lengths(), self.rounds.unwrap_or(1));
                let lock_delay = self.lock_delay.unwrap_or(LockDelay::None);
                let report = Outages { stopped, lengths, rounds, lock_delay, keep: &logs }.run(&folder);
                self.print(&report);
                report.is_clean()
            }
            None => {
                let faults = &*self.faults();
                let rounds = self.rounds.unwrap_or(ROUNDS);
                let lock_delay = self.lock_delay;
                let contest = Contest { faults, windows: &windows, lock_delay, rounds, keep: &logs };
                let report = contest.run(&folder);
                self.print(&report);
                report.is_clean()
            }
        };
        if is_clean {
            return Ok(ExitCode::SUCCESS);
        }
        eprintln!("the logs of this run are in {}", sandbox::keep(&logs).display());
        Ok(ExitCode::FAILURE)
    }

    fn print(&self, report: &(impl Serialize + Display)) {
        match self.json {
            true => println!("{}", serde_json::to_string(report).expect("a report is JSON")),
            false => print!("{report}"),
        }
    }
}

fn rounds(word: &str) -> Result<usize, String> {
    let rounds = word.parse().ok().filter(|rounds| (1..=1000).contains(rounds));
    rounds.ok_or_else(|| format!("--rounds {word}: expected a number from 1 to 1000"))
}

fn agents(word: &str) -> Result<usize, String> {
    let agents = word.parse().ok().filter(|agents| (2..=1000).contains(agents));
    agents.ok_or_else(|| format!("--agents {word}: expected a number from 2 to 1000"))
}

fn seconds(word: &str) -> Result<u64, String> {
    let seconds = word.parse().ok().filter(|seconds| (1..=3_600).contains(seconds));
    seconds.ok_or_else(|| format!("--seconds {word}: expected a number from 1 to 3600"))
}

fn fault(word: &str) -> Result<Fault, String> {
    let found = fault::every().find(|fault| fault.name == word);
    found.ok_or_else(|| format!("--fault {word}: unknown fault; --list prints all"))
}

fn window(word: &str) -> Result<Window, String> {
    let found = Window::ALL.into_iter().find(|window| window.name() == word);
    found.ok_or_else(|| format!("--window {word}: expected fast, default, safe or ttl"))
}

fn jobs(word: &str) -> Result<usize, String> {
    let jobs = word.parse().ok().filter(|jobs| (1..=32).contains(jobs));
    jobs.ok_or_else(|| format!("--jobs {word}: expected a number from 1 to 32"))
}

fn stopped(word: &str) -> Result<Stopped, String> {
    match word {
        "2" => Ok(Stopped::Two),
        "3" => Ok(Stopped::All),
        _ => Err(format!("--stopped {word}: expected 2 or 3")),
    }
}

fn lock_delay(word: &str) -> Result<LockDelay, String> {
    match word {
        "none" => Ok(LockDelay::None),
        "shipped" => Ok(LockDelay::Shipped),
        _ => Err(format!("--lock-delay {word}: expected none or shipped")),
    }
}
