//! The files that keep this agent's services and checks, so that a restart ends no session.
//!
//! Each service and each check is a file of its own, named by a hash of its id. What has to be
//! written is kept per file until it is written: only the newest content of a file matters, and a
//! failed write is made again with the next one.
//!
//! A service and its checks appear together: several files are first written as one, the batch
//! (a write-ahead log of one entry), which counts instead of the files until all of them are
//! written. A removal needs none, because a check without its service is dropped at the next start.
//! One that fails becomes part of a batch.
//!
//! A change is made, written and, if that fails, taken back in one turn of the folder: no other
//! such change sees it before it is stored. Reads and results of checks wait for no turn.
//!
//! **Invariant:** a change that is [not stored](NotStored::NotDone) is in effect neither in this
//! process nor, however this one ends, in the next.
//!
//! What waits for a disk that hangs or fails is limited: at most one content per registered service
//! or check, and one removal per file on the disk.

use crate::incarnation;
use crate::node::write_durably;
use lockmesh_agent_core::registry::{Store, Stored, StoredCheck, StoredService, Undo};
use lockmesh_net::files::FileError;
use lockmesh_net::{owner, private};
use lockmesh_protocol::log_on_change::LogOnChange;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fs, io};
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinHandle;

/// The folder in the agent's data folder.
const FOLDER: &str = "registry";

/// The file that notes that the services and checks of an earlier version were adopted.
const ADOPTED: &str = "adopted";

/// The file with what several files must have.
const BATCH: &str = "batch.json";

/// The folders in it.
const SERVICES: &str = "services";
const CHECKS: &str = "checks";

/// The content of files, by their paths; `None` of those to remove.
type Contents = BTreeMap<PathBuf, Option<String>>;

/// The changes of a file system that must be durable; tests let them fail.
pub(super) trait Disk: fmt::Debug + Send + Sync {
    /// Writes a file atomically.
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        write_durably(path, text)
    }

    /// Removes a file, which may be missing.
    fn remove(&self, path: &Path) -> io::Result<()> {
        if let Err(error) = fs::remove_file(path)
            && path.try_exists().unwrap_or(true)
        {
            return Err(error);
        }
        // Also of a missing file: an earlier removal may not be durable.
        fs::File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    }
}

/// The disk of the host.
#[derive(Debug)]
pub(super) struct HostDisk;

impl Disk for HostDisk {}

/// The right to change the files, with the log about them.
pub(super) type Turn = OwnedMutexGuard<LogOnChange>;

/// The reason why a change was not stored.
#[derive(Debug)]
pub(super) enum NotStored {
    /// It was taken back.
    NotDone(io::Error),
    /// It was taken back in this process, but the disk may have it.
    Unknown(io::Error),
}

/// A write that failed.
#[derive(Debug)]
struct Failed {
    error: io::Error,
    /// The files that are not as they must be.
    files: BTreeSet<PathBuf>,
    /// The files that the disk may have as they must be, for a while or for ever.
    changed: BTreeSet<PathBuf>,
}

/// The files of the services and checks, and which of them are not written yet.
#[derive(Debug)]
pub(super) struct Folder {
    /// `None` without a data folder: what is registered lasts as long as the process.
    path: Option<PathBuf>,
    disk: Box<dyn Disk>,
    /// The boot of this host, on whose clock the stored times are; empty if it is unknown.
    boot: String,
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
    /// The content that each file must have.
    unwritten: Contents,
    /// The files that a deregistration removes, which needs no batch.
    departing: BTreeSet<PathBuf>,
    /// Set while the batch may be on the disk: a write without it would be undone by a restart.
    has_batch: bool,
}

impl Folder {
    /// Creates a folder without files.
    pub(super) fn none() -> Self {
        Self {
            path: None,
            disk: Box::new(HostDisk),
            boot: incarnation::boot_id().unwrap_or_default(),
            files: Mutex::default(),
            log: Arc::default(),
            is_waiting: AtomicBool::new(false),
        }
    }

    /// Opens the files of a data folder and reads them. A file that cannot be used is reported and
    /// renamed: its application registers again. Temporary files of an earlier process are removed.
    ///
    /// # Errors
    /// The folder cannot be read or created.
    pub(super) fn open(data_folder: &Path, disk: impl Disk + 'static) -> io::Result<(Self, Stored)> {
        let folder = Self { disk: Box::new(disk), ..Self::none() };
        if !data_folder.exists() {
            return Ok((folder, Stored::default()));
        }
        let path = data_folder.join(FOLDER);
        for folder in [path.clone(), path.join(SERVICES), path.join(CHECKS)] {
            // Only its owner may define what the agent runs.
            private::make_folder(&folder).map_err(FileError::into_source)?;
            remove_leftovers(&folder)?;
        }
        let batch = read_batch(&path)?;
        let mut present: BTreeSet<PathBuf> = batch.keys().cloned().collect();
        let services: Vec<StoredService> = read(&path.join(SERVICES), &batch, &mut present)?;
        let mut checks: Vec<StoredCheck> = read(&path.join(CHECKS), &batch, &mut present)?;
        for times in checks.iter_mut().map(|stored| &mut stored.times) {
            // With another boot, the clock of these times has started again at 0.
            if std::mem::take(&mut times.boot) != folder.boot {
                *times = Default::default();
            }
        }
        let adopted = path.join(ADOPTED);
        let is_adopted = adopted.exists() || batch.contains_key(&adopted);
        let has_batch = !batch.is_empty();
        let files = Files { present, unwritten: batch, has_batch, ..Files::default() };
        let files = Mutex::new(files);
        Ok((Self { path: Some(path), files, ..folder }, Stored { services, checks, is_adopted }))
    }

    /// Notes what the files must have after one change. [`Self::write`] makes it durable.
    pub(super) fn note(&self, stores: Vec<Store>) {
        let Some(folder) = &self.path else { return };
        let (mut files, is_departure) = (self.files(), stores.iter().all(is_removal));
        for store in stores {
            let (path, content) = match store {
                Store::Service(id, entry) => {
                    (file(folder, SERVICES, id.as_str()), entry.map(|entry| text(&entry)))
                }
                Store::Check(id, mut entry) => {
                    if let Some(entry) = &mut entry {
                        entry.times.boot.clone_from(&self.boot);
                    }
                    (file(folder, CHECKS, id.as_str()), entry.map(|entry| text(&entry)))
                }
                Store::Adopted => (folder.join(ADOPTED), Some(String::new())),
            };
            // If the entry is registered again, its file needs a batch again.
            files.departing.remove(&path);
            // It came and went before it was written: there is no file to remove.
            if content.is_none() && !files.present.contains(&path) {
                files.unwritten.remove(&path);
                continue;
            }
            if is_departure {
                files.departing.insert(path.clone());
            }
            files.unwritten.insert(path, content);
        }
    }

    /// Waits for the turn to change the files.
    pub(super) async fn turn(&self) -> Turn {
        Arc::clone(&self.log).lock_owned().await
    }

    /// Writes what was noted, in the background. A write that waits for its turn includes it.
    pub(super) fn write_later(self: &Arc<Self>) {
        if self.is_waiting.swap(true, Ordering::SeqCst) {
            return;
        }
        let folder = Arc::clone(self);
        tokio::spawn(async move {
            let turn = folder.turn().await;
            // Before the write: it may miss what is noted from here on.
            folder.is_waiting.store(false, Ordering::SeqCst);
            // A failure is logged, and what was not written is written again later.
            folder.in_turn(turn, |folder, log| drop(folder.write_logged(log))).await
        });
    }

    /// Writes what was noted.
    ///
    /// # Errors
    /// What was not written is tried again with the next write. The operator has to make room or
    /// mend the disk.
    pub(super) async fn write(self: &Arc<Self>) -> io::Result<()> {
        let turn = self.turn().await;
        let written =
            self.in_turn(turn, |folder, log| folder.write_logged(log).map_err(|failed| failed.error));
        written.await.unwrap_or_else(|error| Err(io::Error::other(error)))
    }

    /// Writes a change that was made and noted in this turn. If that fails, it is taken back before
    /// the turn ends. Other files that cannot be written do not matter.
    pub(super) async fn store(
        self: &Arc<Self>,
        turn: Turn,
        change: Undo,
        take_back: impl FnOnce(Undo) + Send + 'static,
    ) -> Result<(), NotStored> {
        let own = self.files_of(&change);
        let is_own = move |files: &BTreeSet<PathBuf>| !files.is_disjoint(&own);
        let stored = self.in_turn(turn, move |folder, log| {
            let Failed { error, changed, .. } = match folder.write_logged(log) {
                Err(failed) if is_own(&failed.files) => failed,
                Ok(()) | Err(_) => return Ok(()),
            };
            take_back(change);
            // The disk may have a part of the change: its files are written as they were before.
            let is_restored = folder.write_files().map_or_else(|again| !is_own(&again.files), |()| true);
            match is_restored || !is_own(&changed) {
                true => Err(NotStored::NotDone(error)),
                false => Err(NotStored::Unknown(error)),
            }
        });
        stored.await.unwrap_or_else(|error| Err(NotStored::Unknown(io::Error::other(error))))
    }

    /// Returns the files of the services and checks of a change.
    fn files_of(&self, change: &Undo) -> BTreeSet<PathBuf> {
        let Some(folder) = &self.path else { return BTreeSet::new() };
        let services = change.services().map(|id| file(folder, SERVICES, id.as_str()));
        services.chain(change.checks().map(|id| file(folder, CHECKS, id.as_str()))).collect()
    }

    /// The turn ends with the work: a caller that is gone must not let a newer write overtake.
    fn in_turn<T: Send + 'static>(
        self: &Arc<Self>,
        mut turn: Turn,
        work: impl FnOnce(&Self, &mut LogOnChange) -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let folder = Arc::clone(self);
        tokio::task::spawn_blocking(move || work(&folder, &mut turn))
    }

    /// Writes all files, and logs the first failure and the first success after it.
    fn write_logged(&self, log: &mut LogOnChange) -> Result<(), Failed> {
        let written = self.write_files();
        match &written {
            Ok(()) if log.reset() => tracing::info!("services and checks are stored again"),
            Err(Failed { error, .. }) if log.is_new(&error.to_string()) => {
                tracing::error!(
                    %error,
                    "cannot store services and checks: registrations fail, and a restart of the agent loses \
                     newer statuses; make room on its disk"
                );
            }
            Ok(()) | Err(_) => {}
        }
        written
    }

    fn write_files(&self) -> Result<(), Failed> {
        let Some(folder) = &self.path else { return Ok(()) };
        let mut files = self.files();
        let mut together = std::mem::take(&mut files.unwritten);
        let new = together.iter().filter(|(_, content)| content.is_some());
        files.present.extend(new.map(|(path, _)| path.clone()));
        let departing = std::mem::take(&mut files.departing);
        let mut needs_batch = files.has_batch || together.len() - departing.len() > 1;
        // A batch on the disk would bring a removed file back at the next start.
        let departures = if files.has_batch { BTreeSet::new() } else { departing };
        // Requests note changes meanwhile, and the disk may hang.
        drop(files);
        // Services before their checks: one that is stored is never without them.
        let mut changed = BTreeSet::new();
        for path in departures.into_iter().rev() {
            let removed = self.remove(&path);
            if removed.is_ok() || is_visible(&path, None) {
                changed.insert(path.clone());
            }
            if removed.is_err() {
                needs_batch = true;
                break;
            }
            together.remove(&path);
        }
        if needs_batch {
            return self.write_batch(folder, together, changed);
        }
        self.write_each(together).map_err(|mut failed| {
            failed.changed.append(&mut changed);
            failed
        })
    }

    /// Writes several files as one, and then each of them.
    fn write_batch(
        &self,
        folder: &Path,
        contents: Contents,
        mut changed: BTreeSet<PathBuf>,
    ) -> Result<(), Failed> {
        let path = folder.join(BATCH);
        let named =
            contents.iter().filter_map(|(file, content)| Some((file.strip_prefix(folder).ok()?, content)));
        let text = text(&named.collect::<BTreeMap<_, _>>());
        // Set before the write, which may reach the disk although it fails.
        let had_batch = std::mem::replace(&mut self.files().has_batch, true);
        let Err(error) = self.disk.write(&path, &text) else {
            // The batch has what cannot be written to its own file.
            if self.write_each(contents).is_ok() {
                let removed = self.disk.remove(&path);
                self.files().has_batch = removed.is_err();
            }
            return Ok(());
        };
        // It may be there although its folder could not be made durable.
        let mut is_there = is_visible(&path, Some(&text));
        if !had_batch && self.disk.remove(&path).is_ok() {
            (is_there, self.files().has_batch) = (false, false);
        } else if !had_batch {
            self.files().has_batch = is_there || path.try_exists().unwrap_or(true);
        }
        if is_there {
            changed.extend(contents.keys().cloned());
        }
        let files = contents.keys().cloned().collect();
        contents.into_iter().for_each(|(path, content)| self.note_again(path, content));
        Err(Failed { error: in_file(&path, &error), files, changed })
    }

    /// Writes or removes each file. What fails is noted again.
    fn write_each(&self, contents: Contents) -> Result<(), Failed> {
        let (mut failed, mut changed, mut reason) = (BTreeSet::new(), BTreeSet::new(), None);
        for (path, content) in contents.into_iter().rev() {
            let written = match &content {
                Some(text) => self.disk.write(&path, text),
                None => self.remove(&path),
            };
            if written.is_ok() || is_visible(&path, content.as_deref()) {
                changed.insert(path.clone());
            }
            if let Err(error) = written {
                reason = Some(in_file(&path, &error));
                failed.insert(path.clone());
                self.note_again(path, content);
            }
        }
        reason.map_or(Ok(()), |error| Err(Failed { error, files: failed, changed }))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)?;
        self.files().present.remove(path);
        Ok(())
    }

    /// Notes what could not be written. Content that was noted meanwhile is newer.
    fn note_again(&self, path: PathBuf, content: Option<String>) {
        let mut files = self.files();
        if content.is_some() && path.try_exists().is_ok_and(|exists| !exists) {
            files.present.remove(&path);
        }
        files.unwritten.entry(path).or_insert(content);
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_removal(store: &Store) -> bool {
    matches!(store, Store::Service(_, None) | Store::Check(_, None))
}

/// Returns `true` if a file may have this content, or may be missing.
fn is_visible(path: &Path, content: Option<&str>) -> bool {
    match fs::read_to_string(path) {
        Ok(found) => content == Some(found.trim_end_matches('\n')),
        Err(error) => content.is_none() || error.kind() != io::ErrorKind::NotFound,
    }
}

fn in_file(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
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

/// Reads what a write left that did not end: the contents of its files.
fn read_batch(folder: &Path) -> io::Result<Contents> {
    let path = folder.join(BATCH);
    let text = match owner::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Contents::new()),
        text => text?,
    };
    let contents = serde_json::from_str::<Contents>(&text).unwrap_or_else(|error| {
        rename_damaged(&path, &error.to_string());
        Contents::new()
    });
    Ok(contents.into_iter().map(|(name, content)| (folder.join(name), content)).collect())
}

/// Reads the entries of a folder, and adds their files to those that are present. The contents of a
/// batch count instead of the files.
fn read<T: DeserializeOwned>(
    folder: &Path,
    batch: &Contents,
    present: &mut BTreeSet<PathBuf>,
) -> io::Result<Vec<T>> {
    let of_batch = batch.iter().filter(|(path, _)| path.starts_with(folder));
    let of_batch = of_batch.filter_map(|(path, content)| Some((path.clone(), content.clone()?.into_bytes())));
    let mut files: Vec<_> = of_batch.map(|(path, content)| (path, Ok(content))).collect();
    for file in fs::read_dir(folder)? {
        let path = file?.path();
        let is_damaged = path.extension().is_some_and(|extension| extension == "damaged");
        if !is_damaged && !batch.contains_key(&path) {
            let bytes = owner::read(&path).map(String::into_bytes).map_err(|error| error.to_string());
            files.push((path, bytes));
        }
    }
    let mut entries = Vec::new();
    for (path, bytes) in files {
        match bytes.and_then(|bytes| serde_json::from_slice(&bytes).map_err(|error| error.to_string())) {
            Ok(entry) => {
                entries.push(entry);
                present.insert(path);
            }
            Err(reason) => rename_damaged(&path, &reason),
        }
    }
    Ok(entries)
}

fn rename_damaged(path: &Path, reason: &str) {
    let shown = path.display();
    tracing::error!(path = %shown, reason, "a stored service or check cannot be read: it is renamed");
    // A file that cannot be renamed is reported again at the next start.
    let _ = fs::rename(path, path.with_extension("damaged"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_agent_core::definitions::{CheckKind, NewCheck};
    use lockmesh_agent_core::registry::{Source, StoredCheck, StoredTimes};
    use lockmesh_protocol::record::CheckStatus;
    use lockmesh_protocol::time::Time;
    use std::time::Duration;

    fn check(id: &str) -> StoredCheck {
        let kind = CheckKind::Ttl(Duration::from_secs(10));
        let check = NewCheck::of(id.into(), CheckStatus::Critical, kind);
        let (times, results) = (StoredTimes::default(), None);
        StoredCheck {
            check,
            source: Source::Api,
            status: CheckStatus::Warning,
            output: "slow".into(),
            times,
            results,
        }
    }

    #[tokio::test]
    async fn written_registry_survives_restart() {
        let data = tempfile::tempdir().expect("a folder");
        let (folder, stored) = Folder::open(data.path(), HostDisk).expect("it can be opened");
        assert_eq!(stored, Stored::default(), "no earlier agent had it");
        let folder = Arc::new(folder);
        for id in ["a/b", "gone", "../x"] {
            folder.note(vec![Store::Check(id.into(), Some(Box::new(check(id))))]);
        }
        folder.write().await.expect("it is written");
        folder.note(vec![Store::Check("gone".into(), None)]);
        folder.note(vec![Store::Adopted]);
        folder.write().await.expect("it is written");
        fs::write(data.path().join("registry/checks/half"), "{").expect("it is written");
        // It is whole, but its write was never finished.
        let leftover = data.path().join("registry/checks/.tmpAbCdEf");
        fs::write(&leftover, text(&check("gone"))).expect("it is written");
        fs::write(data.path().join("registry/services/damaged.json"), "{").expect("it is written");
        let (_, stored) = Folder::open(data.path(), HostDisk).expect("it can be opened");
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
    async fn hung_disk_bounds_pending_writes() {
        let data = tempfile::tempdir().expect("a folder");
        let (folder, _) = Folder::open(data.path(), HostDisk).expect("it can be opened");
        let folder = Arc::new(folder);
        folder.note(vec![Store::Check("old".into(), Some(Box::new(check("old"))))]);
        folder.write().await.expect("it is written");
        let hangs = Arc::clone(&folder.log).lock_owned().await;
        for number in 0..1_000 {
            for id in ["app".into(), "old".into(), format!("app-{number}")] {
                folder.note(vec![Store::Check(id.as_str().into(), Some(Box::new(check(&id))))]);
                folder.note(vec![Store::Check(id.as_str().into(), None)]);
                folder.write_later();
            }
        }
        folder.note(vec![Store::Check("app".into(), Some(Box::new(check("app"))))]);
        assert_eq!(folder.files().unwritten.len(), 2, "a content, and the removal of a file");
        assert_eq!(Arc::strong_count(&folder), 2, "one write waits");
        drop(hangs);
        folder.write().await.expect("it is written");
        let (_, stored) = Folder::open(data.path(), HostDisk).expect("it can be opened");
        assert_eq!(stored.checks, [check("app")]);
    }

    #[tokio::test]
    async fn failed_write_is_retried() {
        let data = tempfile::tempdir().expect("a folder");
        let (folder, _) = Folder::open(data.path(), HostDisk).expect("it can be opened");
        let folder = Arc::new(folder);
        folder.note(vec![Store::Check("app".into(), Some(Box::new(check("app"))))]);
        // A folder in the place of the file.
        let path = file(&data.path().join(FOLDER), "checks", "app");
        fs::create_dir(&path).expect("it is created");
        folder.write().await.expect_err("its place is taken");
        fs::remove_dir(&path).expect("it is removed");
        folder.write().await.expect("its place is free");
        assert_eq!(Folder::open(data.path(), HostDisk).expect("it can be opened").1.checks.len(), 1);
    }

    /// What an earlier version wrote has no times, and the times of an earlier boot mean nothing.
    #[tokio::test]
    async fn times_of_other_boot_dropped() {
        let data = tempfile::tempdir().expect("a folder");
        let times = StoredTimes { deadline: Some(Time(7)), ..StoredTimes::default() };
        let with_times = StoredCheck { times: times.clone(), ..check("app") };
        for (boot, expected) in [("this", times), ("another", StoredTimes::default())] {
            let (folder, _) = Folder::open(data.path(), HostDisk).expect("it can be opened");
            let boot = if boot == "this" { folder.boot.clone() } else { boot.into() };
            let folder = Arc::new(Folder { boot, ..folder });
            folder.note(vec![Store::Check("app".into(), Some(Box::new(with_times.clone())))]);
            folder.write().await.expect("it is written");
            let (_, stored) = Folder::open(data.path(), HostDisk).expect("it can be opened");
            assert_eq!(stored.checks[0].times, expected);
        }
        let mut old = serde_json::to_value(check("app")).expect("it has a JSON form");
        let fields = old.as_object_mut().expect("it is an object");
        fields.retain(|field, _| !["times", "results"].contains(&field.as_str()));
        let path = file(&data.path().join(FOLDER), CHECKS, "app");
        fs::write(path, old.to_string()).expect("it is written");
        assert_eq!(Folder::open(data.path(), HostDisk).expect("it can be opened").1.checks, [check("app")]);
    }

    #[tokio::test]
    async fn no_writes_without_data_folder() {
        let (folder, stored) =
            Folder::open(Path::new("/nonexistent/lockmesh"), HostDisk).expect("nothing to open");
        let folder = Arc::new(folder);
        folder.note(vec![Store::Check("app".into(), Some(Box::new(check("app"))))]);
        folder.write().await.expect("nothing to write");
        assert_eq!(stored, Stored::default());
    }
}
