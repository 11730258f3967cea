//! `state.redb`: the checkpoint of the state, one commit per checkpoint.
//!
//! **Invariant:** one commit holds the rows, their checksum, their index, its term and the
//! membership of exactly that index. Nothing else writes the checkpoint.

use super::dead_space::{self, FileSpace};
use super::error::StoreError;
use super::file::{Reading, RedbFile, StoreFault, TableName, Writing, WritingTable};
use super::pieces::RowPiece;
use super::rows::{self, DirtyRows, REPLY, RESTORE_PART, RowKey};
use lockmesh_core::State;
use lockmesh_core::durability::checksum::{self, Checksum};
use lockmesh_core::raft::log::{OwnMemory, SnapshotMeta};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::format;
use lockmesh_protocol::wire;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ops::Range;

const ROWS: TableName = TableName::new("rows");
const MARKS: TableName = TableName::new("mark");
const MARK_KEY: &[u8] = b"mark";
/// The known positions of other servers; absent if none was ever known.
const PEERS_KEY: &[u8] = b"peers";
/// The snapshot that the rows are a copy of; absent in checkpoints of versions that did not keep
/// it.
const COPY_KEY: &[u8] = b"copy of";

/// The checksum of the rows, and its format; absent in checkpoints of versions that kept none.
const CHECKSUM_KEY: &[u8] = b"checksum";

/// The number of rows of a deleted tree that are removed in one portion.
const PORTION_ROWS: usize = 500;

/// A part of a backup is closed when its rows reach this many bytes. One row may be longer.
pub(super) const PART_BYTES: usize = 1 << 20;

/// The checkpoint on disk. One thread writes it, any may read it.
#[derive(Debug)]
pub(super) struct CheckpointStore {
    file: RedbFile,
    /// The checksum of the rows at opening: for a checkpoint that does not hold it yet.
    opened_with: Checksum,
}

impl CheckpointStore {
    /// Writes the first content of a new checkpoint.
    pub(super) fn fill(writing: &mut Writing<'_>, mark: &SnapshotMeta) -> Result<(), StoreFault> {
        writing.table(MARKS)?.put(MARK_KEY, &encode(mark))
    }

    /// Reads the state of an opened checkpoint, and compares it with its checksum.
    pub(super) fn load(file: RedbFile) -> Result<(Self, SnapshotMeta, State), StoreError> {
        let reading = file.read()?;
        let mark = mark_of(&reading).map_err(|fault| file.fault(fault))?;
        let (mut state, mut sum) = (State::default(), Checksum::default());
        reading
            .each(ROWS, &[], |key, value| {
                let row = decode(value)?;
                if !rows::is_key_of(key, &row) {
                    return Err(StoreFault::Damaged(
                        "a row is stored under the key of another one".to_owned(),
                    ));
                }
                sum.add(value);
                state.load(row);
                Ok(true)
            })
            .map_err(|fault| file.fault(fault))?;
        // A lost or foreign row may look valid on its own: only the sum of all rows reveals it.
        if let Some(kept) = checksum_of(&reading).map_err(|fault| file.fault(fault))?
            && kept != sum
        {
            let reason = format!("the checksum of its rows is {sum}, but {kept} was written with them");
            return Err(file.damaged(reason));
        }
        drop(reading);
        Ok((Self { file, opened_with: sum }, mark, state))
    }

    /// Returns the file of the checkpoint.
    pub(super) fn file(&self) -> &RedbFile {
        &self.file
    }

    /// Moves the checkpoint to `mark`, durably; returns the checksum of all its rows. May be called
    /// again with the same arguments after an error.
    ///
    /// Deleted trees are removed first, in portions, all within the one commit. `rest` is called
    /// between two of them, so that processor and disk are available to others.
    pub(super) fn write(
        &self,
        mark: &SnapshotMeta,
        dirty: &DirtyRows,
        mut rest: impl FnMut(),
    ) -> Result<Checksum, StoreError> {
        let mut sum = Checksum::default();
        self.file.write(|writing| {
            if dirty.cleared() {
                writing.remove_table(ROWS)?;
            } else {
                // A failed attempt may have been written, together with its checksum.
                let kept = writing.table(MARKS)?.get(CHECKSUM_KEY)?;
                sum = decode_checksum(kept)?.unwrap_or(self.opened_with);
            }
            write_rows(&mut writing.table(ROWS)?, dirty, &mut sum, &mut rest)?;
            let mut marks = writing.table(MARKS)?;
            marks.put(CHECKSUM_KEY, &encode(&(checksum::FORMAT, sum)))?;
            if let Some(own) = dirty.own() {
                marks.put(PEERS_KEY, &encode(&own.peers))?;
                marks.put(COPY_KEY, &encode(&own.copy_of))?;
            }
            drop(marks);
            // In the same commit: rows and their index are never separated.
            Self::fill(writing, mark)
        })?;
        Ok(sum)
    }

    /// Returns the server's own memory at the time of the checkpoint.
    pub(super) fn own(&self) -> Result<OwnMemory, StoreError> {
        Ok(OwnMemory { peers: self.kept(PEERS_KEY)?, copy_of: self.kept(COPY_KEY)? })
    }

    /// Returns a value kept beside the rows; its default if absent.
    fn kept<T: DeserializeOwned + Default>(&self, key: &[u8]) -> Result<T, StoreError> {
        let bytes = self.file.read()?.get(MARKS, key).map_err(|fault| self.file.fault(fault))?;
        let kept = bytes.map(|bytes| wire::decode_stored(&bytes)).transpose();
        Ok(kept.map_err(|error| self.file.damaged(error.to_string()))?.unwrap_or_default())
    }

    /// Gives dead space back; returns the space that the file takes now.
    pub(super) fn give_space_back(&self) -> Result<FileSpace, StoreError> {
        let reading = self.file.read()?;
        let mark = mark_of(&reading).map_err(|fault| self.file.fault(fault))?;
        // A view would keep the space of former rows.
        drop(reading);
        dead_space::give_back(&self.file, |writing| Self::fill(writing, &mark))
    }

    /// Prepares the file for closing. Commits stay durable even if this fails.
    pub(super) fn finish(&self) {
        let mark =
            self.file.read().and_then(|reading| mark_of(&reading).map_err(|fault| self.file.fault(fault)));
        match mark {
            Ok(mark) => self.file.finish(|writing| Self::fill(writing, &mark)),
            Err(error) => tracing::warn!(%error, "cannot read the checkpoint"),
        }
    }

    /// Begins a backup of the checkpoint's current content.
    pub(super) fn backup(&self) -> Result<Backup, StoreError> {
        let reading = self.file.read()?;
        let fault = |fault| self.file.fault(fault);
        let mark = mark_of(&reading).map_err(fault)?;
        // A checkpoint of an older build has none, so this uses the one computed at opening.
        let checksum = checksum_of(&reading).map_err(fault)?.unwrap_or(self.opened_with);
        let RowKey(cluster_id_key) = rows::cluster_id_key();
        let cluster_id = match reading.get(ROWS, &cluster_id_key).map_err(fault)? {
            Some(bytes) => match decode(&bytes).map_err(fault)? {
                Change::ClusterId(id) => id,
                _ => return Err(self.file.damaged("the row of the cluster's id has another type")),
            },
            None => String::new(),
        };
        let mark = (mark, checksum);
        Ok(Backup::new(self.file.path(), Box::new(reading), mark, cluster_id, PART_BYTES))
    }
}

fn mark_of(reading: &Reading) -> Result<SnapshotMeta, StoreFault> {
    let bytes = reading.get(MARKS, MARK_KEY)?;
    let bytes = bytes.ok_or_else(|| StoreFault::Damaged("its index is missing".to_owned()))?;
    wire::decode_stored(&bytes).map_err(|error| StoreFault::Damaged(error.to_string()))
}

/// Returns the checksum kept with the rows; `None` if there is none that this build can compare.
fn checksum_of(reading: &Reading) -> Result<Option<Checksum>, StoreFault> {
    decode_checksum(reading.get(MARKS, CHECKSUM_KEY)?)
}

fn decode_checksum(bytes: Option<Vec<u8>>) -> Result<Option<Checksum>, StoreFault> {
    let kept = bytes.map(|bytes| wire::decode_stored::<(u32, Checksum)>(&bytes)).transpose();
    let kept = kept.map_err(|error| StoreFault::Damaged(error.to_string()))?;
    Ok(kept.filter(|(format, _)| *format == checksum::FORMAT).map(|(_, sum)| sum))
}

/// Writes the changed rows and their checksum: deleted trees go first.
fn write_rows(
    table: &mut WritingTable<'_>,
    dirty: &DirtyRows,
    sum: &mut Checksum,
    mut rest: impl FnMut(),
) -> Result<(), StoreFault> {
    for Range { start: RowKey(start), end: RowKey(end) } in dirty.ranges() {
        while table.remove_some(&start, &end, PORTION_ROWS, |row| sum.remove(row))? == PORTION_ROWS {
            rest();
        }
    }
    for (RowKey(key), change) in dirty.rows() {
        match change {
            Some(change) => {
                let row = rows::encode(change);
                table.replace(&key, &row, |former| sum.remove(former))?;
                sum.add(&row);
            }
            None => table.take_out(&key, |former| sum.remove(former))?,
        }
    }
    Ok(())
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::encode_into(value, &mut bytes);
    bytes
}

fn decode(bytes: &[u8]) -> Result<Change, StoreFault> {
    Ok(format::decode(bytes)?)
}

/// Receives a row's key and content; returns `false` to stop.
pub(super) type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<bool, StoreFault> + 'a;

/// Rows of a checkpoint as they were at one moment, in the order of their keys.
pub(super) trait RowSource: Send {
    /// Calls `visit` with each row from a key on, until it returns `false`.
    fn each(&self, from: &[u8], visit: &mut Visit<'_>) -> Result<(), StoreFault>;
}

impl RowSource for Reading {
    fn each(&self, from: &[u8], visit: &mut Visit<'_>) -> Result<(), StoreFault> {
        Reading::each(self, ROWS, from, visit)
    }
}

/// A backup in progress: the checkpoint as it was at one moment, in parts. Later checkpoints do not
/// disturb it.
///
/// While it exists the file cannot reuse the space of rows that change, so drop it when it is no
/// longer needed.
pub struct Backup {
    path: std::path::PathBuf,
    rows: Box<dyn RowSource>,
    mark: SnapshotMeta,
    checksum: Checksum,
    cluster_id: String,
    /// A part is closed when its rows reach this many bytes. One row may be longer.
    part_bytes: usize,
    /// The first key of each known part; `None` if the part before it was the last one.
    starts: Vec<Option<Vec<u8>>>,
    /// The same for raw parts: a row, and the number of its bytes in earlier parts.
    raw_starts: Vec<Option<(Vec<u8>, usize)>>,
}

/// A part of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Changes that set rows, about 1 MiB at most.
    pub rows: Vec<Change>,
    /// `true` if no part follows.
    pub last: bool,
}

/// A part of a backup in the file's encoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawPart {
    /// A piece of the rows.
    pub rows: Vec<u8>,
    /// `true` if no part follows.
    pub last: bool,
}

impl Backup {
    pub(super) fn new(
        path: std::path::PathBuf,
        rows: Box<dyn RowSource>,
        (mark, checksum): (SnapshotMeta, Checksum),
        cluster_id: String,
        part_bytes: usize,
    ) -> Self {
        let (starts, raw_starts) = (vec![Some(Vec::new())], vec![Some((Vec::new(), 0))]);
        Self { path, rows, mark, checksum, cluster_id, part_bytes, starts, raw_starts }
    }

    /// Sets the size at which parts are closed.
    #[cfg(any(test, feature = "testing"))]
    pub fn in_parts_of(self, part_bytes: usize) -> Self {
        Self { part_bytes, ..self }
    }

    /// Returns the index, term and membership of the backup.
    pub fn mark(&self) -> &SnapshotMeta {
        &self.mark
    }

    /// Returns the checksum kept with the rows.
    pub fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// Returns the cluster's id; empty before the cluster's first command.
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// Reads a part: any that was read before, or the next one; `None` if there is no such part.
    ///
    /// The parts of an unfinished restore are left out: they do not belong to the state yet. Kept
    /// replies are left out too, since one may exceed a part: a server that restores a backup keeps
    /// its own.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged. The parts read so far are no backup: begin a new
    /// one.
    pub fn part(&mut self, number: u32) -> Result<Option<Part>, StoreError> {
        let Some(Some(start)) = self.starts.get(number as usize) else { return Ok(None) };
        let mut rows = Vec::new();
        let mut bytes = 0;
        let mut next = None;
        self.rows
            .each(start, &mut |key, value| {
                if matches!(key.first(), Some(&RESTORE_PART | &REPLY)) {
                    return Ok(true);
                }
                if !rows.is_empty() && bytes + value.len() > self.part_bytes {
                    next = Some(key.to_vec());
                    return Ok(false);
                }
                bytes += value.len();
                rows.push(decode(value)?);
                Ok(true)
            })
            .map_err(|fault| self.fault(fault))?;
        let last = next.is_none();
        // A part may be requested again; only a new one sets the start of the next.
        if self.starts.len() == number as usize + 1 {
            self.starts.push(next);
        }
        Ok(Some(Part { rows, last }))
    }

    /// Reads a part with all its rows in the file's encoding, as bytes for a [`super::RowReader`]:
    /// any that was read before, or the next one; `None` if there is no such part.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged. The parts read so far are no snapshot: begin a new
    /// one.
    pub fn raw_part(&mut self, number: u32) -> Result<Option<RawPart>, StoreError> {
        let Some(Some((start, skip))) = self.raw_starts.get(number as usize) else { return Ok(None) };
        let mut part = RowPiece::new(self.part_bytes, *skip);
        let mut next = None;
        self.rows
            .each(start, &mut |key, value| {
                if let Some(at) = part.append(value) {
                    next = Some((key.to_vec(), at));
                }
                Ok(next.is_none())
            })
            .map_err(|fault| self.fault(fault))?;
        let last = next.is_none();
        if self.raw_starts.len() == number as usize + 1 {
            self.raw_starts.push(next);
        }
        Ok(Some(RawPart { rows: part.into_bytes(), last }))
    }

    fn fault(&self, fault: StoreFault) -> StoreError {
        let path = self.path.clone();
        match fault {
            StoreFault::Io(source) => {
                StoreError::Io { path, doing: "cannot read the backup: begin a new one", source }
            }
            StoreFault::Damaged(reason) => StoreError::Damaged { path, reason },
            StoreFault::NewerFormat { found, known } => StoreError::NewerFormat { path, found, known },
        }
    }
}
