//! What the agent counts, and how both dialects of its metrics are written: Prometheus text, and the JSON of Consul.
//!
//! Everything is in the process's one registry, so that a server in the same process shows up too. A counter is there
//! from the process's start, at zero. **Invariant:** every refusal and every limit that strikes counts somewhere here.

use crate::upstream::Upstream;
use lockmesh_client::shape::agent::{Gauge, Metrics, Sample};
use prometheus::proto::{Metric, MetricFamily, MetricType};
use prometheus::{Encoder, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, TextEncoder};
use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// The way to the quorum: what was counted on it since the start, and how much is under way now.
static UPSTREAM: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    let help = "The way to the quorum: totals since the start, and what is under way now";
    registered(IntGaugeVec::new(Opts::new("lockmesh_upstream", help), &["what"]))
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

/// How long the agent's certificate, or the authority behind it, still lives.
pub static CERTIFICATE_SECONDS: LazyLock<IntGauge> = LazyLock::new(|| {
    let help = "Seconds that the agent's certificate, or the authority behind it, still lives";
    registered(IntGauge::new("lockmesh_agent_certificate_seconds_left", help))
});

static MEMORY: LazyLock<IntGauge> = LazyLock::new(|| {
    registered(IntGauge::new("process_resident_memory_bytes", "Resident memory of this process in bytes"))
});

static OPEN_FILES: LazyLock<IntGauge> =
    LazyLock::new(|| registered(IntGauge::new("process_open_fds", "Open file descriptors of this process")));

fn counters(name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    registered(IntCounterVec::new(Opts::new(name, help), labels))
}

fn registered<C: prometheus::core::Collector + Clone + 'static>(metric: prometheus::Result<C>) -> C {
    let metric = metric.expect("names of metrics are constants of the right form");
    prometheus::register(Box::new(metric.clone())).expect("every metric has a name of its own");
    metric
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

/// Makes every metric of this file visible before it first counts.
fn touch_all() {
    for vector in [&REQUESTS, &REFUSALS, &UNAVAILABLE, &LIMITS, &CHECK_SYNCS] {
        LazyLock::force(vector);
    }
    LazyLock::force(&CONNECTIONS);
    LazyLock::force(&BLOCKED);
    LazyLock::force(&UPSTREAM);
    LazyLock::force(&CHECK_EXPIRIES);
    MEMORY.set(resident_bytes());
    OPEN_FILES.set(open_files());
}

/// Shows what the way to the quorum counted; asked for right before metrics are written.
pub fn note_upstream(upstream: &Upstream) {
    let set = |what: &str, value: u64| {
        UPSTREAM.with_label_values(&[what]).set(i64::try_from(value).unwrap_or(i64::MAX));
    };
    if let Some(counters) = upstream.counters() {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        set("attempts_total", load(&counters.attempts));
        set("retries_total", load(&counters.retries));
        set("call_frames_total", load(&counters.call_frames));
        set("reply_frames_total", load(&counters.reply_frames));
        set("reconnects_total", load(&counters.reconnects));
        set("registrations_total", load(&counters.registrations));
        set("questions_total", load(&counters.questions));
        set("leaders_total", load(&counters.leaders));
    }
    let load = upstream.load();
    set("calls", load.calls as u64);
    set("shared_reads", load.shared_reads as u64);
    set("waiters", load.waiters as u64);
}

/// All metrics in Prometheus' text format.
pub fn prometheus_text() -> Vec<u8> {
    touch_all();
    let mut text = Vec::new();
    TextEncoder::new().encode(&prometheus::gather(), &mut text).expect("memory takes every byte");
    text
}

/// All metrics in the form of Consul. `timestamp` is when, in words.
pub fn consul_json(timestamp: String) -> Metrics {
    touch_all();
    let mut metrics = Metrics { timestamp, ..Metrics::default() };
    metrics.gauges.push(Gauge {
        name: "consul.runtime.alloc_bytes".into(),
        value: resident_bytes() as f64,
        labels: BTreeMap::new(),
    });
    for family in prometheus::gather() {
        for metric in family.get_metric() {
            push_metric(&mut metrics, &family, metric);
        }
    }
    metrics
}

fn push_metric(metrics: &mut Metrics, family: &MetricFamily, metric: &Metric) {
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
            let mean = if count == 0 { 0.0 } else { sum / count as f64 };
            metrics.samples.push(Sample { name, count, sum, mean, labels, ..Sample::default() });
        }
        MetricType::SUMMARY | MetricType::UNTYPED => {}
    }
}

/// The process's resident memory; 0 where the kernel does not say.
fn resident_bytes() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB")).map(str::trim);
    kibibytes.and_then(|text| text.parse::<i64>().ok()).unwrap_or(0) * 1024
}

fn open_files() -> i64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_shows_in_both_dialects() {
        REQUESTS.with_label_values(&["/v1/test-of-metrics", "200"]).inc_by(3);
        let text = String::from_utf8(prometheus_text()).unwrap();
        assert!(
            text.contains("lockmesh_http_requests_total{endpoint=\"/v1/test-of-metrics\",status=\"200\"} 3")
        );
        assert!(text.contains("lockmesh_http_blocked_watchers "));

        let metrics = consul_json("now".into());
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
        let metrics = consul_json("now".into());
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
