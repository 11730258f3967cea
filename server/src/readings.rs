//! Metrics that are read at scrape time: queue length, readiness, and the counters of the QUIC
//! service.

use crate::event_queue::EventSender;
use crate::health::Health;
use crate::metrics;
use crate::rpc::counters::RpcCounters;
use lockmesh_net::metrics::process;
use lockmesh_net::metrics::reading::{self, Reading};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The parts of a server that metrics are read from.
pub(crate) struct MetricsSource {
    pub(crate) rpc: Arc<RpcCounters>,
    pub(crate) sender: EventSender,
    pub(crate) health: Health,
}

/// The metrics that are read at scrape time.
pub(crate) static READINGS: &[Reading<MetricsSource>] = lockmesh_net::readings! {
    gauge "lockmesh_server_ready",
        "1 if this server is ready, as reported by /health/ready",
        |all| f64::from(u8::from(all.health.not_ready(Instant::now()).is_empty()));
    gauge "lockmesh_server_unpersisted_seconds",
        "Time for which the disk has had pending writes and made none durable",
        |all| all.health.unpersisted().as_secs_f64();
    gauge "lockmesh_server_queue_events",
        "Events that wait for the driver", |all| all.sender.waiting() as f64;
    gauge "lockmesh_rpc_connections", "Open QUIC connections", |all| load(&all.rpc.connections);
    counter "lockmesh_rpc_calls_total", "Calls received", |all| load(&all.rpc.calls);
    counter "lockmesh_rpc_call_frames_total", "Frames of calls received", |all| load(&all.rpc.call_frames);
    counter "lockmesh_rpc_cancels_total", "Calls canceled by their callers", |all| load(&all.rpc.cancels);
    counter "lockmesh_rpc_replies_total", "Answers sent", |all| load(&all.rpc.replies);
    counter "lockmesh_rpc_reply_frames_total", "Frames of answers sent", |all| load(&all.rpc.reply_frames);
    counter "lockmesh_rpc_overloaded_total",
        "Calls rejected because a limit was reached", |all| load(&all.rpc.overloaded);
    counter "lockmesh_rpc_too_long_total",
        "Answers that exceeded the frame limit", |all| load(&all.rpc.too_long);
    counter "lockmesh_rpc_peer_frames_total",
        "Frames received from other servers", |all| load(&all.rpc.peer_frames);
    counter "lockmesh_rpc_peer_messages_total",
        "Messages received from other servers", |all| load(&all.rpc.peer_messages);
    counter "lockmesh_rpc_peer_dropped_total",
        "Messages of other servers dropped because the queue was full", |all| load(&all.rpc.peer_dropped);
    counter "lockmesh_rpc_refused_full_total",
        "Agents rejected because all connections were in use", |all| all.rpc.full.count() as f64;
    counter "lockmesh_rpc_displaced_total",
        "Connections closed because their node opened newer ones", |all| all.rpc.displaced.count() as f64;
    counter "lockmesh_rpc_retries_total",
        "Peers whose address was validated because many handshakes were in progress",
        |all| load(&all.rpc.retries);
    counter "lockmesh_rpc_refused_crowded_total",
        "Peers rejected for now because too many handshakes were in progress",
        |all| all.rpc.crowded.count() as f64;
    counter "lockmesh_rpc_refused_strangers_total",
        "Peers without a trusted certificate", |all| all.rpc.strangers.count() as f64;
    counter "lockmesh_rpc_refused_mismatched_total",
        "Servers that were removed, belong to another cluster, or mean another server",
        |all| all.rpc.mismatched.count() as f64;
    counter "lockmesh_rpc_refused_denied_total",
        "Peers whose certificate does not authorize their request", |all| all.rpc.denied.count() as f64;
    counter "lockmesh_rpc_refused_malformed_total",
        "Peers that sent malformed data", |all| all.rpc.malformed.count() as f64;
};

/// Registers the metrics of a server. A second server in the same process shares the first one's
/// names: metrics read at scrape time show the first one.
pub(crate) fn show_server(source: MetricsSource) {
    metrics::show();
    process::show();
    if !reading::register(source, READINGS) {
        tracing::debug!("the metrics already show another server of this process");
    }
}

fn load(counter: &AtomicU64) -> f64 {
    counter.load(Ordering::Relaxed) as f64
}
