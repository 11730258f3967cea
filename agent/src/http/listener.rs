//! The sockets for applications, and their access rights.
//!
//! A TCP address that other hosts can reach is rejected unless the configuration allows it
//! explicitly. A Unix socket left behind by a dead process is replaced; one with a live listener is
//! not. A file that is not a socket is never touched.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream};
use std::path::{Path, PathBuf};
use tokio::net::{TcpListener, UnixListener};

/// The maximum length in bytes of a Unix socket's path: the kernel has room for 108, and the last
/// one is 0.
pub const LONGEST_SOCKET_PATH: usize = 107;

/// A Unix socket to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixSocket {
    /// Its path.
    pub path: PathBuf,
    /// Its permission bits, such as `0o660`.
    pub mode: u32,
    /// The group that owns it, by name or number; defaults to the process's own.
    pub group: Option<String>,
}

/// The reason why a socket could not be opened. Nothing was left behind.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Other hosts could reach it.
    #[error(
        "{0} can be reached from other machines, and the HTTP API has no access control: \
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
    #[error("cannot listen on {}: {error}", .path.display())]
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
    pub(super) unix: Vec<(UnixListener, SocketFile)>,
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
        if let Some(socket) = unix {
            listeners.unix.push(bind_unix(socket)?);
        }
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

/// The path of a Unix socket; removed from the file system when the listener is dropped.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Only its own: another agent may have taken the path since.
        if inode(&self.path).is_ok_and(|inode| inode == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(std::fs::symlink_metadata(path)?.ino())
}

/// Creates the socket under a temporary name with its permissions, then renames it. No client ever
/// connects to a socket with the wrong permissions, and a dead process's socket is replaced
/// atomically.
fn bind_unix(socket: &UnixSocket) -> Result<(UnixListener, SocketFile), ListenError> {
    let path = &socket.path;
    if path.as_os_str().len() > LONGEST_SOCKET_PATH {
        return Err(ListenError::PathTooLong(path.clone()));
    }
    // The rename below would silently take the path from a live agent.
    refuse_live(path)?;
    let group = socket.group.as_deref().map(group_number).transpose()?;
    // Shorter than the usual names of sockets: a longer one could exceed the system's limit where
    // the path itself does not.
    let draft = path.with_file_name(format!(".{}", std::process::id()));
    let made = || -> io::Result<(UnixListener, u64)> {
        let listener = StdUnixListener::bind(&draft)?;
        std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(socket.mode))?;
        if let Some(group) = group {
            std::os::unix::fs::chown(&draft, None, Some(group))?;
        }
        let inode = inode(&draft)?;
        std::fs::rename(&draft, path)?;
        listener.set_nonblocking(true)?;
        Ok((UnixListener::from_std(listener)?, inode))
    };
    let (listener, inode) = made().map_err(|error| {
        let _ = std::fs::remove_file(&draft);
        ListenError::Socket { path: path.clone(), error }
    })?;
    Ok((listener, SocketFile { path: path.clone(), inode }))
}

fn refuse_live(path: &Path) -> Result<(), ListenError> {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(ListenError::Socket { path: path.into(), error }),
    };
    if !found.file_type().is_socket() {
        return Err(ListenError::NotASocket(path.into()));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(ListenError::SocketInUse(path.into())),
        // There is no listener: its process is dead.
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
        Err(error) => Err(ListenError::Socket { path: path.into(), error }),
    }
}

/// Returns the number of a group, from its name in `/etc/group` or as given.
fn group_number(name: &str) -> Result<u32, ListenError> {
    // By name first: a group's name may be a number.
    let known = std::fs::read_to_string("/etc/group").unwrap_or_default();
    find_group(&known, name)
        .or_else(|| name.parse().ok())
        .ok_or_else(|| ListenError::UnknownGroup(name.into()))
}

fn find_group(file: &str, name: &str) -> Option<u32> {
    file.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1))?.and_then(|number| number.parse().ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(path: PathBuf) -> UnixSocket {
        UnixSocket { path, mode: 0o600, group: None }
    }

    #[tokio::test]
    async fn a_dead_socket_is_replaced_and_a_live_one_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("http.sock");
        drop(StdUnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a dead process leaves its socket behind");

        let first = Listeners::bind(&[], Some(&socket(path.clone())), false).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let second = Listeners::bind(&[], Some(&socket(path.clone())), false);
        assert!(matches!(second, Err(ListenError::SocketInUse(_))));

        drop(first);
        assert!(!path.exists(), "the socket is removed with its listener");
    }

    #[tokio::test]
    async fn a_path_may_be_as_long_as_the_system_takes() {
        let folder = tempfile::tempdir().unwrap();
        let rest = "/agent.sock";
        let between = "x".repeat(107 - folder.path().as_os_str().len() - rest.len() - 1);
        let path = folder.path().join(between).join(&rest[1..]);
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        assert_eq!(path.as_os_str().len(), LONGEST_SOCKET_PATH);
        let listeners = Listeners::bind(&[], Some(&socket(path.clone())), false);
        assert!(listeners.is_ok() && path.exists(), "{listeners:?}");
        let longer = path.with_file_name("agent2.sock");
        let refused = Listeners::bind(&[], Some(&socket(longer)), false).unwrap_err().to_string();
        assert!(refused.contains("108 bytes, and the system takes 107"), "{refused}");
        assert!(refused.ends_with("choose a shorter `http.socket`"), "{refused}");
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_never_touched() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        std::fs::write(&path, "data").unwrap();
        let refused = Listeners::bind(&[], Some(&socket(path.clone())), false);
        assert!(matches!(refused, Err(ListenError::NotASocket(_))));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "data");
    }

    #[tokio::test]
    async fn an_address_that_others_reach_needs_leave() {
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "[::ffff:192.0.2.1]:0"] {
            let refused = Listeners::bind(&[address.parse().unwrap()], None, false);
            assert!(matches!(refused, Err(ListenError::NotLoopback(_))), "{address}");
        }
        assert!(Listeners::bind(&["0.0.0.0:0".parse().unwrap()], None, true).is_ok());
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_said_by_name() {
        let first = Listeners::bind(&["127.0.0.1:0".parse().unwrap()], None, false).unwrap();
        let taken = first.tcp_addresses()[0];
        let refused = Listeners::bind(&[taken], None, false).unwrap_err();
        assert!(refused.to_string().contains(&taken.to_string()), "{refused}");
    }

    #[test]
    fn groups_are_found_by_name_or_number() {
        let file = "root:x:0:\nlockmesh:x:990:alice,bob\n";
        assert_eq!(find_group(file, "lockmesh"), Some(990));
        assert_eq!(find_group(file, "lock"), None);
        assert_eq!(group_number("12345").unwrap(), 12345);
        assert!(matches!(group_number("no-such-group"), Err(ListenError::UnknownGroup(_))));
    }
}
