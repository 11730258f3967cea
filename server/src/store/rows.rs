//! How a [`Change`] becomes a row of the checkpoint, and what changed since the last checkpoint.
//!
//! **Invariant:** equal rows have equal keys, different rows different ones: a row's key is a
//! letter for its kind, then the parts of its name. Keys never change their form within a format
//! version.

use lockmesh_core::raft::log::OwnMemory;
use lockmesh_core::write_queue::CheckpointRows;
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::format;
use lockmesh_protocol::id::{Key, LogIndex, SessionId};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{Hash, Hasher};
use std::ops::Range;

/// A row's address in the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RowKey(pub(super) Vec<u8>);

/// The kind of the rows that a restore is gathering.
pub(super) const RESTORE_PART: u8 = b'r';
/// The kind of the replies that are kept for agents that ask again.
pub(super) const REPLY: u8 = b'p';
/// The kind of the one row that holds the cluster's id.
const CLUSTER_ID: u8 = b'u';

/// The kinds of rows that go when everything under a prefix is deleted.
const OF_TREES: [u8; 2] = [b'e', b't'];

/// What a change does to the checkpoint: for tests that replay changes one by one.
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

/// Where the rows lie that go when everything under a prefix is deleted.
fn ranges_of(prefix: &str) -> [Range<RowKey>; 2] {
    OF_TREES.map(|kind| {
        let start = named(kind, prefix);
        let mut end = start.clone();
        // A letter or a byte of UTF-8: neither is the last one there is.
        *end.0.last_mut().expect("a key begins with its kind") += 1;
        start..end
    })
}

/// A row's kind and name, as its change holds them: what its key is made of.
#[derive(PartialEq, Eq, Hash)]
struct RowAddress<'a>(u8, RowName<'a>);

#[derive(PartialEq, Eq, Hash)]
enum RowName<'a> {
    Only,
    Session(SessionId),
    Text(&'a str),
    Texts(&'a str, &'a str),
    InQueue(&'a str, LogIndex),
    Number(u64),
    Numbers(u64, u64),
}

/// The row that a change is about, and whether it is there afterwards; none where the change is
/// about many.
fn address(change: &Change) -> Option<(RowAddress<'_>, bool)> {
    let (kind, name, present) = match change {
        Change::Entry(key, row) => (b'e', RowName::Text(key.as_str()), row.is_some()),
        Change::Session(id, row) => (b's', RowName::Session(*id), row.is_some()),
        Change::Node(name, row) => (b'n', RowName::Text(name.as_str()), row.is_some()),
        Change::Service(node, id, row) => (b'v', RowName::Texts(node.as_str(), id.as_str()), row.is_some()),
        Change::Check(node, id, row) => (b'c', RowName::Texts(node.as_str(), id.as_str()), row.is_some()),
        Change::Tombstone(key, row) => (b't', RowName::Text(key.as_str()), row.is_some()),
        Change::LockDelay(key, row) => (b'd', RowName::Text(key.as_str()), row.is_some()),
        Change::Waiter(key, queue_position, row) => {
            (b'k', RowName::InQueue(key.as_str(), *queue_position), row.is_some())
        }
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
        Change::Cleared | Change::TreeDeleted(_) => return None,
    };
    Some((RowAddress(kind, name), present))
}

impl RowAddress<'_> {
    fn key(&self) -> RowKey {
        let Self(kind, name) = self;
        match name {
            RowName::Only => numbered(*kind, &[]),
            RowName::Session(id) => RowKey([&[*kind], &id.as_bytes()[..]].concat()),
            RowName::Text(name) => named(*kind, name),
            RowName::Texts(first, second) => paired(*kind, first, second),
            RowName::InQueue(key, queue_position) => in_queue(*kind, key, *queue_position),
            RowName::Number(number) => numbered(*kind, &[*number]),
            RowName::Numbers(first, second) => numbered(*kind, &[*first, *second]),
        }
    }
}

/// The key of the row that a change sets or removes; none where it is about many.
#[cfg(any(test, feature = "testing"))]
pub(super) fn key(change: &Change) -> Option<RowKey> {
    address(change).map(|(address, _)| address.key())
}

/// The key of the row that holds the cluster's id.
pub(super) fn cluster_id_key() -> RowKey {
    numbered(CLUSTER_ID, &[])
}

/// Whether a row of the checkpoint lies where it belongs.
pub(super) fn is_key_of(key: &[u8], row: &Change) -> bool {
    address(row).is_some_and(|(address, present)| present && address.key().0 == key)
}

/// What a row of the checkpoint holds: the change that sets it, behind the version of its format.
pub(super) fn encode(change: &Change) -> Vec<u8> {
    format::encode(change)
}

fn named(kind: u8, name: &str) -> RowKey {
    let mut key = Vec::with_capacity(1 + name.len());
    key.push(kind);
    key.extend_from_slice(name.as_bytes());
    RowKey(key)
}

/// The first name's length comes first, since a name may hold any byte.
fn paired(kind: u8, first: &str, second: &str) -> RowKey {
    let mut key = Vec::with_capacity(9 + first.len() + second.len());
    key.push(kind);
    key.extend_from_slice(&(first.len() as u64).to_be_bytes());
    key.extend_from_slice(first.as_bytes());
    key.extend_from_slice(second.as_bytes());
    RowKey(key)
}

/// The queue position is as long in every row, so it can stand behind a name that may hold any
/// byte.
fn in_queue(kind: u8, key: &str, queue_position: LogIndex) -> RowKey {
    let mut row = named(kind, key);
    row.0.extend_from_slice(&queue_position.0.to_be_bytes());
    row
}

/// Big-endian, so that rows lie in the order of their numbers.
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
    }
}

/// How many changes of one turn are sorted in that turn.
const SORTED_AT_ONCE: usize = 8_192;
/// After so many that are not, it is done after all: where no checkpoint comes to do it.
const UNSORTED_MAX: usize = 100_000;

/// The rows that changed since the last checkpoint, the newest content of each. No larger than the
/// state.
///
/// Every write of the server passes through here, so it costs little: rows lie in no order until a
/// checkpoint wants one, and a row that came and went in between is not heard of at all.
#[derive(Clone, Debug, Default)]
pub struct DirtyRows {
    /// Whether every row that is not listed here is gone.
    cleared: bool,
    rows: HashSet<DirtyRow>,
    /// The prefixes under which every key and tombstone was deleted, and at which of the changes
    /// that were taken.
    trees: BTreeMap<Key, u64>,
    /// How many changes were taken.
    taken: u64,
    /// Changes of many rows at once, and all that came behind them: sorted into the rows by who
    /// writes them.
    unsorted: Vec<Vec<Change>>,
    /// How many changes these are.
    unsorted_len: usize,
    /// What the server knew for itself. No row: it differs from server to server.
    own: Option<OwnMemory>,
}

/// The newest content of a row. It stands for the row itself: another content of the same row is
/// its equal.
#[derive(Clone, Debug)]
struct DirtyRow {
    /// What sets it or removes it; never [`Change::Cleared`].
    change: Change,
    /// Whether the checkpoint certainly holds nothing under its key.
    is_new: bool,
    /// Which of the changes that were taken it is.
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
    /// Very many are taken as they are, which costs nothing here and now.
    fn record_all(&mut self, changes: Vec<Change>) {
        let are_many = changes.len() > SORTED_AT_ONCE || !self.unsorted.is_empty();
        // Beyond a limit they are sorted here after all, or they would take more memory than the
        // state.
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

    /// Keeps room for as much again.
    fn take(&mut self) -> Self {
        let rows = HashSet::with_capacity(self.rows.len());
        std::mem::replace(self, Self { rows, ..Self::default() })
    }

    fn row_count(&self) -> usize {
        let rows = self.rows.len() + self.trees.len() + self.unsorted_len;
        rows.max(usize::from(self.cleared))
    }

    fn absorb(&mut self, mut later: Self) {
        // Before the two are joined: what is not sorted has no number among the others yet.
        later.sort();
        // The later one knows more; what the server knew before is only kept where it says nothing.
        later.own = later.own.or(self.own.take());
        if later.cleared {
            *self = later;
            return;
        }
        self.own = later.own;
        self.sort();
        // Numbers go on behind the earlier ones, so that a tree deleted later still outranks a row
        // set before it.
        let before = self.taken;
        self.taken += later.taken;
        self.trees.extend(later.trees.into_iter().map(|(prefix, number)| (prefix, before + number)));
        later.rows.into_iter().for_each(|row| self.put(DirtyRow { number: before + row.number, ..row }));
    }
}

impl DirtyRows {
    /// Takes a change, in log order.
    pub fn record(&mut self, change: Change) {
        self.sort();
        self.sort_in(change);
    }

    /// Sorts what was taken as it was.
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
            // Rows under it that came before stay until they are listed: this must not look for
            // them.
            Change::TreeDeleted(prefix) => drop(self.trees.insert(prefix, self.taken)),
            change => {
                let is_new = is_made_once(&change);
                self.put(DirtyRow { change, is_new, number: self.taken });
            }
        }
    }

    fn put(&mut self, row: DirtyRow) {
        if row.is_present() {
            // New only if the checkpoint does not hold it, as it would where it was removed and set
            // again within one checkpoint.
            let is_new = row.is_new && !self.rows.contains(&row);
            self.rows.replace(DirtyRow { is_new, ..row });
            return;
        }
        let before = self.rows.take(&row);
        // A row that came and went between two checkpoints need not be heard of.
        let is_in_checkpoint = !self.cleared && !before.is_some_and(|before| before.is_new);
        if is_in_checkpoint {
            self.rows.insert(DirtyRow { is_new: false, ..row });
        }
    }

    /// Whether a checkpoint would change no row.
    pub fn is_empty(&self) -> bool {
        self.row_count() == 0
    }

    /// What the server knows for itself, if that is to be kept.
    pub fn own(&self) -> Option<&OwnMemory> {
        self.own.as_ref()
    }

    /// Whether the checkpoint is emptied before the rows are written.
    pub(super) fn cleared(&self) -> bool {
        self.cleared
    }

    /// Where all rows are to be removed, before any is written.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<RowKey>> {
        self.trees.keys().flat_map(|prefix| ranges_of(prefix.as_str()))
    }

    /// The rows in the order of their keys, once they are sorted; `None` for one that is to be
    /// removed.
    pub(super) fn rows(&self) -> Vec<(RowKey, Option<&Change>)> {
        let mut rows: Vec<_> = self.standing().map(DirtyRow::listed).collect();
        rows.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        rows
    }

    /// The rows but for those that went with a tree later.
    fn standing(&self) -> impl Iterator<Item = &DirtyRow> {
        debug_assert!(self.unsorted.is_empty(), "rows are sorted before they are listed");
        let lengths: BTreeSet<usize> = self.trees.keys().map(|prefix| prefix.as_str().len()).collect();
        self.rows.iter().filter(move |row| !self.went_with_a_tree(row, &lengths))
    }

    /// What does to a state that is kept in memory what the rows would do to its checkpoint.
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
    /// Whether everything under a prefix of the row's key was deleted later.
    fn went_with_a_tree(&self, row: &DirtyRow, lengths: &BTreeSet<usize>) -> bool {
        let (Change::Entry(key, _) | Change::Tombstone(key, _)) = &row.change else { return false };
        let mut prefixes = lengths.iter().filter_map(|length| key.as_str().get(..*length));
        prefixes.any(|prefix| self.trees.get(prefix).is_some_and(|number| *number > row.number))
    }
}

/// Whether a row of this kind is made only where there is none, and never changed until it goes:
/// the state's promise.
fn is_made_once(change: &Change) -> bool {
    matches!(change, Change::Session(..) | Change::Reply(..) | Change::Loss(..))
}

impl Extend<Change> for DirtyRows {
    fn extend<T: IntoIterator<Item = Change>>(&mut self, changes: T) {
        changes.into_iter().for_each(|change| self.record(change));
    }
}
