//! Metrics that are stored elsewhere and read on demand, so that they are always current.

use super::table::Row;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge};
use std::collections::HashMap;

const WELL_FORMED: &str = "names of metrics are constants of the right form";

/// A metric, and the function that reads it from where it is stored.
pub struct Reading<T> {
    /// The metric.
    pub row: Row,
    read: fn(&T) -> f64,
}

impl<T> Reading<T> {
    /// Creates a counter; it must only increase.
    pub const fn counter(name: &'static str, help: &'static str, read: fn(&T) -> f64) -> Self {
        Self { row: Row::plain(name, "counter", help), read }
    }

    /// Creates a gauge.
    pub const fn gauge(name: &'static str, help: &'static str, read: fn(&T) -> f64) -> Self {
        Self { row: Row::plain(name, "gauge", help), read }
    }

    /// Returns the current value. The family is created for each call, so that concurrent calls are
    /// safe.
    pub fn families(&self, source: &T) -> Vec<MetricFamily> {
        let (value, Row { name, help, .. }) = ((self.read)(source), self.row);
        if self.row.kind == "counter" {
            let counter = Counter::new(name, help).expect(WELL_FORMED);
            // The library panics on a negative number in a debug build.
            counter.inc_by(value.max(0.0));
            counter.collect()
        } else {
            let gauge = Gauge::new(name, help).expect(WELL_FORMED);
            gauge.set(value);
            gauge.collect()
        }
    }
}

/// A table of readings: `kind "name", "help", read;` each.
#[macro_export]
macro_rules! readings {
    ($($kind:ident $name:literal, $help:literal, $read:expr;)*) => {
        &[$($crate::metrics::reading::Reading::$kind($name, $help, $read)),*]
    };
}

/// Readings of one source as a collector.
struct Readings<T: 'static> {
    source: T,
    table: &'static [Reading<T>],
    descriptions: Vec<Desc>,
}

/// Registers the readings of a source; returns `false` if another source has registered its own.
pub fn register<T: Send + Sync + 'static>(source: T, table: &'static [Reading<T>]) -> bool {
    let description = |reading: &Reading<T>| {
        let Row { name, help, .. } = reading.row;
        Desc::new(name.into(), help.into(), Vec::new(), HashMap::new()).expect(WELL_FORMED)
    };
    let descriptions = table.iter().map(description).collect();
    prometheus::register(Box::new(Readings { source, table, descriptions })).is_ok()
}

impl<T: Send + Sync> Collector for Readings<T> {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.table.iter().flat_map(|reading| reading.families(&self.source)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn readings_track_value_without_accumulating() {
        let total = AtomicU64::new(3);
        let reading: Reading<AtomicU64> =
            Reading::counter("a_total", "A total", |total| total.load(Ordering::Relaxed) as f64);
        let shown = || reading.families(&total)[0].get_metric()[0].get_counter().get_value();
        assert_eq!((shown(), shown()), (3.0, 3.0));
        total.store(5, Ordering::Relaxed);
        assert_eq!(shown(), 5.0);
        let level: Reading<()> = Reading::gauge("a_level", "A level", |()| -1.0);
        assert_eq!(level.families(&())[0].get_metric()[0].get_gauge().get_value(), -1.0);
    }
}
