//! The folder in which an agent, or `lockmesh dev`, keeps what must outlive it: its owner's alone,
//! unless applications find the agent's socket in it.

use lockmesh_agent::{node, pin};
use lockmesh_net::files::FileError;
use lockmesh_net::owner;
use lockmesh_net::private::{self, FolderEntry};
use lockmesh_server::store::FIRST_FILES;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// The lock file of an agent that uses the folder.
const LOCK_FILE: &str = "agent.lock";

/// The reason why a data folder cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// An agent runs on it.
    #[error("another agent uses the folder {0}: stop it, or give this one a `data_dir` of its own")]
    InUse(PathBuf),
    /// The lock cannot be taken.
    #[error("cannot lock {path}: {source}")]
    Lock {
        /// The lock's file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// Holds an agent's data folder until the file is closed: two agents of one folder would be one
/// node, and take its registration from each other. There is nothing to hold where there is no
/// folder.
pub(crate) fn hold(folder: &Path) -> Result<Option<File>, HoldError> {
    if !folder.exists() {
        return Ok(None);
    }
    let path = folder.join(LOCK_FILE);
    let opened = owner::open(private::file_options().create(true).truncate(false).write(true), &path);
    let file = opened.map_err(|source| HoldError::Lock { path: path.clone(), source })?;
    match file.try_lock() {
        // A start that failed removed the file before it was locked.
        Ok(()) if !private::is_in_place(&file, &path) => Err(HoldError::InUse(folder.to_path_buf())),
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(HoldError::InUse(folder.to_path_buf())),
        Err(TryLockError::Error(source)) => Err(HoldError::Lock { path, source }),
    }
}

/// The folders that a start makes. If the start fails, they are removed again with the few files
/// that it wrote there: another user's next start could not use them.
#[derive(Debug)]
pub(crate) struct NewFolders {
    /// The data folder and its missing parents, innermost first.
    folders: Vec<PathBuf>,
    is_started: bool,
}

impl NewFolders {
    /// Notes which folders of the path are missing.
    pub(crate) fn of(data_folder: &Path) -> Self {
        let missing = data_folder
            .ancestors()
            .take_while(|folder| !folder.as_os_str().is_empty() && fs::symlink_metadata(folder).is_err());
        Self { folders: missing.map(PathBuf::from).collect(), is_started: false }
    }

    /// Keeps them: the process has started.
    pub(crate) fn keep(mut self) {
        self.is_started = true;
    }
}

impl Drop for NewFolders {
    fn drop(&mut self) {
        let Some(folder) = self.folders.first().filter(|_| !self.is_started) else { return };
        // One that another process has begun to use meanwhile is its own. The locks are held until
        // the end: that process finds the folder in use, or its lock file removed. Without a lock,
        // a file may be of another process. A folder is removed only if it is empty.
        let files = FIRST_FILES.into_iter().chain([LOCK_FILE]).map(|name| folder.join(name));
        let held: Vec<_> = files.filter_map(|path| Some((File::open(&path).ok()?, path))).collect();
        if held.iter().any(|(file, _)| file.try_lock().is_err()) {
            return;
        }
        for name in ["registry/services", "registry/checks", "registry"] {
            let _ = fs::remove_dir(folder.join(name));
        }
        let is_lock = |path: &Path| path.extension().is_some_and(|extension| extension == "lock");
        if held.iter().any(|(_, path)| is_lock(path)) {
            held.iter().for_each(|(_, path)| _ = fs::remove_file(path));
        }
        for folder in &self.folders {
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Makes an agent's data folder, or closes an older one to other users.
pub(crate) fn prepare_for_agent(folder: &Path, socket: Option<&Path>) -> Result<(), FileError> {
    let kind = |name: &str| match name {
        node::FILE | pin::FILE | LOCK_FILE | "registry" => FolderEntry::Secret,
        _ => kind_of_rest(name),
    };
    prepare(folder, socket, kind)
}

/// Makes the folder of `lockmesh dev`, or closes an older one to other users. The folders in it are
/// closed by those who use them; that of a server which does not start this time is closed here.
pub(crate) fn prepare_for_dev(folder: &Path, socket: &Path) -> Result<(), FileError> {
    let kind = |name: &str| match name {
        node::FILE | pin::FILE | LOCK_FILE | "registry" | "tls" | "agent" | "server" => FolderEntry::Secret,
        _ if is_numbered(name, 's') => FolderEntry::Secret,
        // Applications find a socket in it; what else is in it is closed.
        _ if is_numbered(name, 'n') => FolderEntry::Public,
        _ => kind_of_rest(name),
    };
    prepare(folder, Some(socket), kind)
}

/// Makes the folder of one server or agent of `lockmesh dev` that is a process of its own, or
/// closes an older one to other users; an agent's stays open on the way to its socket.
pub(crate) fn prepare_for_member(folder: &Path, socket: Option<&Path>) -> Result<(), FileError> {
    let kind = |name: &str| match name {
        "server.toml" | "server.toml.part" | "log" | "data" | "tls" => FolderEntry::Secret,
        "agent.toml" | "agent.toml.part" => FolderEntry::Secret,
        "pid" | "agent.sock" => FolderEntry::Public,
        _ => kind_of_rest(name),
    };
    prepare(folder, socket, kind)
}

fn kind_of_rest(name: &str) -> FolderEntry {
    match name {
        // Files of an interrupted start, and of the root of a file system.
        _ if name.starts_with(".tmp") => FolderEntry::Secret,
        "lost+found" => FolderEntry::Public,
        _ => FolderEntry::Foreign,
    }
}

/// `true` if a folder has a name as of servers or agents: `s1`, `s2`, …, `n1`, `n2`, …
fn is_numbered(name: &str, letter: char) -> bool {
    let number = name.strip_prefix(letter).unwrap_or_default();
    matches!(number.len(), 1 | 2) && number.bytes().all(|byte| byte.is_ascii_digit())
}

fn prepare(
    folder: &Path,
    socket: Option<&Path>,
    kind: impl Fn(&str) -> FolderEntry,
) -> Result<(), FileError> {
    // Other users pass through it to the socket: then what lies in it is closed, and not the
    // folder.
    let reachable = socket.is_some_and(|socket| leads_to(folder, socket));
    if !reachable {
        private::make_folder(folder)?;
    } else if let Err(error) = fs::create_dir_all(folder) {
        return Err(FileError::new("make the folder", folder, error));
    }
    private::close(folder, reachable, kind)
}

/// `true` if the path of the socket leads through the folder.
fn leads_to(folder: &Path, socket: &Path) -> bool {
    let real = |path: &Path| fs::canonicalize(path).or_else(|_| std::path::absolute(path));
    let place = socket.parent().map(|parent| if parent == Path::new("") { Path::new(".") } else { parent });
    let place: Option<PathBuf> = place.and_then(|place| real(place).ok());
    // A folder of which nothing is known is rather left open than a socket shut away.
    place.zip(real(folder).ok()).is_none_or(|(place, folder)| place.starts_with(folder))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it is there").permissions().mode() & 0o777
    }

    fn open(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
    }

    #[test]
    fn agent_folder_restricted_to_owner() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("agent");
        prepare_for_agent(&folder, Some(&root.path().join("agent.sock"))).expect("it can be made");
        assert_eq!(mode(&folder), 0o700);
        fs::write(folder.join(node::FILE), "mine").expect("a file");
        open(&folder, 0o755);
        open(&folder.join(node::FILE), 0o644);
        prepare_for_agent(&folder, None).expect("it is there");
        assert_eq!((mode(&folder), mode(&folder.join(node::FILE))), (0o700, 0o600));
    }

    #[test]
    fn agent_folder_held_exclusively() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("agent");
        assert!(hold(&folder).expect("nothing to hold").is_none());
        prepare_for_agent(&folder, None).expect("it can be made");
        let held = hold(&folder).expect("nobody has it").expect("a lock");
        let error = hold(&folder).expect_err("the first has it").to_string();
        assert!(error.contains("another agent uses the folder") && error.contains("`data_dir`"), "{error}");
        assert_eq!(mode(&folder.join(LOCK_FILE)), 0o600);
        prepare_for_agent(&folder, None).expect("the lock is its own");
        drop(held);
        assert!(hold(&folder).expect("nobody has it any more").is_some());
    }

    #[test]
    fn failed_start_removes_new_folders() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("lockmesh/agent");
        let start = || {
            let new = NewFolders::of(&folder);
            prepare_for_agent(&folder, None).expect("it can be made");
            // In the order in which a start drops them.
            (hold(&folder).expect("no process has it"), new)
        };
        let write = |name: &str| fs::write(folder.join(name), "x").expect("a file");
        drop(start());
        assert!(!root.path().join("lockmesh").exists());

        let (held, new) = start();
        FIRST_FILES.into_iter().for_each(write);
        fs::create_dir_all(folder.join("registry/checks")).expect("a folder");
        drop((held, new));
        assert!(!root.path().join("lockmesh").exists());

        let (held, new) = start();
        drop(new);
        assert!(folder.join(LOCK_FILE).exists(), "a process uses it");
        drop(held);
        fs::remove_dir_all(&folder).expect("a folder");
        let (held, new) = start();
        write("log");
        drop((held, new));
        assert!(folder.join("log").exists(), "it is not known to be new");

        drop(start());
        assert!(folder.exists(), "an earlier start made it");
        fs::remove_dir_all(&folder).expect("a folder");

        let (held, new) = start();
        drop(held);
        fs::remove_file(folder.join(LOCK_FILE)).expect("a file");
        write(node::FILE);
        drop(new);
        assert!(folder.join(node::FILE).exists(), "without a lock, it may be of another process");
    }

    #[test]
    fn removed_lock_holds_nothing() {
        let root = tempfile::tempdir().expect("a folder");
        let path = root.path().join(LOCK_FILE);
        let file = File::create(&path).expect("a file");
        assert!(private::is_in_place(&file, &path));
        fs::remove_file(&path).expect("a file");
        assert!(!private::is_in_place(&file, &path));
        fs::write(&path, "").expect("a file");
        assert!(!private::is_in_place(&file, &path), "another file");
    }

    #[test]
    fn socket_path_folders_stay_accessible() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("agent");
        fs::create_dir(&folder).expect("it can be made");
        let link = root.path().join("link");
        std::os::unix::fs::symlink(&folder, &link).expect("it can be made");
        for socket in [folder.join("agent.sock"), folder.join("run/agent.sock"), link.join("agent.sock")] {
            open(&folder, 0o755);
            prepare_for_agent(&folder, Some(&socket)).expect("it is there");
            assert_eq!(mode(&folder), 0o755, "{}", socket.display());
        }
        assert!(!leads_to(&folder, &root.path().join("agent.sock")));
        assert!(!leads_to(&folder, Path::new("agent.sock")), "that is where this process is");
        let fresh = root.path().join("fresh");
        prepare_for_dev(&fresh, &fresh.join("agent.sock")).expect("it can be made");
        fs::create_dir(fresh.join("s3")).expect("it can be made");
        open(&fresh.join("s3"), 0o755);
        open(&fresh, 0o755);
        prepare_for_dev(&fresh, &fresh.join("agent.sock")).expect("it is there");
        assert_eq!((mode(&fresh), mode(&fresh.join("s3"))), (0o755, 0o700));
    }

    #[test]
    fn dev_agent_folder_exposes_only_socket() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("n12");
        let socket = folder.join("agent.sock");
        fs::create_dir(&folder).expect("it can be made");
        fs::write(folder.join("agent.toml"), "").expect("a file");
        for (path, before) in [(&folder, 0o755), (&folder.join("agent.toml"), 0o644)] {
            open(path, before);
        }
        prepare_for_member(&folder, Some(&socket)).expect("it is there");
        prepare_for_dev(root.path(), &socket).expect("it is there");
        assert_eq!((mode(&folder), mode(&folder.join("agent.toml"))), (0o755, 0o600));
    }

    #[test]
    fn server_folder_and_log_restricted() {
        let root = tempfile::tempdir().expect("a folder");
        for (file, before) in [("log", 0o644), ("server.toml", 0o644), ("pid", 0o644)] {
            fs::write(root.path().join(file), "").expect("a file");
            open(&root.path().join(file), before);
        }
        open(root.path(), 0o755);
        prepare_for_member(root.path(), None).expect("it is there");
        let modes = ["", "log", "server.toml", "pid"].map(|name| mode(&root.path().join(name)));
        assert_eq!(modes, [0o700, 0o600, 0o600, 0o644]);
    }
}
