//! The state file of a migration: which keys in Lockmesh it wrote, and what it wrote there.
//!
//! Lines in ascending order of the keys, read and written as a stream, because a source may have
//! any number of keys. A pass writes a new file (`FILE.next`) beside the old one and replaces it at
//! the end. If the process dies during a pass, the new lines count up to the last key, and the old
//! ones behind it. The keys of the transaction in progress are in `FILE.batch`, which is written
//! before the transaction is sent, and is locked while a migration runs.

use super::sorted::Sorted;
use crate::MigrateError;
use lockmesh_client::Entry;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The beginning of the first line, which ends with both sides of the migration.
const TITLE: &str = "lockmesh migrate consul 2 ";

/// The same without Consul's datacenter.
const OLD_TITLE: &str = "lockmesh migrate consul 1 ";

/// The reason why this migration may change a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// It wrote the key.
    Copied,
    /// The key was in Lockmesh with the same value. It may be updated, but not deleted.
    Equal,
    /// The operator lets this run overwrite the key.
    Overwrite,
}

/// A key in Lockmesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// The key in Lockmesh.
    pub(super) key: String,
    /// The print of value and flags in Lockmesh.
    pub(super) print: u128,
    /// The modify index of the same entry in Consul; 0 if Lockmesh has another value.
    pub(super) source: u64,
    /// The modify index in Lockmesh; 0 if unknown.
    pub(super) target: u64,
    pub(super) claim: Claim,
}

/// Returns a print of an entry's value and flags.
pub(super) fn print_of(entry: &Entry) -> u128 {
    // The flags first: their length is fixed, so no two entries give the same bytes.
    let digest = Sha256::new().chain_update(entry.flags.to_le_bytes()).chain_update(&entry.value).finalize();
    digest.iter().take(16).fold(0, |print, byte| print << 8 | u128::from(*byte))
}

impl Record {
    fn line(&self) -> String {
        let claim = match self.claim {
            Claim::Copied => 'c',
            Claim::Equal => 'e',
            Claim::Overwrite => 'o',
        };
        // The key is the last part, because it may contain spaces.
        format!("{:032x} {} {} {claim} {}\n", self.print, self.source, self.target, self.key)
    }

    /// Parses a line without its end. No key contains a line break.
    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.splitn(5, ' ');
        Some(Self {
            print: u128::from_str_radix(parts.next()?, 16).ok()?,
            source: parts.next()?.parse().ok()?,
            target: parts.next()?.parse().ok()?,
            claim: match parts.next()? {
                "c" => Claim::Copied,
                "e" => Claim::Equal,
                "o" => Claim::Overwrite,
                _ => return None,
            },
            key: parts.next()?.to_owned(),
        })
    }
}

/// The state file.
#[derive(Debug)]
pub(super) struct Ledger {
    path: PathBuf,
    title: String,
    /// Locked; `None` if this run writes nothing.
    batch: Option<File>,
    /// The prints of the transaction that an earlier run did not finish.
    unfinished: BTreeMap<String, u128>,
}

impl Ledger {
    /// Opens the file of a migration between these sides, or begins one. `writes` locks it.
    pub(super) fn open(path: &Path, migration: &str, writes: bool) -> Result<Self, MigrateError> {
        let title = format!("{TITLE}{migration}");
        let mut this = Self { path: path.into(), title, batch: None, unfinished: BTreeMap::new() };
        let batch = this.beside("batch");
        let file = match writes {
            true => options().read(true).write(true).create(true).truncate(false).open(&batch).map(Some),
            false => optional(File::open(&batch)),
        };
        if let Some(mut file) = file.map_err(|error| this.failed(error))? {
            if writes && file.try_lock().is_err() {
                let path = path.display();
                return Err(MigrateError::failed(format!(
                    "another migration uses the state file {path}: wait for it, or choose another with \
                    --state"
                )));
            }
            let mut lines = Vec::new();
            file.read_to_end(&mut lines).map_err(|error| this.failed(error))?;
            // A process that died while it wrote the lines had not sent the transaction.
            this.unfinished =
                whole_lines(&lines).filter_map(Record::parse).map(|r| (r.key, r.print)).collect();
            this.batch = Some(file).filter(|_| writes);
        }
        // Checks the titles before anything is changed: the file may be that of another migration.
        this.read()?;
        if writes {
            this.recover()?;
        }
        Ok(this)
    }

    /// Makes one file of an unfinished pass and the file before it.
    pub(super) fn recover(&self) -> Result<(), MigrateError> {
        if optional(File::open(self.beside("next"))).map_err(|error| self.failed(error))?.is_none() {
            return Ok(());
        }
        let (mut old, mut new) = (self.read()?, self.create("merged")?);
        while let Some(record) = old.next()? {
            new.put(&record)?;
        }
        new.finish()?;
        // Last: after a crash before this, the same records are merged again.
        std::fs::remove_file(self.beside("next")).map_err(|error| self.failed(error))
    }

    /// Reads the records in order.
    pub(super) fn read(&self) -> Result<Reader, MigrateError> {
        let open = |path: PathBuf| match optional(File::open(path)).map_err(|error| self.failed(error))? {
            Some(file) => self.check_title(BufReader::new(file)).map(Some),
            None => Ok(None),
        };
        let (next, old) = (open(self.beside("next"))?, open(self.path.clone())?);
        Ok(Reader { path: self.path.clone(), next, old, last: None })
    }

    /// Begins the file of the next pass.
    pub(super) fn rewrite(&self) -> Result<Writer, MigrateError> {
        self.create("next")
    }

    /// Notes what a transaction will write, before it is sent.
    pub(super) fn begin<'a>(
        &mut self,
        records: impl Iterator<Item = (&'a str, u128)>,
    ) -> Result<(), MigrateError> {
        let Some(file) = &mut self.batch else { return Ok(()) };
        let line = |(key, print): (&str, u128)| {
            Record { key: key.into(), print, source: 0, target: 0, claim: Claim::Copied }.line()
        };
        let text: String = records.map(line).collect();
        // Not synced: the note must survive the end of this process, not that of the host.
        let written =
            file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(text.as_bytes()));
        written.map_err(|error| failed(&self.path, error))
    }

    /// `true` if an earlier run may have written this value and died before it noted that.
    pub(super) fn wrote_unnoted(&self, key: &str, print: u128) -> bool {
        self.unfinished.get(key) == Some(&print)
    }

    /// The state file's name with another ending.
    fn beside(&self, ending: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".");
        name.push(ending);
        name.into()
    }

    fn create(&self, ending: &str) -> Result<Writer, MigrateError> {
        let path = self.beside(ending);
        let file = options().write(true).create(true).truncate(true).open(&path);
        let mut file = BufWriter::new(file.map_err(|error| self.failed(error))?);
        writeln!(file, "{}", self.title).map_err(|error| self.failed(error))?;
        Ok(Writer { path, place: self.path.clone(), file })
    }

    fn check_title(&self, mut file: BufReader<File>) -> Result<BufReader<File>, MigrateError> {
        // A process that died during the first write left no whole line.
        let title = read_line(&mut file).map_err(|error| self.failed(error))?;
        let Some(title) = title.filter(|title| *title != self.title) else { return Ok(file) };
        let path = self.path.display();
        let mine = self.title.trim_start_matches(TITLE);
        Err(MigrateError::failed(match title.strip_prefix(TITLE) {
            Some(other) => format!(
                "the state file {path} belongs to a migration from {other}, not from {mine}: continue with \
                 the same sides and --to-prefix, or choose another file with --state"
            ),
            None if title.starts_with(OLD_TITLE) => format!(
                "the state file {path} of an older version does not name Consul's datacenter: choose another \
                 with --state; keys that were deleted in Consul since the last run stay in Lockmesh"
            ),
            None => format!("{path} is no state file of a migration: choose another with --state"),
        }))
    }

    fn failed(&self, error: io::Error) -> MigrateError {
        failed(&self.path, error)
    }
}

/// The records of a state file.
#[derive(Debug)]
pub(super) struct Reader {
    path: PathBuf,
    next: Option<BufReader<File>>,
    old: Option<BufReader<File>>,
    /// The last key of the unfinished pass.
    last: Option<String>,
}

impl Sorted for Reader {
    type Item = Record;

    fn key_of(record: &Record) -> &str {
        &record.key
    }

    async fn next(&mut self) -> Result<Option<Record>, MigrateError> {
        Self::next(self)
    }
}

impl Reader {
    fn next(&mut self) -> Result<Option<Record>, MigrateError> {
        if let Some(file) = &mut self.next {
            if let Some(record) = read_record(file, &self.path)? {
                self.last = Some(record.key.clone());
                return Ok(Some(record));
            }
            self.next = None;
        }
        let Some(file) = &mut self.old else { return Ok(None) };
        loop {
            match read_record(file, &self.path)? {
                Some(record) if self.last.as_ref().is_some_and(|last| record.key <= *last) => {}
                record => return Ok(record),
            }
        }
    }
}

/// The state file of a pass. Dropped unfinished, it stays beside the old one.
#[derive(Debug)]
pub(super) struct Writer {
    path: PathBuf,
    place: PathBuf,
    file: BufWriter<File>,
}

impl Writer {
    pub(super) fn put(&mut self, record: &Record) -> Result<(), MigrateError> {
        self.file.write_all(record.line().as_bytes()).map_err(|error| failed(&self.place, error))
    }

    /// Hands the records to the system: they survive the end of this process.
    pub(super) fn flush(&mut self) -> Result<(), MigrateError> {
        self.file.flush().map_err(|error| failed(&self.place, error))
    }

    /// Replaces the old file.
    pub(super) fn finish(mut self) -> Result<(), MigrateError> {
        self.flush()?;
        // Synced before it replaces the old file, which is complete.
        let replaced = self.file.get_ref().sync_all().and_then(|()| std::fs::rename(&self.path, &self.place));
        replaced.map_err(|error| failed(&self.place, error))
    }

    /// Removes the file of this pass; the old one stays.
    pub(super) fn discard(self) -> Result<(), MigrateError> {
        std::fs::remove_file(&self.path).map_err(|error| failed(&self.place, error))
    }
}

/// Only the operator may read the names of the keys.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

fn optional(file: io::Result<File>) -> io::Result<Option<File>> {
    match file {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        file => file.map(Some),
    }
}

fn failed(path: &Path, error: io::Error) -> MigrateError {
    MigrateError::failed(format!(
        "cannot use the state file {}: {error}; choose another with --state",
        path.display()
    ))
}

/// The lines that were written completely.
fn whole_lines(lines: &[u8]) -> impl Iterator<Item = &str> {
    let whole = lines.split_inclusive(|byte| *byte == b'\n').filter_map(|line| line.strip_suffix(b"\n"));
    whole.filter_map(|line| std::str::from_utf8(line).ok())
}

/// Reads a line without its end; `None` for one without an end, the last of a process that died.
fn read_line(file: &mut BufReader<File>) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    file.read_until(b'\n', &mut line)?;
    match line.strip_suffix(b"\n") {
        Some(line) => String::from_utf8(line.into()).map(Some).map_err(io::Error::other),
        None => Ok(None),
    }
}

fn read_record(file: &mut BufReader<File>, path: &Path) -> Result<Option<Record>, MigrateError> {
    let Some(line) = read_line(file).map_err(|error| failed(path, error))? else { return Ok(None) };
    let record = Record::parse(&line);
    record.map(Some).ok_or_else(|| failed(path, io::Error::other(format!("the line {line:?} is damaged"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &str, print: u128) -> Record {
        Record { key: key.into(), print, source: 1, target: 2, claim: Claim::Copied }
    }

    fn all(ledger: &Ledger) -> Vec<Record> {
        let mut reader = ledger.read().expect("it is readable");
        std::iter::from_fn(|| reader.next().expect("it is good")).collect()
    }

    #[test]
    fn unfinished_pass_keeps_old_remainder() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state");
        let mut ledger = Ledger::open(&path, "a:1", true).expect("a new one");
        let mut writer = ledger.rewrite().expect("a file");
        for key in ["a", "b c", "d", "e"] {
            writer.put(&record(key, 1)).expect("written");
        }
        writer.finish().expect("it replaces the old file");
        let mut writer = ledger.rewrite().expect("a file");
        writer.put(&record("a", 2)).expect("written");
        writer.put(&record("d", 2)).expect("written");
        writer.file.write_all(b"0000 1 2 c half").expect("written");
        ledger.begin([("e", 7)].into_iter()).expect("noted");
        writer.flush().expect("written");
        drop((writer, ledger));
        let expected = [record("a", 2), record("d", 2), record("e", 1)];
        let read_only = Ledger::open(&path, "a:1", false).expect("it is readable");
        assert_eq!(all(&read_only), expected, "`b c` was deleted in this pass");
        let ledger = Ledger::open(&path, "a:1", true).expect("it is recovered");
        assert_eq!(all(&ledger), expected);
        assert!(!folder.path().join("state.next").exists());
        assert!(ledger.wrote_unnoted("e", 7) && !ledger.wrote_unnoted("e", 8));
    }

    #[test]
    fn state_file_of_other_migration_rejected() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state");
        let ledger = Ledger::open(&path, "a:1", true).expect("a new one");
        ledger.rewrite().and_then(Writer::finish).expect("it is written");
        let busy = Ledger::open(&path, "a:1", true).expect_err("it is locked").to_string();
        assert!(busy.starts_with("another migration uses"), "{busy}");
        drop(ledger);
        let other = Ledger::open(&path, "b:1", true).expect_err("another source").to_string();
        assert!(other.contains("belongs to a migration from a:1, not from b:1: continue with"), "{other}");
        std::fs::write(&path, "lockmesh migrate consul 1 a:1\n").expect("written");
        let older = Ledger::open(&path, "a:1", true).expect_err("no datacenter").to_string();
        assert!(older.contains("of an older version") && older.contains("choose another with"), "{older}");
        std::fs::write(&path, "x\n").expect("written");
        let foreign = Ledger::open(&path, "a:1", false).expect_err("no state file").to_string();
        assert!(foreign.contains("is no state file"), "{foreign}");
    }
}
