//! Compares all keys of both sides, and notes which of them the migration may change.
//!
//! Consul's list, Lockmesh's keys and the state file are read side by side in the order of the
//! keys, so that one entry of Consul and one slice of Lockmesh are in memory.

use super::ledger::{Claim, Ledger, Record, Writer, print_of};
use super::report::{Comparison, CopyProgress};
use super::side::{ConsulSource, Row};
use super::slices::Slices;
use super::sorted::{Head, least};
use crate::MigrateError;
use lockmesh_client::Entry;

/// Compares both sides. With a writer, notes the claims for the next pass.
pub(super) async fn compare(
    source: &ConsulSource,
    other: Slices<'_>,
    ledger: &Ledger,
    mut notes: Option<&mut Writer>,
    overwrite: bool,
    mut progress: CopyProgress,
) -> Result<Comparison, MigrateError> {
    let mut found = Comparison::default();
    let mut rows = Head::of(source.list()).await?;
    let mut entries = Head::of(other).await?;
    let mut records = Head::of(ledger.read()?).await?;
    while let Some(key) = least([rows.key(), entries.key(), records.key()]) {
        let (row, entry) = (rows.take(&key).await?, entries.take(&key).await?);
        let record = records.take(&key).await?;
        let claim = Judge { ledger, overwrite, is_covered: source.covers(&key) };
        let noted = claim.judge(&key, row, entry, record, &mut found);
        if let (Some(notes), Some(noted)) = (&mut notes, noted) {
            notes.put(&noted)?;
        }
        progress.report(|| format!("comparing: {} keys, {} MB so far", found.keys, found.bytes / 1_000_000));
    }
    // Keys with an invalid name are not among the rows, and are all known only at the end.
    let misfits = rows.list.misfits;
    found.keys += misfits.count;
    found.differing.extend(&misfits);
    found.unfit.extend(&misfits);
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
        if row.as_ref().is_some_and(|row| !fits(row, found)) {
            return record;
        }
        match (row.map(|row| row.entry), entry) {
            (Some(here), Some(there)) if here.value == there.value && here.flags == there.flags => {
                found.equal += 1;
                Some(noted(&there, here.modify_index, claim.unwrap_or(Claim::Equal)))
            }
            (Some(here), Some(there)) => match self.differing(key, &here, &there, claim, found) {
                Some(claim) => Some(noted(&there, 0, claim)),
                None => record,
            },
            (Some(_), None) => {
                // Without a record, the pass creates the key on condition that it is still absent.
                found.missing += 1;
                found.differing.add(key, "not in Lockmesh");
                None
            }
            (None, Some(there)) => extra(&there, claim, found).map(|claim| noted(&there, 0, claim)),
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
        // Not even with `--overwrite`: the value belongs to the holder of the lock.
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
        // First: the record is older than a write whose answer was lost.
        if self.ledger.wrote_unnoted(&entry.key, print) {
            return Some(Claim::Copied);
        }
        // What one run may overwrite, another one may not.
        let record = record.filter(|record| record.claim != Claim::Overwrite || self.overwrite);
        record.filter(|record| record.print == print).map(|record| record.claim)
    }
}

/// Counts a key of Consul; `false` if Lockmesh cannot have it.
fn fits(row: &Row, found: &mut Comparison) -> bool {
    let key = &row.entry.key;
    found.keys += 1;
    found.bytes += row.entry.value.len() as u64;
    if row.entry.session.is_some() {
        found.locked.add(key, "");
    }
    if let Some(misfit) = &row.misfit {
        found.unfit.add(key, misfit.as_str());
        found.differing.add(key, misfit.as_str());
    }
    row.misfit.is_none()
}

/// Counts a key that only Lockmesh has; returns the reason why it may be deleted.
fn extra(there: &Entry, claim: Option<Claim>, found: &mut Comparison) -> Option<Claim> {
    let reason = match claim {
        Some(Claim::Copied) if there.session.is_none() => {
            found.obsolete += 1;
            "deleted in Consul, still in Lockmesh"
        }
        Some(Claim::Copied) => "deleted in Consul, but locked in Lockmesh",
        Some(Claim::Equal) => "deleted in Consul, but in Lockmesh before the migration; delete it there",
        Some(Claim::Overwrite) | None => {
            found.only_in_lockmesh.add(&there.key, "");
            return None;
        }
    };
    found.differing.add(&there.key, reason);
    claim
}

/// The record of an entry of Lockmesh. The index of a locked entry must not permit a write:
/// its condition fails, and the entry is read again.
fn noted(entry: &Entry, source: u64, claim: Claim) -> Record {
    let target = entry.modify_index * u64::from(entry.session.is_none());
    Record { key: entry.key.clone(), print: print_of(entry), source, target, claim }
}
