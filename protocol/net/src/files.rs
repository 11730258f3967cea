//! Atomic files, which are complete or absent: written under a temporary name, synced, then
//! renamed.

use crate::owner;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A file that could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {}: {source}", path.display())]
pub struct FileError {
    verb: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl FileError {
    /// Creates an error; `verb` is the operation on the file or folder that failed.
    pub fn new(verb: &'static str, path: &Path, source: io::Error) -> Self {
        Self { verb, path: path.into(), source }
    }

    /// Returns the system's error.
    pub fn into_source(self) -> io::Error {
        self.source
    }

    /// Returns `true` if the file must not be used, whose error has the remedy.
    pub(crate) fn is_refused(&self) -> bool {
        self.source.get_ref().is_some_and(|source| source.is::<owner::Refusal>())
    }

    /// Returns `true` if the file does not exist.
    pub fn is_absent(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }
}

/// Reads a whole file of the operator.
pub(crate) fn read_text(path: &Path) -> Result<String, FileError> {
    owner::read_linked(path).map_err(|source| FileError { verb: "read", path: path.into(), source })
}

/// Returns `true` if every user may read a file.
///
/// # Errors
/// The file's mode cannot be read.
pub(crate) fn is_public(path: &Path) -> Result<bool, FileError> {
    let source = match fs::metadata(path) {
        Ok(metadata) => return Ok(metadata.permissions().mode() & 0o004 != 0),
        Err(source) => source,
    };
    Err(FileError { verb: "read the mode of", path: path.into(), source })
}

/// Writes a file that every user may read.
pub(crate) fn write_public(path: &Path, content: &[u8]) -> Result<(), FileError> {
    write(path, content, 0o644)
}

/// Writes a file that only its owner may read.
pub(crate) fn write_secret(path: &Path, content: &[u8]) -> Result<(), FileError> {
    write(path, content, 0o600)
}

fn write(path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
    let mut temporary = path.as_os_str().to_owned();
    // Two processes that write the same file must not share its temporary one.
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = PathBuf::from(temporary);
    let written = write_and_rename(&temporary, path, content, mode);
    if written.is_err() {
        // Removes the remains of a failed attempt; the first error is the one to return.
        let _ = fs::remove_file(&temporary);
    }
    written.map_err(|source| FileError { verb: "write", path: path.into(), source })
}

fn write_and_rename(temporary: &Path, path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    owner::check_target(path)?;
    // Left by a process that died and had the same id; its mode may be another one.
    match fs::remove_file(temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(temporary)?;
    file.write_all(content)?;
    // Before the rename: a power failure must not leave the name with an empty file.
    file.sync_all()?;
    fs::rename(temporary, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    // The rename is durable only once the folder is synced.
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::{read_text, write_public, write_secret};
    use crate::private::make_folder;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn secrets_owner_only_without_leftovers() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("tls");
        make_folder(&inner).unwrap();
        let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&inner), 0o700);
        let (secret, public) = (inner.join("key.pem"), inner.join("cert.pem"));
        std::fs::write(&secret, "an older one that was readable by all users").unwrap();
        write_secret(&secret, b"s").unwrap();
        write_public(&public, b"p").unwrap();
        assert_eq!((mode(&secret), read_text(&secret).unwrap()), (0o600, "s".into()));
        assert_eq!(read_text(&public).unwrap(), "p");
        assert_eq!(std::fs::read_dir(&inner).unwrap().count(), 2);
    }

    #[test]
    fn errors_name_the_file() {
        let error = read_text(std::path::Path::new("/nowhere/at/all.pem")).unwrap_err();
        assert!(error.is_absent() && error.to_string().contains("/nowhere/at/all.pem"), "{error}");
        let error = write_secret(std::path::Path::new("/nowhere/key.pem"), b"").unwrap_err();
        assert!(error.to_string().contains("/nowhere/key.pem"), "{error}");
    }
}
