//! The machine, its disk, and the date of a measurement. A figure without them is meaningless.

use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// File systems in memory, by their numbers in `statfs(2)`.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// The number of syncs measured.
const SYNCS: usize = 200;

/// The machine, for the report.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    /// The date and time, in UTC.
    pub(crate) date: String,
    /// The processors' name.
    pub(crate) processor: String,
    /// The number of processors.
    pub(crate) processors: usize,
    /// Memory in MiB.
    pub(crate) memory_mib: u64,
    /// The kernel's release.
    pub(crate) kernel: String,
    /// The median duration of `fdatasync` after 4 KiB in the data folder, in milliseconds.
    pub(crate) sync_p50_ms: f64,
    /// The 99th percentile of the same.
    pub(crate) sync_p99_ms: f64,
}

impl Machine {
    /// Describes this machine, and the disk of a folder.
    pub(crate) fn look(folder: &Path) -> io::Result<Self> {
        if IN_MEMORY.contains(&(rustix::fs::statfs(folder)?.f_type as u64)) {
            let text =
                format!("{} is in memory, where fsync costs nothing: give --data DIR", folder.display());
            return Err(io::Error::other(text));
        }
        let (sync_p50_ms, sync_p99_ms) = measure_sync(folder)?;
        let cpuinfo = fs::read_to_string("/proc/cpuinfo")?;
        let meminfo = fs::read_to_string("/proc/meminfo")?;
        let memory: u64 = word_of(&meminfo, "MemTotal:").parse().unwrap_or(0);
        let date = std::process::Command::new("date").args(["-u", "+%F %R"]).output()?;
        Ok(Self {
            date: String::from_utf8_lossy(&date.stdout).trim().to_owned(),
            processor: line_of(&cpuinfo, "model name").trim_start_matches([' ', '\t', ':']).to_owned(),
            processors: std::thread::available_parallelism()?.get(),
            memory_mib: memory / 1024,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            sync_p50_ms,
            sync_p99_ms,
        })
    }

    /// Renders it in one line.
    pub(crate) fn line(&self) -> String {
        format!(
            "{} UTC, {} x {}, {} MiB, Linux {}, fdatasync p50 {:.3} ms, p99 {:.3} ms",
            self.date,
            self.processors,
            self.processor,
            self.memory_mib,
            self.kernel,
            self.sync_p50_ms,
            self.sync_p99_ms
        )
    }
}

fn line_of<'a>(text: &'a str, name: &str) -> &'a str {
    text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default()
}

fn word_of<'a>(text: &'a str, name: &str) -> &'a str {
    line_of(text, name).split_whitespace().next().unwrap_or_default()
}

/// Returns the median and the 99th percentile of `fdatasync`, in milliseconds.
fn measure_sync(folder: &Path) -> io::Result<(f64, f64)> {
    let path = folder.join("sync");
    let mut file = File::create(&path)?;
    let mut took: Vec<Duration> = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        file.write_all(&[7; 4096])?;
        let begun = Instant::now();
        file.sync_data()?;
        took.push(begun.elapsed());
    }
    fs::remove_file(path)?;
    took.sort();
    let ms = |at: usize| took[at].as_secs_f64() * 1e3;
    Ok((ms(SYNCS / 2), ms(SYNCS * 99 / 100)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_behind_their_names() {
        let text = "MemTotal:       2048 kB\nmodel name\t: Some CPU @ 2\n";
        assert_eq!(word_of(text, "MemTotal:"), "2048");
        assert_eq!(line_of(text, "model name").trim_start_matches([' ', '\t', ':']), "Some CPU @ 2");
        assert_eq!(word_of(text, "Nothing:"), "");
    }

    #[test]
    fn the_disk_is_timed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (middle, worst) = measure_sync(folder.path()).expect("it can be written to");
        assert!(0.0 < middle && middle <= worst);
        assert_eq!(fs::read_dir(folder.path()).expect("it is there").count(), 0);
    }
}
