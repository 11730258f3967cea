//! Medians and ratios of a run, as a table and as JSON.

use crate::cluster::Service;
use crate::process::Usage;
use crate::work::Work;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// One measurement, made in every round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Step {
    pub(crate) work: Work,
    pub(crate) clients: usize,
}

/// One measured window of one service.
#[derive(Clone, Debug, Default)]
pub(crate) struct Round {
    pub(crate) per_second: f64,
    /// Processors that the load generator used, and all of the service's processes.
    pub(crate) generator_cpus: f64,
    pub(crate) service_cpus: f64,
    /// Bytes written to the disk, per operation.
    pub(crate) written_bytes: f64,
    pub(crate) latencies_ms: Vec<f64>,
}

/// The figures of a measurement of a service.
#[derive(Debug, Serialize)]
pub(crate) struct Figure {
    work: Work,
    clients: usize,
    service: Service,
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// How many times as fast Lockmesh is.
    ratio: Option<f64>,
    service_cpus: f64,
    generator_cpus: f64,
    written_bytes: f64,
}

/// The results of a run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: String,
    pub(crate) versions: Vec<String>,
    #[serde(skip)]
    pub(crate) rounds: BTreeMap<(Step, Service), Vec<Round>>,
    pub(crate) figures: Vec<Figure>,
    /// The resources of all processes of each service after the work.
    pub(crate) usage: Vec<(Service, Usage)>,
    pub(crate) failures: Vec<String>,
}

impl Report {
    /// Computes the figures from all rounds.
    pub(crate) fn conclude(&mut self) {
        let figures = self.rounds.iter().map(|((step, service), rounds)| {
            let of = |get: fn(&Round) -> f64| median(rounds.iter().map(get));
            let latencies = sorted(rounds.iter().flat_map(|round| round.latencies_ms.iter().copied()));
            Figure {
                work: step.work,
                clients: step.clients,
                service: *service,
                per_second: of(|round| round.per_second),
                p50_ms: quantile(&latencies, 0.5),
                p99_ms: quantile(&latencies, 0.99),
                ratio: self
                    .rounds
                    .get(&(*step, Service::Lockmesh))
                    .map(|ours| ratio(step.work, ours, rounds)),
                service_cpus: of(|round| round.service_cpus),
                generator_cpus: of(|round| round.generator_cpus),
                written_bytes: of(|round| round.written_bytes),
            }
        });
        self.figures = figures.collect();
    }

    /// Renders Markdown.
    pub(crate) fn render(&self) -> String {
        let mut text = format!("{}; {}\n\n", self.machine, self.versions.join("; "));
        text += "| work | clients | service | per second | p50, p99 ms | Lockmesh is × as fast | \
                 CPUs of service, generator | bytes written per operation |\n|---|---|---|---|---|---|---|---|\n";
        for row in &self.figures {
            let Figure { work, clients, service, per_second, p50_ms, p99_ms, written_bytes, .. } = row;
            let (cpus, generator) = (row.service_cpus, row.generator_cpus);
            let ratio = row.ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
            let _ = writeln!(
                text,
                "| {work:?} | {clients} | {service:?} | {per_second:.0} | {p50_ms:.2}, {p99_ms:.2} | {ratio} | \
                 {cpus:.2}, {generator:.2} | {written_bytes:.0} |",
            );
        }
        text += "\n| all processes | MiB after the work | peak MiB | CPU seconds |\n|---|---|---|---|\n";
        for (service, Usage { memory_mib, peak_mib, cpu_seconds, .. }) in &self.usage {
            let _ = writeln!(text, "| {service:?} | {memory_mib:.0} | {peak_mib:.0} | {cpu_seconds:.1} |");
        }
        text
    }
}

/// Returns the median ratio of the rounds in Lockmesh's favor: of operations per second, or of
/// times.
fn ratio(work: Work, ours: &[Round], theirs: &[Round]) -> f64 {
    let p50 = |round: &Round| median(round.latencies_ms.iter().copied());
    median(ours.iter().zip(theirs).map(|(ours, theirs)| match work {
        Work::Puts | Work::Cycles => ours.per_second / theirs.per_second,
        Work::Handoff | Work::LeaderKilled => p50(theirs) / p50(ours),
    }))
}

fn sorted(figures: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut sorted: Vec<f64> = figures.collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Returns a quantile of sorted figures; 0 of none.
fn quantile(sorted: &[f64], quantile: f64) -> f64 {
    sorted.get((sorted.len() as f64 * quantile) as usize).or(sorted.last()).copied().unwrap_or(0.0)
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let sorted = sorted(figures);
    match sorted.len() {
        count if count > 0 && count % 2 == 0 => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
        _ => quantile(&sorted, 0.5),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_is_median_of_rounds() {
        let rounds = |rates: [f64; 3]| rates.map(|per_second| Round { per_second, ..Round::default() });
        assert_eq!(ratio(Work::Puts, &rounds([100.0, 100.0, 300.0]), &rounds([10.0, 50.0, 100.0])), 3.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
    }

    #[test]
    fn handoff_ratio_compares_times() {
        let round = |ms| Round { per_second: 90.0, latencies_ms: vec![ms], ..Round::default() };
        let step = Step { work: Work::Handoff, clients: 2 };
        let mut report = Report::default();
        report.rounds.insert((step, Service::Etcd), vec![round(4.0)]);
        report.conclude();
        assert_eq!(report.figures[0].ratio, None);
        report.rounds.insert((step, Service::Lockmesh), vec![round(2.0)]);
        report.conclude();
        assert!(report.render().contains("| Handoff | 2 | Etcd | 90 | 4.00, 4.00 | 2.00 |"));
    }
}
