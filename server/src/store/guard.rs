//! What stands between redb and a file: nothing reaches the file before it is known to be ours and
//! sound.
//!
//! redb repairs while it opens. A [`Guard`] holds those writes back in memory; only
//! [`Guard::release`] lets them through, in the order in which they were made. So a file that is
//! refused keeps every byte.
//!
//! redb also writes while it closes: a table of free space, which it trusts at the next opening
//! without looking whether it changed since. A guard that is shut lets none of that through. Then
//! every opening looks at every page.
//!
//! **Invariant:** a guard never reorders: what redb wrote before a sync is on disk before what it
//! wrote after it.

use redb::{BackendError, StorageBackend};
use std::io;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How much is read and written at once when a file is written anew.
const REWRITE_BYTES: usize = 1 << 20;

/// A file behind its guard; the clones are one guard.
#[derive(Clone, Debug)]
pub(super) struct Guard(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: Box<dyn StorageBackend>,
    /// What is held back; none where the file is trusted.
    held: Mutex<Option<Vec<HeldWrite>>>,
    /// What the system said last when it refused.
    last_error: Mutex<Option<String>>,
    /// Whether a sync failed: what it covered may never reach the disk, though reading still shows
    /// it.
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

    /// Lets every write through at once: for a file that is being made.
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

    /// Lets what is held back through, and from now on everything.
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
            // The first refusal ends it: what follows in order must not come before what is
            // missing.
            self.noted(done)?;
        }
        // Only when all of it is through: until then reading must go on through what is held.
        *held = None;
        Ok(())
    }

    /// Lets nothing through from now on: the file stays as the last commit left it.
    pub(super) fn shut(&self) {
        // What was held already stays held: a file that was never released is not touched now
        // either.
        self.held().get_or_insert_default();
    }

    /// What the system said last when it refused.
    pub(super) fn last_error(&self) -> Option<String> {
        lock(&self.0.last_error).clone()
    }

    /// Whether a sync failed.
    pub(super) fn sync_failed(&self) -> bool {
        self.0.sync_failed.load(Ordering::Acquire)
    }

    /// Writes the whole file over itself and syncs it.
    ///
    /// After a failed sync the system may have dropped writes and yet show them to readers. A file
    /// that was written again as it is read is on disk as it is read, once this returns.
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
            // Remembered for good: that a later sync succeeds says nothing of what the first one
            // lost.
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

/// A panic while a lock was held leaves plain data that is still whole.
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
            // Some([])|Without the lock: most reads are of a file that holds nothing back, and many
            // at once.
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
        // Noted in its place: on release the file is synced where redb meant it to be.
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

/// Reads what the file would hold if what is held back had been written.
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
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before what it should hold"));
    }
    Ok(())
}

/// Copies the part of `data`, which lies at `at`, that falls into `out`, which lies at `offset`.
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
