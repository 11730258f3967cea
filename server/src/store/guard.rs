//! A write barrier between redb and a file: nothing is written before the file is verified as ours
//! and sound.
//!
//! redb repairs while it opens. A [`Guard`] holds those writes back in memory; only
//! [`Guard::release`] lets them through, in their order. A file that is rejected therefore keeps
//! every byte.
//!
//! redb also writes while it closes: a table of free space, which it trusts at the next opening
//! without checking for later changes. A guard that is shut blocks these writes. Every opening then
//! checks every page.
//!
//! **Invariant:** a guard never reorders: redb's writes before a sync are on disk before its later
//! ones.

use redb::{BackendError, StorageBackend};
use std::io;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The bytes read and written at once when a file is rewritten.
const REWRITE_BYTES: usize = 1 << 20;

/// A file behind its guard; the clones are one guard.
#[derive(Clone, Debug)]
pub(super) struct Guard(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: Box<dyn StorageBackend>,
    /// The writes held back; `None` if the file is trusted.
    held: Mutex<Option<Vec<HeldWrite>>>,
    /// The last error of the system.
    last_error: Mutex<Option<String>>,
    /// `true` if a sync failed: its data may never reach the disk, though reads still return it.
    sync_failed: AtomicBool,
}

/// A write that is held back.
#[derive(Debug)]
enum HeldWrite {
    Write(u64, Vec<u8>),
    SetLength(u64),
    Sync,
}

impl Guard {
    /// Holds back every write until [`Guard::release`].
    pub(super) fn holding(file: Box<dyn StorageBackend>) -> Self {
        Self::new(file, Some(Vec::new()))
    }

    /// Lets every write through at once: for a new file.
    pub(super) fn open(file: Box<dyn StorageBackend>) -> Self {
        Self::new(file, None)
    }

    fn new(file: Box<dyn StorageBackend>, held: Option<Vec<HeldWrite>>) -> Self {
        Self(Arc::new(Inner {
            file,
            held: Mutex::new(held),
            last_error: Mutex::new(None),
            sync_failed: AtomicBool::new(false),
        }))
    }

    /// Lets the held writes through, and every later one.
    ///
    /// After an error the rest stays held back: the file is then as after a crash, and must be
    /// opened again.
    pub(super) fn release(&self) -> io::Result<()> {
        let mut held = self.held();
        for operation in held.iter().flatten() {
            let done = match operation {
                HeldWrite::Write(offset, data) => self.0.file.write(*offset, data),
                HeldWrite::SetLength(length) => self.0.file.set_len(*length),
                HeldWrite::Sync => self.sync_file(),
            };
            // The first error ends it: later writes must not come before a missing one.
            self.noted(done)?;
        }
        // Only when all writes are through: until then reads must include the held writes.
        *held = None;
        Ok(())
    }

    /// Blocks all further writes: the file stays as the last commit left it.
    pub(super) fn shut(&self) {
        // Writes already held stay held: a file that was never released is not changed now either.
        self.held().get_or_insert_default();
    }

    /// Returns the last error of the system.
    pub(super) fn last_error(&self) -> Option<String> {
        lock(&self.0.last_error).clone()
    }

    /// Returns `true` if a sync failed.
    pub(super) fn sync_failed(&self) -> bool {
        self.0.sync_failed.load(Ordering::Acquire)
    }

    /// Writes the whole file over itself and syncs it.
    ///
    /// After a failed sync the system may have dropped writes and still return them to readers.
    /// Once this returns, the file's content on disk equals the content read.
    pub(super) fn rewrite(&self) -> io::Result<()> {
        let length = self.0.file.len()?;
        let mut buffer = vec![0; REWRITE_BYTES];
        let mut offset = 0;
        while offset < length {
            let part = REWRITE_BYTES.min(usize::try_from(length - offset).unwrap_or(REWRITE_BYTES));
            self.0.file.read(offset, &mut buffer[..part])?;
            self.0.file.write(offset, &buffer[..part])?;
            offset += part as u64;
        }
        self.0.file.sync_data()
    }

    fn held(&self) -> MutexGuard<'_, Option<Vec<HeldWrite>>> {
        lock(&self.0.held)
    }

    fn sync_file(&self) -> io::Result<()> {
        let done = self.0.file.sync_data();
        if done.is_err() {
            // Kept permanently: a later successful sync does not restore data lost by the first
            // one.
            self.0.sync_failed.store(true, Ordering::Release);
        }
        done
    }

    /// Remembers an error: redb repeats only that there was one.
    fn noted<T>(&self, done: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &done {
            *lock(&self.0.last_error) = Some(error.to_string());
        }
        done
    }
}

/// A panic under a lock leaves plain data that is still valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StorageBackend for Guard {
    fn len(&self) -> io::Result<u64> {
        let mut length = self.noted(self.0.file.len())?;
        for operation in self.held().iter().flatten() {
            match operation {
                HeldWrite::Write(offset, data) => length = length.max(offset + data.len() as u64),
                HeldWrite::SetLength(new) => length = *new,
                HeldWrite::Sync => {}
            }
        }
        Ok(length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let held = self.held();
        match held.as_deref() {
            // Without the lock: most reads are of a file that holds nothing back, and many run at
            // once.
            None | Some([]) => {
                drop(held);
                self.noted(self.0.file.read(offset, out))
            }
            Some(operations) => self.noted(read_through(&*self.0.file, operations, offset, out)),
        }
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        match &mut *self.held() {
            Some(operations) => operations.push(HeldWrite::SetLength(length)),
            None => self.noted(self.0.file.set_len(length))?,
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        // Recorded in sequence: on release the file is synced at redb's sync points.
        if let Some(operations) = &mut *self.held() {
            operations.push(HeldWrite::Sync);
            return Ok(());
        }
        self.noted(self.sync_file())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if let Some(operations) = &mut *self.held() {
            operations.push(HeldWrite::Write(offset, data.to_vec()));
            return Ok(());
        }
        self.noted(self.0.file.write(offset, data))
    }

    fn close(&self) -> io::Result<()> {
        self.0.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.file.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.file.query_lock_range(start, end)
    }
}

/// Reads the file's content with the held writes applied.
fn read_through(
    file: &dyn StorageBackend,
    operations: &[HeldWrite],
    offset: u64,
    out: &mut [u8],
) -> io::Result<()> {
    let end = offset + out.len() as u64;
    let mut length = file.len()?;
    let there = usize::try_from(length.saturating_sub(offset)).unwrap_or(usize::MAX).min(out.len());
    let (present, absent) = out.split_at_mut(there);
    if !present.is_empty() {
        file.read(offset, present)?;
    }
    absent.fill(0);
    for operation in operations {
        match operation {
            HeldWrite::Write(at, data) => {
                overlay(out, offset, *at, data);
                length = length.max(at + data.len() as u64);
            }
            HeldWrite::SetLength(new) => {
                let kept = usize::try_from(new.saturating_sub(offset)).unwrap_or(usize::MAX).min(out.len());
                out[kept..].fill(0);
                length = *new;
            }
            HeldWrite::Sync => {}
        }
    }
    if end > length {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than its content"));
    }
    Ok(())
}

/// Copies the part of `data`, at offset `at`, that overlaps with `out`, at `offset`.
fn overlay(out: &mut [u8], offset: u64, at: u64, data: &[u8]) {
    let from = at.max(offset);
    let to = (at + data.len() as u64).min(offset + out.len() as u64);
    if from >= to {
        return;
    }
    // Both differences are smaller than a buffer in memory.
    let (source, target, count) = ((from - at) as usize, (from - offset) as usize, (to - from) as usize);
    out[target..target + count].copy_from_slice(&data[source..source + count]);
}
