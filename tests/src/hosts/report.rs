//! The outcome of the rounds as a table and as JSON, with all broken expectations.

use super::expectation::{Expectation, LockDelay, Window};
use super::fault::{Fault, GIVEN_UP};
use super::members::SERVERS;
use super::round::{FAILED, Round};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt;

/// The maximum number of lines about connections that a flooded process may log in a round: one
/// when it begins, and one when it has ended.
const ACCEPT_LINES: usize = 2;

/// A majority of the servers.
const MAJORITY: usize = SERVERS.len() / 2 + 1;

/// All rounds of one fault and one window.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The fault's name.
    pub fault: &'static str,
    /// The window.
    pub window: Window,
    /// The expectation.
    pub expected: Expectation,
    /// Seconds to the next holder, in the median; `None` if the lock never passed on.
    pub median_seconds: Option<f64>,
    /// The longest time to the next holder, in seconds.
    pub worst_seconds: Option<f64>,
    /// The number of rounds in which the holder kept the lock.
    pub kept: usize,
    /// The shortest time between two beliefs; negative if they overlapped.
    pub least_gap_seconds: Option<f64>,
    /// The number of pairs of holders that believed at the same moment.
    pub overlaps: usize,
    /// The causes of the holder's losses in the loss history.
    pub causes: BTreeSet<String>,
    /// The observed statuses of the holder's node.
    pub members: BTreeSet<String>,
    /// Seconds until the node was listed as failed, in the median of the rounds in which it was.
    pub failed_seconds: Option<f64>,
    /// The longest time from the fault's end until the node was alive, in seconds.
    pub alive_seconds: Option<f64>,
    /// Descriptions of all broken expectations.
    pub broken: Vec<String>,
    /// The rounds.
    pub rounds: Vec<Round>,
}

impl Row {
    /// Summarizes and judges the rounds; there must be at least one.
    pub fn new(fault: &Fault, window: Window, lock_delay: LockDelay, rounds: Vec<Round>) -> Self {
        let seconds: Vec<f64> = rounds.iter().filter_map(|round| round.seconds).collect();
        let gaps = rounds.iter().filter_map(|round| round.gap_seconds);
        let mut row = Self {
            fault: fault.name,
            window,
            expected: fault.expectation(window).after(lock_delay),
            median_seconds: median(&seconds),
            worst_seconds: seconds.iter().copied().reduce(f64::max),
            kept: rounds.iter().filter(|round| round.kept).count(),
            least_gap_seconds: gaps.reduce(f64::min),
            overlaps: rounds.iter().map(|round| round.overlaps).sum(),
            causes: rounds.iter().flat_map(|round| &round.losses).map(cause).collect(),
            members: rounds.iter().flat_map(|round| &round.members).map(|seen| seen.status.clone()).collect(),
            failed_seconds: median(&rounds.iter().filter_map(failed_after).collect::<Vec<_>>()),
            alive_seconds: rounds.iter().filter_map(|round| round.alive_seconds).reduce(f64::max),
            broken: Vec::new(),
            rounds,
        };
        row.broken = row.judge(fault);
        row
    }

    fn judge(&self, fault: &Fault) -> Vec<String> {
        let mut broken: Vec<String> =
            self.rounds.iter().flat_map(|round| judge(round, fault, self.window)).collect();
        let (seconds, which) = match fault.limits_each_round() {
            true => (self.worst_seconds, "at worst"),
            false => (self.median_seconds, "in the median"),
        };
        if let (Expectation::Passes(limit), Some(seconds)) = (self.expected, seconds)
            && seconds > limit.as_secs_f64()
        {
            broken.push(format!(
                "the next contender held the lock after {seconds:.2} s {which}, not within {limit:?}"
            ));
        }
        broken
    }
}

/// Returns descriptions of the expectations that one round breaks.
fn judge(round: &Round, fault: &Fault, window: Window) -> Vec<String> {
    let number = round.number;
    let mut broken = Vec::new();
    if round.overlaps > 0 {
        broken.push(format!("round {number}: two holders believed at the same moment"));
    }
    if round.alive_seconds.is_none() {
        broken.push(format!("round {number}: the holder's node was not alive a minute after the fault"));
    }
    if round.accept_lines > ACCEPT_LINES {
        let lines = round.accept_lines;
        broken.push(format!("round {number}: a flooded process logged {lines} lines about connections"));
    }
    match fault.expectation(window) {
        Expectation::Kept if !round.kept => {
            broken.push(format!("round {number}: the holder lost a lock that it had to keep"));
        }
        Expectation::Kept if round.members.iter().any(|seen| seen.status == FAILED) => {
            broken.push(format!("round {number}: a node that was there was called failed"));
        }
        Expectation::Passes(_) if round.seconds.is_none() => {
            broken.push(format!("round {number}: no contender was given the lock"));
        }
        Expectation::Passes(_) if round.losses.is_empty() => {
            broken.push(format!("round {number}: the loss history is silent about the holder's session"));
        }
        _ => {}
    }
    let wrong = round.losses.iter().filter_map(|loss| wrong_cause(loss, fault.causes(window)));
    broken.extend(wrong.map(|wrong| format!("round {number}: {wrong}")));
    broken
}

/// Compares a loss with the fault. Returns `None` if it fits.
fn wrong_cause(loss: &Value, causes: &[&str]) -> Option<String> {
    let told = loss["Cause"].as_str().unwrap_or("no cause");
    if !causes.contains(&told) {
        return Some(format!("the loss history reports {told}, not {}", causes.join(" or ")));
    }
    if (told == "node-failed" || told == GIVEN_UP) && loss["SilentFor"].as_str().is_none_or(str::is_empty) {
        return Some(format!("the loss history reports {told} without the length of the silence"));
    }
    let witnesses = loss["ConfirmedBy"].as_array().map_or(0, Vec::len);
    (told == "node-failed" && witnesses < MAJORITY)
        .then(|| format!("a node was failed by {witnesses} servers, which are no majority"))
}

/// Returns the seconds until the first contender's agent listed the holder's node as failed.
fn failed_after(round: &Round) -> Option<f64> {
    round.members.iter().find(|seen| seen.status == FAILED).map(|seen| seen.seconds)
}

/// Returns the median.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        1 => Some(values[middle]),
        _ => Some(f64::midpoint(*values.get(middle.checked_sub(1)?)?, values[middle])),
    }
}

/// Returns a loss's cause; for a failed node also the window and the confirming servers.
fn cause(loss: &Value) -> String {
    let servers = loss["ConfirmedBy"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let servers: BTreeSet<&str> = servers.collect();
    let mut words = vec![loss["Cause"].as_str().unwrap_or("unnamed").to_owned()];
    words.extend(loss["HealthWindow"].as_str().filter(|window| !window.is_empty()).map(str::to_owned));
    words.extend((!servers.is_empty()).then(|| format!("by {}", Vec::from_iter(servers).join("+"))));
    words.join(" ")
}

/// A whole run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// A row for each fault and window.
    pub rows: Vec<Row>,
    /// The skipped parts, with reasons.
    pub skipped: Vec<String>,
}

impl Report {
    /// Returns `true` if all expectations held.
    pub fn is_clean(&self) -> bool {
        self.rows.iter().all(|row| row.broken.is_empty())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<18} {:<8} {:<9} {:>8} {:>8} {:>7} {:>8} {:>8} {:>8} {:>8}  members; losses",
            "fault",
            "window",
            "expected",
            "median s",
            "worst s",
            "kept",
            "gap ms",
            "overlaps",
            "failed s",
            "alive s"
        )?;
        for row in &self.rows {
            writeln!(
                f,
                "{:<18} {:<8} {:<9} {:>8} {:>8} {:>7} {:>8} {:>8} {:>8} {:>8}  {}; {}",
                row.fault,
                row.window.name(),
                expected(row.expected),
                seconds(row.median_seconds),
                seconds(row.worst_seconds),
                format!("{}/{}", row.kept, row.rounds.len()),
                row.least_gap_seconds.map_or("-".into(), |gap| format!("{:.0}", gap * 1e3)),
                row.overlaps,
                seconds(row.failed_seconds),
                seconds(row.alive_seconds),
                list(&row.members),
                list(&row.causes),
            )?;
        }
        self.skipped.iter().try_for_each(|line| writeln!(f, "skipped: {line}"))?;
        for row in &self.rows {
            row.broken
                .iter()
                .try_for_each(|line| writeln!(f, "BROKEN: {}, {}: {line}", row.fault, row.window))?;
        }
        Ok(())
    }
}

fn expected(expected: Expectation) -> String {
    match expected {
        Expectation::Kept => "kept".into(),
        Expectation::Passes(limit) => format!("<= {limit:?}"),
        Expectation::Either => "either".into(),
    }
}

/// Formats seconds for the table.
pub fn seconds(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.2}"))
}

fn list(words: &BTreeSet<String>) -> String {
    match words.is_empty() {
        true => "-".into(),
        false => words.iter().map(String::as_str).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fault;
    use super::super::round::Seen;
    use super::*;
    use serde_json::json;

    fn fault(name: &str) -> &'static Fault {
        fault::ALL.iter().find(|fault| fault.name == name).expect("there is such a fault")
    }

    fn round(fault: &Fault, seconds: Option<f64>) -> Round {
        let loss = json!({"Cause": "node-failed", "Node": "n1", "ConfirmedBy": ["s1", "s2"], "HealthWindow": "fast", "SilentFor": "2.1s"});
        Round {
            fault: fault.name,
            window: Window::Fast,
            number: 1,
            seconds,
            kept: seconds.is_none(),
            gap_seconds: seconds.map(|_| 0.25),
            overlaps: 0,
            losses: seconds.map(|_| loss).into_iter().collect(),
            members: Vec::new(),
            alive_seconds: Some(0.5),
            accept_lines: 0,
            said: String::new(),
        }
    }

    fn broken(name: &str, rounds: Vec<Round>) -> String {
        Row::new(fault(name), Window::Fast, LockDelay::None, rounds).broken.join("; ")
    }

    #[test]
    fn median_of_odd_and_even() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }

    #[test]
    fn expected_outcomes_are_accepted() {
        let gone = fault("host-killed");
        let row = Row::new(
            gone,
            Window::Fast,
            LockDelay::None,
            [2.5, 2.0, 9.0].map(|s| round(gone, Some(s))).into(),
        );
        assert_eq!(row.broken, [] as [String; 0], "one slow round is not the median");
        assert_eq!((row.median_seconds, row.worst_seconds, row.kept), (Some(2.5), Some(9.0), 0));
        assert_eq!(row.causes.iter().collect::<Vec<_>>(), ["node-failed fast by s1+s2"]);
        let stopped = fault("leader-stopped");
        assert_eq!(broken("leader-stopped", vec![round(stopped, None)]), "");
        let cut = fault("servers-cut");
        let given_up = json!({"Cause": "given-up", "SilentFor": "1.6s"});
        let slow = Round { losses: vec![given_up], ..round(cut, Some(5.5)) };
        let quick = Round { seconds: Some(4.9), ..slow.clone() };
        assert_eq!(broken("servers-cut", vec![quick.clone()]), "");
        assert!(broken("servers-cut", vec![quick.clone(), slow, quick]).contains("5.50 s at worst"));
    }

    #[test]
    fn unexpected_outcomes_are_reported() {
        let gone = fault("host-killed");
        assert!(broken("host-killed", vec![round(gone, None)]).contains("no contender was given the lock"));
        assert!(broken("host-killed", vec![round(gone, Some(3.1))]).contains("not within 3s"));
        let unexplained = Round { losses: Vec::new(), ..round(gone, Some(1.0)) };
        assert!(broken("host-killed", vec![unexplained]).contains("is silent"));
        let cut = fault("servers-cut");
        assert!(
            broken("servers-cut", vec![round(cut, Some(1.0))]).contains("reports node-failed, not given-up")
        );
        let shared = Round { overlaps: 1, ..round(gone, Some(1.0)) };
        assert!(broken("host-killed", vec![shared]).contains("at the same moment"));
        let dark = Round { alive_seconds: None, ..round(gone, Some(1.0)) };
        assert!(broken("host-killed", vec![dark]).contains("not alive"));
        let stopped = fault("leader-stopped");
        assert!(broken("leader-stopped", vec![round(stopped, Some(2.0))]).contains("had to keep"));
        let excused = json!({"Cause": "destroyed"});
        let excused = Round { losses: vec![excused], ..round(gone, Some(1.0)) };
        assert!(
            broken("host-killed", vec![excused]).contains("reports destroyed"),
            "a silence destroys nothing"
        );
        let unmeasured = json!({"Cause": "node-failed", "ConfirmedBy": ["s1", "s2"]});
        let unmeasured = Round { losses: vec![unmeasured], ..round(gone, Some(1.0)) };
        assert!(broken("host-killed", vec![unmeasured]).contains("without the length"));
        let alone = json!({"Cause": "node-failed", "ConfirmedBy": ["s1"], "SilentFor": "2.1s"});
        let alone = Round { losses: vec![alone], ..round(gone, Some(1.0)) };
        assert!(broken("host-killed", vec![alone]).contains("no majority"));
        let noisy = Round { accept_lines: 3, ..round(stopped, None) };
        assert!(broken("leader-stopped", vec![noisy]).contains("logged 3 lines"));
        let slandered = Seen { seconds: 1.0, status: FAILED.into() };
        let slandered = Round { members: vec![slandered], ..round(stopped, None) };
        assert!(broken("leader-stopped", vec![slandered]).contains("called failed"));
    }
}
