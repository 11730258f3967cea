//! The three services side by side: measured in turn, round after round.

use crate::cluster::etcd::Etcd;
use crate::cluster::failover::kill_leader;
use crate::cluster::lockmesh::Lockmesh;
use crate::cluster::zookeeper::ZooKeeper;
use crate::cluster::{Cluster, Targets};
use crate::options::{Options, Plan, Step};
use crate::process::Usage;
use crate::progress::Progress;
use crate::report::{Kills, Measured, ProcessUsage, Report};
use crate::work::{self, Work};
use serde::Serialize;
use std::io;
use std::path::Path;
use std::time::Duration;

/// A service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum System {
    Lockmesh,
    Etcd,
    #[value(name = "zookeeper")]
    ZooKeeper,
}

impl System {
    /// All, in the order in which they take turns.
    pub(crate) const ALL: [Self; 3] = [Self::Lockmesh, Self::Etcd, Self::ZooKeeper];

    /// Returns its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lockmesh => "Lockmesh",
            Self::Etcd => "etcd",
            Self::ZooKeeper => "ZooKeeper",
        }
    }
}

/// A running service.
#[derive(Debug)]
enum Contestant {
    Lockmesh(Lockmesh),
    Etcd(Etcd),
    ZooKeeper(ZooKeeper),
}

/// Evaluates the same expression for any of the services.
macro_rules! each {
    ($contestant:expr, $cluster:ident => $value:expr) => {
        match $contestant {
            Contestant::Lockmesh($cluster) => $value,
            Contestant::Etcd($cluster) => $value,
            Contestant::ZooKeeper($cluster) => $value,
        }
    };
}

impl Contestant {
    async fn start(system: System, options: &Options, folder: &Path) -> io::Result<Self> {
        let tools = options.tools()?;
        let folder = folder.join(system.name());
        Ok(match system {
            System::Lockmesh => {
                Self::Lockmesh(Lockmesh::start(&tools, &folder, options.servers(), "info").await?)
            }
            System::Etcd => Self::Etcd(Etcd::start(&tools, &folder, options.sharing()).await?),
            System::ZooKeeper => Self::ZooKeeper(ZooKeeper::start(&tools, &folder).await?),
        })
    }

    fn system(&self) -> System {
        match self {
            Self::Lockmesh(_) => System::Lockmesh,
            Self::Etcd(_) => System::Etcd,
            Self::ZooKeeper(_) => System::ZooKeeper,
        }
    }

    async fn measure(&mut self, step: Step, length: Duration, spread: bool) -> io::Result<Measured> {
        let system = self.system();
        let measured = each!(self, cluster => measure(cluster, step, length, spread).await);
        measured.map_err(|error| {
            let (work, clients) = (step.work.name(), step.clients);
            io::Error::other(format!("{}, {work} with {clients} clients: {error}", system.name()))
        })
    }

    async fn kill_leader(&mut self) -> io::Result<Duration> {
        each!(self, cluster => kill_leader(cluster).await)
    }

    fn version(&self) -> String {
        each!(self, cluster => cluster.version().to_owned())
    }

    fn usage(&mut self) -> Vec<(String, Usage)> {
        let programs = each!(self, cluster => cluster.programs());
        programs.iter().map(|program| (program.name.clone(), program.usage().unwrap_or_default())).collect()
    }
}

/// Measures one window of one service.
async fn measure<C: Cluster>(
    cluster: &mut C,
    step: Step,
    length: Duration,
    spread: bool,
) -> io::Result<Measured> {
    let targets = if spread { Targets::All } else { Targets::Leader(cluster.leader().await?) };
    let site = cluster.site(targets);
    let programs = cluster.programs();
    let cpu = || {
        let nodes = programs.iter().filter_map(|program| program.usage());
        (Usage::own().cpu_seconds, nodes.map(|usage| usage.cpu_seconds).sum::<f64>())
    };
    let mut marks = Vec::new();
    let outcome =
        work::run::<C::Client>(&site, step.work, step.clients, length, || marks.push(cpu())).await?;
    let used = |of: fn(&(f64, f64)) -> f64| {
        let ends = marks.first().zip(marks.last());
        ends.map_or(0.0, |(first, last)| (of(last) - of(first)) / length.as_secs_f64())
    };
    Ok(Measured {
        latencies: outcome.latencies,
        window: outcome.window,
        generator_cpus: used(|mark| mark.0),
        service_cpus: used(|mark| mark.1),
    })
}

/// Starts all selected services, measures everything, and stops them.
pub(crate) async fn run(options: &Options, folder: &Path, progress: &Progress) -> io::Result<Report> {
    let plan = options.plan();
    let mut report = Report::new(options, &plan, folder)?;
    report.process("generator").start = Usage::own();
    let mut contestants = Vec::new();
    for system in options.systems() {
        progress.print(&format!("starting {}", system.name()));
        contestants.push(Contestant::start(system, options, folder).await?);
    }
    for contestant in &mut contestants {
        report.versions.push(contestant.version());
        note_usage(contestant, &mut report, |usage| &mut usage.start);
    }
    warm_up(&mut contestants, &plan, options.spread, progress).await?;
    for step in &plan.steps {
        progress.print(&format!("{} with {} clients", step.work.name(), step.clients));
        measure_step(&mut contestants, *step, &plan, options.spread, &mut report, progress).await;
    }
    report.process("generator").end = Usage::own();
    for contestant in &mut contestants {
        note_usage(contestant, &mut report, |usage| &mut usage.end);
    }
    for round in 1..=plan.kills {
        progress.print(&format!("killing leaders, {round} of {}", plan.kills));
        // Lockmesh with one server has no failover.
        let survives = |system: System| system != System::Lockmesh || options.servers() == 3;
        let contestants = contestants.iter_mut().filter(|contestant| survives(contestant.system()));
        kill_leaders(contestants, &mut report, progress).await;
    }
    Ok(report)
}

/// Runs puts and locks that are not measured: Java compiles hot code, and all create their files.
async fn warm_up(
    contestants: &mut [Contestant],
    plan: &Plan,
    spread: bool,
    progress: &Progress,
) -> io::Result<()> {
    for contestant in contestants {
        progress.print(&format!("warming up {}", contestant.system().name()));
        for work in [Work::Puts, Work::Cycles, Work::Reads] {
            contestant.measure(Step { work, clients: 64 }, plan.warm_up, spread).await?;
        }
    }
    Ok(())
}

/// Measures all rounds of a step, the services in turn. A failure is reported and does not end the
/// rest.
async fn measure_step(
    contestants: &mut [Contestant],
    step: Step,
    plan: &Plan,
    spread: bool,
    report: &mut Report,
    progress: &Progress,
) {
    for _ in 0..plan.rounds {
        for contestant in &mut *contestants {
            match contestant.measure(step, plan.length, spread).await {
                Ok(measured) => report.figure(step, contestant.system()).add(&measured),
                Err(error) => {
                    progress.print(&format!("FAILED: {error}"));
                    report.failures.push(error.to_string());
                }
            }
        }
    }
    progress.print(&report.summary(step));
}

async fn kill_leaders(
    contestants: impl Iterator<Item = &mut Contestant>,
    report: &mut Report,
    progress: &Progress,
) {
    for contestant in contestants {
        let system = contestant.system();
        match contestant.kill_leader().await {
            Ok(took) => {
                let ms = took.as_secs_f64() * 1e3;
                progress.print(&format!("  {}: {ms:.0} ms", system.name()));
                match report.kills.iter_mut().find(|kills| kills.system == system) {
                    Some(kills) => kills.ms.push(ms),
                    None => report.kills.push(Kills { system, ms: vec![ms] }),
                }
            }
            Err(error) => {
                progress.print(&format!("FAILED: {error}"));
                report.failures.push(format!("{}, leader killed: {error}", system.name()));
            }
        }
    }
}

fn note_usage(
    contestant: &mut Contestant,
    report: &mut Report,
    when: impl Fn(&mut ProcessUsage) -> &mut Usage,
) {
    for (name, usage) in contestant.usage() {
        *when(report.process(&name)) = usage;
    }
}
