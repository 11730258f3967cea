//! The processes that this program starts: their usage, and the machine that they share.
//!
//! Each is started through `setpriv`, so that the kernel kills it when this program ends for any
//! reason.

use crate::Result;
use rustix::process::{Resource, getrlimit, setrlimit};
use serde::Serialize;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// The unit of processor time in `/proc`, fixed for programs since Linux 2.6.
const TICKS_PER_SECOND: f64 = 100.0;

/// File systems in memory, by their numbers in `statfs(2)`.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// A program that can be started, killed and started again.
#[derive(Debug)]
pub(crate) struct Program {
    command: Vec<OsString>,
    log: PathBuf,
    child: Option<Child>,
}

impl Program {
    /// Starts a program with its arguments; both its outputs go into the log.
    pub(crate) fn start(command: Vec<OsString>, log: PathBuf) -> Result<Self> {
        let mut program = Self { command, log, child: None };
        program.restart()?;
        Ok(program)
    }

    /// Starts it again.
    pub(crate) fn restart(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).args(&self.command);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let failed = |error| format!("cannot start {:?} with setpriv: {error}", self.command[0]);
        self.child = Some(command.spawn().map_err(failed)?);
        Ok(())
    }

    /// Kills it as `kill -9` does, and waits until it is gone.
    pub(crate) fn kill(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Returns the end of its log.
    pub(crate) fn last_words(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        format!("{}:\n{}\n", self.log.display(), lines[lines.len().saturating_sub(15)..].join("\n"))
    }

    /// Returns its resource usage; nothing if it is not running.
    pub(crate) fn usage(&self) -> Usage {
        self.child.as_ref().and_then(|child| Usage::of(child.id())).unwrap_or_default()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Errors in a destructor cannot be reported.
        let _ = self.kill();
    }
}

/// The resource usage of one or several processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Usage {
    pub(crate) memory_mib: f64,
    pub(crate) peak_mib: f64,
    pub(crate) cpu_seconds: f64,
}

impl Usage {
    /// Reads the usage of this program.
    pub(crate) fn own() -> Self {
        Self::of(std::process::id()).unwrap_or_default()
    }

    fn of(number: u32) -> Option<Self> {
        let read = |file: &str| fs::read_to_string(format!("/proc/{number}/{file}")).ok();
        Self::parse(&read("status")?, &read("stat")?)
    }

    fn parse(status: &str, stat: &str) -> Option<Self> {
        let number = |text: &str, name: &str| -> Option<f64> { word_of(text, name).parse().ok() };
        // The name before it may contain anything, even brackets; 11 fields behind it is the time
        // in user mode.
        let (_, fields) = stat.rsplit_once(')')?;
        let ticks = fields.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok());
        Some(Self {
            memory_mib: number(status, "VmRSS:")? / 1024.0,
            peak_mib: number(status, "VmHWM:")? / 1024.0,
            cpu_seconds: ticks.sum::<f64>() / TICKS_PER_SECOND,
        })
    }
}

impl std::iter::Sum for Usage {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            memory_mib: sum.memory_mib + one.memory_mib,
            peak_mib: sum.peak_mib + one.peak_mib,
            cpu_seconds: sum.cpu_seconds + one.cpu_seconds,
        })
    }
}

fn word_of<'a>(text: &'a str, name: &str) -> &'a str {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()).unwrap_or_default()
}

/// Returns the bytes written so far to the disk of a folder, by all programs; 0 if its file system
/// has no disk of its own.
///
/// The counters of processes count whole large pages of the page cache, of which the kernel writes
/// only the changed blocks.
pub(crate) fn written_bytes(folder: &Path) -> Result<f64> {
    let device = rustix::fs::stat(folder)?.st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let stat = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).unwrap_or_default();
    let sectors = stat.split_whitespace().nth(6).and_then(|sectors| sectors.parse().ok());
    Ok(512.0 * sectors.unwrap_or(0.0))
}

/// Raises the limit of open files of this program and its children to the system's maximum.
pub(crate) fn raise_open_files_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // A failure shows in the first connection that fails.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Returns free ports of loopback, all different, for TCP and UDP alike.
pub(crate) fn free_ports(count: usize) -> Result<Vec<u16>> {
    let mut held = Vec::new();
    while held.len() < count {
        let tcp = TcpListener::bind("127.0.0.1:0")?;
        let number = tcp.local_addr()?.port();
        if let Ok(udp) = UdpSocket::bind(("127.0.0.1", number)) {
            held.push((number, tcp, udp));
        }
    }
    Ok(held.iter().map(|(number, ..)| *number).collect())
}

/// Describes this machine and the disk of a folder. A figure without them is meaningless.
pub(crate) fn machine(folder: &Path) -> Result<String> {
    if IN_MEMORY.contains(&(rustix::fs::statfs(folder)?.f_type as u64)) {
        return Err(
            format!("{} is in memory, where fsync costs nothing: give --data DIR", folder.display()).into()
        );
    }
    let path = folder.join("sync");
    let mut file = File::create(&path)?;
    let mut took = Vec::new();
    for _ in 0..200 {
        file.write_all(&[7; 4096])?;
        let begun = Instant::now();
        file.sync_data()?;
        took.push(begun.elapsed());
    }
    fs::remove_file(path)?;
    took.sort();
    Ok(format!(
        "{} processors, fdatasync of 4 KiB p50 {:.3} ms",
        std::thread::available_parallelism()?,
        took[took.len() / 2].as_secs_f64() * 1e3,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_from_proc() {
        let status = "Name:\tx\nVmHWM:\t    4096 kB\nVmRSS:\t    2048 kB\n";
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 9 9 20 0 1";
        let usage = Usage { memory_mib: 2.0, peak_mib: 4.0, cpu_seconds: 2.0 };
        assert_eq!(Usage::parse(status, stat), Some(usage));
        assert_eq!([usage, usage].into_iter().sum::<Usage>().cpu_seconds, 4.0);
    }
}
