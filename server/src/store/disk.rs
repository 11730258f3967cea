//! The location of the files: a folder on a disk, held by one process at a time.

use super::error::StoreError;
use super::log::is_of_log;
use super::names::{FORMER_LOG, LOG, NEW_LOG, NEW_STATE, REPORTED, STATE};
use super::origin::Origin;
use crate::bootstrap::Record;
use lockmesh_net::files::FileError;
use lockmesh_net::owner;
use lockmesh_net::private::{self, FolderEntry};
use redb::StorageBackend;
use redb::backends::FileBackend;
use rustix::fs::{Advice, fadvise};
use std::fmt::Debug;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The file whose lock marks the folder as in use.
const LOCK_FILE: &str = "lockmesh.lock";
/// The file in which the process keeps its node's UUID.
const NODE_FILE: &str = "node-id";
/// The files that a start writes before there is a log or a state.
pub const FIRST_FILES: [&str; 3] = [LOCK_FILE, NODE_FILE, Record::FILE];
/// The prefix of the names of unfinished files.
const DRAFT_PREFIX: &str = ".tmp";

/// A place for files and for folders of files: `file` or `folder/file`. Changes of names are
/// durable only after [`Disk::sync`].
pub(super) trait Disk: Debug + Send + Sync {
    /// Returns the file's path, for messages.
    fn path(&self, name: &str) -> PathBuf;
    /// Opens a file; `None` if it is missing.
    fn open(&self, name: &str) -> io::Result<Option<Box<dyn StorageBackend>>>;
    /// Opens a file with the content that is durable: a failed sync leaves another one in memory.
    fn open_durable(&self, name: &str) -> io::Result<Option<Box<dyn StorageBackend>>>;
    /// Creates an empty file, replacing any existing one.
    fn create(&self, name: &str) -> io::Result<Box<dyn StorageBackend>>;
    /// Creates a folder.
    fn make_folder(&self, name: &str) -> io::Result<()>;
    /// Returns `true` if the file exists.
    fn exists(&self, name: &str) -> io::Result<bool>;
    /// Returns the names in a folder.
    fn list(&self, folder: &str) -> io::Result<Vec<String>>;
    /// Renames a file or a folder atomically.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file, or a folder with the files of a log, if it exists.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes all changes of the names in a folder durable; the empty name is the place itself.
    fn sync(&self, folder: &str) -> io::Result<()>;
}

/// A folder that this process holds until it is dropped.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Its lock holds the folder.
    _held: File,
}

impl Folder {
    /// Creates the folder if it is missing, and locks it.
    pub(super) fn hold(path: &Path) -> Result<Self, StoreError> {
        let fault = |doing| move |source| StoreError::Io { path: path.to_path_buf(), doing, source };
        private::make_folder(path).map_err(|error| fault("cannot make the folder")(error.into_source()))?;
        // A folder of an older version, or one made by hand, may be readable by other users: it
        // holds all values.
        let close = |path: &Path, kind: fn(&str) -> FolderEntry| {
            private::close(path, false, kind).map_err(|error| {
                fault("cannot revoke other users' access to the folder")(error.into_source())
            })
        };
        close(path, kind)?;
        let log = path.join(LOG);
        if log.is_dir() {
            close(&log, kind_of_log)?;
        }
        let lock_path = path.join(LOCK_FILE);
        let lock = owner::open(private::file_options().create(true).truncate(false).write(true), &lock_path)
            .map_err(fault("cannot open the lock file in the folder"))?;
        // Before anything in it is read: two servers on one folder would both use the same log.
        take_lock(path, &lock)?;
        Ok(Self { path: path.to_path_buf(), _held: lock })
    }

    /// Returns the origin of a file; `None` if it is missing.
    pub(super) fn origin(&self, name: &str) -> Result<Option<Origin>, StoreError> {
        let path = self.path(name);
        match File::open(&path).and_then(|file| Origin::of(&file)) {
            Ok(origin) => Ok(Some(origin)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StoreError::Io { path, doing: "cannot read its creation time", source }),
        }
    }

    fn backend(file: File) -> io::Result<Box<dyn StorageBackend>> {
        match FileBackend::new(file) {
            Ok(backend) => Ok(Box::new(backend)),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

/// Classifies the files of a server's folder: they hold all values, and the ids of sessions, which
/// suffice to release a lock.
fn kind(name: &str) -> FolderEntry {
    let ours = [
        LOCK_FILE,
        LOG,
        NEW_LOG,
        FORMER_LOG,
        STATE,
        NEW_STATE,
        REPORTED,
        Record::FILE,
        Record::NEW_FILE,
        NODE_FILE,
    ];
    match name {
        _ if ours.contains(&name) || name.starts_with(DRAFT_PREFIX) => FolderEntry::Secret,
        // The pid file may be here too, and the root of a separate file system has a folder for
        // recovered files.
        "pid" | "lost+found" => FolderEntry::Public,
        _ if name.ends_with(".pid") => FolderEntry::Public,
        _ => FolderEntry::Foreign,
    }
}

/// Classifies the files of a log.
fn kind_of_log(name: &str) -> FolderEntry {
    if is_of_log(name) { FolderEntry::Secret } else { FolderEntry::Foreign }
}

/// Takes the lock that marks the folder as in use.
fn take_lock(folder: &Path, lock: &File) -> Result<(), StoreError> {
    match lock.try_lock() {
        // A start that failed removed the file before it was locked.
        Ok(()) if !private::is_in_place(lock, &folder.join(LOCK_FILE)) => {
            Err(StoreError::Held(folder.to_path_buf()))
        }
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(StoreError::Held(folder.to_path_buf())),
        Err(TryLockError::Error(source)) => {
            Err(StoreError::Io { path: folder.to_path_buf(), doing: "cannot lock the folder", source })
        }
    }
}

/// A folder that is only read, and that no server can use meanwhile.
#[derive(Debug)]
pub(super) struct ReadOnlyFolder {
    path: PathBuf,
    /// Its lock holds the folder; `None` in a folder that no server ever ran on, such as a copy of
    /// some files.
    _held: Option<File>,
}

impl ReadOnlyFolder {
    /// Locks a folder in which nothing is created or written.
    pub(super) fn hold(path: &Path) -> Result<Self, StoreError> {
        owner::check(path).map_err(|source| {
            let doing = "cannot use the folder";
            StoreError::Io { path: path.to_path_buf(), doing, source }
        })?;
        let held = match open_to_read(&path.join(LOCK_FILE)) {
            Ok(lock) => Some(lock),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => {
                let doing = "cannot open the lock file in the folder";
                return Err(StoreError::Io { path: path.to_path_buf(), doing, source });
            }
        };
        held.as_ref().map_or(Ok(()), |lock| take_lock(path, lock))?;
        Ok(Self { path: path.to_path_buf(), _held: held })
    }
}

impl Disk for ReadOnlyFolder {
    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn open(&self, name: &str) -> io::Result<Option<Box<dyn StorageBackend>>> {
        match open_to_read(&self.path(name)) {
            Ok(file) => Ok(Some(Box::new(ReadOnlyFile(file)))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn open_durable(&self, name: &str) -> io::Result<Option<Box<dyn StorageBackend>>> {
        match open_to_read(&self.path(name)) {
            Ok(file) => {
                let _ = fadvise(&file, 0, None, Advice::DontNeed);
                Ok(Some(Box::new(ReadOnlyFile(file))))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn create(&self, _: &str) -> io::Result<Box<dyn StorageBackend>> {
        Err(read_only())
    }

    fn make_folder(&self, _: &str) -> io::Result<()> {
        Err(read_only())
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        self.path(name).try_exists()
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        list(&self.path(folder))
    }

    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        Err(read_only())
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        Err(read_only())
    }

    fn sync(&self, _: &str) -> io::Result<()> {
        Err(read_only())
    }
}

fn open_to_read(path: &Path) -> io::Result<File> {
    owner::open(OpenOptions::new().read(true), path)
}

fn list(folder: &Path) -> io::Result<Vec<String>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// A file that is only read. The folder's lock keeps servers from it.
#[derive(Debug)]
struct ReadOnlyFile(File);

impl StorageBackend for ReadOnlyFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(read_only())
    }

    fn sync_data(&self) -> io::Result<()> {
        Err(read_only())
    }

    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(read_only())
    }
}

fn read_only() -> io::Error {
    io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the folder is read-only")
}

impl Disk for Folder {
    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn open(&self, name: &str) -> io::Result<Option<Box<dyn StorageBackend>>> {
        match owner::open(OpenOptions::new().read(true).write(true), &self.path(name)) {
            Ok(file) => Self::backend(file).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn open_durable(&self, name: &str) -> io::Result<Option<Box<dyn StorageBackend>>> {
        match owner::open(OpenOptions::new().read(true).write(true), &self.path(name)) {
            Ok(file) => {
                // What a killed process wrote is durable from here on; what the disk refused is
                // read from the disk.
                file.sync_data()?;
                // Not every kernel has it.
                let _ = fadvise(&file, 0, None, Advice::DontNeed);
                Self::backend(file).map(Some)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn StorageBackend>> {
        Self::backend(private::create_file(&self.path(name))?)
    }

    fn make_folder(&self, name: &str) -> io::Result<()> {
        private::make_folder(&self.path(name)).map_err(FileError::into_source)
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        self.path(name).try_exists()
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        list(&self.path(folder))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let path = self.path(name);
        let removed = match path.is_dir() {
            true => {
                for file in self.list(name)?.into_iter().filter(|file| is_of_log(file)) {
                    fs::remove_file(path.join(file))?;
                }
                // Fails if a file of another program is left.
                fs::remove_dir(path)
            }
            false => fs::remove_file(path),
        };
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    fn sync(&self, folder: &str) -> io::Result<()> {
        // Renames are durable only after the folder itself is synced.
        File::open(self.path.join(folder))?.sync_all()
    }
}
