//! The Unix socket for applications, and its access rights.
//!
//! A socket left behind by a dead process is replaced; one with a live listener is not. A file that
//! is not a socket is never touched.
//!
//! The socket is bound at its final path, not under a temporary name that is renamed:
//! `/proc/net/unix` shows the path at which a socket was bound, and `systemd-tmpfiles` deletes
//! sockets whose path is not listed there. Until its permissions are set it does not listen, so the
//! kernel refuses every connection.

use super::listener::ListenError;
use crate::accounts::Accounts;
use lockmesh_net::files::FileError;
use lockmesh_net::owner;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::net::{UnixListener, UnixStream};

/// The maximum length in bytes of a Unix socket's path: the kernel has room for 108, and the last
/// one is 0.
pub const LONGEST_SOCKET_PATH: usize = 107;

/// The maximum number of connections that wait to be accepted. The kernel lowers it to
/// `net.core.somaxconn`, whose default is the same.
const BACKLOG: i32 = 4096;

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

/// A socket that listens. Dropping it removes its file, then closes it.
#[derive(Debug)]
pub(super) struct BoundSocket {
    // In this order: while the socket is open the kernel does not reuse its inode, so the file that
    // is removed is certainly its own.
    file: SocketFile,
    pub(super) listener: UnixListener,
    socket: UnixSocket,
}

impl BoundSocket {
    /// Binds the socket, and listens. Needs a tokio runtime.
    pub(super) fn bind(socket: &UnixSocket) -> Result<Self, ListenError> {
        Self::listen(Prepared::new(socket)?, socket)
    }

    fn listen(prepared: Prepared, socket: &UnixSocket) -> Result<Self, ListenError> {
        let Prepared { file, socket: bound } = prepared;
        let listening = || -> io::Result<UnixListener> {
            listen(&bound, BACKLOG)?;
            UnixListener::from_std(StdUnixListener::from(bound))
        };
        let listener = listening().map_err(|error| ListenError::Socket { path: file.path.clone(), error })?;
        // To an agent that started at the same moment the socket looked dead until now.
        match file.is_in_place() {
            true => Ok(Self { file, listener, socket: socket.clone() }),
            false => Err(ListenError::SocketInUse(file.path.clone())),
        }
    }

    /// Binds the socket again if its file was removed or replaced. Returns the clients that
    /// connected before that and were not accepted yet.
    pub(super) fn keep_reachable(&mut self, health: &SocketHealth) -> Vec<UnixStream> {
        if self.file.is_in_place() {
            return Vec::new();
        }
        match Self::bind(&self.socket) {
            Ok(bound) => {
                let former = std::mem::replace(self, bound);
                tracing::warn!(
                    path = %self.socket.path.display(),
                    "the file of the Unix socket was removed or replaced: bound it again"
                );
                health.listening(self);
                former.queued()
            }
            Err(error) => {
                health.failed(&error);
                Vec::new()
            }
        }
    }

    /// Accepts the clients in the queue, without waiting for others.
    fn queued(self) -> Vec<UnixStream> {
        // Asks the kernel: the runtime may not have noticed them yet.
        let Ok(listener) = self.listener.into_std() else { return Vec::new() };
        let next = || -> io::Result<UnixStream> {
            let (stream, _) = listener.accept()?;
            stream.set_nonblocking(true)?;
            UnixStream::from_std(stream)
        };
        std::iter::from_fn(|| next().ok()).collect()
    }
}

/// The reason why clients cannot connect to the Unix socket, for `/health/ready`.
#[derive(Debug, Default)]
pub(super) struct SocketHealth(Mutex<Option<Watched>>);

/// A socket that clients should be able to reach.
#[derive(Debug)]
struct Watched {
    path: PathBuf,
    id: FileId,
    /// The last failure to bind it again.
    failure: Option<String>,
}

impl SocketHealth {
    /// Watches this socket from now on.
    pub(super) fn listening(&self, bound: &BoundSocket) {
        let SocketFile { path, id } = &bound.file;
        *self.lock() = Some(Watched { path: path.clone(), id: *id, failure: None });
    }

    /// Watches no socket any more.
    pub(super) fn closed(&self) {
        *self.lock() = None;
    }

    /// Logs a failure to bind the socket again, once until the reason changes.
    fn failed(&self, error: &ListenError) {
        let error = error.to_string();
        let mut watched = self.lock();
        let Some(Watched { path, failure, .. }) = &mut *watched else { return };
        if failure.as_ref() != Some(&error) {
            tracing::error!(path = %path.display(), error, "clients cannot reach the Unix socket; retrying");
            *failure = Some(error);
        }
    }

    /// Returns the reason why clients cannot connect, as of this moment.
    pub(super) fn problem(&self) -> Option<String> {
        let watched = self.lock();
        let Watched { path, id, failure } = watched.as_ref()?;
        if FileId::at(path).is_ok_and(|found| found == *id) {
            return None;
        }
        let why = match failure {
            Some(error) => error,
            None => "its file was removed or replaced; it will be bound again",
        };
        Some(format!("clients cannot reach the Unix socket {}: {why}", path.display()))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Watched>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A socket that is bound with its permissions, but does not listen yet.
#[derive(Debug)]
struct Prepared {
    file: SocketFile,
    socket: OwnedFd,
}

impl Prepared {
    fn new(socket: &UnixSocket) -> Result<Self, ListenError> {
        let path = &socket.path;
        if path.as_os_str().len() > LONGEST_SOCKET_PATH {
            return Err(ListenError::PathTooLong(path.clone()));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        owner::check(folder).map_err(|error| FileError::new("use the socket's folder", folder, error))?;
        let group = socket.group.as_deref().map(group_number).transpose()?;
        remove_dead(path)?;
        let prepared = || -> io::Result<Self> {
            let bound = open()?;
            bind(&bound, &SocketAddrUnix::new(path)?)?;
            // From here on a failure removes the file again.
            let file = SocketFile::new(path)?;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(socket.mode))?;
            if let Some(group) = group {
                chown(path, None, Some(group))?;
            }
            Ok(Self { file, socket: bound })
        };
        prepared().map_err(|error| match error.kind() {
            // Bound by another process since the check.
            ErrorKind::AddrInUse => ListenError::SocketInUse(path.clone()),
            _ => ListenError::Socket { path: path.clone(), error },
        })
    }
}

/// The file of an open socket; removed when dropped.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    id: FileId,
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.into(), id: FileId::at(path)? })
    }

    /// Returns `true` if its path still leads to it.
    fn is_in_place(&self) -> bool {
        FileId::at(&self.path).is_ok_and(|id| id == self.id)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Only its own: another agent may have bound the path since.
        if self.is_in_place() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The identity of a file: its device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId(u64, u64);

impl FileId {
    fn at(path: &Path) -> io::Result<Self> {
        let found = std::fs::symlink_metadata(path)?;
        Ok(Self(found.dev(), found.ino()))
    }
}

fn open() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Removes the socket of a dead process, if there is one.
fn remove_dead(path: &Path) -> Result<(), ListenError> {
    let failed = |error: io::Error| ListenError::Socket { path: path.into(), error };
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    if !found.file_type().is_socket() {
        return Err(ListenError::NotASocket(path.into()));
    }
    let address = SocketAddrUnix::new(path).map_err(|error| failed(error.into()))?;
    match connect(open().map_err(failed)?, &address) {
        // A full accept queue belongs to a live process, even if it does not accept.
        Ok(()) | Err(Errno::AGAIN) => Err(ListenError::SocketInUse(path.into())),
        // There is no listener: its process is dead.
        Err(Errno::CONNREFUSED) => match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        },
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(failed(error.into())),
    }
}

/// Returns the number of a group, from its name in `/etc/group` or as given.
fn group_number(name: &str) -> Result<u32, ListenError> {
    Accounts::read().group(name).ok_or_else(|| ListenError::UnknownGroup(name.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn socket(path: &Path) -> UnixSocket {
        UnixSocket { path: path.into(), mode: 0o600, group: None }
    }

    #[tokio::test]
    async fn dead_socket_replaced_live_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("http.sock");
        drop(StdUnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a dead process leaves its socket behind");

        let first = BoundSocket::bind(&socket(&path)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let second = BoundSocket::bind(&socket(&path));
        assert!(matches!(second, Err(ListenError::SocketInUse(_))));

        drop(first);
        assert!(!path.exists(), "the socket is removed with its listener");
    }

    #[tokio::test]
    async fn unresponsive_live_socket_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("http.sock");
        let frozen = open().unwrap();
        bind(&frozen, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&frozen, 0).unwrap();
        let _queued = UnixStream::connect(&path).unwrap();
        let second = BoundSocket::bind(&socket(&path));
        assert!(matches!(second, Err(ListenError::SocketInUse(_))), "{second:?}");
        assert!(path.exists());
    }

    #[tokio::test]
    async fn permissions_set_before_listening() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("http.sock");
        let prepared = Prepared::new(&socket(&path)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(UnixStream::connect(&path).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let _bound = BoundSocket::listen(prepared, &socket(&path)).unwrap();
        assert!(UnixStream::connect(&path).is_ok());
    }

    #[tokio::test]
    async fn proc_net_unix_lists_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("http.sock");
        let _bound = BoundSocket::bind(&socket(&path)).unwrap();
        let listed = std::fs::read_to_string("/proc/net/unix").unwrap();
        let path = path.to_str().unwrap();
        assert!(listed.lines().any(|line| line.split_whitespace().last() == Some(path)), "{path}");
    }

    #[tokio::test]
    async fn failed_bind_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("http.sock");
        let stranger = UnixSocket { group: Some("no-such-group".into()), ..socket(&path) };
        assert!(matches!(BoundSocket::bind(&stranger), Err(ListenError::UnknownGroup(_))));
        assert!(!path.exists());
        // Taken over between the two steps, as by an agent that starts at the same moment.
        let prepared = Prepared::new(&socket(&path)).unwrap();
        let winner = BoundSocket::bind(&socket(&path)).unwrap();
        let late = BoundSocket::listen(prepared, &socket(&path));
        assert!(matches!(late, Err(ListenError::SocketInUse(_))));
        assert!(path.exists(), "the winner's socket stays");
        drop(winner);
    }

    #[tokio::test]
    async fn deleted_socket_rebound_unless_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("http.sock");
        let mut bound = BoundSocket::bind(&socket(&path)).unwrap();
        let health = SocketHealth::default();
        assert_eq!(health.problem(), None, "no socket is watched yet");
        health.listening(&bound);
        assert!(bound.keep_reachable(&health).is_empty() && health.problem().is_none());

        let _early = UnixStream::connect(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(health.problem().unwrap().ends_with("it will be bound again"));
        let other = StdUnixListener::bind(&path).unwrap();
        assert!(bound.keep_reachable(&health).is_empty());
        assert!(health.problem().unwrap().contains("another agent is listening on"), "{health:?}");
        assert!(UnixStream::connect(&path).is_ok(), "the other one's socket stays");

        drop(other);
        assert_eq!(bound.keep_reachable(&health).len(), 1, "a client had connected before");
        assert_eq!(health.problem(), None);
        assert!(UnixStream::connect(&path).is_ok());
        drop(bound);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn maximum_path_length_enforced() {
        let folder = tempfile::tempdir().unwrap();
        let rest = "/agent.sock";
        let between = "x".repeat(107 - folder.path().as_os_str().len() - rest.len() - 1);
        let path = folder.path().join(between).join(&rest[1..]);
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        assert_eq!(path.as_os_str().len(), LONGEST_SOCKET_PATH);
        let bound = BoundSocket::bind(&socket(&path));
        assert!(bound.is_ok() && path.exists(), "{bound:?}");
        let longer = path.with_file_name("agent2.sock");
        let refused = BoundSocket::bind(&socket(&longer)).unwrap_err().to_string();
        assert!(refused.contains("108 bytes, and the system takes 107"), "{refused}");
        assert!(refused.ends_with("choose a shorter `http.socket`"), "{refused}");
    }

    #[tokio::test]
    async fn regular_file_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        std::fs::write(&path, "data").unwrap();
        let refused = BoundSocket::bind(&socket(&path));
        assert!(matches!(refused, Err(ListenError::NotASocket(_))));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "data");
    }

    #[test]
    fn unknown_group_rejected() {
        assert_eq!(group_number("12345").unwrap(), 12345);
        assert!(matches!(group_number("no-such-group"), Err(ListenError::UnknownGroup(_))));
    }
}
