//! Metrics of the process itself, under Prometheus' standard names, and of its build.
//!
//! They are read from the kernel. A value that the kernel does not provide is 0.

use super::reading::{self, Reading};
use super::table::Row;
use prometheus::{IntCounter, IntGaugeVec};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// The kernel's ticks per second in process statistics: a part of its interface.
const TICKS_A_SECOND: f64 = 100.0;

/// The index, after the process's name, of the field of `/proc/self/stat` with the start time in
/// ticks since boot.
const START_FIELD: usize = 19;

static READINGS: &[Reading<()>] = crate::readings! {
    counter "process_cpu_seconds_total", "User and system time of this process", |()| cpu_seconds();
    gauge "process_start_time_seconds", "Start time of this process", |()| *START_TIME;
    gauge "process_max_fds", "Maximum number of open file descriptors", |()| max_fds();
    gauge "process_open_fds", "Open file descriptors of this process", |()| open_fds();
    gauge "process_resident_memory_bytes", "Resident memory of this process", |()| resident_bytes();
};

crate::metrics! {
    BUILD: IntGaugeVec = "lockmesh_build_info", "1, with the build and the role of this process",
        by ["version", "commit", "role"];
    DROPPED: IntCounter = "lockmesh_log_dropped_total", "Log lines dropped because the reader of stderr was stuck";
}

/// The start time of the process. It is computed once, so that it never changes.
static START_TIME: LazyLock<f64> = LazyLock::new(start_time);

static SHOWN: LazyLock<bool> = LazyLock::new(|| {
    register();
    reading::register((), READINGS)
});

/// Returns the metrics of every process.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    TABLE.iter().chain(READINGS.iter().map(|reading| &reading.row))
}

/// Registers the metrics of this process.
pub fn show() {
    LazyLock::force(&SHOWN);
}

/// Registers the build of a role in this process.
pub fn show_build(version: &str, commit: &str, role: &str) {
    BUILD.with_label_values(&[version, commit, role]).set(1);
}

/// Counts a log line or a message that was dropped because the reader of stderr was stuck.
pub fn count_dropped_message() {
    DROPPED.inc();
}

/// Returns the process's resident memory in bytes.
pub fn resident_bytes() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB")).map(str::trim);
    kibibytes.and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0) * 1024.0
}

fn cpu_seconds() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

fn start_time() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    started(&stat, &uptime, now).unwrap_or(0.0)
}

fn started(stat: &str, uptime: &str, now: f64) -> Option<f64> {
    // The name may contain spaces and brackets; the text after the last bracket contains none.
    let fields = stat.rsplit_once(") ")?.1;
    let ticks: f64 = fields.split(' ').nth(START_FIELD)?.parse().ok()?;
    let uptime: f64 = uptime.split(' ').next()?.parse().ok()?;
    Some(now - uptime + ticks / TICKS_A_SECOND)
}

fn max_fds() -> f64 {
    getrlimit(Resource::Nofile).current.map_or(0.0, |limit| limit as f64)
}

fn open_fds() -> f64 {
    const FOLDER: &str = "/proc/self/fd";
    // From Linux 6.2 on the size of the folder is their number. Before, a server or an agent with
    // ten thousand connections needs 8 ms to count them.
    match fs::metadata(FOLDER).map_or(0, |folder| folder.len()) {
        0 => fs::read_dir(FOLDER).map_or(0.0, |entries| entries.count() as f64),
        count => count as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_own_process_metrics() {
        let figures = [resident_bytes(), cpu_seconds(), start_time(), max_fds(), open_fds()];
        assert!(figures.iter().all(|figure| *figure > 0.0), "{figures:?}");
        assert!(open_fds() < max_fds());
    }

    #[test]
    fn start_time_with_parentheses_in_name() {
        let stat = format!("7 (a) b (c) S {}250 0", "0 ".repeat(START_FIELD - 1));
        assert_eq!(started(&stat, "100.00 50.00\n", 1_000.0), Some(902.5));
        assert_eq!(started("", "", 1_000.0), None);
    }
}
