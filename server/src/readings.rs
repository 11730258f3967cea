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
        refused("crowded", "Peers turned away for now: very many handshakes were under way", |all| {
            all.crowded.count()
        }),
        refused("strangers", "Peers without a trusted certificate", |all| all.strangers.count()),
        refused("denied", "Peers that wanted what their certificate does not allow", |all| {
            all.denied.count()
        }),
        refused("malformed", "Peers that sent what cannot be understood", |all| all.malformed.count()),
    ]
}
