//! Processes of this host, as the kernel knows them: a handle that reports the exit (pidfd), and
//! the start time, which distinguishes a process from a later one with the same id.

use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::time::Duration;
use std::{fs, io};
use tokio::io::unix::AsyncFd;

/// The kernel's unit of start times, which it reports to programs as 1/100 s on all platforms.
const TICK: Duration = Duration::from_millis(10);

/// The pause between two looks at a process whose handle cannot be awaited.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The reason why a process cannot be watched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProcessError {
    /// The kernel did not name the client: it is in a PID namespace that this agent cannot see.
    #[error(
        "the kernel does not show this agent which process the client is: it is in another PID namespace"
    )]
    Unseen,
    /// The client's ids are of another PID namespace.
    #[error("the client is in another PID namespace, so its process ids mean nothing here: use BindProcess")]
    OtherNamespace,
    /// The process is another user's.
    #[error("process {0} is of another user")]
    OtherUser(u32),
    /// The client has exited, and its id is another process's by now.
    #[error("the client's process {0} has exited")]
    Exited(u32),
    /// There is no such process, or the agent may not see it.
    #[error("process {0} cannot be watched: {1}")]
    Unwatched(u32, io::Error),
}

/// A client on the Unix socket, as the kernel recorded it when it connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SocketClient {
    /// Its process; `None` or 0 if this agent cannot see it.
    pub(crate) pid: Option<u32>,
    /// Its user.
    pub(crate) user: Option<u32>,
    /// The time since boot at which its connection was accepted.
    pub(crate) accepted_at: Duration,
}

/// A process that is watched.
#[derive(Debug)]
pub(crate) struct Process {
    pid: u32,
    started_at: u64,
    handle: AsyncFd<OwnedFd>,
}

impl Process {
    /// Returns the process of a client.
    pub(crate) fn of_client(client: SocketClient) -> Result<Self, ProcessError> {
        let pid = client.pid.filter(|pid| *pid > 0).ok_or(ProcessError::Unseen)?;
        let process = Self::open(pid)?;
        // If the client exited after it connected, its id may be another process's, which began
        // after the connection was accepted.
        if process.began() > client.accepted_at {
            return Err(ProcessError::Exited(pid));
        }
        Ok(process)
    }

    /// Returns another process of a client's user, by the id that the client knows it by.
    pub(crate) fn named_by(client: SocketClient, pid: u32) -> Result<Self, ProcessError> {
        let unwatched = |error| ProcessError::Unwatched(pid, error);
        let client_pid = client.pid.filter(|pid| *pid > 0).ok_or(ProcessError::Unseen)?;
        if Status::read(client_pid).map_err(unwatched)?.is_nested {
            return Err(ProcessError::OtherNamespace);
        }
        let process = Self::open(pid)?;
        let owner = Status::read(pid).map_err(unwatched)?.user;
        match client.user {
            Some(user) if user == owner || user == 0 => Ok(process),
            _ => Err(ProcessError::OtherUser(pid)),
        }
    }

    /// Returns the process with this id and start time; `None` if it has exited.
    pub(crate) fn again(pid: u32, started_at: u64) -> Option<Self> {
        Self::open(pid).ok().filter(|process| process.started_at == started_at)
    }

    fn open(pid: u32) -> Result<Self, ProcessError> {
        let opened = || -> io::Result<Self> {
            let id = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
            let handle = awaitable(pidfd_open(id, PidfdFlags::empty())?)?;
            // After the handle is open: the id is not used again while the process is watched.
            Ok(Self { pid, started_at: start_time(pid)?, handle })
        };
        opened().map_err(|error| ProcessError::Unwatched(pid, error))
    }

    /// Returns its id.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns its start time in ticks since boot.
    pub(crate) fn started_at(&self) -> u64 {
        self.started_at
    }

    fn began(&self) -> Duration {
        TICK.saturating_mul(u32::try_from(self.started_at).unwrap_or(u32::MAX))
    }

    /// Waits until it has exited, also if its parent has not reaped it yet.
    pub(crate) async fn exited(self) {
        if let Err(error) = self.handle.readable().await {
            tracing::warn!(pid = self.pid, %error, "cannot wait for a process; polling it");
            while start_time(self.pid).is_ok_and(|started_at| started_at == self.started_at) {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
    }
}

#[expect(deprecated, reason = "the successor is unsafe for other types; this one owns its descriptor")]
fn awaitable(handle: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(handle)
}

/// Returns the start time of a process in ticks since boot.
fn start_time(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_start_time(&stat).ok_or_else(|| io::Error::other("its start time cannot be read"))
}

fn parse_start_time(stat: &str) -> Option<u64> {
    // The name before it may contain anything, even brackets. The state is field 3, this is 22.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

/// What `/proc/PID/status` says of a process.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    /// Its real user.
    user: u32,
    /// Set if it is in a PID namespace below this agent's.
    is_nested: bool,
}

impl Status {
    fn read(pid: u32) -> io::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        Self::parse(&status).ok_or_else(|| io::Error::other("its user cannot be read"))
    }

    fn parse(status: &str) -> Option<Self> {
        let numbers = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.split_whitespace())
        };
        let user = numbers("Uid:")?.next()?.parse().ok()?;
        // One id for each namespace, from this agent's inwards. Old kernels show none.
        Some(Self { user, is_nested: numbers("NSpid:").is_some_and(|ids| ids.count() > 1) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn child() -> Child {
        Command::new("sleep").arg("1000").spawn().expect("a program of every system")
    }

    fn client(pid: u32, user: Option<u32>, accepted_at: Duration) -> SocketClient {
        SocketClient { pid: Some(pid), user, accepted_at }
    }

    #[tokio::test]
    async fn exit_reported_before_reaping() {
        let mut child = child();
        let process = Process::open(child.id()).expect("it runs");
        let started_at = process.started_at();
        assert!(Process::again(child.id(), started_at).is_some());
        assert!(Process::again(child.id(), started_at + 1).is_none(), "that is another process");
        child.kill().expect("it runs");
        process.exited().await;
        child.wait().expect("it has exited");
        assert!(Process::again(child.id(), started_at).is_none());
    }

    #[tokio::test]
    async fn client_must_predate_its_connection() {
        let mut child = child();
        let began = Process::open(child.id()).expect("it runs").began();
        let of = |pid, accepted_at| Process::of_client(client(pid, None, accepted_at));
        assert!(of(child.id(), began).is_ok());
        assert!(matches!(of(child.id(), began - TICK), Err(ProcessError::Exited(_))));
        assert!(matches!(of(0, began), Err(ProcessError::Unseen)));
        child.kill().and_then(|()| child.wait()).expect("it runs");
    }

    #[tokio::test]
    async fn named_process_must_be_of_same_user() {
        let mut child = child();
        let (own, user, pid) = (std::process::id(), rustix::process::getuid().as_raw(), child.id());
        let named =
            |uid| Process::named_by(client(own, uid, Duration::ZERO), pid).map(|process| process.pid());
        assert_eq!(named(Some(user)).expect("it is the same user"), pid);
        assert_eq!(named(Some(0)).expect("root may name any"), pid);
        assert!(matches!(named(Some(user + 1)), Err(ProcessError::OtherUser(_))));
        assert!(matches!(named(None), Err(ProcessError::OtherUser(_))));
        child.kill().and_then(|()| child.wait()).expect("it runs");
        assert!(matches!(named(Some(user)), Err(ProcessError::Unwatched(..))));
    }

    #[test]
    fn proc_files_are_parsed() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 9 9 20 0 1 0 12345 9";
        assert_eq!(parse_start_time(stat), Some(12_345));
        let status = "Name:\tx\nUid:\t1000\t0\t0\t0\nNSpid:\t7\t1\n";
        assert_eq!(Status::parse(status), Some(Status { user: 1000, is_nested: true }));
        let status = status.replace("\t7\t1", "\t7");
        assert_eq!(Status::parse(&status), Some(Status { user: 1000, is_nested: false }));
    }
}
