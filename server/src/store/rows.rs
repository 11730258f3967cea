//! How a [`Change`] becomes a row of the image, and what changed since the last checkpoint.
//!
//! **Invariant:** equal rows have equal keys, different rows different ones: a row's key is a letter for its
//! kind, then the parts of its name. Keys never change their form within a format version.

use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::id::LogIndex;
use lockmesh_protocol::wire::encode_into;
use std::collections::BTreeMap;

/// A row's place in the image.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RowKey(pub(super) Vec<u8>);

/// The kind of the rows that a restore is gathering.
pub(super) const RESTORE_PART: u8 = b'r';

/// What a change does to the image.
pub(super) enum Effect {
    /// Sets the row, or removes it.
    Row(RowKey, bool),
    /// Removes every row.
    Clear,
}

/// What a change does to the image.
pub(super) fn effect(change: &Change) -> Effect {
    let (key, present) = match change {
        Change::Entry(key, row) => (named(b'e', key.as_str()), row.is_some()),
        Change::Session(id, row) => (named(b's', id.as_str()), row.is_some()),
        Change::Node(name, row) => (named(b'n', name.as_str()), row.is_some()),
        Change::Service(node, id, row) => (paired(b'v', node.as_str(), id.as_str()), row.is_some()),
        Change::Check(node, id, row) => (paired(b'c', node.as_str(), id.as_str()), row.is_some()),
        Change::Tombstone(key, row) => (named(b't', key.as_str()), row.is_some()),
        Change::LockDelay(key, row) => (named(b'd', key.as_str()), row.is_some()),
        Change::Waiter(key, ticket, row) => (in_queue(key.as_str(), *ticket), row.is_some()),
        Change::Agent(number, row) => (numbered(b'a', &[u64::from(number.0)]), row.is_some()),
        Change::Reply(agent, sequence, row) => {
            (numbered(b'p', &[u64::from(agent.0), *sequence]), row.is_some())
        }
        Change::Loss(place, row) => (numbered(b'l', &[*place]), row.is_some()),
        Change::TableIndex(table, _) => (numbered(b'i', &[table_number(*table)]), true),
        Change::Fence(_) => (numbered(b'f', &[]), true),
        Change::LastAgent(_) => (numbered(b'g', &[]), true),
        Change::IndexBase(_) => (numbered(b'b', &[]), true),
        Change::ClusterId(_) => (numbered(b'u', &[]), true),
        Change::Server(id, row) => (numbered(b'q', &[id.0]), row.is_some()),
        Change::LastServer(_) => (numbered(b'h', &[]), true),
        Change::Autopilot(..) => (numbered(b'o', &[]), true),
        Change::RestorePart(id, part, rows) => {
            (numbered(RESTORE_PART, &[*id, u64::from(*part)]), rows.is_some())
        }
        Change::LowestSequence(agent, _) => (numbered(b'w', &[u64::from(agent.0)]), true),
        Change::NodeIndex(node, row) => (named(b'x', node.as_str()), row.is_some()),
        Change::Cleared => return Effect::Clear,
    };
    Effect::Row(key, present)
}

/// The key of the row that holds the cluster's id.
pub(super) fn cluster_id_key() -> RowKey {
    numbered(b'u', &[])
}

/// What a row of the image holds: the change that sets it.
pub(super) fn encode(change: &Change) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    encode_into(change, &mut bytes);
    bytes
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

/// The ticket is as long in every row, so it can stand behind a name that may hold any byte.
fn in_queue(key: &str, ticket: LogIndex) -> RowKey {
    let mut row = named(b'k', key);
    row.0.extend_from_slice(&ticket.0.to_be_bytes());
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

/// The rows that changed since the last checkpoint, the newest content of each. No larger than the state.
#[derive(Clone, Debug, Default)]
pub struct DirtyRows {
    /// Whether every row that is not listed here is gone.
    cleared: bool,
    /// The newest content of each row; `None` where it is gone.
    rows: BTreeMap<RowKey, Option<Change>>,
}

impl DirtyRows {
    /// Takes a change, in log order.
    pub fn record(&mut self, change: Change) {
        match effect(&change) {
            Effect::Clear => {
                self.cleared = true;
                self.rows.clear();
            }
            // In an image that is cleared first there is nothing to remove.
            Effect::Row(key, false) if self.cleared => {
                self.rows.remove(&key);
            }
            Effect::Row(key, present) => {
                self.rows.insert(key, present.then_some(change));
            }
        }
    }

    /// Takes what changed later.
    pub(super) fn absorb(&mut self, later: DirtyRows) {
        if later.cleared {
            *self = later;
            return;
        }
        for (key, row) in later.rows {
            match row {
                None if self.cleared => drop(self.rows.remove(&key)),
                row => drop(self.rows.insert(key, row)),
            }
        }
    }

    /// How many rows a checkpoint would write.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether a checkpoint would change no row.
    pub fn is_empty(&self) -> bool {
        !self.cleared && self.rows.is_empty()
    }

    /// Whether the image is emptied before the rows are written.
    pub(super) fn cleared(&self) -> bool {
        self.cleared
    }

    /// The rows in the order of their keys; `None` for one that is to be removed.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&RowKey, Option<&Change>)> {
        self.rows.iter().map(|(key, change)| (key, change.as_ref()))
    }
}

impl Extend<Change> for DirtyRows {
    fn extend<T: IntoIterator<Item = Change>>(&mut self, changes: T) {
        for change in changes {
            self.record(change);
        }
    }
}
