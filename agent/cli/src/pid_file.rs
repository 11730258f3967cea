//! The file with the process id of this process while it runs.

use crate::error::RunError;
use lockmesh_net::files::FileError;
use lockmesh_net::owner;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file with this process's number, removed with this value.
#[derive(Debug)]
pub(crate) struct PidFile(PathBuf);

impl PidFile {
    /// Rejects a file of another user before the start: that user could name another process.
    pub(crate) fn check(path: &Path) -> Result<(), RunError> {
        if path.as_os_str().is_empty() {
            return Ok(());
        }
        Ok(owner::check_target(path).map_err(|error| FileError::new("use the pid file", path, error))?)
    }

    /// Writes it, where it is wanted. A process without the file serves as well.
    pub(crate) fn write(path: PathBuf) -> Option<Self> {
        if path.as_os_str().is_empty() {
            return None;
        }
        match write(&path) {
            Ok(()) => Some(Self(path)),
            Err(error) => {
                tracing::error!(file = %path.display(), %error, "cannot write the pid file");
                None
            }
        }
    }
}

fn write(path: &Path) -> io::Result<()> {
    // Truncated only after its owner is known.
    let mut file = owner::open(File::options().create(true).truncate(false).write(true), path)?;
    file.set_len(0)?;
    writeln!(file, "{}", std::process::id())
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // A stale process id would name no process, or another one.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_text_and_rejects_symlink() {
        let folder = tempfile::tempdir().expect("a folder");
        let [file, link] = ["pid", "link"].map(|name| folder.path().join(name));
        fs::write(&file, "12345678901234567890").expect("a file");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        let refused = PidFile::check(&link).expect_err("it is a link").to_string();
        assert!(
            refused.contains("cannot use the pid file") && refused.contains("symbolic link"),
            "{refused}"
        );
        assert!(PidFile::write(link).is_none());
        PidFile::check(&file).expect("it is ours");
        let written = PidFile::write(file.clone()).expect("it is ours");
        assert_eq!(fs::read_to_string(&file).expect("it is there"), format!("{}\n", std::process::id()));
        drop(written);
        assert!(!file.exists());
    }
}
