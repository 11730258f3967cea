//! What clients saw: every version of every key that anybody was shown, by the index that made it.
//!
//! An entry that was shown with modify index M proves that something wrote it at M, whether or not
//! the writer was ever answered. So this is what tells which of the unknown writes took effect, and
//! where. The index that comes with an absent key, or with a listing of everything, is that of the
//! newest change to any key: such an answer is exact at that index. So is a listing in which there
//! is nothing: its index is that of the newest delete under its prefix, or of any key.

use super::operation::{KvWrite, Moment, Operation, Outcome, Query, Read, Reply, Request, Seen, Write};
use super::verdict::Violation;
use std::collections::{BTreeMap, BTreeSet};

/// A version of a key, as somebody was shown it.
#[derive(Clone, Debug)]
pub(super) struct Sighting {
    pub(super) seen: Seen,
    /// The operation that was shown it first.
    pub(super) by: u64,
    /// When the first one to be shown it had its answer.
    pub(super) until: Moment,
}

/// What all keys that were asked for were right after an index.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) query: Query,
    pub(super) shown: Vec<Seen>,
    /// The operation that was shown it.
    pub(super) by: u64,
}

/// A grant after a wait, as its client was told.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) session: String,
    pub(super) fence: u64,
    /// The operation that was told.
    pub(super) by: u64,
}

/// Everything that was seen.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// By modify index, then key.
    versions: BTreeMap<u64, BTreeMap<String, Sighting>>,
    /// The indexes at which a key was created, as its later versions tell.
    births: BTreeMap<u64, BTreeSet<String>>,
    snapshots: BTreeMap<u64, Vec<Snapshot>>,
    grants: BTreeMap<u64, Vec<Told>>,
}

impl Evidence {
    /// Gathers what all operations saw. Two that saw the same version must have seen the same.
    pub(super) fn gather(operations: &[Operation]) -> (Self, Vec<Violation>) {
        let (mut evidence, mut violations) = (Self::default(), Vec::new());
        for operation in operations {
            if let Some((index, snapshot)) = snapshot(operation) {
                evidence.snapshots.entry(index).or_default().push(snapshot);
            }
            if let Some((at, told)) = told_of_grant(operation) {
                evidence.grants.entry(at).or_default().push(told);
            }
            let own_index = operation.write_index();
            for seen in seen_by(operation) {
                if Some(seen.create_index) != own_index {
                    evidence.births.entry(seen.create_index).or_default().insert(seen.key.clone());
                }
                // What a transaction shows of its own writes may have been overwritten by its next
                // step.
                if Some(seen.modify_index) != own_index {
                    violations.extend(evidence.add(operation, seen));
                }
            }
        }
        (evidence, violations)
    }

    /// All indexes that prove something.
    pub(super) fn indexes(&self) -> impl Iterator<Item = u64> {
        let versions = self.versions.keys().chain(self.births.keys());
        versions.chain(self.snapshots.keys()).chain(self.grants.keys()).copied()
    }

    /// The versions that were made at an index.
    pub(super) fn at(&self, index: u64) -> impl Iterator<Item = &Sighting> {
        self.versions.get(&index).into_iter().flat_map(BTreeMap::values)
    }

    /// The keys that were created at an index.
    pub(super) fn born_at(&self, index: u64) -> impl Iterator<Item = &String> {
        self.births.get(&index).into_iter().flatten()
    }

    /// What was exactly so right after an index.
    pub(super) fn snapshots_at(&self, index: u64) -> impl Iterator<Item = &Snapshot> {
        self.snapshots.get(&index).into_iter().flatten()
    }

    /// The grants after a wait that happened at an index.
    pub(super) fn grants_at(&self, index: u64) -> impl Iterator<Item = &Told> {
        self.grants.get(&index).into_iter().flatten()
    }

    fn add(&mut self, operation: &Operation, seen: &Seen) -> Option<Violation> {
        let versions = self.versions.entry(seen.modify_index).or_default();
        let Some(known) = versions.get_mut(&seen.key) else {
            let sighting = Sighting { seen: seen.clone(), by: operation.number, until: operation.ended };
            versions.insert(seen.key.clone(), sighting);
            return None;
        };
        known.until = known.until.min(operation.ended);
        if known.seen.value.is_none() {
            known.seen.value.clone_from(&seen.value);
        }
        let same_value = seen.value.is_none() || seen.value == known.seen.value;
        let bare = |seen: &Seen| Seen { value: None, ..seen.clone() };
        if same_value && bare(&known.seen) == bare(seen) {
            return None;
        }
        let text =
            format!("{operation} differs from what #{} saw of the same version: {}", known.by, known.seen);
        Some(Violation::new("a version has one content", &[known.by, operation.number], text))
    }
}

fn told_of_grant(operation: &Operation) -> Option<(u64, Told)> {
    let Some(Write::Kv(KvWrite::Enqueue { key, value, session })) = operation.write() else { return None };
    let Some(Reply::GrantedLater { at, fence }) = operation.reply() else { return None };
    let (key, value, session) = (key.clone(), value.clone(), session.clone());
    Some((*at, Told { key, value, session, fence: *fence, by: operation.number }))
}

/// What an answer proves of the state right after its index. An index of 1 is also sent where
/// nothing was ever written.
fn snapshot(operation: &Operation) -> Option<(u64, Snapshot)> {
    let Request::Read(Read { query, .. }) = &operation.request else { return None };
    let Outcome::Answered { index: Some(index), reply: Reply::Entries(shown) } = &operation.outcome else {
        return None;
    };
    let is_exact = match query {
        Query::Key(_) => shown.is_empty(),
        Query::Prefix(prefix) => prefix.is_empty() || shown.is_empty(),
        Query::Together(_) | Query::Session(_) => false,
    };
    let snapshot = || Snapshot { query: query.clone(), shown: shown.clone(), by: operation.number };
    (is_exact && *index > 1).then(|| (*index, snapshot()))
}

/// The entries that an operation was shown.
pub(super) fn seen_by(operation: &Operation) -> &[Seen] {
    match operation.reply() {
        Some(Reply::Entries(seen) | Reply::Txn(seen)) => seen,
        _ => &[],
    }
}
