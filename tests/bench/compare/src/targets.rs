//! The performance targets, compared with the measurements.

use crate::contest::System;
use crate::report::{Report, table};
use crate::work::Work;
use serde::Serialize;

/// One target.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Target {
    /// The quantity, and its target value.
    pub(crate) what: String,
    /// The measured value.
    pub(crate) measured: f64,
    /// `true` if the target is reached.
    pub(crate) reached: bool,
}

/// The smallest allowed ratios of operations per second to another service's.
const RATES: [(Work, usize, System, f64); 5] = [
    (Work::Cycles, 256, System::Etcd, 7.0),
    (Work::Cycles, 256, System::ZooKeeper, 2.5),
    (Work::Puts, 256, System::Etcd, 3.0),
    (Work::Puts, 256, System::ZooKeeper, 1.5),
    (Work::Reads, 64, System::Etcd, 4.0),
];

/// Median latencies that must not exceed another service's.
const LATENCIES: [(Work, usize, System); 3] = [
    (Work::Cycles, 1, System::ZooKeeper),
    (Work::Handoff, 2, System::ZooKeeper),
    (Work::Handoff, 64, System::ZooKeeper),
];

/// The longest allowed time without writes after the leader is killed: median and maximum, in
/// milliseconds.
const KILL_MEDIAN_MS: f64 = 400.0;
const KILL_MAX_MS: f64 = 1000.0;

/// Judges all measurements; missing ones are left out.
pub(crate) fn judge(report: &Report) -> Vec<Target> {
    let pair = |work, clients, system| {
        let find = |system| report.find(work, clients, system).filter(|figure| figure.operations > 0);
        find(System::Lockmesh).zip(find(system))
    };
    let rates = RATES.into_iter().filter_map(|(work, clients, system, least)| {
        let (ours, theirs) = pair(work, clients, system)?;
        let measured = ours.per_second / theirs.per_second;
        let what = format!("{} at {clients} clients: at least {least} x {}", work.name(), system.name());
        Some(Target { what, measured, reached: measured >= least })
    });
    let latencies = LATENCIES.into_iter().filter_map(|(work, clients, system)| {
        let (ours, theirs) = pair(work, clients, system)?;
        let measured = ours.p50_ms / theirs.p50_ms;
        let what = format!("{} at {clients} clients: p50 at most 1 x {}", work.name(), system.name());
        Some(Target { what, measured, reached: measured <= 1.0 })
    });
    let kills = report.kills.iter().find(|kills| kills.system == System::Lockmesh);
    let kills = kills.into_iter().flat_map(|kills| {
        let limits = [("median", KILL_MEDIAN_MS, kills.median()), ("maximum", KILL_MAX_MS, kills.max())];
        limits.map(|(name, most, measured)| {
            let what = format!("leader killed, until a write succeeds: {name} at most {most} ms");
            Target { what, measured, reached: measured <= most }
        })
    });
    rates.chain(latencies).chain(kills).collect()
}

/// Renders the targets as a table; empty if there are no targets.
pub(crate) fn render(targets: &[Target]) -> String {
    if targets.is_empty() {
        return String::new();
    }
    let mut rows = vec![["to reach", "measured", ""].map(str::to_owned).to_vec()];
    for target in targets {
        let verdict = if target.reached { "reached" } else { "MISSED" };
        rows.push(vec![target.what.clone(), format!("{:.2}", target.measured), verdict.to_owned()]);
    }
    table(&rows) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Step;
    use crate::report::Kills;
    use crate::report::tests::{add, empty};

    #[test]
    fn figures_are_judged() {
        let mut report = empty();
        let puts = Step { work: Work::Puts, clients: 256 };
        add(&mut report, puts, System::Lockmesh, 200, 1);
        add(&mut report, puts, System::Etcd, 100, 1);
        add(&mut report, puts, System::ZooKeeper, 100, 1);
        let cycles = Step { work: Work::Cycles, clients: 1 };
        add(&mut report, cycles, System::Lockmesh, 10, 2);
        add(&mut report, cycles, System::ZooKeeper, 10, 3);
        report.kills.push(Kills { system: System::Lockmesh, ms: vec![300.0, 1100.0, 200.0] });
        let judged: Vec<(f64, bool)> =
            judge(&report).iter().map(|target| ((target.measured * 100.0).round(), target.reached)).collect();
        assert_eq!(judged, [(200.0, false), (200.0, true), (67.0, true), (30000.0, true), (110000.0, false)]);
        let text = render(&judge(&report));
        assert!(text.contains("| puts at 256 clients: at least 3 x etcd"), "{text}");
        assert_eq!(render(&[]), "");
    }
}
