//! Metrics that are stored elsewhere and read on demand, so that they are always current.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge};

/// A metric and the function that reads it.
pub struct Reading {
    name: String,
    help: &'static str,
    is_counter: bool,
    description: Vec<Desc>,
    read: Box<dyn Fn() -> f64 + Send + Sync>,
}

impl Reading {
    /// Creates a counter; it must only increase.
    pub fn counter(name: &str, help: &'static str, read: impl Fn() -> f64 + Send + Sync + 'static) -> Self {
        Self::new(name, help, true, Box::new(read))
    }

    /// Creates a gauge.
    pub fn gauge(name: &str, help: &'static str, read: impl Fn() -> f64 + Send + Sync + 'static) -> Self {
        Self::new(name, help, false, Box::new(read))
    }

    fn new(
        name: &str,
        help: &'static str,
        is_counter: bool,
        read: Box<dyn Fn() -> f64 + Send + Sync>,
    ) -> Self {
        let description = Gauge::new(name, help).expect("names of metrics are constants of the right form");
        let description = description.desc().into_iter().cloned().collect();
        Self { name: name.to_owned(), help, is_counter, description, read }
    }

    /// Returns the current value. The family is created for each call, so that concurrent calls are
    /// safe.
    pub fn families(&self) -> Vec<MetricFamily> {
        let well_formed = "a metric of this name was made before";
        if self.is_counter {
            let counter = Counter::new(self.name.as_str(), self.help).expect(well_formed);
            counter.inc_by((self.read)().max(0.0));
            counter.collect()
        } else {
            let gauge = Gauge::new(self.name.as_str(), self.help).expect(well_formed);
            gauge.set((self.read)());
            gauge.collect()
        }
    }
}

/// Readings as a collector for the registry.
pub struct Readings(pub Vec<Reading>);

impl Collector for Readings {
    fn desc(&self) -> Vec<&Desc> {
        self.0.iter().flat_map(|reading| &reading.description).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.0.iter().flat_map(Reading::families).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn a_reading_shows_what_is_there_now_and_a_total_is_told_once() {
        let total = Arc::new(AtomicU64::new(3));
        let read = Arc::clone(&total);
        let reading = Reading::counter("a_total", "A total", move || read.load(Ordering::Relaxed) as f64);
        let shown = || reading.families()[0].get_metric()[0].get_counter().get_value();
        assert_eq!((shown(), shown()), (3.0, 3.0));
        total.store(5, Ordering::Relaxed);
        assert_eq!(shown(), 5.0);
        let level = Reading::gauge("a_level", "A level", || -1.0);
        assert_eq!(level.families()[0].get_metric()[0].get_gauge().get_value(), -1.0);
    }
}
