//! The clients' observations: every version of every key that a client saw, by the index that
//! created it.
//!
//! An entry with modify index M proves that a write happened at M, even if the writer was never
//! answered. The evidence therefore shows which of the unknown writes took effect, and at which
//! index. The index returned with an absent key, or with a listing of everything, is that of the
//! newest change to any key: such an answer is exact at that index. So is an empty listing: its
//! index is that of the newest delete under its prefix, or of any key.

use super::operation::{KvWrite, Moment, Operation, Outcome, Query, Read, Reply, Request, Seen, Write};
use super::verdict::Violation;
use std::collections::{BTreeMap, BTreeSet};

/// A version of a key, as a client saw it.
#[derive(Clone, Debug)]
pub(super) struct Sighting {
    pub(super) seen: Seen,
    /// The first operation that saw it.
    pub(super) by: u64,
    /// The answer time of the first operation to be answered with it.
    pub(super) until: Moment,
}

/// The values of all requested keys right after an index.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) query: Query,
    pub(super) shown: Vec<Seen>,
    /// The operation that saw it.
    pub(super) by: u64,
}

/// A grant after a wait, as reported to its client.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) session: String,
    pub(super) fence: u64,
    /// The operation that received the report.
    pub(super) by: u64,
}

/// All observations.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// By modify index, then key.
    versions: BTreeMap<u64, BTreeMap<String, Sighting>>,
    /// The indexes at which a key was created, according to its later versions.
    births: BTreeMap<u64, BTreeSet<String>>,
    snapshots: BTreeMap<u64, Vec<Snapshot>>,
    grants: BTreeMap<u64, Vec<Told>>,
}

impl Evidence {
    /// Gathers the observations of all operations. Two observations of one version must be the
    /// same.
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
                // A transaction's results of its own writes may have been overwritten by its next
                // step.
                if Some(seen.modify_index) != own_index {
                    violations.extend(evidence.add(operation, seen));
                }
            }
        }
        (evidence, violations)
    }

    /// Returns all indexes with evidence.
    pub(super) fn indexes(&self) -> impl Iterator<Item = u64> {
        let versions = self.versions.keys().chain(self.births.keys());
        versions.chain(self.snapshots.keys()).chain(self.grants.keys()).copied()
    }

    /// Returns the versions that were created at an index.
    pub(super) fn at(&self, index: u64) -> impl Iterator<Item = &Sighting> {
        self.versions.get(&index).into_iter().flat_map(BTreeMap::values)
    }

    /// Returns the keys that were created at an index.
    pub(super) fn born_at(&self, index: u64) -> impl Iterator<Item = &String> {
        self.births.get(&index).into_iter().flatten()
    }

    /// Returns the observations that are exact right after an index.
    pub(super) fn snapshots_at(&self, index: u64) -> impl Iterator<Item = &Snapshot> {
        self.snapshots.get(&index).into_iter().flatten()
    }

    /// Returns the grants after a wait that happened at an index.
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

/// Returns the exact state that an answer proves right after its index. An index of 1 is also
/// returned if nothing was ever written.
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

/// Returns the entries that an operation saw.
pub(super) fn seen_by(operation: &Operation) -> &[Seen] {
    match operation.reply() {
        Some(Reply::Entries(seen) | Reply::Txn(seen)) => seen,
        _ => &[],
    }
}
