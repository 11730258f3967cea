//! Inspects a process from outside, as `ps` does.

use std::fs;
use std::time::Duration;

/// The unit of process times in `/proc`, on every machine that Linux runs on today.
const TICK: Duration = Duration::from_millis(10);

/// Returns the resident memory of a process.
#[track_caller]
pub fn resident_bytes(process: u32) -> usize {
    bytes_of(process, "status", "VmRSS:")
}

/// Returns the resident memory that no other process shares, unlike the program's own pages.
#[track_caller]
pub fn private_bytes(process: u32) -> usize {
    let part = |line| bytes_of(process, "smaps_rollup", line);
    part("Private_Clean:") + part("Private_Dirty:")
}

/// Returns the value of one line of a process's file in `/proc`.
#[track_caller]
fn bytes_of(process: u32, file: &str, start: &str) -> usize {
    let text = fs::read_to_string(format!("/proc/{process}/{file}")).expect("the process runs");
    let line = text.lines().find_map(|line| line.strip_prefix(start)).expect("a process has memory");
    let kibibytes: usize = line.trim().trim_end_matches("kB").trim().parse().expect("a number");
    kibibytes * 1024
}

/// Returns the processor time that a process has used, over all of its threads.
#[track_caller]
pub fn processor_time(process: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("the process runs");
    // The name, in brackets, may contain spaces. Fields 12 and 13 after it are user and system
    // time.
    let (_, rest) = stat.rsplit_once(") ").expect("a process has a name");
    let ticks = rest.split(' ').skip(11).take(2).map(|word| word.parse::<u32>().expect("a number"));
    TICK * ticks.sum()
}

#[cfg(test)]
mod tests {
    use super::{private_bytes, processor_time, resident_bytes};

    #[test]
    fn a_process_sees_itself() {
        let me = std::process::id();
        assert!(resident_bytes(me) > 100_000);
        assert!(private_bytes(me) > 100_000);
        let before = processor_time(me);
        assert!(processor_time(me) >= before);
    }
}
