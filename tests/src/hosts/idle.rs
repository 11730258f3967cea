//! What hosts cost on which nothing happens: agents without a session, with one of the default
//! window, and with a `fast` one. Their traffic is what their host's only cable counts.

use super::connect;
use super::members::Hosts;
use crate::dialect::let_pass;
use crate::probe::{processor_time, resident_bytes};
use serde::Serialize;
use serde_json::json;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The hosts that are measured, each with what holds a session there.
const MEASURED: [(&str, Option<&str>); 3] = [("n1", None), ("n2", Some("default")), ("n3", Some("fast"))];

/// How long the hosts are left alone before anything is measured.
const SETTLE: Duration = Duration::from_secs(5);

/// What each of the hosts cost.
#[derive(Debug, Serialize)]
pub struct IdleReport {
    /// For so long they were measured.
    pub seconds: f64,
    /// One for each host.
    pub hosts: Vec<IdleHost>,
}

/// What one host cost.
#[derive(Debug, Serialize)]
pub struct IdleHost {
    /// Its name.
    pub host: &'static str,
    /// The window of its session; none where there is no session.
    pub window: Option<&'static str>,
    /// Packets a second: received, sent.
    pub packets: (f64, f64),
    /// Bytes a second, with the headers of Ethernet, IP and UDP: received, sent.
    pub bytes: (f64, f64),
    /// Of one core.
    pub cores: f64,
    /// Resident in memory.
    pub resident_mib: f64,
}

/// Starts the hosts, lets nothing happen, and measures for so long.
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

/// What only grows.
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
