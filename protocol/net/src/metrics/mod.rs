//! Figures of a process in its one registry, as Prometheus has them: what agent and server share.
//!
//! | file | is |
//! |---|---|
//! | `mod.rs` | the registry and the text of all figures |
//! | [`reading`] | figures that are read when somebody asks |
//! | [`process`] | figures of the process itself, and of its build |
//!
//! Times are in seconds and sizes in bytes. What only grows is a counter and ends in `_total`;
//! everything else is a gauge.

pub mod process;
pub mod reading;

use prometheus::core::Collector;
use prometheus::{Encoder, TextEncoder};

/// The type of [`text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Bounds of what takes a moment, in seconds.
pub const SHORT_BUCKETS: [f64; 16] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Bounds of what somebody waits for, in seconds.
pub const WAIT_BUCKETS: [f64; 9] = [0.001, 0.01, 0.1, 1.0, 5.0, 30.0, 60.0, 600.0, 3600.0];

/// All figures of this process, as Prometheus reads them.
pub fn text() -> Vec<u8> {
    let mut text = Vec::new();
    TextEncoder::new().encode(&prometheus::gather(), &mut text).expect("memory takes every byte");
    text
}

/// Puts a metric into the registry.
pub fn registered<C: Collector + Clone + 'static>(metric: prometheus::Result<C>) -> C {
    let metric = metric.expect("names of metrics are constants of the right form");
    prometheus::register(Box::new(metric.clone())).expect("every metric has a name of its own");
    metric
}
