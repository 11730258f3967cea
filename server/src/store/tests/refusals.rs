//! Files that must be rejected, by name and without changing a byte.

use super::script::{Model, Step, StoreWriter, open_disk, options, snapshot_rows};
use crate::store::file::{
    FORMAT, FileIdentity, Kind, RedbFile, StoreFault, TableName, Writing, WritingTable,
};
use crate::store::log::{self, LOG_FORMAT, LogHead};
use crate::store::names::{LOG, STATE};
use crate::store::open;
use crate::store::rows::{RowKey, encode};
use crate::store::testing::{Draw, FaultyDisk, Survival};
use crate::store::{Store, StoreError, StoreOptions};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{Generation, LogIndex, ServerId};
use lockmesh_protocol::record::Agent;
use std::sync::Arc;

/// The file with the identity of the log.
const IDENTITY: &str = "log/identity";

/// Returns a store with some content, closed properly or not, and its model.
fn aged(seed: u64, closed: bool) -> (FaultyDisk, Model) {
    let disk = FaultyDisk::default();
    let (mut store, _) = open_disk(&disk).expect("nothing is wrong with it");
    let mut model = Model::new();
    for step in StoreWriter::new(seed).steps(30) {
        step.run(&mut store).expect("nothing is wrong with it");
        model.apply(&step);
    }
    if closed {
        store.log.finish();
        store.checkpoints.finish();
    }
    drop(store);
    // A killed process leaves its newest commit's number; a power cut only if the store was closed.
    (disk.after_power_cut(if closed { Survival::Nothing } else { Survival::Everything }), model)
}

/// Opens a store that must be rejected, and verifies that nothing was changed.
fn refusal(disk: &FaultyDisk) -> StoreError {
    let before = disk.contents();
    let error = open_disk(disk).expect_err("this must be refused");
    assert!(disk.contents() == before, "something was changed: {error}");
    assert!(!error.is_transient(), "trying again cannot help: {error}");
    error
}

/// Expects such an error, with a text that names the file and the remedy.
fn refusal_of(disk: &FaultyDisk, name: &str, words: &str) {
    let text = refusal(disk).to_string();
    assert!(text.contains(&format!("/faulty/{name}:")), "it names {name}: {text}");
    assert!(text.contains(words), "it contains {words:?}: {text}");
    assert!(text.contains("nothing was changed"), "it describes the state of the files: {text}");
    // An older copy of a server's folder has forgotten votes, and would allow two leaders of one
    // term.
    assert!(!text.contains("copy"), "it never advises restoring a copy: {text}");
}

#[test]
fn foreign_files_are_rejected() {
    let (disk, _) = aged(1, true);
    for name in [IDENTITY, STATE] {
        for (bytes, words) in [
            (b"#!/bin/sh\necho precious\n".to_vec(), "not a file of lockmesh"),
            (b"x".to_vec(), "not a file of lockmesh"),
            (vec![0; 1 << 20], "not a file of lockmesh"),
            (Vec::new(), "it is empty"),
        ] {
            let disk = disk.copy();
            disk.put(name, bytes);
            refusal_of(&disk, name, words);
        }
    }
}

#[test]
fn foreign_redb_file_is_rejected() {
    let (disk, _) = aged(2, true);
    let other = tempfile::NamedTempFile::new().expect("a file for the test");
    drop(redb::Database::create(other.path()).expect("a file for the test"));
    disk.put(STATE, std::fs::read(other.path()).expect("a file for the test"));
    refusal_of(&disk, STATE, "a redb file of another program");
}

#[test]
fn newer_format_is_rejected() {
    let (disk, _) = aged(3, true);
    let file =
        RedbFile::open(Arc::new(disk.clone()), STATE, 1 << 20).expect("it opens").expect("it is there");
    file.release().expect("the disk is good");
    let meta = TableName::new("meta");
    file.write(|writing| writing.table(meta)?.put(b"format", &(FORMAT + 1).to_le_bytes()))
        .expect("the disk is good");
    drop(file);
    let newer = disk.copy();
    let words = |known| format!("format version {}, but this build knows versions up to {known}", known + 1);
    refusal_of(&newer, STATE, &words(FORMAT));
    let mut identity = disk.contents()[IDENTITY].clone();
    identity[12..16].copy_from_slice(&(LOG_FORMAT + 1).to_le_bytes());
    disk.put(IDENTITY, identity);
    refusal_of(&disk, IDENTITY, &words(LOG_FORMAT));
}

#[test]
fn mismatched_files_are_rejected() {
    let (disk, _) = aged(4, true);
    let (other, _) = aged(4, true);
    disk.put(STATE, other.contents()[STATE].clone());
    assert!(matches!(refusal(&disk), StoreError::Mismatched { .. }));
}

#[test]
fn other_server_files_are_rejected() {
    let (disk, _) = aged(5, true);
    let before = disk.contents();
    let other = StoreOptions { server: ServerId(2), ..options() };
    let error = open::open(Arc::new(disk.clone()), &other).expect_err("it is another server's");
    assert!(matches!(error, StoreError::OtherServer { found: ServerId(1), expected: ServerId(2), .. }));
    assert!(disk.contents() == before);
}

#[test]
fn missing_log_or_state_rejected() {
    for (name, other) in [(LOG, STATE), (STATE, LOG)] {
        let (disk, _) = aged(6, true);
        disk.remove(name);
        refusal_of(&disk, name, &format!("the file is missing, though /faulty/{other} is there"));
    }
}

#[test]
fn foreign_draft_log_is_ignored() {
    let (disk, _) = aged(7, true);
    let identity = FileIdentity { kind: Kind::Log, pair: 7, server: ServerId(1) };
    log::write_new(&disk, identity, (LogHead::default(), Vec::new()), None, 4 << 10)
        .expect("the disk is good");
    disk.remove(LOG);
    refusal_of(&disk, LOG, "the file is missing");
}

#[test]
fn checkpoint_behind_compacted_log_rejected() {
    let disk = FaultyDisk::default();
    let (mut store, _) = open_disk(&disk).expect("nothing is wrong with it");
    let mut checkpoints = None;
    let mut writer = StoreWriter::new(8);
    while store.log.head().base.0.0 < 3 {
        for step in writer.steps(10) {
            step.run(&mut store).expect("nothing is wrong with it");
            // The checkpoint before anything was compacted.
            if checkpoints.is_none() && matches!(step, Step::Checkpoint(..)) {
                checkpoints = Some(disk.contents()[STATE].clone());
            }
        }
    }
    let cut_at = store.log.head().base.0;
    drop(store);
    disk.put(STATE, checkpoints.expect("there was a checkpoint"));
    match refusal(&disk) {
        StoreError::Gap { base, checkpoint_index, .. } => assert!(base == cut_at && checkpoint_index < base),
        error => panic!("another error: {error}"),
    }
}

/// Returns the names of the log's files.
fn log_files(disk: &FaultyDisk) -> Vec<String> {
    disk.contents().into_keys().filter(|name| name.starts_with("log/")).collect()
}

#[test]
fn truncated_file_rejected_or_whole() {
    for closed in [true, false] {
        let (disk, model) = aged(9, closed);
        for name in log_files(&disk).into_iter().chain([STATE.to_owned()]) {
            let bytes = &disk.contents()[&name];
            let lengths = (0..bytes.len()).step_by(bytes.len().div_ceil(61));
            let few = [1, 63, 320, 4_095, 4_096, 8_192, bytes.len() - 1].into_iter();
            for length in lengths.chain(few.filter(|length| *length < bytes.len())) {
                let disk = disk.copy();
                disk.put(&name, bytes[..length].to_vec());
                let opened = refused_or_whole(&disk, &model, &format!("{name} of {length} bytes"));
                let may_open = name.starts_with("log/0") || length > bytes.len() / 4;
                assert!(!opened || may_open, "{name} of {length} bytes was opened");
            }
        }
    }
}

#[test]
fn wrong_byte_rejected_or_whole() {
    let (disk, model) = aged(10, true);
    let mut draw = Draw(10);
    let mut refused = 0;
    for name in log_files(&disk).into_iter().chain([STATE.to_owned()]) {
        let bytes = &disk.contents()[&name];
        let used: Vec<usize> = (0..bytes.len()).filter(|place| bytes[*place] != 0).collect();
        let anywhere =
            (0..if used.is_empty() { 0 } else { 300 }).map(|_| used[draw.below(used.len() as u64) as usize]);
        let anywhere: Vec<usize> = anywhere.collect();
        for place in (0..320.min(bytes.len())).step_by(2).chain(anywhere) {
            let disk = disk.copy();
            let mut wrong = bytes.clone();
            wrong[place] ^= 1 << draw.below(8);
            disk.put(&name, wrong);
            let context = format!("{name} with a wrong byte at {place}");
            refused += u32::from(!refused_or_whole(&disk, &model, &context));
        }
    }
    // The others are in free pages, in compacted records, or in one of two commits with the same
    // content.
    assert!(refused > 200, "wrong bytes were found: {refused}");
}

#[test]
fn altered_row_is_rejected() {
    let rows = TableName::new("rows");
    let (disk, _) = aged(11, true);
    let (store, _) = open_disk(&disk).expect("nothing is wrong with it");
    let mut held = snapshot_rows(&store).into_iter();
    let (RowKey(key), row) = held.next().expect("it holds something");
    let (RowKey(other), _) = held.next().expect("it holds more");
    drop(store);
    // Whole pages with valid checksums, as a fault below the file system or in redb would leave
    // them.
    let tampered = |tamper: &dyn Fn(&mut WritingTable<'_>) -> Result<(), StoreFault>| {
        let disk = disk.copy();
        let file =
            RedbFile::open(Arc::new(disk.clone()), STATE, 1 << 20).expect("it opens").expect("it is there");
        file.release().expect("the disk is good");
        file.write(|writing| tamper(&mut writing.table(rows)?)).expect("the disk is good");
        drop(file);
        disk
    };
    let changed = encode(&changed(&row));
    let without = tampered(&|table| table.remove(&key));
    refusal_of(&without, STATE, "the checksum of its rows is");
    refusal_of(&tampered(&|table| table.put(&key, &changed)), STATE, "the checksum of its rows is");
    let moved = tampered(&|table| table.put(&other, &encode(&row)));
    refusal_of(&moved, STATE, "a row is stored under the key of another one");
}

/// Returns another content of the same row.
fn changed(row: &Change) -> Change {
    match row {
        Change::Agent(number, Some(agent)) => {
            let generation = Generation(agent.generation.0 + 1);
            Change::Agent(*number, Some(Arc::new(Agent { generation, ..(**agent).clone() })))
        }
        Change::IndexBase(base) => Change::IndexBase(base + 1),
        other => panic!("not the first row of a script: {other:?}"),
    }
}

#[test]
fn checkpoint_without_checksum_gains_one() {
    let marks = TableName::new("mark");
    let (disk, mut model) = aged(12, true);
    let file =
        RedbFile::open(Arc::new(disk.clone()), STATE, 1 << 20).expect("it opens").expect("it is there");
    file.release().expect("the disk is good");
    file.write(|writing| writing.table(marks)?.remove(b"checksum")).expect("the disk is good");
    drop(file);
    let (mut store, recovered) = open_disk(&disk).expect("there is nothing to compare with");
    model.explains(&store, &recovered).expect("it counts as what it is");
    let mark = recovered.snapshot;
    let step = Step::Checkpoint(
        mark,
        vec![Change::IndexBase(77), Change::Tombstone("new".into(), Some(LogIndex(3)))],
    );
    step.run(&mut store).expect("the disk is good");
    model.apply(&step);
    drop(store);
    let (store, recovered) = open_disk(&disk).expect("its rows have their checksum");
    model.explains(&store, &recovered).expect("with all its rows");
}

/// Returns `true` if a damaged store was opened: then it must be complete.
fn refused_or_whole(disk: &FaultyDisk, model: &Model, context: &str) -> bool {
    let before = disk.contents();
    match open_disk(disk) {
        Ok((store, recovered)) => {
            let explained = model.explains(&store, &recovered);
            assert!(explained.is_ok(), "{context}: opened, but {explained:?}");
            true
        }
        Err(error) => {
            assert!(disk.contents() == before, "{context}: something was changed: {error}");
            assert!(error.to_string().contains("/faulty/"), "{context}: {error}");
            false
        }
    }
}

/// Returns a store killed right after its last commit, and the places of that commit's bytes.
fn killed(seed: u64) -> (FaultyDisk, Vec<(String, usize)>, Model) {
    let disk = FaultyDisk::default();
    let (mut store, _) = open_disk(&disk).expect("nothing is wrong with it");
    let (mut model, mut writer) = (Model::new(), StoreWriter::new(seed));
    let mut run = |step: Step| {
        step.run(&mut store).expect("nothing is wrong with it");
        model.apply(&step);
    };
    writer.steps(20).into_iter().for_each(&mut run);
    let before = disk.contents();
    run(if seed.is_multiple_of(2) { writer.vote_step() } else { writer.append_step() });
    let killed = disk.copy();
    let mut changed = Vec::new();
    for (name, bytes) in killed.contents().into_iter().filter(|(name, _)| name.starts_with("log/")) {
        let former = before.get(&name).cloned().unwrap_or_default();
        let places = (0..bytes.len()).filter(|place| former.get(*place) != Some(&bytes[*place]));
        changed.extend(places.map(|place| (name.clone(), place)));
    }
    (killed, changed, model)
}

#[test]
fn damaged_reported_commit_is_rejected() {
    let mut lost = 0;
    for seed in 70..80 {
        let (disk, changed, model) = killed(seed);
        let mut draw = Draw(seed);
        for _ in 0..60 {
            let (name, place) = &changed[draw.below(changed.len() as u64) as usize];
            let mut wrong = disk.contents()[name].clone();
            wrong[*place] ^= 1 << draw.below(8);
            let disk = disk.copy();
            disk.put(name, wrong);
            let (found, reported) = match open_disk(&disk) {
                Err(StoreError::Lost { found, reported, .. }) => (found, reported),
                // Bytes behind the record, up to the end of its sector.
                opened => {
                    let (store, recovered) = opened.expect("another error is none");
                    model.explains(&store, &recovered).expect("what was acknowledged is there");
                    continue;
                }
            };
            lost += 1;
            assert!(found < reported);
            refusal_of(&disk, LOG, "raft recover --accept-loss");
            let options = StoreOptions { accept_loss: true, ..options() };
            drop(open::open(Arc::new(disk.clone()), &options).expect("the loss is accepted"));
            let (store, recovered) = open_disk(&disk).expect("it is accepted once and for all");
            assert!(model.explains(&store, &recovered).is_err(), "something is lost");
        }
    }
    assert!(lost > 300, "{lost} were refused for their loss");
}

#[test]
fn unversioned_rows_are_rejected() {
    let (disk, _) = aged(11, true);
    let file =
        RedbFile::open(Arc::new(disk.clone()), STATE, 1 << 20).expect("it opens").expect("it is there");
    file.release().expect("the disk is good");
    let rewrite = |writing: &mut Writing<'_>| {
        let mut meta = writing.table(TableName::new("meta"))?;
        meta.put(b"format", &1_u32.to_le_bytes())?;
        // Version 1 of the wire, the kind, the pair's number 9, the server's id 1.
        meta.put(b"identity", &[1, 1, 9, 1])
    };
    file.write(rewrite).expect("the disk is good");
    drop(file);
    let words = format!("but this build reads version {FORMAT} only");
    let text = refusal(&disk).to_string();
    for part in [STATE, &words, "empty the whole data folder"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn inspection_matches_opening_writes_nothing() {
    for seed in 40..60 {
        let disk = FaultyDisk::default();
        let (mut store, _) = open_disk(&disk).expect("nothing is wrong with it");
        for step in StoreWriter::new(seed).steps(20) {
            step.run(&mut store).expect("nothing is wrong with it");
        }
        drop(store);
        let disk = disk.after_power_cut(Survival::Torn(seed));
        let before = disk.contents();
        let place: Arc<dyn crate::store::disk::Disk> = Arc::new(disk.clone());
        let found = open::inspect(&place, &options()).expect("it is sound").expect("a store");
        assert!(disk.contents() == before, "seed {seed}: something was written");
        assert_eq!((found.formats.log, found.formats.state), (LOG_FORMAT, FORMAT));
        let seen = found.recovered;
        let (_, opened) = open_disk(&disk).expect("it is sound");
        assert_eq!(
            (seen.hard_state, &seen.snapshot, seen.base, &seen.entries),
            (opened.hard_state, &opened.snapshot, opened.base, &opened.entries),
            "seed {seed}"
        );
    }
}

#[test]
fn a_folder_admits_one_store() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let (store, _) = Store::open(folder.path(), &options()).expect("nothing is wrong with it");
    let error = Store::open(folder.path(), &options()).expect_err("it is held");
    assert!(error.to_string().contains("another lockmesh runs on this folder"), "{error}");
    assert!(error.to_string().contains(&folder.path().display().to_string()), "{error}");
    drop(store);
    drop(Store::open(folder.path(), &options()).expect("it is free again"));

    // Another process may hold one of the files without knowing of the folder's lock.
    let reader = redb::Database::open(folder.path().join(STATE)).expect("it is free");
    let error = Store::open(folder.path(), &options()).expect_err("a file is held");
    assert!(matches!(&error, StoreError::Held(path) if path.ends_with(STATE)), "{error}");
    drop(reader);
    drop(Store::open(folder.path(), &options()).expect("it is free again"));
}
