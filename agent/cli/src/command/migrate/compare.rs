//! Compares all keys of both sides, and notes which of them the migration may change.
//!
//! Consul's list, Lockmesh's keys and the state file are read side by side in the order of the
//! keys, so that one entry of Consul and one slice of Lockmesh are in memory.

use super::super::error::CliError;
use super::super::kv::limits::Limits;
use super::ledger::{Claim, Ledger, Record, Writer, print_of};
use super::report::{Comparison, Progress};
use super::side::{Row, Source};
use super::slices::Slices;
use lockmesh_client::Entry;

/// Compares both sides. With a writer, notes the claims for the next pass.
pub(super) async fn compare(
    source: &Source,
    mut other: Slices<'_>,
    ledger: &Ledger,
    mut notes: Option<&mut Writer>,
    limits: Limits,
    overwrite: bool,
) -> Result<Comparison, CliError> {
    let mut list = source.list(limits);
    let mut records = ledger.read()?;
    let mut found = Comparison::default();
    let mut progress = Progress::new();
    let mut row = list.next().await?;
    let mut entry = other.next().await?;
    let mut record = records.next()?;
    loop {
        let keys = [row.as_ref().map(|row| &row.entry.key), entry.as_ref().map(|entry| &entry.key)];
        let keys = keys.into_iter().chain([record.as_ref().map(|record| &record.key)]);
        let Some(key) = keys.flatten().min().cloned() else { break };
        let here = row.take_if(|row| row.entry.key == key);
        if here.is_some() {
            row = list.next().await?;
        }
        let there = entry.take_if(|entry| entry.key == key);
        if there.is_some() {
            entry = other.next().await?;
        }
        let known = record.take_if(|record| record.key == key);
        if known.is_some() {
            record = records.next()?;
        }
        let claim = Judge { ledger, overwrite, is_covered: source.covers(&key) };
        let noted = claim.judge(&key, here, there, known, &mut found);
        if let (Some(notes), Some(noted)) = (&mut notes, noted) {
            notes.put(&noted)?;
        }
        progress.report(|| format!("comparing: {} keys, {} MB so far", found.keys, found.bytes / 1_000_000));
    }
    for misfit in &list.misfits.keys {
        found.differing.add(&misfit.key, misfit.reason.as_str());
        found.unfit.add(&misfit.key, misfit.reason.as_str());
    }
    let unnamed = list.misfits.count - list.misfits.keys.len() as u64;
    found.differing.count += unnamed;
    found.unfit.count += unnamed;
    found.keys += list.misfits.count;
    Ok(found)
}

struct Judge<'a> {
    ledger: &'a Ledger,
    overwrite: bool,
    is_covered: bool,
}

impl Judge<'_> {
    /// Counts a key; returns what is noted about it.
    fn judge(
        &self,
        key: &str,
        row: Option<Row>,
        entry: Option<Entry>,
        record: Option<Record>,
        found: &mut Comparison,
    ) -> Option<Record> {
        // Another prefix of the same state file.
        if !self.is_covered {
            return record;
        }
        let claim = entry.as_ref().and_then(|entry| self.claim(entry, record.as_ref()));
        found.owned += u64::from(claim == Some(Claim::Copied));
        let noted = |entry: &Entry, source: u64, claim: Claim| {
            let print = print_of(entry);
            // The index of a locked entry must not permit a write: its condition fails, and the
            // entry is read again.
            let target = entry.modify_index * u64::from(entry.session.is_none());
            Some(Record { key: key.into(), print, source, target, claim })
        };
        if let Some(row) = &row {
            found.keys += 1;
            found.bytes += row.entry.value.len() as u64;
            if row.entry.session.is_some() {
                found.locked.add(key, "");
            }
            if let Some(misfit) = &row.misfit {
                found.unfit.add(key, misfit.as_str());
                found.differing.add(key, misfit.as_str());
                return record;
            }
        }
        match (row.map(|row| row.entry), entry) {
            (Some(here), Some(there)) if here.value == there.value && here.flags == there.flags => {
                found.equal += 1;
                noted(&there, here.modify_index, claim.unwrap_or(Claim::Equal))
            }
            (Some(here), Some(there)) => match self.differing(key, &here, &there, claim, found) {
                Some(claim) => noted(&there, 0, claim),
                None => record,
            },
            (Some(_), None) => {
                found.missing += 1;
                found.differing.add(key, "not in Lockmesh");
                None
            }
            (None, Some(there)) => match claim {
                Some(Claim::Copied) if there.session.is_none() => {
                    found.obsolete += 1;
                    found.differing.add(key, "deleted in Consul, still in Lockmesh");
                    noted(&there, 0, Claim::Copied)
                }
                Some(Claim::Copied) => {
                    found.differing.add(key, "deleted in Consul, but locked in Lockmesh");
                    noted(&there, 0, Claim::Copied)
                }
                Some(Claim::Equal) => {
                    let reason = "deleted in Consul, but in Lockmesh before the migration; delete it there";
                    found.differing.add(key, reason);
                    noted(&there, 0, Claim::Equal)
                }
                _ => {
                    found.only_in_lockmesh.add(key, "");
                    None
                }
            },
            (None, None) => None,
        }
    }

    /// Counts a key whose entries differ; returns the reason why it may be written.
    fn differing(
        &self,
        key: &str,
        here: &Entry,
        there: &Entry,
        claim: Option<Claim>,
        found: &mut Comparison,
    ) -> Option<Claim> {
        let part = if here.value == there.value { "flags differ" } else { "values differ" };
        let reason = match there.session {
            Some(_) => format!("{part}, and it is locked in Lockmesh"),
            None => part.to_owned(),
        };
        found.differing.add(key, reason.as_str());
        let claim = claim.or(Some(Claim::Overwrite).filter(|_| self.overwrite));
        match claim.filter(|_| there.session.is_none()) {
            Some(claim) => {
                found.outdated += 1;
                Some(claim)
            }
            None => {
                found.conflicts.add(key, reason);
                None
            }
        }
    }

    /// The reason why the migration may change an entry of Lockmesh.
    fn claim(&self, entry: &Entry, record: Option<&Record>) -> Option<Claim> {
        let print = print_of(entry);
        if self.ledger.wrote_unnoted(&entry.key, print) {
            return Some(Claim::Copied);
        }
        // What one run may overwrite, another one may not.
        let record = record.filter(|record| record.claim != Claim::Overwrite || self.overwrite);
        record.filter(|record| record.print == print).map(|record| record.claim)
    }
}
