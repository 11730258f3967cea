//! The results of a measurement, for people and for programs. Pure.

use crate::command::error::CliError;
use crate::command::output::Table;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::Duration;

/// The longest latency that is distinguished from longer ones.
const MAX_LATENCY: Duration = Duration::from_secs(600);

/// Latencies as they are collected: one a client, added up at the end.
#[derive(Clone, Debug)]
pub(super) struct Latencies(Histogram<u64>);

impl Latencies {
    /// No latencies yet. Figures are kept with three digits.
    pub(super) fn new() -> Self {
        let longest = u64::try_from(MAX_LATENCY.as_nanos()).unwrap_or(u64::MAX);
        Self(
            Histogram::new_with_bounds(1_000, longest, 3)
                .expect("the bounds are in order and 3 digits are allowed"),
        )
    }

    /// Adds one.
    pub(super) fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds all of another collection.
    pub(super) fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all collections have the same bounds");
    }

    /// The number of samples.
    pub(super) fn count(&self) -> u64 {
        self.0.len()
    }

    fn milliseconds(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1e6
    }
}

/// One line of the result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Figure {
    /// The name of the scenario.
    pub(super) scenario: String,
    /// By how many clients at once.
    pub(super) clients: usize,
    /// The number of operations.
    pub(super) operations: u64,
    /// Operations a second, all clients together.
    pub(super) per_second: f64,
    /// Half of the operations took at most this many milliseconds.
    pub(super) p50_ms: f64,
    /// 90 %.
    pub(super) p90_ms: f64,
    /// 99 %.
    pub(super) p99_ms: f64,
    /// 99.9 %.
    pub(super) p999_ms: f64,
    /// All of them.
    pub(super) max_ms: f64,
}

impl Figure {
    /// Sums a measurement up.
    pub(super) fn of(scenario: &str, clients: usize, took: Duration, latencies: &Latencies) -> Self {
        let operations = latencies.count();
        Self {
            scenario: scenario.to_owned(),
            clients,
            operations,
            // Not divided by 0: JSON has no infinite number.
            per_second: operations as f64 / took.as_secs_f64().max(f64::MIN_POSITIVE),
            p50_ms: latencies.milliseconds(0.5),
            p90_ms: latencies.milliseconds(0.9),
            p99_ms: latencies.milliseconds(0.99),
            p999_ms: latencies.milliseconds(0.999),
            max_ms: latencies.0.max() as f64 / 1e6,
        }
    }
}

/// Prints the figures as a table.
pub(super) fn print_table(figures: &[Figure]) -> Result<(), CliError> {
    table(figures).print()
}

fn table(figures: &[Figure]) -> Table {
    let mut table = Table::new([
        "scenario", "clients", "ops", "ops/s", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "max ms",
    ]);
    let ms = |value: f64| format!("{value:.3}");
    for figure in figures {
        table.row([
            figure.scenario.clone(),
            figure.clients.to_string(),
            figure.operations.to_string(),
            format!("{:.0}", figure.per_second),
            ms(figure.p50_ms),
            ms(figure.p90_ms),
            ms(figure.p99_ms),
            ms(figure.p999_ms),
            ms(figure.max_ms),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_match_recorded_latencies() {
        let (mut all, mut other) = (Latencies::new(), Latencies::new());
        for millis in 1..=500 {
            all.record(Duration::from_millis(millis));
            other.record(Duration::from_millis(500 + millis));
        }
        all.add(&other);
        let figure = Figure::of("puts", 2, Duration::from_secs(10), &all);
        assert_eq!((figure.operations, figure.per_second), (1000, 100.0));
        let found = [figure.p50_ms, figure.p90_ms, figure.p99_ms, figure.p999_ms, figure.max_ms];
        for (found, expected) in found.into_iter().zip([500.0, 900.0, 990.0, 999.0, 1000.0]) {
            assert!((found / expected - 1.0).abs() < 0.002, "{found} instead of {expected}");
        }
    }

    #[test]
    fn empty_and_extreme_measurements_accepted() {
        let figure = Figure::of("puts", 1, Duration::ZERO, &Latencies::new());
        assert_eq!((figure.operations, figure.per_second, figure.max_ms), (0, 0.0, 0.0));
        let mut endless = Latencies::new();
        endless.record(Duration::MAX);
        assert_eq!(endless.count(), 1);
    }

    #[test]
    fn table_has_row_per_figure() {
        let figure = Figure::of("gets", 16, Duration::from_secs(1), &Latencies::new());
        let text = table(&[figure.clone(), figure]).render();
        assert_eq!(text.lines().count(), 3);
        assert!(text.starts_with("scenario"), "{text}");
    }
}
