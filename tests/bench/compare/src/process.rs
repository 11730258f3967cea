//! The processes that this program starts, and no others: started, monitored, killed, and stopped
//! with it.
//!
//! Each is started through `setpriv`, so that the kernel kills it when this program ends for any
//! reason.

use rustix::process::{Pid, Resource, Signal, getrlimit, kill_process, setrlimit};
use serde::Serialize;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The interval between checks of a condition.
const LOOK: Duration = Duration::from_millis(20);

/// The unit of processor time in `/proc`, fixed for programs since Linux 2.6.
const TICKS_PER_SECOND: f64 = 100.0;

/// A program that can be started, killed and started again.
#[derive(Debug)]
pub(crate) struct Program {
    /// Its name in reports.
    pub(crate) name: String,
    command: Vec<OsString>,
    log: PathBuf,
    child: Option<Child>,
}

impl Program {
    /// Describes a program with its arguments; both its outputs go into the log.
    pub(crate) fn new<A: Into<OsString>>(
        name: impl Into<String>,
        command: impl IntoIterator<Item = A>,
        log: PathBuf,
    ) -> Self {
        Self { name: name.into(), command: command.into_iter().map(Into::into).collect(), log, child: None }
    }

    /// Starts it.
    pub(crate) fn start(&mut self) -> io::Result<()> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).args(&self.command);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn();
        let failed = |error| io::Error::other(format!("cannot start {} with setpriv: {error}", self.name));
        self.child = Some(child.map_err(failed)?);
        Ok(())
    }

    /// Kills it as `kill -9` does, and waits until it is gone.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.end(Signal::KILL)
    }

    /// Sends `SIGTERM`, and waits until it has ended.
    pub(crate) fn terminate(&mut self) -> io::Result<()> {
        self.end(Signal::TERM)
    }

    fn end(&mut self, signal: Signal) -> io::Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        // A process that has already ended cannot be signaled, and need not be.
        let _ = kill_process(Pid::from_child(&child), signal);
        child.wait().map(drop)
    }

    /// Returns the end of its log, if it has ended unexpectedly.
    fn obituary(&mut self) -> Option<String> {
        let status = self.child.as_mut()?.try_wait().ok().flatten()?;
        Some(format!("{} ended with {status}; its log:\n{}", self.name, tail(&self.log)))
    }

    /// Returns the file of its outputs.
    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    /// Returns its resource usage; `None` if it is not running.
    pub(crate) fn usage(&self) -> Option<Usage> {
        Usage::of(self.child.as_ref()?.id())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Errors in a destructor cannot be reported.
        let _ = self.kill();
    }
}

/// Raises the limit of open files of this program and its children to the system's maximum.
pub(crate) fn raise_open_files_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // A failure shows in the first connection that fails.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// The resource usage of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Usage {
    /// Its present memory in MiB.
    pub(crate) memory_mib: f64,
    /// Its peak memory in MiB.
    pub(crate) peak_mib: f64,
    /// Processor time since its start, in seconds.
    pub(crate) cpu_seconds: f64,
}

impl Usage {
    /// Reads the usage of a running process.
    fn of(number: u32) -> Option<Self> {
        let folder = PathBuf::from(format!("/proc/{number}"));
        let status = fs::read_to_string(folder.join("status")).ok()?;
        let stat = fs::read_to_string(folder.join("stat")).ok()?;
        Self::parse(&status, &stat)
    }

    /// Reads the usage of this program.
    pub(crate) fn own() -> Self {
        Self::of(std::process::id()).unwrap_or_default()
    }

    fn parse(status: &str, stat: &str) -> Option<Self> {
        let mib = |name: &str| -> Option<f64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
            Some(kib / 1024.0)
        };
        // The name before it may contain anything, even brackets; 11 fields behind it is the time
        // in user mode.
        let (_, fields) = stat.rsplit_once(')')?;
        let ticks: f64 =
            fields.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
        let cpu_seconds = ticks / TICKS_PER_SECOND;
        Some(Self { memory_mib: mib("VmRSS:")?, peak_mib: mib("VmHWM:")?, cpu_seconds })
    }
}

/// Waits until a condition holds. Fails after a timeout, or when one of the programs ends.
pub(crate) async fn wait_until<'a>(
    what: &str,
    timeout: Duration,
    programs: impl IntoIterator<Item = &'a mut Program>,
    mut look: impl AsyncFnMut() -> bool,
) -> io::Result<()> {
    let deadline = Instant::now() + timeout;
    let mut programs: Vec<&mut Program> = programs.into_iter().collect();
    // A check may hang on a server that is partly started.
    while !tokio::time::timeout(Duration::from_secs(2), look()).await.unwrap_or(false) {
        if let Some(obituary) = programs.iter_mut().find_map(|program| program.obituary()) {
            return Err(io::Error::other(format!("{what}: {obituary}")));
        }
        if Instant::now() >= deadline {
            let logs = programs.iter().map(|program| format!("{}:\n{}\n", program.name, tail(&program.log)));
            let logs: String = logs.collect();
            return Err(io::Error::other(format!("{what}: not within {timeout:?}; the logs:\n{logs}")));
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// Returns the last lines of a file.
fn tail(path: &Path) -> String {
    const LINES: usize = 15;
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// Returns free ports of loopback, all different, for TCP and UDP alike.
pub(crate) fn free_ports<const N: usize>() -> io::Result<[u16; N]> {
    let mut held = Vec::new();
    let mut ports = [0; N];
    for port in &mut ports {
        loop {
            let tcp = TcpListener::bind("127.0.0.1:0")?;
            let number = tcp.local_addr()?.port();
            if let Ok(udp) = UdpSocket::bind(("127.0.0.1", number)) {
                held.push((tcp, udp));
                *port = number;
                break;
            }
        }
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_from_the_kernels_words() {
        let status = "Name:\tx\nVmHWM:\t    4096 kB\nVmRSS:\t    2048 kB\n";
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 9 9 20 0 1";
        let expected = Usage { memory_mib: 2.0, peak_mib: 4.0, cpu_seconds: 2.0 };
        assert_eq!(Usage::parse(status, stat), Some(expected));
        assert!(Usage::own().memory_mib > 0.0);
    }

    #[test]
    fn ports_are_different() {
        let mut ports = free_ports::<6>().expect("there are free ports").to_vec();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 6);
    }

    #[tokio::test]
    async fn a_program_that_ends_by_itself_is_told_with_its_log() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let log = folder.path().join("log");
        let mut program = Program::new("sh", ["sh", "-c", "echo last words; exit 3"], log);
        program.start().expect("sh starts");
        let waited = wait_until("story", Duration::from_secs(60), [&mut program], async || false).await;
        let text = waited.expect_err("it ended").to_string();
        assert!(text.contains("last words") && text.contains("exit status: 3"), "{text}");
    }

    #[tokio::test]
    async fn a_program_that_is_dropped_is_gone() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut program = Program::new("sleep", ["sleep", "600"], folder.path().join("log"));
        program.start().expect("sleep starts");
        wait_until("memory", Duration::from_secs(60), [], async || program.usage().is_some())
            .await
            .expect("it runs");
        program.kill().expect("it can be killed");
        assert_eq!(program.usage(), None);
    }
}
