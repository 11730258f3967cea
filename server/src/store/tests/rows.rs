//! Dirty rows against a plain replay of the same changes.

use super::script::{open_disk, options, remove_ranges, snapshot_rows};
use crate::store::DirtyRows;
use crate::store::rows::{Effect, RowKey, effect};
use crate::store::testing::{Draw, FaultyDisk};
use bytes::Bytes;
use lockmesh_core::State;
use lockmesh_core::durability::write_queue::CheckpointRows;
use lockmesh_core::raft::log::SnapshotMeta;
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::id::{AgentNumber, Fence, LogIndex, QueryId, SessionId, WallTime};
use lockmesh_protocol::prepared_query::{PreparedQuery, QuerySpec};
use lockmesh_protocol::record::{
    Agent, Coordinate, Entry, Lock, LockDelay, LockMode, LockRequest, ProcessBinding, RequestedLock,
    SharedHold, Waiter,
};
use lockmesh_protocol::reply::{Applied, Reply};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Names that are easily confused with each other when they are concatenated.
const NAMES: [&str; 8] = ["", "a", "ab", "b", "a\0b", "\0", "bc", "é"];

fn name(draw: &mut Draw) -> &'static str {
    NAMES[draw.below(NAMES.len() as u64) as usize]
}

/// A change of a lock in shared mode, or of a request.
fn lock_change(draw: &mut Draw, there: bool, index: LogIndex) -> Change {
    let (key, number) = (name(draw), draw.below(5));
    match draw.below(3) {
        0 => {
            let session = SessionId::from_random([number as u8; 16]);
            let (queue_position, granted_at) = (LogIndex(0), WallTime(7));
            let hold = SharedHold { granted_index: index, queue_position, granted_at, granted_for: None };
            Change::SharedHold(key.into(), session, there.then_some(hold))
        }
        1 => {
            let delay = LockDelay { started_at_index: index, duration: Duration::from_secs(5) };
            Change::SharedDelay(key.into(), there.then_some(delay))
        }
        _ => {
            let (mode, value) = (LockMode::Shared, Bytes::new());
            let lock = |key: &str| RequestedLock { key: key.into(), mode, value: value.clone(), flags: 0 };
            let request = LockRequest {
                session: SessionId::from_random([7; 16]),
                locks: vec![lock("a"), lock("b")],
                wait: Duration::from_secs(15),
                enqueued_at_index: index,
                enqueued_at: WallTime(7),
            };
            Change::LockRequest(LogIndex(number * 16 + 15), there.then(|| Arc::new(request)))
        }
    }
}

fn change(draw: &mut Draw) -> Change {
    let there = draw.below(3) != 0;
    let number = draw.below(5);
    let index = LogIndex(draw.below(1_000));
    match draw.below(21) {
        0 => {
            let key = name(draw);
            Change::Entry(key.into(), there.then(|| Arc::new(entry(key, index))))
        }
        1 => Change::Tombstone(name(draw).into(), there.then_some(index)),
        2 => {
            let delay = LockDelay { started_at_index: index, duration: Duration::from_secs(15) };
            Change::LockDelay(name(draw).into(), there.then_some(delay))
        }
        3 => Change::Service(name(draw).into(), name(draw).into(), None),
        4 => Change::NodeIndex(name(draw).into(), there.then_some(index)),
        5 => {
            let applied = Applied { index, reply: Reply::Done };
            Change::Reply(AgentNumber(number as u32), draw.below(12), there.then(|| Arc::new(applied)))
        }
        6 => Change::LowestSequence(AgentNumber(number as u32), index.0),
        7 => Change::Agent(AgentNumber(number as u32), there.then(|| Arc::new(agent(number as u32)))),
        8 => Change::TableIndex([Table::Entries, Table::Checks][draw.below(2) as usize], index),
        9 => Change::Fence(Fence(index.0)),
        10 => Change::LastAgent(AgentNumber(number as u32)),
        11 => Change::ClusterId(name(draw).to_owned()),
        12 => Change::RestorePart(number, 1, there.then(|| Bytes::from_static(b"part"))),
        13 => {
            let (session, value) = (SessionId::from_random([7; 16]), Bytes::new());
            let wait = Duration::from_secs(15);
            let waiter = Waiter { session, value, flags: 0, wait, enqueued_at_index: index };
            // A position belongs to one request.
            let key = draw.below(NAMES.len() as u64);
            let position = LogIndex(number * 16 + key);
            Change::Waiter(NAMES[key as usize].into(), position, there.then(|| Arc::new(waiter)))
        }
        14 => Change::Coordinate(name(draw).into(), there.then(|| Arc::new(Coordinate::default()))),
        15 => {
            let (id, create_index) = (QueryId::from_random([number as u8; 16]), index);
            let spec = QuerySpec { name: name(draw).into(), ..QuerySpec::default() };
            let query = PreparedQuery { id, spec, create_index, modify_index: index };
            Change::PreparedQuery(id, there.then(|| Arc::new(query)))
        }
        16 => {
            let id = SessionId::from_random([number as u8; 16]);
            let binding =
                ProcessBinding { pid: 7, started_at: index.0, boot_id: [1; 16], keeps_lock_delay: false };
            Change::Binding(name(draw).into(), id, there.then_some(binding))
        }
        17..=19 => lock_change(draw, there, index),
        _ if draw.below(30) == 0 => Change::Cleared,
        _ if draw.below(3) == 0 => Change::TreeDeleted(name(draw).into()),
        _ => Change::IndexBase(index.0),
    }
}

/// A reply is only set if absent: an existing one is removed instead.
fn once(change: Change, rows: &BTreeMap<RowKey, Change>) -> Change {
    match (&change, effect(&change)) {
        (Change::Reply(agent, sequence, _), Effect::Row(key, _)) if rows.contains_key(&key) => {
            Change::Reply(*agent, *sequence, None)
        }
        _ => change,
    }
}

fn entry(key: &str, index: LogIndex) -> Entry {
    Entry {
        key: key.into(),
        value: Bytes::from_static(b"value"),
        flags: 0,
        lock: Lock::default(),
        create_index: index,
        modify_index: index,
    }
}

fn agent(number: u32) -> Agent {
    super::agent(AgentNumber(number), "n", format!("id-{number}"))
}

/// Returns random changes, also applied to the state and to the replay.
fn made(
    count: u64,
    draw: &mut Draw,
    state: &mut State,
    replayed: &mut BTreeMap<RowKey, Change>,
) -> Vec<Change> {
    let make = |_| {
        let change = once(change(draw), replayed);
        state.load(change.clone());
        match effect(&change) {
            Effect::Clear => replayed.clear(),
            Effect::Row(key, true) => drop(replayed.insert(key, change.clone())),
            Effect::Row(key, false) => drop(replayed.remove(&key)),
            Effect::Ranges(ranges) => remove_ranges(replayed, &ranges),
        }
        change
    };
    (0..count).map(make).collect()
}

#[test]
fn checkpoint_equals_replayed_changes() {
    for seed in 0..20 {
        let mut draw = Draw(seed);
        let disk = FaultyDisk::default();
        let (store, _) = open_disk(&disk).expect("nothing is wrong with it");
        let mut replayed = BTreeMap::new();
        let mut state = State::default();
        for index in 2..10 {
            let mut dirty = DirtyRows::default();
            // Some at once, some handed over while another checkpoint was in progress.
            for _ in 0..=draw.below(3) {
                let mut later = DirtyRows::default();
                for _ in 0..draw.below(4) {
                    // Sometimes a batch that is large enough to stay unsorted until it is written.
                    let count = if draw.below(20) == 0 { 9_000 } else { draw.below(20) };
                    later.record_all(made(count, &mut draw, &mut state, &mut replayed));
                }
                dirty.absorb(later);
            }
            let mark = SnapshotMeta { index: LogIndex(index), ..options().first_snapshot };
            store.checkpoints.write(&mark, &dirty, || ()).expect("the disk is good");
        }
        assert_eq!(snapshot_rows(&store), replayed);
        drop(store);
        let (_, recovered) = open_disk(&disk).expect("nothing is wrong with it");
        assert_eq!(rows(&recovered.state), rows(&state), "seed {seed}");
    }
}

fn rows(state: &State) -> Vec<Change> {
    state.rows().collect()
}

#[test]
fn newest_row_version_wins() {
    let mut dirty = DirtyRows::default();
    assert!(dirty.is_empty());
    dirty.extend([Change::Fence(Fence(1)), Change::Fence(Fence(2)), Change::Tombstone("k".into(), None)]);
    assert_eq!(dirty.row_count(), 2);
    let rows: Vec<_> = dirty.rows().into_iter().map(|(_, row)| row.cloned()).collect();
    assert_eq!(rows, [Some(Change::Fence(Fence(2))), None]);
    dirty.record(Change::Cleared);
    assert!(dirty.cleared() && !dirty.is_empty());
    dirty.record(Change::Tombstone("k".into(), None));
    assert!(dirty.rows().is_empty(), "in an empty checkpoint there is nothing to remove");
}

#[test]
fn deleted_tree_drops_earlier_rows_only() {
    let there = |key: &str| Change::Tombstone(key.into(), Some(LogIndex(1)));
    let mut dirty = DirtyRows::default();
    dirty.extend([there("a/1"), there("a/2"), there("b"), Change::TreeDeleted("a/".into()), there("a/2")]);
    let mut later = DirtyRows::default();
    later.extend([there("a/3"), Change::TreeDeleted("é".into())]);
    dirty.absorb(later);
    let rows: Vec<_> = dirty.rows().into_iter().filter_map(|(_, row)| row.cloned()).collect();
    assert_eq!(rows, ["a/2", "a/3", "b"].map(there));
    assert_eq!(dirty.ranges().count(), 4, "entries and tombstones of two trees");
    assert_eq!(dirty.take().ranges().count(), 4);
    assert_eq!(dirty.ranges().count(), 0);
}

/// More rows than one portion holds: the portions are steps within one commit.
#[test]
fn tree_deletion_portions_share_commit() {
    let disk = FaultyDisk::default();
    let (store, _) = open_disk(&disk).expect("nothing is wrong with it");
    let mark = |index| SnapshotMeta { index: LogIndex(index), ..options().first_snapshot };
    let keys = |prefix: &str| (0..1_700).map(|at| format!("{prefix}{at:04}")).collect::<Vec<_>>();
    let there = |key: String| Change::Entry(key.as_str().into(), Some(Arc::new(entry(&key, LogIndex(2)))));
    let mut dirty = DirtyRows::default();
    dirty.extend(keys("tree/").into_iter().chain(keys("u")).chain(keys("tre")).map(there));
    store.checkpoints.write(&mark(2), &dirty, || panic!("nothing is removed")).expect("the disk is good");
    let mut dirty = DirtyRows::default();
    dirty.extend([Change::TreeDeleted("tree/".into()), there("tree/0001".into())]);
    let mut rests = 0;
    let rest = || {
        rests += 1;
        let seen = store.checkpoints.backup().expect("the checkpoint can be read");
        assert_eq!(seen.mark(), &mark(2), "no reader sees half of it");
    };
    store.checkpoints.write(&mark(3), &dirty, rest).expect("the disk is good");
    assert_eq!(rests, 3);
    assert_eq!(snapshot_rows(&store).len(), 2 * 1_700 + 1);
}

#[test]
fn transient_row_is_not_recorded() {
    let reply = |there: bool| {
        let applied = Applied { index: LogIndex(1), reply: Reply::Done };
        Change::Reply(AgentNumber(1), 7, there.then(|| Arc::new(applied)))
    };
    let mut dirty = DirtyRows::default();
    dirty.extend([reply(true), reply(false)]);
    assert!(dirty.is_empty());
    dirty.extend([reply(false), reply(true), reply(false)]);
    assert_eq!(dirty.row_count(), 1, "the checkpoint may hold the one that went first");
    let mut earlier = DirtyRows::default();
    earlier.record(reply(true));
    let mut later = DirtyRows::default();
    later.record(reply(false));
    earlier.absorb(later);
    assert!(earlier.is_empty(), "it came before and went after another checkpoint began");
}
