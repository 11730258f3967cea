//! Snapshot transfer, the receiving side: decides which part to request, which parts to accept,
//! when to retry, and when to give up.
//!
//! ```text
//! request ──> answered ──┬── Ask        for the next part, on the same connection
//!             lost ──────┼── AskAgain   after a pause, on another one; parts that have arrived stay
//!                        ├── Done       the snapshot is whole
//!                        └── GiveUp     the leader will offer one again
//! ```
//!
//! A pure value: the task in `fetch.rs` has the clock and the connection, the simulator has its
//! own. **Invariant:** a finished snapshot has every part, in order, from one reader, and every
//! checksum is the one that this reader computed.

use super::digest::{Digest, of_all, of_part};
use crate::store::{DirtyRows, RowReader};
use lockmesh_core::State;
use lockmesh_core::durability::checksum::{Checksum, FORMAT};
use lockmesh_core::raft::log::SnapshotMeta;
use lockmesh_protocol::backoff::Backoff;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::format::FormatError;
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::rpc::{MAX_FRAME_BYTES, Request, Response, SnapshotPart, Unavailable};
use lockmesh_protocol::time::Time;
use lockmesh_protocol::wire::{self, WireError};
use std::time::Duration;

/// The timeout of one part; the first one waits for a checkpoint.
pub const PART_TIMEOUT: Duration = Duration::from_secs(10);
/// The backoff before a lost connection is replaced: the first and the longest.
const RECONNECT_BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));
/// The download is given up after this time without an accepted part.
const GIVE_UP_AFTER: Duration = Duration::from_secs(15);

/// A fetched snapshot, in its forms for memory and disk.
#[derive(Debug)]
pub struct Fetched {
    /// The index, term and membership of the snapshot.
    pub mark: SnapshotMeta,
    /// The state that it holds.
    pub state: Box<State>,
    /// The same as rows that replace all others.
    pub rows: DirtyRows,
    /// The bytes of rows received.
    pub bytes: usize,
}

/// The reason why a snapshot, or a part of it, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The server's address is not known yet.
    #[error("the address of server {0} is unknown")]
    NoAddress(ServerId),
    /// No answer came.
    #[error("{0}")]
    Lost(String),
    /// The server cannot answer.
    #[error("{0}")]
    Unavailable(Unavailable),
    /// The answer belongs to another request.
    #[error("unexpected answer: {0:?}")]
    Unexpected(Box<Response>),
    /// The part is another one, or from another reader.
    #[error("received a part that was not requested")]
    NotRequested,
    /// The part was damaged on its way.
    #[error("part {0} has a wrong checksum")]
    PartChecksum(u32),
    /// The metadata cannot be decoded.
    #[error("invalid snapshot metadata: {0}")]
    Metadata(WireError),
    /// The parts belong to several snapshots.
    #[error("the parts have different metadata")]
    MixedMetadata,
    /// A row cannot be decoded.
    #[error(transparent)]
    Row(#[from] FormatError),
    /// The last part ends within a row.
    #[error("the last row is incomplete")]
    IncompleteRow,
    /// Parts are missing or in another order.
    #[error("the whole snapshot has a wrong checksum")]
    Checksum,
    /// The other server read something else than it wrote.
    #[error("the state on that server's disk is damaged: its checksum does not match")]
    DamagedState,
    /// The snapshot is older than the log that the leader has left.
    #[error("the snapshot is too old")]
    TooOld,
    /// The address belongs to another cluster by now.
    #[error("the snapshot at {address} is of the cluster {found}, not of {expected}")]
    OtherCluster {
        /// The address of the server.
        address: String,
        /// The cluster of its snapshot.
        found: String,
        /// The cluster of this server.
        expected: String,
    },
}

/// The next step after an answer, or after a failure.
#[derive(Debug)]
pub enum DownloadStep {
    /// Request the next part at once.
    Ask,
    /// Request it again on another connection, after this pause, for this reason.
    AskAgain(Duration, DownloadError),
    /// The snapshot is complete.
    Done(Box<Fetched>),
    /// The download failed for this reason.
    GiveUp(DownloadError),
}

/// A snapshot download in progress.
#[derive(Debug)]
pub struct SnapshotDownload {
    /// The snapshot's index must be this one or a later one.
    least: LogIndex,
    parts: Parts,
    backoff: Backoff,
    /// The start time, or the arrival of the last useful part when the connection was lost.
    heard: Time,
    /// The arrival of the last part on this connection.
    last_part: Option<Time>,
}

/// The parts received so far.
#[derive(Debug)]
struct Parts {
    reader: Option<u64>,
    mark: Option<SnapshotMeta>,
    digests: Vec<Digest>,
    rows: RowReader,
    state: Box<State>,
    dirty: DirtyRows,
    bytes: usize,
}

impl SnapshotDownload {
    /// Starts to fetch a snapshot of at least an index; `seed` randomizes its backoff.
    pub fn new(now: Time, least: LogIndex, seed: u64) -> Self {
        let backoff = Backoff::new(RECONNECT_BACKOFF, seed);
        Self { least, parts: Parts::new(), backoff, heard: now, last_part: None }
    }

    /// Returns the next request.
    pub fn request(&self) -> Request {
        let (snapshot, number) = (self.parts.reader, self.part_count());
        Request::SnapshotPart { snapshot, number, least: self.least }
    }

    /// Returns the number of parts received.
    pub fn part_count(&self) -> u32 {
        self.parts.digests.len() as u32
    }

    /// Returns the number of bytes received.
    pub fn byte_count(&self) -> usize {
        self.parts.bytes
    }

    /// Processes the answer to [`SnapshotDownload::request`].
    pub fn answered(&mut self, now: Time, response: Response) -> DownloadStep {
        let taken = match response {
            Response::SnapshotPart(part) => self.parts.add_part(&part),
            Response::Unavailable(reason) => Err(DownloadError::Unavailable(reason)),
            other => Err(DownloadError::Unexpected(Box::new(other))),
        };
        match taken {
            Ok(None) => {
                self.last_part = Some(now);
                DownloadStep::Ask
            }
            Ok(Some(mark)) if mark.index >= self.least => DownloadStep::Done(Box::new(self.finish(mark))),
            Ok(Some(_)) => self.restart(now, DownloadError::TooOld),
            Err(reason) => self.restart(now, reason),
        }
    }

    /// No answer came: the parts received so far stay.
    pub fn lost(&mut self, now: Time, reason: String) -> DownloadStep {
        // A part on each connection is progress, however often connections are lost.
        if let Some(at) = self.last_part.take() {
            self.heard = at;
            self.backoff.reset();
        }
        self.ask_again(now, DownloadError::Lost(reason))
    }

    /// Discards the parts received so far.
    fn restart(&mut self, now: Time, reason: DownloadError) -> DownloadStep {
        // Parts of two readers never fit together: each reads its own version of the state.
        (self.parts, self.last_part) = (Parts::new(), None);
        self.ask_again(now, reason)
    }

    fn ask_again(&mut self, now: Time, reason: DownloadError) -> DownloadStep {
        // The leader offers its snapshot again, and may have a newer one by then.
        if now.since(self.heard) > GIVE_UP_AFTER {
            return DownloadStep::GiveUp(reason);
        }
        DownloadStep::AskAgain(self.backoff.next_pause(), reason)
    }

    fn finish(&mut self, mark: SnapshotMeta) -> Fetched {
        let Parts { state, dirty: rows, bytes, .. } = std::mem::replace(&mut self.parts, Parts::new());
        Fetched { mark, state, rows, bytes }
    }
}

impl Parts {
    fn new() -> Self {
        let mut dirty = DirtyRows::default();
        dirty.record(Change::Cleared);
        let (reader, mark, digests, rows) = (None, None, Vec::new(), RowReader::default());
        Self { reader, mark, digests, rows, state: Box::new(State::new()), dirty, bytes: 0 }
    }

    /// Accepts a part; returns the snapshot's metadata when it is complete.
    fn add_part(&mut self, part: &SnapshotPart) -> Result<Option<SnapshotMeta>, DownloadError> {
        let number = self.digests.len() as u32;
        if part.number != number || self.reader.is_some_and(|reader| reader != part.snapshot) {
            return Err(DownloadError::NotRequested);
        }
        // Each part is verified on its own, so that damaged data is not loaded into the state.
        if part.digest != of_part(number, &part.mark, &part.rows) {
            return Err(DownloadError::PartChecksum(number));
        }
        let mark = wire::decode_bare::<(SnapshotMeta, (u32, Checksum)), MAX_FRAME_BYTES>(&part.mark);
        let (mark, (format, checksum)) = mark.map_err(DownloadError::Metadata)?;
        if self.mark.as_ref().is_some_and(|known| *known != mark) {
            return Err(DownloadError::MixedMetadata);
        }
        // Into memory and into the rows for the disk at once: the snapshot is read only once.
        for row in self.rows.add(&part.rows)? {
            self.state.load(row.clone());
            self.dirty.record(row);
        }
        self.reader = Some(part.snapshot);
        self.mark = Some(mark.clone());
        self.bytes += part.rows.len();
        self.digests.push(part.digest);
        match part.whole {
            None => Ok(None),
            Some(_) if !self.rows.is_done() => Err(DownloadError::IncompleteRow),
            Some(whole) if whole != of_all(&self.digests) => Err(DownloadError::Checksum),
            // The parts arrived as they were read; this verifies that the read data was right.
            Some(_) if format == FORMAT && checksum != self.rows.checksum() => {
                Err(DownloadError::DamagedState)
            }
            Some(_) => Ok(Some(mark)),
        }
    }
}

/// A small snapshot in two parts.
#[cfg(test)]
pub(super) fn sample_parts() -> Vec<SnapshotPart> {
    let rows = [Change::ClusterId("c".into()), Change::Fence(lockmesh_protocol::id::Fence(3))];
    parts_of(rows.clone(), Checksum::of(rows))
}

/// A small snapshot whose rows had this checksum when they were written.
#[cfg(test)]
fn parts_of(rows: [Change; 2], checksum: Checksum) -> Vec<SnapshotPart> {
    let mut mark = Vec::new();
    let index = LogIndex(7);
    wire::encode_into(&(SnapshotMeta { index, ..SnapshotMeta::default() }, (FORMAT, checksum)), &mut mark);
    let part = |(number, row): (u32, Change)| {
        let mut bytes = Vec::new();
        lockmesh_protocol::format::encode_into(&row, &mut bytes);
        let mut rows = (bytes.len() as u32).to_be_bytes().to_vec();
        rows.extend(bytes);
        let digest = of_part(number, &mark, &rows);
        SnapshotPart {
            snapshot: 5,
            number,
            mark: mark.clone().into(),
            rows: rows.into(),
            digest,
            whole: None,
        }
    };
    let mut parts: Vec<_> = (0..).zip(rows).map(part).collect();
    parts[1].whole = Some(of_all(&[parts[0].digest, parts[1].digest]));
    parts
}

#[cfg(test)]
mod tests {
    use super::{DownloadStep, GIVE_UP_AFTER, Parts, SnapshotDownload, of_part, parts_of, sample_parts};
    use bytes::Bytes;
    use lockmesh_core::durability::checksum::Checksum;
    use lockmesh_core::durability::write_queue::CheckpointRows;
    use lockmesh_protocol::change::Change;
    use lockmesh_protocol::id::{Fence, LogIndex};
    use lockmesh_protocol::rpc::{Request, Response, SnapshotPart, Unavailable};
    use lockmesh_protocol::time::Time;
    use std::time::Duration;

    /// A damage to a part, and the expected error.
    type Damage = (fn(&mut SnapshotPart), &'static str);

    const START: Time = Time(1_000_000);

    fn download() -> SnapshotDownload {
        SnapshotDownload::new(START, LogIndex(7), 1)
    }

    /// Returns the reader and the part that are requested.
    fn wanted(download: &SnapshotDownload) -> (Option<u64>, u32) {
        match download.request() {
            Request::SnapshotPart { snapshot, number, least: LogIndex(7) } => (snapshot, number),
            other => panic!("not what a download asks: {other:?}"),
        }
    }

    fn part(number: usize) -> Response {
        Response::SnapshotPart(sample_parts()[number].clone())
    }

    #[test]
    fn complete_download_yields_sent_state() {
        let mut download = download();
        assert_eq!(wanted(&download), (None, 0));
        assert!(matches!(download.answered(START, part(0)), DownloadStep::Ask));
        assert_eq!(wanted(&download), (Some(5), 1), "of the same reader");
        let DownloadStep::Done(fetched) = download.answered(START, part(1)) else { panic!("it is whole") };
        let state = &fetched.state;
        assert_eq!((fetched.mark.index, state.cluster_id(), state.fence()), (LogIndex(7), "c", Fence(3)));
        assert_eq!(fetched.rows.row_count(), 2);
    }

    #[test]
    fn source_damage_is_rejected() {
        let rows = |fence| [Change::ClusterId("c".into()), Change::Fence(Fence(fence))];
        let (mut taken, parts) = (Parts::new(), parts_of(rows(2), Checksum::of(rows(3))));
        assert_eq!(taken.add_part(&parts[0]).expect("it is whole"), None);
        let reason = taken.add_part(&parts[1]).expect_err("it is damaged").to_string();
        assert!(reason.contains("on that server's disk is damaged"), "{reason}");
    }

    #[test]
    fn damaged_parts_are_rejected() {
        let damages: [Damage; 6] = [
            (|part| part.rows = Bytes::from_static(b"\0\0\0\x01x"), "has a wrong checksum"),
            (|part| part.mark = Bytes::from_static(b"x"), "has a wrong checksum"),
            (|part| part.snapshot = 6, "was not requested"),
            (|part| part.number = 0, "was not requested"),
            (|part| part.whole = Some([0; 32]), "the whole snapshot has a wrong checksum"),
            (
                |part| {
                    part.rows = Bytes::from_static(b"\0\0\0\x09x");
                    part.digest = of_part(1, &part.mark, &part.rows);
                },
                "the last row is incomplete",
            ),
        ];
        for (damage, expected) in damages {
            let (mut taken, mut parts) = (Parts::new(), sample_parts());
            assert_eq!(taken.add_part(&parts[0]).expect("it is whole"), None);
            damage(&mut parts[1]);
            let reason = taken.add_part(&parts[1]).expect_err("it is damaged").to_string();
            assert!(reason.contains(expected), "{reason}");
        }
    }

    #[test]
    fn lost_answer_keeps_parts_denial_restarts() {
        let mut download = download();
        let _ = download.answered(START, part(0));
        assert!(matches!(download.lost(START, "gone".into()), DownloadStep::AskAgain(..)));
        assert_eq!(wanted(&download), (Some(5), 1));
        let refused = Response::Unavailable(Unavailable::Denied("this backup was closed".into()));
        assert!(matches!(download.answered(START, refused), DownloadStep::AskAgain(..)));
        assert_eq!(wanted(&download), (None, 0), "it starts again");
    }

    #[test]
    fn gives_up_without_useful_parts() {
        let later = START + GIVE_UP_AFTER;
        let tick = Duration::from_millis(1);
        let mut silent = download();
        assert!(matches!(silent.lost(later, "gone".into()), DownloadStep::AskAgain(..)), "not yet");
        assert!(matches!(silent.lost(later + tick, "gone".into()), DownloadStep::GiveUp(_)));

        let mut served = download();
        let _ = served.answered(START + tick, part(0));
        assert!(
            matches!(served.lost(later + tick, "gone".into()), DownloadStep::AskAgain(..)),
            "a part has come since"
        );

        let mut refused = download();
        let _ = refused.answered(START + tick, part(0));
        let refusal = Response::Unavailable(Unavailable::Denied("this backup was closed".into()));
        assert!(
            matches!(refused.answered(later + tick, refusal), DownloadStep::GiveUp(_)),
            "that part is of no use"
        );
    }

    #[test]
    fn outdated_snapshot_is_requested_again() {
        let mut download = SnapshotDownload::new(START, LogIndex(8), 1);
        let _ = download.answered(START, part(0));
        assert!(matches!(download.answered(START, part(1)), DownloadStep::AskAgain(..)));
        assert_eq!(download.part_count(), 0);
    }
}
