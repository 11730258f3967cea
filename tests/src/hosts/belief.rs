//! A holder's belief over time: a process that its guard runs while the lock is held, and that
//! records the time repeatedly while it lives.
//!
//! The clock is `CLOCK_BOOTTIME`, which all hosts of one machine share. Two overlapping beliefs are
//! therefore two holders at the same moment, without any clock skew.

use crate::dialect::let_pass;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// The interval between two recorded times.
const INTERVAL: Duration = Duration::from_millis(20);

/// A moment since the machine's boot, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct BootTime(pub u64);

impl BootTime {
    /// Returns the current time.
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        let (seconds, rest) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
        Self(seconds.expect("it began at 0") * 1_000_000_000 + rest.expect("a part of a second"))
    }

    /// Returns the seconds from an earlier moment to this one; negative if the other is later.
    pub fn since(self, earlier: Self) -> f64 {
        (self.0 as f64 - earlier.0 as f64) / 1e9
    }
}

/// One uninterrupted belief.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Belief {
    /// The first recorded moment.
    pub first: BootTime,
    /// The last recorded moment.
    pub last: BootTime,
}

impl Belief {
    /// Reads a record; `None` if it contains no moment yet.
    pub fn read(record: &Path) -> Option<Self> {
        Self::parse(&fs::read_to_string(record).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // A killed process may leave half a line behind.
        let whole = &text[..text.rfind('\n')?];
        let mut moments = whole.lines().map(|line| BootTime(line.parse().expect("a line is a moment")));
        let first = moments.next()?;
        Some(Self { first, last: moments.next_back().unwrap_or(first) })
    }

    /// Returns `true` if the two beliefs share a moment.
    pub fn meets(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Returns the number of overlapping pairs of beliefs. Mutual exclusion requires 0.
pub fn overlaps(beliefs: &[Belief]) -> usize {
    let pairs = beliefs.iter().enumerate().flat_map(|(number, one)| {
        beliefs[number + 1..].iter().map(move |other| usize::from(one.meets(other)))
    });
    pairs.sum()
}

/// Believes until killed: appends the time to a new file repeatedly.
pub fn believe(record: &Path) -> ! {
    let mut record = File::create_new(record).expect("a record is made once, in a folder that is there");
    loop {
        // A single write, so that a reader sees complete lines.
        let line = format!("{}\n", BootTime::now().0);
        record.write_all(line.as_bytes()).expect("the record can be written to");
        let_pass(INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn belief(first: u64, last: u64) -> Belief {
        Belief { first: BootTime(first), last: BootTime(last) }
    }

    #[test]
    fn incomplete_last_line_is_ignored() {
        assert_eq!(Belief::parse(""), None);
        assert_eq!(Belief::parse("17"), None, "half a line may be half a number");
        assert_eq!(Belief::parse("17\n"), Some(belief(17, 17)));
        assert_eq!(Belief::parse("17\n18\n21\n2"), Some(belief(17, 21)));
    }

    #[test]
    fn overlapping_beliefs_are_counted() {
        let (one, next, late) = (belief(10, 20), belief(21, 30), belief(30, 31));
        assert_eq!(overlaps(&[]), 0);
        assert_eq!(overlaps(&[one, next]), 0);
        assert_eq!(overlaps(&[next, one, late]), 1, "the last moment of one is the first of another");
        assert_eq!(overlaps(&[belief(0, 40), one, next]), 2, "it holds two others");
    }

    #[test]
    fn the_clock_goes_on() {
        let (one, other) = (BootTime::now(), BootTime::now());
        assert!(one <= other && other.since(one) >= 0.0);
        assert_eq!(BootTime(2_500_000_000).since(BootTime(3_000_000_000)), -0.5);
    }
}
