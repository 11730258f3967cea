//! One redb file: verified when it is opened, written in whole commits, reopened after an error.
//!
//! Only this file, `guard.rs` and `disk.rs` use redb. Every table maps bytes to bytes.
//!
//! redb keeps two commits, and goes back to the older one if the newer is torn: a crash interrupted
//! it, so it was never reported as durable. But a page of a finished commit may also be lost later,
//! and redb cannot distinguish the two. Therefore [`RedbFile::finish`] commits once more, so that
//! both hold the same.
//!
//! **Invariant:** [`RedbFile::write`] changes all or nothing, and when it returns `Ok` the change
//! is durable. After an error it may have become durable too: the caller must be able to write the
//! same again.

use super::dead_space::FileSpace;
use super::disk::Disk;
use super::error::StoreError;
use super::guard::Guard;
use lockmesh_protocol::format::{self, FormatError, Stored};
use lockmesh_protocol::id::ServerId;
use redb::{
    Builder, CompactionError, Database, DatabaseError, ReadableDatabase, ReadableTable, StorageBackend,
    StorageError, TableDefinition,
};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::cmp::Ordering;
use std::io;
use std::ops::Bound;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, TryLockError};
use std::time::Instant;

/// The format of either file: the layout of its tables. Their contents have their own version, see
/// [`lockmesh_protocol::format`]. Before 3 neither rows nor entries had one.
pub(super) const FORMAT: u32 = 7;

const META: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("meta");
const FORMAT_KEY: &[u8] = b"format";
const IDENTITY_KEY: &[u8] = b"identity";

/// The kind of a store file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    /// The log.
    Log,
    /// `state.redb`.
    State,
}

/// The identity stored in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileIdentity {
    /// The kind of the file.
    pub(super) kind: Kind,
    /// The same random number in both files of a pair.
    pub(super) pair: u128,
    /// The server of the file.
    pub(super) server: ServerId,
}

/// The name of a table.
#[derive(Clone, Copy)]
pub(super) struct TableName(TableDefinition<'static, &'static [u8], &'static [u8]>);

impl Stored for FileIdentity {}

impl TableName {
    /// Creates the name of a table.
    pub(super) const fn new(name: &'static str) -> Self {
        Self(TableDefinition::new(name))
    }
}

/// An error of redb.
#[derive(Debug)]
pub(super) enum StoreFault {
    /// The disk returned an error.
    Io(io::Error),
    /// The file is broken.
    Damaged(String),
    /// A newer build wrote to it.
    NewerFormat {
        /// The version of its format.
        found: u32,
        /// The newest version that this build reads.
        known: u32,
    },
}

impl StoreFault {
    /// Returns the error of a file.
    pub(super) fn of_file(self, path: PathBuf, doing: &'static str) -> StoreError {
        match self {
            Self::Io(source) => StoreError::Io { path, doing, source },
            Self::Damaged(reason) => StoreError::Damaged { path, reason },
            Self::NewerFormat { found, known } => StoreError::NewerFormat { path, found, known },
        }
    }
}

impl From<FormatError> for StoreFault {
    fn from(error: FormatError) -> Self {
        match error {
            FormatError::Unknown { found, known } => {
                Self::NewerFormat { found: found.into(), known: known.into() }
            }
            error => Self::Damaged(error.to_string()),
        }
    }
}

/// One redb file of the store.
#[derive(Debug)]
pub(super) struct RedbFile {
    disk: Arc<dyn Disk>,
    name: &'static str,
    cache_bytes: usize,
    /// `None` while it could not be reopened.
    open: RwLock<Option<Opened>>,
}

#[derive(Debug)]
struct Opened {
    database: Database,
    guard: Guard,
}

impl Opened {
    fn new(builder: &Builder, guard: Guard) -> Result<Self, DatabaseError> {
        let database = builder.create_with_backend(guard.clone())?;
        Ok(Self { database, guard })
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // Before redb closes the file: it would write a table of free space that it later trusts
        // without a check.
        self.guard.shut();
    }
}

impl RedbFile {
    /// Opens a file without changing it; `None` if it is missing. Nothing reaches the disk before
    /// [`RedbFile::release`].
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        name: &'static str,
        cache_bytes: usize,
    ) -> Result<Option<Self>, StoreError> {
        let file = Self { disk, name, cache_bytes, open: RwLock::new(None) };
        let Some(opened) = file.open_held(false)? else { return Ok(None) };
        *file.open.write().unwrap_or_else(PoisonError::into_inner) = Some(opened);
        Ok(Some(file))
    }

    /// Creates a file with the content that `fill` writes, replacing any of that name, and closes
    /// it.
    pub(super) fn create(
        disk: &dyn Disk,
        name: &'static str,
        identity: &FileIdentity,
        fill: impl FnOnce(&mut Writing<'_>) -> Result<(), StoreFault>,
    ) -> Result<(), StoreError> {
        let path = disk.path(name);
        let backend = disk.create(name).map_err(io_error(&path, "cannot create the file"))?;
        let failed = |fault: StoreFault| fault.of_file(path.clone(), "cannot write the new file");
        let guard = Guard::open(backend);
        let made = Opened::new(&Builder::new(), guard).map_err(|error| failed(error.into()))?;
        commit(&made.database, |writing| {
            let mut meta = writing.table(TableName(META))?;
            meta.put(FORMAT_KEY, &FORMAT.to_le_bytes())?;
            meta.put(IDENTITY_KEY, &format::encode(identity))?;
            drop(meta);
            fill(writing)
        })
        .map_err(failed)
    }

    /// Writes the repairs made while opening to the disk: the file is ours and sound.
    pub(super) fn release(&self) -> Result<(), StoreError> {
        let path = self.path();
        let open = self.opened()?;
        let guard = &open.as_ref().ok_or(StoreError::Closed)?.guard;
        guard.release().map_err(io_error(&path, "cannot repair the file"))
    }

    /// Returns the file's path, for messages.
    pub(super) fn path(&self) -> PathBuf {
        self.disk.path(self.name)
    }

    /// Returns the version of the file's format.
    pub(super) fn format(&self) -> Result<u32, StoreError> {
        let path = self.path();
        let foreign = |reason: &str| StoreError::Foreign { path: path.clone(), reason: reason.to_owned() };
        let format = self.read()?.get(TableName(META), FORMAT_KEY).map_err(|fault| self.fault(fault))?;
        let format = format.ok_or_else(|| foreign("it is a redb file of another program"))?;
        let format: [u8; 4] =
            format.as_slice().try_into().map_err(|_| foreign("its format has no number"))?;
        let found = u32::from_le_bytes(format);
        match found.cmp(&FORMAT) {
            Ordering::Less => Err(StoreError::OlderFormat { path, found, known: FORMAT }),
            Ordering::Equal => Ok(found),
            Ordering::Greater => Err(StoreError::NewerFormat { path, found, known: FORMAT }),
        }
    }

    /// Returns the identity stored in the file.
    pub(super) fn identity(&self) -> Result<FileIdentity, StoreError> {
        let path = self.path();
        let damaged = |reason: String| StoreError::Damaged { path: path.clone(), reason };
        self.format()?;
        let identity = self.read()?.get(TableName(META), IDENTITY_KEY).map_err(|fault| self.fault(fault))?;
        let identity = identity.ok_or_else(|| damaged("it has no identity".to_owned()))?;
        format::decode(&identity).map_err(|error| damaged(error.to_string()))
    }

    /// Changes the file in one durable commit.
    pub(super) fn write(
        &self,
        change: impl FnOnce(&mut Writing<'_>) -> Result<(), StoreFault>,
    ) -> Result<(), StoreError> {
        let open = self.opened()?;
        let opened =
            open.as_ref().ok_or_else(|| self.fault(StoreFault::Io(io::Error::other("not open yet"))))?;
        // redb repeats only that there was an error; the guard has its text.
        commit(&opened.database, change).map_err(|fault| match (fault, opened.guard.last_error()) {
            (StoreFault::Io(_), Some(error)) => self.fault(StoreFault::Io(io::Error::other(error))),
            (fault, _) => self.fault(fault),
        })
    }

    /// Opens a view of the last commit; later commits do not disturb it. Never waits: the driver
    /// calls it.
    pub(super) fn read(&self) -> Result<Reading, StoreError> {
        let open = match self.open.try_read() {
            Ok(open) => open,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let why = "it is being reopened or compacted: try again in a moment";
                return Err(self.fault(StoreFault::Io(io::Error::other(why))));
            }
        };
        let opened =
            open.as_ref().ok_or_else(|| self.fault(StoreFault::Io(io::Error::other("not open yet"))))?;
        let transaction = opened.database.begin_read().map_err(|error| self.fault(error.into()))?;
        Ok(Reading { transaction })
    }

    /// Returns the space that the file takes. Reads all of it.
    pub(super) fn space(&self) -> Result<FileSpace, StoreError> {
        let open = self.opened()?;
        let opened = open.as_ref().ok_or(StoreError::Closed)?;
        let measured = || -> Result<FileSpace, StoreFault> {
            let transaction = opened.database.begin_write()?;
            let stats = transaction.stats()?;
            transaction.abort()?;
            let used = stats.allocated_pages() * stats.page_size() as u64;
            let length = opened.guard.len().map_err(StoreFault::Io)?;
            Ok(FileSpace { used, free: length.saturating_sub(used) })
        };
        measured().map_err(|fault| self.fault(fault))
    }

    /// Moves the content together and gives the rest of the file back. Does nothing while a view is
    /// open.
    pub(super) fn compact(&self) -> Result<(), StoreError> {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        let opened = open.as_mut().ok_or(StoreError::Closed)?;
        match opened.database.compact() {
            Ok(_) | Err(CompactionError::TransactionInProgress) => Ok(()),
            Err(error) => Err(self.fault(error.into())),
        }
    }

    /// Reopens the file after an error: redb accepts no writes until then.
    pub(super) fn reopen(&self) -> Result<(), StoreError> {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        // A failed sync may have lost data that reads still return.
        let rewrite = open.as_ref().is_none_or(|opened| opened.guard.sync_failed());
        // Closed first: the file's lock admits one opener.
        *open = None;
        let opened = self.open_held(rewrite)?.ok_or_else(|| {
            self.fault(StoreFault::Io(io::Error::new(io::ErrorKind::NotFound, "the file was removed")))
        })?;
        // At once: the first opening verified that this file is ours.
        opened.guard.release().map_err(io_error(&self.path(), "cannot repair the file"))?;
        *open = Some(opened);
        Ok(())
    }

    /// Prepares the file for closing: commits an unchanged state, so that both of redb's commits
    /// hold the same.
    pub(super) fn finish(&self, same: impl FnOnce(&mut Writing<'_>) -> Result<(), StoreFault>) {
        if let Err(error) = self.write(same) {
            tracing::warn!(%error, "closed without the final commit, which changes nothing");
        }
    }

    /// Returns an error of this file, with its name.
    pub(super) fn fault(&self, fault: StoreFault) -> StoreError {
        fault.of_file(self.path(), "cannot read or write the file")
    }

    /// Returns the error of an invalid content: the file is damaged.
    pub(super) fn damaged(&self, reason: impl Into<String>) -> StoreError {
        StoreError::Damaged { path: self.path(), reason: reason.into() }
    }

    fn opened(&self) -> Result<RwLockReadGuard<'_, Option<Opened>>, StoreError> {
        Ok(self.open.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Opens the file with its writes held back.
    fn open_held(&self, rewrite: bool) -> Result<Option<Opened>, StoreError> {
        let path = self.path();
        let backend = self.disk.open(self.name).map_err(io_error(&path, "cannot open the file"))?;
        let Some(backend) = backend else { return Ok(None) };
        // redb would initialize an empty file.
        if backend.len().map_err(io_error(&path, "cannot read the length of the file"))? == 0 {
            return Err(self.damaged("it is empty"));
        }
        let guard = Guard::holding(backend);
        if rewrite {
            guard.rewrite().map_err(io_error(&path, "cannot rewrite the file after a failed sync"))?;
        }
        let begun = Instant::now();
        let rolled_back = Rc::new(Cell::new(false));
        let told = Rc::clone(&rolled_back);
        let mut builder = Builder::new();
        builder.set_cache_size(self.cache_bytes);
        // redb's progress reveals whether it went back to the older commit. That is logged, since a
        // power cut explains it.
        builder.set_repair_callback(move |repair| told.set(told.get() || is_roll_back(repair.progress())));
        let opened = Opened::new(&builder, guard).map_err(|error| self.refused(error))?;
        let took_ms = begun.elapsed().as_millis();
        let unfinished_commit = rolled_back.get();
        tracing::info!(file = %path.display(), took_ms, unfinished_commit, "opened the file and checked its integrity");
        Ok(Some(opened))
    }

    /// Converts redb's error on opening.
    fn refused(&self, error: DatabaseError) -> StoreError {
        let path = self.path();
        match error {
            DatabaseError::DatabaseAlreadyOpen => StoreError::Held(path),
            DatabaseError::UpgradeRequired(version) => {
                StoreError::Foreign { path, reason: format!("it is a redb file of version {version}") }
            }
            DatabaseError::Storage(StorageError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                StoreError::Foreign { path, reason: "it is not a redb file".to_owned() }
            }
            DatabaseError::Storage(StorageError::Io(error))
                if error.kind() == io::ErrorKind::UnexpectedEof =>
            {
                self.damaged("it is truncated")
            }
            error => self.fault(error.into()),
        }
    }
}

/// Returns `true` if this progress means that redb found the newest commit torn and goes back to
/// the one before.
fn is_roll_back(progress: f64) -> bool {
    progress > 0.2 && progress < 0.5
}

/// Adds the file's name to an error of the system.
pub(super) fn io_error(
    path: &std::path::Path,
    doing: &'static str,
) -> impl FnOnce(io::Error) -> StoreError + use<> {
    let path = path.to_path_buf();
    move |source| StoreError::Io { path, doing, source }
}

/// Makes a change in one durable commit.
fn commit(
    database: &Database,
    change: impl FnOnce(&mut Writing<'_>) -> Result<(), StoreFault>,
) -> Result<(), StoreFault> {
    // Durable at once, in one phase and without a saved allocator: redb's defaults, and its
    // fastest.
    let transaction = database.begin_write()?;
    change(&mut Writing { transaction: &transaction })?;
    transaction.commit()?;
    Ok(())
}

/// A commit in preparation.
pub(super) struct Writing<'a> {
    transaction: &'a redb::WriteTransaction,
}

impl Writing<'_> {
    /// Opens a table, and creates it if it is missing.
    pub(super) fn table(&self, name: TableName) -> Result<WritingTable<'_>, StoreFault> {
        Ok(WritingTable(self.transaction.open_table(name.0)?))
    }

    /// Removes a table with all its rows.
    pub(super) fn remove_table(&self, name: TableName) -> Result<(), StoreFault> {
        self.transaction.delete_table(name.0)?;
        Ok(())
    }
}

/// A table in a commit in preparation.
pub(super) struct WritingTable<'a>(redb::Table<'a, &'static [u8], &'static [u8]>);

impl WritingTable<'_> {
    /// Sets a row.
    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreFault> {
        self.replace(key, value, |_| ())
    }

    /// Sets a row, and passes its former content, if any, to `former`.
    pub(super) fn replace(
        &mut self,
        key: &[u8],
        value: &[u8],
        former: impl FnOnce(&[u8]),
    ) -> Result<(), StoreFault> {
        if let Some(before) = self.0.insert(key, value)? {
            former(before.value());
        }
        Ok(())
    }

    /// Removes the first rows of a range, `at_most` of them, and passes their content to `former`;
    /// returns the number removed.
    pub(super) fn remove_some(
        &mut self,
        start: &[u8],
        end: &[u8],
        at_most: usize,
        mut former: impl FnMut(&[u8]),
    ) -> Result<usize, StoreFault> {
        let mut removed = 0;
        for row in self.0.extract_from_if::<&[u8], _>(start..end, |_, _| true)?.take(at_most) {
            former(row?.1.value());
            removed += 1;
        }
        Ok(removed)
    }

    /// Removes a row, if it exists.
    #[cfg(test)]
    pub(super) fn remove(&mut self, key: &[u8]) -> Result<(), StoreFault> {
        self.take_out(key, |_| ())
    }

    /// Removes a row, and passes its content, if any, to `former`.
    pub(super) fn take_out(&mut self, key: &[u8], former: impl FnOnce(&[u8])) -> Result<(), StoreFault> {
        if let Some(before) = self.0.remove(key)? {
            former(before.value());
        }
        Ok(())
    }

    /// Returns the content of a row.
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreFault> {
        Ok(self.0.get(key)?.map(|value| value.value().to_vec()))
    }
}

/// The file as it was at one moment.
pub(super) struct Reading {
    transaction: redb::ReadTransaction,
}

impl Reading {
    /// Returns the content of a row; `None` also if the table does not exist.
    pub(super) fn get(&self, table: TableName, key: &[u8]) -> Result<Option<Vec<u8>>, StoreFault> {
        let Some(ReadingTable(table)) = self.table(table)? else { return Ok(None) };
        Ok(table.get(key)?.map(|value| value.value().to_vec()))
    }

    /// Calls `visit` with each row from a key on, in order, until it returns `false`.
    pub(super) fn each(
        &self,
        table: TableName,
        from: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<bool, StoreFault>,
    ) -> Result<(), StoreFault> {
        let Some(ReadingTable(table)) = self.table(table)? else { return Ok(()) };
        for row in ReadableTable::range::<&[u8]>(&table, (Bound::Included(from), Bound::Unbounded))? {
            let (key, value) = row?;
            if !visit(key.value(), value.value())? {
                break;
            }
        }
        Ok(())
    }

    fn table(&self, name: TableName) -> Result<Option<ReadingTable>, StoreFault> {
        match self.transaction.open_table(name.0) {
            Ok(table) => Ok(Some(ReadingTable(table))),
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// A table as it was at one moment.
struct ReadingTable(redb::ReadOnlyTable<&'static [u8], &'static [u8]>);

impl From<redb::Error> for StoreFault {
    fn from(error: redb::Error) -> Self {
        match error {
            redb::Error::Io(error) => Self::Io(error),
            redb::Error::PreviousIo | redb::Error::DatabaseClosed => {
                Self::Io(io::Error::other(error.to_string()))
            }
            error => Self::Damaged(error.to_string()),
        }
    }
}

/// Each of redb's errors converts through its most general type.
macro_rules! fault_from {
    ($($error:ty),+) => {
        $(impl From<$error> for StoreFault {
            fn from(error: $error) -> Self {
                redb::Error::from(error).into()
            }
        })+
    };
}

fault_from!(
    redb::CommitError,
    CompactionError,
    DatabaseError,
    StorageError,
    redb::TableError,
    redb::TransactionError
);
