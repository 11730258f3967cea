//! Histograms of latencies, and medians. Pure.

use hdrhistogram::Histogram;
use std::time::Duration;

/// The longest latency that is recorded exactly.
const LONGEST: Duration = Duration::from_secs(600);

/// Durations of operations, with three digits.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    /// Creates an empty collection.
    pub(crate) fn new() -> Self {
        let longest = u64::try_from(LONGEST.as_nanos()).unwrap_or(u64::MAX);
        let histogram = Histogram::new_with_bounds(1_000, longest, 3);
        Self(histogram.expect("the bounds are in order and 3 digits are allowed"))
    }

    /// Adds one.
    pub(crate) fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds all of another collection.
    pub(crate) fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all collections have the same bounds");
    }

    /// Returns their number.
    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns a quantile in milliseconds; 0 if there are none.
    pub(crate) fn milliseconds(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1e6
    }

    /// Returns the longest, in milliseconds.
    pub(crate) fn max_milliseconds(&self) -> f64 {
        self.0.max() as f64 / 1e6
    }
}

/// Returns the median; 0 of none.
pub(crate) fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        count if count % 2 == 1 => sorted[count / 2],
        count => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_all_latencies() {
        let (mut all, mut other) = (Latencies::new(), Latencies::new());
        for millis in 1..=500 {
            all.record(Duration::from_millis(millis));
            other.record(Duration::from_millis(500 + millis));
        }
        all.add(&other);
        assert_eq!(all.count(), 1000);
        for (quantile, expected) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let found = all.milliseconds(quantile);
            assert!((found / expected - 1.0).abs() < 0.002, "{found} instead of {expected}");
        }
        assert!((all.max_milliseconds() / 1000.0 - 1.0).abs() < 0.002);
        assert_eq!(Latencies::new().milliseconds(0.5), 0.0);
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
