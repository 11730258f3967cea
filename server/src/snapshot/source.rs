//! A checkpoint being read: for another server with the checksums of the rows, or for an operator.
//!
//! A pure value over its source: `backup.rs` runs each on its own thread, the simulator has none.

use super::digest::{Digest, of_all, of_part};
use crate::store::{Backup, Part, RawPart, StoreError};
use bytes::Bytes;
use lockmesh_core::durability::checksum::FORMAT;
use lockmesh_core::frontend::CheckpointReader;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::rpc::{BackupPart, Response, SnapshotPart, Unavailable};
use lockmesh_protocol::wire::encode_into;
use std::time::Duration;

/// A backup's reader is closed after this time without a request. An agent requests the next part
/// as soon as it has packed the last one, which takes well below a second.
const BACKUP_TIMEOUT: Duration = Duration::from_secs(15);
/// The same for a snapshot: a little more than the time for which the fetching server retries.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(20);
/// The same for a reader that has read its last part, or whose caller gave up. It is kept in case
/// the answer was lost, or the caller comes back on another connection.
const LAST_TIMEOUT: Duration = Duration::from_secs(5);

/// A checkpoint that is read in parts.
pub struct CheckpointSource {
    rows: SourceKind,
    /// `true` if the last part was read.
    is_finished: bool,
    /// `true` if its caller gave up, and has sent no request since.
    is_abandoned: bool,
}

/// The purpose of a reader.
enum SourceKind {
    /// For an operator.
    Backup(Backup),
    /// For another server.
    Snapshot(Snapshot),
}

/// A snapshot for another server.
struct Snapshot {
    checkpoint: Backup,
    mark: Bytes,
    digests: Vec<Digest>,
}

impl CheckpointSource {
    /// Creates the source of a reader.
    pub fn new(reader: CheckpointReader, checkpoint: Backup) -> Self {
        let rows = match reader {
            CheckpointReader::Backup => SourceKind::Backup(checkpoint),
            CheckpointReader::Snapshot => SourceKind::Snapshot(Snapshot::new(checkpoint)),
        };
        Self { rows, is_finished: false, is_abandoned: false }
    }

    /// Returns the idle time after which it is closed. A server has room for few readers, and a
    /// snapshot must not wait for abandoned ones.
    pub fn timeout(&self) -> Duration {
        match &self.rows {
            _ if self.is_finished || self.is_abandoned => LAST_TIMEOUT,
            SourceKind::Backup(_) => BACKUP_TIMEOUT,
            SourceKind::Snapshot(_) => SNAPSHOT_TIMEOUT,
        }
    }

    /// Returns `true` if the last part was read.
    pub fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// The last caller canceled its request, or lost its connection. A server that fetches a
    /// snapshot comes back for the rest; an operator who has hung up does not.
    pub fn abandon(&mut self) {
        self.is_abandoned = matches!(self.rows, SourceKind::Backup(_));
    }

    /// Answers with a part: any that was read before, or the next one. `reader` is the reader's
    /// number.
    pub fn answer(&mut self, reader: u64, number: u32) -> Response {
        self.is_abandoned = false;
        let answer = match &mut self.rows {
            SourceKind::Backup(backup) => backup_part(reader, backup, number),
            SourceKind::Snapshot(snapshot) => snapshot.part(reader, number),
        };
        match answer {
            Ok(Some((part, is_last))) => {
                // The last part may be requested again, so the reader stays for a while.
                self.is_finished |= is_last;
                part
            }
            Ok(None) => refusal("this backup has no such part"),
            Err(error) => refusal(&error.to_string()),
        }
    }

    /// Returns the answer to a request for a closed reader.
    pub fn gone() -> Response {
        refusal("this backup was closed: begin a new one")
    }
}

pub(crate) fn refusal(why: &str) -> Response {
    Response::Unavailable(Unavailable::Denied(why.into()))
}

impl Snapshot {
    fn new(checkpoint: Backup) -> Self {
        let mut mark = Vec::new();
        encode_into(&(checkpoint.mark(), (FORMAT, checkpoint.checksum())), &mut mark);
        Self { checkpoint, mark: mark.into(), digests: Vec::new() }
    }

    fn part(&mut self, snapshot: u64, number: u32) -> Result<Option<(Response, bool)>, StoreError> {
        let Some(RawPart { rows, last }) = self.checkpoint.raw_part(number)? else { return Ok(None) };
        let digest = of_part(number, &self.mark, &rows);
        if self.digests.len() == number as usize {
            self.digests.push(digest);
        }
        let whole = last.then(|| of_all(&self.digests));
        let (mark, rows) = (self.mark.clone(), rows.into());
        let part = SnapshotPart { snapshot, number, mark, rows, digest, whole };
        Ok(Some((Response::SnapshotPart(part), last)))
    }
}

fn backup_part(
    reader: u64,
    backup: &mut Backup,
    number: u32,
) -> Result<Option<(Response, bool)>, StoreError> {
    let Some(Part { mut rows, last }) = backup.part(number)? else { return Ok(None) };
    // A backup is stored in less protected places than a data folder, and a restore keeps the
    // existing keys.
    rows.retain(|row| !matches!(row, Change::LeaseKey(_) | Change::GossipKey(_)));
    let (cluster_id, index, term) = (backup.cluster_id().into(), backup.mark().index, backup.mark().term);
    let part = BackupPart { backup: reader, cluster_id, index, term, number, last, rows };
    Ok(Some((Response::BackupPart(part), last)))
}

#[cfg(test)]
mod tests {
    use super::{BACKUP_TIMEOUT, CheckpointSource, LAST_TIMEOUT, SNAPSHOT_TIMEOUT};
    use crate::store::testing::backup_of;
    use lockmesh_core::State;
    use lockmesh_core::frontend::CheckpointReader;
    use lockmesh_core::raft::log::SnapshotMeta;
    use lockmesh_protocol::change::Change;
    use lockmesh_protocol::id::Fence;
    use lockmesh_protocol::lease::LeaseKey;
    use lockmesh_protocol::rpc::{Response, Unavailable};

    #[test]
    fn last_part_shortens_timeout() {
        let mut state = State::new();
        state.load(Change::ClusterId("c".into()));
        state.load(Change::Fence(Fence(3)));
        for (reader, usual) in
            [(CheckpointReader::Backup, BACKUP_TIMEOUT), (CheckpointReader::Snapshot, SNAPSHOT_TIMEOUT)]
        {
            let checkpoint = backup_of(SnapshotMeta::default(), &state).in_parts_of(1);
            let mut source = CheckpointSource::new(reader, checkpoint);
            let mut answers = (0..).map(|number| (source.answer(7, number), source.timeout()));
            let is_part = |answer: &Response| !matches!(answer, Response::Unavailable(_));
            let parts: Vec<_> = answers.by_ref().take_while(|(answer, _)| is_part(answer)).collect();
            let timeouts: Vec<_> = parts.iter().map(|(_, timeout)| *timeout).collect();
            let (last, before) = timeouts.split_last().expect("there is a part");
            assert!(*last == LAST_TIMEOUT && before.iter().all(|timeout| *timeout == usual), "{timeouts:?}");
            assert!(!before.is_empty(), "there are parts before the last one");
            let beyond = source.answer(7, 1_000);
            assert!(matches!(beyond, Response::Unavailable(Unavailable::Denied(_))), "{beyond:?}");
        }
    }

    #[test]
    fn abandonment_shortens_timeout_until_resumed() {
        let mut state = State::new();
        state.load(Change::Fence(Fence(3)));
        state.load(Change::ClusterId("c".into()));
        let source = |reader| {
            let checkpoint = backup_of(SnapshotMeta::default(), &state).in_parts_of(1);
            let mut source = CheckpointSource::new(reader, checkpoint);
            source.answer(7, 0);
            source.abandon();
            source
        };
        let mut backup = source(CheckpointReader::Backup);
        assert_eq!(backup.timeout(), LAST_TIMEOUT);
        backup.answer(7, 0);
        assert_eq!(backup.timeout(), BACKUP_TIMEOUT);
        assert_eq!(
            source(CheckpointReader::Snapshot).timeout(),
            SNAPSHOT_TIMEOUT,
            "the server will come back"
        );
    }

    #[test]
    fn backup_contains_no_secrets() {
        let mut state = State::new();
        let rows = [Change::ClusterId("c".into()), Change::Fence(Fence(3))];
        let secret = [Change::LeaseKey(LeaseKey([3; 32])), Change::GossipKey(2)];
        rows.iter().chain(&secret).for_each(|row| state.load(row.clone()));
        let mut backup =
            CheckpointSource::new(CheckpointReader::Backup, backup_of(SnapshotMeta::default(), &state));
        let Response::BackupPart(part) = backup.answer(7, 0) else { panic!("it has a part") };
        assert!(part.last && part.rows.len() == rows.len(), "{:?}", part.rows);
        assert!(rows.iter().all(|row| part.rows.contains(row)), "{:?}", part.rows);
    }
}
