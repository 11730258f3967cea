//! The metrics of a process in its single Prometheus registry, shared by agent and server.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the registry and the text of all metrics |
//! | [`table`] | tables of metrics: each once, with its type, name, help and labels |
//! | [`reading`] | metrics that are read on demand |
//! | [`process`] | metrics of the process itself, and of its build |
//!
//! Times are in seconds and sizes in bytes. Counters only increase and end in `_total`; all other
//! metrics are gauges.

pub mod process;
pub mod reading;
pub mod table;

use prometheus::core::Collector;
use prometheus::{Encoder, TextEncoder};

/// The content type of [`text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Histogram buckets for short operations, in seconds.
pub const SHORT_BUCKETS: [f64; 16] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Histogram buckets for waits, in seconds.
pub const WAIT_BUCKETS: [f64; 9] = [0.001, 0.01, 0.1, 1.0, 5.0, 30.0, 60.0, 600.0, 3600.0];

/// Returns all metrics of this process in Prometheus format.
pub fn text() -> Vec<u8> {
    let mut text = Vec::new();
    TextEncoder::new().encode(&prometheus::gather(), &mut text).expect("memory takes every byte");
    text
}

fn registered<C: Collector + Clone + 'static>(metric: prometheus::Result<C>) -> C {
    let metric = metric.expect("names of metrics are constants of the right form");
    prometheus::register(Box::new(metric.clone())).expect("every metric has a name of its own");
    metric
}
