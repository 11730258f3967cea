//! What a server counts and measures, in the process's one registry, as Prometheus has it.
//!
//! | file | is |
//! |---|---|
//! | `mod.rs` | every figure of a server, and the text of all |
//! | [`reading`] | figures that are read when somebody asks |
//! | [`process`] | figures of the process itself, and of its build |
//!
//! Times are in seconds and sizes in bytes. What only grows is a counter and ends in `_total`; everything else is a gauge.
//! **Invariant:** every series is there from the start, at zero, but for those of other servers, which a leader alone has.
//! `deploy/metrics.md` explains each to operators, and a test holds that page equal to what is served.

pub mod process;
pub mod reading;

use crate::event_queue::EventSender;
use crate::health::Health;
use crate::rpc::counters::RpcCounters;
use lockmesh_core::observed::LOSS_CAUSES;
use lockmesh_protocol::reply::Reply;
use lockmesh_protocol::rpc::{Response, Unavailable};
use prometheus::core::Collector;
use prometheus::{
    Encoder, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, TextEncoder,
};
use reading::{Reading, Readings};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

/// The type of [`text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Bounds of what takes a moment, in seconds.
pub const SHORT_BUCKETS: [f64; 16] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Bounds of what somebody waits for, in seconds.
pub const WAIT_BUCKETS: [f64; 9] = [0.001, 0.01, 0.1, 1.0, 5.0, 30.0, 60.0, 600.0, 3600.0];

/// Bounds of how many events a turn takes.
const TURN_BUCKETS: [f64; 8] = [0.0, 1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0];

/// What a request to a server is, in the order of [`Server::requests`].
const REQUEST_KINDS: [&str; 4] = ["read", "blocking", "write", "other"];

/// What became of commands.
const OUTCOMES: [&str; 18] = [
    "done",
    "false",
    "lock_delay",
    "granted",
    "queued",
    "txn_failed",
    "refused",
    "renewed",
    "unknown_session",
    "not_leader",
    "overloaded",
    "disk",
    "denied",
    "unknown",
    "too_long",
    "removed",
    "not_admitted",
    "corrupt",
];

/// The figures of this process's server.
pub(crate) static SERVER: LazyLock<Server> = LazyLock::new(Server::registered);

/// See the [module](self); what each means stands in its help.
pub(crate) struct Server {
    /// In the order of [`REQUEST_KINDS`].
    pub(crate) requests: [Histogram; REQUEST_KINDS.len()],
    pub(crate) commits: Histogram,
    pub(crate) fsyncs: Histogram,
    pub(crate) applies: Histogram,
    pub(crate) checkpoints: Histogram,
    pub(crate) queue_waits: Histogram,
    pub(crate) lock_waits: Histogram,
    pub(crate) turn_events: Histogram,
    pub(crate) events: IntCounter,
    writes: IntCounterVec,
    pub(crate) reads: IntCounter,
    pub(crate) leader_changes: IntCounter,
    /// In the order of [`LOSS_CAUSES`].
    pub(crate) losses: [IntCounter; LOSS_CAUSES.len()],
    pub(crate) locks_lost: [IntCounter; LOSS_CAUSES.len()],
    pub(crate) term: IntGauge,
    pub(crate) is_leader: IntGauge,
    pub(crate) leader_known: IntGauge,
    pub(crate) ready: IntGauge,
    pub(crate) last_index: IntGauge,
    pub(crate) commit_index: IntGauge,
    pub(crate) applied_index: IntGauge,
    pub(crate) log_bytes: IntGauge,
    pub(crate) follower_lag: IntGaugeVec,
    pub(crate) follower_contact: GaugeVec,
    pub(crate) sessions: IntGauge,
    pub(crate) locks_held: IntGauge,
    pub(crate) lock_waiters: IntGauge,
    pub(crate) keys: IntGauge,
    pub(crate) watches: IntGauge,
    pub(crate) corrupt: IntGauge,
    pub(crate) states_differ: IntGauge,
    pub(crate) disk_healthy: IntGauge,
    database_bytes: IntGaugeVec,
    pub(crate) certificate_expiry: Gauge,
}

impl Server {
    fn registered() -> Self {
        let requests = histograms("request_seconds", "From a request's arrival to its answer", "kind");
        let losses = counters("losses_total", "Sessions that ended while this server led, by cause", "cause");
        let locks = counters(
            "locks_lost_total",
            "Locks that ended with their session, while this server led",
            "cause",
        );
        let follower = ["server"];
        Self {
            requests: REQUEST_KINDS.map(|kind| requests.with_label_values(&[kind])),
            commits: short(
                "commit_seconds",
                "From the proposal of a batch of commands to its commit, on the leader",
            ),
            fsyncs: short("fsync_seconds", "One commit of the log to disk"),
            applies: short("apply_seconds", "Applying what was committed, a batch"),
            checkpoints: short("checkpoint_seconds", "Writing a checkpoint of the state to disk"),
            queue_waits: short(
                "queue_wait_seconds",
                "How long the oldest event of a turn waited for the driver",
            ),
            lock_waits: histogram(
                "lock_wait_seconds",
                "From a place in a lock's queue to the grant",
                &WAIT_BUCKETS,
            ),
            turn_events: histogram("turn_events", "Events that one turn of the driver took", &TURN_BUCKETS),
            events: counter("events_total", "Events that the driver took"),
            writes: preset(counters("writes_total", "Commands answered, by outcome", "outcome"), &OUTCOMES),
            reads: counter("reads_total", "Queries answered"),
            leader_changes: counter(
                "leader_changes_total",
                "Leaders that this server saw after the first one",
            ),
            losses: LOSS_CAUSES.map(|cause| losses.with_label_values(&[cause])),
            locks_lost: LOSS_CAUSES.map(|cause| locks.with_label_values(&[cause])),
            term: gauge("raft_term", "The term of this server"),
            is_leader: gauge("is_leader", "1 where this server leads and serves"),
            leader_known: gauge("leader_known", "1 where this server knows who leads"),
            ready: gauge("ready", "1 where this server can serve, as /health/ready says"),
            last_index: gauge("raft_last_index", "The last index of the log, on disk or not"),
            commit_index: gauge("raft_commit_index", "The last committed index"),
            applied_index: gauge("raft_applied_index", "The last applied index"),
            log_bytes: gauge("log_bytes", "Bytes of replicated log kept in memory"),
            follower_lag: labelled(
                "follower_lag_entries",
                "Entries that another server lacks, on the leader",
                follower,
            ),
            follower_contact: seconds_labelled(
                "follower_last_contact_seconds",
                "How long ago another server was heard, on the leader",
                follower,
            ),
            sessions: gauge("sessions", "Sessions"),
            locks_held: gauge("locks_held", "Keys that a session holds"),
            lock_waiters: gauge("lock_waiters", "Places in the queues of all locks"),
            keys: gauge("keys", "Keys"),
            watches: gauge("watches", "Blocking queries that are parked"),
            corrupt: gauge(
                "corrupt",
                "1 where a check found the state of this server to be corrupt: it answers no agent",
            ),
            states_differ: gauge(
                "states_differ",
                "1 where this leader's newest corruption check found states that differ",
            ),
            disk_healthy: gauge(
                "disk_healthy",
                "0 where the disk refuses writes, or has taken none for 5 seconds",
            ),
            database_bytes: labelled("database_bytes", "The size of a database file", ["file"]),
            certificate_expiry: registered(Gauge::new(
                "lockmesh_server_certificate_expiry_timestamp_seconds",
                "When the server's certificate, or the authority behind it, ends",
            )),
        }
    }

    /// Counts an answer to a command.
    pub(crate) fn count_write(&self, response: &Response) {
        self.writes.with_label_values(&[outcome(response)]).inc();
    }

    /// Shows the size of a database file, `log` or `state`.
    pub(crate) fn show_database(&self, file: &str, bytes: u64) {
        self.database_bytes.with_label_values(&[file]).set(bytes.cast_signed());
    }
}

/// Shows whether something is so.
pub(crate) fn show_flag(gauge: &IntGauge, is_so: bool) {
    gauge.set(i64::from(is_so));
}

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
    ["log", "state"].iter().for_each(|file| drop(SERVER.database_bytes.with_label_values(&[file])));
    process::show();
    let (sender, health) = (sender.clone(), health.clone());
    let mut readings = rpc_readings(counters);
    readings.push(Reading::gauge(
        "lockmesh_server_queue_events",
        "Events that wait for the driver",
        move || sender.waiting() as f64,
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

fn outcome(response: &Response) -> &'static str {
    match response {
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
        Response::Unavailable(unavailable) => match unavailable {
            Unavailable::NotLeader { .. } => "not_leader",
            Unavailable::Overloaded(_) => "overloaded",
            Unavailable::Disk(_) => "disk",
            Unavailable::Denied(_) => "denied",
            Unavailable::Unknown(_) => "unknown",
            Unavailable::AnswerTooLong { .. } => "too_long",
            Unavailable::Removed => "removed",
            Unavailable::NotAdmitted(_) => "not_admitted",
            Unavailable::Corrupt => "corrupt",
        },
        _ => "done",
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

fn named(name: &str) -> String {
    format!("lockmesh_server_{name}")
}

fn counter(name: &str, help: &str) -> IntCounter {
    registered(IntCounter::new(named(name), help))
}

fn counters(name: &str, help: &str, label: &str) -> IntCounterVec {
    registered(IntCounterVec::new(Opts::new(named(name), help), &[label]))
}

/// The same with these series there from the start.
fn preset(counters: IntCounterVec, values: &[&str]) -> IntCounterVec {
    values.iter().for_each(|value| drop(counters.with_label_values(&[value])));
    counters
}

fn gauge(name: &str, help: &str) -> IntGauge {
    registered(IntGauge::new(named(name), help))
}

fn labelled(name: &str, help: &str, labels: [&str; 1]) -> IntGaugeVec {
    registered(IntGaugeVec::new(Opts::new(named(name), help), &labels))
}

fn seconds_labelled(name: &str, help: &str, labels: [&str; 1]) -> GaugeVec {
    registered(GaugeVec::new(Opts::new(named(name), help), &labels))
}

fn short(name: &str, help: &str) -> Histogram {
    histogram(name, help, &SHORT_BUCKETS)
}

fn histogram(name: &str, help: &str, buckets: &[f64]) -> Histogram {
    registered(Histogram::with_opts(HistogramOpts::new(named(name), help).buckets(buckets.to_vec())))
}

fn histograms(name: &str, help: &str, label: &str) -> HistogramVec {
    let options = HistogramOpts::new(named(name), help).buckets(SHORT_BUCKETS.to_vec());
    registered(HistogramVec::new(options, &[label]))
}
