//! The outcome of outages as a table and as JSON, and the broken expectations.

use super::expectation::{Expectation, LockDelay, Window};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

/// The maximum time from the moment at which a majority of the servers runs again until a lock is
/// held, in addition to its lock-delay. It includes the election, if one is needed.
pub const HELD_AFTER: Duration = Duration::from_secs(1);
/// The longest election. For the holders an outage of a majority ends when the next leader serves.
const ELECTION: Duration = Duration::from_secs(1);

/// One outage, and the lock of one window.
#[derive(Clone, Debug, Serialize)]
pub struct OutageRow {
    /// The number of stopped servers.
    pub stopped: usize,
    /// The length in seconds.
    pub seconds: u64,
    /// The number of this round among those of its kind.
    pub round: usize,
    /// The window of the sessions.
    pub window: Window,
    /// Seconds from the end of the outage until a write succeeded.
    pub back_seconds: f64,
    /// `true` if the holder believed all the time.
    pub kept: bool,
    /// Seconds from the end of the outage, or from the holder's last moment if that was later,
    /// until the next holder believed; `None` without a next holder.
    pub stuck_seconds: Option<f64>,
    /// `true` if the next holder lost the lock to the same outage before it believed.
    pub lost_again: bool,
    /// The number of pairs of holders that believed at the same moment.
    pub overlaps: usize,
    /// The causes of the holder's loss in the loss history.
    pub causes: BTreeSet<String>,
    /// Descriptions of all broken expectations.
    pub broken: Vec<String>,
}

/// All outages of a run.
#[derive(Clone, Debug, Serialize)]
pub struct OutageReport {
    /// A row for each outage and window.
    pub rows: Vec<OutageRow>,
}

/// Returns the expectation for a lock without a lock-delay during an outage of the servers.
pub fn of_outage(length: Duration, window: Window) -> Expectation {
    if length + ELECTION <= window.borne() {
        Expectation::Kept
    } else if length < window.limit() {
        Expectation::Either
    } else {
        Expectation::Passes(HELD_AFTER)
    }
}

impl OutageRow {
    /// Compares the row with the expectation for a lock with this lock-delay.
    pub fn judge(&mut self, lock_delay: LockDelay) {
        let expected = of_outage(Duration::from_secs(self.seconds), self.window);
        let limit = HELD_AFTER + lock_delay.length();
        let mut broken = Vec::new();
        if self.overlaps > 0 {
            broken.push("two holders believed at the same moment".to_owned());
        }
        match (self.kept, self.stuck_seconds) {
            (true, _) if matches!(expected, Expectation::Passes(_)) => {
                broken.push("the holder believed beyond its deadline".into());
            }
            (true, _) => {}
            (false, _) if expected == Expectation::Kept => {
                broken.push("the holder lost a lock that it had to keep".into());
            }
            // The hosts of both were silent for about the same time.
            (false, None) if self.lost_again && expected == Expectation::Either => {}
            (false, None) => broken.push("the lock did not pass on".into()),
            (false, Some(stuck)) if stuck > limit.as_secs_f64() => {
                broken.push(format!("the lock was stuck for {stuck:.2} s, not at most {limit:?}"));
            }
            (false, Some(_)) => {}
        }
        if self.causes.contains("destroyed") {
            broken.push("the loss history reports destroyed for a silence".into());
        }
        self.broken = broken;
    }
}

impl OutageReport {
    /// Returns `true` if all expectations held.
    pub fn is_clean(&self) -> bool {
        self.rows.iter().all(|row| row.broken.is_empty())
    }
}

impl fmt::Display for OutageRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = match (self.kept, self.stuck_seconds) {
            (true, _) => "kept".into(),
            (false, Some(stuck)) => format!("passed on, stuck for {stuck:.2} s"),
            (false, None) if self.lost_again => "lost by both".into(),
            (false, None) => "stuck".into(),
        };
        let causes = self.causes.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        write!(
            f,
            "{:<10} {:<9} {:<8} {:>6.2}  {outcome}; {}",
            format!("{}s", self.seconds),
            format!("{} of 3", self.stopped),
            self.window.name(),
            self.back_seconds,
            if causes.is_empty() { "-" } else { &causes }
        )
    }
}

impl fmt::Display for OutageReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<10} {:<9} {:<8} {:>6}  lock (bound: stuck for {HELD_AFTER:?} + lock-delay); losses",
            "outage", "stopped", "window", "back s"
        )?;
        self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))?;
        for row in &self.rows {
            row.broken.iter().try_for_each(|line| {
                writeln!(
                    f,
                    "BROKEN: outage of {} s, {} servers, {}, round {}: {line}",
                    row.seconds, row.stopped, row.window, row.round
                )
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(seconds: u64, window: Window, kept: bool, stuck_seconds: Option<f64>) -> OutageRow {
        let causes = stuck_seconds.map(|_| "given-up".to_owned()).into_iter().collect();
        OutageRow {
            stopped: 2,
            seconds,
            round: 1,
            window,
            back_seconds: 0.2,
            kept,
            stuck_seconds,
            lost_again: false,
            overlaps: 0,
            causes,
            broken: Vec::new(),
        }
    }

    fn broken(mut row: OutageRow, lock_delay: LockDelay) -> String {
        row.judge(lock_delay);
        row.broken.join("; ")
    }

    #[test]
    fn stuck_or_lost_lock_reported() {
        let none = LockDelay::None;
        assert_eq!(broken(row(3, Window::Default, true, None), none), "");
        assert!(broken(row(3, Window::Default, false, Some(0.3)), none).contains("had to keep"));
        assert_eq!(broken(row(5, Window::Default, true, None), none), "", "either may happen");
        assert_eq!(broken(row(5, Window::Default, false, Some(0.9)), none), "");
        assert!(broken(row(8, Window::Default, false, Some(1.1)), none).contains("stuck for 1.10 s"));
        assert!(broken(row(8, Window::Default, false, None), none).contains("did not pass on"));
        let lost_again =
            |seconds| OutageRow { lost_again: true, ..row(seconds, Window::Default, false, None) };
        assert_eq!(broken(lost_again(6), none), "");
        assert!(broken(lost_again(8), none).contains("did not pass on"));
        assert!(broken(row(8, Window::Default, true, None), none).contains("beyond its deadline"));
    }

    #[test]
    fn lock_delay_extends_allowed_time() {
        assert_eq!(broken(row(8, Window::Default, false, Some(15.9)), LockDelay::Shipped), "");
        assert!(broken(row(8, Window::Default, false, Some(16.6)), LockDelay::Shipped).contains("stuck"));
    }

    #[test]
    fn overlaps_and_wrong_causes_reported() {
        let shared = OutageRow { overlaps: 1, ..row(8, Window::Fast, false, Some(0.1)) };
        assert!(broken(shared, LockDelay::None).contains("same moment"));
        let excused = OutageRow {
            causes: ["destroyed".to_owned()].into_iter().collect(),
            ..row(8, Window::Fast, false, Some(0.1))
        };
        assert!(broken(excused, LockDelay::None).contains("reports destroyed"));
    }
}
