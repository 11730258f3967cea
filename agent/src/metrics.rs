//! What the agent counts, and how both dialects of its metrics are written: Prometheus text, and
//! the JSON of Consul.
//!
//! Everything is in the process's one registry, so that a server in the same process shows up too.
//! A counter is there from the process's start, at zero. **Invariant:** every refusal and every
//! limit that strikes counts somewhere here.

use crate::boot_clock::BootClock;
use crate::upstream::{Upstream, UpstreamCounters};
use lockmesh_agent_core::quorum_client::NotReady;
use lockmesh_client::shape::agent::{Gauge, Metrics, Sample};
use lockmesh_net::metrics::reading::Reading;
use lockmesh_net::metrics::{SHORT_BUCKETS, WAIT_BUCKETS, process, registered};
use lockmesh_protocol::gossip::Counts;
use lockmesh_protocol::gossip::mesh::SealCounts;
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

/// Commands that the state refused, by reason.
pub static REFUSALS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    counters("lockmesh_http_refusals_total", "Commands that the state refused", &["reason"])
});

/// Requests that got no answer from the quorum, by reason.
pub static UNAVAILABLE: LazyLock<IntCounterVec> = LazyLock::new(|| {
    counters("lockmesh_http_unavailable_total", "Requests that had no answer from the quorum", &["reason"])
});

/// Limits of the HTTP API that struck, by limit.
pub static LIMITS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    counters("lockmesh_http_limits_total", "Limits of the HTTP API that struck", &["limit"])
});

/// Open connections, by listener: `unix` or `tcp`.
pub static CONNECTIONS: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    let gauges = IntGaugeVec::new(Opts::new("lockmesh_http_connections", "Open connections"), &["listener"]);
    registered(gauges)
});

/// Requests that wait for news.
pub static BLOCKED: LazyLock<IntGauge> = LazyLock::new(|| {
    registered(IntGauge::new("lockmesh_http_blocked_watchers", "Blocking queries that wait for news"))
});

/// How long requests took, by what they are about, in the order of [`GROUPS`]; those that may wait
/// are apart.
static REQUEST_SECONDS: LazyLock<[Histogram; GROUPS.len()]> = LazyLock::new(|| {
    let help = "From a request's head to its answer, without requests that may wait";
    let options = HistogramOpts::new("lockmesh_http_request_seconds", help).buckets(SHORT_BUCKETS.to_vec());
    let histograms = registered(HistogramVec::new(options, &["group"]));
    GROUPS.map(|group| histograms.with_label_values(&[group]))
});

/// How long requests took that may wait for news or for a lock.
static WAITING_SECONDS: LazyLock<Histogram> = LazyLock::new(|| {
    let help = "From a request's head to its answer, of requests that may wait for news or a lock";
    let options =
        HistogramOpts::new("lockmesh_http_blocking_request_seconds", help).buckets(WAIT_BUCKETS.to_vec());
    registered(Histogram::with_opts(options))
});

/// Local checks written to the catalog, by outcome: `ok` or `failed`.
pub static CHECK_SYNCS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    counters("lockmesh_check_syncs_total", "Writes of local checks to the catalog", &["outcome"])
});

/// Local checks that turned critical because nobody reported in time.
pub static CHECK_EXPIRIES: LazyLock<IntCounter> = LazyLock::new(|| {
    let help = "Local checks that turned critical because nobody reported in time";
    registered(IntCounter::new("lockmesh_check_expiries_total", help))
});

/// Sessions that guards follow at this agent.
pub static WATCHED_SESSIONS: LazyLock<IntGauge> = LazyLock::new(|| {
    registered(IntGauge::new("lockmesh_agent_watched_sessions", "Sessions that guards follow at this agent"))
});

/// Changes of how followed sessions stand, by what they became.
pub static SESSION_STATES: LazyLock<IntCounterVec> = LazyLock::new(|| {
    let help = "Changes of how followed sessions stand, by what they became";
    counters("lockmesh_agent_session_state_changes_total", help, &["state"])
});

/// When the agent's certificate, or the authority behind it, ends.
pub static CERTIFICATE_EXPIRY: LazyLock<prometheus::Gauge> = LazyLock::new(|| {
    let help = "When the agent's certificate, or the authority behind it, ends";
    let name = "lockmesh_agent_certificate_expiry_timestamp_seconds";
    registered(prometheus::Gauge::new(name, help))
});

/// Connections from others that were refused.
pub static REFUSED_CONNECTIONS: LazyLock<IntCounter> = LazyLock::new(|| {
    let help = "Connections to the agent's QUIC listener that were refused";
    registered(IntCounter::new("lockmesh_agent_refused_connections_total", help))
});

/// Questions of servers about other nodes, by what came of them: `answered`,
/// `answered_by_datagram`, `unanswered` or `refused`.
pub static JUROR_QUESTIONS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    let help = "Other nodes that this agent asked for a server whether they live, by what came of it";
    counters("lockmesh_agent_juror_questions_total", help, &["outcome"])
});

/// User events that were received or fired here, by what became of them.
pub static USER_EVENTS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    let help = "User events that this agent received or fired, by what became of them";
    counters("lockmesh_agent_user_events_total", help, &["outcome"])
});

/// What happens in the mesh.
pub static MESH_EVENTS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    let help = "What happened in the mesh of agents, by kind";
    counters("lockmesh_agent_mesh_events_total", help, &["event"])
});

/// How many other agents are in the mesh, as the servers' roster says.
pub static MESH_MEMBERS: LazyLock<IntGauge> = LazyLock::new(|| {
    registered(IntGauge::new(
        "lockmesh_agent_mesh_members",
        "Agents in the mesh, as the servers' roster says",
    ))
});

/// How many times as long as usual probes take.
pub static MESH_PROBE_STRETCH: LazyLock<IntGauge> = LazyLock::new(|| {
    let help = "How many times as long as usual this agent's probes take, because it was wrong of late";
    registered(IntGauge::new("lockmesh_agent_mesh_probe_stretch", help))
});

/// Counts what has happened in the mesh since it was counted last.
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
        // Another lease begins with other counts.
        MESH_EVENTS.with_label_values(&[event]).inc_by(now.checked_sub(before).unwrap_or(now));
    }
}

/// What may happen in the mesh; see `deploy/metrics.md`.
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

/// What requests are about: the word behind `/v1/`.
const GROUPS: [&str; 12] = [
    "kv", "session", "txn", "catalog", "health", "agent", "status", "event", "operator", "snapshot",
    "lockmesh", "other",
];

/// Series that are there before anything happened: alerts on their growth would miss the first time
/// otherwise.
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

/// Statuses under which every endpoint has a series from the start; others come with their first
/// answer.
const PRESET_STATUSES: [&str; 2] = ["200", "500"];

fn counters(name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    registered(IntCounterVec::new(Opts::new(name, help), labels))
}

/// Counts a waiting request for as long as it lives.
#[derive(Debug)]
pub struct BlockedWatcher(());

impl BlockedWatcher {
    /// One more waits.
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

/// Makes every series of this file visible before it first counts.
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

/// Shows all that an agent counts, with these endpoints.
pub fn show<'a>(endpoints: impl Iterator<Item = &'a str>) {
    LazyLock::force(&SHOWN);
    for endpoint in endpoints {
        PRESET_STATUSES.iter().for_each(|status| drop(REQUESTS.with_label_values(&[endpoint, status])));
    }
}

/// Counts an answer of an endpoint, and how long it took.
pub fn count_request(endpoint: &'static str, status: &str, may_wait: bool, took: Duration) {
    REQUESTS.with_label_values(&[endpoint, status]).inc();
    let seconds = took.as_secs_f64();
    // A wait of minutes says nothing of how fast requests are served, and would hide it.
    match may_wait {
        true => WAITING_SECONDS.observe(seconds),
        false => REQUEST_SECONDS[group_of(endpoint)].observe(seconds),
    }
}

/// The index in [`GROUPS`] of an endpoint such as `/v1/kv/`.
fn group_of(endpoint: &str) -> usize {
    let rest = endpoint.strip_prefix("/v1/").unwrap_or_default();
    let word = rest.split_once('/').map_or(rest, |(word, _)| word);
    GROUPS.iter().position(|group| *group == word).unwrap_or(GROUPS.len() - 1)
}

/// What the way to the quorum has counted, and what is under way on it.
fn upstream_families(upstream: &Upstream) -> Vec<MetricFamily> {
    let (none, load) = (UpstreamCounters::default(), upstream.load());
    // A stand-in for the quorum counts nothing; the series are there all the same.
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
        total("reply_frames", "Frames of answers that arrived", &counters.reply_frames),
        total("reconnects", "Attempts to connect to a server after the first one", &counters.reconnects),
        total("registrations", "Registrations of this agent", &counters.registrations),
        total("status_requests", "Requests of the agent's own for a server's status", &counters.questions),
        total("leaders_found", "How often a leader was found", &counters.leaders),
        level("pending_calls", "Calls that wait for an answer of a server", load.calls),
        level(
            "shared_reads",
            "Blocking reads that wait at a server, each for all who ask the same",
            load.shared_reads,
        ),
        level("shared_read_waiters", "Local requests that share them", load.waiters),
        level(
            "refused_servers",
            "Servers that are refused because they are not of this agent's cluster",
            load.refused_servers,
        ),
        level("registered", "1 where this agent has registered since it started", is_registered),
        level("leader_known", "1 where this agent knows who leads", knows_leader),
        lease_total("renewals", "Renewals of the node's lease that were sent", &counters.renewals),
        lease_total(
            "renewals_acknowledged",
            "Renewals of the node's lease that the leader acknowledged",
            &counters.renewals_acknowledged,
        ),
        lease_total("challenges", "Challenges of servers that were answered", &counters.challenges),
        Reading::gauge(
            "lockmesh_lease_remaining_seconds",
            "How long sessions of the default window are sure to live without another acknowledgement",
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

/// All metrics in Prometheus' text format.
pub fn prometheus_text(upstream: &Upstream) -> Vec<u8> {
    let mut text = Vec::new();
    TextEncoder::new().encode(&families(upstream), &mut text).expect("memory takes every byte");
    text
}

/// All metrics in the form of Consul. `timestamp` is when, in words.
pub fn consul_json(timestamp: String, upstream: &Upstream) -> Metrics {
    let mut metrics = Metrics { timestamp, ..Metrics::default() };
    // Go reports its heap here: what the whole process holds comes closest to that.
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
            // JSON knows no number for 0/0.
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

    /// A quorum of which nothing is wanted.
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
