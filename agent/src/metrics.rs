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
use lockmesh_net::metrics::table::Row;
use lockmesh_net::metrics::{SHORT_BUCKETS, WAIT_BUCKETS, process};
use lockmesh_protocol::lease::HealthWindow;
use prometheus::proto::{Bucket, Metric, MetricFamily, MetricType};
use prometheus::{Encoder, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, TextEncoder};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

pub use lockmesh_net::metrics::CONTENT_TYPE;
pub use lockmesh_net::metrics::process::show_build;

lockmesh_net::metrics! {
    pub REQUESTS: IntCounterVec = "lockmesh_http_requests_total",
        "Requests answered", by ["endpoint", "status"];
    REQUEST_SECONDS: [Histogram; GROUPS.len()] = "lockmesh_http_request_seconds",
        "Time from a request's head to its response, without requests that may wait",
        by ["group"], of GROUPS, in SHORT_BUCKETS;
    WAITING_SECONDS: Histogram = "lockmesh_http_blocking_request_seconds",
        "Time from a request's head to its response, of requests that may wait for a change or a lock",
        in WAIT_BUCKETS;
    pub REFUSALS: IntCounterVec = "lockmesh_http_refusals_total",
        "Commands that the state rejected", by ["reason"], of [
            "invalid_session", "missing_session", "session_id_in_use", "missing_node", "unknown_member",
            "missing_check", "critical_check", "queue_full", "catalog", "forgotten", "roster", "restore",
            "txn", "lock", "other_node", "not_operator_host", "too_many_sessions",
        ];
    pub UNAVAILABLE: IntCounterVec = "lockmesh_http_unavailable_total",
        "Requests without a reply from the quorum", by ["reason"], of [
            "no_leader", "overloaded", "disk", "denied", "unknown", "too_long", "removed", "not_admitted",
            "corrupt",
        ];
    pub LIMITS: IntCounterVec = "lockmesh_http_limits_total",
        "Requests rejected by a limit of the HTTP API", by ["limit"], of [
            "accept", "access", "audit", "body_read_timeout", "body_size", "checks", "connections",
            "connections_per_client", "events", "filter", "header_read_timeout", "host", "idle_timeout",
            "monitors", "operator_over_tcp", "snapshot_size", "token", "txn_operations", "value_size",
            "watched_sessions",
            "bound_sessions",
        ];
    pub CONNECTIONS: IntGaugeVec = "lockmesh_http_connections",
        "Open connections", by ["listener"], of ["unix", "tcp"];
    pub BLOCKED: IntGauge = "lockmesh_http_blocked_watchers", "Blocking queries in progress";
    pub CHECK_SYNCS: IntCounterVec = "lockmesh_check_syncs_total",
        "Writes of local checks to the catalog", by ["outcome"], of ["ok", "failed"];
    pub WATCHED_SESSIONS: IntGauge = "lockmesh_agent_watched_sessions",
        "Sessions that guards follow at this agent";
    pub BOUND_SESSIONS: IntGauge = "lockmesh_agent_bound_sessions",
        "Sessions that are bound to processes of this host";
    pub SESSION_STATES: IntCounterVec = "lockmesh_agent_session_state_changes_total",
        "State changes of followed sessions, by new state", by ["state"], of [
            "safe", "jeopardy", "suspended", "lost",
        ];
    pub CHECK_RUNS: IntCounterVec = "lockmesh_check_runs_total",
        "Runs of local checks, by their result", by ["status"], of ["passing", "warning", "critical"];
    pub CHECKS_RUNNING: IntGauge = "lockmesh_checks_running", "Local checks that run now";
    pub SERVICES: IntGauge = "lockmesh_agent_services", "Services that are registered with this agent";
    pub CHECKS: IntGauge = "lockmesh_agent_checks", "Checks that are registered with this agent";
    pub CHECK_EXPIRIES: IntCounter = "lockmesh_check_expiries_total",
        "Local checks that turned critical because their TTL expired";
    pub MESH_MEMBERS: IntGauge = "lockmesh_agent_mesh_members",
        "Other agents in the mesh, from the servers' roster";
    pub MESH_PROBE_STRETCH: IntGauge = "lockmesh_agent_mesh_probe_stretch",
        "Factor by which this agent's probes are slowed down, after delays or false suspicions";
    pub MESH_EVENTS: IntCounterVec = "lockmesh_agent_mesh_events_total",
        "Events in the mesh of agents, by kind", by ["event"], of MESH_EVENT_NAMES;
    pub USER_EVENTS: IntCounterVec = "lockmesh_agent_user_events_total",
        "User events that this agent received or fired, by outcome", by ["outcome"], of [
            "kept", "for_others", "known", "not_understood",
        ];
    pub JUROR_QUESTIONS: IntCounterVec = "lockmesh_agent_juror_questions_total",
        "Challenges of other nodes that this agent sent on behalf of a server, by outcome", by ["outcome"], of [
            "answered", "answered_by_datagram", "unanswered", "refused",
        ];
    pub REFUSED_CONNECTIONS: IntCounter = "lockmesh_agent_refused_connections_total",
        "Rejected connections to the agent's QUIC listener";
    pub RETRIED_CONNECTIONS: IntCounter = "lockmesh_agent_retried_connections_total",
        "Connections to the agent's QUIC listener whose address was validated first";
    pub CERTIFICATE_EXPIRY: prometheus::Gauge = "lockmesh_agent_certificate_expiry_timestamp_seconds",
        "Expiry of the agent's certificate or of its authority";
}

/// The metrics of the connection to the servers, and of the node's lease.
static READINGS: &[Reading<Upstream>] = lockmesh_net::readings! {
    gauge "lockmesh_upstream_registered",
        "1 if this agent has registered since it started",
        |upstream| f64::from(u8::from(upstream.is_registered()));
    gauge "lockmesh_upstream_leader_known",
        "1 if this agent knows the leader",
        |upstream| f64::from(u8::from(!upstream.not_ready().contains(&NotReady::NoLeader)));
    gauge "lockmesh_upstream_refused_servers",
        "Servers that are rejected because they do not belong to this agent's cluster",
        |upstream| upstream.load().refused_servers as f64;
    counter "lockmesh_upstream_attempts_total",
        "Calls that were sent to servers for requests", |upstream| count(upstream, |all| &all.attempts);
    counter "lockmesh_upstream_retries_total",
        "Attempts after the first one of a request", |upstream| count(upstream, |all| &all.retries);
    counter "lockmesh_upstream_reconnects_total",
        "Attempts to connect to a server after the first one",
        |upstream| count(upstream, |all| &all.reconnects);
    counter "lockmesh_upstream_registrations_total",
        "Registrations of this agent", |upstream| count(upstream, |all| &all.registrations);
    counter "lockmesh_upstream_leaders_found_total",
        "Leaders found", |upstream| count(upstream, |all| &all.leaders);
    counter "lockmesh_upstream_status_requests_total",
        "Requests of the agent's own for a server's status", |upstream| count(upstream, |all| &all.questions);
    counter "lockmesh_upstream_call_frames_total",
        "Frames of calls that were sent", |upstream| count(upstream, |all| &all.call_frames);
    counter "lockmesh_upstream_reply_frames_total",
        "Frames of replies that arrived", |upstream| count(upstream, |all| &all.reply_frames);
    gauge "lockmesh_upstream_pending_calls",
        "Calls that await a reply of a server", |upstream| upstream.load().calls as f64;
    gauge "lockmesh_upstream_shared_reads",
        "Coalesced blocking reads in progress at a server", |upstream| upstream.load().shared_reads as f64;
    gauge "lockmesh_upstream_shared_read_waiters",
        "Local requests that share them", |upstream| upstream.load().waiters as f64;
    gauge "lockmesh_lease_remaining_seconds",
        "Guaranteed validity of sessions of the default window without another acknowledgement",
        remaining_seconds;
    counter "lockmesh_lease_renewals_total",
        "Renewals of the node's lease that were sent", |upstream| count(upstream, |all| &all.renewals);
    counter "lockmesh_lease_renewals_acknowledged_total",
        "Renewals of the node's lease that the leader acknowledged",
        |upstream| count(upstream, |all| &all.renewals_acknowledged);
    counter "lockmesh_lease_challenges_total",
        "Challenges of servers that were answered", |upstream| count(upstream, |all| &all.challenges);
};

/// Returns the metrics of an agent.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    TABLE.iter().chain(READINGS.iter().map(|reading| &reading.row))
}

/// Returns a counter of the upstream. A stand-in for the quorum counts nothing.
fn count(upstream: &Upstream, counter: fn(&UpstreamCounters) -> &AtomicU64) -> f64 {
    upstream.counters().map_or(0.0, |all| counter(all).load(Ordering::Relaxed) as f64)
}

fn remaining_seconds(upstream: &Upstream) -> f64 {
    let deadline = upstream.lease().borrow().deadline(HealthWindow::Default);
    deadline.map_or(0.0, |deadline| deadline.since(BootClock::default().now()).as_secs_f64())
}

/// Counts the mesh events since the last count.
pub(crate) fn count_mesh(before: &(Counts, SealCounts), now: &(Counts, SealCounts)) {
    let of = |(gossip, seal): &(Counts, SealCounts)| {
        [
            gossip.received,
            gossip.sent,
            gossip.probes,
            gossip.suspicions,
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
    "suspicion",
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

/// Statuses for which every endpoint has a series from the start; others appear with their first
/// response.
const PRESET_STATUSES: [&str; 2] = ["200", "500"];

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

/// Creates all series of an agent with these endpoints.
pub fn show<'a>(endpoints: impl Iterator<Item = &'a str>) {
    register();
    process::show();
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

fn families(upstream: &Upstream) -> Vec<MetricFamily> {
    register();
    process::show();
    let mut families = prometheus::gather();
    families.extend(READINGS.iter().flat_map(|reading| reading.families(upstream)));
    families
}

/// Returns all metrics in the text format of Prometheus.
pub fn prometheus_text(upstream: &Upstream) -> Vec<u8> {
    let mut text = Vec::new();
    TextEncoder::new().encode(&families(upstream), &mut text).expect("memory takes every byte");
    text
}

/// The length of the intervals that Consul's JSON describes.
const INTERVAL: Duration = Duration::from_secs(10);

/// The counts of the last complete interval; none in the first one.
#[derive(Debug)]
pub struct Intervals(Mutex<Metrics>);

impl Default for Intervals {
    fn default() -> Self {
        Self(Mutex::new(Metrics { timestamp: timestamp(), ..Metrics::default() }))
    }
}

impl Intervals {
    /// Ends an interval every 10 s, until the agent stops.
    pub async fn run(self: Arc<Self>, upstream: Upstream, mut stopping: watch::Receiver<bool>) {
        let mut totals = Totals::default();
        let mut began: Option<(String, Instant)> = None;
        loop {
            let ended = began.replace((timestamp(), Instant::now()));
            let took = ended.as_ref().map_or(INTERVAL, |(_, began)| began.elapsed());
            let counted = totals.advance(&families(&upstream), took);
            if let Some((timestamp, _)) = ended {
                *self.last() = Metrics { timestamp, ..counted };
            }
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                _ = stopping.wait_for(|stopping| *stopping) => return,
            }
        }
    }

    fn last(&self) -> MutexGuard<'_, Metrics> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current gauges and the last complete interval in Consul's JSON form, with the
    /// time at which the interval began.
    pub fn consul_json(&self, upstream: &Upstream) -> Metrics {
        // Go reports its heap here; the memory of the whole process is the closest equivalent.
        let name = "consul.runtime.alloc_bytes".into();
        let memory = Gauge { name, value: process::resident_bytes(), labels: BTreeMap::new() };
        let mut metrics = Metrics { gauges: vec![memory], ..self.last().clone() };
        for family in families(upstream) {
            if family.get_field_type() == MetricType::GAUGE {
                metrics.gauges.extend(family.get_metric().iter().map(|metric| Gauge {
                    name: consul_name(&family),
                    value: metric.get_gauge().get_value(),
                    labels: labels(metric),
                }));
            }
        }
        metrics
    }
}

/// The values of each counter and histogram.
#[derive(Debug, Default)]
struct Totals(BTreeMap<String, Values>);

/// The values that a counter or a histogram has counted.
#[derive(Debug, Default)]
struct Values {
    sum: f64,
    count: u64,
    /// For each bucket its upper limit, and the number of values up to it.
    buckets: Vec<(f64, u64)>,
}

impl Values {
    fn of(kind: MetricType, metric: &Metric) -> Self {
        if kind == MetricType::COUNTER {
            return Self { sum: metric.get_counter().get_value(), ..Self::default() };
        }
        let histogram = metric.get_histogram();
        let bucket = |bucket: &Bucket| (bucket.upper_bound(), bucket.cumulative_count());
        Self {
            sum: histogram.get_sample_sum(),
            count: histogram.get_sample_count(),
            buckets: histogram.get_bucket().iter().map(bucket).collect(),
        }
    }

    /// Returns the values that were added to earlier ones.
    fn since(&self, before: &Self) -> Self {
        let bucket = |(place, (limit, count)): (usize, &(f64, u64))| {
            let before = before.buckets.get(place).map_or(0, |(_, count)| *count);
            (*limit, count.saturating_sub(before))
        };
        let sum = self.sum - before.sum;
        let count = match self.buckets.is_empty() {
            // Counters count events one by one, except processor time.
            true if sum > 0.0 => (sum as u64).max(1),
            _ => self.count.saturating_sub(before.count),
        };
        Self { sum, count, buckets: self.buckets.iter().enumerate().map(bucket).collect() }
    }

    /// Returns the minimum, the maximum and the standard deviation of at least one value: exact for
    /// one value and for a counter, else estimated from the buckets.
    fn spread(&self) -> (f64, f64, f64) {
        let mean = self.sum / self.count as f64;
        if self.count == 1 || self.buckets.is_empty() {
            return (mean, mean, 0.0);
        }
        let (mut min, mut max, mut squares) = (f64::INFINITY, mean, 0.0);
        let (mut lower, mut below) = (0.0, 0);
        // The values above the last limit have no bucket of their own.
        for (limit, up_to) in self.buckets.iter().copied().chain([(f64::INFINITY, self.count)]) {
            let (upper, count) = (if limit.is_finite() { limit } else { lower }, up_to.saturating_sub(below));
            if count > 0 {
                (min, max) = (f64::min(min, lower), f64::max(max, upper));
                squares += count as f64 * ((lower + upper) / 2.0 - mean).powi(2);
            }
            (lower, below) = (upper, up_to);
        }
        (min.min(mean), max, (squares / (self.count - 1) as f64).sqrt())
    }
}

impl Totals {
    /// Returns the increase to these families, whose totals replace the former ones. As in Consul,
    /// it has only metrics that were counted.
    fn advance(&mut self, families: &[MetricFamily], took: Duration) -> Metrics {
        let mut metrics = Metrics::default();
        for family in families {
            let kind = family.get_field_type();
            let list = match kind {
                MetricType::COUNTER => &mut metrics.counters,
                MetricType::HISTOGRAM => &mut metrics.samples,
                // Gauges; nothing in this process registers another kind.
                _ => continue,
            };
            for metric in family.get_metric() {
                let (name, labels) = (consul_name(family), labels(metric));
                let total = Values::of(kind, metric);
                let before = self.0.entry(format!("{name}{labels:?}")).or_default();
                let added = total.since(before);
                *before = total;
                let Values { sum, count, .. } = added;
                if count > 0 {
                    let (rate, mean) = (sum / took.as_secs_f64(), sum / count as f64);
                    let (min, max, stddev) = added.spread();
                    list.push(Sample { name, count, rate, sum, min, max, mean, stddev, labels });
                }
            }
        }
        metrics
    }
}

/// Returns the name of a family: Consul separates the parts of a name by dots, and the words of its
/// last part by underscores.
fn consul_name(family: &MetricFamily) -> String {
    family.name().replacen('_', ".", 2)
}

fn labels(metric: &Metric) -> BTreeMap<String, String> {
    let labels = metric.get_label().iter();
    labels.map(|pair| (pair.name().to_owned(), pair.value().to_owned())).collect()
}

/// Returns the current time in the form of Consul's metrics.
fn timestamp() -> String {
    let format = time::macros::format_description!("[year]-[month]-[day] [hour]:[minute]:[second] +0000 UTC");
    time::OffsetDateTime::now_utc().format(&format).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::{BoxFuture, Quorum};
    use lockmesh_agent_core::quorum_client::{Answered, LocalCall};
    use lockmesh_protocol::acl::Caller;
    use lockmesh_protocol::rpc::{Response, Unavailable};
    use prometheus::HistogramOpts;
    use prometheus::core::Collector;

    /// A quorum that receives no calls.
    #[derive(Debug)]
    struct Silent;

    impl Quorum for Silent {
        fn call(self: Arc<Self>, _: Caller, _: LocalCall) -> BoxFuture<Result<Answered, Unavailable>> {
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
    fn endpoints_grouped_by_subject() {
        let group = |endpoint| GROUPS[group_of(endpoint)];
        assert_eq!(
            ["/v1/kv/", "/v1/txn", "/v1/agent/check/pass/", "/health/ready", "unknown"].map(group),
            ["kv", "txn", "agent", "other", "other"]
        );
    }

    #[test]
    fn counter_in_prometheus_text() {
        REQUESTS.with_label_values(&["/v1/test-of-metrics", "200"]).inc_by(3);
        let text = String::from_utf8(prometheus_text(&upstream())).unwrap();
        assert!(
            text.contains("lockmesh_http_requests_total{endpoint=\"/v1/test-of-metrics\",status=\"200\"} 3")
        );
        assert!(text.contains("lockmesh_http_blocked_watchers "));
    }

    #[tokio::test(start_paused = true)]
    async fn interval_counts_only_its_increments() {
        let label = "/v1/test-of-intervals";
        let intervals = Arc::new(Intervals::default());
        let (stop, stopping) = watch::channel(false);
        let counted = REQUESTS.with_label_values(&[label, "200"]);
        counted.inc_by(7);
        let running = tokio::spawn(Arc::clone(&intervals).run(upstream(), stopping));
        tokio::time::sleep(INTERVAL / 2).await;
        counted.inc_by(3);
        let increase = || {
            let mut counters = intervals.consul_json(&upstream()).counters.into_iter();
            counters.find(|counter| counter.labels.values().any(|value| value == label))
        };
        assert_eq!(increase(), None, "no interval is complete");
        tokio::time::sleep(INTERVAL).await;
        let second = increase().expect("it was counted");
        assert_eq!(second.name, "lockmesh.http.requests_total");
        assert_eq!((second.count, second.sum, second.mean), (3, 3.0, 1.0));
        assert!((second.rate - 0.3).abs() < 0.001, "{}", second.rate);
        tokio::time::sleep(INTERVAL).await;
        assert_eq!(increase(), None, "nothing was counted");
        stop.send_replace(true);
        running.await.unwrap();
    }

    #[test]
    fn histogram_sample_covers_last_interval() {
        let histogram = Histogram::with_opts(HistogramOpts::new("a_long_name_seconds", "help")).unwrap();
        let mut totals = Totals::default();
        histogram.observe(9.0);
        totals.advance(&histogram.collect(), INTERVAL);
        // The limits of the buckets around them are 0.25, 0.5, 1 and 2.5.
        [0.5, 1.5].into_iter().for_each(|seconds| histogram.observe(seconds));
        let expected = Sample {
            name: "a.long.name_seconds".into(),
            count: 2,
            rate: 0.2,
            sum: 2.0,
            min: 0.25,
            max: 2.5,
            mean: 1.0,
            // The middles of their buckets are 0.375 and 1.75.
            stddev: (0.625_f64.powi(2) + 0.75_f64.powi(2)).sqrt(),
            labels: BTreeMap::new(),
        };
        assert_eq!(totals.advance(&histogram.collect(), INTERVAL).samples, [expected]);
        histogram.observe(99.0);
        let above_all = totals.advance(&histogram.collect(), INTERVAL).samples.remove(0);
        assert_eq!((above_all.min, above_all.max, above_all.stddev), (99.0, 99.0, 0.0));
        assert!(totals.advance(&histogram.collect(), INTERVAL).samples.is_empty());
    }

    #[test]
    fn process_memory_gauge_omits_hostname() {
        let metrics = Intervals::default().consul_json(&upstream());
        let memory = metrics.gauges.iter().find(|gauge| gauge.name == "consul.runtime.alloc_bytes");
        assert!(memory.is_some_and(|memory| memory.value > 0.0), "{memory:?}");
    }

    #[test]
    fn live_watcher_is_counted() {
        let before = BLOCKED.get();
        let watcher = BlockedWatcher::begin();
        assert!(BLOCKED.get() > before || before > 0);
        drop(watcher);
    }
}
