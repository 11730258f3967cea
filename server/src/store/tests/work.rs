//! The store's threads: group commits, checkpoints, compactions, backups, disk errors, and closing.

use super::script::{Model, Step, StoreWriter, open_disk, options};
use crate::store::disk::Disk;
use crate::store::log::LogStore;
use crate::store::names::{LOG, STATE};
use crate::store::testing::{Failure, FaultyDisk};
use crate::store::{DirtyRows, Store, StoreEvent, StoreHandle, StoreHealth};
use bytes::Bytes;
use lockmesh_core::durability::checksum::Checksum;
use lockmesh_core::durability::write_queue::CheckpointRows;
use lockmesh_core::raft::log::{
    EntryKind, HardState, LogEntry, LogWrite, OwnMemory, PeerMemory, SnapshotMeta,
};
use lockmesh_core::raft::message::{MessageKind, PeerMessage};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{AgentNumber, LogIndex, ServerId, Term};
use lockmesh_protocol::reply::{Applied, Refusal, Reply};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

/// Longer than any step here takes: only a failing test waits for it.
const TIMEOUT: Duration = Duration::from_secs(60);

fn start(store: Store) -> (StoreHandle, Receiver<StoreEvent>) {
    let (sender, events) = sync_channel(10_000);
    let handle = store.start(move |event| drop(sender.send(event))).expect("there are threads enough");
    (handle, events)
}

fn wait_for(events: &Receiver<StoreEvent>, wanted: impl Fn(&StoreEvent) -> bool) -> Vec<StoreEvent> {
    let mut seen = Vec::new();
    loop {
        let event = events.recv_timeout(TIMEOUT).unwrap_or_else(|_| panic!("only {seen:?} happened"));
        seen.push(event.clone());
        if wanted(&event) {
            return seen;
        }
    }
}

/// Returns a write of one entry; the commit index follows it by one.
fn write(number: u64) -> LogWrite {
    let entry = LogEntry {
        index: LogIndex(number + 1),
        term: Term(1),
        kind: EntryKind::Normal,
        data: Bytes::from(vec![number as u8; 200]),
        context: Bytes::new(),
    };
    let hard_state = HardState { term: Term(1), vote: ServerId(1), commit: LogIndex(number) };
    LogWrite { number, reset: None, entries: vec![entry], hard_state: Some(hard_state) }
}

fn mark(index: u64) -> SnapshotMeta {
    SnapshotMeta { index: LogIndex(index), ..options().first_snapshot }
}

fn reply(sequence: u64, length: usize) -> Change {
    let reply = Applied { index: LogIndex(1), reply: Reply::Refused(Refusal::Catalog("x".repeat(length))) };
    Change::Reply(AgentNumber(1), sequence, Some(Arc::new(reply)))
}

fn agent(number: u32, length: usize) -> Change {
    let number = AgentNumber(number);
    let agent = super::agent(number, "n1", "x".repeat(length));
    Change::Agent(number, Some(Arc::new(agent)))
}

fn dirty(changes: impl IntoIterator<Item = Change>) -> DirtyRows {
    let mut dirty = DirtyRows::default();
    dirty.extend(changes);
    dirty
}

#[test]
fn queued_writes_share_commit() {
    let disk = FaultyDisk::default();
    let (store, events) = start(open_disk(&disk).expect("nothing is wrong with it").0);
    disk.fail(None);
    store.write((1..=1_000).map(write)).expect("it is open");
    wait_for(&events, |event| *event == StoreEvent::Persisted(1_000));
    // Each commit syncs once; one at a time would have been a thousand.
    assert!(disk.operations() < 500, "{} operations", disk.operations());
    store.close();
    let (_, recovered) = open_disk(&disk).expect("nothing is wrong with it");
    assert_eq!(recovered.entries.len(), 1_000);
    assert_eq!(recovered.hard_state.commit, LogIndex(1_000));
}

#[test]
fn restart_recovers_from_real_folder() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let mut model = Model::new();
    let mut writer = StoreWriter::new(77);
    for _ in 0..3 {
        let (store, recovered) = Store::open(folder.path(), &options()).expect("nothing is wrong with it");
        model.explains(&store, &recovered).expect("what was left is found");
        let (store, events) = start(store);
        for step in writer.steps(40) {
            model.apply(&step);
            run_step(&store, &events, step);
        }
        store.close();
    }
    let (store, recovered) = Store::open(folder.path(), &options()).expect("nothing is wrong with it");
    model.explains(&store, &recovered).expect("what was left is found");
}

/// Passes a step to the threads, which write the commit index before a checkpoint themselves.
fn run_step(store: &StoreHandle, events: &Receiver<StoreEvent>, step: Step) {
    match step {
        Step::Write(writes) => {
            let last = writes.last().expect("no step is empty").number;
            store.write(writes).expect("it is open");
            wait_for(events, |event| *event == StoreEvent::Persisted(last));
        }
        Step::Checkpoint(mark, changes) => {
            let index = mark.index;
            match changes.first() {
                Some(Change::Cleared) => store.install(mark, dirty(changes)),
                _ => store.checkpoint(mark, dirty(changes)),
            }
            wait_for(events, |event| is_checkpoint(event, index));
        }
        Step::Compact(up_to) => store.compact(up_to),
        Step::Commit(_) => {}
    }
}

#[test]
fn exact_checkpoint_reports_its_checksum() {
    let disk = FaultyDisk::default();
    let (store, events) = start(open_disk(&disk).expect("nothing is wrong with it").0);
    store.write((1..=4).map(write)).expect("it is open");
    let [first, exact, last] = [agent(1, 10), agent(2, 20), agent(1, 30)];
    // Its commit index comes last, so that all three wait together.
    store.checkpoint(mark(2), dirty([first.clone()]));
    store.checkpoint_exactly(mark(3), dirty([exact.clone()]));
    store.checkpoint(mark(4), dirty([last.clone()]));
    let seen = wait_for(&events, |event| is_checkpoint(event, LogIndex(4)));
    let sums: Vec<_> = seen.iter().filter(|event| matches!(event, StoreEvent::Summed(..))).collect();
    assert_eq!(sums, [&StoreEvent::Summed(LogIndex(3), Checksum::of([first, exact.clone()]))]);
    assert_eq!(store.backup().expect("it is open").checksum(), Checksum::of([last, exact]));
    store.close();
}

#[test]
fn own_memory_kept_with_checkpoints() {
    let disk = FaultyDisk::default();
    let mut peers = PeerMemory::default();
    let beat = PeerMessage::new(MessageKind::Heartbeat, ServerId(2), ServerId(1));
    peers.note(beat.from, beat.certain_position().expect("a leader has a term"));
    let copy = OwnMemory { peers, copy_of: Some(LogIndex(7)) };
    let own = OwnMemory { copy_of: None, ..copy.clone() };
    let checkpoint = |index, changes: Vec<Change>, known: Option<&OwnMemory>| {
        let (store, _) = open_disk(&disk).expect("nothing is wrong with it");
        let mut rows = dirty(changes);
        known.into_iter().for_each(|known| rows.remember(known));
        store.checkpoints.write(&mark(index), &rows, || ()).expect("the disk is good");
        drop(store);
        open_disk(&disk).expect("nothing is wrong with it").1.own
    };
    assert_eq!(checkpoint(7, vec![Change::Cleared, reply(1, 10)], Some(&copy)), copy);
    assert_eq!(checkpoint(8, vec![reply(2, 10)], None), copy, "until something else is known");
    assert_eq!(checkpoint(9, vec![reply(3, 10)], Some(&own)), own);
}

#[test]
fn checkpoint_persists_commit_index_first() {
    let disk = FaultyDisk::default();
    let (store, events) = start(open_disk(&disk).expect("nothing is wrong with it").0);
    store.write((1..=5).map(write)).expect("it is open");
    wait_for(&events, |event| *event == StoreEvent::Persisted(5));
    // Index 6 was applied, but the newest hard state on disk has only 5.
    store.checkpoint(mark(6), dirty([reply(1, 10)]));
    wait_for(&events, |event| is_checkpoint(event, LogIndex(6)));
    // An older one in flight does not revert it.
    store.write([LogWrite { entries: Vec::new(), number: 6, ..write(5) }]).expect("it is open");
    wait_for(&events, |event| *event == StoreEvent::Persisted(6));
    store.close();
    // Read as stored, before opening would correct it.
    let place: Arc<dyn Disk> = Arc::new(disk.clone());
    let found = LogStore::load(&place, 64 << 10).expect("nothing is wrong with it").expect("it is there");
    assert_eq!(found.log.head().hard_state.commit, LogIndex(6));
    drop(found);
    let (_, recovered) = open_disk(&disk).expect("nothing is wrong with it");
    assert_eq!(recovered.snapshot.index, LogIndex(6));
}

#[test]
fn checkpoint_waits_for_commit_index() {
    let disk = FaultyDisk::default();
    let (store, events) = start(open_disk(&disk).expect("nothing is wrong with it").0);
    store.write((1..=5).map(write)).expect("it is open");
    wait_for(&events, |event| *event == StoreEvent::Persisted(5));
    disk.fail(Some(Failure::FileFull(LOG)));
    store.checkpoint(mark(6), dirty([reply(1, 10)]));
    wait_for(&events, |event| matches!(event, StoreEvent::Health(StoreHealth::Failing(_))));
    // Closing gives the checkpoint every chance; the disk would accept it.
    store.close();
    disk.fail(None);
    let (_, recovered) = open_disk(&disk).expect("nothing is wrong with it");
    assert_eq!(recovered.snapshot, mark(1));
    assert_eq!(recovered.hard_state.commit, LogIndex(5));
}

#[test]
fn compaction_stops_at_durable_checkpoint() {
    let disk = FaultyDisk::default();
    let (store, events) = start(open_disk(&disk).expect("nothing is wrong with it").0);
    for number in 1..=300 {
        store.write([write(number)]).expect("it is open");
        wait_for(&events, |event| *event == StoreEvent::Persisted(number));
    }
    store.compact(LogIndex(200));
    store.checkpoint(mark(100), DirtyRows::default());
    wait_for(&events, |event| is_checkpoint(event, LogIndex(100)));
    store.compact(LogIndex(200));
    for number in 301..=400 {
        store.write([write(number)]).expect("it is open");
        wait_for(&events, |event| *event == StoreEvent::Persisted(number));
    }
    store.close();
    let (_, recovered) = open_disk(&disk).expect("nothing is wrong with it");
    assert_eq!(recovered.base.0, LogIndex(100), "all up to the checkpoint was compacted, and nothing beyond");
    assert_eq!(recovered.entries.last().map(|entry| entry.index), Some(LogIndex(401)));
}

#[test]
fn merged_checkpoints_keep_all_rows() {
    let disk = FaultyDisk::default();
    let (store, events) = start(open_disk(&disk).expect("nothing is wrong with it").0);
    store.write((1..=8).map(write)).expect("it is open");
    wait_for(&events, |event| *event == StoreEvent::Persisted(8));
    disk.fail(Some(Failure::FileFull(LOG)));
    store.checkpoint(mark(9), dirty([reply(1, 10)]));
    // Now the checkpoint's thread waits for the log's, and later checkpoints wait for both.
    wait_for(&events, |event| matches!(event, StoreEvent::Health(StoreHealth::Failing(_))));
    store.checkpoint(mark(10), dirty([reply(2, 10)]));
    store.checkpoint(mark(11), dirty([reply(3, 10)]));
    disk.fail(None);
    wait_for(&events, |event| is_checkpoint(event, LogIndex(11)));
    store.close();
    let (_, recovered) = open_disk(&disk).expect("nothing is wrong with it");
    assert_eq!(recovered.snapshot, mark(11));
    let rows: Vec<Change> = recovered.state.rows().filter(|row| matches!(row, Change::Reply(..))).collect();
    assert_eq!(rows, [reply(1, 10), reply(2, 10), reply(3, 10)]);
}

#[test]
fn reset_waits_for_checkpoint() {
    let disk = FaultyDisk::default();
    let (store, events) = start(open_disk(&disk).expect("nothing is wrong with it").0);
    let reset = LogWrite { number: 2, reset: Some(mark(50)), entries: Vec::new(), hard_state: None };
    store.write([write(1), reset]).expect("it is open");
    let seen = wait_for(&events, |event| matches!(event, StoreEvent::Persisted(_)));
    assert_eq!(seen, [StoreEvent::Persisted(1)]);
    assert_eq!(store.queued_writes(), 1);
    store.install(mark(50), dirty([Change::Cleared, reply(1, 10)]));
    let seen = wait_for(&events, |event| matches!(event, StoreEvent::Persisted(_)));
    assert!(seen.contains(&StoreEvent::Persisted(2)), "{seen:?}");
    store.close();
    let (_, recovered) = open_disk(&disk).expect("nothing is wrong with it");
    assert_eq!(recovered.base, (LogIndex(50), Term(1)));
    assert_eq!(recovered.hard_state.commit, LogIndex(50));
}

#[test]
fn full_disk_reported_and_survived() {
    let disk = FaultyDisk::default();
    let (store, events) = start(open_disk(&disk).expect("nothing is wrong with it").0);
    store.write([write(1)]).expect("it is open");
    wait_for(&events, |event| *event == StoreEvent::Persisted(1));
    disk.fail(Some(Failure::Full(0, u64::MAX)));
    store.write((2..=10).map(write)).expect("it is open");
    store.checkpoint(mark(2), dirty([reply(1, 10)]));
    let seen = wait_for(&events, |event| matches!(event, StoreEvent::Health(StoreHealth::Failing(_))));
    assert!(!seen.contains(&StoreEvent::Persisted(10)), "nothing was acknowledged: {seen:?}");
    let StoreHealth::Failing(reason) = store.health() else { panic!("the disk is full") };
    assert!(reason.contains("/log/") && reason.contains("no storage space"), "{reason}");
    disk.fail(None);
    let mut seen = wait_for(&events, |event| *event == StoreEvent::Persisted(10));
    if !seen.iter().any(|event| is_checkpoint(event, LogIndex(2))) {
        seen.extend(wait_for(&events, |event| is_checkpoint(event, LogIndex(2))));
    }
    assert!(seen.contains(&StoreEvent::Health(StoreHealth::Good)), "{seen:?}");
    assert_eq!(store.health(), StoreHealth::Good);
    store.close();
    let (_, recovered) = open_disk(&disk).expect("nothing is wrong with it");
    assert_eq!(recovered.entries.len(), 10);
}

#[test]
fn compaction_proceeds_while_checkpoint_fails() {
    let disk = FaultyDisk::default();
    let (store, events) = start(open_disk(&disk).expect("nothing is wrong with it").0);
    for number in 1..=900 {
        store.write([write(number)]).expect("it is open");
        wait_for(&events, |event| *event == StoreEvent::Persisted(number));
    }
    store.checkpoint(mark(800), DirtyRows::default());
    wait_for(&events, |event| is_checkpoint(event, LogIndex(800)));
    let segments = || disk.contents().into_keys().filter(|name| name.starts_with("log/0")).count();
    assert!(segments() > 6, "{} segments", segments());
    disk.fail(Some(Failure::FileFull(STATE)));
    store.checkpoint(mark(801), dirty([reply(1, 10)]));
    wait_for(&events, |event| matches!(event, StoreEvent::Health(StoreHealth::Failing(_))));
    store.compact(LogIndex(800));
    // The segment that is written, perhaps the one before it, and two spares.
    let begun = Instant::now();
    while segments() > 4 {
        std::thread::sleep(Duration::from_millis(5));
        assert!(begun.elapsed() < TIMEOUT, "{} segments", segments());
    }
    disk.fail(None);
    wait_for(&events, |event| is_checkpoint(event, LogIndex(801)));
    store.close();
}

#[test]
fn close_returns_with_failing_disk() {
    let disk = FaultyDisk::default();
    let (store, events) = start(open_disk(&disk).expect("nothing is wrong with it").0);
    store.write([write(1)]).expect("it is open");
    wait_for(&events, |event| *event == StoreEvent::Persisted(1));
    disk.fail(Some(Failure::PowerCut(0)));
    store.write([write(2)]).expect("it is open");
    store.checkpoint(mark(2), DirtyRows::default());
    wait_for(&events, |event| matches!(event, StoreEvent::Health(_)));
    store.close();
    assert!(events.iter().all(|event| event != StoreEvent::Persisted(2)));
    let found = disk.after_power_cut(crate::store::testing::Survival::Nothing);
    let (_, recovered) = open_disk(&found).expect("nothing is wrong with it");
    assert_eq!(recovered.entries, write(1).entries);
}

#[test]
fn backup_is_consistent_and_rereadable() {
    let disk = FaultyDisk::default();
    let (store, events) = start(open_disk(&disk).expect("nothing is wrong with it").0);
    store.write((1..=9).map(write)).expect("it is open");
    let rows = |length| (0..2_000).map(move |number| agent(number, length));
    let gathered = Change::RestorePart(1, 0, Some(Bytes::from_static(b"rows")));
    let cluster = Change::ClusterId("of-the-test".to_owned());
    store.checkpoint(mark(5), dirty(rows(2_000).chain([gathered, cluster.clone(), reply(1, 9 << 20)])));
    wait_for(&events, |event| is_checkpoint(event, LogIndex(5)));
    let mut backup = store.backup().expect("the checkpoint can be read");
    assert_eq!((backup.mark(), backup.cluster_id()), (&mark(5), "of-the-test"));
    let first = backup.part(0).expect("it can be read").expect("there is a first part");
    assert!(!first.last);
    assert_eq!(backup.part(2).expect("it can be read"), None, "parts follow each other");

    store.checkpoint(mark(6), dirty(rows(1)));
    wait_for(&events, |event| is_checkpoint(event, LogIndex(6)));
    let mut found = Vec::new();
    for number in 0.. {
        let part = backup.part(number).expect("it can be read").expect("the part follows");
        let bytes: usize = part.rows.iter().map(|row| crate::store::rows::encode(row).len()).sum();
        assert!(bytes <= 1 << 20, "a part of {bytes} bytes");
        found.extend(part.rows);
        if part.last {
            break;
        }
    }
    assert_eq!(backup.part(0).expect("it can be read"), Some(first), "the first part again");
    let mut expected: Vec<Change> = rows(2_000).collect();
    expected.push(cluster);
    assert_eq!(found, expected);
}

fn is_checkpoint(event: &StoreEvent, index: LogIndex) -> bool {
    matches!(event, StoreEvent::Checkpointed(mark) if mark.index == index)
}

#[test]
fn dead_space_reclaimed_rows_kept() {
    const MIB: u64 = 1 << 20;
    let disk = FaultyDisk::default();
    let (store, _) = open_disk(&disk).expect("nothing is wrong with it");
    let checkpoint = |index, changes: Vec<Change>| {
        let mut rows = dirty(changes);
        rows.sort();
        store.checkpoints.write(&mark(index), &rows, || ()).expect("the disk works")
    };
    // Every tenth row stays, so that what is dead lies between the others.
    let numbers = 1..=1_000_u32;
    checkpoint(2, numbers.clone().map(|number| agent(number, 60_000)).collect());
    let gone =
        numbers.filter(|number| number % 10 != 0).map(|number| Change::Agent(AgentNumber(number), None));
    let sum = checkpoint(3, gone.collect());
    let before = store.checkpoints.file().space().expect("the disk works");
    assert!(before.free > 16 * MIB && before.free > before.used, "{before:?}");
    let view = store.checkpoints.backup().expect("the disk works");
    let kept = store.checkpoints.give_space_back().expect("a view only keeps the space");
    drop(view);
    let after = store.checkpoints.give_space_back().expect("the disk works");
    assert!(after.free <= 16 * MIB && after.free < kept.free, "{before:?}, {kept:?}, {after:?}");
    drop(store);
    let (store, recovered) = open_disk(&disk).expect("nothing is wrong with it");
    assert_eq!(store.checkpoints.backup().expect("the disk works").checksum(), sum);
    assert_eq!((recovered.snapshot.index, recovered.state.agents().len()), (LogIndex(3), 100));
}
