//! The report of a run: figures, ratios, kills, processes; as readable tables and as JSON.

use crate::contest::System;
use crate::latency::{Latencies, median};
use crate::machine::Machine;
use crate::options::{Options, Plan, Step};
use crate::process::Usage;
use crate::targets::{self, Target};
use crate::work::{HOLD, Work};
use serde::{Serialize, Serializer};
use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::time::Duration;

/// One measured window.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) latencies: Latencies,
    pub(crate) window: Duration,
    pub(crate) generator_cpus: f64,
    pub(crate) service_cpus: f64,
}

/// All rounds of one measurement of one service.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    #[serde(serialize_with = "work_name")]
    pub(crate) work: Work,
    pub(crate) clients: usize,
    pub(crate) system: System,
    /// Operations in all rounds.
    pub(crate) operations: u64,
    /// Operations per second, over all rounds.
    pub(crate) per_second: f64,
    /// Operations per second, in each round.
    pub(crate) rounds: Vec<f64>,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
    /// Processors that the generator used, on average.
    pub(crate) generator_cpus: f64,
    /// Processors that all of the service's processes used.
    pub(crate) service_cpus: f64,
    #[serde(skip)]
    latencies: Option<Latencies>,
    #[serde(skip)]
    time: Duration,
}

impl Figure {
    fn new(step: Step, system: System) -> Self {
        Self {
            work: step.work,
            clients: step.clients,
            system,
            operations: 0,
            per_second: 0.0,
            rounds: Vec::new(),
            p50_ms: 0.0,
            p99_ms: 0.0,
            max_ms: 0.0,
            generator_cpus: 0.0,
            service_cpus: 0.0,
            latencies: None,
            time: Duration::ZERO,
        }
    }

    /// Adds a round.
    pub(crate) fn add(&mut self, round: &Measured) {
        let before = self.rounds.len() as f64;
        let mean = |old: f64, new: f64| (old * before + new) / (before + 1.0);
        self.generator_cpus = mean(self.generator_cpus, round.generator_cpus);
        self.service_cpus = mean(self.service_cpus, round.service_cpus);
        self.rounds.push(round.latencies.count() as f64 / round.window.as_secs_f64());
        self.time += round.window;
        let latencies = self.latencies.get_or_insert_with(Latencies::new);
        latencies.add(&round.latencies);
        self.operations = latencies.count();
        self.per_second = self.operations as f64 / self.time.as_secs_f64();
        self.p50_ms = latencies.milliseconds(0.5);
        self.p99_ms = latencies.milliseconds(0.99);
        self.max_ms = latencies.max_milliseconds();
    }
}

/// The time without writes after each kill of a leader.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Kills {
    pub(crate) system: System,
    pub(crate) ms: Vec<f64>,
}

impl Kills {
    /// Returns the median in milliseconds.
    pub(crate) fn median(&self) -> f64 {
        median(&self.ms)
    }

    /// Returns the maximum in milliseconds.
    pub(crate) fn max(&self) -> f64 {
        self.ms.iter().copied().fold(0.0, f64::max)
    }
}

/// The usage of a process before and after the work.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ProcessUsage {
    pub(crate) name: String,
    pub(crate) start: Usage,
    pub(crate) end: Usage,
}

/// All results of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) versions: Vec<String>,
    /// The settings of the measurement.
    pub(crate) settings: String,
    pub(crate) figures: Vec<Figure>,
    pub(crate) kills: Vec<Kills>,
    pub(crate) processes: Vec<ProcessUsage>,
    pub(crate) targets: Vec<Target>,
    /// The failures.
    pub(crate) failures: Vec<String>,
}

impl Report {
    /// Describes the machine; nothing is measured yet.
    pub(crate) fn new(options: &Options, plan: &Plan, folder: &Path) -> io::Result<Self> {
        let connected = if options.spread { "all nodes in turn" } else { "the leader" };
        let settings = format!(
            "{} rounds of {} s in turn; values of 256 bytes; clients of etcd and ZooKeeper connect to {connected}; \
             {} clients of etcd share a connection; a lock that is handed off is held for {} ms, and waited for as each \
             service would have it: in Lockmesh's queue (`?acquire=…&wait=…`), by its recipe in ZooKeeper, by Lock in etcd",
            plan.rounds,
            plan.length.as_secs_f64(),
            options.sharing(),
            HOLD.as_millis(),
        );
        Ok(Self {
            machine: Machine::look(folder)?,
            versions: Vec::new(),
            settings,
            figures: Vec::new(),
            kills: Vec::new(),
            processes: Vec::new(),
            targets: Vec::new(),
            failures: Vec::new(),
        })
    }

    /// Returns the figure of a service, created if it is missing.
    pub(crate) fn figure(&mut self, step: Step, system: System) -> &mut Figure {
        let is_it = |figure: &Figure| is_of(figure, step) && figure.system == system;
        let at = self.figures.iter().position(is_it).unwrap_or_else(|| {
            self.figures.push(Figure::new(step, system));
            self.figures.len() - 1
        });
        &mut self.figures[at]
    }

    /// Returns the figure of a service, if it was measured.
    pub(crate) fn find(&self, work: Work, clients: usize, system: System) -> Option<&Figure> {
        let step = Step { work, clients };
        self.figures.iter().find(|figure| is_of(figure, step) && figure.system == system)
    }

    /// Returns a process by its name, created if it is missing.
    pub(crate) fn process(&mut self, name: &str) -> &mut ProcessUsage {
        let at = self.processes.iter().position(|process| process.name == name).unwrap_or_else(|| {
            let (start, end) = (Usage::default(), Usage::default());
            self.processes.push(ProcessUsage { name: name.to_owned(), start, end });
            self.processes.len() - 1
        });
        &mut self.processes[at]
    }

    /// Compares the figures with the targets.
    pub(crate) fn judge(&mut self) {
        self.targets = targets::judge(self);
    }

    /// Renders one measurement in one line.
    pub(crate) fn summary(&self, step: Step) -> String {
        let of = self.figures.iter().filter(|figure| is_of(figure, step));
        let parts = of.map(|figure| {
            let (rate, p50) = (thousands(figure.per_second), figure.p50_ms);
            format!("{} {rate}/s, p50 {p50:.2} ms", figure.system.name())
        });
        format!("  {}", parts.collect::<Vec<_>>().join("; "))
    }

    /// Renders everything as readable Markdown.
    pub(crate) fn render(&self) -> String {
        let mut text = format!("{}\n", self.machine.line());
        for version in &self.versions {
            let _ = writeln!(text, "- {version}");
        }
        let _ = writeln!(text, "{}.\n", self.settings);
        text += &self.render_figures();
        text += &self.render_kills();
        text += &self.render_processes();
        text += &targets::render(&self.targets);
        for failure in &self.failures {
            let _ = writeln!(text, "FAILED: {failure}");
        }
        text
    }

    fn systems(&self) -> Vec<System> {
        let measured = |system: &System| self.figures.iter().any(|figure| figure.system == *system);
        System::ALL.into_iter().filter(measured).collect()
    }

    fn render_figures(&self) -> String {
        let systems = self.systems();
        let others: Vec<System> =
            systems.iter().copied().filter(|system| *system != System::Lockmesh).collect();
        let mut rows = vec![vec!["work".to_owned(), "clients".to_owned()]];
        rows[0].extend(systems.iter().map(|system| format!("{}: a second, p50, p99 ms", system.name())));
        rows[0].extend(others.iter().map(|system| format!("/ {}", system.name())));
        rows[0].push("generator CPU".to_owned());
        let mut seen = Vec::new();
        for figure in &self.figures {
            let step = Step { work: figure.work, clients: figure.clients };
            if !seen.contains(&step) {
                seen.push(step);
                rows.push(self.row(step, &systems, &others));
            }
        }
        if seen.is_empty() { String::new() } else { table(&rows) + "\n" }
    }

    fn row(&self, step: Step, systems: &[System], others: &[System]) -> Vec<String> {
        let of = |system: &System| self.find(step.work, step.clients, *system);
        let mut row = vec![step.work.name().to_owned(), step.clients.to_string()];
        row.extend(systems.iter().map(|system| match of(system) {
            Some(figure) => {
                let rate = thousands(figure.per_second);
                format!("{rate}, {:.2}, {:.2}", figure.p50_ms, figure.p99_ms)
            }
            None => "failed".to_owned(),
        }));
        row.extend(others.iter().map(|other| match of(&System::Lockmesh).zip(of(other)) {
            Some((ours, theirs)) => ratio(ours, theirs),
            None => String::new(),
        }));
        let cpus = systems.iter().map(|system| of(system).map_or(0.0, |figure| figure.generator_cpus));
        row.push(cpus.map(|cpus| format!("{:.0} %", cpus * 100.0)).collect::<Vec<_>>().join(", "));
        row
    }

    fn render_kills(&self) -> String {
        if self.kills.is_empty() {
            return String::new();
        }
        let mut rows = vec![
            ["leader killed, until a write succeeds", "kills", "median ms", "max ms"]
                .map(str::to_owned)
                .to_vec(),
        ];
        for kills in &self.kills {
            let count = kills.ms.len().to_string();
            let [median, max] = [kills.median(), kills.max()].map(|ms| format!("{ms:.0}"));
            rows.push(vec![kills.system.name().to_owned(), count, median, max]);
        }
        table(&rows) + "\n"
    }

    fn render_processes(&self) -> String {
        let heads = ["process", "MiB at start", "MiB after the work", "peak MiB", "CPU seconds"];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        for process in &self.processes {
            let figures = [process.start.memory_mib, process.end.memory_mib, process.end.peak_mib];
            let mut row = vec![process.name.clone()];
            row.extend(figures.map(|figure| format!("{figure:.1}")));
            row.push(format!("{:.1}", process.end.cpu_seconds - process.start.cpu_seconds));
            rows.push(row);
        }
        table(&rows) + "\n"
    }
}

fn is_of(figure: &Figure, step: Step) -> bool {
    figure.work == step.work && figure.clients == step.clients
}

/// Returns the ratio in Lockmesh's favor: of operations per second, or of hand-off times; with the
/// worst and the best round if rounds can be distinguished.
fn ratio(ours: &Figure, theirs: &Figure) -> String {
    if ours.operations == 0 || theirs.operations == 0 {
        return String::new();
    }
    if ours.work == Work::Handoff {
        return format!("{:.2} (p50)", theirs.p50_ms / ours.p50_ms);
    }
    let rounds = ours.rounds.iter().zip(&theirs.rounds).map(|(ours, theirs)| ours / theirs);
    let (least, most) = rounds.fold((f64::MAX, 0.0_f64), |(least, most), x| (least.min(x), most.max(x)));
    format!("{:.2} ({least:.2}-{most:.2})", ours.per_second / theirs.per_second)
}

/// Formats a number without fractions, with commas.
fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a Markdown table with aligned columns; the first row is its head.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell = |row: &Vec<String>, at: usize| row.get(at).map_or(0, |cell| cell.chars().count());
    let widths: Vec<usize> =
        (0..columns).map(|at| rows.iter().map(|row| cell(row, at)).max().unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = widths.iter().enumerate().map(|(at, width)| {
            let text = row.get(at).map_or("", String::as_str);
            format!(" {text:width$} |")
        });
        format!("|{}\n", cells.collect::<String>())
    };
    let rule: String = widths.iter().map(|width| format!("{}|", "-".repeat(width + 2))).collect();
    let mut text = String::new();
    for (at, row) in rows.iter().enumerate() {
        text += &line(row);
        if at == 0 {
            let _ = writeln!(text, "|{rule}");
        }
    }
    text
}

fn work_name<S: Serializer>(work: &Work, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(work.name())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a report without figures.
    pub(crate) fn empty() -> Report {
        let machine = Machine {
            date: "2026-11-21 10:00".into(),
            processor: "CPU".into(),
            processors: 2,
            memory_mib: 1024,
            kernel: "6.1".into(),
            sync_p50_ms: 0.1,
            sync_p99_ms: 0.2,
        };
        Report {
            machine,
            versions: vec!["lockmesh 1".into()],
            settings: "settings".into(),
            figures: Vec::new(),
            kills: Vec::new(),
            processes: Vec::new(),
            targets: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// Adds a round of one second with operations of this duration.
    pub(crate) fn add(report: &mut Report, step: Step, system: System, operations: u32, ms: u64) {
        let mut latencies = Latencies::new();
        (0..operations).for_each(|_| latencies.record(Duration::from_millis(ms)));
        let window = Duration::from_secs(1);
        let round = Measured { latencies, window, generator_cpus: 0.25, service_cpus: 1.0 };
        report.figure(step, system).add(&round);
    }

    #[test]
    fn rounds_add_up_and_become_ratios() {
        let mut report = empty();
        let step = Step { work: Work::Puts, clients: 64 };
        add(&mut report, step, System::Lockmesh, 300, 1);
        add(&mut report, step, System::Etcd, 100, 3);
        add(&mut report, step, System::Lockmesh, 500, 1);
        add(&mut report, step, System::Etcd, 100, 3);
        let figure = report.find(Work::Puts, 64, System::Lockmesh).expect("it was measured");
        assert_eq!((figure.operations, figure.per_second), (800, 400.0));
        assert_eq!(figure.rounds, [300.0, 500.0]);
        let text = report.render_figures();
        assert!(text.contains("| puts | 64      | 400, 1.00, 1.00"), "{text}");
        assert!(text.contains("| 4.00 (3.00-5.00) |"), "{text}");
        assert_eq!(report.summary(step), "  Lockmesh 400/s, p50 1.00 ms; etcd 100/s, p50 3.00 ms");
        let json = serde_json::to_value(&report).expect("a report is JSON");
        assert_eq!(json["figures"][1]["system"], "etcd");
        assert_eq!(json["figures"][0]["work"], "puts");
    }

    #[test]
    fn a_hand_off_is_compared_by_its_time() {
        let mut report = empty();
        let step = Step { work: Work::Handoff, clients: 2 };
        add(&mut report, step, System::Lockmesh, 10, 2);
        add(&mut report, step, System::ZooKeeper, 10, 3);
        assert!(report.render_figures().contains("| 1.50 (p50)"), "{}", report.render_figures());
    }

    #[test]
    fn everything_is_rendered() {
        let mut report = empty();
        report.kills.push(Kills { system: System::Etcd, ms: vec![1000.0, 3000.0, 1500.0] });
        report.process("etcd m1").end.memory_mib = 12.0;
        report.failures.push("something".into());
        let text = report.render();
        assert!(
            text.contains("| etcd                                  | 3     | 1500      | 3000   |"),
            "{text}"
        );
        assert!(text.contains("| etcd m1 | 0.0          | 12.0"), "{text}");
        assert!(text.ends_with("FAILED: something\n"), "{text}");
    }

    #[test]
    fn numbers_have_commas() {
        assert_eq!([5.4, 999.6, 123456.0].map(thousands), ["5", "1,000", "123,456"]);
    }
}
