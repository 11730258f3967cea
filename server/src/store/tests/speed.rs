//! Benchmarks of the store, on the disk that `TMPDIR` names. They only print: no duration can fail
//! them.
//!
//! `cargo test --release -p lockmesh-server --lib store::tests::speed -- --ignored --nocapture`

use super::script::options;
use crate::store::checkpoint::CheckpointStore;
use crate::store::file::TableName;
use crate::store::rows::{self, RowKey};
use crate::store::{DirtyRows, SEGMENT_BYTES, Store, StoreError, StoreOptions};
use bytes::Bytes;
use lockmesh_core::durability::checksum::Checksum;
use lockmesh_core::raft::log::{EntryKind, HardState, LogEntry, LogWrite, SnapshotMeta};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{AgentNumber, LogIndex, ServerId, Term};
use lockmesh_protocol::reply::{Applied, Refusal, Reply};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn write(last: &mut u64, entries: u64) -> LogWrite {
    let first = *last + 1;
    *last += entries;
    let entry = |index| LogEntry {
        index: LogIndex(index),
        term: Term(1),
        kind: EntryKind::Normal,
        data: Bytes::from(vec![7; 200]),
        context: Bytes::new(),
    };
    let hard_state = HardState { term: Term(1), vote: ServerId(1), commit: LogIndex(first - 1) };
    LogWrite {
        number: first,
        reset: None,
        entries: (first..=*last).map(entry).collect(),
        hard_state: Some(hard_state),
    }
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: f64| times[(times.len() as f64 * share) as usize];
    println!("{what}: median {:?}, 99 % {:?}, longest {:?}", at(0.5), at(0.99), times[times.len() - 1]);
}

/// Measures the disk alone.
fn bare_appends(folder: &Path) -> Vec<Duration> {
    let mut file = File::create(folder.join("bare")).expect("a file for the test");
    let append = |_| {
        let begun = Instant::now();
        file.write_all(&[7; 200]).expect("the disk takes it");
        file.sync_data().expect("the disk takes it");
        begun.elapsed()
    };
    (0..1_000).map(append).collect()
}

fn reply(sequence: u64) -> Change {
    let reply =
        Applied { index: LogIndex(sequence), reply: Reply::Refused(Refusal::Catalog("x".repeat(120))) };
    Change::Reply(AgentNumber(1), sequence, Some(Arc::new(reply)))
}

#[test]
#[ignore = "prints figures of this machine's disk"]
fn commits_checkpoints_and_opening() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let options = StoreOptions { segment_bytes: SEGMENT_BYTES, ..options() };
    let (mut store, _) = Store::open(folder.path(), &options).expect("nothing is wrong with it");
    report("bare append and fdatasync of 200 bytes", bare_appends(folder.path()));
    let mut last = 1;
    for (entries, rounds) in [(1, 4_000), (64, 1_000), (256, 400)] {
        for cutting in [false, true] {
            let mut times = Vec::new();
            for round in 0..rounds {
                if cutting && round % 500 == 0 {
                    store.log.compact(LogIndex(last));
                }
                let write = write(&mut last, entries);
                // As the checkpoint's thread does meanwhile.
                while store.log.pool().is_due() {
                    store.log.pool().prepare().expect("the disk takes it");
                }
                let begun = Instant::now();
                store.log.commit(&[write], LogIndex(0)).expect("the disk takes it");
                times.push(begun.elapsed());
            }
            report(&format!("commit of {entries} entries of 200 bytes, cutting {cutting}"), times);
        }
    }
    let mut dirty = DirtyRows::default();
    dirty.extend((0..200_000).map(reply));
    // The checkpoint must not be behind the log's compaction index.
    let mut index = last - 200;
    let mut checkpoint = |store: &Store, dirty: &DirtyRows| {
        index += 1;
        let mark = SnapshotMeta { index: LogIndex(index), ..options.first_snapshot.clone() };
        let begun = Instant::now();
        store.checkpoints.write(&mark, dirty, || ()).expect("the disk takes it");
        begun.elapsed()
    };
    println!("checkpoint of 200,000 new rows: {:?}", checkpoint(&store, &dirty));
    for rows in [64, 4_096] {
        let times = (0..50).map(|round| {
            let mut dirty = DirtyRows::default();
            dirty.extend((0..rows).map(|row| reply((row * 7_919 + round * 104_729) % 200_000)));
            checkpoint(&store, &dirty)
        });
        report(&format!("checkpoint of {rows} of 200,000 rows"), times.collect());
    }
    drop(store);
    let length = std::fs::metadata(folder.path().join("state.redb")).expect("it is there").len();
    println!("state.redb: {} MiB", length >> 20);
    let begun = Instant::now();
    let (_, recovered) = Store::open(folder.path(), &options).expect("nothing is wrong with it");
    println!("opened with {} entries and 200,000 rows in {:?}", recovered.entries.len(), begun.elapsed());
}

/// Writes a checkpoint as it would be without a checksum.
fn without_checksum(
    checkpoints: &CheckpointStore,
    mark: &SnapshotMeta,
    dirty: &DirtyRows,
) -> Result<(), StoreError> {
    checkpoints.file().write(|writing| {
        let mut table = writing.table(TableName::new("rows"))?;
        for (RowKey(key), change) in dirty.rows() {
            let row = rows::encode(change.expect("no row is removed here"));
            table.replace(&key, &row, |_| ())?;
        }
        drop(table);
        CheckpointStore::fill(writing, mark)
    })
}

#[test]
#[ignore = "prints figures of this machine's disk"]
fn checksum_cost() {
    const ROWS: u64 = 100_000;
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder for the test"));
    let stores = folders
        .each_ref()
        .map(|folder| Store::open(folder.path(), &options()).expect("nothing is wrong with it").0);
    let mut index = 1;
    for (rows, rounds) in [(ROWS, 11), (4_096, 51), (64, 101)] {
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..rounds {
            let mut dirty = DirtyRows::default();
            dirty.extend((0..rows).map(|row| reply((row * 7_919 + round * 104_729) % ROWS)));
            dirty.sort();
            index += 1;
            let mark = SnapshotMeta { index: LogIndex(index), ..options().first_snapshot };
            // Each of the two goes first in turn.
            for place in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
                let (checkpoints, begun) = (&stores[place].checkpoints, Instant::now());
                match place {
                    0 => checkpoints.write(&mark, &dirty, || ()).map(drop),
                    _ => without_checksum(checkpoints, &mark, &dirty),
                }
                .expect("the disk takes it");
                times[place].push(begun.elapsed());
            }
        }
        let [with, without] = times.map(|mut times| {
            times.sort();
            times[times.len() / 2].as_secs_f64() * 1e3
        });
        let ratio = with / without;
        println!(
            "checkpoint of {rows} of {ROWS} rows: {with:.1} ms, without checksum {without:.1} ms: {ratio:.2}"
        );
    }
    drop(stores);
    let begun = Instant::now();
    let (store, recovered) = Store::open(folders[0].path(), &options()).expect("nothing is wrong with it");
    let opened = begun.elapsed();
    let rows: Vec<_> = recovered.state.rows().map(|row| rows::encode(&row)).collect();
    let (begun, mut sum) = (Instant::now(), Checksum::default());
    rows.iter().for_each(|row| sum.add(row));
    let summed = begun.elapsed();
    let share = summed.as_secs_f64() / opened.as_secs_f64();
    println!(
        "opened with {} rows in {opened:?}, of which {summed:?} for the checksum ({share:.2})",
        rows.len()
    );
    drop((store, sum));
}
