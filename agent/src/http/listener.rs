//! The sockets for applications.
//!
//! A TCP address that other hosts can reach is rejected unless the configuration allows it
//! explicitly.

use super::unix_socket::{BoundSocket, LONGEST_SOCKET_PATH, UnixSocket};
use lockmesh_net::files::FileError;
use rustix::net::sockopt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// The number of keep-alive probes without a reply after which a client is gone.
const KEEP_ALIVE_PROBES: u32 = 3;

/// The reason why a socket could not be opened. Nothing was left behind.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Other hosts could reach it.
    #[error(
        "{0} can be reached from other machines, and the HTTP API does not authenticate clients: \
         listen on 127.0.0.1 or [::1], or allow addresses that are not loopback in the configuration"
    )]
    NotLoopback(SocketAddr),
    /// The address is in use.
    #[error(
        "{address} is in use by another process: stop that one (Consul's agent takes port 8500 too), \
         or choose another `http.tcp`"
    )]
    InUse {
        /// The address.
        address: SocketAddr,
    },
    /// Another user could replace the socket.
    #[error(transparent)]
    Folder(#[from] FileError),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Address {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// The Unix socket has a live listener.
    #[error(
        "another agent is listening on {}: stop it, or choose another `http.socket`",
        .0.display()
    )]
    SocketInUse(PathBuf),
    /// The path is a file that is not a socket.
    #[error("{} exists and is not a socket: move it, or choose another `http.socket`", .0.display())]
    NotASocket(PathBuf),
    /// The path is too long for the system.
    #[error(
        "the path of the Unix socket {} has {} bytes, and the system takes {LONGEST_SOCKET_PATH}: choose a shorter \
         `http.socket`",
        .0.display(),
        .0.as_os_str().len()
    )]
    PathTooLong(PathBuf),
    /// There is no such group.
    #[error("unknown group {0:?}: choose one that is in /etc/group")]
    UnknownGroup(String),
    /// The Unix socket cannot be created.
    #[error("cannot listen on {}: {error}; create its folder, or choose another `http.socket`", .path.display())]
    Socket {
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

/// Sockets that are bound and listening already, so that the owner knows the ports.
#[derive(Debug, Default)]
pub struct Listeners {
    pub(super) tcp: Vec<TcpListener>,
    pub(super) unix: Option<BoundSocket>,
}

impl Listeners {
    /// Binds all sockets, or none. Needs a tokio runtime.
    ///
    /// # Errors
    /// No socket is open: those bound before are closed again. The error names the address or path,
    /// and what to do.
    pub fn bind(
        tcp: &[SocketAddr],
        unix: Option<&UnixSocket>,
        allow_non_loopback: bool,
    ) -> Result<Self, ListenError> {
        let mut listeners = Self::default();
        for address in tcp {
            listeners.tcp.push(bind_tcp(*address, allow_non_loopback)?);
        }
        listeners.unix = unix.map(BoundSocket::bind).transpose()?;
        Ok(listeners)
    }

    /// Returns the TCP addresses with the assigned ports.
    pub fn tcp_addresses(&self) -> Vec<SocketAddr> {
        self.tcp.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }
}

fn bind_tcp(address: SocketAddr, allow_non_loopback: bool) -> Result<TcpListener, ListenError> {
    if !address.ip().to_canonical().is_loopback() && !allow_non_loopback {
        return Err(ListenError::NotLoopback(address));
    }
    let bound = StdTcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    });
    bound.map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => ListenError::InUse { address },
        _ => ListenError::Address { address, error },
    })
}

/// Sets the options of an accepted socket. The kernel closes the connection of a client that has
/// acknowledged neither data nor a keep-alive probe for twice the keep-alive time. Without one it
/// keeps the connections of a host that died.
pub(super) fn set_options(socket: &TcpStream, keep_alive: Option<Duration>) -> io::Result<()> {
    // Responses are written in one piece: holding them back for more would only delay them.
    socket.set_nodelay(true)?;
    let Some(idle) = keep_alive else { return Ok(()) };
    sockopt::set_tcp_keepidle(socket, idle)?;
    // In whole seconds, at least one.
    let interval = Duration::from_secs((idle.as_secs() / u64::from(KEEP_ALIVE_PROBES)).max(1));
    sockopt::set_tcp_keepintvl(socket, interval)?;
    sockopt::set_tcp_keepcnt(socket, KEEP_ALIVE_PROBES)?;
    // No probe is sent while data is unacknowledged, such as an event: this limit holds then too.
    let limit = u32::try_from(idle.as_millis().saturating_mul(2)).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(socket, limit)?;
    sockopt::set_socket_keepalive(socket, true)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn keepalive_and_user_timeout_applied() {
        let listeners = Listeners::bind(&["127.0.0.1:0".parse().unwrap()], None, false).unwrap();
        let client = TcpStream::connect(listeners.tcp_addresses()[0]).await.unwrap();
        set_options(&client, None).unwrap();
        assert!(!sockopt::socket_keepalive(&client).unwrap() && client.nodelay().unwrap());
        let second = Duration::from_secs(1);
        for (keep_alive, interval) in [(15, 5), (1, 1)] {
            set_options(&client, Some(keep_alive * second)).unwrap();
            assert!(sockopt::socket_keepalive(&client).unwrap());
            assert_eq!(sockopt::tcp_keepidle(&client).unwrap(), keep_alive * second);
            assert_eq!(sockopt::tcp_keepintvl(&client).unwrap(), interval * second);
            assert_eq!(sockopt::tcp_user_timeout(&client).unwrap(), 2_000 * keep_alive);
        }
    }

    #[tokio::test]
    async fn non_loopback_bind_requires_permission() {
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "[::ffff:192.0.2.1]:0"] {
            let refused = Listeners::bind(&[address.parse().unwrap()], None, false);
            assert!(matches!(refused, Err(ListenError::NotLoopback(_))), "{address}");
        }
        assert!(Listeners::bind(&["0.0.0.0:0".parse().unwrap()], None, true).is_ok());
    }

    #[tokio::test]
    async fn bind_error_names_address() {
        let first = Listeners::bind(&["127.0.0.1:0".parse().unwrap()], None, false).unwrap();
        let taken = first.tcp_addresses()[0];
        let refused = Listeners::bind(&[taken], None, false).unwrap_err();
        assert!(refused.to_string().contains(&taken.to_string()), "{refused}");
    }
}
