//! The cost of idle hosts: agents without a session, with one of the default window, and with one
//! of the `fast` window. Traffic is measured on the only link of each host.

use super::connect;
use super::members::Hosts;
use crate::dialect::let_pass;
use crate::probe::{processor_time, resident_bytes};
use serde::Serialize;
use serde_json::json;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The measured hosts, each with the window of its session.
const MEASURED: [(&str, Option<&str>); 3] = [("n1", None), ("n2", Some("default")), ("n3", Some("fast"))];

/// The time before the measurement begins.
const SETTLE: Duration = Duration::from_secs(5);

/// The cost of each host.
#[derive(Debug, Serialize)]
pub struct IdleReport {
    /// The duration of the measurement.
    pub seconds: f64,
    /// One element per host.
    pub hosts: Vec<IdleHost>,
}

/// The cost of one host.
#[derive(Debug, Serialize)]
pub struct IdleHost {
    /// The host's name.
    pub host: &'static str,
    /// The window of its session; `None` without a session.
    pub window: Option<&'static str>,
    /// Packets per second: received, sent.
    pub packets: (f64, f64),
    /// Bytes per second, with Ethernet, IP and UDP headers: received, sent.
    pub bytes: (f64, f64),
    /// Processor use, as a fraction of one core.
    pub cores: f64,
    /// Resident memory.
    pub resident_mib: f64,
}

/// Starts the hosts, leaves them idle, and measures for `length`.
pub fn measure(folder: &Path, length: Duration) -> IdleReport {
    let hosts = Hosts::start(connect(), folder, None);
    for (host, window) in MEASURED {
        if let Some(window) = window {
            hosts.client(host).session_of(json!({ "HealthWindow": window, "LockDelay": "0s" }));
        }
    }
    let_pass(SETTLE);
    let (began, before) = (Instant::now(), MEASURED.map(|(host, _)| Used::now(&hosts, host)));
    let_pass(length);
    let (seconds, after) = (began.elapsed().as_secs_f64(), MEASURED.map(|(host, _)| Used::now(&hosts, host)));
    let row = |(place, (host, window)): (usize, (&'static str, Option<&'static str>))| {
        let (before, after) = (&before[place], &after[place]);
        let a_second = |count: fn(&Used) -> u64| (count(after) - count(before)) as f64 / seconds;
        IdleHost {
            host,
            window,
            packets: (a_second(|used| used.packets.0), a_second(|used| used.packets.1)),
            bytes: (a_second(|used| used.bytes.0), a_second(|used| used.bytes.1)),
            cores: (after.processor - before.processor).as_secs_f64() / seconds,
            resident_mib: resident_bytes(hosts.number(host)) as f64 / f64::from(1 << 20),
        }
    };
    IdleReport { seconds, hosts: MEASURED.into_iter().enumerate().map(row).collect() }
}

/// Cumulative counters.
struct Used {
    packets: (u64, u64),
    bytes: (u64, u64),
    processor: Duration,
}

impl Used {
    fn now(hosts: &Hosts, host: &str) -> Self {
        let (received, sent) = hosts.network.carried(host);
        Self {
            packets: (received.packets, sent.packets),
            bytes: (received.bytes, sent.bytes),
            processor: processor_time(hosts.number(host)),
        }
    }
}

impl fmt::Display for IdleReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.hosts {
            let session = row.window.map_or("no session".into(), |window| format!("one {window} session"));
            writeln!(
                f,
                "{}, {session}: {:.2} packets and {:.0} bytes a second received, {:.2} and {:.0} sent, {:.2} % of \
                 a core, {:.1} MiB",
                row.host,
                row.packets.0,
                row.bytes.0,
                row.packets.1,
                row.bytes.1,
                100.0 * row.cores,
                row.resident_mib
            )?;
        }
        writeln!(f, "(for {:.0} s)", self.seconds)
    }
}
