//! `state.redb`: the checkpoint of the state, one commit a checkpoint.
//!
//! **Invariant:** one commit holds the rows, their checksum, the index they stand for, its term and
//! the membership of exactly that index. Nothing else writes the checkpoint.

use super::error::StoreError;
use super::file::{Reading, RedbFile, StoreFault, TableName, Writing, WritingTable};
use super::pieces::RowPiece;
use super::rows::{self, DirtyRows, REPLY, RESTORE_PART, RowKey};
use lockmesh_core::State;
use lockmesh_core::checksum::{self, Checksum};
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
/// How far other servers had come; absent where none was ever heard.
const PEERS_KEY: &[u8] = b"peers";
/// The snapshot that the rows are a copy of; absent in checkpoints of versions that did not keep
/// it.
const COPY_KEY: &[u8] = b"copy of";

/// The checksum of the rows, and its format; absent in checkpoints of versions that kept none.
const CHECKSUM_KEY: &[u8] = b"checksum";

/// So many rows of a deleted tree leave the checkpoint in one portion.
const PORTION_ROWS: usize = 500;

/// A part of a backup is closed when its rows reach this many bytes. One row may be longer.
pub(super) const PART_BYTES: usize = 1 << 20;

/// The checkpoint on disk. One thread writes it, any may read it.
#[derive(Debug)]
pub(super) struct CheckpointStore {
    file: RedbFile,
    /// The checksum of the rows when it was opened: for a checkpoint that does not hold it yet.
    opened_with: Checksum,
}

impl CheckpointStore {
    /// What a new checkpoint begins with.
    pub(super) fn fill(writing: &mut Writing<'_>, mark: &SnapshotMeta) -> Result<(), StoreFault> {
        writing.table(MARKS)?.put(MARK_KEY, &encode(mark))
    }

    /// Reads a checkpoint that was opened, with the state that it holds, and compares it with its
    /// checksum.
    pub(super) fn load(file: RedbFile) -> Result<(Self, SnapshotMeta, State), StoreError> {
        let reading = file.read()?;
        let mark = mark_of(&reading).map_err(|fault| file.fault(fault))?;
        let (mut state, mut sum) = (State::default(), Checksum::default());
        reading
            .each(ROWS, &[], |key, value| {
                let row = decode(value)?;
                if !rows::is_key_of(key, &row) {
                    return Err(StoreFault::Damaged("a row lies under the name of another one".to_owned()));
                }
                sum.add(value);
                state.load(row);
                Ok(true)
            })
            .map_err(|fault| file.fault(fault))?;
        // A row that is lost, or comes from elsewhere, may be sound by itself: only the sum of all
        // shows it.
        if let Some(kept) = checksum_of(&reading).map_err(|fault| file.fault(fault))?
            && kept != sum
        {
            let reason = format!("the checksum of its rows is {sum}, but {kept} was written with them");
            return Err(file.damaged(reason));
        }
        drop(reading);
        Ok((Self { file, opened_with: sum }, mark, state))
    }

    /// The file behind the checkpoint.
    pub(super) fn file(&self) -> &RedbFile {
        &self.file
    }

    /// Makes the checkpoint stand for `mark`, durably; the checksum of all its rows. May be called
    /// again with the same after an error.
    ///
    /// Deleted trees leave it first, in portions, all within the one commit: `rest` is called
    /// between two of them, so that processor and disk are there for others too.
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
                // What an attempt that failed has written may be there all the same, with its
                // checksum.
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
            // In the same commit: rows and the index that they stand for never part.
            Self::fill(writing, mark)
        })?;
        Ok(sum)
    }

    /// What the server knew for itself when the checkpoint was made.
    pub(super) fn own(&self) -> Result<OwnMemory, StoreError> {
        Ok(OwnMemory { peers: self.kept(PEERS_KEY)?, copy_of: self.kept(COPY_KEY)? })
    }

    /// What is kept beside the rows; as empty as can be where it never was.
    fn kept<T: DeserializeOwned + Default>(&self, key: &[u8]) -> Result<T, StoreError> {
        let bytes = self.file.read()?.get(MARKS, key).map_err(|fault| self.file.fault(fault))?;
        let kept = bytes.map(|bytes| wire::decode_stored(&bytes)).transpose();
        Ok(kept.map_err(|error| self.file.damaged(error.to_string()))?.unwrap_or_default())
    }

    /// Makes the file ready to be closed. What was committed stays, ready or not.
    pub(super) fn finish(&self) {
        let mark =
            self.file.read().and_then(|reading| mark_of(&reading).map_err(|fault| self.file.fault(fault)));
        match mark {
            Ok(mark) => self.file.finish(|writing| Self::fill(writing, &mark)),
            Err(error) => tracing::warn!(%error, "cannot read the checkpoint any more"),
        }
    }

    /// Begins a backup of what the checkpoint holds now.
    pub(super) fn backup(&self) -> Result<Backup, StoreError> {
        let reading = self.file.read()?;
        let fault = |fault| self.file.fault(fault);
        let mark = mark_of(&reading).map_err(fault)?;
        // A checkpoint of an older build has none, so the one that was counted when it was opened
        // is told.
        let checksum = checksum_of(&reading).map_err(fault)?.unwrap_or(self.opened_with);
        let RowKey(cluster_id_key) = rows::cluster_id_key();
        let cluster_id = match reading.get(ROWS, &cluster_id_key).map_err(fault)? {
            Some(bytes) => match decode(&bytes).map_err(fault)? {
                Change::ClusterId(id) => id,
                _ => return Err(self.file.damaged("the row of the cluster's id holds something else")),
            },
            None => String::new(),
        };
        let mark = (mark, checksum);
        Ok(Backup::new(self.file.path(), Box::new(reading), mark, cluster_id, PART_BYTES))
    }
}

fn mark_of(reading: &Reading) -> Result<SnapshotMeta, StoreFault> {
    let bytes = reading.get(MARKS, MARK_KEY)?;
    let bytes =
        bytes.ok_or_else(|| StoreFault::Damaged("it does not say what index it stands for".to_owned()))?;
    wire::decode_stored(&bytes).map_err(|error| StoreFault::Damaged(error.to_string()))
}

/// The checksum that was kept with the rows; none where there is none that this build could
/// compare.
fn checksum_of(reading: &Reading) -> Result<Option<Checksum>, StoreFault> {
    decode_checksum(reading.get(MARKS, CHECKSUM_KEY)?)
}

fn decode_checksum(bytes: Option<Vec<u8>>) -> Result<Option<Checksum>, StoreFault> {
    let kept = bytes.map(|bytes| wire::decode_stored::<(u32, Checksum)>(&bytes)).transpose();
    let kept = kept.map_err(|error| StoreFault::Damaged(error.to_string()))?;
    Ok(kept.filter(|(format, _)| *format == checksum::FORMAT).map(|(_, sum)| sum))
}

/// Makes the rows what they shall be, and keeps their checksum: deleted trees go first.
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

/// Looks at a row's key and content; false where it has seen enough.
pub(super) type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<bool, StoreFault> + 'a;

/// Rows of a checkpoint as they were at one moment, in the order of their keys.
pub(super) trait RowSource: Send {
    /// Calls `visit` with each row from a key on, until it says `false`.
    fn each(&self, from: &[u8], visit: &mut Visit<'_>) -> Result<(), StoreFault>;
}

impl RowSource for Reading {
    fn each(&self, from: &[u8], visit: &mut Visit<'_>) -> Result<(), StoreFault> {
        Reading::each(self, ROWS, from, visit)
    }
}

/// A backup under way: the checkpoint as it was at one moment, in parts. Later checkpoints do not
/// disturb it.
///
/// While it lives the file cannot reuse the space of rows that change, so drop it when nobody asks
/// any more.
pub struct Backup {
    path: std::path::PathBuf,
    rows: Box<dyn RowSource>,
    mark: SnapshotMeta,
    checksum: Checksum,
    cluster_id: String,
    /// A part is closed when its rows reach this many bytes. One row may be longer.
    part_bytes: usize,
    /// Where each part that is known begins; none where the part before it was the last one.
    starts: Vec<Option<Vec<u8>>>,
    /// The same for raw parts: a row, and how many bytes of it went before.
    raw_starts: Vec<Option<(Vec<u8>, usize)>>,
}

/// A part of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Changes that set rows anew, at most about 1 MiB of them.
    pub rows: Vec<Change>,
    /// Whether no part follows.
    pub last: bool,
}

/// A part of a backup as it lies in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawPart {
    /// A piece of the rows.
    pub rows: Vec<u8>,
    /// Whether no part follows.
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

    /// Closes parts sooner or later than usual.
    #[cfg(any(test, feature = "testing"))]
    pub fn in_parts_of(self, part_bytes: usize) -> Self {
        Self { part_bytes, ..self }
    }

    /// What the backup stands for.
    pub fn mark(&self) -> &SnapshotMeta {
        &self.mark
    }

    /// The checksum that was kept with the rows.
    pub fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// The cluster that it is of; empty before the cluster's first command.
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// Reads a part: any that was read before, or the one that follows; none where there is no such
    /// part.
    ///
    /// What a restore has gathered so far is left out: it is not part of the state yet. So are kept
    /// replies, any of which may be longer than a part can be: whoever restores a backup keeps its
    /// own.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged. What was read so far is no backup: begin a new one.
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
        // A part may be asked for again; only a new one says where the next begins.
        if self.starts.len() == number as usize + 1 {
            self.starts.push(next);
        }
        Ok(Some(Part { rows, last }))
    }

    /// Reads a part with all its rows as they lie in the file, as bytes for a [`super::RowReader`]:
    /// any that was read before, or the one that follows; none where there is no such part.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged. What was read so far is no snapshot: begin a new
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
