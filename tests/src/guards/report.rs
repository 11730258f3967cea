//! The outcome of all rounds as a table, with all broken expectations.

use super::fault::Fault;
use super::round::Round;
use crate::hosts::report::median;
use std::fmt;
use std::time::Duration;

/// All rounds of one fault.
pub struct Row {
    /// The fault.
    pub fault: Fault,
    /// The rounds.
    pub rounds: Vec<Round>,
}

/// A whole run.
pub struct Report {
    /// A row for each fault.
    pub rows: Vec<Row>,
    /// The maximum time from the end of a command to the next one's start, if the supervisor lives.
    pub limit: Duration,
}

impl Row {
    /// Returns descriptions of the expectations that a round breaks.
    fn judge(&self, round: &Round, limit: Duration) -> Vec<String> {
        let mut broken = Vec::new();
        if let Some(gap) = round.gap_seconds.filter(|gap| *gap < 0.0) {
            broken.push(format!("two commands ran at the same time, for {:.3} s", -gap));
        }
        if round.survivors > 0 {
            broken.push(format!("{} processes of the former command survived", round.survivors));
        }
        if self.fault.excepts(round.variant.kind) {
            broken.clear();
        }
        match round.gap_seconds {
            None => broken.push("the lock did not pass on".into()),
            Some(gap) if self.fault.is_prompt && gap > limit.as_secs_f64() => {
                let gap = gap * 1e3;
                broken.push(format!(
                    "passed on {gap:.0} ms after the end of the command, not within {limit:?}"
                ));
            }
            Some(_) => {}
        }
        broken
    }

    /// Returns the lengths of overlaps: those that the documents except, or all others.
    fn overlaps(&self, excepted: bool) -> Vec<f64> {
        let rounds = self.rounds.iter().filter(|round| self.fault.excepts(round.variant.kind) == excepted);
        rounds.filter_map(|round| round.gap_seconds).filter(|gap| *gap < 0.0).map(|gap| -gap).collect()
    }
}

impl Report {
    /// Returns descriptions of all broken expectations.
    pub fn broken(&self) -> Vec<String> {
        let rounds = self.rows.iter().flat_map(|row| row.rounds.iter().map(move |round| (row, round)));
        let lines = rounds.flat_map(|(row, round)| {
            let place = format!("{}, round {}, {}", row.fault.name, round.number, round.variant);
            row.judge(round, self.limit).into_iter().map(move |line| format!("{place}: {line}"))
        });
        lines.collect()
    }
}

/// Formats minimum, median and maximum.
fn spread(values: impl Iterator<Item = f64>, digits: usize) -> String {
    let values: Vec<f64> = values.collect();
    let Some(median) = median(&values) else { return "-".into() };
    let least = values.iter().copied().fold(median, f64::min);
    let most = values.iter().copied().fold(median, f64::max);
    format!("{least:.digits$}/{median:.digits$}/{most:.digits$}")
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounds = || self.rounds.iter();
        let overlaps = self.overlaps(false);
        write!(
            f,
            "{:<18} {:>6} {:>8} {:>9} {:>20} {:>24} {:>9} {:>8}",
            self.fault.name,
            self.rounds.len(),
            overlaps.len(),
            overlaps.iter().copied().reduce(f64::max).map_or("-".into(), |longest| format!("{longest:.2}")),
            spread(rounds().filter_map(|round| round.next_seconds), 2),
            spread(rounds().filter_map(|round| round.gap_seconds).map(|gap| gap * 1e3), 0)
                + if self.fault.is_prompt { " !" } else { "  " },
            rounds().map(|round| round.survivors).sum::<usize>(),
            self.overlaps(true).len(),
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<18} {:>6} {:>8} {:>9} {:>20} {:>24} {:>9} {:>8}",
            "fault", "rounds", "overlaps", "longest s", "next s", "gap ms", "survivors", "excepted"
        )?;
        self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))?;
        self.broken().iter().try_for_each(|line| writeln!(f, "BROKEN: {line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::command::Kind;
    use super::super::fault;
    use super::super::round::{Fixed, Variant};
    use super::*;

    const LIMIT: Duration = Duration::from_millis(50);

    fn broken(name: &str, kind: Kind, gap_seconds: Option<f64>, survivors: usize) -> String {
        let fault = *fault::ALL.iter().find(|fault| fault.name == name).expect("there is such a fault");
        let variant = Variant::of(&fault, 0, Fixed { kind: Some(kind), ..Fixed::default() });
        let next_seconds = gap_seconds.map(|_| 3.0);
        let round = Round { number: 0, variant, next_seconds, gap_seconds, survivors };
        Report { rows: vec![Row { fault, rounds: vec![round] }], limit: LIMIT }.broken().join("; ")
    }

    #[test]
    fn overlaps_survivors_late_starts_reported() {
        assert_eq!(broken("kill", Kind::Slow, Some(0.05), 0), "");
        assert!(broken("kill", Kind::Slow, Some(0.06), 0).contains("passed on 60 ms after"));
        assert_eq!(broken("kill-both", Kind::Slow, Some(1.0), 0), "", "no process could release it");
        assert!(broken("kill-both", Kind::Slow, Some(-3.4), 0).contains("for 3.400 s"));
        assert!(broken("kill-both", Kind::Slow, None, 0).contains("did not pass on"));
        assert!(broken("stop", Kind::Plain, Some(0.01), 2).contains("2 processes"));
    }

    #[test]
    fn unguarded_children_are_excused() {
        assert_eq!(broken("kill-stop", Kind::Forking, Some(-3.0), 8), "");
        assert!(broken("kill-stop", Kind::Slow, Some(-3.0), 1).contains("survived"));
        assert!(broken("stop-kill", Kind::Forking, Some(-3.0), 8).contains("survived"));
    }
}
