//! The segments of the log: random schedules against a model, and every way to damage them.

use super::script::open_disk;
use crate::store::StoreError;
use crate::store::disk::Disk;
use crate::store::file::{FileIdentity, Kind, RedbFile, TableName};
use crate::store::log::{self, FormerLog, LoadedLog, LogHead, LogStore};
use crate::store::names::{FORMER_LOG, LOG, REPORTED};
use crate::store::reported::{self, ReportedFile};
use crate::store::testing::{Draw, Failure, FaultyDisk, Survival};
use bytes::Bytes;
use lockmesh_core::raft::log::{EntryKind, HardState, LogBatch, LogEntry, LogWrite, SnapshotMeta};
use lockmesh_protocol::format;
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use std::sync::Arc;

const PAIR: u128 = 7;
/// Small, so that a few commits fill one.
const SEGMENT_BYTES: u64 = 4 << 10;

/// The content of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Model {
    hard_state: HardState,
    base: (LogIndex, Term),
    /// All entries since the last reset; the log may have been compacted anywhere up to
    /// `compacted`.
    entries: Vec<LogEntry>,
    compacted: LogIndex,
}

fn identity(pair: u128) -> FileIdentity {
    FileIdentity { kind: Kind::Log, pair, server: ServerId(1) }
}

fn first_head() -> LogHead {
    let hard_state = HardState { term: Term(1), vote: ServerId(0), commit: LogIndex(1) };
    LogHead { hard_state, base: (LogIndex(1), Term(1)), commit_number: 1 }
}

fn new_log(pair: u128) -> (FaultyDisk, Model) {
    let disk = FaultyDisk::default();
    log::write_new(&disk, identity(pair), (first_head(), Vec::new()), None, SEGMENT_BYTES)
        .expect("the disk is good");
    log::finish_new(&disk).expect("the disk is good");
    let LogHead { hard_state, base, .. } = first_head();
    (disk, Model { hard_state, base, entries: Vec::new(), compacted: LogIndex(0) })
}

fn load(disk: &FaultyDisk) -> Result<LoadedLog, StoreError> {
    let place: Arc<dyn Disk> = Arc::new(disk.clone());
    Ok(LogStore::load(&place, SEGMENT_BYTES)?.expect("there is a log"))
}

/// Opens a log for writing.
fn open(disk: &FaultyDisk) -> Result<(LogStore, Vec<LogEntry>), StoreError> {
    let LoadedLog { mut log, entries, lost } = load(disk)?;
    let reported = reported::read(disk, PAIR).expect("the disk is good");
    assert!(
        lost.is_none() && reported <= log.head().commit_number,
        "lost {lost:?}, reported {reported}, {:?}",
        log.head()
    );
    log.release()?;
    log.record_commits(ReportedFile::new(Arc::new(disk.clone()), PAIR));
    Ok((log, entries))
}

fn entry(index: u64, term: u64, length: u64) -> LogEntry {
    LogEntry {
        index: LogIndex(index),
        term: Term(term),
        kind: EntryKind::Normal,
        data: Bytes::from(vec![index as u8; length as usize]),
        context: Bytes::new(),
    }
}

impl Model {
    fn last(&self) -> u64 {
        self.entries.last().map_or(self.base.0, |entry| entry.index).0
    }

    fn apply(&mut self, write: &LogWrite) {
        if let Some(mark) = &write.reset {
            self.entries.clear();
            self.base = (mark.index, mark.term);
            self.hard_state.commit = self.hard_state.commit.max(mark.index);
        }
        if let Some(first) = write.entries.first() {
            self.entries.retain(|entry| entry.index < first.index);
            self.entries.extend_from_slice(&write.entries);
        }
        if let Some(hard_state) = write.hard_state {
            let commit = hard_state.commit.max(self.hard_state.commit);
            self.hard_state = HardState { commit, ..hard_state };
        }
    }

    /// Draws a write: an append, a replaced tail, a vote, or a reset to another server's snapshot.
    fn draw(&self, draw: &mut Draw) -> LogWrite {
        let (kind, last) = (draw.below(12), self.last());
        let commit = self.hard_state.commit.0;
        let mut term = self.hard_state.term.0;
        let mut write = LogWrite { number: 0, reset: None, entries: Vec::new(), hard_state: None };
        let mut entries = |first, term| {
            let count = 1 + draw.below(3);
            let sizes = [10, 300, 470, 900, 6_000];
            (first..first + count).map(|index| entry(index, term, sizes[draw.below(5) as usize])).collect()
        };
        match kind {
            0 | 1 => term += 1,
            2 => {
                term += 1;
                let kept = commit.max(last.saturating_sub(2));
                write.entries = entries(kept + 1, term);
            }
            3 => {
                term += 1;
                let index = LogIndex(last + 1 + draw.below(3));
                write.reset = Some(SnapshotMeta { index, term: Term(term), ..SnapshotMeta::default() });
            }
            _ => write.entries = entries(last + 1, term),
        }
        let end = write.entries.last().map_or(last, |entry| entry.index.0);
        let end = write.reset.as_ref().map_or(end, |mark| mark.index.0);
        let commit = LogIndex(commit + draw.below(end.saturating_sub(commit) + 1));
        write.hard_state = Some(HardState { term: Term(term), vote: ServerId(1), commit });
        write
    }

    /// Returns `true` if this is what a log holds.
    fn is(&self, log: &LogStore, entries: &[LogEntry]) -> bool {
        let (base, term) = log.head().base;
        let behind = self.entries.partition_point(|entry| entry.index <= base);
        let base_term = behind.checked_sub(1).map_or(self.base.1, |last| self.entries[last].term);
        log.head().hard_state == self.hard_state
            && base >= self.base.0
            && base <= self.compacted.max(self.base.0)
            && term == base_term
            && entries == &self.entries[behind..]
    }
}

/// Draws a fault of the disk, or its end.
fn draw_fault(draw: &mut Draw) -> Option<Failure> {
    let from = draw.below(8);
    let to = from + draw.below(12);
    match draw.below(11) {
        0 => Some(Failure::Full(from, to)),
        1 => Some(Failure::LostSync(from, to)),
        2 => Some(Failure::HalfSync(from, to)),
        3 => Some(Failure::NoNames),
        4 => Some(Failure::NoRenames),
        5 => Some(Failure::NoFolderSyncs),
        6 => Some(Failure::Aborted),
        _ => None,
    }
}

/// Writes, crashes and opens a log a few times.
fn random_schedule(seed: u64) {
    let mut draw = Draw(seed);
    let (mut disk, mut model) = new_log(PAIR);
    for crash in 0..4 {
        let (mut log, entries) = open(&disk).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(
            model.is(&log, &entries),
            "seed {seed}, crash {crash}: {:?} instead of {model:?}",
            log.head()
        );
        let mut possible = vec![model.clone()];
        for _ in 0..draw.below(40) {
            if draw.below(6) == 0 {
                log.pool().checkpointed();
                let up_to = LogIndex(draw.below(model.hard_state.commit.0 + 1));
                log.compact(up_to);
                model.compacted = model.compacted.max(up_to);
            }
            match draw.below(60) {
                0 => disk.fail(Some(Failure::PowerCut(draw.below(8)))),
                1..=12 => disk.fail(draw_fault(&mut draw)),
                _ => {}
            }
            let write = model.draw(&mut draw);
            possible = vec![model.clone()];
            model.apply(&write);
            // Now and then the process ends while the disk refuses a write.
            let attempts = if draw.below(30) == 0 { draw.below(4) } else { 60 };
            let mut is_written = false;
            for _ in 0..=attempts {
                // The other thread, between any two attempts.
                match draw.below(4) {
                    0 => drop(log.pool().prepare()),
                    1 if draw.below(4) == 0 => log.pool().give_space_back(),
                    _ => {}
                }
                is_written = log.commit(std::slice::from_ref(&write), LogIndex(0)).is_ok();
                if is_written {
                    break;
                }
                if draw.below(4) == 0 && !matches!(disk.failure(), Some(Failure::PowerCut(_))) {
                    disk.fail(draw_fault(&mut draw));
                }
            }
            possible.push(model.clone());
            if !is_written {
                break;
            }
            possible.remove(0);
        }
        drop(log);
        disk.fail(None);
        match draw.below(5) {
            0 => disk = disk.after_power_cut(Survival::Nothing),
            1 => disk = disk.after_power_cut(Survival::Everything),
            // The end of the process alone.
            2 => {}
            _ => disk = disk.after_power_cut(Survival::Torn(draw.below(1 << 40))),
        }
        let LoadedLog { log, entries, lost } =
            load(&disk).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(lost.is_none(), "seed {seed}: {lost:?}");
        let found = possible.into_iter().find(|model| model.is(&log, &entries));
        model =
            found.unwrap_or_else(|| panic!("seed {seed}, crash {crash}: {:?} {}", log.head(), entries.len()));
        assert!(segments(&disk).len() < 200, "seed {seed}: the folder grows");
    }
}

/// `SCHEDULES=1000000 cargo test --release -p lockmesh-server --features testing random_schedules`
#[test]
fn random_schedules_lose_nothing() {
    let count = std::env::var("SCHEDULES").ok().and_then(|count| count.parse().ok()).unwrap_or(2_000);
    (0..count).for_each(random_schedule);
}

/// Returns a log of a few segments with single entries, closed in order.
fn filled(pair: u128, commits: u64) -> FaultyDisk {
    let (disk, _) = new_log(pair);
    let (mut log, _) = open(&disk).expect("the disk is good");
    for index in 2..2 + commits {
        log.pool().prepare().expect("the disk is good");
        let write =
            LogWrite { number: index, reset: None, entries: vec![entry(index, 1, 700)], hard_state: None };
        log.commit(&[write], LogIndex(0)).expect("the disk is good");
    }
    log.finish();
    disk.copy()
}

fn segments(disk: &FaultyDisk) -> Vec<String> {
    disk.contents().into_keys().filter(|name| name.starts_with("log/0")).collect()
}

/// A record of [`filled`] has 1,024 bytes; a segment has four.
#[test]
fn torn_tail_dropped_damage_reported() {
    let disk = filled(PAIR, 6);
    disk.remove(REPORTED);
    let name = &segments(&disk)[1];
    let whole = disk.contents()[name].clone();
    // The second segment holds the commits 5 to 7.
    for from in 1_024..3_072 {
        let torn = disk.copy();
        let mut bytes = whole.clone();
        bytes[from..3_072].fill(0);
        torn.put(name, bytes);
        let LoadedLog { log, lost, .. } = load(&torn).expect("it is torn");
        // The rest of the last sector of a record is not part of it.
        let expected = if from < 1_024 + 760 {
            5
        } else if from < 2_048 + 760 {
            6
        } else {
            7
        };
        assert!(log.head().commit_number.abs_diff(expected) <= 1 && lost.is_none(), "torn at {from}");
    }
    for damaged in 1_024..1_600 {
        let disk = disk.copy();
        let mut bytes = whole.clone();
        bytes[damaged] ^= 1;
        disk.put(name, bytes);
        let LoadedLog { log, lost, .. } = load(&disk).expect("it can be read");
        let (reported, path) = lost.unwrap_or_else(|| panic!("a wrong byte at {damaged}"));
        assert_eq!((log.head().commit_number, reported), (5, 7), "a wrong byte at {damaged}");
        assert!(path.ends_with(name), "{}", path.display());
    }
}

#[test]
fn missing_or_wrong_segment_named() {
    let disk = filled(PAIR, 14);
    let names = segments(&disk);
    let [first, second, third] = [0, 1, 2].map(|place| disk.contents()[&names[place]].clone());
    let foreign = filled(8, 14).contents()[&names[1]].clone();
    let changed = |changes: &[(&String, Option<&Vec<u8>>)]| {
        let disk = disk.copy();
        for (name, bytes) in changes {
            match bytes {
                Some(bytes) => disk.put(name, bytes.to_vec()),
                None => disk.remove(name),
            }
        }
        load(&disk).map(|found| found.lost)
    };
    let missing = changed(&[(&names[1], None)]).expect_err("it is missing");
    assert!(
        matches!(&missing, StoreError::Missing { missing, .. } if missing.ends_with(&names[1])),
        "{missing}"
    );
    let lost = |changes: &[(&String, Option<&Vec<u8>>)], named: &String| {
        let (reported, path) = changed(changes).expect("it can be read").expect("something is lost");
        assert!(reported == 15 && path.ends_with(named), "{reported}, {}", path.display());
    };
    lost(&[(&names[1], Some(&third)), (&names[2], Some(&second))], &names[1]);
    lost(&[(&names[1], Some(&foreign))], &names[1]);
    lost(&[(&names[1], Some(&first))], &names[1]);
    // Its entries are needed, although the commits behind it are whole.
    for first in [None, Some(&foreign)] {
        let error = changed(&[(&names[0], first)]).expect_err("its entries are missing").to_string();
        assert!(error.contains("/faulty/log: the file is damaged (it should hold the entries from index 2 to 15, but holds those from 5 to 15"), "{error}");
    }
    let mut older = second;
    older[2_048..].fill(0);
    lost(&[(&names[1], Some(&older))], &names[1]);
}

#[test]
fn missing_entries_before_votes_detected() {
    let disk = filled(PAIR, 3);
    let (mut log, _) = open(&disk).expect("the disk is good");
    for term in 2..8 {
        let hard_state = Some(HardState { term: Term(term), vote: ServerId(1), commit: LogIndex(1) });
        let vote = LogWrite { number: 1, reset: None, entries: Vec::new(), hard_state };
        log.commit(&[vote], LogIndex(0)).expect("the disk is good");
    }
    drop(log);
    disk.remove(&segments(&disk)[0]);
    let error = load(&disk).expect_err("its entries are missing").to_string();
    assert!(error.contains("a segment before the last one is missing or damaged"), "{error}");
}

#[test]
fn an_accepted_loss_stays_accepted() {
    let disk = filled(PAIR, 14);
    let name = &segments(&disk)[1];
    let mut bytes = disk.contents()[name].clone();
    bytes[1_100] ^= 1;
    disk.put(name, bytes);
    let LoadedLog { mut log, lost, entries } = load(&disk).expect("it can be read");
    let (reported, _) = lost.expect("something is lost");
    log.release().expect("the disk is good");
    log.accept_loss(reported).expect("the disk is good");
    log.record_commits(ReportedFile::new(Arc::new(disk.clone()), PAIR));
    let write =
        |index| LogWrite { number: 1, reset: None, entries: vec![entry(index, 2, 100)], hard_state: None };
    log.commit(&[write(entries.last().expect("some are left").index.0 + 1)], LogIndex(0))
        .expect("the disk is good");
    let (log, later) = open(&disk.copy()).expect("it was accepted");
    assert_eq!(later.len(), entries.len() + 1);
    assert_eq!(log.head().commit_number, reported + 2);
}

#[test]
fn failed_sync_closes_segment() {
    let disk = filled(PAIR, 1);
    let (mut log, _) = open(&disk).expect("the disk is good");
    let names = segments(&disk);
    let write = LogWrite { number: 1, reset: None, entries: vec![entry(3, 1, 10)], hard_state: None };
    disk.fail(Some(Failure::LostSync(0, 9)));
    for _ in 0..3 {
        log.commit(std::slice::from_ref(&write), LogIndex(0)).expect_err("the disk lost it");
    }
    disk.fail(None);
    log.commit(&[write], LogIndex(0)).expect("the disk is good");
    assert_eq!(segments(&disk), names, "one spare for all attempts");
    assert_ne!(disk.contents()[&names[1]][0..8], [0; 8]);
    let (_, entries) = open(&disk.after_power_cut(Survival::Nothing)).expect("it is whole");
    assert_eq!(entries.len(), 2);
}

#[test]
fn segments_recycled_and_bounded() {
    let (disk, _) = new_log(PAIR);
    let (mut log, _) = open(&disk).expect("the disk is good");
    let mut most = 0;
    for index in 2..2_000 {
        let write =
            LogWrite { number: index, reset: None, entries: vec![entry(index, 1, 700)], hard_state: None };
        log.compact(LogIndex(index.saturating_sub(20)));
        log.commit(&[write], LogIndex(0)).expect("the disk is good");
        while log.pool().is_due() {
            log.pool().prepare().expect("the disk is good");
        }
        // About two segments from checkpoint to checkpoint.
        if index % 8 == 0 {
            log.pool().checkpointed();
        }
        most = most.max(segments(&disk).len());
        // From here on every segment is a recycled one.
        if index == 200 {
            disk.fail(Some(Failure::FileFull("log/spare")));
        }
    }
    disk.fail(None);
    assert!(most <= 10, "{most} segments for 20 entries");
    assert!(!disk.contents().contains_key("log/spare"), "no draft is left");
    // An idle log needs no large ones; a full disk keeps none that is not needed.
    disk.fail(Some(Failure::FileFull(LOG)));
    let _ = (log.pool().prepare(), log.pool().prepare());
    assert!(log.commit(&[], LogIndex(1_990)).is_err());
    disk.fail(None);
    log.commit(&[], LogIndex(1_990)).expect("there is room again");
}

/// Writes a log as builds before segments did.
fn former_log(disk: &FaultyDisk, identity: &FileIdentity, head: LogHead, rows: &[Vec<LogEntry>]) {
    RedbFile::create(disk, FORMER_LOG, identity, |writing| {
        let mut table = writing.table(TableName::new("log"))?;
        for row in rows {
            table.put(&row[0].index.0.to_be_bytes(), &format::encode(&LogBatch(row.clone())))?;
        }
        table.put(&[0xff; 8], &format::encode(&head))
    })
    .expect("the disk is good");
    disk.sync("").expect("the disk is good");
}

#[test]
fn conversion_survives_power_cut() {
    let head = LogHead { commit_number: 40, ..first_head() };
    let rows = [vec![entry(2, 1, 900_000), entry(3, 1, 300_000)], vec![entry(4, 1, 5)]];
    let entries: Vec<LogEntry> = rows.concat();
    let origin = FaultyDisk::default();
    former_log(&origin, &identity(PAIR), head, &rows);
    let convert = |disk: &FaultyDisk| -> Result<(), StoreError> {
        let place: Arc<dyn Disk> = Arc::new(disk.clone());
        let former = FormerLog::load(&place, 1 << 20)?.expect("it is there");
        former.convert(disk, SEGMENT_BYTES)
    };
    let whole = origin.copy();
    convert(&whole).expect("the disk is good");
    for cut in 0..=whole.operations() {
        for survival in [Survival::Nothing, Survival::Everything, Survival::Torn(cut)] {
            let disk = origin.copy();
            disk.fail(Some(Failure::PowerCut(cut)));
            let done = convert(&disk);
            let disk = disk.after_power_cut(survival);
            let place: Arc<dyn Disk> = Arc::new(disk.clone());
            if LogStore::load(&place, SEGMENT_BYTES).expect("it can be read").is_none() {
                assert!(done.is_err(), "cut at {cut}");
                convert(&disk).expect("the disk is good");
            }
            let LoadedLog { log, entries: found, lost } = load(&disk).expect("it can be read");
            assert!(found == entries && lost.is_none(), "cut at {cut}, {survival:?}");
            // Numbers continue behind the reported one.
            assert_eq!((log.head().hard_state, log.head().commit_number), (head.hard_state, 42));
        }
    }
}

#[test]
fn continued_former_log_counts_again() {
    let disk = FaultyDisk::default();
    let (mut store, _) = open_disk(&disk).expect("the disk is good");
    let write = |index, term| LogWrite {
        number: 1,
        reset: None,
        entries: vec![entry(index, term, 10)],
        hard_state: None,
    };
    store.log.commit(&[write(2, 1)], LogIndex(0)).expect("the disk is good");
    let (identity, head) = (store.log.identity().file.clone(), store.log.head());
    drop(store);
    // As an older build leaves it, and after another commit of that build.
    let [before, after] = [1, 2].map(|count| {
        let disk = disk.copy();
        let rows: Vec<_> = (2..2 + count).map(|index| vec![entry(index, 1, 10)]).collect();
        former_log(&disk, &identity, LogHead { commit_number: head.commit_number + count, ..head }, &rows);
        disk.contents()[FORMER_LOG].clone()
    });
    let entries = |disk: &FaultyDisk| Ok::<_, StoreError>(open_disk(disk)?.1.entries.len());
    disk.remove(LOG);
    disk.put(FORMER_LOG, before);
    assert_eq!(entries(&disk).expect("it is converted"), 1);
    assert_eq!(entries(&disk).expect("the conversion is not finished"), 1);
    disk.put(FORMER_LOG, after);
    let both = disk.copy();
    assert_eq!(entries(&disk).expect("it is converted again"), 2);
    // Once both were continued, neither can be preferred.
    let LoadedLog { mut log, .. } = load(&both).expect("it can be read");
    log.release().expect("the disk is good");
    log.commit(&[write(3, 2)], LogIndex(0)).expect("the disk is good");
    drop(log);
    let error = entries(&both).expect_err("both were continued").to_string();
    assert!(error.contains("/faulty/log.redb:") && error.contains("an older build continued it"), "{error}");
}
