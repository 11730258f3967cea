//! What a server counts and measures, in the process's one registry, as Prometheus has it.
//!
//! | file | is |
//! |---|---|
//! | `mod.rs` | the registry, the text of all figures, and those of a server that are read when somebody asks |
//! | `server.rs` | the other figures of a server |
//! | [`reading`] | figures that are read when somebody asks |
//! | [`process`] | figures of the process itself, and of its build |
//!
//! Times are in seconds and sizes in bytes. What only grows is a counter and ends in `_total`; everything else is a gauge.
//! **Invariant:** every series is there from the start, at zero, but for those of other servers, which a leader alone has.
//! `deploy/metrics.md` explains each to operators, and a test holds that page equal to what is served.

pub mod process;
pub mod reading;
mod server;

pub(crate) use server::{SERVER, show_flag};

use crate::event_queue::EventSender;
use crate::health::Health;
use crate::rpc::counters::RpcCounters;
use prometheus::core::Collector;
use prometheus::{Encoder, TextEncoder};
use reading::{Reading, Readings};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

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

/// Shows the figures of a server. A second server in the same process shares the first one's names: what is read anew each
/// time is shown of the first one.
pub(crate) fn show_server(counters: &Arc<RpcCounters>, sender: &EventSender, health: &Health) {
    LazyLock::force(&SERVER);
    process::show();
    let (sender, own_health, health) = (sender.clone(), health.clone(), health.clone());
    let mut readings = rpc_readings(counters);
    readings.push(Reading::gauge(
        "lockmesh_server_queue_events",
        "Events that wait for the driver",
        move || sender.waiting() as f64,
    ));
    readings.push(Reading::gauge(
        "lockmesh_server_ready",
        "1 where this server can serve, as /health/ready says",
        move || f64::from(u8::from(own_health.not_ready(Instant::now()).is_empty())),
    ));
    readings.push(Reading::gauge(
        "lockmesh_server_unpersisted_seconds",
        "For how long the disk has been given writes and has not taken any",
        move || health.unpersisted().as_secs_f64(),
    ));
    if prometheus::register(Box::new(Readings(readings))).is_err() {
        tracing::debug!("another server of this process is shown in the metrics already");
    }
}

/// What the QUIC service counts.
fn rpc_readings(counters: &Arc<RpcCounters>) -> Vec<Reading> {
    let counter = |name: &str, help, read: fn(&RpcCounters) -> u64| {
        let counters = Arc::clone(counters);
        Reading::counter(&format!("lockmesh_rpc_{name}_total"), help, move || read(&counters) as f64)
    };
    let refused =
        |kind: &str, help, read: fn(&RpcCounters) -> u64| counter(&format!("refused_{kind}"), help, read);
    fn load(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }
    let connections = Arc::clone(counters);
    vec![
        Reading::gauge("lockmesh_rpc_connections", "QUIC connections that stand", move || {
            load(&connections.connections) as f64
        }),
        counter("call_frames", "Frames of calls that arrived", |all| load(&all.call_frames)),
        counter("calls", "Calls that arrived", |all| load(&all.calls)),
        counter("cancels", "Calls that their callers gave up", |all| load(&all.cancels)),
        counter("reply_frames", "Frames of answers that were sent", |all| load(&all.reply_frames)),
        counter("replies", "Answers that were sent", |all| load(&all.replies)),
        counter("overloaded", "Calls turned away because a limit was reached", |all| load(&all.overloaded)),
        counter("too_long", "Answers that fit no frame", |all| load(&all.too_long)),
        counter("peer_frames", "Frames of other servers that arrived", |all| load(&all.peer_frames)),
        counter("peer_messages", "Messages of other servers that arrived", |all| load(&all.peer_messages)),
        counter("peer_dropped", "Messages of other servers that found no room", |all| {
            load(&all.peer_dropped)
        }),
        refused("full", "Peers turned away because all connections were taken", |all| all.full.count()),
        refused("strangers", "Peers without a trusted certificate", |all| all.strangers.count()),
        refused("denied", "Peers that wanted what their certificate does not allow", |all| {
            all.denied.count()
        }),
        refused("malformed", "Peers that sent what cannot be understood", |all| all.malformed.count()),
    ]
}

/// Puts a metric into the registry.
pub fn registered<C: Collector + Clone + 'static>(metric: prometheus::Result<C>) -> C {
    let metric = metric.expect("names of metrics are constants of the right form");
    prometheus::register(Box::new(metric.clone())).expect("every metric has a name of its own");
    metric
}
