//! Measures a fleet in virtual time: three servers and any number of agents, in the default
//! configuration.
//!
//! - `fleet_sim crash [--crashes N]`: hosts die one after another. Prints the seconds until the
//!   verdict and until the next holder.
//! - `fleet_sim peace [--trouble NAME]… [--node-hours N]`: no host dies; datagrams are lost, nodes
//!   are slow, a rack is dark. Prints the number of failed nodes.
//! - `fleet_sim join`: all agents start at once.
//! - `fleet_sim deaths`: three tenths die at once. Prints the mesh traffic and the time until all
//!   are failed.
//! - `fleet_sim heal`: three tenths are cut off for 30 s. Prints the time until all know each other
//!   again.
//!
//! All accept `[--agents N]… [--window fast|default|safe]… [--seed N] [--json]`. The first two
//! accept `[--mesh none|lost|hostile]…`: all datagrams of the mesh are lost, or all members lie.
//!
//! Prints one line, or one JSON object, for each combination; runs one combination per core. Exits
//! with 1 if a promise is broken, and with 2 on invalid options.

use lockmesh_protocol::lease::HealthWindow;
use lockmesh_tests::sim::fleet::crash::{CrashReport, crash};
use lockmesh_tests::sim::fleet::deaths::{DeathsReport, deaths};
use lockmesh_tests::sim::fleet::heal::{HealReport, heal};
use lockmesh_tests::sim::fleet::join::{JoinReport, join};
use lockmesh_tests::sim::fleet::peace::{PeaceReport, Trouble, peace};
use lockmesh_tests::sim::fleet::{MeshTrouble, Options};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// The interval of progress messages, in seconds.
const PROGRESS_EVERY: u64 = 30;

/// The kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Crash,
    Peace,
    Join,
    Deaths,
    Heal,
}

#[derive(Debug)]
struct Wanted {
    mode: Mode,
    agents: Vec<usize>,
    windows: Vec<HealthWindow>,
    troubles: Vec<Trouble>,
    meshes: Vec<MeshTrouble>,
    crashes: usize,
    node_hours: f64,
    seed: u64,
    json: bool,
}

/// One combination.
#[derive(Clone, Copy, Debug)]
struct Run {
    options: Options,
    trouble: Trouble,
}

/// The state of the output, which is printed in order.
#[derive(Default)]
struct Printed {
    /// The number of printed runs.
    count: usize,
    /// The results of later runs, with their durations in seconds.
    ready: BTreeMap<usize, (Result<Report, String>, f64)>,
    /// Set when a run broke a promise.
    is_bad: bool,
}

impl Printed {
    fn take_next(&mut self) -> Option<(Result<Report, String>, f64)> {
        let next = self.ready.remove(&self.count)?;
        self.count += 1;
        Some(next)
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Report {
    Crash(CrashReport),
    Peace(PeaceReport),
    Join(JoinReport),
    Deaths(DeathsReport),
    Heal(HealReport),
}

fn main() -> ExitCode {
    let wanted = match Wanted::parse(std::env::args().skip(1)) {
        Ok(wanted) => wanted,
        Err(problem) => {
            eprintln!("fleet_sim: {problem}; see the first lines of tests/src/bin/fleet_sim.rs");
            return ExitCode::from(2);
        }
    };
    if wanted.run() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Wanted {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mode = match words.next().as_deref() {
            Some("crash") => Mode::Crash,
            Some("peace") => Mode::Peace,
            Some("join") => Mode::Join,
            Some("deaths") => Mode::Deaths,
            Some("heal") => Mode::Heal,
            _ => return Err("expected crash, peace, join, deaths or heal".into()),
        };
        let (agents, windows, troubles, meshes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (crashes, node_hours) = (100, 1_000.0);
        let mut wanted =
            Self { mode, agents, windows, troubles, meshes, crashes, node_hours, seed: 1, json: false };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--agents" => wanted.agents.push(number(&word, &value()?, 2..=10_000)?),
                "--window" => wanted.windows.push(window(&value()?)?),
                "--trouble" => wanted.troubles.push(trouble(&value()?)?),
                "--mesh" if matches!(mode, Mode::Crash | Mode::Peace) => {
                    wanted.meshes.push(mesh(&value()?)?);
                }
                "--crashes" => wanted.crashes = number(&word, &value()?, 1..=100_000)?,
                "--node-hours" => wanted.node_hours = number(&word, &value()?, 0.01..=1e9)?,
                "--seed" => wanted.seed = number(&word, &value()?, 0..=u64::MAX)?,
                "--json" => wanted.json = true,
                other => return Err(format!("unknown option {other}")),
            }
        }
        wanted.fill();
        Ok(wanted)
    }

    /// Fills in the defaults.
    fn fill(&mut self) {
        if self.agents.is_empty() {
            self.agents = match self.mode {
                Mode::Crash => vec![5, 32, 128],
                Mode::Peace => vec![100],
                Mode::Join => vec![1_000],
                Mode::Deaths | Mode::Heal => vec![128],
            };
        }
        if self.windows.is_empty() {
            self.windows = match self.mode {
                Mode::Crash => vec![HealthWindow::Fast, HealthWindow::Default],
                _ => vec![HealthWindow::Default],
            };
        }
        if self.meshes.is_empty() {
            self.meshes = vec![MeshTrouble::None];
        }
        if self.troubles.is_empty() {
            self.troubles = if self.mode == Mode::Peace { Trouble::ALL.into() } else { vec![Trouble::None] };
        }
    }

    /// Executes all combinations and prints them in order. Returns `true` if no promise was broken.
    fn run(&self) -> bool {
        let runs = self.runs();
        let (next, printed) = (AtomicUsize::new(0), Mutex::new(Printed::default()));
        let work = || {
            loop {
                let mine = next.fetch_add(1, Ordering::Relaxed);
                let Some(run) = runs.get(mine) else { return };
                let began = Instant::now();
                let report = (self.measure(*run), began.elapsed().as_secs_f64());
                let mut printed = printed.lock().expect("the mutex is not poisoned");
                printed.ready.insert(mine, report);
                while let Some((report, took)) = printed.take_next() {
                    printed.is_bad |= !self.print(&runs[printed.count - 1], &report, took);
                }
            }
        };
        std::thread::scope(|scope| {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            (0..cores.min(runs.len())).for_each(|_| drop(scope.spawn(work)));
        });
        !printed.into_inner().expect("the mutex is not poisoned").is_bad
    }

    fn runs(&self) -> Vec<Run> {
        let mut runs = Vec::new();
        for &mesh in &self.meshes {
            for &trouble in &self.troubles {
                for &agents in &self.agents {
                    let options = |&window| Options { seed: self.seed, agents, window, mesh };
                    runs.extend(self.windows.iter().map(options).map(|options| Run { options, trouble }));
                }
            }
        }
        runs
    }

    fn measure(&self, Run { options, trouble }: Run) -> Result<Report, String> {
        match self.mode {
            Mode::Crash => crash(options, self.crashes).map(Report::Crash),
            Mode::Join => join(options).map(Report::Join),
            Mode::Deaths => deaths(options).map(Report::Deaths),
            Mode::Heal => heal(options).map(Report::Heal),
            Mode::Peace => {
                let last = Mutex::new(Instant::now());
                let progress = |hours: f64| {
                    let mut last = last.lock().expect("the mutex is not poisoned");
                    if last.elapsed().as_secs() >= PROGRESS_EVERY {
                        *last = Instant::now();
                        eprintln!("{}: {hours:.0} of {:.0} node-hours", trouble.name(), self.node_hours);
                    }
                };
                peace(options, trouble, self.node_hours, progress).map(Report::Peace)
            }
        }
    }

    /// Prints the result of a run. Returns `true` if it broke no promise.
    fn print(&self, run: &Run, report: &Result<Report, String>, took: f64) -> bool {
        match report {
            Ok(report) if self.json => println!("{}", serde_json::to_string(report).expect("it is JSON")),
            Ok(report) => println!("{report} (in {took:.0} s)"),
            Err(problem) => eprintln!("{run:?}: {problem}"),
        }
        report.as_ref().is_ok_and(Report::is_well)
    }
}

impl Report {
    fn is_well(&self) -> bool {
        match self {
            Self::Crash(report) => report.wrongly_failed == 0,
            Self::Peace(report) => report.is_well(),
            Self::Join(report) => report.wrongly_failed == 0,
            Self::Deaths(report) => report.wrongly_failed == 0,
            Self::Heal(report) => report.wrongly_failed == 0,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Crash(r) => write!(
                f,
                "{} agents, {}{}, {} hosts died: verdict after {:.2} s (at most {:.2}), next holder after {:.2} s \
                 (at most {:.2}){}, {} others failed",
                r.agents,
                r.window.as_str(),
                AlsoMesh(r.mesh),
                r.crashes,
                r.verdict.0,
                r.verdict.1,
                r.next_holder.0,
                r.next_holder.1,
                Known(r.known),
                r.wrongly_failed
            ),
            Self::Peace(report) => write_peace(report, f),
            Self::Deaths(r) => write!(
                f,
                "{} of {} agents died at once: the first failed after {:.2} s, half after {:.2} s, all after {:.2} s, \
                 {} others failed; {:.1} datagrams of {:.0} B a living node and second for 30 s, {:.1} of {:.0} B \
                 in the worst one",
                r.died,
                r.agents,
                r.failed.0,
                r.failed.1,
                r.failed.2,
                r.wrongly_failed,
                r.datagrams_a_second.0,
                r.datagram_bytes_a_second.0,
                r.datagrams_a_second.1,
                r.datagram_bytes_a_second.1
            ),
            Self::Heal(r) => write!(
                f,
                "{} of {} agents were cut off for 30 s, {} others failed: all registered {:.2} s after the heal, 99 % \
                 know all members after {:.2} s, all after {:.2} s",
                r.cut_off, r.agents, r.wrongly_failed, r.registered, r.most_agree, r.all_agree
            ),
            Self::Join(r) => write!(
                f,
                "{} agents came at once: registered after {:.2} s, leases acknowledged after {:.2} s, locks held \
                 after {:.2} s, {} entries, {} attempts failed, {} failed",
                r.agents,
                r.registered,
                r.acknowledged,
                r.locked,
                r.entries,
                r.attempts_failed,
                r.wrongly_failed
            ),
        }
    }
}

fn write_peace(r: &PeaceReport, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(
        f,
        "{}{}, {}, {} agents, {:.0} node-hours: {} failed, {} deadlines passed (at most {}), {} challenges, {} elections; \
         {:.2} renewals, {:.2} messages and {:.2} datagrams of {:.0} B a node and second, {:.0} messages \
         between servers",
        r.trouble.name(),
        AlsoMesh(r.mesh),
        r.window.as_str(),
        r.agents,
        r.node_hours,
        r.wrongly_failed,
        r.late,
        r.late_at_most,
        r.challenges,
        r.elections,
        r.renewals_a_second,
        r.messages_a_second,
        r.datagrams_a_second,
        r.datagram_bytes_a_second,
        r.server_messages_a_second
    )
}

/// The time until all members knew a verdict, if measured; appended to a line.
struct Known(Option<(f64, f64)>);

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((middle, most)) = self.0 else { return Ok(()) };
        write!(f, ", known to all {middle:.2} s after the verdict (at most {most:.2})")
    }
}

/// The trouble of the mesh, if any; appended to a line.
struct AlsoMesh(MeshTrouble);

impl fmt::Display for AlsoMesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            MeshTrouble::None => Ok(()),
            trouble => write!(f, ", mesh {}", trouble.name()),
        }
    }
}

fn number<T: FromStr + PartialOrd + fmt::Debug>(
    option: &str,
    word: &str,
    range: std::ops::RangeInclusive<T>,
) -> Result<T, String> {
    let number = word.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("{option} {word}: expected a number in {range:?}"))
}

fn window(word: &str) -> Result<HealthWindow, String> {
    HealthWindow::parse(word).ok_or_else(|| format!("--window {word}: expected fast, default or safe"))
}

fn trouble(word: &str) -> Result<Trouble, String> {
    let found = Trouble::ALL.into_iter().find(|trouble| trouble.name() == word);
    let names = Trouble::ALL.map(Trouble::name).join(", ");
    found.ok_or_else(|| format!("--trouble {word}: expected one of {names}"))
}

fn mesh(word: &str) -> Result<MeshTrouble, String> {
    let found = MeshTrouble::ALL.into_iter().find(|trouble| trouble.name() == word);
    found.ok_or_else(|| format!("--mesh {word}: expected none, lost or hostile"))
}
