//! The client at the other end of a connection, as the system reports it.

use crate::config::OVERFLOW_ID;
use crate::process::SocketClient;
use rustix::time::{ClockId, clock_gettime};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::net::UnixStream;

/// A client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A process of this host, on the Unix socket.
    Unix {
        /// Its user, as the kernel recorded it when the process connected (`SO_PEERCRED`).
        uid: Option<u32>,
        /// Its effective group at that time.
        gid: Option<u32>,
        /// Its process id at that time. It may have exited since.
        pid: Option<i32>,
        /// The time since boot at which its connection was accepted.
        accepted_at: Duration,
    },
    /// Any client over TCP.
    Tcp(SocketAddr),
}

impl Peer {
    /// Returns the process that connected to the Unix socket.
    pub(super) fn of(socket: &UnixStream) -> Self {
        let credentials = socket.peer_cred().ok();
        Self::Unix {
            uid: credentials.map(|credentials| credentials.uid()),
            gid: credentials.map(|credentials| credentials.gid()),
            pid: credentials.and_then(|credentials| credentials.pid()),
            accepted_at: since_boot(),
        }
    }

    /// Returns the client's IP address, over TCP.
    pub(super) fn ip(self) -> Option<IpAddr> {
        match self {
            Self::Unix { .. } => None,
            Self::Tcp(address) => Some(address.ip()),
        }
    }

    /// Returns `true` if the client connected over TCP from a loopback address.
    pub(super) fn is_loopback(self) -> bool {
        self.ip().is_some_and(|ip| ip.to_canonical().is_loopback())
    }

    /// Returns the listener's name in the metrics.
    pub(super) fn listener(self) -> &'static str {
        match self {
            Self::Unix { .. } => "unix",
            Self::Tcp(_) => "tcp",
        }
    }

    /// Returns the user, on the Unix socket.
    pub(super) fn uid(self) -> Option<u32> {
        match self {
            Self::Unix { uid, .. } => uid,
            Self::Tcp(_) => None,
        }
    }

    /// Returns the user and its group, on the Unix socket; `None` if the kernel does not show them,
    /// because the client is in another user or PID namespace.
    pub(super) fn user(self) -> Option<(u32, u32)> {
        match self {
            Self::Unix { uid: Some(uid), gid: Some(gid), pid: Some(1..), .. }
                if uid != OVERFLOW_ID && gid != OVERFLOW_ID =>
            {
                Some((uid, gid))
            }
            _ => None,
        }
    }

    /// Returns the client on the Unix socket.
    pub(super) fn socket_client(self) -> Option<SocketClient> {
        let Self::Unix { uid, pid, accepted_at, .. } = self else { return None };
        Some(SocketClient { pid: pid.and_then(|pid| u32::try_from(pid).ok()), user: uid, accepted_at })
    }

    /// Returns the process, on the Unix socket.
    pub(super) fn pid(self) -> Option<i32> {
        match self {
            Self::Unix { pid, .. } => pid,
            Self::Tcp(_) => None,
        }
    }
}

/// Returns the time since boot, suspended time included: the clock of processes' start times.
fn since_boot() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix { .. } => f.write_str("unix"),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}
