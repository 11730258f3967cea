//! What the server counts, in the process's one registry: see the agent's `/v1/agent/metrics`.

use crate::rpc::counters::RpcCounters;
use lockmesh_protocol::reply::Reply;
use lockmesh_protocol::rpc::{Response, Unavailable};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{
    Histogram, IntCounter, IntCounterVec, IntGauge, register_histogram, register_int_counter,
    register_int_counter_vec, register_int_gauge,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

const UNIQUE: &str = "a metric is registered once";

/// Commands that were applied for a client, by outcome.
pub(crate) static WRITES: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register_int_counter_vec!("lockmesh_server_writes_total", "Commands answered, by outcome", &["outcome"])
        .expect(UNIQUE)
});

/// Queries that were answered.
pub(crate) static READS: LazyLock<IntCounter> =
    LazyLock::new(|| register_int_counter!("lockmesh_server_reads_total", "Queries answered").expect(UNIQUE));

/// How many events one turn of the driver took.
pub(crate) static TURN_EVENTS: LazyLock<Histogram> = LazyLock::new(|| {
    let buckets = vec![0.0, 1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0];
    register_histogram!("lockmesh_server_turn_events", "Events that one turn of the driver took", buckets)
        .expect(UNIQUE)
});

/// Blocking queries that are parked.
pub(crate) static WATCHES: LazyLock<IntGauge> = LazyLock::new(|| {
    register_int_gauge!("lockmesh_server_watches", "Blocking queries that are parked").expect(UNIQUE)
});

/// Bytes of log in memory.
pub(crate) static LOG_BYTES: LazyLock<IntGauge> = LazyLock::new(|| {
    register_int_gauge!("lockmesh_server_log_bytes", "Bytes of replicated log kept in memory").expect(UNIQUE)
});

/// Whether the state of this server was found to be corrupt.
pub(crate) static CORRUPT: LazyLock<IntGauge> = LazyLock::new(|| {
    let help = "1 where a corruption check found the state of this server to be corrupt: it answers no agent";
    register_int_gauge!("lockmesh_server_corrupt", help).expect(UNIQUE)
});

/// Whether this leader's newest corruption check found servers that differ.
pub(crate) static STATES_DIFFER: LazyLock<IntGauge> = LazyLock::new(|| {
    let help =
        "1 where the newest corruption check of this leader found that the states of the servers differ";
    register_int_gauge!("lockmesh_server_states_differ", help).expect(UNIQUE)
});

/// How long the server's certificate still lives.
pub(crate) static CERTIFICATE_SECONDS: LazyLock<IntGauge> = LazyLock::new(|| {
    let help = "Seconds that the server's certificate, or the authority behind it, still lives";
    register_int_gauge!("lockmesh_server_certificate_seconds_left", help).expect(UNIQUE)
});

/// Counts an answer to a command.
pub(crate) fn count_response(response: &Response) {
    let outcome = match response {
        Response::Applied(applied) => match &applied.reply {
            Reply::Succeeded(false) => "false",
            Reply::Delayed { .. } => "lock_delay",
            Reply::Granted { .. } => "granted",
            Reply::Queued { .. } => "queued",
            Reply::TxnFailed(_) => "txn_failed",
            Reply::Refused(_) => "refused",
            _ => "done",
        },
        Response::Renewed(Some(_)) => "renewed",
        Response::Renewed(None) => "unknown_session",
        Response::Unavailable(Unavailable::NotLeader { .. }) => "not_leader",
        Response::Unavailable(Unavailable::Overloaded(_)) => "overloaded",
        Response::Unavailable(Unavailable::Disk(_)) => "disk",
        Response::Unavailable(Unavailable::Denied(_)) => "denied",
        Response::Unavailable(Unavailable::Unknown(_)) => "unknown",
        Response::Unavailable(Unavailable::AnswerTooLong { .. }) => "too_long",
        Response::Unavailable(Unavailable::Removed) => "removed",
        Response::Unavailable(Unavailable::NotAdmitted(_)) => "not_admitted",
        Response::Unavailable(Unavailable::Corrupt) => "corrupt",
        _ => "done",
    };
    WRITES.with_label_values(&[outcome]).inc();
}

/// Shows a service's counters in the registry. A second server in the same process shares the first one's names
/// and is not shown.
pub(crate) fn register_rpc(counters: &Arc<RpcCounters>) {
    let collector = RpcCollector { counters: Arc::clone(counters), families: families(counters) };
    if prometheus::register(Box::new(collector)).is_err() {
        tracing::debug!("another server of this process is shown in the metrics already");
    }
}

struct RpcCollector {
    counters: Arc<RpcCounters>,
    families: Vec<(IntGauge, u64)>,
}

impl Collector for RpcCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.families.iter().flat_map(|(gauge, _)| gauge.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let now = families(&self.counters);
        let shown = self.families.iter().zip(now);
        shown
            .flat_map(|((gauge, _), (_, value))| {
                gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
                gauge.collect()
            })
            .collect()
    }
}

fn families(counters: &RpcCounters) -> Vec<(IntGauge, u64)> {
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    [
        ("connections", "QUIC connections that stand", load(&counters.connections)),
        ("call_frames", "Frames of calls that arrived", load(&counters.call_frames)),
        ("calls", "Calls that arrived", load(&counters.calls)),
        ("cancels", "Calls that their callers gave up", load(&counters.cancels)),
        ("reply_frames", "Frames of answers that were sent", load(&counters.reply_frames)),
        ("replies", "Answers that were sent", load(&counters.replies)),
        ("overloaded", "Calls turned away because a limit was reached", load(&counters.overloaded)),
        ("too_long", "Answers that fit no frame", load(&counters.too_long)),
        ("peer_frames", "Frames of other servers that arrived", load(&counters.peer_frames)),
        ("peer_messages", "Messages of other servers that arrived", load(&counters.peer_messages)),
        ("peer_dropped", "Messages of other servers that found no room", load(&counters.peer_dropped)),
        ("refused_full", "Peers turned away because all connections were taken", counters.full.count()),
        ("refused_strangers", "Peers without a trusted certificate", counters.strangers.count()),
        (
            "refused_denied",
            "Peers that wanted what their certificate does not allow",
            counters.denied.count(),
        ),
        ("refused_malformed", "Peers that sent what cannot be understood", counters.malformed.count()),
    ]
    .into_iter()
    .map(|(name, help, value)| {
        let gauge = IntGauge::new(format!("lockmesh_rpc_{name}"), help).expect("the names are good");
        (gauge, value)
    })
    .collect()
}
