//! The encoding of a [`Change`] as a row of the checkpoint, and the rows changed since the last
//! checkpoint.
//!
//! **Invariant:** equal rows have equal keys, different rows different ones: a row's key is a
//! letter for its kind, then the parts of its name. Keys never change their form within a format
//! version.

use lockmesh_core::durability::write_queue::CheckpointRows;
use lockmesh_core::raft::log::OwnMemory;
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::format;
use lockmesh_protocol::id::{Key, LogIndex};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{Hash, Hasher};
use std::ops::Range;

/// A row's key in the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RowKey(pub(super) Vec<u8>);

/// The kind of the rows of an unfinished restore.
pub(super) const RESTORE_PART: u8 = b'r';
/// The kind of the replies kept for retries of agents.
pub(super) const REPLY: u8 = b'p';
/// The kind of the one row that holds the cluster's id.
const CLUSTER_ID: u8 = b'u';

/// The kinds of rows that are removed when everything under a prefix is deleted.
const OF_TREES: [u8; 2] = [b'e', b't'];

/// The effect of a change on the checkpoint: for tests that replay changes one by one.
#[cfg(test)]
pub(super) enum Effect {
    /// Sets the row, or removes it.
    Row(RowKey, bool),
    /// Removes the rows of these ranges.
    Ranges([Range<RowKey>; 2]),
    /// Removes every row.
    Clear,
}

/// See [`Effect`].
#[cfg(test)]
pub(super) fn effect(change: &Change) -> Effect {
    match (address(change), change) {
        (Some((address, present)), _) => Effect::Row(address.key(), present),
        (None, Change::TreeDeleted(prefix)) => Effect::Ranges(ranges_of(prefix.as_str())),
        (None, _) => Effect::Clear,
    }
}

/// Returns the ranges of the rows removed when everything under a prefix is deleted.
fn ranges_of(prefix: &str) -> [Range<RowKey>; 2] {
    OF_TREES.map(|kind| {
        let start = named(kind, prefix);
        let mut end = start.clone();
        // A letter or a byte of UTF-8: neither is 0xff.
        *end.0.last_mut().expect("a key begins with its kind") += 1;
        start..end
    })
}

/// A row's kind and name, borrowed from its change: the parts of its key.
#[derive(PartialEq, Eq, Hash)]
struct RowAddress<'a>(u8, RowName<'a>);

#[derive(PartialEq, Eq, Hash)]
enum RowName<'a> {
    Only,
    Uuid(&'a [u8; 16]),
    Text(&'a str),
    Texts(&'a str, &'a str),
    /// A UUID, behind a name that may contain any byte.
    Of(&'a str, &'a [u8; 16]),
    InQueue(&'a str, LogIndex),
    Number(u64),
    Numbers(u64, u64),
}

/// Returns the row of a change, and `true` if it exists afterwards; `None` for a change of many
/// rows.
fn address(change: &Change) -> Option<(RowAddress<'_>, bool)> {
    let (kind, name, present) = match change {
        Change::Entry(key, row) => (b'e', RowName::Text(key.as_str()), row.is_some()),
        Change::Session(id, row) => (b's', RowName::Uuid(id.as_bytes()), row.is_some()),
        Change::Node(name, row) => (b'n', RowName::Text(name.as_str()), row.is_some()),
        Change::Service(node, id, row) => (b'v', RowName::Texts(node.as_str(), id.as_str()), row.is_some()),
        Change::Check(node, id, row) => (b'c', RowName::Texts(node.as_str(), id.as_str()), row.is_some()),
        Change::Tombstone(key, row) => (b't', RowName::Text(key.as_str()), row.is_some()),
        Change::LockDelay(key, row) => (b'd', RowName::Text(key.as_str()), row.is_some()),
        Change::Waiter(key, queue_position, row) => {
            (b'k', RowName::InQueue(key.as_str(), *queue_position), row.is_some())
        }
        Change::LockRequest(queue_position, row) => (b'R', RowName::Number(queue_position.0), row.is_some()),
        Change::SharedHold(key, session, row) => {
            (b'H', RowName::Of(key.as_str(), session.as_bytes()), row.is_some())
        }
        Change::SharedDelay(key, row) => (b'D', RowName::Text(key.as_str()), row.is_some()),
        Change::Agent(number, row) => (b'a', RowName::Number(number.0.into()), row.is_some()),
        Change::Reply(agent, sequence, row) => {
            (REPLY, RowName::Numbers(agent.0.into(), *sequence), row.is_some())
        }
        Change::Loss(address, row) => (b'l', RowName::Number(*address), row.is_some()),
        Change::TableIndex(table, _) => (b'i', RowName::Number(table_number(*table)), true),
        Change::Fence(_) => (b'f', RowName::Only, true),
        Change::LastAgent(_) => (b'g', RowName::Only, true),
        Change::IndexBase(_) => (b'b', RowName::Only, true),
        Change::ClusterId(_) => (CLUSTER_ID, RowName::Only, true),
        Change::Server(id, row) => (b'q', RowName::Number(id.0), row.is_some()),
        Change::LastServer(_) => (b'h', RowName::Only, true),
        Change::Autopilot(..) => (b'o', RowName::Only, true),
        Change::RestorePart(id, part, rows) => {
            (RESTORE_PART, RowName::Numbers(*id, u64::from(*part)), rows.is_some())
        }
        Change::LowestSequence(agent, _) => (b'w', RowName::Number(agent.0.into()), true),
        Change::NodeIndex(node, row) => (b'x', RowName::Text(node.as_str()), row.is_some()),
        Change::Format(_) => (b'm', RowName::Only, true),
        Change::ForgottenTombstones(_) => (b'y', RowName::Only, true),
        Change::LeaseKey(_) => (b'z', RowName::Only, true),
        Change::GossipKey(_) => (b'j', RowName::Only, true),
        Change::Coordinate(node, row) => (b'C', RowName::Text(node.as_str()), row.is_some()),
        Change::PreparedQuery(id, row) => (b'A', RowName::Uuid(id.as_bytes()), row.is_some()),
        Change::Binding(node, id, row) => (b'B', RowName::Of(node.as_str(), id.as_bytes()), row.is_some()),
        Change::Deadlocks(_) => (b'W', RowName::Only, true),
        Change::OperatorHosts(_) => (b'O', RowName::Only, true),
        Change::AclSettings(_) => (b'S', RowName::Only, true),
        Change::Token(accessor, row) => (b'T', RowName::Text(accessor), row.is_some()),
        Change::Policy(id, row) => (b'P', RowName::Text(id), row.is_some()),
        Change::Role(id, row) => (b'L', RowName::Text(id), row.is_some()),
        Change::AuthMethod(name, row) => (b'M', RowName::Text(name), row.is_some()),
        Change::BindingRule(id, row) => (b'U', RowName::Text(id), row.is_some()),
        Change::Cleared | Change::TreeDeleted(_) => return None,
    };
    Some((RowAddress(kind, name), present))
}

impl RowAddress<'_> {
    fn key(&self) -> RowKey {
        let Self(kind, name) = self;
        match name {
            RowName::Only => numbered(*kind, &[]),
            RowName::Uuid(bytes) => RowKey([&[*kind], &bytes[..]].concat()),
            RowName::Text(name) => named(*kind, name),
            RowName::Texts(first, second) => paired(*kind, first, second),
            RowName::Of(name, id) => {
                let mut key = named(*kind, name);
                key.0.extend_from_slice(&id[..]);
                key
            }
            RowName::InQueue(key, queue_position) => in_queue(*kind, key, *queue_position),
            RowName::Number(number) => numbered(*kind, &[*number]),
            RowName::Numbers(first, second) => numbered(*kind, &[*first, *second]),
        }
    }
}

/// Returns the key of the row that a change sets or removes; `None` for a change of many rows.
#[cfg(any(test, feature = "testing"))]
pub(super) fn key(change: &Change) -> Option<RowKey> {
    address(change).map(|(address, _)| address.key())
}

/// Returns the key of the row that holds the cluster's id.
pub(super) fn cluster_id_key() -> RowKey {
    numbered(CLUSTER_ID, &[])
}

/// Returns `true` if a row of the checkpoint is stored under its own key.
pub(super) fn is_key_of(key: &[u8], row: &Change) -> bool {
    address(row).is_some_and(|(address, present)| present && address.key().0 == key)
}

/// Encodes a row of the checkpoint: the change that sets it, behind the version of its format.
pub(super) fn encode(change: &Change) -> Vec<u8> {
    format::encode(change)
}

fn named(kind: u8, name: &str) -> RowKey {
    let mut key = Vec::with_capacity(1 + name.len());
    key.push(kind);
    key.extend_from_slice(name.as_bytes());
    RowKey(key)
}

/// The first name's length comes first, since a name may contain any byte.
fn paired(kind: u8, first: &str, second: &str) -> RowKey {
    let mut key = Vec::with_capacity(9 + first.len() + second.len());
    key.push(kind);
    key.extend_from_slice(&(first.len() as u64).to_be_bytes());
    key.extend_from_slice(first.as_bytes());
    key.extend_from_slice(second.as_bytes());
    RowKey(key)
}

/// The queue position has a fixed length, so it can follow a name that may contain any byte.
fn in_queue(kind: u8, key: &str, queue_position: LogIndex) -> RowKey {
    let mut row = named(kind, key);
    row.0.extend_from_slice(&queue_position.0.to_be_bytes());
    row
}

/// Big-endian, so that rows are in the order of their numbers.
fn numbered(kind: u8, numbers: &[u64]) -> RowKey {
    let mut key = vec![kind];
    for number in numbers {
        key.extend_from_slice(&number.to_be_bytes());
    }
    RowKey(key)
}

fn table_number(table: Table) -> u64 {
    match table {
        Table::Entries => 0,
        Table::Tombstones => 1,
        Table::Sessions => 2,
        Table::Nodes => 3,
        Table::Services => 4,
        Table::Checks => 5,
        Table::NodeDeletions => 6,
        Table::Coordinates => 7,
        Table::PreparedQueries => 8,
        Table::Tokens => 9,
        Table::Policies => 10,
        Table::Roles => 11,
        Table::AclSettings => 12,
        Table::AuthMethods => 13,
    }
}

/// The maximum number of changes of one turn that are sorted in that turn.
const SORTED_AT_ONCE: usize = 8_192;
/// The number of unsorted changes that forces sorting, if no checkpoint does it first.
const UNSORTED_MAX: usize = 100_000;

/// The rows changed since the last checkpoint, with the newest content of each. No larger than the
/// state.
///
/// Every write of the server passes through here, so it must be cheap: rows are unordered until a
/// checkpoint needs them, and a row that was set and removed in between is left out.
#[derive(Clone, Debug, Default)]
pub struct DirtyRows {
    /// `true` if every row that is not listed here was removed.
    cleared: bool,
    rows: HashSet<DirtyRow>,
    /// The prefixes whose keys and tombstones were all deleted, each with the number of that
    /// change.
    trees: BTreeMap<Key, u64>,
    /// The number of changes so far.
    taken: u64,
    /// Batches of many changes, and all later ones: sorted into the rows by the writing thread.
    unsorted: Vec<Vec<Change>>,
    /// The number of these changes.
    unsorted_len: usize,
    /// The server's own memory. Not a row: it differs from server to server.
    own: Option<OwnMemory>,
}

/// The newest content of a row. Compared by the row's key: two contents of the same row are equal.
#[derive(Clone, Debug)]
struct DirtyRow {
    /// The change that sets or removes it; never [`Change::Cleared`].
    change: Change,
    /// `true` if the checkpoint certainly has no row under its key.
    is_new: bool,
    /// The number of the change.
    number: u64,
}

impl DirtyRow {
    fn address(&self) -> RowAddress<'_> {
        let (address, _) = address(&self.change).expect("it is of one row");
        address
    }

    fn is_present(&self) -> bool {
        address(&self.change).is_some_and(|(_, present)| present)
    }

    fn listed(&self) -> (RowKey, Option<&Change>) {
        (self.address().key(), self.is_present().then_some(&self.change))
    }
}

impl PartialEq for DirtyRow {
    fn eq(&self, other: &Self) -> bool {
        self.address() == other.address()
    }
}

impl Eq for DirtyRow {}

impl Hash for DirtyRow {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.address().hash(state);
    }
}

impl CheckpointRows for DirtyRows {
    /// Large batches are stored unsorted, which costs nothing in the turn.
    fn record_all(&mut self, changes: Vec<Change>) {
        let are_many = changes.len() > SORTED_AT_ONCE || !self.unsorted.is_empty();
        // Beyond a limit they are sorted here, or they would take more memory than the state.
        if are_many && self.unsorted_len < UNSORTED_MAX {
            self.unsorted_len += changes.len();
            self.unsorted.extend((!changes.is_empty()).then_some(changes));
        } else {
            self.sort();
            changes.into_iter().for_each(|change| self.sort_in(change));
        }
    }

    fn remember(&mut self, own: &OwnMemory) {
        self.own = Some(own.clone());
    }

    /// Reserves room for as many rows again.
    fn take(&mut self) -> Self {
        let rows = HashSet::with_capacity(self.rows.len());
        std::mem::replace(self, Self { rows, ..Self::default() })
    }

    fn row_count(&self) -> usize {
        let rows = self.rows.len() + self.trees.len() + self.unsorted_len;
        rows.max(usize::from(self.cleared))
    }

    fn absorb(&mut self, mut later: Self) {
        // Before the two are joined: unsorted changes have no number among the others yet.
        later.sort();
        // The later value is newer; the earlier one is kept only if it is absent.
        later.own = later.own.or(self.own.take());
        if later.cleared {
            *self = later;
            return;
        }
        self.own = later.own;
        self.sort();
        // Numbers continue behind the earlier ones, so that a tree deleted later still overrides a
        // row set before it.
        let before = self.taken;
        self.taken += later.taken;
        self.trees.extend(later.trees.into_iter().map(|(prefix, number)| (prefix, before + number)));
        later.rows.into_iter().for_each(|row| self.put(DirtyRow { number: before + row.number, ..row }));
    }
}

impl DirtyRows {
    /// Adds a change, in log order.
    pub fn record(&mut self, change: Change) {
        self.sort();
        self.sort_in(change);
    }

    /// Sorts the unsorted changes.
    pub(super) fn sort(&mut self) {
        self.unsorted_len = 0;
        std::mem::take(&mut self.unsorted).into_iter().flatten().for_each(|change| self.sort_in(change));
    }

    fn sort_in(&mut self, change: Change) {
        self.taken += 1;
        match change {
            Change::Cleared => {
                self.cleared = true;
                self.trees.clear();
                self.rows.clear();
            }
            // Earlier rows under it stay until they are listed: a search here would be too slow.
            Change::TreeDeleted(prefix) => drop(self.trees.insert(prefix, self.taken)),
            change => {
                let is_new = is_made_once(&change);
                self.put(DirtyRow { change, is_new, number: self.taken });
            }
        }
    }

    fn put(&mut self, row: DirtyRow) {
        if row.is_present() {
            // New only if the checkpoint does not hold it. It would if the row was removed and set
            // again within one checkpoint.
            let is_new = row.is_new && !self.rows.contains(&row);
            self.rows.replace(DirtyRow { is_new, ..row });
            return;
        }
        let before = self.rows.take(&row);
        // A row that was set and removed between two checkpoints is left out.
        let is_in_checkpoint = !self.cleared && !before.is_some_and(|before| before.is_new);
        if is_in_checkpoint {
            self.rows.insert(DirtyRow { is_new: false, ..row });
        }
    }

    /// Returns `true` if a checkpoint would change no row.
    pub fn is_empty(&self) -> bool {
        self.row_count() == 0
    }

    /// Returns the server's own memory, if it is to be kept.
    pub fn own(&self) -> Option<&OwnMemory> {
        self.own.as_ref()
    }

    /// Returns `true` if the checkpoint is emptied before the rows are written.
    pub(super) fn cleared(&self) -> bool {
        self.cleared
    }

    /// Returns the ranges in which all rows are to be removed, before any is written.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<RowKey>> {
        self.trees.keys().flat_map(|prefix| ranges_of(prefix.as_str()))
    }

    /// Returns the rows in the order of their keys, once they are sorted; `None` for one that is to
    /// be removed.
    pub(super) fn rows(&self) -> Vec<(RowKey, Option<&Change>)> {
        let mut rows: Vec<_> = self.standing().map(DirtyRow::listed).collect();
        rows.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        rows
    }

    /// Returns the rows except those that were deleted with a tree later.
    fn standing(&self) -> impl Iterator<Item = &DirtyRow> {
        debug_assert!(self.unsorted.is_empty(), "rows are sorted before they are listed");
        let lengths: BTreeSet<usize> = self.trees.keys().map(|prefix| prefix.as_str().len()).collect();
        self.rows.iter().filter(move |row| !self.went_with_a_tree(row, &lengths))
    }

    /// Returns changes with the same effect on a state in memory as the rows have on its
    /// checkpoint.
    #[cfg(any(test, feature = "testing"))]
    pub fn into_changes(mut self) -> Vec<Change> {
        self.sort();
        let all = self.cleared.then_some(Change::Cleared);
        let trees = self.trees.keys().cloned().map(Change::TreeDeleted);
        let mut rows: Vec<_> = self.standing().collect();
        rows.sort_unstable_by_key(|row| row.address().key());
        all.into_iter().chain(trees).chain(rows.into_iter().map(|row| row.change.clone())).collect()
    }
}

impl DirtyRows {
    /// Returns `true` if everything under a prefix of the row's key was deleted later.
    fn went_with_a_tree(&self, row: &DirtyRow, lengths: &BTreeSet<usize>) -> bool {
        let (Change::Entry(key, _) | Change::Tombstone(key, _)) = &row.change else { return false };
        let mut prefixes = lengths.iter().filter_map(|length| key.as_str().get(..*length));
        prefixes.any(|prefix| self.trees.get(prefix).is_some_and(|number| *number > row.number))
    }
}

/// Returns `true` if a row of this kind is only set if absent, and never changed until it is
/// removed: a guarantee of the state.
fn is_made_once(change: &Change) -> bool {
    matches!(change, Change::Session(..) | Change::Reply(..) | Change::Loss(..))
}

impl Extend<Change> for DirtyRows {
    fn extend<T: IntoIterator<Item = Change>>(&mut self, changes: T) {
        changes.into_iter().for_each(|change| self.record(change));
    }
}
