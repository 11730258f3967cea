//! The files of the log: segments, numbered by their names.
//!
//! The checkpoint's thread prepares segments before they are needed: it renames those that were
//! compacted, and fills new ones with zeros. So a commit changes no length and no name, and its
//! sync writes only its own sectors. If no segment is ready the log's thread creates an empty one,
//! which grows with each commit: it never waits for the other thread.
//!
//! A busy log recycles instead of filling: while segments are compacted as fast as new ones are
//! begun, only one spare is filled, and the place of the other is kept for the next compacted one.
//! Filling would double the bytes that the log writes.
//!
//! The size of new segments doubles while more than one is begun from checkpoint to checkpoint, and
//! halves after [`IDLE_CHECKPOINTS`] without one.

use crate::metrics;
use crate::store::disk::Disk;
use crate::store::error::StoreError;
use crate::store::file::io_error;
use redb::StorageBackend;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The largest size of new segments, as a multiple of the smallest.
const MAX_GROWTH: u64 = 16;

/// The number of checkpoints without a new segment after which new ones are smaller.
const IDLE_CHECKPOINTS: u32 = 16;

/// The number of segments that wait for their use.
const MAX_SPARES: usize = 2;

/// Zeros are written in pieces of this size. The page cache would keep larger pieces as large
/// pages, and each commit would write one of those.
const ZEROS: [u8; 16 << 10] = [0; 16 << 10];

/// The name of a segment that is being filled with zeros.
const DRAFT: &str = "spare";

/// A segment that is written.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) file: Box<dyn StorageBackend>,
    /// Closed when its records reach this many bytes. One record may be longer.
    pub(super) size: u64,
    /// The end of the durable records.
    pub(super) end: u64,
    /// Set once its name is durable.
    pub(super) is_named: bool,
}

/// The segments that are not in use.
#[derive(Debug)]
pub(in crate::store) struct SegmentPool {
    disk: Arc<dyn Disk>,
    folder: &'static str,
    smallest: u64,
    state: Mutex<PoolState>,
    /// Set if there may be work for [`SegmentPool::prepare`].
    is_due: AtomicBool,
}

/// Never locked during a sync: the log's thread needs it.
#[derive(Debug)]
struct PoolState {
    /// The number of the next segment.
    next: u64,
    /// The segments to be written next, in order; `true` if the name is durable.
    spares: VecDeque<(u64, bool)>,
    /// Compacted segments, oldest first. Only the checkpoint's thread removes them.
    retired: VecDeque<u64>,
    /// The number of spares below which a new one is filled.
    least_spares: usize,
    /// Set if a segment was compacted since the last one was begun.
    was_retired: bool,
    /// The size of new segments.
    size: u64,
    /// The number of segments that were begun since the last checkpoint.
    begun: u32,
    /// The number of checkpoints since one was begun.
    idle_checkpoints: u32,
}

/// The name of the file with the identity of a log.
pub(super) const IDENTITY: &str = "identity";

/// Returns the name of a segment in the folder of a log.
pub(super) fn name(folder: &str, number: u64) -> String {
    format!("{folder}/{number:020}")
}

/// Returns the number of a segment; `None` for another name.
pub(super) fn number(name: &str) -> Option<u64> {
    name.parse().ok().filter(|_| name.len() == 20)
}

/// Returns `true` for the name of a file in the folder of a log.
pub(in crate::store) fn is_of_log(name: &str) -> bool {
    name == DRAFT || name == IDENTITY || number(name).is_some()
}

impl SegmentPool {
    /// Returns a pool of these spare segments, which follow all that are in use.
    pub(super) fn new(
        (disk, folder): (Arc<dyn Disk>, &'static str),
        smallest: u64,
        next: u64,
        spares: VecDeque<(u64, bool)>,
    ) -> Self {
        let state = PoolState {
            next,
            spares,
            retired: VecDeque::new(),
            least_spares: MAX_SPARES,
            was_retired: false,
            size: smallest,
            begun: 0,
            idle_checkpoints: 0,
        };
        Self { disk, folder, smallest, state: Mutex::new(state), is_due: AtomicBool::new(true) }
    }

    /// Returns the segment to be written next.
    pub(super) fn take(&self) -> Result<Segment, StoreError> {
        let mut state = self.state();
        self.is_due.store(true, Ordering::Relaxed);
        let size = state.size;
        let will_recycle = std::mem::take(&mut state.was_retired);
        state.least_spares = if will_recycle { MAX_SPARES - 1 } else { MAX_SPARES };
        if let Some((number, is_named)) = state.spares.front().copied() {
            let segment = match self.exists(number)? {
                true => Segment { is_named, ..self.open(number, 0)? },
                // It was removed by hand.
                false => self.create(number, size)?,
            };
            state.spares.pop_front();
            state.begun += 1;
            return Ok(segment);
        }
        metrics::UNFILLED_SEGMENTS.inc();
        let segment = self.create(state.next, size)?;
        state.begun += 1;
        state.next += 1;
        Ok(segment)
    }

    fn exists(&self, number: u64) -> Result<bool, StoreError> {
        let name = name(self.folder, number);
        self.disk.exists(&name).map_err(io_error(&self.disk.path(&name), "cannot check for the file"))
    }

    /// Opens a segment whose commits end there.
    pub(super) fn open(&self, number: u64, end: u64) -> Result<Segment, StoreError> {
        let name = name(self.folder, number);
        let opened = || -> io::Result<Segment> {
            let file = self.disk.open(&name)?.ok_or(io::ErrorKind::NotFound)?;
            let size = file.len()?.max(self.smallest);
            Ok(Segment { number, file, size, end, is_named: true })
        };
        opened().map_err(io_error(&self.disk.path(&name), "cannot open the file"))
    }

    /// Creates an empty segment, in place of one with this number.
    pub(super) fn create(&self, number: u64, size: u64) -> Result<Segment, StoreError> {
        let name = name(self.folder, number);
        let file =
            self.disk.create(&name).map_err(io_error(&self.disk.path(&name), "cannot create the file"))?;
        Ok(Segment { number, file, size, end: 0, is_named: false })
    }

    /// Takes back a segment that holds nothing that is needed.
    pub(super) fn retire(&self, number: u64) {
        let mut state = self.state();
        state.retired.push_back(number);
        state.was_retired = true;
        self.is_due.store(true, Ordering::Relaxed);
    }

    /// Notes a durable checkpoint.
    pub(in crate::store) fn checkpointed(&self) {
        let mut state = self.state();
        let begun = std::mem::take(&mut state.begun);
        state.idle_checkpoints = if begun == 0 { state.idle_checkpoints + 1 } else { 0 };
        if begun > 1 {
            state.size = (state.size * 2).min(self.smallest * MAX_GROWTH);
        } else if state.idle_checkpoints >= IDLE_CHECKPOINTS {
            state.size = (state.size / 2).max(self.smallest);
            state.idle_checkpoints = 0;
        }
    }

    /// Returns `true` if there may be work for [`SegmentPool::prepare`].
    pub(in crate::store) fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Relaxed)
    }

    /// Recycles or removes one segment, or prepares a new one.
    ///
    /// # Errors
    /// The disk refuses it. It is tried again after the next segment was begun or compacted.
    pub(in crate::store) fn prepare(&self) -> Result<(), StoreError> {
        // First, so that work that arrives meanwhile is not forgotten.
        self.is_due.store(false, Ordering::Relaxed);
        let more = match self.reuse_one()? {
            true => true,
            false => self.fill_one()?,
        };
        self.is_due.fetch_or(more, Ordering::Relaxed);
        Ok(())
    }

    /// Recycles or removes all compacted segments, as far as the disk permits: a checkpoint may
    /// need their space.
    pub(in crate::store) fn give_space_back(&self) {
        while self.reuse_one().is_ok_and(|was_one| was_one) {}
    }

    /// Recycles or removes the oldest compacted segment; returns `false` if there is none.
    fn reuse_one(&self) -> Result<bool, StoreError> {
        let (number, size) = {
            let state = self.state();
            let Some(number) = state.retired.front().copied() else { return Ok(false) };
            (number, (state.spares.len() < MAX_SPARES).then_some(state.size))
        };
        let name = name(self.folder, number);
        let failed = |doing| io_error(&self.disk.path(&name), doing);
        let bytes = self.disk.open(&name).and_then(|file| file.map(|file| file.len()).transpose());
        let is_recycled = size.is_some()
            && bytes.map_err(failed("cannot read the length of the file"))? == size
            && self.rename(&name).is_ok();
        if !is_recycled {
            self.disk.remove(&name).map_err(failed("cannot remove the file"))?;
        }
        self.state().retired.pop_front();
        // In order: a segment that comes back must not be behind one that is missing.
        self.sync()?;
        Ok(true)
    }

    /// Fills a new segment with zeros, if one is wanted.
    fn fill_one(&self) -> Result<bool, StoreError> {
        let size = {
            let state = self.state();
            if state.spares.len() >= state.least_spares {
                return Ok(false);
            }
            state.size
        };
        let draft = self.draft();
        if let Err(error) = fill(&*self.disk, &draft, size) {
            // Room for the log itself.
            let _ = self.disk.remove(&draft);
            return Err(io_error(&self.disk.path(&draft), "cannot write the file")(error));
        }
        self.rename(&draft)?;
        self.sync()?;
        Ok(true)
    }

    /// Makes a file the last spare.
    fn rename(&self, from: &str) -> Result<(), StoreError> {
        let mut state = self.state();
        let name = name(self.folder, state.next);
        self.disk.rename(from, &name).map_err(io_error(&self.disk.path(from), "cannot rename the file"))?;
        let next = state.next;
        state.spares.push_back((next, false));
        state.next += 1;
        Ok(())
    }

    /// Makes the names durable. The log's thread does that for a spare that it has taken meanwhile.
    fn sync(&self) -> Result<(), StoreError> {
        let known = self.state().next;
        self.disk
            .sync(self.folder)
            .map_err(io_error(&self.disk.path(self.folder), "cannot sync the folder"))?;
        self.state()
            .spares
            .iter_mut()
            .filter(|(number, _)| *number < known)
            .for_each(|(_, is_named)| *is_named = true);
        Ok(())
    }

    fn draft(&self) -> String {
        format!("{}/{DRAFT}", self.folder)
    }

    /// A panic under the lock leaves plain data that is still valid.
    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the whole durable content of a file; `None` if it is missing.
pub(super) fn read(disk: &dyn Disk, name: &str) -> io::Result<Option<Vec<u8>>> {
    let Some(file) = disk.open_durable(name)? else { return Ok(None) };
    let mut bytes = vec![0; usize::try_from(file.len()?).unwrap_or(usize::MAX)];
    file.read(0, &mut bytes)?;
    Ok(Some(bytes))
}

/// Creates a file of zeros, durable but for its name.
pub(super) fn fill(disk: &dyn Disk, name: &str, size: u64) -> io::Result<()> {
    let file = disk.create(name)?;
    for at in (0..size).step_by(ZEROS.len()) {
        let bytes = (size - at).min(ZEROS.len() as u64) as usize;
        file.write(at, &ZEROS[..bytes])?;
    }
    file.sync_data()
}
