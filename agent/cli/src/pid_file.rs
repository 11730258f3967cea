//! The file with the process id of this process while it runs.

use std::fs;
use std::path::PathBuf;

/// A file with this process's number, removed with this value.
#[derive(Debug)]
pub(crate) struct PidFile(PathBuf);

impl PidFile {
    /// Writes it, where it is wanted. A process without the file serves as well.
    pub(crate) fn write(path: PathBuf) -> Option<Self> {
        if path.as_os_str().is_empty() {
            return None;
        }
        match fs::write(&path, format!("{}\n", std::process::id())) {
            Ok(()) => Some(Self(path)),
            Err(error) => {
                tracing::error!(file = %path.display(), %error, "cannot write the pid file");
                None
            }
        }
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // A stale process id would name no process, or another one.
        let _ = fs::remove_file(&self.0);
    }
}
