//! Full load on a healthy disk: no leader steps down, however slow the machine's disk becomes.

use crate::figures::Figures;
use crate::fleet::Fleet;
use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The servers of a fleet of three.
const SERVERS: [&str; 3] = ["s1", "s2", "s3"];
/// The duration of one scenario.
const TURN: &str = "5s";
/// The histogram of syncs.
const SYNCS: &str = "lockmesh_server_fsync_seconds";

/// The outcome of the load.
#[derive(Clone, Debug, Serialize)]
pub struct LoadReport {
    /// The duration in seconds.
    pub seconds: f64,
    /// The terms before and after; equal unless the leader stepped down or was deposed.
    pub terms: (f64, f64),
    /// Syncs of the leader's log: the upper bound of each bucket in seconds, with its cumulative
    /// count.
    pub syncs: Vec<(String, f64)>,
    /// The last lines of the load's own report.
    pub bench: String,
}

impl LoadReport {
    /// Returns `true` if the leader led all the time.
    pub fn is_clean(&self) -> bool {
        self.terms.0 == self.terms.1
    }
}

/// Loads a new cluster, with its data in this folder, for `length`.
pub fn run(folder: &Path, length: Duration) -> LoadReport {
    let fleet = Fleet::start(folder, "3");
    let leader = fleet.leader();
    let before = term(&fleet);
    let begun = Instant::now();
    let mut bench = String::new();
    while begun.elapsed() < length {
        let (code, figures, said) = fleet.command(&["bench", "--clients", "64,256", "--duration", TURN]);
        assert_eq!(code, 0, "lockmesh bench: {said}");
        bench = figures;
        eprintln!("{:.0} s of load, term {}", begun.elapsed().as_secs_f64(), term(&fleet));
    }
    let terms = (before, term(&fleet));
    let syncs = syncs(&figures(&fleet, &leader));
    let seconds = begun.elapsed().as_secs_f64();
    fleet.stop();
    LoadReport { seconds, terms, syncs, bench }
}

fn figures(fleet: &Fleet, server: &str) -> Figures {
    let answer = fleet.monitor(server).get("/metrics").expect(200);
    Figures::parse(&String::from_utf8_lossy(&answer.body))
}

/// Returns the highest term of all servers.
fn term(fleet: &Fleet) -> f64 {
    let terms = SERVERS.map(|server| figures(fleet, server).value("lockmesh_server_raft_term"));
    terms.into_iter().fold(0.0, f64::max)
}

/// Returns the cumulative buckets of a histogram, the lowest first.
fn syncs(figures: &Figures) -> Vec<(String, f64)> {
    let start = format!("{SYNCS}_bucket{{le=\"");
    let buckets = figures.series.iter().filter_map(|(series, count)| {
        let bound = series.strip_prefix(&start)?.strip_suffix("\"}")?;
        Some((bound.to_owned(), *count))
    });
    let mut buckets: Vec<(String, f64)> = buckets.collect();
    // The last bound is infinity, which parses as a number.
    buckets.sort_by(|(one, _), (other, _)| number(one).total_cmp(&number(other)));
    buckets
}

fn number(bound: &str) -> f64 {
    bound.parse().unwrap_or(f64::INFINITY)
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bench)?;
        let all = self.syncs.last().map_or(0.0, |(_, count)| *count);
        writeln!(f, "syncs of the leader's log: {all}")?;
        for (bound, count) in &self.syncs {
            writeln!(f, "  at most {bound} s: {:.3} %", 100.0 * count / all.max(1.0))?;
        }
        let (before, after) = self.terms;
        writeln!(
            f,
            "{:.0} s of full load: term {before} before, {after} after (bound: equal)",
            self.seconds
        )?;
        if !self.is_clean() {
            writeln!(f, "BROKEN: the leader changed under load, with no fault")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_their_order() {
        let page = "x_seconds_bucket{le=\"1\"} 9\nlockmesh_server_fsync_seconds_bucket{le=\"10\"} 3\n\
                    lockmesh_server_fsync_seconds_bucket{le=\"+Inf\"} 4\n\
                    lockmesh_server_fsync_seconds_bucket{le=\"0.5\"} 1\n";
        let expected = [("0.5", 1.0), ("10", 3.0), ("+Inf", 4.0)].map(|(bound, n)| (bound.to_owned(), n));
        assert_eq!(syncs(&Figures::parse(page)), expected);
    }
}
