//! A disk in memory with fault injection: it loses its power, or its space, at a chosen operation.
//!
//! Unsynced data survives a power cut only in part: each 512-byte sector of each write
//! independently, and a sector of the log that was being written may hold anything; changes of a
//! file's length and of the names in a folder up to some point in their order.

use crate::store::disk::Disk;
use redb::StorageBackend;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

const SECTOR_BYTES: usize = 512;

/// A fault of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// All operations from this number on fail.
    PowerCut(u64),
    /// Writing operations with these numbers find no room; half of their data may be written.
    Full(u64, u64),
    /// No write to the file of this name, or to the files of this folder, finds room.
    FileFull(&'static str),
    /// The syncs among the operations of these numbers fail, and drop their data.
    LostSync(u64, u64),
    /// The same, but a part of the data becomes durable.
    HalfSync(u64, u64),
    /// Changes of names fail.
    NoNames,
    /// Renames find no room.
    NoRenames,
    /// Syncs of folders fail.
    NoFolderSyncs,
    /// The file system gave up: syncs of files, and changes of names, fail.
    Aborted,
}

/// The part of the unsynced data that survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// Nothing of it.
    Nothing,
    /// All of it.
    Everything,
    /// Sectors drawn from this seed.
    Torn(u64),
}

/// The disk; clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct FaultyDisk(Arc<Mutex<Platter>>);

#[derive(Clone, Debug, Default)]
struct Platter {
    files: Vec<Content>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    /// The changes of names that are not durable.
    pending_names: Vec<NameChange>,
    operations: u64,
    failure: Option<Failure>,
}

#[derive(Clone, Debug)]
enum NameChange {
    Set(String, usize),
    Unset(String),
    Move(String, String),
}

impl NameChange {
    /// Returns the folder whose names it changes.
    fn folder(&self) -> &str {
        let (Self::Set(name, _) | Self::Unset(name) | Self::Move(name, _)) = self;
        name.rsplit_once('/').map_or("", |(folder, _)| folder)
    }

    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            Self::Set(name, file) => drop(names.insert(name.clone(), *file)),
            Self::Unset(name) => drop(names.remove(name)),
            Self::Move(from, to) => {
                for name in within(names, from) {
                    let file = names.remove(&name).expect("it was listed");
                    names.insert(format!("{to}{}", &name[from.len()..]), file);
                }
            }
        }
    }
}

/// Returns the file of this name, or the files of this folder.
fn within(names: &BTreeMap<String, usize>, name: &str) -> Vec<String> {
    let is_within = |found: &&String| {
        found.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    names.keys().filter(is_within).cloned().collect()
}

#[derive(Clone, Default)]
struct Content {
    live: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Pending>,
    /// Set if a torn sector may hold anything: redb relies on whole sectors.
    garbles: bool,
}

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.live.len())
    }
}

#[derive(Clone)]
enum Pending {
    Write(usize, Vec<u8>),
    Length(usize),
}

impl FaultyDisk {
    /// Returns the number of operations so far that can fail.
    pub fn operations(&self) -> u64 {
        self.0.lock().expect("no thread panics while holding it").operations
    }

    /// Returns the present fault.
    pub fn failure(&self) -> Option<Failure> {
        self.0.lock().expect("no thread panics while holding it").failure
    }

    /// Counts operations from zero again, with this fault.
    pub fn fail(&self, failure: Option<Failure>) {
        let mut platter = self.0.lock().expect("no thread panics while holding it");
        platter.operations = 0;
        platter.failure = failure;
    }

    /// Returns the disk after a power cut; this one is unchanged.
    pub fn after_power_cut(&self, survival: Survival) -> Self {
        let old = self.0.lock().expect("no thread panics while holding it").clone();
        let mut draw = Draw(match survival {
            Survival::Torn(seed) => seed,
            Survival::Nothing | Survival::Everything => 0,
        });
        let mut names = old.durable_names.clone();
        let mut left = BTreeMap::new();
        for change in &old.pending_names {
            let count =
                old.pending_names.iter().filter(|other| other.folder() == change.folder()).count() as u64;
            let left = left.entry(change.folder()).or_insert_with(|| match survival {
                Survival::Nothing => 0,
                Survival::Everything => count,
                Survival::Torn(_) => draw.below(count + 1),
            });
            if *left > 0 {
                *left -= 1;
                change.apply(&mut names);
            }
        }
        let files = old.files.iter().map(|content| content.after_power_cut(survival, &mut draw)).collect();
        let durable_names = names.clone();
        Self(Arc::new(Mutex::new(Platter { files, names, durable_names, ..Platter::default() })))
    }

    /// Returns an independent copy, with everything durable.
    pub fn copy(&self) -> Self {
        self.after_power_cut(Survival::Everything)
    }

    /// Returns the names and the contents of the files.
    pub fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        let platter = self.0.lock().expect("no thread panics while holding it");
        platter.names.iter().map(|(name, file)| (name.clone(), platter.files[*file].live.clone())).collect()
    }

    /// Stores a file, durably.
    pub fn put(&self, name: &str, bytes: Vec<u8>) {
        let mut platter = self.0.lock().expect("no thread panics while holding it");
        let file = platter.files.len();
        let garbles = name.starts_with("log");
        platter.files.push(Content { live: bytes.clone(), durable: bytes, pending: Vec::new(), garbles });
        platter.names.insert(name.to_owned(), file);
        platter.durable_names.insert(name.to_owned(), file);
    }

    /// Removes a file, or the files of a folder, durably.
    pub fn remove(&self, name: &str) {
        let mut platter = self.0.lock().expect("no thread panics while holding it");
        for name in within(&platter.names, name) {
            platter.names.remove(&name);
            platter.durable_names.remove(&name);
        }
    }

    fn change_names(&self, change: impl FnOnce(&mut Platter) -> Vec<NameChange>) -> io::Result<()> {
        let mut platter = self.0.lock().expect("no thread panics while holding it");
        platter.count(false)?;
        if matches!(platter.failure, Some(Failure::NoNames | Failure::Aborted)) {
            return Err(io::Error::from(io::ErrorKind::ReadOnlyFilesystem));
        }
        for change in change(&mut platter) {
            change.apply(&mut platter.names);
            platter.pending_names.push(change);
        }
        Ok(())
    }
}

impl Disk for FaultyDisk {
    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("/faulty").join(name)
    }

    fn open(&self, name: &str) -> io::Result<Option<Box<dyn StorageBackend>>> {
        let platter = self.0.lock().expect("no thread panics while holding it");
        Ok(platter.names.get(name).map(|file| {
            let file = FaultyFile { disk: self.clone(), file: *file };
            Box::new(file) as Box<dyn StorageBackend>
        }))
    }

    fn open_durable(&self, name: &str) -> io::Result<Option<Box<dyn StorageBackend>>> {
        let Some(file) = self.open(name)? else { return Ok(None) };
        file.sync_data()?;
        let mut platter = self.0.lock().expect("no thread panics while holding it");
        let content = platter.names.get(name).copied().and_then(|file| platter.files.get_mut(file));
        content.into_iter().for_each(|content| content.live = content.durable.clone());
        Ok(Some(file))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn StorageBackend>> {
        let mut made = 0;
        self.change_names(|platter| {
            made = platter.files.len();
            platter.files.push(Content { garbles: name.starts_with("log"), ..Content::default() });
            vec![NameChange::Set(name.to_owned(), made)]
        })?;
        Ok(Box::new(FaultyFile { disk: self.clone(), file: made }))
    }

    fn make_folder(&self, _: &str) -> io::Result<()> {
        // A folder exists with its first file.
        self.change_names(|_| Vec::new())
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        let platter = self.0.lock().expect("no thread panics while holding it");
        Ok(!within(&platter.names, name).is_empty())
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let platter = self.0.lock().expect("no thread panics while holding it");
        Ok(within(&platter.names, folder).iter().map(|name| name[folder.len() + 1..].to_owned()).collect())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        if matches!(self.failure(), Some(Failure::NoRenames)) {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        self.change_names(|platter| {
            assert!(!within(&platter.names, from).is_empty(), "only what is there is renamed");
            vec![NameChange::Move(from.to_owned(), to.to_owned())]
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.change_names(|platter| within(&platter.names, name).into_iter().map(NameChange::Unset).collect())
    }

    fn sync(&self, folder: &str) -> io::Result<()> {
        let mut platter = self.0.lock().expect("no thread panics while holding it");
        platter.count(false)?;
        if matches!(platter.failure, Some(Failure::NoFolderSyncs | Failure::Aborted)) {
            return Err(io::Error::other("the folder cannot be synced"));
        }
        let pending = std::mem::take(&mut platter.pending_names);
        let (synced, pending) = pending.into_iter().partition(|change| change.folder() == folder);
        platter.pending_names = pending;
        let synced: Vec<NameChange> = synced;
        synced.iter().for_each(|change| change.apply(&mut platter.durable_names));
        Ok(())
    }
}

impl Platter {
    /// Counts an operation, and fails it if the fault includes it.
    fn count(&mut self, writes: bool) -> io::Result<()> {
        let number = self.operations;
        self.operations += 1;
        match self.failure {
            Some(Failure::PowerCut(at)) if number >= at => Err(io::Error::other("the power is gone")),
            Some(Failure::Full(from, to)) if writes && (from..to).contains(&number) => {
                Err(io::Error::from(io::ErrorKind::StorageFull))
            }
            _ => Ok(()),
        }
    }
}

impl Platter {
    /// Fails a write to a file that finds no room.
    fn room(&self, file: usize) -> io::Result<()> {
        match self.failure {
            Some(Failure::FileFull(name))
                if within(&self.names, name).iter().any(|name| self.names[name] == file) =>
            {
                Err(io::Error::from(io::ErrorKind::StorageFull))
            }
            _ => Ok(()),
        }
    }

    /// Returns `true` if the power was cut at the last counted operation: it may still have been
    /// done.
    fn is_last_gasp(&self) -> bool {
        matches!(self.failure, Some(Failure::PowerCut(at)) if self.operations == at + 1)
    }
}

impl Content {
    fn after_power_cut(&self, survival: Survival, draw: &mut Draw) -> Self {
        let found = match survival {
            Survival::Nothing => self.durable.clone(),
            Survival::Everything => self.live.clone(),
            Survival::Torn(_) => self.torn(draw),
        };
        Self { live: found.clone(), durable: found, pending: Vec::new(), garbles: self.garbles }
    }

    fn torn(&self, draw: &mut Draw) -> Vec<u8> {
        let mut found = self.durable.clone();
        let lengths = self.pending.iter().filter(|pending| matches!(pending, Pending::Length(_))).count();
        let mut lengths_left = draw.below(lengths as u64 + 1);
        for pending in &self.pending {
            match pending {
                Pending::Length(length) => {
                    if lengths_left > 0 {
                        lengths_left -= 1;
                        found.resize(*length, 0);
                    }
                }
                Pending::Write(offset, data) => {
                    let (mut at, end) = (*offset, offset + data.len());
                    while at < end {
                        let next = (at - at % SECTOR_BYTES + SECTOR_BYTES).min(end);
                        let sector =
                            at - at % SECTOR_BYTES..(at - at % SECTOR_BYTES + SECTOR_BYTES).min(found.len());
                        match draw.below(if self.garbles { 5 } else { 4 }) {
                            0 | 1 if next <= found.len() => {
                                found[at..next].copy_from_slice(&data[at - offset..next - offset]);
                            }
                            4 if !sector.is_empty() => found[sector].fill(draw.below(256) as u8),
                            _ => {}
                        }
                        at = next;
                    }
                }
            }
        }
        found
    }
}

#[derive(Debug)]
struct FaultyFile {
    disk: FaultyDisk,
    file: usize,
}

impl FaultyFile {
    fn content<T>(&self, look: impl FnOnce(&mut Platter, usize) -> T) -> T {
        look(&mut self.disk.0.lock().expect("no thread panics while holding it"), self.file)
    }
}

impl StorageBackend for FaultyFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.content(|platter, file| platter.files[file].live.len() as u64))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.content(|platter, file| {
            let live = &platter.files[file].live;
            let from = offset as usize;
            let bytes = live.get(from..from + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            out.copy_from_slice(bytes);
            Ok(())
        })
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.content(|platter, file| {
            let done = platter.count(true).and_then(|()| platter.room(file));
            if done.is_ok() || platter.is_last_gasp() {
                platter.files[file].live.resize(length as usize, 0);
                platter.files[file].pending.push(Pending::Length(length as usize));
            }
            done
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.content(|platter, file| {
            platter.count(false)?;
            let number = platter.operations - 1;
            let content = &mut platter.files[file];
            let lost = match platter.failure {
                Some(Failure::LostSync(from, to) | Failure::HalfSync(from, to)) => {
                    (from..to).contains(&number)
                }
                Some(Failure::Aborted) => true,
                _ => false,
            };
            if lost {
                if let Some(Failure::HalfSync(..)) = platter.failure {
                    content.durable = content.torn(&mut Draw(number));
                }
                // Reads still return data that will never reach the disk, unless it is written
                // again.
                content.pending.clear();
                return Err(io::Error::other("the disk lost the data"));
            }
            content.settle();
            Ok(())
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.content(|platter, file| {
            let done = platter.count(true).and_then(|()| platter.room(file));
            let written = match platter.failure {
                _ if done.is_ok() || platter.is_last_gasp() => data,
                Some(Failure::Full(..)) => &data[..data.len() / 2],
                _ => &[],
            };
            let from = offset as usize;
            let content = &mut platter.files[file];
            let end = from + written.len();
            if end > content.live.len() {
                content.live.resize(end, 0);
                content.pending.push(Pending::Length(end));
            }
            content.live[from..end].copy_from_slice(written);
            content.pending.push(Pending::Write(from, written.to_vec()));
            done
        })
    }
}

impl Content {
    /// Makes pending changes durable, except those that a failed sync dropped.
    fn settle(&mut self) {
        for pending in self.pending.drain(..) {
            match pending {
                Pending::Length(length) => self.durable.resize(length, 0),
                Pending::Write(offset, data) => {
                    if self.durable.len() < offset + data.len() {
                        self.durable.resize(offset + data.len(), 0);
                    }
                    self.durable[offset..offset + data.len()].copy_from_slice(&data);
                }
            }
        }
    }
}

/// A small random source: seeded, and the same on every platform.
pub struct Draw(pub u64);

impl Draw {
    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}
