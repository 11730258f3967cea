//! Holds of locks as their clients see them, exclusive and shared, with the rules that they must
//! keep, and the times that clients wait.
//!
//! A hold lasts from the receipt of the grant until its release is sent: a part of the real hold.
//! All clients are on one machine and use its clock, so an overlap is no clock skew.

use crate::hosts::belief::{Belief, BootTime};
use std::fmt;

/// One hold of one key.
#[derive(Clone, Debug)]
pub struct Hold {
    /// The key.
    pub key: String,
    /// Set for shared mode.
    pub is_shared: bool,
    /// The fencing token.
    pub fence: u64,
    /// The time of the hold.
    pub time: Belief,
}

/// Returns the broken rules: an exclusive hold overlaps no other, and a hold has a higher fence
/// than those before it, except for shared holds of one period.
pub fn conflicts(mut holds: Vec<Hold>) -> Vec<String> {
    holds.sort_by(|one, other| (&one.key, one.time.first).cmp(&(&other.key, other.time.first)));
    let mut found = Vec::new();
    for of_key in holds.chunk_by(|one, other| one.key == other.key) {
        let mut last_of = [None::<&Hold>; 2];
        for hold in of_key {
            for earlier in last_of.into_iter().flatten() {
                let is_free = (hold.is_shared && earlier.is_shared) || hold.time.first > earlier.time.last;
                let is_same_period = hold.is_shared && earlier.is_shared && hold.fence == earlier.fence;
                if !is_free || (hold.fence <= earlier.fence && !is_same_period) {
                    found.push(format!("{hold:?} conflicts with {earlier:?}"));
                }
            }
            // Of several shared holds, the one that ends last may conflict with a later writer.
            let last = &mut last_of[usize::from(hold.is_shared)];
            if last.is_none_or(|last| last.time.last < hold.time.last) {
                *last = Some(hold);
            }
        }
    }
    found
}

/// The times from a request to its grant, or from a death to the next grant.
#[derive(Clone, Debug, Default)]
pub struct Waits(Vec<f64>);

impl Waits {
    /// Adds the time between two moments.
    ///
    /// # Panics
    /// The second moment is earlier: there were two holders.
    #[track_caller]
    pub fn add(&mut self, from: BootTime, until: BootTime) {
        assert!(from <= until, "a grant came {:.1} ms too early", from.since(until) * 1e3);
        self.0.push(until.since(from) * 1e3);
        self.0.sort_by(f64::total_cmp);
    }

    /// Adds the times of others.
    pub fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
        self.0.sort_by(f64::total_cmp);
    }

    /// Returns a percentile in milliseconds, the smallest time that this share does not exceed; 0
    /// without any times.
    pub fn percentile(&self, share: usize) -> f64 {
        let place = (self.0.len() * share).div_ceil(100).saturating_sub(1);
        self.0.get(place).copied().unwrap_or_default()
    }
}

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, high, longest] = [50, 99, 100].map(|share| self.percentile(share));
        write!(f, "{} times, p50 {median:.1} ms, p99 {high:.1} ms, max {longest:.1} ms", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(is_shared: bool, fence: u64, first: u64, last: u64) -> Hold {
        let time = Belief { first: BootTime(first), last: BootTime(last) };
        Hold { key: "job".into(), is_shared, fence, time }
    }

    #[test]
    fn legal_holds_have_no_conflict() {
        let readers = [hold(true, 2, 11, 30), hold(true, 2, 12, 15), hold(true, 3, 31, 33)];
        let other_key = Hold { key: "other".into(), ..hold(false, 1, 0, 50) };
        let writers = [hold(false, 1, 1, 10), hold(false, 4, 34, 40), other_key];
        assert_eq!(conflicts([&readers[..], &writers[..]].concat()), [""; 0]);
    }

    #[test]
    fn overlaps_and_old_fences_conflict() {
        let reader = [hold(true, 2, 11, 30), hold(true, 2, 12, 15)];
        for bad in [hold(false, 3, 29, 40), hold(false, 2, 31, 40), hold(false, 1, 1, 11)] {
            assert_eq!(conflicts([&reader[..], std::slice::from_ref(&bad)].concat()).len(), 1, "{bad:?}");
        }
        assert_eq!(conflicts(vec![hold(false, 1, 1, 10), hold(false, 2, 10, 20)]).len(), 1);
        assert_eq!(conflicts(vec![hold(false, 2, 1, 9), hold(true, 2, 10, 20)]).len(), 1);
    }

    #[test]
    #[should_panic(expected = "a grant came 1.0 ms too early")]
    fn early_grant_fails() {
        Waits::default().add(BootTime(2_000_000), BootTime(1_000_000));
    }

    #[test]
    fn percentiles_are_of_sorted_times() {
        let mut waits = Waits::default();
        (1..=100).rev().for_each(|ms| waits.add(BootTime(0), BootTime(ms * 1_000_000)));
        assert_eq!(waits.to_string(), "100 times, p50 50.0 ms, p99 99.0 ms, max 100.0 ms");
    }
}
