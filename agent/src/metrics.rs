//! The agent's metrics, and their two formats: Prometheus text, and Consul's JSON.
//!
//! All metrics are in the process's one registry, so that a server in the same process is included.
//! A counter exists from the process's start, at zero. **Invariant:** every rejection and every
//! limit that takes effect is counted here.

use crate::boot_clock::BootClock;
use crate::upstream::{Upstream, UpstreamCounters};
use lockmesh_agent_core::gossip::Counts;
use lockmesh_agent_core::gossip::mesh::SealCounts;
use lockmesh_agent_core::quorum_client::NotReady;
use lockmesh_client::shape::agent::{Gauge, Metrics, Sample};
use lockmesh_net::metrics::reading::Reading;
use lockmesh_net::metrics::{SHORT_BUCKETS, WAIT_BUCKETS, process, registered};
use lockmesh_protocol::lease::HealthWindow;
use prometheus::proto::{Metric, MetricFamily, MetricType};
use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    TextEncoder,
};
use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use lockmesh_net::metrics::CONTENT_TYPE;
pub use lockmesh_net::metrics::process::show_build;

/// Requests answered, by endpoint and status.
pub static REQUESTS: LazyLock<IntCounterVec> =
    LazyLock::new(|| counters("lockmesh_http_requests_total", "Requests answered", &["endpoint", "status"]));

/// Commands rejected by the state, by reason.
pub static REFUSALS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    counters("lockmesh_http_refusals_total", "Commands that the state rejected", &["reason"])
});

/// Requests without a reply from the quorum, by reason.
pub static UNAVAILABLE: LazyLock<IntCounterVec> = LazyLock::new(|| {
    counters("lockmesh_http_unavailable_total", "Requests without a reply from the quorum", &["reason"])
});

/// Requests rejected by a limit of the HTTP API, by limit.
pub static LIMITS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    counters("lockmesh_http_limits_total", "Requests rejected by a limit of the HTTP API", &["limit"])
});

/// Open connections, by listener: `unix` or `tcp`.
pub static CONNECTIONS: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    let gauges = IntGaugeVec::new(Opts::new("lockmesh_http_connections", "Open connections"), &["listener"]);
    registered(gauges)
});

/// Blocking queries in progress.
pub static BLOCKED: LazyLock<IntGauge> = LazyLock::new(|| {
    registered(IntGauge::new("lockmesh_http_blocked_watchers", "Blocking queries in progress"))
});

/// The duration of requests, by group in the order of [`GROUPS`]; without requests that may wait.
static REQUEST_SECONDS: LazyLock<[Histogram; GROUPS.len()]> = LazyLock::new(|| {
    let help = "Time from a request's head to its response, without requests that may wait";
    let options = HistogramOpts::new("lockmesh_http_request_seconds", help).buckets(SHORT_BUCKETS.to_vec());
    let histograms = registered(HistogramVec::new(options, &["group"]));
    GROUPS.map(|group| histograms.with_label_values(&[group]))
});

/// The duration of requests that may wait for a change or a lock.
static WAITING_SECONDS: LazyLock<Histogram> = LazyLock::new(|| {
    let help = "Time from a request's head to its response, of requests that may wait for a change or a lock";
    let options =
        HistogramOpts::new("lockmesh_http_blocking_request_seconds", help).buckets(WAIT_BUCKETS.to_vec());
    registered(Histogram::with_opts(options))
});

/// Local checks written to the catalog, by outcome: `ok` or `failed`.
pub static CHECK_SYNCS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    counters("lockmesh_check_syncs_total", "Writes of local checks to the catalog", &["outcome"])
});

/// Local checks that turned critical because their TTL expired.
pub static CHECK_EXPIRIES: LazyLock<IntCounter> = LazyLock::new(|| {
    let help = "Local checks that turned critical because their TTL expired";
    registered(IntCounter::new("lockmesh_check_expiries_total", help))
});

/// Sessions that guards follow at this agent.
pub static WATCHED_SESSIONS: LazyLock<IntGauge> = LazyLock::new(|| {
    registered(IntGauge::new("lockmesh_agent_watched_sessions", "Sessions that guards follow at this agent"))
});

/// State changes of followed sessions, by new state.
pub static SESSION_STATES: LazyLock<IntCounterVec> = LazyLock::new(|| {
    let help = "State changes of followed sessions, by new state";
    counters("lockmesh_agent_session_state_changes_total", help, &["state"])
});

/// The expiry of the agent's certificate, or of its authority.
pub static CERTIFICATE_EXPIRY: LazyLock<prometheus::Gauge> = LazyLock::new(|| {
    let help = "Expiry of the agent's certificate or of its authority";
    let name = "lockmesh_agent_certificate_expiry_timestamp_seconds";
    registered(prometheus::Gauge::new(name, help))
});

/// Rejected connections to the QUIC listener.
pub static REFUSED_CONNECTIONS: LazyLock<IntCounter> = LazyLock::new(|| {
    let help = "Rejected connections to the agent's QUIC listener";
    registered(IntCounter::new("lockmesh_agent_refused_connections_total", help))
});

/// Challenges sent as a juror, by outcome: `answered`, `answered_by_datagram`, `unanswered` or
/// `refused`.
pub static JUROR_QUESTIONS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    let help = "Challenges of other nodes that this agent sent on behalf of a server, by outcome";
    counters("lockmesh_agent_juror_questions_total", help, &["outcome"])
});

/// User events received or fired here, by outcome.
pub static USER_EVENTS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    let help = "User events that this agent received or fired, by outcome";
    counters("lockmesh_agent_user_events_total", help, &["outcome"])
});

/// Events in the mesh.
pub static MESH_EVENTS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    let help = "Events in the mesh of agents, by kind";
    counters("lockmesh_agent_mesh_events_total", help, &["event"])
});

/// The number of other agents in the mesh, from the servers' roster.
pub static MESH_MEMBERS: LazyLock<IntGauge> = LazyLock::new(|| {
    registered(IntGauge::new(
        "lockmesh_agent_mesh_members",
        "Other agents in the mesh, from the servers' roster",
    ))
});

/// The factor by which probes are slowed down.
pub static MESH_PROBE_STRETCH: LazyLock<IntGauge> = LazyLock::new(|| {
    let help = "Factor by which this agent's probes are slowed down, after delays or false suspicions";
    registered(IntGauge::new("lockmesh_agent_mesh_probe_stretch", help))
});

/// Counts the mesh events since the last count.
pub(crate) fn count_mesh(before: &(Counts, SealCounts), now: &(Counts, SealCounts)) {
    let of = |(gossip, seal): &(Counts, SealCounts)| {
        [
            gossip.received,
            gossip.sent,
            gossip.probes,
            gossip.accusations,
            gossip.excused,
            gossip.refutations,
            gossip.malformed,
            gossip.strangers,
            gossip.unknown_members,
            gossip.claimed_deaths,
            gossip.impossible_incarnations,
            gossip.excess_suspicions,
            seal.keyless,
            seal.malformed,
            seal.unknown_keys,
            seal.broken,
            seal.stale,
            seal.unsigned,
            seal.events,
            seal.excess_events,
            seal.malformed_events,
            seal.excess_datagrams,
            seal.excess_verdicts,
            seal.strange_verdicts,
            seal.excess_challenges,
        ]
    };
    for ((event, before), now) in MESH_EVENT_NAMES.iter().zip(of(before)).zip(of(now)) {
        // A new lease restarts the counts.
        MESH_EVENTS.with_label_values(&[event]).inc_by(now.checked_sub(before).unwrap_or(now));
    }
}

/// The kinds of mesh events; see `deploy/metrics.md`.
const MESH_EVENT_NAMES: [&str; 26] = [
    "received",
    "sent",
    "probe",
    "accusation",
    "excused_probe",
    "refutation",
    "malformed_packet",
    "stranger",
    "unknown_member",
    "claimed_death",
    "impossible_incarnation",
    "excess_suspicion",
    "keyless",
    "malformed_datagram",
    "unknown_key",
    "broken_seal",
    "stale",
    "unsigned_item",
    "user_event",
    "excess_user_event",
    "malformed_user_event",
    "excess_datagram",
    "excess_verdict",
    "strange_verdict",
    "excess_challenge",
    "unsent",
];

/// The groups of requests: the path segment after `/v1/`.
const GROUPS: [&str; 12] = [
    "kv", "session", "txn", "catalog", "health", "agent", "status", "event", "operator", "snapshot",
    "lockmesh", "other",
];

/// Series that exist before their first event: alerts on growth would otherwise miss it.
const PRESET: [(&LazyLock<IntCounterVec>, &[&str]); 8] = [
    (&MESH_EVENTS, &MESH_EVENT_NAMES),
    (&USER_EVENTS, &["kept", "for_others", "known", "not_understood"]),
    (&JUROR_QUESTIONS, &["answered", "answered_by_datagram", "unanswered", "refused"]),
    (
        &REFUSALS,
        &[
            "invalid_session",
            "missing_session",
            "session_id_in_use",
            "missing_node",
            "unknown_member",
            "missing_check",
            "critical_check",
            "queue_full",
            "catalog",
            "forgotten",
            "roster",
            "restore",
            "txn",
        ],
    ),
    (
        &UNAVAILABLE,
        &[
            "no_leader",
            "overloaded",
            "disk",
            "denied",
            "unknown",
            "too_long",
            "removed",
            "not_admitted",
            "corrupt",
        ],
    ),
    (
        &LIMITS,
        &[
            "accept",
            "audit",
            "body_read_timeout",
            "body_size",
            "checks",
            "connections",
            "connections_per_client",
            "events",
            "header_read_timeout",
            "host",
            "idle_timeout",
            "operator_over_tcp",
            "snapshot_size",
            "token",
            "txn_operations",
            "value_size",
            "watched_sessions",
        ],
    ),
    (&CHECK_SYNCS, &["ok", "failed"]),
    (&SESSION_STATES, &["safe", "jeopardy", "suspended", "lost"]),
];

/// Statuses for which every endpoint has a series from the start; others appear with their first
/// response.
const PRESET_STATUSES: [&str; 2] = ["200", "500"];

fn counters(name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    registered(IntCounterVec::new(Opts::new(name, help), labels))
}

/// Counts a blocking query while it lives.
#[derive(Debug)]
pub struct BlockedWatcher(());

impl BlockedWatcher {
    /// Counts one more blocking query.
    pub fn begin() -> Self {
        BLOCKED.inc();
        Self(())
    }
}

impl Drop for BlockedWatcher {
    fn drop(&mut self) {
        BLOCKED.dec();
    }
}

/// Creates every series of this file before its first count.
static SHOWN: LazyLock<()> = LazyLock::new(|| {
    for (vector, values) in PRESET {
        values.iter().for_each(|value| drop(vector.with_label_values(&[value])));
    }
    ["unix", "tcp"].iter().for_each(|listener| drop(CONNECTIONS.with_label_values(&[listener])));
    LazyLock::force(&BLOCKED);
    LazyLock::force(&REQUEST_SECONDS);
    LazyLock::force(&WAITING_SECONDS);
    LazyLock::force(&CHECK_EXPIRIES);
    LazyLock::force(&CERTIFICATE_EXPIRY);
    LazyLock::force(&REFUSED_CONNECTIONS);
    LazyLock::force(&WATCHED_SESSIONS);
    process::show();
});

/// Creates all series of an agent with these endpoints.
pub fn show<'a>(endpoints: impl Iterator<Item = &'a str>) {
    LazyLock::force(&SHOWN);
    for endpoint in endpoints {
        PRESET_STATUSES.iter().for_each(|status| drop(REQUESTS.with_label_values(&[endpoint, status])));
    }
}

/// Counts a response of an endpoint, and its duration.
pub fn count_request(endpoint: &'static str, status: &str, may_wait: bool, took: Duration) {
    REQUESTS.with_label_values(&[endpoint, status]).inc();
    let seconds = took.as_secs_f64();
    // A wait of minutes does not reflect how fast requests are served, and would hide it.
    match may_wait {
        true => WAITING_SECONDS.observe(seconds),
        false => REQUEST_SECONDS[group_of(endpoint)].observe(seconds),
    }
}

/// Returns the index in [`GROUPS`] of an endpoint such as `/v1/kv/`.
fn group_of(endpoint: &str) -> usize {
    let rest = endpoint.strip_prefix("/v1/").unwrap_or_default();
    let word = rest.split_once('/').map_or(rest, |(word, _)| word);
    GROUPS.iter().position(|group| *group == word).unwrap_or(GROUPS.len() - 1)
}

/// Returns the counters and the current load of the upstream.
fn upstream_families(upstream: &Upstream) -> Vec<MetricFamily> {
    let (none, load) = (UpstreamCounters::default(), upstream.load());
    // A stand-in for the quorum counts nothing; the series exist in any case.
    let counters = upstream.counters().unwrap_or(&none);
    let total = |name: &str, help, counter: &AtomicU64| {
        let value = counter.load(Ordering::Relaxed) as f64;
        Reading::counter(&format!("lockmesh_upstream_{name}_total"), help, move || value)
    };
    let level = |name: &str, help, value: usize| {
        Reading::gauge(&format!("lockmesh_upstream_{name}"), help, move || value as f64)
    };
    let lease_total = |name: &str, help, counter: &AtomicU64| {
        let value = counter.load(Ordering::Relaxed) as f64;
        Reading::counter(&format!("lockmesh_lease_{name}_total"), help, move || value)
    };
    let deadline = upstream.lease().borrow().deadline(HealthWindow::Default);
    let remaining = deadline.map_or(0.0, |deadline| deadline.since(BootClock::default().now()).as_secs_f64());
    let is_registered = usize::from(upstream.is_registered());
    let knows_leader = usize::from(!upstream.not_ready().contains(&NotReady::NoLeader));
    let readings = [
        total("attempts", "Calls that were sent to servers for requests", &counters.attempts),
        total("retries", "Attempts after the first one of a request", &counters.retries),
        total("call_frames", "Frames of calls that were sent", &counters.call_frames),
        total("reply_frames", "Frames of replies that arrived", &counters.reply_frames),
        total("reconnects", "Attempts to connect to a server after the first one", &counters.reconnects),
        total("registrations", "Registrations of this agent", &counters.registrations),
        total("status_requests", "Requests of the agent's own for a server's status", &counters.questions),
        total("leaders_found", "Leaders found", &counters.leaders),
        level("pending_calls", "Calls that await a reply of a server", load.calls),
        level("shared_reads", "Coalesced blocking reads in progress at a server", load.shared_reads),
        level("shared_read_waiters", "Local requests that share them", load.waiters),
        level(
            "refused_servers",
            "Servers that are rejected because they do not belong to this agent's cluster",
            load.refused_servers,
        ),
        level("registered", "1 if this agent has registered since it started", is_registered),
        level("leader_known", "1 if this agent knows the leader", knows_leader),
        lease_total("renewals", "Renewals of the node's lease that were sent", &counters.renewals),
        lease_total(
            "renewals_acknowledged",
            "Renewals of the node's lease that the leader acknowledged",
            &counters.renewals_acknowledged,
        ),
        lease_total("challenges", "Challenges of servers that were answered", &counters.challenges),
        Reading::gauge(
            "lockmesh_lease_remaining_seconds",
            "Guaranteed validity of sessions of the default window without another acknowledgement",
            move || remaining,
        ),
    ];
    readings.iter().flat_map(Reading::families).collect()
}

fn families(upstream: &Upstream) -> Vec<MetricFamily> {
    LazyLock::force(&SHOWN);
    let mut families = prometheus::gather();
    families.extend(upstream_families(upstream));
    families
}

/// Returns all metrics in the text format of Prometheus.
pub fn prometheus_text(upstream: &Upstream) -> Vec<u8> {
    let mut text = Vec::new();
    TextEncoder::new().encode(&families(upstream), &mut text).expect("memory takes every byte");
    text
}

/// Returns all metrics in Consul's JSON form. `timestamp` is the time as text.
pub fn consul_json(timestamp: String, upstream: &Upstream) -> Metrics {
    let mut metrics = Metrics { timestamp, ..Metrics::default() };
    // Go reports its heap here; the memory of the whole process is the closest equivalent.
    metrics.gauges.push(Gauge {
        name: "consul.runtime.alloc_bytes".into(),
        value: process::resident_bytes(),
        labels: BTreeMap::new(),
    });
    for family in families(upstream) {
        for metric in family.get_metric() {
            push_metric(&mut metrics, &family, metric);
        }
    }
    metrics
}

fn push_metric(metrics: &mut Metrics, family: &MetricFamily, metric: &Metric) {
    // Consul separates the parts of a name by dots, and the words of its last part by underscores.
    let name = family.name().replacen('_', ".", 2);
    let labels = metric.get_label().iter().map(|pair| (pair.name().to_owned(), pair.value().to_owned()));
    let labels: BTreeMap<_, _> = labels.collect();
    match family.get_field_type() {
        MetricType::GAUGE => {
            metrics.gauges.push(Gauge { name, value: metric.get_gauge().get_value(), labels });
        }
        MetricType::COUNTER => {
            let sum = metric.get_counter().get_value();
            metrics.counters.push(Sample { name, count: sum as u64, sum, labels, ..Sample::default() });
        }
        MetricType::HISTOGRAM => {
            let histogram = metric.get_histogram();
            let (count, sum) = (histogram.get_sample_count(), histogram.get_sample_sum());
            // JSON has no number for 0/0.
            let mean = if count == 0 { 0.0 } else { sum / count as f64 };
            metrics.samples.push(Sample { name, count, sum, mean, labels, ..Sample::default() });
        }
        // Nothing in this process registers any of these.
        MetricType::SUMMARY | MetricType::UNTYPED => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::{BoxFuture, Quorum};
    use lockmesh_agent_core::quorum_client::{Answered, LocalCall};
    use lockmesh_protocol::rpc::{Response, Unavailable};
    use std::sync::Arc;

    /// A quorum that receives no calls.
    #[derive(Debug)]
    struct Silent;

    impl Quorum for Silent {
        fn call(self: Arc<Self>, _: LocalCall) -> BoxFuture<Result<Answered, Unavailable>> {
            Box::pin(std::future::pending())
        }

        fn invite(self: Arc<Self>, _: String, _: Vec<String>) -> BoxFuture<Result<Response, Unavailable>> {
            Box::pin(std::future::pending())
        }
    }

    fn upstream() -> Upstream {
        Upstream::new(Arc::new(Silent))
    }

    #[test]
    fn endpoints_belong_to_what_they_are_about() {
        let group = |endpoint| GROUPS[group_of(endpoint)];
        assert_eq!(
            ["/v1/kv/", "/v1/txn", "/v1/agent/check/pass/", "/health/ready", "unknown"].map(group),
            ["kv", "txn", "agent", "other", "other"]
        );
    }

    #[test]
    fn a_count_shows_in_both_dialects() {
        REQUESTS.with_label_values(&["/v1/test-of-metrics", "200"]).inc_by(3);
        let text = String::from_utf8(prometheus_text(&upstream())).unwrap();
        assert!(
            text.contains("lockmesh_http_requests_total{endpoint=\"/v1/test-of-metrics\",status=\"200\"} 3")
        );
        assert!(text.contains("lockmesh_http_blocked_watchers "));

        let metrics = consul_json("now".into(), &upstream());
        let ours = metrics.counters.iter().find(|counter| {
            counter.labels.get("endpoint").is_some_and(|label| label == "/v1/test-of-metrics")
        });
        assert_eq!(
            ours.map(|counter| (counter.name.as_str(), counter.count)),
            Some(("lockmesh.http.requests_total", 3))
        );
    }

    #[test]
    fn the_memory_of_the_process_is_a_gauge_without_the_host_s_name() {
        let metrics = consul_json("now".into(), &upstream());
        let memory = metrics.gauges.iter().find(|gauge| gauge.name == "consul.runtime.alloc_bytes");
        assert!(memory.is_some_and(|memory| memory.value > 0.0), "{memory:?}");
    }

    #[test]
    fn a_watcher_counts_while_it_lives() {
        let before = BLOCKED.get();
        let watcher = BlockedWatcher::begin();
        assert!(BLOCKED.get() > before || before > 0);
        drop(watcher);
    }
}
