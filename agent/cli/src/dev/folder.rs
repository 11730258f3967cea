//! The folder of one server or agent that is a process of its own: `s1`, `s2`, …, `n1`, `n2`, …,
//! each with its configuration, its certificate, its data, its log and its process number.

use crate::data_folder;
use crate::error::RunError;
use lockmesh_agent::http::LONGEST_SOCKET_PATH as LONGEST_SOCKET;
use lockmesh_net::{Development, IdentityFiles, Peer, Role, private};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The most servers that are looked for in a folder.
pub(super) const MOST_SERVERS: u8 = 9;

/// The maximum number of agents of one command.
pub const MOST_NODES: u8 = 16;

/// A process's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemberFolder {
    /// The role of the process.
    pub(super) role: Role,
    /// `s1` or `n1`, which is its node's name too.
    pub(super) name: String,
    /// The folder.
    pub(super) path: PathBuf,
}

impl MemberFolder {
    /// The folder of a server or agent by its number, inside of the data folder.
    pub(super) fn numbered(data_dir: &Path, role: Role, number: u8) -> Self {
        let letter = match role {
            Role::Server => 's',
            Role::Agent => 'n',
        };
        let name = format!("{letter}{number}");
        Self { role, path: data_dir.join(&name), name }
    }

    /// All folders that there may be in a data folder, servers first.
    pub(super) fn all(data_dir: &Path) -> impl Iterator<Item = Self> {
        let servers = (1..=MOST_SERVERS).map(|number| Self::numbered(data_dir, Role::Server, number));
        servers.chain((1..=MOST_NODES).map(|number| Self::numbered(data_dir, Role::Agent, number)))
    }

    /// The file for `lockmesh server --config` or `lockmesh agent --config`.
    pub(super) fn config_file(&self) -> PathBuf {
        self.path.join(format!("{}.toml", self.role.as_str()))
    }

    /// The file that holds its process number while it runs.
    pub(super) fn pid_file(&self) -> PathBuf {
        self.path.join("pid")
    }

    /// Its log.
    pub(super) fn log_file(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Its data.
    pub(super) fn data_dir(&self) -> PathBuf {
        self.path.join("data")
    }

    /// The Unix socket of an agent.
    pub(super) fn socket(&self) -> PathBuf {
        self.path.join("agent.sock")
    }

    /// Makes the folder and the certificate in it, where they are missing.
    pub(super) fn prepare(&self, certificates: &Development) -> Result<IdentityFiles, RunError> {
        let socket = (self.role == Role::Agent).then(|| self.socket());
        data_folder::prepare_for_member(&self.path, socket.as_deref())?;
        let peer = Peer { role: self.role, node: self.name.as_str().into() };
        Ok(certificates.prepare_in(&self.path.join("tls"), &peer)?)
    }

    /// Writes the configuration with a comment at its beginning.
    pub(super) fn write_config(&self, keys: &str) -> Result<(), RunError> {
        let (file, role) = (self.config_file(), self.role.as_str());
        let text = format!(
            "# The {role} {} of `lockmesh dev`. Every other key has its default: see deploy/config/{role}.toml.\n{keys}",
            self.name
        );
        // Atomically: the next start uses an existing file as it is.
        let part = file.with_extension("toml.part");
        let write = |mut part: fs::File| part.write_all(text.as_bytes());
        let written = private::create_file(&part).and_then(write).and_then(|()| fs::rename(&part, &file));
        written.map_err(|error| RunError::system(format!("cannot write {}", file.display()), error))
    }
}

/// The absolute path of the folder, for processes that are started by hand. It must be text,
/// because configurations are.
pub(super) fn absolute(folder: &Path) -> Result<PathBuf, RunError> {
    let absolute = std::path::absolute(folder)
        .map_err(|error| RunError::system(format!("cannot find {}", folder.display()), error))?;
    match absolute.to_str() {
        Some(_) => Ok(absolute),
        None => Err(RunError::Dev(format!("{} is no UTF-8: name another folder", folder.display()))),
    }
}

/// Rejects a socket whose path is too long for the system.
pub(super) fn refuse_long_socket(socket: &Path) -> Result<(), RunError> {
    match socket.as_os_str().len() {
        0..=LONGEST_SOCKET => Ok(()),
        length => Err(RunError::Dev(format!(
            "the path of the Unix socket {} has {length} bytes, and the system takes {LONGEST_SOCKET}: name a shorter \
             one with --socket, or a shorter folder with --data-dir",
            socket.display()
        ))),
    }
}

/// Rejects a data folder in which the paths of so many sockets are too long for the system.
pub(super) fn refuse_long_sockets(data_dir: &Path, nodes: u8) -> Result<(), RunError> {
    let data_dir = absolute(data_dir)?;
    // The last one has the longest name.
    let socket = MemberFolder::numbered(&data_dir, Role::Agent, nodes).socket();
    let (length, rest) = (socket.as_os_str().len(), socket.as_os_str().len() - data_dir.as_os_str().len());
    if length <= LONGEST_SOCKET {
        return Ok(());
    }
    Err(RunError::Dev(format!(
        "the path of the Unix socket {} has {length} bytes, and the system takes {LONGEST_SOCKET}: name a folder \
         of {} bytes at most with --data-dir, for example ~/lockmesh",
        socket.display(),
        LONGEST_SOCKET - rest
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinct_folder_per_member() {
        let all: Vec<String> = MemberFolder::all(Path::new("/d")).map(|folder| folder.name).collect();
        assert_eq!(all.len(), usize::from(MOST_SERVERS + MOST_NODES));
        assert!(all.first().is_some_and(|name| name == "s1") && all.last().is_some_and(|name| name == "n16"));
        let agent = MemberFolder::numbered(Path::new("/d"), Role::Agent, 2);
        assert_eq!(agent.socket(), Path::new("/d/n2/agent.sock"));
        assert_eq!(agent.config_file(), Path::new("/d/n2/agent.toml"));
        let server = MemberFolder::numbered(Path::new("/d"), Role::Server, 3);
        assert_eq!(server.config_file(), Path::new("/d/s3/server.toml"));
        assert_eq!(server.pid_file(), Path::new("/d/s3/pid"));
    }

    #[test]
    fn socket_path_limited_to_system_maximum() {
        let refused = |length: usize, nodes| {
            let folder = format!("/{}", "x".repeat(length - 1));
            refuse_long_sockets(Path::new(&folder), nodes).map_err(|error| error.to_string())
        };
        let rest = "/n9/agent.sock".len();
        assert!(refused(LONGEST_SOCKET - rest, 9).is_ok());
        let words = refused(LONGEST_SOCKET - rest + 1, 9).expect_err("it is too long");
        assert!(words.contains("has 108 bytes, and the system takes 107"), "{words}");
        assert!(words.contains("a folder of 93 bytes at most with --data-dir"), "{words}");
        assert!(refused(LONGEST_SOCKET - rest, 10).is_err(), "n10 is longer than n9");
        assert!(refuse_long_socket(Path::new(&"x".repeat(LONGEST_SOCKET))).is_ok());
        let words = refuse_long_socket(Path::new(&"x".repeat(LONGEST_SOCKET + 1)));
        let words = words.expect_err("it is too long").to_string();
        assert!(words.contains("with --socket, or a shorter folder with --data-dir"), "{words}");
    }
}
