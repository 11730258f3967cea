//! Scripts of a server's operations on its store, and a model of the expected content.

use crate::store::rows::{Effect, RowKey, effect};
use crate::store::testing::{Draw, FaultyDisk};
use crate::store::{DirtyRows, RowReader, Store, StoreError, StoreOptions, open};
use bytes::Bytes;
use lockmesh_core::durability::checksum::Checksum;
use lockmesh_core::raft::log::{
    EntryKind, HardState, LogEntry, LogWrite, Membership, Recovered, SnapshotMeta,
};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{AgentNumber, Fence, LogIndex, ServerId, Term};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// One operation of a server on its store.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Write(Vec<LogWrite>),
    /// The commit index that precedes every checkpoint.
    Commit(LogIndex),
    Checkpoint(SnapshotMeta, Vec<Change>),
    Compact(LogIndex),
}

/// The expected content of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) hard_state: HardState,
    /// The log behind the lowest possible base.
    entries: BTreeMap<LogIndex, LogEntry>,
    base: (LogIndex, Term),
    mark: SnapshotMeta,
    rows: BTreeMap<RowKey, Change>,
}

pub(super) fn options() -> StoreOptions {
    let membership = Membership { voters: vec![ServerId(1)], ..Membership::default() };
    let first_snapshot = SnapshotMeta { index: LogIndex(1), term: Term(1), membership };
    StoreOptions {
        server: ServerId(1),
        first_snapshot,
        cache_bytes: 4 << 20,
        accept_loss: false,
        segment_bytes: 64 << 10,
    }
}

pub(super) fn open_disk(disk: &FaultyDisk) -> Result<(Store, Recovered), StoreError> {
    open::open(Arc::new(disk.clone()), &options())
}

impl Step {
    /// Runs the step.
    pub(super) fn run(&self, store: &mut Store) -> Result<(), StoreError> {
        match self {
            Self::Write(writes) => store.log.commit(writes, LogIndex(0)),
            Self::Commit(index) => store.log.commit(&[], *index),
            Self::Checkpoint(mark, changes) => {
                let mut dirty = DirtyRows::default();
                dirty.extend(changes.clone());
                store.log.pool().give_space_back();
                store.checkpoints.write(mark, &dirty, || ()).map(drop)?;
                let pool = store.log.pool();
                pool.checkpointed();
                while pool.is_due() && pool.prepare().is_ok() {}
                Ok(())
            }
            Self::Compact(up_to) => {
                store.log.compact(*up_to);
                store.log.commit(&[], LogIndex(0))
            }
        }
    }

    /// Runs the step like the store's threads: reopens the file and retries until the disk accepts
    /// it. Returns the number of failures.
    pub(super) fn retry_until_written(&self, store: &mut Store) -> u64 {
        let mut refusals = 0;
        let mut done = self.run(store);
        while let Err(error) = done {
            assert!(error.is_transient(), "a full disk is no damage: {error}");
            refusals += 1;
            assert!(refusals < 1_000, "never taken: {error}");
            done = match self {
                Self::Checkpoint(..) => store.checkpoints.file().reopen(),
                _ => Ok(()),
            };
            done = done.and_then(|()| self.run(store));
        }
        refusals
    }
}

impl Model {
    /// Returns the model of a new store.
    pub(super) fn new() -> Self {
        let mark = options().first_snapshot;
        let hard_state = HardState { term: mark.term, vote: ServerId(0), commit: mark.index };
        Self { hard_state, base: (mark.index, mark.term), mark, ..Self::default() }
    }

    /// Applies a step.
    pub(super) fn apply(&mut self, step: &Step) {
        match step {
            Step::Write(writes) => writes.iter().for_each(|write| self.write(write)),
            Step::Commit(index) => self.hard_state.commit = self.hard_state.commit.max(*index),
            Step::Checkpoint(mark, changes) => {
                self.mark = mark.clone();
                for change in changes {
                    match effect(change) {
                        Effect::Clear => self.rows.clear(),
                        Effect::Row(key, true) => drop(self.rows.insert(key, change.clone())),
                        Effect::Row(key, false) => drop(self.rows.remove(&key)),
                        Effect::Ranges(ranges) => remove_ranges(&mut self.rows, &ranges),
                    }
                }
            }
            Step::Compact(_) => {}
        }
    }

    fn write(&mut self, write: &LogWrite) {
        if let Some(mark) = &write.reset {
            self.entries.clear();
            self.base = (mark.index, mark.term);
            self.hard_state.commit = self.hard_state.commit.max(mark.index);
        }
        if let Some(first) = write.entries.first() {
            self.entries.retain(|index, _| *index < first.index);
            self.entries.extend(write.entries.iter().map(|entry| (entry.index, entry.clone())));
        }
        if let Some(hard_state) = write.hard_state {
            let commit = hard_state.commit.max(self.hard_state.commit);
            self.hard_state = HardState { commit, ..hard_state };
        }
    }

    fn term_at(&self, index: LogIndex) -> Option<Term> {
        if index == self.base.0 {
            return Some(self.base.1);
        }
        self.entries.get(&index).map(|entry| entry.term)
    }

    /// Returns the model after opening: a log that does not lead to the checkpoint restarts behind
    /// it.
    fn opened(&self) -> Self {
        let mut opened = self.clone();
        if self.term_at(self.mark.index) == Some(self.mark.term) {
            opened.hard_state.commit = opened.hard_state.commit.max(self.mark.index);
            return opened;
        }
        opened.entries.clear();
        opened.base = (self.mark.index, self.mark.term);
        opened.hard_state.commit = self.mark.index;
        if opened.hard_state.term < self.mark.term {
            opened.hard_state.term = self.mark.term;
            opened.hard_state.vote = ServerId(0);
        }
        opened
    }

    /// Compares the model with the recovered store; the log may have been compacted anywhere up to
    /// the checkpoint.
    pub(super) fn explains(&self, store: &Store, recovered: &Recovered) -> Result<(), String> {
        let model = self.opened();
        let check = |right: bool, what: &str| if right { Ok(()) } else { Err(what.to_owned()) };
        check(
            recovered.hard_state == model.hard_state,
            &format!("hard state {:?} instead of {:?}", recovered.hard_state, model.hard_state),
        )?;
        check(recovered.snapshot == model.mark, "another checkpoint")?;
        check(snapshot_rows(store) == model.rows, "other rows")?;
        let sum = Checksum::of(model.rows.values().cloned());
        let kept = store.checkpoints.backup().expect("the checkpoint can be read").checksum();
        check(kept == sum, "another checksum")?;
        let (base, base_term) = recovered.base;
        check(base <= recovered.snapshot.index, "a gap behind the checkpoint")?;
        check(base >= model.base.0 && model.term_at(base) == Some(base_term), "another base")?;
        let behind: Vec<_> = model.entries.range(base.next()..).map(|(_, entry)| entry.clone()).collect();
        check(
            behind == recovered.entries,
            &format!("{} entries behind {base} instead of {}", recovered.entries.len(), behind.len()),
        )?;
        // The requirements of the engine at start.
        let last = recovered.entries.last().map_or(base, |entry| entry.index);
        check(recovered.snapshot.index <= recovered.hard_state.commit, "applied beyond the commit index")?;
        check(recovered.hard_state.commit <= last, "committed beyond the log")
    }
}

/// Removes ranges of rows.
pub(super) fn remove_ranges(rows: &mut BTreeMap<RowKey, Change>, ranges: &[Range<RowKey>]) {
    rows.retain(|key, _| !ranges.iter().any(|range| range.contains(key)));
}

/// Returns all rows of the checkpoint.
pub(super) fn snapshot_rows(store: &Store) -> BTreeMap<RowKey, Change> {
    let mut checkpoints = store.checkpoints.backup().expect("the checkpoint can be read");
    let (mut reader, mut rows) = (RowReader::default(), BTreeMap::new());
    for number in 0.. {
        let part = checkpoints
            .raw_part(number)
            .expect("the checkpoint can be read")
            .expect("parts follow each other");
        for change in reader.add(&part.rows).expect("the rows are whole") {
            let Effect::Row(key, true) = effect(&change) else { panic!("a checkpoint sets rows only") };
            assert!(rows.insert(key, change).is_none(), "a row comes once");
        }
        if part.last {
            return rows;
        }
    }
    rows
}

/// Generates a server's operations: appends, replaced tails, checkpoints, compactions, snapshots of
/// another server.
pub(super) struct StoreWriter {
    draw: Draw,
    number: u64,
    term: u64,
    /// The term of each entry, from index 1.
    log: Vec<u64>,
    commit: u64,
    applied: u64,
}

impl StoreWriter {
    pub(super) fn new(seed: u64) -> Self {
        Self { draw: Draw(seed), number: 0, term: 1, log: vec![1], commit: 1, applied: 1 }
    }

    pub(super) fn steps(&mut self, count: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        while steps.len() < count {
            match self.draw.below(10) {
                0..=3 => steps.push(Step::Write((0..=self.draw.below(3)).map(|_| self.append()).collect())),
                4 => steps.push(Step::Write(vec![self.replace_tail(), self.append()])),
                5 | 6 if self.commit > self.applied => steps.extend(self.checkpoint()),
                7 => steps.push(Step::Compact(LogIndex(self.applied))),
                8 if self.draw.below(3) == 0 => steps.extend(self.install()),
                _ => steps.push(Step::Write(vec![self.vote()])),
            }
        }
        steps
    }

    /// Returns a vote in a new term.
    pub(super) fn vote_step(&mut self) -> Step {
        Step::Write(vec![self.vote()])
    }

    /// Returns some entries.
    pub(super) fn append_step(&mut self) -> Step {
        Step::Write(vec![self.append()])
    }

    fn write(&mut self, reset: Option<SnapshotMeta>, entries: Vec<LogEntry>, hard_state: bool) -> LogWrite {
        self.number += 1;
        let (term, commit) = (Term(self.term), LogIndex(self.commit));
        let hard_state = hard_state.then_some(HardState { term, vote: ServerId(1), commit });
        LogWrite { number: self.number, reset, entries, hard_state }
    }

    fn entries(&mut self, count: u64) -> Vec<LogEntry> {
        (0..count)
            .map(|_| {
                self.log.push(self.term);
                let length = if self.draw.below(12) == 0 { 300_000 } else { self.draw.below(400) };
                let byte = self.draw.below(256) as u8;
                LogEntry {
                    index: LogIndex(self.log.len() as u64),
                    term: Term(self.term),
                    kind: EntryKind::Normal,
                    data: Bytes::from(vec![byte; length as usize]),
                    context: Bytes::new(),
                }
            })
            .collect()
    }

    fn append(&mut self) -> LogWrite {
        let count = 1 + self.draw.below(4);
        let entries = self.entries(count);
        let uncommitted = self.log.len() as u64 - self.commit;
        self.commit += self.draw.below(uncommitted + 1);
        let with_hard_state = self.draw.below(3) != 0;
        if !with_hard_state {
            // A commit index that is not in the write was never reported.
            self.commit = self.commit.min(self.log.len() as u64);
        }
        self.write(None, entries, true)
    }

    fn replace_tail(&mut self) -> LogWrite {
        self.term += 1;
        let uncommitted = self.log.len() as u64 - self.commit;
        let kept = self.commit + self.draw.below(uncommitted + 1);
        self.log.truncate(kept as usize);
        let count = 1 + self.draw.below(3);
        let entries = self.entries(count);
        self.write(None, entries, true)
    }

    fn vote(&mut self) -> LogWrite {
        self.term += 1;
        self.write(None, Vec::new(), true)
    }

    fn mark(&self, index: u64) -> SnapshotMeta {
        let membership = options().first_snapshot.membership;
        SnapshotMeta { index: LogIndex(index), term: Term(self.log[index as usize - 1]), membership }
    }

    fn checkpoint(&mut self) -> Vec<Step> {
        self.applied += 1 + self.draw.below(self.commit - self.applied);
        let changes = self.changes();
        let mark = self.mark(self.applied);
        vec![Step::Commit(mark.index), Step::Checkpoint(mark, changes)]
    }

    fn install(&mut self) -> Vec<Step> {
        self.term += 1;
        let index = self.log.len() as u64 + 1 + self.draw.below(5);
        self.log.resize(index as usize, self.term);
        (self.commit, self.applied) = (index, index);
        let mark = self.mark(index);
        let mut changes = vec![Change::Cleared];
        changes.extend(self.changes());
        let vote = self.write(None, Vec::new(), true);
        let vote = LogWrite {
            hard_state: vote.hard_state.map(|state| HardState { commit: LogIndex(0), ..state }),
            ..vote
        };
        let reset = self.write(Some(mark.clone()), Vec::new(), true);
        vec![Step::Write(vec![vote]), Step::Checkpoint(mark, changes), Step::Write(vec![reset])]
    }

    fn changes(&mut self) -> Vec<Change> {
        let count = 1 + self.draw.below(20);
        (0..count).map(|_| self.change()).collect()
    }

    fn change(&mut self) -> Change {
        let place = self.draw.below(12);
        let there = self.draw.below(3) != 0;
        let index = LogIndex(self.draw.below(1_000));
        match self.draw.below(5) {
            4 if self.draw.below(3) == 0 => {
                let prefix = ["", "key/", "key/1", "entry/"][self.draw.below(4) as usize];
                Change::TreeDeleted(prefix.into())
            }
            0 => Change::Fence(Fence(index.0)),
            1 => Change::Tombstone(format!("key/{place}").as_str().into(), there.then_some(index)),
            2 => {
                let text = "x".repeat(self.draw.below(9_000) as usize);
                let number = AgentNumber(place as u32);
                let agent = super::agent(number, "n1", text);
                Change::Agent(number, there.then(|| Arc::new(agent)))
            }
            _ => Change::IndexBase(index.0),
        }
    }
}
