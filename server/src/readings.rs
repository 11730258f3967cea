//! Metrics that are read at scrape time: queue length, readiness, and the counters of the QUIC
//! service.

use crate::event_queue::EventSender;
use crate::health::Health;
use crate::metrics::SERVER;
use crate::rpc::counters::RpcCounters;
use lockmesh_net::metrics::process;
use lockmesh_net::metrics::reading::{Reading, Readings};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

/// Registers the metrics of a server. A second server in the same process shares the first one's
/// names: metrics read at scrape time show the first one.
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
        "1 if this server is ready, as reported by /health/ready",
        move || f64::from(u8::from(own_health.not_ready(Instant::now()).is_empty())),
    ));
    readings.push(Reading::gauge(
        "lockmesh_server_unpersisted_seconds",
        "Time for which the disk has had pending writes and made none durable",
        move || health.unpersisted().as_secs_f64(),
    ));
    if prometheus::register(Box::new(Readings(readings))).is_err() {
        tracing::debug!("the metrics already show another server of this process");
    }
}

/// Returns the counters of the QUIC service.
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
        Reading::gauge("lockmesh_rpc_connections", "Open QUIC connections", move || {
            load(&connections.connections) as f64
        }),
        counter("call_frames", "Frames of calls received", |all| load(&all.call_frames)),
        counter("calls", "Calls received", |all| load(&all.calls)),
        counter("cancels", "Calls canceled by their callers", |all| load(&all.cancels)),
        counter("reply_frames", "Frames of answers sent", |all| load(&all.reply_frames)),
        counter("replies", "Answers sent", |all| load(&all.replies)),
        counter("overloaded", "Calls rejected because a limit was reached", |all| load(&all.overloaded)),
        counter("too_long", "Answers that exceeded the frame limit", |all| load(&all.too_long)),
        counter("peer_frames", "Frames received from other servers", |all| load(&all.peer_frames)),
        counter("peer_messages", "Messages received from other servers", |all| load(&all.peer_messages)),
        counter("peer_dropped", "Messages of other servers dropped because the queue was full", |all| {
            load(&all.peer_dropped)
        }),
        refused("full", "Peers rejected because all connections were in use", |all| all.full.count()),
        refused("crowded", "Peers rejected for now because too many handshakes were in progress", |all| {
            all.crowded.count()
        }),
        refused("strangers", "Peers without a trusted certificate", |all| all.strangers.count()),
        refused("denied", "Peers whose certificate does not authorize their request", |all| {
            all.denied.count()
        }),
        refused("malformed", "Peers that sent malformed data", |all| all.malformed.count()),
    ]
}
