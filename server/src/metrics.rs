//! What the server counts, in the process's one registry: see the agent's `/v1/agent/metrics`.

use lockmesh_protocol::reply::Reply;
use lockmesh_protocol::rpc::{Response, Unavailable};
use prometheus::{
    Histogram, IntCounter, IntCounterVec, IntGauge, register_histogram, register_int_counter,
    register_int_counter_vec, register_int_gauge,
};
use std::sync::LazyLock;

const UNIQUE: &str = "a metric is registered once";

/// Commands that were applied for a client, by outcome.
pub(crate) static WRITES: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register_int_counter_vec!("lockmesh_server_writes_total", "Commands answered, by outcome", &["outcome"])
        .expect(UNIQUE)
});

/// Queries that were answered.
pub(crate) static READS: LazyLock<IntCounter> = LazyLock::new(|| {
    register_int_counter!("lockmesh_server_reads_total", "Queries answered").expect(UNIQUE)
});

/// How many mails one turn of the driver took.
pub(crate) static TURN_MAILS: LazyLock<Histogram> = LazyLock::new(|| {
    let buckets = vec![0.0, 1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0];
    register_histogram!("lockmesh_server_turn_mails", "Mails that one turn of the driver took", buckets)
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

/// Counts an answer to a command.
pub(crate) fn count_response(response: &Response) {
    let outcome = match response {
        Response::Applied(applied) => match &applied.reply {
            Reply::Flag(false) => "false",
            Reply::Delayed { .. } => "lock_delay",
            Reply::Granted { .. } => "granted",
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
        _ => "done",
    };
    WRITES.with_label_values(&[outcome]).inc();
}
