//! The files that keep this agent's services and checks, so that a restart ends no session.
//!
//! Each service and each check is a file of its own, named by a hash of its id. What has to be
//! written is kept per file until it is written: only the newest content of a file matters, and a
//! failed write is made again with the next one.
//!
//! What waits for a disk that hangs or fails is limited: at most one content per registered service
//! or check, and one removal per file on the disk.

use crate::node::write_durably;
use lockmesh_agent_core::registry::{Store, Stored};
use lockmesh_net::files::FileError;
use lockmesh_net::private;
use lockmesh_protocol::log_on_change::LogOnChange;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fs, io};
use tokio::sync::OwnedMutexGuard;

/// The folder in the agent's data folder.
const FOLDER: &str = "registry";

/// The file that notes that the services and checks of an earlier version were adopted.
const ADOPTED: &str = "adopted";

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Folder {
    /// `None` without a data folder: what is registered lasts as long as the process.
    path: Option<PathBuf>,
    files: Mutex<Files>,
    /// Held during a write, so that no older content overwrites a newer one.
    log: Arc<tokio::sync::Mutex<LogOnChange>>,
    /// Set while [`Self::write_later`] waits for its turn.
    is_waiting: AtomicBool,
}

#[derive(Debug, Default)]
struct Files {
    /// The files that may be on the disk.
    present: BTreeSet<PathBuf>,
    /// The content that each file must have; `None` to remove it.
    unwritten: BTreeMap<PathBuf, Option<String>>,
}

impl Folder {
    /// Opens the files of a data folder and reads them. A file that cannot be used is reported and
    /// renamed: its application registers again. Temporary files of an earlier process are removed.
    ///
    /// # Errors
    /// The folder cannot be read or created.
    pub(super) fn open(data_folder: &Path) -> io::Result<(Self, Stored)> {
        if !data_folder.exists() {
            return Ok((Self::default(), Stored::default()));
        }
        let path = data_folder.join(FOLDER);
        for folder in [path.clone(), path.join("services"), path.join("checks")] {
            // Only its owner may define what the agent runs.
            private::make_folder(&folder).map_err(FileError::into_source)?;
            remove_leftovers(&folder)?;
        }
        let mut present = BTreeSet::new();
        let stored = Stored {
            services: read(&path.join("services"), &mut present)?,
            checks: read(&path.join("checks"), &mut present)?,
            is_adopted: path.join(ADOPTED).exists(),
        };
        let files = Mutex::new(Files { present, ..Files::default() });
        Ok((Self { path: Some(path), files, ..Self::default() }, stored))
    }

    /// Notes what the files must have. [`Self::write`] makes it durable.
    pub(super) fn note(&self, store: Store) {
        let Some(path) = &self.path else { return };
        let (path, content) = match store {
            Store::Service(id, entry) => {
                (file(path, "services", id.as_str()), entry.map(|entry| text(&entry)))
            }
            Store::Check(id, entry) => (file(path, "checks", id.as_str()), entry.map(|entry| text(&entry))),
            Store::Adopted => (path.join(ADOPTED), Some(String::new())),
        };
        let mut files = self.files();
        match content {
            None if !files.present.contains(&path) => files.unwritten.remove(&path),
            content => files.unwritten.insert(path, content),
        };
    }

    /// Writes what was noted, in the background. A write that waits for its turn includes it.
    pub(super) fn write_later(self: &Arc<Self>) {
        if self.is_waiting.swap(true, Ordering::SeqCst) {
            return;
        }
        let folder = Arc::clone(self);
        tokio::spawn(async move {
            let turn = Arc::clone(&folder.log).lock_owned().await;
            folder.is_waiting.store(false, Ordering::SeqCst);
            // A failure is logged, and what was not written is written again later.
            folder.write_in_turn(turn).await
        });
    }

    /// Writes what was noted.
    ///
    /// # Errors
    /// What was not written is tried again with the next write. The operator has to make room or
    /// mend the disk.
    pub(super) async fn write(self: &Arc<Self>) -> io::Result<()> {
        let turn = Arc::clone(&self.log).lock_owned().await;
        self.write_in_turn(turn).await
    }

    async fn write_in_turn(self: &Arc<Self>, mut log: OwnedMutexGuard<LogOnChange>) -> io::Result<()> {
        let folder = Arc::clone(self);
        // The turn ends in there: a caller that is gone must not let a newer write overtake.
        let written = tokio::task::spawn_blocking(move || {
            let written = folder.write_files();
            match &written {
                Ok(()) if log.reset() => tracing::info!("services and checks are stored again"),
                Err(error) if log.is_new(&error.to_string()) => {
                    tracing::error!(%error, "cannot store services and checks: a restart of the agent loses them");
                }
                Ok(()) | Err(_) => {}
            }
            written
        });
        written.await.unwrap_or_else(|error| Err(io::Error::other(error)))
    }

    fn write_files(&self) -> io::Result<()> {
        let mut files = self.files();
        let unwritten = std::mem::take(&mut files.unwritten);
        let new = unwritten.iter().filter(|(_, content)| content.is_some());
        files.present.extend(new.map(|(path, _)| path.clone()));
        drop(files);
        let mut failed = Ok(());
        for (path, content) in unwritten {
            let written = match &content {
                Some(text) => write_durably(&path, text),
                None => fs::remove_file(&path),
            };
            let is_present = match &written {
                Ok(()) => content.is_some(),
                Err(_) => path.try_exists().unwrap_or(true),
            };
            let mut files = self.files();
            if !is_present {
                files.present.remove(&path);
            }
            if let Err(error) = written
                && (content.is_some() || is_present)
            {
                failed = Err(io::Error::new(error.kind(), format!("{}: {error}", path.display())));
                // Content that was noted meanwhile is newer.
                files.unwritten.entry(path).or_insert(content);
            }
        }
        failed
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn file(folder: &Path, kind: &str, id: &str) -> PathBuf {
    let mut name = String::new();
    for byte in Sha256::digest(id.as_bytes()) {
        let _ = write!(name, "{byte:02x}");
    }
    folder.join(kind).join(format!("{name}.json"))
}

fn text(entry: &impl Serialize) -> String {
    serde_json::to_string(entry).expect("definitions have a JSON form")
}

/// Removes the files that an interrupted write left.
fn remove_leftovers(folder: &Path) -> io::Result<()> {
    for file in fs::read_dir(folder)? {
        let file = file?;
        if file.file_type()?.is_file() && file.file_name().to_string_lossy().starts_with(".tmp") {
            let path = file.path();
            let removed = fs::remove_file(&path);
            let error = removed.err().map(tracing::field::display);
            tracing::warn!(path = %path.display(), error, "removing a file of an interrupted write");
        }
    }
    Ok(())
}

/// Reads the entries of a folder, and adds their files to those that are present.
fn read<T: DeserializeOwned>(folder: &Path, present: &mut BTreeSet<PathBuf>) -> io::Result<Vec<T>> {
    let mut entries = Vec::new();
    for file in fs::read_dir(folder)? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "damaged") {
            continue;
        }
        let parsed = fs::read(&path).map_err(|error| error.to_string());
        let parsed =
            parsed.and_then(|bytes| serde_json::from_slice(&bytes).map_err(|error| error.to_string()));
        match parsed {
            Ok(entry) => {
                entries.push(entry);
                present.insert(path);
            }
            Err(reason) => {
                let shown = path.display();
                tracing::error!(path = %shown, reason, "a stored service or check cannot be read: it is renamed");
                // A file that cannot be renamed is reported again at the next start.
                let _ = fs::rename(&path, path.with_extension("damaged"));
            }
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_agent_core::registry::{CheckKind, NewCheck, Source, StoredCheck};
    use lockmesh_protocol::record::CheckStatus;
    use std::time::Duration;

    fn check(id: &str) -> StoredCheck {
        let kind = CheckKind::Ttl(Duration::from_secs(10));
        let check = NewCheck::of(id.into(), CheckStatus::Critical, kind);
        StoredCheck { check, source: Source::Api, status: CheckStatus::Warning, output: "slow".into() }
    }

    #[tokio::test]
    async fn what_is_written_is_read_by_the_next_process() {
        let data = tempfile::tempdir().expect("a folder");
        let (folder, stored) = Folder::open(data.path()).expect("it can be opened");
        assert_eq!(stored, Stored::default(), "no earlier agent had it");
        let folder = Arc::new(folder);
        for id in ["a/b", "gone", "../x"] {
            folder.note(Store::Check(id.into(), Some(Box::new(check(id)))));
        }
        folder.write().await.expect("it is written");
        folder.note(Store::Check("gone".into(), None));
        folder.note(Store::Adopted);
        folder.write().await.expect("it is written");
        fs::write(data.path().join("registry/checks/half"), "{").expect("it is written");
        // It is whole, but its write was never finished.
        let leftover = data.path().join("registry/checks/.tmpAbCdEf");
        fs::write(&leftover, text(&check("gone"))).expect("it is written");
        fs::write(data.path().join("registry/services/damaged.json"), "{").expect("it is written");
        let (_, stored) = Folder::open(data.path()).expect("it can be opened");
        let mut stored = stored;
        stored.checks.sort_by(|one, other| one.check.id.cmp(&other.check.id));
        assert_eq!(
            stored,
            Stored { services: vec![], checks: vec![check("../x"), check("a/b")], is_adopted: true }
        );
        assert!(data.path().join("registry/services/damaged.damaged").exists());
        assert!(!leftover.exists());
    }

    #[tokio::test]
    async fn what_waits_for_a_disk_that_hangs_is_limited() {
        let data = tempfile::tempdir().expect("a folder");
        let (folder, _) = Folder::open(data.path()).expect("it can be opened");
        let folder = Arc::new(folder);
        folder.note(Store::Check("old".into(), Some(Box::new(check("old")))));
        folder.write().await.expect("it is written");
        let hangs = Arc::clone(&folder.log).lock_owned().await;
        for number in 0..1_000 {
            for id in ["app".into(), "old".into(), format!("app-{number}")] {
                folder.note(Store::Check(id.as_str().into(), Some(Box::new(check(&id)))));
                folder.note(Store::Check(id.as_str().into(), None));
                folder.write_later();
            }
        }
        folder.note(Store::Check("app".into(), Some(Box::new(check("app")))));
        assert_eq!(folder.files().unwritten.len(), 2, "a content, and the removal of a file");
        assert_eq!(Arc::strong_count(&folder), 2, "one write waits");
        drop(hangs);
        folder.write().await.expect("it is written");
        let (_, stored) = Folder::open(data.path()).expect("it can be opened");
        assert_eq!(stored.checks, [check("app")]);
    }

    #[tokio::test]
    async fn a_write_that_fails_is_made_again() {
        let data = tempfile::tempdir().expect("a folder");
        let (folder, _) = Folder::open(data.path()).expect("it can be opened");
        let folder = Arc::new(folder);
        folder.note(Store::Check("app".into(), Some(Box::new(check("app")))));
        // A folder in the place of the file.
        let path = file(&data.path().join(FOLDER), "checks", "app");
        fs::create_dir(&path).expect("it is created");
        folder.write().await.expect_err("its place is taken");
        fs::remove_dir(&path).expect("it is removed");
        folder.write().await.expect("its place is free");
        assert_eq!(Folder::open(data.path()).expect("it can be opened").1.checks.len(), 1);
    }

    #[tokio::test]
    async fn without_a_data_folder_nothing_is_written() {
        let (folder, stored) = Folder::open(Path::new("/nonexistent/lockmesh")).expect("nothing to open");
        let folder = Arc::new(folder);
        folder.note(Store::Check("app".into(), Some(Box::new(check("app")))));
        folder.write().await.expect("nothing to write");
        assert_eq!(stored, Stored::default());
    }
}
